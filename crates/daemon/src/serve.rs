//! A daemon from its start to its end: one thread, or several that share the work.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    sync::mpsc,
};

use memory::sync::{Arc, AtomicBool, Ordering, thread};
use os::{clock, event::EventError};
use rpc::{Config as WorkerConfig, FlushPolicy};
use rustix::{
    io::Errno,
    process::{Resource, getrlimit},
};
use verbs::Nic;

use crate::{
    Codec, Daemon, IpcPort, LANE_CALLS, Limits, Services, ThreadHandle, UdpControl,
    address_space::{AddressSpaceError, AddressSpaceNeed},
    config::{DaemonConfig, Start},
    metrics::{Life, MetricsError, MetricsFile, Recorder},
    nic_identity::NicIdentity,
    roster::Roster,
    threads::Threads,
};
use bootstrap::{
    Bootstrap, BootstrapError, Folder, Lives, RankInfo, Secret, SingleNode, Tcp, Timeouts, route,
};
use client::runtime::{DaemonLock, Runtime, RuntimeError};

/// Why a daemon did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The runtime folder or the daemon's lock in it cannot be had.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The file of counters cannot be made.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// The socket for clients cannot be bound.
    #[error("cannot listen for clients: {0}")]
    ClientPort(#[from] ipc::BindError),
    /// The NIC refused.
    #[error("cannot use the NIC: {0}")]
    Worker(#[from] rpc::OpenError),
    /// The socket for other daemons cannot be bound.
    #[error("cannot listen for other daemons at {address}: {source}")]
    Control {
        /// The address.
        address: SocketAddr,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The exchange with the other daemons failed.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// Another daemon told nonsense.
    #[error("rank {rank} sent no address: `{text}`; do all daemons have the same version?")]
    Blob {
        /// The rank.
        rank: u32,
        /// The panic's message.
        text: String,
    },
    /// The NICs of two daemons do not reach each other.
    #[error(
        "this rank has NIC {own} and rank {rank} has {theirs}, which do not reach each other: name one kind for all \
         ranks by COPYRPC_NIC and COPYRPC_NIC_DEVICE"
    )]
    NicMix {
        /// The other rank.
        rank: u32,
        /// NIC of this one: device, port, network.
        own: NicIdentity,
        /// Its NIC.
        theirs: NicIdentity,
    },
    /// Ports of NIC `soft` find each other by user and fabric.
    #[error(
        "rank {rank} has NIC {theirs} and this rank {own}, and ports of NIC `soft` reach those of their own user id and \
         COPYRPC_SOFT_FABRIC (both behind the @) only: let them agree, or set COPYRPC_NIC=hosts on all ranks"
    )]
    Fabrics {
        /// The other rank.
        rank: u32,
        /// NIC of this one.
        own: NicIdentity,
        /// Its NIC.
        theirs: NicIdentity,
    },
    /// Shared memory ends at the host.
    #[error(
        "rank {rank} is on another host ({address}), which NIC `soft` does not reach: set COPYRPC_NIC=auto, or \
         name the NIC of this cluster, such as `mlx5`, `ibverbs` or `hosts`, on all ranks"
    )]
    SeveralHosts {
        /// The other rank.
        rank: u32,
        /// Its address.
        address: SocketAddr,
    },
    /// Its threads cannot wake each other.
    #[error(transparent)]
    Wakeup(#[from] EventError),
    /// The kernel gives it no more threads.
    #[error("cannot start a thread: {0}; raise the limit on tasks, or lower COPYRPC_THREADS")]
    Thread(#[source] io::Error),
    /// No client could be let in.
    #[error(
        "{open} of {limit} descriptors are open, which leaves too few for a client; raise `ulimit -n` \
         (systemd: LimitNOFILE)"
    )]
    Descriptors {
        /// Descriptors that are open now.
        open: u64,
        /// As many as may be.
        limit: u64,
    },
    /// Other nodes could not be reached.
    #[error(transparent)]
    AddressSpace(#[from] AddressSpaceError),
    /// The NIC stopped working while the daemon served.
    #[error(transparent)]
    NicFailed(#[from] rpc::NicFailure),
    /// Each thread has a NIC of its own.
    #[error("{threads} threads need a NIC each, and there are {nics}; change COPYRPC_THREADS")]
    Nics {
        /// Threads, as configured.
        threads: u16,
        /// NICs, as passed.
        nics: usize,
    },
}

/// The identity of a daemon that serves.
#[derive(Clone, Debug)]
pub struct Serving {
    /// Its settings.
    pub config: DaemonConfig,
    /// Its place on this machine.
    pub runtime: Runtime,
    /// The rank and the size of the job.
    pub rank_info: RankInfo,
    /// The secret of the job.
    pub secret: Secret,
}

/// Finds the other daemons and serves until `stop` is set, which it may be while it looks for them; then
/// finishes what is in flight. A daemon of one thread, which is that of the caller.
///
/// # Errors
///
/// [`ServeError`].
pub fn serve<N: Nic>(
    serving: &Serving,
    nic: N,
    services: Services<IpcPort>,
    stop: &AtomicBool,
) -> Result<(), ServeError> {
    let threads = serving.config.threads;
    if threads != 1 {
        return Err(ServeError::Nics { threads, nics: 1 });
    }
    check_address_space(serving, &nic)?;
    let identity = NicIdentity::of(&nic);
    let Some(mut shared) = DaemonShared::open(serving, &identity, stop)? else { return Ok(()) };
    let thread = shared.threads.remove(0);
    let mut daemon = thread.open(serving, nic, services)?;
    check_descriptors()?;
    shared.begin(serving);
    live(serving, &mut daemon, Some(&shared.metrics), stop)
}

/// As [`serve`], with a thread for each NIC: the caller's is the first. `services` is asked once on
/// each thread, with its number, so that handlers need not be [`Send`]. A function that is offered on
/// every thread is called on the one where the request arrives, several at a time; one that is offered
/// on a single thread is called there.
///
/// # Errors
///
/// [`ServeError`].
pub fn serve_threads<N: Nic + Send>(
    serving: &Serving,
    nics: Vec<N>,
    services: impl Fn(usize) -> Services<IpcPort> + Sync,
    stop: &AtomicBool,
) -> Result<(), ServeError> {
    let threads = serving.config.threads;
    if nics.len() != usize::from(threads) {
        return Err(ServeError::Nics { threads, nics: nics.len() });
    }
    let Some(nic) = nics.first() else { return Err(ServeError::Nics { threads, nics: 0 }) };
    check_address_space(serving, nic)?;
    let identity = NicIdentity::of(nic);
    let Some(mut shared) = DaemonShared::open(serving, &identity, stop)? else { return Ok(()) };
    let mut threads = shared.threads.drain(..).zip(nics).collect::<Vec<_>>().into_iter();
    let Some((first, nic)) = threads.next() else { return Ok(()) };
    let services = &services;
    thread::scope(|scope| {
        let (mut waiting, mut running) = (Vec::new(), Vec::new());
        for (thread, nic) in threads {
            let (report, reported) = mpsc::channel();
            let (go, may_go) = mpsc::channel::<()>();
            let name = format!("copyrpc-{}", thread.parts.number);
            let body = move || {
                let services = services(thread.parts.number);
                match thread.open(serving, nic, services) {
                    Ok(mut daemon) => {
                        // Nobody serves before all can, or if one cannot.
                        if report.send(Ok(())).is_ok() && may_go.recv().is_ok() {
                            return live(serving, &mut daemon, None, stop);
                        }
                    }
                    Err(error) => drop(report.send(Err(error))),
                }
                Ok(())
            };
            let thread = thread::Builder::new().name(name).spawn_scoped(scope, body);
            running.push(thread.map_err(ServeError::Thread)?);
            match reported.recv() {
                Ok(opened) => opened?,
                // It panicked, and so will the scope.
                Err(mpsc::RecvError) => return Ok(()),
            }
            waiting.push(go);
        }
        let mut daemon = first.open(serving, nic, services(0))?;
        check_descriptors()?;
        shared.begin(serving);
        // It fails only for a thread that panicked.
        for go in waiting {
            let _ = go.send(());
        }
        let ends = live(serving, &mut daemon, Some(&shared.metrics), stop);
        // One that panicked ends this one, too.
        let others = running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        others.fold(ends, Result::and)
    })
}

/// Descriptors that must be left to let one client in: its socket, its process, its memory, those on the
/// way, and one of a peer.
const CLIENT_DESCRIPTORS: u64 = 8;

/// Refuses to serve where no client could ever be let in. Connections to peers take others later.
fn check_descriptors() -> Result<(), ServeError> {
    let Some(limit) = getrlimit(Resource::Nofile).current else { return Ok(()) };
    let open = match std::fs::read_dir("/proc/self/fd") {
        Ok(entries) => entries.count() as u64,
        // There is none to read that with.
        Err(error) if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => limit,
        // Where that cannot be read, clients are refused one by one.
        Err(_) => return Ok(()),
    };
    if open + CLIENT_DESCRIPTORS > limit {
        return Err(ServeError::Descriptors { open, limit });
    }
    Ok(())
}

/// Refuses to serve where other nodes could never be reached for want of address space.
fn check_address_space(serving: &Serving, nic: &impl Nic) -> Result<(), AddressSpaceError> {
    let peer_mapping_bytes = nic.peer_mapping_bytes();
    AddressSpaceNeed::of(&serving.config, serving.rank_info, peer_mapping_bytes).check()
}

/// The parts of one thread of a daemon that has not begun: its clients, its endpoint in the mesh, its
/// counters.
pub struct ThreadParts {
    /// Number of the thread.
    pub number: usize,
    /// The clients of the thread.
    pub port: IpcPort,
    /// The handle on the other threads.
    pub thread_handle: ThreadHandle,
    /// Counts for the thread.
    pub recorder: Recorder,
}

/// Makes what the threads of a daemon share, a part for each of `recorders`: clients find them at
/// `socket`, and they reach each other.
///
/// # Errors
///
/// [`ServeError::ClientPort`] and [`ServeError::Wakeup`].
///
/// # Panics
///
/// If there are more than 255 recorders, or none.
pub fn open_threads(
    config: &DaemonConfig,
    socket: &Path,
    recorders: Vec<Recorder>,
) -> Result<Vec<ThreadParts>, ServeError> {
    let threads = u8::try_from(recorders.len()).expect("a daemon has at most 255 threads");
    let handles = ThreadHandle::mesh(threads, LANE_CALLS)?;
    let ports = IpcPort::bind(config, socket, threads.into())?;
    let parts = handles.into_iter().zip(ports).zip(recorders).enumerate();
    let parts = parts.map(|(number, ((thread_handle, port), recorder))| ThreadParts {
        number,
        port,
        thread_handle,
        recorder,
    });
    Ok(parts.collect())
}

/// The resources of a daemon on this machine that its threads share.
struct DaemonShared {
    threads: Vec<DaemonThread>,
    metrics: MetricsFile,
    /// Ranks that come later find the rendezvous, or the file, that it keeps.
    _bootstrap: Box<dyn Bootstrap>,
    /// Removed at the end; a daemon that is killed leaves it to its next life.
    _roster: Roster,
    _lock: DaemonLock,
}

/// A thread that has not begun, and its socket to other daemons.
struct DaemonThread {
    parts: ThreadParts,
    control: UdpControl,
    lives: Arc<Lives>,
}

impl DaemonShared {
    /// Takes the daemon's lock, and finds the others; `None` if `stop` was set meanwhile.
    fn open(
        serving: &Serving,
        nic: &NicIdentity,
        stop: &AtomicBool,
    ) -> Result<Option<Self>, ServeError> {
        let Serving { config, runtime, rank_info, .. } = serving;
        let (threads, every) = (usize::from(config.threads), config.sample_every);
        let lock = runtime.lock()?;
        let (metrics, recorders) =
            MetricsFile::create(&runtime.metrics(), runtime.name(), *rank_info, threads, every)?;
        let (mut bootstrap, lives) = bootstrap_of(serving)?;
        let controls = match meet(serving, nic, bootstrap.as_mut(), stop) {
            Err(ServeError::Bootstrap(BootstrapError::Stopped)) => return Ok(None),
            met => met?,
        };
        let roster = Roster(runtime.roster());
        let threads = open_threads(config, &runtime.socket(), recorders)?.into_iter().zip(controls);
        let threads = threads.map(|(parts, control)| {
            let lives = Arc::clone(&lives);
            DaemonThread { parts, control, lives }
        });
        let threads = threads.collect();
        let (_bootstrap, _roster, _lock) = (bootstrap, roster, lock);
        // Whoever comes as this rank from now on is another one.
        lives.set(rank_info.rank(), Some(u64::MAX));
        Ok(Some(Self { threads, metrics, _bootstrap, _roster, _lock }))
    }

    /// All threads are ready.
    fn begin(&self, Serving { runtime, rank_info, .. }: &Serving) {
        self.metrics.set_life(Life::Serving);
        let socket = runtime.socket();
        tracing::info!(daemon = runtime.name(), %rank_info, socket = %socket.display(), "serving");
    }
}

impl DaemonThread {
    /// On the thread that is to serve.
    fn open<N: Nic>(
        self,
        serving: &Serving,
        nic: N,
        services: Services<IpcPort>,
    ) -> Result<Daemon<N, IpcPort, UdpControl>, ServeError> {
        let Serving { config, runtime, rank_info, secret } = serving;
        let codec = Codec::new(runtime.job().clone(), secret.clone(), rank_info.rank());
        let worker = worker_config(config, *rank_info, &self.parts.thread_handle);
        let (port, parts) = self.parts.configured(config, *rank_info, codec, services);
        let mut daemon = Daemon::open(nic, worker, port, self.control, parts)?;
        daemon.tell_lives(self.lives);
        Ok(daemon)
    }
}

/// Ends the other threads with this one, even if it panics.
struct TogetherWith(Option<Arc<Threads>>);

impl Drop for TogetherWith {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            shared.end();
        }
    }
}

