//! Taking receives off a list that two senders share, in every interleaving.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p copyrpc-softnic --test loom_claims`
#![cfg(loom)]

use copyrpc_softnic::shared::{
    Holder,
    claims::{Claims, TakeError},
    port_lock::PortLock,
    slots::Slots,
};
use memory::sync::{Arc, AtomicU32, AtomicU64, Ordering, UnsafeCell, thread};

const ENTRIES: usize = 3;

/// A receive queue whose owner links its entries, and the completions that come out of it.
struct Queue {
    head: AtomicU64,
    claims: [AtomicU64; ENTRIES],
    /// The link of each entry; senders may read it while the owner writes.
    next: [AtomicU32; ENTRIES],
    /// Which buffer each entry names.
    wqe: [UnsafeCell<u32>; ENTRIES],
    /// The doorbell record.
    posted: AtomicU32,
    /// By receive: the entry that completed it, plus one.
    done: [AtomicU32; 4],
}

// SAFETY: loom checks every access to the entries.
unsafe impl Sync for Queue {}
// SAFETY: as above.
unsafe impl Send for Queue {}

impl Queue {
    /// Entry 0 links to 1, and that to 2.
    fn new() -> Arc<Self> {
        let queue = Self {
            head: AtomicU64::new(0),
            claims: [const { 0 }; ENTRIES].map(AtomicU64::new),
            next: [1, 2, 0].map(AtomicU32::new),
            wqe: [const { 0 }; ENTRIES].map(UnsafeCell::new),
            posted: AtomicU32::new(0),
            done: [const { 0 }; 4].map(AtomicU32::new),
        };
        queue.claims().reset();
        Arc::new(queue)
    }

    fn claims(&self) -> Claims<'_> {
        Claims::new(&self.head, &self.claims)
    }

    /// The owner names `buffer` in `entry` and hands it over.
    fn post(&self, entry: usize, buffer: u32) {
        // SAFETY: the entry is not posted; loom would notice another access.
        self.wqe[entry].with_mut(|wqe| unsafe { *wqe = buffer });
        let posted = self.posted.load(Ordering::Relaxed);
        self.posted.store(posted + 1, Ordering::Release);
    }

    /// Takes a receive: its entry, how many came before it, and its buffer. `posted_seen` is what
    /// this sender knows of the doorbell record.
    fn take(&self, holder: Holder, posted_seen: &mut u32) -> Result<(u16, u64, u32), TakeError> {
        let available = |count| {
            if count >= u64::from(*posted_seen) {
                *posted_seen = self.posted.load(Ordering::Acquire);
            }
            count < u64::from(*posted_seen)
        };
        let (entry, count) = self.claims().take(holder, available, |entry| self.next(entry))?;
        // SAFETY: taken, and not completed; loom would notice another access.
        let buffer = self.wqe[usize::from(entry)].with(|wqe| unsafe { *wqe });
        Ok((entry, count, buffer))
    }

    /// Takes a receive and completes it.
    fn serve(&self, holder: Holder, posted_seen: &mut u32) -> Option<(u64, u32)> {
        let (entry, count, buffer) = self.take(holder, posted_seen).ok()?;
        self.done[count as usize].store(u32::from(entry) + 1, Ordering::Release);
        self.claims().release(entry, count, holder);
        Some((count, buffer))
    }

    /// The only sender takes what it finds, as `RqView::take` does, and completes it.
    fn serve_alone(&self, holder: Holder) -> Vec<(u64, u32)> {
        let available = |count| count < u64::from(self.posted.load(Ordering::Acquire));
        let take = || match self.claims().take_alone(holder, available, |entry| self.next(entry)) {
            Err(TakeError::Contended) => {
                self.claims().take(holder, available, |entry| self.next(entry))
            }
            taken => taken,
        };
        let mut served = Vec::new();
        while let Ok((entry, count)) = take() {
            // SAFETY: taken, and not completed; loom would notice another access.
            served.push((count, self.wqe[usize::from(entry)].with(|wqe| unsafe { *wqe })));
            self.claims().release_alone(entry, count);
        }
        served
    }

    fn next(&self, entry: u16) -> u16 {
        self.next[usize::from(entry)].load(Ordering::Relaxed) as u16
    }

    /// The entry that completed receive `count`, if it has completed.
    fn completed(&self, count: usize) -> Option<usize> {
        (self.done[count].load(Ordering::Acquire) as usize).checked_sub(1)
    }
}

