//! What a program changes of a queue pair: checked by the rules of a kernel, then told to the NIC before the call ends.

use core::time::Duration;

use mlx5::device::{DeviceQp as _, PortRows};
use rustix::io::Errno;
use softnic::Amendment;
use verbs::{
    Access, AddressVector, Gid, GidRoute, InitAttr, Lid, LinkLayer, Mtu, PortRoute, Psn, QKey,
    QpState, Qpn, RcPeer, RnrTimer, RtrAttr, RtsAttr, Transition,
};

use super::rules::{
    self, Allowed, Asked, Known, Limits, RETRY_BITS, RNR_TIMER_BITS, TIMEOUT_BITS, granted,
    kept_reads, mask,
};
use crate::{
    abi::{Command, Fields, Record},
    commands::{Refusal, Response, device},
    engine::{Attributes, Engine, Qp, Service, Wait},
};

impl Attributes {
    /// Takes those of `mask`, as the device keeps them.
    fn take(&mut self, fields: Fields<'_>, mask: u32) {
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
            (mask::PATH_MTU, &mut self.path_mtu, 98, u8::MAX),
            (mask::READS_OUT, &mut self.reads_out, 101, u8::MAX),
            (mask::READS_IN, &mut self.reads_in, 102, u8::MAX),
            (mask::RNR_TIMER, &mut self.rnr_timer, 103, RNR_TIMER_BITS),
            (mask::PORT, &mut self.port, 104, u8::MAX),
            (mask::TIMEOUT, &mut self.timeout, 105, TIMEOUT_BITS),
            (mask::RETRY_COUNT, &mut self.retry_count, 106, RETRY_BITS),
            (mask::RNR_RETRY, &mut self.rnr_retry, 107, RETRY_BITS),
        ];
        for (bit, byte, at, kept) in bytes {
            if mask & bit != 0 {
                *byte = fields.u8(at) & kept;
            }
        }
        if mask & mask::AV != 0 {
            self.dest = fields.bytes(0);
        }
        if mask & mask::PKEY_INDEX != 0 {
            self.pkey_index = fields.u16(92);
        }
    }

    /// Rights that the device grants to peers.
    pub(super) fn granted(&self, service: Service) -> u32 {
        match service {
            // Its READs are counted by the device.
            Service::Dct => granted(self.access, u8::MAX),
            _ => granted(self.access, self.reads_in),
        }
    }

    /// Where the peer is.
    fn route(&self, link: LinkLayer) -> PortRoute {
        let dest = Fields(&self.dest);
        let (lid, is_global) = (Lid::new(dest.u16(20)), dest.u8(30) != 0);
        let global = GidRoute {
            gid: Gid::new(dest.bytes(0)),
            hop_limit: dest.u8(25),
            traffic_class: dest.u8(26),
            flow_label: dest.u32(16),
        };
        match link {
            LinkLayer::InfiniBand if is_global => PortRoute::Global(lid, global),
            LinkLayer::InfiniBand => PortRoute::Lid(lid),
            LinkLayer::Ethernet => PortRoute::Gid(global),
        }
    }

    /// What the NIC is asked for; `None`: nobody may ask for that state.
    fn transition(&self, to: QpState, service: Service, link: LinkLayer) -> Option<Transition> {
        Some(match to {
            QpState::Reset => Transition::Reset,
            QpState::Init => Transition::Init(InitAttr {
                access: Access::from_bits_truncate(self.granted(service)),
                qkey: QKey::new(self.qkey),
            }),
            QpState::Rtr => Transition::Rtr(RtrAttr {
                path_mtu: Mtu::B4096,
                peer: matches!(service, Service::Rc | Service::Uc).then(|| RcPeer {
                    qpn: Qpn::from_low_bits(self.peer),
                    address: AddressVector::new(self.route(link)),
                    rq_psn: Psn::from_low_bits(self.rq_psn),
                }),
                rnr_timer: RnrTimer::from_code(self.rnr_timer),
                reads_in_max: kept_reads(self.reads_in),
            }),
            QpState::Rts => Transition::Rts(RtsAttr {
                sq_psn: Psn::from_low_bits(self.sq_psn),
                ack_timeout: ack_timeout(self.timeout),
                retry_count: self.retry_count,
                rnr_retry: self.rnr_retry,
                reads_out_max: kept_reads(self.reads_out),
            }),
            QpState::Err => Transition::Err,
            QpState::Sqd | QpState::Sqe => return None,
        })
    }

    /// What counts from now on, whether or not the state changes.
    fn amendment(&self, service: Service) -> Amendment {
        Amendment {
            access: Access::from_bits_truncate(self.granted(service)),
            qkey: QKey::new(self.qkey),
            rnr_timer: RnrTimer::from_code(self.rnr_timer),
        }
    }
}

