//! The traits that a NIC implements.

use core::time::Duration;
use std::os::fd::{BorrowedFd, OwnedFd};

use ids::{Cqn, Gid, Lid, Lkey, Qpn, Rkey, Srqn};
use memory::{Filler, LentBytes, Overfull};

use crate::{
    Access, AddressVector, Arm, ArmError, AsyncEvent, Capabilities, Completion, CqConfig,
    CreateError, MemoryError, ModifyError, Mtu, PostRecvError, PostSendError, QpAddress, QpConfig,
    QpState, Registration, RemoteSlice, SendRequest, Sge, Shortage, SrqConfig, Transition,
    Transport,
};

/// Link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkLayer {
    /// Addressed by LID.
    InfiniBand,
    /// RoCE: addressed by GID.
    Ethernet,
}

/// A port as it is now: an [event](crate::AsyncEvent) tells when that changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAttributes {
    /// Its number on the device, from 1.
    pub number: u8,
    /// Link layer.
    pub link: LinkLayer,
    /// Local id; 0 on Ethernet.
    pub lid: Lid,
    /// The GID that it sends from.
    pub gid: Gid,
    /// Row of that in the port's GID table.
    pub gid_index: u8,
    /// Row of the port's P_Key table: the partition of its queue pairs.
    pub pkey_index: u16,
    /// Largest packet.
    pub mtu: Mtu,
}

/// A device's name and limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicAttributes {
    /// Name of the device, as the operating system or the fabric has it.
    pub name: String,
    /// Its capabilities beyond reliable connections.
    pub capabilities: Capabilities,
    /// Largest number of entries of a CQ.
    pub cqes_max: u32,
    /// Largest number of requests of a queue. A send queue of long requests may take fewer.
    pub requests_max: u32,
    /// Largest number of buffers of a shared receive queue; 0: there is none.
    pub srq_entries_max: u32,
    /// Scatter entries that a buffer of a shared receive queue can have.
    pub srq_sges_max: u8,
    /// Gather or scatter entries that a request of any kind can have.
    pub sges_max: u8,
    /// Bytes of inline payload that a request of any kind can have.
    pub inline_bytes_max: u16,
    /// Received payloads up to this length may come [in the completion](Completion::in_cqe); 0: none do.
    pub cqe_payload_bytes_max: u16,
    /// Largest message.
    pub message_bytes_max: u32,
    /// READs and atomics that one queue pair can have outstanding.
    pub reads_max: u8,
}

/// Memory that the NIC may access, registered under two keys. Dropping it deregisters it.
///
/// Peers and the NIC write here at any time, so no reference to the bytes is ever formed: they are
/// copied in and out.
pub trait MemoryRegion {
    /// Address of the first byte in this process; what peers name in requests.
    fn addr(&self) -> u64;
    /// Length in bytes.
    fn len_bytes(&self) -> usize;
    /// The key that local gather and scatter entries carry.
    fn lkey(&self) -> Lkey;
    /// The key that requests of peers carry.
    fn rkey(&self) -> Rkey;

    /// Copies bytes out of the region.
    ///
    /// # Panics
    ///
    /// If `offset + to.len()` exceeds the region.
    fn read(&self, offset: usize, to: &mut [u8]);

    /// Puts bytes of the region into a message.
    ///
    /// # Errors
    ///
    /// [`Overfull`]: nothing was put.
    ///
    /// # Panics
    ///
    /// If `offset + len_bytes` exceeds the region.
    fn read_into(
        &self,
        offset: usize,
        len_bytes: usize,
        to: &mut Filler<'_>,
    ) -> Result<(), Overfull> {
        let mut copy = vec![0; len_bytes];
        self.read(offset, &mut copy);
        to.put(&copy)
    }

    /// Copies bytes into the region.
    ///
    /// # Panics
    ///
    /// If `offset + from.len()` exceeds the region.
    fn write(&self, offset: usize, from: &[u8]);

    /// Copies bytes that others may write meanwhile into the region.
    ///
    /// # Panics
    ///
    /// If `offset + from.len()` exceeds the region.
    fn write_lent(&self, offset: usize, from: LentBytes<'_>) {
        self.write(offset, &from.to_vec());
    }

    /// Loads an aligned word with Acquire: whatever a peer placed before it is visible after.
    ///
    /// # Panics
    ///
    /// If the word is not inside the region or not aligned.
    fn load_u64(&self, offset: usize) -> u64;

    /// Takes the region back. On success no peer accesses the memory any more.
    ///
    /// # Errors
    ///
    /// [`MemoryError::Busy`]: the key is invalid, but a stopped peer still holds the memory; it is
    /// kept mapped until that peer continues or dies.
    fn deregister(self) -> Result<(), MemoryError>;

    /// Whether the process that made the memory has left all its pages. It can take none away where the NIC sealed it.
    fn has_pages(&self) -> bool {
        true
    }

