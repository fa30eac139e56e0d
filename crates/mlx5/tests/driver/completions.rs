//! Completions, written as a device writes them.

use copyrpc_mlx5::{CqeSize, Nic, Options};
use verbs::{
    Arm, ArmError, Completion, CompletionKind, CompletionQueue as _, CqConfig, Nic as _, Op, Qpn,
    QueuePair as _, SendRequest, Source, SrqConfig, Transport, WcFailure, WcStatus,
};
use wire::{
    cqe::{self, CqeView, ErrorCqe, RequesterCqe, ResponderCqe, ResponderKind, Scatter, Syndrome},
    doorbell::CqArm,
    ids::{Lid, UserIndex},
    wqe::Opcode,
};

use crate::device::{Config, Cq, TestChannel, TestDevice, nic, ready};

fn cq(entries: u32, cqe_size: CqeSize) -> (TestDevice, Cq) {
    let device = TestDevice::new();
    let options = Options { cqe_size, ..Options::default() };
    let nic = Nic::new(device.clone()).with_options(options);
    let cq = nic.create_cq(&CqConfig::new(entries), Some(&TestChannel)).unwrap();
    (device, cq)
}

fn qpn(raw: u32) -> Qpn {
    Qpn::new(raw).unwrap()
}

fn requester(opcode: Opcode, wqe_counter: u16) -> RequesterCqe<'static> {
    RequesterCqe {
        opcode,
        qpn: qpn(0x123),
        wqe_counter,
        user_index: UserIndex::default(),
        byte_cnt: 0,
        scatter: Scatter::Memory,
        timestamp: 0,
    }
}

fn sent(wqe_counter: u16) -> CqeView<'static> {
    CqeView::Requester(requester(Opcode::Send, wqe_counter))
}

fn responder(kind: ResponderKind, qpn: Qpn) -> ResponderCqe<'static> {
    let source = cqe::Source {
        qpn: Qpn::new(0x77).unwrap(),
        slid: Lid::new(9),
        grh: 1,
        ..Default::default()
    };
    ResponderCqe {
        kind,
        qpn,
        wqe_counter: 0x4142,
        user_index: UserIndex::default(),
        byte_cnt: 100,
        scatter: Scatter::Memory,
        source: Some(source),
        solicited: false,
        timestamp: 0,
    }
}

fn completion(kind: CompletionKind, wqe: u16) -> Completion {
    Completion {
        qpn: qpn(0x123),
        wqe,
        kind,
        failure: None,
        len_bytes: 0,
        imm: None,
        source: None,
        solicited: false,
        in_cqe: false,
    }
}

#[test]
fn new_entries_are_marked_as_not_written() {
    for (cqe_size, stride) in [(CqeSize::B64, 64), (CqeSize::B128, 128)] {
        let (device, mut cq) = cq(4, cqe_size);
        let bytes = device.cq_ring(cq.cqn()).all();
        assert!(bytes.chunks(stride).all(|entry| entry[stride - 1] == 0xf0));
        assert_eq!(cq.poll(), None);
        assert_eq!(device.idles(cq.cqn()), 1, "the device may use the time");
    }
}

#[test]
fn each_entry_is_returned_once_per_lap() {
    for cqe_size in [CqeSize::B64, CqeSize::B128] {
        let (device, mut cq) = cq(4, cqe_size);
        let mut consumed = 0;
        for burst in [1, 4, 3, 2, 4, 4, 1, 4, 4, 4] {
            assert_eq!(cq.poll(), None);
            for wqe in consumed..consumed + burst {
                device.complete(cq.cqn(), &sent(wqe));
            }
            for _ in 0..burst {
                let polled = cq.poll();
                assert_eq!(polled, Some(completion(CompletionKind::Send, consumed)));
                consumed += 1;
                assert_eq!(device.cq_record(cq.cqn())[0], u32::from(consumed), "given back");
            }
        }
        assert_eq!(cq.poll(), None);
        assert_eq!(cq.malformed(), 0);
    }
}

