//! Flush policies: the time at which a batch is closed and posted.

/// The policy by which a connection posts gathered messages.
///
/// A batch that is full is posted at once under every policy, as far as the send queue has space.
///
/// [`SelfClocked`](Self::SelfClocked) is the default and the one to use;
/// [`Immediate`](Self::Immediate) is for comparison with calls that are not batched. The others are there
/// for research: docs/benchmarks.md compares them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushPolicy {
    /// While fewer than `wqes` posted requests are unfinished; otherwise calls keep merging. Needs
    /// no timer: an idle connection posts at once, and batches grow with the load.
    SelfClocked {
        /// At least 1.
        wqes: u16,
    },
    /// After every call.
    Immediate,
    /// A fixed time after the first call of the batch.
    Hold {
        /// The time.
        ns: u32,
    },
    /// As soon as a batch has `messages`, or after the time in which, by the recent rate of
    /// messages, as many would come: 0.5 to 100 µs. Zero while that would not help.
    AdaptiveHold {
        /// At least 1.
        messages: u16,
    },
    /// A multiple of the time from posting to the peer's credit, in thousandths; at most 100 µs.
    RttHold {
        /// Thousandths.
        permille: u32,
    },
    /// After this many polls since the first call of the batch.
    PollBudget {
        /// At least 1.
        polls: u32,
    },
    /// At once, but received batches are gathered for this long before they are handled.
    Coalesce {
        /// The time.
        ns: u32,
    },
}

/// Peers up to which a NIC has time for a second request of each.
const PEERS_FEW: usize = 3;

impl FlushPolicy {
    /// The policy for a NIC that serves connections to so many peers: self-clocked, with two unfinished
    /// requests for each of a few peers, and with one for each of many.
    ///
    /// All connections share the NIC. Where it waits for requests, a second one of a peer fills the time;
    /// where requests of other peers fill it, a second one only leaves with fewer messages
    /// (docs/simulation.md compares both).
    #[must_use]
    pub const fn for_peers(peers: usize) -> Self {
        Self::SelfClocked { wqes: if peers <= PEERS_FEW { 2 } else { 1 } }
    }
}

impl Default for FlushPolicy {
    fn default() -> Self {
        Self::SelfClocked { wqes: 2 }
    }
}

/// Longest time that an adaptive policy holds a batch back.
const HOLD_MAX_NS: u64 = 100_000;
/// Shortest, if it holds back at all.
const HOLD_MIN_NS: u64 = 500;
/// Batches without holding back after which it is tried again.
const LOOK_AGAIN: u16 = 1024;
/// Weight of a new sample: 1/8.
const EWMA_SHIFT: u32 = 3;

/// The inputs of a policy's decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gathered {
    /// Messages in the open batch.
    pub(crate) messages: u16,
    /// Posted and not known to be finished.
    pub(crate) unfinished_wqes: u64,
}

/// A policy and its observations.
#[derive(Clone, Debug)]
pub(crate) struct FlushClock {
    policy: FlushPolicy,
    /// The time at which the open batch got its first message.
    opened_ns: Option<u64>,
    polls: u32,
    rtt_ns: Option<u64>,
    /// Time per message, while batches are open.
    gap_ns: Option<u64>,
    /// Batches since holding back was given up.
    unheld: u16,
    spent: Spent,
}

/// The time that batches spent, by phase, summed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    /// From the first message of a batch to its posting.
    pub(crate) held_ns: u64,
    /// Times that the peer said that it has consumed batches.
    pub(crate) trips: u64,
    /// From posting the last of these to then.
    pub(crate) trips_ns: u64,
}

impl FlushClock {
    pub(crate) fn new(policy: FlushPolicy) -> Self {
        Self {
            policy,
            opened_ns: None,
            polls: 0,
            rtt_ns: None,
            gap_ns: None,
            unheld: 0,
            spent: Spent::default(),
        }
    }

    pub(crate) fn policy(&self) -> FlushPolicy {
        self.policy
    }

    /// A message was added.
    #[inline]
    pub(crate) fn added(&mut self, now_ns: u64) {
        if self.opened_ns.is_none() {
            self.opened_ns = Some(now_ns);
            self.polls = 0;
        }
    }

