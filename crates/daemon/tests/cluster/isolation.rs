//! What one client, service or peer can cost the others: parties that are slow, silent, greedy or gone,
//! beside clients that are measured.

use std::time::Duration;

use client::message;
use copyrpc_daemon::{Limits, Status, metrics::Counter};
use zerocopy::IntoBytes as _;

use crate::{
    echoed, register,
    rig::{Cluster, ECHO, MS, PROVIDED},
    serve, work_of,
};

/// Longer than any test.
const HOUR: Duration = Duration::from_secs(3600);

/// A call for an answer of up to `response_bytes`, that may take an hour.
fn call_large(cluster: &mut Cluster, client: u32, service: u16, response_bytes: u32) -> u64 {
    let head = message::CallHead {
        rank: 1.into(),
        service: service.into(),
        method: 3.into(),
        timeout_us: u32::try_from(HOUR.as_micros()).unwrap().into(),
        response_bytes: response_bytes.into(),
    };
    let number = cluster.next;
    cluster.next += 1;
    cluster.node(0).request(client, number, head.as_bytes().to_vec());
    number
}

/// Answers that a client of rank 0 gets of rank 1 in 20 ms, with `depth` calls in flight.
fn honest_rate(cluster: &mut Cluster, client: u32, depth: usize) -> usize {
    let end_ns = cluster.now_ns + 20 * MS;
    let mut calls: Vec<_> =
        (0..depth).map(|_| cluster.call(0, client, 1, ECHO, b"honest")).collect();
    let mut answered = 0;
    while cluster.now_ns < end_ns {
        cluster.turn();
        for call in &mut calls {
            if let Some(outcome) = cluster.ended.get(call) {
                assert_eq!(*outcome, echoed(b"honest", 0));
                answered += 1;
                *call = cluster.call(0, client, 1, ECHO, b"honest");
            }
        }
    }
    cluster.until(|cluster| calls.iter().all(|call| cluster.ended.contains_key(call)));
    answered
}

#[test]
fn fault_i1_a_silent_provider_takes_no_more_than_its_share_of_what_its_node_has() {
    for mut cluster in Cluster::each("i1", 2) {
        cluster.wait_all_up();
        assert_eq!(register(&mut cluster, 50), Status::Ok);
        let alone = honest_rate(&mut cluster, 1, 8);
        assert!(alone > 100);
        // Few calls that ask for much, of one client, and then many of many.
        for _ in 0..40 {
            call_large(&mut cluster, 9, PROVIDED, 4096);
        }
        let beside = honest_rate(&mut cluster, 1, 8);
        assert!(beside * 2 >= alone, "{beside} of {alone} answers beside large ones");
        for client in 20..60 {
            for _ in 0..64 {
                call_large(&mut cluster, client, PROVIDED, 64);
            }
        }
        let beside = honest_rate(&mut cluster, 1, 8);
        assert!(beside * 2 >= alone, "{beside} of {alone} answers beside many");
        assert!(cluster.total(0, Counter::Waiting) > 1000, "the others wait");
        let to = (1, message::DAEMON, message::method::PING);
        let ping = cluster.call_method(0, 2, to, b"still there?");
        assert_eq!(cluster.outcome(ping), (Status::Ok, b"still there?".to_vec()));
        // What its provider answers, it gets in turn: who has one call need not wait for a hundred.
        let late = cluster.call_for(0, 3, (1, PROVIDED, 3), HOUR, b"the one call");
        let mut take = serve(&mut cluster, 50, 0, b"");
        for count in 0.. {
            assert!(count < 1500, "it is served before the last of thousands");
            let (name, ..) = work_of(&mut cluster, take);
            take = serve(&mut cluster, 50, name, b"");
            cluster.turn();
            if cluster.ended.contains_key(&late) {
                break;
            }
        }
    }
}

/// Rule C5.7.
#[test]
fn fault_i2_what_a_dead_client_called_ends_on_both_nodes_and_its_share_is_free() {
    for mut cluster in Cluster::each("i2", 2) {
        cluster.wait_all_up();
        assert_eq!(register(&mut cluster, 50), Status::Ok);
        for client in [8, 9] {
            for _ in 0..2000 {
                cluster.call_for(0, client, (1, PROVIDED, 3), HOUR, b"never answered");
            }
        }
        cluster.run_for(5 * MS);
        assert!(cluster.node(0).outstanding() > 1000 && cluster.node(1).outstanding() > 100);
        for client in [8, 9] {
            cluster.node(0).depart(client);
        }
        // Within a second, the issue of one look here.
        cluster.run_for(60 * MS);
        assert_eq!(cluster.node(0).outstanding() + cluster.node(1).outstanding(), 0);
        for rank in [0, 1] {
            assert_eq!(cluster.total(rank, Counter::HeldBytes), 0, "of rank {rank}");
            assert!(cluster.total(rank, Counter::Abandoned) > 100, "of rank {rank}");
        }
        // A provider that took one of them may answer still, and the next gets as much as the dead ones.
        let call = cluster.call_for(0, 1, (1, PROVIDED, 3), HOUR, b"x");
        let take = serve(&mut cluster, 50, 0, b"");
        let (name, ..) = work_of(&mut cluster, take);
        serve(&mut cluster, 50, name, b"y");
        assert_eq!(cluster.outcome(call), (Status::Ok, b"y".to_vec()));
    }
}