    /// A gather or scatter entry inside the region.
    ///
    /// # Panics
    ///
    /// If it does not lie inside.
    fn sge(&self, offset: usize, len_bytes: usize) -> Sge {
        let end = offset.checked_add(len_bytes).expect("offset + length overflows");
        assert!(end <= self.len_bytes(), "{offset} + {len_bytes} B exceed {} B", self.len_bytes());
        let len_bytes = u32::try_from(len_bytes).expect("an entry is below 4 GiB");
        Sge { addr: self.addr() + offset as u64, len_bytes, lkey: self.lkey() }
    }

    /// The address and key by which a peer reaches `offset`.
    fn remote(&self, offset: usize) -> RemoteSlice {
        RemoteSlice { addr: self.addr() + offset as u64, rkey: self.rkey() }
    }
}

/// A completion queue.
pub trait CompletionQueue {
    /// Its number.
    fn cqn(&self) -> Cqn;

    /// Entries.
    fn entries(&self) -> u32;

    /// Takes the next completion, if there is one, and gives its entry back to the NIC.
    fn poll(&mut self) -> Option<Completion>;

    /// Payload of the completion that was polled last, if it was
    /// [`in_cqe`](Completion::in_cqe); else empty.
    fn inline_data(&self) -> &[u8];

    /// Makes the channel readable when the next completion arrives, or at once if one is waiting.
    /// One shot.
    ///
    /// # Errors
    ///
    /// [`ArmError::NoChannel`].
    fn arm(&mut self, which: Arm) -> Result<(), ArmError>;
}

/// A file descriptor that armed completion queues make readable.
pub trait Channel {
    /// For `poll(2)`, epoll, or an executor. Where an embedded NIC has sockets of its own, it is readable also
    /// when these have something: call [`wait`](Self::wait), which says whether a queue has fired.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Waits until an armed queue fires and consumes that; `false` after `timeout`. Of several threads
    /// that wait one returns, for all queues that have fired: it has to look at each, or to notify the
    /// others.
    ///
    /// While waiting it keeps the NIC going (timers of an embedded NIC), which a bare wait on
    /// [`fd`](Self::fd) does not: see [`Nic::poll_timeout`].
    fn wait(&self, timeout: Duration) -> bool;
}

/// Receive buffers that several queue pairs share.
pub trait SharedReceiveQueue {
    /// Its number.
    fn srqn(&self) -> Srqn;

    /// Queues a buffer; returns the index its completion will carry. Call
    /// [`ring`](Self::ring) to hand it over.
    ///
    /// # Errors
    ///
    /// [`PostRecvError`]; nothing was queued.
    fn post(&mut self, into: &[Sge]) -> Result<u16, PostRecvError>;

    /// Hands every posted buffer to the NIC.
    fn ring(&mut self);

    /// Gives the buffer of a receive completion back for reuse.
    ///
    /// # Panics
    ///
    /// If `completion` is not a receive, or its buffer is not outstanding.
    fn retire(&mut self, completion: &Completion);
}

/// A send queue and a receive queue.
pub trait QueuePair {
    /// Its number. A DCT has one only after RTR: 0 before.
    fn qpn(&self) -> Qpn;

    /// Service type.
    fn transport(&self) -> Transport;

    /// State as the device sees it now: an error may have moved it to [`QpState::Err`].
    fn state(&self) -> QpState;

    /// Changes the state. After RESET, and after the queue pair is dropped, no earlier request
    /// completes any more, and completions that were not polled are gone.
    ///
    /// # Errors
    ///
    /// [`ModifyError`]; nothing has changed.
    fn modify(&mut self, to: &Transition) -> Result<(), ModifyError>;

    /// Queues a request and returns its index. The NIC does not know until
    /// [`ring_send`](Self::ring_send).
    ///
    /// # Errors
    ///
    /// [`PostSendError`]; nothing was queued.
    fn post_send(&mut self, request: &SendRequest<'_>) -> Result<u16, PostSendError>;

    /// Hands every queued send to the NIC with one doorbell. Without any, does nothing.
    ///
    /// This cannot fail. Where the way to the NIC can (`ibv_post_send(3)`), the queue pair goes to ERR, and
    /// each request that did not leave completes with
    /// [`WcStatus::LocalQpOperation`](crate::WcStatus::LocalQpOperation) if it is the first, else
    /// [`WcStatus::Flushed`](crate::WcStatus::Flushed).
    fn ring_send(&mut self);

    /// Queues a receive and returns its index.
    ///
    /// # Errors
    ///
    /// [`PostRecvError`]; nothing was queued.
    fn post_recv(&mut self, into: &[Sge]) -> Result<u16, PostRecvError>;

    /// Hands every queued receive to the NIC.
    fn ring_recv(&mut self);

    /// Requests that can be posted to the send queue now, whatever their length.
    fn send_free(&self) -> u16;

    /// Gives back the queue space that `completion` ends: for a send also that of every earlier
    /// one. Completions of SRQ buffers go to [`SharedReceiveQueue::retire`].
    ///
    /// # Panics
    ///
    /// If `completion` is of another queue pair.
    fn retire(&mut self, completion: &Completion);
}

/// A network adapter.
///
/// Clones are handles of the same device. Objects keep what they depend on alive, so they may be
/// dropped in any order.
pub trait Nic: Clone + 'static {
    /// Protection domain: keys and queues of different domains do not mix.
    type Pd: Clone;
    /// Registered memory.
    type Mr: MemoryRegion + 'static;
    /// Completion queue.
    type Cq: CompletionQueue;
    /// Shared receive queue.
    type Srq: SharedReceiveQueue;
    /// Queue pair.
    type Qp: QueuePair;
    /// Completion channel.
    type Channel: Channel;

