//! Completion queue entries: two producers, one consumer, and a lap of the ring, in every
//! interleaving.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p copyrpc-softnic --test loom_slots`
#![cfg(loom)]

use copyrpc_softnic::shared::{
    presence::{Alone, Presence},
    slots::{ReserveError, Slots},
};
use memory::sync::{Arc, AtomicU32, AtomicU64, Ordering, UnsafeCell, thread};

const ENTRIES: usize = 2;

/// A completion queue: an entry is a payload and an owner word, as in the device's format.
struct Queue {
    words: [AtomicU64; ENTRIES],
    tail: AtomicU64,
    consumed_seen: AtomicU64,
    /// The consumer's doorbell record.
    consumer: AtomicU32,
    payload: [UnsafeCell<u64>; ENTRIES],
    owner: [AtomicU64; ENTRIES],
}

/// Owner word of an entry that was never written.
const INVALID: u64 = 2;

// SAFETY: loom checks every access to the payloads.
unsafe impl Sync for Queue {}
// SAFETY: as above.
unsafe impl Send for Queue {}

impl Queue {
    fn new() -> Arc<Self> {
        let queue = Self {
            words: [const { 0 }; ENTRIES].map(AtomicU64::new),
            tail: AtomicU64::new(0),
            consumed_seen: AtomicU64::new(0),
            consumer: AtomicU32::new(0),
            payload: [const { 0 }; ENTRIES].map(UnsafeCell::new),
            owner: [INVALID; ENTRIES].map(AtomicU64::new),
        };
        queue.slots().reset();
        Arc::new(queue)
    }

    fn slots(&self) -> Slots<'_> {
        Slots::new(&self.words, &self.tail, &self.consumed_seen)
    }

    /// Reserves, writes, publishes and frees an entry. `false`: there was none.
    fn publish(&self, holder: u16, value: u64) -> bool {
        let consumed = || self.consumer.load(Ordering::Acquire);
        let Ok(position) = self.slots().reserve(holder, consumed) else { return false };
        let index = position as usize % ENTRIES;
        // SAFETY: this producer holds the entry; loom would notice another access.
        self.payload[index].with_mut(|payload| unsafe { *payload = value });
        self.owner[index].store(position / ENTRIES as u64 & 1, Ordering::Release);
        self.slots().finish(position);
        true
    }

    /// [`publish`](Self::publish) by the only producer.
    fn publish_alone(&self, holder: u16, value: u64) -> bool {
        let consumed = || self.consumer.load(Ordering::Acquire);
        let Ok(position) = self.slots().reserve_alone(holder, consumed) else { return false };
        let index = position as usize % ENTRIES;
        // SAFETY: this producer holds the entry; loom would notice another access.
        self.payload[index].with_mut(|payload| unsafe { *payload = value });
        self.owner[index].store(position / ENTRIES as u64 & 1, Ordering::Release);
        self.slots().finish(position);
        true
    }

    /// The entry at `position` if it is published; gives it back.
    fn poll(&self, position: u32) -> Option<u64> {
        let index = position as usize % ENTRIES;
        if self.owner[index].load(Ordering::Acquire) != u64::from(position) / ENTRIES as u64 & 1 {
            return None;
        }
        // SAFETY: published, and not given back; loom would notice another access.
        let value = self.payload[index].with(|payload| unsafe { *payload });
        self.consumer.store(position + 1, Ordering::Release);
        Some(value)
    }
}

/// Every completion that found room arrives once and whole, across the end of the ring.
#[test]
fn two_producers_and_a_consumer_wrap() {
    loom::model(|| {
        let queue = Queue::new();
        assert!(queue.publish(1, 10));
        let producers = [(1, 11), (2, 20)].map(|(holder, value)| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.publish(holder, value).then_some(value))
        });
        let mut seen: Vec<_> = (0..3).map_while(|position| queue.poll(position)).collect();
        let published = producers.map(|producer| producer.join().unwrap());
        seen.extend((seen.len() as u32..3).map_while(|position| queue.poll(position)));
        assert_eq!(seen.remove(0), 10);
        seen.sort_unstable();
        let published: Vec<_> = published.into_iter().flatten().collect();
        assert_eq!(seen, published);
        assert!(!published.is_empty(), "there was room for one");
        assert_eq!(queue.slots().held_by(1).chain(queue.slots().held_by(2)).count(), 0);
    });
}

