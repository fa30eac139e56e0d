//! Items through a ring.

use std::{hint::black_box, sync::Barrier, thread, time::Duration};

use inproc::spsc::{Consumer, Discipline, Producer, channel};
use memory::Line;

use super::{BATCH_ITEMS, CAPACITY_ITEMS, Item, Shape, ThreadSetup};
use crate::{
    error::Error,
    shared_words::{Patience, WaitError},
    stats::Laps,
};

/// A bounded queue between two threads, whose both sides pause when they find it full or empty.
pub trait Queue: 'static {
    /// Its name in tables.
    const NAME: &'static str;
    /// Whether both sides move slices.
    const HAS_SLICES: bool = false;

    /// The end that pushes.
    type Tx<T: Item>: Send;
    /// The end that pops.
    type Rx<T: Item>: Send;

    /// A queue of [`CAPACITY_ITEMS`].
    fn channel<T: Item>() -> (Self::Tx<T>, Self::Rx<T>);

    /// False if full.
    fn push<T: Item>(tx: &mut Self::Tx<T>, item: T) -> bool;

    /// The next item, if there is one.
    fn pop<T: Item>(rx: &mut Self::Rx<T>) -> Option<T>;

    /// How many of `items` there was room for.
    fn push_slice<T: Item>(_tx: &mut Self::Tx<T>, _items: &[T]) -> usize {
        unreachable!("asked only where HAS_SLICES")
    }

    /// How many were there.
    fn pop_slice<T: Item>(_rx: &mut Self::Rx<T>, _items: &mut [T]) -> usize {
        unreachable!("asked only where HAS_SLICES")
    }
}

impl<D: Discipline> Queue for D {
    const NAME: &'static str = "copyrpc";
    const HAS_SLICES: bool = true;
    type Tx<T: Item> = Producer<T, D>;
    type Rx<T: Item> = Consumer<T, D>;

    /// Exactly as many slots: some disciplines keep an eighth in reserve.
    fn channel<T: Item>() -> (Producer<T, D>, Consumer<T, D>) {
        channel(CAPACITY_ITEMS - CAPACITY_ITEMS / 8 + 1)
    }

    #[inline(always)]
    fn push<T: Item>(tx: &mut Producer<T, D>, item: T) -> bool {
        tx.push(item).is_ok()
    }

    #[inline(always)]
    fn pop<T: Item>(rx: &mut Consumer<T, D>) -> Option<T> {
        rx.pop()
    }

    #[inline(always)]
    fn push_slice<T: Item>(tx: &mut Producer<T, D>, items: &[T]) -> usize {
        tx.push_slice(items)
    }

    #[inline(always)]
    fn pop_slice<T: Item>(rx: &mut Consumer<T, D>, items: &mut [T]) -> usize {
        rx.pop_slice(items)
    }
}

/// Items per reading of the clock, many laps: draining what queued up meanwhile gains little.
const CHUNK_ITEMS: u64 = 16 * CAPACITY_ITEMS as u64;
/// Round trips per reading of the clock.
const CHUNK_TRIPS: u64 = 50;
/// Chunks of a sample, at least.
const CHUNKS_MIN: u64 = 4;
/// Longest wait of one side for the other.
const PATIENCE: Duration = Duration::from_secs(30);

/// One sample: M items/s, or ns per round trip.
///
/// # Errors
///
/// [`Error`], wrong items included.
pub fn run<T: Item, Q: Queue>(
    shape: Shape,
    stage: ThreadSetup<'_>,
    count: u64,
) -> Result<f64, Error> {
    stage.shared.reset();
    let chunks = |items: u64| (count / items).max(CHUNKS_MIN);
    match shape {
        Shape::Single => Ok(1e3 / single::<T, Q>(stage, chunks(CHUNK_ITEMS))?),
        Shape::Batched => Ok(1e3 / batched::<T, Q>(stage, chunks(CHUNK_ITEMS))?),
        Shape::RoundTrip => round_trip::<T, Q>(stage, chunks(CHUNK_TRIPS)),
    }
}

/// What one thread does: it is called once per sample, so it need not be compiled together with the thread.
type Side<'a, T> = Box<dyn FnOnce(&mut Patience<'_>) -> Result<T, Error> + Send + 'a>;

/// Runs `first` on core 0 of the stage and `second` on core 1; the median lap of the second, in ns per item.
fn both(stage: ThreadSetup<'_>, first: Side<'_, ()>, second: Side<'_, Laps>) -> Result<f64, Error> {
    let barrier = &Barrier::new(2);
    let (sent, laps) = thread::scope(|scope| {
        let first = scope.spawn(move || {
            let entered = stage.enter(0);
            barrier.wait();
            stage.leave(entered.and_then(|()| first(&mut stage.shared.patience(PATIENCE))))
        });
        let second = scope.spawn(move || {
            let entered = stage.enter(1);
            barrier.wait();
            stage.leave(entered.and_then(|()| second(&mut stage.shared.patience(PATIENCE))))
        });
        (first.join().expect("no panics"), second.join().expect("no panics"))
    });
    // One side that failed ends the other, which then knows nothing but that.
    match (sent, laps) {
        (Err(cause), Err(Error::Wait(WaitError::PeerFailed))) => Err(cause),
        (sent, laps) => {
            let laps = laps?;
            sent?;
            Ok(laps.median_ns())
        }
    }
}

