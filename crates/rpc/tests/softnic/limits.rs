//! NICs that can do less than the software NIC, that tell less, and runs that are to be repeated.

use std::{cell::RefCell, rc::Rc, time::Duration};

use copyrpc_rpc::{
    Body, Call, CallEnd, CallError, CloseReason, Config, ConnectError, Entropy, Handler, PeerId,
    Range, Request, Status, TransportKind, Worker,
};
use verbs::{Access, Mtu, Transition};

use crate::{
    basics::body,
    double::{Faulty, Log, faulty},
    rig::{fabric, poll_until, tight},
};

/// Answers with the body, and keeps how calls and connections ended.
#[derive(Default)]
struct Program {
    ended: Vec<(u64, Status, Vec<u8>)>,
    closed: Vec<CloseReason>,
}

impl Handler<Faulty> for Program {
    fn request(&mut self, worker: &mut Worker<Faulty>, request: Request, body: Body<'_, Faulty>) {
        worker.reply(request.token, Status::Ok, &body.bytes()).unwrap();
    }
    fn ended(&mut self, _: &mut Worker<Faulty>, cookie: u64, end: CallEnd<'_, Faulty>) {
        self.ended.push((cookie, end.status(), end.bytes().into_owned()));
    }
    fn closed(&mut self, _: &mut Worker<Faulty>, _: PeerId, reason: CloseReason) {
        self.closed.push(reason);
    }
}

struct End {
    worker: Worker<Faulty>,
    program: Program,
    log: Rc<RefCell<Log>>,
}

impl End {
    fn open(config: &Config, nic: Faulty) -> Self {
        let log = Rc::clone(&nic.log);
        let worker = Worker::open(nic, config.clone(), 0).unwrap();
        Self { worker, program: Program::default(), log }
    }

    fn poll(&mut self, now_ns: u64) {
        self.worker.poll(now_ns, &mut self.program);
    }
}

fn join(a: &mut End, b: &mut End) -> Result<[PeerId; 2], ConnectError> {
    let ((to_b, from_a), (to_a, from_b)) = (a.worker.invite().unwrap(), b.worker.invite().unwrap());
    a.worker.connect(to_b, &from_b)?;
    b.worker.connect(to_a, &from_a)?;
    Ok([to_b, to_a])
}

/// Polls both in turns of virtual time until `is_done`.
#[track_caller]
fn until(ends: [&mut End; 2], now_ns: &mut u64, is_done: impl Fn(&[&mut End; 2]) -> bool) {
    let mut ends = ends;
    poll_until("what two workers do", || {
        is_done(&ends) || {
            *now_ns += 1000;
            ends.iter_mut().for_each(|end| end.poll(*now_ns));
            false
        }
    });
}

/// Two workers on NICs that `limit` restricts.
fn pair(config: &Config, limit: impl Fn(usize, &mut Faulty)) -> [End; 2] {
    let fabric = fabric();
    [0, 1].map(|side| {
        let mut nic = faulty(&fabric);
        limit(side, &mut nic);
        End::open(config, nic)
    })
}

/// A body, or a region, that is longer than the NIC's longest message is moved in several.
#[test]
fn what_exceeds_the_longest_message_is_moved_in_pieces() {
    const MESSAGE_BYTES: u32 = 4096;
    for transport in [TransportKind::Rc, TransportKind::Dc] {
        // So few that not all pieces of a transfer find space at once.
        let config = Config { transport, sends: 4, signal_interval: 4, ..tight() };
        let [mut a, mut b] =
            pair(&config, |_, nic| nic.attributes.message_bytes_max = MESSAGE_BYTES);
        let [to_b, _] = join(&mut a, &mut b).unwrap();
        let mut now_ns = 0;
        let bodies: Vec<_> =
            [4096, 4097, 100_000, 1 << 18].map(|len_bytes| body(7, len_bytes)).into();
        for (cookie, body) in (0..).zip(&bodies) {
            let call = Call { cookie, response_bytes: 64, ..Call::default() };
            a.worker.call(to_b, &call, body).unwrap();
        }
        until([&mut a, &mut b], &mut now_ns, |ends| ends[0].program.ended.len() == bodies.len());
        for (cookie, status, answer) in a.program.ended.drain(..) {
            assert_eq!(status, Status::Ok);
            assert!(answer == bodies[usize::try_from(cookie).unwrap()], "body {cookie}");
        }
        let (ours, theirs) = (a.worker.expose(10_000).unwrap(), b.worker.expose(10_000).unwrap());
        ours.write(0, &body(9, 10_000));
        let range = Range { remote_offset: 0, local_offset: 0, len_bytes: 10_000 };
        a.worker.write(to_b, &ours, &theirs.remote(), range, 10).unwrap();
        let empty = Range { len_bytes: 0, ..range };
        a.worker.read(to_b, &theirs.remote(), &ours, empty, 11).unwrap();
        until([&mut a, &mut b], &mut now_ns, |ends| ends[0].program.ended.len() == 2);
        let mut written = vec![0; 10_000];
        theirs.read(0, &mut written);
        assert!(written == body(9, 10_000));
        for end in [&a, &b] {
            let log = end.log.borrow();
            assert!(log.transfers.iter().all(|len_bytes| *len_bytes <= MESSAGE_BYTES));
            assert!(log.transfers.len() > 25, "{transport:?}");
        }
    }
}

