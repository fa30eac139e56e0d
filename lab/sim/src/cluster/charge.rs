//! What CPU and NIC of a node take, in a world whose times are those of a machine.

use crate::machine::DelegationProfile;

/// What a daemon has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Work {
    /// Requests taken from clients.
    pub(super) requests: u64,
    /// Responses given to clients.
    pub(super) responses: u64,
    /// Calls executed, for its own clients and for other nodes.
    pub(super) executed: u64,
    /// Completions of receives.
    pub(super) arrivals: u64,
    /// Doorbells.
    pub(super) rung: u64,
}

impl Work {
    fn since(self, before: Self) -> Self {
        Self {
            requests: self.requests - before.requests,
            responses: self.responses - before.responses,
            executed: self.executed - before.executed,
            arrivals: self.arrivals - before.arrivals,
            rung: self.rung - before.rung,
        }
    }
}

/// How long a phase takes that has done `work` since `before`, in ns. A turn has three.
pub(super) fn phase_ns(profile: &DelegationProfile, before: Work, work: Work) -> u64 {
    let Work { requests, responses, executed, arrivals, rung } = work.since(before);
    let messages = real(requests) * profile.call
        + real(responses) * profile.response
        + real(executed) * profile.serve;
    let items = requests + responses + executed;
    let warm = items.min(profile.warm_items.into());
    let weight = (real(warm) + real(items - warm) * profile.cold) / real(items.max(1));
    let us = profile.turn / 3.0
        + messages * weight
        + real(arrivals) * profile.completion
        + real(rung) * profile.flush;
    ns(us)
}

#[expect(clippy::cast_precision_loss, reason = "far below 2⁵³")]
const fn real(count: u64) -> f64 {
    count as f64
}

/// In whole ns.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a positive time of some µs"
)]
pub(super) const fn ns(us: f64) -> u64 {
    (us * 1000.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::CONNECT_X7;

    #[test]
    fn a_phase_takes_what_its_work_takes_and_more_if_that_leaves_the_caches() {
        let idle = phase_ns(&CONNECT_X7, Work::default(), Work::default());
        assert_eq!(idle, 160);
        let one = Work { requests: 1, arrivals: 2, rung: 3, ..Work::default() };
        assert_eq!(phase_ns(&CONNECT_X7, Work::default(), one), 340);
        assert_eq!(phase_ns(&CONNECT_X7, one, one), idle);
        let served = |executed| {
            phase_ns(&CONNECT_X7, Work::default(), Work { executed, ..Work::default() }) - idle
        };
        assert!(served(64) < 64 * 12 && served(128) > 128 * 13);
    }
}
