//! The bytes of send WQEs: each operation, transport and place in the ring.

use hex_literal::hex;
use verbs::{
    AddressVector, DcKey, Destination, Gid, GidRoute, Lid, Nic as _, Op, Payload, PortRoute,
    PostSendError, QKey, QpAddress, QpState, Qpn, QueuePair as _, RemoteSlice, Rkey, SendFlags,
    SendRequest, SendSize, SrqConfig, Transition, Transport,
};
use wire::wqe::{self, CtrlFlags, Segment, SendWqe};

use crate::device::{Config, POISON, Qp, TestDevice, make_ready, nic, ready, sge};

const REMOTE: RemoteSlice =
    RemoteSlice { addr: 0x1122_3344_5566_7788, rkey: Rkey::new(0x99aa_bbcc) };

fn at_lid() -> QpAddress {
    let address = AddressVector { route: PortRoute::Lid(Lid::new(0x1234)), service_level: 3 };
    QpAddress { address, qpn: Qpn::new(0x00_4321).unwrap() }
}

fn at_gid() -> QpAddress {
    let route = GidRoute {
        gid: Gid::new(hex!("20010db8000000000000000000000042")),
        hop_limit: 64,
        traffic_class: 0x6a,
        flow_label: 0x1_2345,
    };
    let address = AddressVector { route: PortRoute::Gid(route), service_level: 2 };
    QpAddress { address, qpn: Qpn::new(0x00_4321).unwrap() }
}

fn ud() -> Destination {
    Destination::Ud { to: at_lid(), qkey: QKey::new(0x1111_1111) }
}

fn dc(to: QpAddress) -> Destination {
    Destination::Dc { to, key: DcKey::new(0xdc00_0000_0000_00cd) }
}

/// Posts `request` on a fresh queue pair of poisoned memory; returns what is in its ring then.
fn posted(device: TestDevice, transport: Transport, request: &SendRequest<'_>) -> Vec<u8> {
    let (nic, device, cq) = nic(device);
    let send = SendSize { requests: 2, sges_max: 4, inline_bytes_max: 924 };
    let mut qp = ready(&nic, &Config { send, ..Config::new(transport, &cq) });
    device.send_ring(qp.qpn()).poison();
    assert_eq!(qp.post_send(request), Ok(0));
    device.send_ring(qp.qpn()).all()
}

#[track_caller]
fn assert_starts(ring: &[u8], expected: &[u8]) {
    assert_eq!(ring[..expected.len()], *expected, "the WQE");
    assert!(ring[expected.len()..].iter().all(|&byte| byte == POISON), "nothing behind it");
}

/// `mlx5_wqe_ctrl_seg`, `mlx5_wqe_inl_data_seg`, by hand.
#[test]
fn send_inline_matches_the_manual() {
    let payload = Payload::Inline(&[b"0123456789", b"", b"abcdefg"]);
    let request = SendRequest::signaled(Op::Send { payload, imm: None });
    let ring = posted(TestDevice::new(), Transport::Rc, &request);
    let expected = hex!(
        "00 0000 0a  abcdef 03  00 0000 08  00000000"
        "80000011 30313233 34353637 38396162"
        "63646566 67000000 00000000 00000000"
    );
    assert_starts(&ring, &expected);
}

/// `mlx5_wqe_raddr_seg`, `mlx5_wqe_data_seg`, by hand. An empty entry is left out: pitfall 5.
#[test]
fn write_imm_gather_matches_the_manual_and_skips_empty_entries() {
    let sges = [sge(0x7000, 1, 0), sge(0x7fff_0000_1000, 0x0102_0304, 64), sge(0x8000, 5, 0x100)];
    let payload = Payload::Gather(&sges);
    let op = Op::Write { remote: REMOTE, payload, imm: Some(0xdead_beef) };
    let request = SendRequest::unsignaled(op).with(SendFlags::SOLICITED);
    let ring = posted(TestDevice::new(), Transport::Rc, &request);
    let expected = hex!(
        "00 0000 09  abcdef 04  00 0000 02  deadbeef"
        "1122334455667788 99aabbcc 00000000"
        "00000040 01020304 00007fff00001000"
        "00000100 00000005 0000000000008000"
    );
    assert_starts(&ring, &expected);
}

