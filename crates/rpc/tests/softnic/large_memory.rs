//! Memory for bodies that do not fit the ring: its bound, and what is given back.

use std::time::Duration;

use copyrpc_rpc::{Call, CallError, Config, PeerId, ReplyError, Status};

use crate::{
    basics::body,
    rig::{ECHO, LATER, Node, fabric, join, pair, tight, until},
};

/// Every queue has a capacity: what does not fit is refused, and fits again later. Rule C6.5: each peer has
/// memory of its own.
#[test]
fn memory_for_large_bodies_is_bounded() {
    let config = Config { large_memory_bytes: 1 << 17, ..tight() };
    let (mut a, mut b, to_b, _) = pair(&config);
    let large = body(1, 60_000);
    let call = |a: &mut Node| {
        let call = Call { method: LATER, cookie: a.program.made as u64, ..Call::default() };
        a.worker.call(to_b, &call, &large).inspect(|_| a.program.made += 1)
    };
    call(&mut a).unwrap();
    call(&mut a).unwrap();
    let refused = call(&mut a);
    assert_eq!(refused, Err(CallError::NoMemory { len_bytes: 60_000 }));
    let (of_its_own, _) = join(&mut a, &mut b);
    let other = Call { method: ECHO, cookie: 100, ..Call::default() };
    a.worker.call(of_its_own, &other, &large).unwrap();
    until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.contains_key(&100));
    a.program.ended.remove(&100);
    until(&mut [&mut a, &mut b], |nodes| nodes[1].program.kept.len() == 2);
    for (token, _) in b.program.kept.split_off(0) {
        b.worker.reply(token, Status::Ok, b"done").unwrap();
    }
    until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.len() == 2);
    a.call(to_b, ECHO, &large).unwrap();
    until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.len() == 3);
    assert!(a.program.ended[&2] == (Status::Ok, large));
}

/// Rule C6.3.
#[test]
fn a_call_that_is_given_up_leaves_its_large_body_until_the_answer() {
    let timeout = Duration::from_millis(10);
    for (is_cancelled, expected) in [(false, Status::DeadlineExceeded), (true, Status::Cancelled)] {
        let (mut a, mut b, to_b, _) = pair(&tight());
        let call = Call { method: LATER, timeout, cookie: 1, ..Call::default() };
        let id = a.worker.call(to_b, &call, &body(2, 50_000)).unwrap();
        if is_cancelled {
            a.worker.cancel(to_b, id);
        }
        until(&mut [&mut a], |nodes| !nodes[0].program.ended.is_empty());
        assert_eq!(a.program.ended[&1].0, expected);
        let other = Call { method: LATER, cookie: 2, ..Call::default() };
        a.worker.call(to_b, &other, &body(4, 50_000)).unwrap();
        until(&mut [&mut a, &mut b], |nodes| nodes[1].program.kept.len() == 2);
        let arrived = &b.program.kept.iter().map(|(_, body)| body).collect::<Vec<_>>();
        assert!(arrived.contains(&&body(2, 50_000)), "the peer may read it until it answers");
        for (token, _) in b.program.kept.split_off(0) {
            b.worker.reply(token, Status::Ok, &body(3, 50_000)).unwrap();
        }
        until(&mut [&mut a, &mut b], |nodes| nodes[0].worker.counters(to_b).unwrap().late == 1);
    }
}

/// Two workers, with so much registered memory for what they exchange, each.
fn pair_with_memory(caller_bytes: usize, server_bytes: usize) -> (Node, Node, PeerId) {
    let fabric = fabric();
    let open = |large_memory_bytes| Node::open(&fabric, &Config { large_memory_bytes, ..tight() });
    let (mut a, mut b) = (open(caller_bytes), open(server_bytes));
    let (to_b, _) = join(&mut a, &mut b);
    (a, b, to_b)
}

/// A request whose body cannot be fetched was not executed, and says so.
#[test]
fn a_request_for_which_the_server_has_no_memory_may_be_made_again() {
    let (mut a, mut b, to_b) = pair_with_memory(1 << 20, 1 << 14);
    let cookie = a.call(to_b, ECHO, &vec![1; 40_000]).unwrap();
    until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.contains_key(&cookie));
    assert_eq!(a.program.ended[&cookie], (Status::ResourceExhausted, vec![]));
    assert_eq!(b.program.served, 0);
}

