//! Every interleaving of one producer and one consumer, for each discipline: items arrive once and
//! in order, slots are reused only after they were read, and a hang-up loses nothing.
//!
//! Run: `RUSTFLAGS="--cfg loom" cargo test --release --test spsc_loom`
#![cfg(loom)]

use copyrpc_inproc::spsc::{
    Consumer, Discipline, FastForward, Lamport, Onesided, Producer, channel,
};
use loom::thread;

/// Boxed, so that loom sees an item leak, and a read of a slot that was never written.
type Item = Box<u32>;

fn push_all<D: Discipline>(producer: &mut Producer<Item, D>, items: core::ops::Range<u32>) {
    for i in items {
        let mut item = Box::new(i);
        while let Err(full) = producer.push(item) {
            item = full.0;
            thread::yield_now();
        }
    }
}

fn pop_all<D: Discipline>(consumer: &mut Consumer<Item, D>, items: core::ops::Range<u32>) {
    for expected in items {
        let got = loop {
            match consumer.pop() {
                Some(item) => break *item,
                None => thread::yield_now(),
            }
        };
        assert_eq!(got, expected);
    }
}

/// More items than slots: the ring wraps, so both directions of the protocol are needed.
fn single_items_wrap<D: Discipline>(capacity: usize, items: u32) {
    loom::model(move || {
        let (mut producer, mut consumer) = channel::<Item, D>(capacity);
        let pusher = thread::spawn(move || push_all(&mut producer, 0..items));
        pop_all(&mut consumer, 0..items);
        pusher.join().unwrap();
    });
}

/// A batch of two into a ring of two, twice: each side commits two slots with one step.
fn batches_wrap<D: Discipline>() {
    loom::model(|| {
        let (mut producer, mut consumer) = channel::<Item, D>(2);
        let pusher = thread::spawn(move || {
            let mut next = 0;
            while next < 4 {
                let mut reservation = producer.reserve(2);
                let count = reservation.extend((next..4).map(Box::new));
                reservation.commit();
                next += u32::try_from(count).unwrap();
                if count == 0 {
                    thread::yield_now();
                }
            }
        });
        let mut expected = 0;
        while expected < 4 {
            let before = expected;
            for item in consumer.batch(2) {
                assert_eq!(*item, expected);
                expected += 1;
            }
            if expected == before {
                thread::yield_now();
            }
        }
        pusher.join().unwrap();
    });
}

/// "Gone, and then empty" is the end: items that were pushed before the hang-up arrive.
fn hangup_loses_nothing<D: Discipline>() {
    loom::model(|| {
        let (mut producer, mut consumer) = channel::<Item, D>(2);
        let pusher = thread::spawn(move || push_all(&mut producer, 0..1));
        let mut popped = 0;
        loop {
            let is_last_look = consumer.is_disconnected();
            match consumer.pop() {
                Some(item) => {
                    assert_eq!(*item, popped);
                    popped += 1;
                }
                None if is_last_look => break,
                None => thread::yield_now(),
            }
        }
        assert_eq!(popped, 1);
        pusher.join().unwrap();
    });
}

/// A consumer that leaves in the middle: the remaining items are dropped once, by the last party.
fn leftovers_are_dropped_once<D: Discipline>() {
    loom::model(|| {
        let (mut producer, mut consumer) = channel::<Item, D>(2);
        let pusher = thread::spawn(move || {
            let _ = producer.push(Box::new(0));
            let _ = producer.push(Box::new(1));
        });
        let first = consumer.pop();
        assert!(first.is_none_or(|item| *item == 0));
        drop(consumer);
        pusher.join().unwrap();
    });
}

macro_rules! for_each_discipline {
    ($($module:ident: $discipline:ty, capacity $capacity:literal, items $items:literal;)*) => {$(
        mod $module {
            use super::*;

            #[test]
            fn single_items_wrap() {
                super::single_items_wrap::<$discipline>($capacity, $items);
            }

            #[test]
            fn capacity_one_wraps() {
                super::single_items_wrap::<$discipline>(1, 3);
            }

            /// Credit comes in batches of two here, where it comes in batches.
            #[test]
            fn batched_credit_wraps() {
                super::single_items_wrap::<$discipline>(3, 6);
            }

            #[test]
            fn batches_wrap() {
                super::batches_wrap::<$discipline>();
            }

            #[test]
            fn hangup_loses_nothing() {
                super::hangup_loses_nothing::<$discipline>();
            }

            #[test]
            fn leftovers_are_dropped_once() {
                super::leftovers_are_dropped_once::<$discipline>();
            }
        }
    )*};
}

for_each_discipline! {
    lamport: Lamport, capacity 2, items 4;
    fastforward: FastForward, capacity 2, items 4;
    onesided: Onesided, capacity 2, items 4;
}
