//! Long requests to other nodes, which a daemon copies in pieces from where their clients put them.

use std::time::Duration;

use copyrpc_daemon::{Status, metrics::Counter};

use crate::{
    bodies::{MINUTE, PIECE_BYTES, body, each_of_two, start_all},
    echoed,
    rig::{Cluster, ECHO, MS, TURN_NS},
};

/// Many pieces.
const LEN_BYTES: usize = 16 * PIECE_BYTES;
/// Of the thread that has the other node, if there are two, as all clients here.
const CLIENT: u32 = 1;

fn each(name: &str) -> impl Iterator<Item = Cluster> {
    each_of_two(name, LEN_BYTES + 64)
}

fn call(cluster: &mut Cluster, client: u32, timeout: Duration, body: &[u8]) -> u64 {
    cluster.call_for(0, client, (1, ECHO, 3), timeout, body)
}

/// A call of which some pieces are copied, and not all.
fn begun(cluster: &mut Cluster, client: u32, timeout: Duration) -> u64 {
    cluster.node(0).take_copied(CLIENT);
    let call = call(cluster, client, timeout, &body(LEN_BYTES));
    (0..3).for_each(|_| cluster.turn());
    let copied = cluster.node(0).take_copied(CLIENT);
    assert!((PIECE_BYTES..LEN_BYTES).contains(&copied), "{copied} B are copied");
    assert!(cluster.node(0).left(CLIENT) > 0);
    call
}

/// Nothing of the calls before is left, and the next one is answered.
#[track_caller]
fn expect_clean(cluster: &mut Cluster) {
    expect_nothing(cluster);
    let whole = body(LEN_BYTES);
    let next = call(cluster, CLIENT + 40, MINUTE, &whole);
    assert!(cluster.outcome(next) == echoed(&whole, 0));
}

#[track_caller]
fn expect_nothing(cluster: &mut Cluster) {
    cluster.run_for(2 * MS);
    assert_eq!(cluster.node(0).left(CLIENT), 0, "left with clients");
    for rank in 0..2 {
        assert_eq!(cluster.node(rank).outstanding(), 0, "calls of rank {rank}");
        for counter in [Counter::LargeHeld, Counter::HeldBytes] {
            assert_eq!(cluster.total(rank, counter), 0, "{counter:?} of rank {rank}");
        }
    }
}

/// Around the longest message that goes by the ring, and around pieces.
#[test]
fn long_requests_are_whole_at_every_length() {
    for mut cluster in each("requests-lengths") {
        let around = [4144, 16 << 10, PIECE_BYTES, 5 * PIECE_BYTES];
        for len_bytes in around.into_iter().flat_map(|around| around - 17..around + 18) {
            let whole = body(len_bytes);
            let call = call(&mut cluster, CLIENT, MINUTE, &whole);
            assert!(cluster.outcome(call) == echoed(&whole, 0), "{len_bytes} B");
        }
        expect_clean(&mut cluster);
    }
}

/// No thread copies more than a piece in a turn, and small calls to the same node and to the own one pass between.
#[test]
fn small_calls_are_answered_between_the_pieces_of_long_requests() {
    for mut cluster in each("requests-between") {
        let whole = body(LEN_BYTES);
        let long = begun(&mut cluster, CLIENT, MINUTE);
        let (mut copied, mut smalls) = (0, Vec::new());
        while cluster.node(0).left(CLIENT) > 0 && copied < LEN_BYTES - 4 * PIECE_BYTES {
            smalls.push(cluster.call(0, CLIENT + 2, 1, ECHO, b"small"));
            let own = cluster.call(0, CLIENT + 2, 0, ECHO, b"small");
            cluster.turn();
            assert_eq!(cluster.ended.get(&own), Some(&echoed(b"small", 0)));
            let bytes = cluster.node(0).take_copied(CLIENT);
            assert!((1..=PIECE_BYTES).contains(&bytes), "{bytes} B in a turn");
            copied += bytes;
        }
        assert!(!cluster.ended.contains_key(&long));
        let ended = smalls.iter().filter(|small| cluster.ended.contains_key(small)).count();
        assert!(ended > 2, "{ended} of {} small calls", smalls.len());
        assert!(cluster.outcome(long) == echoed(&whole, 0));
        expect_clean(&mut cluster);
    }
}

/// Rule C5.2: what a client calls of a node behind a long request comes behind it. Clients take turns.
#[test]
fn calls_of_a_client_stay_in_order_and_clients_take_turns() {
    for mut cluster in each("requests-order") {
        let long = begun(&mut cluster, CLIENT, MINUTE);
        let behind = call(&mut cluster, CLIENT, MINUTE, b"behind");
        let middling = call(&mut cluster, CLIENT, MINUTE, &body(8000));
        let shorter: Vec<_> = (1..4)
            .map(|other| call(&mut cluster, CLIENT + 2 * other, MINUTE, &body(2 * PIECE_BYTES)))
            .collect();
        for call in shorter {
            assert!(cluster.outcome(call) == echoed(&body(2 * PIECE_BYTES), 0));
        }
        assert!([long, behind, middling].iter().all(|call| !cluster.ended.contains_key(call)));
        cluster.until(|cluster| cluster.node(0).left(CLIENT) <= 2);
        while cluster.node(0).take_copied(CLIENT) > 0 {
            assert!(!cluster.ended.contains_key(&behind), "it waits for the one before it");
            cluster.turn();
        }
        assert!(cluster.outcome(long) == echoed(&body(LEN_BYTES), 0));
        assert!(cluster.outcome(behind) == echoed(b"behind", 0));
        assert!(cluster.outcome(middling) == echoed(&body(8000), 0));
        expect_clean(&mut cluster);
    }
}

