//! Round trips and pipelined calls between two pinned processes, every answer checked.
//!
//! The server is this program again, on the first allowed core; clients run on the second. Each
//! sample is bracketed by a ping-pong of one cache line per direction between the same cores, whose
//! time tells near from far placements of virtual cores , and the ratio of
//! both is what compares between machines.

use std::{
    hint::black_box,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{OnceLock, mpsc},
    time::{Duration, Instant},
};

use copyrpc_ipc::{AsyncClient, ClientConfig, Server, ServerConfig, SyncClient, Wait};
use memory::{
    Access, Region,
    sync::{AtomicU64, Ordering, hint},
};

const ROLE: &str = "COPYRPC_BENCH_ROLE";
const SOCKET: &str = "COPYRPC_BENCH_SOCKET";

/// Payload sizes, in bytes; both ways.
const SIZES: [usize; 3] = [8, 56, 4096];

/// Round trips of the line ping-pong above which the cores are far apart, in nanoseconds.
const FAR_NS: f64 = 250.0;

struct Plan<'p> {
    probe: &'p Probe,
    samples: usize,
    calls: u32,
}

fn main() {
    if std::env::var(ROLE).is_ok_and(|role| role == "server") {
        return serve();
    }
    let is_smoke = !std::env::args().any(|arg| arg == "--bench");
    let directory = std::env::temp_dir().join(format!("copyrpc-bench-{}", std::process::id()));
    let socket = directory.join("s");
    let server = ServerProcess::start(&socket);
    let probe = &Probe::start();
    let (samples, calls) = if is_smoke { (1, 200) } else { (7, 50_000) };
    let plan = Plan { probe, samples, calls };
    pin(1);
    println!("{:<34} {:>9} {:>9} {:>9} {:>7} regime", "cell", "median", "min", "max", "/ limit");
    round_trips(&socket, &plan);
    pipelined(&socket, &plan);
    many_clients(&socket, &plan);
    after_idle(&socket, &plan);
    drop(server);
    let _ = std::fs::remove_dir_all(&directory);
}

fn pin(index: usize) {
    // Asked once, of a thread that is not pinned yet: a pinned one may use one core only.
    static CORES: OnceLock<Vec<usize>> = OnceLock::new();
    let cores = CORES.get_or_init(|| os::affinity::allowed_cores().expect("the kernel tells"));
    os::affinity::pin_current_thread(cores[index % cores.len()]).expect("an allowed core");
}

/// The other process; ends when it is dropped.
struct ServerProcess(Child);