/// Each receive is taken once and carries its own buffer, also when the owner posts an entry again
/// that slow senders still have in mind.
#[test]
fn each_receive_is_taken_once() {
    loom::model(|| {
        let queue = Queue::new();
        queue.post(0, 100);
        queue.post(1, 101);
        let first = thread::spawn({
            let queue = Arc::clone(&queue);
            move || {
                let mut seen = 0;
                [queue.serve(1, &mut seen), queue.serve(1, &mut seen)]
            }
        });
        let second = thread::spawn({
            let queue = Arc::clone(&queue);
            move || queue.serve(2, &mut 0)
        });
        // Like libmlx5: what comes back is linked behind the last entry.
        if queue.completed(0) == Some(0) {
            queue.next[2].store(0, Ordering::Relaxed);
            queue.post(2, 102);
            if queue.completed(1) == Some(1) {
                queue.next[0].store(1, Ordering::Relaxed);
                queue.post(0, 103);
            }
        }
        let (first, second) = (first.join().unwrap(), second.join().unwrap());
        let mut taken: Vec<_> = first.into_iter().chain([second]).flatten().collect();
        taken.sort_unstable();
        let expected: Vec<_> = (0..).zip(100..).take(taken.len()).collect();
        assert_eq!(taken, expected);
        assert!(taken.len() >= 2, "two were posted before");
        assert_eq!(queue.claims().taken(), taken.len() as u64);
        assert_eq!(queue.claims().held_by(1).chain(queue.claims().held_by(2)).count(), 0);
    });
}

/// A sender that died right after its CAS: the others move the head on, and its name stays.
#[test]
fn a_dead_taker_is_helped() {
    loom::model(|| {
        const DEAD: Holder = 7;
        let queue = Queue::new();
        queue.post(0, 100);
        queue.post(1, 101);
        queue.post(2, 102);
        // Receive 0, taken by the dead one; the head still points to it.
        queue.claims[0].store(u64::from(DEAD), Ordering::Relaxed);
        let other = thread::spawn({
            let queue = Arc::clone(&queue);
            move || queue.serve(1, &mut 0)
        });
        let mut taken = [queue.serve(2, &mut 0), other.join().unwrap()];
        taken.sort_unstable();
        assert_eq!(taken, [Some((1, 101)), Some((2, 102))]);
        assert_eq!(queue.claims().held_by(DEAD).collect::<Vec<_>>(), [(0, 0)]);
    });
}

/// The same where the only one left is alone by now, while the owner does for the dead one what
/// remained.
#[test]
fn an_only_taker_passes_what_a_dead_one_has_taken() {
    loom::model(|| {
        const DEAD: Holder = 7;
        let queue = Queue::new();
        queue.post(0, 100);
        queue.post(1, 101);
        // Receive 0, taken by the dead one; the head still points to it.
        queue.claims[0].store(u64::from(DEAD), Ordering::Relaxed);
        let alone = thread::spawn({
            let queue = Arc::clone(&queue);
            move || queue.serve_alone(1)
        });
        for (entry, count) in queue.claims().held_by(DEAD) {
            queue.claims().pass(entry, count, |entry| queue.next(entry));
            queue.claims().release(entry, count, DEAD);
        }
        assert_eq!(alone.join().unwrap(), [(1, 101)]);
        assert_eq!(queue.claims().taken(), 2);
        assert_eq!(queue.claims().held_by(DEAD).count(), 0);
    });
}

/// Between the completion of a receive and the release of its claim the owner may post the entry
/// again, and others take it: the late release leaves their claim alone.
#[test]
fn a_late_release_spares_the_next_claim() {
    loom::model(|| {
        let queue = Queue::new();
        // A queue of one entry, so to say.
        queue.next[0].store(0, Ordering::Relaxed);
        queue.post(0, 100);
        let (entry, count, _) = queue.take(1, &mut 0).unwrap();
        // Its completion is out, its claim still there.
        queue.post(0, 101);
        let late = thread::spawn({
            let queue = Arc::clone(&queue);
            move || queue.claims().release(entry, count, 1)
        });
        let second = thread::spawn({
            let queue = Arc::clone(&queue);
            move || queue.take(2, &mut 0)
        });
        let third = queue.take(3, &mut 0);
        let takes = [(2, second.join().unwrap()), (3, third)];
        late.join().unwrap();
        for (holder, take) in takes {
            let held: Vec<_> = queue.claims().held_by(holder).collect();
            let expected: Vec<_> = take.iter().map(|&(entry, count, _)| (entry, count)).collect();
            assert_eq!(held, expected, "what {holder} has taken");
        }
        let both = takes.iter().filter_map(|(_, take)| take.ok()).map(|(_, count, _)| count);
        let both: Vec<_> = both.collect();
        assert!(both.len() < 2 || both[0] != both[1], "taken twice");
    });
}

