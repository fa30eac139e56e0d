//! The time of a session, dealt out to its workloads: each gets the time that its fewest rounds take, and an equal part
//! of the rest.

use std::time::Duration;

use super::{SessionPlan, heat::TRIALS};
use crate::job::{self, Config};

/// Time until one process is connected and warm, about. On two cores of an AMD EPYC 1752 processes took 13.8 s.
const START: Duration = Duration::from_millis(8);
/// Time that an interval takes beside the measured one, about: orders, reports, a probe of the pace.
const AROUND: Duration = Duration::from_millis(50);

/// Time that the contestants of one workload take at least, about: starts, trials of ways to wait, the fewest rounds.
pub(super) fn least_time(configs: &[Config], plan: SessionPlan) -> Duration {
    let of_one = |config: &Config| {
        let interval = Duration::from_millis(config.workload.duration_ms);
        let ways = if plan.finds_wait { count(config.backend.waits().len()) } else { 1 };
        let trials = if ways > 1 { count(TRIALS) * ways } else { 0 };
        START * count(job::processes(config)) * ways
            + (interval / 2 + AROUND) * trials
            + (interval + AROUND) * plan.rounds.min()
    };
    configs.iter().map(of_one).sum()
}

/// The part of the first workload in the time that is left for all, whose [least times](least_time) are `least`.
pub(super) fn first_part(left: Duration, least: &[Duration]) -> Duration {
    let [first, ..] = least else { return left };
    let spare = left.saturating_sub(least.iter().sum());
    *first + spare / count(least.len())
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{backend::Kind, grid::Axes, session::Rounds};

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn what_no_workload_needs_is_shared_evenly_and_nobody_falls_below_the_least_time() {
        assert_eq!(first_part(20 * S, &[S, 4 * S, 9 * S]), 3 * S);
        assert_eq!(first_part(17 * S, &[4 * S, 9 * S]), 6 * S);
        assert_eq!(first_part(5 * S, &[9 * S]), 9 * S);
    }

    #[test]
    fn the_curve_of_the_first_command_fits_into_its_time() {
        let plan = SessionPlan { rounds: Rounds::Known(55 * S), finds_wait: true };
        // UCX, which is not on every machine, takes the time of another contestant.
        let backends = [Kind::Delegation, Kind::Provider, Kind::Direct, Kind::Tcp, Kind::Tcp];
        let least = [4, 16, 64].map(|clients| {
            let of_one = |&backend| {
                let axes = Axes {
                    backends: vec![backend],
                    clients_per_rank: vec![clients],
                    nic: "soft".into(),
                    ..Axes::default()
                };
                least_time(&axes.configs().unwrap(), plan)
            };
            backends.iter().map(of_one).sum::<Duration>()
        });
        assert!(least.is_sorted());
        assert!(least.iter().sum::<Duration>() < 55 * S, "{least:?}");
    }
}
