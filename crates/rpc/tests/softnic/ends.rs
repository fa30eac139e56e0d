//! How calls and connections end.

use core::{mem, time::Duration};
use std::panic::{AssertUnwindSafe, catch_unwind};

use copyrpc_rpc::{
    Body, Call, CallEnd, CloseReason, Config, ConnectError, Handler, PeerId, Request, Status,
    TransportKind, Worker,
};
use softnic::Nic;

use crate::rig::{ECHO, LATER, Node, fabric, join, pair, poll_until, tight, until};

fn dc() -> Config {
    Config { transport: TransportKind::Dc, ..tight() }
}

/// Rule C5.4, pitfall 15: a call whose handler never answers ends at its deadline.
#[test]
fn pitfall_15_a_call_ends_at_its_deadline() {
    let (mut a, mut b, to_b, _) = pair(&tight());
    let timeout = Duration::from_millis(20);
    let start_ns = os::clock::now_ns();
    a.poll();
    let call = Call { method: LATER, timeout, cookie: 5, ..Call::default() };
    a.worker.call(to_b, &call, b"").unwrap();
    until(&mut [&mut a, &mut b], |nodes| !nodes[0].program.ended.is_empty());
    assert_eq!(a.program.ended[&5].0, Status::DeadlineExceeded);
    assert!(os::clock::now_ns() - start_ns >= 20_000_000, "not before");
    // The server hears of it, and may answer all the same.
    until(&mut [&mut a, &mut b], |nodes| nodes[1].worker.stats().arrivals >= 2);
    let (token, _) = b.program.kept.pop().unwrap();
    assert!(b.worker.is_cancelled(&token));
    b.worker.reply(token, Status::Ok, b"late").unwrap();
    until(&mut [&mut a, &mut b], |nodes| nodes[0].worker.counters(to_b).unwrap().late == 1);
    assert_eq!(a.program.ended.len(), 1);
}

/// Makes another call when the first one ends.
struct Again {
    to: PeerId,
    ended: Vec<(u64, Status)>,
}