#[test]
fn the_kind_follows_from_the_send_opcode() {
    let (device, mut cq) = cq(8, CqeSize::B64);
    for (opcode, kind, len_bytes) in [
        (Opcode::Send, CompletionKind::Send, 0),
        (Opcode::SendImm, CompletionKind::Send, 0),
        (Opcode::RdmaWrite, CompletionKind::Write, 0),
        (Opcode::RdmaWriteImm, CompletionKind::Write, 0),
        (Opcode::RdmaRead, CompletionKind::Read, 512),
        (Opcode::AtomicCs, CompletionKind::CompareSwap, 8),
        (Opcode::AtomicFa, CompletionKind::FetchAdd, 8),
        (Opcode::Nop, CompletionKind::Nop, 0),
    ] {
        let done = RequesterCqe { byte_cnt: 512, ..requester(opcode, 5) };
        device.complete(cq.cqn(), &CqeView::Requester(done));
        assert_eq!(cq.poll(), Some(Completion { len_bytes, ..completion(kind, 5) }));
    }
}

#[test]
fn receives_say_what_arrived_and_from_whom() {
    let (nic, device, mut cq) = nic(TestDevice::new());
    let rc = ready(&nic, &Config::new(Transport::Rc, &cq));
    let ud = ready(&nic, &Config::new(Transport::Ud, &cq));
    let srq = nic.create_srq(&(), &SrqConfig { entries: 4, sges_max: 1 }).unwrap();
    let dct = ready(&nic, &Config { srq: Some(&srq), ..Config::new(Transport::Dct, &cq) });
    let source = Some(Source { qpn: qpn(0x77), lid: Lid::new(9), has_grh: true });
    for (qp, len_bytes, source) in [(&rc, 100, None), (&ud, 60, source), (&dct, 100, source)] {
        for (arrived, kind, imm) in [
            (ResponderKind::Send, CompletionKind::Recv, None),
            (ResponderKind::SendImm(0x0102_0304), CompletionKind::Recv, Some(0x0102_0304)),
            (ResponderKind::WriteImm(9), CompletionKind::RecvWriteImm, Some(9)),
        ] {
            let done = ResponderCqe { solicited: imm.is_some(), ..responder(arrived, qp.qpn()) };
            device.complete(cq.cqn(), &CqeView::Responder(done));
            let expected = Completion {
                qpn: qp.qpn(),
                len_bytes,
                imm,
                source,
                solicited: imm.is_some(),
                ..completion(kind, 0x4142)
            };
            assert_eq!(cq.poll(), Some(expected));
        }
    }
    let ud_qpn = ud.qpn();
    drop(ud);
    let done = responder(ResponderKind::Send, ud_qpn);
    device.complete(cq.cqn(), &CqeView::Responder(done));
    assert_eq!(cq.poll().unwrap().len_bytes, 100, "the number may be that of an RC queue pair now");
}

/// Each syndrome that the manual names has a verbs code of its own; the others are told as they are.
#[test]
fn syndromes_become_verbs_codes() {
    let mut seen = Vec::new();
    for &syndrome in Syndrome::NAMED.iter().chain(&[Syndrome::Other(0x77)]) {
        let (device, mut cq) = cq(2, CqeSize::B64);
        let error = ErrorCqe {
            is_requester: true,
            qpn: qpn(1),
            wqe_counter: 0,
            user_index: UserIndex::default(),
            send_opcode: 0,
            syndrome,
            vendor_syndrome: 0x81,
        };
        device.complete(cq.cqn(), &CqeView::Error(error));
        let failure = cq.poll().unwrap().failure.unwrap();
        assert!(!seen.contains(&failure.status), "{syndrome}: {failure}");
        let is_named = Syndrome::NAMED.contains(&syndrome);
        assert_eq!(failure.vendor, if is_named { 0x81 } else { 0x7781 });
        assert_eq!(failure.status == WcStatus::General, !is_named);
        seen.push(failure.status);
    }
}

#[test]
fn pitfall_4_an_error_of_an_unsignaled_request_is_reported() {
    let (nic, device, mut cq) = nic(TestDevice::new());
    let mut qp = ready(&nic, &Config::new(Transport::Rc, &cq));
    let index = qp.post_send(&SendRequest::unsignaled(Op::Nop)).unwrap();
    qp.ring_send();
    for (is_requester, kind) in
        [(true, CompletionKind::SendError), (false, CompletionKind::RecvError)]
    {
        let error = ErrorCqe {
            is_requester,
            qpn: qp.qpn(),
            wqe_counter: index,
            user_index: UserIndex::default(),
            send_opcode: 0,
            syndrome: Syndrome::RetryExceeded,
            vendor_syndrome: 0x81,
        };
        device.complete(cq.cqn(), &CqeView::Error(error));
        let polled = cq.poll().unwrap();
        assert_eq!((polled.qpn, polled.wqe, polled.kind), (qp.qpn(), index, kind));
        let failure = WcFailure { status: WcStatus::RetryExceeded, vendor: 0x81 };
        assert_eq!(polled.failure, Some(failure));
        qp.retire(&polled);
    }
    assert_eq!(qp.send_free(), 64);
}

