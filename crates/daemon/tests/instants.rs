//! Processes that stop or die at an exact instant: each stops itself there, and is killed or continued once
//! the kernel says that it has stopped.
//!
//! ```text
//! this test ── Client ──▶ daemon 0 ══▶ daemon 1        both are this test again, run as a role,
//!                            ╚═══════▶ provider        and so is who provides a service
//! ```

use std::{
    cell::Cell,
    env,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    rc::Rc,
    thread,
    time::Duration,
};

use bootstrap::{JobId, RankInfo, Secret};
use client::{Client, ClientConfig, Provider, To, message::HERE, runtime::Runtime};
use copyrpc_daemon::{
    Inbound, Services, Serving, Status,
    config::{DaemonConfig, KNOBS, Layers},
    metrics::{Counter, Snapshot},
    serve,
};
use memory::sync::AtomicBool;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

#[path = "../../bootstrap/tests/common/mod.rs"]
mod common;
use common::{TempFolder, eventually};

/// Stops its process before it answers with the body.
const STOP: u16 = 7;
/// Answers how often `STOP` was called in this life.
const COUNT: u16 = 8;
/// Answers with the body.
const ECHO: u16 = 9;
/// Of a process: stops it for the body `stop` before it answers with that.
const PROVIDED: u16 = 10;

const FOLDER: &str = "COPYRPC_TEST_FOLDER";
const ROLE: &str = "COPYRPC_TEST_ROLE";
const SIZE: &str = "COPYRPC_TEST_SIZE";
const PROVIDER: &str = "provider";

// `raise(3)`: unlike `kill(2)`, it stops the calling thread before it returns.
unsafe extern "C" {
    safe fn raise(signal: i32) -> i32;
}

fn stop_here() {
    assert_eq!(raise(Signal::STOP.as_raw()), 0, "a process may stop itself");
}

/// Not a test of its own: runs the role that the environment names, if it names one.
#[test]
fn role() {
    let Some(folder) = env::var_os(FOLDER).map(PathBuf::from) else { return };
    let role = env::var(ROLE).unwrap();
    if role == PROVIDER {
        let socket = runtime(&folder, 0).socket();
        let provider = Provider::register(&socket, PROVIDED, patient()).unwrap();
        let _ = provider.serve(|request, answer| {
            if request.body == b"stop" {
                stop_here();
            }
            answer.extend_from_slice(request.body);
            Some(Status::Ok)
        });
        return;
    }
    let rank = role.parse().unwrap();
    let size = env::var(SIZE).unwrap().parse().unwrap();
    let fabric = folder.file_name().unwrap().to_str().unwrap().to_owned();
    let nic = softnic::open(&softnic::Config { fabric, ..softnic::Config::default() }).unwrap();
    let serving = serving(&folder, RankInfo::new(rank, size).unwrap());
    serve(&serving, nic, services(), &AtomicBool::new(false)).unwrap();
}

fn services() -> Services<copyrpc_daemon::IpcPort> {
    let mut services = Services::default();
    let stops = Rc::new(Cell::new(0_u8));
    let stop = {
        let stops = Rc::clone(&stops);
        move |inbound: &Inbound<'_>, answer: &mut Vec<u8>| {
            stops.set(stops.get() + 1);
            stop_here();
            answer.extend_from_slice(inbound.body);
            Status::Ok
        }
    };
    let count = move |_: &Inbound<'_>, answer: &mut Vec<u8>| {
        answer.push(stops.get());
        Status::Ok
    };
    let echo = |inbound: &Inbound<'_>, answer: &mut Vec<u8>| {
        answer.extend_from_slice(inbound.body);
        Status::Ok
    };
    services.offer(STOP, Box::new(stop)).unwrap();
    services.offer(COUNT, Box::new(count)).unwrap();
    services.offer(ECHO, Box::new(echo)).unwrap();
    services
}

fn runtime(folder: &Path, rank: u32) -> Runtime {
    let job = JobId::new("instants").unwrap();
    Runtime::new(folder.to_owned(), job, &rank.to_string()).unwrap()
}

