//! Real daemons, real clients, and what happens to them: killed, stopped, continued, asked to end.
//! Every answer is checked. No duration is asserted, but all that waits gives up in the end.

mod builds;
mod cancel;
mod cluster;
mod crowded;
mod direct;
mod isolation;
mod limits;
mod observe;
mod providers;
mod rights;
mod several;
mod storm;
mod tcp;
mod threads;
mod versions;

use std::{
    env, fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{self, Child, Command, Output, Stdio},
    thread,
    time::Duration,
};

use client::{
    Client, ClientConfig, Pipeline, To, Wait,
    message::{DAEMON, HERE, method},
};
use daemon::{Status, metrics::Counter};
use memory::sync::{AtomicBool, Ordering};
use rustix::process::{Signal, kill_process};

use cluster::{
    Cluster, ECHO, PATIENCE, body, connect, eventually, pid, provide, reverse, serve_reversed,
};

#[test]
fn two_daemons_serve_their_clients_and_leave_nothing_but_locks() {
    serve_and_leave(Cluster::new(2));
}

#[test]
fn daemons_that_share_queue_pairs_and_have_the_smallest_rings_serve_their_clients() {
    let knobs = [("COPYRPC_TRANSPORT", "dc"), ("COPYRPC_RING_BYTES", "16KiB")];
    serve_and_leave(Cluster::with(2, &knobs));
}

fn serve_and_leave(cluster: Cluster) {
    let providers: Vec<_> = (0..2).map(|rank| provide(&cluster.socket(rank))).collect();
    thread::scope(|scope| {
        for provider in providers {
            scope.spawn(|| serve_reversed(provider));
        }
        let callers: Vec<_> = (0..4)
            .map(|client| {
                let mut client_of = cluster.client(client % 2);
                scope.spawn(move || {
                    for number in 0..200 {
                        let body = body(number * 4 + u64::from(client));
                        let to = u32::try_from(number % 2).unwrap();
                        assert_eq!(
                            client_of.call(To::new(to, ECHO, 0), &body).unwrap(),
                            reverse(&body)
                        );
                    }
                })
            })
            .collect();
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        assert_eq!(cluster.client(1).who(), Ok((1, 2)));
        // The providers' wishes are all that is open.
        for rank in 0..2 {
            eventually(|| cluster.counter(rank, Counter::Outstanding) == Some(0));
        }
        cluster.end();
    });
}

#[test]
fn fault_a4_clients_of_a_killed_daemon_are_told_and_its_next_life_serves_them() {
    let mut cluster = Cluster::new(1);
    let mut client = cluster.client(0);
    client.ping(HERE, b"alive").unwrap();
    let generation = client.daemon_generation();
    cluster.kill(0);
    let error = client.ping(HERE, b"dead").unwrap_err();
    assert_eq!(error.status(), Status::Unavailable, "{error}");
    cluster.start(0);
    eventually(|| client.reconnect().is_ok());
    assert_eq!(client.ping(HERE, b"again"), Ok(&b"again"[..]));
    assert_ne!(client.daemon_generation(), generation);
}

#[test]
fn fault_a5_clients_of_a_stopped_daemon_meet_their_deadlines_and_go_on_after_it_continues() {
    let cluster = Cluster::new(1);
    let mut client = cluster.client(0);
    client.ping(HERE, b"alive").unwrap();
    cluster.signal(0, Signal::STOP);
    let late = client.call_within(To::new(HERE, 0, 0), b"?", Duration::from_millis(50));
    assert_eq!(late.unwrap_err().status(), Status::DeadlineExceeded);
    cluster.signal(0, Signal::CONT);
    assert_eq!(client.ping(HERE, b"again"), Ok(&b"again"[..]));
}

#[test]
fn fault_a7_a_second_daemon_is_refused_with_the_pid_of_the_first() {
    let cluster = Cluster::new(1);
    let first = cluster.id(0);
    let mut second = cluster.command(0);
    let second = second.arg("daemon").stderr(Stdio::piped()).output().unwrap();
    let text = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success());
    assert!(text.contains(&format!("is locked by process {first}; stop that first")), "{text}");
}