#[test]
fn payload_in_the_entry_outlives_the_entry() {
    let payload: [u8; 32] = core::array::from_fn(|index| index.to_le_bytes()[0]);
    for cqe_size in [CqeSize::B64, CqeSize::B128] {
        for len in [0, 1, 8, 31, 32] {
            let (device, mut cq) = cq(2, cqe_size);
            let done = ResponderCqe {
                byte_cnt: u32::try_from(len).unwrap(),
                scatter: Scatter::InCqe(&payload[..len]),
                ..responder(ResponderKind::Send, qpn(5))
            };
            device.complete(cq.cqn(), &CqeView::Responder(done));
            let polled = cq.poll().unwrap();
            assert!(polled.in_cqe);
            device.cq_ring(cq.cqn()).poison();
            assert_eq!(cq.inline_data(), &payload[..len]);
        }
    }
}

#[test]
fn payload_in_front_of_the_entry_is_kept_for_receives_and_reads() {
    let payload: [u8; 64] = core::array::from_fn(|index| 0x80 | index.to_le_bytes()[0]);
    let scatter = Scatter::Preceding64;
    for len in [1u8, 8, 33, 64] {
        let byte_cnt = u32::from(len);
        let (device, mut cq) = cq(4, CqeSize::B128);
        let received = ResponderCqe { byte_cnt, scatter, ..responder(ResponderKind::Send, qpn(5)) };
        let read = RequesterCqe { byte_cnt, scatter, ..requester(Opcode::RdmaRead, 1) };
        let swapped = RequesterCqe { byte_cnt, scatter, ..requester(Opcode::AtomicCs, 2) };
        let done = [received].map(CqeView::Responder).into_iter();
        let done = done.chain([read, swapped].map(CqeView::Requester));
        for done in done.take(if len == 8 { 3 } else { 2 }) {
            device.complete_with(cq.cqn(), &done, |mut bytes| {
                bytes[..64].copy_from_slice(&payload);
                bytes
            });
            let polled = cq.poll().unwrap();
            assert_eq!((polled.in_cqe, polled.len_bytes), (true, byte_cnt));
            assert_eq!(cq.inline_data(), &payload[..usize::from(len)]);
        }
        assert_eq!(cq.poll(), None);
        assert_eq!(cq.inline_data(), [], "only of the last completion");
    }
}

/// One entry that makes no sense must not stop the queue, or hide what comes after it.
#[test]
fn malformed_entries_are_counted_and_passed_over() {
    let (device, mut cq) = cq(64, CqeSize::B64);
    let long = ResponderCqe { byte_cnt: 33, ..responder(ResponderKind::Send, qpn(5)) };
    let preceding = ResponderCqe {
        byte_cnt: 8,
        scatter: Scatter::Preceding64,
        ..responder(ResponderKind::Send, qpn(5))
    };
    let op_own = |value: u8| {
        move |mut bytes: [u8; 128]| {
            bytes[127] = bytes[127] & 1 | value;
            bytes
        }
    };
    device.complete_with(cq.cqn(), &sent(1), op_own(0x0c));
    device.complete_with(cq.cqn(), &sent(1), op_own(0x70));
    device.complete_with(cq.cqn(), &CqeView::Responder(long), op_own(0x24));
    device.complete(cq.cqn(), &CqeView::Responder(preceding));
    device.complete_with(cq.cqn(), &sent(1), |mut bytes| {
        bytes[64 + 56] = 0x7f;
        bytes
    });
    device.complete(cq.cqn(), &sent(2));
    assert_eq!(cq.poll(), Some(completion(CompletionKind::Send, 2)));
    assert_eq!((cq.malformed(), device.cq_record(cq.cqn())[0]), (5, 6));
    assert_eq!(cq.inline_data(), []);

    for _ in 0..20 {
        device.complete_with(cq.cqn(), &sent(3), op_own(0x70));
    }
    device.complete(cq.cqn(), &sent(4));
    assert_eq!(cq.poll(), None, "one call passes over so many and no more");
    assert_eq!(cq.poll(), Some(completion(CompletionKind::Send, 4)));
    assert_eq!(cq.malformed(), 25);
}

