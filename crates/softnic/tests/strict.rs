//! Strict mode refuses what a ConnectX would refuse, and nothing that the driver does.
#![cfg(not(any(loom, miri)))]

mod common;

use core::{ptr::NonNull, time::Duration};

use copyrpc_softnic::{Device, Violation};
use memory::sync::{AtomicU32, AtomicU64, Ordering};
use mlx5::device::{
    CqRequest, Device as _, DeviceCq as _, DeviceQp as _, PortRows, QpMemory, QpRequest, RqRequest,
};
use verbs::{
    Access, Channel as _, CompletionQueue as _, InitAttr, MemoryRegion as _, Mtu, Op, Payload,
    QKey, QpState, QueuePair as _, RcPeer, RnrTimer, RtrAttr, RtsAttr, SendRequest, Transition,
    Transport,
};
use wire::doorbell::CqArm;

use common::{End, completion, pair};

/// A queue pair in RTS that this test drives by hand, as a faulty driver would.
struct ByHand {
    device: Device,
    qp: <Device as mlx5::device::Device>::Qp,
    memory: QpMemory,
    /// Keeps the completion queue.
    _cq: <Device as mlx5::device::Device>::Cq,
    /// Keeps the port that it is connected to.
    _peer: End,
}

const LOG_BLOCKS: u8 = 4;
/// The only ones that there are.
const ROWS: PortRows = PortRows { port: 1, gid_index: 0, pkey_index: 0 };

impl ByHand {
    fn new(name: &str) -> Self {
        let peer = End::new(&common::nic(name, None), Transport::Rc);
        let device = common::nic(name, Some(7)).device().clone();
        let pd = device.alloc_pd().unwrap();
        let request = CqRequest { log_entries: 6, cqe_bytes: 64, vector: 0 };
        let (cq, _) = device.create_cq(&request, None).unwrap();
        let request = QpRequest {
            transport: Transport::Rc,
            send_cq: &cq,
            recv_cq: &cq,
            srq: None,
            log_send_blocks: Some(LOG_BLOCKS),
            recv: Some(RqRequest { log_entries: 2, log_stride: 6 }),
            scatter_to_cqe: false,
            access_key: Default::default(),
        };
        let (mut qp, memory) = device.create_qp(&pd, &request).unwrap();
        let endpoint = peer.endpoint();
        let init = InitAttr { access: Access::empty(), qkey: QKey::default() };
        let (qpn, address) = (endpoint.qpn, endpoint.address);
        let rtr = RtrAttr {
            path_mtu: Mtu::B4096,
            peer: Some(RcPeer { qpn, address, rq_psn: Default::default() }),
            rnr_timer: RnrTimer::at_least(core::time::Duration::ZERO),
            reads_in_max: 1,
        };
        qp.modify(&Transition::Init(init), ROWS).unwrap();
        qp.modify(&Transition::Rtr(rtr), ROWS).unwrap();
        qp.modify(&Transition::Rts(RtsAttr::default()), ROWS).unwrap();
        Self { device, qp, memory, _cq: cq, _peer: peer }
    }

    /// First 16 bytes of a NOP at `index`.
    fn nop(&self, index: u16) -> [u8; 16] {
        let [index_high, index_low] = index.to_be_bytes();
        let [_, a, b, c] = self.memory.qpn.get().to_be_bytes();
        [0, index_high, index_low, 0, a, b, c, 1, 0, 0, 0, 8, 0, 0, 0, 0]
    }

    fn write(&self, index: u16, octoword: [u8; 16]) {
        let ring = self.memory.send.unwrap().ring;
        let at = usize::from(index) % (1 << LOG_BLOCKS) * 64;
        // SAFETY: inside the ring, by the line above.
        let wqe = unsafe { ring.add(at) }.cast::<[u8; 16]>();
        // SAFETY: only this thread writes the ring, and the engine reads it in `ring`.
        unsafe { wqe.write(octoword) };
    }

    fn announce(&self, posted: u16) {
        let record: NonNull<u32> = self.memory.send.unwrap().dbrec;
        // SAFETY: the doorbell record, which only this thread writes and the engine reads in `ring`.
        unsafe { record.write(wire::doorbell::counter_word(posted)) };
    }

