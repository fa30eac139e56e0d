//! The daemon thread's end: a thread of a daemon, turned by the thread that serves the shard.

use std::{
    cell::Cell, collections::BTreeMap, error::Error, net::SocketAddr, rc::Rc, sync::Arc,
    time::Duration,
};

use bootstrap::{JobId, Secret};
use daemon::{
    Codec, Inbound, IpcPort, ReplyHold, SelectedDaemon, Services, Status, UdpControl,
    metrics::{Counter, CounterKind, MetricsFile, Phase, Section, Timing},
    open_selected,
};
use nics::Selection;
use os::clock;

use super::{Address, JOB, daemon_parts::ShardThread, service_of};
use crate::{
    backend::{
        BackendError, Contact, Counters, JobSetup, Roster, Server, ServerTotals, ServerTurn,
        Service, direct, switches::reply_hold,
    },
    place::{Shard, Topology},
};

/// A thread of a daemon.
pub struct DelegationServer {
    state: State,
    contact: Contact,
    /// Requests that were answered, by the service itself.
    served: Rc<Cell<usize>>,
    /// When the latest turn began.
    now_ns: u64,
}

enum State {
    /// It waits for the roster.
    Opened(Box<Parts>),
    Joining,
    Running {
        daemon: Box<dyn SelectedDaemon>,
        metrics: Arc<MetricsFile>,
        /// Its section of them.
        number: usize,
    },
}

struct Parts {
    thread: ShardThread,
    topology: Topology,
    worker: rpc::Config,
    nic: Selection,
    control: UdpControl,
    services: Services<IpcPort>,
    hold: Option<ReplyHold>,
}

impl DelegationServer {
    pub(super) fn open(
        setup: &JobSetup,
        nic: &Selection,
        shard: Shard,
        thread: ShardThread,
        service: Option<Service>,
    ) -> Result<Self, BackendError> {
        let failed = |cause: std::io::Error| BackendError::new("cannot open a daemon", cause);
        let topology = setup.topology;
        let at = SocketAddr::new(setup.address, 0);
        let control = UdpControl::bind(at, topology.ranks.into()).map_err(failed)?;
        let address = Address {
            socket: thread.socket.clone(),
            control: control.address().map_err(failed)?,
            nonce: Secret::random().as_bytes().to_vec(),
        };
        let served = Rc::new(Cell::new(0));
        let services = services(service_of(topology, shard), service, Rc::clone(&served))?;
        let depth = setup.queue_depth.saturating_mul(setup.topology.clients_per_rank.into());
        let worker = rpc::Config {
            calls_max: u16::try_from(depth).unwrap_or(u16::MAX - 1).max(16),
            ..direct::worker_config(setup, topology.ranks.saturating_sub(1).max(1))
        };
        let hold = reply_hold(setup.switches.value("reply-hold"));
        let nic = nic.clone();
        let parts = Parts { thread, topology, worker, nic, control, services, hold };
        let contact = address.to_contact()?;
        Ok(Self { state: State::Opened(Box::new(parts)), contact, served, now_ns: 0 })
    }

    fn start(roster: &Roster, parts: Parts) -> Result<State, BackendError> {
        let failed =
            |cause: Box<dyn Error + Send + Sync>| BackendError::new("cannot start a daemon", cause);
        let Parts { thread, topology, worker, nic, mut control, services, hold } = parts;
        let ShardThread { rank_info, config, thread, metrics, .. } = thread;
        let mut secret = Vec::new();
        for (shard, contact) in (0..).map(Shard).zip(&roster.servers) {
            let Address { control: address, nonce, .. } = Address::of(contact)?;
            // The two threads that own the connection between two ranks hear each other.
            if shard.0 % topology.daemon_threads == thread_for(topology, rank_info.rank()) {
                control.set(topology.rank_of(shard).into(), address);
            }
            secret.extend(nonce);
        }
        let job = JobId::new(JOB).map_err(|cause| failed(cause.into()))?;
        let codec = Codec::new(job, Secret::from_bytes(&secret), rank_info.rank());
        let number = thread.number;
        let (port, parts) = thread.configured(&config, rank_info, codec, services);
        let daemon = open_selected(&nic, worker, port, control, parts);
        let daemon = daemon.map_err(|cause| failed(cause.into()))?;
        let mut daemon = daemon.map_err(|cause| failed(cause.into()))?;
        if let Some(hold) = hold {
            daemon.hold_replies(hold);
        }
        Ok(State::Running { daemon, metrics, number })
    }
}

