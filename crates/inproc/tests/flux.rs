//! Calls between nodes: against a model, under stress, and each promise of the documentation.
#![cfg(not(loom))]

use std::{collections::HashMap, rc::Rc, thread};

use copyrpc_inproc::{
    Token, Unanswered, Waiting,
    flux::{self, CallError, Config, Event, Node},
    spsc::{Discipline, FastForward, Lamport, Onesided},
};
use memory::sync::{Arc, AtomicUsize, Ordering};
use proptest::prelude::*;

type TestNode = Node<u64, u64, u64, Lamport>;

fn nodes<const N: usize>(config: Config) -> [TestNode; N] {
    let nodes = flux::mesh(Config { nodes: N, ..config });
    nodes.try_into().expect("as many as asked for")
}

/// Rings once per sleep, however much comes, and not for a node that is awake.
#[test]
fn an_alarm_rings_once_for_each_node_that_sleeps() {
    let rung = Arc::new(AtomicUsize::new(0));
    let nodes: Vec<TestNode> = flux::mesh_with_alarms(Config::default(), |_| {
        let rung = rung.clone();
        Box::new(move || {
            rung.fetch_add(1, Ordering::Relaxed);
        })
    });
    let [mut caller, mut server]: [_; 2] = nodes.try_into().expect("two nodes");
    caller.notify(1, 0).unwrap();
    assert_eq!(rung.load(Ordering::Relaxed), 0, "it is awake");
    assert!(!server.arm(), "there is something to do");
    server.disarm();
    while server.poll().is_some() || !server.arm() {
        server.disarm();
    }
    (1..4).for_each(|notice| caller.notify(1, notice).unwrap());
    assert_eq!(rung.load(Ordering::Relaxed), 1);
    server.disarm();
    assert!(matches!(server.poll(), Some(Event::Notice { notice: 1, .. })));
}

/// The calls to a node that is gone end one by one: who waits between two of them sleeps over none.
#[test]
fn a_node_with_calls_to_end_is_never_put_to_sleep() {
    let [mut caller, gone] = nodes(Config::default());
    (0..3).for_each(|user| caller.call(1, 0, user).unwrap());
    drop(gone);
    let mut ended = 0;
    while ended < 3 {
        ended += usize::from(caller.poll().is_some());
        if (1..3).contains(&ended) {
            assert!(!caller.arm(), "there is something to do");
            caller.disarm();
            let passed_ns = 1;
            assert!(caller.wait(passed_ns), "there is something to poll");
        }
    }
}

/// Answers everything with the request plus one.
fn serve(node: &mut TestNode) -> usize {
    let mut served = 0;
    while let Some(event) = node.poll() {
        let Event::Request { request, reply, .. } = event else { panic!("unexpected {event:?}") };
        reply.send(request + 1);
        served += 1;
    }
    served
}

fn replies(node: &mut TestNode) -> Vec<(u64, Result<u64, Unanswered>)> {
    let mut replies = Vec::new();
    while let Some(event) = node.poll() {
        let Event::Reply { user, result, .. } = event else { panic!("unexpected {event:?}") };
        replies.push((user, result));
    }
    replies
}

fn defer_all(node: &mut TestNode) -> Vec<(u64, Token)> {
    let mut tokens = Vec::new();
    while let Some(event) = node.poll() {
        let Event::Request { request, reply, .. } = event else { panic!("unexpected {event:?}") };
        tokens.push((request, reply.defer().expect("fewer than tokens_max")));
    }
    tokens
}

/// Pitfall: out-of-order replies overwrote the cookie of another call (34 replies, 33 callbacks).
#[test]
fn pitfall_19_replies_out_of_order_bring_each_callers_own_cookie() {
    let [mut caller, mut server] = nodes(Config { calls_max: 34, ..Config::default() });
    for round in 0..3 {
        for i in 0..34 {
            caller.call(1, i, 1000 * round + i).unwrap();
        }
        let mut tokens = defer_all(&mut server);
        tokens.sort_by_key(|(request, _)| request.wrapping_mul(7) % 34);
        // Some at once, so that their slots are taken again while the others are out.
        for (request, token) in tokens {
            server.reply(token, request + 1).unwrap();
        }
        let mut got = replies(&mut caller);
        got.sort_unstable_by_key(|(user, _)| *user);
        let expected: Vec<_> = (0..34).map(|i| (1000 * round + i, Ok(i + 1))).collect();
        assert_eq!(got, expected);
    }
}

