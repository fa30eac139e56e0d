//! When the calls of one client are due.

use super::{Pace, Workload};
use crate::{place::ClientId, rng::Rng};

/// Added to the client's number, so that times and operations draw from different streams.
const STREAM: u64 = 1 << 32;
const NS_PER_S: f64 = 1e9;

/// Times at which calls are due, fixed in advance: they do not depend on any answer.
#[derive(Clone, Debug)]
pub struct Arrivals {
    /// `None`: a call is due whenever one is possible.
    schedule: Option<Schedule>,
}

#[derive(Clone, Debug)]
struct Schedule {
    rng: Rng,
    mean_ns: f64,
    begin_ns: u64,
    /// Of the next call, after the begin; a fraction, so that rounding does not add up.
    next_ns: f64,
}

impl Arrivals {
    /// The arrivals of `client` from `begin_ns` on: none but the queue depth limits them, or a
    /// Poisson process.
    #[must_use]
    pub fn new(workload: &Workload, client: ClientId, begin_ns: u64) -> Self {
        let schedule = match workload.pace {
            Pace::Closed => None,
            Pace::Open(calls_per_s) => {
                let clients = f64::from(workload.topology().clients());
                let mut schedule = Schedule {
                    rng: Rng::new(workload.seed, STREAM + u64::from(client.0)),
                    mean_ns: NS_PER_S * clients / calls_per_s as f64,
                    begin_ns,
                    next_ns: 0.0,
                };
                schedule.advance();
                Some(schedule)
            }
        };
        Self { schedule }
    }

    /// When the next call is due, which is `now_ns` if only the queue depth limits.
    #[inline]
    #[must_use]
    pub fn due_ns(&self, now_ns: u64) -> u64 {
        self.schedule.as_ref().map_or(now_ns, Schedule::due_ns)
    }

    /// The call that was due is on its way.
    #[inline]
    pub fn advance(&mut self) {
        if let Some(schedule) = &mut self.schedule {
            schedule.advance();
        }
    }

    /// `count` calls are left out: as much time passes as between so many on average.
    pub fn skip(&mut self, count: u64) {
        if let Some(schedule) = &mut self.schedule {
            schedule.next_ns += count as f64 * schedule.mean_ns;
        }
    }

    /// Calls that are still due before `end_ns`, on average; none if only the queue depth limits.
    #[must_use]
    pub fn left(&self, end_ns: u64) -> u64 {
        self.schedule.as_ref().map_or(0, |schedule| schedule.left(end_ns))
    }

    /// Whether times are fixed in advance.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.schedule.is_some()
    }
}

impl Schedule {
    #[expect(clippy::cast_possible_truncation, reason = "a run lasts an hour at most")]
    #[expect(clippy::cast_sign_loss, reason = "sums of positive gaps")]
    fn due_ns(&self) -> u64 {
        self.begin_ns + self.next_ns as u64
    }

    #[expect(clippy::cast_possible_truncation, reason = "a run has no more than 2^39")]
    #[expect(clippy::cast_sign_loss, reason = "a cast from below zero is zero")]
    fn left(&self, end_ns: u64) -> u64 {
        let left_ns = end_ns.saturating_sub(self.begin_ns) as f64 - self.next_ns;
        (left_ns / self.mean_ns) as u64
    }

    fn advance(&mut self) {
        self.next_ns -= (1.0 - self.rng.unit()).ln() * self.mean_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_arrivals_come_at_the_rate_asked_for() {
        let workload = Workload { pace: Pace::Open(80_000), ..Workload::default() };
        let mut arrivals = Arrivals::new(&workload, ClientId(2), 1_000);
        let (mut due_ns, mut gaps_above_mean) = (1_000, 0);
        for _ in 0..10_000 {
            let next_ns = arrivals.due_ns(0);
            gaps_above_mean += u32::from(next_ns - due_ns > 100_000);
            due_ns = next_ns;
            arrivals.advance();
        }
        // 8 clients: 10 k/s each, so 10 k calls take a second.
        assert!(due_ns.abs_diff(1_000_000_000) < 40_000_000, "{due_ns}");
        // Exponential gaps exceed their mean with probability 1/e.
        assert!((3_400..3_950).contains(&gaps_above_mean), "{gaps_above_mean}");
    }

    #[test]
    fn calls_that_are_left_out_take_their_time() {
        let workload = Workload { pace: Pace::Open(80_000), ..Workload::default() };
        let mut arrivals = Arrivals::new(&workload, ClientId(0), 1_000);
        let first_ns = arrivals.due_ns(0);
        arrivals.skip(10);
        assert!(arrivals.due_ns(0).abs_diff(first_ns + 1_000_000) <= 1, "ten means of 100 µs");
        let due_ns = arrivals.due_ns(0);
        assert_eq!([3_050_000, 0].map(|ns| arrivals.left(due_ns + ns)), [30, 0]);
        assert_eq!(arrivals.left(0), 0, "over");
        assert_eq!(Arrivals::new(&Workload::default(), ClientId(0), 0).left(u64::MAX), 0);
    }

    /// Clients that are due at the same times make bursts, which is another load than the one asked for.
    #[test]
    fn clients_are_due_at_times_of_their_own() {
        let workload = Workload { pace: Pace::Open(80_000), ..Workload::default() };
        let first_ns = |client| Arrivals::new(&workload, ClientId(client), 1_000).due_ns(0);
        let mut firsts = (0..8).map(first_ns).collect::<Vec<_>>();
        assert!(
            firsts.iter().all(|&first_ns| first_ns > 1_000),
            "not all at the begin: {firsts:?}"
        );
        // Nor do times follow from the numbers that choose operations.
        let gap_ns = -(1.0 - Rng::new(workload.seed, 0).unit()).ln() * 100_000.0;
        assert!((firsts[0] as f64 - 1_000.0 - gap_ns).abs() > 1.0, "{} {gap_ns}", firsts[0]);
        firsts.sort_unstable();
        firsts.dedup();
        assert_eq!(firsts.len(), 8);
    }

    #[test]
    fn a_closed_loop_is_always_due() {
        let mut arrivals = Arrivals::new(&Workload::default(), ClientId(0), 5);
        arrivals.advance();
        assert_eq!((arrivals.due_ns(77), arrivals.is_open()), (77, false));
    }
}
