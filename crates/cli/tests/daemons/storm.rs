//! Storms: client, provider and daemon processes are killed, stopped and continued at random, while
//! every answer is checked. When it is over, every call has ended, and nobody holds more than before.

use std::{
    collections::BTreeMap,
    env,
    io::{self, Read as _},
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use client::{
    CallError, Client, ClientConfig, Pipeline, Provider, To,
    message::{DAEMON, method},
};
use daemon::{Status, metrics::Counter};
use memory::sync::{AtomicBool, Ordering};
use rustix::process::{Signal, kill_process};

use crate::{
    cluster::{
        Cluster, ECHO, Holdings, PATIENCE, body, eventually, names_in, patient, pid, reverse,
        serve_reversed,
    },
    threads::TWO,
};

/// What a process of a storm is to be, and for whom.
const ROLE: &str = "TEST_STORM_ROLE";
const SOCKET: &str = "TEST_STORM_SOCKET";
const SIZE: &str = "TEST_STORM_SIZE";
const SEED: &str = "TEST_STORM_SEED";

const CLIENTS_PER_DAEMON: usize = 16;
/// Calls that a client has in flight, at most.
const DEPTH: u64 = 8;
/// Before looking again for a daemon that is not there.
const NAP: Duration = Duration::from_millis(5);

/// Seconds of a storm: more of them by `COPYRPC_TEST_STORM_S`.
fn length() -> Duration {
    let seconds = env::var("COPYRPC_TEST_STORM_S").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(2))
}

/// Knuth's MMIX generator; its upper bits are good enough for mischief.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn millis(&mut self, bound: u64) -> Duration {
        Duration::from_millis(self.below(bound))
    }
}

/// What a client asked for.
#[derive(Debug)]
struct Call {
    number: u64,
    service: u16,
}

/// Counts of calls, by the way they ended.
#[derive(Debug, Default)]
struct Tally {
    submitted: u64,
    answered: u64,
    refused: BTreeMap<String, u64>,
    /// The connection to the daemon has ended.
    is_lost: bool,
}

impl Tally {
    /// Every answer is right, or a status says what happened.
    fn end(&mut self, call: &Call, answer: Result<&[u8], CallError>) {
        let sent = body(call.number);
        let error = match answer {
            Ok(bytes) if call.service == ECHO => {
                assert_eq!(bytes, reverse(&sent), "a wrong answer to {call:?}");
                self.answered += 1;
                return;
            }
            Ok(bytes) => {
                assert_eq!(bytes, sent, "a wrong answer to {call:?}");
                self.answered += 1;
                return;
            }
            Err(error) => error,
        };
        let is_definite = match &error {
            CallError::NoService(_) => call.service == ECHO,
            CallError::Refused(status) | CallError::Unanswered(status) => matches!(
                status,
                Status::Unavailable | Status::DeadlineExceeded | Status::ResourceExhausted
            ),
            CallError::Daemon(_) | CallError::NotSent(_) => {
                self.is_lost |= error.status() == Status::Unavailable;
                !error.to_string().contains("protocol")
            }
            _ => false,
        };
        assert!(is_definite, "{call:?} ended with: {error}");
        *self.refused.entry(error.to_string()).or_default() += 1;
    }

    fn ended(&self) -> u64 {
        self.answered + self.refused.values().sum::<u64>()
    }
}

/// One that calls until it is told to stop.
struct Caller {
    socket: PathBuf,
    size: u64,
    random: Random,
    tally: Tally,
}

