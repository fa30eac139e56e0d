//! Rank and size from the environment that a launcher leaves.
//!
//! | launcher | rank, size | launch | rank and number on the host |
//! |---|---|---|---|
//! | ours, or by hand | `COPYRPC_RANK`, `COPYRPC_SIZE` | | |
//! | Open MPI, PRRTE | `OMPI_COMM_WORLD_RANK`, `_SIZE` | `PMIX_NAMESPACE` | `OMPI_COMM_WORLD_LOCAL_RANK`, `_LOCAL_SIZE` |
//! | MVAPICH | `MV2_COMM_WORLD_RANK`, `_SIZE` | | `MV2_COMM_WORLD_LOCAL_RANK`, `_LOCAL_SIZE` |
//! | JSM (Spectrum MPI) | `JSM_NAMESPACE_RANK`, `_SIZE` | `JSM_NAMESPACE` | `JSM_NAMESPACE_LOCAL_RANK`, `_LOCAL_SIZE` |
//! | Flux | `FLUX_TASK_RANK`, `FLUX_JOB_SIZE` | `FLUX_JOB_ID` | `FLUX_TASK_LOCAL_ID` |
//! | PMI (MPICH, Hydra) | `PMI_RANK`, `PMI_SIZE` | `PMI_JOBID` | `MPI_LOCALRANKID`, `MPI_LOCALNRANKS` |
//! | PALS (Cray) | `PALS_RANKID`, `PALS_SIZE` | `PALS_APID` | `PALS_LOCAL_RANKID` |
//! | Slurm | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` or `SLURM_NTASKS` | `SLURM_JOB_ID`, `SLURM_STEP_ID`, `SLURM_RESTART_COUNT` | `SLURM_LOCALID`; one host if `SLURM_STEP_NUM_NODES` or `SLURM_NNODES` is 1 |
//!
//! The first that is there counts: `mpirun` in a Slurm allocation sets its own variables and passes
//! those of the allocation on. A launch has a name that no other launch of the user has at the time; with it
//! [`meeting`](crate::meeting) finds a place where its ranks meet. Sources: `srun(1)`, `mpirun(1)` of Open MPI, the
//! manuals of Hydra, MVAPICH2, JSM and Flux.

use crate::{RankError, RankInfo};

/// The launcher that started this process, as far as the environment says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    /// Name of the launcher.
    pub launcher: &'static str,
    /// The rank and the size of the job.
    pub rank_info: RankInfo,
    /// What the launcher calls this launch.
    pub launch: Option<String>,
    /// Which of those on this host.
    pub local_rank: u32,
    /// Whether all ranks are on this host, as far as the launcher says.
    pub is_one_host: bool,
}

/// An environment that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LauncherError {
    /// Half of what is needed.
    #[error("{launcher} sets {present}, but none of {absent}; set both, or neither")]
    Half {
        /// Name of the launcher.
        launcher: &'static str,
        /// The variable that is there.
        present: &'static str,
        /// The variables that are not set.
        absent: String,
    },
    /// One of this program's own settings of rank and size.
    #[error("{present} is set, and {absent} is not; set both, or neither")]
    HalfSet {
        /// The setting that is there.
        present: &'static str,
        /// The one that is absent.
        absent: &'static str,
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
    RankInfo {
        /// Name of the launcher.
        launcher: &'static str,
        /// The inconsistency.
        cause: RankError,
    },
}

struct Launcher {
    name: &'static str,
    rank: &'static [&'static str],
    size: &'static [&'static str],
    /// Joined by dots.
    launch: &'static [&'static str],
    local_rank: &'static [&'static str],
    /// Ranks on this host.
    local_size: &'static [&'static str],
    /// Hosts of the launch.
    hosts: &'static [&'static str],
}

/// Rank and size that no launcher told: what a person may have written as flags, or as variables.
pub(crate) const SETTINGS: &str = "--rank and --size (COPYRPC_RANK, COPYRPC_SIZE)";
const RANK: &str = "--rank (COPYRPC_RANK)";
const SIZE: &str = "--size (COPYRPC_SIZE)";

/// One of which nothing but the ranks is known.
const PLAIN: Launcher = Launcher {
    name: "",
    rank: &[],
    size: &[],
    launch: &[],
    local_rank: &[],
    local_size: &[],
    hosts: &[],
};

