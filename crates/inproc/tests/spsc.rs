//! The rings against their model, under stress, and with items whose drops are counted.
#![cfg(not(loom))]

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    thread,
    time::{Duration, Instant},
};

use copyrpc_inproc::spsc::{
    Consumer, Discipline, FastForward, Full, Lamport, Onesided, Producer, channel,
};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Op {
    Push,
    Pop,
    /// Reserve that many, fill the second number of them, commit.
    Reserve(usize, usize),
    /// As `Reserve`, but dropped instead of committed.
    Abandon(usize, usize),
    /// Ask for that many, take the second number of them.
    Batch(usize, usize),
    /// As `Batch`, but leaked.
    LeakedBatch(usize, usize),
}

fn any_op() -> impl Strategy<Value = Op> {
    let pair = || (0usize..12, 0usize..12);
    prop_oneof![
        4 => Just(Op::Push),
        4 => Just(Op::Pop),
        2 => pair().prop_map(|(want, fill)| Op::Reserve(want, fill)),
        1 => pair().prop_map(|(want, fill)| Op::Abandon(want, fill)),
        2 => pair().prop_map(|(want, take)| Op::Batch(want, take)),
        1 => pair().prop_map(|(want, take)| Op::LeakedBatch(want, take)),
    ]
}

/// Small under Miri, which is ~1000 times slower; real otherwise.
const OPS_MAX: usize = if cfg!(miri) { 24 } else { 512 };
const CASES: u32 = if cfg!(miri) { 4 } else { 128 };

/// One ring and its expected items. Items are boxed: Miri sees leaks and double drops.
struct Model<D: Discipline> {
    producer: Producer<Box<usize>, D>,
    consumer: Consumer<Box<usize>, D>,
    oracle: VecDeque<usize>,
    next: usize,
    /// Whether a full ring refuses exactly at its capacity.
    is_exact: bool,
}

impl<D: Discipline> Model<D> {
    fn apply(&mut self, op: Op) {
        match op {
            Op::Push => self.push(),
            Op::Pop => assert_eq!(self.consumer.pop().map(|item| *item), self.oracle.pop_front()),
            Op::Reserve(want, fill) | Op::Abandon(want, fill) => {
                let free = self.producer.capacity_items().saturating_sub(self.oracle.len());
                let mut reservation = self.producer.reserve(want);
                let len = reservation.remaining_items();
                assert!(len <= want && len >= want.min(free), "{len} of {want}, {free} free");
                assert!(!self.is_exact || len == want.min(free));
                let count = reservation.extend((self.next..).take(fill).map(Box::new));
                assert_eq!(count, fill.min(len));
                if matches!(op, Op::Reserve(..)) {
                    reservation.commit();
                    self.oracle.extend(self.next..self.next + count);
                    self.next += count;
                }
            }
            Op::Batch(want, take) | Op::LeakedBatch(want, take) => {
                let mut batch = self.consumer.batch(want);
                assert_eq!(batch.len(), want.min(self.oracle.len()));
                for item in batch.by_ref().take(take) {
                    assert_eq!(Some(*item), self.oracle.pop_front());
                }
                if matches!(op, Op::LeakedBatch(..)) {
                    core::mem::forget(batch);
                    // Returns the leaked slots, so that the capacity is what the oracle thinks.
                    drop(self.consumer.batch(0));
                }
            }
        }
    }

    fn push(&mut self) {
        let has_room = self.oracle.len() < self.producer.capacity_items();
        match self.producer.push(Box::new(self.next)) {
            Ok(()) => {
                assert!(has_room || !self.is_exact, "pushed beyond the capacity");
                self.oracle.push_back(self.next);
                self.next += 1;
            }
            Err(Full(item)) => {
                assert!(!has_room, "refused with {} queued", self.oracle.len());
                assert_eq!(*item, self.next);
            }
        }
    }
}

