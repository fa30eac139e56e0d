//! Mistakes made once elsewhere, and faults by their numbers, where the driver meets the NIC.

use copyrpc_rpc::{Call, CallError, Config, FlushPolicy, PeerId, Status, TransportKind, Worker};
use softnic::Nic;

use crate::rig::{ECHO, LATER, Node, fabric, join, pair, tight, until};

fn transports() -> [Config; 2] {
    [tight(), Config { transport: TransportKind::Dc, ..tight() }]
}

/// Calls until back-pressure; each call in a batch of its own.
fn fill(node: &mut Node, to: PeerId) -> usize {
    let mut made = 0;
    loop {
        match node.call(to, ECHO, b"one of many") {
            Ok(_) => made += 1,
            Err(CallError::Busy(_)) => return made,
            Err(error) => panic!("{error}"),
        }
        node.worker.flush();
    }
}

/// Pitfall 11: batches that find the send queue full leave later, unchanged.
#[test]
fn pitfall_11_a_full_send_queue_loses_nothing() {
    for config in transports() {
        let config = Config {
            receives: 256,
            sends: 2,
            signal_interval: 2,
            flush: FlushPolicy::Immediate,
            doorbell_batching: true,
            ..config
        };
        let (mut a, mut b, to_b, _) = pair(&config);
        for _ in 0..20 {
            assert!(fill(&mut a, to_b) > 0);
            let made = a.program.made;
            until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.len() == made);
        }
        assert!(a.worker.stats().send_queue_full > 0, "it was never full");
        assert!(a.program.ended.values().all(|(status, _)| *status == Status::Ok));
    }
}

/// Fault C4, rule C4.1: both sides have asked all that they can, hold every request, and answer with
/// more than was asked.
#[test]
fn fault_c4_full_rings_both_ways_and_longer_answers_do_not_deadlock() {
    for config in transports() {
        let (mut a, mut b, to_b, to_a) = pair(&config);
        for round in 1..=20 {
            for (node, to) in [(&mut a, to_b), (&mut b, to_a)] {
                let response_bytes = 200;
                let call = Call { method: LATER, response_bytes, ..Call::default() };
                loop {
                    let cookie = node.program.made as u64;
                    match node.worker.call(to, &Call { cookie, ..call }, b"short") {
                        Ok(_) => node.program.made += 1,
                        Err(CallError::Busy(_)) => break,
                        Err(error) => panic!("{error}"),
                    }
                    node.worker.flush();
                }
            }
            let made = [a.program.made, b.program.made];
            assert!(made.iter().all(|made| *made >= round), "{made:?}");
            let ended = |nodes: &[&mut Node]| [0, 1].map(|at| nodes[at].program.ended.len());
            until(&mut [&mut a, &mut b], |nodes| {
                let kept = [0, 1].map(|at| nodes[at].program.kept.len());
                [kept[0] + ended(nodes)[1], kept[1] + ended(nodes)[0]] == [made[1], made[0]]
            });
            for node in [&mut a, &mut b] {
                for (token, _) in node.program.kept.split_off(0) {
                    node.worker.reply(token, Status::Ok, &[7; 200]).unwrap();
                }
            }
            until(&mut [&mut a, &mut b], |nodes| ended(nodes) == made);
        }
        for node in [&a, &b] {
            let ended = node.program.ended.values();
            assert!(ended.clone().all(|ended| *ended == (Status::Ok, vec![7; 200])));
        }
    }
}

/// Pitfall 14: whatever can be in flight has an entry in the completion queue, also when nobody
/// polls it.
#[test]
fn pitfall_14_a_burst_does_not_overrun_the_completion_queue() {
    for config in transports() {
        let config = Config { flush: FlushPolicy::Immediate, ..config };
        let (mut a, mut b, to_b, _) = pair(&config);
        let more: Vec<_> = (1..config.peers_max).map(|_| join(&mut a, &mut b).0).collect();
        for to in more.iter().chain([&to_b]) {
            fill(&mut a, *to);
        }
        let made = a.program.made;
        assert!(made > usize::from(config.receives), "more than there are receives");
        until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.len() == made);
        assert!(a.program.ended.values().all(|(status, _)| *status == Status::Ok));
        assert_eq!((a.program.closed.len(), b.program.closed.len()), (0, 0));
    }
}

