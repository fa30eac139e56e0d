//! Real daemons, real clients, and what happens to them: killed, stopped, continued, asked to end.
//! Every answer is checked. No duration is asserted, but all that waits gives up in the end.

use std::{
    env, fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
    sync::{Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use memory::sync::{AtomicBool, Ordering};
use node::{
    client::{CallError, Client, ClientConfig, Pipeline, Provider, To, Wait},
    daemon::{
        Status,
        wire::{DAEMON, HERE, method},
    },
    metrics::{Counter, Life, Snapshot, State},
};
use rustix::process::{Pid, Signal, kill_process};

/// Longest that anything may take, however loaded the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

const ECHO: u16 = 9;

/// Some daemons in a folder of their own, ended with the value.
struct Cluster {
    folder: PathBuf,
    fabric: String,
    /// A folder, or an address.
    rendezvous: String,
    threads: u16,
    daemons: Vec<Option<Child>>,
}

impl Cluster {
    fn new(size: u32) -> Self {
        Self::with_threads(size, 1)
    }

    /// Daemons of several threads each.
    fn with_threads(size: u32, threads: u16) -> Self {
        Self::meeting_at(size, None, threads)
    }

    fn meeting_at(size: u32, address: Option<String>, threads: u16) -> Self {
        static COUNT: Mutex<u32> = Mutex::new(0);
        let mut count = COUNT.lock().unwrap();
        *count += 1;
        let name = format!("copyrpc-daemons-{}-{count}", process::id());
        let folder = env::temp_dir().join(&name);
        fs::create_dir_all(folder.join("meet")).unwrap();
        make_private(&folder);
        fs::write(folder.join("secret"), "the secret of these daemons").unwrap();
        make_private(&folder.join("secret"));
        let meet = folder.join("meet").to_str().unwrap().to_owned();
        let rendezvous = address.unwrap_or(meet);
        let daemons = (0..size).map(|_| None).collect();
        let mut cluster = Self { folder, fabric: name, rendezvous, threads, daemons };
        for rank in 0..size {
            cluster.start(rank);
        }
        (0..size).for_each(|rank| cluster.wait_up(rank, u64::from(size) - 1));
        cluster
    }

    fn command(&self, rank: u32) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_copyrpc"));
        command
            .env_clear()
            .env("COPYRPC_RUNTIME_DIR", &self.folder)
            .env("COPYRPC_SOFT_FABRIC", &self.fabric)
            .env("COPYRPC_INSTANCE", rank.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    fn start(&mut self, rank: u32) {
        let mut command = self.command(rank);
        command
            .arg("daemon")
            .env("COPYRPC_RANK", rank.to_string())
            .env("COPYRPC_SIZE", self.daemons.len().to_string())
            .env("COPYRPC_RENDEZVOUS", &self.rendezvous)
            .env("COPYRPC_THREADS", self.threads.to_string())
            .env("COPYRPC_SECRET_FILE", self.folder.join("secret"))
            .env("COPYRPC_HEARTBEAT_INTERVAL", "25ms")
            .env("COPYRPC_SUSPECT_AFTER", "500ms")
            .env("COPYRPC_DEAD_AFTER", "1s");
        self.daemons[rank as usize] = Some(command.spawn().unwrap());
    }

    fn name(rank: u32, suffix: &str) -> String {
        format!("default@{rank}.{suffix}")
    }

    fn socket(&self, rank: u32) -> PathBuf {
        self.folder.join(Self::name(rank, "sock"))
    }

    fn counter(&self, rank: u32, counter: Counter) -> Option<u64> {
        let snapshot = Snapshot::read(&self.folder.join(Self::name(rank, "metrics"))).ok()?;
        // A life that was killed leaves its counters until the next has its own.
        let daemon = self.daemons[rank as usize].as_ref()?;
        (snapshot.process.pid == daemon.id()).then_some(())?;
        Some(snapshot.total().counter(counter))
    }

    #[track_caller]
    fn wait_up(&self, rank: u32, peers: u64) {
        eventually(|| {
            self.counter(rank, Counter::PeersUp) == Some(peers) && self.socket(rank).exists()
        });
    }

    fn signal(&self, rank: u32, signal: Signal) {
        let id = self.daemons[rank as usize].as_ref().unwrap().id();
        kill_process(pid(id), signal).unwrap();
    }

    fn kill(&mut self, rank: u32) {
        let mut daemon = self.daemons[rank as usize].take().unwrap();
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }

    fn client(&self, rank: u32) -> Client {
        connect(&self.socket(rank))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().flatten() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn make_private(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = if path.is_dir() { 0o700 } else { 0o600 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn pid(id: u32) -> Pid {
    Pid::from_raw(i32::try_from(id).unwrap()).unwrap()
}

#[track_caller]
fn eventually(mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "it never came to hold");
        thread::sleep(Duration::from_millis(1));
    }
}

fn connect(socket: &Path) -> Client {
    let config = ClientConfig { timeout: PATIENCE, ..ClientConfig::default() };
    Client::connect(socket, config).unwrap()
}

/// Offers the service that answers with what it gets, reversed.
fn provide(socket: &Path) -> Provider {
    Provider::register(socket, ECHO, ClientConfig::default()).unwrap()
}

fn reverse(body: &[u8]) -> Vec<u8> {
    body.iter().rev().copied().collect()
}

fn serve_reversed(provider: Provider) {
    // It ends with its daemon.
    let _ = provider.serve(|inbound, answer| {
        answer.extend(inbound.body.iter().rev());
        Some(Status::Ok)
    });
}

fn body(number: u64) -> Vec<u8> {
    let len = usize::try_from(number * 37 % 1500).unwrap();
    (0..len).map(|index| (number.wrapping_mul(31) + index as u64).to_le_bytes()[0]).collect()
}

#[test]
fn two_daemons_serve_their_clients_and_leave_nothing_but_locks() {
    serve_and_leave(Cluster::new(2));
}

/// The provider and the clients of a rank are on different threads, and so are clients and peers.
#[test]
fn two_daemons_of_two_threads_serve_their_clients_and_leave_nothing_but_locks() {
    serve_and_leave(Cluster::with_threads(2, 2));
}

fn serve_and_leave(mut cluster: Cluster) {
    let has_errands = cluster.threads > 1;
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
                        assert_eq!(client_of.call(to, ECHO, 0, &body).unwrap(), reverse(&body));
                    }
                })
            })
            .collect();
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        assert_eq!(cluster.client(1).who(), Ok((1, 2)));
        // The providers' wishes are all that is open.
        for rank in 0..2 {
            eventually(|| cluster.counter(rank, Counter::Outstanding) == Some(0));
            assert_eq!(cluster.counter(rank, Counter::Errands).unwrap() > 0, has_errands);
            cluster.signal(rank, Signal::TERM);
        }
        for daemon in &mut cluster.daemons {
            assert!(daemon.as_mut().unwrap().wait().unwrap().success());
        }
    });
    let mut left: Vec<_> = fs::read_dir(&cluster.folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.ends_with(".lock"))
        .collect();
    left.sort();
    assert_eq!(left, ["meet", "secret"]);
    assert_eq!(fs::read_dir(cluster.folder.join("meet")).unwrap().count(), 0);
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
    let late = client.call_within(HERE, 0, 0, b"?", Duration::from_millis(50));
    assert_eq!(late.unwrap_err().status(), Status::DeadlineExceeded);
    cluster.signal(0, Signal::CONT);
    assert_eq!(client.ping(HERE, b"again"), Ok(&b"again"[..]));
}

