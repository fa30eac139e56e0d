//! Results to exit codes.

use std::{
    io::{self, ErrorKind},
    process::ExitCode,
};

use bootstrap::{SecretError, launcher::LauncherError};
use client::runtime::RuntimeError;
use daemon::config::{Incompatible, SettingError};

use crate::output::say;

/// The exit code of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// A benchmark failed, or anything else that no other code names.
    Failed = 1,
    /// The command line, a variable or the file of knobs is refused; clap uses the same code.
    Usage = 2,
    /// The machine lacks something that the command needs.
    Unavailable = 3,
    /// A daemon lacks something that may come by itself: `EX_TEMPFAIL` of `sysexits.h`.
    Temporary = 75,
    /// A signal has ended it before it was done, as shells say it of SIGINT.
    Interrupted = 130,
}

/// A combination of arguments and settings that is refused, with the reason.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// A signal has ended a measurement, whose samples until then are shown.
#[derive(Debug, thiserror::Error)]
#[error("interrupted after {0}")]
pub struct Interrupted(pub String);

/// Something would fail here.
#[derive(Debug, thiserror::Error)]
#[error("{0} of the above would keep a daemon from starting or serving")]
pub struct Unfit(pub usize);

/// Tells a person an error.
pub fn tell(error: &str) {
    say(format_args!("error: {error}"));
}

/// Hands an error to `tell` and turns it into the exit code that `--help` documents. `own` names the kinds of the errors
/// that only one program has.
pub fn code_of(
    result: anyhow::Result<()>,
    own: impl Fn(&anyhow::Error) -> Option<FailureKind>,
    tell: impl Fn(&str),
) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the output (head, a pager) has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            tell(&with_causes(&error));
            ExitCode::from(own(&error).unwrap_or_else(|| kind_of(&error)) as u8)
        }
    }
}

/// The error and its causes, each once: some tell their cause themselves.
fn with_causes(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| {
        if text.is_empty() {
            cause
        } else if text.contains(&cause) {
            text
        } else {
            format!("{text}: {cause}")
        }
    })
}

/// The kind of an error that several commands have.
fn kind_of(error: &anyhow::Error) -> FailureKind {
    let is_usage_error = error.is::<UsageError>()
        || error.is::<SettingError>()
        || error.is::<Incompatible>()
        || error.is::<LauncherError>()
        || error.is::<SecretError>()
        || error.downcast_ref().is_some_and(is_misconfigured);
    if is_usage_error {
        FailureKind::Usage
    } else if let Some(error) = error.downcast_ref() {
        kind_of_nic(error)
    } else if error.is::<Unfit>() {
        FailureKind::Unavailable
    } else if error.is::<Interrupted>() {
        FailureKind::Interrupted
    } else {
        FailureKind::Failed
    }
}

/// The kind of an error of a NIC.
#[must_use]
pub fn kind_of_nic(error: &nics::OpenError) -> FailureKind {
    if error.is_mistake() { FailureKind::Usage } else { FailureKind::Unavailable }
}

/// Whether another folder, job or instance, or a correction of the folder, is the remedy.
#[must_use]
pub fn is_misconfigured(error: &RuntimeError) -> bool {
    match error {
        RuntimeError::Name(_)
        | RuntimeError::PathTooLong { .. }
        | RuntimeError::Folder { .. }
        | RuntimeError::NotPrivate { .. } => true,
        RuntimeError::Taken { .. } | RuntimeError::Lock { .. } => false,
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn an_unfit_machine_is_told_apart_from_a_failure() {
        let unavailable = Err::<(), _>(Unfit(1)).context("more words");
        assert_eq!(kind_of(&unavailable.unwrap_err()), FailureKind::Unavailable);
        assert_eq!(kind_of(&anyhow::anyhow!("wrong bytes")), FailureKind::Failed);
        assert_eq!(kind_of(&Interrupted("2 samples".into()).into()) as u8, 130);
    }

    #[test]
    fn a_cause_is_told_once() {
        let cause = io::Error::from(ErrorKind::NotFound);
        let repeated = anyhow::Error::from(cause).context("cannot read x: entity not found");
        assert_eq!(with_causes(&repeated), "cannot read x: entity not found");
        let cause = io::Error::from(ErrorKind::NotFound);
        let single = anyhow::Error::from(cause).context("cannot read x");
        assert_eq!(with_causes(&single), "cannot read x: entity not found");
    }

    #[test]
    fn a_reader_that_went_away_is_no_failure() {
        let gone = anyhow::Error::from(io::Error::from(ErrorKind::BrokenPipe));
        assert!(is_broken_pipe(&gone));
        let full = anyhow::Error::from(io::Error::from(ErrorKind::StorageFull));
        assert!(!is_broken_pipe(&full));
    }
}
