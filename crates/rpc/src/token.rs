//! The obligation to answer a request once.

use std::{cell::RefCell, rc::Rc};

use proto::copyrpc::RequestId;

use crate::PeerId;

/// Where tokens leave word that they were dropped.
pub(crate) type Dropped = Rc<RefCell<Vec<(PeerId, RequestId)>>>;

/// A request that is to be answered: pass it to [`Worker::reply`](crate::Worker::reply).
///
/// Dropping it tells the caller that there is no answer. It cannot be copied, so a request is
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
    pub(crate) peer: PeerId,
    pub(crate) request: RequestId,
    /// `None` once it was answered.
    dropped: Option<Dropped>,
}

impl Token {
    pub(crate) fn new(peer: PeerId, request: RequestId, dropped: &Dropped) -> Self {
        Self { peer, request, dropped: Some(Rc::clone(dropped)) }
    }

    /// Who waits for the answer.
    #[must_use]
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    pub(crate) fn redeem(mut self) -> (PeerId, RequestId) {
        self.dropped = None;
        (self.peer, self.request)
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        if let Some(dropped) = self.dropped.take() {
            dropped.borrow_mut().push((self.peer, self.request));
        }
    }
}
