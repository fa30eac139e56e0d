//! Daemons that are replaced while their job goes on, by the same build and by another one.

use std::{
    env,
    fs::File,
    path::PathBuf,
    process::{Command, Output},
    thread,
};

use client::{
    Client, ClientConfig, ConnectError, Offer, Provider, Retry, Status, To, message::HERE,
};
use memory::sync::{AtomicBool, AtomicU64, Ordering};

use super::cluster::{Cluster, ECHO, PATIENCE, PROGRAM, body, connect, eventually, reverse};

/// Names the program of another build: `cargo xtask two-builds COMMIT` sets it.
const OTHER: &str = "COPYRPC_TEST_OTHER_BUILD";

/// Retries for as long as the tests wait.
fn patient() -> ClientConfig {
    let retry = Retry {
        retries_max: 100_000,
        budget_percent: 10_000_000,
        backoff_max: std::time::Duration::from_millis(20),
        awaits_service: true,
        is_idempotent: true,
        ..Retry::standard()
    };
    ClientConfig { timeout: PATIENCE, retry, ..ClientConfig::default() }
}

/// Calls that were answered, by rank of the caller; and whether to end.
struct Load {
    answered: Vec<AtomicU64>,
    is_over: AtomicBool,
}

impl Load {
    fn new(ranks: usize) -> Self {
        let answered = (0..ranks).map(|_| AtomicU64::new(0)).collect();
        Self { answered, is_over: AtomicBool::new(false) }
    }

    /// Calls all ranks in turn, and checks each answer.
    fn call(&self, mut client: Client, rank: usize) {
        let ranks = self.answered.len() as u64;
        let mut number = rank as u64;
        while !self.is_over.load(Ordering::Relaxed) {
            let (to, body) = (u32::try_from(number % ranks).unwrap(), body(number));
            match client.call(To::new(to, ECHO, 0), &body) {
                Ok(answer) => {
                    assert_eq!(answer, reverse(&body));
                    self.answered[rank].fetch_add(1, Ordering::Relaxed);
                    number += 1;
                }
                // Its daemon, or that of the other node, is being replaced.
                Err(error) => {
                    let told = [Status::Unavailable, Status::Unimplemented, Status::Cancelled];
                    assert!(told.contains(&error.status()), "rank {rank}: {error:?}");
                    thread::yield_now();
                }
            }
        }
    }

    /// Waits until each caller got so many answers more, so that all have called all ranks.
    fn wait_for_answers(&self, more: u64) {
        let counts = || self.answered.iter().map(|count| count.load(Ordering::Relaxed));
        let before: Vec<_> = counts().collect();
        eventually(|| counts().zip(&before).all(|(now, before)| now >= before + more));
    }
}

/// A provider and a caller at each rank; what `replace` does meanwhile, daemon by daemon.
fn under_load(cluster: &mut Cluster, mut replace: impl FnMut(&mut Cluster, &Load)) {
    let ranks = cluster.daemons.len();
    let load = Load::new(ranks);
    let sockets: Vec<_> = (0..).map(|rank| cluster.socket(rank)).take(ranks).collect();
    let offer = Offer::new(ECHO).reconnecting(patient().retry);
    let offered = |socket: &PathBuf| Provider::offer(socket, &offer, patient()).unwrap();
    let providers: Vec<_> = sockets.iter().map(offered).collect();
    let stops: Vec<_> = providers.iter().map(Provider::stop_handle).collect();
    thread::scope(|scope| {
        for provider in providers {
            scope.spawn(|| {
                provider.run(|request| {
                    let body = reverse(request.body());
                    request.reply(Status::Ok, body);
                })
            });
        }
        let clients = sockets.iter().map(|socket| Client::connect(socket, patient()).unwrap());
        for (rank, client) in clients.enumerate() {
            let load = &load;
            scope.spawn(move || load.call(client, rank));
        }
        load.wait_for_answers(2 * ranks as u64);
        replace(cluster, &load);
        load.is_over.store(true, Ordering::Relaxed);
        stops.iter().for_each(client::ProviderStop::stop);
    });
}

/// Stops a daemon in order, and starts its successor; the others and all processes stay.
fn restart(cluster: &mut Cluster, rank: u32) {
    let peers = cluster.daemons.len() as u64 - 1;
    cluster.stop(rank);
    cluster.start(rank);
    (0..=u32::try_from(peers).unwrap()).for_each(|rank| cluster.wait_up(rank, peers));
}