    fn ring(&mut self, octoword: [u8; 16]) {
        self.qp.ring(*octoword.first_chunk().unwrap());
    }

    /// What was refused; the queue pair has to be in ERR.
    fn refused(&self) -> Vec<Violation> {
        assert_eq!(self.qp.state(), QpState::Err);
        self.device.take_violations()
    }
}

#[test]
fn what_the_driver_does_by_hand_is_accepted() {
    let mut qp = ByHand::new("hand");
    for index in 0..40 {
        qp.write(index, qp.nop(index));
        qp.announce(index + 1);
        qp.ring(qp.nop(index));
    }
    assert_eq!((qp.qp.state(), qp.device.take_violations()), (QpState::Rts, vec![]));
}

#[test]
fn a_doorbell_without_its_record_is_refused() {
    let mut qp = ByHand::new("norecord");
    qp.write(0, qp.nop(0));
    qp.ring(qp.nop(0));
    let qpn = qp.memory.qpn.get();
    let expected = Violation::DoorbellRecord { qpn, index: 0, blocks: 1, record: 0 };
    assert_eq!(qp.refused(), [expected]);
}

/// Pitfall 2: a receive doorbell is the record alone; receive WQEs have no register.
#[test]
fn pitfall_02_a_receive_rung_on_the_send_register_is_refused() {
    let mut qp = ByHand::new("recvrung");
    qp.write(0, qp.nop(0));
    qp.announce(1);
    // A scatter entry: byte count, key, address.
    let recv = [0, 0, 16, 0, 0, 0, 1, 7, 0, 0, 0, 0, 0, 16, 0, 0];
    qp.ring(recv);
    assert!(matches!(qp.refused()[..], [Violation::NotInRing { .. }]));
}

/// Pitfall 3: BlueFlame is a hint; the WQE counts only in the ring.
#[test]
fn pitfall_03_a_blueflame_wqe_without_a_copy_in_the_ring_is_refused() {
    let mut qp = ByHand::new("noring");
    qp.announce(1);
    let mut block = [0u64; 8];
    for (word, bytes) in block.iter_mut().zip(qp.nop(0).chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().unwrap());
    }
    qp.qp.blueflame(&[block][..]);
    assert!(matches!(qp.refused()[..], [Violation::NotInRing { .. }]));
}

/// Which of the two it reads, a device does not say.
#[test]
fn a_blueflame_wqe_that_is_not_what_the_ring_holds_is_refused() {
    let mut qp = ByHand::new("otherring");
    let (written, mut rung) = (qp.nop(0), qp.nop(0));
    rung[15] = 1;
    qp.write(0, written);
    qp.announce(1);
    let mut block = [0u64; 8];
    for (word, bytes) in block.iter_mut().zip(rung.chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().unwrap());
    }
    qp.qp.blueflame(&[block][..]);
    assert!(matches!(qp.refused()[..], [Violation::NotInRing { .. }]));
}

#[test]
fn a_blueflame_write_of_a_bad_length_is_refused() {
    for blocks in [0, 5] {
        let mut qp = ByHand::new("bflen");
        qp.qp.blueflame(&vec![[0; 8]; blocks][..]);
        let qpn = qp.memory.qpn.get();
        let len_bytes = blocks * 64;
        assert_eq!(qp.refused(), [Violation::BlueFlameLength { qpn, len_bytes }]);
    }
}

