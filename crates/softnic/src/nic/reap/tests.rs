//! A sender that is killed after any step of delivering a message.

use wire::cqe::{Cqe, ResponderCqe, ResponderKind, Scatter};

use super::*;
use crate::{
    nic::rig::{Rig, Shape},
    shared::claims::TakeError,
};

/// The dead sender, the survivor, and the owner of the queues.
const DEAD: Holder = 7;
const SURVIVOR: Holder = 8;
const OWNER: Holder = 9;

/// After which step of a delivery the sender is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Nothing,
    /// The receive is claimed, the head still points to it.
    Claimed,
    Taken,
    Reserved,
    /// Some words of the entry are written, not the last.
    HalfFilled,
    Published,
    Released,
    Finished,
}

const STEPS: [Step; 8] = [
    Step::Nothing,
    Step::Claimed,
    Step::Taken,
    Step::Reserved,
    Step::HalfFilled,
    Step::Published,
    Step::Released,
    Step::Finished,
];

fn arrival(qpn: Qpn, counter: u16) -> CqeView<'static> {
    CqeView::Responder(ResponderCqe {
        kind: ResponderKind::Send,
        qpn,
        wqe_counter: counter,
        user_index: UserIndex::default(),
        byte_cnt: 1,
        scatter: Scatter::Memory,
        source: None,
        solicited: false,
        timestamp: 0,
    })
}

/// The steps of a delivery, up to and with `last`.
fn deliver(rig: &Rig, holder: Holder, last: Step) {
    if last == Step::Nothing {
        return;
    }
    let head = rig.card.rq_state(rig.rq_index).unwrap().head.load(memory::sync::Ordering::Relaxed);
    let taken = rig.rq.take(holder, &core::cell::Cell::new(0), false).expect("a receive is posted");
    if last == Step::Claimed {
        // As if it had not come to moving the head.
        rig.card.rq_state(rig.rq_index).unwrap().head.store(head, memory::sync::Ordering::Relaxed);
    }
    if last <= Step::Taken {
        return;
    }
    let slots = rig.cq.slots();
    let position = slots.reserve(holder, || rig.cq.consumed()).expect("an entry is free");
    if last == Step::HalfFilled {
        rig.cq.fill_half(position, &arrival(rig.qpn, taken.counter));
    }
    if last <= Step::HalfFilled {
        return;
    }
    rig.cq.fill(position, &arrival(rig.qpn, taken.counter), &[]);
    if last == Step::Published {
        return;
    }
    rig.rq.release(taken, holder);
    if last == Step::Released {
        return;
    }
    slots.finish(position);
}

fn recovery(rig: &Rig) -> Recovery {
    let user = |qpn, sender| User {
        qpn,
        user_index: UserIndex::default(),
        rq_index: rig.rq_index,
        cq: rig.cq.clone(),
        sender,
        is_connected: true,
    };
    let other = Qpn::from_low_bits(rig.qpn.get() + 1);
    let users = vec![user(other, Some(SURVIVOR)), user(rig.qpn, Some(DEAD))];
    let rqs = vec![(rig.rq_index, rig.rq.clone())];
    Recovery { owner: OWNER, cqs: vec![rig.cq.clone()], rqs, users }
}

/// Counter and success of a receive's completion.
fn receive_of(entry: &Cqe) -> (u16, bool) {
    match entry.parse() {
        Ok(CqeView::Responder(done)) => (done.wqe_counter, true),
        Ok(CqeView::Error(error)) if !error.is_requester => (error.wqe_counter, false),
        other => panic!("not a receive: {other:?}"),
    }
}

/// `before`: deliveries of the survivor ahead of the dead one's. `after`: while it lies there.
fn killed_at(shape: Shape, step: Step, before: u16, after: u16) {
    let what = format!("{step:?}, {before} before, {after} after, {shape:?}");
    let mut rig = Rig::new(shape);
    let mut received = Vec::new();
    let mut poll_all = |rig: &mut Rig| {
        let mut polled = 0;
        while let Some(entry) = rig.poll() {
            received.push(receive_of(&entry));
            polled += 1;
        }
        polled
    };
    for _ in 0..4 {
        rig.post(&[]);
    }
    for _ in 0..before {
        deliver(&rig, SURVIVOR, Step::Finished);
        assert_eq!(poll_all(&mut rig), 1, "{what}");
        rig.post(&[]);
    }
    deliver(&rig, DEAD, step);
    for _ in 0..after {
        deliver(&rig, SURVIVOR, Step::Finished);
    }
    recovery(&rig).run(DEAD);
    poll_all(&mut rig);
    assert_eq!(rig.cq.slots().held_by(DEAD).count(), 0, "{what}: entries held");
    assert_eq!(rig.rq.claims().held_by(DEAD).count(), 0, "{what}: receives held");
    let deaths = u16::from(step != Step::Nothing);
    assert_eq!(received.len(), usize::from(before + deaths + after), "{what}: {received:?}");
    // The queue goes on, over more than a lap of everything.
    for _ in 0..deaths + after {
        rig.post(&[]);
    }
    for _ in 0..9 {
        deliver(&rig, SURVIVOR, Step::Finished);
        let mut one = Vec::new();
        while let Some(entry) = rig.poll() {
            one.push(receive_of(&entry));
        }
        assert_eq!(one.len(), 1, "{what}");
        received.extend(one);
        rig.post(&[]);
    }
    let mut counters: Vec<_> = received.iter().map(|&(counter, _)| counter).collect();
    counters[usize::from(before)..usize::from(before + deaths + after)].sort_unstable();
    let lap = if shape.is_srq { 4 } else { u16::MAX };
    let expected: Vec<_> = (0..9 + before + deaths + after).map(|count| count % lap).collect();
    assert_eq!(counters, expected, "{what}: each receive completes exactly once");
    let failures = received.iter().filter(|(_, worked)| !worked).count();
    let is_cut_off = (Step::Claimed..=Step::HalfFilled).contains(&step);
    assert_eq!(failures, usize::from(is_cut_off), "{what}: {received:?}");
}