#[test]
fn read_matches_the_manual() {
    let op = Op::Read { remote: REMOTE, into: &[sge(0x5000, 0x77, 4096)] };
    let request = SendRequest::signaled(op).with(SendFlags::FENCE);
    let ring = posted(TestDevice::new(), Transport::Rc, &request);
    let expected = hex!(
        "00 0000 10  abcdef 03  00 0000 88  00000000"
        "1122334455667788 99aabbcc 00000000"
        "00001000 00000077 0000000000005000"
    );
    assert_starts(&ring, &expected);
}

/// `mlx5_wqe_atomic_seg` has the new value first, then the expected one.
#[test]
fn compare_swap_matches_the_manual() {
    let into = sge(0x5008, 0x77, 8);
    let op = Op::CompareSwap { remote: REMOTE, into, compare: 0x0102, swap: 0xa1a2_a3a4_a5a6_a7a8 };
    let ring = posted(TestDevice::new(), Transport::Rc, &SendRequest::signaled(op));
    let expected = hex!(
        "00 0000 11  abcdef 04  00 0000 08  00000000"
        "1122334455667788 99aabbcc 00000000"
        "a1a2a3a4a5a6a7a8 0000000000000102"
        "00000008 00000077 0000000000005008"
    );
    assert_starts(&ring, &expected);
}

/// `mlx5_wqe_av`: queue key, extended bit and number, rate and level, path bits, LID.
#[test]
fn ud_send_to_a_lid_matches_the_manual() {
    let payload = Payload::Gather(&[sge(0x6000, 0x88, 256)]);
    let to = ud();
    let request = SendRequest::signaled(Op::Send { payload, imm: Some(7) }).to(&to);
    let ring = posted(TestDevice::new(), Transport::Ud, &request);
    let expected = hex!(
        "00 0000 0b  abcdef 05  00 0000 08  00000007"
        "11111111 00000000 80004321 03 00 1234"
        "00000000 000000000000 00 00 00000000"
        "00000000000000000000000000000000"
        "00000100 00000088 0000000000006000"
    );
    assert_starts(&ring, &expected);
}

/// Pitfall 5: priority at 12, shifted by one, MAC at 20, traffic class 26, hop limit 27, GID index and
/// flow label 28, GID 32. The GRH bit is reserved on RoCE; the flow label 0x12345 becomes UDP port
/// 0xc000 | 0x2345 ^ 0x4.
#[test]
fn pitfall_5_dc_write_to_a_gid_matches_the_manual() {
    let payload = Payload::Inline(&[&[0x5a; 12]]);
    let to = dc(at_gid());
    let op = Op::Write { remote: REMOTE, payload, imm: None };
    let request = SendRequest::signaled(op).to(&to);
    let ring = posted(TestDevice::new().ethernet(), Transport::Dci, &request);
    let expected = hex!(
        "00 0000 08  abcdef 06  00 0000 08  00000000"
        "dc000000000000cd 80004321 04 00 e341"
        "00000000 20010db80000 6a 40 00512345"
        "20010db8000000000000000000000042"
        "1122334455667788 99aabbcc 00000000"
        "8000000c 5a5a5a5a 5a5a5a5a 5a5a5a5a"
    );
    assert_starts(&ring, &expected);
}

/// Gives every outstanding block back, as the completion of `index` does.
fn retire(qp: &mut Qp, index: u16) {
    qp.ring_send();
    let completion = verbs::Completion {
        qpn: qp.qpn(),
        wqe: index,
        kind: verbs::CompletionKind::Send,
        failure: None,
        len_bytes: 0,
        imm: None,
        source: None,
        solicited: false,
        in_cqe: false,
    };
    qp.retire(&completion);
}

