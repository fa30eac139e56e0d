//! The job's name where nobody gives one: that of the allocation of a batch system.
//!
//! Daemons and clients of a user are started by several launches, but within one allocation, and often by several
//! of them on one host. So the allocation names the job; without one it is `default`.

/// Batch systems, and where they tell the allocation.
const SYSTEMS: [(&str, &str); 4] = [
    ("slurm", "SLURM_JOB_ID"),
    ("flux", "FLUX_JOB_ID"),
    ("pbs", "PBS_JOBID"),
    ("lsf", "LSB_JOBID"),
];

/// Longest part of a name that is taken over.
const ID_BYTES_MAX: usize = 40;

/// Name of a job, such as `slurm-77`; `None` outside of an allocation.
#[must_use]
pub fn job(lookup: impl Fn(&str) -> Option<String>) -> Option<String> {
    SYSTEMS.iter().find_map(|(system, variable)| {
        let id = lookup(variable).filter(|id| !id.is_empty())?;
        Some(format!("{system}-{}", file_name(&id)))
    })
}

/// A text as a part of the name of a job or file: other characters become `-`.
#[must_use]
pub fn file_name(text: &str) -> String {
    let legal = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    text.chars().take(ID_BYTES_MAX).map(|c| if legal(c) { c } else { '-' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JobId;

    #[test]
    fn the_allocation_names_the_job() {
        let of = |variable: &'static str, id: &'static str| {
            job(|name| (name == variable).then(|| id.to_owned()))
        };
        assert_eq!(of("SLURM_JOB_ID", "77").as_deref(), Some("slurm-77"));
        assert_eq!(of("PBS_JOBID", "12[3].host/x").as_deref(), Some("pbs-12-3-.host-x"));
        assert_eq!(of("LSB_JOBID", ""), None);
        assert_eq!(of("SLURM_STEP_ID", "0"), None, "steps of one allocation meet");
        let long = job(|name| (name == "FLUX_JOB_ID").then(|| "\u{192}x/".repeat(99))).unwrap();
        assert!(JobId::new(&long).is_ok(), "{long}");
    }
}
