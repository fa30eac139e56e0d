//! The contestants of one workload, and the trial that finds how each waits best.

use std::collections::BTreeMap;

use measure::stats;

use super::SessionError;
use crate::{
    backend::Kind,
    job::{self, Config, JobError, Launcher, Live, RunningJob, hosts::Hosts},
    measured::Measured,
    result::{RunRecord, name_of},
    workload::Verify,
};

/// Intervals of each way to wait in the trial, at most: enough for the median to leave out one stroke of bad luck.
const TRIALS: usize = 3;
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
}

impl<'a> Heat<'a> {
    pub(super) fn new(configs: &'a [Config], launcher: &'a Launcher, hosts: &'a mut Hosts) -> Self {
        Self { configs, launcher, hosts, contestants: Vec::new() }
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
                    let job = RunningJob::start(&config, self.launcher, hosts, &mut live);
                    Processes::Kept(Box::new(job.map_err(|cause| failed(&config, 0, cause))?))
                } else {
                    Processes::Fresh
                };
                ways.push(Contestant { config, processes, tried: BTreeMap::new() });
            }
            let best = self.best_of(ways, watch)?;
            self.contestants.extend(best);
        }
        Ok(())
    }

    /// The contestant that made most calls in a trial. `None`: it was stopped.
    fn best_of(
        &mut self,
        mut ways: Vec<Contestant<'a>>,
        watch: &mut dyn FnMut(&Config, Live) -> bool,
    ) -> Result<Option<Contestant<'a>>, SessionError> {
        if ways.len() < 2 {
            return Ok(ways.pop());
        }
        let mut rates = vec![Vec::new(); ways.len()];
        for trial in 0..TRIALS {
            if trial == 1 && is_clear(&rates) {
                break;
            }
            for (way, rates) in ways.iter_mut().zip(&mut rates) {
                let mut goes_on = true;
                let config = way.config.clone();
                let measured = way.try_out(self.launcher, self.hosts, &mut |live| {
                    goes_on &= watch(&config, live);
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
        let best = (0..ways.len()).max_by(|&a, &b| medians[a].total_cmp(&medians[b])).unwrap_or(0);
        let mut best = ways.swap_remove(best);
        best.tried = tried;
        for mut loser in ways {
            loser.end()?;
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
        let Self { contestants, launcher, hosts, .. } = self;
        let contestant = &mut contestants[index];
        let config = contestant.config.clone();
        let mut live = |live| watch(&config, live);
        let measured = contestant.measure(launcher, hosts, round, &mut live)?;
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
        self.contestants.drain(..).try_for_each(|mut contestant| contestant.end())
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

/// Whether one way made so many more calls in its only interval that no second one is due.
fn is_clear(rates: &[Vec<f64>]) -> bool {
    let mut first = rates.iter().filter_map(|rates| rates.first().copied()).collect::<Vec<_>>();
    first.sort_by(|a, b| b.total_cmp(a));
    matches!(first[..], [best, next, ..] if best > next * CLEARLY_BETTER)
}

fn failed(config: &Config, round: u32, cause: JobError) -> SessionError {
    SessionError { name: name_of(config), round, cause: Box::new(cause) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_is_over_after_one_interval_only_if_one_way_is_far_ahead() {
        assert!(is_clear(&[vec![100.0], vec![250.0]]));
        assert!(!is_clear(&[vec![100.0], vec![150.0]]));
        assert!(!is_clear(&[vec![100.0], vec![250.0], vec![240.0]]));
        assert!(!is_clear(&[vec![100.0]]));
    }
}
