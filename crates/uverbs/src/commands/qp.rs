//! Queue pairs.

use core::time::Duration;

use mlx5::device::{DeviceQp as _, PortRows};
use rustix::io::Errno;
use softnic::{LentQp, LentQueue};
use verbs::{
    Access, AddressVector, DcKey, Gid, GidRoute, InitAttr, Lid, LinkLayer, Mtu, PortRoute, Psn,
    QKey, QpState, Qpn, RcPeer, RnrTimer, RtrAttr, RtsAttr, Transition, Transport,
};

use super::{Refusal, Response};
use crate::{
    abi::{Command, Fields, Record},
    engine::{Attributes, Engine, Qp, Service, Users, Wait},
};

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
        capacity,
        signals_all: core.u8(44),
        attributes: Attributes::default(),
        wait: Wait::Ready,
        written: Default::default(),
        _uses: used.into_iter().flatten().map(Users::one_more).collect(),
    });
    let [send_wr, recv_wr, send_sge, recv_sge, inline] = capacity;
    let mut response =
        Record::words(&[handle, number, send_wr, recv_wr, send_sge, recv_sge, inline, 0]);
    if command.is_extended {
        let length = u32::try_from(command.room()).unwrap_or(0);
        response.0.extend(Record::words(&[0, length]).0);
    }
    // A register that is not the first, which libmlx5 takes for one without BlueFlame.
    let register = 1 + handle % 15;
    Ok((response.0, Record::words(&[register / 2 * 4 + register % 2, 0, 0, 0, 0, 0, 0, 0]).0))
}

/// `IBV_QPS_ERR`
const ERR: u8 = 6;

/// `enum ib_uverbs_qp_attr_mask`
mod mask {
    pub(super) const STATE: u32 = 1;
    pub(super) const ACCESS: u32 = 1 << 3;
    pub(super) const PKEY_INDEX: u32 = 1 << 4;
    pub(super) const PORT: u32 = 1 << 5;
    pub(super) const QKEY: u32 = 1 << 6;
    pub(super) const AV: u32 = 1 << 7;
    pub(super) const PATH_MTU: u32 = 1 << 8;
    pub(super) const TIMEOUT: u32 = 1 << 9;
    pub(super) const RETRY_COUNT: u32 = 1 << 10;
    pub(super) const RNR_RETRY: u32 = 1 << 11;
    pub(super) const RQ_PSN: u32 = 1 << 12;
    pub(super) const READS_OUT: u32 = 1 << 13;
    pub(super) const ALTERNATE_PATH: u32 = 1 << 14;
    pub(super) const RNR_TIMER: u32 = 1 << 15;
    pub(super) const SQ_PSN: u32 = 1 << 16;
    pub(super) const READS_IN: u32 = 1 << 17;
    pub(super) const DEST_QPN: u32 = 1 << 20;
}

impl Attributes {
    fn take(&mut self, fields: Fields<'_>) {
        let mask = fields.u32(68);
        let words = [
            (mask::QKEY, &mut self.qkey, 72),
            (mask::RQ_PSN, &mut self.rq_psn, 76),
            (mask::SQ_PSN, &mut self.sq_psn, 80),
            (mask::DEST_QPN, &mut self.peer, 84),
            (mask::ACCESS, &mut self.access, 88),
        ];
        for (bit, word, at) in words {
            if mask & bit != 0 {
                *word = fields.u32(at);
            }
        }
        let bytes = [
            (mask::PATH_MTU, &mut self.path_mtu, 98),
            (mask::READS_OUT, &mut self.reads_out, 101),
            (mask::READS_IN, &mut self.reads_in, 102),
            (mask::RNR_TIMER, &mut self.rnr_timer, 103),
            (mask::PORT, &mut self.port, 104),
            (mask::TIMEOUT, &mut self.timeout, 105),
            (mask::RETRY_COUNT, &mut self.retry_count, 106),
            (mask::RNR_RETRY, &mut self.rnr_retry, 107),
        ];
        for (bit, byte, at) in bytes {
            if mask & bit != 0 {
                *byte = fields.u8(at);
            }
        }
        if mask & mask::AV != 0 {
            self.dest = fields.bytes(0);
        }
        if mask & mask::PKEY_INDEX != 0 {
            self.pkey_index = fields.u16(92);
        }
    }

    /// Where the peer is.
    fn route(&self, link: LinkLayer) -> PortRoute {
        let dest = Fields(&self.dest);
        match link {
            LinkLayer::InfiniBand => PortRoute::Lid(Lid::new(dest.u16(20))),
            LinkLayer::Ethernet => PortRoute::Gid(GidRoute {
                gid: Gid::new(dest.bytes(0)),
                hop_limit: dest.u8(25),
                traffic_class: dest.u8(26),
                flow_label: dest.u32(16),
            }),
        }
    }

    /// Whether a peer has a GID.
    fn is_global(&self) -> bool {
        Fields(&self.dest).u8(30) != 0
    }

