//! The cores that a thread may run on.

use rustix::{
    io::Errno,
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};

/// Why a thread could not be pinned.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum AffinityError {
    /// The core does not exist, or the process may not use it.
    #[error("core {core} does not exist or is not allowed here; allowed are {allowed:?}")]
    NotAllowed {
        /// Core asked for.
        core: usize,
        /// Cores that [`allowed_cores`] lists.
        allowed: Vec<usize>,
    },
    /// Anything else the kernel says.
    #[error("the kernel refused to tell or set the cores of a thread: {0}")]
    Os(Errno),
}

/// Cores that the calling thread may run on, ascending.
///
/// # Errors
///
/// [`AffinityError::Os`].
pub fn allowed_cores() -> Result<Vec<usize>, AffinityError> {
    let set = sched_getaffinity(None).map_err(AffinityError::Os)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect())
}

/// Lets the calling thread run on `core` only.
///
/// # Errors
///
/// [`AffinityError`].
pub fn pin_current_thread(core: usize) -> Result<(), AffinityError> {
    let allowed = allowed_cores()?;
    if !allowed.contains(&core) {
        return Err(AffinityError::NotAllowed { core, allowed });
    }
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).map_err(AffinityError::Os)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_has_one_core_left() {
        let pinned = std::thread::spawn(|| {
            let core = *allowed_cores().unwrap().last().unwrap();
            pin_current_thread(core).unwrap();
            assert_eq!(allowed_cores().unwrap(), [core]);
            assert_eq!(rustix::thread::sched_getcpu(), core);
            let absent = CpuSet::MAX_CPU - 1;
            let refused = AffinityError::NotAllowed { core: absent, allowed: vec![core] };
            assert_eq!(pin_current_thread(absent), Err(refused));
        });
        pinned.join().unwrap();
    }
}
