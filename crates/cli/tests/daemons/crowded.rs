//! More daemons than cores, beside programs that compute.

use std::{
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

use client::Client;
use daemon::metrics::Counter;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::cluster::{Cluster, PATIENCE, patient};

const DAEMONS: u32 = 32;

/// Programs that compute beside them.
const SPINNERS: u32 = 4;

/// Ten times the silence after which a daemon counts as dead.
const LENGTH: Duration = Duration::from_secs(30);

/// A program that never sleeps, until the value is dropped.
struct Spinner(Child);

impl Spinner {
    fn start() -> Self {
        Self(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap())
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A client of a daemon that may have to be asked more than once.
fn client_in_time(cluster: &Cluster, rank: u32) -> Client {
    let began = Instant::now();
    loop {
        match Client::connect(&cluster.socket(rank), patient()) {
            Ok(client) => return client,
            Err(error) => assert!(began.elapsed() < PATIENCE, "{error}"),
        }
    }
}

#[test]
#[ignore = "long: 32 daemons beside programs that compute, for a minute"]
fn daemons_of_32_ranks_on_two_busy_cores_find_none_of_the_others_dead_long() {
    // Children have the cores of this thread.
    let mut cores = CpuSet::new();
    os::affinity::allowed_cores().unwrap().into_iter().take(2).for_each(|core| cores.set(core));
    sched_setaffinity(None, &cores).unwrap();
    // The times of a daemon that is not told any.
    let times = [
        ("COPYRPC_HEARTBEAT_INTERVAL", "200ms"),
        ("COPYRPC_SUSPECT_AFTER", "1s"),
        ("COPYRPC_DEAD_AFTER", "3s"),
    ];
    let cluster = Cluster::with(DAEMONS, &times);
    let mut clients: Vec<_> = (0..DAEMONS).map(|rank| client_in_time(&cluster, rank)).collect();
    let spinners: Vec<_> = (0..SPINNERS).map(|_| Spinner::start()).collect();
    let began = Instant::now();
    let mut calls = 0;
    while began.elapsed() < LENGTH {
        for (rank, client) in (0..).zip(&mut clients) {
            let peer = (rank + 1 + calls % (DAEMONS - 1)) % DAEMONS;
            let answer = client.ping(peer, b"crowded");
            assert!(answer.is_ok(), "from {rank} to {peer}: {answer:?}");
            calls += 1;
        }
        thread::sleep(Duration::from_millis(10));
    }
    drop((spinners, clients));
    let of = |counter| -> Vec<u64> {
        (0..DAEMONS).map(|rank| cluster.counter(rank, counter).unwrap()).collect()
    };
    let lost: u64 = of(Counter::PeersLost).iter().sum();
    assert_eq!(lost, 0, "of {calls} calls in {LENGTH:?}");
    assert!(of(Counter::PeersUp).iter().all(|peers| *peers == u64::from(DAEMONS) - 1));
    eprintln!("{calls} calls, {} suspicions", of(Counter::Suspicions).iter().sum::<u64>());
    cluster.end();
}
