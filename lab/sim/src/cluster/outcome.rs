//! What outcomes of calls are for the history.

use client::{
    direct::{is_session_over, over_error},
    message::origin,
};
use ipc::{CallError, CallOutcome};
use rpc::Status;

use super::history::{End, History};

/// What the outcome of a call without the daemon is for the history.
pub(super) fn judged_in_session<'a>(
    history: &mut History,
    call: u64,
    outcome: CallOutcome<'a>,
) -> Result<&'a [u8], End> {
    match outcome {
        Err(failed) if is_session_over(failed.error) => {
            if let client::CallError::Refused(_) = over_error(failed.error, None) {
                history.not_executed(call);
            }
            Err(End::Status(Status::Unavailable.code()))
        }
        Err(failed) if failed.error == CallError::Deadline => {
            history.given_up(call);
            Err(End::Deadline)
        }
        outcome => judged(history, call, outcome),
    }
}

/// What an outcome is for the history; what no honest daemon does is a failure.
pub(super) fn judged<'a>(
    history: &mut History,
    call: u64,
    outcome: CallOutcome<'a>,
) -> Result<&'a [u8], End> {
    outcome.map_err(|failed| match failed.error {
        CallError::Deadline => End::Deadline,
        CallError::ServerGone => End::DaemonGone,
        CallError::ResourceExhausted => End::Status(Status::ResourceExhausted.code()),
        CallError::HandlerError(code) => {
            // Behind the status stands who says so: `client::message::origin`.
            let [code, by, ..] = code.to_le_bytes();
            if by == origin::NOT_EXECUTED {
                history.not_executed(call);
            }
            let is_expected = Status::from_code(code).is_some_and(|status| {
                matches!(
                    status,
                    Status::DeadlineExceeded
                        | Status::ResourceExhausted
                        | Status::Unavailable
                        | Status::Unimplemented
                )
            });
            if !is_expected {
                history.fail(|| format!("call {call} ended with status {code}"));
            }
            End::Status(code)
        }
        error => {
            history.fail(|| format!("call {call} ended with: {error}"));
            End::Deadline
        }
    })
}
