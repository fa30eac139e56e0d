//! A NIC that refuses to change the state of queue pairs while it is told to, and tells what it is told to.

use std::{cell::Cell, rc::Rc};

use copyrpc_rpc::{
    Body, Call, CallEnd, CloseReason, Config, ConnectError, Handler, PeerId, Range, Request,
    Status, TransportKind, Worker,
};
use verbs::{AsyncEvent, Qpn};

use crate::{
    double::{Faults, Faulty, faulty},
    rig::{ECHO, Node, fabric, poll_until, tight},
};

/// How calls and connections ended.
#[derive(Default)]
struct Ends {
    ended: Vec<(u64, Status)>,
    closed: Vec<PeerId>,
}

impl Handler<Faulty> for Ends {
    fn request(&mut self, _: &mut Worker<Faulty>, _: Request, _: Body<'_, Faulty>) {}
    fn ended(&mut self, _: &mut Worker<Faulty>, cookie: u64, end: CallEnd<'_, Faulty>) {
        self.ended.push((cookie, end.status()));
    }
    fn closed(&mut self, _: &mut Worker<Faulty>, peer: PeerId, _: CloseReason) {
        self.closed.push(peer);
    }
}

/// A caller whose NIC may refuse, and two that it calls over one initiator.
struct Scene {
    caller: Worker<Faulty>,
    is_refusing: Rc<Cell<bool>>,
    is_short: Rc<Cell<bool>>,
    event: Rc<Cell<Option<AsyncEvent>>>,
    regions: Rc<()>,
    ends: Ends,
    others: [Node; 2],
}

impl Scene {
    fn new() -> Self {
        Self::on(TransportKind::Dc)
    }

    fn on(transport: TransportKind) -> Self {
        let config = Config { transport, dcis: 1, ..tight() };
        let fabric = fabric();
        let nic = faulty(&fabric);
        let Faults { is_refusing, is_short, event, regions, .. } = nic.hooks.clone();
        let caller = Worker::open(nic, config.clone(), os::clock::now_ns()).unwrap();
        let others = [0, 1].map(|_| Node::open(&fabric, &config));
        Self { caller, is_refusing, is_short, event, regions, ends: Ends::default(), others }
    }

    fn join(&mut self, other: usize) -> PeerId {
        self.join_by(other).0
    }

    /// Also says the number of the caller's queue pair, as its invitation does.
    fn join_by(&mut self, other: usize) -> (PeerId, Qpn) {
        let (to, from_caller) = self.caller.invite().unwrap();
        let qpn = u32::from_le_bytes(from_caller.as_bytes()[12..16].try_into().unwrap());
        let (back, from_other) = self.others[other].worker.invite().unwrap();
        self.caller.connect(to, &from_other).unwrap();
        self.others[other].worker.connect(back, &from_caller).unwrap();
        (to, Qpn::new(qpn).unwrap())
    }

    /// Regions of the caller.
    fn regions(&self) -> usize {
        Rc::strong_count(&self.regions)
    }

    #[track_caller]
    fn until(&mut self, is_done: impl Fn(&Self) -> bool) {
        poll_until("what a caller on a faulty NIC does", || {
            is_done(self) || {
                self.caller.poll(os::clock::now_ns(), &mut self.ends);
                self.others.iter_mut().for_each(|other| _ = other.poll());
                false
            }
        });
    }