/// Who takes `ResourceExhausted` for "try again" would execute twice what was executed.
#[test]
fn a_call_that_was_executed_and_whose_answer_finds_no_memory_does_not_say_that_it_may_be_made_again()
 {
    // Of the server, which has room for one large answer.
    let (mut a, mut b, to_b) = pair_with_memory(1 << 20, 1 << 16);
    let cookies = [0, 1].map(|_| a.call(to_b, LATER, b"x").unwrap());
    until(&mut [&mut a, &mut b], |nodes| nodes[1].program.kept.len() == 2);
    let large = vec![2; 40_000];
    let replies = b.program.kept.drain(..).map(|(token, _)| token);
    let replies: Vec<_> = replies.map(|token| b.worker.reply(token, Status::Ok, &large)).collect();
    assert_eq!(replies, [Ok(()), Err(ReplyError::NoMemory { len_bytes: 40_000 })]);
    until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.len() == 2);
    assert!(a.program.ended[&cookies[0]] == (Status::Ok, large));
    assert_eq!(a.program.ended[&cookies[1]], (Status::Unavailable, vec![]));
    // Of the caller.
    let (mut a, mut b, to_b) = pair_with_memory(1 << 14, 1 << 16);
    let cookie = a.call(to_b, LATER, b"x").unwrap();
    until(&mut [&mut a, &mut b], |nodes| nodes[1].program.kept.len() == 1);
    b.worker.reply(b.program.kept.remove(0).0, Status::Ok, &[3; 40_000]).unwrap();
    until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.contains_key(&cookie));
    assert_eq!(a.program.ended[&cookie], (Status::Unavailable, vec![]));
    // What the server lent for that is given back: it has no more than that.
    let cookie = a.call(to_b, LATER, b"x").unwrap();
    until(&mut [&mut a, &mut b], |nodes| nodes[1].program.kept.len() == 1);
    b.worker.reply(b.program.kept.remove(0).0, Status::Ok, &[4; 40_000]).unwrap();
    until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.contains_key(&cookie));
}

/// Rule C6.3: also if the answer to a call that was given up is itself in memory that nobody fetches.
#[test]
fn the_large_body_of_a_call_that_was_given_up_is_free_after_a_large_answer() {
    let (mut a, mut b, to_b) = pair_with_memory(1 << 16, 1 << 20);
    for round in 0..3 {
        let call = Call { method: LATER, cookie: round, ..Call::default() };
        let id = a.worker.call(to_b, &call, &[1; 40_000]).expect("the memory is free again");
        until(&mut [&mut a, &mut b], |nodes| nodes[1].program.kept.len() == 1);
        a.worker.cancel(to_b, id);
        b.worker.reply(b.program.kept.remove(0).0, Status::Ok, &[2; 40_000]).unwrap();
        let batches = a.worker.counters(to_b).unwrap().batches_in;
        until(&mut [&mut a, &mut b], |nodes| {
            nodes[0].worker.counters(to_b).unwrap().batches_in > batches
        });
        assert_eq!(a.program.ended[&round].0, Status::Cancelled);
    }
}

#[test]
fn a_large_call_that_is_refused_leaves_its_memory() {
    let (mut a, mut b, to_b) = pair_with_memory(1 << 16, 1 << 20);
    while a.call(to_b, LATER, b"x").is_ok() {}
    let made = a.program.made;
    for _ in 0..3 {
        let refused = a.call(to_b, LATER, &[1; 40_000]);
        assert!(matches!(refused, Err(CallError::Busy(_))), "{refused:?}");
    }
    until(&mut [&mut a, &mut b], |nodes| nodes[1].program.kept.len() == made);
    for (token, _) in b.program.kept.drain(..) {
        b.worker.reply(token, Status::Ok, b"").unwrap();
    }
    until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.len() == made);
    a.call(to_b, ECHO, &[1; 40_000]).expect("all of it is there");
}
