//! The device itself: what it is, and what it can do.

use std::os::fd::IntoRawFd as _;

use mlx5::device::Device as _;
use rustix::io::Errno;
use verbs::{Capabilities, Gid, Lid, LinkLayer};

use super::{Refusal, Response};
use crate::{
    abi::{Command, Record},
    clock_page,
    condition::AdapterCondition,
    engine::{Ah, Context, Engine, EventPipe},
};

/// Sizes and limits, as `ibv_devinfo -v` shows them.
const FIRMWARE: u64 = 20 << 32 | 99 << 16 | 1000;
const VENDOR: u32 = 0x2c9;
const PART: u32 = 0x101b;
const QPS: u32 = 2047;
const CQS: u32 = 1023;
const SRQS: u32 = 1023;
const MRS: u32 = 4095;
/// Completion vectors.
pub(super) const VECTORS: u32 = 1;
const SGES: u32 = 30;
pub(super) const SRQ_SGES: u32 = 31;
pub(super) const PORTS: u8 = 1;
pub(super) const PKEYS: u16 = 1;
const MESSAGE_BYTES_MAX: u32 = 1 << 30;

/// What depends on the adapter that the software NIC plays.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceLimits {
    pub(super) cqes: u32,
    pub(super) wqes: u32,
    /// As programs are told it; rings may have one entry more.
    pub(super) srq_wqes: u32,
    pub(super) reads: u8,
    pub(super) has_atomics: bool,
    /// On InfiniBand, addresses without a global route header are refused.
    pub(super) needs_grh: bool,
}

pub(super) fn limits(engine: &Engine) -> DeviceLimits {
    let is = engine.device.attributes();
    DeviceLimits {
        cqes: is.cqes_max - 1,
        wqes: is.requests_max,
        srq_wqes: is.srq_entries_max,
        reads: is.reads_max,
        has_atomics: is.capabilities.contains(Capabilities::ATOMICS),
        needs_grh: engine.profile.needs_grh() && engine.link == LinkLayer::InfiniBand,
    }
}

/// GUID of a port: locally administered, and ends like the LID.
fn guid(lid: Lid) -> [u8; 8] {
    let [high, low] = lid.get().to_be_bytes();
    [0x02, 0, 0, 0xff, 0xfe, 0, high, low]
}

/// Ethernet address of the port that a GID leads to: what its GUID is made of.
fn mac(gid: &[u8; 16]) -> [u8; 6] {
    [0x02, 0, 0, 0, gid[14], gid[15]]
}

pub(super) fn get_context(
    engine: &mut Engine,
    context: u32,
    command: &Command<'_>,
) -> Result<Response, Refusal> {
    let refused = |errno: Errno| Refusal::new("GET_CONTEXT", errno, errno);
    if engine.condition.now == AdapterCondition::Gone {
        return Err(Refusal::new("GET_CONTEXT", "the device is away", Errno::NODEV));
    }
    // struct mlx5_ib_alloc_ucontext_req_v2; `MLX5_IB_ALLOC_UCTX_DEVX` is the only flag, and asks for what is absent.
    let flags = command.driver(0).u32(8);
    if flags != 0 {
        let cause = "there is no DEVX: libmlx5 asks again without";
        return Err(Refusal::new("GET_CONTEXT", cause, Errno::INVAL));
    }
    let (events, reader) = EventPipe::new().map_err(refused)?;
    engine.contexts.insert(context, Context { events });
    let async_fd = u32::try_from(reader.into_raw_fd()).unwrap_or(0);
    let bfregs = command.core.u32(0);
    // struct mlx5_ib_alloc_ucontext_resp
    let mut driver = Record::zeroed(72);
    let words = [1 << 16, 512, bfregs, 64];
    words.into_iter().enumerate().for_each(|(at, word)| driver.u32(at * 4, word));
    driver.u16(16, 1024); // max_sq_desc_sz
    driver.u16(18, 512); // max_rq_desc_sz
    let limits = limits(engine);
    driver.u32(20, limits.wqes);
    driver.u32(24, limits.wqes);
    // `1 << log_max_srq_sz`: libmlx5 makes rings of so many entries.
    driver.u32(28, limits.srq_wqes + 1);
    driver.u16(32, PORTS.into());
    driver.u32(40, 72); // response_length
    driver.u8(44, 1); // cqe_version
    driver.u8(45, 1 << 1); // CREATE_AH tells the Ethernet address
    driver.u8(46, 1); // eth_min_inline
    driver.u8(47, 1 << clock_page::VERSION_1); // clock_info_versions
    driver.u32(56, 12); // log_uar_size
    driver.u32(60, 1); // UARs per page
    Ok((Record::words(&[async_fd, VECTORS]).0, driver.0))
}

