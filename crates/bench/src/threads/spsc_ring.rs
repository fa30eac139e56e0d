//! Items through a ring.

use std::{
    hint::black_box,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use inproc::spsc::{Consumer, Discipline, Full, Producer, channel};
use memory::sync::hint;

use super::{BATCH_ITEMS, CAPACITY_ITEMS, Item, QueueError, Ring, Shape, Stage};
use crate::{
    board::{Patience, WaitError},
    stats,
};

/// Items per reading of the clock, many laps: draining what queued up meanwhile gains little.
const CHUNK_ITEMS: u64 = 16 * CAPACITY_ITEMS as u64;
/// Round trips per reading of the clock.
const CHUNK_TRIPS: u64 = 50;
/// Chunks of a sample, at least.
const CHUNKS_MIN: u64 = 4;
/// Longest wait of one side for the other.
const PATIENCE: Duration = Duration::from_secs(5);

/// Rings of exactly [`CAPACITY_ITEMS`] slots: some disciplines keep an eighth in reserve.
fn ring<T: Item, D: Discipline>() -> (Producer<T, D>, Consumer<T, D>) {
    channel(CAPACITY_ITEMS - CAPACITY_ITEMS / 8 + 1)
}

/// One sample: M items/s, or ns per round trip.
pub(super) fn run<T: Item, D: Discipline>(
    ring: Ring,
    stage: Stage<'_>,
    count: u64,
) -> Result<f64, QueueError> {
    let chunks = |items: u64| (count / items).max(CHUNKS_MIN);
    let chunk_ns = match ring.shape {
        Shape::Single => single::<T, D>(stage, chunks(CHUNK_ITEMS))?,
        Shape::Batched => batched::<T, D>(stage, chunks(CHUNK_ITEMS))?,
        Shape::RoundTrip => round_trip::<T, D>(stage, chunks(CHUNK_TRIPS))?,
    };
    Ok(match ring.shape {
        Shape::Single | Shape::Batched => CHUNK_ITEMS as f64 / chunk_ns * 1e3,
        Shape::RoundTrip => chunk_ns / CHUNK_TRIPS as f64,
    })
}

/// Runs `first` on core 0 of the stage and `second` on core 1; the median of the times between the
/// instants that `second` returns, in ns.
fn both(
    stage: Stage<'_>,
    first: impl FnOnce(&mut Patience<'_>) -> Result<(), QueueError> + Send,
    second: impl FnOnce(&mut Patience<'_>) -> Result<Vec<Instant>, QueueError> + Send,
) -> Result<f64, QueueError> {
    let barrier = &Barrier::new(2);
    let (sent, times) = thread::scope(|scope| {
        // Each thread owns its end: on one stack the two would share cache lines.
        let first = scope.spawn(move || {
            let first = first;
            let entered = stage.enter(0);
            barrier.wait();
            stage.leave(entered.and_then(|()| first(&mut stage.board.patience(PATIENCE))))
        });
        let second = scope.spawn(move || {
            let second = second;
            let entered = stage.enter(1);
            barrier.wait();
            stage.leave(entered.and_then(|()| second(&mut stage.board.patience(PATIENCE))))
        });
        (first.join().expect("no panics"), second.join().expect("no panics"))
    });
    // One side that failed ends the other, which then knows nothing but that.
    let times = match (sent, times) {
        (Err(cause), Err(QueueError::Wait(WaitError::PeerFailed))) => return Err(cause),
        (sent, times) => {
            let times: Vec<Instant> = times?;
            sent?;
            times
        }
    };
    let between = times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64() * 1e9);
    Ok(stats::median(&mut between.collect::<Vec<_>>()))
}

#[inline]
fn push<T: Item, D: Discipline>(
    producer: &mut Producer<T, D>,
    mut item: T,
    patience: &mut Patience<'_>,
) -> Result<(), WaitError> {
    while let Err(Full(back)) = producer.push(item) {
        item = back;
        hint::spin_loop();
        patience.wait()?;
    }
    Ok(())
}

#[inline]
fn pop<T: Item, D: Discipline>(
    consumer: &mut Consumer<T, D>,
    patience: &mut Patience<'_>,
) -> Result<T, WaitError> {
    loop {
        if let Some(item) = consumer.pop() {
            return Ok(item);
        }
        hint::spin_loop();
        patience.wait()?;
    }
}

#[inline]
fn check<T: Item>(item: T, number: u64) -> Result<(), QueueError> {
    if item == T::new(number) { Ok(()) } else { Err(QueueError::WrongItem { number }) }
}

fn single<T: Item, D: Discipline>(stage: Stage<'_>, chunks: u64) -> Result<f64, QueueError> {
    let (mut producer, mut consumer) = ring::<T, D>();
    let pushing = move |patience: &mut Patience<'_>| {
        for number in 0..chunks * CHUNK_ITEMS {
            push(&mut producer, T::new(number), patience)?;
        }
        Ok(())
    };
    let popping = move |patience: &mut Patience<'_>| {
        let mut times = Vec::with_capacity(4096);
        times.push(Instant::now());
        for chunk in 0..chunks {
            patience.progress();
            for number in chunk * CHUNK_ITEMS..(chunk + 1) * CHUNK_ITEMS {
                check(pop(&mut consumer, patience)?, number)?;
            }
            times.push(Instant::now());
        }
        Ok(times)
    };
    both(stage, pushing, popping)
}

