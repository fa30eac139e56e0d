//! What is said about calls besides their bodies: who called, and who says that there is no success.

use client::{
    Context,
    message::{CallerHead, DETAIL_BYTES_MAX, origin},
};
use rpc::Status;
use zerocopy::little_endian::{U32, U64};

/// Nobody knows who called.
pub(super) const NOBODY: CallerHead =
    CallerHead { uid: U32::ZERO, pid: U32::ZERO, trace: U64::ZERO };

/// What a function of this program is told of a caller.
#[inline]
pub(super) fn context_of(caller: &CallerHead) -> Option<Context> {
    if caller.pid.get() == 0 && caller.trace.get() == 0 {
        return None;
    }
    let is_known = caller.pid.get() != 0;
    Some(Context {
        deadline_ns: u64::MAX,
        uid: is_known.then_some(caller.uid.get()),
        pid: is_known.then_some(caller.pid.get()),
        trace: caller.trace.get(),
    })
}

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
pub(super) fn not_executed(status: Status) -> &'static [u8] {
    match status {
        Status::Ok | Status::ResourceExhausted | Status::Unimplemented | Status::NotFound => &[],
        _ => &[origin::NOT_EXECUTED],
    }
}
