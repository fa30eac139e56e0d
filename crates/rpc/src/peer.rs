//! One peer: its connection, its rings, and how it is reached.

use ids::slots::Key;
use proto::copyrpc::{CREDIT_BYTES, Connection, Hello, LINE_BYTES, Violation};
use verbs::{Destination, Lid, MemoryRegion as _, Nic, Psn, RemoteSlice, Sge};

use crate::{early::Early, large::LargeBodies, mirrors::Mirror};

/// Names a peer among all that a worker ever had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerId(pub(crate) Key);

impl PeerId {
    /// The peer's slot in the table of its worker, below [`Config::peers_max`](crate::Config::peers_max).
    /// A later peer may get the same slot.
    #[inline]
    #[must_use]
    pub fn slot(self) -> u16 {
        (self.0.slot() & 0xffff) as u16
    }
}

/// A peer, from its invitation to the end of its connection.
pub(crate) struct Peer<N: Nic> {
    pub(crate) state: PeerState<N>,
    /// This side's hello to the peer.
    pub(crate) hello: Hello,
    pub(crate) psn: Psn,
    /// Ring that the peer writes, and after it the words for credit.
    pub(crate) ring: N::Mr,
    /// Index of the send queue that serves the peer.
    pub(crate) queue: u16,
}

/// The state of a connection between two workers.
pub(crate) enum PeerState<N: Nic> {
    /// The peer has this side's invitation. Batches that came before its own are kept.
    Invited { early: Early },
    /// Connected.
    Live(Box<Live<N>>),
}

/// A connection and the memory of the peer that this side reaches.
pub(crate) struct Live<N: Nic> {
    pub(crate) connection: Connection,
    pub(crate) remote: RemoteRing<N>,
    /// The peer's port, if it is known by LID.
    pub(crate) lid: Option<Lid>,
    pub(crate) bodies: LargeBodies<N>,
    pub(crate) probe: Probe,
}

impl<N: Nic> Live<N> {
    /// Takes the credit that the peer wrote behind its ring on this side.
    pub(crate) fn read_credit(&mut self, ring: &N::Mr, now_ns: u64) -> Result<(), Violation> {
        let ring_bytes = self.connection.config().own.geometry.ring_bytes();
        let words = [ring_bytes, ring_bytes + size_of::<u64>()].map(|at| ring.load_u64(at));
        let mut bytes = [0; CREDIT_BYTES];
        bytes.copy_from_slice(words.map(u64::to_ne_bytes).as_flattened());
        self.connection.credit(bytes, now_ns)
    }

    /// The words beside the peer's ring that this side writes its credit to.
    pub(crate) fn credit_words(&self) -> RemoteSlice {
        self.remote.at(self.connection.config().peer.geometry.ring_bytes())
    }

    /// Whether nothing came from the peer since this was asked before.
    pub(crate) fn is_silent(&mut self) -> bool {
        let batches_in = self.connection.batches_in();
        core::mem::replace(&mut self.probe.batches_in, batches_in) == batches_in
    }
}

/// State of a connection at the last look of the keepalive.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Probe {
    batches_in: u64,
}

/// The peer's ring as this side writes it.
pub(crate) struct RemoteRing<N: Nic> {
    slice: RemoteSlice,
    /// Mirror of the peer's ring: batches that are not inline are gathered from here, from the
    /// offset at which they will lie there. Owned by the NIC from posting to credit.
    mirror: Mirror<N>,
    /// Longest batch that goes into a work queue entry.
    inline_bytes_max: usize,
    /// DC: where requests go.
    destination: Option<Destination>,
}

impl<N: Nic> RemoteRing<N> {
    pub(crate) fn new(
        slice: RemoteSlice,
        mirror: Mirror<N>,
        inline_bytes_max: usize,
        destination: Option<Destination>,
    ) -> Self {
        Self { slice, mirror, inline_bytes_max, destination }
    }

    #[inline]
    pub(crate) fn is_inline(&self, len_bytes: usize) -> bool {
        len_bytes <= self.inline_bytes_max
    }

    /// DC: other peers use the same send queue.
    #[inline]
    pub(crate) fn is_dc(&self) -> bool {
        self.destination.is_some()
    }

    #[inline]
    pub(crate) fn destination(&self) -> Option<&Destination> {
        self.destination.as_ref()
    }

    /// Copies a batch to the mirror.
    #[inline]
    pub(crate) fn stage(&self, offset_bytes: usize, batch: &[u8]) {
        self.mirror.write(offset_bytes, batch);
    }

    /// A batch in the mirror, to be gathered.
    #[inline]
    pub(crate) fn staged(&self, offset_bytes: usize, len_bytes: usize) -> Sge {
        self.mirror.sge(offset_bytes, len_bytes)
    }

    /// An offset in the peer's ring, or behind it.
    #[inline]
    pub(crate) fn at(&self, offset_bytes: usize) -> RemoteSlice {
        RemoteSlice { addr: self.slice.addr + offset_bytes as u64, rkey: self.slice.rkey }
    }
}

impl<N: Nic> Peer<N> {
    /// Bytes of a ring with its credit words, which get a line of their own.
    pub(crate) fn ring_bytes(hello: &Hello) -> usize {
        hello.geometry.ring_bytes() + LINE_BYTES
    }

    #[inline]
    pub(crate) fn live(&mut self) -> Option<&mut Live<N>> {
        match &mut self.state {
            PeerState::Live(live) => Some(live),
            PeerState::Invited { .. } => None,
        }
    }

    /// The peer's port, if it is connected and known by LID.
    pub(crate) fn lid(&self) -> Option<Lid> {
        match &self.state {
            PeerState::Live(live) => live.lid,
            PeerState::Invited { .. } => None,
        }
    }

    pub(crate) fn connection(&self) -> Option<&Connection> {
        match &self.state {
            PeerState::Live(live) => Some(&live.connection),
            PeerState::Invited { .. } => None,
        }
    }
}
