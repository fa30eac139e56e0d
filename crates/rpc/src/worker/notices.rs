//! Ends of calls and connections that the next poll tells the handler.

use std::collections::VecDeque;

use proto::Status;

use crate::{CloseReason, PeerId};

/// A call that ended without an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndedCall {
    pub(super) cookie: u64,
    pub(super) status: Status,
}

/// A connection that ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClosedPeer {
    pub(super) peer: PeerId,
    pub(super) reason: CloseReason,
}

/// Calls and connections that ended outside a callback.
#[derive(Debug, Default)]
pub(super) struct Notices {
    calls: VecDeque<EndedCall>,
    peers: VecDeque<ClosedPeer>,
}

impl Notices {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty() && self.peers.is_empty()
    }

    /// Calls and connections that wait.
    pub(super) fn counts(&self) -> Counts {
        Counts { calls: self.calls.len(), peers: self.peers.len() }
    }

    pub(super) fn call_ended(&mut self, cookie: u64, status: Status) {
        self.calls.push_back(EndedCall { cookie, status });
    }

    pub(super) fn peer_closed(&mut self, peer: PeerId, reason: CloseReason) {
        self.peers.push_back(ClosedPeer { peer, reason });
    }

    pub(super) fn next_call(&mut self) -> Option<EndedCall> {
        self.calls.pop_front()
    }

    pub(super) fn next_peer(&mut self) -> Option<ClosedPeer> {
        self.peers.pop_front()
    }
}

/// The numbers of waiting [`Notices`] of each kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    pub(super) calls: usize,
    pub(super) peers: usize,
}