/// However many bodies are under way at once, a few regions hold them, and once they were registered nothing is
/// any more. Peers are told no key of those that bodies are read to.
#[test]
fn bodies_that_are_under_way_again_register_nothing() {
    const BODIES: usize = 60;
    let config = Config { calls_max: 64, ..tight() };
    let [mut a, mut b] = pair(&config, |_, _| {});
    let [to_b, _] = join(&mut a, &mut b).unwrap();
    let mut now_ns = 0;
    let joined = [&a, &b].map(|end| end.log.borrow().registered.len());
    let sent = body(3, 20_000);
    let mut registered = Vec::new();
    for _ in 0..4 {
        let mut made = 0;
        poll_until("room for every call", || {
            let call = Call {
                cookie: made as u64,
                response_bytes: 64,
                timeout: Duration::from_secs(60),
                ..Call::default()
            };
            match a.worker.call(to_b, &call, &sent) {
                Ok(_) => made += 1,
                Err(CallError::Busy(_)) => {
                    now_ns += 1000;
                    [&mut a, &mut b].into_iter().for_each(|end| end.poll(now_ns));
                }
                Err(error) => panic!("{error}"),
            }
            made == BODIES
        });
        until([&mut a, &mut b], &mut now_ns, |ends| ends[0].program.ended.len() == BODIES);
        for (_, status, answer) in a.program.ended.drain(..) {
            assert!((status, &answer) == (Status::Ok, &sent));
        }
        registered.push([&a, &b].map(|end| end.log.borrow().registered.len()));
    }
    assert!(registered.iter().all(|counts| counts == &registered[0]), "{registered:?}");
    for (end, joined) in [&a, &b].into_iter().zip(joined) {
        let log = end.log.borrow();
        let rights = &log.registered[joined..];
        assert!((2..=12).contains(&rights.len()), "{rights:?}");
        let is_either = |&rights| {
            [Access::LOCAL_WRITE, Access::REMOTE_READ]
                .contains(&(rights - Access::RELAXED_ORDERING))
        };
        assert!(rights.iter().all(is_either), "{rights:?}");
    }
}

/// A peer has a key for the ring that it writes. What no peer reaches shares regions, of which each has as many mirrors as
/// all before it.
#[test]
fn peers_share_the_regions_that_they_do_not_reach() {
    const PEERS: u16 = 64;
    let config = Config { peers_max: PEERS, ..tight() };
    let fabric = fabric();
    let nic = faulty(&fabric);
    let log = nic.hooks.log.clone();
    let mut hub = Worker::open(nic, config.clone(), 0).unwrap();
    let open = |_| Worker::open(faulty(&fabric), Config { peers_max: 1, ..tight() }, 0).unwrap();
    let mut others: Vec<Worker<Faulty>> = (0..PEERS).map(open).collect();
    let mut join = |hub: &mut Worker<Faulty>, other: usize| {
        let (to_other, ours) = hub.invite().unwrap();
        let (to_hub, theirs) = others[other].invite().unwrap();
        hub.connect(to_other, &theirs).unwrap();
        others[other].connect(to_hub, &ours).unwrap();
        (to_other, to_hub)
    };
    let mut peers: Vec<_> = (0..PEERS.into()).map(|other| join(&mut hub, other)).collect();
    let count = |wanted: Access| {
        let is_meant = |it: &&Access| **it - Access::RELAXED_ORDERING == wanted;
        log.borrow().registered.iter().filter(is_meant).count()
    };
    assert_eq!(
        count(Access::LOCAL_WRITE | Access::REMOTE_WRITE),
        usize::from(PEERS),
        "a ring each"
    );
    // 1 + 1 + 2 + 4 + 8 + 16 + 32
    assert_eq!(count(Access::LOCAL_WRITE), 7, "mirrors");
    // Those of peers that are gone are used again; a region whose last peer is gone, is gone.
    for (to_other, _) in peers.drain(16..48) {
        hub.close(to_other);
    }
    hub.poll(0, &mut Program::default());
    let fresh: Vec<_> = (0..32).map(|_| open(0)).collect();
    for mut other in fresh {
        let (to_other, ours) = hub.invite().unwrap();
        let (to_hub, theirs) = other.invite().unwrap();
        hub.connect(to_other, &theirs).unwrap();
        other.connect(to_hub, &ours).unwrap();
    }
    assert_eq!(
        count(Access::LOCAL_WRITE),
        8,
        "16 of a region that was left, and 16 of another one"
    );
}