/// An embedded device works only while it is called.
#[test]
fn a_queue_that_is_never_empty_lets_its_device_get_on() {
    for kind in [ResponderKind::WriteImm(1), ResponderKind::Send] {
        let (device, mut cq) = cq(64, CqeSize::B64);
        let arrived = CqeView::Responder(responder(kind, qpn(5)));
        for polled in 0..100 {
            device.complete(cq.cqn(), &arrived);
            device.complete(cq.cqn(), &arrived);
            assert!(cq.poll().is_some() && cq.poll().is_some());
            let idles = device.idles(cq.cqn());
            assert!(idles >= polled / 16, "{kind:?}: {idles} times after {} polls", 2 * polled);
        }
    }
}

#[test]
fn arming_writes_the_record_then_the_doorbell() {
    let (device, mut cq) = cq(4, CqeSize::B64);
    let cqn = cq.cqn();
    let armed = |expected: CqArm| {
        assert_eq!(CqArm::of_record_word(device.cq_record(cqn)[1].to_be()), expected);
        let doorbell = device.arms().last().unwrap().to_be();
        assert_eq!(CqArm::of_doorbell_word(doorbell), (expected, cqn));
    };
    let request = |sequence, solicited_only, consumer_index| CqArm {
        sequence,
        solicited_only,
        consumer_index,
    };
    cq.arm(Arm::Next).unwrap();
    armed(request(0, false, 0));
    assert_eq!(device.arms(), [u64::from(cqn.get())], "sequence, command, index; number");
    cq.arm(Arm::Solicited).unwrap();
    armed(request(0, true, 0));
    assert_eq!(device.arms()[1], 1 << 56 | u64::from(cqn.get()));
    cq.arm(Arm::Next).unwrap();
    armed(request(0, false, 0));

    // Each of these completions raises an event, polled before the next request or not.
    device.complete(cqn, &sent(1));
    cq.arm(Arm::Next).unwrap();
    armed(request(1, false, 0));
    assert!(cq.poll().is_some());
    cq.arm(Arm::Next).unwrap();
    armed(request(2, false, 1));
    cq.arm(Arm::Next).unwrap();
    armed(request(2, false, 1));
    for (wqe, sequence) in [(2, 3), (3, 0), (4, 1)] {
        device.complete(cqn, &sent(wqe));
        assert!(cq.poll().is_some());
        cq.arm(Arm::Next).unwrap();
        armed(request(sequence, false, u32::from(wqe)));
    }
}

/// libmlx5 counts the events that it was told of; a number that is ahead is not heeded.
#[test]
fn what_is_not_solicited_raises_no_event_of_a_queue_armed_for_solicited_ones() {
    let (device, mut cq) = cq(8, CqeSize::B64);
    let cqn = cq.cqn();
    let arrived = |solicited| {
        CqeView::Responder(ResponderCqe { solicited, ..responder(ResponderKind::Send, qpn(5)) })
    };
    let sequence = |cq: &mut Cq, which| {
        cq.arm(which).unwrap();
        CqArm::of_record_word(device.cq_record(cqn)[1].to_be()).sequence
    };
    assert_eq!(sequence(&mut cq, Arm::Solicited), 0);
    // Polled, and not yet polled.
    for _ in 0..2 {
        device.complete(cqn, &arrived(false));
        assert_eq!(sequence(&mut cq, Arm::Solicited), 0);
        assert!(cq.poll().is_some());
        assert_eq!(sequence(&mut cq, Arm::Solicited), 0);
    }
    // One that is, behind one that is not, raises one: for each request that comes before it is polled.
    device.complete(cqn, &arrived(false));
    device.complete(cqn, &arrived(true));
    assert_eq!(sequence(&mut cq, Arm::Solicited), 1);
    assert!(cq.poll().is_some() && cq.poll().is_some());
    assert_eq!(sequence(&mut cq, Arm::Next), 2);
    assert_eq!(sequence(&mut cq, Arm::Solicited), 2);
    // A failure counts as solicited.
    let error = ErrorCqe {
        is_requester: false,
        qpn: qpn(5),
        wqe_counter: 0,
        user_index: UserIndex::default(),
        send_opcode: 0,
        syndrome: Syndrome::Flushed,
        vendor_syndrome: 0,
    };
    device.complete(cqn, &CqeView::Error(error));
    assert_eq!(sequence(&mut cq, Arm::Next), 3);
}

#[test]
fn a_queue_without_a_channel_cannot_be_armed() {
    let (_, device, mut cq) = nic(TestDevice::new());
    assert_eq!(cq.arm(Arm::Next), Err(ArmError::NoChannel));
    assert!(device.arms().is_empty());
}
