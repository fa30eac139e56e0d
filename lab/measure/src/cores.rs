//! The two cores that measure, and the affinity of threads to them.

use std::{fmt, fs, io, str::FromStr};

use os::affinity::{AffinityError, allowed_cores};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

/// The two cores of a measurement, always different ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cores {
    /// Runs the side that takes the time.
    pub initiator: usize,
    /// Runs the side that answers.
    pub responder: usize,
}

/// Why no pair of cores could be had.
#[derive(Debug, thiserror::Error)]
pub enum CoresError {
    /// One core runs one spinning side only.
    #[error(
        "a measurement pins two processes to two cores, but this process may use {allowed}; \
         allow more (taskset, cgroup cpuset, container limit) and run again"
    )]
    TooFew {
        /// Cores in the affinity mask.
        allowed: usize,
    },
    /// The user named one that the affinity mask excludes.
    #[error("core {core} is not among the allowed ones ({allowed}); choose two of these")]
    NotAllowed {
        /// As named.
        core: usize,
        /// As a list.
        allowed: String,
    },
    /// The text does not name two cores.
    #[error("`{0}` does not name two different cores; write for example `0,1`")]
    Syntax(String),
    /// The kernel refused.
    #[error(transparent)]
    System(#[from] AffinityError),
}

impl Cores {
    /// Two allowed cores, hardware threads of different physical cores if there are such.
    ///
    /// # Errors
    ///
    /// [`CoresError`].
    pub fn choose() -> Result<Self, CoresError> {
        let allowed = allowed_cores()?;
        let (&responder, others) =
            allowed.split_first().ok_or(CoresError::TooFew { allowed: allowed.len() })?;
        let siblings = siblings_of(responder);
        let initiator = others
            .iter()
            .find(|core| !siblings.contains(core))
            .or(others.first())
            .ok_or(CoresError::TooFew { allowed: allowed.len() })?;
        Ok(Self { initiator: *initiator, responder })
    }

    /// Checks that both may be used.
    ///
    /// # Errors
    ///
    /// [`CoresError`].
    pub fn check_allowed(&self) -> Result<(), CoresError> {
        let allowed = allowed_cores()?;
        for core in [self.initiator, self.responder] {
            if !allowed.contains(&core) {
                let allowed = allowed.iter().map(ToString::to_string).collect::<Vec<_>>();
                return Err(CoresError::NotAllowed { core, allowed: allowed.join(",") });
            }
        }
        Ok(())
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.initiator, self.responder)
    }
}

impl FromStr for Cores {
    type Err = CoresError;

    /// `INITIATOR,RESPONDER`.
    fn from_str(text: &str) -> Result<Self, CoresError> {
        let syntax = || CoresError::Syntax(text.to_owned());
        let (initiator, responder) = text.split_once(',').ok_or_else(syntax)?;
        let number = |part: &str| {
            part.trim().parse().ok().filter(|&core| core < CpuSet::MAX_CPU).ok_or_else(syntax)
        };
        let cores = Self { initiator: number(initiator)?, responder: number(responder)? };
        if cores.initiator == cores.responder { Err(syntax()) } else { Ok(cores) }
    }
}

/// Moves the calling thread to `core`, also from another one: threads inherit the one core of a
/// pinned parent, and [`os::affinity::pin_current_thread`] only narrows.
///
/// # Errors
///
/// Whatever `sched_setaffinity(2)` reports.
pub fn pin(core: usize) -> io::Result<()> {
    let mut mask = CpuSet::new();
    mask.set(core);
    Ok(sched_setaffinity(None, &mask)?)
}

/// The calling thread on another core, until this is dropped.
#[derive(Debug)]
pub struct Guest {
    home: CpuSet,
}

impl Guest {
    /// Moves the calling thread to `core`.
    ///
    /// # Errors
    ///
    /// Whatever `sched_getaffinity(2)` or `sched_setaffinity(2)` reports.
    pub fn of(core: usize) -> io::Result<Self> {
        let home = sched_getaffinity(None)?;
        pin(core)?;
        Ok(Self { home })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // The thread was there before; if its cores are gone meanwhile, it stays.
        let _ = sched_setaffinity(None, &self.home);
    }
}

/// Hardware threads of the physical core that `core` belongs to; empty if unknown.
fn siblings_of(core: usize) -> Vec<usize> {
    let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
    fs::read_to_string(path).map(|list| parse_cpu_list(&list)).unwrap_or_default()
}

/// The kernel's list format: `0,4` or `0-3,8`. Parts that make no sense are left out.
fn parse_cpu_list(list: &str) -> Vec<usize> {
    let parse = |text: &str| text.trim().parse::<usize>().ok().filter(|&n| n < CpuSet::MAX_CPU);
    list.split(',')
        .filter_map(|part| match part.split_once('-') {
            Some((first, last)) => Some(parse(first)?..=parse(last)?),
            None => parse(part).map(|core| core..=core),
        })
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_different_cores_are_named_or_it_is_an_error() {
        let cores: Cores = "3, 1".parse().unwrap();
        assert_eq!(cores, Cores { initiator: 3, responder: 1 });
        assert_eq!(cores.to_string().parse::<Cores>().unwrap(), cores);
        for bad in ["", "1", "1,1", "a,b", "0,99999"] {
            assert!(matches!(bad.parse::<Cores>(), Err(CoresError::Syntax(_))), "{bad:?}");
        }
    }

    #[test]
    fn a_core_outside_the_mask_is_refused() {
        let allowed = allowed_cores().unwrap();
        let foreign = (0..CpuSet::MAX_CPU).find(|core| !allowed.contains(core)).unwrap();
        let error = Cores { initiator: foreign, responder: allowed[0] }.check_allowed();
        assert!(matches!(error, Err(CoresError::NotAllowed { core, .. }) if core == foreign));
    }

    #[test]
    fn kernel_cpu_lists_are_read() {
        assert_eq!(parse_cpu_list("0,4\n"), [0, 4]);
        assert_eq!(parse_cpu_list("0-2,8"), [0, 1, 2, 8]);
        assert_eq!(parse_cpu_list("x,1"), [1]);
    }
}
