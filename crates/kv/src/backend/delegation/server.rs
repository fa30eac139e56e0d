//! The daemon thread's end: a whole daemon, turned by the thread that serves the shard.

use std::{
    cell::Cell,
    collections::BTreeMap,
    error::Error,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    rc::Rc,
    time::Duration,
};

use node::{
    bootstrap::{JobId, Place, Secret},
    config::DaemonConfig,
    daemon::{Codec, Daemon, Inbound, IpcFront, Opening, Services, Status, UdpControl},
    metrics::{Counter, Kind, MetricsFile, Section, Timing},
};
use os::clock;
use softnic::Nic;

use super::{Address, SERVICE, daemon_config};
use crate::{
    backend::{BackendError, Contact, Counters, Roster, Server, Service, Setup, direct},
    place::Shard,
};

/// Name of the job: its secret makes it unique.
const JOB: &str = "kv";

/// A daemon.
pub struct DelegationServer {
    state: State,
    address: Address,
    contact: Contact,
    /// Requests that were answered, by the service itself.
    served: Rc<Cell<usize>>,
}

enum State {
    /// It waits for the roster.
    Opened(Box<Parts>),
    Joining,
    Running {
        daemon: Box<Daemon<Nic, IpcFront, UdpControl>>,
        metrics: MetricsFile,
    },
}

struct Parts {
    config: DaemonConfig,
    worker: rpc::Config,
    nic: softnic::Config,
    shard: Shard,
    control: UdpControl,
    services: Services<IpcFront>,
}

impl DelegationServer {
    pub(super) fn open(
        setup: &Setup,
        nic: &softnic::Config,
        shard: Shard,
        service: Service,
    ) -> Result<Self, BackendError> {
        let failed = |cause: std::io::Error| BackendError::new("cannot open a daemon", cause);
        let shards = setup.topology.shards();
        let control = UdpControl::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), shards.into())
            .map_err(failed)?;
        let address = Address {
            socket: abstract_name(shard),
            control: control.address().map_err(failed)?,
            nonce: Secret::random().as_bytes().to_vec(),
        };
        let served = Rc::new(Cell::new(0));
        let services = services(service, Rc::clone(&served))?;
        let depth = setup.queue_depth.saturating_mul(setup.topology.clients_per_rank.into());
        let worker = rpc::Config {
            calls_max: u16::try_from(depth).unwrap_or(u16::MAX - 1).max(16),
            ..direct::worker_config(setup, shards.saturating_sub(1).max(1))
        };
        let config = daemon_config(setup)?;
        let parts = Parts { config, worker, nic: nic.clone(), shard, control, services };
        let contact = address.to_contact()?;
        Ok(Self { state: State::Opened(Box::new(parts)), address, contact, served })
    }

    fn start(&mut self, roster: &Roster, parts: Parts) -> Result<State, BackendError> {
        let failed =
            |cause: Box<dyn Error + Send + Sync>| BackendError::new("cannot start a daemon", cause);
        let Parts { config, worker, nic, shard, mut control, services } = parts;
        let mut secret = Vec::new();
        for (rank, contact) in (0_u32..).zip(&roster.servers) {
            let address = Address::of(contact)?;
            control.set(rank, address.control);
            secret.extend(address.nonce);
        }
        let size = u32::try_from(roster.servers.len()).unwrap_or(u32::MAX);
        let place = Place::new(shard.0.into(), size).map_err(|cause| failed(cause.into()))?;
        let job = JobId::new(JOB).map_err(|cause| failed(cause.into()))?;
        let made = MetricsFile::unnamed(JOB, place, 1, config.sample_every);
        let (metrics, mut recorders) = made.map_err(|cause| failed(cause.into()))?;
        let opening = Opening {
            place,
            socket: &self.address.socket,
            codec: Codec::new(job, Secret::from_bytes(&secret), shard.0.into()),
            services,
            recorder: recorders.remove(0),
            worker,
        };
        let nic = softnic::open(&nic).map_err(|cause| failed(cause.into()))?;
        let daemon =
            Daemon::open(&config, nic, control, opening).map_err(|cause| failed(cause.into()))?;
        Ok(State::Running { daemon: Box::new(daemon), metrics })
    }
}

