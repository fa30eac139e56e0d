//! A daemon that can be stopped and started, and a service whose requests a test can hold.

use std::{
    env, fs, mem,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use copyrpc::{
    Client, ClientConfig, JobId, Provider, ProviderStop, Request, Retry, Runtime, Status,
    bulk::{BulkProvider, BulkRegion, BulkRequest, Direction, Move},
    daemon::{self, BackgroundDaemon},
    name,
    nic::Selection,
    typed::{Raw, service},
};

service! {
    /// What a test asks for.
    pub(crate) trait Probe("probe"), client ProbeClient, futures ProbeFutures, codec Raw {
        /// The body.
        fn echo(body: Vec<u8>) -> Vec<u8>;
        /// Nothing before the test says so.
        fn hold(body: Vec<u8>) -> Vec<u8>;
        /// Not found, and the body as the reason.
        fn refuse(body: Vec<u8>) -> Vec<u8>;
        /// A method that the provider does not have.
        fn absent(body: Vec<u8>) -> Vec<u8>;
    }
}

/// Longest wait for what comes soon, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until something is so.
pub(crate) fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A node of one daemon.
pub(crate) struct Node {
    runtime: Runtime,
    folder: PathBuf,
    daemon: Option<BackgroundDaemon>,
}

impl Node {
    pub(crate) fn start() -> Self {
        static COUNT: Mutex<u32> = Mutex::new(0);
        let number = {
            let mut count = COUNT.lock().unwrap();
            *count += 1;
            *count
        };
        let folder = env::temp_dir().join(format!("copyrpc-promises-{}-{number}", process::id()));
        let runtime = Runtime::new(folder.clone(), JobId::new("promises").unwrap(), "").unwrap();
        let mut node = Self { runtime, folder, daemon: None };
        node.start_daemon();
        node
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.runtime.socket()
    }

    pub(crate) fn start_daemon(&mut self) {
        let mut alone = daemon::alone(self.runtime.clone());
        // Requests that wait for their cancellation outlast every drain.
        alone.config.drain_timeout = Duration::from_millis(200);
        let daemon = BackgroundDaemon::start(alone, Selection::from_env(), |_| Default::default());
        self.daemon = Some(daemon.unwrap());
    }

    /// Calls in flight end with their daemon.
    pub(crate) fn stop_daemon(&mut self) {
        self.daemon.take().unwrap().stop().unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.daemon.take());
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Daemons of two ranks on this node, which find each other in a folder, and the sockets of both.
pub(crate) struct Pair {
    pub(crate) sockets: [PathBuf; 2],
    daemons: Vec<BackgroundDaemon>,
    folder: PathBuf,
}

impl Pair {
    pub(crate) fn start() -> Self {
        let folder = env::temp_dir().join(format!("copyrpc-promises-pair-{}", process::id()));
        fs::create_dir_all(folder.join("meet")).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        let secret = daemon::Secret::random();
        let runtimes = ["0", "1"].map(|instance| {
            Runtime::new(folder.clone(), JobId::new("pair").unwrap(), instance).unwrap()
        });
        let sockets = runtimes.each_ref().map(Runtime::socket);
        let starting = (0..).zip(runtimes).map(|(rank, runtime)| {
            let mut serving = daemon::alone(runtime);
            serving.rank_info = daemon::RankInfo::new(rank, 2).unwrap();
            serving.secret = secret.clone();
            serving.config.start = daemon::config::Start::File(folder.join("meet"));
            let nic = Selection::from_env();
            thread::spawn(|| BackgroundDaemon::start(serving, nic, |_| Default::default()))
        });
        let starting: Vec<_> = starting.collect();
        let daemons = starting.into_iter().map(|it| it.join().unwrap().unwrap()).collect();
        // A call to a rank that is not up yet is refused.
        eventually("the other rank is up", || {
            let client = Client::connect(&sockets[0], ClientConfig::default());
            client.unwrap().ping(1, b"").is_ok()
        });
        Self { sockets, daemons, folder }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.daemons.clear();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A provider of [`Probe`], ended with the value.
pub(crate) struct Service {
    /// Of the requests so far.
    pub(crate) traces: Arc<Mutex<Vec<u64>>>,
    held: Held,
    serving: Option<JoinHandle<()>>,
}

/// Requests that wait for the test.
enum Held {
    Requests(Arc<Mutex<Vec<Request>>>, ProviderStop),
    Lending(Arc<Mutex<Lending>>),
}

/// What the thread has that serves calls which lend memory, and what it is to do.
#[derive(Clone, Copy, Default)]
struct Lending {
    held: usize,
    /// Of those that are held.
    cancelled: usize,
    lets_cancelled_go: bool,
    lets_all_go: bool,
    is_over: bool,
}

impl Service {
    pub(crate) fn start(node: &Node) -> Self {
        Self::start_at(&node.socket())
    }

    pub(crate) fn start_at(socket: &Path) -> Self {
        let offer = <dyn Probe>::offer().window(64).reconnecting(Retry::standard());
        let provider = Provider::offer(socket, &offer, ClientConfig::default()).unwrap();
        let held = Arc::new(Mutex::new(Vec::new()));
        let (holds, stop) = (Arc::clone(&held), provider.stop_handle());
        let traces = Arc::new(Mutex::new(Vec::new()));
        let traced = Arc::clone(&traces);
        let numbers = ["echo", "hold", "refuse"].map(copyrpc::name::method_number);
        let serve = move || {
            let served = provider.run(|mut request| {
                let [echo, hold, refuse] = numbers;
                traced.lock().unwrap().push(request.context().caller.trace);
                let body = request.take_body();
                match request.method() {
                    method if method == echo => request.reply(Status::Ok, body),
                    method if method == refuse => request.reply(Status::NotFound, body),
                    method if method == hold => holds.lock().unwrap().push(request),
                    _ => request.reply(Status::Unimplemented, Vec::new()),
                }
            });
            // It ends with its test at the latest.
            drop(served);
        };
        let held = Held::Requests(held, stop);
        Self { held, traces, serving: Some(thread::spawn(serve)) }
    }

    /// A provider of calls that lend memory.
    pub(crate) fn lending(node: &Node) -> Self {
        let config =
            ClientConfig { retry: Retry::standard(), timeout: PATIENCE, ..ClientConfig::default() };
        let provider = BulkProvider::offer_named(&node.socket(), "probe", config).unwrap();
        let (lending, traces) =
            (Arc::<Mutex<Lending>>::default(), Arc::<Mutex<Vec<u64>>>::default());
        let (shared, traced) = (Arc::clone(&lending), Arc::clone(&traces));
        let serving = thread::spawn(move || serve_lending(provider, &shared, &traced));
        Self { held: Held::Lending(lending), traces, serving: Some(serving) }
    }

    /// Requests that are held.
    pub(crate) fn holds(&self) -> usize {
        match &self.held {
            Held::Requests(held, _) => held.lock().unwrap().len(),
            Held::Lending(lending) => lending.lock().unwrap().held,
        }
    }

    /// Whether those that are held are all cancelled.
    pub(crate) fn are_told(&self) -> bool {
        match &self.held {
            Held::Requests(held, _) => {
                held.lock().unwrap().iter().all(|request| request.context().is_cancelled())
            }
            Held::Lending(lending) => {
                let Lending { held, cancelled, .. } = *lending.lock().unwrap();
                held == cancelled
            }
        }
    }

    /// Answers all that are held.
    pub(crate) fn let_go(&self) {
        match &self.held {
            Held::Requests(held, _) => held.lock().unwrap().clear(),
            Held::Lending(lending) => {
                lending.lock().unwrap().lets_all_go = true;
                eventually("all are answered", || self.holds() == 0);
                lending.lock().unwrap().lets_all_go = false;
            }
        }
    }

    /// Answers those that are held and cancelled.
    pub(crate) fn let_cancelled_go(&self) {
        match &self.held {
            Held::Requests(held, _) => {
                held.lock().unwrap().retain(|request| !request.context().is_cancelled());
            }
            Held::Lending(lending) => lending.lock().unwrap().lets_cancelled_go = true,
        }
    }
}

fn serve_lending(mut provider: BulkProvider, shared: &Mutex<Lending>, traces: &Mutex<Vec<u64>>) {
    let mut own = provider.bulk(4096).unwrap();
    let mut held: Vec<(BulkRequest, bool)> = Vec::new();
    loop {
        if let Some(work) = provider.next(Duration::from_millis(1)).unwrap() {
            traces.lock().unwrap().push(work.context.unwrap().trace);
            if work.method == name::method_number("hold") {
                held.push((work, false));
            } else {
                answer_lent(&mut provider, &mut own, work);
            }
        }
        let Lending { lets_cancelled_go, lets_all_go, is_over, .. } = *shared.lock().unwrap();
        if is_over {
            return;
        }
        for (work, mut is_cancelled) in mem::take(&mut held) {
            is_cancelled = is_cancelled || provider.is_cancelled(&work);
            if lets_all_go || lets_cancelled_go && is_cancelled {
                provider.answer(work, Status::Cancelled, b"").unwrap();
            } else {
                held.push((work, is_cancelled));
            }
        }
        let mut shared = shared.lock().unwrap();
        shared.held = held.len();
        shared.cancelled = held.iter().filter(|(_, is_cancelled)| *is_cancelled).count();
    }
}

/// Answers by what the call lends.
fn answer_lent(provider: &mut BulkProvider, own: &mut BulkRegion, work: BulkRequest) {
    let method = work.method;
    let status = match method {
        _ if method == name::method_number("echo") => Status::Ok,
        _ if method == name::method_number("refuse") => Status::NotFound,
        _ => Status::Unimplemented,
    };
    provider.renew(own).unwrap();
    let len_bytes = work.slices[0].len_bytes;
    let moves =
        [Move { slice: 0, direction: Direction::Pull, offset: 0, local_offset: 0, len_bytes }];
    // A call may end meanwhile.
    let moved = provider.transfer(&work, own, &moves, PATIENCE).unwrap_or(0);
    let mut pulled = vec![0; usize::try_from(moved).unwrap()];
    own.read(0, &mut pulled).unwrap();
    provider.answer(work, status, &pulled).unwrap();
}

impl Drop for Service {
    fn drop(&mut self) {
        match &self.held {
            Held::Requests(held, stop) => {
                held.lock().unwrap().clear();
                stop.stop();
            }
            Held::Lending(lending) => lending.lock().unwrap().is_over = true,
        }
        let _ = self.serving.take().map(JoinHandle::join);
    }
}