    /// The transition to state `number` of `enum ib_qp_state`.
    fn transition(&self, number: u8, service: Service, link: LinkLayer) -> Option<Transition> {
        Some(match number {
            0 => Transition::Reset,
            1 => Transition::Init(InitAttr {
                access: Access::from_bits_truncate(self.access),
                qkey: QKey::new(self.qkey),
            }),
            2 => Transition::Rtr(RtrAttr {
                path_mtu: Mtu::B4096,
                peer: matches!(service, Service::Rc | Service::Uc).then(|| RcPeer {
                    qpn: Qpn::from_low_bits(self.peer),
                    address: AddressVector::new(self.route(link)),
                    rq_psn: Psn::from_low_bits(self.rq_psn),
                }),
                rnr_timer: RnrTimer::from_code(self.rnr_timer),
                reads_in_max: self.reads_in,
            }),
            3 => Transition::Rts(RtsAttr {
                sq_psn: Psn::from_low_bits(self.sq_psn),
                ack_timeout: ack_timeout(self.timeout),
                retry_count: self.retry_count.min(7),
                rnr_retry: self.rnr_retry.min(7),
                reads_out_max: self.reads_out,
            }),
            4 => Transition::Sqd,
            6 => Transition::Err,
            _ => return None,
        })
    }
}

/// 4.096 µs × 2ⁿ; code 0 is for ever, which is a century here.
fn ack_timeout(code: u8) -> Duration {
    match code & 31 {
        0 => Duration::from_secs(3_000_000_000),
        code => Duration::from_nanos(4096 << code),
    }
}

pub(super) fn modify(engine: &mut Engine, command: &Command<'_>) -> Result<Response, Refusal> {
    let fields = command.core;
    let (handle, mask) = (fields.u32(64), fields.u32(68));
    let link = engine.link;
    if mask & mask::STATE != 0 && fields.u8(96) == ERR {
        // A peer that disconnects says so beside the NIC's way: what it sent before that is done first.
        engine.catch_up();
    }
    let qp = engine.qps.get_mut(handle).ok_or_else(|| Refusal::no_such("MODIFY_QP"))?;
    if mask & mask::ALTERNATE_PATH != 0 {
        return Err(Refusal::lacks("MODIFY_QP with an alternate path"));
    }
    let mut attributes = qp.attributes;
    attributes.take(fields);
    if mask & mask::STATE != 0 {
        let number = fields.u8(96);
        let refused = |cause: String| {
            Refusal::new(format!("MODIFY_QP to state {number}"), cause, Errno::INVAL)
        };
        let is_connected = matches!(qp.service, Service::Rc | Service::Uc);
        if number == 2 && is_connected && link == LinkLayer::Ethernet && !attributes.is_global() {
            return Err(refused("on RoCE an address has a GID".into()));
        }
        let transition = attributes.transition(number, qp.service, link);
        let transition = transition.ok_or_else(|| refused("nobody may ask for it".into()))?;
        let transport = qp.device.transport();
        // The software NIC has one port, with one row in each table.
        let rows = PortRows { port: 1, gid_index: 0, pkey_index: 0 };
        transition
            .check(qp.device.state(), transport)
            .and_then(|()| qp.device.modify(&transition, rows))
            .map_err(|error| refused(error.to_string()))?;
        qp.wait = Wait::Ready;
    }
    qp.attributes = attributes;
    let number = qp.device.number().get();
    let driver = Record::words(&[16, number, 0, 0]);
    Ok((Record::words(&[0, 8]).0, driver.0))
}

pub(super) fn query(engine: &mut Engine, command: &Command<'_>) -> Result<Response, Refusal> {
    let qp = engine.qps.get(command.core.u32(0));
    let qp = qp.ok_or_else(|| Refusal::no_such("QUERY_QP"))?;
    let is = &qp.attributes;
    let mut answer = Record::zeroed(128);
    answer.set(0, &is.dest);
    for (at, value) in qp.capacity.into_iter().enumerate() {
        answer.u32(64 + at * 4, value);
    }
    let words = [is.qkey, is.rq_psn, is.sq_psn, is.peer, is.access];
    words.into_iter().enumerate().for_each(|(at, word)| answer.u32(84 + at * 4, word));
    answer.u16(104, is.pkey_index);
    let state = match qp.device.state() {
        QpState::Reset => 0,
        QpState::Init => 1,
        QpState::Rtr => 2,
        QpState::Rts => 3,
        QpState::Sqd => 4,
        QpState::Sqe => 5,
        QpState::Err => 6,
    };
    answer.set(108, &[state, state, is.path_mtu, 0, 0, is.reads_out, is.reads_in, is.rnr_timer]);
    answer.set(116, &[is.port, is.timeout, is.retry_count, is.rnr_retry, 0, 0, qp.signals_all]);
    Ok((answer.0, Vec::new()))
}

pub(super) fn destroy(engine: &mut Engine, command: &Command<'_>) -> Result<Response, Refusal> {
    let qp = engine.qps.remove(command.core.u32(0));
    let mut qp = qp.ok_or_else(|| Refusal::no_such("DESTROY_QP"))?;
    qp.device.destroy();
    let context = engine.contexts.get(&qp.context);
    let read = context.map_or(0, |context| qp.written.read(&context.events, qp.user_handle, true));
    Ok((Record::words(&[read]).0, Vec::new()))
}
