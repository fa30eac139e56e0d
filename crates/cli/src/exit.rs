//! Results to exit codes.

use std::{
    io::{self, ErrorKind},
    process::ExitCode,
};

use bootstrap::{BootstrapError, SecretError, launcher::LauncherError};
use client::runtime::RuntimeError;
use copyrpc::daemon::ServeOnError;
use daemon::{
    ServeError,
    config::{Incompatible, SettingError},
};
use kv::grid::GridError;
use measure::cores::CoresError;
use nics::Outlook;

use crate::output::say;

/// A benchmark failed, or anything else that no other code names.
const FAILED: u8 = 1;
/// The command line, a variable or the file of knobs is refused; clap uses the same code.
const USAGE: u8 = 2;
/// The machine lacks something that the command needs.
const UNAVAILABLE: u8 = 3;
/// A daemon lacks something that may come by itself: `EX_TEMPFAIL` of `sysexits.h`.
const TEMPORARY: u8 = 75;

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
    if serve_error(error).is_some_and(is_temporary) {
        return TEMPORARY;
    }
    let is_usage_error = error.is::<UsageError>()
        || error.is::<GridError>()
        || error.is::<SettingError>()
        || error.is::<Incompatible>()
        || error.is::<LauncherError>()
        || error.is::<SecretError>()
        || runtime_error(error).is_some_and(is_misconfigured)
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

/// Why a daemon does not serve, if that is the error.
fn serve_error(error: &anyhow::Error) -> Option<&ServeOnError> {
    error.downcast_ref()
}

/// What is wrong with the runtime folder, if that is the error.
fn runtime_error(error: &anyhow::Error) -> Option<&RuntimeError> {
    match serve_error(error) {
        Some(ServeOnError::Serve(ServeError::Runtime(error))) => Some(error),
        _ => error.downcast_ref(),
    }
}

/// Whether somebody has to choose another folder, job or instance, or to correct the folder.
fn is_misconfigured(error: &RuntimeError) -> bool {
    match error {
        RuntimeError::Name(_)
        | RuntimeError::PathTooLong { .. }
        | RuntimeError::Folder { .. }
        | RuntimeError::NotPrivate { .. } => true,
        RuntimeError::Taken { .. } | RuntimeError::Lock { .. } => false,
    }
}

/// Whether the same start may succeed a while later, without anybody's doing on this node.
fn is_temporary(error: &ServeOnError) -> bool {
    let error = match error {
        ServeOnError::Nic(error) => return error.outlook() != Outlook::Never,
        ServeOnError::Serve(error) => error,
        _ => return false,
    };
    match error {
        // A predecessor that was killed gives back its memory before its lock.
        ServeError::Runtime(RuntimeError::Taken { .. }) => true,
        // The next life waits for the device, which is being reset.
        ServeError::NicFailed(_) => true,
        ServeError::Bootstrap(error) => match error {
            BootstrapError::Missing { .. }
            | BootstrapError::Unreachable { .. }
            | BootstrapError::GaveUp { .. }
            | BootstrapError::Lost { .. } => true,
            BootstrapError::Listen { source, .. } => {
                matches!(source.kind(), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable)
            }
            // A shared folder that is mounted late.
            BootstrapError::Folder { source, .. } => source.kind() == ErrorKind::NotFound,
            _ => false,
        },
        _ => false,
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
    fn a_failure_of_the_moment_is_told_from_a_mistake_of_settings() {
        let of = |error: ServeOnError| number_of(&anyhow::Error::from(error));
        let bootstrap = |error: BootstrapError| of(ServeError::from(error).into());
        let source = || io::Error::from(ErrorKind::ConnectionRefused);
        let (rank_info, address) = (bootstrap::RankInfo::ALONE, "n0:7000".to_owned());
        let waited = std::time::Duration::from_secs(1);
        let unreachable = BootstrapError::Unreachable {
            rank_info,
            address: address.clone(),
            waited,
            source: source(),
        };
        assert_eq!(bootstrap(unreachable), TEMPORARY);
        let foreign = BootstrapError::Foreign { address, job: "a".to_owned(), why: "it said so" };
        assert_eq!(bootstrap(foreign), FAILED);
        let port = ibverbs_error();
        assert_eq!(of(ServeOnError::Nic(port)), TEMPORARY);
        let folder = RuntimeError::NotPrivate { path: "/x".into(), uid: 1 };
        assert_eq!(of(ServeError::from(folder).into()), USAGE);
    }

    /// A device that may come.
    fn ibverbs_error() -> nics::OpenError {
        nics::OpenError::Open { name: "mlx5", cause: nics::mlx5::OpenError::NoDevice.into() }
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