    #[track_caller]
    fn until_ended(&mut self, count: usize) {
        self.until(|scene| scene.ends.ended.len() >= count);
        self.ends.ended.sort_by_key(|(cookie, _)| *cookie);
    }
}

/// Memory of a peer that is not reached for want of memory costs the one call or access that needs it, in
/// each direction: the connection and what else it carries go on.
#[test]
fn fault_i8_memory_of_a_peer_that_is_not_reached_ends_one_call_and_not_the_connection() {
    for transport in [TransportKind::Rc, TransportKind::Dc] {
        let mut scene = Scene::on(transport);
        let (to, from_caller) = scene.caller.invite().unwrap();
        let (back, from_other) = scene.others[0].worker.invite().unwrap();
        scene.caller.connect(to, &from_other).unwrap();
        scene.others[0].worker.connect(back, &from_caller).unwrap();
        let large = vec![1; 40_000];
        let call = |cookie| Call { method: ECHO, cookie, ..Call::default() };
        let exposed = scene.others[0].worker.expose(64).unwrap();
        let (theirs, ours) = (exposed.remote(), scene.caller.expose(64).unwrap());
        let range = Range { remote_offset: 0, local_offset: 0, len_bytes: 4 };
        scene.caller.call(to, &call(0), &large).unwrap();
        scene.until_ended(1);
        scene.is_short.set(true);
        scene.caller.call(to, &call(1), &large).unwrap();
        scene.caller.call(to, &call(2), b"small").unwrap();
        scene.caller.read(to, &theirs, &ours, range, 3).unwrap();
        let refused = scene.others[0].call(back, ECHO, &large).unwrap();
        scene.until_ended(4);
        scene.until(|scene| scene.others[0].program.ended.contains_key(&refused));
        let told = scene.others[0].program.ended[&refused].0;
        assert_eq!(told, Status::ResourceExhausted, "it was not executed");
        scene.is_short.set(false);
        scene.caller.call(to, &call(4), &large).unwrap();
        scene.caller.read(to, &theirs, &ours, range, 5).unwrap();
        scene.until_ended(6);
        let statuses = [
            Status::Ok,
            // It was executed, and its answer is not fetched.
            Status::Unavailable,
            Status::Ok,
            Status::ResourceExhausted,
            Status::Ok,
            Status::Ok,
        ];
        assert_eq!(scene.ends.ended, (0..).zip(statuses).collect::<Vec<_>>());
        assert_eq!((scene.ends.closed.len(), scene.caller.stats().failures), (0, 0));
        assert_eq!(scene.caller.stats().shortages, 3);
        assert_eq!(scene.caller.large_memory().used_bytes, 0);
        scene.until(|scene| scene.others[0].worker.large_memory().used_bytes == 0);
    }
}

/// Fault D4: an initiator that fails and cannot be restarted ends everything that it was to move, and
/// every connection that it served. There is another one as soon as the NIC makes one.
#[test]
fn fault_d4_an_initiator_that_cannot_be_restarted_ends_what_it_served_and_is_replaced() {
    let mut scene = Scene::new();
    let [to_b, to_c] = [0, 1].map(|other| scene.join(other));
    let theirs = scene.others[0].worker.expose(64).unwrap();
    let dead = scene.others[1].worker.expose(64).unwrap().remote();
    let ours = scene.caller.expose(64).unwrap();
    let range = |at| Range { remote_offset: 0, local_offset: at, len_bytes: 4 };
    let call = |cookie| Call { method: ECHO, cookie, ..Call::default() };
    scene.caller.read(to_c, &dead, &ours, range(0), 0).unwrap();
    scene.caller.read(to_b, &theirs.remote(), &ours, range(8), 1).unwrap();
    scene.caller.call(to_b, &call(2), b"behind").unwrap();
    scene.is_refusing.set(true);
    scene.until_ended(3);
    let lost = [0, 1, 2].map(|cookie| (cookie, Status::Unavailable));
    assert_eq!(scene.ends.ended, lost);
    assert_eq!((scene.ends.closed.len(), scene.caller.peers()), (2, 0));
    let (to_b, from_caller) = scene.caller.invite().unwrap();
    let (back, from_b) = scene.others[0].worker.invite().unwrap();
    let refused = scene.caller.connect(to_b, &from_b);
    assert!(matches!(refused, Err(ConnectError::Modify(_))), "{refused:?}");
    scene.is_refusing.set(false);
    scene.caller.connect(to_b, &from_b).unwrap();
    scene.others[0].worker.connect(back, &from_caller).unwrap();
    scene.caller.call(to_b, &call(3), b"again").unwrap();
    scene.until_ended(4);
    assert_eq!(scene.ends.ended[3], (3, Status::Ok));
}

/// A connection that has nothing to move when its initiator fails for good is told, too: it does not
/// wait for its next call to find out.
#[test]
fn fault_d4_an_initiator_that_cannot_be_restarted_ends_idle_connections_too() {
    let mut scene = Scene::new();
    let [to_idle, to_c] = [0, 1].map(|other| scene.join(other));
    let dead = scene.others[1].worker.expose(64).unwrap().remote();
    let ours = scene.caller.expose(64).unwrap();
    let range = Range { remote_offset: 0, local_offset: 0, len_bytes: 4 };
    scene.caller.read(to_c, &dead, &ours, range, 0).unwrap();
    scene.is_refusing.set(true);
    scene.until_ended(1);
    assert!(scene.ends.closed.contains(&to_idle), "{:?}", scene.ends.closed);
}

/// An initiator reads the memory of a peer that is gone until it has done what it was given for it; not
/// longer, and not at all if there is nothing.
#[test]
fn what_an_initiator_works_with_stays_until_it_is_done() {
    let mut scene = Scene::new();
    let to_c = scene.join(1);
    let theirs = scene.others[1].worker.expose(64).unwrap();
    let ours = scene.caller.expose(64).unwrap();
    let range = Range { remote_offset: 0, local_offset: 0, len_bytes: 4 };
    let before = scene.regions();
    for round in 1..4_usize {
        let to_b = scene.join(0);
        assert_eq!(scene.regions(), before + 2, "a ring, and a mirror of the other one");
        // Nobody asks for the completion of the first batch.
        scene.caller.call(to_b, &Call { cookie: 0, ..Call::default() }, b"unsignaled").unwrap();
        scene.caller.poll(os::clock::now_ns(), &mut scene.ends);
        scene.caller.close(to_b);
        assert_eq!(scene.regions(), before + 1, "the mirror");
        scene.caller.read(to_c, &theirs.remote(), &ours, range, round as u64).unwrap();
        scene.until(|scene| scene.regions() == before);
        scene.until_ended(2 * round);
        let to_b = scene.join(0);
        scene.caller.close(to_b);
        assert_eq!(scene.regions(), before, "there was nothing to do");
    }
    assert_eq!(scene.ends.ended.iter().filter(|(_, status)| *status == Status::Ok).count(), 3);
}

/// The NIC may tell late that a queue pair failed. Its place has another one by then.
#[test]
fn the_end_of_a_queue_pair_that_is_gone_ends_nobody() {
    let mut scene = Scene::on(TransportKind::Rc);
    let (first, gone) = scene.join_by(0);
    scene.caller.close(first);
    let (second, qpn) = scene.join_by(1);
    assert_eq!(first.slot(), second.slot());
    scene.until(|scene| scene.ends.closed == [first]);
    for (number, is_connected) in [(gone, true), (qpn, false)] {
        scene.event.set(Some(AsyncEvent::QpFatal(number)));
        let later_ns = scene.caller.now_ns() + 1_000_000;
        scene.caller.poll(later_ns, &mut scene.ends);
        assert_eq!(scene.event.get(), None, "it was told");
        assert_eq!(scene.caller.is_connected(second), is_connected);
    }
}
