//! A private directory, a server thread, and processes that are this test binary again.

use std::{
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use memory::sync::{Arc, AtomicBool, AtomicU64, Ordering};
use os::{
    clock,
    unix::{Address, UnixConnection},
};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::{
    BlockingClient, CallError, ClientConfig, ClientProcess, ConnectError, Introducer, Introduction,
    Newcomer, NewcomerState, PipelinedClient, Request, Server, ServerConfig,
    endpoint::{
        client::connection::{self, Connected, Introduced},
        handshake,
    },
};

/// No test waits longer, however loaded the machine is.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// A private directory that vanishes with the value.
pub(super) struct Dir(PathBuf);

impl Dir {
    pub(super) fn new() -> Self {
        static COUNT: std::sync::Mutex<u32> = std::sync::Mutex::new(0);
        let mut count = COUNT.lock().unwrap();
        *count += 1;
        let name = format!("copyrpc-ipc-{}-{count}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.0.join("s")
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Polls a condition until it holds; the only way in which tests wait.
pub(super) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "never happened: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

pub(super) fn small() -> ServerConfig {
    ServerConfig {
        depth: 8,
        request_bytes_max: 1000,
        response_bytes_max: 1000,
        clients_max: 8,
        clients_per_user_max: 8,
        // Messages of this test machine wrap early and often.
        first_position: u64::MAX - 5,
        ..ServerConfig::default()
    }
}

pub(super) fn patient() -> ClientConfig {
    ClientConfig {
        timeout: PATIENCE,
        connect_timeout: PATIENCE,
        first_generation: u64::MAX - 3,
        ..ClientConfig::default()
    }
}

pub(super) fn sync(path: &Path) -> BlockingClient {
    BlockingClient::connect(path, patient()).expect("a server is there")
}

pub(super) fn pipelined<C>(path: &Path) -> PipelinedClient<C> {
    PipelinedClient::connect(path, patient()).expect("a server is there")
}

/// Answers with the request, each byte plus one.
pub(super) fn increment(request: Request<'_>) {
    let response: Vec<u8> = request.payload().iter().map(|byte| byte.wrapping_add(1)).collect();
    request.reply(&response).expect("as long as a request may be");
}

pub(super) fn expect_increment(client: &mut BlockingClient, request: &[u8]) {
    let expected: Vec<u8> = request.iter().map(|byte| byte.wrapping_add(1)).collect();
    assert_eq!(client.call(request), Ok(&expected[..]));
}

/// A server of either kind: one that listens, or one to which clients are introduced, as to a provider.
pub(super) struct Host {
    dir: Dir,
    pub(super) server: ServerThread,
    /// `None`: it listens.
    introducer: Option<Introducer>,
    introduced: AtomicU64,
}

impl Host {
    /// A server of each kind.
    pub(super) fn both<H: FnMut(Request<'_>) + Send + 'static>(
        config: ServerConfig,
        handler: impl Fn() -> H,
    ) -> [Self; 2] {
        let dir = Dir::new();
        let server = ServerThread::start(&dir.socket(), config, handler());
        let listens = Self { dir, server, introducer: None, introduced: AtomicU64::new(0) };
        let (server, channel) = Server::introduced(config).unwrap();
        let introducer = Some(Introducer::adopt(channel).unwrap());
        let server = ServerThread::run(server, handler());
        let introduced = AtomicU64::new(0);
        [listens, Self { dir: Dir::new(), server, introducer, introduced }]
    }

    pub(super) fn is_listening(&self) -> bool {
        self.introducer.is_none()
    }

    /// Introduces a socket; `None`: clients connect by themselves.
    fn introduce(&self) -> Option<UnixConnection> {
        let introducer = self.introducer.as_ref()?;
        let (own, given) = UnixConnection::pair().unwrap();
        let tag = self.introduced.fetch_add(1, Ordering::Relaxed);
        let process = ClientProcess { uid: 7, pid: 8 };
        // The channel may be full while the server is busy.
        let introduction = Introduction { tag, process };
        eventually("room in the channel", || introducer.introduce(given.as_fd(), introduction));
        Some(own)
    }

    /// A client that writes its memory by itself.
    pub(super) fn connect(&self) -> Connected {
        let Some(mut socket) = self.introduce() else {
            return connection::connect(&self.dir.socket(), PATIENCE).expect("a server is there");
        };
        loop {
            match connection::introduced(socket).expect("a server is there") {
                Introduced::NotYet(again) => socket = again,
                Introduced::Connected(connected) => return *connected,
            }
            thread::yield_now();
        }
    }

    /// A socket whose other end the server has, and that has read the welcome.
    pub(super) fn hello(&self) -> UnixConnection {
        let deadline_ns = clock::deadline_ns(PATIENCE);
        let socket = self.introduce().unwrap_or_else(|| {
            let address = Address::Path(self.dir.socket());
            let socket = UnixConnection::connect(&address, deadline_ns).unwrap();
            socket.send(&handshake::write_hello(), &[], deadline_ns).unwrap();
            socket
        });
        socket.recv(&mut [0; 64], 5, deadline_ns).expect("an answer");
        socket
    }

    pub(super) fn sync(&self) -> BlockingClient {
        self.arrive(|newcomer| BlockingClient::introduced(newcomer, patient()), sync)
    }

    pub(super) fn pipelined<C>(&self) -> PipelinedClient<C> {
        self.arrive(|newcomer| PipelinedClient::introduced(newcomer, patient()), pipelined)
    }

    fn arrive<T>(
        &self,
        introduced: impl Fn(Newcomer) -> Result<NewcomerState<T>, ConnectError>,
        connect: impl FnOnce(&Path) -> T,
    ) -> T {
        let Some(socket) = self.introduce() else { return connect(&self.dir.socket()) };
        let mut newcomer = Newcomer::of(socket);
        loop {
            match introduced(newcomer).expect("a server is there") {
                NewcomerState::NotYet(again) => newcomer = again,
                NewcomerState::Arrived(client) => return client,
            }
            thread::yield_now();
        }
    }
}

type Order = Box<dyn FnOnce(&mut Server) + Send>;

/// A server on a thread of this process, which takes orders between turns.
pub(super) struct ServerThread {
    stop: Arc<AtomicBool>,
    orders: mpsc::Sender<Order>,
    thread: Option<JoinHandle<()>>,
}

impl ServerThread {
    pub(super) fn start(
        path: &Path,
        config: ServerConfig,
        handler: impl FnMut(Request<'_>) + Send + 'static,
    ) -> Self {
        Self::run(Server::bind(path, config).expect("the directory is private"), handler)
    }

    pub(super) fn run(
        mut server: Server,
        mut handler: impl FnMut(Request<'_>) + Send + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (orders, inbox) = mpsc::channel::<Order>();
        let thread = thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                while !stop.load(Ordering::Relaxed) {
                    server.serve(&mut handler);
                    for order in inbox.try_iter() {
                        order(&mut server);
                    }
                    server.rest(u64::MAX);
                }
            }
        });
        Self { stop, orders, thread: Some(thread) }
    }

    pub(super) fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Server) -> T + Send + 'static,
    ) -> T {
        let (answer, inbox) = mpsc::channel();
        let order = move |server: &mut Server| drop(answer.send(question(server)));
        self.orders.send(Box::new(order)).expect("the server runs");
        inbox.recv_timeout(PATIENCE).expect("the server takes orders")
    }
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        if !thread::panicking() {
            ended.expect("joined once").expect("the server does not panic");
        }
    }
}

/// A process that runs one role of `process.rs`; killed and reaped with the value.
pub(super) struct Role(Child);

impl Role {
    pub(super) fn start(role: &str, path: &Path, pause: Option<&str>) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this binary"));
        command.args(["--exact", "tests::process::role", "--nocapture", "--test-threads=1"]);
        command.env("COPYRPC_TEST_ROLE", role).env("COPYRPC_TEST_PATH", path);
        command.env_remove("COPYRPC_PAUSE");
        if let Some(point) = pause {
            command.env("COPYRPC_PAUSE", point);
        }
        Self(command.stdout(Stdio::null()).spawn().expect("a process can be started"))
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }

    fn raw_pid(&self) -> Pid {
        Pid::from_raw(self.pid().try_into().unwrap()).unwrap()
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill_process(self.raw_pid(), signal).expect("it is our child");
    }

    /// Waits until the process stopped (by itself, at a pause point, or by a signal).
    pub(super) fn wait_stopped(&self) {
        eventually("the process stops", || {
            let options = WaitOptions::UNTRACED | WaitOptions::NOHANG;
            let status = waitpid(Some(self.raw_pid()), options).expect("it is our child");
            let Some((_, status)) = status else { return false };
            assert!(status.stopped(), "it ended instead: {status:?}");
            true
        });
    }

    /// Waits until the process ends, and says whether it found everything as it should be.
    pub(super) fn succeeds(&mut self) -> bool {
        let mut success = false;
        eventually("the process ends", || {
            let status = self.0.try_wait().expect("it is our child");
            success = status.is_some_and(|status| status.success());
            status.is_some()
        });
        success
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Calls until the server is back to having no clients and owing nothing.
pub(super) fn expect_baseline(server: &ServerThread, clients: usize) {
    eventually("clients are gone", || server.ask(|server| server.stats().clients) == clients);
}

/// A client whose first call succeeds once a server is there.
pub(super) fn connect_eventually(path: &Path) -> BlockingClient {
    let mut client = None;
    eventually("a server is there", || {
        client = BlockingClient::connect(path, patient()).ok();
        client.is_some()
    });
    client.expect("the condition holds")
}

pub(super) fn is_gone(result: Result<&[u8], CallError>) -> bool {
    result == Err(CallError::ServerGone)
}
