//! Cost of moving items between two threads, in each discipline.
//!
//! - `throughput`: wall time per item, from the first push to the last pop; single items, and batches
//!   of 32 (reserve and commit, pop into a slice).
//! - `round_trip`: one item there and one back over two rings.
//!
//! Items of 8 and 64 bytes; the consumer checks each. Both threads are pinned, to the first two cores
//! allowed, where there are two; otherwise the numbers are meaningless. Smoke mode:
//! `cargo test --benches`. Designed line transfers: see the disciplines' documentation.
#![allow(missing_docs, reason = "criterion_group! makes an undocumented function")]

use std::{hint, sync::Barrier, thread, time::Duration, time::Instant};

use copyrpc_inproc::spsc::{Discipline, FastForward, Lamport, Onesided, channel};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const CAPACITY: usize = 1024;
const BATCH: usize = 32;

/// What travels: numbered, so that each is checked.
trait Item: Copy + Default + Send {
    fn new(number: u64) -> Self;
    fn number(&self) -> u64;
}

impl Item for u64 {
    fn new(number: u64) -> Self {
        number
    }

    fn number(&self) -> u64 {
        *self
    }
}

impl Item for [u64; 8] {
    fn new(number: u64) -> Self {
        [number; 8]
    }

    fn number(&self) -> u64 {
        assert_eq!(self[0], self[7]);
        self[7]
    }
}

fn pin(place: usize) {
    if let Some(&core) = os::affinity::allowed_cores().unwrap_or_default().get(place) {
        // Unpinned numbers are worse, not wrong.
        let _ = os::affinity::pin_current_thread(core);
    }
}

/// Runs both sides at once; the time from the start of `push` to the end of `pop`.
fn timed(push: impl FnOnce() + Send, pop: impl FnOnce() + Send) -> Duration {
    let barrier = &Barrier::new(2);
    thread::scope(|scope| {
        // Each thread owns its end: on one stack the two would share cache lines.
        let pusher = scope.spawn(move || {
            let push = push;
            pin(0);
            barrier.wait();
            let start = Instant::now();
            push();
            start
        });
        let popper = scope.spawn(move || {
            let pop = pop;
            pin(1);
            barrier.wait();
            pop();
            Instant::now()
        });
        popper.join().unwrap() - pusher.join().unwrap()
    })
}

fn single<T: Item, D: Discipline>(items: u64) -> Duration {
    let (mut producer, mut consumer) = channel::<T, D>(CAPACITY);
    let push = move || {
        for i in 0..items {
            while producer.push(T::new(i)).is_err() {}
        }
    };
    let pop = move || {
        for i in 0..items {
            let item = loop {
                if let Some(item) = consumer.pop() {
                    break item;
                }
            };
            assert_eq!(item.number(), i);
        }
    };
    timed(push, pop)
}

fn batched<T: Item, D: Discipline>(items: u64) -> Duration {
    let (mut producer, mut consumer) = channel::<T, D>(CAPACITY);
    let push = move || {
        let mut next = 0;
        while next < items {
            let mut reservation = producer.reserve(BATCH);
            reservation.extend((next..items).map(T::new));
            next += reservation.commit() as u64;
        }
    };
    let pop = move || {
        let mut next = 0;
        let mut got = [T::default(); BATCH];
        while next < items {
            let count = consumer.pop_slice(&mut got);
            for item in &got[..count] {
                assert_eq!(item.number(), next);
                next += 1;
            }
        }
    };
    timed(push, pop)
}

fn round_trip<T: Item, D: Discipline>(items: u64) -> Duration {
    let (mut ask, mut asked) = channel::<T, D>(CAPACITY);
    let (mut answer, mut answered) = channel::<T, D>(CAPACITY);
    let client = move || {
        for i in 0..items {
            ask.push(T::new(i)).expect("one at a time");
            let item = loop {
                match answered.pop() {
                    Some(item) => break item,
                    None => hint::spin_loop(),
                }
            };
            assert_eq!(item.number(), i + 1);
        }
    };
    let server = move || {
        for _ in 0..items {
            let item = loop {
                match asked.pop() {
                    Some(item) => break item,
                    None => hint::spin_loop(),
                }
            };
            answer.push(T::new(item.number() + 1)).expect("one at a time");
        }
    };
    timed(client, server)
}

fn discipline<D: Discipline>(c: &mut Criterion, name: &str) {
    let mut group = c.benchmark_group(format!("spsc/{name}"));
    group.throughput(Throughput::Elements(1));
    group.bench_function("throughput/8B", |b| b.iter_custom(single::<u64, D>));
    group.bench_function("throughput/64B", |b| b.iter_custom(single::<[u64; 8], D>));
    group.bench_function("throughput/8B x32", |b| b.iter_custom(batched::<u64, D>));
    group.bench_function("throughput/64B x32", |b| b.iter_custom(batched::<[u64; 8], D>));
    group.bench_function("round_trip/8B", |b| b.iter_custom(round_trip::<u64, D>));
    group.bench_function("round_trip/64B", |b| b.iter_custom(round_trip::<[u64; 8], D>));
    group.finish();
}

fn all(c: &mut Criterion) {
    discipline::<Lamport>(c, "lamport");
    discipline::<FastForward>(c, "fastforward");
    discipline::<Onesided>(c, "onesided");
}

criterion_group!(benches, all);
criterion_main!(benches);