/// Fault A3.
#[test]
fn a_request_whose_deadline_passes_amid_its_copy_is_not_made() {
    for mut cluster in each("requests-deadline") {
        let incoming = cluster.total(1, Counter::Incoming);
        let call = begun(&mut cluster, CLIENT, Duration::from_millis(10));
        // Time passes without turns.
        cluster.now_ns += 10 * MS;
        assert_eq!(cluster.outcome(call).0, Status::DeadlineExceeded);
        expect_nothing(&mut cluster);
        assert_eq!(cluster.total(1, Counter::Incoming), incoming, "it never left");
        expect_clean(&mut cluster);
    }
}

#[test]
fn fault_a1_a_caller_that_dies_amid_the_copy_of_its_request_leaves_nothing() {
    for mut cluster in each("requests-caller") {
        let call = begun(&mut cluster, CLIENT + 8, MINUTE);
        cluster.node(0).depart(CLIENT + 8);
        cluster.run_for(30 * MS);
        assert_ne!(cluster.ended.get(&call).map(|(status, _)| *status), Some(Status::Ok));
        expect_clean(&mut cluster);
    }
}

#[test]
fn fault_a2_a_request_whose_peer_dies_amid_its_copy_ends_once() {
    for mut cluster in each("requests-peer") {
        let call = begun(&mut cluster, CLIENT, MINUTE);
        cluster.kill(1);
        let (status, _) = cluster.outcome(call);
        assert_eq!(status, Status::Unavailable);
        cluster.run_for(200 * MS);
        cluster.start(1, 300);
        cluster.wait_all_up();
        expect_clean(&mut cluster);
    }
}

#[test]
fn requests_without_memory_wait_while_others_have_some() {
    for mut cluster in each("requests-no-memory") {
        cluster.limits.large_memory_bytes = 3 * LEN_BYTES;
        cluster.limits.caller_large_memory_bytes = 3 * LEN_BYTES;
        cluster.limits.service_large_memory_bytes = 3 * LEN_BYTES;
        start_all(&mut cluster, 400);
        // Those that the others leave no room for wait.
        let whole = body(LEN_BYTES);
        let calls: Vec<_> =
            (0..6).map(|n| call(&mut cluster, CLIENT + 2 * n, MINUTE, &whole)).collect();
        let mut whole_answers = 0;
        for call in calls {
            let (status, told) = cluster.outcome(call);
            let is_whole = status == Status::Ok && (status, told) == echoed(&whole, 0);
            // The other node has as little.
            assert!(is_whole || [Status::ResourceExhausted, Status::Unavailable].contains(&status));
            whole_answers += usize::from(is_whole);
        }
        assert!(whole_answers > 0, "there is memory for some");
        cluster.limits.large_memory_bytes = LEN_BYTES / 2;
        start_all(&mut cluster, 500);
        // Nobody holds memory that could be given back.
        let call = call(&mut cluster, CLIENT, MINUTE, &whole);
        assert_eq!(cluster.outcome(call).0, Status::ResourceExhausted);
        expect_nothing(&mut cluster);
    }
}

#[test]
fn a_daemon_that_drains_makes_the_calls_that_it_copies() {
    for mut cluster in each("requests-drains") {
        let call = begun(&mut cluster, CLIENT, MINUTE);
        cluster.node(0).drain();
        assert!(cluster.node(0).outstanding() > 0, "it is not over yet");
        assert!(cluster.outcome(call) == echoed(&body(LEN_BYTES), 0));
        expect_nothing(&mut cluster);
    }
}

/// Whatever happens while requests are copied, in whatever order: each call ends once, with the whole answer or with
/// none, and nothing is left.
#[test]
fn random_ends_amid_long_requests_leave_nothing() {
    for seed in 1..5 {
        for mut cluster in each("requests-random") {
            end_at_random(&mut cluster, seed);
        }
    }
}

fn end_at_random(cluster: &mut Cluster, mut seed: u64) {
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % below
    };
    let (mut calls, mut gone) = (Vec::new(), Vec::new());
    let lengths = [5, 8000, 20_000, 3 * PIECE_BYTES, LEN_BYTES];
    for step in 0..60 {
        let client = CLIENT + 100 + 2 * u32::try_from(random(6)).unwrap() + 20 * (step / 10);
        if !gone.contains(&client) {
            let len_bytes = lengths[usize::try_from(random(5)).unwrap()];
            let timeout = Duration::from_micros(if random(3) == 0 { 300 } else { 60_000_000 });
            calls.push((call(cluster, client, timeout, &body(len_bytes)), client, len_bytes));
        }
        cluster.run_for(random(12) * TURN_NS);
        match random(12) {
            0 => {
                cluster.node(0).depart(client);
                gone.push(client);
            }
            1 => {
                cluster.kill(1);
                cluster.run_for(random(200) * MS);
                cluster.start(1, 300 + u64::from(step));
                cluster.wait_all_up();
            }
            _ => {}
        }
    }
    cluster.run_for(100 * MS);
    let mut whole_ones = 0;
    for (call, client, len_bytes) in calls {
        let Some((status, told)) = cluster.ended.get(&call) else {
            assert!(gone.contains(&client), "call {call} of {len_bytes} B never ended");
            continue;
        };
        whole_ones += usize::from(*status == Status::Ok);
        let is_whole = || *told == echoed(&body(len_bytes), 0).1;
        assert!(if *status == Status::Ok { is_whole() } else { told.is_empty() }, "{status:?}");
    }
    assert!(whole_ones > 0);
    expect_clean(cluster);
}