    /// Name and limits.
    fn attributes(&self) -> &NicAttributes;

    /// The port.
    fn port(&self) -> PortAttributes;

    /// The address of this port for its peers.
    fn address(&self) -> AddressVector;

    /// The address of a queue pair of this NIC.
    fn endpoint(&self, qp: &Self::Qp) -> QpAddress {
        QpAddress { address: self.address(), qpn: qp.qpn() }
    }

    /// A new protection domain.
    ///
    /// # Errors
    ///
    /// [`CreateError`].
    fn alloc_pd(&self) -> Result<Self::Pd, CreateError>;

    /// Allocates zeroed memory that this NIC and its peers can reach, and registers it.
    ///
    /// # Errors
    ///
    /// [`MemoryError`].
    fn alloc_mr(
        &self,
        pd: &Self::Pd,
        len_bytes: usize,
        access: Access,
    ) -> Result<Self::Mr, MemoryError>;

    /// Registers memory that another process made: a memfd that no process can shrink, of `len_bytes` at least, all of whose
    /// pages are allocated. It stays that process's too: its stores there come at any time. A NIC whose
    /// peers need no mapping of it seals it, so that no page is taken away. NICs that cannot do that, as is the default,
    /// refuse.
    ///
    /// # Errors
    ///
    /// [`MemoryError`], of these [`MemoryError::Foreign`] and [`MemoryError::Unfit`]; the descriptor is closed.
    fn register_memfd(
        &self,
        pd: &Self::Pd,
        fd: OwnedFd,
        len_bytes: usize,
        access: Access,
    ) -> Result<Self::Mr, MemoryError> {
        let _ = (pd, fd, len_bytes, access);
        Err(MemoryError::Foreign)
    }

    /// Begins what [`register_memfd`](Self::register_memfd) does. A NIC whose registration takes long lets another thread
    /// wait for it; by default it has ended on return.
    fn begin_register_memfd(
        &self,
        pd: &Self::Pd,
        fd: OwnedFd,
        len_bytes: usize,
        access: Access,
    ) -> Registration<Self::Mr> {
        Registration::ended(self.register_memfd(pd, fd, len_bytes, access))
    }

    /// A new completion channel.
    ///
    /// # Errors
    ///
    /// [`CreateError`].
    fn create_channel(&self) -> Result<Self::Channel, CreateError>;

    /// A new completion queue.
    ///
    /// # Errors
    ///
    /// [`CreateError`].
    fn create_cq(
        &self,
        config: &CqConfig,
        channel: Option<&Self::Channel>,
    ) -> Result<Self::Cq, CreateError>;

    /// A new shared receive queue.
    ///
    /// # Errors
    ///
    /// [`CreateError`].
    fn create_srq(&self, pd: &Self::Pd, config: &SrqConfig) -> Result<Self::Srq, CreateError>;

    /// A new queue pair in state RESET.
    ///
    /// # Errors
    ///
    /// [`CreateError`].
    fn create_qp(
        &self,
        pd: &Self::Pd,
        config: &QpConfig<'_, Self>,
    ) -> Result<Self::Qp, CreateError>;

    /// Takes the next event that belongs to no request.
    fn poll_event(&self) -> Option<AsyncEvent>;

    /// The name of its fabric, where ports of other fabrics cannot be reached though their links are alike; `None`: all
    /// links tell.
    fn fabric(&self) -> Option<String> {
        None
    }

    /// Address space that each port takes which this one reaches, beside the regions there.
    fn peer_mapping_bytes(&self) -> u64 {
        0
    }

    /// Makes sure that a READ or WRITE of this memory, of a port that is reached by LID, does not fail for want of
    /// memory here, so that a program can refuse one access instead of losing the queue pair. Only a NIC that maps
    /// its peers' memory has work here.
    ///
    /// # Errors
    ///
    /// [`Shortage`]; the next attempt may succeed.
    fn reach(&self, port: Lid, memory: RemoteSlice) -> Result<(), Shortage> {
        let _ = (port, memory);
        Ok(())
    }

    /// The longest sleep of a program that does not call into the NIC. `None`: for ever, because a
    /// device or thread of its own keeps it going.
    fn poll_timeout(&self) -> Option<Duration>;
}
