//! Many seeds of `copyrpc-lab sim cluster`: progress, a limit on time, and a log that processes share and later runs
//! continue.

use std::{
    num::NonZero,
    path::Path,
    time::{Duration, Instant},
};

use sim::cluster::{self, Seeds, Setup, Swarm};

use super::{
    progress::Progress,
    seed_log::{Begun, Run, SeedLog},
};

/// Seeds between two looks at the clock, per thread: some seconds.
const BATCH: u64 = 64;
/// More seeds than anybody asks for.
const SEEDS_MAX: u64 = u64::MAX / 2;

/// How seeds are run.
pub(super) struct Many<'a> {
    pub(super) seeds: u64,
    pub(super) twice: bool,
    pub(super) threads: Option<NonZero<usize>>,
    pub(super) for_wall: Option<Duration>,
    pub(super) resume: Option<&'a Path>,
}

impl Many<'_> {
    /// Runs seeds until all are run, one fails, or the time is over. Returns the failure.
    pub(super) fn run(
        &self,
        setup: &Setup,
        progress: &Progress,
    ) -> anyhow::Result<Option<(Setup, String)>> {
        let run = Run::new(setup, self.twice);
        let mut log = self.resume.map(|path| SeedLog::open(path, &run)).transpose()?;
        let started = Instant::now();
        progress.begin("seeds");
        // Without a number of its own a run goes on as long as it may.
        let of = if self.seeds > SEEDS_MAX { 0 } else { self.seeds };
        let is_over = || self.for_wall.is_some_and(|limit| started.elapsed() >= limit);
        let (mut ours, mut failure) = (Swarm::default(), None);
        while failure.is_none() && !is_over() {
            let before = match &mut log {
                Some(log) => log.sum()?.0.seeds,
                None => ours.seeds,
            };
            progress.at_seed(before, of);
            let Some((begun, first, count)) = self.next(&mut log, ours.seeds)? else { break };
            let seeds = Seeds { count, twice: self.twice, threads: self.threads };
            let first = Setup { seed: setup.seed.wrapping_add(first), ..setup.clone() };
            let began = Instant::now();
            let mut batch =
                cluster::swarm(&first, seeds, |more| progress.at_seed(before + more, of))?;
            failure = batch.failure.take();
            // Seeds of a batch with a failure are to be run again when it is mended.
            if let (Some(log), Some(begun), None) = (&mut log, begun, &failure) {
                log.end(begun, &batch, began.elapsed().as_secs_f64())?;
            }
            ours.merge(batch);
        }
        progress.print(&self.said(setup, log, ours, started.elapsed())?)?;
        Ok(failure)
    }

    /// The next seeds that this process runs, counted from the first one.
    fn next(
        &self,
        log: &mut Option<SeedLog>,
        done: u64,
    ) -> anyhow::Result<Option<(Option<Begun>, u64, u64)>> {
        let threads = self.threads.map_or(2, NonZero::get) as u64;
        let count = BATCH * threads;
        let Some(log) = log else {
            let count = (self.seeds - done).min(count);
            return Ok((count > 0).then_some((None, done, count)));
        };
        let begun = log.begin(count, self.seeds)?;
        Ok(begun.map(|begun| (Some(begun), begun.first, begun.count)))
    }

    /// What was run; with a log, by all processes that share it.
    fn said(
        &self,
        setup: &Setup,
        log: Option<SeedLog>,
        ours: Swarm,
        elapsed: Duration,
    ) -> anyhow::Result<String> {
        let (mut sum, mut seconds, mut coverage) = (ours, elapsed.as_secs_f64(), String::new());
        if let Some(mut log) = log {
            (sum, seconds) = log.sum()?;
            coverage = log.coverage(setup.seed) + "\n";
        }
        Ok(format!(
            "{} seeds from {}{}: {} calls, {} events in {seconds:.1} s, trace {:016x}\n{coverage}",
            sum.seeds,
            setup.seed,
            if self.twice { ", each twice" } else { "" },
            sum.calls,
            sum.events,
            sum.trace,
        ))
    }
}