impl Caller {
    fn run(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            let config =
                ClientConfig { timeout: Duration::from_secs(2), ..ClientConfig::default() };
            let Ok(mut pipeline) = Pipeline::connect(&self.socket, config) else {
                thread::sleep(NAP);
                continue;
            };
            self.tally.is_lost = false;
            while !self.tally.is_lost && !stop.load(Ordering::Relaxed) {
                self.call(&mut pipeline);
                self.poll(&mut pipeline);
            }
            let deadline = Instant::now() + PATIENCE;
            while pipeline.in_flight() > 0 {
                assert!(Instant::now() < deadline, "{} calls never end", pipeline.in_flight());
                self.poll(&mut pipeline);
            }
            assert_eq!(self.tally.submitted, self.tally.ended(), "each call ends once");
        }
    }

    fn poll(&mut self, pipeline: &mut Pipeline<Call>) {
        let ended = pipeline.poll(|call, answer| self.tally.end(&call, answer));
        if ended == 0 && pipeline.in_flight() > 0 {
            pipeline.rest();
        }
    }

    fn call(&mut self, pipeline: &mut Pipeline<Call>) {
        while pipeline.in_flight() < usize::try_from(DEPTH).unwrap() {
            let rank = u32::try_from(self.random.below(self.size)).unwrap();
            let number = self.random.below(1 << 30);
            let service = if number.is_multiple_of(4) { ECHO } else { DAEMON };
            let method = if service == DAEMON { method::PING } else { 0 };
            let call = Call { number, service };
            match pipeline.submit(To { rank, service, method }, &body(number), call) {
                Ok(_) => self.tally.submitted += 1,
                // Late answers of calls that were given up have its places; or it is gone.
                Err(refused) => {
                    self.tally.is_lost |= refused.error.status() == Status::Unavailable;
                    return;
                }
            }
        }
    }
}

/// Not a test by itself: what the processes of a storm run.
#[test]
fn a_process_of_a_storm() {
    let Ok(role) = env::var(ROLE) else { return };
    let socket = PathBuf::from(env::var_os(SOCKET).unwrap());
    let number = |name| env::var(name).unwrap().parse::<u64>().unwrap();
    let stop = stop_at_end_of_input(role == "provider");
    if role == "provider" {
        return provide_for_ever(&socket);
    }
    let size = number(SIZE);
    let random = Random(number(SEED));
    let mut caller = Caller { socket, size, random, tally: Tally::default() };
    caller.run(&stop);
    // It is calm now: everybody can be reached.
    let mut client = None;
    eventually(|| {
        client = Client::connect(&caller.socket, patient()).ok();
        client.is_some()
    });
    let mut client = client.unwrap();
    for rank in 0..u32::try_from(size).unwrap() {
        eventually(|| client.ping(rank, b"calm").is_ok_and(|answer| answer == b"calm"));
    }
    eprintln!("{} {}", caller.tally.answered, caller.tally.submitted);
}

fn provide_for_ever(socket: &Path) {
    loop {
        match Provider::register(socket, ECHO, ClientConfig::default()) {
            Ok(provider) => serve_reversed(provider),
            // Its daemon is not there, or has not noticed yet that the one before is dead.
            Err(_) => thread::sleep(NAP),
        }
    }
}

/// Standard input ends when the storm does, whatever becomes of who made it.
fn stop_at_end_of_input(is_to_exit: bool) -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    thread::spawn(move || {
        let _ = io::stdin().read(&mut [0]);
        if is_to_exit {
            process::exit(0);
        }
        told.store(true, Ordering::Relaxed);
    });
    stop
}

/// A client or provider process, ended with the value.
struct Worker {
    role: &'static str,
    rank: u32,
    child: Child,
}

