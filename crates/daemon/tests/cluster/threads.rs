//! Daemons of several threads: what travels between them, and what happens when one has no room, or is
//! gone.
//!
//! With two threads, clients of even numbers belong to thread 0, and so do the connections to even
//! ranks. So a call of client 0 or 2 at rank 0 to rank 1 changes the thread, and one of client 1 does
//! not.

use client::message;
use copyrpc_daemon::{LANE_CALLS, Status, metrics::Counter};

use crate::{
    echoed, register,
    rig::{Cluster, ECHO, MS, OF_THREAD_2, PROVIDED},
    serve, work_of,
};

#[test]
fn calls_of_every_thread_reach_every_rank_and_a_provider_on_any_thread() {
    for provider in [50, 51] {
        let mut cluster = Cluster::new("pairs", 2, 2, LANE_CALLS);
        cluster.wait_all_up();
        assert_eq!(register(&mut cluster, provider), Status::Ok);
        let mut take = serve(&mut cluster, provider, 0, b"");
        for (from, client, to) in (0..8).map(|n| (n & 1, n >> 1 & 1, n >> 2)) {
            let body = [n_of(from, client, to); 100];
            let number = cluster.call(from, client, to, ECHO, &body);
            assert_eq!(cluster.outcome(number), echoed(&body, from));
            if to == 1 {
                let number = cluster.call(from, client, to, PROVIDED, &body);
                let (name, rank, got) = work_of(&mut cluster, take);
                assert_eq!((rank, &got[..]), (from, &body[..]));
                take = serve(&mut cluster, provider, name, &body[..50]);
                assert_eq!(cluster.outcome(number), (Status::Ok, body[..50].to_vec()));
            }
        }
        // Of rank 0: client 0 to the other rank, twice. Of rank 1: client 1 to the other rank, and to
        // the provider who is not on the same thread.
        let thread_requests =
            [cluster.total(0, Counter::ThreadRequests), cluster.total(1, Counter::ThreadRequests)];
        assert_eq!(thread_requests, [2, if provider == 50 { 2 } else { 4 }]);
        assert_eq!(cluster.node(0).outstanding() + cluster.node(1).outstanding(), 0);
    }
}

fn n_of(from: u32, client: u32, to: u32) -> u8 {
    u8::try_from(from * 4 + client * 2 + to).unwrap()
}

#[test]
fn a_function_of_one_thread_is_called_there_and_its_number_is_taken() {
    let mut cluster = Cluster::new("one-function", 2, 3, LANE_CALLS);
    cluster.wait_all_up();
    for (from, client) in (0..6).map(|n| (n % 2, n / 2)) {
        let number = cluster.call(from, client, 1, OF_THREAD_2, b"");
        assert_eq!(cluster.outcome(number), (Status::Ok, 2_u32.to_le_bytes().to_vec()));
    }
    for service in [OF_THREAD_2, ECHO, message::DAEMON] {
        let how = (1, message::DAEMON, message::method::REGISTER);
        let number = cluster.call_method(1, 0, how, &service.to_le_bytes());
        assert_eq!(cluster.outcome(number).0, Status::AlreadyExists);
    }
}

#[test]
fn a_service_has_one_provider_on_all_threads_and_may_move() {
    let mut cluster = Cluster::new("moves", 2, 2, LANE_CALLS);
    cluster.wait_all_up();
    assert_eq!(register(&mut cluster, 50), Status::Ok);
    assert_eq!(register(&mut cluster, 51), Status::AlreadyExists);
    cluster.node(1).depart(50);
    cluster.run_for(2 * MS);
    for (from, client) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let absent = cluster.call(from, client, 1, PROVIDED, b"");
        assert_eq!(cluster.outcome(absent).0, Status::Unimplemented);
    }
    assert_eq!(register(&mut cluster, 51), Status::Ok);
    let call = cluster.call(0, 0, 1, PROVIDED, b"moved");
    let take = serve(&mut cluster, 51, 0, b"");
    let (name, ..) = work_of(&mut cluster, take);
    serve(&mut cluster, 51, name, b"here");
    assert_eq!(cluster.outcome(call), (Status::Ok, b"here".to_vec()));
}

#[test]
fn fault_c4_a_full_lane_makes_calls_wait_in_order_and_refuses_beyond_a_bound() {
    let mut cluster = Cluster::new("lane", 2, 2, 2);
    cluster.wait_all_up();
    let body = vec![9; 3000];
    let calls: Vec<_> = (0..600).map(|_| cluster.call(0, 0, 1, ECHO, &body)).collect();
    let (mut answered, mut refused) = (Vec::new(), 0);
    for &number in &calls {
        match cluster.outcome(number) {
            (Status::Ok, answer) => {
                assert_eq!(answer, echoed(&body, 0).1);
                answered.push(number);
            }
            (status, _) => {
                assert_eq!(status, Status::ResourceExhausted, "refused, not lost");
                refused += 1;
            }
        }
    }
    // One is on its way, and 1 MiB waits: each counts for its body, and for what it takes besides.
    let expected = 1 + (1 << 20) / (body.len() + 192);
    assert_eq!((answered.len(), refused), (expected, calls.len() - expected));
    let order = cluster.trace.lines().filter(|line| line.contains(" Ok "));
    let order: Vec<u64> =
        order.map(|line| line.split(' ').nth(2).unwrap().parse().unwrap()).collect();
    assert_eq!(order, answered, "in order");
    assert_eq!(cluster.total(0, Counter::Exhausted), refused as u64);
    assert_eq!(cluster.node(0).outstanding(), 0);
}