/// Fault D4: a peer that has no receive left is asked again; nothing is lost. That takes a worker with
/// fewer receives than peers: any other one has told each of them its share (rule C3.6).
#[test]
fn fault_d4_an_empty_receive_queue_delays_and_loses_nothing() {
    for config in transports() {
        let config = Config { receives: 2, flush: FlushPolicy::Immediate, ..config };
        let (mut a, mut b, to_b, _) = pair(&config);
        let mut all: Vec<_> = (1..config.peers_max).map(|_| join(&mut a, &mut b).0).collect();
        all.push(to_b);
        for _ in 0..10 {
            for to in &all {
                fill(&mut a, *to);
            }
            let made = a.program.made;
            until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.len() == made);
        }
        assert!(a.program.ended.values().all(|(status, _)| *status == Status::Ok));
    }
}

/// Fault D11: a peer that does not poll slows nobody but its own callers, not even on DC, where they
/// share an initiator with others: it is sent what it has receives for.
#[test]
fn fault_d11_one_slow_peer_does_not_stop_the_others() {
    for config in transports() {
        let flush = FlushPolicy::Immediate;
        let config = Config { flush, dcis: 1, sends: 64, ..config };
        let fabric = fabric();
        let mut nodes: Vec<_> = (0..3).map(|_| Node::open(&fabric, &config)).collect();
        let [a, b, slow] = &mut nodes[..] else { unreachable!() };
        let (to_b, _) = join(a, b);
        let to_slow: Vec<_> = (1..config.peers_max).map(|_| join(a, slow).0).collect();
        // The software NICs of both have met before one of them sleeps.
        let first = a.call(to_slow[0], ECHO, b"awake").unwrap();
        until(&mut [a, b, slow], |nodes| nodes[0].program.ended.contains_key(&first));
        for to in &to_slow {
            fill(a, *to);
        }
        let waiting = a.program.made;
        for _ in 0..200 {
            let cookie = a.call(to_b, ECHO, b"to the fast one").unwrap();
            until(&mut [a, b], |nodes| nodes[0].program.ended.contains_key(&cookie));
            assert_eq!(a.program.ended[&cookie].0, Status::Ok, "{config:?}");
            for to in &to_slow {
                // Refused, mostly: it has what it may have.
                let _ = a.call(*to, ECHO, b"to the slow one");
            }
        }
        let made = a.program.made;
        assert!(made - 200 <= waiting + to_slow.len(), "the slow one takes no more than its share");
        until(&mut [a, b, slow], |nodes| nodes[0].program.ended.len() == made);
        assert!(a.program.ended.values().all(|(status, _)| *status == Status::Ok));
    }
}

/// Fault G5: a worker stays on its thread, which the compiler checks.
#[test]
fn fault_g5_a_worker_cannot_leave_its_thread() {
    trait Probe<Marker> {
        fn is_ambiguous_if_send() {}
    }
    struct Any;
    struct IsSend;
    impl<T: ?Sized> Probe<Any> for T {}
    impl<T: ?Sized + Send> Probe<IsSend> for T {}
    // Would not compile if both applied.
    <Worker<Nic> as Probe<_>>::is_ambiguous_if_send();
    <copyrpc_rpc::Token as Probe<_>>::is_ambiguous_if_send();
}

/// Fault G7: with one call in flight a policy that holds back costs at most what it says, and the
/// default costs nothing.
#[test]
fn fault_g7_the_default_policy_holds_no_single_call_back() {
    let (mut a, mut b, to_b, _) = pair(&tight());
    for number in 0..100 {
        a.call(to_b, ECHO, b"alone").unwrap();
        let before = a.worker.counters(to_b).unwrap().batches_out;
        a.poll();
        assert_eq!(a.worker.counters(to_b).unwrap().batches_out, before + 1, "at the first poll");
        until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.len() > number);
    }
}