impl Handler<Nic> for Again {
    fn request(&mut self, _: &mut Worker<Nic>, _: Request, _: Body<'_, Nic>) {}

    fn ended(&mut self, worker: &mut Worker<Nic>, cookie: u64, end: CallEnd<'_, Nic>) {
        self.ended.push((cookie, end.status()));
        if self.ended.len() == 1 {
            let timeout = Duration::from_millis(1);
            let call = Call { timeout, cookie: cookie + 1, ..Call::default() };
            worker.call(self.to, &call, b"").unwrap();
        }
    }
}

/// Rule C5.4, for a call that a callback makes after deadlines were looked at, to a peer that nothing
/// was due to, but that was called in vain just before.
#[test]
fn a_call_from_a_callback_ends_at_its_deadline() {
    let config = Config { large_bytes: 0, ..tight() };
    let fabric = fabric();
    let [mut a, mut b, mut c] = [(); 3].map(|()| Node::open(&fabric, &config));
    let (to_b, _) = join(&mut a, &mut b);
    let (to_c, _) = join(&mut a, &mut c);
    let mut now_ns = os::clock::now_ns();
    let id = a.worker.call(to_c, &Call { cookie: 1, ..Call::default() }, b"").unwrap();
    a.worker.cancel(to_c, id);
    a.worker.call(to_b, &Call::default(), &[0; 4096]).unwrap_err();
    let mut again = Again { to: to_b, ended: Vec::new() };
    for _ in 0..2 {
        now_ns += 10_000_000;
        a.worker.poll(now_ns, &mut again);
    }
    assert_eq!(again.ended, [(1, Status::Cancelled), (2, Status::DeadlineExceeded)]);
}

#[test]
fn a_cancelled_call_ends_at_the_next_poll() {
    let (mut a, mut b, to_b, _) = pair(&tight());
    let call = Call { method: LATER, cookie: 9, ..Call::default() };
    let id = a.worker.call(to_b, &call, b"").unwrap();
    a.worker.cancel(to_b, id);
    a.worker.cancel(to_b, id);
    a.poll();
    assert_eq!(a.program.ended[&9].0, Status::Cancelled);
    until(&mut [&mut a, &mut b], |nodes| !nodes[1].program.kept.is_empty());
}

/// A side that closes ends its own calls; the other one learns of it from its NIC.
#[test]
fn a_closed_connection_ends_every_call_on_both_sides() {
    for config in [tight(), dc()] {
        let (mut a, mut b, to_b, to_a) = pair(&config);
        a.call(to_b, LATER, b"a").unwrap();
        b.call(to_a, LATER, b"b").unwrap();
        until(&mut [&mut a, &mut b], |nodes| {
            nodes.iter().all(|node| !node.program.kept.is_empty())
        });
        a.worker.close(to_b);
        a.poll();
        assert_eq!(a.program.ended[&0].0, Status::Cancelled);
        assert_eq!(a.program.closed, [(to_b, CloseReason::Closed)]);
        // An answer to a connection that is gone is refused; one that does not know it is lost.
        let (token, _) = a.program.kept.pop().unwrap();
        assert!(a.worker.reply(token, Status::Ok, b"").is_err());
        let (token, _) = b.program.kept.pop().unwrap();
        b.worker.reply(token, Status::Ok, b"").unwrap();
        until(&mut [&mut a, &mut b], |nodes| !nodes[1].program.closed.is_empty());
        assert_eq!(b.program.ended[&0].0, Status::Unavailable, "{config:?}");
        assert!(matches!(b.program.closed[0].1, CloseReason::Failed(_)));
    }
}

/// Rule C1.4, faults C3 and D8: places are used again, under new epochs and keys.
#[test]
fn fault_d8_peers_come_and_go() {
    for config in [tight(), dc()] {
        let fabric = fabric();
        let (mut a, mut b) = (Node::open(&fabric, &config), Node::open(&fabric, &config));
        for round in 0..20 {
            let (to_b, to_a) = join(&mut a, &mut b);
            a.call(to_b, ECHO, b"again").unwrap();
            until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.len() > round);
            assert_eq!(a.program.ended[&(round as u64)], (Status::Ok, b"again".to_vec()));
            a.worker.close(to_b);
            b.worker.close(to_a);
        }
        assert_eq!((a.worker.peers(), b.worker.peers()), (0, 0));
        for _ in 0..config.peers_max {
            a.worker.invite().unwrap();
        }
        assert!(matches!(a.worker.invite(), Err(ConnectError::Full { max: 4 })));
    }
}

/// Fault D4: an initiator that fails for one peer goes on for the others, and loses none of their
/// batches.
#[test]
fn fault_d4_a_peer_that_is_gone_takes_no_other_with_it() {
    let config = Config { dcis: 1, ..dc() };
    let fabric = fabric();
    let mut nodes: Vec<_> = (0..3).map(|_| Node::open(&fabric, &config)).collect();
    let [a, b, c] = &mut nodes[..] else { unreachable!() };
    let (to_b, _) = join(a, b);
    let (to_c, _) = join(a, c);
    for to in [to_c, to_b] {
        a.call(to, ECHO, b"first").unwrap();
    }
    until(&mut [a, b, c], |nodes| nodes[0].program.ended.len() == 2);
    for round in 0..10 {
        for to in [to_c, to_b] {
            let _ = a.call(to, ECHO, b"x");
        }
        if round == 4 {
            // Whatever is on its way to `c` from now on fails.
            *c = Node::open(&fabric, &config);
        }
        a.poll();
        b.poll();
        c.poll();
    }
    until(&mut [a, b, c], |nodes| nodes[0].program.ended.len() == nodes[0].program.made);
    let made = a.program.made;
    assert_eq!(a.program.closed.len(), 1);
    assert_eq!(a.program.closed[0].0, to_c);
    assert!(a.worker.is_connected(to_b));
    a.call(to_b, ECHO, b"still there").unwrap();
    until(&mut [a, b, c], |nodes| nodes[0].program.ended.len() == made + 1);
    let bad = a.program.ended.values().filter(|(status, _)| *status != Status::Ok).count();
    assert!((1..=9).contains(&bad), "{bad} calls of one peer failed");
}

