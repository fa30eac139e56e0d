//! All runs of several configurations.
//!
//! Round by round, not configuration by configuration: what drifts with time harms all alike. Each
//! run lies between two probes of how far apart the cores are.

use measure::{
    cores::Cores,
    ping_pong::{self, PROBE_WINDOW},
    regime::Probes,
    shared_words::SharedWords,
};
use memory::sync::{AtomicBool, Ordering};

use crate::{
    job::{self, Config, JobError, Launcher, Live, hosts::Hosts},
    result::RunRecord,
};

/// Probes that are tried if a machine is too busy for one to succeed.
const PROBE_TRIES: usize = 3;

/// A run that failed.
#[derive(Debug, thiserror::Error)]
#[error("{name}, run {run}: {cause}")]
pub struct SessionError {
    /// Of the configuration.
    pub name: String,
    /// Number of the repetition.
    pub run: u32,
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
        /// Number of the repetition.
        run: u32,
        /// How far it is.
        live: Live,
    },
    /// A run is over.
    Done(Box<RunRecord>),
}

/// Runs every configuration on `hosts` `runs` times, or until `stop` is set: what is left then is not run.
///
/// # Errors
///
/// [`SessionError`] of the first run that fails: the others are not made, and what was
/// [`Progress::Done`] stands.
pub fn run(
    configs: &[Config],
    runs: u32,
    launcher: &Launcher,
    hosts: &mut Hosts,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(Progress<'_>),
) -> Result<(), SessionError> {
    let prober = Prober::new();
    let mut before_ns = prober.probe();
    for run in 0..runs {
        for config in configs {
            // Relaxed: the flag is all there is to see.
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let mut live = |live| watch(Progress::Live { config, run, live });
            let measured = job::run(config, launcher, hosts, &mut live).map_err(|cause| {
                SessionError { name: crate::result::name_of(config), run, cause: Box::new(cause) }
            })?;
            let after_ns = prober.probe();
            let placement =
                before_ns.zip(after_ns).map(|(before_ns, after_ns)| Probes { before_ns, after_ns });
            let record = RunRecord { config: config.clone(), run, placement, measured };
            watch(Progress::Done(Box::new(record)));
            before_ns = after_ns;
        }
    }
    Ok(())
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
