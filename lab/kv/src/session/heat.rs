//! The contestants of one workload, and the trial that finds how each waits best.

use std::{collections::BTreeMap, time::Duration};

use measure::stats;

use super::{
    SessionError,
    spent::{TimeSpent, timed},
};
use crate::{
    backend::Kind,
    job::{self, Config, JobError, Launcher, Live, RunningJob, hosts::Hosts},
    measured::Measured,
    result::{RunRecord, name_of},
    workload::Verify,
};

/// Intervals of each way to wait in the trial, at most. The way that is ahead in most of them is the best, so that one
/// stroke of bad luck decides nothing.
pub(super) const TRIALS: usize = 3;
/// One way is the best after one interval of each if it makes so many times the calls of the next: the pace of a machine
/// rarely changes by as much between two intervals.
const CLEARLY_BETTER: f64 = 2.0;
/// Processes that are there at the same time, at most: more do not fit into the tables of a small machine.
const PROCESSES_MAX: usize = 4000;

/// The processes of a contestant.
enum Processes<'a> {
    /// They are there, and sleep between intervals.
    Kept(Box<RunningJob<'a, Hosts>>),
    /// Each interval has its own.
    Fresh,
}

/// A configuration, and what the trial found for it.
struct Contestant<'a> {
    config: Config,
    processes: Processes<'a>,
    /// Calls per second in the trial, by way to wait.
    tried: BTreeMap<String, f64>,
}

/// All contestants of one workload.
pub(super) struct Heat<'a> {
    configs: &'a [Config],
    launcher: &'a Launcher,
    hosts: &'a mut Hosts,
    contestants: Vec<Contestant<'a>>,
    /// Where its time went, but for probes.
    pub(super) spent: TimeSpent,
}

impl<'a> Heat<'a> {
    pub(super) fn new(configs: &'a [Config], launcher: &'a Launcher, hosts: &'a mut Hosts) -> Self {
        let spent = TimeSpent::default();
        Self { configs, launcher, hosts, contestants: Vec::new(), spent }
    }

    pub(super) fn len(&self) -> usize {
        self.contestants.len()
    }

    pub(super) fn backends(&self) -> Vec<Kind> {
        self.configs.iter().map(|config| config.backend).collect()
    }

    /// Whether processes stay from interval to interval.
    fn keeps_processes(&self, finds_wait: bool) -> bool {
        let ways = |config: &Config| if finds_wait { config.backend.waits().len() } else { 1 };
        let processes = self.configs.iter().map(|config| job::processes(config) * ways(config));
        self.hosts.count() == 1
            && processes.sum::<usize>() <= PROCESSES_MAX
            && self.configs.iter().all(|config| {
                config.workload.verify == Verify::Answers && !config.burns_between_intervals()
            })
    }

    /// Starts all contestants; with `finds_wait` each in all ways that its backend may wait, of which the best stays.
    /// `watch` says whether to go on.
    pub(super) fn enter(
        &mut self,
        finds_wait: bool,
        watch: &mut dyn FnMut(&Config, Live) -> bool,
    ) -> Result<(), SessionError> {
        let is_kept = self.keeps_processes(finds_wait);
        for config in self.configs {
            let waits = if finds_wait { config.backend.waits() } else { &[config.wait][..] };
            let mut ways = Vec::new();
            for &wait in waits {
                let config = Config { wait, ..config.clone() };
                let processes = if is_kept {
                    let mut live = |live| {
                        watch(&config, live);
                    };
                    let hosts =
                        Hosts::only_this().map_err(|cause| failed(&config, 0, cause.into()))?;
                    self.spent.processes += job::processes(&config);
                    let job = timed(&mut self.spent.starts, || {
                        RunningJob::start(&config, self.launcher, hosts, &mut live)
                    });
                    Processes::Kept(Box::new(job.map_err(|cause| failed(&config, 0, cause))?))
                } else {
                    Processes::Fresh
                };
                ways.push(Contestant { config, processes, tried: BTreeMap::new() });
            }
            let best = self.try_ways(ways, watch)?;
            self.contestants.extend(best);
        }
        Ok(())
    }

    /// The contestant that was ahead in most intervals of a trial. `None`: it was stopped.
    fn try_ways(
        &mut self,
        mut ways: Vec<Contestant<'a>>,
        watch: &mut dyn FnMut(&Config, Live) -> bool,
    ) -> Result<Option<Contestant<'a>>, SessionError> {
        if ways.len() < 2 {
            return Ok(ways.pop());
        }
        let mut rates = vec![Vec::new(); ways.len()];
        while !is_decided(&rates) {
            for (way, rates) in ways.iter_mut().zip(&mut rates) {
                let mut goes_on = true;
                let config = way.config.clone();
                let mut live = |live| goes_on &= watch(&config, live);
                self.spent.trial_intervals += 1;
                let measured = timed(&mut self.spent.trials, || {
                    way.try_out(self.launcher, self.hosts, &mut live)
                })?;
                rates.push(measured.rate());
                if !goes_on {
                    return Ok(None);
                }
            }
        }
        let medians = rates.iter_mut().map(|rates| stats::median(rates)).collect::<Vec<_>>();
        let names = ways.iter().map(|way| way.config.wait.to_string());
        let tried = names.zip(medians.iter().copied()).collect::<BTreeMap<_, _>>();
        let mut best = ways.swap_remove(best_of(&rates));
        best.tried = tried;
        for mut loser in ways {
            timed(&mut self.spent.ends, || loser.end())?;
        }
        Ok(Some(best))
    }

    /// One interval of a contestant.
    pub(super) fn measure(
        &mut self,
        index: usize,
        round: u32,
        watch: &mut dyn FnMut(&Config, Live),
    ) -> Result<RunRecord, SessionError> {
        let Self { contestants, launcher, hosts, spent, .. } = self;
        let contestant = &mut contestants[index];
        let config = contestant.config.clone();
        let mut live = |live| watch(&config, live);
        let measured =
            timed(&mut spent.rounds, || contestant.measure(launcher, hosts, round, &mut live))?;
        spent.intervals += 1;
        spent.measured += Duration::from_nanos(measured.interval_ns);
        Ok(RunRecord {
            config: contestant.config.clone(),
            run: round - 1,
            placement: None,
            tried: contestant.tried.clone(),
            version: contestant.config.backend.version(),
            measured,
        })
    }

    /// Ends all processes.
    pub(super) fn end(&mut self) -> Result<(), SessionError> {
        let Self { contestants, spent, .. } = self;
        timed(&mut spent.ends, || {
            contestants.drain(..).try_for_each(|mut contestant| contestant.end())
        })
    }
}

