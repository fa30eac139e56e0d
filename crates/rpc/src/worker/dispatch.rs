//! The messages of a batch, one by one, and what becomes of the rest when a callback panics.
//!
//! A callback that panics ends the poll, and the panic goes on to the program. If that catches it, the
//! next poll goes on behind the message that was being handled, so nothing is lost or handled twice.

use core::mem::ManuallyDrop;

use proto::copyrpc::{Messages, Sort, Violation};
use verbs::Nic;

use super::Worker;
use crate::{Handler, PeerId, Request, Token, token::Place};

/// Messages of a batch that were not handled, because a callback panicked.
pub(super) struct Rest {
    peer: PeerId,
    bytes: Vec<u8>,
    count: u16,
    offset_bytes: usize,
}

/// A batch that is being handled. It is dropped only if a callback panics.
struct Dispatch<'w, 'm, N: Nic> {
    worker: &'w mut Worker<N>,
    peer: PeerId,
    /// All of them: what the loop goes over is a copy, which need not be in memory.
    messages: Messages<'m>,
    /// Those that callbacks were told of, or are being told.
    taken: u16,
    /// What is added to the address of a byte of the messages to get its offset in the ring.
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
        let (now_ns, mut handled) = (worker.now_ns, 0);
        while let Some(message) = messages.following() {
            self.taken = messages.taken();
            if self.taken == second_half {
                worker.flush_early(id);
            }
            // A callback may have closed the connection.
            let Some(live) = worker.live(id) else { return Ok(handled) };
            match message.sort() {
                Sort::Request => {
                    let request = live.connection.take_request(&message)?;
                    let batch = live.connection.batches_in();
                    let (body, method) = (message.body(), message.method());
                    let offset_bytes = body.as_ptr().addr().wrapping_add(origin);
                    let place = Place { offset_bytes, len_bytes: body.len(), batch };
                    let token = Token::new(id, request, Some(place), &worker.dropped);
                    let timeout_us = message.timeout_us();
                    handler.request(worker, Request { token, method, body, timeout_us });
                    handled += 1;
                }
                Sort::Response => {
                    let ended = live.connection.take_response(&message)?;
                    live.answered(message.call());
                    if let Some((cookie, status)) = ended {
                        handler.response(worker, cookie, status, message.body());
                        handled += 1;
                    }
                }
                Sort::Other => {
                    let incoming = live.connection.message(&message)?;
                    worker.take_rare(id, incoming);
                }
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
        self.worker.interrupted = Some(Box::new(rest));
        // The copy that the messages lie in is being dropped too.
        self.worker.scratch = vec![0; self.worker.geometry.batch_bytes_max()].into();
    }
}

impl<N: Nic> Worker<N> {
    /// Handles messages that lie in a ring from `offset_bytes` on, and returns how many. What was
    /// answered before the one that is the `second_half`th is posted early.
    #[inline(always)]
    pub(super) fn dispatch<H: Handler<N> + ?Sized>(
        &mut self,
        peer: PeerId,
        messages: Messages<'_>,
        (offset_bytes, second_half): (usize, u16),
        handler: &mut H,
    ) -> Result<usize, Violation> {
        let origin = offset_bytes.wrapping_sub(messages.rest().0.as_ptr().addr());
        let mut dispatch = Dispatch { worker: self, peer, messages, taken: 0, origin };
        let outcome = dispatch.run(second_half, handler);
        let _undropped = ManuallyDrop::new(dispatch);
        outcome
    }

    /// Goes on where a callback panicked; returns how many messages were handled.
    #[cold]
    pub(super) fn resume<H: Handler<N> + ?Sized>(&mut self, handler: &mut H) -> usize {
        let Some(rest) = self.interrupted.take() else { return 0 };
        let messages = Messages::resumed(&rest.bytes, rest.count);
        let outcome = self.dispatch(rest.peer, messages, (rest.offset_bytes, 0), handler);
        self.conclude(rest.peer, outcome)
    }
}
