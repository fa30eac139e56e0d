//! Many seeds of `copyrpc-lab sim cluster`: progress, a limit on time, and a file from which a later run goes on.

use std::{
    fs,
    io::{ErrorKind, Write as _},
    num::NonZero,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use sim::cluster::{self, Seeds, Setup, Swarm};

use crate::output;

/// Seeds between two looks at the clock, per thread: some seconds.
const BATCH: u64 = 64;

/// How seeds are run.
pub(super) struct Many<'a> {
    pub(super) seeds: u64,
    pub(super) twice: bool,
    pub(super) threads: Option<NonZero<usize>>,
    pub(super) for_wall: Option<Duration>,
    pub(super) resume: Option<&'a Path>,
}

/// What was run so far.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    /// The command line of the first seed.
    setup: String,
    twice: bool,
    /// Of what ran: another build may do other things with the same seed.
    version: String,
    seeds: u64,
    events: u64,
    calls: u64,
    /// A number of 64 bits, as text: readers of JSON may have 53.
    trace: String,
    seconds: f64,
}

impl Kept {
    fn new(setup: &Setup, twice: bool) -> Self {
        Self {
            setup: setup.to_string(),
            twice,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            seeds: 0,
            events: 0,
            calls: 0,
            trace: format!("{:016x}", 0),
            seconds: 0.0,
        }
    }

    /// What an earlier run has kept; nothing if there was none.
    fn read(path: &Path, fresh: Self) -> anyhow::Result<Self> {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(fresh),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        let kept: Self = serde_json::from_slice(&bytes).with_context(|| {
            format!("{} keeps no run of seeds; name another file", path.display())
        })?;
        ensure!(
            (&kept.setup, kept.twice, &kept.version) == (&fresh.setup, fresh.twice, &fresh.version),
            "{} keeps another run, of version {}: {}{}; name another file",
            path.display(),
            kept.version,
            kept.setup,
            if kept.twice { " --twice" } else { "" },
        );
        Ok(kept)
    }

    /// Whoever is killed meanwhile leaves the file as it was.
    fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self).context("cannot write JSON")?;
        let fresh = path.with_extension("new");
        output::write_file(&fresh, |file| file.write_all(text.as_bytes()))?;
        fs::rename(&fresh, path).with_context(|| format!("cannot write {}", path.display()))
    }

    fn sum(&self) -> anyhow::Result<Swarm> {
        let trace = u64::from_str_radix(&self.trace, 16).context("`trace` is no number")?;
        let Self { seeds, events, calls, .. } = *self;
        Ok(Swarm { seeds, events, calls, trace, failure: None })
    }
}

impl Many<'_> {
    /// Runs seeds until all are run, one fails, or the time is over. Returns the failure.
    pub(super) fn run(&self, setup: &Setup) -> anyhow::Result<Option<(Setup, String)>> {
        let mut kept = Kept::new(setup, self.twice);
        if let Some(path) = self.resume {
            kept = Kept::read(path, kept)?;
            if kept.seeds == 0 {
                output::check_file(path)?;
            }
        }
        let mut sum = kept.sum()?;
        let (before_s, started) = (kept.seconds, Instant::now());
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} seeds, {eta} left")?;
        let bar = ProgressBar::new(self.seeds).with_style(style).with_position(sum.seeds);
        bar.reset_eta();
        let is_over = || self.for_wall.is_some_and(|limit| started.elapsed() >= limit);
        while sum.seeds < self.seeds && sum.failure.is_none() && !is_over() {
            let threads = self.threads.map_or(2, NonZero::get) as u64;
            let count = (self.seeds - sum.seeds).min(BATCH * threads);
            let seeds = Seeds { count, twice: self.twice, threads: self.threads };
            let done = sum.seeds;
            let first = Setup { seed: setup.seed.wrapping_add(done), ..setup.clone() };
            let batch = cluster::swarm(&first, seeds, |more| bar.set_position(done + more))?;
            sum.merge(batch);
            let seconds = before_s + started.elapsed().as_secs_f64();
            let trace = format!("{:016x}", sum.trace);
            let Swarm { seeds, events, calls, .. } = sum;
            kept = Kept { seeds, events, calls, trace, seconds, ..kept };
            // Seeds of a batch with a failure are to be run again when it is mended.
            if let (Some(path), None) = (self.resume, &sum.failure) {
                kept.write(path)?;
            }
        }
        bar.finish_and_clear();
        output::print(&format!(
            "{} seeds from {}{}: {} calls, {} events in {:.1} s, trace {:016x}\n",
            sum.seeds,
            setup.seed,
            if self.twice { ", each twice" } else { "" },
            sum.calls,
            sum.events,
            kept.seconds,
            sum.trace,
        ))?;
        Ok(sum.failure)
    }
}
