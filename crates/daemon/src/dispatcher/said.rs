//! What is said about calls besides their bodies: who called, and who says that there is no success.

use client::message::{CallerHead, DETAIL_BYTES_MAX, origin};
use rpc::Status;
use zerocopy::little_endian::{U32, U64};

/// Nobody knows who called.
pub(super) const NOBODY: CallerHead =
    CallerHead { uid: U32::ZERO, pid: U32::ZERO, trace: U64::ZERO };

/// Puts before what a service says that the service says so, unless it is a success.
#[inline]
pub(crate) fn mark_service(body: &mut Vec<u8>, status: Status) {
    if status != Status::Ok {
        body.truncate(DETAIL_BYTES_MAX);
        body.insert(0, origin::SERVICE);
    }
}

/// The answer to a request that was not handed on. A caller knows without that what want of room, of the
/// service or of the rank means.
pub(crate) fn not_executed(status: Status) -> &'static [u8] {
    match status {
        Status::Ok | Status::ResourceExhausted | Status::Unimplemented | Status::NotFound => &[],
        _ => &[origin::NOT_EXECUTED],
    }
}
