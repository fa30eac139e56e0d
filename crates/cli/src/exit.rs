//! Results to exit codes.

use std::{
    io::{self, ErrorKind},
    process::ExitCode,
};

use bench::cores::CoresError;
use copyrpc::nic;
use kv::grid::GridError;
use node::{
    bootstrap::launcher::LaunchError,
    config::{Incompatible, SettingError},
    runtime::RuntimeError,
};

use crate::{doctor::Unfit, nic::OpenError, output::say};

/// A benchmark failed, or anything else that no other code names.
const FAILED: u8 = 1;
/// As clap has it for what it refuses itself.
const SENSELESS: u8 = 2;
/// The machine lacks something.
const LACKING: u8 = 3;

/// What was asked for makes no sense.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Senseless(pub(crate) String);

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
    let is_senseless = error.is::<Senseless>()
        || error.is::<GridError>()
        || error.is::<SettingError>()
        || error.is::<Incompatible>()
        || error.is::<LaunchError>()
        || matches!(error.downcast_ref(), Some(RuntimeError::Name(_)))
        || matches!(error.downcast_ref(), Some(OpenError::Nic(nic::OpenError::Config(_))));
    let is_lacking = error.is::<CoresError>() || error.is::<OpenError>() || error.is::<Unfit>();
    match () {
        () if is_senseless => SENSELESS,
        () if is_lacking => LACKING,
        () => FAILED,
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
        let lacking = Err::<(), _>(CoresError::TooFew { allowed: 1 }).context("more words");
        assert_eq!(number_of(&lacking.unwrap_err()), LACKING);
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