    pub(crate) fn polled(&mut self) {
        self.polls = self.polls.saturating_add(1);
    }

    /// The batch was posted.
    #[inline]
    pub(crate) fn posted(&mut self, now_ns: u64, messages: u16) {
        let Some(opened_ns) = self.opened_ns.take() else { return };
        let held_ns = now_ns.saturating_sub(opened_ns);
        self.spent.held_ns += held_ns;
        if let FlushPolicy::AdaptiveHold { messages: most } = self.policy {
            self.learn(held_ns / u64::from(messages.max(1)), most);
        }
    }

    /// A batch that was not held back says nothing of the rate at which it would have filled, so now
    /// and then some are.
    fn learn(&mut self, gap_ns: u64, most: u16) {
        if self.adaptive_ns(most) > 0 {
            self.unheld = 0;
            average(&mut self.gap_ns, gap_ns);
        } else {
            self.unheld += 1;
            if self.unheld == LOOK_AGAIN {
                (self.gap_ns, self.unheld) = (None, 0);
            }
        }
    }

    /// Time from posting to credit.
    pub(crate) fn round_trip(&mut self, ns: u64) {
        average(&mut self.rtt_ns, ns);
        self.spent.trips += 1;
        self.spent.trips_ns += ns;
    }

    pub(crate) fn spent(&self) -> Spent {
        self.spent
    }

    /// Whether the open batch, which has messages, is to be posted now.
    #[inline]
    pub(crate) fn is_due(&self, now_ns: u64, gathered: Gathered) -> bool {
        let held_ns = now_ns.saturating_sub(self.opened_ns.unwrap_or(now_ns));
        match self.policy {
            FlushPolicy::SelfClocked { wqes } => gathered.unfinished_wqes < u64::from(wqes.max(1)),
            FlushPolicy::Immediate | FlushPolicy::Coalesce { .. } => true,
            FlushPolicy::Hold { ns } => held_ns >= u64::from(ns),
            FlushPolicy::AdaptiveHold { messages } => {
                gathered.messages >= messages || held_ns >= self.adaptive_ns(messages)
            }
            FlushPolicy::RttHold { permille } => {
                let rtt_ns = self.rtt_ns.unwrap_or(0);
                let hold_ns = rtt_ns.saturating_mul(u64::from(permille)) / 1000;
                held_ns >= hold_ns.min(HOLD_MAX_NS)
            }
            FlushPolicy::PollBudget { polls } => self.polls >= polls,
        }
    }

    /// The time at which the open batch becomes due if nothing else happens; `None`: not by time.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        let opened_ns = self.opened_ns?;
        let hold_ns = match self.policy {
            FlushPolicy::Hold { ns } => u64::from(ns),
            FlushPolicy::AdaptiveHold { messages } => self.adaptive_ns(messages),
            FlushPolicy::RttHold { .. } => HOLD_MAX_NS,
            // A sleeper would not poll.
            FlushPolicy::PollBudget { .. } => 0,
            _ => return None,
        };
        Some(opened_ns.saturating_add(hold_ns))
    }

    /// Holding back pays only if, at the recent rate, the batch fills within the longest hold.
    fn adaptive_ns(&self, messages: u16) -> u64 {
        let fill_ns = self.gap_ns.unwrap_or(HOLD_MIN_NS).saturating_mul(u64::from(messages));
        if messages <= 1 || fill_ns > HOLD_MAX_NS { 0 } else { fill_ns.max(HOLD_MIN_NS) }
    }
}

