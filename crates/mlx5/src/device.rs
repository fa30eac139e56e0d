//! The control path: what creates the queues that this driver then runs by itself.
//!
//! Two things implement [`Device`]: the software NIC, and libmlx5 (whose `mlx5dv_init_obj(3)`
//! describes the queues that the kernel made). Both answer with plain memory: where the rings and
//! doorbell records are. Everything after that is stores and loads.

use core::{ptr::NonNull, time::Duration};

use verbs::{
    Access, AddressVector, AsyncEvent, Channel, Cqn, CreateError, DcKey, MemoryError, MemoryRegion,
    ModifyError, NicAttributes, PortAttributes, QpState, Qpn, Srqn, Transition, Transport,
};

/// What the driver asks of a device to make a completion queue.
#[derive(Clone, Copy, Debug)]
pub struct CqRequest {
    /// Base-2 logarithm of the number of entries.
    pub log_entries: u8,
    /// 64 or 128.
    pub cqe_bytes: usize,
}

/// A completion queue ring. The driver has written every entry's `op_own` as invalid.
#[derive(Clone, Copy, Debug)]
pub struct CqMemory {
    /// Its number.
    pub cqn: Cqn,
    /// First of `cqe_bytes << log_entries` bytes, aligned to `cqe_bytes`.
    pub ring: NonNull<u8>,
    /// The consumer index and the arm record, 8-byte aligned.
    pub dbrec: NonNull<[u32; 2]>,
}

/// What the driver asks of a device to make a receive queue.
#[derive(Clone, Copy, Debug)]
pub struct RqRequest {
    /// Base-2 logarithm of the number of entries.
    pub log_entries: u8,
    /// Base-2 logarithm of the bytes per entry, at least 4; for an SRQ at least 5.
    pub log_stride: u8,
}

/// A receive ring: `1 << log_entries` entries of `1 << log_stride` bytes.
#[derive(Clone, Copy, Debug)]
pub struct RqMemory {
    /// First byte, 64-byte aligned.
    pub ring: NonNull<u8>,
    /// The receive counter (a QP's doorbell record has it first).
    pub dbrec: NonNull<u32>,
}

/// A shared receive queue.
#[derive(Clone, Copy, Debug)]
pub struct SrqMemory {
    /// Its number.
    pub srqn: Srqn,
    /// Its ring.
    pub rq: RqMemory,
}

/// What the driver asks of a device to make a queue pair.
#[derive(Debug)]
pub struct QpRequest<'a, D: Device> {
    /// Service type.
    pub transport: Transport,
    /// Completions of sends.
    pub send_cq: &'a D::Cq,
    /// Completions of receives.
    pub recv_cq: &'a D::Cq,
    /// Where receives come from, if not from the queue pair's own ring.
    pub srq: Option<&'a D::Srq>,
    /// Base-2 logarithm of the send ring's 64-byte blocks; `None` without a send queue.
    pub log_send_blocks: Option<u8>,
    /// The receive ring; `None` without one.
    pub recv: Option<RqRequest>,
    /// Put small received payloads into the completion. Not so results of READs and atomics, unless each
    /// request of the queue asks for a completion: they would be lost with one that asks for none.
    /// Of libmlx5 that means `MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE` must not be set.
    pub scatter_to_cqe: bool,
    /// A DCT's access key.
    pub access_key: DcKey,
}

/// Rings of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpMemory {
    /// Its number; 0 for a DCT before RTR.
    pub qpn: Qpn,
    /// First block of the send ring, 64-byte aligned.
    pub send_ring: Option<NonNull<u8>>,
    /// Send counter: the second word of the doorbell record.
    pub send_dbrec: Option<NonNull<u32>>,
    /// The receive ring.
    pub recv: Option<RqMemory>,
}

/// A completion queue as the device sees it. Dropping it destroys the queue.
pub trait DeviceCq {
    /// Stores the 64-bit arm doorbell, in host order, at UAR + 0x20; flushed as [`DeviceQp`] says.
    fn arm(&mut self, doorbell: u64);

    /// A poll found nothing. An embedded device uses the moment to get on with its work, and says
    /// whether it did any: then there may be an entry now.
    fn idle(&mut self) -> bool;
}

/// A WQE on its way to the BlueFlame register, in 64-byte blocks of words in memory order.
///
/// A device takes from it what it needs, so nothing is copied on the way.
pub trait WqeBlocks {
    /// Number of blocks.
    fn count(&self) -> usize;

    /// The first 8 bytes of the WQE.
    fn first_word(&self) -> u64;

    /// The block at `index`.
    ///
    /// # Panics
    ///
    /// If there is none.
    fn block(&self, index: usize) -> [u64; 8];
}

impl WqeBlocks for [[u64; 8]] {
    fn count(&self) -> usize {
        self.len()
    }