/// 4.096 µs × 2ⁿ; code 0 is for ever, which is a century here.
fn ack_timeout(code: u8) -> Duration {
    match code {
        0 => Duration::from_secs(3_000_000_000),
        code => Duration::from_nanos(4096 << code),
    }
}

/// The state in the device is what an error may have made of it; the kernel learns that by a query.
fn known(qp: &Qp) -> Known {
    Known {
        service: qp.service,
        state: qp.known_state,
        device_state: qp.device.state(),
        port: qp.attributes.port,
        access: qp.attributes.access,
        reads_in: qp.attributes.reads_in,
    }
}

fn limits(engine: &Engine) -> Limits {
    let device = device::limits(engine);
    let gids = engine.gid_table();
    let rows = |is: fn(&Gid) -> bool| {
        gids.iter().enumerate().fold(0, |rows, (row, gid)| rows | u32::from(is(gid)) << row)
    };
    Limits {
        link: engine.link,
        needs_grh: device.needs_grh,
        ipv4_rows: rows(|gid| gid.is_ipv4()),
        empty_rows: rows(|gid| *gid == Gid::default()),
        ports: device::PORTS,
        pkeys: device::PKEYS,
        gids: gids.len(),
        reads_max: device.reads,
        has_atomics: device.has_atomics,
        is_privileged: may_open_raw_sockets(),
    }
}

fn may_open_raw_sockets() -> bool {
    use rustix::thread::{CapabilitySet, capabilities};
    let is_raw =
        |sets: rustix::thread::CapabilitySets| sets.effective.contains(CapabilitySet::NET_RAW);
    capabilities(None).is_ok_and(is_raw)
}

pub(in crate::commands) fn modify(
    engine: &mut Engine,
    command: &Command<'_>,
) -> Result<Response, Refusal> {
    let fields = command.core;
    let handle = fields.u32(64);
    let limits = limits(engine);
    let asked = Asked::of(fields, command.is_extended);
    let qp = engine.qps.get(handle).ok_or_else(|| Refusal::no_such("MODIFY_QP"))?;
    let refused = |cause: String, errno| {
        let names = rules::names(asked.mask);
        Refusal::new(format!("MODIFY_QP of {names}"), cause, errno)
    };
    let allowed = rules::check(&asked, &known(qp), &limits)
        .map_err(|broken| refused(broken.rule, broken.errno))?;
    let migrates = allowed.mask & mask::MIGRATION != 0 && fields.u8(99) != 0;
    if allowed.mask & mask::ALTERNATE_PATH != 0 || migrates {
        return Err(Refusal::lacks("MODIFY_QP with an alternate path"));
    }
    if allowed.to == QpState::Err {
        // A peer that disconnects says so beside the NIC's way: what it sent before that is done first.
        engine.catch_up();
    }
    let link = engine.link;
    let qp = engine.qps.get_mut(handle).ok_or_else(|| Refusal::no_such("MODIFY_QP"))?;
    let mut attributes = qp.attributes;
    attributes.take(fields, allowed.mask);
    apply(qp, &attributes, allowed, link).map_err(|cause| refused(cause, Errno::INVAL))?;
    qp.attributes = attributes;
    qp.known_state = allowed.to;
    let number = qp.device.number().get();
    let driver = Record::words(&[16, number, 0, 0]);
    Ok((Record::words(&[0, 8]).0, driver.0))
}

/// Tells the NIC.
fn apply(
    qp: &mut Qp,
    attributes: &Attributes,
    allowed: Allowed,
    link: LinkLayer,
) -> Result<(), String> {
    let Allowed { from, to, .. } = allowed;
    // In RTS there is nothing to start: what is under way goes on.
    if (from, to) != (QpState::Rts, QpState::Rts) {
        // The software NIC has one port, with one row in each table.
        let rows = PortRows { port: 1, gid_index: 0, pkey_index: 0 };
        let transition = attributes.transition(to, qp.service, link);
        let transition = transition.ok_or_else(|| format!("no program may ask for {to:?}"))?;
        qp.device.modify(&transition, rows).map_err(|error| error.to_string())?;
        qp.wait = Wait::Ready;
    }
    if matches!(to, QpState::Init | QpState::Rtr | QpState::Rts) {
        qp.device.amend(&attributes.amendment(qp.service));
    }
    Ok(())
}