fn agrees_with_vec_deque<D: Discipline>(is_exact: bool, capacity: usize, ops: Vec<Op>) {
    let (producer, consumer) = channel(capacity);
    assert!(producer.capacity_items() >= capacity);
    assert_eq!(producer.capacity_items(), consumer.capacity_items());
    let mut model = Model::<D> { producer, consumer, oracle: VecDeque::new(), next: 0, is_exact };
    for op in ops {
        model.apply(op);
    }
}

/// Milliseconds that each stress test runs: `INPROC_STRESS_MS`, 200 by default.
fn stress_time() -> Duration {
    let ms = std::env::var("INPROC_STRESS_MS").ok().and_then(|ms| ms.parse().ok());
    Duration::from_millis(ms.unwrap_or(200))
}

/// Numbered items with a checksum over 56 bytes: torn, lost, doubled and reordered ones show.
fn stress<D: Discipline>(capacity: usize) {
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
    let items = if cfg!(miri) { 50 } else { u64::MAX };
    let stop_at = Instant::now() + stress_time();
    let (mut producer, mut consumer) = channel::<[u64; 8], D>(capacity);
    let item = |i: u64| [1, 2, 3, 5, 7, 11, 13, 17].map(|k| i.wrapping_mul(MIX).rotate_left(k));
    let pushed = thread::scope(|scope| {
        let pusher = scope.spawn(move || {
            let mut i = 0;
            // The clock is looked at now and then only.
            while i < items && !(i % 64 == 0 && i > 0 && Instant::now() >= stop_at) {
                if i % 7 == 0 {
                    let mut reservation = producer.reserve(5);
                    let count = reservation.extend((i..items.min(i - i % 64 + 64)).map(item));
                    reservation.commit();
                    i += count as u64;
                } else if producer.push(item(i)).is_ok() {
                    i += 1;
                } else {
                    thread::yield_now();
                }
            }
            i
        });
        let mut next = 0;
        loop {
            let is_last_look = consumer.is_disconnected();
            let before = next;
            for got in consumer.batch(1 + capacity / 2) {
                assert_eq!(got, item(next), "item {next}");
                next += 1;
            }
            match before == next {
                true if is_last_look => break,
                true => thread::yield_now(),
                false => {}
            }
        }
        let pushed = pusher.join().unwrap();
        assert_eq!(pushed, next);
        pushed
    });
    assert!(pushed > 0);
}

fn drops_are_counted<D: Discipline>() {
    let token = Rc::new(());
    let (mut producer, mut consumer) = channel::<Rc<()>, D>(8);
    for _ in 0..8 {
        producer.push(token.clone()).unwrap();
    }
    drop(consumer.pop());
    drop(consumer.batch(3).nth(1));
    assert_eq!(Rc::strong_count(&token), 6, "three are out, five queued");
    drop(producer);
    assert!(consumer.is_disconnected());
    assert!(consumer.pop().is_some(), "pushed before the hang-up");
    drop(consumer);
    assert_eq!(Rc::strong_count(&token), 1);
}

fn a_panicking_source_leaves_the_queue_as_it_was<D: Discipline>() {
    let token = Rc::new(());
    let (mut producer, mut consumer) = channel::<Rc<()>, D>(8);
    producer.push(token.clone()).unwrap();
    let source = (0..8).map(|i| {
        assert!(i < 3, "source failed");
        token.clone()
    });
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut reservation = producer.reserve(5);
        reservation.extend(source);
        reservation.commit();
    }));
    assert!(result.is_err());
    assert_eq!(Rc::strong_count(&token), 2, "the three of the reservation are dropped");
    assert!(consumer.pop().is_some() && consumer.pop().is_none());
    producer.push(token.clone()).unwrap();
    assert!(consumer.pop().is_some(), "still usable");
}

