//! Daemons and their clients on one thread, in virtual time: whole clusters that step in turn.
//!
//! Nothing here looks at a clock. Each daemon is the real one on a real software NIC; what is made up
//! is its clients, the datagrams between daemons, and time.

use std::{collections::BTreeMap, time::Duration};

use client::message;
use copyrpc_daemon::{Status, metrics::Counter};
use proptest::{collection::vec, prelude::*};
use zerocopy::{FromBytes as _, IntoBytes as _};

mod bodies;
#[path = "../../../bootstrap/tests/common/mod.rs"]
mod common;
mod counters;
mod door;
mod given_requests;
mod isolation;
mod long_answers;
mod long_requests;
mod pieces;
mod rig;
mod threads;

use rig::{ABSENT, Cluster, ECHO, MS, PANIC, PROVIDED, Socket, TURN_NS};

fn echoed(body: &[u8], rank: u32) -> (Status, Vec<u8>) {
    (Status::Ok, [body, &rank.to_le_bytes()].concat())
}

/// Two daemons and ten clients that call at random; what happened, in order.
fn random_run(name: &str, threads: u8, mut seed: u64) -> String {
    let mut cluster = Cluster::new(name, 2, threads, 64);
    cluster.wait_all_up();
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % below
    };
    let mut expected = BTreeMap::new();
    for _ in 0..400 {
        for _ in 0..random(8) {
            let client = u32::try_from(random(10)).unwrap();
            let (from, to) = (client % 2, u32::try_from(random(2)).unwrap());
            let body =
                vec![u8::try_from(random(256)).unwrap(); usize::try_from(random(300)).unwrap()];
            let number = cluster.call(from, client, to, ECHO, &body);
            expected.insert(number, echoed(&body, from));
        }
        cluster.turn();
    }
    cluster.until(|cluster| cluster.ended.len() == expected.len());
    assert_eq!(cluster.ended, expected);
    assert_eq!(cluster.node(0).outstanding() + cluster.node(1).outstanding(), 0);
    cluster.trace
}

#[test]
fn two_daemons_of_any_threads_and_ten_clients_same_seed_same_trace() {
    for threads in 1..4 {
        let run = |name, seed| random_run(name, threads, seed);
        let first = run("trace-a", 7);
        assert!(first.lines().count() > 1000);
        assert_eq!(first, run("trace-b", 7));
        assert_ne!(first, run("trace-c", 8));
    }
}

#[test]
fn what_one_daemon_counts_as_sent_the_other_counts_as_received() {
    for mut cluster in Cluster::each("bytes", 2) {
        cluster.wait_all_up();
        for (service, sent, answered) in [(ECHO, 5, 5 + 4), (ABSENT, 7, 0)] {
            let before = [0, 1].map(|rank| cluster.total(rank, Counter::BytesOut));
            let call = cluster.call(0, 1, 1, service, &vec![1; sent]);
            cluster.outcome(call);
            cluster.run_for(2 * MS);
            let out = [0, 1].map(|rank| cluster.total(rank, Counter::BytesOut));
            assert_eq!([out[0] - before[0], out[1] - before[1]], [sent as u64, answered]);
            assert_eq!([1, 0].map(|rank| cluster.total(rank, Counter::BytesIn)), out);
        }
    }
}

#[test]
fn local_calls_never_touch_the_nic() {
    for mut cluster in Cluster::each("local", 2) {
        cluster.wait_all_up();
        for to in [0, message::HERE] {
            let number = cluster.call(0, 1, to, ECHO, b"here");
            assert_eq!(cluster.outcome(number), echoed(b"here", 0));
        }
        assert_eq!(cluster.total(0, Counter::RequestsLocal), 2);
        assert_eq!(
            (cluster.total(0, Counter::RequestsRemote), cluster.total(0, Counter::BytesOut)),
            (0, 0)
        );
        assert_eq!(cluster.total(1, Counter::Incoming), 0);
        let remote = cluster.call(0, 1, 1, ECHO, b"there");
        assert_eq!(cluster.outcome(remote), echoed(b"there", 0));
        cluster.run_for(2 * MS);
        assert_eq!(
            (cluster.total(0, Counter::Flushes), cluster.total(0, Counter::RequestsRemote)),
            (1, 1)
        );
    }
}

