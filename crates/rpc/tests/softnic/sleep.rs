//! What a worker that sleeps must not sleep over.

use core::time::Duration;

use copyrpc_rpc::{Call, Config, FlushPolicy, Status};

use crate::rig::{DROP, ECHO, LATER, Node, pair, poll_until, shapes, tight, until};

fn is_due(node: &Node) -> bool {
    node.worker.wake_ns().is_some_and(|due_ns| due_ns <= node.worker.now_ns())
}

#[test]
fn calls_that_ended_outside_a_poll_are_due() {
    let (mut a, _b, to_b, _) = pair(&tight());
    let id = a.worker.call(to_b, &Call::default(), b"").unwrap();
    a.poll();
    assert!(!is_due(&a));
    a.worker.cancel(to_b, id);
    assert!(is_due(&a));
    a.poll();
    assert_eq!(a.program.ended.len(), 1);
    a.call(to_b, ECHO, b"").unwrap();
    a.poll();
    a.worker.close(to_b);
    assert!(is_due(&a), "the call and the connection have ended");
}

#[test]
fn requests_whose_tokens_were_dropped_are_due() {
    let (mut a, mut b, to_b, _) = pair(&tight());
    a.call(to_b, LATER, b"").unwrap();
    until(&mut [&mut a, &mut b], |nodes| !nodes[1].program.kept.is_empty());
    until(&mut [&mut b], |nodes| !is_due(nodes[0]));
    b.program.kept.clear();
    assert!(is_due(&b));
}

/// Rule C7.3: a policy that counts polls is never waited for by somebody who sleeps.
#[test]
fn a_batch_that_waits_for_polls_is_due() {
    let config = Config { flush: FlushPolicy::PollBudget { polls: 4 }, ..tight() };
    let (mut a, _b, to_b, _) = pair(&config);
    a.call(to_b, DROP, b"").unwrap();
    a.poll();
    poll_until("a batch", || {
        assert!(is_due(&a));
        a.poll();
        a.worker.counters(to_b).unwrap().batches_out == 1
    });
    assert!(!is_due(&a));
}

#[test]
fn who_calls_and_sleeps_has_called() {
    let (mut a, _b, to_b, _) = pair(&tight());
    a.call(to_b, ECHO, b"").unwrap();
    a.worker.sleep(Duration::ZERO).unwrap();
    assert_eq!(a.worker.counters(to_b).unwrap().batches_out, 1);
}

#[test]
fn nothing_is_due_once_every_call_has_ended() {
    for config in shapes() {
        let (mut a, mut b, to_b, to_a) = pair(&config);
        for _ in 0..2 {
            let called = [(&mut a, to_b), (&mut b, to_a)]
                .map(|(node, to)| node.call(to, ECHO, b"and back").unwrap());
            let is_done = |node: &Node, cookie| {
                node.program.ended.contains_key(&cookie) && node.worker.wake_ns().is_none()
            };
            until(&mut [&mut a, &mut b], |nodes| {
                nodes.iter().zip(called).all(|(node, cookie)| is_done(node, cookie))
            });
        }
    }
}

/// So many looks at what is due by time, and more, pass before credit is due.
const SLOW: Duration = Duration::from_millis(2);

/// Rule C3.4: and seen by whom it is given to, though that one has nothing else to wait for.
#[test]
fn credit_is_given_back_though_nothing_else_happens() {
    for method in [LATER, ECHO] {
        let (mut a, mut b, to_b, to_a) = pair(&Config { credit_delay: SLOW, ..tight() });
        a.call(to_b, method, b"").unwrap();
        until(&mut [&mut a, &mut b], |nodes| {
            let ends = [(&nodes[0], to_b), (&nodes[1], to_a)];
            let [caller, callee] = ends.map(|(node, peer)| node.worker.counters(peer).unwrap());
            let (giver, taker) = if method == ECHO { (caller, callee) } else { (callee, caller) };
            giver.credits_out == 1 && taker.trips == 1
        });
    }
}

/// What a lease kept is given back though its connection has nothing else to do for long.
#[test]
fn a_lease_that_ends_is_due() {
    let (mut a, mut b, to_b, to_a) = pair(&tight());
    a.call(to_b, LATER, b"keep me").unwrap();
    b.program.holds = true;
    until(&mut [&mut a, &mut b], |nodes| {
        !nodes[1].program.kept.is_empty() && nodes[1].worker.wake_ns().is_none()
    });
    let later_ns = b.worker.now_ns() + 1_000_000_000;
    b.worker.poll(later_ns, &mut b.program);
    let (mut token, _) = b.program.kept.pop().unwrap();
    b.worker.release(&mut token);
    assert!(b.worker.wake_ns().is_some(), "its lines are to be given back");
    b.worker.poll(later_ns + 1_000_000_000, &mut b.program);
    assert_eq!(b.worker.counters(to_a).unwrap().credits_out, 2);
    b.worker.reply(token, Status::Ok, b"").unwrap();
}

/// Who has nothing else to wait for wakes until all is given back, one region or copy at a time, and then sleeps on.
#[test]
fn memory_of_large_bodies_is_given_back_to_the_last() {
    let (mut a, mut b, to_b, _) = pair(&tight());
    let cookie = a.call(to_b, ECHO, &[7; 200_000]).unwrap();
    until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.contains_key(&cookie));
    let mut wakes = 0;
    let mut nodes = [a, b];
    while let Some(due_ns) = nodes.iter().filter_map(|node| node.worker.wake_ns()).min() {
        wakes += 1;
        assert!(wakes < 1000, "it never sleeps on");
        for Node { worker, program, .. } in &mut nodes {
            worker.poll(due_ns.max(worker.now_ns()), program);
        }
    }
    for node in &nodes {
        assert_eq!(node.worker.large_memory().registered_bytes, 0);
    }
}
