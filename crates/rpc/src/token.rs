//! The obligation to answer a request once.

use core::mem::ManuallyDrop;
use std::{cell::RefCell, rc::Rc};

use proto::{
    Status,
    copyrpc::{Lease, RequestId},
};

use crate::PeerId;

/// Where tokens leave word that they were dropped.
pub(crate) type Dropped = Rc<RefCell<Vec<(Answering, Status)>>>;

/// What a token stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answering {
    pub(crate) peer: PeerId,
    pub(crate) request: RequestId,
    /// Keeps the request's bytes in the ring.
    pub(crate) lease: Option<Lease>,
}

/// Where a request's body lies in the ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) offset_bytes: usize,
    pub(crate) len_bytes: usize,
    /// Of how many batches its own is the last.
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
    pub(crate) place: Option<Place>,
    /// `None` once it was answered.
    dropped: Option<Dropped>,
}

impl Token {
    pub(crate) fn new(
        peer: PeerId,
        request: RequestId,
        place: Option<Place>,
        dropped: &Dropped,
    ) -> Self {
        let answering = Answering { peer, request, lease: None };
        Self { answering, place, dropped: Some(Rc::clone(dropped)) }
    }

    /// Who waits for the answer.
    #[must_use]
    pub fn peer(&self) -> PeerId {
        self.answering.peer
    }

    /// Whether this is where it leaves word.
    pub(crate) fn is_of(&self, dropped: &Dropped) -> bool {
        self.dropped.as_ref().is_some_and(|ours| Rc::ptr_eq(ours, dropped))
    }

    /// What is answered needs no drop, and what is not dropped need not be in memory.
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
            dropped.borrow_mut().push((self.answering, status));
        }
    }
}
