//! What a worker that sleeps must not sleep over.

use core::time::Duration;

use copyrpc_rpc::{Call, Config, FlushPolicy};

use crate::rig::{DROP, ECHO, LATER, Node, pair, tight, until};

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
    while a.worker.counters(to_b).unwrap().batches_out == 0 {
        assert!(is_due(&a));
        a.poll();
    }
    assert!(!is_due(&a));
}

#[test]
fn who_calls_and_sleeps_has_called() {
    let (mut a, _b, to_b, _) = pair(&tight());
    a.call(to_b, ECHO, b"").unwrap();
    a.worker.sleep(Duration::ZERO).unwrap();
    assert_eq!(a.worker.counters(to_b).unwrap().batches_out, 1);
}