/// A sender that looks while others take and the owner posts does not believe that nothing is
/// posted.
#[test]
fn a_queue_that_always_has_a_receive_is_never_empty() {
    loom::model(|| {
        let queue = Queue::new();
        queue.post(0, 100);
        queue.post(1, 101);
        let other = thread::spawn({
            let queue = Arc::clone(&queue);
            move || queue.serve(1, &mut 0)
        });
        assert!(queue.serve(2, &mut 0).is_some());
        assert!(other.join().unwrap().is_some());
    });
}

/// The only taker needs no read-modify-write; when it has left, the owner goes on by the same words,
/// as it does to flush a queue pair in error.
#[test]
fn an_only_taker_hands_over_to_the_owner() {
    loom::model(|| {
        let queue = Queue::new();
        queue.post(0, 100);
        let alone = thread::spawn({
            let queue = Arc::clone(&queue);
            move || queue.serve_alone(1)
        });
        queue.post(1, 101);
        let mut taken = alone.join().unwrap();
        let mut seen = 0;
        taken.extend(core::iter::from_fn(|| queue.serve(2, &mut seen)));
        assert_eq!(taken, [(0, 100), (1, 101)]);
        assert_eq!(queue.claims().held_by(1).chain(queue.claims().held_by(2)).count(), 0);
    });
}

/// What completes receives of a ring: entries of a queue, and the lock under which both are taken.
struct Ring {
    queue: Arc<Queue>,
    order: AtomicU64,
    words: [AtomicU64; 4],
    tail: AtomicU64,
    consumed_seen: AtomicU64,
}

impl Ring {
    fn new() -> Arc<Self> {
        let ring = Self {
            queue: Queue::new(),
            order: AtomicU64::new(0),
            words: [const { 0 }; 4].map(AtomicU64::new),
            tail: AtomicU64::new(0),
            consumed_seen: AtomicU64::new(0),
        };
        ring.slots().reset();
        ring.queue.post(0, 100);
        ring.queue.post(1, 101);
        ring.queue.post(2, 102);
        Arc::new(ring)
    }

    fn slots(&self) -> Slots<'_> {
        Slots::new(&self.words, &self.tail, &self.consumed_seen)
    }

    /// As `Target::take_in_order` does: a receive, and the position of its completion.
    fn take_in_order(&self, holder: Holder) -> Option<(u64, u64)> {
        if !PortLock(&self.order).try_take(holder) {
            return None;
        }
        let queue = &self.queue;
        let available = |count| count < u64::from(queue.posted.load(Ordering::Acquire));
        let next = |entry| queue.next(entry);
        let taken = match queue.claims().take_alone(holder, available, next) {
            Err(TakeError::Contended) => queue.claims().take(holder, available, next),
            taken => taken,
        };
        let both = taken.ok().map(|(entry, count)| {
            (entry, count, self.slots().reserve(holder, || 0).expect("entries for all"))
        });
        PortLock(&self.order).give(holder);
        let (entry, count, position) = both?;
        self.slots().finish(position);
        queue.claims().release(entry, count, holder);
        Some((count, position))
    }
}

/// Receives of a ring complete in the order in which they were posted, whoever takes them.
#[test]
fn receives_of_a_ring_and_their_completions_are_in_one_order() {
    loom::model(|| {
        let ring = Ring::new();
        let other = thread::spawn({
            let ring = Arc::clone(&ring);
            move || ring.take_in_order(1)
        });
        let mine = ring.take_in_order(2);
        let mut all: Vec<_> = [mine, other.join().unwrap()].into_iter().flatten().collect();
        all.sort_unstable();
        assert!(!all.is_empty(), "one of them is first");
        for (nth, (count, position)) in all.into_iter().enumerate() {
            assert_eq!((count, position), (nth as u64, nth as u64));
        }
        assert_eq!(ring.order.load(Ordering::Relaxed), 0);
    });
}

/// Who dies with the lock has it until the owner has finished what it left: nobody passes it.
#[test]
fn nobody_passes_a_dead_one_that_has_the_order() {
    loom::model(|| {
        const DEAD: Holder = 7;
        let ring = Ring::new();
        assert!(PortLock(&ring.order).try_take(DEAD));
        // Receive 0, taken by the dead one; the head still points to it.
        ring.queue.claims[0].store(u64::from(DEAD), Ordering::Relaxed);
        let other = thread::spawn({
            let ring = Arc::clone(&ring);
            move || ring.take_in_order(1)
        });
        for (entry, count) in ring.queue.claims().held_by(DEAD) {
            ring.queue.claims().pass(entry, count, |entry| ring.queue.next(entry));
            let position = ring.slots().reserve(9, || 0).expect("entries for all");
            assert_eq!(position, 0);
            ring.slots().finish(position);
            ring.queue.claims().release(entry, count, DEAD);
        }
        PortLock(&ring.order).give(DEAD);
        let taken = other.join().unwrap();
        assert!(taken.is_none_or(|taken| taken == (1, 1)), "{taken:?}");
    });
}
