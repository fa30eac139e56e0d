//! The receive queue of a queue pair.

use hex_literal::hex;
use verbs::{
    Completion, CompletionKind, Nic as _, PostRecvError, QpState, QueuePair as _, RecvSize, Sge,
    Transport,
};
use wire::wqe::RecvWqe;

use crate::device::{Config, POISON, Qp, TestDevice, nic, ready, sge};

fn received(qp: &Qp, wqe: u16) -> Completion {
    Completion {
        qpn: qp.qpn(),
        wqe,
        kind: CompletionKind::Recv,
        failure: None,
        len_bytes: 0,
        imm: None,
        source: None,
        solicited: false,
        in_cqe: false,
    }
}

fn size(requests: u32, sges_max: u8) -> RecvSize {
    RecvSize { requests, sges_max }
}

#[test]
fn scatter_lists_match_the_manual() {
    let (nic, device, cq) = nic(TestDevice::new());
    let mut qp = ready(&nic, &Config { recv: size(4, 3), ..Config::new(Transport::Rc, &cq) });
    let ring = device.recv_ring(qp.qpn());
    ring.poison();
    let sges = [sge(0x1000, 0x11, 64), sge(0x9000, 0x99, 0), sge(0x2000, 0x22, 0x200)];
    assert_eq!(qp.post_recv(&sges), Ok(0));
    let expected = hex!(
        "00000040 00000011 0000000000001000"
        "00000200 00000022 0000000000002000"
        "00000000 00000100 0000000000000000"
    );
    let bytes = ring.all();
    assert_eq!(bytes.len(), 4 * 64, "three entries take a stride of 64");
    assert_eq!(bytes[..48], expected);
    assert!(bytes[48..].iter().all(|&byte| byte == POISON));

    assert_eq!(qp.post_recv(&[]), Ok(1), "a WRITE with immediate data needs no buffer");
    assert_eq!(ring.bytes(64, 16), hex!("00000000 00000100 0000000000000000"));
}

#[test]
fn a_list_that_fills_the_stride_has_no_end_mark() {
    let (nic, device, cq) = nic(TestDevice::new());
    let mut qp = ready(&nic, &Config { recv: size(4, 4), ..Config::new(Transport::Rc, &cq) });
    let ring = device.recv_ring(qp.qpn());
    let sges = [1, 2, 3, 4].map(|n| sge(n * 0x1000, 5, 9));
    qp.post_recv(&sges).unwrap();
    let bytes = ring.bytes(0, 64);
    let read: Vec<_> = RecvWqe::parse_rq(&bytes).unwrap().sges().map(|sge| sge.addr).collect();
    assert_eq!(read, [0x1000, 0x2000, 0x3000, 0x4000]);
    assert!(ring.bytes(64, 64).iter().all(|&byte| byte == 0));
}

/// Only dbrec[0]: a register write would hand the scatter list to the send queue.
#[test]
fn pitfall_2_receive_queues_ring_no_register() {
    let (nic, device, cq) = nic(TestDevice::new());
    let mut qp = ready(&nic, &Config::new(Transport::Rc, &cq));
    let qpn = qp.qpn();
    qp.ring_recv();
    assert_eq!(device.qp(qpn, |qp| qp.received), 0);
    for count in 1..=20 {
        qp.post_recv(&[sge(0x1000, 1, 64)]).unwrap();
        assert_eq!(device.qp_record(qpn), [count - 1, 0], "posting tells nothing");
        qp.ring_recv();
        assert_eq!(device.qp_record(qpn), [count, 0]);
        assert_eq!(device.qp(qpn, |qp| qp.received), count, "told after the record");
    }
    assert!(device.qp(qpn, |qp| qp.rings.is_empty() && qp.blueflames.is_empty()));
}

#[test]
fn entries_are_reused_when_they_are_retired() {
    let (nic, device, cq) = nic(TestDevice::new());
    let mut qp = ready(&nic, &Config { recv: size(3, 1), ..Config::new(Transport::Rc, &cq) });
    let ring = device.recv_ring(qp.qpn());
    for index in 0..3u16 {
        assert_eq!(qp.post_recv(&[sge(u64::from(index), 1, 1)]), Ok(index));
    }
    let full = PostRecvError::QueueFull { requests: 3 };
    let one: &[Sge] = &[sge(0, 1, 1)];
    assert_eq!(qp.post_recv(one), Err(full));
    let completion = received(&qp, 0);
    qp.retire(&completion);
    assert_eq!(qp.post_recv(one), Err(full), "the device does not know of it yet");
    qp.ring_recv();
    for index in 3..200u16 {
        let completion = received(&qp, index - 3);
        qp.retire(&completion);
        qp.retire(&completion);
        assert_eq!(qp.post_recv(&[sge(u64::from(index), 1, 1)]), Ok(index));
        assert_eq!(qp.post_recv(one), Err(full), "a second retirement gives nothing");
        qp.ring_recv();
        let entry = ring.bytes(usize::from(index % 4) * 16, 16);
        assert_eq!(entry[8..], u64::from(index).to_be_bytes());
    }
    // Receives complete in order: the last one ends all three, in whatever order they are retired.
    for index in [199, 197, 198] {
        let completion = received(&qp, index);
        qp.retire(&completion);
    }
    for _ in 0..3 {
        qp.post_recv(one).unwrap();
    }
    assert_eq!(qp.post_recv(one), Err(full));
}

#[test]
#[cfg_attr(miri, ignore = "65,536 requests; the unit tests of `rq` start at the wrap")]
fn the_receive_counter_wraps_at_16_bits() {
    let (nic, device, cq) = nic(TestDevice::new());
    let mut qp = ready(&nic, &Config::new(Transport::Rc, &cq));
    for count in 0..0x1_0005u32 {
        let index = qp.post_recv(&[]).unwrap();
        assert_eq!(u32::from(index), count & 0xffff);
        qp.ring_recv();
        let completion = received(&qp, index);
        qp.retire(&completion);
    }
    assert_eq!(device.qp_record(qp.qpn()), [5, 0]);
}

#[test]
fn receives_that_break_a_rule_change_nothing() {
    let (nic, device, cq) = nic(TestDevice::new());
    let config = Config::new(Transport::Rc, &cq);
    let mut qp = nic.create_qp(&(), &config).unwrap();
    let two = [sge(0, 1, 1), sge(8, 1, 1)];
    assert_eq!(qp.post_recv(&[]), Err(PostRecvError::State(QpState::Reset)));
    crate::device::make_ready(&mut qp);
    assert_eq!(qp.post_recv(&two), Err(PostRecvError::TooManySges { asked: 2, max: 1 }));
    qp.ring_recv();
    assert_eq!(device.qp_record(qp.qpn()), [0, 0]);
    assert_eq!(qp.post_recv(&[]), Ok(0));

    let mut dci = ready(&nic, &Config::new(Transport::Dci, &cq));
    assert_eq!(dci.post_recv(&[]), Err(PostRecvError::NoQueue));
}
