//! A timing wheel of sessions that wait for their turn to send.
//!
//! ```text
//!  now ─▶│ slot │ slot │ slot │ … │ horizon      one slot: 512 ns
//!           7             3, 12                   numbers of sessions
//! ```
//!
//! Source: A. Saeed and others, *Carousel: Scalable Traffic Shaping at End Hosts*, SIGCOMM 2017. The original
//! puts packets in the wheel; here it is sessions, so a packet's place in its call is known when it leaves.

use alloc::{vec, vec::Vec};

/// Time that one slot stands for.
const SLOT_NS: u64 = 512;

/// When a session may send next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pacer {
    next_ns: u64,
}

impl Pacer {
    /// `Some`: not before then.
    #[must_use]
    pub fn wait_until_ns(self, now_ns: u64) -> Option<u64> {
        (self.next_ns > now_ns).then_some(self.next_ns)
    }

    /// A packet of `bytes` was sent at `rate` bytes per second.
    pub fn sent(&mut self, bytes: u32, rate: f64, now_ns: u64) {
        #[expect(clippy::cast_possible_truncation, reason = "below 10 s at any rate of Timely")]
        #[expect(clippy::cast_sign_loss, reason = "rates are positive")]
        let takes_ns = (f64::from(bytes) * 1e9 / rate) as u64;
        self.next_ns = self.next_ns.max(now_ns) + takes_ns;
    }
}

/// The wheel. It holds a number once at most, if its user sees to that.
#[derive(Debug)]
pub struct Carousel {
    slots: Vec<Vec<u32>>,
    /// Slot number, never wrapped, up to which the wheel was emptied.
    done: u64,
    len: usize,
}

impl Carousel {
    /// A wheel that reaches `horizon_ns` into the future. An entry that waits longer is put at its end, and has to wait
    /// again.
    #[must_use]
    pub fn new(horizon_ns: u64, now_ns: u64) -> Self {
        let slots = usize::try_from(horizon_ns.div_ceil(SLOT_NS)).unwrap_or(1 << 16);
        Self { slots: vec![Vec::new(); slots.clamp(2, 1 << 16)], done: now_ns / SLOT_NS, len: 0 }
    }

    /// Numbers in the wheel.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no entry waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts a number where it is due at `at_ns`.
    pub fn insert(&mut self, number: u32, at_ns: u64) {
        let last = self.done + self.slots.len() as u64 - 1;
        let at = at_ns.div_ceil(SLOT_NS).clamp(self.done, last);
        let index = self.index(at);
        self.slots[index].push(number);
        self.len += 1;
    }

    fn index(&self, at: u64) -> usize {
        usize::try_from(at % self.slots.len() as u64).unwrap_or(0)
    }

    /// The next number that is due.
    pub fn poll(&mut self, now_ns: u64) -> Option<u32> {
        let end = now_ns / SLOT_NS;
        if self.len == 0 {
            self.done = self.done.max(end);
            return None;
        }
        // All slots are looked at once at most: later ones hold the same.
        self.done = self.done.max((end + 1).saturating_sub(self.slots.len() as u64));
        while self.done <= end {
            let index = self.index(self.done);
            if let Some(number) = self.slots[index].pop() {
                self.len -= 1;
                return Some(number);
            }
            if self.done == end {
                return None;
            }
            self.done += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_pace_keeps_the_rate() {
        let mut pace = Pacer::default();
        let mut now_ns = 1000;
        for _ in 0..100 {
            now_ns = pace.wait_until_ns(now_ns).unwrap_or(now_ns);
            pace.sent(1000, 1e9, now_ns);
        }
        assert_eq!(pace.wait_until_ns(now_ns), Some(1000 + 100 * 1000));
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            cases: if cfg!(miri) { 4 } else { 64 },
            ..ProptestConfig::default()
        })]

        /// No entry comes early, nor later than a slot if the wheel is polled as often, unless it waits beyond
        /// the horizon; and none is lost.
        #[test]
        fn everyone_is_told_once_and_in_time(
            waits_ns in proptest::collection::vec(0..200_000u64, 1..60), step_ns in 1..5000u64,
        ) {
            let horizon_ns = 100_000;
            let mut wheel = Carousel::new(horizon_ns, 0);
            for (number, wait_ns) in (0..).zip(&waits_ns) {
                wheel.insert(number, *wait_ns);
            }
            let mut told = vec![false; waits_ns.len()];
            let mut now_ns = 0;
            while now_ns < 200_000 {
                while let Some(number) = wheel.poll(now_ns) {
                    let wait_ns = waits_ns[number as usize];
                    let due_ns = wait_ns.min(horizon_ns - SLOT_NS);
                    prop_assert!(now_ns + SLOT_NS >= due_ns, "told {number} early");
                    prop_assert!(now_ns <= due_ns + step_ns + 2 * SLOT_NS, "told {number} late");
                    prop_assert!(!core::mem::replace(&mut told[number as usize], true));
                }
                now_ns += step_ns;
            }
            prop_assert!(wheel.is_empty() && told.iter().all(|told| *told));
        }
    }
}