#[test]
fn fault_a7_a_second_daemon_is_refused_with_the_pid_of_the_first() {
    let cluster = Cluster::new(1);
    let first = cluster.daemons[0].as_ref().unwrap().id();
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
    let mut cluster = Cluster::meeting_at(3, Some(format!("127.0.0.1:{port}")), 1);
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
    sleep_through(&Cluster::with_threads(2, 2));
}

fn sleep_through(cluster: &Cluster) {
    let config = ClientConfig { wait: Wait::Block, ..ClientConfig::default() };
    // It never asks for a request.
    let silent = provide(&cluster.socket(1));
    let mut client = Client::connect(&cluster.socket(0), config).unwrap();
    let timeout = Duration::from_millis(300);
    let late = client.call_within(1, ECHO, 0, b"?", timeout).unwrap_err();
    assert_eq!(late, CallError::Status(Status::DeadlineExceeded), "the daemon says so");
    assert_eq!(client.ping(1, b"and lives"), Ok(&b"and lives"[..]));
    eventually(|| cluster.counter(0, Counter::Outstanding) == Some(0));
    // The provider's daemon gives the request up, too.
    eventually(|| cluster.counter(1, Counter::Outstanding) == Some(0));
    drop(silent);
}

/// What a provider is doing when it is asked to stop, with a caller on another thread.
#[test]
fn a_daemon_of_two_threads_that_is_asked_to_end_finishes_what_one_does_for_the_other() {
    let mut cluster = Cluster::with_threads(1, 2);
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
        let caller = scope.spawn(move || client.call(HERE, ECHO, 0, b"late").map(<[u8]>::to_vec));
        is_asked.recv_timeout(PATIENCE).unwrap();
        assert_eq!(cluster.counter(0, Counter::Errands), Some(1), "they are on different threads");
        cluster.signal(0, Signal::TERM);
        let metrics = cluster.folder.join(Cluster::name(0, "metrics"));
        let draining = State::Alive(Life::Draining);
        eventually(|| Snapshot::read(&metrics).unwrap().state == draining);
        let refused = cluster.client(0).call(HERE, ECHO, 0, b"new").map(<[u8]>::to_vec);
        assert_eq!(refused, Err(CallError::Status(Status::Unavailable)));
        go.send(()).unwrap();
        assert_eq!(caller.join().unwrap(), Ok(b"late".to_vec()));
        assert!(cluster.daemons[0].as_mut().unwrap().wait().unwrap().success());
    });
}

