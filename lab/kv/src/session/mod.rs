//! All rounds of several configurations.
//!
//! Configurations of one workload are *contestants*. The processes of all of them are there at the same time and sleep;
//! a round measures one short interval of each, in random order. So whatever the machine does meanwhile
//! harms all alike, and a ratio is that of two intervals of one round ([`measure::paired`]).
//!
//! ```text
//! heat (one workload):  start all ─▶ trial: each way to wait, the best stays ─▶ round 1, 2, … ─▶ end all
//! round:                probe  contestant 3  probe  contestant 1  probe  contestant 2  probe
//! ```
//!
//! Several hosts have one job at a time, and so have histories that are judged, and threads that burn their
//! core while nothing is measured: there each interval has processes of its own.

mod budget;
mod heat;
mod spent;

use std::time::{Duration, Instant};

use measure::{
    cores::Cores,
    paired::TOLERANCE,
    ping_pong::{self, PROBE_WINDOW},
    schedule::shuffled,
    shared_words::SharedWords,
};
use memory::sync::{AtomicBool, Ordering};

pub use measure::rounds::Rounds;

pub use self::spent::TimeSpent;
use self::{
    budget::{first_part, least_time},
    heat::Heat,
    spent::timed,
};
use crate::{
    backend::Kind,
    job::{Config, JobError, Launcher, Live, hosts::Hosts},
    result::{Headline, RunRecord},
};

/// Probes that are tried if a machine is too busy for one to succeed.
const PROBE_TRIES: usize = 3;

/// How a session goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionPlan {
    /// How many rounds there are.
    pub rounds: Rounds,
    /// Whether each contestant waits in the best of the ways that its backend names. Otherwise it waits as its
    /// configuration says.
    pub finds_wait: bool,
}

impl SessionPlan {
    /// This many rounds of configurations as they are.
    #[must_use]
    pub fn exactly(rounds: u32) -> Self {
        Self { rounds: Rounds::Exactly(rounds), finds_wait: false }
    }
}

/// A run that failed.
#[derive(Debug, thiserror::Error)]
#[error("{name}, round {round}: {cause}")]
pub struct SessionError {
    /// Of the configuration.
    pub name: String,
    /// Number of the round, from 1; 0 is the trial before the first.
    pub round: u32,
    /// Error of the run.
    pub cause: Box<JobError>,
}

/// What happens, for those who watch.
#[derive(Debug)]
pub enum Progress<'a> {
    /// A run goes on.
    Live {
        /// Configuration that runs.
        config: &'a Config,
        /// Number of the round, from 1; 0 is the trial before the first.
        round: u32,
        /// How far it is.
        live: Live,
    },
    /// A run is over.
    Done(Box<RunRecord>),
    /// All is over, and this is where the time went.
    Over(TimeSpent),
}

/// Runs every configuration on `hosts` as `plan` says, or until `stop` is set: what is left then is not run.
///
/// # Errors
///
/// [`SessionError`] of the first run that fails: the others are not made, and what was
/// [`Progress::Done`] stands.
pub fn run(
    configs: &[Config],
    plan: SessionPlan,
    launcher: &Launcher,
    hosts: &mut Hosts,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(Progress<'_>),
) -> Result<(), SessionError> {
    let prober = Prober::new();
    let heats = heats_of(configs);
    let least = heats.iter().map(|configs| least_time(configs, plan)).collect::<Vec<_>>();
    let mut time_left = match plan.rounds {
        Rounds::Known(time) => time,
        Rounds::Exactly(_) => Duration::ZERO,
    };
    let mut spent = TimeSpent::default();
    for (index, configs) in heats.into_iter().enumerate() {
        let begin = Instant::now();
        let mut heat = Heat::new(&configs, launcher, hosts);
        let mut session = Session { plan, prober: &prober, stop, watch, probes: Duration::ZERO };
        session.heat(&mut heat, first_part(time_left, &least[index..]))?;
        spent.probes += session.probes;
        spent.add(&heat.spent);
        time_left = time_left.saturating_sub(begin.elapsed());
    }
    watch(Progress::Over(spent));
    Ok(())
}

/// The configurations of each workload, in the order in which they come.
fn heats_of(configs: &[Config]) -> Vec<Vec<Config>> {
    let mut heats = Vec::<Vec<Config>>::new();
    for config in configs {
        match heats.iter_mut().find(|heat| heat[0].workload == config.workload) {
            Some(heat) => heat.push(config.clone()),
            None => heats.push(vec![config.clone()]),
        }
    }
    heats
}

struct Session<'a> {
    plan: SessionPlan,
    prober: &'a Prober,
    stop: &'a AtomicBool,
    watch: &'a mut dyn FnMut(Progress<'_>),
    /// Time that probes have taken.
    probes: Duration,
}

