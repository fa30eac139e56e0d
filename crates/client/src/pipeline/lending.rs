//! Calls that lend memory, and regions.

use std::{os::fd::BorrowedFd, time::Duration};

use ipc::CallId;
use zerocopy::IntoBytes as _;

use crate::{
    CallError, HERE, To,
    bulk::{
        Connection,
        lending::LentSlice,
        message::{BulkCallHead, SliceHead, method as bulk},
    },
    call_head,
    message::{CallExtra, DAEMON},
    patience,
    pipeline::{Pipeline, Sent, SubmitError, not_submitted},
};

impl<C> Pipeline<C> {
    /// Makes a call that lends slices, each of a region that the daemon of now has. If the daemon is gone, it is looked
    /// for, as of [`submit`](Self::submit).
    pub(crate) fn submit_lending(
        &mut self,
        to: To,
        body: &[u8],
        slices: &[LentSlice],
        timeout: Duration,
        context: C,
    ) -> Result<CallId, SubmitError<C>> {
        match self.submit_lending_once(to, body, slices, timeout, context) {
            Err(refused) if refused.error.is_daemon_gone() && self.find_daemon() => {
                self.submit_lending_once(to, body, slices, timeout, refused.context)
            }
            submitted => submitted,
        }
    }

    fn submit_lending_once(
        &mut self,
        to: To,
        body: &[u8],
        slices: &[LentSlice],
        timeout: Duration,
        context: C,
    ) -> Result<CallId, SubmitError<C>> {
        if slices.iter().any(|slice| slice.connection.is_before(self.connection)) {
            return Err(SubmitError { error: CallError::NotHeld, context });
        }
        let head = BulkCallHead::new(to, timeout, slices.len());
        let slices: Vec<SliceHead> = slices.iter().map(|slice| slice.head).collect();
        let parts = [head.as_bytes(), slices.as_bytes(), body];
        self.submit_to_daemon(bulk::CALL, parts, timeout, Sent::Call(to, context))
    }

    /// Hands the daemon the descriptor of a region, and the request about it. One at a time, and while no
    /// introduction is under way: the daemon takes descriptors in the order in which they came.
    pub(crate) fn submit_region(
        &mut self,
        region: (BorrowedFd<'_>, Connection),
        body: &[u8],
        timeout: Duration,
        context: C,
    ) -> Result<CallId, SubmitError<C>> {
        let (fd, connection) = region;
        if connection != self.connection {
            return Err(SubmitError { error: CallError::NotHeld, context });
        }
        let to = To { rank: HERE, service: DAEMON, method: bulk::REGION };
        let call = Sent::Call(to, context);
        if self.free() == 0 || self.ipc.gone().is_some() {
            return Err(self.full(call));
        }
        if let Err(error) = self.ipc.send_descriptor(fd) {
            return Err(not_submitted(ipc::SubmitError { error, context: call }));
        }
        let submitted = self.submit_to_daemon(bulk::REGION, [body, &[], &[]], timeout, call);
        self.is_registering = submitted.is_ok();
        submitted
    }

    /// Whether a region can be handed over now.
    pub(crate) fn can_register(&self) -> bool {
        !self.is_registering && self.meeting == 0
    }

    /// The daemon has answered about a region.
    pub(crate) fn registered(&mut self) {
        self.is_registering = false;
    }

    fn submit_to_daemon(
        &mut self,
        method: u16,
        body: [&[u8]; 3],
        timeout: Duration,
        call: Sent<C>,
    ) -> Result<CallId, SubmitError<C>> {
        if self.free() == 0 {
            return Err(self.full(call));
        }
        let to = To { rank: HERE, service: DAEMON, method };
        let head = call_head(to, timeout, 0, self.trace);
        let extra = CallExtra { trace: self.trace.into() };
        let extra = if self.trace == 0 { &[][..] } else { extra.as_bytes() };
        let [first, second, third] = body;
        let parts = [head.as_bytes(), extra, first, second, third];
        let submitted = self.ipc.submit_parts_within(&parts, patience(timeout), call);
        submitted.map_err(not_submitted)
    }
}
