//! Completions of sends.

use std::collections::VecDeque;

use verbs::{Completion, Nic, Transition, WcFailure};

use super::Worker;
use crate::{
    CloseReason, Handler,
    queue::{Queue, What, Work},
};

impl<N: Nic> Worker<N> {
    /// Returns how many transfers have ended.
    pub(super) fn poll_sends<H: Handler<N> + ?Sized>(&mut self, handler: &mut H) -> usize {
        let mut handled = 0;
        for _ in 0..self.config().poll_budget {
            let Some(completion) = self.send.poll() else { break };
            if let Some(failure) = completion.failure {
                self.send_failed(&completion, failure);
            } else {
                self.send_finished(&completion);
            }
        }
        if !self.transfers.is_empty() {
            self.take_pieces(handler);
        }
        for _ in 0..self.transfers.ended_len() {
            let Some(key) = self.transfers.next_ended() else { break };
            self.transferred(key, handler);
            handled += 1;
        }
        if self.transfers.unposted_len() > 0 {
            self.post_transfers();
        }
        handled
    }

    /// Copies the pieces of bodies that have arrived, or tells them, while the NIC moves those behind them.
    #[cold]
    fn take_pieces<H: Handler<N> + ?Sized>(&mut self, handler: &mut H) {
        if !self.transfers.has_arrivals() {
            return self.transfers.count_poll_in_vain();
        }
        self.post_transfers();
        self.send.ring_all();
        let Self { transfers, peers, .. } = self;
        while let Some(told) = transfers.take_arrival() {
            let Some((peer, call, piece)) = told else { continue };
            // Nobody is told of a call that has ended.
            let cookie = peers.live(peer).and_then(|live| live.connection.fetching(call));
            if let Some(cookie) = cookie {
                handler.piece(cookie, &piece);
            }
        }
    }

    #[inline]
    fn send_finished(&mut self, completion: &Completion) {
        let Self { peers, send, transfers, window, timers, .. } = self;
        let Some(index) = send.index_of(completion.qpn) else { return };
        let Some(queue) = send.queue(index) else { return };
        queue.retire(completion);
        while let Some(work) = queue.finish() {
            match work.what {
                What::Batch(batch) => {
                    if let Some(window) = window {
                        window.ended(batch.posted_ns);
                    }
                    if let Some(live) = peers.live(work.peer) {
                        live.connection.finished(batch.number);
                    }
                }
                What::Piece(piece) => transfers.finished(piece),
                What::Credit => {
                    if let Some(live) = peers.live(work.peer) {
                        live.connection.credit_arrived();
                        if live.connection.credit_due(timers.now_ns()).is_some() {
                            peers.mark_dirty(work.peer);
                        }
                        peers.mark_timed(work.peer);
                    }
                }
            }
            if Queue::<N>::is_last(&work, completion.wqe) {
                return;
            }
        }
    }

    fn send_failed(&mut self, completion: &Completion, failure: WcFailure) {
        let Self { send, transfers, peers, .. } = self;
        let Some(index) = send.index_of(completion.qpn) else { return };
        let Some(queue) = send.queue(index) else { return };
        queue.retire(completion);
        let mut failed = None;
        while let Some(work) = queue.finish() {
            if Queue::<N>::is_last(&work, completion.wqe) {
                failed = Some(work);
                break;
            }
            if let What::Piece(piece) = work.what {
                transfers.finished(piece);
            }
        }
        // On RC the queue pair serves one peer only, even if its request cannot be told.
        let peer = failed.map(|work| work.peer).or_else(|| peers.occupant(index));
        if let Some(Work { what: What::Piece(piece), .. }) = failed {
            // The queue pair is in an error state, so it starts no other piece either.
            self.abandon(piece.transfer);
        }
        if let Some(peer) = peer {
            self.end(peer, CloseReason::Failed(failure));
        }
        if self.resources.is_dc() {
            self.restart_initiator(index);
        }
    }

    /// An initiator that failed for one peer goes on for the others: what it had not started is
    /// posted again.
    fn restart_initiator(&mut self, index: u16) {
        let Self { send, resources, .. } = self;
        let Some(queue) = send.queue(index) else { return };
        let left = queue.reset();
        let restarted =
            queue.modify(&Transition::Reset).and_then(|()| resources.start_initiator(queue));
        if let Err(error) = restarted {
            tracing::error!(%error, "cannot restart an initiator");
            return self.lose_initiator(index, left);
        }
        for work in left {
            if let What::Piece(piece) = work.what {
                self.transfer_again(piece);
            } else if let Err(error) = self.post_again(index, &work) {
                tracing::warn!(peer = work.peer.slot(), %error, "cannot post a batch again");
                self.end(work.peer, CloseReason::QueuePair);
            }
        }
    }

    /// Ends the connections of an initiator that failed for good. The next connection makes another one.
    #[cold]
    fn lose_initiator(&mut self, index: u16, left: VecDeque<Work>) {
        // The queue pair goes before the memory that its requests use.
        drop(self.send.take(index));
        for work in left {
            if let What::Piece(piece) = work.what {
                self.abandon(piece.transfer);
            }
        }
        for id in self.peers.live_where(|peer| peer.queue == index) {
            self.end(id, CloseReason::QueuePair);
        }
    }
}
