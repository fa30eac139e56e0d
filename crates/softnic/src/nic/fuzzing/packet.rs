//! Any bytes as packets and answers: what decodes is encoded again as it was, and harms no port that gets it.

use core::time::Duration;

use memory::sync::Arc;
use verbs::{
    Access, CompletionQueue as _, CqConfig, DcKey, InitAttr, Lid, MemoryRegion as _, Mtu, Nic as _,
    Op, Payload, Psn, QKey, QpConfig, Qpn, QueuePair as _, RcPeer, RnrTimer, RtrAttr, RtsAttr,
    SendRequest, SendSize, SharedReceiveQueue as _, SrqConfig, Transition, Transport,
};

use super::Input;
use crate::{
    Cause, Config, Issued, Nic, Packet, ReplyPacket, Timeline, VirtualPort,
    nic::{
        engine::{Extent, Key, Reply, Request, Sequence, Verb},
        open::open_virtual,
    },
};

/// Of the port.
const PORT: Lid = Lid::new(1);
/// Of the machine that sends.
const SENDER: (Lid, Qpn) = (Lid::new(2), Qpn::from_low_bits(7));
const KEY: u64 = 0x77;
const REGION_BYTES: usize = 256;

/// Time that stands still.
#[derive(Debug)]
struct Still;

impl Timeline for Still {
    fn now_ns(&self) -> u64 {
        1
    }

    fn runnable(&self, _: Lid, _: Qpn, _: Cause) {}

    fn idle(&self, _: Lid) -> bool {
        false
    }
}

/// Decodes `bytes`, and gives what they are, and packets and answers that are made of them, to a port.
///
/// # Panics
///
/// If something decodes that is not encoded the same, or memory changes outside of what was registered for
/// the sender.
pub fn packet(bytes: &[u8]) {
    for cut in [0, 1, 2] {
        let bytes = bytes.get(cut..).unwrap_or_default();
        if let Ok(packet) = Packet::decode(bytes) {
            assert_eq!(Packet::decode(&packet.encode()), Ok(packet));
        }
        if let Ok(answer) = ReplyPacket::decode(bytes) {
            assert_eq!(ReplyPacket::decode(&answer.encode()), Ok(answer));
        }
    }
    let Ok((nic, port)) =
        open_virtual(&Config { card_mib: 1, ..Config::default() }, PORT, Arc::new(Still))
    else {
        return;
    };
    run(&nic, &port, bytes);
}

fn run(nic: &Nic, port: &VirtualPort, bytes: &[u8]) {
    const NOTE: &str = "an empty port has room";
    let pd = nic.alloc_pd().expect(NOTE);
    let mut cq = nic.create_cq(&CqConfig::new(256), None).expect(NOTE);
    let srq = SrqConfig { entries: 8, sges_max: 1 };
    let mut srq = nic.create_srq(&pd, &srq).expect(NOTE);
    let access = Access::all() - Access::RELAXED_ORDERING;
    let mr = nic.alloc_mr(&pd, REGION_BYTES, access).expect(NOTE);
    let private = nic.alloc_mr(&pd, REGION_BYTES, Access::LOCAL_WRITE).expect(NOTE);
    private.write(0, &[0xa5; REGION_BYTES]);
    let connected = QpConfig { srq: Some(&srq), ..QpConfig::new(Transport::Rc, &cq) };
    let target = QpConfig {
        transport: Transport::Dct,
        access_key: DcKey::new(KEY),
        send: SendSize::NONE,
        ..connected
    };
    let datagrams = QpConfig { srq: Some(&srq), ..QpConfig::new(Transport::Ud, &cq) };
    let mut qps =
        [connected, target, datagrams].map(|config| nic.create_qp(&pd, &config).expect(NOTE));
    for (qp, is_connected) in qps.iter_mut().zip([true, false, false]) {
        let address = verbs::AddressVector::new(verbs::PortRoute::Lid(SENDER.0));
        let peer = RcPeer { qpn: SENDER.1, address, rq_psn: Psn::default() };
        let rtr = RtrAttr {
            path_mtu: Mtu::B4096,
            peer: is_connected.then_some(peer),
            rnr_timer: RnrTimer::at_least(Duration::ZERO),
            reads_in_max: 4,
        };
        let init = InitAttr { access, qkey: QKey::new(5) };
        qp.modify(&Transition::Init(init)).expect(NOTE);
        qp.modify(&Transition::Rtr(rtr)).expect(NOTE);
    }
    qps[0].modify(&Transition::Rts(RtsAttr::default())).expect(NOTE);
    for _ in 0..4 {
        srq.post(&[mr.sge(0, 64)]).expect(NOTE);
    }
    srq.ring();
    let op = Op::Read { remote: mr.remote(0), into: &[mr.sge(128, 8)] };
    qps[0].post_send(&SendRequest::signaled(op)).expect(NOTE);
    let payload = Payload::Inline(&[b"bytes"]);
    qps[0].post_send(&SendRequest::signaled(Op::Send { payload, imm: None })).expect(NOTE);
    qps[0].ring_send();
    let sent: Vec<_> = core::iter::from_fn(|| match port.issue(qps[0].qpn()) {
        Issued::Packet(packet) => Some(packet),
        _ => None,
    })
    .take(4)
    .collect();

    let mut world = World { port, numbers: qps.each_ref().map(|qp| qp.qpn()), sent };
    world.drive(bytes, (mr.addr(), mr.rkey()), || {
        while let Some(done) = cq.poll() {
            if done.kind.is_receive() {
                srq.retire(&done);
            }
        }
    });
    let mut kept = [0; REGION_BYTES];
    private.read(0, &mut kept);
    assert_eq!(kept, [0xa5; REGION_BYTES], "memory that was not registered for it");
}

