//! Whether others want the core that a thread waits on.

use std::thread;

use crate::clock;

/// Longest time that `sched_yield(2)` takes if nobody else runs: some 0.4 µs, where a switch to somebody
/// else and back takes more than 1 µs even if he does nothing.
const ALONE_NS: u64 = 1_000;

/// Of offers in a row that somebody takes, one in so many is timed: the others save two looks at the clock.
const TIMED_PERIOD: u32 = 8;

/// What a thread knows about others that want its core.
#[derive(Clone, Debug, Default)]
pub struct Crowd {
    is_crowded: bool,
    untimed: u32,
}

impl Crowd {
    /// Before the first offer, supposing that somebody wants the core or that nobody does.
    #[must_use]
    pub const fn new(is_crowded: bool) -> Self {
        Self { is_crowded, untimed: 0 }
    }

    /// Whether somebody took the core when that was looked at last.
    #[inline]
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        self.is_crowded
    }

    /// Gives the core to others who want it. That nobody wants it any more may be noticed some offers
    /// later, that somebody does is noticed at once.
    #[inline]
    pub fn offer(&mut self) {
        self.untimed += 1;
        if self.is_crowded && self.untimed < TIMED_PERIOD {
            thread::yield_now();
        } else {
            (self.is_crowded, self.untimed) = (yield_core(), 0);
        }
    }
}

/// Gives the core to others who want it. Returns whether somebody took it.
///
/// Who shares a core should not spin: what it waits for may have to come from whom it keeps from
/// running.
pub fn yield_core() -> bool {
    let before_ns = clock::now_ns();
    thread::yield_now();
    clock::now_ns().saturating_sub(before_ns) > ALONE_NS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_crowded_looks_again_within_a_few_offers() {
        let mut crowd = Crowd::new(true);
        let timed = (1..=TIMED_PERIOD).find(|_| {
            crowd.offer();
            crowd.untimed == 0
        });
        assert_eq!(timed, Some(TIMED_PERIOD));
        crowd.is_crowded = false;
        crowd.offer();
        assert_eq!(crowd.untimed, 0, "that somebody wants it is noticed at once");
    }
}
