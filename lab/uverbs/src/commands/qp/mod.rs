//! Queue pairs.

mod modify;
mod rules;

use mlx5::device::DeviceQp as _;
use rustix::io::Errno;
use softnic::{LentQp, LentQueue};
use verbs::{DcKey, QpState, Transport};

use super::{Refusal, Response, device};
use crate::{
    abi::{Command, Fields, Record},
    engine::{Attributes, Engine, Qp, Service, Users, Wait},
};
pub(super) use modify::modify;
use rules::{kept_reads, mask};

/// Bytes of `struct ib_uverbs_create_qp` behind the response address.
const CREATE_BYTES: usize = 48;

/// `enum` of `mlx5-abi.h`, `MLX5_QP_FLAG_*`
const SIGNATURE: u32 = 1;
const SCATTER_CQE: u32 = 1 << 1;
const TYPE_DCT: u32 = 1 << 4;
const TYPE_DCI: u32 = 1 << 5;

fn service_of(kind: u8, flags: u32) -> Result<Service, Refusal> {
    const DRIVER: u8 = 0xff;
    let name = match (kind, flags) {
        (2, _) => return Ok(Service::Rc),
        (3, _) => return Ok(Service::Uc),
        (4, _) => return Ok(Service::Ud),
        (DRIVER, flags) if flags & TYPE_DCT != 0 => return Ok(Service::Dct),
        (DRIVER, flags) if flags & TYPE_DCI != 0 => return Ok(Service::Dci),
        (8, _) => "RAW_PACKET",
        (9, _) => "XRC_SEND",
        (10, _) => "XRC_RECV",
        _ => "a type that the software NIC does not know",
    };
    Err(Refusal::lacks(format!("CREATE_QP of type {kind} ({name})")))
}

/// The rings that libmlx5 has made: the receive ring, and behind it the send ring.
fn rings(driver: Fields<'_>) -> [Option<LentQueue>; 2] {
    let (buffer, dbrec) = (driver.u64(0), driver.u64(8));
    let [sends, receives, shift] = [driver.u32(16), driver.u32(20), driver.u32(24)];
    let log = |count: u32| count.next_power_of_two().ilog2().to_le_bytes()[0];
    let recv = (receives > 0).then(|| LentQueue {
        ring: buffer,
        dbrec,
        log_entries: log(receives),
        log_stride: shift.to_le_bytes()[0],
    });
    let behind = u64::from(receives).checked_shl(shift).unwrap_or(0);
    let send = (sends > 0).then(|| LentQueue {
        ring: buffer.wrapping_add(behind),
        dbrec: dbrec.wrapping_add(4),
        log_entries: log(sends),
        log_stride: 6,
    });
    [send, recv]
}

fn check_sizes(core: Fields<'_>, driver: Fields<'_>, max: u32) -> Result<(), Refusal> {
    let counts = [driver.u32(16), driver.u32(20), core.u32(28)];
    let Some(count) = counts.into_iter().find(|count| *count > max) else {
        return Ok(());
    };
    let cause = format!("a ring has at most {max} entries");
    Err(Refusal::new(format!("CREATE_QP of {count}"), cause, Errno::INVAL))
}

pub(super) fn create(
    engine: &mut Engine,
    context: u32,
    command: &Command<'_>,
) -> Result<Response, Refusal> {
    let core = command.core;
    let driver = command.driver(CREATE_BYTES);
    let flags = driver.u32(28);
    let service = service_of(core.u8(45), flags)?;
    if flags & SIGNATURE != 0 {
        return Err(Refusal::lacks("CREATE_QP with signatures in WQEs"));
    }
    check_sizes(core, driver, device::limits(engine).wqes)?;
    let no_such = || Refusal::no_such("CREATE_QP: domain or queue");
    let pd = engine.pds.get(core.u32(8)).ok_or_else(no_such)?;
    let send_cq = engine.cqs.get(core.u32(12));
    let recv_cq = engine.cqs.get(core.u32(16)).or(send_cq).ok_or_else(no_such)?;
    let send_cq = send_cq.unwrap_or(recv_cq);
    let srq = match core.u8(46) {
        0 => None,
        _ => Some(engine.srqs.get(core.u32(20)).ok_or_else(no_such)?),
    };
    let used =
        [Some(&pd.users), Some(&send_cq.users), Some(&recv_cq.users), srq.map(|srq| &srq.users)];
    let [send, recv] = rings(driver);
    let [send, recv] = if service == Service::Dct { [None, None] } else { [send, recv] };
    let lent = LentQp {
        transport: match service {
            Service::Rc | Service::Uc => Transport::Rc,
            Service::Ud => Transport::Ud,
            Service::Dci => Transport::Dci,
            Service::Dct => Transport::Dct,
        },
        is_unreliable: service == Service::Uc,
        send_cq: &send_cq.device,
        recv_cq: &recv_cq.device,
        srq: srq.map(|srq| &srq.device),
        send,
        recv: if srq.is_some() { None } else { recv },
        scatter_to_cqe: flags & SCATTER_CQE != 0,
        access_key: DcKey::new(if service == Service::Dct { driver.u64(40) } else { 0 }),
        user_index: driver.u32(32),
    };
    // SAFETY: libmlx5 keeps rings and record until the queue pair is destroyed.
    let device = unsafe { engine.device.lend_qp(&pd.device, &lent) };
    let device = device.map_err(|error| Refusal::new("CREATE_QP", error, Errno::NOMEM))?;
    let number = device.number().get();
    let capacity = core::array::from_fn(|at| core.u32(24 + at * 4));
    let handle = engine.qps.insert(Qp {
        context,
        device,
        service,
        user_handle: core.u64(0),
        ring: receive_ring(driver, srq.is_some()),
        signals_all: core.u8(44),
        attributes: Attributes::default(),
        known_state: QpState::Reset,
        wait: Wait::Ready,
        written: Default::default(),
        _uses: used.into_iter().flatten().map(Users::one_more).collect(),
    });
    Ok(created(handle, number, capacity, command))
}

