//! Ports, queue pairs and waiting, as the tests of this crate use them.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::time::{Duration, Instant};

use copyrpc_softnic as softnic;
use softnic::Nic;
use verbs::{
    Access, Completion, CompletionQueue as _, CqConfig, InitAttr, Mtu, Nic as _, QKey, QpAddress,
    QpConfig, QueuePair as _, RcPeer, RnrTimer, RtrAttr, RtsAttr, SendSize, Transition, Transport,
};

pub(crate) type Cq = <Nic as verbs::Nic>::Cq;
pub(crate) type Qp = <Nic as verbs::Nic>::Qp;
pub(crate) type Srq = <Nic as verbs::Nic>::Srq;
pub(crate) type Pd = <Nic as verbs::Nic>::Pd;
pub(crate) type Mr = <Nic as verbs::Nic>::Mr;

pub(crate) const QKEY: QKey = QKey::new(0x77);

/// A port on a fabric of this process and test.
pub(crate) fn nic(name: &str, strict: Option<u64>) -> Nic {
    let fabric = fabric(name, std::process::id());
    let config = softnic::Config { fabric, strict, card_mib: 8, ..softnic::Config::default() };
    softnic::open(&config).unwrap()
}

pub(crate) fn fabric(name: &str, pid: u32) -> String {
    format!("{name}-{pid}")
}

/// Requests of a send queue: few, so that its ring wraps often.
pub(crate) const SENDS: u16 = 16;

/// A queue pair with its completion queue.
pub(crate) struct End {
    pub(crate) nic: Nic,
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    pub(crate) qp: Qp,
}

impl End {
    pub(crate) fn new(nic: &Nic, transport: Transport) -> Self {
        let (nic, pd) = (nic.clone(), nic.alloc_pd().unwrap());
        let cq = nic.create_cq(&CqConfig::new(256), None).unwrap();
        let mut config = QpConfig::new(transport, &cq);
        config.send = SendSize { requests: SENDS.into(), sges_max: 4, inline_bytes_max: 220 };
        config.recv.sges_max = 4;
        (config.send.requests, config.recv.requests) = (64, 64);
        let qp = nic.create_qp(&pd, &config).unwrap();
        Self { nic, pd, cq, qp }
    }

    pub(crate) fn endpoint(&self) -> QpAddress {
        self.nic.endpoint(&self.qp)
    }

    /// RESET to RTS; `peer` is for RC.
    pub(crate) fn ready(&mut self, peer: Option<QpAddress>) {
        ready(&mut self.qp, peer);
    }

    pub(crate) fn mr(&self, len: usize) -> Mr {
        self.nic.alloc_mr(&self.pd, len, Access::all() - Access::RELAXED_ORDERING).unwrap()
    }
}

pub(crate) fn ready(qp: &mut Qp, peer: Option<QpAddress>) {
    ready_with(qp, peer, RtsAttr::default());
}

pub(crate) fn ready_with(qp: &mut Qp, peer: Option<QpAddress>, rts: RtsAttr) {
    let peer = peer.map(|peer| RcPeer {
        qpn: peer.qpn,
        address: peer.address,
        rq_psn: Default::default(),
    });
    let access = Access::all() - Access::RELAXED_ORDERING;
    qp.modify(&Transition::Init(InitAttr { access, qkey: QKEY })).unwrap();
    qp.modify(&Transition::Rtr(RtrAttr {
        path_mtu: Mtu::B4096,
        peer,
        rnr_timer: RnrTimer::at_least(Duration::from_micros(10)),
        reads_in_max: 16,
    }))
    .unwrap();
    qp.modify(&Transition::Rts(rts)).unwrap();
}

/// RESET to RTR: as far as a DCT goes.
pub(crate) fn target(qp: &mut Qp) {
    let access = Access::all() - Access::RELAXED_ORDERING;
    qp.modify(&Transition::Init(InitAttr { access, qkey: QKEY })).unwrap();
    qp.modify(&Transition::Rtr(RtrAttr {
        path_mtu: Mtu::B4096,
        peer: None,
        rnr_timer: RnrTimer::at_least(Duration::from_micros(10)),
        reads_in_max: 16,
    }))
    .unwrap();
}

/// Two connected queue pairs of two ports.
pub(crate) fn pair(name: &str, strict: Option<u64>) -> [End; 2] {
    let mut ends = [(); 2].map(|()| End::new(&nic(name, strict), Transport::Rc));
    let [a, b] = [0, 1].map(|nth: usize| ends[nth].endpoint());
    ends[0].ready(Some(b));
    ends[1].ready(Some(a));
    ends
}

/// Calls `poll` until it returns something; everything else that has to happen, it does.
pub(crate) fn until<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(180), "{what} does not happen");
        std::thread::yield_now();
    }
}

/// The next completion at `at`, while the ports of both ends get on.
pub(crate) fn completion(at: &mut Cq, other: &mut Cq, stash: &mut Vec<Completion>) -> Completion {
    until("a completion", || {
        stash.extend(other.poll());
        at.poll()
    })
}