/// What packets and answers are given to.
struct World<'a> {
    port: &'a VirtualPort,
    /// A connected queue pair, a DC target, and one for datagrams.
    numbers: [Qpn; 3],
    /// What the first of them has sent.
    sent: Vec<Packet>,
}

impl World<'_> {
    /// Gives packets and answers that `bytes` choose to the port, whose memory is at `place`.
    fn drive(&mut self, bytes: &[u8], place: (u64, verbs::Rkey), mut poll: impl FnMut()) {
        let mut input = Input(bytes);
        for _ in 0..64 {
            if input.is_empty() {
                break;
            }
            let came = any_packet(&mut input, self.numbers, place);
            let _ = self.port.respond(&Packet::decode(&came.encode()).unwrap_or(came));
            if let Some(packet) = self.sent.get(usize::from(input.byte() % 4)) {
                self.port.settle(&any_answer(&mut input, packet));
            }
            poll();
            let _ = self.port.issue(self.numbers[0]);
        }
    }
}

fn any_packet(input: &mut Input<'_>, numbers: [Qpn; 3], place: (u64, verbs::Rkey)) -> Packet {
    let choice = input.byte();
    let nth = usize::from(choice % 3);
    let verb = match choice >> 3 & 7 {
        0 | 1 => Verb::Send,
        2 | 3 => Verb::Write,
        4 | 5 => Verb::Read,
        6 => Verb::CompareSwap { compare: input.word(), swap: input.word() },
        _ => Verb::FetchAdd { add: input.word() },
    };
    let key = match nth {
        0 => Key::Connected,
        1 => Key::Dc(wire::ids::DcKey::new(KEY)),
        _ => Key::Ud(wire::ids::QKey::new(5)),
    };
    let [len, offset, psn, connection, odd] = [(); 5].map(|()| input.byte());
    let len_bytes = match verb {
        Verb::CompareSwap { .. } | Verb::FetchAdd { .. } => 8,
        // Longer than the region now and then.
        Verb::Read if odd & 64 != 0 => u32::from(len) << 22,
        _ => u32::from(len),
    };
    let has_payload = matches!(verb, Verb::Send | Verb::Write);
    let request = Request {
        verb,
        extent: Extent::Whole,
        key,
        from: SENDER,
        to: numbers[if odd & 3 == 3 { usize::from(odd >> 2) % 3 } else { nth }],
        service_level: 0,
        has_grh: odd & 4 != 0,
        solicited: odd & 8 != 0,
        imm: (odd & 16 != 0).then(|| input.word().to_le_bytes()[0].into()),
        len_bytes,
        addr: place.0.wrapping_add(offset.into()),
        rkey: if odd & 32 == 0 { place.1 } else { wire::ids::Rkey::new(u32::from(len) << 8) },
    };
    let sequence = Sequence { connection: u32::from(connection >> 6), psn: u32::from(psn & 15) };
    let payload = vec![0x5a; if has_payload { len_bytes as usize } else { 0 }];
    Packet { to: PORT, request, sequence, payload }
}

fn any_answer(input: &mut Input<'_>, to: &Packet) -> ReplyPacket {
    let (choice, value) = (input.byte(), input.word());
    let reply = match choice & 7 {
        0..3 => Reply::Ack,
        3 => Reply::Value(value),
        4 => Reply::NotReady { wait_ns: value },
        5 => Reply::Refused(wire::cqe::Syndrome::from_code(value.to_le_bytes()[0])),
        6 => Reply::Connecting,
        _ => Reply::Dead,
    };
    let data = vec![0xc3; if choice & 8 == 0 { 8 } else { usize::from(choice >> 4) }];
    let data = if reply == Reply::Ack && choice & 128 == 0 { data } else { vec![] };
    ReplyPacket { to: to.source(), from: to.destination(), sequence: to.sequence, reply, data }
}
