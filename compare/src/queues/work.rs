//! The work: numbered items through a queue, each checked by the consumer.

use std::{hint::black_box, sync::Barrier, thread, time::Instant};

use copyrpc_bench::{
    cores::{self, Cores},
    threads::Item,
};

use super::{CAPACITY, Cell, peers::Peer};

/// What travels, checked word by word: to build what is expected and compare wide would wait, for each
/// item, until the narrow stores of the building have left the store buffer.
pub trait Numbered: Item {
    /// Whether this is the item with this number.
    fn is(&self, number: u64) -> bool;
}

impl Numbered for u64 {
    #[inline(always)]
    fn is(&self, number: u64) -> bool {
        *self == number
    }
}

impl<const N: usize> Numbered for [u64; N]
where
    Self: Item,
{
    #[inline(always)]
    fn is(&self, number: u64) -> bool {
        self.iter().fold(0, |differences, word| differences | (word ^ number)) == 0
    }
}

const SLICE: usize = 32;
/// Seconds of one sample on an otherwise idle machine.
const SAMPLE_S: f64 = 0.03;
/// Chunks to find out how many fit a sample.
const TRIAL_CHUNKS: u64 = 20;

/// Moves so many items in chunks of so many, and returns when the chunks ended.
type Run = fn(Cores, u64, u64) -> Vec<Instant>;

/// One sample of `cell`; none if the peer has no such interface.
///
/// The consumer takes the time of each chunk of items, and the sample is the chunk at the fastest
/// decile: what the queue does while both threads run. A mean would say what else the machine does.
/// A chunk is many times the capacity, so draining a queue that filled meanwhile gains little.
pub fn sample<P: Peer, T: Numbered>(cell: Cell, cores: Cores) -> Option<f64> {
    let (run, chunk_items): (Run, u64) = match cell {
        Cell::Single => (single::<P, T>, 16 * CAPACITY as u64),
        Cell::Slices if P::HAS_SLICES => (slices::<P, T>, 32 * CAPACITY as u64),
        Cell::Slices => return None,
        Cell::RoundTrip => (round_trip::<P, T>, 200),
    };
    let chunk_s = |chunks: u64| fast_decile_s(&run(cores, chunks * chunk_items, chunk_items));
    let chunks = (SAMPLE_S / chunk_s(TRIAL_CHUNKS)) as u64;
    let per_item_s = chunk_s(chunks.clamp(TRIAL_CHUNKS, 20_000)) / chunk_items as f64;
    Some(match cell {
        Cell::Single | Cell::Slices => 1e-6 / per_item_s,
        Cell::RoundTrip => 1e9 * per_item_s,
    })
}

/// Of the times between neighbours, the one that a tenth do not exceed.
fn fast_decile_s(times: &[Instant]) -> f64 {
    let between = times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64());
    let mut between: Vec<f64> = between.collect();
    between.sort_by(f64::total_cmp);
    between[between.len() / 10]
}

/// Runs both sides at once; what the second returns.
fn both(
    cores: Cores,
    first: impl FnOnce() + Send,
    second: impl FnOnce() -> Vec<Instant> + Send,
) -> Vec<Instant> {
    let barrier = &Barrier::new(2);
    thread::scope(|scope| {
        // Each thread owns its end: on one stack they would share lines.
        scope.spawn(move || {
            let first = first;
            cores::pin(cores.responder).expect("an allowed core");
            barrier.wait();
            first();
        });
        let second = scope.spawn(move || {
            let second = second;
            cores::pin(cores.initiator).expect("an allowed core");
            barrier.wait();
            second()
        });
        second.join().expect("the checks hold")
    })
}

fn push<P: Peer, T: Numbered>(tx: &mut P::Tx<T>, item: T) {
    while !P::push(tx, item) {
        std::hint::spin_loop();
    }
}

fn pop<P: Peer, T: Numbered>(rx: &mut P::Rx<T>) -> T {
    loop {
        if let Some(item) = P::pop(rx) {
            return item;
        }
        std::hint::spin_loop();
    }
}

fn single<P: Peer, T: Numbered>(cores: Cores, items: u64, chunk_items: u64) -> Vec<Instant> {
    let (mut tx, mut rx) = P::channel::<T>(CAPACITY);
    let pushing = move || (0..items).for_each(|i| push::<P, T>(&mut tx, T::new(i)));
    let popping = move || {
        let mut times = Vec::with_capacity(1 + (items / chunk_items) as usize);
        for chunk in 0..items / chunk_items {
            times.push(Instant::now());
            for i in chunk * chunk_items..(chunk + 1) * chunk_items {
                assert!(pop::<P, T>(&mut rx).is(i), "item {i} arrived with other words");
            }
        }
        times
    };
    both(cores, pushing, popping)
}

fn slices<P: Peer, T: Numbered>(cores: Cores, items: u64, chunk_items: u64) -> Vec<Instant> {
    let (mut tx, mut rx) = P::channel::<T>(CAPACITY);
    let pushing = move || {
        for first in (0..items).step_by(SLICE) {
            let slice: [T; SLICE] = core::array::from_fn(|k| T::new(first + k as u64));
            let mut rest = &black_box(&slice)[..];
            while !rest.is_empty() {
                rest = &rest[P::push_slice(&mut tx, rest)..];
            }
        }
    };
    let popping = move || {
        let mut times = Vec::with_capacity(1 + (items / chunk_items) as usize);
        let mut got = [T::default(); SLICE];
        let (mut next, mut boundary) = (0, 0);
        while next < items {
            if next >= boundary {
                times.push(Instant::now());
                boundary += chunk_items;
            }
            let count = P::pop_slice(&mut rx, &mut got);
            for item in &black_box(&got)[..count] {
                assert!(item.is(next), "item {next} arrived with other words");
                next += 1;
            }
        }
        times
    };
    both(cores, pushing, popping)
}

fn round_trip<P: Peer, T: Numbered>(cores: Cores, items: u64, chunk_items: u64) -> Vec<Instant> {
    let (mut ask, mut asked) = P::channel::<T>(CAPACITY);
    let (mut answer, mut answered) = P::channel::<T>(CAPACITY);
    let serving = move || {
        for _ in 0..items {
            let item = pop::<P, T>(&mut asked);
            push::<P, T>(&mut answer, T::new(item.number() + 1));
        }
    };
    let asking = move || {
        let mut times = Vec::with_capacity(1 + (items / chunk_items) as usize);
        for i in 0..items {
            if i % chunk_items == 0 {
                times.push(Instant::now());
            }
            push::<P, T>(&mut ask, T::new(i));
            assert!(
                pop::<P, T>(&mut answered).is(i + 1),
                "the answer to {i} arrived with other words"
            );
        }
        times
    };
    both(cores, serving, asking)
}
