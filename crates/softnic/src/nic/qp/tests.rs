use verbs::{
    AsyncEvent, CompletionQueue as _, CqConfig, InitAttr, ModifyError, Mtu, Nic as _, Op, QpConfig,
    QueuePair as _, RcPeer, RnrTimer, RtrAttr, RtsAttr, SendRequest, SharedReceiveQueue as _,
    SrqConfig, Transition,
};
use wire::cqe::{CqeView, Syndrome};

use super::*;
use crate::{Config, CqeVersion, Nic, nic::card::target::Target, open};

type Qp = <Nic as verbs::Nic>::Qp;
type Cq = <Nic as verbs::Nic>::Cq;

fn port(name: &str) -> Nic {
    let fabric = format!("{name}-{}", std::process::id());
    open(&Config { fabric, card_mib: 8, ..Config::default() }).unwrap()
}

fn queue_pair(nic: &Nic) -> (Qp, Cq) {
    let cq = nic.create_cq(&CqConfig::new(256), None).unwrap();
    let pd = nic.alloc_pd().unwrap();
    (nic.create_qp(&pd, &QpConfig::new(Transport::Rc, &cq)).unwrap(), cq)
}

fn shared(nic: &Nic, qp: &Qp) -> Arc<QpShared> {
    let qps = nic.device().0.qps();
    qps.into_iter().find(|shared| shared.qpn == qp.qpn()).unwrap()
}

fn transitions(peer: verbs::QpAddress) -> [Transition; 3] {
    let access = Access::empty();
    let peer = RcPeer { qpn: peer.qpn, address: peer.address, rq_psn: verbs::Psn::new(0).unwrap() };
    let rtr = RtrAttr {
        path_mtu: Mtu::B4096,
        peer: Some(peer),
        rnr_timer: RnrTimer::from_code(1),
        reads_in_max: 1,
    };
    let init = InitAttr { access, qkey: QKey::default() };
    [Transition::Init(init), Transition::Rtr(rtr), Transition::Rts(RtsAttr::default())]
}

/// Two queue pairs of one port, connected to each other.
fn connected(nic: &Nic) -> [(Qp, Cq); 2] {
    let mut ends = [(); 2].map(|()| queue_pair(nic));
    let [a, b] = [0, 1].map(|nth: usize| nic.endpoint(&ends[nth].0));
    for ((qp, _), peer) in ends.iter_mut().zip([b, a]) {
        transitions(peer).iter().for_each(|to| qp.modify(to).unwrap());
    }
    ends
}

fn events(nic: &Nic) -> Vec<AsyncEvent> {
    core::iter::from_fn(|| nic.poll_event()).collect()
}

/// RESET clears it, too.
#[test]
fn what_a_peer_broke_is_told_once_and_works_again_after_reset() {
    let nic = port("broken");
    let [(mut qp, _cq), (peer, _)] = connected(&nic);
    let target = Target::resolve(&nic.device().0.port.owner.card, qp.qpn()).unwrap();
    target.break_down(Syndrome::LocalAccess);
    assert_eq!(qp.state(), QpState::Err, "before anybody has looked at it");
    nic.device().0.progress();
    assert_eq!(events(&nic), [AsyncEvent::QpFatal(qp.qpn())]);
    qp.modify(&Transition::Reset).unwrap();
    for to in transitions(nic.endpoint(&peer)) {
        qp.modify(&to).unwrap();
        assert_eq!(qp.state(), to.target());
    }
    assert_eq!(events(&nic), []);
}

/// Whoever sees the completion finds the queue pair in its new state.
#[test]
fn a_request_that_has_failed_shows_in_the_state_at_once() {
    let nic = port("fallen");
    let [(mut qp, _cq), (peer, _)] = connected(&nic);
    shared(&nic, &qp).note_fall();
    assert_eq!(qp.state(), QpState::Err);
    qp.modify(&Transition::Reset).unwrap();
    transitions(nic.endpoint(&peer)).iter().for_each(|to| qp.modify(to).unwrap());
    assert_eq!(qp.state(), QpState::Rts);
}

#[test]
fn who_knows_a_queue_pair_looks_again_after_it_was_reset() {
    let nic = port("again");
    let [(mut qp, _cq), (peer, _)] = connected(&nic);
    let card = &nic.device().0.port.owner.card;
    let before = Target::resolve(card, qp.qpn()).unwrap();
    assert_eq!(before.rnr_wait_ns, 10_000, "by the timer of code 1");
    qp.modify(&Transition::Reset).unwrap();
    transitions(nic.endpoint(&peer)).iter().for_each(|to| qp.modify(to).unwrap());
    assert!(!before.is_current(), "it may have another peer now");
    assert!(Target::resolve(card, qp.qpn()).is_some());
}

