//! A queue whose callers take turns by bytes: deficit round robin (Shreedhar and Varghese, 1995).

use std::collections::{BTreeMap, VecDeque};

/// Bytes that a caller may take in one turn of all.
pub(crate) const QUANTUM_BYTES: usize = 2 << 10;

/// The turn of a caller whose item is put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextTurn {
    /// Its item is next.
    Own,
    /// Those of the others are next.
    Others,
}

/// What one caller has in the queue.
#[derive(Debug)]
struct Lane<T> {
    /// With the bytes that each counts for, oldest first.
    items: VecDeque<(usize, T)>,
    bytes: usize,
    /// Bytes that it may still take in this turn.
    credit: usize,
}

/// Items of callers `C`. The items of one caller leave in order; callers take turns.
#[derive(Debug)]
pub(crate) struct FairQueue<C, T> {
    /// Of callers that have something here.
    lanes: BTreeMap<C, Lane<T>>,
    /// The same callers, the next one first.
    turns: VecDeque<C>,
    len: usize,
    bytes: usize,
    /// Items of `len` that nobody waits for any more, at most.
    dead: usize,
}

impl<C: Copy + Ord, T> Default for FairQueue<C, T> {
    fn default() -> Self {
        Self { lanes: BTreeMap::new(), turns: VecDeque::new(), len: 0, bytes: 0, dead: 0 }
    }
}

impl<C: Copy + Ord, T> FairQueue<C, T> {
    /// Whether there is nothing.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of items, of all owners.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Callers that have something here.
    pub(crate) fn callers(&self) -> usize {
        self.turns.len()
    }

    /// Bytes of all items.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of the items of one caller.
    pub(crate) fn bytes_of(&self, caller: C) -> usize {
        self.lanes.get(&caller).map_or(0, |lane| lane.bytes)
    }

    /// Items of one caller.
    pub(crate) fn len_of(&self, caller: C) -> usize {
        self.lanes.get(&caller).map_or(0, |lane| lane.items.len())
    }

    /// Adds an item behind those of its caller.
    pub(crate) fn push(&mut self, caller: C, bytes: usize, item: T) {
        let lane = self.lanes.entry(caller).or_insert_with(|| {
            self.turns.push_back(caller);
            Lane { items: VecDeque::new(), bytes: 0, credit: 0 }
        });
        lane.items.push_back((bytes, item));
        lane.bytes += bytes;
        self.bytes += bytes;
        self.len += 1;
    }

    /// The item that is next, with its caller and its bytes.
    pub(crate) fn pop(&mut self) -> Option<(C, usize, T)> {
        loop {
            let caller = *self.turns.front()?;
            let Some(lane) = self.lanes.get_mut(&caller) else {
                unreachable!("who has a turn has a lane")
            };
            let Some(&(bytes, _)) = lane.items.front() else {
                self.lanes.remove(&caller);
                self.turns.pop_front();
                continue;
            };
            if lane.credit < bytes {
                lane.credit += QUANTUM_BYTES;
                self.turns.rotate_left(1);
                continue;
            }
            lane.credit -= bytes;
            lane.bytes -= bytes;
            self.bytes -= bytes;
            self.len -= 1;
            let Some((_, item)) = lane.items.pop_front() else {
                unreachable!("it was looked at just now")
            };
            if lane.items.is_empty() {
                // Who comes back has no credit of earlier turns.
                self.lanes.remove(&caller);
                self.turns.pop_front();
            }
            return Some((caller, bytes, item));
        }
    }

    /// Puts back what was popped.
    pub(crate) fn put_back(&mut self, caller: C, bytes: usize, item: T, next: NextTurn) {
        let lane = self.lanes.entry(caller).or_insert_with(|| {
            self.turns.push_front(caller);
            Lane { items: VecDeque::new(), bytes: 0, credit: 0 }
        });
        lane.items.push_front((bytes, item));
        lane.credit += bytes;
        lane.bytes += bytes;
        self.bytes += bytes;
        self.len += 1;
        if next == NextTurn::Others {
            self.turns.rotate_left(1);
        }
    }

