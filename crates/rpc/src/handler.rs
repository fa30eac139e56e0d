//! Callbacks of a program: requests, ends of calls, ends of connections.

use std::borrow::Cow;

use proto::{Status, copyrpc::RequestId};
use verbs::Nic;

use crate::{Account, BodyPiece, CloseReason, LandedBody, PeerId, Token, Worker};

/// A request as it arrived, besides its body.
#[derive(Debug)]
pub struct Request {
    /// The obligation to answer, now or later.
    pub token: Token,
    /// The method.
    pub method: u16,
    /// Time that the caller will wait, counted from when it made the call.
    pub timeout_us: u32,
}

/// The bytes of a request or an answer: their place and their owner.
#[derive(Debug)]
pub enum Body<'a, N: Nic> {
    /// A private copy of the worker's, valid during the callback.
    Copied(&'a [u8]),
    /// A private copy of what came by rendezvous. The handler may take its memory, and
    /// [give it back](Worker::keep_memory) later; otherwise the worker keeps it.
    Owned(&'a mut Vec<u8>),
    /// The handler's, where the NIC put what came by rendezvous.
    Landed(LandedBody<N>),
}

impl<N: Nic> Body<'_, N> {
    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        match self {
            Self::Copied(bytes) => bytes.len(),
            Self::Owned(memory) => memory.len(),
            Self::Landed(landed) => landed.len_bytes(),
        }
    }

    /// The bytes. Only those of a body that has [landed](Self::Landed) are copied.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        match self {
            Self::Copied(bytes) => Cow::Borrowed(bytes),
            Self::Owned(memory) => Cow::Borrowed(memory),
            Self::Landed(landed) => {
                let mut copy = vec![0; landed.len_bytes()];
                landed.copy_to(0, &mut copy);
                Cow::Owned(copy)
            }
        }
    }
}

/// The end of a call, or of an access to a peer's memory.
#[derive(Debug)]
pub enum CallEnd<'a, N: Nic> {
    /// The peer answered, with any status that its handler chose. The body is empty unless that sent some. An access
    /// that succeeded ends with [`Status::Ok`] and no body.
    Answered(Status, Body<'a, N>),
    /// The peer answered with [`Status::Ok`] and this many bytes, and the handler was given each
    /// [piece](Handler::piece) of them.
    InPieces(usize),
    /// No answer: the call met its deadline, was cancelled, or lost its connection.
    Unanswered(Status),
}

impl<N: Nic> CallEnd<'_, N> {
    /// The status of the answer, or the reason why there is none.
    #[inline]
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            Self::Answered(status, _) | Self::Unanswered(status) => *status,
            Self::InPieces(_) => Status::Ok,
        }
    }

    /// The [bytes](Body::bytes) of the answer; none without one, and none if pieces of it were given.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        match self {
            Self::Answered(_, body) => body.bytes(),
            Self::InPieces(_) | Self::Unanswered(_) => Cow::Borrowed(&[]),
        }
    }
}

/// A body that is to be fetched by rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetch {
    /// That of a request: the method, and the length in bytes.
    Request(u16, usize),
    /// That of an answer: the cookie that the call was made with, and the length in bytes.
    Answer(u64, usize),
}

/// The form in which a fetched body reaches a handler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyForm {
    /// [`Body::Owned`].
    #[default]
    Owned,
    /// [`Body::Landed`]: there is no private copy.
    Landed,
    /// Each [piece](Handler::piece) as it arrives: there is no private copy. A request comes [owned](Self::Owned) instead.
    Pieces,
}

/// The answer to [`Handler::wants`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivery {
    /// The form of the body.
    pub form: BodyForm,
    /// The owner of the memory that the body takes until it is delivered. That of a request counts for its method, too.
    pub account: Account,
}

/// Callbacks of [`Worker::poll`].
///
/// They get the worker, so they may call, reply, cancel and close from inside. A poll from inside a
/// callback does nothing and returns 0. If a callback panics, so does the poll; a program that catches
/// that may go on polling: nothing else is lost, and a request whose token the panic dropped is answered
/// with [`Status::Internal`].
///
/// A hot handler has `#[inline(always)]` on [`request`](Self::request) and [`ended`](Self::ended): the body then has one
/// form at each place of the worker, with nothing to match or to drop, which saves 8 % of the instructions of a call
/// (`cargo bench -p copyrpc-rpc --bench cost`, `--shape 1`: 944 instead of 1026).
///
/// A handler without the callbacks that have defaults gets each request and each answer all the same.
pub trait Handler<N: Nic> {
    /// A peer asks. To answer later, keep the token.
    fn request(&mut self, worker: &mut Worker<N>, request: Request, body: Body<'_, N>);

    /// A call has ended: `cookie` is what it was made with.
    fn ended(&mut self, worker: &mut Worker<N>, cookie: u64, end: CallEnd<'_, N>);

    /// A body is about to be fetched, and needs memory.
    fn wants(&mut self, fetch: Fetch) -> Delivery {
        let _ = fetch;
        Delivery::default()
    }

    /// A piece of an answer has arrived. None comes after the call has ended, and none to a handler that
    /// [wants](Self::wants) no pieces.
    fn piece(&mut self, cookie: u64, piece: &BodyPiece<'_, N>) {
        unreachable!("a handler that wants pieces has no place for {piece:?} of call {cookie}");
    }

    /// The caller of a request does not wait for the answer any more (rule C5.5). It is still to be
    /// answered, and how no longer matters: at once, if nothing else is lost by it, for until then the
    /// call keeps its slot and the room for its answer. The request is the one whose token
    /// [tells](crate::Token::request) this name.
    fn cancelled(&mut self, worker: &mut Worker<N>, peer: PeerId, request: RequestId) {
        let _ = (worker, peer, request);
    }

    /// A connection has ended. Its calls end too, each [unanswered](CallEnd::Unanswered).
    fn closed(&mut self, worker: &mut Worker<N>, peer: PeerId, reason: CloseReason) {
        let _ = (worker, peer, reason);
    }

    /// All that arrived is handled, and batches are about to be posted: for programs that time the
    /// parts of a poll.
    #[inline]
    fn posting(&mut self) {}
}
