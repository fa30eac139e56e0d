//! The work: numbered items through a queue, each checked by the consumer.

use std::{hint::black_box, sync::Barrier, thread, time::Instant};

use crate::{CAPACITY, Cell, peers::Peer};

const SLICE: usize = 32;
/// Seconds of one sample.
const SAMPLE_S: f64 = 0.04;
/// Items to find out how many fit a sample.
const TRIAL_ITEMS: u64 = 50_000;

/// What travels: numbered, so that each is checked.
pub trait Item: Copy + Default + Send + 'static {
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
        self[7]
    }
}

pub fn pin(place: usize) {
    let cores = copyrpc_os::affinity::allowed_cores().expect("the kernel tells");
    copyrpc_os::affinity::pin_current_thread(cores[place]).expect("an allowed core");
}

/// One sample of `cell`; none if the peer has no such interface.
pub fn sample<P: Peer, T: Item>(cell: Cell) -> Option<f64> {
    let run = match cell {
        Cell::Single => single::<P, T>,
        Cell::Slices if P::HAS_SLICES => slices::<P, T>,
        Cell::Slices => return None,
        Cell::RoundTrip => round_trip::<P, T>,
    };
    let trial_s = run(TRIAL_ITEMS);
    let items = ((TRIAL_ITEMS as f64 * SAMPLE_S / trial_s) as u64).max(TRIAL_ITEMS / 10);
    let per_item_s = run(items) / items as f64;
    Some(match cell {
        Cell::Single | Cell::Slices => 1e-6 / per_item_s,
        Cell::RoundTrip => 1e9 * per_item_s,
    })
}

/// Seconds from the start of `first` to the end of `last`.
fn timed(first: impl FnOnce() + Send, last: impl FnOnce() + Send) -> f64 {
    let barrier = Barrier::new(2);
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            pin(0);
            barrier.wait();
            let start = Instant::now();
            first();
            start
        });
        let last = scope.spawn(|| {
            pin(1);
            barrier.wait();
            last();
            Instant::now()
        });
        let stop = last.join().expect("the consumer does not panic");
        (stop - first.join().expect("the producer does not panic")).as_secs_f64()
    })
}

fn push<P: Peer, T: Item>(tx: &mut P::Tx<T>, item: T) {
    while !P::push(tx, item) {}
}

fn pop<P: Peer, T: Item>(rx: &mut P::Rx<T>) -> T {
    loop {
        if let Some(item) = P::pop(rx) {
            return item;
        }
    }
}

fn single<P: Peer, T: Item>(items: u64) -> f64 {
    let (mut tx, mut rx) = P::channel::<T>(CAPACITY);
    let pushing = || (0..items).for_each(|i| push::<P, T>(&mut tx, T::new(i)));
    let popping = || {
        for i in 0..items {
            assert_eq!(pop::<P, T>(&mut rx).number(), i);
        }
    };
    timed(pushing, popping)
}

fn slices<P: Peer, T: Item>(items: u64) -> f64 {
    let (mut tx, mut rx) = P::channel::<T>(CAPACITY);
    let pushing = || {
        let mut next = 0;
        while next < items {
            let slice: [T; SLICE] = core::array::from_fn(|k| T::new(next + k as u64));
            let mut rest = &black_box(&slice)[..SLICE.min((items - next) as usize)];
            next += rest.len() as u64;
            while !rest.is_empty() {
                rest = &rest[P::push_slice(&mut tx, rest)..];
            }
        }
    };
    let popping = || {
        let mut next = 0;
        let mut got = [T::default(); SLICE];
        while next < items {
            let count = P::pop_slice(&mut rx, &mut got);
            for item in &black_box(&got)[..count] {
                assert_eq!(item.number(), next);
                next += 1;
            }
        }
    };
    timed(pushing, popping)
}

fn round_trip<P: Peer, T: Item>(items: u64) -> f64 {
    let (mut ask, mut asked) = P::channel::<T>(CAPACITY);
    let (mut answer, mut answered) = P::channel::<T>(CAPACITY);
    let serving = || {
        for _ in 0..items {
            let item = pop::<P, T>(&mut asked);
            push::<P, T>(&mut answer, T::new(item.number() + 1));
        }
    };
    let asking = || {
        for i in 0..items {
            push::<P, T>(&mut ask, T::new(i));
            assert_eq!(pop::<P, T>(&mut answered).number(), i + 1);
        }
    };
    timed(serving, asking)
}
