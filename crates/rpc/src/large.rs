//! Registered memory for bodies that do not fit the ring.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    rc::Rc,
};

use proto::copyrpc::{CallId, Large, RequestId};
use verbs::{Access, Nic};

use crate::{
    Config,
    partial_calls::BodyNumber,
    pool::{Budget, Buffer, NoBuffer, Pool, Purchase},
};

/// Address, key and length that the peer needs to fetch a body.
pub(crate) fn large<N: Nic>(body: &Buffer<N>) -> Large {
    let (remote, whole) = (body.remote(), body.sge(0, body.len_bytes()));
    Large { addr: remote.addr, rkey: remote.rkey.get(), len_bytes: whole.len_bytes }
}

/// Bodies that one peer reads, in regions of its own: a key that a peer was told must never reach the data of
/// another.
pub(crate) struct LargeBodies<N: Nic> {
    lent: Pool<N>,
    /// Bodies of calls: the peer reads them until it answers. Ordered, so that they are given up in the
    /// same order in every run.
    lent_requests: BTreeMap<CallId, Buffer<N>>,
    /// Bodies of answers: the peer reads them until it releases them.
    lent_responses: BTreeMap<RequestId, Buffer<N>>,
    /// Bodies of answers that are being written: the peer does not know of them.
    begun_responses: BTreeMap<RequestId, Buffer<N>>,
    /// Bodies of calls that are being written: the peer does not know of them.
    begun_requests: BTreeMap<BodyNumber, Buffer<N>>,
    /// How many were ever begun.
    begun: BodyNumber,
    /// Where programs write bodies, before they are copied to a buffer: it has seen no other peer's.
    filled: Vec<u8>,
}

impl<N: Nic> LargeBodies<N> {
    pub(crate) fn new(config: &Config, budget: &Rc<Budget>) -> Self {
        Self {
            lent: Pool::new(config.access(Access::REMOTE_READ), budget),
            lent_requests: BTreeMap::new(),
            lent_responses: BTreeMap::new(),
            begun_responses: BTreeMap::new(),
            begun_requests: BTreeMap::new(),
            begun: 0,
            filled: Vec::new(),
        }
    }

    /// Memory that the peer is to read, not cleared.
    pub(crate) fn take(
        &mut self,
        nic: &N,
        pd: &N::Pd,
        purchase: &Purchase,
    ) -> Result<Buffer<N>, NoBuffer> {
        self.lent.take(nic, pd, purchase)
    }

    /// The regions that this peer may read.
    pub(crate) fn pool(&mut self) -> &mut Pool<N> {
        &mut self.lent
    }

    /// Lends the body of a call, which `write` writes, to the peer until [`answered`](Self::answered). Beside
    /// the buffer it gets memory that holds zeros, or what this peer was sent before.
    pub(crate) fn lend_request(
        &mut self,
        call: CallId,
        buffer: Buffer<N>,
        write: impl FnOnce(&Buffer<N>, &mut Vec<u8>),
    ) {
        write(put(&mut self.lent_requests, call, buffer), &mut self.filled);
    }

    /// Lends the body of an answer to the peer until [`released`](Self::released). Otherwise as
    /// [`lend_request`](Self::lend_request).
    pub(crate) fn lend_response(
        &mut self,
        request: RequestId,
        buffer: Buffer<N>,
        write: impl FnOnce(&Buffer<N>, &mut Vec<u8>),
    ) {
        write(put(&mut self.lent_responses, request, buffer), &mut self.filled);
    }

    /// Keeps the body of an answer while it is written, until it is [taken](Self::take_begun).
    pub(crate) fn begin_response(&mut self, request: RequestId, buffer: Buffer<N>) {
        put(&mut self.begun_responses, request, buffer);
    }

    /// The body of an answer that is being written.
    pub(crate) fn begun(&self, request: RequestId) -> Option<&Buffer<N>> {
        self.begun_responses.get(&request)
    }

    /// Takes the body of an answer that was being written.
    pub(crate) fn take_begun(&mut self, request: RequestId) -> Option<Buffer<N>> {
        self.begun_responses.remove(&request)
    }

    /// Keeps the body of a call while it is written, until it is [lent](Self::lend_begun) or
    /// [forgotten](Self::forget_begun).
    pub(crate) fn begin_request(&mut self, buffer: Buffer<N>) -> BodyNumber {
        self.begun += 1;
        self.begun_requests.insert(self.begun, buffer);
        self.begun
    }

    /// The body of a call that is being written.
    pub(crate) fn begun_request(&self, body: BodyNumber) -> Option<&Buffer<N>> {
        self.begun_requests.get(&body)
    }

    /// Lends the body of a call that was being written, as [`lend_request`](Self::lend_request) does.
    pub(crate) fn lend_begun(&mut self, body: BodyNumber, call: CallId) {
        if let Some(buffer) = self.begun_requests.remove(&body) {
            put(&mut self.lent_requests, call, buffer);
        }
    }

    /// The call is over. It was made, or nobody was told of its body.
    pub(crate) fn forget_begun(&mut self, body: BodyNumber) {
        self.begun_requests.remove(&body);
    }

    /// The call was answered: the peer does not read its body any more.
    #[inline]
    pub(crate) fn answered(&mut self, call: CallId) {
        if !self.lent_requests.is_empty() {
            self.lent_requests.remove(&call);
        }
    }

    /// The peer has fetched the answer.
    pub(crate) fn released(&mut self, request: RequestId) {
        self.lent_responses.remove(&request);
    }
}

/// Inserts a buffer, in place of any other one.
fn put<N: Nic, K: Ord>(lent: &mut BTreeMap<K, Buffer<N>>, key: K, buffer: Buffer<N>) -> &Buffer<N> {
    match lent.entry(key) {
        Entry::Vacant(vacant) => vacant.insert(buffer),
        Entry::Occupied(mut occupied) => {
            occupied.insert(buffer);
            occupied.into_mut()
        }
    }
}