/// They share no cache line, wherever they lie.
type Ends<T, Q> = (Line<<Q as Queue>::Tx<T>>, Line<<Q as Queue>::Rx<T>>);

fn ends<T: Item, Q: Queue>() -> Ends<T, Q> {
    let (tx, rx) = Q::channel::<T>();
    (Line(tx), Line(rx))
}

#[inline]
fn push<T: Item, Q: Queue>(
    tx: &mut Q::Tx<T>,
    item: T,
    patience: &mut Patience<'_>,
) -> Result<(), WaitError> {
    while !Q::push(tx, item) {
        patience.pause()?;
    }
    Ok(())
}

#[inline]
fn pop<T: Item, Q: Queue>(rx: &mut Q::Rx<T>, patience: &mut Patience<'_>) -> Result<T, WaitError> {
    loop {
        if let Some(item) = Q::pop(rx) {
            return Ok(item);
        }
        patience.pause()?;
    }
}

#[inline]
fn check<T: Item>(item: T, number: u64) -> Result<(), Error> {
    if item == T::new(number) {
        return Ok(());
    }
    let (what, found) = ("the words of item", item.number());
    Err(Error::Wrong { index: number, what, found, expected: number })
}

fn single<T: Item, Q: Queue>(stage: ThreadSetup<'_>, chunks: u64) -> Result<f64, Error> {
    let (tx, rx) = ends::<T, Q>();
    let pushing = move |patience: &mut Patience<'_>| {
        let tx = &mut { tx }.0;
        for number in 0..chunks * CHUNK_ITEMS {
            push::<T, Q>(tx, T::new(number), patience)?;
        }
        Ok(())
    };
    let popping = move |patience: &mut Patience<'_>| {
        let rx = &mut { rx }.0;
        let mut laps = Laps::start();
        for chunk in 0..chunks {
            patience.progress();
            for number in chunk * CHUNK_ITEMS..(chunk + 1) * CHUNK_ITEMS {
                check(pop::<T, Q>(rx, patience)?, number)?;
            }
            laps.lap(CHUNK_ITEMS);
        }
        Ok(laps)
    };
    both(stage, Box::new(pushing), Box::new(popping))
}

fn batched<T: Item, Q: Queue>(stage: ThreadSetup<'_>, chunks: u64) -> Result<f64, Error> {
    let (tx, rx) = ends::<T, Q>();
    let pushing = move |patience: &mut Patience<'_>| {
        let tx = &mut { tx }.0;
        for first in (0..chunks * CHUNK_ITEMS).step_by(BATCH_ITEMS) {
            let batch: [T; BATCH_ITEMS] = core::array::from_fn(|k| T::new(first + k as u64));
            let mut rest = &black_box(&batch)[..];
            loop {
                rest = &rest[Q::push_slice(tx, rest)..];
                if rest.is_empty() {
                    break;
                }
                patience.pause()?;
            }
        }
        Ok(())
    };
    let popping = move |patience: &mut Patience<'_>| {
        let rx = &mut { rx }.0;
        let mut laps = Laps::start();
        let mut batch = [T::default(); BATCH_ITEMS];
        let (mut next, mut boundary) = (0, CHUNK_ITEMS);
        while next < chunks * CHUNK_ITEMS {
            let count = Q::pop_slice(rx, &mut batch);
            for &item in &black_box(&batch)[..count] {
                check(item, next)?;
                next += 1;
            }
            if next >= boundary {
                patience.progress();
                laps.lap(CHUNK_ITEMS);
                boundary += CHUNK_ITEMS;
            } else if count == 0 {
                patience.pause()?;
            }
        }
        Ok(laps)
    };
    both(stage, Box::new(pushing), Box::new(popping))
}

fn round_trip<T: Item, Q: Queue>(stage: ThreadSetup<'_>, chunks: u64) -> Result<f64, Error> {
    let (ask, asked) = ends::<T, Q>();
    let (answer, answered) = ends::<T, Q>();
    let answering = move |patience: &mut Patience<'_>| {
        let (asked, answer) = (&mut { asked }.0, &mut { answer }.0);
        for _ in 0..chunks * CHUNK_TRIPS {
            let item = pop::<T, Q>(asked, patience)?;
            patience.progress();
            push::<T, Q>(answer, T::new(item.number() + 1), patience)?;
        }
        Ok(())
    };
    let asking = move |patience: &mut Patience<'_>| {
        let (ask, answered) = (&mut { ask }.0, &mut { answered }.0);
        let mut laps = Laps::start();
        for chunk in 0..chunks {
            patience.progress();
            for number in chunk * CHUNK_TRIPS..(chunk + 1) * CHUNK_TRIPS {
                push::<T, Q>(ask, T::new(number), patience)?;
                check(pop::<T, Q>(answered, patience)?, number + 1)?;
            }
            laps.lap(CHUNK_TRIPS);
        }
        Ok(laps)
    };
    both(stage, Box::new(answering), Box::new(asking))
}