/// Rings, bodies and exposed memory alike.
#[test]
fn all_memory_is_registered_with_the_ordering_of_the_settings() {
    for relaxed_ordering in [true, false] {
        let config = Config { relaxed_ordering, ..tight() };
        let [mut a, mut b] = pair(&config, |_, _| {});
        let [to_b, _] = join(&mut a, &mut b).unwrap();
        let exposed = b.worker.expose(64).unwrap();
        let (mut now_ns, sent) = (0, body(3, 20_000));
        let call = Call { timeout: Duration::from_secs(60), ..Call::default() };
        a.worker.call(to_b, &call, &sent).unwrap();
        until([&mut a, &mut b], &mut now_ns, |ends| ends[0].program.ended.len() == 1);
        drop(exposed);
        for end in [&a, &b] {
            let log = end.log.borrow();
            assert!(log.registered.len() > 2);
            let is_set = |rights: &Access| rights.contains(Access::RELAXED_ORDERING);
            assert!(log.registered.iter().all(|it| is_set(it) == relaxed_ordering));
        }
    }
}

/// A transfer that is half posted when its connection ends is told once, and its memory stays as long as
/// the NIC uses it.
#[test]
fn a_transfer_in_pieces_ends_once_with_its_connection() {
    for transport in [TransportKind::Rc, TransportKind::Dc] {
        let config = Config { transport, sends: 4, signal_interval: 4, ..tight() };
        let [mut a, mut b] = pair(&config, |_, nic| nic.attributes.message_bytes_max = 64);
        let mut now_ns = 0;
        for round in 1..4 {
            let [to_b, to_a] = join(&mut a, &mut b).unwrap();
            let theirs = b.worker.expose(64 << 10).unwrap().remote();
            let ours = a.worker.expose(64 << 10).unwrap();
            let range = Range { remote_offset: 0, local_offset: 0, len_bytes: 64 << 10 };
            a.worker.read(to_b, &theirs, &ours, range, round).unwrap();
            a.worker.close(to_b);
            b.worker.close(to_a);
            let told = usize::try_from(round).unwrap();
            until([&mut a, &mut b], &mut now_ns, |ends| {
                ends[0].program.ended.len() == told && ends[0].program.closed.len() == told
            });
        }
        let ended: Vec<_> =
            a.program.ended.iter().map(|(cookie, status, _)| (*cookie, *status)).collect();
        assert_eq!(ended, [1, 2, 3].map(|cookie| (cookie, Status::Unavailable)), "{transport:?}");
    }
}

/// Each side sends packets and READs that both NICs allow.
#[test]
fn a_connection_keeps_to_what_both_ports_allow() {
    let limit = |side: usize, nic: &mut Faulty| {
        (nic.mtu, nic.attributes.reads_max) = [(Mtu::B2048, 4), (Mtu::B1024, 16)][side];
    };
    let ack_timeout = Duration::from_millis(9);
    let config = Config { ack_timeout, retry_count: 6, rnr_retry: 5, ..tight() };
    let [mut a, mut b] = pair(&config, limit);
    join(&mut a, &mut b).unwrap();
    for end in [&a, &b] {
        let log = end.log.borrow();
        let [Transition::Init(_), Transition::Rtr(rtr), Transition::Rts(rts)] = log.transitions[..]
        else {
            panic!("{:?}", log.transitions)
        };
        assert_eq!((rtr.path_mtu, rtr.reads_in_max, rts.reads_out_max), (Mtu::B1024, 4, 4));
        assert_eq!((rts.ack_timeout, rts.retry_count, rts.rnr_retry), (ack_timeout, 6, 5));
    }
    // An initiator is not one connection's.
    let dc = Config { transport: TransportKind::Dc, ..tight() };
    let [mut a, mut b] = pair(&dc, limit);
    let refused = join(&mut a, &mut b).unwrap_err().to_string();
    let expected = "the peer's port takes packets of 1024 B and 16 READs, this side's initiators send \
                    packets of 2048 B and 4 READs; configure both alike";
    assert_eq!(refused, expected);
}

