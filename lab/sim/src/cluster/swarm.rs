//! Many seeds, in threads.

use std::{
    num::NonZero,
    sync::{Mutex, PoisonError},
    thread,
};

use memory::sync::{AtomicBool, AtomicU64, Ordering};

use super::{ClusterError, Outcome, Setup, run};

/// What came of many seeds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swarm {
    /// Seeds that were run, each once or twice.
    pub seeds: u64,
    /// Events, of one run of each.
    pub events: u64,
    /// Calls, of one run of each.
    pub calls: u64,
    /// A hash of the hashes of all runs: no order of threads changes it.
    pub trace: u64,
    /// The smallest seed that failed, and how.
    pub failure: Option<(Setup, String)>,
}

impl Swarm {
    /// Adds what came of seeds that are larger.
    pub fn merge(&mut self, later: Self) {
        self.seeds += later.seeds;
        self.events += later.events;
        self.calls += later.calls;
        self.trace = self.trace.wrapping_add(later.trace);
        if self.failure.is_none() {
            self.failure = later.failure;
        }
    }

    fn add(&mut self, setup: &Setup, outcome: &Outcome) {
        self.seeds += 1;
        self.events += outcome.events;
        self.calls += outcome.ends.values().sum::<u64>();
        self.trace = self.trace.wrapping_add(outcome.trace.rotate_left((setup.seed % 63) as u32));
        let Some(failure) = &outcome.failure else { return };
        if self.failure.as_ref().is_none_or(|(first, _)| setup.seed < first.seed) {
            self.failure = Some((setup.clone(), failure.clone()));
        }
    }
}

/// Seeds of a swarm, and how they are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seeds {
    /// How many, from that of the setup on.
    pub count: u64,
    /// Each is run again, and has to go the same way.
    pub twice: bool,
    /// Threads that run them; `None`: as many as there are cores.
    pub threads: Option<NonZero<usize>>,
}

/// Runs seeds until one fails. `progress` hears how many are done.
///
/// # Errors
///
/// As [`run()`].
pub fn swarm(
    setup: &Setup,
    seeds: Seeds,
    progress: impl Fn(u64) + Sync,
) -> Result<Swarm, ClusterError> {
    let Seeds { count, twice, threads } = seeds;
    let cores = || thread::available_parallelism().map_or(1, NonZero::get);
    let threads = threads.map_or_else(cores, NonZero::get);
    let (next, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let (sum, error) = (Mutex::new(Swarm::default()), Mutex::new(None));
    let work = || {
        while !is_over.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return;
            }
            let setup = Setup { seed: setup.seed.wrapping_add(number), ..setup.clone() };
            match run_once_or_twice(&setup, twice) {
                Ok(outcome) => {
                    is_over.fetch_or(outcome.failure.is_some(), Ordering::Relaxed);
                    let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
                    sum.add(&setup, &outcome);
                    let done = sum.seeds;
                    drop(sum);
                    progress(done);
                }
                Err(failed) => {
                    is_over.store(true, Ordering::Relaxed);
                    *error.lock().unwrap_or_else(PoisonError::into_inner) = Some(failed);
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    match error.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(sum.into_inner().unwrap_or_else(PoisonError::into_inner)),
    }
}

fn run_once_or_twice(setup: &Setup, twice: bool) -> Result<Outcome, ClusterError> {
    let mut outcome = run(setup)?;
    if twice && outcome.failure.is_none() {
        let again = run(setup)?;
        if again != outcome {
            let (first, second) = (outcome.trace, again.trace);
            let how = format!("two runs differ: {first:016x} and {second:016x}");
            outcome.failure = Some(how);
        }
    }
    Ok(outcome)
}