const LAUNCHERS: [Launcher; 8] = [
    Launcher { name: SETTINGS, rank: &["COPYRPC_RANK"], size: &["COPYRPC_SIZE"], ..PLAIN },
    Launcher {
        name: "Open MPI",
        rank: &["OMPI_COMM_WORLD_RANK"],
        size: &["OMPI_COMM_WORLD_SIZE"],
        launch: &["PMIX_NAMESPACE"],
        local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        local_size: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
        hosts: &[],
    },
    Launcher {
        name: "MVAPICH",
        rank: &["MV2_COMM_WORLD_RANK"],
        size: &["MV2_COMM_WORLD_SIZE"],
        local_rank: &["MV2_COMM_WORLD_LOCAL_RANK"],
        local_size: &["MV2_COMM_WORLD_LOCAL_SIZE"],
        ..PLAIN
    },
    Launcher {
        name: "JSM",
        rank: &["JSM_NAMESPACE_RANK"],
        size: &["JSM_NAMESPACE_SIZE"],
        launch: &["JSM_NAMESPACE"],
        local_rank: &["JSM_NAMESPACE_LOCAL_RANK"],
        local_size: &["JSM_NAMESPACE_LOCAL_SIZE"],
        hosts: &[],
    },
    Launcher {
        name: "Flux",
        rank: &["FLUX_TASK_RANK"],
        size: &["FLUX_JOB_SIZE"],
        launch: &["FLUX_JOB_ID"],
        local_rank: &["FLUX_TASK_LOCAL_ID"],
        local_size: &[],
        hosts: &["FLUX_JOB_NNODES"],
    },
    Launcher {
        name: "PMI",
        rank: &["PMI_RANK"],
        size: &["PMI_SIZE"],
        launch: &["PMI_JOBID"],
        local_rank: &["MPI_LOCALRANKID"],
        local_size: &["MPI_LOCALNRANKS"],
        hosts: &[],
    },
    Launcher {
        name: "PALS",
        rank: &["PALS_RANKID"],
        size: &["PALS_SIZE"],
        launch: &["PALS_APID"],
        local_rank: &["PALS_LOCAL_RANKID"],
        ..PLAIN
    },
    Launcher {
        name: "Slurm",
        rank: &["SLURM_PROCID"],
        size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        launch: &["SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"],
        local_rank: &["SLURM_LOCALID"],
        local_size: &[],
        hosts: &["SLURM_STEP_NUM_NODES", "SLURM_NNODES"],
    },
];