/// An interpreter sees the same accesses in one history as in five.
fn histories(all: &[(u16, u16)]) -> &[(u16, u16)] {
    if cfg!(miri) { &all[all.len() - 1..] } else { all }
}

#[test]
fn a_sender_may_die_after_any_step_into_a_receive_queue() {
    for step in STEPS {
        for &(before, after) in histories(&[(0, 0), (1, 0), (0, 1), (0, 3), (3, 2)]) {
            killed_at(Shape::RC, step, before, after);
        }
    }
}

#[test]
fn a_sender_may_die_after_any_step_into_a_shared_receive_queue() {
    for step in STEPS {
        for &(before, after) in histories(&[(0, 0), (0, 1), (0, 3), (1, 1)]) {
            killed_at(Shape::SRQ, step, before, after);
        }
    }
}

/// The completion of the dead one was polled, its entry posted again, and taken by the survivor:
/// that is none of the dead one's business.
#[test]
fn a_receive_that_is_posted_again_belongs_to_who_took_it_last() {
    let mut rig = Rig::new(Shape::SRQ);
    (0..4).for_each(|_| rig.post(&[]));
    deliver(&rig, DEAD, Step::Published);
    (0..3).for_each(|_| deliver(&rig, SURVIVOR, Step::Finished));
    assert_eq!((0..4).map_while(|_| rig.poll()).count(), 4);
    rig.post(&[]);
    deliver(&rig, SURVIVOR, Step::Taken);
    let held = || rig.rq.claims().held_by(SURVIVOR).collect::<Vec<_>>();
    assert_eq!(held(), [(0, 4)]);
    recovery(&rig).run(DEAD);
    assert_eq!((held(), rig.poll().is_none()), (vec![(0, 4)], true));
}

/// Several senders of one port die at once, each somewhere else.
#[test]
fn many_may_die_at_once() {
    // All pairs take Miri minutes.
    let steps = if cfg!(miri) { &STEPS[4..6] } else { &STEPS[..] };
    for &first in steps {
        for &second in steps {
            let mut rig = Rig::new(Shape::RC);
            (0..4).for_each(|_| rig.post(&[]));
            deliver(&rig, DEAD, first);
            // A thread that follows helps a claim to move the head.
            deliver(&rig, DEAD, second);
            deliver(&rig, SURVIVOR, Step::Finished);
            recovery(&rig).run(DEAD);
            let mut counters = Vec::new();
            while let Some(entry) = rig.poll() {
                counters.push(receive_of(&entry).0);
            }
            counters.sort_unstable();
            let deaths = [first, second].iter().filter(|&&step| step != Step::Nothing).count();
            let expected: Vec<_> = (0..=u16::try_from(deaths).unwrap()).collect();
            assert_eq!(counters, expected, "{first:?}, {second:?}");
            assert_eq!(rig.rq.claims().held_by(DEAD).count(), 0);
        }
    }
}

#[cfg(not(miri))]
mod ports {
    use core::cell::Cell;
    use std::time::{Duration, Instant};

    use verbs::{
        Access, Arm, Channel as _, Completion, CompletionQueue as _, CqConfig, InitAttr, Mtu,
        Nic as _, QKey, QpConfig, QueuePair as _, RcPeer, RnrTimer, RtrAttr, Transition, Transport,
    };
    use wire::ids::Qpn;

    use crate::{Config, Nic, open, shared::presence::Presence};