/// Moves an empty send queue on by `blocks`.
pub(crate) fn advance(qp: &mut Qp, blocks: u16) {
    for _ in 0..blocks {
        let index = qp.post_send(&SendRequest::signaled(Op::Nop)).unwrap();
        retire(qp, index);
    }
}

/// Every operation that `transport` has, with payloads of `count` entries or bytes.
fn check_all(transport: Transport, count: usize, check: &mut dyn FnMut(&SendRequest<'_>)) {
    let sges: Vec<_> = (0..count.min(4))
        .map(|index| sge(0x1000 + index as u64, 0x42, u32::try_from(index).unwrap() + 1))
        .collect();
    let bytes: Vec<u8> = (0..count).map(|index| index.to_le_bytes()[0]).collect();
    let (head, tail) = bytes.split_at(count / 3);
    let parts = [head, tail];
    let to = match transport {
        Transport::Rc | Transport::Dct => None,
        Transport::Ud => Some(ud()),
        Transport::Dci => Some(dc(at_lid())),
    };
    let mut ops = vec![Op::Nop];
    for payload in [Payload::Gather(&sges), Payload::Inline(&parts)] {
        for imm in [None, Some(0x0a0b_0c0d)] {
            ops.push(Op::Send { payload, imm });
            if transport != Transport::Ud {
                ops.push(Op::Write { remote: REMOTE, payload, imm });
            }
        }
    }
    if transport != Transport::Ud {
        let into = sge(0x9000, 0x43, 8);
        ops.push(Op::Read { remote: REMOTE, into: &sges });
        ops.push(Op::CompareSwap { remote: REMOTE, into, compare: 5, swap: 6 });
        ops.push(Op::FetchAdd { remote: REMOTE, into, add: 7 });
    }
    for op in ops {
        check(&SendRequest { op, flags: SendFlags::SIGNALED, to: to.as_ref() });
    }
}

/// What the request's WQE must say, read back by the device's own reader.
#[track_caller]
fn assert_says(wqe: &SendWqe<'_>, request: &SendRequest<'_>) {
    let sent: Vec<u8> = wqe
        .segments()
        .filter_map(|segment| match segment {
            Segment::Inline(bytes) => Some(bytes.to_vec()),
            Segment::Sge(_) => None,
        })
        .flatten()
        .collect();
    let entries: Vec<_> = wqe
        .segments()
        .filter_map(|segment| match segment {
            Segment::Sge(sge) => Some((sge.addr, sge.lkey, sge.len_bytes)),
            Segment::Inline(_) => None,
        })
        .collect();
    let listed = |sges: &[verbs::Sge]| -> Vec<_> {
        sges.iter().map(|sge| (sge.addr, sge.lkey, sge.len_bytes)).collect()
    };
    let (payload, remote) = match request.op {
        Op::Send { payload, .. } => (Some(payload), None),
        Op::Write { payload, remote, .. } => (Some(payload), Some(remote)),
        Op::Read { remote, into } => (Some(Payload::Gather(into)), Some(remote)),
        Op::CompareSwap { remote, into, .. } | Op::FetchAdd { remote, into, .. } => {
            assert_eq!(entries, listed(&[into]));
            (None, Some(remote))
        }
        Op::Nop => (None, None),
    };
    match payload {
        Some(Payload::Inline(parts)) => assert_eq!(sent, parts.concat()),
        Some(Payload::Gather(sges)) => assert_eq!(entries, listed(sges)),
        None => {}
    }
    assert_eq!(wqe.raddr().map(|raddr| (raddr.addr, raddr.rkey)), remote.map(|r| (r.addr, r.rkey)));
    let operands = match request.op {
        Op::CompareSwap { compare, swap, .. } => Some((swap, compare)),
        Op::FetchAdd { add, .. } => Some((add, 0)),
        _ => None,
    };
    assert_eq!(wqe.atomic().map(|atomic| (atomic.swap_or_add, atomic.compare)), operands);
    let has_av = request.to.is_some() && !matches!(request.op, Op::Nop);
    assert_eq!(wqe.av().is_some(), has_av);
}

/// All operations, of many lengths, so that the end of the ring falls between any two octowords of
/// any segment; with the ring's end anywhere in the WQE.
fn every_place(transport: Transport, reader: wqe::Transport, counts: &[usize]) {
    let (nic, device, cq) = nic(TestDevice::new());
    let send = SendSize { requests: 2, sges_max: 4, inline_bytes_max: 924 };
    let mut qp = ready(&nic, &Config { send, ..Config::new(transport, &cq) });
    let qpn = qp.qpn();
    let ring = device.send_ring(qpn);
    let places = if cfg!(miri) { 30..31 } else { 0..64 };
    for &count in counts {
        for place in places.clone() {
            check_all(transport, count, &mut |request| {
                let skip = (place - i32::from(device.qp_record(qpn)[1].to_le_bytes()[0])) & 31;
                advance(&mut qp, u16::try_from(skip).unwrap());
                ring.poison();
                let before = qp.send_free();
                let index = qp.post_send(request).unwrap();
                let bytes = ring.bytes(usize::from(index) * 64, 16 * 64);
                let wqe = SendWqe::parse(&bytes, reader).unwrap();
                assert_eq!((wqe.ctrl().index, wqe.ctrl().qpn), (index, qpn));
                assert_eq!(wqe.ctrl().flags, CtrlFlags::CQ_UPDATE);
                assert_says(&wqe, request);
                let len_bytes = usize::from(wqe.ctrl().octowords) * 16;
                assert_eq!(before - qp.send_free(), 1);
                let behind = ring.bytes(usize::from(index) * 64 + len_bytes, 2048 - len_bytes);
                assert!(behind.iter().all(|&byte| byte == POISON), "bytes behind the WQE");
                retire(&mut qp, index);
                assert_eq!(qp.send_free(), before);
                let next = index.wrapping_add(wqe::wqebbs(wqe.ctrl().octowords));
                assert_eq!(device.qp_record(qpn)[1], u32::from(next));
            });
        }
    }
}

const COUNTS: &[usize] = if cfg!(miri) {
    &[4, 77]
} else {
    &[0, 1, 4, 11, 12, 13, 28, 29, 44, 45, 60, 61, 77, 300, 860]
};

#[test]
#[cfg_attr(miri, ignore = "minutes; UD and DCI take the same path, with one segment more")]
fn every_operation_reads_back_at_every_place_of_an_rc_ring() {
    every_place(Transport::Rc, wqe::Transport::Rc, COUNTS);
}

#[test]
fn every_operation_reads_back_at_every_place_of_a_ud_ring() {
    every_place(Transport::Ud, wqe::Transport::Ud, COUNTS);
}

#[test]
fn every_operation_reads_back_at_every_place_of_a_dci_ring() {
    every_place(Transport::Dci, wqe::Transport::Dci, COUNTS);
}

#[test]
fn requests_that_break_a_rule_change_nothing() {
    let (nic, device, cq) = nic(TestDevice::new());
    let mut qp = ready(&nic, &Config::new(Transport::Rc, &cq));
    let ring = device.send_ring(qp.qpn());
    ring.poison();
    let two = [sge(0, 1, 1), sge(8, 1, 1)];
    let atomic = |len_bytes| Op::FetchAdd { remote: REMOTE, into: sge(0, 1, len_bytes), add: 1 };
    let inline = |payload| Op::Write { remote: REMOTE, payload, imm: None };
    let to = ud();
    let large = vec![0; 221];
    for (request, error) in [
        (
            SendRequest::signaled(inline(Payload::Gather(&two))),
            PostSendError::TooManySges { asked: 2, max: 1 },
        ),
        (
            SendRequest::signaled(inline(Payload::Inline(&[&large]))),
            PostSendError::InlineTooLong { asked_bytes: 221, max_bytes: 220 },
        ),
        (
            SendRequest::signaled(Op::Read { remote: REMOTE, into: &two }),
            PostSendError::TooManySges { asked: 2, max: 1 },
        ),
        (SendRequest::signaled(atomic(0)), PostSendError::AtomicLength(0)),
        (SendRequest::signaled(atomic(9)), PostSendError::AtomicLength(9)),
        (
            SendRequest::signaled(Op::Nop).to(&to),
            PostSendError::Transport {
                transport: Transport::Rc,
                rule: "sends to its peer alone: name no destination",
            },
        ),
    ] {
        assert_eq!(qp.post_send(&request), Err(error), "{request:?}");
    }
    assert_eq!(qp.send_free(), 64);
    assert!(ring.all().iter().all(|&byte| byte == POISON));
    qp.ring_send();
    assert!(device.qp(qp.qpn(), |qp| qp.rings.is_empty() && qp.blueflames.is_empty()));
    assert_eq!(qp.post_send(&SendRequest::signaled(Op::Nop)), Ok(0));
}

fn is_refused(qp: &mut Qp, op: Op<'_>, to: Option<&Destination>) -> bool {
    let request = SendRequest { op, flags: SendFlags::SIGNALED, to };
    matches!(qp.post_send(&request), Err(PostSendError::Transport { .. }))
}

#[test]
fn destinations_are_checked_per_transport_and_link() {
    let send = Op::Send { payload: Payload::Inline(&[b"x"]), imm: None };
    let write = Op::Write { remote: REMOTE, payload: Payload::Inline(&[b"x"]), imm: None };
    for (device, good, bad) in [
        (TestDevice::new(), at_lid(), at_gid()),
        (TestDevice::new().ethernet(), at_gid(), at_lid()),
    ] {
        let (nic, _, cq) = nic(device);
        let mut ud_qp = ready(&nic, &Config::new(Transport::Ud, &cq));
        let ud = |to| Destination::Ud { to, qkey: QKey::new(1) };
        assert!(is_refused(&mut ud_qp, send, None));
        assert!(is_refused(&mut ud_qp, send, Some(&dc(good))));
        assert!(is_refused(&mut ud_qp, send, Some(&ud(bad))));
        assert!(is_refused(&mut ud_qp, write, Some(&ud(good))));
        assert!(!is_refused(&mut ud_qp, send, Some(&ud(good))));

        let mut dci = ready(&nic, &Config::new(Transport::Dci, &cq));
        assert!(is_refused(&mut dci, write, None));
        assert!(is_refused(&mut dci, write, Some(&ud(good))));
        assert!(is_refused(&mut dci, write, Some(&dc(bad))));
        assert!(!is_refused(&mut dci, write, Some(&dc(good))));

        let srq = nic.create_srq(&(), &SrqConfig { entries: 4, sges_max: 1 }).unwrap();
        let config = Config { srq: Some(&srq), ..Config::new(Transport::Dct, &cq) };
        assert!(is_refused(&mut ready(&nic, &config), Op::Nop, None));
    }
}

/// The data path goes by the state that software set; the device's own opinion shows in `state`.
#[test]
fn sends_need_a_state_that_sends() {
    let (nic, device, cq) = nic(TestDevice::new());
    let mut qp = nic.create_qp(&(), &Config::new(Transport::Rc, &cq)).unwrap();
    let nop = SendRequest::signaled(Op::Nop);
    assert_eq!(qp.post_send(&nop), Err(PostSendError::State(QpState::Reset)));
    make_ready(&mut qp);
    assert_eq!(qp.post_send(&nop), Ok(0));
    device.fail(qp.qpn());
    assert_eq!(qp.state(), QpState::Err);
    assert_eq!(qp.post_send(&nop), Ok(1), "it will be flushed");
    assert!(qp.modify(&Transition::Sqd).is_err(), "checked against the device's state");
    qp.modify(&Transition::Err).unwrap();
    assert_eq!(qp.post_send(&nop), Ok(2));
}