/// Pitfall: a full ring lost the request (`let _ = send`), and the peer waited for ever.
#[test]
fn pitfall_24_a_full_lane_hands_the_request_back_and_loses_nothing() {
    let [mut caller, mut server] = nodes(Config { calls_max: 4, ..Config::default() });
    let accepted = (0..100).take_while(|&i| caller.call(1, i, i).is_ok()).count() as u64;
    assert_eq!(accepted, 4);
    assert_eq!(caller.call(1, 50, 51), Err(CallError::Busy(50, 51)));
    assert_eq!(serve(&mut server), 4);
    assert_eq!(caller.call(1, 50, 51), Err(CallError::Busy(50, 51)), "until replies are polled");
    assert_eq!(replies(&mut caller).len(), 4);
    caller.call(1, 50, 51).unwrap();
    serve(&mut server);
    assert_eq!(replies(&mut caller), [(51, Ok(51))]);
}

/// Both lanes as full of requests and notices as they get, and still every reply has room.
fn a_reply_never_fails<D: Discipline>() {
    let config = Config { nodes: 2, calls_max: 3, ..Config::default() };
    let mut nodes = flux::mesh::<u64, u64, u64, D>(config);
    for round in 0..50 {
        let mut calls = [0; 2];
        for (number, node) in nodes.iter_mut().enumerate() {
            let other = 1 - number;
            calls[number] = (0..9).filter(|&i| node.call(other, i, i).is_ok()).count();
            while node.notify(other, 0).is_ok() {}
        }
        assert!(calls.iter().all(|&calls| calls > 0), "{calls:?} in round {round}");
        // One side answers all before the other takes anything.
        let mut replied = [0; 2];
        for turn in [0, 1, 0] {
            while let Some(event) = nodes[turn].poll() {
                match event {
                    Event::Request { request, reply, .. } => reply.send(request),
                    Event::Notice { .. } => {}
                    Event::Reply { user, result, .. } => {
                        assert_eq!(result, Ok(user));
                        replied[turn] += 1;
                    }
                }
            }
        }
        assert_eq!(replied, calls);
    }
}

#[test]
fn a_reply_never_fails_in_any_discipline() {
    a_reply_never_fails::<Lamport>();
    a_reply_never_fails::<FastForward>();
    a_reply_never_fails::<Onesided>();
}

#[test]
fn a_node_may_call_itself() {
    let [mut node] = nodes(Config::default());
    node.call(0, 1, 7).unwrap();
    let Some(Event::Request { from: 0, request: 1, reply }) = node.poll() else { panic!() };
    reply.send(2);
    assert_eq!(replies(&mut node), [(7, Ok(2))]);
}

#[test]
fn a_dropped_request_and_a_dropped_token_answer_with_an_error() {
    let [mut caller, mut server] = nodes(Config::default());
    caller.call(1, 0, 70).unwrap();
    drop(server.poll());
    caller.call(1, 0, 71).unwrap();
    let (_, token) = defer_all(&mut server).pop().unwrap();
    thread::spawn(move || drop(token)).join().unwrap();
    assert!(server.wait(0), "the dropped token is something to poll for");
    assert!(server.poll().is_none());
    let dropped = Err(Unanswered::Dropped);
    assert_eq!(replies(&mut caller), [(70, dropped), (71, dropped)]);
}

#[test]
fn tokens_are_bounded_and_answered_where_they_were_made() {
    let [mut caller, mut server] = nodes(Config { tokens_max: 1, ..Config::default() });
    caller.call(1, 0, 70).unwrap();
    caller.call(1, 1, 71).unwrap();
    let Some(Event::Request { reply, .. }) = server.poll() else { panic!() };
    let token = reply.defer().unwrap();
    let Some(Event::Request { reply, .. }) = server.poll() else { panic!() };
    reply.defer().expect_err("one token is out").send(11);
    let foreign = caller.reply(token, 10).unwrap_err();
    server.reply(foreign.token, foreign.response).unwrap();
    assert_eq!(replies(&mut caller), [(71, Ok(11)), (70, Ok(10))]);
}