#[test]
fn a_daemon_that_called_a_peer_expects_an_answer_for_a_moment() {
    let mut cluster = Cluster::new("patience", 2, 1, 64);
    cluster.wait_all_up();
    let mut now_ns = cluster.now_ns;
    assert!(!cluster.node(0).expects_answers(now_ns), "it called nobody");
    let call = cluster.call(0, 1, 1, ECHO, b"");
    assert_eq!(cluster.node(0).step(now_ns), 1);
    assert!(cluster.node(0).expects_answers(now_ns + MS), "nobody looked since then");
    now_ns += MS / 2;
    assert_eq!(cluster.node(0).step(now_ns), 0);
    assert!(cluster.node(0).expects_answers(now_ns + 9_999));
    assert!(!cluster.node(0).expects_answers(now_ns + 10_000), "it is not to wait for long");
    for _ in 0..32 {
        cluster.call(0, 1, 0, ECHO, b"");
    }
    assert_eq!(cluster.node(0).step(now_ns), 32);
    assert!(!cluster.node(0).expects_answers(now_ns), "its clients have much to do");
    cluster.now_ns = now_ns;
    assert_eq!(cluster.outcome(call), echoed(b"", 0));
    now_ns = cluster.now_ns;
    assert!(!cluster.node(0).expects_answers(now_ns), "there is nothing to expect");
    let mut cluster = Cluster::new("patience", 2, 2, 64);
    cluster.wait_all_up();
    let now_ns = cluster.now_ns;
    cluster.call(0, 0, 1, ECHO, b"");
    assert_eq!(cluster.node(0).step(now_ns), 1);
    assert_eq!(cluster.node(0).outstanding(), 1);
    assert!(!cluster.node(0).expects_answers(now_ns), "the next step is the other thread's");
}

#[test]
fn fault_a10_a_handler_that_panics_or_is_absent_gives_a_status_and_the_daemon_lives() {
    for mut cluster in Cluster::each("panic", 2) {
        cluster.wait_all_up();
        for to in [0, 1] {
            let panics = cluster.call(0, 1, to, PANIC, b"");
            assert_eq!(cluster.outcome(panics), (Status::Internal, vec![]));
            let absent = cluster.call(0, 1, to, ABSENT, b"");
            assert_eq!(cluster.outcome(absent), (Status::Unimplemented, vec![]));
            let alive = cluster.call(0, 1, to, ECHO, b"alive");
            assert_eq!(cluster.outcome(alive), echoed(b"alive", 0));
        }
        let nowhere = cluster.call(0, 1, 2, ECHO, b"");
        assert_eq!(cluster.outcome(nowhere).0, Status::NotFound);
    }
}

#[test]
fn fault_c5_lengths_around_the_limits_are_answered_or_refused() {
    for mut cluster in bodies::each_of_two("lengths", 20_000) {
        for len in [0, 1, 4092, 4096, 16_000, 16_384, 20_000] {
            let body = vec![5; len];
            let number = cluster.call(0, 1, 1, ECHO, &body);
            assert!(cluster.outcome(number) == echoed(&body, 0), "{len} B");
        }
        let beyond = cluster.call(0, 1, 1, ECHO, &[5; 20_001]);
        assert_eq!(cluster.outcome(beyond).0, Status::OutOfRange);
        let nothing = cluster.next;
        cluster.next += 1;
        cluster.node(0).request(1, nothing, vec![1, 2, 3]);
        assert_eq!(cluster.outcome(nothing).0, Status::InvalidArgument);
    }
}

/// Asks for work as a provider does, with an answer to earlier work.
fn serve(cluster: &mut Cluster, client: u32, work: u64, answer: &[u8]) -> u64 {
    serve_status(cluster, client, work, Status::Ok, answer)
}