/// What one producer has learnt of the consumer serves the others: whoever finds a lap polled may
/// overwrite it, even if it was another producer that looked.
#[test]
fn a_producer_may_trust_what_another_has_seen() {
    loom::model(|| {
        let queue = Queue::new();
        assert!(queue.publish(1, 10) && queue.publish(1, 11));
        let producers = [(1, 12), (2, 20)].map(|(holder, value)| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.publish(holder, value).then_some(value))
        });
        assert_eq!([queue.poll(0), queue.poll(1)], [Some(10), Some(11)]);
        let published = producers.map(|producer| producer.join().unwrap());
        let mut seen: Vec<_> = (2..4).map_while(|position| queue.poll(position)).collect();
        seen.sort_unstable();
        assert_eq!(seen, published.into_iter().flatten().collect::<Vec<_>>());
    });
}

/// A producer that dies with an entry reserved blocks nobody, and its name stays behind.
#[test]
fn a_dead_producer_leaves_its_name() {
    loom::model(|| {
        let queue = Queue::new();
        let dead = thread::spawn({
            let queue = Arc::clone(&queue);
            move || queue.slots().reserve(7, || 0).unwrap()
        });
        assert!(queue.publish(1, 10));
        let hole = dead.join().unwrap();
        let held: Vec<_> = queue.slots().held_by(7).collect();
        assert_eq!(held, [hole]);
        let published = 1 - hole as u32;
        assert_eq!(queue.poll(published), Some(10));
    });
}

/// A producer that is interrupted for several laps finds no false overrun.
#[test]
fn a_producer_left_behind_catches_up() {
    loom::model(|| {
        let queue = Queue::new();
        let late = thread::spawn({
            let queue = Arc::clone(&queue);
            move || {
                let consumed = || queue.consumer.load(Ordering::Acquire);
                queue.slots().reserve(7, consumed)
            }
        });
        // Never more than one of the two entries is unpolled.
        for expected in 0..3 {
            if queue.slots().reserve(1, || expected) != Ok(u64::from(expected)) {
                break; // the late one has come
            }
            queue.slots().finish(u64::from(expected));
            queue.consumer.store(expected + 1, Ordering::Release);
        }
        assert_ne!(late.join().unwrap(), Err(ReserveError::Overrun));
    });
}

/// The only producer needs no read-modify-write, and overwrites nothing that was not polled; when a
/// second one comes, after the first has left, both go on by the same words.
#[test]
fn an_only_producer_wraps_and_hands_over() {
    loom::model(|| {
        let queue = Queue::new();
        let alone = thread::spawn({
            let queue = Arc::clone(&queue);
            move || (0..3).take_while(|&value| queue.publish_alone(1, value)).count() as u32
        });
        let mut position = 0;
        while let Some(value) = queue.poll(position) {
            assert_eq!(value, u64::from(position));
            position += 1;
        }
        // What quiescing is for: the first has left, and knows of the second.
        let published = alone.join().unwrap();
        while position < published {
            assert_eq!(queue.poll(position), Some(u64::from(position)));
            position += 1;
        }
        assert!(published >= 2, "there was room for two");
        assert!(queue.publish(2, 7) && queue.publish(1, 8));
        assert_eq!([queue.poll(position), queue.poll(position + 1)], [Some(7), Some(8)]);
    });
}

/// A producer that is alone again goes on behind what the others left.
#[test]
fn who_is_alone_again_sees_what_others_have_done() {
    loom::model(|| {
        let queue = Queue::new();
        let words = Arc::new([const { 0 }; 2].map(AtomicU64::new));
        let other = thread::spawn({
            let (queue, words) = (Arc::clone(&queue), Arc::clone(&words));
            move || {
                let inside = Presence(&words[0]);
                assert!(inside.try_enter() && queue.publish(2, 20));
                inside.leave();
            }
        });
        let owner = thread::spawn({
            let words = Arc::clone(&words);
            move || {
                // It has come and gone.
                if Presence(&words[0]).observe() == 2 {
                    Alone(&words[1]).show(true);
                }
            }
        });
        let published = match Alone(&words[1]).is_alone() {
            true => queue.publish_alone(1, 10),
            false => queue.publish(1, 10),
        };
        assert!(published, "there is room for two");
        other.join().unwrap();
        owner.join().unwrap();
        let mut seen = [queue.poll(0), queue.poll(1)];
        seen.sort_unstable();
        assert_eq!(seen, [Some(10), Some(20)]);
    });
}
