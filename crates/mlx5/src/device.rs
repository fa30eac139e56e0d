//! The control path: what creates the queues that this driver then runs by itself.
//!
//! Two things can implement [`Device`]: the software NIC, and libmlx5, whose `mlx5dv_init_obj(3)`
//! describes the queues that the kernel made. Both answer with plain memory: where the rings and
//! doorbell records are, and how large. Everything after that is stores and loads.
//!
//! # Sizes
//!
//! A device may round every ring up, and says what it made. The driver refuses a ring that is smaller
//! than what it asked for, and entries of another size. libmlx5 counts requests where this driver counts
//! blocks: its device restricts `send_ops_flags` to the operations of [`verbs::Op`], so that the shortest
//! RC request takes one block, and asks for as many requests as it needs blocks.
//!
//! # Layouts
//!
//! Some environment variables make libmlx5 build other layouts than this driver writes. A device over it
//! calls [`check_environment`] before it opens anything.

use core::{ptr::NonNull, time::Duration};
use std::os::fd::OwnedFd;

use verbs::{
    Access, AddressVector, AsyncEvent, Channel, Cqn, CreateError, DcKey, GidRoute, Lid,
    MemoryError, MemoryRegion, ModifyError, NicAttributes, PortAttributes, QpState, Qpn,
    Registration, Rkey, Shortage, Srqn, Transition, Transport,
};

/// The request of the driver to a device for a completion queue.
#[derive(Clone, Copy, Debug)]
pub struct CqRequest {
    /// Base-2 logarithm of the number of entries.
    pub log_entries: u8,
    /// 64 or 128.
    pub cqe_bytes: usize,
    /// The completion vector, modulo those of the device.
    pub vector: u32,
}

/// A completion queue ring. The driver marks every entry as not written.
#[derive(Clone, Copy, Debug)]
pub struct CqMemory {
    /// Its number.
    pub cqn: Cqn,
    /// First of `cqe_bytes << log_entries` bytes, aligned to `cqe_bytes`.
    pub ring: NonNull<u8>,
    /// Base-2 logarithm of the number of entries, at least what was asked for.
    pub log_entries: u8,
    /// The CQE size that was asked for.
    pub cqe_bytes: usize,
    /// The consumer index and the arm record, 8-byte aligned.
    pub dbrec: NonNull<[u32; 2]>,
}

/// The request of the driver to a device for the receive queue of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct RqRequest {
    /// Base-2 logarithm of the number of entries.
    pub log_entries: u8,
    /// Base-2 logarithm of the bytes per entry, at least 4.
    pub log_stride: u8,
}

/// The request of the driver to a device for a shared receive queue.
#[derive(Clone, Copy, Debug)]
pub struct SrqRequest {
    /// Buffers that are outstanding at once. The ring has one entry more at least: the list that the
    /// device follows ends in an entry that is not posted.
    ///
    /// libmlx5 does not say how large the ring is that it makes. It makes one of `2n + 1` entries, rounded up
    /// to a power of two, for `n` that it is asked for. So its device asks for `R / 2 - 1` to get `R`, and
    /// refuses an `R` that exceeds the adapter's largest ring, for which libmlx5 would make half of it.
    pub buffers: u16,
    /// Base-2 logarithm of the bytes per entry, at least 5.
    pub log_stride: u8,
}

/// A receive ring: `1 << log_entries` entries of `1 << log_stride` bytes, each at least what was asked for.
#[derive(Clone, Copy, Debug)]
pub struct RqMemory {
    /// First byte, 64-byte aligned.
    pub ring: NonNull<u8>,
    /// Base-2 logarithm of the number of entries.
    pub log_entries: u8,
    /// Base-2 logarithm of the bytes per entry.
    pub log_stride: u8,
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

/// The request of the driver to a device for a queue pair.
#[derive(Debug)]
pub struct QpRequest<'a, D: Device> {
    /// Service type.
    pub transport: Transport,
    /// Completions of sends.
    pub send_cq: &'a D::Cq,
    /// Completions of receives.
    pub recv_cq: &'a D::Cq,
    /// The SRQ of its receives, if they do not come from the queue pair's own ring.
    pub srq: Option<&'a D::Srq>,
    /// Base-2 logarithm of the send ring's 64-byte blocks; `None` without a send queue.
    pub log_send_blocks: Option<u8>,
    /// The receive ring; `None` without one.
    pub recv: Option<RqRequest>,
    /// Whether small received payloads may be put into the completion. Results of READs and atomics may
    /// not, unless each request of the queue asks for a completion: they would be lost with one that asks
    /// for none.
    ///
    /// libmlx5 does it unless told otherwise: `false` is `MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE`, and
    /// `true` is neither that flag nor `MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE`.
    pub scatter_to_cqe: bool,
    /// A DCT's access key.
    pub access_key: DcKey,
}

