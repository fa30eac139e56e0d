//! Completions of queue pairs that were reset or destroyed before anybody polled them.

use verbs::{
    CompletionKind, CompletionQueue as _, CqConfig, Nic as _, Qpn, QueuePair as _,
    SharedReceiveQueue as _, SrqConfig, Transition, Transport,
};
use wire::{
    cqe::{CqeView, ResponderCqe, ResponderKind, Scatter},
    ids::UserIndex,
};

use crate::device::{Config, TestDevice, make_ready, ready};

fn arrival(qpn: Qpn, wqe_counter: u16) -> ResponderCqe<'static> {
    ResponderCqe {
        kind: ResponderKind::Send,
        qpn,
        wqe_counter,
        user_index: UserIndex::default(),
        byte_cnt: 8,
        scatter: Scatter::Memory,
        source: None,
        solicited: false,
        timestamp: 0,
    }
}

/// The number may be given to the next queue pair at once.
#[test]
fn only_what_was_completed_before_is_dropped() {
    let device = TestDevice::new();
    let nic = copyrpc_mlx5::Nic::new(device.clone());
    let mut cq = nic.create_cq(&CqConfig::new(256), None).unwrap();
    let mut qp = ready(&nic, &Config::new(Transport::Rc, &cq));
    let other = ready(&nic, &Config::new(Transport::Rc, &cq));
    let cqn = cq.cqn();
    let complete = |qpn, wqe| device.complete(cqn, &CqeView::Responder(arrival(qpn, wqe)));
    for round in 0..3 {
        complete(qp.qpn(), 0);
        complete(other.qpn(), 1);
        complete(qp.qpn(), 2);
        qp.modify(&Transition::Reset).unwrap();
        make_ready(&mut qp);
        complete(qp.qpn(), 3);
        let polled: Vec<_> = core::iter::from_fn(|| cq.poll()).map(|done| done.wqe).collect();
        assert_eq!(polled, [1, 3], "round {round}");
    }
    assert_eq!(cq.malformed(), 0);
}

/// Its end is where its consumer is, a lap further on.
#[test]
fn all_of_a_full_queue_is_dropped() {
    const ENTRIES: u16 = 8;
    let device = TestDevice::new();
    let nic = copyrpc_mlx5::Nic::new(device.clone());
    let config = CqConfig { allow_overcommit: true, ..CqConfig::new(ENTRIES.into()) };
    let mut cq = nic.create_cq(&config, None).unwrap();
    for lap in 0..3 {
        let qp = ready(&nic, &Config::new(Transport::Rc, &cq));
        for wqe in 0..ENTRIES {
            device.complete(cq.cqn(), &CqeView::Responder(arrival(qp.qpn(), wqe)));
        }
        drop(qp);
        assert_eq!(cq.poll(), None, "lap {lap}");
    }
}

#[test]
fn the_buffers_of_what_is_dropped_can_be_posted_again() {
    const BUFFERS: u16 = 4;
    let device = TestDevice::new();
    let nic = copyrpc_mlx5::Nic::new(device.clone());
    let mut cq = nic.create_cq(&CqConfig::new(256), None).unwrap();
    let srq_config = SrqConfig { entries: BUFFERS.into(), sges_max: 1 };
    let mut srq = nic.create_srq(&(), &srq_config).unwrap();
    for round in 0..10 {
        let qp = ready(&nic, &Config { srq: Some(&srq), ..Config::new(Transport::Rc, &cq) });
        let qpn = qp.qpn();
        let posted: Vec<u16> = (0..BUFFERS).map(|_| srq.post(&[]).unwrap()).collect();
        srq.ring();
        for &wqe in &posted {
            device.complete(cq.cqn(), &CqeView::Responder(arrival(qpn, wqe)));
        }
        let first = cq.poll().unwrap();
        srq.retire(&first);
        drop(qp);
        assert_eq!(cq.poll(), None, "round {round}");
    }
}

#[test]
fn the_payload_of_what_is_dropped_is_not_that_of_the_next_completion() {
    let device = TestDevice::new();
    let nic = copyrpc_mlx5::Nic::new(device.clone());
    let mut cq = nic.create_cq(&CqConfig::new(256), None).unwrap();
    let gone = ready(&nic, &Config::new(Transport::Rc, &cq));
    let stays = ready(&nic, &Config::new(Transport::Rc, &cq));
    let inside = ResponderCqe { scatter: Scatter::InCqe(b"8 bytes."), ..arrival(gone.qpn(), 0) };
    device.complete(cq.cqn(), &CqeView::Responder(inside));
    device.complete(cq.cqn(), &CqeView::Responder(arrival(stays.qpn(), 1)));
    drop(gone);
    let done = cq.poll().unwrap();
    assert_eq!((done.kind, done.wqe, done.in_cqe), (CompletionKind::Recv, 1, false));
    assert_eq!(cq.inline_data(), []);
}
