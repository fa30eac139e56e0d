//! Calls, answers, and everything that can be switched.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use copyrpc_rpc::{
    Body, Call, CallEnd, CallError, Config, FlushPolicy, Handler, PeerId, ReplyError, Request,
    Status, TransportKind, Worker,
};
use softnic::Nic;

use crate::rig::{
    DROP, ECHO, FAIL, LATER, Node, Program, fabric, join, pair, poll_until, shapes, soft, tight,
    until,
};

/// A body that its number determines.
pub(crate) fn body(number: usize, len_bytes: usize) -> Vec<u8> {
    (0..len_bytes).map(|at| (number * 31 + at * 7).to_le_bytes()[0]).collect()
}

/// Calls of every length through rings that are full all the time, in both directions.
fn storm(a: &mut Node, b: &mut Node, config: &Config, to_b: PeerId, to_a: PeerId) {
    const CALLS: usize = 400;
    let longest = config.geometry().unwrap().body_bytes_max();
    let is_over = |node: &Node| node.program.ended.len() == CALLS;
    until(&mut [a, b], |_| true);
    let mut bodies = [Vec::new(), Vec::new()];
    poll_until("the ends of all calls", || {
        for (side, (node, to)) in [(&mut *a, to_b), (&mut *b, to_a)].into_iter().enumerate() {
            while bodies[side].len() < CALLS {
                let number = bodies[side].len();
                let body = body(number + side, number * 37 % (longest + 1));
                match node.call(to, ECHO, &body) {
                    Ok(_) => bodies[side].push(body),
                    Err(CallError::Busy(_)) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            node.poll();
        }
        is_over(a) && is_over(b)
    });
    for (node, bodies) in [(&*a, &bodies[0]), (&*b, &bodies[1])] {
        // By cookie, and so in the order of the calls.
        for ((status, answer), body) in node.program.ended.values().zip(bodies) {
            assert_eq!((status, answer), (&Status::Ok, body));
        }
        assert_eq!(node.program.closed, []);
    }
}

#[test]
fn every_shape_carries_every_length_both_ways() {
    for config in shapes() {
        let (mut a, mut b, to_b, to_a) = pair(&config);
        storm(&mut a, &mut b, &config, to_b, to_a);
    }
}

const POLICIES: [FlushPolicy; 7] = [
    FlushPolicy::SelfClocked { wqes: 1 },
    FlushPolicy::Immediate,
    FlushPolicy::Hold { ns: 10_000 },
    FlushPolicy::AdaptiveHold { messages: 4 },
    FlushPolicy::RttHold { permille: 500 },
    FlushPolicy::PollBudget { polls: 4 },
    FlushPolicy::Coalesce { ns: 10_000 },
];

/// Rules C7.2 and C7.3.
#[test]
fn every_flush_policy_carries_every_length_both_ways() {
    for flush in POLICIES {
        let config = Config { flush, ..tight() };
        let (mut a, mut b, to_b, to_a) = pair(&config);
        storm(&mut a, &mut b, &config, to_b, to_a);
    }
}

/// In strict mode the NIC delays and shuffles what hardware may, and refuses what hardware refuses.
#[test]
fn strict_mode_finds_nothing_wrong() {
    for (seed, config) in shapes().into_iter().enumerate() {
        let nic = soft(&fabric(), Some(seed as u64 + 1));
        let (mut a, mut b) = (Node::open_on(&nic, &config), Node::open_on(&nic, &config));
        let (to_b, to_a) = join(&mut a, &mut b);
        storm(&mut a, &mut b, &config, to_b, to_a);
    }
}

#[test]
fn a_handler_answers_now_later_with_an_error_or_not_at_all() {
    let (mut a, mut b, to_b, _) = pair(&tight());
    for method in [ECHO, LATER, DROP, FAIL] {
        a.call(to_b, method, b"body").unwrap();
    }
    until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.len() == 3);
    let ended = &a.program.ended;
    assert_eq!(ended[&0], (Status::Ok, b"body".to_vec()));
    assert_eq!(ended[&2], (Status::Unknown, Vec::new()));
    assert_eq!(ended[&3], (Status::NotFound, b"body".to_vec()));
    let (token, body) = b.program.kept.pop().unwrap();
    b.worker.reply(token, Status::Ok, &body).unwrap();
    until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.len() == 4);
    assert_eq!(a.program.ended[&1], (Status::Ok, b"body".to_vec()));
}