#[test]
fn sides_with_different_transports_refuse_each_other() {
    let fabric = fabric();
    let (mut a, mut b) = (Node::open(&fabric, &tight()), Node::open(&fabric, &dc()));
    let (to_b, _) = a.worker.invite().unwrap();
    let (_, from_b) = b.worker.invite().unwrap();
    let error = a.worker.connect(to_b, &from_b).unwrap_err();
    assert_eq!(error.to_string(), "the peer uses DC, this side RC; configure both alike");
}

/// A peer decides how large its ring is, not how much memory this side registers for it.
#[test]
fn a_ring_beyond_the_limit_is_refused() {
    let fabric = fabric();
    let small = Config { peer_ring_bytes_max: 1 << 11, ..tight() };
    let (mut a, mut b) = (Node::open(&fabric, &small), Node::open(&fabric, &tight()));
    let (to_b, _) = a.worker.invite().unwrap();
    let (_, from_b) = b.worker.invite().unwrap();
    let error = a.worker.connect(to_b, &from_b).unwrap_err();
    assert!(matches!(error, ConnectError::Ring { theirs: 4096, max: 2048 }), "{error}");
}

/// What a peer sent before its connection ended, and nobody has handled, took receives that others share:
/// they go back.
#[test]
fn receives_of_connections_that_ended_go_back() {
    let config = tight();
    let fabric = fabric();
    let (mut a, mut b) = (Node::open(&fabric, &config), Node::open(&fabric, &config));
    for _ in 0..2 * config.receives {
        let (to_b, to_a) = join(&mut a, &mut b);
        a.call(to_b, ECHO, b"never handled").unwrap();
        a.poll();
        b.worker.close(to_a);
        a.worker.close(to_b);
        b.poll();
        a.poll();
    }
    let (to_b, _) = join(&mut a, &mut b);
    let made = a.call(to_b, ECHO, b"handled").unwrap();
    until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.contains_key(&made));
    assert_eq!(a.program.ended[&made].0, Status::Ok);
}

/// A peer may call as soon as it is connected, before this side is.
#[test]
fn a_batch_that_comes_before_the_invitation_of_its_peer_is_kept() {
    let fabric = fabric();
    let (mut a, mut b) = (Node::open(&fabric, &dc()), Node::open(&fabric, &dc()));
    let (to_b, from_a) = a.worker.invite().unwrap();
    let (to_a, from_b) = b.worker.invite().unwrap();
    b.worker.connect(to_a, &from_a).unwrap();
    let cookie = b.call(to_a, ECHO, b"early").unwrap();
    until(&mut [&mut a, &mut b], |nodes| nodes[0].worker.stats().arrivals == 1);
    a.worker.connect(to_b, &from_b).unwrap();
    until(&mut [&mut a, &mut b], |nodes| nodes[1].program.ended.contains_key(&cookie));
    assert_eq!(b.program.ended[&cookie], (Status::Ok, b"early".to_vec()));
}

/// What was announced before the invitation of a peer that is closed at once is nobody else's.
#[test]
fn a_batch_that_came_early_is_not_taken_for_one_of_the_next_peer_in_its_place() {
    let fabric = fabric();
    let (mut a, mut b) = (Node::open(&fabric, &dc()), Node::open(&fabric, &dc()));
    let (to_b, from_a) = a.worker.invite().unwrap();
    let (to_a, from_b) = b.worker.invite().unwrap();
    b.worker.connect(to_a, &from_a).unwrap();
    b.call(to_a, ECHO, b"early").unwrap();
    until(&mut [&mut a, &mut b], |nodes| nodes[0].worker.stats().arrivals == 1);
    a.worker.connect(to_b, &from_b).unwrap();
    a.worker.close(to_b);
    b.worker.close(to_a);
    let (again, _) = join(&mut a, &mut b);
    assert_eq!(again.slot(), to_b.slot());
    let cookie = a.call(again, ECHO, b"again").unwrap();
    until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.contains_key(&cookie));
    assert_eq!(a.program.ended[&cookie].0, Status::Ok);
    assert_eq!(a.worker.stats().unknown_imms, 0);
}

