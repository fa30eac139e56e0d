//! What rank 0 tells all ranks of a launch through their launcher: where they meet, and the secret.
//!
//! ```text
//!  rank 0  reserve a port, make a secret ── put ──▶ launcher ── fence, get ──▶ every rank
//!  all     meet over TCP at that address
//! ```
//!
//! | | spoken by | in the environment |
//! |---|---|---|
//! | [`KeySpace::Pmix`] | `mpirun` of Open MPI, PRRTE, `srun --mpi=pmix` | `PMIX_NAMESPACE`, `PMIX_RANK`; the library of the system |
//! | [`KeySpace::Pmi1`] | Hydra (MPICH, Intel MPI, MVAPICH), Flux, `srun --mpi=pmi2` | `PMI_FD`, `PMI_RANK`, `PMI_SIZE` |
//!
//! Whoever can read the launcher's messages can read the secret: launchers protect them as they protect those
//! that start processes.

mod error;
#[doc(hidden)]
pub mod line;
mod meeting_point;
mod pmi1;
mod pmix;

use std::time::Duration;

pub use error::PmiError;
pub use meeting_point::{MeetingPoint, ReservedPort};
use meeting_point::{VERSION, version_of};
use os::clock;

use crate::RankInfo;

/// The interval at which a waiting rank checks for its stop flag.
const LOOK: Duration = Duration::from_millis(100);

/// The key-value space that a launcher offers to its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySpace {
    /// By the PMIx library of the system.
    Pmix,
    /// By PMI-1 over an inherited socket.
    Pmi1 {
        /// The number of the socket.
        fd: i32,
    },
}

impl KeySpace {
    /// What the environment offers to this rank. A variable that an outer launcher has left names another rank, or
    /// is not told from one that this launcher has set: then both launchers start the same processes.
    #[must_use]
    pub fn detect(lookup: impl Fn(&str) -> Option<String>, rank_info: RankInfo) -> Option<Self> {
        let number = |variable| lookup(variable)?.parse::<u32>().ok();
        let is_own = |variable| number(variable) == Some(rank_info.rank());
        if lookup("PMIX_NAMESPACE").is_some() && is_own("PMIX_RANK") {
            return Some(Self::Pmix);
        }
        let fd = i32::try_from(number("PMI_FD")?).ok()?;
        let is_own = is_own("PMI_RANK") && number("PMI_SIZE") == Some(rank_info.size());
        is_own.then_some(Self::Pmi1 { fd })
    }

    /// Its protocol.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pmix => "PMIx",
            Self::Pmi1 { .. } => "PMI-1",
        }
    }

    /// Returns what rank 0 passes as `own`; all others pass nothing. All ranks have to come.
    fn broadcast(self, own: Option<&str>, wait: &Wait<'_>) -> Result<String, PmiError> {
        match self {
            Self::Pmix => pmix::broadcast(own, wait),
            Self::Pmi1 { fd } => pmi1::broadcast(fd, own, wait),
        }
    }

    /// Agrees with all ranks on where they meet. Rank 0 gets a reserved port, too, which it keeps until it listens
    /// there.
    ///
    /// # Errors
    ///
    /// [`PmiError`].
    pub fn agree(
        self,
        rank_info: RankInfo,
        timeout: Duration,
        is_to_stop: &dyn Fn() -> bool,
    ) -> Result<(MeetingPoint, Option<ReservedPort>), PmiError> {
        let deadline_ns = clock::deadline_ns(timeout);
        let wait = Wait { rank_info, timeout, deadline_ns, is_to_stop };
        let reserved = if rank_info.rank() == 0 { Some(ReservedPort::new()?) } else { None };
        let own = reserved.as_ref().map(|it| MeetingPoint::new(it.address()).to_text());
        let text = self.broadcast(own.as_deref(), &wait)?;
        let space = self.name();
        let point = MeetingPoint::parse(&text).ok_or_else(|| match version_of(&text) {
            Some(theirs) if theirs != VERSION => {
                PmiError::OtherVersion { space, theirs, ours: VERSION }
            }
            _ => PmiError::MeetingPoint { space },
        })?;
        Ok((point, reserved))
    }
}

/// How long a rank waits for its launcher and the others.
struct Wait<'a> {
    rank_info: RankInfo,
    timeout: Duration,
    deadline_ns: u64,
    is_to_stop: &'a dyn Fn() -> bool,
}

impl Wait<'_> {
    /// How long to wait before the next call of this.
    fn slice(&self, space: &'static str, step: &'static str) -> Result<Duration, PmiError> {
        if (self.is_to_stop)() {
            return Err(PmiError::Stopped);
        }
        let left = Duration::from_nanos(self.deadline_ns.saturating_sub(clock::now_ns()));
        if left.is_zero() {
            let (rank_info, waited) = (self.rank_info, self.timeout);
            return Err(PmiError::TimedOut { rank_info, space, step, waited });
        }
        Ok(left.min(LOOK))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_space_is_that_of_this_rank() {
        let rank_info = RankInfo::new(1, 2).unwrap();
        let of = |variables: &[(&str, &str)]| {
            let lookup = |name: &str| {
                let found = variables.iter().find(|(variable, _)| *variable == name);
                found.map(|(_, text)| (*text).to_owned())
            };
            KeySpace::detect(lookup, rank_info)
        };
        let pmi = |rank| [("PMI_FD", "9"), ("PMI_RANK", rank), ("PMI_SIZE", "2")];
        assert_eq!(of(&pmi("1")), Some(KeySpace::Pmi1 { fd: 9 }));
        assert_eq!(of(&pmi("0")), None, "of an outer launcher");
        assert_eq!(of(&pmi("1")[..2]), None);
        assert_eq!(of(&[("PMI_FD", "-1"), ("PMI_RANK", "1"), ("PMI_SIZE", "2")]), None);
        let mut both = pmi("1").to_vec();
        both.extend([("PMIX_NAMESPACE", "a"), ("PMIX_RANK", "1")]);
        assert_eq!(of(&both), Some(KeySpace::Pmix));
        assert_eq!(of(&[("PMIX_NAMESPACE", "a"), ("PMIX_RANK", "0")]), None);
        assert_eq!(of(&[]), None);
    }
}