#[test]
fn fault_a8_calls_to_a_killed_peer_end_and_its_next_life_is_found() {
    let mut cluster = Cluster::new(2);
    let mut client = cluster.client(0);
    assert_eq!(client.ping(1, b"alive"), Ok(&b"alive"[..]));
    cluster.kill(1);
    let error = client.ping(1, b"dead").unwrap_err();
    assert_eq!(error.status(), Status::Unavailable, "{error}");
    eventually(|| cluster.counter(0, Counter::PeersUp) == Some(0));
    assert_eq!(client.ping(HERE, b"others"), Ok(&b"others"[..]), "nobody else notices");
    cluster.start(1);
    cluster.wait_up(0, 1);
    eventually(|| client.ping(1, b"again").is_ok());
}

#[test]
fn fault_a6_the_rank_that_all_meet_at_can_be_restarted_too() {
    // A port that was free just now.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut cluster = Cluster::meeting_at(3, format!("127.0.0.1:{port}"));
    for rank in [0, 2, 0] {
        cluster.kill(rank);
        cluster.start(rank);
        (0..3).for_each(|rank| cluster.wait_up(rank, 2));
        let mut client = cluster.client(rank);
        for to in 0..3 {
            eventually(|| client.ping(to, b"again").is_ok());
        }
    }
}

#[test]
fn fault_a9_a_stopped_peer_is_given_up_and_comes_back_in_a_new_epoch() {
    let cluster = Cluster::new(2);
    let mut client = cluster.client(0);
    cluster.signal(1, Signal::STOP);
    let error = client.ping(1, b"stopped").unwrap_err();
    assert_eq!(error.status(), Status::Unavailable, "{error}");
    cluster.signal(1, Signal::CONT);
    cluster.wait_up(0, 1);
    eventually(|| client.ping(1, b"again").is_ok());
    assert_eq!(cluster.counter(0, Counter::PeersLost), Some(1));
}

#[test]
fn a_pipeline_keeps_many_calls_in_flight_and_each_answer_finds_its_caller() {
    let cluster = Cluster::new(2);
    let config = ClientConfig { timeout: PATIENCE, ..ClientConfig::default() };
    let mut pipeline = Pipeline::connect(&cluster.socket(0), config).unwrap();
    let (mut sent, mut received) = (0_u64, 0_u64);
    while received < 1000 {
        while sent < 1000 {
            let rank = u32::try_from(sent % 2).unwrap();
            let to = To { rank, service: DAEMON, method: method::PING };
            match pipeline.submit(to, &body(sent), sent) {
                Ok(_) => sent += 1,
                Err(refused) => {
                    assert_eq!(refused.error.status(), Status::ResourceExhausted);
                    break;
                }
            }
        }
        let ended = pipeline.poll(|number, answer| assert_eq!(answer.unwrap(), body(number)));
        received += ended as u64;
        if ended == 0 {
            pipeline.rest();
        }
    }
    assert_eq!(pipeline.in_flight(), 0);
}

/// Sixteen clients that never sleep, two daemons that do, on two cores.
#[test]
fn fault_c7_spinning_clients_on_few_cores_are_all_served() {
    let cluster = Cluster::new(2);
    let config = ClientConfig { timeout: PATIENCE, wait: Wait::Busy, ..ClientConfig::default() };
    thread::scope(|scope| {
        for index in 0..16_u64 {
            let socket = cluster.socket(0);
            scope.spawn(move || {
                let mut client = Client::connect(&socket, config).unwrap();
                for number in 0..20 {
                    let body = body(index * 100 + number);
                    let to = u32::try_from(number % 2).unwrap();
                    assert_eq!(client.ping(to, &body).unwrap(), body);
                }
            });
        }
    });
    eventually(|| cluster.counter(0, Counter::Replies) == Some(320));
}

/// All sleep: the caller, its daemon and the provider's. The deadline fires all the same.
#[test]
fn fault_g2_a_deadline_fires_while_everybody_sleeps() {
    sleep_through(&Cluster::new(2));
}

fn sleep_through(cluster: &Cluster) {
    let config = ClientConfig { wait: Wait::Block, ..ClientConfig::default() };
    // It never asks for a request.
    let silent = provide(&cluster.socket(1));
    let mut client = Client::connect(&cluster.socket(0), config).unwrap();
    let timeout = Duration::from_millis(300);
    let late = client.call_within(To::new(1, ECHO, 0), b"?", timeout).unwrap_err();
    assert_eq!(late.status(), Status::DeadlineExceeded, "{late}");
    assert_eq!(client.ping(1, b"and lives"), Ok(&b"and lives"[..]));
    eventually(|| cluster.counter(0, Counter::Outstanding) == Some(0));
    // The provider's daemon gives the request up, too.
    eventually(|| cluster.counter(1, Counter::Outstanding) == Some(0));
    drop(silent);
}