impl ServerProcess {
    fn start(socket: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.env(ROLE, "server").env(SOCKET, socket).stdin(Stdio::piped());
        Self(command.spawn().expect("a process can be started"))
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Echoes.
fn serve() {
    pin(0);
    let socket = PathBuf::from(std::env::var_os(SOCKET).expect("set with the role"));
    let config = ServerConfig { wait: Wait::default(), depth: 64, ..ServerConfig::default() };
    let mut server = Server::bind(&socket, config).expect("the directory is private");
    loop {
        while let Some(request) = server.recv() {
            let payload = request.payload();
            request.reply(payload).expect("as long as the request");
        }
        server.rest(u64::MAX);
    }
}

fn config() -> ClientConfig {
    ClientConfig { wait: Wait::Busy, ..ClientConfig::default() }
}

fn connect(socket: &Path) -> SyncClient {
    let start = Instant::now();
    loop {
        match SyncClient::connect(socket, config()) {
            Ok(client) => return client,
            Err(error) => assert!(start.elapsed() < Duration::from_secs(20), "{error}"),
        }
    }
}

/// A thread on the server's core that answers line ping-pongs.
struct Probe {
    region: Region,
    rounds: mpsc::Sender<u64>,
}

impl Probe {
    /// Called before this thread is pinned.
    fn start() -> Self {
        let region = Region::memfd("copyrpc-probe", 4096).expect("a page");
        let fd = region.fd().expect("a file").try_clone_to_owned().expect("a descriptor");
        let theirs = Region::map(fd, 4096, Access::ReadWrite).expect("the same page");
        let (rounds, inbox) = mpsc::channel();
        std::thread::spawn(move || {
            pin(0);
            let (ping, pong) = words(&theirs);
            for rounds in inbox {
                for round in 1..=rounds {
                    while ping.load(Ordering::Acquire) != round {
                        hint::spin_loop();
                    }
                    pong.store(round, Ordering::Release);
                }
            }
        });
        Self { region, rounds }
    }

    /// Nanoseconds of a round trip with one cache line each way between the two cores.
    fn round_trip_ns(&self, rounds: u64) -> f64 {
        let (ping, pong) = words(&self.region);
        pong.store(0, Ordering::Relaxed);
        ping.store(0, Ordering::Relaxed);
        self.rounds.send(rounds).expect("the thread lives");
        let mut start = Instant::now();
        for round in 1..=rounds {
            ping.store(round, Ordering::Release);
            while pong.load(Ordering::Acquire) != round {
                hint::spin_loop();
            }
            if round == 1 {
                start = Instant::now();
            }
        }
        start.elapsed().as_nanos() as f64 / (rounds - 1) as f64
    }
}

fn words(region: &Region) -> (&AtomicU64, &AtomicU64) {
    (region.shared(0).expect("in the page"), region.shared(256).expect("in the page"))
}

/// Prints one cell: `sample` returns nanoseconds per call.
fn cell(name: &str, plan: &Plan<'_>, mut sample: impl FnMut() -> f64) {
    let mut samples = Vec::new();
    for _ in 0..plan.samples {
        let before = plan.probe.round_trip_ns(2000);
        let ns = sample();
        let after = plan.probe.round_trip_ns(2000);
        let is_far = (before > FAR_NS, after > FAR_NS);
        // Cores that moved meanwhile, or a probe that was interrupted: no regime, no sample.
        if is_far.0 == is_far.1 {
            samples.push((is_far.0, ns, f64::min(before, after)));
        }
    }
    for (is_far, regime) in [(false, "near"), (true, "far")] {
        let mut of_regime: Vec<_> = samples.iter().filter(|sample| sample.0 == is_far).collect();
        of_regime.sort_by(|a, b| a.1.total_cmp(&b.1));
        let (Some(first), Some(last)) = (of_regime.first(), of_regime.last()) else { continue };
        let median = of_regime[of_regime.len() / 2];
        println!(
            "{name:<34} {:>9.1} {:>9.1} {:>9.1} {:>7.2} {regime} (n={}, probe {:.0})",
            median.1,
            first.1,
            last.1,
            median.1 / median.2,
            of_regime.len(),
            median.2
        );
    }
}

fn round_trips(socket: &Path, plan: &Plan<'_>) {
    let mut client = connect(socket);
    for size in SIZES {
        let mut request = vec![0x5a; size];
        cell(&format!("round trip {size} B, ns"), plan, || {
            let start = Instant::now();
            for call in 0..plan.calls {
                request[..4].copy_from_slice(&call.to_le_bytes());
                let response = client.call(&request).expect("the server lives");
                assert_eq!((response.len(), &response[..4]), (size, &request[..4]));
            }
            start.elapsed().as_nanos() as f64 / f64::from(plan.calls)
        });
    }
}

/// Keeps `window` calls in flight per client until `calls` of each are answered.
fn run_windows(clients: &mut [AsyncClient<u32>], request: &mut [u8], window: usize, calls: u32) {
    let mut sent = vec![0; clients.len()];
    let mut answered = 0;
    while answered < calls as usize * clients.len() {
        for (client, sent) in clients.iter_mut().zip(&mut sent) {
            answered += client.poll(|number, response| {
                let response = response.expect("the server lives");
                assert_eq!(
                    (&response[..4], response.len()),
                    (&number.to_le_bytes()[..], request.len())
                );
            });
            while *sent < calls && client.in_flight() < window {
                request[..4].copy_from_slice(&sent.to_le_bytes());
                client.submit(request, *sent).expect("the window is below the depth");
                *sent += 1;
            }
        }
    }
}

fn open(socket: &Path, count: usize) -> Vec<AsyncClient<u32>> {
    (0..count).map(|_| AsyncClient::connect(socket, config()).expect("the server lives")).collect()
}

fn pipelined(socket: &Path, plan: &Plan<'_>) {
    let mut clients = open(socket, 1);
    for (size, window) in SIZES.into_iter().flat_map(|size| [(size, 4), (size, 32), (size, 64)]) {
        let mut request = vec![0x5a; size];
        cell(&format!("window {window}, {size} B, ns per call"), plan, || {
            let start = Instant::now();
            run_windows(&mut clients, &mut request, window, plan.calls);
            start.elapsed().as_nanos() as f64 / f64::from(plan.calls)
        });
    }
}

fn many_clients(socket: &Path, plan: &Plan<'_>) {
    for (count, depth) in [1, 2, 4, 8, 16].into_iter().flat_map(|n| [(n, 1), (n, 4), (n, 32)]) {
        let mut clients = open(socket, count);
        let mut request = vec![0x5a; 56];
        let calls = plan.calls / u32::try_from(count).expect("a few");
        cell(&format!("{count} clients, depth {depth}, ns per call"), plan, || {
            let start = Instant::now();
            run_windows(&mut clients, &mut request, depth, calls);
            start.elapsed().as_nanos() as f64 / (f64::from(calls) * count as f64)
        });
    }
}

fn after_idle(socket: &Path, plan: &Plan<'_>) {
    let mut client = connect(socket);
    cell("first call after 2 ms idle, ns", plan, || {
        std::thread::sleep(Duration::from_millis(2));
        let start = Instant::now();
        let response = client.call(b"12345678").expect("the server lives");
        let elapsed = start.elapsed();
        assert_eq!(black_box(response), b"12345678");
        elapsed.as_nanos() as f64
    });
}