/// A send ring of `1 << log_blocks` blocks of 64 bytes.
#[derive(Clone, Copy, Debug)]
pub struct SqMemory {
    /// First block, 64-byte aligned.
    pub ring: NonNull<u8>,
    /// Base-2 logarithm of the number of blocks, at least what was asked for.
    pub log_blocks: u8,
    /// Send counter: the second word of the doorbell record.
    pub dbrec: NonNull<u32>,
}

/// Rings of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpMemory {
    /// Its number; 0 for a DCT before RTR.
    pub qpn: Qpn,
    /// The send ring.
    pub send: Option<SqMemory>,
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

/// The rows of the port's tables that a queue pair is in, beside what its program asks for.
///
/// Source: `ibv_modify_qp(3)`: INIT needs port and P_Key row (`IBV_QP_PORT`, `IBV_QP_PKEY_INDEX`), and RTR of a
/// connection that has a global route header the GID row (`ah_attr.port_num`, `ah_attr.grh.sgid_index`); a DCT
/// the same: Linux `drivers/infiniband/hw/mlx5/qp.c`, `mlx5_ib_modify_dct`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRows {
    /// Number of the port.
    pub port: u8,
    /// Row of its GID table, the same as in the address vectors that the driver writes.
    pub gid_index: u8,
    /// Row of its P_Key table.
    pub pkey_index: u16,
}

impl PortRows {
    /// The rows of `port` as it is now.
    #[must_use]
    pub const fn of(port: &PortAttributes) -> Self {
        Self { port: port.number, gid_index: port.gid_index, pkey_index: port.pkey_index }
    }
}

/// A queue pair as the device sees it. Dropping it destroys the queue pair.
///
/// The driver orders the doorbell record before the register
/// ([`memory::barrier::before_doorbell`]). A register on a write-combining page, as every BlueFlame
/// register is, needs more: [`BlueFlame`](crate::BlueFlame) does that, and is shared by queue pairs of
/// one register.
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

    /// Changes the state, of a queue pair in these `rows`. The transition has been checked against the state
    /// machine. For
    /// [`Transition::Reset`] the driver clears rings and doorbell records after this returns.
    ///
    /// # Errors
    ///
    /// [`ModifyError`]; nothing has changed.
    fn modify(&mut self, to: &Transition, rows: PortRows) -> Result<(), ModifyError>;

    /// State as the device sees it now.
    fn state(&self) -> QpState;

    /// The queue pair is about to be dropped. Afterwards it completes nothing any more. Its memory stays
    /// valid until the drop, because the driver still reads what it completed.
    ///
    /// `ibv_destroy_qp` frees the memory at once. So a device over libmlx5 changes the state to RESET here,
    /// which a DCT cannot and need not, and destroys in its `Drop`.
    fn destroy(&mut self);

    /// Its number; for a DCT known only after RTR, 0 before.
    fn qpn(&self) -> Qpn;
}

/// There is no way to a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreachable;

/// Variables that change what libmlx5 lays out.
///
/// Source: rdma-core `providers/mlx5/verbs.c`, `qp_sig_enabled`, `srq_sig_enabled`, `get_cqe_size`.
const LAYOUT_VARIABLES: [&str; 3] = ["MLX5_QP_SIGNATURE", "MLX5_SRQ_SIGNATURE", "MLX5_CQE_SIZE"];