#[test]
fn an_answer_that_is_too_long_is_an_error_on_both_sides() {
    let (mut a, mut b, to_b, _) = pair(&tight());
    a.call(to_b, LATER, b"x").unwrap();
    until(&mut [&mut a, &mut b], |nodes| !nodes[1].program.kept.is_empty());
    let (token, _) = b.program.kept.pop().unwrap();
    let len_bytes = tight().large_bytes as usize + 1;
    let error = b.worker.reply(token, Status::Ok, &vec![0; len_bytes]).unwrap_err();
    assert_eq!(error, ReplyError::TooLong { len_bytes, max_bytes: len_bytes - 1 });
    until(&mut [&mut a, &mut b], |nodes| !nodes[0].program.ended.is_empty());
    assert_eq!(a.program.ended[&0], (Status::OutOfRange, Vec::new()));
}

/// Fault G4: a callback may call, and a poll from inside does nothing.
#[test]
fn fault_g4_a_callback_calls_back() {
    let (mut a, mut b, to_b, to_a) = pair(&tight());
    b.program.forward = Some(to_a);
    a.call(to_b, ECHO, b"there and back").unwrap();
    until(&mut [&mut a, &mut b], |nodes| {
        !nodes[0].program.ended.is_empty() && !nodes[1].program.ended.is_empty()
    });
    assert_eq!(b.program.ended.values().next().unwrap().1, b"there and back");
}

#[test]
fn a_worker_calls_itself_through_its_own_port() {
    let mut a = Node::open(&fabric(), &tight());
    let (one, from_one) = a.worker.invite().unwrap();
    let (two, from_two) = a.worker.invite().unwrap();
    a.worker.connect(one, &from_two).unwrap();
    a.worker.connect(two, &from_one).unwrap();
    a.call(one, ECHO, b"self").unwrap();
    until(&mut [&mut a], |nodes| !nodes[0].program.ended.is_empty());
    assert_eq!(a.program.ended[&0], (Status::Ok, b"self".to_vec()));
}

/// Rule C7.4, pitfall 6: 64 peers on one initiator with sparse signaling: the queue never fills for ever.
#[test]
fn pitfall_6_64_peers_share_one_initiator() {
    use copyrpc_rpc::TransportKind;
    let config = Config {
        transport: TransportKind::Dc,
        peers_max: 64,
        sends: 16,
        signal_interval: 16,
        receives: 256,
        ..tight()
    };
    let fabric = fabric();
    let (mut a, mut b) = (Node::open(&fabric, &config), Node::open(&fabric, &config));
    let peers: Vec<_> = (0..64).map(|_| join(&mut a, &mut b).0).collect();
    for _ in 0..20 {
        for to in &peers {
            a.call(*to, ECHO, b"one of many").unwrap();
        }
        let calls = a.program.ended.len() + 64;
        until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.len() == calls);
    }
    assert!(a.program.ended.values().all(|ended| *ended == (Status::Ok, b"one of many".to_vec())));
}

/// What was gathered while nothing could be posted leaves in one batch.
#[test]
fn many_calls_share_one_write() {
    let (mut a, mut b, to_b, _) = pair(&tight());
    for _ in 0..8 {
        a.call(to_b, ECHO, b"small").unwrap();
    }
    until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.len() == 8);
    let counters = a.worker.counters(to_b).unwrap();
    assert_eq!((counters.batches_out, counters.messages_out), (1, 8));
    assert_eq!(b.worker.stats().arrivals, 1);
}