impl Session<'_> {
    fn is_stopped(&self) -> bool {
        // Relaxed: the flag is all there is to see.
        self.stop.load(Ordering::Relaxed)
    }

    fn heat(&mut self, heat: &mut Heat<'_>, time: Duration) -> Result<(), SessionError> {
        let begin = Instant::now();
        heat.enter(self.plan.finds_wait, &mut |config, live| {
            (self.watch)(Progress::Live { config, round: 0, live });
            !self.stop.load(Ordering::Relaxed)
        })?;
        let mut headline = Headline::of(heat.backends());
        let rounds = match self.plan.rounds {
            Rounds::Known(_) => Rounds::Known(time),
            exactly @ Rounds::Exactly(_) => exactly,
        };
        let mut done = 0;
        while !self.is_stopped()
            && rounds.goes_on(done, begin.elapsed(), || headline.is_known_to(TOLERANCE))
        {
            done += 1;
            self.round(heat, done, &mut headline)?;
        }
        heat.end()
    }

    /// Measures each contestant once, in random order.
    fn round(
        &mut self,
        heat: &mut Heat<'_>,
        round: u32,
        headline: &mut Headline,
    ) -> Result<(), SessionError> {
        let order = shuffled(heat.len(), round as usize);
        let mut before_ns = timed(&mut self.probes, || self.prober.probe());
        let mut rates = Vec::<(Kind, f64)>::new();
        for index in order {
            if self.is_stopped() {
                return Ok(());
            }
            let watch = &mut *self.watch;
            let mut record = heat.measure(index, round, &mut |config, live| {
                watch(Progress::Live { config, round, live });
            })?;
            let after_ns = timed(&mut self.probes, || self.prober.probe());
            record.placement = before_ns
                .zip(after_ns)
                .map(|(before_ns, after_ns)| measure::regime::Probes { before_ns, after_ns });
            before_ns = after_ns;
            rates.push((record.config.backend, record.measured.rate()));
            (self.watch)(Progress::Done(Box::new(record)));
        }
        headline.add_round(&rates);
        Ok(())
    }
}

/// Measures how far apart two cores are, if there are two.
struct Prober(Option<(Cores, SharedWords)>);

impl Prober {
    fn new() -> Self {
        Self(Cores::choose().ok().and_then(|cores| Some((cores, SharedWords::new().ok()?))))
    }

    /// Round trip of two cache lines in ns; `None`: cannot be measured here.
    fn probe(&self) -> Option<f64> {
        let (cores, words) = self.0.as_ref()?;
        let probe = |_| ping_pong::between_threads(*cores, words, PROBE_WINDOW).ok();
        (0..PROBE_TRIES).find_map(probe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::Axes;

    #[test]
    fn contestants_of_one_workload_are_one_heat() {
        let axes = Axes {
            backends: vec![Kind::Tcp, Kind::Direct],
            clients_per_rank: vec![4, 16],
            nic: "soft".into(),
            ..Axes::default()
        };
        let heats = heats_of(&axes.configs().unwrap());
        let shape = heats.iter().map(|heat| (heat[0].workload.clients_per_rank, heat.len()));
        assert_eq!(shape.collect::<Vec<_>>(), [(4, 2), (16, 2)]);
    }
}