fn serve_status(
    cluster: &mut Cluster,
    client: u32,
    work: u64,
    status: Status,
    answer: &[u8],
) -> u64 {
    let mut body = Vec::new();
    body.extend_from_slice(&work.to_le_bytes());
    body.extend_from_slice(&PROVIDED.to_le_bytes());
    body.extend_from_slice(&[status.code(), 0, 0, 0, 0, 0]);
    body.extend_from_slice(answer);
    cluster.call_method(1, client, (1, message::DAEMON, message::method::SERVE), &body)
}

fn register(cluster: &mut Cluster, client: u32) -> Status {
    let how = (1, message::DAEMON, message::method::REGISTER);
    let number = cluster.call_method(1, client, how, &PROVIDED.to_le_bytes());
    cluster.outcome(number).0
}

/// A process that shares the core answers no sooner for being kept from it.
#[test]
fn a_daemon_whose_provider_has_a_request_offers_the_core_while_it_waits_for_peers() {
    let mut cluster = Cluster::new("patience-provider", 2, 1, 64);
    cluster.wait_all_up();
    assert_eq!(register(&mut cluster, 50), Status::Ok);
    let take = serve(&mut cluster, 50, 0, b"");
    cluster.run_for(2 * MS);
    let now_ns = cluster.now_ns;
    cluster.call(1, 1, 0, ECHO, b"");
    cluster.node(1).step(now_ns);
    assert!(cluster.node(1).expects_answers(now_ns), "its peer's");
    let local = cluster.call(1, 2, 1, PROVIDED, b"local");
    cluster.node(1).step(now_ns);
    assert!(!cluster.node(1).expects_answers(now_ns), "the next step is the provider's");
    let (name, ..) = work_of(&mut cluster, take);
    serve(&mut cluster, 50, name, b"answer");
    assert_eq!(cluster.outcome(local), (Status::Ok, b"answer".to_vec()));
}

/// Name, caller's rank and body of the work that a provider was given.
fn work_of(cluster: &mut Cluster, take: u64) -> (u64, u32, Vec<u8>) {
    let (status, bytes) = cluster.outcome(take);
    assert_eq!(status, Status::Ok);
    let name = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    (name, u32::from_le_bytes(bytes[8..12].try_into().unwrap()), bytes[16..].to_vec())
}

/// A process uses the memory of few calls if it is given few requests at a time, however many it asks for.
#[test]
fn requests_one_at_a_time_use_the_memory_of_one_poll() {
    for mut cluster in Cluster::each("newest-poll", 2) {
        cluster.wait_all_up();
        assert_eq!(register(&mut cluster, 50), Status::Ok);
        let old: Vec<_> = (0..3).map(|_| serve(&mut cluster, 50, 0, b"")).collect();
        let mut newest = serve(&mut cluster, 50, 0, b"");
        for _ in 0..5 {
            let call = cluster.call(1, 1, 1, PROVIDED, b"hi");
            let (work, ..) = work_of(&mut cluster, newest);
            newest = serve(&mut cluster, 50, work, b"answer");
            assert_eq!(cluster.outcome(call), (Status::Ok, b"answer".to_vec()));
        }
        assert!(!old.iter().any(|poll| cluster.ended.contains_key(poll)));
    }
}

#[test]
fn a_client_process_provides_a_service_to_both_nodes() {
    for mut cluster in Cluster::each("provider", 2) {
        cluster.wait_all_up();
        assert_eq!(register(&mut cluster, 50), Status::Ok);
        assert_eq!(register(&mut cluster, 51), Status::AlreadyExists);
        let (remote, local) =
            (cluster.call(0, 1, 1, PROVIDED, b"remote"), cluster.call(1, 2, 1, PROVIDED, b"local"));
        let take = serve(&mut cluster, 50, 0, b"");
        let (first, from, body) = work_of(&mut cluster, take);
        assert_eq!((from, &body[..]), (1, &b"local"[..]), "it was there first");
        let take = serve(&mut cluster, 50, first, b"for local");
        assert_eq!(cluster.outcome(local), (Status::Ok, b"for local".to_vec()));
        let (second, from, body) = work_of(&mut cluster, take);
        assert_eq!((from, &body[..]), (0, &b"remote"[..]));
        serve(&mut cluster, 50, second, b"for remote");
        assert_eq!(cluster.outcome(remote), (Status::Ok, b"for remote".to_vec()));
        assert_eq!(cluster.node(1).outstanding(), 0);
    }
}