const ROLE: &str = "TEST_ROLE_SOCKET";

/// Not a test by itself: a client that calls until it is killed.
#[test]
fn a_client_that_calls_until_it_is_killed() {
    let Some(socket) = env::var_os(ROLE) else { return };
    let mut client = connect(socket.as_ref());
    for number in 0.. {
        let body = body(number);
        assert_eq!(client.ping(u32::try_from(number % 2).unwrap(), &body).unwrap(), body);
    }
}

fn client_process(socket: &Path) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "a_client_that_calls_until_it_is_killed", "--nocapture"]);
    command.env(ROLE, socket).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

#[test]
fn fault_a1_killed_clients_leave_nothing_and_others_do_not_notice() {
    kill_clients(&Cluster::new(2));
}

fn kill_clients(cluster: &Cluster) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut honest = cluster.client(0);
        let honest = scope.spawn({
            let stop = &stop;
            move || {
                let mut number = 0;
                while !stop.load(Ordering::Relaxed) {
                    let body = body(number);
                    let to = u32::try_from(number % 2).unwrap();
                    assert_eq!(honest.ping(to, &body).unwrap(), body);
                    number += 1;
                }
                number
            }
        });
        for round in 0..8 {
            let before = cluster.counter(0, Counter::RequestsIpc).unwrap();
            let mut victims: Vec<_> = (0..2).map(|_| client_process(&cluster.socket(0))).collect();
            eventually(|| cluster.counter(0, Counter::Clients) == Some(3));
            eventually(|| cluster.counter(0, Counter::RequestsIpc).unwrap() > before + 10 * round);
            for victim in &mut victims {
                victim.kill().unwrap();
                victim.wait().unwrap();
            }
            eventually(|| cluster.counter(0, Counter::Clients) == Some(1));
        }
        stop.store(true, Ordering::Relaxed);
        assert!(honest.join().unwrap() > 0);
    });
    eventually(|| cluster.counter(0, Counter::Outstanding) == Some(0));
    eventually(|| cluster.counter(0, Counter::Clients) == Some(0));
    assert_eq!(cluster.counter(0, Counter::Welcomed), Some(17));
}

/// Two daemons that a parent started, once they answer each other; in a folder of their own.
struct Forked {
    folder: PathBuf,
    parent: Child,
}

impl Forked {
    fn start(name: &str) -> Self {
        let folder = env::temp_dir().join(format!("copyrpc-{name}-{}", process::id()));
        let mut command = Self::command(&folder);
        let parent = command.args(["daemon", "--fork", "2"]).stderr(Stdio::null()).spawn().unwrap();
        let forked = Self { folder, parent };
        eventually(|| forked.ping("1").status.success());
        forked
    }

    fn command(folder: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_copyrpc"));
        command.env_clear().env("COPYRPC_RUNTIME_DIR", folder);
        command.env("COPYRPC_SOFT_FABRIC", folder.file_name().unwrap());
        command
    }

    fn ping(&self, rank: &str) -> Output {
        let arguments = ["ping", rank, "--instance", "0", "--count", "3"];
        Self::command(&self.folder).args(arguments).output().unwrap()
    }

    /// Locks stay: whoever removed one could let two daemons have one place.
    fn have_left_only_locks(&self) -> bool {
        let left = fs::read_dir(&self.folder).unwrap().map(|entry| entry.unwrap().path());
        left.into_iter().all(|path| path.extension().is_some_and(|suffix| suffix == "lock"))
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        let _ = self.parent.kill();
        let _ = self.parent.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn forked_daemons_start_answer_a_ping_and_end_together() {
    let mut forked = Forked::start("forked");
    let text = String::from_utf8(forked.ping("1").stdout).unwrap();
    assert!(text.starts_with("rank 1 of 2, from rank 0: 3 answers, min "), "{text}");
    assert!(String::from_utf8_lossy(&forked.ping("2").stderr).contains("does not exist"));
    kill_process(pid(forked.parent.id()), Signal::TERM).unwrap();
    assert!(forked.parent.wait().unwrap().success());
    assert!(forked.have_left_only_locks());
}

#[test]
fn fault_a4_forked_daemons_end_with_a_parent_that_is_killed_and_no_secret_is_left() {
    let mut forked = Forked::start("orphaned");
    forked.parent.kill().unwrap();
    eventually(|| forked.have_left_only_locks());
}
