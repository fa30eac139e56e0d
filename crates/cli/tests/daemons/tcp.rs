//! Daemons whose NIC is TCP, which share no memory, or `hosts`, which do on one host: they serve, and survive what
//! others survive.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt as _,
    thread,
    time::Duration,
};

use client::{
    ClientConfig, To,
    bulk::{BulkProvider, Direction, Move},
};
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

/// Another port needs no mapping of the memory: the daemon seals it, and the process that made it takes no page away.
#[test]
fn calls_lend_memory_over_tcp_and_it_is_sealed_against_holes() {
    // A length that no other test uses; each half is moved at once.
    const LEN_BYTES: u64 = 2 * 130 * 4096;
    const HALF_BYTES: u64 = LEN_BYTES / 2;
    const LONG: Duration = Duration::from_secs(30);
    let cluster = Cluster::with(2, &[TCP, HERE]);
    let mut client = cluster.client(0);
    let mut provider = BulkProvider::offer(&cluster.socket(1), 5, ClientConfig::default()).unwrap();
    let (region, own) = (client.bulk(LEN_BYTES).unwrap(), provider.bulk(HALF_BYTES).unwrap());
    let sent: Vec<u8> = (0..HALF_BYTES).map(|at| at.to_le_bytes()[1] ^ 7).collect();
    region.write(0, &sent).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut work = None;
            eventually(|| {
                work = provider.next(Duration::from_millis(100)).unwrap();
                work.is_some()
            });
            let work = work.unwrap();
            let entry = |direction, offset| {
                let len_bytes = HALF_BYTES;
                [Move { slice: 0, direction, offset, local_offset: 0, len_bytes }]
            };
            for moves in [entry(Direction::Pull, 0), entry(Direction::Push, HALF_BYTES)] {
                assert_eq!(provider.transfer(&work, &own, &moves, LONG), Ok(HALF_BYTES));
            }
            provider.answer(work, Status::Ok, b"moved").unwrap();
            provider.next(Duration::ZERO).unwrap();
        });
        let to = To { rank: 1, service: 5, method: 0 };
        let answer = client.call_bulk(to, b"", &[region.writable(0, LEN_BYTES)], LONG).unwrap();
        assert_eq!(answer, b"moved");
    });
    let mut came = vec![0; sent.len()];
    region.read(HALF_BYTES, &mut came).unwrap();
    assert!(came == sent);
    let mut sealed = 0;
    for entry in fs::read_dir("/proc/self/fd").unwrap() {
        let path = entry.unwrap().path();
        let is_meant =
            fs::read_link(&path).is_ok_and(|to| to.ends_with("memfd:copyrpc-bulk (deleted)"));
        if is_meant && fs::metadata(&path).is_ok_and(|file| file.len() == LEN_BYTES) {
            let written = File::options().write(true).open(&path).unwrap().write_at(b"x", 0);
            assert_eq!(written.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
            sealed += 1;
        }
    }
    assert_eq!(sealed, 1);
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
