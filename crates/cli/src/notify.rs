//! What a service manager is told (`sd_notify(3)`): that the daemon serves, and that it still answers.

use std::{
    env, io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram},
    },
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use client::{Client, ClientConfig};

/// Between two looks whether the daemon listens.
const STARTING: Duration = Duration::from_millis(20);

/// Between two looks after it, where the manager asks for none.
const LOOK: Duration = Duration::from_secs(3600);

/// The manager's socket.
struct Manager {
    socket: UnixDatagram,
    address: SocketAddr,
}

impl Manager {
    /// The one that the environment names.
    fn from_env() -> Option<Self> {
        let name = env::var("NOTIFY_SOCKET").ok()?;
        let address = match name.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name).ok()?,
            None => SocketAddr::from_pathname(name).ok()?,
        };
        Some(Self { socket: UnixDatagram::unbound().ok()?, address })
    }

    fn tell(&self, text: &str) -> io::Result<usize> {
        self.socket.send_to_addr(text.as_bytes(), &self.address)
    }
}

/// How often the manager wants to hear: twice as often as it asks for.
fn watchdog() -> Option<Duration> {
    let is_for_this =
        env::var("WATCHDOG_PID").map_or(true, |pid| pid.parse() == Ok(std::process::id()));
    let interval_us: u64 = env::var("WATCHDOG_USEC").ok()?.parse().ok()?;
    (is_for_this && interval_us > 0).then(|| Duration::from_micros(interval_us) / 2)
}

/// Tells the manager, if there is one, when the daemon at `socket` takes calls, and from then on, as often as it
/// wants, that its loop turns: a call is answered. A thread does it that ends with the process.
pub(crate) fn start(socket: &Path) {
    let Some(manager) = Manager::from_env() else { return };
    let socket = socket.to_owned();
    let watched = thread::Builder::new().name("copyrpc-notify".to_owned());
    let started = watched.spawn(move || watch(&manager, socket));
    if let Err(error) = started {
        tracing::warn!(%error, "no thread to tell the service manager with");
    }
}

fn watch(manager: &Manager, socket: PathBuf) {
    let interval = watchdog();
    let config = ClientConfig {
        timeout: interval.unwrap_or(Duration::from_secs(5)),
        ..ClientConfig::default()
    };
    let mut client = loop {
        match Client::connect(&socket, config) {
            Ok(client) => break client,
            Err(_) => thread::sleep(STARTING),
        }
    };
    if let Err(error) = manager.tell("READY=1") {
        tracing::warn!(%error, "the service manager cannot be told");
    }
    let Some(interval) = interval else { return drop(client) };
    while client.ping(client::HERE, b"").is_ok() {
        let _ = manager.tell("WATCHDOG=1");
        thread::sleep(interval.min(LOOK));
    }
}