    /// A peer is stopped with a receive in its hand, the queue pair is moved to ERR, the peer dies.
    #[test]
    fn a_receive_that_a_dead_peer_held_of_a_queue_pair_in_error_completes_too() {
        let fabric = format!("held-{}", std::process::id());
        let config = Config { fabric, card_mib: 8, ..Config::default() };
        let (owner, peer) = (open(&config).unwrap(), open(&config).unwrap());
        let pd = owner.alloc_pd().unwrap();
        let mut cq = owner.create_cq(&CqConfig::new(256), None).unwrap();
        let mut qp = owner.create_qp(&pd, &QpConfig::new(Transport::Rc, &cq)).unwrap();
        let theirs = peer.create_cq(&CqConfig::new(256), None).unwrap();
        let sender = peer
            .create_qp(&peer.alloc_pd().unwrap(), &QpConfig::new(Transport::Rc, &theirs))
            .unwrap();
        connect(&mut qp, &peer, &sender);
        let lid = peer.device().0.port.lid.get();
        meet(&owner, &peer);
        (0..3).for_each(|counter| assert_eq!(qp.post_recv(&[]), Ok(counter)));
        qp.ring_recv();

        let card = &peer.device().0.port.owner.card;
        let presence = Presence(&card.qp(sender.qpn().get()).unwrap().presence);
        assert!(presence.try_enter());
        let [shared] = &owner.device().0.qps()[..] else { panic!("one queue pair") };
        let rq = shared.rq.as_ref().unwrap();
        assert_eq!(rq.view.take(lid, &Cell::new(0), true).unwrap().counter, 0);
        qp.modify(&Transition::Err).unwrap();
        assert_eq!(cq.poll(), None, "the peer is still inside");
        // Its process would not do this; but nothing looks before the port is gone.
        presence.leave();
        drop((sender, theirs, peer));

        let mut flushed: Vec<Completion> = Vec::new();
        wait(|| {
            flushed.extend(cq.poll());
            (flushed.len() == 3).then_some(())
        });
        let mut counters: Vec<_> = flushed.iter().map(|done| done.wqe).collect();
        counters.sort_unstable();
        assert_eq!(counters, [0, 1, 2]);
        assert!(flushed.iter().all(|done| done.failure.is_some()));
    }

    /// It had delivered a message, but not come to signal it.
    #[test]
    fn a_dead_peer_leaves_nobody_asleep_beside_what_it_delivered() {
        let fabric = format!("asleep-{}", std::process::id());
        let config = Config { fabric, card_mib: 8, ..Config::default() };
        let (owner, peer) = (open(&config).unwrap(), open(&config).unwrap());
        let channel = owner.create_channel().unwrap();
        let mut cq = owner.create_cq(&CqConfig::new(256), Some(&channel)).unwrap();
        let lid = peer.device().0.port.lid.get();
        meet(&owner, &peer);
        cq.arm(Arm::Next).unwrap();
        let [shared] = &owner.device().0.cqs()[..] else { panic!("one completion queue") };
        let message = super::arrival(Qpn::from_low_bits(1), 0);
        shared.view.publish(lid, &message, || {}).unwrap();
        drop(peer);
        assert!(channel.wait(Duration::from_secs(20)), "it sleeps beside a completion");
        assert!(cq.poll().is_some());
        assert!(!channel.wait(Duration::ZERO), "it was woken twice");
    }

    /// Waits until `owner` knows `peer`.
    fn meet(owner: &Nic, peer: &Nic) {
        wait(|| {
            [owner, peer].iter().for_each(|port| port.device().0.port.fetch());
            owner.device().0.port.import(peer.device().0.port.lid.get()).ok().map(drop)
        });
    }

    fn connect(qp: &mut <Nic as verbs::Nic>::Qp, to: &Nic, peer: &<Nic as verbs::Nic>::Qp) {
        qp.modify(&Transition::Init(InitAttr { access: Access::empty(), qkey: QKey::default() }))
            .unwrap();
        let peer = to.endpoint(peer);
        let peer = RcPeer { qpn: peer.qpn, address: peer.address, rq_psn: Default::default() };
        let attr = RtrAttr {
            path_mtu: Mtu::B4096,
            peer: Some(peer),
            rnr_timer: RnrTimer::at_least(Duration::from_micros(10)),
            reads_in_max: 16,
        };
        qp.modify(&Transition::Rtr(attr)).unwrap();
    }

    fn wait<T>(mut poll: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(found) = poll() {
                return found;
            }
            assert!(Instant::now() < deadline, "it does not happen");
            std::thread::yield_now();
        }
    }
}

/// Who is killed between taking a receive of a ring and its completion's entry keeps others from passing it
/// until its own is completed.
#[test]
fn a_sender_may_die_while_it_takes_in_order() {
    for step in [Step::Nothing, Step::Claimed, Step::Taken, Step::Reserved] {
        let mut rig = Rig::new(Shape::RC);
        (0..4).for_each(|_| rig.post(&[]));
        rig.rq.enter_order(DEAD).unwrap();
        deliver(&rig, DEAD, step);
        assert_eq!(rig.rq.enter_order(SURVIVOR), Err(TakeError::Contended), "{step:?}");
        recovery(&rig).run(DEAD);
        rig.rq.enter_order(SURVIVOR).unwrap();
        deliver(&rig, SURVIVOR, Step::Finished);
        rig.rq.order().give(SURVIVOR);
        let deaths = u16::from(step != Step::Nothing);
        let expected = (0..deaths).map(|counter| (counter, false)).chain([(deaths, true)]);
        let polled = core::iter::from_fn(|| rig.poll()).map(|entry| receive_of(&entry));
        assert!(polled.eq(expected), "{step:?}");
    }
}