/// After a RESET as well: what was known of the last time says nothing about this one.
#[test]
fn receives_are_flushed_when_nobody_is_inside_any_more() {
    let nic = port("inside");
    let [(mut qp, mut cq), (peer, _)] = connected(&nic);
    let executor = shared(&nic, &peer);
    for round in 0..2 {
        qp.post_recv(&[]).unwrap();
        qp.ring_recv();
        assert!(executor.presence().try_enter(), "a request of it is inside the queue pair");
        qp.modify(&Transition::Err).unwrap();
        assert_eq!(cq.poll(), None, "round {round}: the receive may be taken");
        executor.presence().leave();
        nic.device().0.progress();
        let failure = cq.poll().and_then(|done| done.failure).map(|failure| failure.status);
        assert_eq!(failure, Some(verbs::WcStatus::Flushed), "round {round}");
        qp.modify(&Transition::Reset).unwrap();
        transitions(nic.endpoint(&peer)).iter().for_each(|to| qp.modify(to).unwrap());
    }
}

/// A program that shares receives frees them when it hears that this queue pair takes no more.
#[test]
fn the_last_receive_of_a_shared_queue_is_told_once() {
    let nic = port("last-wqe");
    let (cq, pd) = (nic.create_cq(&CqConfig::new(256), None).unwrap(), nic.alloc_pd().unwrap());
    let srq = nic.create_srq(&pd, &verbs::SrqConfig { entries: 8, sges_max: 1 }).unwrap();
    let config = QpConfig { srq: Some(&srq), ..QpConfig::new(Transport::Rc, &cq) };
    let mut qp = nic.create_qp(&pd, &config).unwrap();
    let (peer, _) = queue_pair(&nic);
    transitions(nic.endpoint(&peer)).iter().for_each(|to| qp.modify(to).unwrap());
    for _ in 0..2 {
        qp.modify(&Transition::Err).unwrap();
    }
    assert_eq!(events(&nic), [AsyncEvent::LastWqeReached(qp.qpn())]);
}

/// Nobody but the queue pair itself completes there, so nobody else can notice.
#[test]
fn a_queue_pair_whose_own_completions_are_lost_ends() {
    let nic = port("own-overrun");
    let (pd, receives) =
        (nic.alloc_pd().unwrap(), nic.create_cq(&CqConfig::new(256), None).unwrap());
    let small = CqConfig { allow_overcommit: true, ..CqConfig::new(2) };
    let sends = nic.create_cq(&small, None).unwrap();
    let config = QpConfig { send_cq: &sends, ..QpConfig::new(Transport::Rc, &receives) };
    let mut qp = nic.create_qp(&pd, &config).unwrap();
    let (peer, _) = queue_pair(&nic);
    transitions(nic.endpoint(&peer)).iter().for_each(|to| qp.modify(to).unwrap());
    for _ in 0..3 {
        qp.post_send(&SendRequest::signaled(Op::Nop)).unwrap();
        qp.ring_send();
    }
    nic.device().0.progress();
    assert_eq!(qp.state(), QpState::Err);
    nic.device().0.port.owner.card.shared().attention.store(1, Ordering::Release);
    let told = [AsyncEvent::CqOverrun(sends.cqn()), AsyncEvent::QpFatal(qp.qpn())];
    assert_eq!(events(&nic), told);
}

/// Whoever executes it may have read the doorbell record before.
#[test]
fn a_doorbell_that_finds_the_queue_pair_executed_is_not_lost() {
    let nic = port("executed");
    let [(mut qp, mut cq), _peer] = connected(&nic);
    let shared = shared(&nic, &qp);
    assert!(shared.presence().try_enter(), "another thread executes it");
    qp.post_send(&SendRequest::signaled(Op::Nop)).unwrap();
    qp.ring_send();
    assert_eq!(cq.poll(), None);
    shared.presence().leave();
    nic.device().0.progress();
    assert!(cq.poll().is_some());
}

/// A datagram may fail while software moves its queue pair.
#[test]
fn a_failed_request_does_not_lead_out_of_err() {
    let nic = port("worse");
    let [(mut qp, _cq), _peer] = connected(&nic);
    qp.modify(&Transition::Err).unwrap();
    shared(&nic, &qp).enter_error(QpState::Sqe, FLUSH, |_| true);
    assert_eq!(qp.state(), QpState::Err);
}

/// The other thread may have gigabytes to copy.
#[test]
fn a_queue_pair_that_is_executed_when_its_peer_dies_ends_after_that() {
    let nic = port("busy-loses");
    let [(mut qp, mut cq), _peer] = connected(&nic);
    let shared = shared(&nic, &qp);
    assert!(shared.presence().try_enter(), "another thread executes it");
    qp.post_send(&SendRequest::signaled(Op::Nop)).unwrap();
    qp.ring_send();
    shared.lose_peer(nic.device().0.port.lid.get());
    assert_eq!(qp.state(), QpState::Err);
    shared.presence().leave();
    nic.device().0.progress();
    let failure = cq.poll().and_then(|done| done.failure).map(|failure| failure.status);
    assert_eq!(failure, Some(verbs::WcStatus::RetryExceeded));
}