#[test]
fn fault_a10_a_provider_that_dies_ends_the_calls_of_all_threads() {
    let cluster = Cluster::with_threads(2, 2);
    // Two threads of its daemon, and one of another, have a client each that waits.
    let provider = provide(&cluster.socket(1));
    let clients = [1, 1, 0].map(|rank| cluster.client(rank));
    thread::scope(|scope| {
        let callers = clients.map(|mut client| {
            scope.spawn(move || client.call(1, ECHO, 0, b"?").map(<[u8]>::to_vec))
        });
        eventually(|| cluster.counter(1, Counter::Outstanding) == Some(3));
        drop(provider);
        for caller in callers {
            let gone = Err(CallError::Status(Status::Unavailable));
            assert_eq!(caller.join().unwrap(), gone);
        }
    });
    eventually(|| cluster.counter(1, Counter::Outstanding) == Some(0));
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

#[test]
fn fault_a1_killed_clients_of_several_threads_leave_nothing() {
    kill_clients(&Cluster::with_threads(2, 2));
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

/// Seconds of the storm: more of them by `COPYRPC_TEST_STORM_S`.
fn storm() -> Duration {
    let seconds = env::var("COPYRPC_TEST_STORM_S").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(4))
}

/// Calls at random until `stop`, and returns how many were answered. Whatever happens, each call ends
/// with a right answer or a status that says what happened.
fn storm_client(socket: &Path, size: u32, seed: u64, stop: &AtomicBool) -> u64 {
    let config = ClientConfig { timeout: Duration::from_secs(2), ..ClientConfig::default() };
    let (mut client, mut answered, mut number) = (None, 0, seed);
    while !stop.load(Ordering::Relaxed) {
        let Some(connected) = &mut client else {
            client = Client::connect(socket, config).ok();
            continue;
        };
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let body = body(number >> 40);
        let to = u32::try_from((number >> 33) % u64::from(size)).unwrap();
        match connected.ping(to, &body) {
            Ok(answer) => {
                assert_eq!(answer, body, "a wrong answer");
                answered += 1;
            }
            Err(CallError::Status(status)) => assert!(
                matches!(status, Status::Unavailable | Status::DeadlineExceeded),
                "{status}"
            ),
            // Its daemon is gone, or stopped for too long.
            Err(CallError::Daemon(_)) => client = None,
        }
    }
    answered
}

#[test]
fn fault_a_storm_of_kills_and_stops_ends_every_call_and_all_recovers() {
    weather(Cluster::new(3));
}

#[test]
fn fault_a_storm_over_daemons_of_two_threads_ends_every_call_and_all_recovers() {
    weather(Cluster::with_threads(3, 2));
}

fn weather(mut cluster: Cluster) {
    let stop = AtomicBool::new(false);
    let sockets: Vec<_> = (0..3).map(|rank| cluster.socket(rank)).collect();
    thread::scope(|scope| {
        let clients: Vec<_> = (0..6)
            .map(|index| {
                let (socket, stop) = (&sockets[index % 3], &stop);
                scope.spawn(move || storm_client(socket, 3, index as u64 + 1, stop))
            })
            .collect();
        let (mut seed, end) = (u64::from(process::id()), Instant::now() + storm());
        while Instant::now() < end {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let rank = u32::try_from((seed >> 33) % 3).unwrap();
            thread::sleep(Duration::from_millis(seed >> 56));
            if (seed >> 50).is_multiple_of(3) {
                cluster.kill(rank);
                cluster.start(rank);
            } else {
                cluster.signal(rank, Signal::STOP);
                thread::sleep(Duration::from_millis((seed >> 53) % 700));
                cluster.signal(rank, Signal::CONT);
            }
        }
        (0..3).for_each(|rank| cluster.wait_up(rank, 2));
        stop.store(true, Ordering::Relaxed);
        let answered: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
        assert!(answered.iter().all(|answered| *answered > 0), "{answered:?}");
    });
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        let mut client = cluster.client(from);
        eventually(|| client.ping(to, b"calm").is_ok());
    }
    for rank in 0..3 {
        eventually(|| cluster.counter(rank, Counter::Clients) == Some(0));
        eventually(|| cluster.counter(rank, Counter::Outstanding) == Some(0));
    }
}

