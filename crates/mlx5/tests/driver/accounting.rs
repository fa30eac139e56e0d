//! Send queue space: who holds it, and that there is always a completion that gives it back.

use std::collections::VecDeque;

use proptest::{collection::vec, prelude::*};
use verbs::{
    Completion, CompletionKind, DcKey, Destination, Lid, Op, Payload, PortRoute, PostSendError,
    QpAddress, Qpn, QueuePair as _, RemoteSlice, Rkey, SendFlags, SendRequest, SendSize, Transport,
    WcFailure, WcStatus,
};
use wire::wqe::{self, CtrlFlags};

use crate::device::{Config, Memory, Qp, TestDevice, nic, ready};

fn sent(qp: &Qp, wqe: u16) -> Completion {
    Completion {
        qpn: qp.qpn(),
        wqe,
        kind: CompletionKind::Write,
        failure: None,
        len_bytes: 0,
        imm: None,
        source: None,
        solicited: false,
        in_cqe: false,
    }
}

/// Blocks and completion request of the WQE at `index`, as the device reads them.
fn peek(ring: &Memory, index: u16) -> (u16, bool) {
    let ctrl = ring.bytes(usize::from(index) * 64, 16);
    let ctrl = wqe::peek_ctrl(ctrl[..].try_into().unwrap());
    assert_eq!(ctrl.index, index);
    (wqe::wqebbs(ctrl.octowords), ctrl.flags.contains(CtrlFlags::CQ_UPDATE))
}

#[test]
fn a_full_queue_refuses_and_changes_nothing() {
    let (nic, device, cq) = nic(TestDevice::new());
    let send = SendSize { requests: 4, sges_max: 1, inline_bytes_max: 0 };
    let mut qp = ready(&nic, &Config { send, ..Config::new(Transport::Rc, &cq) });
    let nop = SendRequest::unsignaled(Op::Nop);
    for index in 0..4 {
        assert_eq!(qp.post_send(&nop), Ok(index));
    }
    let before = device.send_ring(qp.qpn()).all();
    for _ in 0..3 {
        assert_eq!(qp.post_send(&nop), Err(PostSendError::QueueFull { requests: 4 }));
    }
    assert_eq!(device.send_ring(qp.qpn()).all(), before);
    qp.ring_send();
    let completion = sent(&qp, 2);
    qp.retire(&completion);
    assert_eq!(qp.send_free(), 3, "the completion of the third ends the first two as well");
    assert_eq!(qp.post_send(&nop), Ok(4));
}

#[test]
fn pitfall_4_errors_of_unsignaled_requests_give_space_back() {
    let (nic, _, cq) = nic(TestDevice::new());
    let mut qp = ready(&nic, &Config::new(Transport::Rc, &cq));
    for _ in 0..10 {
        qp.post_send(&SendRequest::unsignaled(Op::Nop)).unwrap();
    }
    qp.ring_send();
    for index in 3..10 {
        let failure = WcFailure { status: WcStatus::Flushed, vendor: 0 };
        let completion = Completion {
            kind: CompletionKind::SendError,
            failure: Some(failure),
            ..sent(&qp, index)
        };
        qp.retire(&completion);
        assert_eq!(qp.send_free(), 64 - 9 + index);
    }
}

/// Left over from before a reset, or nonsense.
#[test]
fn completions_of_nothing_outstanding_change_nothing() {
    let (nic, _, cq) = nic(TestDevice::new());
    let mut qp = ready(&nic, &Config::new(Transport::Rc, &cq));
    for wqe in [0, 1, 63, 64, 0x8000, 0xffff] {
        let completion = sent(&qp, wqe);
        qp.retire(&completion);
        assert_eq!(qp.send_free(), 64, "{wqe} on an empty queue");
    }
    let payload = Payload::Inline(&[&[0; 130]]);
    let three_blocks = Op::Send { payload, imm: None };
    for _ in 0..2 {
        qp.post_send(&SendRequest::signaled(three_blocks)).unwrap();
    }
    let completion = sent(&qp, 0);
    qp.retire(&completion);
    assert_eq!(qp.send_free(), 62, "posted, but the device does not know yet");
    qp.ring_send();
    for wqe in [1, 2, 4, 5, 6, 64, 0xfffd] {
        let completion = sent(&qp, wqe);
        qp.retire(&completion);
        assert_eq!(qp.send_free(), 62, "{wqe} starts no outstanding WQE");
    }
    let completion = sent(&qp, 3);
    qp.retire(&completion);
    qp.retire(&completion);
    assert_eq!(qp.send_free(), 64);
}

