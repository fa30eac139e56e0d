//! How many requests of one client a turn takes: fewer while turns take long.

/// A turn that takes longer is too long: clients with one request wait as long for their answers.
const TURN_NS_MAX: u64 = 100_000;

/// Most requests of one client per turn at first; a port may allow fewer.
const BUDGET_MAX: u32 = 1 << 16;

/// Bounds the time of a turn by that of the turns before, which costs no look at the clock.
#[derive(Debug)]
pub(crate) struct Pace {
    budget: u32,
    /// When the last turn began that took requests, unless others came after it; 0: none.
    began_ns: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { budget: BUDGET_MAX, began_ns: 0 }
    }
}

impl Pace {
    /// A turn that began at `now_ns` took requests of clients. Returns the new budget if it changes.
    #[inline]
    pub(crate) fn took(&mut self, now_ns: u64) -> Option<u32> {
        let began_ns = core::mem::replace(&mut self.began_ns, now_ns);
        let took_ns = if began_ns == 0 { 0 } else { now_ns.saturating_sub(began_ns) };
        if took_ns <= TURN_NS_MAX && self.budget == BUDGET_MAX { None } else { self.adapt(took_ns) }
    }

    /// A turn found nothing.
    #[inline]
    pub(crate) fn rested(&mut self) {
        self.began_ns = 0;
    }

    #[cold]
    fn adapt(&mut self, took_ns: u64) -> Option<u32> {
        let budget = match took_ns {
            // Whatever the port allows, some long turns are enough.
            took_ns if took_ns > TURN_NS_MAX => (self.budget.min(64) / 2).max(1),
            took_ns if took_ns * 2 < TURN_NS_MAX => (self.budget * 2).min(BUDGET_MAX),
            _ => self.budget,
        };
        let has_changed = core::mem::replace(&mut self.budget, budget) != budget;
        has_changed.then_some(budget)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_i10_slow_requests_shorten_the_turns_of_all_and_quick_ones_lengthen_them() {
        let (mut pace, mut now_ns, mut budget) = (Pace::default(), 1, 32);
        let mut turn = |request_ns: u64, clients: u64| {
            budget = pace.took(now_ns).unwrap_or(budget).min(32);
            now_ns += u64::from(budget) * request_ns * clients;
            u64::from(budget) * request_ns * clients
        };
        (0..10).for_each(|_| assert!(turn(50_000, 2) > 0));
        assert_eq!(turn(50_000, 2), 100_000, "one request of each");
        (0..40).for_each(|_| assert!(turn(100, 2) > 0));
        assert_eq!(turn(100, 2), 6400, "as many as the port allows");
        // Time without requests is no turn.
        let mut pace = Pace::default();
        assert_eq!(pace.took(1), None);
        pace.rested();
        assert_eq!(pace.took(1 << 40), None);
    }
}
