//! One peer: its connection, its rings, and how it is reached.

use proto::copyrpc::{CREDIT_BYTES, CallId, Connection, Hello, LINE_BYTES, RequestId, Violation};
use verbs::{Destination, Lid, MemoryRegion as _, Nic, Psn, RemoteSlice};

use crate::{
    early::Early,
    large::{Buffers, Lent},
    worker::Marks,
};

/// Names a peer among all that a worker ever had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerId {
    pub(crate) slot: u16,
    pub(crate) generation: u32,
}

impl PeerId {
    /// Its place among the peers of its worker, below [`Config::peers_max`](crate::Config::peers_max).
    /// A later peer may get it again.
    #[inline]
    #[must_use]
    pub fn slot(self) -> u16 {
        self.slot
    }
}

/// Where a peer's batches come from and ours go.
pub(crate) struct Peer<N: Nic> {
    pub(crate) link: Link<N>,
    /// What this side told the peer.
    pub(crate) hello: Hello,
    pub(crate) psn: Psn,
    /// Ring that the peer writes, and after it the words for credit.
    pub(crate) ring: N::Mr,
    /// Of [`Worker::queues`](crate::Worker).
    pub(crate) queue: u16,
    pub(crate) marks: Marks,
}

/// How far the two sides are.
pub(crate) enum Link<N: Nic> {
    /// The peer has this side's invitation. Batches that came before its own are kept.
    Invited { early: Early },
    /// Connected.
    Live(Box<Live<N>>),
}

/// A connection and the peer's memory.
pub(crate) struct Live<N: Nic> {
    pub(crate) connection: Connection,
    /// Longest batch that goes into a work queue entry.
    pub(crate) inline_bytes_max: usize,
    /// The peer's ring.
    pub(crate) remote: RemoteSlice,
    /// Mirror of the peer's ring: batches that are not inline are gathered from here, from the
    /// offset at which they will lie there. Owned by the NIC from posting to credit.
    pub(crate) staging: N::Mr,
    /// The peer's port, if it is known by LID.
    pub(crate) lid: Option<Lid>,
    /// Memory for large bodies.
    pub(crate) buffers: Buffers<N>,
    /// Bodies of calls: the peer reads them until it answers.
    pub(crate) lent_requests: Lent<N, CallId>,
    /// Bodies of answers: the peer reads them until it releases them.
    pub(crate) lent_responses: Lent<N, RequestId>,
    /// DC: where requests go.
    pub(crate) destination: Option<Destination>,
}

impl<N: Nic> Live<N> {
    /// The call was answered: the peer does not read its body any more.
    #[inline]
    pub(crate) fn answered(&mut self, call: CallId) {
        if let Some(buffer) = self.lent_requests.end(&call) {
            self.buffers.give(buffer);
        }
    }

    /// The peer has fetched the answer.
    pub(crate) fn released(&mut self, request: RequestId) {
        if let Some(buffer) = self.lent_responses.end(&request) {
            self.buffers.give(buffer);
        }
    }

    /// Looks at what the peer has given back, which it writes behind its ring on this side.
    pub(crate) fn look(&mut self, ring: &N::Mr, now_ns: u64) -> Result<(), Violation> {
        let ring_bytes = self.connection.config().own.geometry.ring_bytes();
        let words = [ring_bytes, ring_bytes + size_of::<u64>()].map(|at| ring.load_u64(at));
        let mut bytes = [0; CREDIT_BYTES];
        bytes.copy_from_slice(words.map(u64::to_ne_bytes).as_flattened());
        self.connection.credit(bytes, now_ns)
    }

    /// The peer's words for credit.
    pub(crate) fn credit_words(&self) -> RemoteSlice {
        let ring_bytes = self.connection.config().peer.geometry.ring_bytes();
        RemoteSlice { addr: self.remote.addr + ring_bytes as u64, rkey: self.remote.rkey }
    }
}

impl<N: Nic> Peer<N> {
    /// Bytes of a ring with its credit words, which get a line of their own.
    pub(crate) fn ring_bytes(hello: &Hello) -> usize {
        hello.geometry.ring_bytes() + LINE_BYTES
    }

    pub(crate) fn live(&mut self) -> Option<&mut Live<N>> {
        match &mut self.link {
            Link::Live(live) => Some(live),
            Link::Invited { .. } => None,
        }
    }
}