/// However many clients leave: looks for what they left behind are rare, for a service of theirs are not.
#[test]
fn a_service_whose_provider_has_left_is_free_at_once() {
    for mut cluster in Cluster::each("offered-again", 2) {
        cluster.wait_all_up();
        assert_eq!(register(&mut cluster, 50), Status::Ok);
        // All belong to one thread: another one learns of the end by its own look.
        for client in (50..70).step_by(2) {
            cluster.node(1).depart(100 + client);
            cluster.turn();
            cluster.node(1).depart(client);
            assert_eq!(register(&mut cluster, client + 2), Status::Ok, "{client}");
        }
    }
}

/// Also those that a daemon says itself when a connection has ended.
#[test]
fn what_a_provider_answers_is_what_its_caller_is_told() {
    for mut cluster in Cluster::each("statuses", 2) {
        cluster.wait_all_up();
        assert_eq!(register(&mut cluster, 50), Status::Ok);
        let statuses = [Status::Cancelled, Status::Unavailable, Status::Internal, Status::Aborted];
        let mut take = serve(&mut cluster, 50, 0, b"");
        for status in statuses {
            for from in [0, 1] {
                let call = cluster.call(from, 1, 1, PROVIDED, b"x");
                let (name, ..) = work_of(&mut cluster, take);
                take = serve_status(&mut cluster, 50, name, status, b"");
                assert_eq!(cluster.outcome(call).0, status, "from rank {from}");
            }
        }
        assert_eq!(cluster.total(0, Counter::Responses), 4);
        assert_eq!(cluster.total(0, Counter::PeerGone), 0);
        // One that this side ends, because the peer is silent.
        let lost = cluster.call_for(0, 1, (1, PROVIDED, 3), Duration::from_secs(1), b"x");
        cluster.run_for(2 * MS);
        cluster.air.borrow_mut().cut.extend([(0, 1), (1, 0)]);
        assert_eq!(cluster.outcome(lost).0, Status::Unavailable);
        assert_eq!(cluster.total(0, Counter::Responses), 4);
        assert_eq!(cluster.total(0, Counter::PeerGone), 1);
    }
}

#[test]
fn requests_that_nobody_waits_for_keep_no_others_from_a_silent_provider() {
    for mut cluster in Cluster::each("silent", 1) {
        cluster.wait_all_up();
        let how = (0, message::DAEMON, message::method::REGISTER);
        let registered = cluster.call_method(0, 50, how, &PROVIDED.to_le_bytes());
        assert_eq!(cluster.outcome(registered).0, Status::Ok);
        let mut flood = |timeout, count| {
            let to = (0, PROVIDED, 3);
            let calls: Vec<_> =
                (0..count).map(|n| cluster.call_for(0, n % 2, to, timeout, b"x")).collect();
            let statuses = calls.into_iter().map(|call| cluster.outcome(call).0);
            statuses.filter(|status| *status == Status::DeadlineExceeded).count()
        };
        let waited = flood(Duration::from_millis(5), 9000);
        assert!((4096..9000).contains(&waited), "{waited} of 9000 found room to wait");
        assert_eq!(flood(Duration::from_millis(5), 1000), 1000);
    }
}