/// What is kept after its callback cannot be held: another batch may be there.
#[test]
fn only_the_request_of_the_callback_can_be_held() {
    struct Late(Vec<copyrpc_rpc::Token>);
    impl Handler<Nic> for Late {
        fn request(&mut self, worker: &mut Worker<Nic>, request: Request, _: Body<'_, Nic>) {
            let mut token = request.token;
            assert!(self.0.iter_mut().all(|earlier| !worker.hold(earlier)));
            self.0.push(token);
            if self.0.len() == 2 {
                token = self.0.pop().unwrap();
                assert!(worker.hold(&mut token), "it is its turn");
                assert!(worker.hold(&mut token), "it is held");
                self.0.push(token);
            }
        }
        fn ended(&mut self, _: &mut Worker<Nic>, _: u64, _: CallEnd<'_, Nic>) {}
    }
    let (mut a, mut b, to_b, _) = pair(&tight());
    let mut late = Late(Vec::new());
    for made in 1..=2 {
        a.call(to_b, ECHO, b"kept").unwrap();
        poll_until("the request", || {
            a.poll();
            b.worker.poll(os::clock::now_ns(), &mut late);
            late.0.len() == made
        });
        assert!(!b.worker.hold(&mut late.0[0]), "nothing is being handled");
    }
    // However often it was held, it is given back once it is answered.
    let mut held = late.0.pop().unwrap();
    b.worker.release(&mut held);
    b.worker.release(&mut held);
    b.worker.reply(held, Status::Ok, b"").unwrap();
    for _ in 0..20 {
        let cookie = a.call(to_b, ECHO, &[7; 500]).unwrap();
        until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.contains_key(&cookie));
    }
}

/// Rule C3.4: what is free is told though nothing else is to be sent.
#[test]
fn an_idle_worker_gives_credit_back_by_itself() {
    for config in [tight(), Config { transport: TransportKind::Dc, ..tight() }] {
        let (mut a, mut b, to_b, to_a) = pair(&config);
        a.call(to_b, ECHO, b"x").unwrap();
        until(&mut [&mut a, &mut b], |nodes| {
            // The answer was the last that was sent, and its sender knows that it was handled.
            nodes[1].worker.counters(to_a).unwrap().trips == 1
        });
        assert_eq!(a.worker.counters(to_b).unwrap().credits_out, 1);
    }
}

/// The longest timeout there is lies in the future.
#[test]
fn a_call_without_end_waits_for_its_answer() {
    let (mut a, mut b, to_b, _) = pair(&tight());
    let call = Call { method: LATER, timeout: Duration::MAX, cookie: 9, ..Call::default() };
    a.worker.call(to_b, &call, b"x").unwrap();
    until(&mut [&mut a, &mut b], |nodes| nodes[1].program.kept.len() == 1);
    a.worker.poll(os::clock::now_ns() + (1 << 40), &mut a.program);
    assert!(a.program.ended.is_empty());
    b.worker.reply(b.program.kept.remove(0).0, Status::Ok, b"y").unwrap();
    until(&mut [&mut a, &mut b], |nodes| !nodes[0].program.ended.is_empty());
    assert_eq!(a.program.ended[&9], (Status::Ok, b"y".to_vec()));
}

#[test]
fn a_call_that_cannot_be_made_says_why() {
    let (mut a, _b, to_b, _) = pair(&tight());
    let longest = tight().large_bytes as usize;
    let too_long = a.worker.call_with(to_b, &Call::default(), longest + 1, |_| unreachable!());
    assert_eq!(too_long, Err(CallError::TooLong { len_bytes: longest + 1, max_bytes: longest }));
    a.worker.close(to_b);
    assert_eq!(a.worker.call(to_b, &Call::default(), b""), Err(CallError::NotConnected));
}

