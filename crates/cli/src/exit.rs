//! Results to exit codes.

use std::{
    io::{self, ErrorKind},
    process::ExitCode,
};

use bootstrap::{SecretError, launcher::LauncherError};
use client::runtime::RuntimeError;
use copyrpc::daemon::ServeOnError;
use daemon::config::{Incompatible, SettingError};
use kv::grid::GridError;
use measure::cores::CoresError;

use crate::output::say;

/// A benchmark failed, or anything else that no other code names.
const FAILED: u8 = 1;
/// The command line, a variable or the file of knobs is refused; clap uses the same code.
const USAGE: u8 = 2;
/// The machine lacks something that the command needs.
const UNAVAILABLE: u8 = 3;

/// A combination of arguments and settings that is refused, with the reason.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

/// Why a NIC cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    /// There is none of that name, or it does not start.
    #[error(transparent)]
    Nic(#[from] nics::OpenError),
    /// It is there, but has no room for a benchmark's queues.
    #[error("cannot set up a benchmark on NIC `{name}`: {cause}")]
    Work {
        /// The NIC.
        name: String,
        /// The error of the work that the NIC refused.
        cause: bench::Error,
    },
}

/// Something would fail here.
#[derive(Debug, thiserror::Error)]
#[error("{0} of the above would keep a daemon from starting or serving")]
pub(crate) struct Unfit(pub(crate) usize);

/// Reports an error and turns it into the exit code that `--help` documents.
pub(crate) fn code_of(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output (head, a pager) has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            say(format_args!("error: {}", told(&error)));
            ExitCode::from(number_of(&error))
        }
    }
}

/// The error and its causes, each once: some tell their cause themselves.
fn told(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |told, cause| {
        if told.is_empty() {
            cause
        } else if told.contains(&cause) {
            told
        } else {
            format!("{told}: {cause}")
        }
    })
}

fn number_of(error: &anyhow::Error) -> u8 {
    let is_usage_error = error.is::<UsageError>()
        || error.is::<GridError>()
        || error.is::<SettingError>()
        || error.is::<Incompatible>()
        || error.is::<LauncherError>()
        || error.is::<SecretError>()
        || matches!(
            error.downcast_ref(),
            Some(RuntimeError::Name(_) | RuntimeError::PathTooLong { .. })
        )
        || matches!(nic_error(error), Some(nics::OpenError::Setting { .. }));
    let is_unavailable = error.is::<CoresError>()
        || error.is::<OpenError>()
        || error.is::<Unfit>()
        || nic_error(error).is_some();
    match () {
        () if is_usage_error => USAGE,
        () if is_unavailable => UNAVAILABLE,
        () => FAILED,
    }
}

/// Why the NIC cannot be used, if that is the error.
fn nic_error(error: &anyhow::Error) -> Option<&nics::OpenError> {
    match (error.downcast_ref(), error.downcast_ref()) {
        (Some(OpenError::Nic(error)), _) | (_, Some(ServeOnError::Nic(error))) => Some(error),
        _ => None,
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
    fn what_the_machine_lacks_is_told_apart_from_what_failed() {
        let unavailable = Err::<(), _>(CoresError::TooFew { allowed: 1 }).context("more words");
        assert_eq!(number_of(&unavailable.unwrap_err()), UNAVAILABLE);
        assert_eq!(number_of(&anyhow::anyhow!("wrong bytes")), FAILED);
    }

    #[test]
    fn a_cause_is_told_once() {
        let cause = io::Error::from(ErrorKind::NotFound);
        let told_already = anyhow::Error::from(cause).context("cannot read x: entity not found");
        assert_eq!(told(&told_already), "cannot read x: entity not found");
        let cause = io::Error::from(ErrorKind::NotFound);
        let untold = anyhow::Error::from(cause).context("cannot read x");
        assert_eq!(told(&untold), "cannot read x: entity not found");
    }

    #[test]
    fn a_reader_that_went_away_is_no_failure() {
        let gone = anyhow::Error::from(io::Error::from(ErrorKind::BrokenPipe));
        assert!(is_broken_pipe(&gone));
        let full = anyhow::Error::from(io::Error::from(ErrorKind::StorageFull));
        assert!(!is_broken_pipe(&full));
    }
}