/// Which thread of any other daemon owns the connection to `rank`.
fn thread_for(topology: Topology, rank: u32) -> u16 {
    u16::try_from(rank % u32::from(topology.daemon_threads)).unwrap_or(0)
}

/// The shard as a service of the daemon, unless a process offers it.
fn services(
    number: u16,
    service: Option<Service>,
    served: Rc<Cell<usize>>,
) -> Result<Services<IpcPort>, BackendError> {
    let mut services = Services::default();
    let Some(mut service) = service else { return Ok(services) };
    let handler = move |inbound: &Inbound<'_>, answer: &mut Vec<u8>| {
        service(inbound.body, answer);
        served.set(served.get() + 1);
        Status::Ok
    };
    services
        .offer(number, Box::new(handler))
        .map_err(|cause| BackendError::new("cannot offer the shard", cause))?;
    Ok(services)
}

impl Server for DelegationServer {
    fn contact(&self) -> Contact {
        self.contact.clone()
    }

    /// Returns when all daemons to which this thread connects are seen.
    fn join(&mut self, roster: &Roster, deadline_ns: u64) -> Result<(), BackendError> {
        let State::Opened(parts) = std::mem::replace(&mut self.state, State::Joining) else {
            return Err(BackendError::new("cannot join", "this daemon has joined"));
        };
        self.state = Self::start(roster, *parts)?;
        let State::Running { daemon, .. } = &mut self.state else { return Ok(()) };
        let peers = daemon.peers();
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
    fn turn(&mut self, _budget: usize) -> Result<ServerTurn, BackendError> {
        let State::Running { daemon, .. } = &mut self.state else {
            return Ok(ServerTurn::default());
        };
        self.now_ns = clock::now_ns();
        let handled = daemon.step(self.now_ns);
        Ok(ServerTurn { served: self.served.take(), handled })
    }

    fn is_expecting(&self) -> bool {
        let State::Running { daemon, .. } = &self.state else { return false };
        daemon.expects_answers(self.now_ns)
    }

    fn wait(&mut self, deadline_ns: u64) -> Result<(), BackendError> {
        let State::Running { daemon, .. } = &mut self.state else { return Ok(()) };
        if daemon.step(clock::now_ns()) == 0 {
            let left_ns = deadline_ns.saturating_sub(clock::now_ns());
            daemon.wait(Duration::from_nanos(left_ns));
        }
        Ok(())
    }

    fn totals(&self) -> Option<ServerTotals> {
        let State::Running { daemon, .. } = &self.state else { return None };
        let counters =
            [Counter::RequestsIpc, Counter::Responses, Counter::Incoming, Counter::Replies];
        let phases = [Phase::Clients, Phase::Nic, Phase::Post, Phase::Waiting, Phase::Control];
        Some(ServerTotals {
            counts: counters.map(|counter| daemon.total(counter)),
            phases_ns: phases.map(|phase| daemon.phase_ns(phase)),
            outstanding: daemon.outstanding() as u64,
        })
    }

    /// Those of this thread.
    fn counters(&self) -> Counters {
        let State::Running { metrics, number, .. } = &self.state else {
            return Counters::default();
        };
        metrics.snapshot().sections.get(*number).map_or_else(Counters::default, counters_of)
    }
}

fn counters_of(section: &Section) -> Counters {
    let mut counters = Counters::default();
    for counter in Counter::ALL.iter().filter(|counter| counter.kind() == CounterKind::Total) {
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
