//! Daemons whose NIC is TCP, which share no memory, or `hosts`, which do on one host: they serve, and survive what
//! others survive.

use daemon::{Status, metrics::Counter};
use rustix::process::Signal;

use super::{
    cluster::{Cluster, eventually},
    serve_and_leave,
};

const TCP: (&str, &str) = ("COPYRPC_NIC", "tcp");
const HOSTS: (&str, &str) = ("COPYRPC_NIC", "hosts");
const HERE: (&str, &str) = ("COPYRPC_TCP_ADDRESS", "127.0.0.1");

#[test]
fn daemons_over_tcp_serve_their_clients_and_leave_nothing_but_locks() {
    serve_and_leave(Cluster::with(2, &[TCP, HERE]));
}

#[test]
fn daemons_of_two_threads_that_share_queue_pairs_serve_over_tcp() {
    let dc = ("COPYRPC_TRANSPORT", "dc");
    serve_and_leave(Cluster::with(2, &[TCP, HERE, dc, ("COPYRPC_THREADS", "2")]));
}

/// Queue pairs of the one are mapped, targets of the other are not.
#[test]
fn daemons_of_one_host_serve_over_nic_hosts_with_either_transport() {
    serve_and_leave(Cluster::with(2, &[HOSTS, HERE]));
    let dc = ("COPYRPC_TRANSPORT", "dc");
    serve_and_leave(Cluster::with(2, &[HOSTS, HERE, dc, ("COPYRPC_THREADS", "2")]));
}

#[test]
fn fault_a8_calls_over_tcp_to_a_killed_peer_end_and_its_next_life_is_found() {
    a_killed_peer_is_given_up_and_its_next_life_is_found(TCP);
}

#[test]
fn fault_a8_calls_by_memory_of_a_host_to_a_killed_peer_end_and_its_next_life_is_found() {
    a_killed_peer_is_given_up_and_its_next_life_is_found(HOSTS);
}

fn a_killed_peer_is_given_up_and_its_next_life_is_found(nic: (&'static str, &'static str)) {
    let mut cluster = Cluster::with(3, &[nic, HERE]);
    let mut client = cluster.client(0);
    for _ in 0..3 {
        assert_eq!(client.ping(1, b"alive"), Ok(&b"alive"[..]));
        cluster.kill(1);
        let error = client.ping(1, b"dead").unwrap_err();
        assert_eq!(error.status(), Status::Unavailable, "{error}");
        assert_eq!(client.ping(2, b"others"), Ok(&b"others"[..]), "nobody else notices");
        cluster.start(1);
        cluster.wait_up(1, 2);
        eventually(|| client.ping(1, b"again").is_ok());
    }
}

#[test]
fn fault_a9_a_stopped_peer_over_tcp_is_given_up_and_comes_back() {
    let cluster = Cluster::with(2, &[TCP, HERE]);
    let mut client = cluster.client(0);
    cluster.signal(1, Signal::STOP);
    let error = client.ping(1, b"stopped").unwrap_err();
    assert_eq!(error.status(), Status::Unavailable, "{error}");
    cluster.signal(1, Signal::CONT);
    cluster.wait_up(0, 1);
    eventually(|| client.ping(1, b"again").is_ok());
    assert_eq!(cluster.counter(0, Counter::PeersLost), Some(1));
}