pub(super) fn query_device(engine: &Engine, command: &Command<'_>) -> Response {
    let mut base = Record::zeroed(176);
    base.u64(0, FIRMWARE);
    base.set(8, &guid(engine.lid));
    base.set(16, &guid(engine.lid));
    base.u64(24, 1 << 40); // max_mr_size
    base.u64(32, 0xffff_f000); // page sizes
    let limits = limits(engine);
    let words = [
        VENDOR,
        PART,
        0,
        QPS,
        limits.wqes,
        0,
        SGES,
        SGES,
        CQS,
        limits.cqes,
        MRS,
        1 << 16,
        limits.reads.into(),
        0,
        QPS * u32::from(limits.reads),
        limits.reads.into(),
        0,
        limits.has_atomics.into(),
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        1 << 20,
        0,
        0,
        SRQS,
        limits.srq_wqes,
        SRQ_SGES,
    ];
    words.into_iter().enumerate().for_each(|(at, word)| base.u32(40 + at * 4, word));
    base.u16(168, PKEYS);
    base.u8(170, 16); // local_ca_ack_delay
    base.u8(171, PORTS);
    if !command.is_extended {
        return (base.0, Vec::new());
    }
    let length = u32::try_from(command.room()).unwrap_or(0);
    base.0.resize(command.room().max(184), 0);
    base.u32(180, length);
    base.u64(208, u64::MAX); // timestamp_mask
    base.u64(216, clock_page::KILOHERTZ);
    let mut driver = Record::zeroed(command.driver_room());
    driver.u32(4, u32::try_from(command.driver_room()).unwrap_or(0));
    (base.0, driver.0)
}

pub(super) fn query_port(engine: &Engine, command: &Command<'_>) -> Result<Response, Refusal> {
    check_port("QUERY_PORT", command.core.u8(0))?;
    let mut port = Record::zeroed(40);
    port.u32(4, MESSAGE_BYTES_MAX);
    port.u32(16, u32::try_from(engine.gid_table().len()).unwrap_or(1));
    port.u16(20, PKEYS);
    // state, largest and active MTU 4096, LMC, virtual lanes, SL, timeout, init type, 4x, 25 Gb/s,
    // LinkUp, link layer, flags
    const GRH_REQUIRED: u8 = 1;
    let (link, flags) = match engine.link {
        LinkLayer::InfiniBand => {
            port.u16(22, engine.lid.get());
            port.u16(24, 1); // of the subnet manager
            (1, if limits(engine).needs_grh { GRH_REQUIRED } else { 0 })
        }
        LinkLayer::Ethernet => {
            const IP_BASED_GIDS: u32 = 1 << 26;
            port.u32(0, IP_BASED_GIDS);
            (2, GRH_REQUIRED)
        }
    };
    // `PORT_DOWN` and Polling
    let (state, physical) = if engine.condition.now.is_up() { (4, 5) } else { (1, 2) };
    port.set(26, &[state, 5, 5, 0, 4, 0, 18, 0, 2, 32, physical, link, flags]);
    Ok((port.0, Vec::new()))
}

fn check_port(what: &str, port: u8) -> Result<(), Refusal> {
    if (1..=PORTS).contains(&port) {
        return Ok(());
    }
    Err(Refusal::new(what, format!("the device has no port {port}"), Errno::INVAL))
}

/// Why the kernel resolves no address: Linux `drivers/infiniband/core/addr.c`, `rdma_resolve_ip`.
pub(super) const NO_ROUTE: &str = "no route leads from an IPv4 address to one that is none: the row of the GID table is of the other kind";

/// Whether a route may lead from a row of the GID table to a GID.
pub(super) fn is_routed(engine: &Engine, row: u8, to: [u8; 16]) -> bool {
    let from = engine.gid_table().get(usize::from(row)).copied();
    from.is_none_or(|from| from.is_ipv4() == Gid::new(to).is_ipv4())
}

/// Only drivers on Ethernet ask for one: what matters of an address goes into each WQE.
pub(super) fn create_ah(
    engine: &mut Engine,
    context: u32,
    command: &Command<'_>,
) -> Result<Response, Refusal> {
    let gid = command.core.bytes::<16>(16);
    let is_global = command.core.u8(45) != 0;
    check_port("CREATE_AH", command.core.u8(46))?;
    let row = command.core.u8(36);
    if is_global {
        engine.gid_row(row).map_err(|(cause, errno)| Refusal::new("CREATE_AH", cause, errno))?;
    }
    if engine.link == LinkLayer::Ethernet && !is_global {
        return Err(Refusal::new("CREATE_AH", "on RoCE an address has a GID", Errno::INVAL));
    }
    if engine.link == LinkLayer::Ethernet && !is_routed(engine, row, gid) {
        return Err(Refusal::new("CREATE_AH", NO_ROUTE, Errno::INVAL));
    }
    let pd = engine.pds.get(command.core.u32(8)).ok_or_else(|| Refusal::no_such("CREATE_AH"))?;
    let handle = engine.ahs.insert(Ah { context, _domain: pd.users.one_more() });
    let mut driver = Record::words(&[16, 0, 0, 0]);
    driver.set(4, &mac(&gid));
    Ok((handle.to_ne_bytes().to_vec(), driver.0))
}

pub(super) fn destroy_ah(engine: &mut Engine, command: &Command<'_>) -> Result<Response, Refusal> {
    engine.ahs.remove(command.core.u32(0)).ok_or_else(|| Refusal::no_such("DESTROY_AH"))?;
    Ok(Response::default())
}