/// Posts `octoword` as the WQE at 0, rings, and returns why it was refused.
fn cause_of(name: &str, octoword: impl Fn(&ByHand) -> [u8; 16]) -> &'static str {
    let mut qp = ByHand::new(name);
    let octoword = octoword(&qp);
    qp.write(0, octoword);
    let blocks = u16::from(octoword[7] & 0x3f).div_ceil(4).max(1);
    qp.announce(blocks);
    qp.ring(octoword);
    match qp.refused()[..] {
        [Violation::BadWqe { cause, counter: 0, .. }] => cause,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn a_wqe_with_another_index_is_refused() {
    // What lies in the ring under index 16 is the WQE at 0.
    let mut qp = ByHand::new("index");
    let nop = qp.nop(16);
    qp.write(0, nop);
    qp.announce(17);
    qp.ring(nop);
    let refused = qp.refused();
    assert!(
        matches!(refused[..], [Violation::BadWqe { counter: 0, cause: "bad index", .. }, ..]),
        "{refused:?}"
    );
}

#[test]
fn a_wqe_with_a_bad_length_is_refused() {
    let write_without_an_address = |qp: &ByHand| {
        let mut wqe = qp.nop(0);
        wqe[3] = 0x08;
        wqe
    };
    assert_eq!(cause_of("ds", write_without_an_address), "bad opcode or length");
}

#[test]
fn a_wqe_longer_than_what_was_posted_is_refused() {
    let mut qp = ByHand::new("long");
    let mut long = qp.nop(0);
    // A SEND of four blocks.
    (long[3], long[7]) = (0x0a, 13);
    qp.write(0, long);
    qp.write(1, qp.nop(1));
    qp.announce(2);
    qp.ring(qp.nop(1));
    let cause = "longer than what was posted";
    let qpn = qp.memory.qpn.get();
    assert_eq!(qp.refused()[..1], [Violation::BadWqe { qpn, counter: 0, cause }]);
}

#[test]
fn a_wqe_with_a_bad_opcode_is_refused() {
    let bad_opcode = |qp: &ByHand| {
        let mut wqe = qp.nop(0);
        wqe[3] = 0x3f;
        wqe
    };
    assert_eq!(cause_of("opcode", bad_opcode), "bad opcode or length");
}

#[test]
fn a_wqe_of_another_queue_pair_is_refused() {
    let other_number = |qp: &ByHand| {
        let mut wqe = qp.nop(0);
        wqe[6] ^= 1;
        wqe
    };
    assert_eq!(cause_of("number", other_number), "bad queue pair number");
}

/// A device cannot tell a new request that has the number of an old one.
#[test]
fn a_request_for_an_event_has_a_number_of_its_own() {
    let device = common::nic("arms", Some(7)).device().clone();
    let channel = device.create_channel().unwrap();
    let request = CqRequest { log_entries: 6, cqe_bytes: 64, vector: 0 };
    let (mut cq, memory) = device.create_cq(&request, Some(&channel)).unwrap();
    let op_own = memory.ring.cast::<AtomicU64>().as_ptr().wrapping_add(7);
    // SAFETY: the last word of the first entry; the ring lives as long as `cq`.
    let op_own = unsafe { &*op_own };
    // An entry of the first lap waits: each request that is heeded raises its event at once.
    op_own.store(0, Ordering::Relaxed);
    let record = memory.dbrec.cast::<AtomicU32>().as_ptr().wrapping_add(1);
    // SAFETY: the second word of the record, which lives as long as `cq`.
    let record = unsafe { &*record };
    let arm = |sequence, consumer_index| CqArm { sequence, solicited_only: false, consumer_index };
    let mut ask = |request: CqArm, recorded: CqArm| {
        record.store(recorded.record_word(), Ordering::Relaxed);
        cq.arm(u64::from_be(request.doorbell_word(memory.cqn)));
        (channel.wait(Duration::ZERO), device.take_violations())
    };
    for request in [arm(0, 0), arm(0, 0), arm(1, 1), CqArm { solicited_only: true, ..arm(2, 2) }] {
        assert_eq!(ask(request, request), (!request.solicited_only, vec![]), "{request:?}");
    }
    assert_eq!(ask(arm(2, 3), arm(2, 3)), (true, vec![]), "the last one may have had no event");
    let (cqn, sequence) = (memory.cqn.get(), 2);
    let refused = Violation::ArmSequence { cqn, sequence };
    assert_eq!(ask(arm(2, 4), arm(2, 4)), (false, vec![refused]));
    let (request, recorded) = (arm(3, 5), arm(3, 4));
    let refused = Violation::ArmRecord { cqn, request, recorded };
    assert_eq!(ask(request, recorded), (false, vec![refused]));
}

/// libmlx5 and the device count the same events: a completion that is not solicited raises none where the
/// queue waits for solicited ones.
#[test]
fn a_request_for_an_event_counts_no_event_that_was_not_raised() {
    let device = common::nic("ahead", Some(7)).device().clone();
    let channel = device.create_channel().unwrap();
    let request = CqRequest { log_entries: 6, cqe_bytes: 64, vector: 0 };
    let (mut cq, memory) = device.create_cq(&request, Some(&channel)).unwrap();
    let op_own = memory.ring.cast::<AtomicU64>().as_ptr().wrapping_add(7);
    // SAFETY: the last word of the first entry; the ring lives as long as `cq`.
    let op_own = unsafe { &*op_own };
    // An entry of the first lap waits, which is not solicited.
    op_own.store(0, Ordering::Relaxed);
    let record = memory.dbrec.cast::<AtomicU32>().as_ptr().wrapping_add(1);
    // SAFETY: the second word of the record, which lives as long as `cq`.
    let record = unsafe { &*record };
    let mut ask = |sequence, solicited_only| {
        let request = CqArm { sequence, solicited_only, consumer_index: 0 };
        record.store(request.record_word(), Ordering::Relaxed);
        cq.arm(u64::from_be(request.doorbell_word(memory.cqn)));
        (channel.wait(Duration::ZERO), device.take_violations())
    };
    let ahead =
        |sequence, events| vec![Violation::ArmAhead { cqn: memory.cqn.get(), sequence, events }];
    assert_eq!(ask(1, false), (false, ahead(1, 0)));
    assert_eq!(ask(0, true), (false, vec![]));
    assert_eq!(ask(1, true), (false, ahead(1, 0)), "it counts what was not solicited");
    assert_eq!(ask(0, false), (true, vec![]));
    assert_eq!(ask(2, false), (false, ahead(2, 1)));
    assert_eq!(ask(1, true), (false, vec![]));
}

/// Every operation, rung both ways, over several laps of every ring.
#[test]
fn the_driver_violates_nothing() {
    let mut ends = pair("driver", Some(11));
    let (from, to) = (ends[0].mr(4096), ends[1].mr(4096));
    let [a, b] = &mut ends;
    let room = a.qp.send_free();
    let mut arrived = Vec::new();
    for round in 0..300usize {
        b.qp.post_recv(&[to.sge(0, 64)]).unwrap();
        b.qp.ring_recv();
        let len = 1 + round % 60;
        let gather = [from.sge(0, len), from.sge(100, 0)];
        let bytes = vec![7; len];
        let payload =
            if round % 2 == 0 { Payload::Gather(&gather) } else { Payload::Inline(&[&bytes]) };
        let (remote, word, into) = (to.remote(64), from.sge(1024, 8), [from.sge(2048, len)]);
        let ops = [
            Op::Send { payload, imm: None },
            Op::Write { remote, payload, imm: None },
            Op::Read { remote, into: &into },
            Op::FetchAdd { remote: to.remote(2048), into: word, add: 1 },
            Op::CompareSwap { remote: to.remote(2048), into: word, compare: 0, swap: 1 },
            Op::Nop,
        ];
        let count = 1 + round % ops.len();
        for op in &ops[..count] {
            let last = core::ptr::eq(op, &ops[count - 1]);
            let request =
                if last { SendRequest::signaled(*op) } else { SendRequest::unsignaled(*op) };
            a.qp.post_send(&request).unwrap();
            if round % 3 == 0 {
                a.qp.ring_send();
            }
        }
        a.qp.ring_send();
        loop {
            let done = completion(&mut a.cq, &mut b.cq, &mut arrived);
            assert_eq!(done.failure, None, "round {round}");
            a.qp.retire(&done);
            if a.qp.send_free() == room {
                break;
            }
        }
        while arrived.len() <= round {
            arrived.extend(b.cq.poll());
        }
        b.qp.retire(&arrived[round]);
    }
    for end in &ends {
        assert_eq!(end.nic.device().take_violations(), []);
        assert_eq!(end.qp.state(), QpState::Rts);
    }
}