/// What the first launcher says whose rank is set; `None` if there is none.
///
/// # Errors
///
/// [`LauncherError`].
pub fn detect(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Launched>, LauncherError> {
    for launcher in &LAUNCHERS {
        let rank = number(launcher.rank, &lookup)?;
        let size = number(launcher.size, &lookup)?;
        let half = |present, absent: &[_]| LauncherError::Half {
            launcher: launcher.name,
            present,
            absent: absent.join(", "),
        };
        let rank_info = match (rank, size) {
            // A size alone is usual: `sbatch` sets SLURM_NTASKS for its script.
            (None, None) => continue,
            (None, Some(_)) if launcher.name == "Slurm" => continue,
            (None, Some(_)) if launcher.name == SETTINGS => {
                return Err(LauncherError::HalfSet { present: SIZE, absent: RANK });
            }
            (Some(_), None) if launcher.name == SETTINGS => {
                return Err(LauncherError::HalfSet { present: RANK, absent: SIZE });
            }
            (None, Some((present, _))) => return Err(half(present, launcher.rank)),
            (Some((present, _)), None) => return Err(half(present, launcher.size)),
            (Some((_, rank)), Some((_, size))) => RankInfo::new(rank, size)
                .map_err(|cause| LauncherError::RankInfo { launcher: launcher.name, cause })?,
        };
        let launch: Vec<_> =
            launcher.launch.iter().filter_map(|variable| lookup(variable)).collect();
        let local = |variables| Ok(number(variables, &lookup)?.map(|(_, number)| number));
        let is_one_host = local(launcher.local_size)? == Some(rank_info.size())
            || local(launcher.hosts)? == Some(1);
        return Ok(Some(Launched {
            launcher: launcher.name,
            rank_info,
            launch: (!launch.is_empty()).then(|| launch.join(".")),
            local_rank: local(launcher.local_rank)?.unwrap_or(0),
            is_one_host,
        }));
    }
    Ok(None)
}

/// The first of some variables that is set and not empty.
fn number(
    variables: &[&'static str],
    lookup: &impl Fn(&str) -> Option<String>,
) -> Result<Option<(&'static str, u32)>, LauncherError> {
    let texts = variables.iter().filter_map(|&variable| Some((variable, lookup(variable)?)));
    match texts.into_iter().find(|(_, text)| !text.is_empty()) {
        None => Ok(None),
        Some((variable, text)) => match text.parse() {
            Ok(number) => Ok(Some((variable, number))),
            Err(_) => Err(LauncherError::NotANumber { variable, text }),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect_in(variables: &[(&str, &str)]) -> Result<Option<Launched>, LauncherError> {
        detect(|name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, text)| (*text).to_owned())
        })
    }

    fn place_in(variables: &[(&str, &str)]) -> (&'static str, u32, u32) {
        let launched = detect_in(variables).unwrap().unwrap();
        (launched.launcher, launched.rank_info.rank(), launched.rank_info.size())
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
        assert_eq!(detect_in(&SLURM).unwrap().unwrap().launch.as_deref(), Some("77.0"));
        for (launcher, rank, size) in [
            ("MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
            ("JSM", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
            ("Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
        ] {
            assert_eq!(place_in(&[(rank, "1"), (size, "3")]), (launcher, 1, 3));
        }
        assert_eq!(place_in(&[("PMI_RANK", "1"), ("PMI_SIZE", "2")]), ("PMI", 1, 2));
        assert_eq!(place_in(&[("PALS_RANKID", "0"), ("PALS_SIZE", "1")]), ("PALS", 0, 1));
        let open_mpi = [("OMPI_COMM_WORLD_RANK", "5"), ("OMPI_COMM_WORLD_SIZE", "6")];
        assert_eq!(place_in(&open_mpi), ("Open MPI", 5, 6));
        assert_eq!(detect_in(&[]), Ok(None));
        assert_eq!(detect_in(&[("SLURM_NTASKS", "8")]), Ok(None), "a batch script");
    }

    #[test]
    fn ranks_of_one_host_are_told_apart_and_from_those_of_several() {
        let host_of = |variables: &[(&str, &str)]| {
            let launched = detect_in(variables).unwrap().unwrap();
            (launched.local_rank, launched.is_one_host)
        };
        let mpi = |local: &'static str| {
            [
                ("OMPI_COMM_WORLD_RANK", "1"),
                ("OMPI_COMM_WORLD_SIZE", "2"),
                ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
                ("OMPI_COMM_WORLD_LOCAL_SIZE", local),
            ]
        };
        assert_eq!(host_of(&mpi("2")), (1, true));
        assert_eq!(host_of(&mpi("1")), (1, false));
        let hydra = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "1")];
        assert_eq!(host_of(&hydra), (1, false), "nobody says so");
        let mut slurm = SLURM.to_vec();
        slurm.extend([("SLURM_LOCALID", "3"), ("SLURM_NNODES", "1")]);
        assert_eq!(host_of(&slurm), (3, true));
        slurm.push(("SLURM_STEP_NUM_NODES", "2"));
        assert_eq!(host_of(&slurm), (3, false), "the step is what counts");
        let error = detect_in(&[("PMI_RANK", "0"), ("PMI_SIZE", "1"), ("MPI_LOCALRANKID", "-")]);
        assert_eq!(error.unwrap_err().to_string(), "MPI_LOCALRANKID=- is no number");
    }

    #[test]
    fn the_inner_launcher_counts() {
        let mut variables = SLURM.to_vec();
        variables.extend([("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")]);
        assert_eq!(place_in(&variables), ("Open MPI", 1, 2));
        variables.extend([("COPYRPC_RANK", "0"), ("COPYRPC_SIZE", "1")]);
        assert_eq!(place_in(&variables), (SETTINGS, 0, 1));
    }

    #[test]
    fn contradictions_are_named() {
        let error = detect_in(&[("PMI_RANK", "1")]).unwrap_err().to_string();
        assert_eq!(error, "PMI sets PMI_RANK, but none of PMI_SIZE; set both, or neither");
        let error = detect_in(&[("PMI_RANK", "x"), ("PMI_SIZE", "2")]).unwrap_err().to_string();
        assert_eq!(error, "PMI_RANK=x is no number");
        let error = detect_in(&[("PMI_RANK", "2"), ("PMI_SIZE", "2")]).unwrap_err().to_string();
        assert!(error.starts_with("PMI: rank 2 of 2 does not exist"), "{error}");
        let error = detect_in(&[("COPYRPC_RANK", "3")]).unwrap_err().to_string();
        let told =
            "--rank (COPYRPC_RANK) is set, and --size (COPYRPC_SIZE) is not; set both, or neither";
        assert_eq!(error, told);
    }
}