    fn first_word(&self) -> u64 {
        self.first().map_or(0, |block| block[0])
    }

    fn block(&self, index: usize) -> [u64; 8] {
        self[index]
    }
}

/// A queue pair as the device sees it. Dropping it destroys the queue pair.
///
/// The driver orders the doorbell record before the register
/// ([`memory::barrier::before_doorbell`]). A register on a write-combining page, as every BlueFlame
/// register is, needs more, for a doorbell of 8 bytes as well: its device calls
/// [`memory::barrier::flush_write_combining`] before and after it stores there, and only then goes on to
/// the other half.
///
/// Source: rdma-core `util/udma_barrier.h`, `mmio_wc_start` and `mmio_flush_writes`;
/// `providers/mlx5/qp.c`, `post_send_db`.
pub trait DeviceQp {
    /// Bytes one BlueFlame write may carry; 0: there is none.
    fn blueflame_bytes(&self) -> usize;

    /// Stores the first 8 bytes of the last posted WQE at the send doorbell register.
    ///
    /// `ctrl` is in memory order: byte 0 is stored at the lowest address.
    fn ring(&mut self, ctrl: [u8; 8]);

    /// Copies one whole WQE, padded to 64-byte blocks, to the BlueFlame register. The WQE is in the
    /// ring too: BlueFlame is a hint.
    fn blueflame(&mut self, wqe: &(impl WqeBlocks + ?Sized));

    /// Receives were posted and their doorbell record written: there is no register for this. An
    /// embedded device uses the moment to get on with its work.
    fn received(&mut self) {}

    /// Changes the state. The transition has been checked against the state machine. For
    /// [`Transition::Reset`] the driver clears rings and doorbell records after this returns.
    ///
    /// # Errors
    ///
    /// [`ModifyError`]; nothing has changed.
    fn modify(&mut self, to: &Transition) -> Result<(), ModifyError>;

    /// State as the device sees it now.
    fn state(&self) -> QpState;

    /// The queue pair is about to be dropped. Afterwards it completes nothing any more; its memory
    /// stays valid until the drop.
    fn destroy(&mut self);

    /// Its number; for a DCT known only after RTR, 0 before.
    fn qpn(&self) -> Qpn;
}

/// A ConnectX, or something that reads its bytes.
///
/// # Safety
///
/// The memory that `create_*` describe is valid, zeroed, of the size that was asked for, and
/// accessed by nothing but the device and the caller, for as long as the returned handle lives.
pub unsafe trait Device: Clone {
    /// Protection domain.
    type Pd: Clone;
    /// Registered memory.
    type Mr: MemoryRegion;
    /// Completion channel.
    type Channel: Channel;
    /// Completion queue handle.
    type Cq: DeviceCq;
    /// Shared receive queue handle.
    type Srq;
    /// Queue pair handle.
    type Qp: DeviceQp;

    /// Name and limits.
    fn attributes(&self) -> &NicAttributes;

    /// The port.
    fn port(&self) -> PortAttributes;

    /// How peers address the port.
    fn address(&self) -> AddressVector;

    /// A new protection domain.
    ///
    /// # Errors
    ///
    /// [`CreateError`].
    fn alloc_pd(&self) -> Result<Self::Pd, CreateError>;

    /// Zeroed memory that this device and its peers can reach.
    ///
    /// # Errors
    ///
    /// [`MemoryError`].
    fn alloc_mr(&self, pd: &Self::Pd, len: usize, access: Access) -> Result<Self::Mr, MemoryError>;

    /// A new completion channel.
    ///
    /// # Errors
    ///
    /// [`CreateError`].
    fn create_channel(&self) -> Result<Self::Channel, CreateError>;

    /// A new completion queue. The driver marks its entries invalid before it hands the queue to
    /// anything that completes into it.
    ///
    /// # Errors
    ///
    /// [`CreateError`].
    fn create_cq(
        &self,
        request: &CqRequest,
        channel: Option<&Self::Channel>,
    ) -> Result<(Self::Cq, CqMemory), CreateError>;

    /// A new shared receive queue.
    ///
    /// # Errors
    ///
    /// [`CreateError`].
    fn create_srq(
        &self,
        pd: &Self::Pd,
        request: &RqRequest,
    ) -> Result<(Self::Srq, SrqMemory), CreateError>;

    /// A new queue pair in state RESET.
    ///
    /// # Errors
    ///
    /// [`CreateError`].
    fn create_qp(
        &self,
        pd: &Self::Pd,
        request: &QpRequest<'_, Self>,
    ) -> Result<(Self::Qp, QpMemory), CreateError>;

    /// Takes the next event that belongs to no request.
    fn poll_event(&self) -> Option<AsyncEvent>;

    /// How long a program may sleep without calling into the device; `None`: for ever.
    fn poll_timeout(&self) -> Option<Duration>;
}