fn batched<T: Item, D: Discipline>(stage: Stage<'_>, chunks: u64) -> Result<f64, QueueError> {
    let (mut producer, mut consumer) = ring::<T, D>();
    let pushing = move |patience: &mut Patience<'_>| {
        for first in (0..chunks * CHUNK_ITEMS).step_by(BATCH_ITEMS) {
            let batch: [T; BATCH_ITEMS] = core::array::from_fn(|k| T::new(first + k as u64));
            let mut rest = &black_box(&batch)[..];
            loop {
                rest = &rest[producer.push_slice(rest)..];
                if rest.is_empty() {
                    break;
                }
                hint::spin_loop();
                patience.wait()?;
            }
        }
        Ok(())
    };
    let popping = move |patience: &mut Patience<'_>| {
        let mut times = Vec::with_capacity(4096);
        times.push(Instant::now());
        let mut batch = [T::default(); BATCH_ITEMS];
        let (mut next, mut boundary) = (0, CHUNK_ITEMS);
        while next < chunks * CHUNK_ITEMS {
            let count = consumer.pop_slice(&mut batch);
            for &item in &black_box(&batch)[..count] {
                check(item, next)?;
                next += 1;
            }
            if next >= boundary {
                patience.progress();
                times.push(Instant::now());
                boundary += CHUNK_ITEMS;
            } else if count == 0 {
                hint::spin_loop();
                patience.wait()?;
            }
        }
        Ok(times)
    };
    both(stage, pushing, popping)
}

fn round_trip<T: Item, D: Discipline>(stage: Stage<'_>, chunks: u64) -> Result<f64, QueueError> {
    let (mut ask, mut asked) = ring::<T, D>();
    let (mut answer, mut answered) = ring::<T, D>();
    let answering = move |patience: &mut Patience<'_>| {
        for _ in 0..chunks * CHUNK_TRIPS {
            let item = pop(&mut asked, patience)?;
            patience.progress();
            push(&mut answer, T::new(item.number() + 1), patience)?;
        }
        Ok(())
    };
    let asking = move |patience: &mut Patience<'_>| {
        let mut times = Vec::with_capacity(4096);
        times.push(Instant::now());
        for chunk in 0..chunks {
            patience.progress();
            for number in chunk * CHUNK_TRIPS..(chunk + 1) * CHUNK_TRIPS {
                push(&mut ask, T::new(number), patience)?;
                check(pop(&mut answered, patience)?, number + 1)?;
            }
            times.push(Instant::now());
        }
        Ok(times)
    };
    both(stage, answering, asking)
}
