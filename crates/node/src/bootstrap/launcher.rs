//! Rank and size from the environment that a launcher leaves.
//!
//! | launcher | rank | size | job |
//! |---|---|---|---|
//! | ours, or by hand | `COPYRPC_RANK` | `COPYRPC_SIZE` | |
//! | Open MPI, PRRTE | `OMPI_COMM_WORLD_RANK` | `OMPI_COMM_WORLD_SIZE` | `PMIX_NAMESPACE` |
//! | PMI (MPICH, Hydra) | `PMI_RANK` | `PMI_SIZE` | `PMI_JOBID` |
//! | PALS (Cray) | `PALS_RANKID` | `PALS_SIZE` | `PALS_APID` |
//! | Slurm | `SLURM_PROCID` | `SLURM_NTASKS`, `SLURM_STEP_NUM_TASKS` | `SLURM_JOB_ID`, `SLURM_STEP_ID` |
//!
//! The first that is there counts: `mpirun` in a Slurm allocation sets its own variables and passes
//! those of the allocation on. Sources: `srun(1)`, `mpirun(1)` of Open MPI, the manual of Hydra.

use crate::bootstrap::{Place, PlaceError};

/// Who started this process, as far as the environment says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    /// Name of the launcher.
    pub launcher: &'static str,
    /// Which of how many.
    pub place: Place,
    /// What the launcher calls the job.
    pub job: Option<String>,
}

/// An environment that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// Half of what is needed.
    #[error("{launcher} sets {present}, but none of {absent}; set both, or neither")]
    Half {
        /// Name of the launcher.
        launcher: &'static str,
        /// The variable that is there.
        present: &'static str,
        /// Those that are not.
        absent: String,
    },
    /// No number.
    #[error("{variable}={text} is no number")]
    NotANumber {
        /// The variable.
        variable: &'static str,
        /// Its value.
        text: String,
    },
    /// Numbers that do not fit each other.
    #[error("{launcher}: {cause}")]
    Place {
        /// Name of the launcher.
        launcher: &'static str,
        /// What does not fit.
        cause: PlaceError,
    },
}

struct Launcher {
    name: &'static str,
    rank: &'static [&'static str],
    size: &'static [&'static str],
    /// Joined by dots.
    job: &'static [&'static str],
}

const LAUNCHERS: [Launcher; 5] = [
    Launcher { name: "COPYRPC_*", rank: &["COPYRPC_RANK"], size: &["COPYRPC_SIZE"], job: &[] },
    Launcher {
        name: "Open MPI",
        rank: &["OMPI_COMM_WORLD_RANK"],
        size: &["OMPI_COMM_WORLD_SIZE"],
        job: &["PMIX_NAMESPACE"],
    },
    Launcher { name: "PMI", rank: &["PMI_RANK"], size: &["PMI_SIZE"], job: &["PMI_JOBID"] },
    Launcher { name: "PALS", rank: &["PALS_RANKID"], size: &["PALS_SIZE"], job: &["PALS_APID"] },
    Launcher {
        name: "Slurm",
        rank: &["SLURM_PROCID"],
        size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
    },
];

/// What the first launcher says whose rank is set; `None` if there is none.
///
/// # Errors
///
/// [`LaunchError`].
pub fn detect(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Launched>, LaunchError> {
    for launcher in &LAUNCHERS {
        let rank = number(launcher.rank, &lookup)?;
        let size = number(launcher.size, &lookup)?;
        let half = |present, absent: &[_]| LaunchError::Half {
            launcher: launcher.name,
            present,
            absent: absent.join(", "),
        };
        let place = match (rank, size) {
            // A size alone is usual: `sbatch` sets SLURM_NTASKS for its script.
            (None, None) => continue,
            (None, Some(_)) if launcher.name == "Slurm" => continue,
            (None, Some((present, _))) => return Err(half(present, launcher.rank)),
            (Some((present, _)), None) => return Err(half(present, launcher.size)),
            (Some((_, rank)), Some((_, size))) => Place::new(rank, size)
                .map_err(|cause| LaunchError::Place { launcher: launcher.name, cause })?,
        };
        let job: Vec<_> = launcher.job.iter().filter_map(|variable| lookup(variable)).collect();
        let job = (!job.is_empty()).then(|| job.join("."));
        return Ok(Some(Launched { launcher: launcher.name, place, job }));
    }
    Ok(None)
}

/// The first of some variables that is set and not empty.
fn number(
    variables: &[&'static str],
    lookup: &impl Fn(&str) -> Option<String>,
) -> Result<Option<(&'static str, u32)>, LaunchError> {
    let texts = variables.iter().filter_map(|&variable| Some((variable, lookup(variable)?)));
    match texts.into_iter().find(|(_, text)| !text.is_empty()) {
        None => Ok(None),
        Some((variable, text)) => match text.parse() {
            Ok(number) => Ok(Some((variable, number))),
            Err(_) => Err(LaunchError::NotANumber { variable, text }),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect_in(variables: &[(&str, &str)]) -> Result<Option<Launched>, LaunchError> {
        detect(|name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, text)| (*text).to_owned())
        })
    }

    fn place_in(variables: &[(&str, &str)]) -> (&'static str, u32, u32) {
        let launched = detect_in(variables).unwrap().unwrap();
        (launched.launcher, launched.place.rank(), launched.place.size())
    }

    const SLURM: [(&str, &str); 4] = [
        ("SLURM_PROCID", "3"),
        ("SLURM_NTASKS", "8"),
        ("SLURM_JOB_ID", "77"),
        ("SLURM_STEP_ID", "0"),
    ];

    #[test]
    fn every_launcher_is_understood() {
        assert_eq!(place_in(&SLURM), ("Slurm", 3, 8));
        assert_eq!(detect_in(&SLURM).unwrap().unwrap().job.as_deref(), Some("77.0"));
        assert_eq!(place_in(&[("PMI_RANK", "1"), ("PMI_SIZE", "2")]), ("PMI", 1, 2));
        assert_eq!(place_in(&[("PALS_RANKID", "0"), ("PALS_SIZE", "1")]), ("PALS", 0, 1));
        let open_mpi = [("OMPI_COMM_WORLD_RANK", "5"), ("OMPI_COMM_WORLD_SIZE", "6")];
        assert_eq!(place_in(&open_mpi), ("Open MPI", 5, 6));
        assert_eq!(detect_in(&[]), Ok(None));
        assert_eq!(detect_in(&[("SLURM_NTASKS", "8")]), Ok(None), "a batch script");
    }

    #[test]
    fn the_inner_launcher_counts() {
        let mut variables = SLURM.to_vec();
        variables.extend([("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")]);
        assert_eq!(place_in(&variables), ("Open MPI", 1, 2));
        variables.extend([("COPYRPC_RANK", "0"), ("COPYRPC_SIZE", "1")]);
        assert_eq!(place_in(&variables), ("COPYRPC_*", 0, 1));
    }

    #[test]
    fn contradictions_are_named() {
        let error = detect_in(&[("PMI_RANK", "1")]).unwrap_err().to_string();
        assert_eq!(error, "PMI sets PMI_RANK, but none of PMI_SIZE; set both, or neither");
        let error = detect_in(&[("PMI_RANK", "x"), ("PMI_SIZE", "2")]).unwrap_err().to_string();
        assert_eq!(error, "PMI_RANK=x is no number");
        let error = detect_in(&[("PMI_RANK", "2"), ("PMI_SIZE", "2")]).unwrap_err().to_string();
        assert!(error.starts_with("PMI: rank 2 of 2 does not exist"), "{error}");
    }
}
