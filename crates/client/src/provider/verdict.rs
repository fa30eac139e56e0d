//! How a request went, and who says so.

use proto::Status;

use crate::{
    message::origin,
    provider::{inbound::Context, process_clock::ProviderClock},
};

/// The status of a request, and who says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) status: Status,
    /// One of [`origin`].
    pub(super) origin: u8,
}

impl Verdict {
    /// Its deadline had passed before the service saw the request.
    pub(super) const TOO_LATE: Self =
        Self { status: Status::DeadlineExceeded, origin: origin::NOT_EXECUTED };

    /// Its caller had given up before the service saw the request.
    pub(super) const GIVEN_UP: Self =
        Self { status: Status::Cancelled, origin: origin::NOT_EXECUTED };

    /// What the service says. A status that is no success and comes after the deadline is the doing of that: a service
    /// that looks whether its caller still waits would blame itself.
    pub(super) fn of_service(
        status: Status,
        context: Option<Context>,
        clock: &impl ProviderClock,
    ) -> Self {
        let is_late = || context.is_some_and(|context| context.is_late(clock));
        if status != Status::Ok && is_late() {
            return Self { status: Status::DeadlineExceeded, origin: origin::ENDED };
        }
        Self { status, origin: origin::SERVICE }
    }

    /// Whether the service may add words of its own.
    pub(super) fn is_of_service(self) -> bool {
        self.origin == origin::SERVICE
    }
}

/// The service's word about an answer that is too long.
pub(super) const TOO_LONG: Verdict =
    Verdict { status: Status::OutOfRange, origin: origin::SERVICE };

/// What callers are told about an answer that is longer than a call carries.
pub(super) fn too_long(len_bytes: usize, answer_bytes_max: usize) -> String {
    // As short as what a caller on another node sets aside by default.
    format!(
        "its answer of {len_bytes} B is longer than the {answer_bytes_max} B that a call carries: answer in pieces \
         (stream) or into lent memory (bulk), or raise COPYRPC_MESSAGE_BYTES_MAX"
    )
}