/// The life of one thread: it serves until `stop` is set or another thread ends, and then until no
/// thread has anything in flight. Where the NIC has failed nothing more is waited for.
fn live<N: Nic>(
    serving: &Serving,
    daemon: &mut Daemon<N, IpcPort, UdpControl>,
    metrics: Option<&MetricsFile>,
    stop: &AtomicBool,
) -> Result<(), ServeError> {
    let config = &serving.config;
    let together = TogetherWith(daemon.dispatcher.thread_handle.shared().cloned());
    let shared = together.0.as_deref();
    let ends = || stop.load(Ordering::Relaxed) || shared.is_some_and(Threads::is_ending);
    daemon.run(config.wait, |daemon| ends() || daemon.nic_failure().is_some());
    if let Some(shared) = shared {
        shared.end();
    }
    if let Some(failure) = daemon.nic_failure() {
        if let Some(shared) = shared {
            shared.drain();
        }
        daemon.leave(clock::now_ns());
        return Err(failure.into());
    }
    if let Some(metrics) = metrics {
        metrics.set_life(Life::Draining);
        tracing::info!("draining");
    }
    daemon.drain();
    let deadline_ns = clock::deadline_ns(config.drain_timeout);
    let is_late = || clock::now_ns() >= deadline_ns;
    daemon.run(config.wait, |daemon| daemon.outstanding() == 0 || is_late());
    if let Some(shared) = shared {
        // The others may need this thread for what they still have.
        shared.drain();
        daemon.run(config.wait, |_| shared.is_drained() || is_late());
    }
    // Answers of the last turn reach clients that sleep.
    daemon.step(clock::now_ns());
    daemon.leave(clock::now_ns());
    Ok(())
}