#[test]
fn forked_daemons_start_answer_a_ping_and_end_together() {
    let folder = env::temp_dir().join(format!("copyrpc-forked-{}", process::id()));
    let copyrpc = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_copyrpc"));
        command.env_clear().env("COPYRPC_RUNTIME_DIR", &folder);
        command.env("COPYRPC_SOFT_FABRIC", format!("forked-{}", process::id()));
        command
    };
    let mut daemons = copyrpc();
    daemons.args(["daemon", "--fork", "2"]).stderr(Stdio::null());
    let mut daemons = daemons.spawn().unwrap();
    let ping = |rank: &str| {
        copyrpc().args(["ping", rank, "--instance", "0", "--count", "3"]).output().unwrap()
    };
    eventually(|| ping("1").status.success());
    let text = String::from_utf8(ping("1").stdout).unwrap();
    assert!(text.starts_with("rank 1 of 2, from rank 0: 3 answers, min "), "{text}");
    assert!(String::from_utf8_lossy(&ping("2").stderr).contains("not found"));
    kill_process(pid(daemons.id()), Signal::TERM).unwrap();
    assert!(daemons.wait().unwrap().success());
    let left = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    assert!(left.into_iter().all(|path| path.extension().is_some_and(|suffix| suffix == "lock")));
    fs::remove_dir_all(&folder).unwrap();
}