fn hostile_answers(name: &str, caller: u32) {
    for mut cluster in Cluster::each(name, 2) {
        cluster.wait_all_up();
        assert_eq!(register(&mut cluster, 50), Status::Ok);
        let call = cluster.call(caller, 1, 1, PROVIDED, b"x");
        let take = serve(&mut cluster, 50, 0, b"");
        let (name, ..) = work_of(&mut cluster, take);
        let stranger = serve(&mut cluster, 51, name, b"not mine");
        assert_eq!(cluster.outcome(stranger).0, Status::FailedPrecondition);
        serve(&mut cluster, 50, name + 1, b"forged");
        cluster.run_for(5 * MS);
        assert!(!cluster.ended.contains_key(&call));
        serve(&mut cluster, 50, name, b"right");
        serve(&mut cluster, 50, name, b"again");
        assert_eq!(cluster.outcome(call), (Status::Ok, b"right".to_vec()));
        cluster.run_for(5 * MS);
        assert_eq!(cluster.total(1, Counter::Stale), 2);
    }
}

#[test]
fn fault_b5_answers_of_others_forged_and_twice_are_ignored() {
    // Of another node, and of the own one, whose answers are passed on.
    hostile_answers("forged", 0);
    hostile_answers("forged-here", 1);
}

#[test]
fn fault_a10_a_provider_that_never_answers_or_dies_ends_its_calls() {
    for mut cluster in Cluster::each("provider-dies", 2) {
        cluster.wait_all_up();
        assert_eq!(register(&mut cluster, 50), Status::Ok);
        let (local, remote) =
            (cluster.call(1, 1, 1, PROVIDED, b"l"), cluster.call(0, 1, 1, PROVIDED, b"r"));
        let take = serve(&mut cluster, 50, 0, b"");
        work_of(&mut cluster, take);
        assert_eq!(cluster.outcome(local).0, Status::DeadlineExceeded);
        assert_eq!(cluster.outcome(remote).0, Status::DeadlineExceeded);
        let (given, waiting) = (
            cluster.call(0, 1, 1, PROVIDED, b"given"),
            cluster.call(1, 1, 1, PROVIDED, b"waiting"),
        );
        cluster.run_for(2 * MS);
        cluster.node(1).depart(50);
        assert_eq!(cluster.outcome(given).0, Status::Unavailable);
        assert_eq!(cluster.outcome(waiting).0, Status::Unavailable);
        assert_eq!(register(&mut cluster, 52), Status::Ok, "another may provide it now");
    }
}

#[test]
fn fault_a8_calls_to_a_daemon_that_dies_end_and_its_next_life_is_found() {
    for mut cluster in Cluster::each("dies", 3) {
        cluster.wait_all_up();
        let numbers: Vec<_> = (0..20).map(|_| cluster.call(0, 1, 2, ECHO, b"x")).collect();
        cluster.kill(2);
        for number in numbers {
            let status = cluster.outcome(number).0;
            assert!(matches!(status, Status::Unavailable | Status::Ok), "{status}");
        }
        cluster.until(|cluster| cluster.node(0).peers_up() == 1);
        let refused = cluster.call(0, 1, 2, ECHO, b"x");
        assert_eq!(cluster.outcome(refused).0, Status::Unavailable);
        let other = cluster.call(0, 1, 1, ECHO, b"others do not notice");
        assert_eq!(cluster.outcome(other), echoed(b"others do not notice", 0));
        cluster.start(2, 200);
        cluster.wait_all_up();
        let again = cluster.call(0, 1, 2, ECHO, b"again");
        assert_eq!(cluster.outcome(again), echoed(b"again", 0));
    }
}

/// The others know where it was and not where it is, and do not believe what is older than what they know.
#[test]
fn fault_a8_a_daemon_whose_clock_went_back_between_two_lives_is_found_where_it_is_now() {
    for mut cluster in Cluster::each("clock-back", 3) {
        cluster.wait_all_up();
        cluster.kill(2);
        cluster.until(|cluster| cluster.node(0).peers_up() == 1);
        cluster.start(2, 7);
        cluster.wait_all_up();
        let call = cluster.call(0, 1, 2, ECHO, b"again");
        assert_eq!(cluster.outcome(call), echoed(b"again", 0));
        // And without a pause in which the others could have given it up.
        cluster.start(2, 5);
        cluster.run_for(200 * MS);
        cluster.wait_all_up();
        let call = cluster.call(1, 1, 2, ECHO, b"and again");
        assert_eq!(cluster.outcome(call), echoed(b"and again", 1));
    }
}

