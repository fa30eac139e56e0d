//! Answers that come by rendezvous and are put where their clients read them, piece by piece.

use std::panic::{AssertUnwindSafe, catch_unwind};

use copyrpc_daemon::{Status, metrics::Counter};

use crate::{
    echoed,
    rig::{Cluster, ECHO, MS, NextPart},
};

/// More pieces than are outstanding at a time.
const LEN_BYTES: usize = 20 << 17;
/// Of the thread that has the other node, if there are two.
const CLIENT: u32 = 1;

/// Clusters of two whose daemons pass on long bodies.
fn each(name: &str) -> impl Iterator<Item = Cluster> {
    Cluster::each(name, 2).map(|mut cluster| {
        cluster.body_bytes_max = u32::try_from(LEN_BYTES).unwrap() + 4;
        for rank in 0..2 {
            cluster.start(rank, 200);
        }
        cluster.wait_all_up();
        cluster
    })
}

fn body() -> Vec<u8> {
    (0..LEN_BYTES).map(|at| (at ^ (at >> 9)).to_le_bytes()[0]).collect()
}

/// A call on node 0 whose answer has begun to arrive.
fn begun(cluster: &mut Cluster) -> u64 {
    let before = cluster.node(0).parts(CLIENT);
    let call = cluster.call(0, CLIENT, 1, ECHO, &body());
    cluster.until(|cluster| {
        let ended = cluster.ended.get(&call);
        assert!(
            ended.is_none(),
            "it ended before its first piece: {:?}",
            ended.map(|(status, _)| status)
        );
        cluster.node(0).parts(CLIENT) > before
    });
    assert!(!cluster.ended.contains_key(&call), "it ended with its first piece");
    call
}

/// Nothing of the calls before is left, and the next one is answered.
#[track_caller]
fn expect_clean(cluster: &mut Cluster, client: u32) {
    let whole = body();
    let call = cluster.call(0, client, 1, ECHO, &whole);
    assert!(cluster.outcome(call) == echoed(&whole, 0), "the answer of the next call");
    cluster.run_for(2 * MS);
    for rank in 0..2 {
        assert_eq!(cluster.node(rank).outstanding(), 0, "calls of rank {rank}");
        for counter in [Counter::LargeHeld, Counter::HeldBytes] {
            assert_eq!(cluster.total(rank, counter), 0, "{counter:?} of rank {rank}");
        }
    }
}

#[test]
fn answers_in_parts_are_whole() {
    for mut cluster in each("parts") {
        expect_clean(&mut cluster, CLIENT);
        assert!(cluster.node(0).parts(CLIENT) >= 20);
    }
}

/// Faults A2 and A8: the daemon that answers dies while its answer is on its way.
#[test]
fn fault_a8_a_daemon_that_dies_amid_an_answer_in_parts_ends_its_call_once() {
    for mut cluster in each("parts-peer") {
        let call = begun(&mut cluster);
        cluster.kill(1);
        assert_eq!(cluster.outcome(call), (Status::Unavailable, Vec::new()));
        cluster.start(1, 300);
        cluster.wait_all_up();
        expect_clean(&mut cluster, CLIENT);
    }
}

/// Fault A1: the client dies while its answer is on its way.
#[test]
fn fault_a1_a_client_that_dies_amid_an_answer_in_parts_leaves_nothing() {
    for mut cluster in each("parts-client") {
        begun(&mut cluster);
        cluster.node(0).depart(CLIENT);
        cluster.until(|cluster| cluster.node(0).outstanding() == 0);
        expect_clean(&mut cluster, CLIENT + 2);
    }
}

/// The call was executed, so its status does not say that it was not.
#[test]
fn an_answer_whose_part_is_missing_is_unavailable() {
    for mut cluster in each("parts-missing") {
        for next_part in [NextPart::Refused, NextPart::Panics] {
            let call = begun(&mut cluster);
            cluster.node(0).next_part(CLIENT, next_part);
            let panics = (0..10_000).filter(|_| {
                let turn = || cluster.turn();
                catch_unwind(AssertUnwindSafe(turn)).is_err()
            });
            assert_eq!(panics.count(), usize::from(next_part == NextPart::Panics));
            assert_eq!(cluster.outcome(call), (Status::Unavailable, Vec::new()), "{next_part:?}");
            expect_clean(&mut cluster, CLIENT);
        }
    }
}

/// The first answer of a service that is longer than its caller said is fetched. Later ones come ahead, of any length up
/// to that, as long as the ring has plenty of room; those of other services and longer ones are fetched.
#[test]
fn answers_as_long_as_those_before_come_ahead() {
    for mut cluster in each("ahead") {
        let body = body();
        for (len_bytes, fetched) in
            [(4000, 1), (4000, 0), (3000, 0), (8000, 1), (4000, 0), (8000, 0)]
        {
            let before = cluster.node(0).transfers();
            let call = cluster.call(0, CLIENT, 1, ECHO, &body[..len_bytes]);
            assert!(cluster.outcome(call) == echoed(&body[..len_bytes], 0), "{len_bytes}");
            assert_eq!(cluster.node(0).transfers() - before, fetched, "READs of {len_bytes} B");
        }
        // What the ring never takes gets no room, and all of many calls at once are answered.
        let before = cluster.node(0).transfers();
        let calls: Vec<_> =
            (0..100).map(|_| cluster.call(0, CLIENT, 1, ECHO, &body[..8000])).collect();
        for call in calls {
            assert!(cluster.outcome(call) == echoed(&body[..8000], 0));
        }
        let fetched = cluster.node(0).transfers() - before;
        assert!((1..100).contains(&fetched), "{fetched}: some found no room that was plenty");
        expect_clean(&mut cluster, CLIENT);
    }
}
