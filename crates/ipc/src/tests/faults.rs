//! Processes that die, stop, fork and start again, at any point.

use std::time::Duration;

use os::unix::{Address, UnixConnection};
use rustix::process::Signal;

use super::rig::*;
use crate::{
    BlockingClient, CallError, ClientConfig, ConnectError, RefuseReason, ServerConfig, Wait,
};

/// Kills clients with up to a ring of calls in flight; each lives for a random time, up to 2 ms.
fn kill_clients(rounds: u64) {
    let dir = Dir::new();
    let server = ServerThread::start(&dir.socket(), small(), increment);
    let mut bystander = sync(&dir.socket());
    for round in 0..rounds {
        let role = if round % 2 == 0 { "client" } else { "client with calls in flight" };
        let client = Role::start(role, &dir.socket(), None);
        eventually("it connects", || server.ask(|server| server.stats().clients) == 2);
        std::thread::sleep(Duration::from_micros(round * 617 % 2000));
        client.signal(Signal::KILL);
        expect_increment(&mut bystander, b"undisturbed");
        drop(client);
        expect_baseline(&server, 1);
    }
    let stats = server.ask(|server| server.stats());
    assert_eq!((stats.evicted, stats.departed, stats.panics), (0, rounds, 0));
}

#[test]
fn fault_a1_clients_killed_at_random_points_leave_nothing_behind() {
    kill_clients(40);
}

#[test]
#[ignore = "long: half a minute; `cargo xtask ci --full` runs it"]
fn fault_a1_a_thousand_clients_killed_at_random_points_long() {
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = descriptors();
    kill_clients(1000);
    assert_eq!(descriptors(), before);
}

/// Kills a client that stopped itself at a pause point.
fn client_dies_at(point: &str) {
    let dir = Dir::new();
    let server = ServerThread::start(&dir.socket(), small(), increment);
    let mut bystander = sync(&dir.socket());
    let client = Role::start("client", &dir.socket(), Some(point));
    client.wait_stopped();
    expect_increment(&mut bystander, b"undisturbed by a stopped client");
    client.signal(Signal::KILL);
    expect_baseline(&server, 1);
    expect_increment(&mut bystander, b"undisturbed by a dead client");
    expect_increment(&mut sync(&dir.socket()), b"its slot is free");
}

#[test]
fn pitfall_22_a_client_that_dies_between_reserve_and_publish_wedges_nobody() {
    client_dies_at("filled");
}

#[test]
fn fault_a1_a_client_that_dies_with_a_response_in_hand() {
    client_dies_at("response.copied");
}

/// Kills a server that stopped itself at a pause point, while a client waits.
fn server_dies_at(point: &str) {
    let dir = Dir::new();
    let mut server = Role::start("server", &dir.socket(), Some(point));
    let mut client = connect_eventually(&dir.socket());
    let generation = client.terms().server_generation;
    let killer = std::thread::spawn(move || {
        server.wait_stopped();
        server.signal(Signal::KILL);
        assert!(!server.succeeds());
    });
    assert!(is_gone(client.call(b"one")), "a definite status, before the deadline");
    killer.join().unwrap();
    assert!(is_gone(client.call(b"two")), "and again");
    let _successor = Role::start("server", &dir.socket(), None);
    eventually("a successor is there", || client.reconnect().is_ok());
    expect_increment(&mut client, b"served again");
    assert_ne!(client.terms().server_generation, generation);
}

#[test]
fn fault_a4_a6_a_server_killed_before_it_answers() {
    server_dies_at("request.taken");
}

#[test]
fn fault_a4_a6_a_server_killed_while_it_answers() {
    server_dies_at("filled");
}

#[test]
fn fault_a6_a_socket_that_a_dead_server_left_is_replaced() {
    let dir = Dir::new();
    let server = Role::start("server", &dir.socket(), None);
    let mut client = connect_eventually(&dir.socket());
    drop(server);
    assert!(dir.socket().exists(), "it had no time to clean up");
    let _successor = ServerThread::start(&dir.socket(), small(), increment);
    assert!(is_gone(client.call(b"to the dead")));
    client.reconnect().unwrap();
    expect_increment(&mut client, b"to the living");
}