/// Its queue pair does not answer yet: a request would wait for the NIC's next try, and the connection may break.
#[test]
fn calls_go_to_a_peer_once_it_is_up_there_too() {
    for mut cluster in Cluster::each("half-up", 2) {
        // One heartbeat passes, which is answered; the answer to that is lost.
        cluster.turn();
        cluster.air.borrow_mut().cut.push((0, 1));
        cluster.run_for(20 * MS);
        let joined = [0, 1].map(|rank| cluster.total(rank, Counter::PeersJoined));
        assert_eq!(joined, [1, 0], "one end came up alone");
        assert_eq!(cluster.node(0).peers_up(), 0);
        let early = cluster.call(0, 1, 1, ECHO, b"early");
        assert_eq!(cluster.outcome(early).0, Status::Unavailable);
        cluster.air.borrow_mut().cut.clear();
        cluster.wait_all_up();
        let number = cluster.call(0, 1, 1, ECHO, b"in time");
        assert_eq!(cluster.outcome(number), echoed(b"in time", 0));
    }
}

#[test]
fn fault_d2_a_cut_in_one_direction_ends_calls_and_heals_with_new_epochs() {
    for mut cluster in Cluster::each("cut", 2) {
        cluster.wait_all_up();
        cluster.air.borrow_mut().cut.push((0, 1));
        cluster.until(|cluster| (0..2).all(|rank| cluster.node(rank).peers_up() == 0));
        for (from, to) in [(0, 1), (1, 0)] {
            let refused = cluster.call(from, 1, to, ECHO, b"x");
            assert_eq!(cluster.outcome(refused).0, Status::Unavailable);
        }
        cluster.air.borrow_mut().cut.clear();
        cluster.wait_all_up();
        let number = cluster.call(0, 1, 1, ECHO, b"healed");
        assert_eq!(cluster.outcome(number), echoed(b"healed", 0));
        assert_eq!(cluster.total(0, Counter::PeersLost), 1);
    }
}

#[test]
fn fault_c4_more_calls_than_rings_hold_wait_in_order_and_none_is_lost() {
    for mut cluster in Cluster::each("full", 2) {
        cluster.wait_all_up();
        let body = vec![9; 3000];
        let mut calls = Vec::new();
        for _ in 0..400 {
            calls.push((cluster.call(0, 1, 1, ECHO, &body), 0));
            calls.push((cluster.call(1, 2, 0, ECHO, &body), 1));
        }
        for (number, from) in calls {
            let (status, answer) = cluster.outcome(number);
            match status {
                Status::Ok => assert_eq!((status, answer), echoed(&body, from)),
                status => assert_eq!(status, Status::ResourceExhausted, "refused, not lost"),
            }
        }
        let exhausted = cluster.total(0, Counter::Exhausted);
        let answered = cluster.ended.values().filter(|(status, _)| *status == Status::Ok).count();
        assert!(answered >= 400, "{answered} of 800 answered, {exhausted} refused by rank 0");
        assert!(cluster.total(0, Counter::RingFull) > 0, "that is why they waited");
        assert_eq!(cluster.node(0).outstanding(), 0);
    }
}

/// How many of more calls than a ring and what may wait beside it hold were refused.
fn refused_of_a_flood(cluster: &mut Cluster) -> usize {
    let calls: Vec<_> = (0..600).map(|_| cluster.call(0, 1, 1, ECHO, &[9; 4000])).collect();
    let statuses = calls.into_iter().map(|call| cluster.outcome(call).0);
    statuses.filter(|status| *status == Status::ResourceExhausted).count()
}

/// A call that nobody answers.
fn call_within(cluster: &mut Cluster, timeout_us: u32) -> u64 {
    let head = message::CallHead {
        rank: 1.into(),
        service: PROVIDED.into(),
        method: 0.into(),
        timeout_us: timeout_us.into(),
        response_bytes: 64.into(),
    };
    let number = cluster.next;
    cluster.next += 1;
    cluster.node(0).request(1, number, [head.as_bytes(), &[9; 4000]].concat());
    number
}