#[test]
fn fault_i3_i4_what_waits_is_bounded_by_caller_and_in_all_and_memory_comes_back() {
    let limits = Limits { held_bytes: 1 << 20, caller_held_bytes: 256 << 10, ..Limits::default() };
    for threads in [1, 2] {
        let mut cluster = Cluster::new("i3", 2, threads, 64);
        cluster.limits = limits;
        (0..2).for_each(|rank| cluster.start(rank, 200));
        cluster.wait_all_up();
        assert_eq!(register(&mut cluster, 50), Status::Ok);
        // Empty calls that would wait for an hour, of one client and then of many.
        let flood = |cluster: &mut Cluster, client: u32| {
            let calls: Vec<_> = (0..3000)
                .map(|_| cluster.call_for(0, client, (1, PROVIDED, 3), HOUR, b""))
                .collect();
            cluster.run_for(2 * MS);
            let refused = calls.iter().filter(|call| {
                matches!(cluster.ended.get(call), Some((Status::ResourceExhausted, _)))
            });
            refused.count()
        };
        let refused = flood(&mut cluster, 8);
        assert!(refused > 500, "{refused} of 3000 are refused at once");
        assert!(cluster.total(0, Counter::HeldBytes) <= u64::from(threads) * (256 << 10));
        for client in 9..20 {
            flood(&mut cluster, client);
            let held = cluster.total(0, Counter::HeldBytes);
            assert!(held <= u64::from(threads) * (1 << 20), "{held} B");
        }
        // Who comes now still finds room to wait.
        let next = cluster.call_for(0, 30, (1, PROVIDED, 3), Duration::from_millis(50), b"");
        cluster.run_for(MS);
        assert!(!cluster.ended.contains_key(&next));
        assert_eq!(cluster.outcome(next).0, Status::DeadlineExceeded);
        (8..20).for_each(|client| cluster.node(0).depart(client));
        cluster.run_for(60 * MS);
        for rank in [0, 1] {
            assert_eq!(cluster.total(rank, Counter::HeldBytes), 0);
            assert_eq!(cluster.total(rank, Counter::Waiting), 0);
        }
    }
}

/// Bodies that go by rendezvous to a provider that never answers keep their memory: it is bounded for a
/// client, for a service and in all, and comes back.
#[test]
fn fault_i4_memory_of_large_bodies_is_bounded_by_caller_and_service_and_comes_back() {
    const BODY: usize = 100_000;
    const BUFFER: u64 = 128 << 10;
    for threads in [1, 2] {
        let mut cluster = Cluster::new("i4-large", 2, threads, 1024);
        cluster.limits = Limits {
            large_memory_bytes: usize::from(threads) * (8 << 20),
            caller_large_memory_bytes: 1 << 20,
            service_large_memory_bytes: 2 << 20,
            caller_held_bytes: 2 << 20,
            ..Limits::default()
        };
        cluster.body_bytes_max = 1 << 20;
        (0..2).for_each(|rank| cluster.start(rank, 200));
        cluster.wait_all_up();
        assert_eq!(register(&mut cluster, 50), Status::Ok);
        let body = vec![7; BODY];
        let flood = |cluster: &mut Cluster, client: u32| {
            let calls: Vec<_> = (0..40)
                .map(|_| cluster.call_for(0, client, (1, PROVIDED, 3), HOUR, &body))
                .collect();
            cluster.run_for(2 * MS);
            calls.iter().filter(|call| cluster.ended.contains_key(call)).count()
        };
        let refused = flood(&mut cluster, 8);
        if threads == 1 {
            assert_eq!(refused, 0, "they wait where their client put them");
            assert!(cluster.total(0, Counter::HeldBytes) < BODY as u64, "nothing but entries");
        } else {
            assert!((4..32).contains(&refused), "{refused} of 40 are refused, others wait");
            let is_exhausted = |(status, _): &(Status, _)| *status == Status::ResourceExhausted;
            assert!(cluster.ended.values().filter(|end| is_exhausted(end)).count() >= refused);
        }
        assert_eq!(cluster.total(0, Counter::LargeHeld), 8 * BUFFER, "the share of a client");
        // Others of the same service get what it has left, and of another one what they need.
        for client in [10, 12] {
            flood(&mut cluster, client);
        }
        assert_eq!(cluster.total(0, Counter::LargeHeld), 16 * BUFFER, "the share of a service");
        let honest = cluster.call(0, 14, 1, ECHO, &body);
        assert_eq!(cluster.outcome(honest), echoed(&body, 0));
        for client in [8, 10, 12] {
            cluster.node(0).depart(client);
        }
        cluster.run_for(60 * MS);
        assert_eq!(cluster.total(0, Counter::LargeHeld), 0);
        assert!(cluster.total(0, Counter::LargeRegistered) >= 16 * BUFFER, "it is warm");
        let honest = cluster.call(0, 14, 1, ECHO, &body);
        assert_eq!(cluster.outcome(honest), echoed(&body, 0));
        cluster.idle_for(2200 * MS);
        for rank in [0, 1] {
            assert_eq!(cluster.total(rank, Counter::LargeRegistered), 0, "of rank {rank}");
        }
    }
}