#[test]
#[should_panic(expected = "completion of")]
fn completions_of_another_queue_pair_are_a_bug() {
    let (nic, _, cq) = nic(TestDevice::new());
    let mut qp = ready(&nic, &Config::new(Transport::Rc, &cq));
    let completion = Completion { qpn: Qpn::new(1).unwrap(), ..sent(&qp, 0) };
    qp.retire(&completion);
}

/// WQEs that the device has not completed: first block, blocks, signaled.
type Outstanding = VecDeque<(u16, u16, bool)>;

/// Completes everything up to and including the first signaled WQE.
fn complete_one(qp: &mut Qp, outstanding: &mut Outstanding) {
    qp.ring_send();
    while let Some((index, _, is_signaled)) = outstanding.pop_front() {
        if is_signaled {
            let completion = sent(qp, index);
            return qp.retire(&completion);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 64 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Pitfall 6: 64 endpoints that share a DCI and each signal every 64th request of their own.
    /// Whenever the queue is full, a completion is on its way.
    #[test]
    fn pitfall_6_sparse_signaling_never_wedges_a_shared_queue(
        queue in 1u16..40,
        requests in vec((0usize..64, 0usize..400), 1..if cfg!(miri) { 40 } else { 600 }),
    ) {
        let (nic, device, cq) = nic(TestDevice::new());
        let send = SendSize { requests: queue.into(), sges_max: 1, inline_bytes_max: 400 };
        let mut qp = ready(&nic, &Config { send, ..Config::new(Transport::Dci, &cq) });
        let ring = device.send_ring(qp.qpn());
        prop_assert_eq!(qp.send_free(), queue);
        let (mut outstanding, mut posted_by) = (Outstanding::new(), [0u32; 64]);
        for (endpoint, len_bytes) in requests {
            let address = verbs::AddressVector::new(PortRoute::Lid(Lid::new(9)));
            let to = QpAddress { address, qpn: Qpn::new(0x100).unwrap() };
            let to = Destination::Dc { to, key: DcKey::new(1) };
            let bytes = vec![0; len_bytes];
            let remote = RemoteSlice { addr: 0, rkey: Rkey::new(1) };
            let op = Op::Write { remote, payload: Payload::Inline(&[&bytes]), imm: None };
            let is_its_64th = posted_by[endpoint] % 64 == 63;
            let flags = if is_its_64th { SendFlags::SIGNALED } else { SendFlags::empty() };
            let request = SendRequest { op, flags, to: Some(&to) };
            let index = loop {
                match qp.post_send(&request) {
                    Ok(index) => break index,
                    Err(PostSendError::QueueFull { .. }) => {
                        prop_assert!(outstanding.iter().any(|wqe| wqe.2), "wedged");
                        complete_one(&mut qp, &mut outstanding);
                    }
                    Err(error) => prop_assert!(false, "{error}"),
                }
            };
            posted_by[endpoint] += 1;
            let (wqe_blocks, is_signaled) = peek(&ring, index);
            prop_assert!(is_signaled || !is_its_64th);
            outstanding.push_back((index, wqe_blocks, is_signaled));
            prop_assert_eq!(usize::from(qp.send_free()), usize::from(queue) - outstanding.len());
            let held: u16 = outstanding.iter().map(|wqe| wqe.1).sum();
            prop_assert!(usize::from(held) <= ring.blocks(), "the ring is overrun");
        }
    }
}