/// What waits is counted while it waits, and not any more once it was sent, or its peer is gone: a quota
/// that is not given back would refuse everything one day.
#[test]
fn what_may_wait_for_a_peer_is_the_same_after_floods_and_after_a_death() {
    for mut cluster in Cluster::each("floods", 2) {
        cluster.wait_all_up();
        let first = refused_of_a_flood(&mut cluster);
        assert!((100..500).contains(&first), "{first}");
        for _ in 0..2 {
            assert!(refused_of_a_flood(&mut cluster) < first + 50);
        }
        // What waits behind more calls than can be in flight meets its deadlines, then the peer is given up.
        assert_eq!(register(&mut cluster, 50), Status::Ok);
        for is_cut in [false, true] {
            let mut calls = Vec::new();
            for batch in 0..14 {
                let timeout_us = if batch < 12 { 400_000 } else { 100_000 };
                calls.extend((0..100).map(|_| call_within(&mut cluster, timeout_us)));
                cluster.run_for(MS / 5);
            }
            if is_cut {
                cluster.air.borrow_mut().cut.extend([(0, 1), (1, 0)]);
            }
            assert!(calls.into_iter().all(|call| cluster.outcome(call).0 != Status::Ok));
            cluster.air.borrow_mut().cut.clear();
            cluster.wait_all_up();
            assert!(refused_of_a_flood(&mut cluster) < first + 20, "{is_cut}");
        }
        // It dies while a flood waits for it.
        let calls: Vec<_> = (0..600).map(|_| cluster.call(0, 1, 1, ECHO, &[9; 4000])).collect();
        cluster.turn();
        cluster.kill(1);
        let lost = calls.into_iter().map(|call| cluster.outcome(call).0);
        assert!(lost.filter(|status| *status == Status::Unavailable).count() > 100);
        cluster.start(1, 200);
        cluster.wait_all_up();
        assert!(refused_of_a_flood(&mut cluster) < first + 50);
    }
}

#[test]
fn fault_c4_what_waits_for_room_is_counted_once_however_often_deadlines_pass() {
    const CALLS: usize = 200;
    let mut cluster = Cluster::new("again", 2, 1, 64);
    cluster.wait_all_up();
    let mut made = 0;
    for _ in 0..30 * MS / TURN_NS {
        for _ in cluster.node(0).outstanding()..CALLS {
            cluster.call_for(0, 1, (1, ECHO, 3), Duration::from_millis(5), &[9; 3000]);
            made += 1;
        }
        // The other one stands still, so nothing makes room.
        cluster.now_ns += TURN_NS;
        let now_ns = cluster.now_ns;
        cluster.node(0).step(now_ns);
        assert!(cluster.node(0).outstanding() <= CALLS);
    }
    assert!(made > 4 * CALLS, "deadlines passed");
    cluster.turn();
    assert!(cluster.ended.values().all(|(status, _)| *status == Status::DeadlineExceeded));
    assert_eq!(cluster.ended.len(), made - cluster.node(0).outstanding());
    cluster.until(|cluster| cluster.node(0).outstanding() == 0);
    let late = cluster.ended.values().filter(|(status, _)| *status == Status::DeadlineExceeded);
    let late = late.count() as u64;
    assert_eq!(cluster.total(0, Counter::Deadlines), late);
}