fn average(value: &mut Option<u64>, sample: u64) {
    *value = Some(value.map_or(sample, |old| old - (old >> EWMA_SHIFT) + (sample >> EWMA_SHIFT)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(unfinished_wqes: u64) -> Gathered {
        Gathered { messages: 1, unfinished_wqes }
    }

    #[test]
    fn self_clocked_posts_while_fewer_than_n_are_unfinished() {
        let mut clock = FlushClock::new(FlushPolicy::SelfClocked { wqes: 2 });
        clock.added(0);
        assert!(clock.is_due(0, one(0)) && clock.is_due(0, one(1)) && !clock.is_due(9, one(2)));
        assert_eq!(clock.due_ns(), None);
    }

    #[test]
    fn many_peers_have_one_unfinished_request_each() {
        let wqes = |peers| match FlushPolicy::for_peers(peers) {
            FlushPolicy::SelfClocked { wqes } => wqes,
            other => panic!("{other:?}"),
        };
        assert_eq!([0, 1, 3, 4, 1023].map(wqes), [2, 2, 2, 1, 1]);
    }

    #[test]
    fn hold_posts_after_its_time_and_not_before() {
        let mut clock = FlushClock::new(FlushPolicy::Hold { ns: 10 });
        clock.added(5);
        clock.added(12);
        assert!(!clock.is_due(14, one(9)) && clock.is_due(15, one(9)));
        assert_eq!(clock.due_ns(), Some(15));
        clock.posted(15, 2);
        clock.added(20);
        assert!(!clock.is_due(29, one(0)) && clock.is_due(30, one(0)));
    }

    #[test]
    fn poll_budget_counts_polls_since_the_first_message() {
        let mut clock = FlushClock::new(FlushPolicy::PollBudget { polls: 2 });
        clock.polled();
        clock.polled();
        clock.added(0);
        assert!(!clock.is_due(0, one(0)));
        clock.polled();
        assert!(!clock.is_due(0, one(0)));
        clock.polled();
        assert!(clock.is_due(0, one(0)));
    }

    /// A sleeping thread counts no polls, so it must not sleep past a due time.
    #[test]
    fn what_is_not_due_by_time_alone_is_looked_at_in_time() {
        let mut clock = FlushClock::new(FlushPolicy::PollBudget { polls: 2 });
        clock.added(7);
        assert_eq!(clock.due_ns(), Some(7), "now");
        let mut clock = FlushClock::new(FlushPolicy::RttHold { permille: 500 });
        clock.added(7);
        assert_eq!(clock.due_ns(), Some(7 + HOLD_MAX_NS), "at its cap");
    }

    #[test]
    fn a_policy_of_nothing_waits_for_nothing() {
        let clock = FlushClock::new(FlushPolicy::SelfClocked { wqes: 0 });
        assert!(clock.is_due(0, one(0)) && !clock.is_due(0, one(1)), "as one");
        let mut clock = FlushClock::new(FlushPolicy::AdaptiveHold { messages: 1 });
        clock.added(7);
        assert_eq!(clock.due_ns(), Some(7));
    }

    /// Fault G7: a batch is held back for a bounded time, and not at all when it is alone.
    #[test]
    fn adaptive_hold_is_bounded_and_switches_itself_off() {
        let mut clock = FlushClock::new(FlushPolicy::AdaptiveHold { messages: 8 });
        let mut now_ns = 0;
        let mut held = 0;
        let mut held_again = 0;
        for number in 0..2000 {
            now_ns += 1_000_000;
            clock.added(now_ns);
            let due_ns = clock.due_ns().unwrap(); // no message joins it
            assert!(due_ns - now_ns <= HOLD_MAX_NS);
            held += u32::from(due_ns > now_ns);
            held_again += u32::from(due_ns > now_ns && number >= 1000);
            clock.posted(due_ns, 1);
        }
        assert!((2..100).contains(&held), "{held} of 2000 batches were held back in vain");
        assert!(held_again > 0, "the rate may have changed");
        let mut clock = FlushClock::new(FlushPolicy::AdaptiveHold { messages: 8 });
        for at in 0..100 {
            clock.added(at * 1_000_000);
            clock.posted(at * 1_000_000 + 8_000, 8);
        }
        clock.added(0);
        assert!(!clock.is_due(0, one(0)));
        assert!(clock.is_due(HOLD_MAX_NS, one(0)));
        assert!(clock.is_due(0, Gathered { messages: 8, unfinished_wqes: 0 }));
    }

    #[test]
    fn rtt_hold_follows_the_round_trip_up_to_its_cap() {
        let mut clock = FlushClock::new(FlushPolicy::RttHold { permille: 500 });
        clock.added(0);
        assert!(clock.is_due(0, one(0)), "nothing is known yet");
        clock.round_trip(10_000);
        assert!(!clock.is_due(4_999, one(0)) && clock.is_due(5_000, one(0)));
        for _ in 0..100 {
            clock.round_trip(1 << 40);
        }
        assert!(clock.is_due(HOLD_MAX_NS, one(0)));
    }
}
