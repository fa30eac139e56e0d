//! A worker on any NIC, and what its polls find.

use std::{collections::VecDeque, time::Duration};

use client::Status;
use rpc::{
    Body, Call, CallEnd, CallError, CloseReason, ConnectError, Handler, Invitation, PeerId,
    Request, RequestId, Token, Worker,
};
use verbs::Nic;

use crate::report::Failure;

/// What a poll found.
#[derive(Debug)]
pub(crate) enum Arrived {
    /// A peer asks.
    Request { token: Token, method: u16, timeout_us: u32, body: Vec<u8> },
    /// A call has ended; by an answer of the peer, or without.
    Ended { cookie: u64, status: Status, is_answered: bool, body: Vec<u8> },
    /// The caller of a request does not wait any more.
    Cancelled { peer: PeerId, request: RequestId },
    /// A connection has ended.
    Closed { peer: PeerId, status: Status, why: String },
}

/// A worker whose NIC is not known when this is compiled.
pub(crate) trait Engine {
    fn invite(&mut self) -> Result<(PeerId, Invitation), Failure>;
    fn connect(&mut self, peer: PeerId, theirs: &Invitation) -> Result<(), Failure>;
    fn close(&mut self, peer: PeerId);
    fn call(&mut self, peer: PeerId, call: &Call, body: &[u8]) -> Result<(), Failure>;
    fn reply(&mut self, token: Token, status: Status, body: &[u8]) -> Result<(), Failure>;
    fn poll(&mut self, now_ns: u64, into: &mut VecDeque<Arrived>);
    fn sleep(&mut self, timeout: Duration) -> Result<(), Failure>;
}

impl<N: Nic> Engine for Worker<N> {
    fn invite(&mut self) -> Result<(PeerId, Invitation), Failure> {
        Ok(Self::invite(self)?)
    }

    fn connect(&mut self, peer: PeerId, theirs: &Invitation) -> Result<(), Failure> {
        Ok(Self::connect(self, peer, theirs)?)
    }

    fn close(&mut self, peer: PeerId) {
        Self::close(self, peer);
    }

    fn call(&mut self, peer: PeerId, call: &Call, body: &[u8]) -> Result<(), Failure> {
        Self::call(self, peer, call, body)?;
        Ok(())
    }

    fn reply(&mut self, token: Token, status: Status, body: &[u8]) -> Result<(), Failure> {
        let gone = |error| match error {
            rpc::ReplyError::TooLong { .. } => Failure::refused(Status::OutOfRange, error),
            rpc::ReplyError::NoMemory { .. } => Failure::refused(Status::ResourceExhausted, error),
            rpc::ReplyError::Gone => Failure::refused(Status::Unavailable, error),
        };
        Self::reply(self, token, status, body).map_err(gone)
    }

    fn poll(&mut self, now_ns: u64, into: &mut VecDeque<Arrived>) {
        Self::poll(self, now_ns, &mut Arrivals(into));
    }

    fn sleep(&mut self, timeout: Duration) -> Result<(), Failure> {
        Self::sleep(self, timeout).map(drop).map_err(Failure::library)
    }
}

/// Collects what a poll finds.
struct Arrivals<'a>(&'a mut VecDeque<Arrived>);

impl<N: Nic> Handler<N> for Arrivals<'_> {
    fn request(&mut self, _: &mut Worker<N>, request: Request, body: Body<'_, N>) {
        let Request { token, method, timeout_us } = request;
        let body = body.bytes().into_owned();
        self.0.push_back(Arrived::Request { token, method, timeout_us, body });
    }

    fn ended(&mut self, _: &mut Worker<N>, cookie: u64, end: CallEnd<'_, N>) {
        let is_answered = !matches!(end, CallEnd::Unanswered(_));
        let status = end.status();
        let body = end.bytes().into_owned();
        self.0.push_back(Arrived::Ended { cookie, status, is_answered, body });
    }

    fn cancelled(&mut self, _: &mut Worker<N>, peer: PeerId, request: RequestId) {
        self.0.push_back(Arrived::Cancelled { peer, request });
    }

    fn closed(&mut self, _: &mut Worker<N>, peer: PeerId, reason: CloseReason) {
        let (status, why) = (reason.status(), reason.to_string());
        self.0.push_back(Arrived::Closed { peer, status, why });
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        let status = match error {
            CallError::Busy(_) | CallError::NoMemory { .. } => Status::ResourceExhausted,
            CallError::NotConnected => Status::Unavailable,
            CallError::TooLong { .. } | CallError::NoPlace { .. } => Status::OutOfRange,
            CallError::Nested => Status::FailedPrecondition,
        };
        Self::refused(status, error)
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        let status = match error {
            ConnectError::Full { .. } => Status::ResourceExhausted,
            _ => Status::FailedPrecondition,
        };
        Self::refused(status, error)
    }
}
