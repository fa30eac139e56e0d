//! What a service manager is told (`sd_notify(3)`): that the daemon serves, that it still answers, and that it ends.

use std::{
    env,
    io::{self, Read as _},
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram, UnixStream},
    },
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use client::{Client, ClientConfig};
use memory::sync::{Arc, AtomicBool, Ordering};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    low_level::pipe,
};

/// Between two looks whether the daemon listens.
const STARTING: Duration = Duration::from_millis(20);

/// Longest wait for room in the manager's queue.
const TELL_MAX: Duration = Duration::from_millis(100);

/// The manager's socket.
struct Manager {
    socket: UnixDatagram,
    address: SocketAddr,
    /// It was told that the daemon ends.
    knows_end: AtomicBool,
}

impl Manager {
    /// The one that the environment names.
    fn from_env() -> Option<Self> {
        let name = env::var("NOTIFY_SOCKET").ok()?;
        let address = match name.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name).ok()?,
            None => SocketAddr::from_pathname(name).ok()?,
        };
        let socket = UnixDatagram::unbound().ok()?;
        // A manager that does not read keeps no daemon from ending.
        socket.set_write_timeout(Some(TELL_MAX)).ok()?;
        Some(Self { socket, address, knows_end: AtomicBool::new(false) })
    }

    fn tell(&self, text: &str) -> io::Result<usize> {
        self.socket.send_to_addr(text.as_bytes(), &self.address)
    }

    /// Tells that the daemon ends, once.
    fn tell_end(&self) {
        if !self.knows_end.swap(true, Ordering::Relaxed) {
            let _ = self.tell("STOPPING=1");
        }
    }
}

/// How often the manager wants to hear: twice as often as it asks for.
fn watchdog() -> Option<Duration> {
    let is_for_this =
        env::var("WATCHDOG_PID").map_or(true, |pid| pid.parse() == Ok(std::process::id()));
    let interval_us: u64 = env::var("WATCHDOG_USEC").ok()?.parse().ok()?;
    (is_for_this && interval_us > 0).then(|| Duration::from_micros(interval_us) / 2)
}

/// A byte for each signal that asks to end.
struct Signals(UnixStream);

impl Signals {
    fn new() -> io::Result<Self> {
        let (receiver, sender) = UnixStream::pair()?;
        pipe::register(SIGTERM, sender.try_clone()?)?;
        pipe::register(SIGINT, sender)?;
        Ok(Self(receiver))
    }

    /// Waits for a signal, for so long, or without a limit; whether one came.
    fn wait(&mut self, limit: Option<Duration>) -> bool {
        // A limit of zero would be none.
        let limit = limit.map(|limit| limit.max(Duration::from_micros(1)));
        self.0.set_read_timeout(limit).is_ok() && matches!(self.0.read(&mut [0]), Ok(1))
    }
}

/// Tells the manager, if there is one, when the daemon at `socket` takes calls, from then on, as often as it
/// wants, that its loop turns (a call is answered), and that a signal ends the daemon. A thread does it that ends
/// with the process.
pub(crate) fn start(socket: &Path) -> Notified {
    let Some(manager) = Manager::from_env().map(Arc::new) else { return Notified(None) };
    let notified = Notified(Some(Arc::clone(&manager)));
    let socket = socket.to_owned();
    let started = Signals::new().and_then(|signals| {
        let watched = thread::Builder::new().name("copyrpc-notify".to_owned());
        watched.spawn(move || watch(&manager, socket, signals))
    });
    if let Err(error) = started {
        tracing::warn!(%error, "no thread to tell the service manager with");
    }
    notified
}

/// What the manager hears of a daemon; dropped when the daemon has ended.
pub(crate) struct Notified(Option<Arc<Manager>>);

impl Drop for Notified {
    fn drop(&mut self) {
        // The end may be quicker than the thread.
        if let Some(manager) = &self.0 {
            manager.tell_end();
        }
    }
}

fn watch(manager: &Manager, socket: PathBuf, mut signals: Signals) {
    if attend(manager, &socket, &mut signals) == Ended::BySignal {
        manager.tell_end();
    }
}

/// Why the manager hears no more of the daemon's life.
#[derive(PartialEq, Eq)]
enum Ended {
    BySignal,
    /// It does not answer.
    Silent,
}

fn attend(manager: &Manager, socket: &Path, signals: &mut Signals) -> Ended {
    let interval = watchdog();
    let config = ClientConfig {
        timeout: interval.unwrap_or(Duration::from_secs(5)),
        ..ClientConfig::default()
    };
    let mut client = loop {
        match Client::connect(socket, config) {
            Ok(client) => break client,
            Err(_) if signals.wait(Some(STARTING)) => return Ended::BySignal,
            Err(_) => {}
        }
    };
    if let Err(error) = manager.tell("READY=1") {
        tracing::warn!(%error, "the service manager cannot be notified");
    }
    let Some(interval) = interval else {
        drop(client);
        return if signals.wait(None) { Ended::BySignal } else { Ended::Silent };
    };
    while client.ping(client::HERE, b"").is_ok() {
        let _ = manager.tell("WATCHDOG=1");
        if signals.wait(Some(interval)) {
            return Ended::BySignal;
        }
    }
    Ended::Silent
}
