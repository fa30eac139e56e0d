//! Devices that make more than they are asked for, or something else.

use std::env;

use copyrpc_mlx5::{Nic, device::check_environment};
use verbs::{
    CompletionQueue as _, CqConfig, CreateError, Nic as _, Op, Payload, PostRecvError,
    PostSendError, QpState, QueuePair as _, RecvSize, RemoteSlice, Rkey, SendRequest, SendSize,
    SharedReceiveQueue as _, SrqConfig, Transition, Transport,
};
use wire::wqe::{RecvWqe, SendWqe, Transport as Reader};

use crate::device::{Config, Qp, TestDevice, nic, ready, sge};

const NOP: SendRequest<'static> = SendRequest::signaled(Op::Nop);

fn sent(qp: &Qp, wqe: u16, kind: verbs::CompletionKind) -> verbs::Completion {
    verbs::Completion {
        qpn: qp.qpn(),
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

fn write<'a>(bytes: &'a [&'a [u8]]) -> SendRequest<'a> {
    let payload = Payload::Inline(bytes);
    let remote = RemoteSlice { addr: 0x1000, rkey: Rkey::new(1) };
    SendRequest::signaled(Op::Write { remote, payload, imm: None })
}

/// The rings are two and four times as large, and full of something; what can be outstanding is what was
/// asked for, because the completion queue has room for that.
#[test]
fn rings_that_were_rounded_up_are_used_whole() {
    for powers in [1, 2] {
        let (nic, device, cq) = nic(TestDevice::new().generous(powers));
        assert_eq!(cq.entries(), 64 << powers);
        let send = SendSize { requests: 4, sges_max: 1, inline_bytes_max: 28 };
        let recv = RecvSize { requests: 4, sges_max: 2 };
        let mut qp = ready(&nic, &Config { send, recv, ..Config::new(Transport::Rc, &cq) });
        let (sends, receives) = (device.send_ring(qp.qpn()), device.recv_ring(qp.qpn()));
        let blocks = 4u16 << powers;
        assert_eq!(sends.blocks(), usize::from(blocks));
        let stride = 32 << powers;
        for turn in 0..3 * blocks {
            let data = turn.to_le_bytes();
            assert_eq!(qp.post_send(&write(&[&data])), Ok(turn));
            let wqe = sends.bytes(usize::from(turn) * 64, 64);
            let wqe = SendWqe::parse(&wqe, Reader::Rc).unwrap();
            assert_eq!((wqe.ctrl().index, wqe.len_bytes()), (turn, 2));
            assert_eq!(qp.post_recv(&[sge(turn.into(), 7, 9)]), Ok(turn));
            let wqe = receives.bytes(usize::from(turn) * stride, stride);
            let wqe = RecvWqe::parse_rq(&wqe).unwrap();
            let sges: Vec<_> = wqe.sges().map(|sge| (sge.addr, sge.len_bytes)).collect();
            assert_eq!(sges, [(turn.into(), 9)], "a list that ends before its longer entry does");
            qp.ring_send();
            qp.ring_recv();
            for kind in [verbs::CompletionKind::Write, verbs::CompletionKind::Recv] {
                let done = sent(&qp, turn, kind);
                qp.retire(&done);
            }
        }
        for _ in 0..4 {
            qp.post_send(&NOP).unwrap();
            qp.post_recv(&[]).unwrap();
        }
        assert_eq!(qp.post_send(&NOP), Err(PostSendError::QueueFull { requests: 4 }));
        assert_eq!(qp.post_recv(&[]), Err(PostRecvError::QueueFull { requests: 4 }));
    }
}

/// Its links are written over whatever the device left there.
#[test]
fn shared_rings_that_were_rounded_up_are_linked_from_their_first_entry() {
    for (powers, entries) in [(1, 8), (2, 16)] {
        let device = TestDevice::new().generous(powers);
        let nic = Nic::new(device.clone());
        let mut srq = nic.create_srq(&(), &SrqConfig { entries: 3, sges_max: 1 }).unwrap();
        let (ring, stride) = (device.srq_ring(srq.srqn()), 32 << powers);
        assert_eq!(ring.all().len(), entries * stride);
        let mut at = 0;
        let mut next = 0;
        for turn in 0..40_u64 {
            let index = srq.post(&[sge(turn, 1, 8)]).unwrap();
            srq.ring();
            assert_eq!(index, next, "the device follows the links");
            let wqe = ring.bytes(usize::from(index) * stride, stride);
            let wqe = RecvWqe::parse_srq(&wqe).unwrap();
            assert_eq!(wqe.sges().map(|sge| sge.addr).collect::<Vec<_>>(), [turn]);
            next = wqe.next_wqe_index.unwrap();
            at += usize::from(usize::from(next) < entries);
            let done = verbs::Completion {
                qpn: verbs::Qpn::default(),
                wqe: index,
                kind: verbs::CompletionKind::Recv,
                failure: None,
                len_bytes: 8,
                imm: None,
                source: None,
                solicited: false,
                in_cqe: false,
            };
            srq.retire(&done);
        }
        assert_eq!(at, 40, "every link leads into the ring");
        for _ in 0..3 {
            srq.post(&[]).unwrap();
        }
        assert_eq!(srq.post(&[]), Err(PostRecvError::QueueFull { requests: 3 }));
    }
}

/// `MLX5_CQE_SIZE` makes libmlx5 do that.
#[test]
fn entries_of_another_size_are_refused() {
    let nic = Nic::new(TestDevice::new().with_wide_cqes());
    let error = nic.create_cq(&CqConfig::new(4), None).unwrap_err();
    assert!(error.to_string().contains("128 B instead of 64 B"), "{error}");
}

#[test]
fn an_environment_that_changes_layouts_is_refused() {
    assert_eq!(check_environment(env::consts::ARCH, |_| None::<()>), Ok(()));
    for name in ["MLX5_QP_SIGNATURE", "MLX5_SRQ_SIGNATURE", "MLX5_CQE_SIZE"] {
        let error =
            check_environment("x86_64", |asked| (asked == name).then_some("1")).unwrap_err();
        assert!(matches!(error, CreateError::System { .. }) && error.to_string().contains(name));
    }
}

#[test]
fn a_processor_with_unknown_barriers_is_refused() {
    let refused = check_environment("riscv64", |_| None::<()>).unwrap_err();
    assert!(refused.to_string().contains("riscv64"), "{refused}");
    assert_eq!(check_environment("aarch64", |_| None::<()>), Ok(()));
}

/// Queue pairs of one register write its halves in turns, whoever writes; and with a register that takes
/// no WQE they ring by its first word.
#[test]
fn queue_pairs_may_share_a_register() {
    let (nic, device, cq) = nic(TestDevice::new().with_blueflame(128).with_one_register());
    let [mut first, mut second] = [(); 2].map(|()| ready(&nic, &Config::new(Transport::Rc, &cq)));
    let register = device.register();
    first.post_send(&write(&[&[1; 20]])).unwrap();
    first.ring_send();
    second.post_send(&write(&[&[2; 90]])).unwrap();
    second.ring_send();
    assert_eq!(register.bytes(0, 64), device.send_ring(first.qpn()).bytes(0, 64));
    assert_eq!(register.bytes(128, 128), device.send_ring(second.qpn()).bytes(0, 128));
    second.post_send(&NOP).unwrap();
    second.post_send(&NOP).unwrap();
    second.ring_send();
    let ctrl = device.send_ring(second.qpn()).bytes(3 * 64, 8);
    assert_eq!(register.bytes(0, 8), ctrl, "back in the first half");

    let (nic, device, cq) =
        crate::device::nic(TestDevice::new().with_blueflame(0).with_one_register());
    let [mut first, mut second] = [(); 2].map(|()| ready(&nic, &Config::new(Transport::Rc, &cq)));
    for qp in [&mut first, &mut second] {
        qp.post_send(&NOP).unwrap();
        qp.ring_send();
        let ctrl = device.send_ring(qp.qpn()).bytes(0, 8);
        assert_eq!(device.register().bytes(0, 8), ctrl);
        assert_eq!(device.qp(qp.qpn(), |qp| (qp.rings.len(), qp.blueflames.len())), (1, 0));
    }
}

/// Over libmlx5 the memory goes with the queue pair: what it completed is looked at in between.
#[test]
fn a_queue_pair_is_reset_before_it_is_destroyed() {
    let (nic, device, cq) = nic(TestDevice::new());
    let qp = ready(&nic, &Config::new(Transport::Rc, &cq));
    let qpn = qp.qpn();
    assert_eq!(qp.state(), QpState::Rts);
    drop(qp);
    let last = device.qp(qpn, |qp| qp.transitions.last().copied());
    assert_eq!((last, device.dropped()), (Some(Transition::Reset), 1));
}
