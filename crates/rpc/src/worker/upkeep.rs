//! Deadlines, credit and keepalive by time; events of the NIC; telling the handler of ends.

use proto::Status;
use verbs::{AsyncEvent, Nic};

use super::{
    Worker,
    notices::{ClosedPeer, EndedCall},
};
use crate::{
    CallEnd, CloseReason, Handler, NicFailure, PeerId,
    peer::{Peer, PeerState},
};

impl<N: Nic> Worker<N> {
    /// Does what is due by time, several times a millisecond.
    pub(super) fn look_at_timers(&mut self) {
        self.poll_events();
        self.send.drop_retired();
        self.receive.top_up();
        let mut index = 0;
        while let Some(id) = self.peers.timed_at(index) {
            if self.look_at(id) {
                index += 1;
            } else {
                self.peers.untime_at(index);
            }
        }
        self.probe_silent_peers();
        if self.now_ns() >= self.timers.release_ns() {
            self.release_idle_memory();
        }
    }

    /// Gives one region of memory for bodies back that nobody used for a while: each costs the loop as long
    /// as the NIC takes to forget it. When there is none any more, it is the turn of the memory of private copies.
    #[cold]
    fn release_idle_memory(&mut self) {
        let Self { landing, peers, .. } = self;
        let mut is_more = landing.release_idle();
        if !is_more {
            let release = |peer: &mut Peer<N>| {
                peer.live().is_some_and(|live| live.bodies.pool().release_idle())
            };
            is_more = peers.visit_live_from(0, |_, peer| !release(peer)).is_some();
        }
        if !is_more && self.budget.memory().registered_bytes == 0 {
            is_more = self.transfers.spares.forget_one();
        }
        self.timers.released(is_more);
    }

    /// Gives all regions back that hold no body now.
    #[cold]
    pub(super) fn release_unused_memory(&mut self) {
        self.landing.release_unused(0);
        self.peers.visit_live_from(0, |_, peer| {
            if let Some(live) = peer.live() {
                live.bodies.pool().release_unused(0);
            }
            true
        });
    }

    /// Takes the NIC's asynchronous events.
    fn poll_events(&mut self) {
        for _ in 0..self.config().poll_budget {
            let Some(event) = self.nic().poll_event() else { break };
            match event {
                AsyncEvent::PeerGone(lid) => {
                    let is_gone = |peer: &Peer<N>| peer.lid() == Some(lid);
                    for id in self.peers.live_where(is_gone) {
                        self.end(id, CloseReason::PeerGone(lid));
                    }
                }
                AsyncEvent::QpFatal(qpn) => {
                    let slot = self.send.index_of(qpn).filter(|_| !self.resources.is_dc());
                    if let Some(id) = slot.and_then(|slot| self.peers.occupant(slot)) {
                        self.end(id, CloseReason::QueuePair);
                    }
                }
                AsyncEvent::NoMemory(shortage) => {
                    self.stats.shortages += 1;
                    let is_short = |peer: &Peer<N>| peer.lid() == Some(shortage.peer);
                    let short = self.peers.live_where(is_short);
                    if short.is_empty() {
                        tracing::warn!(%shortage, "a peer is not reached");
                    }
                    short.into_iter().for_each(|id| self.end(id, CloseReason::NoMemory(shortage)));
                }
                AsyncEvent::CqOverrun(cqn) => self.nic_failed(NicFailure::CqOverrun(cqn)),
                AsyncEvent::DeviceFatal => self.nic_failed(NicFailure::Device),
                // Follows the end of a queue pair, which was told.
                AsyncEvent::LastWqeReached(_) => {}
                event => tracing::warn!(?event, "the NIC reports an event"),
            }
        }
    }

    #[cold]
    fn nic_failed(&mut self, failure: NicFailure) {
        if self.nic_failure.is_none() {
            tracing::error!(%failure, "the worker is of no more use");
            self.nic_failure = Some(failure);
        }
    }

    /// Does what is due to a peer by now. Returns whether something may become due later.
    fn look_at(&mut self, id: PeerId) -> bool {
        let is_dirty = self.peers.is_dirty(id);
        let Self { peers, notices, timers, .. } = self;
        let now_ns = timers.now_ns();
        let Some(peer) = peers.get(id) else { return false };
        let Peer { state: PeerState::Live(live), ring, .. } = peer else { return false };
        if live.connection.awaits_credit()
            && let Err(violation) = live.read_credit(ring, now_ns)
        {
            self.end(id, CloseReason::Violation(violation));
            return false;
        }
        let connection = &mut live.connection;
        connection.expire(now_ns, |cookie| notices.call_ended(cookie, Status::DeadlineExceeded));
        let is_idle = connection.is_idle() && !is_dirty;
        if connection.has_gathered() || connection.credit_due(now_ns).is_some() {
            peers.mark_dirty(id);
        }
        !is_idle
    }

    /// Asks the NICs of peers that nothing came from for an interval whether they are still there. A look
    /// asks as many as a poll handles completions, so that none takes long.
    fn probe_silent_peers(&mut self) {
        let Some(slot) = self.keepalive.begin(self.now_ns()) else { return };
        let mut left = self.config().poll_budget;
        let mut silent = Vec::new();
        let next = self.peers.visit_live_from(slot, |id, peer| {
            if peer.live().is_some_and(|live| live.is_silent()) {
                silent.push(id);
            }
            left -= 1;
            left > 0
        });
        self.keepalive.go_on(next);
        for id in silent {
            self.post_probe(id);
        }
    }

    /// Tells of calls and connections that ended otherwise than by a message.
    pub(super) fn tell_notices<H: Handler<N> + ?Sized>(&mut self, handler: &mut H) -> usize {
        let counts = self.notices.counts();
        for _ in 0..counts.calls {
            let Some(EndedCall { cookie, status }) = self.notices.next_call() else { break };
            handler.ended(self, cookie, CallEnd::Unanswered(status));
        }
        for _ in 0..counts.peers {
            let Some(ClosedPeer { peer, reason }) = self.notices.next_peer() else { break };
            handler.closed(self, peer, reason);
        }
        counts.calls + counts.peers
    }
}