#[test]
fn fault_a3_a_stopped_client_is_evicted_and_learns_it_when_it_goes_on() {
    let dir = Dir::new();
    let server = ServerThread::start(&dir.socket(), small(), increment);
    let mut client = Role::start("client that expects eviction", &dir.socket(), None);
    eventually("its first call", || server.ask(|server| server.stats().requests) >= 1);
    client.signal(Signal::STOP);
    client.wait_stopped();
    server.ask(|server| {
        let ids: Vec<_> = server.clients().collect();
        ids.into_iter().for_each(|id| server.evict(id));
    });
    client.signal(Signal::CONT);
    assert!(client.succeeds());
    assert_eq!(server.ask(|server| server.stats().evicted), 1);
    expect_baseline(&server, 0);
}

#[test]
fn fault_a3_b10_a_client_that_stays_stopped_is_evicted_by_policy_and_learns_it() {
    let dir = Dir::new();
    let config = ServerConfig { stall_timeout: Duration::from_millis(20), ..small() };
    let server = ServerThread::start(&dir.socket(), config, increment);
    let mut bystander = sync(&dir.socket());
    let role = "client that leaves its responses unread";
    let mut client = Role::start(role, &dir.socket(), Some("left unread"));
    client.wait_stopped();
    eventually("the eviction", || {
        expect_increment(&mut bystander, b"undisturbed");
        server.ask(|server| server.stats().evicted) == 1
    });
    client.signal(Signal::CONT);
    assert!(client.succeeds());
    expect_baseline(&server, 1);
}

#[test]
fn fault_b9_a_server_out_of_descriptors_serves_whom_it_has_and_recovers() {
    let dir = Dir::new();
    let _server = Role::start("server with few descriptors", &dir.socket(), None);
    let mut client = connect_eventually(&dir.socket());
    let deadline_ns = os::clock::deadline_ns(PATIENCE);
    let open = || UnixConnection::connect(&Address::Path(dir.socket()), deadline_ns);
    let mut flood = Vec::new();
    eventually("the server stops accepting", || {
        // A full backlog refuses some of them.
        flood.extend((0..10).filter_map(|_| open().ok()));
        client.call(b"backoffs") != Ok(&0u64.to_le_bytes()[..])
    });
    expect_increment(&mut client, b"undisturbed");
    drop(flood);
    eventually("a newcomer is let in", || {
        let quick = ClientConfig { connect_timeout: Duration::from_millis(200), ..patient() };
        BlockingClient::connect(&dir.socket(), quick).is_ok_and(|mut newcomer| {
            expect_increment(&mut newcomer, b"let in");
            true
        })
    });
    expect_increment(&mut client, b"undisturbed");
}

/// It is told at once, and not left to wait until it gives up.
#[test]
fn fault_b9_a_newcomer_for_whom_no_descriptor_is_left_is_told_so() {
    let dir = Dir::new();
    let _server = Role::start("server without descriptors", &dir.socket(), None);
    for _ in 0..20 {
        let mut refused = None;
        eventually("a server listens", || {
            let connected = BlockingClient::connect(&dir.socket(), patient());
            refused = connected.err();
            !matches!(refused, Some(ConnectError::Socket(_)))
        });
        let reason = RefuseReason::Descriptors;
        assert!(matches!(refused, Some(ConnectError::Refused(r)) if r == reason), "{refused:?}");
    }
}

#[test]
fn fault_c1_a_server_out_of_memory_refuses_newcomers_and_recovers() {
    let dir = Dir::new();
    let _server = Role::start("server with little memory", &dir.socket(), None);
    let mut client = connect_eventually(&dir.socket());
    expect_increment(&mut client, b"lose");
    let refused = BlockingClient::connect(&dir.socket(), patient());
    let reason = RefuseReason::ResourceExhausted;
    assert!(matches!(refused, Err(ConnectError::Refused(r)) if r == reason), "{refused:?}");
    // Its memory was allocated when it was made: no page of it can be missing.
    expect_increment(&mut client, &[7; 1000]);
    expect_increment(&mut client, b"regain");
    expect_increment(&mut sync(&dir.socket()), b"let in");
}

#[test]
fn fault_a5_a_stopped_server_costs_deadlines_and_executes_once_when_it_goes_on() {
    let dir = Dir::new();
    let server = Role::start("server", &dir.socket(), None);
    let mut client = connect_eventually(&dir.socket());
    expect_increment(&mut client, b"before");
    server.signal(Signal::STOP);
    server.wait_stopped();
    let late = client.call_within(b"late", Duration::from_millis(20));
    assert_eq!(late, Err(CallError::Deadline));
    server.signal(Signal::CONT);
    // The late response comes first, and is not taken for this one.
    expect_increment(&mut client, b"after");
}