#[test]
fn a_daemon_that_drains_takes_nothing_new_and_finishes_the_rest() {
    for mut cluster in Cluster::each("drain", 2) {
        cluster.wait_all_up();
        assert_eq!(register(&mut cluster, 50), Status::Ok);
        let early = cluster.call(0, 1, 1, PROVIDED, b"early");
        let take = serve(&mut cluster, 50, 0, b"");
        let (name, ..) = work_of(&mut cluster, take);
        cluster.node(1).drain();
        let late = cluster.call(0, 1, 1, ECHO, b"late");
        assert_eq!(cluster.outcome(late).0, Status::Unavailable);
        let local = cluster.call(1, 1, 1, ECHO, b"late");
        assert_eq!(cluster.outcome(local).0, Status::Unavailable);
        assert_eq!(cluster.node(1).outstanding(), 1);
        serve(&mut cluster, 50, name, b"finished");
        assert_eq!(cluster.outcome(early), (Status::Ok, b"finished".to_vec()));
        let now_ns = cluster.now_ns;
        cluster.node(1).leave(now_ns);
        cluster.kill(1);
        cluster.run_for(3 * MS);
        assert_eq!(cluster.node(0).peers_up(), 0, "it said good-bye");
        assert_eq!(cluster.total(0, Counter::PeersLost), 0, "what leaves in order is not lost");
    }
}

#[test]
fn who_and_ping_are_answered_and_strangers_get_nothing_else() {
    for mut cluster in Cluster::each("who", 2) {
        cluster.wait_all_up();
        let who =
            cluster.call_method(1, 1, (message::HERE, message::DAEMON, message::method::WHO), b"");
        let answer = cluster.outcome(who).1;
        assert_eq!(<[u32; 2]>::read_from_bytes(&answer).unwrap(), [1, 2]);
        let ping = cluster.call_method(0, 1, (1, message::DAEMON, message::method::PING), b"ping");
        assert_eq!(cluster.outcome(ping), (Status::Ok, b"ping".to_vec()));
        for method in [message::method::REGISTER, message::method::SERVE, 99] {
            let refused = cluster.call_method(0, 1, (1, message::DAEMON, method), &[0; 16]);
            assert_eq!(cluster.outcome(refused).0, Status::PermissionDenied);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24, failure_persistence: None, ..Default::default()
    })]

    /// Clients that send anything, and datagrams of anybody: each request is answered at most once,
    /// and an honest client is served all along.
    #[test]
    fn fault_b11_any_requests_and_datagrams_are_refused_or_served(
        requests in vec((0u32..4, any_request()), 1..60),
        datagrams in vec(vec(any::<u8>(), 0..400), 0..10),
        threads in 1u8..3,
    ) {
        let mut cluster = Cluster::new("any", 2, threads, 64);
        cluster.wait_all_up();
        assert_eq!(register(&mut cluster, 50), Status::Ok);
        for (client, bytes) in requests {
            let number = cluster.next;
            cluster.next += 1;
            cluster.node(1).request(client, number, bytes);
        }
        cluster.air.borrow_mut().inboxes.entry((1, 0)).or_default().extend(
            datagrams.into_iter().map(|datagram| (Socket::default(), datagram)));
        for from in [0, 1] {
            let honest = cluster.call(from, 9, 1, ECHO, b"honest");
            assert_eq!(cluster.outcome(honest), echoed(b"honest", from));
        }
        // What waits for a provider that never answers ends at its deadline.
        cluster.run_for(600 * MS);
        assert_eq!(cluster.node(1).outstanding(), 0);
    }
}

/// Requests that are nearly right, so that all of the daemon is reached.
fn any_request() -> impl Strategy<Value = Vec<u8>> {
    let head = (
        prop_oneof![0u32..3, Just(message::HERE), any::<u32>()],
        prop_oneof![0u16..12, any::<u16>()],
        prop_oneof![0u16..5, any::<u16>()],
        0u32..400_000,
        any::<u32>(),
    );
    let nearly = (head, vec(prop_oneof![0u8..3, any::<u8>()], 0..64)).prop_map(|(head, body)| {
        let (rank, service, method, timeout_us, response_bytes) = head;
        let head = message::CallHead {
            rank: rank.into(),
            service: service.into(),
            method: method.into(),
            timeout_us: timeout_us.into(),
            response_bytes: response_bytes.into(),
        };
        [head.as_bytes(), &body].concat()
    });
    prop_oneof![4 => nearly, 1 => vec(any::<u8>(), 0..40)]
}