fn a_panicking_sink_keeps_the_rest<D: Discipline>() {
    let (mut producer, mut consumer) = channel::<Box<u32>, D>(4);
    let mut reservation = producer.reserve(4);
    assert_eq!(reservation.extend((0..9).map(Box::new)), 4);
    reservation.commit();
    let result = catch_unwind(AssertUnwindSafe(|| {
        for item in consumer.batch(4) {
            assert!(*item < 1, "sink failed");
        }
    }));
    assert!(result.is_err());
    assert_eq!(consumer.batch(9).map(|item| *item).collect::<Vec<_>>(), [2, 3]);
}

fn slices_wrap_around_the_end<D: Discipline>() {
    let (mut producer, mut consumer) = channel::<u16, D>(8);
    let mut pushed = 0u16;
    let mut popped = 0u16;
    for _ in 0..100 {
        let items: Vec<u16> = (pushed..pushed + 7).collect();
        pushed += u16::try_from(producer.push_slice(&items)).unwrap();
        let mut got = [0; 5];
        let count = consumer.pop_slice(&mut got);
        for item in &got[..count] {
            assert_eq!(*item, popped);
            popped += 1;
        }
    }
    assert!(popped > 400, "{popped}");
}

/// Pitfall of a one-sided ring without a full check: depth 4, 8 calls accepted, none delivered.
fn pitfall_18_a_full_ring_accepts_no_more<D: Discipline>() {
    let (mut producer, mut consumer) = channel::<u32, D>(4);
    let accepted: Vec<u32> = (0..64).take_while(|&i| producer.push(i).is_ok()).collect();
    assert_eq!(accepted, [0, 1, 2, 3]);
    assert_eq!(producer.push(64), Err(Full(64)), "and hands it back");
    assert_eq!(consumer.batch(64).collect::<Vec<_>>(), accepted);
}

/// Pitfall of block-based queues: full for ever once the consumer has run ahead of recycling.
fn pitfall_16_a_drained_ring_is_never_full<D: Discipline>() {
    let (mut producer, mut consumer) = channel::<usize, D>(64);
    for lap in 0..if cfg!(miri) { 3 } else { 1000 } {
        let burst = 1 + (lap * 37) % producer.capacity_items();
        for i in 0..burst {
            producer.push(i).expect("drained, so there is room for a capacity of items");
        }
        assert!(consumer.batch(burst).eq(0..burst));
        assert_eq!(consumer.pop(), None);
    }
}

fn items_of_no_size_are_counted<D: Discipline>() {
    let (mut producer, mut consumer) = channel::<(), D>(4);
    assert_eq!((0..9).filter(|_| producer.push(()).is_ok()).count(), 4);
    assert_eq!(consumer.batch(9).count(), 4);
    assert_eq!(consumer.pop(), None);
}

macro_rules! for_each_discipline {
    ($($module:ident: $discipline:ty, exact $exact:literal;)*) => {$(
        mod $module {
            use super::*;

            proptest! {
                #![proptest_config(ProptestConfig {
                    cases: CASES, failure_persistence: None, ..Default::default()
                })]
                #[test]
                fn agrees_with_vec_deque(
                    capacity in 1usize..70,
                    ops in prop::collection::vec(any_op(), 0..OPS_MAX),
                ) {
                    super::agrees_with_vec_deque::<$discipline>($exact, capacity, ops);
                }
            }

            #[test]
            fn stress_checks_every_item() {
                for capacity in [1, 2, 64, 1024] {
                    super::stress::<$discipline>(capacity);
                }
            }

            for_each_discipline! { @tests $discipline:
                drops_are_counted
                a_panicking_source_leaves_the_queue_as_it_was
                a_panicking_sink_keeps_the_rest
                slices_wrap_around_the_end
                pitfall_18_a_full_ring_accepts_no_more
                pitfall_16_a_drained_ring_is_never_full
                items_of_no_size_are_counted
            }
        }
    )*};
    (@tests $discipline:ty: $($test:ident)*) => {$(
        #[test]
        fn $test() {
            super::$test::<$discipline>();
        }
    )*};
}

for_each_discipline! {
    lamport: Lamport, exact false;
    fastforward: FastForward, exact true;
    onesided: Onesided, exact false;
}