/// Rule C7.7: a NIC that does not tell of ports that are gone is asked by writing to them.
#[test]
fn a_silent_peer_that_is_gone_is_found_out_by_the_keepalive() {
    const INTERVAL_NS: u64 = 2_000_000;
    for transport in [TransportKind::Rc, TransportKind::Dc] {
        let config =
            Config { transport, keepalive: Some(Duration::from_nanos(INTERVAL_NS)), ..tight() };
        let [mut a, mut b] = pair(&config, |_, nic| nic.is_deaf = true);
        join(&mut a, &mut b).unwrap();
        let mut now_ns = 0;
        until([&mut a, &mut b], &mut now_ns, |ends| ends[0].worker.stats().keepalives == 3);
        assert!(now_ns <= 4 * INTERVAL_NS, "one an interval, and the first sees what was before");
        assert!(a.program.closed.is_empty() && b.program.closed.is_empty());
        assert!(a.worker.wake_ns().is_some_and(|at| at <= now_ns + INTERVAL_NS), "asleep, too");
        drop(b);
        // It is found out within two intervals, and a moment in which the NIC's own time goes by.
        let end_ns = now_ns + 3 * INTERVAL_NS;
        poll_until("the end of the connection", || {
            now_ns = (now_ns + 1000).min(end_ns);
            a.poll(now_ns);
            !a.program.closed.is_empty()
        });
        assert!(matches!(a.program.closed[..], [CloseReason::Failed(_)]), "{:?}", a.program.closed);
        assert_eq!(a.worker.wake_ns(), None, "nobody is left to be asked");
    }
}

/// A worker that never sleeps has no channel, and so no descriptor.
#[test]
fn a_worker_that_does_not_sleep_needs_no_channel() {
    for may_sleep in [false, true] {
        let config = Config { may_sleep, ..tight() };
        let end = End::open(&config, faulty(&fabric()));
        assert_eq!(end.log.borrow().channels, usize::from(may_sleep));
        assert_eq!(end.worker.channel().is_some(), may_sleep);
    }
}

/// What both sides of some calls over connections that come and go post in virtual time.
fn posted(transport: TransportKind, seed: u64) -> [Log; 2] {
    let config = Config { transport, may_sleep: false, inline_bytes: 900, ..tight() };
    let fabric = fabric();
    let [mut a, mut b] = [0, 1].map(|side| {
        let entropy = Entropy::Seed(seed + side);
        End::open(&Config { entropy, ..config.clone() }, faulty(&fabric))
    });
    let mut peers = [(); 3].map(|()| join(&mut a, &mut b).unwrap());
    let (mut now_ns, mut made) = (0, 0);
    for round in 0..40 {
        for (index, [to_b, _]) in peers.into_iter().enumerate() {
            let len_bytes = (round * 37 + index * 11) % 230; // no body names an address
            let call = Call { cookie: made, timeout: Duration::from_secs(1), ..Call::default() };
            a.worker.call(to_b, &call, &body(round, len_bytes)).unwrap();
            made += 1;
        }
        if round % 8 == 0 {
            until([&mut a, &mut b], &mut now_ns, |ends| ends[0].program.ended.len() as u64 == made);
            a.worker.close(peers[1][0]);
            b.worker.close(peers[1][1]);
            peers[1] = join(&mut a, &mut b).unwrap();
        }
        now_ns += 500;
        a.poll(now_ns);
        b.poll(now_ns);
    }
    until([&mut a, &mut b], &mut now_ns, |ends| ends[0].program.ended.len() as u64 == made);
    [a, b].map(|end| end.log.take())
}

/// What a seed determines: epochs and packet numbers, so every byte of every batch, and the order of all.
/// Addresses and keys of memory are the NIC's own.
#[test]
fn the_same_seed_sends_the_same_bytes() {
    for transport in [TransportKind::Rc, TransportKind::Dc] {
        let [first, second, other] = [7, 7, 70].map(|seed| posted(transport, seed));
        assert!(first[0].inline.len() > 30, "batches were sent");
        for side in [0, 1] {
            assert!(first[side].inline == second[side].inline, "{transport:?}");
            assert!(first[side].inline != other[side].inline, "{transport:?}");
        }
    }
}