#[test]
fn fault_a11_a_forked_child_is_told_and_the_parent_goes_on() {
    let dir = Dir::new();
    let server = ServerThread::start(&dir.socket(), small(), increment);
    assert!(Role::start("client that forks", &dir.socket(), None).succeeds());
    expect_baseline(&server, 0);
}

#[test]
fn fault_a12_a_client_that_exits_from_another_thread_leaves_nothing_behind() {
    let dir = Dir::new();
    let server = ServerThread::start(&dir.socket(), small(), increment);
    assert!(Role::start("client that exits", &dir.socket(), None).succeeds());
    expect_baseline(&server, 0);
}

#[test]
fn fault_g2_a_server_that_dies_while_everybody_sleeps_is_noticed() {
    let dir = Dir::new();
    let server = Role::start("sleepy server", &dir.socket(), Some("request.taken"));
    let mut client = connect_eventually(&dir.socket());
    let caller = rustix::thread::gettid();
    let killer = std::thread::spawn(move || {
        server.wait_stopped();
        eventually("the caller sleeps", || is_asleep(std::process::id(), caller.as_raw_pid()));
        drop(server);
    });
    assert!(is_gone(client.call(b"asleep by now")));
    killer.join().unwrap();
}

#[test]
fn fault_c7_spinning_clients_on_few_cores_make_progress() {
    let dir = Dir::new();
    let config =
        ServerConfig { wait: Wait::Busy, clients_max: 32, clients_per_user_max: 32, ..small() };
    let server = ServerThread::start(&dir.socket(), config, increment);
    let mut clients: Vec<_> =
        (0..16).map(|_| Role::start("spinning client", &dir.socket(), None)).collect();
    assert!(clients.iter_mut().all(Role::succeeds));
    assert_eq!(server.ask(|server| server.stats().requests), 16 * 200);
}

/// Whether a thread sleeps in the kernel (`proc_pid_stat(5)`).
fn is_asleep(pid: u32, thread: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/stat")).unwrap();
    stat.rsplit_once(')').is_some_and(|(_, fields)| fields.trim_start().starts_with('S'))
}

/// User and system time of a process, in clock ticks.
fn cpu_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    fields
        .split_ascii_whitespace()
        .skip(11)
        .take(2)
        .map(|ticks| ticks.parse::<u64>().unwrap())
        .sum()
}

#[test]
fn an_idle_server_and_idle_clients_use_less_than_one_percent_of_a_core() {
    let dir = Dir::new();
    let server = Role::start("server", &dir.socket(), None);
    drop(connect_eventually(&dir.socket()));
    let clients: Vec<_> = (0..3).map(|_| Role::start("idle client", &dir.socket(), None)).collect();
    let pids = || std::iter::once(server.pid()).chain(clients.iter().map(Role::pid));
    eventually("all are asleep", || {
        pids().all(|pid| {
            let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
            let tids = tasks.map(|task| task.unwrap().file_name().into_string().unwrap());
            tids.map(|tid| tid.parse().unwrap()).all(|tid: i32| is_asleep(pid, tid))
        })
    });
    let before: u64 = pids().map(cpu_ticks).sum();
    std::thread::sleep(Duration::from_secs(2));
    let used = pids().map(cpu_ticks).sum::<u64>() - before;
    // A tick is 10 ms: 1 % of a core each would be 8 ticks.
    assert!(used <= 8, "{used} ticks of 10 ms in 2 s");
}

#[test]
fn pitfall_21_nothing_is_left_in_dev_shm_and_fds_return_to_baseline() {
    let shm = || {
        let entries = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.contains("copyrpc")).collect::<std::collections::HashSet<_>>()
    };
    // Another program that was killed may have left some.
    let others = shm();
    let dir = Dir::new();
    // A process of its own, where no other test opens descriptors.
    let server = Role::start("server", &dir.socket(), None);
    let fds = || std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count();
    // One client stays, so what it has is in the count before and after.
    let mut resident = connect_eventually(&dir.socket());
    expect_increment(&mut resident, b"connected");
    let before = fds();
    for _ in 0..20 {
        expect_increment(&mut connect_eventually(&dir.socket()), b"hello");
    }
    eventually("descriptors are back", || fds() == before);
    let left = shm();
    assert_eq!(left.difference(&others).collect::<Vec<_>>(), [""; 0]);
}