impl Contestant<'_> {
    fn measure(
        &mut self,
        launcher: &Launcher,
        hosts: &mut Hosts,
        round: u32,
        live: &mut dyn FnMut(Live),
    ) -> Result<Measured, SessionError> {
        let measured = match &mut self.processes {
            Processes::Kept(job) => job.measure(live),
            Processes::Fresh => job::run(&self.config, launcher, hosts, live),
        };
        measured.map_err(|cause| failed(&self.config, round, cause))
    }

    /// A short interval of the trial.
    fn try_out(
        &mut self,
        launcher: &Launcher,
        hosts: &mut Hosts,
        live: &mut dyn FnMut(Live),
    ) -> Result<Measured, SessionError> {
        match &mut self.processes {
            Processes::Kept(job) => {
                job.try_out(live).map_err(|cause| failed(&self.config, 0, cause))
            }
            Processes::Fresh => self.measure(launcher, hosts, 0, live),
        }
    }

    fn end(&mut self) -> Result<(), SessionError> {
        match std::mem::replace(&mut self.processes, Processes::Fresh) {
            Processes::Kept(job) => {
                let ended = job.end(&mut |_| {});
                ended.map(drop).map_err(|cause| failed(&self.config, 0, cause))
            }
            Processes::Fresh => Ok(()),
        }
    }
}

/// Whether no further interval of each way is due: one way was far ahead in the first, or so often that the others
/// cannot catch up.
fn is_decided(rates: &[Vec<f64>]) -> bool {
    let trials = rates.iter().map(Vec::len).min().unwrap_or(0);
    if trials == 1 {
        let mut first = rates.iter().map(|rates| rates[0]).collect::<Vec<_>>();
        first.sort_by(|a, b| b.total_cmp(a));
        return matches!(first[..], [best, next, ..] if best > next * CLEARLY_BETTER);
    }
    let mut times = times_ahead(rates);
    times.sort_unstable_by(|a, b| b.cmp(a));
    let left = TRIALS.saturating_sub(trials);
    left == 0 || matches!(times[..], [best, next, ..] if best > next + left)
}

/// In how many intervals each way was ahead of the others, which were measured right before and after it.
fn times_ahead(rates: &[Vec<f64>]) -> Vec<usize> {
    let trials = rates.iter().map(Vec::len).min().unwrap_or(0);
    let ahead = |trial: usize| {
        (0..rates.len()).max_by(|&a, &b| rates[a][trial].total_cmp(&rates[b][trial])).unwrap_or(0)
    };
    let mut times = vec![0; rates.len()];
    (0..trials).for_each(|trial| times[ahead(trial)] += 1);
    times
}

/// The way that was ahead most often.
fn best_of(rates: &[Vec<f64>]) -> usize {
    let times = times_ahead(rates);
    (0..rates.len()).max_by_key(|&way| times[way]).unwrap_or(0)
}

fn failed(config: &Config, round: u32, cause: JobError) -> SessionError {
    SessionError { name: name_of(config), round, cause: Box::new(cause) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_is_over_after_one_interval_only_if_one_way_is_far_ahead() {
        assert!(is_decided(&[vec![100.0], vec![250.0]]));
        assert!(!is_decided(&[vec![100.0], vec![150.0]]));
        assert!(!is_decided(&[vec![100.0], vec![250.0], vec![240.0]]));
        assert!(!is_decided(&[vec![100.0]]));
        assert!(!is_decided(&[vec![], vec![]]));
    }

    #[test]
    fn a_trial_is_over_when_one_way_cannot_be_caught_up_with() {
        // The pace fell by five, and the same way is ahead.
        assert!(is_decided(&[vec![100.0, 20.0], vec![90.0, 18.0]]));
        assert!(!is_decided(&[vec![100.0, 20.0], vec![90.0, 21.0]]));
        let three = [vec![100.0, 20.0, 95.0], vec![90.0, 21.0, 100.0]];
        assert!(is_decided(&three));
        assert_eq!(best_of(&three), 1, "ahead in two of three, though its median is less");
        assert_eq!(best_of(&[vec![100.0], vec![250.0]]), 1);
    }
}