/// How this daemon finds the others, and what that is to be told of their lives.
///
/// # Errors
///
/// [`ServeError`] if nobody can be met at the place that its settings name.
pub fn bootstrap_of(serving: &Serving) -> Result<(Box<dyn Bootstrap>, Arc<Lives>), ServeError> {
    let Serving { config, runtime, rank_info, secret } = serving;
    let (job, secret) = (runtime.job().clone(), secret.clone());
    let timeout = config.bootstrap_timeout;
    let mut lives = Arc::new(Lives::new(rank_info.size()));
    let found: Box<dyn Bootstrap> = match &config.start {
        Start::Alone => Box::new(SingleNode),
        Start::Tcp(address) | Start::Once(address) => {
            let timeouts = Timeouts {
                exchange: timeout,
                handshake: config.handshake_timeout,
                // A killed one is found dead before its next life gives up.
                contest: config.dead_after * CONTEST_FACTOR,
            };
            let roster = matches!(config.start, Start::Tcp(_)).then(|| runtime.roster());
            let tcp = Tcp::new(address, job, secret, *rank_info, timeouts, roster.as_deref())?;
            lives = tcp.lives();
            Box::new(tcp)
        }
        Start::Join(address) => Box::new(Tcp::joining(address, job, secret, *rank_info, timeout)),
        Start::File(folder) => Box::new(Folder::new(folder, job, secret, *rank_info, timeout)),
    };
    Ok((found, lives))
}