/// A name that nobody else has, other users and other process namespaces included.
fn abstract_name(shard: Shard) -> PathBuf {
    let random = Secret::random()
        .as_bytes()
        .iter()
        .take(8)
        .fold(0_u64, |word, &byte| word << 8 | u64::from(byte));
    format!("@copyrpc-kv/{}/{}/{random:016x}", std::process::id(), shard.0).into()
}

/// The shard as a service of the daemon.
fn services(
    mut service: Service,
    served: Rc<Cell<usize>>,
) -> Result<Services<IpcFront>, BackendError> {
    let mut services = Services::default();
    let handler = move |inbound: &Inbound<'_>, answer: &mut Vec<u8>| {
        service(inbound.body, answer);
        served.set(served.get() + 1);
        Status::Ok
    };
    services
        .offer(SERVICE, Box::new(handler))
        .map_err(|cause| BackendError::new("cannot offer the shard", cause))?;
    Ok(services)
}

impl Server for DelegationServer {
    fn contact(&self) -> Contact {
        self.contact.clone()
    }

    /// Returns when all daemons see each other.
    fn join(&mut self, roster: &Roster, deadline_ns: u64) -> Result<(), BackendError> {
        let State::Opened(parts) = std::mem::replace(&mut self.state, State::Joining) else {
            return Err(BackendError::new("cannot join", "this daemon has joined"));
        };
        self.state = self.start(roster, *parts)?;
        let State::Running { daemon, .. } = &mut self.state else { return Ok(()) };
        let peers = roster.servers.len().saturating_sub(1);
        while daemon.peers_up() < peers {
            if clock::now_ns() >= deadline_ns {
                let seen = daemon.peers_up();
                let cause = format!("{seen} of {peers} other daemons are up");
                return Err(BackendError::new("cannot join", cause));
            }
            if daemon.step(clock::now_ns()) == 0 {
                daemon.wait(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// The daemon's own budgets bound a turn.
    fn turn(&mut self, _budget: usize) -> Result<usize, BackendError> {
        let State::Running { daemon, .. } = &mut self.state else { return Ok(0) };
        daemon.step(clock::now_ns());
        Ok(self.served.take())
    }

    fn wait(&mut self, deadline_ns: u64) -> Result<(), BackendError> {
        let State::Running { daemon, .. } = &mut self.state else { return Ok(()) };
        if daemon.step(clock::now_ns()) == 0 {
            let left_ns = deadline_ns.saturating_sub(clock::now_ns());
            daemon.wait(Duration::from_nanos(left_ns));
        }
        Ok(())
    }

    /// Those of the daemon.
    fn counters(&self) -> Counters {
        let State::Running { metrics, .. } = &self.state else { return Counters::default() };
        counters_of(&metrics.snapshot().total())
    }
}

fn counters_of(section: &Section) -> Counters {
    let mut counters = Counters::default();
    for counter in Counter::ALL.iter().filter(|counter| counter.kind() == Kind::Total) {
        let name = format!("daemon {}", counter.name());
        counters.named.insert(name, section.counter(*counter));
    }
    for timing in Timing::ALL {
        let values = section.histogram(*timing).filled().collect::<BTreeMap<_, _>>();
        counters.distributions.insert(timing.name().to_owned(), values);
    }
    let sizes = section.histogram(Timing::BatchMessages).filled();
    let sizes = sizes.map(|(size, count)| (u32::try_from(size).unwrap_or(u32::MAX), count));
    counters.batch_sizes = sizes.collect();
    let samples = section.samples().iter();
    counters.samples = samples.map(|sample| (sample.time_ns, sample.outstanding)).collect();
    counters
}
