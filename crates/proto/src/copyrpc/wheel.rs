//! Deadlines of calls: a hashed timing wheel whose entries are the call's own slots.
//!
//! Source: Varghese and Lauck, *Hashed and Hierarchical Timing Wheels*, SOSP 1987, scheme 6.

use alloc::{boxed::Box, vec, vec::Vec};

/// Granularity: a deadline is noticed at most this late, plus the time between looks.
pub const TICK_NS: u64 = 1 << 20;
const BUCKETS: usize = 0x100;
const NONE: u16 = u16::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    deadline_ns: u64,
    next: u16,
    prev: u16,
    is_queued: bool,
}

/// At most one deadline for each of a fixed number of slots. Inserting and removing touch at most
/// three links.
#[derive(Debug)]
pub(crate) struct Wheel {
    buckets: Box<[u16; BUCKETS]>,
    links: Vec<Link>,
    /// The first tick that was not looked at.
    tick: u64,
    queued: u32,
}

impl Wheel {
    pub(crate) fn new(slots: u16) -> Self {
        let link = Link { deadline_ns: 0, next: NONE, prev: NONE, is_queued: false };
        Self {
            buckets: Box::new([NONE; BUCKETS]),
            links: vec![link; usize::from(slots)],
            tick: 0,
            queued: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queued == 0
    }

    #[inline]
    pub(crate) fn insert(&mut self, slot: u16, deadline_ns: u64) {
        self.remove(slot);
        // A deadline in the past is noticed at the next tick that is looked at.
        let bucket = bucket((deadline_ns / TICK_NS).max(self.tick));
        let next = self.buckets[bucket];
        if next != NONE {
            self.links[usize::from(next)].prev = slot;
        }
        self.buckets[bucket] = slot;
        self.links[usize::from(slot)] = Link { deadline_ns, next, prev: NONE, is_queued: true };
        self.queued += 1;
    }

    #[inline]
    pub(crate) fn remove(&mut self, slot: u16) {
        let link = self.links[usize::from(slot)];
        if !link.is_queued {
            return;
        }
        self.links[usize::from(slot)].is_queued = false;
        self.queued -= 1;
        match link.prev {
            NONE => {
                // It is the first of some bucket: its own, or the one it was moved to when late.
                let at = self.first_bucket(slot, link.deadline_ns);
                self.buckets[at] = link.next;
            }
            prev => self.links[usize::from(prev)].next = link.next,
        }
        if link.next != NONE {
            self.links[usize::from(link.next)].prev = link.prev;
        }
    }

    /// The bucket whose first entry is `slot`.
    fn first_bucket(&self, slot: u16, deadline_ns: u64) -> usize {
        let own = bucket(deadline_ns / TICK_NS);
        if self.buckets[own] == slot {
            return own;
        }
        self.buckets.iter().position(|first| *first == slot).unwrap_or(own)
    }

    /// Takes a slot whose deadline has passed; call it until it returns `None`.
    ///
    /// Work is bounded by one lap of the wheel, whatever time has passed.
    pub(crate) fn expire(&mut self, now_ns: u64) -> Option<u16> {
        let now = now_ns / TICK_NS;
        if self.queued == 0 {
            self.tick = self.tick.max(now);
            return None;
        }
        self.tick = self.tick.max(now.saturating_sub(BUCKETS as u64));
        while self.tick <= now {
            let mut slot = self.buckets[bucket(self.tick)];
            while slot != NONE {
                let link = self.links[usize::from(slot)];
                if link.deadline_ns <= now_ns {
                    self.remove(slot);
                    return Some(slot);
                }
                slot = link.next;
            }
            if self.tick == now {
                return None; // its later part is still to come
            }
            self.tick += 1;
        }
        None
    }
}

/// Where deadlines of this tick are kept.
fn bucket(tick: u64) -> usize {
    (tick & 0xff) as usize
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, vec::Vec};

    use proptest::prelude::*;

    use super::*;

    fn expired(wheel: &mut Wheel, now_ns: u64) -> Vec<u16> {
        let mut slots = core::iter::from_fn(|| wheel.expire(now_ns)).collect::<Vec<_>>();
        slots.sort_unstable();
        slots
    }

    #[test]
    fn a_deadline_in_the_past_is_noticed_at_once() {
        let mut wheel = Wheel::new(4);
        assert_eq!(expired(&mut wheel, 1 << 40), []);
        wheel.insert(2, 5);
        assert_eq!(expired(&mut wheel, 1 << 40), [2]);
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 4 } else { 256 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        /// Against an ordered map: the same slots expire at the same looks.
        #[test]
        fn it_expires_what_a_map_of_deadlines_expires(
            steps in prop::collection::vec((0_u8..3, 0_u16..8, 0_u64..3000), 1..300)
        ) {
            let mut wheel = Wheel::new(8);
            let mut model = BTreeMap::new();
            let mut now_ns = 0;
            for (what, slot, ticks) in steps {
                match what {
                    0 => {
                        let deadline_ns = now_ns + ticks * TICK_NS / 3;
                        wheel.insert(slot, deadline_ns);
                        model.insert(slot, deadline_ns);
                    }
                    1 => {
                        wheel.remove(slot);
                        model.remove(&slot);
                    }
                    _ => {
                        now_ns += ticks * TICK_NS / 7;
                        let passed: Vec<_> =
                            model.iter().filter(|(_, at)| **at <= now_ns).map(|(s, _)| *s).collect();
                        model.retain(|_, at| *at > now_ns);
                        prop_assert_eq!(expired(&mut wheel, now_ns), passed);
                    }
                }
                prop_assert_eq!(wheel.is_empty(), model.is_empty());
            }
        }
    }
}