/// Tells the others where the threads of this daemon listen, and learns where theirs do: that of a
/// rank is the one that owns the connection to this daemon.
fn meet(
    serving: &Serving,
    nic: &NicIdentity,
    bootstrap: &mut dyn Bootstrap,
    stop: &AtomicBool,
) -> Result<Vec<UdpControl>, ServeError> {
    let address = SocketAddr::new(own_address(&serving.config.start), 0);
    let fail = |source| ServeError::Control { address, source };
    let bind = |_| {
        let control = UdpControl::bind(address, serving.rank_info.size())?;
        control.set_traffic_class(serving.config.control_traffic_class)?;
        Ok(control)
    };
    let controls: io::Result<Vec<_>> = (0..serving.config.threads).map(bind).collect();
    let mut controls = controls.map_err(fail)?;
    let texts: io::Result<Vec<_>> =
        controls.iter().map(|control| Ok(control.address()?.to_string())).collect();
    let is_to_stop = || stop.load(Ordering::Relaxed);
    let own = controls.first().map_or(Ok(address), UdpControl::address).map_err(fail)?;
    let blob = format!("{} {nic}", texts.map_err(fail)?.join(","));
    let blobs = bootstrap.exchange_unless(blob.as_bytes(), &is_to_stop)?;
    for (rank, blob) in (0..).zip(&blobs) {
        let text = String::from_utf8_lossy(blob);
        let Some((theirs, their_nic)) = parse_blob(&text) else {
            if bootstrap.is_stale(rank, blob) {
                continue;
            }
            return Err(ServeError::Blob { rank, text: text.chars().take(80).collect() });
        };
        // Splitting leaves one at least.
        let address = theirs[serving.rank_info.rank() as usize % theirs.len()];
        if !nic.meets(&their_nic) && bootstrap.is_stale(rank, blob) {
            // Its next life says hello, and refuses if its NIC does not fit either.
            continue;
        }
        if !nic.meets(&their_nic) {
            return Err(ServeError::NicMix { rank, own: nic.clone(), theirs: their_nic });
        }
        if !nic.reaches(own, address) {
            return Err(ServeError::SeveralHosts { rank, address });
        }
        if !nic.shares_fabric(&their_nic) && !bootstrap.is_stale(rank, blob) {
            return Err(ServeError::Fabrics { rank, own: nic.clone(), theirs: their_nic });
        }
        tracing::debug!(peer = rank, nic = %their_nic, %address, "met");
        let owner = rank as usize % controls.len();
        controls[owner].set(rank, address);
    }
    Ok(controls)
}

