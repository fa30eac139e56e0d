//! A daemon on real clients, a real NIC and real time.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    os::fd::AsFd as _,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use memory::sync::{AtomicBool, Ordering, hint, thread};
use os::clock;
use rpc::{Config as WorkerConfig, Worker};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use verbs::{Channel as _, Nic};

use crate::{
    bootstrap::{Alone, Bootstrap, BootstrapError, Folder, Place, Secret, Tcp},
    config::{DaemonConfig, Start, WaitPolicy},
    daemon::{
        Codec, Daemon, IpcFront, Parts, Services, UdpControl,
        office::{Visit, message_bytes_max},
        roster::Roster,
    },
    membership::DetectorConfig,
    metrics::{Counter, Life, MetricsError, MetricsFile, Recorder},
    runtime::{Runtime, RuntimeError},
};

/// How long an idle loop polls before it yields: about as long as it takes to be woken up.
const SPIN_NS: u64 = 40_000;

/// How often it yields before it sleeps.
const YIELDS: u32 = 16;

/// Longest sleep: what shared memory may have failed to say is found by then.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// Why a daemon did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// It cannot have its place.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// It cannot count.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// It cannot listen for clients.
    #[error("cannot listen for clients: {0}")]
    Front(#[from] ipc::BindError),
    /// The NIC refused.
    #[error("cannot use the NIC: {0}")]
    Worker(#[from] rpc::OpenError),
    /// It cannot listen for other daemons.
    #[error("cannot listen for other daemons at {address}: {source}")]
    Control {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// It did not find the others.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// Another daemon told nonsense.
    #[error("rank {rank} told no address: `{text}`; do all daemons have the same version?")]
    Blob {
        /// Which.
        rank: u32,
        /// What it told.
        text: String,
    },
}

/// Turns without work.
struct Idle {
    since_ns: u64,
    yields: u32,
}

/// Which daemon, and what it belongs to.
#[derive(Clone, Debug)]
pub struct Serving {
    /// Its settings.
    pub config: DaemonConfig,
    /// Its place on this machine.
    pub runtime: Runtime,
    /// Which of how many.
    pub place: Place,
    /// What only the daemons of the job know.
    pub secret: Secret,
}

/// Finds the other daemons and serves until `stop` is set; then finishes what is in flight.
///
/// # Errors
///
/// [`ServeError`].
pub fn serve<N: Nic>(
    serving: &Serving,
    nic: N,
    services: Services<IpcFront>,
    stop: &AtomicBool,
) -> Result<(), ServeError> {
    let Serving { config, runtime, place, secret } = serving;
    let _claim = runtime.claim()?;
    let (metrics, mut recorders) =
        MetricsFile::create(&runtime.metrics(), runtime.name(), *place, 1, config.sample_every)?;
    let mut bootstrap = bootstrap(serving)?;
    let control = meet(serving, bootstrap.as_mut())?;
    // Removed at the end; one who is killed leaves it to its next life.
    let _roster = Roster(runtime.roster());
    let opening = Opening {
        place: *place,
        socket: &runtime.socket(),
        codec: Codec::new(runtime.job().clone(), secret.clone(), place.rank()),
        services,
        recorder: recorders.remove(0),
        worker: worker_config(*place),
    };
    let mut daemon = Daemon::open(config, nic, control, opening)?;
    metrics.set_life(Life::Serving);
    tracing::info!(daemon = runtime.name(), %place, socket = %runtime.socket().display(), "serving");
    daemon.run(config.wait, |_| stop.load(Ordering::Relaxed));
    metrics.set_life(Life::Draining);
    tracing::info!(outstanding = daemon.outstanding(), "draining");
    daemon.drain();
    let deadline_ns = clock::deadline_ns(config.drain_timeout);
    let is_over =
        |daemon: &Daemon<_, _, _>| daemon.outstanding() == 0 || clock::now_ns() >= deadline_ns;
    daemon.run(config.wait, is_over);
    // Answers of the last turn reach clients that sleep.
    daemon.step(clock::now_ns());
    daemon.leave(clock::now_ns());
    Ok(())
}

fn bootstrap(serving: &Serving) -> Result<Box<dyn Bootstrap>, ServeError> {
    let Serving { config, runtime, place, secret } = serving;
    let (job, secret) = (runtime.job().clone(), secret.clone());
    let timeout = config.bootstrap_timeout;
    Ok(match &config.start {
        Start::Alone => Box::new(Alone),
        Start::Tcp(address) => {
            let (handshake, remember) = (config.handshake_timeout, runtime.roster());
            let remember = Some(remember.as_path());
            Box::new(Tcp::new(address, job, secret, *place, timeout, handshake, remember)?)
        }
        Start::Join(address) => Box::new(Tcp::of_hub(address, job, secret, *place, timeout)),
        Start::File(folder) => Box::new(Folder::new(folder, job, secret, *place, timeout)),
    })
}

/// Tells the others where this daemon listens, and learns where they do.
fn meet(serving: &Serving, bootstrap: &mut dyn Bootstrap) -> Result<UdpControl, ServeError> {
    let address = SocketAddr::new(own_address(&serving.config.start), 0);
    let fail = |source| ServeError::Control { address, source };
    let mut control = UdpControl::bind(address, serving.place.size()).map_err(fail)?;
    let blob = control.address().map_err(fail)?.to_string();
    let blobs = bootstrap.exchange(blob.as_bytes())?;
    for (rank, blob) in (0..).zip(&blobs) {
        let text = String::from_utf8_lossy(blob);
        match text.parse() {
            Ok(address) => control.set(rank, address),
            Err(_) => return Err(ServeError::Blob { rank, text: text.chars().take(80).collect() }),
        }
    }
    Ok(control)
}

/// The address of this machine that others reach: that from which it reaches the rendezvous.
fn own_address(start: &Start) -> IpAddr {
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let target = match start {
        Start::Alone => return loopback,
        Start::Tcp(address) | Start::Join(address) => address.clone(),
        // Of TEST-NET-1 (RFC 5737): only the route counts, nothing is sent.
        Start::File(_) => "192.0.2.1:9".to_owned(),
    };
    let local = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| {
        socket.connect(&target)?;
        socket.local_addr()
    });
    local.map_or(loopback, |address| address.ip())
}

fn ipc_config(config: &DaemonConfig) -> ipc::ServerConfig {
    let message_bytes_max = message_bytes_max(config.message_bytes_max);
    ipc::ServerConfig {
        depth: config.depth,
        request_bytes_max: message_bytes_max,
        response_bytes_max: message_bytes_max,
        clients_max: config.clients_max,
        clients_per_user_max: config.clients_max,
        turn_budget: config.turn_budget,
        stall_timeout: config.stall_timeout,
        ..ipc::ServerConfig::default()
    }
}

fn worker_config(place: Place) -> WorkerConfig {
    // One place for each peer, and as many for those whose last connection is not gone yet.
    let peers = u16::try_from(place.size().saturating_sub(1)).unwrap_or(u16::MAX);
    WorkerConfig { peers_max: peers.max(1), ..WorkerConfig::default() }
}

fn detector_config(config: &DaemonConfig) -> DetectorConfig {
    DetectorConfig {
        interval_ns: nanos(config.heartbeat_interval),
        suspect_after_ns: nanos(config.suspect_after),
        dead_after_ns: nanos(config.dead_after),
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// What a daemon is opened with besides its settings, for programs that turn it themselves.
pub struct Opening<'a> {
    /// Which of how many.
    pub place: Place,
    /// Where clients find it; in a folder that only its user can enter.
    pub socket: &'a Path,
    /// Datagrams of the job.
    pub codec: Codec,
    /// What it offers.
    pub services: Services<IpcFront>,
    /// Where it counts.
    pub recorder: Recorder,
    /// How it calls others.
    pub worker: WorkerConfig,
}

impl<N: Nic> Daemon<N, IpcFront, UdpControl> {
    /// A daemon for real clients and real time. `control` knows where the others listen.
    ///
    /// # Errors
    ///
    /// [`ServeError`].
    pub fn open(
        config: &DaemonConfig,
        nic: N,
        control: UdpControl,
        opening: Opening<'_>,
    ) -> Result<Self, ServeError> {
        let Opening { place, socket, codec, services, recorder, worker } = opening;
        let server = ipc::Server::bind(socket, ipc_config(config))?;
        let worker = Worker::open(nic, worker, clock::now_ns())?;
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let parts = Parts {
            place,
            detector: detector_config(config),
            epoch: nanos(epoch),
            codec,
            services,
            recorder,
            call_timeout: config.call_timeout,
            body_bytes_max: config.message_bytes_max,
            sample_every: config.sample_every,
            clock: clock::now_ns,
        };
        Ok(Self::new(worker, IpcFront::new(server), control, parts, clock::now_ns()))
    }

    /// Serves until `is_over`.
    fn run(&mut self, wait: WaitPolicy, is_over: impl Fn(&Self) -> bool) {
        let mut idle = Idle { since_ns: clock::now_ns(), yields: 0 };
        while !is_over(self) {
            let now_ns = clock::now_ns();
            if self.step(now_ns) > 0 {
                idle = Idle { since_ns: now_ns, yields: 0 };
            } else if wait != WaitPolicy::Block && now_ns < idle.since_ns + SPIN_NS {
                hint::spin_loop();
            } else if wait == WaitPolicy::Busy {
                thread::yield_now();
                idle.since_ns = now_ns;
            } else if wait == WaitPolicy::Adaptive && idle.yields < YIELDS {
                thread::yield_now();
                idle.yields += 1;
            } else {
                self.wait(SLEEP_MAX);
            }
        }
    }

    /// Sleeps until a client, the NIC or another daemon has something, or something is due, at most
    /// for `timeout`, and never longer than a tenth of a second. Then step.
    pub fn wait(&mut self, timeout: Duration) {
        let has_work = !self.front.server.arm();
        if has_work || self.worker.arm().is_err() {
            self.front.server.service_now();
            return;
        }
        // What came before the NIC was armed is not announced.
        let Self { worker, office, front, .. } = self;
        if worker.poll(clock::now_ns(), &mut Visit { office, front }) > 0 {
            self.front.server.service_now();
            return;
        }
        self.office.recorder.add(Counter::Sleeps, 1);
        let due = Duration::from_nanos(self.next_ns().saturating_sub(clock::now_ns()));
        let nic = self.worker.nic().poll_timeout().unwrap_or(SLEEP_MAX);
        let timeout = due.min(nic).min(timeout).min(SLEEP_MAX);
        let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() };
        let Some(channel) = self.worker.channel() else { return };
        let mut fds = [
            PollFd::from_borrowed_fd(self.front.server.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(channel.fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.control.as_fd(), PollFlags::IN),
        ];
        // An error is a signal: the loop looks whether it should stop.
        let ready = poll(&mut fds, Some(&timeout)).unwrap_or(0);
        if ready > 0 && !fds[1].revents().is_empty() {
            channel.wait(Duration::ZERO);
        }
        // What came over the socket is heard at once.
        if !fds[2].revents().is_empty() {
            self.control_ns = 0;
        }
        self.front.server.service_now();
    }
}