/// Receives that the ring has room for, and entries of a list in each: what `ibv_query_qp` tells, as the kernel's driver counts
/// it (Linux `drivers/infiniband/hw/mlx5/qp.c`, `set_rq_size`).
fn receive_ring(driver: Fields<'_>, has_srq: bool) -> [u32; 2] {
    const SEGMENT_BYTES: u32 = 16;
    let [receives, shift] = [driver.u32(20), driver.u32(24)];
    match receives {
        0 => [0; 2],
        _ if has_srq => [0; 2],
        _ => [receives, 1u32.checked_shl(shift).unwrap_or(0) / SEGMENT_BYTES],
    }
}

/// What a new queue pair is called, and how much it takes.
fn created(handle: u32, number: u32, capacity: [u32; 5], command: &Command<'_>) -> Response {
    let [send_wr, recv_wr, send_sge, recv_sge, inline] = capacity;
    let mut response =
        Record::words(&[handle, number, send_wr, recv_wr, send_sge, recv_sge, inline, 0]);
    if command.is_extended {
        let length = u32::try_from(command.room()).unwrap_or(0);
        response.0.extend(Record::words(&[0, length]).0);
    }
    // A register that is not the first, which libmlx5 takes for one without BlueFlame.
    let register = 1 + handle % 15;
    (response.0, Record::words(&[register / 2 * 4 + register % 2, 0, 0, 0, 0, 0, 0, 0]).0)
}

pub(super) fn query(engine: &mut Engine, command: &Command<'_>) -> Result<Response, Refusal> {
    let qp = engine.qps.get_mut(command.core.u32(0));
    let qp = qp.ok_or_else(|| Refusal::no_such("QUERY_QP"))?;
    if qp.service == Service::Dct {
        // Linux `drivers/infiniband/hw/mlx5/qp.c`, `mlx5_ib_dct_query_qp`
        let told = mask::STATE | mask::ACCESS | mask::PORT | mask::RNR_TIMER;
        let told = told | mask::AV | mask::PATH_MTU | mask::PKEY_INDEX;
        if command.core.u32(4) & !told != 0 || qp.known_state != QpState::Rtr {
            let cause = "a DC target tells of its rights, its port and its path, in RTR";
            return Err(Refusal::new("QUERY_QP", cause, Errno::INVAL));
        }
    }
    let is = &qp.attributes;
    let mut answer = Record::zeroed(128);
    answer.set(0, &is.dest);
    // `max_send_wr` and the like are libmlx5's to tell.
    let [receives, sges] = qp.ring;
    answer.u32(68, receives);
    answer.u32(76, sges);
    let words = [is.qkey, is.rq_psn, is.sq_psn, is.peer, is.granted(qp.service)];
    words.into_iter().enumerate().for_each(|(at, word)| answer.u32(84 + at * 4, word));
    answer.u16(104, is.pkey_index);
    qp.known_state = qp.device.state();
    let state = number(qp.known_state);
    // Of a number of READs the device keeps a logarithm.
    let [reads_out, reads_in] = [is.reads_out, is.reads_in].map(|reads| kept_reads(reads).max(1));
    answer.set(108, &[state, state, is.path_mtu, 0, 0, reads_out, reads_in, is.rnr_timer]);
    answer.set(116, &[is.port, is.timeout, is.retry_count, is.rnr_retry, 0, 0, qp.signals_all]);
    Ok((answer.0, Vec::new()))
}

/// `enum ib_qp_state`
fn number(state: QpState) -> u8 {
    match state {
        QpState::Reset => 0,
        QpState::Init => 1,
        QpState::Rtr => 2,
        QpState::Rts => 3,
        QpState::Sqd => 4,
        QpState::Sqe => 5,
        QpState::Err => 6,
    }
}

pub(super) fn destroy(engine: &mut Engine, command: &Command<'_>) -> Result<Response, Refusal> {
    let qp = engine.qps.remove(command.core.u32(0));
    let mut qp = qp.ok_or_else(|| Refusal::no_such("DESTROY_QP"))?;
    qp.device.destroy();
    let context = engine.contexts.get(&qp.context);
    let read = context.map_or(0, |context| qp.written.read(&context.events, qp.user_handle, true));
    Ok((Record::words(&[read]).0, Vec::new()))
}

#[cfg(test)]
mod tests;
