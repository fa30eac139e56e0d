//! Requests that are held: their bytes stay in the ring, and so the caller feels back-pressure.

use proto::copyrpc::Lease;
use verbs::{MemoryRegion as _, Nic};

use super::Worker;
use crate::{PeerId, Token, token::BodySpan};

impl<N: Nic> Worker<N> {
    /// Keeps the body of a request in the ring until the request is answered or
    /// [released](Self::release). To be called inside [`Handler::request`], for its request;
    /// anywhere else, and for a body that came by rendezvous, it does nothing and returns `false`.
    ///
    /// A held message also keeps the lines behind it from the caller, so a program that holds much
    /// slows the caller down: that is the point.
    ///
    /// [`Handler::request`]: crate::Handler::request
    pub fn hold(&mut self, token: &mut Token) -> bool {
        if let (None, Some(span)) = (token.answering.lease, token.span)
            && let Some(live) = self.live(token.peer())
            && live.connection.batches_in() == span.batch
        {
            token.answering.lease = live.connection.hold();
        }
        token.answering.lease.is_some()
    }

    /// Copies the body of a held request. The peer can write the ring, so a hostile peer can change
    /// the body between two copies: validate the copy that is used. Returns `false`, and copies
    /// nothing, if the request is not held.
    pub fn held_body(&mut self, token: &Token, to: &mut Vec<u8>) -> bool {
        let (Some(_), Some(span)) = (token.answering.lease, token.span) else { return false };
        let Some(peer) = self.peer(token.peer()) else { return false };
        let BodySpan { offset_bytes, len_bytes, .. } = span;
        to.resize(len_bytes, 0);
        peer.ring.read(offset_bytes, to);
        true
    }

    /// Ends the hold of a request that is still to be answered.
    pub fn release(&mut self, token: &mut Token) {
        self.end_lease(token.peer(), token.answering.lease.take());
    }

    pub(super) fn end_lease(&mut self, peer: PeerId, lease: Option<Lease>) {
        let now_ns = self.now_ns();
        if let (Some(lease), Some(live)) = (lease, self.live(peer)) {
            live.connection.end_lease(lease, now_ns);
            self.peers.mark_timed(peer);
        }
    }
}