#[test]
fn a_node_that_leaves_ends_all_calls_to_it_after_its_last_replies() {
    let [mut caller, mut server, mut bystander] = nodes(Config::default());
    for i in 0..3 {
        caller.call(1, i, i).unwrap();
    }
    let Some(Event::Request { reply, .. }) = server.poll() else { panic!() };
    reply.send(10);
    drop(server);
    assert_eq!(caller.call(1, 8, 9), Err(CallError::Gone(8, 9)));
    let mut got = Vec::new();
    for _ in 0..2 * copyrpc_inproc::mpsc::LINGER_LOOKS + 8 {
        got.extend(replies(&mut caller));
    }
    got.sort_unstable_by_key(|(user, _)| *user);
    let gone = Err(Unanswered::Gone);
    assert_eq!(got, [(0, Ok(10)), (1, gone), (2, gone)]);
    assert_eq!(caller.calls_in_flight(), 0);
    assert_eq!(bystander.notify(1, 0), Err(CallError::Gone(0, ())));
    let nobody = CallError::NoSuchNode { request: 5, user: 6, nodes: 3 };
    assert_eq!(caller.call(3, 5, 6), Err(nobody));
}

#[test]
fn everything_is_dropped_once() {
    let token = Rc::new(());
    let body = || token.clone();
    let count = || Rc::strong_count(&token);
    // `Rc` is not `Send`; the mesh asks for that, so carry it as user data, which stays.
    let mut nodes = flux::mesh::<Box<u64>, Box<u64>, Rc<()>, Lamport>(Config::default());
    let mut server = nodes.pop().unwrap();
    let mut caller = nodes.pop().unwrap();
    for i in 0..5 {
        caller.call(1, Box::new(i), body()).unwrap();
    }
    if let Some(Event::Request { request, reply, .. }) = server.poll() {
        reply.send(request);
    }
    drop(caller.poll());
    assert_eq!(count(), 5);
    drop(caller);
    assert_eq!(count(), 1);
    assert!(server.poll().is_some(), "requests of a caller that left are still delivered");
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Call(usize, usize),
    Notify(usize, usize),
    /// Node, and what to do with a request: 0 answers, 1 drops, others defer.
    Poll(usize, u8),
    /// Answers or drops the token at this place.
    Settle(usize, bool),
}

fn any_op() -> impl Strategy<Value = Op> {
    let node = || 0usize..3;
    prop_oneof![
        3 => (node(), node()).prop_map(|(from, to)| Op::Call(from, to)),
        1 => (node(), node()).prop_map(|(from, to)| Op::Notify(from, to)),
        6 => (node(), 0u8..4).prop_map(|(node, what)| Op::Poll(node, what)),
        2 => (any::<usize>(), any::<bool>()).prop_map(|(place, answers)| Op::Settle(place, answers)),
    ]
}

/// Nodes, and what must still happen.
struct Model {
    nodes: [TestNode; 3],
    /// Calls without a reply: user data to the result that it must bring, once known.
    calls: HashMap<u64, Option<Result<u64, Unanswered>>>,
    notices: usize,
    tokens: Vec<(usize, u64, Token)>,
    next: u64,
}

impl Model {
    fn apply(&mut self, op: Op) {
        match op {
            Op::Call(from, to) => {
                self.next += 1;
                if self.nodes[from].call(to, self.next, self.next).is_ok() {
                    self.calls.insert(self.next, None);
                }
            }
            Op::Notify(from, to) => {
                self.notices += usize::from(self.nodes[from].notify(to, 0).is_ok())
            }
            Op::Poll(node, what) => drop(self.poll(node, what)),
            Op::Settle(place, answers) if !self.tokens.is_empty() => {
                let (node, request, token) = self.tokens.swap_remove(place % self.tokens.len());
                self.settle(request, answers);
                if answers {
                    self.nodes[node].reply(token, request * 2).unwrap();
                }
            }
            Op::Settle(..) => {}
        }
    }

    fn settle(&mut self, request: u64, answers: bool) {
        let result = if answers { Ok(request * 2) } else { Err(Unanswered::Dropped) };
        assert_eq!(self.calls.insert(request, Some(result)), Some(None), "delivered once");
    }

