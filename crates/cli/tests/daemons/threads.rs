//! Daemons of several threads.

use std::{sync::mpsc, thread};

use client::{CallError, To, message::HERE};
use daemon::{
    Status,
    metrics::{Counter, DaemonState, Life, Snapshot},
};
use rustix::process::Signal;

use crate::{
    cluster::{Cluster, ECHO, PATIENCE, eventually, provide},
    kill_clients, serve_and_leave, sleep_through,
};

/// Clients of a daemon belong to its threads in turn, and so do peers.
pub(super) const TWO: &[(&str, &str)] = &[("COPYRPC_THREADS", "2")];

/// The provider and the clients of a rank are on different threads, and so are clients and peers.
#[test]
fn two_daemons_of_two_threads_serve_their_clients_and_leave_nothing_but_locks() {
    serve_and_leave(Cluster::with(2, TWO));
}

/// As `top -H` and profilers show them.
#[test]
fn threads_of_a_daemon_have_names() {
    let cluster = Cluster::with(1, TWO);
    let process = cluster.daemons[0].as_ref().unwrap().id();
    let names = || {
        let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
        let names = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")));
        let mut names = names.map(Result::unwrap).collect::<Vec<_>>();
        names.sort();
        names
    };
    // The first thread serves before the second has started.
    eventually(|| names() == ["copyrpc\n", "copyrpc-1\n", "copyrpc-log\n"]);
}

#[test]
fn fault_a1_killed_clients_of_several_threads_leave_nothing() {
    kill_clients(&Cluster::with(2, TWO));
}

#[test]
fn fault_g2_a_deadline_fires_while_all_threads_sleep() {
    sleep_through(&Cluster::with(2, TWO));
}

/// What a provider is doing when it is asked to stop, with a caller on another thread.
#[test]
fn a_daemon_of_two_threads_that_is_asked_to_end_finishes_what_one_does_for_the_other() {
    let mut cluster = Cluster::with(1, TWO);
    let provider = provide(&cluster.socket(0));
    let mut client = cluster.client(0);
    let (asked, is_asked) = mpsc::channel();
    let (go, may_go) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            // It ends with its daemon.
            let _ = provider.serve(|inbound, answer| {
                asked.send(()).unwrap();
                may_go.recv_timeout(PATIENCE).unwrap();
                answer.extend_from_slice(inbound.body);
                Some(Status::Ok)
            });
        });
        let caller =
            scope.spawn(move || client.call(To::new(HERE, ECHO, 0), b"late").map(<[u8]>::to_vec));
        is_asked.recv_timeout(PATIENCE).unwrap();
        // They are on different threads.
        eventually(|| cluster.counter(0, Counter::ThreadRequests) == Some(1));
        cluster.signal(0, Signal::TERM);
        let metrics = cluster.folder.join(Cluster::name(0, "metrics"));
        let draining = DaemonState::Alive(Life::Draining);
        eventually(|| Snapshot::read(&metrics).unwrap().state == draining);
        let refused = cluster.client(0).call(To::new(HERE, ECHO, 0), b"new").map(<[u8]>::to_vec);
        assert_eq!(refused, Err(CallError::Refused(Status::Unavailable)));
        go.send(()).unwrap();
        assert_eq!(caller.join().unwrap(), Ok(b"late".to_vec()));
        assert!(cluster.daemons[0].as_mut().unwrap().wait().unwrap().success());
    });
}

#[test]
fn fault_a10_a_provider_that_dies_ends_the_calls_of_all_threads() {
    let cluster = Cluster::with(2, TWO);
    // Two threads of its daemon, and one of another, have a client each that waits.
    let provider = provide(&cluster.socket(1));
    let clients = [1, 1, 0].map(|rank| cluster.client(rank));
    thread::scope(|scope| {
        let callers = clients.map(|mut client| {
            scope.spawn(move || client.call(To::new(1, ECHO, 0), b"?").map(<[u8]>::to_vec))
        });
        eventually(|| cluster.counter(1, Counter::Outstanding) == Some(3));
        drop(provider);
        for caller in callers {
            let error = caller.join().unwrap().unwrap_err();
            assert_eq!(error.status(), Status::Unavailable, "{error}");
        }
    });
    eventually(|| cluster.counter(1, Counter::Outstanding) == Some(0));
}
