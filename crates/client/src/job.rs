//! The identity of a job: its name, which is public.

use core::fmt;

/// Longest name of a job.
pub const JOB_BYTES_MAX: usize = 48;

/// Name of a job: 1 to 48 of `A-Z a-z 0-9 - _ .`, not starting with a dot.
///
/// ```
/// # use copyrpc_client as copyrpc;
/// use copyrpc::JobId;
///
/// assert_eq!(JobId::new("slurm-77")?.as_str(), "slurm-77");
/// assert!(JobId::new("two words").is_err());
/// # Ok::<(), copyrpc::JobIdError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JobId(String);

/// A text that cannot name a job.
///
/// ```
/// # use copyrpc_client as copyrpc;
/// use copyrpc::JobId;
///
/// let words = JobId::new("two words").expect_err("a blank").to_string();
/// assert!(words.starts_with("`two words` cannot name a job"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` cannot name a job; use 1 to {JOB_BYTES_MAX} of A-Z a-z 0-9 - _ . and do not start with a dot"
)]
pub struct JobIdError(String);

impl JobId {
    /// Checks a name.
    ///
    /// # Errors
    ///
    /// [`JobIdError`].
    pub fn new(name: &str) -> Result<Self, JobIdError> {
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let fits = (1..=JOB_BYTES_MAX).contains(&name.len());
        if fits && name.bytes().all(legal) && !name.starts_with('.') {
            Ok(Self(name.to_owned()))
        } else {
            Err(JobIdError(name.chars().take(2 * JOB_BYTES_MAX).collect()))
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Padded with zeros, as it travels between daemons.
    #[must_use]
    pub fn padded(&self) -> [u8; JOB_BYTES_MAX] {
        let mut padded = [0; JOB_BYTES_MAX];
        padded[..self.0.len()].copy_from_slice(self.0.as_bytes());
        padded
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_jobs_are_safe_in_paths() {
        for good in ["a", "slurm-1234.0", "A_b-c.9"] {
            assert_eq!(JobId::new(good).unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", "a/b", "a b", "ü", "\0", &"x".repeat(49)] {
            assert!(JobId::new(bad).is_err(), "{bad:?}");
        }
    }
}