    /// Nobody waits for an item any more. From time to time those are dropped: `is_wanted` tells them, and
    /// `dropped` is told the caller and the bytes of each. An item costs the same, however long the queue.
    pub(crate) fn mark_dead(
        &mut self,
        is_wanted: impl Fn(&T) -> bool,
        dropped: impl FnMut(C, usize),
    ) {
        self.dead += 1;
        if self.dead * 2 > self.len {
            self.retain(is_wanted, dropped);
        }
    }

    /// Drops what is not wanted.
    pub(crate) fn retain(
        &mut self,
        is_wanted: impl Fn(&T) -> bool,
        mut dropped: impl FnMut(C, usize),
    ) {
        let Self { lanes, turns, len, bytes, dead } = self;
        *dead = 0;
        for (caller, lane) in lanes.iter_mut() {
            lane.items.retain(|(item_bytes, item)| {
                let is_kept = is_wanted(item);
                if !is_kept {
                    lane.bytes -= item_bytes;
                    *bytes -= item_bytes;
                    *len -= 1;
                    dropped(*caller, *item_bytes);
                }
                is_kept
            });
        }
        lanes.retain(|_, lane| !lane.items.is_empty());
        turns.retain(|caller| lanes.contains_key(caller));
    }

    /// Takes all items.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = (C, usize, T)> {
        let Self { lanes, .. } = core::mem::take(self);
        lanes.into_iter().flat_map(|(caller, lane)| {
            lane.items.into_iter().map(move |(bytes, item)| (caller, bytes, item))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_take_turns_by_bytes_and_each_keeps_its_order() {
        let mut queue = FairQueue::default();
        for number in 0..100 {
            queue.push('a', 4096, number);
        }
        for number in 0..400 {
            queue.push('b', 256, number);
        }
        let (mut bytes, mut next) = (BTreeMap::from([('a', 0), ('b', 0)]), BTreeMap::new());
        for _ in 0..200 {
            let (caller, of_item, number) = queue.pop().unwrap();
            let next = next.entry(caller).or_insert(0);
            assert_eq!(number, *next, "in order");
            *next += 1;
            *bytes.get_mut(&caller).unwrap() += of_item;
        }
        let (a, b): (usize, usize) = (bytes[&'a'], bytes[&'b']);
        assert!(a.abs_diff(b) <= 2 * QUANTUM_BYTES, "{a} and {b} bytes");
        assert_eq!(queue.len(), 300);
        while queue.pop().is_some() {}
        assert_eq!((queue.len(), queue.bytes(), queue.callers()), (0, 0, 0));
    }

    #[test]
    fn a_late_caller_does_not_wait_for_a_long_queue() {
        let mut queue = FairQueue::default();
        for number in 0..100_000 {
            queue.push(0, 300, number);
        }
        queue.push(1, 300, 7);
        let before = (0..).find(|_| queue.pop().unwrap().0 == 1).unwrap();
        assert!(before <= QUANTUM_BYTES / 300, "{before} went before");
    }

    #[test]
    fn what_is_put_back_is_next_or_behind_the_others() {
        let mut queue = FairQueue::default();
        queue.push('a', 100, 1);
        queue.push('a', 100, 2);
        queue.push('b', 100, 3);
        let (caller, bytes, item) = queue.pop().unwrap();
        queue.put_back(caller, bytes, item, NextTurn::Own);
        assert_eq!(queue.pop().unwrap(), (caller, bytes, item));
        queue.put_back(caller, bytes, item, NextTurn::Others);
        assert_ne!(queue.pop().unwrap().0, caller);
        assert_eq!((queue.len(), queue.bytes()), (2, 200));
    }

    #[test]
    fn dead_items_are_dropped_before_they_are_half() {
        let mut queue = FairQueue::default();
        (0..1000).for_each(|number| queue.push(number % 7, 10, number));
        let mut bytes = 0;
        for dead in 1..=600 {
            queue.mark_dead(|number| *number > dead, |_, of_item| bytes += of_item);
        }
        assert!(queue.len() < 1000 - 400 && bytes == (1000 - queue.len()) * 10);
        assert_eq!(queue.bytes(), queue.len() * 10);
    }
}