/// A client that found no room for a large body gets it once another one's comes back, at whatever rank that
/// was.
#[test]
fn fault_i4_who_waits_for_memory_of_large_bodies_gets_what_is_given_back() {
    let mut cluster = Cluster::new("i4-waits", 3, 1, 64);
    cluster.limits = Limits {
        large_memory_bytes: 8 << 20,
        caller_large_memory_bytes: 128 << 10,
        ..Limits::default()
    };
    cluster.body_bytes_max = 1 << 20;
    (0..3).for_each(|rank| cluster.start(rank, 200));
    cluster.wait_all_up();
    assert_eq!(register(&mut cluster, 50), Status::Ok);
    let body = vec![7; 100_000];
    cluster.call_for(0, 8, (1, PROVIDED, 3), HOUR, &body);
    cluster.run_for(2 * MS);
    let next = cluster.call_for(0, 8, (2, ECHO, 3), HOUR, &body);
    cluster.run_for(2 * MS);
    assert!(!cluster.ended.contains_key(&next), "it waits for its client's share");
    let take = serve(&mut cluster, 50, 0, b"");
    let (name, ..) = work_of(&mut cluster, take);
    serve(&mut cluster, 50, name, b"y");
    assert_eq!(cluster.outcome(next), echoed(&body, 0));
}

#[test]
fn fault_i4_callers_of_a_slow_provider_have_equal_shares_of_its_queue() {
    for mut cluster in Cluster::each("i4", 2) {
        cluster.wait_all_up();
        assert_eq!(register(&mut cluster, 50), Status::Ok);
        for _ in 0..12_000 {
            cluster.call_for(1, 8, (1, PROVIDED, 3), HOUR, b"greedy");
        }
        cluster.run_for(2 * MS);
        let honest = cluster.call_for(1, 10, (1, PROVIDED, 3), HOUR, b"honest");
        let remote = cluster.call_for(0, 10, (1, PROVIDED, 3), HOUR, b"remote");
        cluster.run_for(2 * MS);
        let mut take = serve(&mut cluster, 50, 0, b"");
        let mut served = 0;
        while !cluster.ended.contains_key(&honest) || !cluster.ended.contains_key(&remote) {
            let (name, _, body) = work_of(&mut cluster, take);
            take = serve(&mut cluster, 50, name, &body);
            cluster.run_for(MS / 10);
            served += 1;
            assert!(served < 200, "thousands of another caller are not served first");
        }
        assert_eq!(cluster.outcome(honest), (Status::Ok, b"honest".to_vec()));
        assert_eq!(cluster.outcome(remote), (Status::Ok, b"remote".to_vec()));
    }
}

#[test]
fn fault_i5_a_client_offers_so_many_services_and_no_more() {
    for mut cluster in Cluster::each("i5", 2) {
        cluster.wait_all_up();
        let how = (1, message::DAEMON, message::method::REGISTER);
        let offer = |cluster: &mut Cluster, client: u32, service: u16| {
            cluster.call_method(1, client, how, &service.to_le_bytes())
        };
        let calls: Vec<_> = (1000..2000).map(|service| offer(&mut cluster, 50, service)).collect();
        let statuses = calls.into_iter().map(|call| cluster.outcome(call).0);
        let (granted, others): (Vec<_>, Vec<_>) =
            statuses.partition(|status| *status == Status::Ok);
        assert_eq!(granted.len(), 64);
        assert!(others.iter().all(|status| *status == Status::ResourceExhausted));
        assert_eq!(register(&mut cluster, 52), Status::Ok, "another may offer its own");
        cluster.node(1).depart(50);
        cluster.run_for(60 * MS);
        let again = offer(&mut cluster, 54, 1000);
        assert_eq!(cluster.outcome(again).0, Status::Ok, "its numbers are free");
    }
}
