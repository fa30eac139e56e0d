//! The messages of a batch, one by one, and what becomes of the rest when a callback panics.
//!
//! A callback that panics ends the poll, and the panic goes on to the program. If that catches it, the
//! next poll goes on behind the message that was being handled, so nothing is lost or handled twice.

use core::mem::ManuallyDrop;

use proto::copyrpc::{Incoming, Messages, Rare, Violation};
use verbs::Nic;

use super::{Worker, receive::Rest};
use crate::{Body, CallEnd, Handler, PeerId, Request, Token, token::BodySpan};

/// A batch that is being handled. It is dropped only if a callback panics.
struct Dispatch<'w, 'm, N: Nic> {
    worker: &'w mut Worker<N>,
    peer: PeerId,
    /// All messages: what the loop goes over is a copy, which need not be in memory.
    messages: Messages<'m>,
    /// Messages that callbacks were told of, or are being told.
    taken: u16,
    /// Difference between a byte's offset in the ring and its address in the private copy.
    origin: usize,
}

impl<N: Nic> Dispatch<'_, '_, N> {
    #[inline(always)]
    fn run<H: Handler<N> + ?Sized>(
        &mut self,
        second_half: u16,
        handler: &mut H,
    ) -> Result<usize, Violation> {
        let (id, origin, mut messages) = (self.peer, self.origin, self.messages.clone());
        let worker = &mut *self.worker;
        let (now_ns, mut handled) = (worker.now_ns(), 0);
        while let Some(message) = messages.following() {
            self.taken = messages.taken();
            if self.taken == second_half {
                worker.flush_early(id);
            }
            // A callback may have closed the connection.
            let Some(live) = worker.live(id) else { return Ok(handled) };
            match live.connection.message(&message)? {
                Incoming::Request { id: request, method, timeout_us, body } => {
                    let batch = live.connection.batches_in();
                    let offset_bytes = body.as_ptr().addr().wrapping_add(origin);
                    let span = BodySpan { offset_bytes, len_bytes: body.len(), batch };
                    let token = Token::new(id, (request, method), Some(span), &worker.tokens);
                    let request = Request { token, method, timeout_us };
                    handler.request(worker, request, Body::Copied(body));
                    handled += 1;
                }
                Incoming::Response { call, cookie, status, body } => {
                    live.bodies.answered(call);
                    let end = CallEnd::Answered(status, Body::Copied(body));
                    handler.ended(worker, cookie, end);
                    handled += 1;
                }
                Incoming::Rare(Rare::Cancelled(request)) => handler.cancelled(worker, id, request),
                Incoming::Rare(rare) => worker.take_rare(id, rare, handler),
            }
        }
        messages.end()?;
        if let Some(live) = worker.live(id) {
            live.connection.close_batch(now_ns);
        }
        Ok(handled)
    }
}

impl<N: Nic> Drop for Dispatch<'_, '_, N> {
    fn drop(&mut self) {
        let mut rest = self.messages.clone();
        rest.by_ref().take(self.taken.into()).for_each(|_| {});
        let (bytes, count) = rest.rest();
        let offset_bytes = bytes.as_ptr().addr().wrapping_add(self.origin);
        let rest = Rest { peer: self.peer, bytes: bytes.to_vec(), count, offset_bytes };
        self.worker.receive.interrupt(rest);
    }
}

/// The messages of a batch that are to be handled.
pub(super) struct Pending<'m> {
    pub(super) messages: Messages<'m>,
    /// Their offset in the ring.
    pub(super) offset_bytes: usize,
    /// Number of the message, counted from 1, before which the answers so far are posted; 0: of none.
    pub(super) second_half: u16,
}

impl<N: Nic> Worker<N> {
    /// Handles messages of a peer, and returns how many.
    #[inline(always)]
    pub(super) fn dispatch<H: Handler<N> + ?Sized>(
        &mut self,
        peer: PeerId,
        pending: Pending<'_>,
        handler: &mut H,
    ) -> Result<usize, Violation> {
        let Pending { messages, offset_bytes, second_half } = pending;
        let origin = offset_bytes.wrapping_sub(messages.rest().0.as_ptr().addr());
        let mut dispatch = Dispatch { worker: self, peer, messages, taken: 0, origin };
        let outcome = dispatch.run(second_half, handler);
        let _undropped = ManuallyDrop::new(dispatch);
        outcome
    }

    /// Goes on where a callback panicked; returns how many messages were handled.
    #[cold]
    pub(super) fn resume<H: Handler<N> + ?Sized>(&mut self, handler: &mut H) -> usize {
        let Some(rest) = self.receive.take_rest() else { return 0 };
        let Rest { peer, bytes, count, offset_bytes } = *rest;
        let messages = Messages::resumed(&bytes, count);
        let pending = Pending { messages, offset_bytes, second_half: 0 };
        let outcome = self.dispatch(peer, pending, handler);
        self.conclude(peer, outcome)
    }
}
