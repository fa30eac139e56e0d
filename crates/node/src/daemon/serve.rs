//! A daemon from its start to its end: one thread, or several that share the work.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket},
    sync::mpsc,
};

use memory::sync::{Arc, AtomicBool, Ordering, thread};
use os::{clock, event::EventError};
use rpc::Config as WorkerConfig;
use verbs::Nic;

use crate::{
    bootstrap::{Alone, Bootstrap, BootstrapError, Folder, Place, Secret, Tcp},
    config::{DaemonConfig, Start},
    daemon::{
        Codec, Daemon, IpcFront, LANE_CALLS, Opening, Seat, Services, UdpControl, crew::Crew,
        roster::Roster,
    },
    metrics::{Life, MetricsError, MetricsFile, Recorder},
    runtime::{Claim, Runtime, RuntimeError},
};

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
    /// Its threads cannot wake each other.
    #[error(transparent)]
    Alarm(#[from] EventError),
    /// The kernel gives it no more threads.
    #[error("cannot start a thread: {0}; raise the limit on tasks, or lower COPYRPC_THREADS")]
    Thread(#[source] io::Error),
    /// Each thread has a NIC of its own.
    #[error("{threads} threads need a NIC each, and there are {nics}; change COPYRPC_THREADS")]
    Nics {
        /// Threads, as configured.
        threads: u16,
        /// NICs, as passed.
        nics: usize,
    },
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

/// Finds the other daemons and serves until `stop` is set, which it may be while it looks for them; then
/// finishes what is in flight. A daemon of one thread, which is that of the caller.
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
    let threads = serving.config.threads;
    if threads != 1 {
        return Err(ServeError::Nics { threads, nics: 1 });
    }
    let Some(mut house) = House::open(serving, stop)? else { return Ok(()) };
    let post = house.posts.remove(0);
    let mut daemon = post.open(serving, nic, services)?;
    house.begin(serving);
    live(serving, &mut daemon, Some(&house.metrics), stop);
    Ok(())
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
    services: impl Fn(usize) -> Services<IpcFront> + Sync,
    stop: &AtomicBool,
) -> Result<(), ServeError> {
    let threads = serving.config.threads;
    if nics.len() != usize::from(threads) {
        return Err(ServeError::Nics { threads, nics: nics.len() });
    }
    let Some(mut house) = House::open(serving, stop)? else { return Ok(()) };
    let mut posts = house.posts.drain(..).zip(nics).collect::<Vec<_>>().into_iter();
    let Some((post, nic)) = posts.next() else { return Ok(()) };
    let services = &services;
    thread::scope(|scope| {
        let mut waiting = Vec::new();
        for (post, nic) in posts {
            let (report, reported) = mpsc::channel();
            let (go, may_go) = mpsc::channel::<()>();
            let name = format!("copyrpc-{}", post.number);
            let body = move || {
                let services = services(post.number);
                match post.open(serving, nic, services) {
                    Ok(mut daemon) => {
                        // Nobody serves before all can, or if one cannot.
                        if report.send(Ok(())).is_ok() && may_go.recv().is_ok() {
                            live(serving, &mut daemon, None, stop);
                        }
                    }
                    Err(error) => drop(report.send(Err(error))),
                }
            };
            thread::Builder::new()
                .name(name)
                .spawn_scoped(scope, body)
                .map_err(ServeError::Thread)?;
            match reported.recv() {
                Ok(opened) => opened?,
                // It panicked, and so will the scope.
                Err(mpsc::RecvError) => return Ok(()),
            }
            waiting.push(go);
        }
        let mut daemon = post.open(serving, nic, services(0))?;
        house.begin(serving);
        // It fails only for a thread that panicked.
        for go in waiting {
            let _ = go.send(());
        }
        live(serving, &mut daemon, Some(&house.metrics), stop);
        Ok(())
    })
}

/// What a daemon has of this machine, whatever its threads.
struct House {
    /// What each thread begins with.
    posts: Vec<Post>,
    metrics: MetricsFile,
    /// Ranks that come later find what it left for them.
    _bootstrap: Box<dyn Bootstrap>,
    /// Removed at the end; one who is killed leaves it to its next life.
    _roster: Roster,
    _claim: Claim,
}

/// What a thread begins with.
struct Post {
    number: usize,
    seat: Seat,
    control: UdpControl,
    front: IpcFront,
    recorder: Recorder,
}

impl House {
    /// Takes the daemon's place, and finds the others; `None` if `stop` was set meanwhile.
    fn open(serving: &Serving, stop: &AtomicBool) -> Result<Option<Self>, ServeError> {
        let Serving { config, runtime, place, .. } = serving;
        let (threads, every) = (usize::from(config.threads), config.sample_every);
        let claim = runtime.claim()?;
        let (metrics, recorders) =
            MetricsFile::create(&runtime.metrics(), runtime.name(), *place, threads, every)?;
        let mut bootstrap = bootstrap(serving)?;
        let controls = match meet(serving, bootstrap.as_mut(), stop) {
            Err(ServeError::Bootstrap(BootstrapError::Stopped)) => return Ok(None),
            met => met?,
        };
        let roster = Roster(runtime.roster());
        let seats = Seat::crew(u8::try_from(threads).unwrap_or(u8::MAX), LANE_CALLS)?;
        let fronts = IpcFront::bind(config, &runtime.socket(), threads)?;
        let parts = seats.into_iter().zip(controls).zip(fronts).zip(recorders).enumerate();
        let posts = parts.map(|(number, (((seat, control), front), recorder))| Post {
            number,
            seat,
            control,
            front,
            recorder,
        });
        let posts = posts.collect();
        let (_bootstrap, _roster, _claim) = (bootstrap, roster, claim);
        Ok(Some(Self { posts, metrics, _bootstrap, _roster, _claim }))
    }

    /// All threads are ready.
    fn begin(&self, Serving { runtime, place, .. }: &Serving) {
        self.metrics.set_life(Life::Serving);
        let socket = runtime.socket();
        tracing::info!(daemon = runtime.name(), %place, socket = %socket.display(), "serving");
    }
}

impl Post {
    /// On the thread that is to serve.
    fn open<N: Nic>(
        self,
        serving: &Serving,
        nic: N,
        services: Services<IpcFront>,
    ) -> Result<Daemon<N, IpcFront, UdpControl>, ServeError> {
        let Serving { config, runtime, place, secret } = serving;
        let opening = Opening {
            place: *place,
            front: self.front,
            codec: Codec::new(runtime.job().clone(), secret.clone(), place.rank()),
            services,
            recorder: self.recorder,
            worker: worker_config(config, *place, &self.seat),
            seat: self.seat,
        };
        Daemon::open(config, nic, self.control, opening)
    }
}

/// Ends the other threads with this one, even if it panics.
struct TogetherWith(Option<Arc<Crew>>);

impl Drop for TogetherWith {
    fn drop(&mut self) {
        if let Some(crew) = &self.0 {
            crew.end();
        }
    }
}

/// The life of one thread: it serves until `stop` is set or another thread ends, and then until no
/// thread has anything in flight.
fn live<N: Nic>(
    serving: &Serving,
    daemon: &mut Daemon<N, IpcFront, UdpControl>,
    metrics: Option<&MetricsFile>,
    stop: &AtomicBool,
) {
    let config = &serving.config;
    let together = TogetherWith(daemon.office.seat.shared().cloned());
    let crew = together.0.as_deref();
    let ends = || stop.load(Ordering::Relaxed) || crew.is_some_and(Crew::is_ending);
    daemon.run(config.wait, |_| ends());
    if let Some(crew) = crew {
        crew.end();
    }
    if let Some(metrics) = metrics {
        metrics.set_life(Life::Draining);
        tracing::info!("draining");
    }
    daemon.drain();
    let deadline_ns = clock::deadline_ns(config.drain_timeout);
    let is_late = || clock::now_ns() >= deadline_ns;
    daemon.run(config.wait, |daemon| daemon.outstanding() == 0 || is_late());
    if let Some(crew) = crew {
        // The others may need this thread for what they still have.
        crew.drain();
        daemon.run(config.wait, |_| crew.is_drained() || is_late());
    }
    // Answers of the last turn reach clients that sleep.
    daemon.step(clock::now_ns());
    daemon.leave(clock::now_ns());
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

/// Tells the others where the threads of this daemon listen, and learns where theirs do: that of a
/// rank is the one that owns the connection to this daemon.
fn meet(
    serving: &Serving,
    bootstrap: &mut dyn Bootstrap,
    stop: &AtomicBool,
) -> Result<Vec<UdpControl>, ServeError> {
    let address = SocketAddr::new(own_address(&serving.config.start), 0);
    let fail = |source| ServeError::Control { address, source };
    let bind = |_| UdpControl::bind(address, serving.place.size());
    let controls: io::Result<Vec<_>> = (0..serving.config.threads).map(bind).collect();
    let mut controls = controls.map_err(fail)?;
    let texts: io::Result<Vec<_>> =
        controls.iter().map(|control| Ok(control.address()?.to_string())).collect();
    let is_to_stop = || stop.load(Ordering::Relaxed);
    let blob = texts.map_err(fail)?.join(",");
    let blobs = bootstrap.exchange_unless(blob.as_bytes(), &is_to_stop)?;
    for (rank, blob) in (0..).zip(&blobs) {
        let text = String::from_utf8_lossy(blob);
        let theirs: Result<Vec<SocketAddr>, _> = text.split(',').map(str::parse).collect();
        let Ok(theirs) = theirs else {
            return Err(ServeError::Blob { rank, text: text.chars().take(80).collect() });
        };
        // Splitting leaves one at least.
        let address = theirs[serving.place.rank() as usize % theirs.len()];
        let owner = rank as usize % controls.len();
        controls[owner].set(rank, address);
    }
    Ok(controls)
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
    match address_towards(&target) {
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

/// The address of this machine on the way to `target`: of IPv4 if that has one and there is a route.
fn address_towards(target: &str) -> io::Result<IpAddr> {
    let mut candidates: Vec<_> = target.to_socket_addrs()?.collect();
    candidates.sort_by_key(SocketAddr::is_ipv6);
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for candidate in candidates {
        let any = match candidate {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let local = UdpSocket::bind((any, 0)).and_then(|socket| {
            socket.connect(candidate)?;
            socket.local_addr()
        });
        match local {
            Ok(address) => return Ok(address.ip()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn worker_config(config: &DaemonConfig, place: Place, seat: &Seat) -> WorkerConfig {
    // A connection that ends leaves its place at once.
    let peers =
        (0..place.size()).filter(|rank| *rank != place.rank() && seat.owner(*rank).is_none());
    let peers = u16::try_from(peers.count()).unwrap_or(u16::MAX);
    let (usual, ring_bytes) = (WorkerConfig::default(), config.ring_bytes);
    WorkerConfig {
        transport: config.transport,
        peers_max: peers.max(1),
        ring_bytes,
        response_bytes: ring_bytes / 2,
        batch_bytes: usual.batch_bytes.min(ring_bytes / 4),
        ..usual
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
