//! What one client can cost the others, with real processes: attackers at low priority beside an honest
//! client, whose rate is measured. `docs/results/isolation.csv` has the table that this prints:
//!
//! ```text
//! COPYRPC_TEST_ISOLATION_S=3 cargo test --release -p copyrpc-cli --test daemons isolation -- --nocapture
//! ```

use std::{
    env, fs,
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use client::{
    Client, ClientConfig, Pipeline, To,
    message::{DAEMON, HERE, method},
};
use daemon::metrics::Counter;
use os::{
    clock,
    unix::{Address, UnixConnection},
};

use crate::cluster::{Cluster, connect, eventually};

const ROLE: &str = "TEST_ISOLATION_ROLE";
const SOCKET: &str = "TEST_ISOLATION_SOCKET";

/// Offered at rank 1 by a process that never asks for a request.
const SILENT: u16 = 77;
/// As long as a client may wait.
const LONG: Duration = Duration::from_secs(4200);
/// Calls that the honest client has in flight.
const WINDOW: usize = 8;

/// Seconds per row: more of them by `COPYRPC_TEST_ISOLATION_S`.
fn length() -> Duration {
    let seconds = env::var("COPYRPC_TEST_ISOLATION_S").ok().and_then(|text| text.parse().ok());
    seconds.map_or(Duration::from_millis(300), Duration::from_secs)
}

/// Not a test by itself: what attackers run, until they are killed.
#[test]
fn an_attacker() {
    let Ok(role) = env::var(ROLE) else { return };
    let socket = PathBuf::from(env::var_os(SOCKET).unwrap());
    // Standard input ends with whoever made it.
    thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    match role.as_str() {
        "silent" => register(&socket),
        "hoarder" => hoard(&socket),
        "giver-up" => loop {
            drop(hoard_once(&socket));
        },
        "flood" => flood(&socket),
        "newcomers" => loop {
            drop(UnixConnection::connect(&Address::from(socket.as_path()), clock::NOW));
        },
        "visitors" => loop {
            drop(Client::connect(&socket, ClientConfig::default()));
        },
        "registrar" => registrar(&socket),
        role => unreachable!("{role} is no role"),
    }
}

fn register(socket: &Path) {
    let mut client = connect(socket);
    client.call(To::new(HERE, DAEMON, method::REGISTER), &SILENT.to_le_bytes()).unwrap();
    say_ready();
    thread::sleep(LONG);
}

/// The parent goes on when the attack is on.
fn say_ready() {
    let _ = std::io::stderr().write_all(b"ready\n");
}

/// As many calls as one client may have in flight, each of which asks for much and never ends.
fn hoard_once(socket: &Path) -> Option<Pipeline<()>> {
    let config = ClientConfig { response_bytes: 4096, ..ClientConfig::default() };
    let mut pipeline = Pipeline::connect(socket, config).ok()?;
    let to = To { rank: 1, service: SILENT, method: 0 };
    while pipeline.in_flight() < pipeline.depth()
        && pipeline.submit_within(to, b"", LONG, ()).is_ok()
    {}
    pipeline.flush();
    Some(pipeline)
}

fn hoard(socket: &Path) {
    let mut hoards: Vec<_> = (0..16).filter_map(|_| hoard_once(socket)).collect();
    say_ready();
    loop {
        hoards.iter_mut().for_each(|pipeline| {
            pipeline.poll(|(), _| {});
        });
        thread::sleep(Duration::from_millis(1));
    }
}

/// Large requests without end.
fn flood(socket: &Path) {
    let config = ClientConfig { response_bytes: 4096, ..ClientConfig::default() };
    let mut pipeline = Pipeline::connect(socket, config).unwrap();
    let to = To { rank: 1, service: DAEMON, method: method::PING };
    let body = vec![7; 4000];
    say_ready();
    loop {
        while pipeline.in_flight() < pipeline.depth() {
            pipeline.submit(to, &body, ()).unwrap();
        }
        if pipeline.poll(|(), _| {}) == 0 {
            pipeline.rest();
        }
    }
}

fn registrar(socket: &Path) {
    let mut pipeline = Pipeline::connect(socket, ClientConfig::default()).unwrap();
    let to = To { rank: HERE, service: DAEMON, method: method::REGISTER };
    say_ready();
    for service in (1000..u16::MAX).cycle() {
        while pipeline.in_flight() == pipeline.depth() {
            pipeline.poll(|(), _| {});
        }
        pipeline.submit(to, &service.to_le_bytes(), ()).unwrap();
    }
}

/// A process that is killed when it is dropped.
struct Attacker(Child);

impl Attacker {
    fn start(cluster: &Cluster, role: &str, rank: u32) -> Self {
        let mut command = Command::new("nice");
        command
            .args(["-n", "19"])
            .arg(env::current_exe().unwrap())
            .args(["--exact", "isolation::an_attacker", "--nocapture"])
            .env(ROLE, role)
            .env(SOCKET, cluster.socket(rank))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        if !matches!(role, "giver-up" | "newcomers" | "visitors") {
            let mut ready = [0; 6];
            child.stderr.as_mut().unwrap().read_exact(&mut ready).unwrap();
            assert_eq!(&ready, b"ready\n", "{role}");
        }
        Self(child)
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Calls per second of an honest client; none of them fails.
fn honest_rate(cluster: &Cluster) -> u64 {
    let mut pipeline =
        Pipeline::<u64>::connect(&cluster.socket(0), ClientConfig::default()).unwrap();
    let to = To { rank: 1, service: DAEMON, method: method::PING };
    let (mut sent, mut received) = (0_u64, 0_u64);
    let (start, length) = (Instant::now(), length());
    while start.elapsed() < length {
        while pipeline.in_flight() < WINDOW {
            pipeline.submit(to, &sent.to_le_bytes(), sent).unwrap();
            sent += 1;
        }
        let ended = pipeline.poll(|number, answer| {
            assert_eq!(answer, Ok(&number.to_le_bytes()[..]), "honest calls are served");
        });
        received += ended as u64;
        if ended == 0 {
            pipeline.rest();
        }
    }
    let micros = u64::try_from(start.elapsed().as_micros()).unwrap();
    received * 1_000_000 / micros
}

fn resident_kib(cluster: &Cluster, rank: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", cluster.id(rank))).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn fault_i1_i2_i4_i5_i10_honest_clients_go_on_beside_attackers_and_memory_comes_back() {
    let cluster = Cluster::new(2);
    let _silent = Attacker::start(&cluster, "silent", 1);
    honest_rate(&cluster);
    let memory = resident_kib(&cluster, 0);
    let alone = honest_rate(&cluster);
    eprintln!("| nobody | {alone} | 1.00 |");
    let rows: [(&str, &[&str]); 7] = [
        ("1,024 calls, of 16 clients, to a silent provider, for answers of 4 KiB", &["hoarder"]),
        ("clients that make 64 such calls and leave, again and again", &["giver-up"]),
        ("64 requests of 4,000 B in flight, without end", &["flood"]),
        ("connections that are closed before they say hello", &["newcomers"]),
        ("clients that come and leave", &["visitors"]),
        ("one that offers 64,000 services", &["registrar"]),
        ("four of these at once", &["hoarder", "giver-up", "registrar", "newcomers"]),
    ];
    for (what, roles) in rows {
        let attackers: Vec<_> =
            roles.iter().map(|role| Attacker::start(&cluster, role, 0)).collect();
        let rate = honest_rate(&cluster);
        let ratio = rate as f64 / alone as f64;
        eprintln!("| {what} | {rate} | {ratio:.2} |");
        // No more than that it goes on, whatever else the machine does: the table has the shares.
        assert!(rate > 0, "no call of {alone} calls/s got through beside {what}");
        drop(attackers);
        for rank in [0, 1] {
            eventually(|| cluster.counter(rank, Counter::HeldBytes) == Some(0));
        }
        eventually(|| cluster.counter(0, Counter::Outstanding) == Some(0));
    }
    let grown = resident_kib(&cluster, 0).saturating_sub(memory);
    assert!(grown < 32 << 10, "{grown} KiB more than before");
    cluster.end();
}

/// A daemon whose log is a pipe that nobody reads goes on.
#[test]
fn fault_i6_a_log_that_nobody_reads_does_not_stop_a_daemon() {
    let mut cluster = Cluster::new(1);
    cluster.kill(0);
    let mut command = cluster.command(0);
    command.arg("daemon").env("RUST_LOG", "trace").stderr(Stdio::piped());
    let mut daemon = command.spawn().unwrap();
    let socket = cluster.socket(0);
    eventually(|| Client::connect(&socket, ClientConfig::default()).is_ok());
    // Each leaves at least a line, and there is room for 64 KiB.
    for service in 1..1500_u16 {
        let mut client = connect(&socket);
        client.call(To::new(HERE, DAEMON, method::REGISTER), &service.to_le_bytes()).unwrap();
    }
    assert_eq!(connect(&socket).ping(HERE, b"alive").unwrap(), b"alive");
    let _pipe = daemon.stderr.take();
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}
