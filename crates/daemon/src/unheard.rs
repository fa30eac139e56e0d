//! Peers of which no heartbeat has come since this daemon started, though all have met: who stops datagrams on their way
//! stops them silently.

use bootstrap::Ranks;

/// Time for first heartbeats: a hundred of them, and longer than a job takes to start once all have met.
const PATIENCE_NS: u64 = 10_000_000_000;

/// Peers that nobody has heard.
#[derive(Debug)]
pub(crate) struct Unheard {
    ranks: Vec<u32>,
    told_at_ns: u64,
}

impl Unheard {
    pub(crate) fn new(peers: Vec<u32>, now_ns: u64) -> Self {
        Self { ranks: peers, told_at_ns: now_ns.saturating_add(PATIENCE_NS) }
    }

    /// A heartbeat came.
    pub(crate) fn hear(&mut self, rank: u32) {
        // Empty, as a rule.
        self.ranks.retain(|unheard| *unheard != rank);
    }

    /// Those that were not heard in time, once.
    fn late(&mut self, now_ns: u64) -> Option<Ranks> {
        let is_late = !self.ranks.is_empty() && now_ns >= self.told_at_ns;
        is_late.then(|| Ranks(std::mem::take(&mut self.ranks)))
    }

    /// Logs those that were not heard in time, once.
    pub(crate) fn tell(&mut self, now_ns: u64) {
        if let Some(ranks) = self.late(now_ns) {
            tracing::warn!(
                "no heartbeat of {ranks} has come since this daemon started: a firewall drops UDP between the hosts, \
                 the daemons are in different network namespaces and meet at a loopback address, or theirs have ended"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_not_heard_in_time_is_named_once() {
        let mut unheard = Unheard::new(vec![1, 2, 3], 5);
        unheard.hear(2);
        assert_eq!(unheard.late(PATIENCE_NS), None);
        assert_eq!(unheard.late(PATIENCE_NS + 5), Some(Ranks(vec![1, 3])));
        assert_eq!(unheard.late(u64::MAX), None);
        let mut heard = Unheard::new(vec![1], 0);
        heard.hear(1);
        assert_eq!(heard.late(u64::MAX), None);
    }
}