fn serving(folder: &Path, rank_info: RankInfo) -> Serving {
    let meet = folder.join("meet").to_str().unwrap().to_owned();
    let mut layers = Layers::new(KNOBS.to_vec());
    let bootstrap = if rank_info.size() == 1 { "alone" } else { "file" };
    for (key, text) in [
        ("bootstrap", bootstrap),
        ("rendezvous", &meet),
        ("heartbeat_interval", "25ms"),
        ("suspect_after", "1s"),
        ("dead_after", "3s"),
    ] {
        layers = layers.flag(key, text).unwrap();
    }
    Serving {
        config: DaemonConfig::from_settings(&layers.finish()).unwrap(),
        runtime: runtime(folder, rank_info.rank()),
        rank_info,
        secret: Secret::from_bytes(b"sixteen bytes or more"),
    }
}

fn patient() -> ClientConfig {
    ClientConfig { timeout: Duration::from_secs(60), ..ClientConfig::default() }
}

/// A process that runs a role; killed and reaped with the value.
struct Role(Child);

impl Role {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    fn wait_stopped(&self) {
        eventually(|| {
            let options = WaitOptions::UNTRACED | WaitOptions::NOHANG;
            let status = waitpid(Some(self.pid()), options).expect("it is our child");
            status.is_some_and(|(_, status)| {
                assert!(status.stopped(), "it ended instead: {status:?}");
                true
            })
        });
    }

