//! What daemons count: each counter what its description says, and once.

use copyrpc_daemon::{Status, metrics::Counter};

use crate::{
    register,
    rig::{ABSENT, Cluster, ECHO, MS, PANIC, PROVIDED},
};

#[track_caller]
fn expect(cluster: &mut Cluster, rank: u32, expected: &[(Counter, u64)]) {
    for (counter, value) in expected {
        assert_eq!(cluster.total(rank, *counter), *value, "{counter:?} of rank {rank}");
    }
}

#[test]
fn counters_tell_what_became_of_calls() {
    for mut cluster in Cluster::each("counters", 2) {
        cluster.wait_all_up();
        for to in [0, 1] {
            for (service, status) in
                [(ECHO, Status::Ok), (ABSENT, Status::Unimplemented), (PANIC, Status::Internal)]
            {
                let call = cluster.call(0, 1, to, service, b"x");
                assert_eq!(cluster.outcome(call).0, status);
            }
        }
        let of_both = [
            (Counter::NoService, 1),
            (Counter::HandlerErrors, 1),
            (Counter::PeersJoined, 1),
            (Counter::PeersLost, 0),
            (Counter::PeerGone, 0),
            (Counter::Deadlines, 0),
        ];
        let of_caller = [
            (Counter::RequestsIpc, 6),
            (Counter::RequestsLocal, 3),
            (Counter::RequestsRemote, 3),
            (Counter::Responses, 3),
            (Counter::Replies, 6),
            (Counter::Incoming, 0),
        ];
        let of_server = [(Counter::RequestsIpc, 0), (Counter::Incoming, 3), (Counter::Replies, 0)];
        expect(&mut cluster, 0, &of_both);
        expect(&mut cluster, 0, &of_caller);
        expect(&mut cluster, 1, &of_both);
        expect(&mut cluster, 1, &of_server);
        assert!(cluster.total(0, Counter::Heartbeats) > 0);
    }
}

#[test]
fn counters_tell_of_calls_that_nobody_answers() {
    for mut cluster in Cluster::each("counters-late", 2) {
        cluster.wait_all_up();
        assert_eq!(register(&mut cluster, 50), Status::Ok);
        let late = cluster.call(0, 1, 1, PROVIDED, b"never taken");
        assert_eq!(cluster.outcome(late).0, Status::DeadlineExceeded);
        cluster.run_for(2 * MS);
        // Rank 0 meets the deadline first, and tells rank 1 that nobody waits.
        expect(&mut cluster, 0, &[(Counter::Deadlines, 1), (Counter::PeerGone, 0)]);
        expect(&mut cluster, 1, &[(Counter::Abandoned, 1), (Counter::Deadlines, 0)]);
        let lost = cluster.call(0, 1, 1, PROVIDED, b"never answered");
        cluster.run_for(2 * MS);
        cluster.kill(1);
        let killed_ns = cluster.now_ns;
        assert_eq!(cluster.outcome(lost).0, Status::Unavailable);
        cluster.until(|cluster| cluster.node(0).peers_up() == 0);
        assert!(cluster.now_ns - killed_ns < 40 * MS, "the NIC tells earlier than silence does");
        expect(&mut cluster, 0, &[(Counter::PeerGone, 1), (Counter::PeersLost, 1)]);
        let refused = cluster.call(0, 1, 1, ECHO, b"to nobody");
        assert_eq!(cluster.outcome(refused).0, Status::Unavailable);
        expect(&mut cluster, 0, &[(Counter::PeerGone, 2), (Counter::Deadlines, 1)]);
    }
}

/// A peer that is silent for longer than `suspect_after` and not as long as `dead_after`.
#[test]
fn a_peer_that_was_silent_for_a_moment_was_suspected_and_not_lost() {
    for mut cluster in Cluster::each("counters-silent", 2) {
        cluster.wait_all_up();
        cluster.air.borrow_mut().cut.push((1, 0));
        cluster.run_for(80 * MS);
        cluster.air.borrow_mut().cut.clear();
        cluster.run_for(300 * MS);
        for rank in [0, 1] {
            expect(&mut cluster, rank, &[(Counter::Suspicions, 1), (Counter::PeersLost, 0)]);
            assert_eq!(cluster.node(rank).peers_up(), 1);
        }
    }
}

/// It is tried again with each heartbeat, as it may be restarted with other settings.
#[test]
fn a_peer_that_cannot_be_connected_is_neither_gained_nor_lost_again() {
    for mut cluster in Cluster::each("counters-other", 2) {
        cluster.wait_all_up();
        let lives = [(100, rpc::TransportKind::Dc), (200, rpc::TransportKind::Rc)];
        for (lived, (epoch, transport)) in (1..).zip(lives) {
            cluster.transport = transport;
            cluster.kill(1);
            cluster.start(1, 100 + epoch);
            cluster.run_for(500 * MS);
            let is_alike = transport == rpc::TransportKind::Rc;
            let joined = if is_alike { lived } else { 1 };
            expect(&mut cluster, 0, &[(Counter::PeersJoined, joined), (Counter::PeersLost, 1)]);
            assert_eq!(cluster.node(0).peers_up(), usize::from(is_alike));
            let call = cluster.call(0, 1, 1, ECHO, b"x");
            let status = if is_alike { Status::Ok } else { Status::Unavailable };
            assert_eq!(cluster.outcome(call).0, status);
        }
    }
}