/// The addresses and the NIC that a daemon tells.
fn parse_blob(text: &str) -> Option<(Vec<SocketAddr>, NicIdentity)> {
    let (addresses, nic) = text.split_once(' ')?;
    let addresses: Result<Vec<SocketAddr>, _> = addresses.split(',').map(str::parse).collect();
    Some((addresses.ok()?, nic.parse().ok()?))
}

/// The address of this machine that others reach: that from which it reaches the rendezvous.
#[must_use]
pub fn own_address(start: &Start) -> IpAddr {
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let target = match start {
        Start::Alone => return loopback,
        Start::Tcp(address) | Start::Once(address) | Start::Join(address) => address.clone(),
        Start::File(_) => route::ANYWHERE.to_owned(),
    };
    // A name that does not resolve yet says nothing of the way; the rendezvous names it if it never does.
    let found =
        route::towards(&target).or_else(|error| route::towards(route::ANYWHERE).map_err(|_| error));
    match found {
        Ok(address) => address,
        Err(error) => {
            tracing::warn!(
                %error, %target,
                "no route: daemons on other machines will not find this one. Meet at an address that \
                 has one: `--rendezvous HOST:PORT`"
            );
            loopback
        }
    }
}

/// How much longer than usual it may take to find a dead rank dead.
const CONTEST_FACTOR: u32 = 10;