/// Names of peers and calls are a worker's own: elsewhere they may name somebody else.
#[cfg(debug_assertions)]
#[test]
#[should_panic(expected = "a token is answered by the worker that gave it")]
fn a_token_of_another_worker_answers_nobody() {
    let (mut a, mut b, to_b, to_a) = pair(&tight());
    a.call(to_b, LATER, b"of b").unwrap();
    b.call(to_a, LATER, b"of a").unwrap();
    until(&mut [&mut a, &mut b], |nodes| nodes.iter().all(|node| !node.program.kept.is_empty()));
    let (token, body) = a.program.kept.pop().unwrap();
    let _ = b.worker.reply(token, Status::Ok, &body);
}

/// Whoever adds up what connections do need not ask all of them.
#[test]
fn connections_that_did_something_are_visited() {
    let fabric = fabric();
    let [mut a, mut b] = [(); 2].map(|()| Node::open(&fabric, &tight()));
    let peers = [(); 3].map(|()| join(&mut a, &mut b).0);
    let mut counted = BTreeMap::new();
    let visit = |a: &mut Node, counted: &mut BTreeMap<u16, _>| {
        let mut visits = 0;
        a.worker.visit_active(|peer, counters| {
            counted.insert(peer.slot(), counters);
            visits += 1;
        });
        visits
    };
    for round in 0..200 {
        // One of them has a call under way all the time, one now and then, one never.
        if round == 0 {
            a.call(peers[0], LATER, b"").unwrap();
        }
        if round % 50 == 0 {
            a.call(peers[1], ECHO, b"").unwrap();
        }
        a.poll();
        visit(&mut a, &mut counted);
        for peer in &peers[..2] {
            assert_eq!(a.worker.counters(*peer), Some(counted[&peer.slot()]), "round {round}");
        }
        b.poll();
    }
    b.program.kept.clear();
    until(&mut [&mut a, &mut b], |nodes| nodes.iter().all(|node| node.worker.wake_ns().is_none()));
    let later_ns = a.worker.now_ns() + 1_000_000_000;
    a.worker.poll(later_ns, &mut a.program);
    visit(&mut a, &mut counted);
    assert_eq!(visit(&mut a, &mut counted), 0, "nothing happened since");
    assert!(!counted.contains_key(&peers[2].slot()), "nothing ever happened");
}

/// Whoever adds up may panic, and goes on later where that was.
#[test]
fn a_visit_that_panics_forgets_nobody() {
    let fabric = fabric();
    let [mut a, mut b] = [(); 2].map(|()| Node::open(&fabric, &tight()));
    let mut peers = [(); 3].map(|()| join(&mut a, &mut b).0).to_vec();
    for peer in &peers {
        a.call(*peer, LATER, b"").unwrap();
    }
    let visit = AssertUnwindSafe(|| a.worker.visit_active(|_, _| panic!("on purpose")));
    assert!(catch_unwind(visit).is_err());
    a.worker.visit_active(|peer, _| peers.retain(|other| *other != peer));
    assert_eq!(peers, []);
}

/// Any clock that does not go back will do, wherever it begins and ends.
#[test]
fn the_end_of_time_is_no_end_of_calls() {
    for flush in POLICIES {
        let config = Config { flush, ..tight() };
        let fabric = fabric();
        let end_ns = u64::MAX - 1_000_000;
        let [mut a, mut b] = [(); 2].map(|()| {
            let nic = softnic::open(&soft(&fabric, None)).unwrap();
            let worker = Worker::open(nic, config.clone(), end_ns).unwrap();
            Node { worker, program: Program::default() }
        });
        let (to_b, _) = join(&mut a, &mut b);
        let mut now_ns = end_ns;
        while now_ns < u64::MAX {
            now_ns = now_ns.saturating_add(20_000);
            let _ = a.call(to_b, ECHO, b"late");
            for node in [&mut a, &mut b] {
                node.worker.poll(now_ns, &mut node.program);
                let _ = node.worker.wake_ns();
            }
        }
        let answered = a.program.ended.values().filter(|(status, _)| *status == Status::Ok);
        assert!(answered.count() >= 5, "{config:?}");
    }
}
