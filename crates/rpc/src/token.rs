//! The obligation to answer a request once.

use core::mem::ManuallyDrop;
use std::{cell::RefCell, rc::Rc};

use proto::{
    Status,
    copyrpc::{Lease, RequestId},
};

use crate::PeerId;

/// Tokens of a worker that were dropped. Each token has a handle of the list.
#[derive(Clone, Debug, Default)]
pub(crate) struct DroppedTokens(Rc<RefCell<Vec<DroppedToken>>>);

/// A token that was dropped, and the status that its request is answered with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DroppedToken {
    pub(crate) answering: Answering,
    pub(crate) status: Status,
}

impl DroppedTokens {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    pub(crate) fn take(&self) -> Vec<DroppedToken> {
        self.0.take()
    }
}

/// The request that a token obliges to answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answering {
    pub(crate) peer: PeerId,
    pub(crate) request: RequestId,
    /// The method that was called.
    pub(crate) method: u16,
    /// Keeps the request's bytes in the ring.
    pub(crate) lease: Option<Lease>,
    /// There is memory for its answer, which is being written.
    pub(crate) is_begun: bool,
}

/// The span of the ring that a request's body lies in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodySpan {
    pub(crate) offset_bytes: usize,
    pub(crate) len_bytes: usize,
    /// Number of the batch that the request came in.
    pub(crate) batch: u64,
}

/// A request that is to be answered: pass it to [`Worker::reply`](crate::Worker::reply).
///
/// Dropping it tells the caller that there is no answer ([`Status::Unknown`]), or that the program failed
/// ([`Status::Internal`]) if a panic drops it. It cannot be copied, so a request is
/// answered once:
///
/// ```compile_fail
/// fn twice<N: verbs::Nic>(worker: &mut copyrpc_rpc::Worker<N>, token: copyrpc_rpc::Token) {
///     worker.reply(token, copyrpc_rpc::Status::Ok, b"once");
///     worker.reply(token, copyrpc_rpc::Status::Ok, b"twice");
/// }
/// ```
#[derive(Debug)]
#[must_use = "dropping a token tells the caller that there is no answer"]
pub struct Token {
    pub(crate) answering: Answering,
    /// `None`: the body does not lie in the ring.
    pub(crate) span: Option<BodySpan>,
    /// `None` once it was answered.
    dropped: Option<DroppedTokens>,
}

impl Token {
    pub(crate) fn new(
        peer: PeerId,
        (request, method): (RequestId, u16),
        span: Option<BodySpan>,
        dropped: &DroppedTokens,
    ) -> Self {
        let answering = Answering { peer, request, method, lease: None, is_begun: false };
        Self { answering, span, dropped: Some(dropped.clone()) }
    }

    /// The peer that waits for the answer.
    #[must_use]
    pub fn peer(&self) -> PeerId {
        self.answering.peer
    }

    /// The name of the request at its peer.
    #[inline]
    #[must_use]
    pub fn request(&self) -> RequestId {
        self.answering.request
    }

    /// Whether the worker with this list gave the token.
    pub(crate) fn is_of(&self, dropped: &DroppedTokens) -> bool {
        self.dropped.as_ref().is_some_and(|ours| Rc::ptr_eq(&ours.0, &dropped.0))
    }

    /// Takes the obligation without the drop, so that the token need not be in memory.
    #[inline(always)]
    pub(crate) fn redeem(self) -> Answering {
        let mut token = ManuallyDrop::new(self);
        token.dropped = None;
        token.answering
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        if let Some(dropped) = self.dropped.take() {
            let status = if std::thread::panicking() { Status::Internal } else { Status::Unknown };
            dropped.0.borrow_mut().push(DroppedToken { answering: self.answering, status });
        }
    }
}