#[test]
fn a_refused_transition_is_named_and_changes_nothing() {
    let nic = port("refused");
    let [(mut qp, _), (mut other, _)] = connected(&nic);
    let inside = shared(&nic, &other);
    assert!(inside.presence().try_enter(), "a request of it is inside the queue pair");
    let refused = qp.modify(&Transition::Reset).unwrap_err();
    assert!(matches!(refused, ModifyError::Device { to: QpState::Reset, .. }), "{refused}");
    assert_eq!(qp.state(), QpState::Rts);
    let refused = other.modify(&Transition::Sqd).unwrap_err();
    assert!(matches!(refused, ModifyError::Device { to: QpState::Sqd, .. }), "{refused}");
    assert_eq!(other.state(), QpState::Rts);
    inside.presence().leave();
    qp.modify(&Transition::Reset).unwrap();
    other.modify(&Transition::Sqd).unwrap();
}

/// Whoever executed it tells after it has left, and housekeeping looks when it likes.
#[test]
fn what_ended_one_life_of_a_queue_pair_does_not_reach_the_next() {
    let nic = port("late");
    let [(mut qp, mut cq), (peer, _)] = connected(&nic);
    let late = shared(&nic, &qp);
    late.note_fall();
    let end = || {
        late.fall();
        late.handle_faults();
        late.state()
    };
    qp.modify(&Transition::Reset).unwrap();
    late.lose_peer(nic.device().0.port.lid.get());
    assert_eq!(end(), QpState::Reset);
    for to in transitions(nic.endpoint(&peer)) {
        qp.modify(&to).unwrap();
        assert_eq!(end(), to.target());
    }
    qp.post_send(&SendRequest::signaled(Op::Nop)).unwrap();
    qp.ring_send();
    assert_eq!(cq.poll().map(|done| done.failure), Some(None));
}

/// `ibv_poll_cq` looks the queue up by it: rdma-core `providers/mlx5/cq.c`, `get_cur_rsc`.
#[test]
fn completions_name_what_libmlx5_looks_up() {
    for cqe_version in [CqeVersion::V0, CqeVersion::V1] {
        for has_srq in [false, true] {
            let fabric = format!("index-{cqe_version:?}-{has_srq}-{}", std::process::id());
            let config = Config { fabric, card_mib: 8, cqe_version, ..Config::default() };
            let nic = open(&config).unwrap();
            let pd = nic.alloc_pd().unwrap();
            let mut srq = nic.create_srq(&pd, &SrqConfig { entries: 4, sges_max: 1 }).unwrap();
            let cqs = [(); 2].map(|()| nic.create_cq(&CqConfig::new(256), None).unwrap());
            let mut qps = cqs.each_ref().map(|cq| {
                let srq = has_srq.then_some(&srq);
                nic.create_qp(&pd, &QpConfig { srq, ..QpConfig::new(Transport::Rc, cq) }).unwrap()
            });
            let [a, b] = qps.each_ref().map(|qp| nic.endpoint(qp));
            for (qp, peer) in qps.iter_mut().zip([b, a]) {
                transitions(peer).iter().for_each(|to| qp.modify(to).unwrap());
            }
            // One that is done, and one that is flushed.
            for _ in 0..2 {
                if has_srq {
                    srq.post(&[]).unwrap();
                    srq.ring();
                } else {
                    qps[1].post_recv(&[]).unwrap();
                    qps[1].ring_recv();
                }
            }
            let op = Op::Send { payload: verbs::Payload::Inline(&[]), imm: None };
            qps[0].post_send(&SendRequest::signaled(op)).unwrap();
            qps[0].ring_send();
            let port = &nic.device().0;
            let entries = |cq: &Cq| {
                let view = &port.cq(verbs::CompletionQueue::cqn(cq).get()).unwrap().view;
                view.unpolled().collect::<Vec<_>>()
            };
            let deadline = std::time::Instant::now() + core::time::Duration::from_secs(20);
            while entries(&cqs[0]).is_empty() {
                assert!(std::time::Instant::now() < deadline, "it is not sent");
                port.progress();
            }
            qps[1].modify(&Transition::Err).unwrap();
            let index = |qp: &Qp| match (cqe_version, has_srq) {
                (CqeVersion::V1, _) => qp.qpn().get(),
                (CqeVersion::V0, false) => 0,
                (CqeVersion::V0, true) => verbs::SharedReceiveQueue::srqn(&srq).get(),
            };
            for (cq, qp, count) in [(&cqs[0], &qps[0], 1), (&cqs[1], &qps[1], 2)] {
                let entries = entries(cq);
                // Receives of an SRQ are not flushed.
                assert!(entries.len() == count || has_srq && entries.len() == 1, "{entries:?}");
                for entry in entries {
                    let found = match entry.parse().unwrap() {
                        CqeView::Requester(done) => done.user_index,
                        CqeView::Responder(done) => done.user_index,
                        CqeView::Error(error) => error.user_index,
                    };
                    assert_eq!(found.get(), index(qp), "{cqe_version:?} {has_srq}: {entry:?}");
                }
            }
        }
    }
}