    fn poll(&mut self, node: usize, what: u8) -> bool {
        let settled = match self.nodes[node].poll() {
            None => return false,
            Some(Event::Notice { .. }) => {
                self.notices -= 1;
                None
            }
            Some(Event::Reply { user, result, .. }) => {
                assert_eq!(self.calls.remove(&user), Some(Some(result)), "as settled, once");
                None
            }
            Some(Event::Request { request, reply, .. }) if what == 0 => {
                reply.send(request * 2);
                Some((request, true))
            }
            Some(Event::Request { request, .. }) if what == 1 => Some((request, false)),
            Some(Event::Request { request, reply, .. }) => match reply.defer() {
                Ok(token) => {
                    self.tokens.push((node, request, token));
                    None
                }
                Err(reply) => {
                    reply.send(request * 2);
                    Some((request, true))
                }
            },
        };
        if let Some((request, answers)) = settled {
            self.settle(request, answers);
        }
        true
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 128 }, failure_persistence: None, ..Default::default()
    })]
    #[test]
    fn agrees_with_hash_map(
        ops in prop::collection::vec(any_op(), 0..if cfg!(miri) { 40 } else { 400 }),
    ) {
        let config = Config { calls_max: 2, tokens_max: 3, budget_items: 1, ..Config::default() };
        let mut model =
            Model { nodes: nodes(config), calls: HashMap::new(), notices: 0, tokens: Vec::new(), next: 0 };
        for op in ops {
            model.apply(op);
        }
        for (_, request, token) in core::mem::take(&mut model.tokens) {
            drop(token);
            model.settle(request, false);
        }
        // A poll that hands out nothing may still have answered for dropped tokens: twice silent.
        for _ in 0..2 {
            while (0..3).any(|node| model.poll(node, 0)) {}
        }
        prop_assert!(model.calls.is_empty() && model.notices == 0, "{:?}", model.calls);
    }
}

/// Each node calls all nodes, itself too, with a window of calls, and answers others at once or late.
/// Every reply is checked; at the end all sleep until woken.
fn stress<D: Discipline>(count: usize, waiting: Waiting) {
    let calls = if cfg!(miri) { 8 } else { 4_000 };
    let config = Config {
        nodes: count,
        calls_max: 4,
        tokens_max: 8,
        budget_items: 3,
        waiting,
        ..Config::default()
    };
    let nodes = flux::mesh::<u64, u64, (usize, u64), D>(config);
    thread::scope(|scope| {
        for node in nodes {
            scope.spawn(move || run_node(node, count, calls));
        }
    });
}

fn run_node<D: Discipline>(mut node: Node<u64, u64, (usize, u64), D>, count: usize, calls: u64) {
    let number = node.number() as u64;
    let mut sent = 0u64;
    let mut replied = 0u64;
    let mut ended = 0;
    let mut late: Vec<(u64, Token)> = Vec::new();
    while ended < count || replied < calls {
        while sent < calls {
            let to = usize::try_from(sent * 7).unwrap() % count;
            match node.call(to, sent << 8 | number, (to, sent)) {
                Ok(()) => sent += 1,
                Err(CallError::Busy(..)) => break,
                Err(error) => panic!("{error:?}"),
            }
        }
        if replied == calls && sent == calls {
            // Tell all nodes once; a busy lane is retried in the next round.
            sent += 1;
            for to in 0..count {
                while let Err(error) = node.notify(to, u64::MAX) {
                    assert!(matches!(error, CallError::Busy(..)), "{error:?}");
                    thread::yield_now();
                    ended += drain(&mut node, &mut late, &mut replied);
                }
            }
        }
        let before = (ended, replied, node.calls_in_flight());
        ended += drain(&mut node, &mut late, &mut replied);
        for (request, token) in late.drain(..).rev() {
            node.reply(token, !request).unwrap();
        }
        // A reply made room for another call, so sleep only if there was none.
        if (ended, replied, node.calls_in_flight()) == before && ended < count {
            node.wait(u64::MAX);
        }
    }
}

/// Polls until there is nothing; returns how many nodes said that they are done.
fn drain<D: Discipline>(
    node: &mut Node<u64, u64, (usize, u64), D>,
    late: &mut Vec<(u64, Token)>,
    replied: &mut u64,
) -> usize {
    let number = node.number() as u64;
    let mut ended = 0;
    while let Some(event) = node.poll() {
        match event {
            Event::Request { request, reply, .. } if request % 5 == 0 => match reply.defer() {
                Ok(token) => late.push((request, token)),
                Err(reply) => reply.send(!request),
            },
            Event::Request { from, request, reply } => {
                assert_eq!(request & 0xff, from as u64);
                reply.send(!request);
            }
            Event::Notice { .. } => ended += 1,
            Event::Reply { from, user: (to, i), result } => {
                assert_eq!((from, result), (to, Ok(!(i << 8 | number))));
                *replied += 1;
            }
        }
    }
    ended
}

#[test]
fn stress_with_sleep_after_each_empty_poll() {
    let sleepy = Waiting { spins: 0, yields: 0 };
    stress::<Lamport>(2, sleepy);
    stress::<FastForward>(3, sleepy);
    stress::<Onesided>(4, sleepy);
}

#[test]
fn stress_with_the_default_wait() {
    stress::<Lamport>(4, Waiting::default());
    stress::<Onesided>(2, Waiting::default());
}
