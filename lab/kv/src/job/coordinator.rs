//! The coordinator, as its child processes see it: orders come from it, reports go to it.

use std::{io, time::Duration};

use nics::OpenError;
use os::{
    child::{ChildChannel, NoParentError, TypedMessageError},
    clock,
};

use super::{Order, Report};
use crate::{backend::BackendError, drive::DriveError};

/// Longest wait for an order that should come soon, and for the coordinator to take a report.
pub(super) const ORDER_TIMEOUT: Duration = Duration::from_secs(120);
/// Longest wait for threads, and between two looks at them.
pub(super) const LOOK: Duration = Duration::from_millis(20);

/// Why a child cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// No coordinator started this process.
    #[error(transparent)]
    NoParent(#[from] NoParentError),
    /// The kernel refused.
    #[error("{what}: {cause}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// As the kernel says.
        cause: io::Error,
    },
    /// The coordinator is gone, or is of another version.
    #[error("coordinator: {0}")]
    Coordinator(#[from] TypedMessageError),
    /// Another order than the one that is due.
    #[error("the coordinator gave an order out of turn: {0}")]
    OutOfTurn(String),
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The NIC cannot be used.
    #[error(transparent)]
    Nic(#[from] OpenError),
    /// A client failed.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// A thread panicked.
    #[error("a thread panicked; its message is above")]
    Panicked,
}

/// The error of a system call that was tried to do `what`.
pub(super) fn system(what: &'static str) -> impl FnOnce(io::Error) -> ChildError {
    move |cause| ChildError::System { what, cause }
}

/// Sends a report to the coordinator.
pub(super) fn send(coordinator: &mut ChildChannel, report: &Report) -> Result<(), ChildError> {
    Ok(coordinator.send_json(report, clock::deadline_ns(ORDER_TIMEOUT))?)
}

pub(super) fn out_of_turn(order: &Order) -> ChildError {
    ChildError::OutOfTurn(format!("{order:?}"))
}
