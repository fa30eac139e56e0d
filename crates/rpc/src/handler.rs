//! Callbacks of a program: requests, responses, ends of connections.

use proto::{Status, copyrpc::RequestId};
use verbs::Nic;

use crate::{Account, BodyPiece, CloseReason, LandedBody, PeerId, Token, Worker};

/// A request as it arrived.
#[derive(Debug)]
pub struct Request<'a> {
    /// The obligation to answer, now or later.
    pub token: Token,
    /// The method.
    pub method: u16,
    /// Its body: a private copy, valid during the callback.
    pub body: &'a [u8],
    /// Time that the caller will wait, counted from when it made the call.
    pub timeout_us: u32,
}

/// Callbacks of [`Worker::poll`].
///
/// They get the worker, so they may call, reply, cancel and close from inside. A poll from inside a
/// callback does nothing and returns 0. If a callback panics, so does the poll; a program that catches
/// that may go on polling: nothing else is lost, and a request whose token the panic dropped is answered
/// with [`Status::Internal`].
pub trait Handler<N: Nic> {
    /// A peer asks. To answer later, keep the token.
    fn request(&mut self, worker: &mut Worker<N>, request: Request<'_>);

    /// As [`request`](Self::request), of a request whose body came by rendezvous: it is all of `body`, whose memory the
    /// handler may take, and that of `request` is empty.
    fn large_request(&mut self, worker: &mut Worker<N>, request: Request<'_>, body: &mut Vec<u8>) {
        self.request(worker, Request { body, ..request });
    }

    /// Whether a request of this method, whose `len_bytes` come by rendezvous, is to be told by
    /// [`landed_request`](Self::landed_request), and so without a private copy.
    fn keeps_landed(&self, method: u16, len_bytes: usize) -> bool {
        let _ = (method, len_bytes);
        false
    }

    /// As [`large_request`](Self::large_request), of a request that this handler
    /// [keeps](Self::keeps_landed) where its body landed.
    fn landed_request(
        &mut self,
        worker: &mut Worker<N>,
        request: Request<'_>,
        landed: LandedBody<N>,
    ) {
        let mut body = vec![0; landed.len_bytes()];
        landed.copy_to(0, &mut body);
        drop(landed);
        self.large_request(worker, request, &mut body);
    }

    /// A call has ended: `cookie` is what it was made with. `body` is empty unless a handler sent
    /// some. A handler may answer with any status, so the status alone does not tell whether one did.
    fn response(&mut self, worker: &mut Worker<N>, cookie: u64, status: Status, body: &[u8]);

    /// As [`response`](Self::response), of a success whose body came by rendezvous: it is all of `body`, whose memory
    /// the handler may take.
    fn large_response(&mut self, worker: &mut Worker<N>, cookie: u64, body: &mut Vec<u8>) {
        self.response(worker, cookie, Status::Ok, body);
    }

    /// A call has ended without an answer: it met its deadline, was cancelled, or its connection ended.
    /// For programs that tell that from a peer which answers with the same status; others get it as a
    /// [`response`](Self::response) without a body.
    fn ended(&mut self, worker: &mut Worker<N>, cookie: u64, status: Status) {
        self.response(worker, cookie, status, &[]);
    }

    /// The caller of a request does not wait for the answer any more (rule C5.5). It is still to be
    /// answered, and how no longer matters: at once, if nothing else is lost by it, for until then the
    /// call keeps its slot and the room for its answer. The request is the one whose token
    /// [tells](crate::Token::request) this name.
    fn cancelled(&mut self, worker: &mut Worker<N>, peer: PeerId, request: RequestId) {
        let _ = (worker, peer, request);
    }

    /// Whom the answer to a call is for, which comes by rendezvous and needs memory. Otherwise it counts for
    /// the peer.
    fn account(&self, cookie: u64) -> Account {
        let _ = cookie;
        Account::default()
    }

    /// Whether the answer to a call, `len_bytes` that come by rendezvous, is to be told by
    /// [`piece`](Self::piece) while it arrives, and so without a private copy of the whole.
    fn takes_pieces(&self, cookie: u64, len_bytes: usize) -> bool {
        let _ = (cookie, len_bytes);
        false
    }

    /// A piece of an answer has arrived which this handler [takes](Self::takes_pieces) so. None comes after the
    /// call has ended.
    fn piece(&mut self, cookie: u64, piece: &BodyPiece<'_, N>) {
        let _ = (cookie, piece);
    }

    /// A call has ended with [`Status::Ok`], and this handler was told all pieces of its answer.
    fn response_in_pieces(&mut self, worker: &mut Worker<N>, cookie: u64, len_bytes: usize) {
        let _ = (worker, cookie, len_bytes);
    }

    /// A connection has ended. Its calls end too, each by [`ended`](Self::ended).
    fn closed(&mut self, worker: &mut Worker<N>, peer: PeerId, reason: CloseReason) {
        let _ = (worker, peer, reason);
    }

    /// All that arrived is handled, and batches are about to be posted: for programs that time the
    /// parts of a poll.
    #[inline]
    fn posting(&mut self) {}
}