/// Processors whose barriers towards a device are known: elsewhere a fence may order memory alone.
///
/// Source: rdma-core `util/udma_barrier.h`.
const ARCHITECTURES: [&str; 2] = ["x86_64", "aarch64"];

/// Refuses an environment in which libmlx5 would sign work queue entries or choose the size of completion
/// queue entries by itself, which this driver knows not, and a processor whose barriers it knows not.
/// `architecture` is `std::env::consts::ARCH`, `lookup` is `std::env::var_os`.
///
/// # Errors
///
/// [`CreateError::System`], which names the variable or the processor.
pub fn check_environment<T>(
    architecture: &str,
    lookup: impl Fn(&str) -> Option<T>,
) -> Result<(), CreateError> {
    if !ARCHITECTURES.contains(&architecture) {
        let cause = format!(
            "this driver rings no doorbell on {architecture}, only on {}: use NIC `ibverbs`",
            ARCHITECTURES.join(" and "),
        );
        return Err(CreateError::System { object: "device", cause });
    }
    match LAYOUT_VARIABLES.into_iter().find(|name| lookup(name).is_some()) {
        None => Ok(()),
        Some(name) => Err(CreateError::System {
            object: "device",
            cause: format!("`{name}` is set: it changes layouts that this driver writes; unset it"),
        }),
    }
}

/// A ConnectX, or something that reads its bytes.
///
/// # Safety
///
/// The memory that `create_*` describe is valid, of the size that the answer says, and accessed by
/// nothing but the device and the caller, for as long as the returned handle lives. Doorbell records are
/// zero. Rings may hold anything: the driver writes every link of a shared receive queue and the owner of
/// every completion before the device looks at them.
pub unsafe trait Device: Clone + 'static {
    /// Protection domain.
    type Pd: Clone;
    /// Registered memory.
    type Mr: MemoryRegion + 'static;
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

    /// The port as it is now.
    fn port(&self) -> PortAttributes;

    /// The address of the port for its peers.
    fn address(&self) -> AddressVector;

    /// The Ethernet address of the next hop to `route`, from this port (RoCE). The driver asks once for
    /// each GID, and again when the port's addresses have changed. It may wait for the network.
    ///
    /// libmlx5 resolves it when it makes an address handle (`ibv_create_ah`, `mlx5dv_ah`).
    ///
    /// # Errors
    ///
    /// [`Unreachable`]: there is no route, or nobody answers.
    fn resolve(&self, route: &GidRoute) -> Result<[u8; 6], Unreachable>;

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

    /// Registers a memfd of another process, as [`verbs::Nic::register_memfd`] does. The default refuses.
    ///
    /// # Errors
    ///
    /// [`MemoryError`].
    fn register_memfd(
        &self,
        pd: &Self::Pd,
        fd: OwnedFd,
        len: usize,
        access: Access,
    ) -> Result<Self::Mr, MemoryError> {
        let _ = (pd, fd, len, access);
        Err(MemoryError::Foreign)
    }

    /// Begins that, as [`verbs::Nic::begin_register_memfd`] does. By default it has ended on return.
    fn begin_register_memfd(
        &self,
        pd: &Self::Pd,
        fd: OwnedFd,
        len: usize,
        access: Access,
    ) -> Registration<Self::Mr> {
        Registration::ended(self.register_memfd(pd, fd, len, access))
    }

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
        request: &SrqRequest,
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

    /// The name of its fabric, where ports of other fabrics cannot be reached though their links are alike; `None`: all
    /// links tell.
    fn fabric(&self) -> Option<String> {
        None
    }

    /// Address space that each port takes which this one reaches, beside what is registered there.
    fn peer_mapping_bytes(&self) -> u64 {
        0
    }

    /// Makes sure that an access to a region of the port with this LID does not fail for want of memory here.
    ///
    /// # Errors
    ///
    /// [`Shortage`]; the next attempt may succeed.
    fn reach(&self, port: Lid, rkey: Rkey) -> Result<(), Shortage> {
        let _ = (port, rkey);
        Ok(())
    }

    /// The longest sleep of a program that does not call into the device; `None`: for ever.
    fn poll_timeout(&self) -> Option<Duration>;
}