/// Replaces one of two peers by another in the first request's callback.
struct Replacing {
    old: [PeerId; 2],
    others: [Node; 2],
    /// Which one was replaced, its name of the worker, and the worker's of it.
    new: Option<(usize, PeerId, PeerId)>,
    is_panicking: bool,
    closed: Vec<(PeerId, CloseReason)>,
}

impl Replacing {
    fn replace(&mut self, worker: &mut Worker<Nic>, which: usize) {
        worker.close(self.old[which]);
        let (to, ours) = worker.invite().unwrap();
        let (back, theirs) = self.others[which].worker.invite().unwrap();
        worker.connect(to, &theirs).unwrap();
        self.others[which].worker.connect(back, &ours).unwrap();
        self.new = Some((which, back, to));
    }
}

impl Handler<Nic> for Replacing {
    fn request(&mut self, worker: &mut Worker<Nic>, request: Request, body: Body<'_, Nic>) {
        if self.new.is_none() {
            // The other one's batch has arrived too.
            let which = usize::from(request.token.peer() == self.old[0]);
            if mem::take(&mut self.is_panicking) {
                self.new = Some((which, self.old[which], self.old[which]));
                panic!("on purpose");
            }
            self.replace(worker, which);
        }
        worker.reply(request.token, Status::Ok, &body.bytes()).unwrap();
    }

    fn ended(&mut self, _: &mut Worker<Nic>, _: u64, _: CallEnd<'_, Nic>) {}

    fn closed(&mut self, _: &mut Worker<Nic>, peer: PeerId, reason: CloseReason) {
        self.closed.push((peer, reason));
    }
}

/// Numbers of queue pairs are used again, so what one announced does not outlive it: not even the arrival
/// that is next when a callback closes its connection, or that a panic left.
#[test]
fn an_arrival_of_a_connection_that_was_closed_is_not_taken_for_one_of_the_next() {
    let own = Config { shared_receives: false, ..tight() };
    let cases = [tight(), own, dc()].into_iter().flat_map(|c| [(c.clone(), false), (c, true)]);
    for (config, is_panicking) in cases {
        let fabric = fabric();
        let mut a = Node::open(&fabric, &config);
        // More rounds than there are receives: each of them goes back.
        for round in 1..=u64::from(config.receives) + 1 {
            let mut others = [(); 2].map(|()| Node::open(&fabric, &config));
            let ends = others.each_mut().map(|other| join(&mut a, other));
            for text in [b"first", b"again"] {
                for (other, (_, back)) in others.iter_mut().zip(ends) {
                    other.call(back, ECHO, text).unwrap();
                    other.poll();
                }
                if text == b"first" {
                    let [b, c] = &mut others;
                    until(&mut [&mut a, b, c], |nodes| {
                        nodes[1..].iter().all(|node| !node.program.ended.is_empty())
                    });
                }
            }
            let old = ends.map(|(to, _)| to);
            let closed = Vec::new();
            let mut handler = Replacing { old, others, new: None, is_panicking, closed };
            if is_panicking {
                let poll = AssertUnwindSafe(|| a.worker.poll(os::clock::now_ns(), &mut handler));
                assert!(catch_unwind(poll).is_err());
                let (which, ..) = handler.new.unwrap();
                handler.replace(&mut a.worker, which);
            }
            poll_until("the end of the connection", || {
                a.worker.poll(os::clock::now_ns(), &mut handler);
                !handler.closed.is_empty()
            });
            a.worker.poll(os::clock::now_ns(), &mut handler);
            let (which, back, _) = handler.new.unwrap();
            assert_eq!(handler.closed, [(old[which], CloseReason::Closed)], "{config:?}");
            let other = &mut handler.others[which];
            let cookie = other.call(back, ECHO, b"again").unwrap();
            until(&mut [&mut a, other], |nodes| nodes[1].program.ended.contains_key(&cookie));
            assert_eq!(other.program.ended[&cookie].0, Status::Ok, "{config:?}");
            // DC does not tell whose it is: what was announced is not found in the ring.
            let is_dc = config.transport == TransportKind::Dc;
            assert_eq!(a.worker.stats().unknown_imms, u64::from(is_dc) * round, "{config:?}");
            a.worker.close(handler.old[1 - which]);
            a.worker.close(handler.new.unwrap().2);
            a.poll();
        }
    }
}