impl Worker {
    fn start(cluster: &Cluster, role: &'static str, rank: u32, seed: u64) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", "storm::a_process_of_a_storm", "--nocapture"])
            .env(ROLE, role)
            .env(SOCKET, cluster.socket(rank))
            .env(SIZE, cluster.daemons.len().to_string())
            .env(SEED, seed.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        Self { role, rank, child: command.spawn().unwrap() }
    }

    /// That it still runs: it ends only by itself if something is wrong.
    fn check(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap() {
            let words = self.words();
            panic!("a {} of rank {} ended with {status}: {words}", self.role, self.rank);
        }
    }

    fn words(&mut self) -> String {
        let mut words = String::new();
        let _ = self.child.stderr.take().unwrap().read_to_string(&mut words);
        words
    }

    fn kill(&mut self) {
        self.check();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whom something happens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Daemon(u32),
    Worker(usize),
}

/// What is to be done about it.
#[derive(Clone, Copy, Debug)]
enum Repair {
    Start,
    Continue,
}

struct Storm {
    cluster: Cluster,
    workers: Vec<Worker>,
    random: Random,
    /// One for each who is dead or stopped.
    repairs: Vec<(Instant, Victim, Repair)>,
    strikes: u32,
}

impl Storm {
    fn begin(cluster: Cluster, seed: u64) -> Self {
        let mut random = Random(seed);
        let mut workers = Vec::new();
        for rank in 0..u32::try_from(cluster.daemons.len()).unwrap() {
            for nth in 0..=CLIENTS_PER_DAEMON {
                let role = if nth == 0 { "provider" } else { "client" };
                workers.push(Worker::start(&cluster, role, rank, random.below(u64::MAX)));
            }
        }
        Self { cluster, workers, random, repairs: Vec::new(), strikes: 0 }
    }

    fn rage(&mut self, length: Duration) {
        let end = Instant::now() + length;
        while Instant::now() < end {
            thread::sleep(self.random.millis(100));
            self.repair(Instant::now());
            self.strike();
        }
        while let Some(latest) = self.repairs.iter().map(|(at, ..)| *at).max() {
            self.repair(latest);
        }
    }

    fn repair(&mut self, now: Instant) {
        let due = self.repairs.extract_if(.., |(at, ..)| *at <= now).collect::<Vec<_>>();
        for (_, victim, repair) in due {
            match (victim, repair) {
                (Victim::Daemon(rank), Repair::Start) => self.cluster.start(rank),
                (Victim::Daemon(rank), Repair::Continue) => self.cluster.signal(rank, Signal::CONT),
                (Victim::Worker(index), Repair::Start) => {
                    let Worker { role, rank, .. } = self.workers[index];
                    let seed = self.random.below(u64::MAX);
                    self.workers[index] = Worker::start(&self.cluster, role, rank, seed);
                }
                (Victim::Worker(index), Repair::Continue) => {
                    kill_process(pid(self.workers[index].child.id()), Signal::CONT).unwrap();
                }
            }
        }
    }

    /// One in sixteen times at a daemon: most of the time most of them are there.
    fn strike(&mut self) {
        let victim = if self.random.below(16) == 0 {
            let rank = self.random.below(self.cluster.daemons.len() as u64);
            Victim::Daemon(u32::try_from(rank).unwrap())
        } else {
            let index = self.random.below(self.workers.len() as u64);
            Victim::Worker(usize::try_from(index).unwrap())
        };
        if self.repairs.iter().any(|(_, other, _)| *other == victim) {
            return;
        }
        self.strikes += 1;
        let is_kill = self.random.below(2) == 0;
        match (victim, is_kill) {
            (Victim::Daemon(rank), true) => self.cluster.kill(rank),
            (Victim::Daemon(rank), false) => self.cluster.signal(rank, Signal::STOP),
            (Victim::Worker(index), true) => self.workers[index].kill(),
            (Victim::Worker(index), false) => {
                self.workers[index].check();
                kill_process(pid(self.workers[index].child.id()), Signal::STOP).unwrap();
            }
        }
        // Long enough, now and then, to be given up for dead.
        let (repair, after) = if is_kill {
            (Repair::Start, self.random.millis(300))
        } else {
            (Repair::Continue, self.random.millis(1500))
        };
        self.repairs.push((Instant::now() + after, victim, repair));
    }

    /// Asks all to end: each client says that all its calls did.
    fn calm(mut self) -> Cluster {
        let (mut answered, mut submitted) = (0, 0);
        for worker in &mut self.workers {
            drop(worker.child.stdin.take());
        }
        for worker in &mut self.workers {
            let mut status = None;
            eventually(|| {
                status = worker.child.try_wait().unwrap();
                status.is_some()
            });
            let words = worker.words();
            assert!(
                status.unwrap().success(),
                "a {} of rank {}: {words}",
                worker.role,
                worker.rank
            );
            if let Some((of_answered, of_submitted)) = words.trim().split_once(' ') {
                answered += of_answered.parse::<u64>().unwrap();
                submitted += of_submitted.parse::<u64>().unwrap();
            }
        }
        println!("{answered} of {submitted} calls were answered, {} strikes", self.strikes);
        assert!(answered > 0);
        self.cluster
    }
}

/// Buffers for long bodies that a daemon keeps for each peer when nobody uses them; everybody sees
/// those of all.
const KEPT_PER_PEER: usize = 8;
/// Registered regions of either side that a queue pair of the software NIC remembers, though they may
/// be gone.
const REMEMBERED_PER_PEER: usize = 16;

/// What may be held besides, and how many of it, where there are so many NICs.
fn slack(nics: usize) -> [(&'static str, usize); 3] {
    let peers = nics - 1;
    let buffers = peers * (nics * KEPT_PER_PEER + REMEMBERED_PER_PEER);
    [
        ("descriptor /memfd:copyrpc-mr (deleted)", buffers),
        ("mapping copyrpc-mr (deleted)", buffers),
        // Two NICs that connect to each other at the same time keep both connections.
        ("descriptor socket", peers),
    ]
}

/// A daemon holds again what it held.
fn eventually_as_before(cluster: &Cluster, rank: u32, before: &Holdings, nics: usize) {
    let slack = slack(nics);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut now = cluster.holdings(rank);
        for (kind, besides) in slack {
            let now = now.entry(kind.to_owned()).or_default();
            if now.abs_diff(before[kind]) <= besides {
                *now = before[kind];
            }
        }
        if now == *before {
            return;
        }
        if Instant::now() > deadline {
            assert_eq!(now, *before, "rank {rank} holds other things than before");
        }
        thread::sleep(NAP);
    }
}

/// The machine is for one storm at a time.
static MACHINE: Mutex<()> = Mutex::new(());

fn weather(size: u32, threads: usize, settings: &[(&'static str, &'static str)]) {
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::with(size, settings);
    let nics = cluster.daemons.len() * threads;
    let ranks = 0..size;
    // What is only made at the first call, or for the first client, belongs to the baseline.
    for rank in ranks.clone() {
        let mut client = cluster.client(rank);
        ranks.clone().for_each(|to| assert_eq!(client.ping(to, b"here").unwrap(), b"here"));
    }
    let is_idle = |cluster: &Cluster, rank| {
        let is_zero = |counter| cluster.counter(rank, counter) == Some(0);
        // Counters are shown a moment before, or after, what they count has come or gone.
        let has_client = cluster.holdings(rank).keys().any(|kind| kind.contains("copyrpc-up"));
        is_zero(Counter::Clients) && is_zero(Counter::Outstanding) && !has_client
    };
    ranks.clone().for_each(|rank| eventually(|| is_idle(&cluster, rank)));
    let before: Vec<_> = ranks.clone().map(|rank| cluster.holdings(rank)).collect();
    let shared = || {
        let mut names = names_in(Path::new("/dev/shm"));
        names.retain(|name| name.contains("copyrpc"));
        names
    };
    let shared_before = shared();
    let seed = u64::from(process::id()) << 8 | u64::from(size);
    println!("seed {seed}");
    let mut storm = Storm::begin(cluster, seed);
    storm.rage(length());
    let peers = u64::from(size) - 1;
    ranks.clone().for_each(|rank| storm.cluster.wait_up(rank, peers));
    // All is as it should be only if it works again, under load.
    for rank in ranks.clone() {
        let replies = || storm.cluster.counter(rank, Counter::Replies).unwrap_or(0);
        let before = replies();
        eventually(|| replies() > before + 500);
    }
    let cluster = storm.calm();
    for rank in ranks {
        eventually(|| is_idle(&cluster, rank));
        eventually_as_before(&cluster, rank, &before[rank as usize], nics);
    }
    assert_eq!(shared(), shared_before);
    cluster.end();
}

#[test]
fn fault_a_storm_over_two_daemons_ends_every_call_and_leaves_nothing() {
    weather(2, 1, &[]);
}

#[test]
fn fault_a_storm_over_daemons_of_two_threads_ends_every_call_and_leaves_nothing() {
    weather(3, 2, TWO);
}

#[test]
fn fault_a_storm_over_four_daemons_ends_every_call_and_leaves_nothing() {
    weather(4, 1, &[]);
}