#[test]
fn fault_a10_a_provider_that_is_silent_keeps_no_other_call_from_its_thread() {
    let mut cluster = Cluster::new("silent", 2, 2, 8);
    cluster.wait_all_up();
    // On thread 1, where requests of rank 0 do not arrive.
    assert_eq!(register(&mut cluster, 51), Status::Ok);
    let stuck: Vec<_> = (0..200).map(|_| cluster.call(0, 1, 1, PROVIDED, b"?")).collect();
    let local: Vec<_> = (0..100).map(|_| cluster.call(1, 0, 1, PROVIDED, b"?")).collect();
    cluster.run_for(5 * MS);
    // The same lane, for the function of another rank's thread: it is not full.
    for _ in 0..50 {
        let number = cluster.call(0, 0, 1, ECHO, b"another service");
        assert_eq!(cluster.outcome(number), echoed(b"another service", 0));
        let number = cluster.call(1, 1, 0, ECHO, b"another rank");
        assert_eq!(cluster.outcome(number), echoed(b"another rank", 1));
    }
    assert!(cluster.total(1, Counter::LaneFull) > 0);
    for number in stuck.into_iter().chain(local) {
        assert_eq!(cluster.outcome(number).0, Status::DeadlineExceeded);
    }
    cluster.run_for(2 * MS);
    assert_eq!(cluster.node(0).outstanding() + cluster.node(1).outstanding(), 0);
    // Nothing is left of them on the way: the lane takes as much as before.
    let call = cluster.call(0, 0, 1, PROVIDED, b"still there");
    let take = serve(&mut cluster, 51, 0, b"");
    let (name, ..) = work_of(&mut cluster, take);
    serve(&mut cluster, 51, name, b"yes");
    assert_eq!(cluster.outcome(call), (Status::Ok, b"yes".to_vec()));
}

#[test]
fn fault_a10_calls_to_a_provider_on_another_thread_end_when_it_dies() {
    let mut cluster = Cluster::new("other-dies", 2, 2, 4);
    cluster.wait_all_up();
    assert_eq!(register(&mut cluster, 51), Status::Ok);
    let take = serve(&mut cluster, 51, 0, b"");
    // More than the lane to its thread takes.
    let remote: Vec<_> = (0..20).map(|_| cluster.call(0, 1, 1, PROVIDED, b"r")).collect();
    let local: Vec<_> = (0..20).map(|_| cluster.call(1, 0, 1, PROVIDED, b"l")).collect();
    work_of(&mut cluster, take);
    cluster.run_for(MS);
    cluster.node(1).depart(51);
    for number in remote.into_iter().chain(local) {
        let status = cluster.outcome(number).0;
        assert_eq!(status, Status::Unavailable);
    }
    assert_eq!(cluster.node(1).outstanding(), 0);
}

#[test]
fn fault_a1_a_client_that_dies_leaves_nothing_on_any_thread() {
    let mut cluster = Cluster::new("client-dies", 2, 2, 8);
    cluster.wait_all_up();
    assert_eq!(register(&mut cluster, 51), Status::Ok);
    let calls: Vec<_> = (0..40).map(|_| cluster.call(1, 2, 1, PROVIDED, b"?")).collect();
    let echoes: Vec<_> = (0..40).map(|_| cluster.call(0, 2, 1, ECHO, b"?")).collect();
    cluster.turn();
    cluster.node(0).depart(2);
    cluster.node(1).depart(2);
    // Long before their deadlines.
    cluster.run_for(25 * MS);
    assert_eq!(cluster.node(0).outstanding() + cluster.node(1).outstanding(), 0);
    for number in calls.into_iter().chain(echoes) {
        let (status, answer) = cluster.ended.get(&number).cloned().unwrap_or(echoed(b"?", 0));
        let is_given_up = matches!(status, Status::Cancelled | Status::Unavailable);
        assert!(is_given_up || (status, answer) == echoed(b"?", 0), "{status}");
    }
    assert!(cluster.total(1, Counter::Abandoned) >= 40, "those that its thread did not have");
}

#[test]
fn calls_by_a_thread_that_is_gone_end() {
    let mut cluster = Cluster::new("lost", 2, 2, 8);
    cluster.wait_all_up();
    let calls: Vec<_> = (0..40).map(|_| cluster.call(0, 0, 1, ECHO, b"?")).collect();
    cluster.turn();
    cluster.node(0).lose_thread(1);
    for number in calls {
        let status = cluster.outcome(number).0;
        assert!(matches!(status, Status::Unavailable | Status::Ok), "{status}");
    }
    let late = cluster.call(0, 0, 1, ECHO, b"?");
    assert_eq!(cluster.outcome(late).0, Status::Unavailable);
    let here = cluster.call(0, 0, 0, ECHO, b"here");
    assert_eq!(cluster.outcome(here), echoed(b"here", 0));
}

#[test]
fn daemons_of_different_threads_work_together() {
    let mut cluster = Cluster::new("mixed", 3, 2, 8);
    cluster.kill(2);
    cluster.run_for(200 * MS);
    cluster.restart_with(2, 200, 1);
    cluster.wait_all_up();
    for (from, to) in (0..9).map(|n| (n % 3, n / 3)) {
        for client in 0..2 {
            let number = cluster.call(from, client, to, ECHO, b"any to any");
            assert_eq!(cluster.outcome(number), echoed(b"any to any", from));
        }
    }
}