    fn go_on(&self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Cluster {
    folder: TempFolder,
    size: u32,
}

impl Cluster {
    fn new(name: &str, size: u32) -> Self {
        let folder = TempFolder::new(name);
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        std::fs::create_dir(folder.path().join("meet")).unwrap();
        Self { folder, size }
    }

    fn start(&self, role: &str) -> Role {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", "role", "--nocapture", "--test-threads=1"])
            .env(FOLDER, self.folder.path())
            .env(ROLE, role)
            .env(SIZE, self.size.to_string());
        Role(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
    }

    /// A client of a daemon that answers.
    fn client(&self, rank: u32) -> Client {
        let socket = runtime(self.folder.path(), rank).socket();
        let mut client = None;
        eventually(|| {
            client = Client::connect(&socket, patient()).ok();
            client.as_mut().is_some_and(|client| client.ping(HERE, b"there?").is_ok())
        });
        client.unwrap()
    }

    fn counter(&self, rank: u32, counter: Counter) -> u64 {
        let path = runtime(self.folder.path(), rank).metrics();
        Snapshot::read(&path).unwrap().total().counter(counter)
    }
}

/// Calls until there is an answer, which is the right one: a machine that stops all of this for seconds
/// makes daemons give each other up.
#[track_caller]
fn expect(client: &mut Client, rank: u32, service: u16, body: &[u8], answer: &[u8]) {
    eventually(|| {
        client.call(To::new(rank, service, 0), body).is_ok_and(|there| {
            assert_eq!(there, answer);
            true
        })
    });
}

fn status_of(outcome: Result<&[u8], client::CallError>) -> Status {
    outcome.map_or_else(|error| error.status(), |_| Status::Ok)
}

#[test]
fn fault_a8_a_peer_killed_while_it_answers_ends_its_calls_and_is_replaced_under_its_name() {
    let cluster = Cluster::new("instants-a8", 2);
    let _first = cluster.start("0");
    let second = cluster.start("1");
    let [mut caller, mut other] = [(); 2].map(|()| cluster.client(0));
    eventually(|| other.ping(1, b"up?").is_ok());
    thread::scope(|scope| {
        let called = scope.spawn(|| status_of(caller.call(To::new(1, STOP, 0), b"never answered")));
        second.wait_stopped();
        // It has a receive for this one, and looks at it never.
        let behind = scope.spawn(|| status_of(other.call(To::new(1, ECHO, 0), b"behind")));
        eventually(|| cluster.counter(0, Counter::Outstanding) == 2);
        drop(second);
        assert_eq!(called.join().unwrap(), Status::Unavailable);
        assert_eq!(behind.join().unwrap(), Status::Unavailable);
    });
    assert_eq!(
        caller.call(To::new(HERE, ECHO, 0), b"others"),
        Ok(&b"others"[..]),
        "nobody else notices"
    );
    let _second = cluster.start("1");
    eventually(|| caller.ping(1, b"up?").is_ok());
    assert_eq!(
        caller.call(To::new(1, COUNT, 0), b""),
        Ok(&[0][..]),
        "nothing of the old life is made again"
    );
    assert_eq!(other.call(To::new(1, ECHO, 0), b"again"), Ok(&b"again"[..]));
    eventually(|| cluster.counter(0, Counter::Outstanding) == 0);
}

#[test]
fn fault_a9_a_peer_that_stops_while_it_answers_executes_once_and_its_late_answer_reaches_nobody() {
    let cluster = Cluster::new("instants-a9", 2);
    let _first = cluster.start("0");
    let second = cluster.start("1");
    let mut client = cluster.client(0);
    eventually(|| client.ping(1, b"up?").is_ok());
    assert_eq!(status_of(client.call(To::new(1, STOP, 0), b"late")), Status::Unavailable);
    second.wait_stopped();
    second.go_on();
    eventually(|| client.ping(1, b"up?").is_ok());
    for number in 0..100_u8 {
        expect(&mut client, 1, ECHO, &[number], &[number]);
    }
    expect(&mut client, 1, COUNT, b"", &[1]);
    eventually(|| (0..2).all(|rank| cluster.counter(rank, Counter::Outstanding) == 0));
}

#[test]
fn fault_a4_clients_that_wait_for_a_daemon_killed_while_it_answers_are_served_by_its_next_life() {
    let cluster = Cluster::new("instants-a4", 1);
    let daemon = cluster.start("0");
    let mut clients = [(); 3].map(|()| cluster.client(0));
    let generation = clients[0].daemon_generation();
    let [caller, waiting @ ..] = &mut clients;
    thread::scope(|scope| {
        let called =
            scope.spawn(|| status_of(caller.call(To::new(HERE, STOP, 0), b"never answered")));
        daemon.wait_stopped();
        let waiting = waiting.each_mut().map(|client| {
            scope.spawn(|| status_of(client.call(To::new(HERE, ECHO, 0), b"never taken")))
        });
        drop(daemon);
        assert_eq!(called.join().unwrap(), Status::Unavailable);
        for client in waiting {
            assert_eq!(client.join().unwrap(), Status::Unavailable);
        }
    });
    let _daemon = cluster.start("0");
    for client in &mut clients {
        eventually(|| client.reconnect().is_ok());
        assert_eq!(client.call(To::new(HERE, ECHO, 0), b"again"), Ok(&b"again"[..]));
        assert_ne!(client.daemon_generation(), generation);
    }
    assert_eq!(clients[0].call(To::new(HERE, COUNT, 0), b""), Ok(&[0][..]));
}

#[test]
fn fault_a10_a_provider_that_answers_after_the_deadline_is_not_heard_and_serves_on() {
    let cluster = Cluster::new("instants-a10", 1);
    let _daemon = cluster.start("0");
    let mut client = cluster.client(0);
    let provider = cluster.start(PROVIDER);
    eventually(|| client.call(To::new(HERE, PROVIDED, 0), b"there?").is_ok());
    let late = client.call_within(To::new(HERE, PROVIDED, 0), b"stop", Duration::from_millis(50));
    assert_eq!(status_of(late), Status::DeadlineExceeded);
    provider.wait_stopped();
    // The caller gives up by its own clock, perhaps before the daemon does.
    eventually(|| cluster.counter(0, Counter::Outstanding) == 0);
    provider.go_on();
    for number in 0..100_u8 {
        assert_eq!(client.call(To::new(HERE, PROVIDED, 0), &[number]), Ok(&[number][..]));
    }
    eventually(|| cluster.counter(0, Counter::Stale) == 1);
}

#[test]
fn fault_a10_a_provider_killed_while_it_answers_ends_its_calls_and_another_takes_its_service() {
    let cluster = Cluster::new("instants-a10-killed", 1);
    let _daemon = cluster.start("0");
    let [mut caller, mut behind] = [(); 2].map(|()| cluster.client(0));
    let provider = cluster.start(PROVIDER);
    eventually(|| caller.call(To::new(HERE, PROVIDED, 0), b"there?").is_ok());
    thread::scope(|scope| {
        let called = scope.spawn(|| status_of(caller.call(To::new(HERE, PROVIDED, 0), b"stop")));
        provider.wait_stopped();
        let queued = scope.spawn(|| status_of(behind.call(To::new(HERE, PROVIDED, 0), b"queued")));
        eventually(|| cluster.counter(0, Counter::Outstanding) == 2);
        drop(provider);
        assert_eq!(called.join().unwrap(), Status::Unavailable);
        assert_eq!(queued.join().unwrap(), Status::Unavailable);
    });
    let _provider = cluster.start(PROVIDER);
    eventually(|| caller.call(To::new(HERE, PROVIDED, 0), b"again") == Ok(&b"again"[..]));
}