fn worker_config(
    config: &DaemonConfig,
    rank_info: RankInfo,
    thread_handle: &ThreadHandle,
) -> WorkerConfig {
    // A connection that ends leaves its place at once.
    let peers = (0..rank_info.size())
        .filter(|rank| *rank != rank_info.rank() && thread_handle.owner(*rank).is_none());
    let peers = u16::try_from(peers.count()).unwrap_or(u16::MAX);
    worker_config_for(config, rank_info, peers, thread_handle.number())
}

/// That of the thread of this number, which has so many peers.
pub(crate) fn worker_config_for(
    config: &DaemonConfig,
    rank_info: RankInfo,
    peers: u16,
    thread: u32,
) -> WorkerConfig {
    let (usual, ring_bytes) = (WorkerConfig::default(), config.ring_bytes);
    let large_memory_bytes = config.large_memory_that_fits(os::cgroup::memory_limit_bytes());
    let limits = Limits { large_memory_bytes, ..config.limits }.shared_by(config.threads);
    limits.bound(WorkerConfig {
        transport: config.transport,
        dcis: config.dcis.min(peers.max(1)),
        ack_timeout: config.ack_timeout,
        relaxed_ordering: config.relaxed_ordering,
        // A vector's interrupts go to one core.
        completion_vector: thread,
        peers_max: peers.max(1),
        ring_bytes,
        response_bytes: ring_bytes / 2,
        batch_bytes: usual.batch_bytes.min(ring_bytes / 4),
        // Threads have queue pairs of their own, and one NIC.
        flush: FlushPolicy::for_peers(rank_info.size().saturating_sub(1) as usize),
        service_level: Some(config.service_level),
        traffic_class: Some(config.traffic_class),
        ..usual
    })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv6Addr, UdpSocket};

    use super::*;

    #[test]
    fn what_is_set_of_the_way_to_peers_reaches_the_worker() {
        let layers = config::Layers::new(crate::config::KNOBS.to_vec());
        let layers = layers.flag("service-level", "5").unwrap();
        let layers = layers.flag("traffic-class", "106").unwrap();
        let layers = layers.flag("ack-timeout", "1ms").unwrap();
        let layers = layers.flag("relaxed-ordering", "off").unwrap();
        let layers = layers.flag("dcis", "4").unwrap();
        let config = DaemonConfig::from_settings(&layers.finish()).unwrap();
        let of = |size| {
            let rank_info = RankInfo::new(0, size).unwrap();
            worker_config(&config, rank_info, &ThreadHandle::alone())
        };
        let worker = of(16);
        assert_eq!((worker.service_level, worker.traffic_class), (Some(5), Some(106)));
        assert_eq!(
            (worker.ack_timeout, worker.relaxed_ordering),
            (std::time::Duration::from_millis(1), false)
        );
        assert_eq!([worker.dcis, of(3).dcis, of(1).dcis], [4, 2, 1]);
    }

    #[test]
    fn the_own_address_is_of_the_kind_of_the_rendezvous() {
        assert_eq!(own_address(&Start::Alone), IpAddr::V4(Ipv4Addr::LOCALHOST));
        let tcp = |address: &str| own_address(&Start::Tcp(address.to_owned()));
        assert_eq!(tcp("127.0.0.1:9"), IpAddr::V4(Ipv4Addr::LOCALHOST));
        // A machine may have no IPv6 at all.
        if UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
            assert_eq!(tcp("[::1]:9"), IpAddr::V6(Ipv6Addr::LOCALHOST));
        }
    }
}