#[test]
fn all_daemons_are_replaced_in_turn_under_load_and_callers_and_providers_go_on() {
    let mut cluster = Cluster::new(3);
    under_load(&mut cluster, |cluster, load| {
        for rank in [1, 2, 0] {
            restart(cluster, rank);
            load.wait_for_answers(6);
        }
    });
    cluster.end();
}

/// What comes of two builds that meet.
enum Met {
    /// Both are up.
    Up,
    /// One has refused the other, or ended because it was refused, and said so.
    Refused(String),
}

fn meet(cluster: &Cluster, logs: &[PathBuf]) -> Met {
    let mut met = None;
    eventually(|| {
        let says_version = |log: &PathBuf| {
            let text = std::fs::read_to_string(log).unwrap_or_default();
            text.lines().find(|line| line.contains("version")).map(str::to_owned)
        };
        let is_up = |rank| cluster.counter(rank, daemon::metrics::Counter::PeersUp) == Some(1);
        met = match logs.iter().find_map(says_version) {
            Some(line) => Some(Met::Refused(line)),
            None => (is_up(0) && is_up(1)).then_some(Met::Up),
        };
        met.is_some()
    });
    met.unwrap()
}

/// A process of one build asks the daemon of the other, at `rank`.
fn ask(cluster: &Cluster, program: &PathBuf, rank: u32) -> Output {
    let mut command = Command::new(program);
    let instance = rank.to_string();
    cluster.settle(rank, &mut command).args(["ping", &instance, "--count", "3"]);
    command.args(["--instance", &instance]).output().unwrap()
}

/// Builds of one protocol serve each other, and one replaces the other under load; builds of two name both
/// versions. A client of either build is served by the other's daemon, or told both versions.
#[test]
#[ignore = "needs another build: `cargo xtask two-builds COMMIT` makes it"]
fn fault_e7_two_builds_serve_each_other_or_name_both_versions() {
    let other = PathBuf::from(env::var_os(OTHER).expect("the program of another build"));
    let mut cluster = Cluster::of_programs(vec![other.clone(), PROGRAM.into()]);
    let logs = [0, 1].map(|rank| cluster.folder.join(format!("{rank}.log")));
    for (rank, log) in (0..).zip(&logs) {
        cluster.kill(rank);
        let mut command = cluster.command(rank);
        cluster.configure(rank, command.arg("daemon"));
        command.stderr(File::create(log).unwrap());
        cluster.daemons[rank as usize] = Some(command.spawn().unwrap());
    }
    let met = meet(&cluster, &logs);
    // The older program at the newer daemon, and the other way round.
    for (program, rank) in [(&other, 1), (&PathBuf::from(PROGRAM), 0)] {
        let asked = ask(&cluster, program, rank);
        let told = String::from_utf8_lossy(&asked.stderr);
        assert!(
            asked.status.success() || told.contains("version"),
            "{}: {told}",
            program.display()
        );
        println!("{} at daemon {rank}: {}", program.display(), asked.status);
    }
    if let Met::Refused(told) = met {
        let numbers = told.split(|c: char| !c.is_ascii_digit()).filter(|word| !word.is_empty());
        assert!(numbers.count() >= 2, "it names both versions: {told}");
        println!("refused: {told}");
        return;
    }
    let spoke = Client::connect(&cluster.socket(0), ClientConfig::default());
    if let Err(error @ ConnectError::Handshake(_)) = &spoke {
        assert!(error.to_string().contains("version"), "{error}");
        println!("a client is refused: {error}");
        return;
    }
    let mut client = spoke.unwrap();
    assert_eq!(
        client.ping(1, b"from the other build's node").unwrap(),
        b"from the other build's node"
    );
    assert_eq!(connect(&cluster.socket(1)).ping(0, b"to it").unwrap(), b"to it");
    under_load(&mut cluster, |cluster, load| {
        load.wait_for_answers(100);
        for programs in [[PROGRAM.into(), other.clone()], [PROGRAM.into(), PROGRAM.into()]] {
            for (rank, program) in programs.into_iter().enumerate() {
                cluster.programs[rank] = program;
                restart(cluster, u32::try_from(rank).unwrap());
                load.wait_for_answers(100);
            }
        }
    });
    assert_eq!(connect(&cluster.socket(0)).ping(HERE, b"done").unwrap(), b"done");
    println!("served");
}
