//! What a seed decides about a run, besides its faults: sizes, habits, load.

use std::time::Duration;

use daemon::membership::DetectorConfig;
use proto::copyrpc::FlushPolicy;
use rpc::{Config as WorkerConfig, Entropy, TransportKind};

use super::{
    ClusterWorkload, Setup, charge,
    history::HEAD_BYTES,
    load::{Begin, Connected, Steady},
    network::{Socket, WIRE_NS},
};
use crate::{
    machine::DelegationProfile,
    world::{RandomStream, Time},
};

/// Sizes and habits of all nodes of a run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) nodes: u32,
    /// Threads of each daemon. More than one only in worlds without faults.
    pub(super) threads: u32,
    /// Clients of each thread.
    pub(super) clients: u32,
    /// Timing of the failure detector.
    pub(super) detector: DetectorConfig,
    /// Whose times it has; `None`: made-up ones.
    pub(super) machine: Option<DelegationProfile>,
    /// Clients make their first call within so long, in ns.
    pub(super) start_ns: u64,
    flush: FlushPolicy,
    /// Memory of a NIC that lies on the heap, twice.
    pub(super) card_mib: usize,
    transport: TransportKind,
    dcis: u16,
    large_bytes: u32,
    keepalive: Option<Duration>,
    ring_bytes: usize,
    calls_max: u16,
    receives: u16,
    sends: u16,
    shared_receives: bool,
    /// Longest body of a request, and of a response.
    pub(super) body_bytes_max: u32,
    pub(super) ipc_depth: u16,
    pub(super) ipc_budget: u32,
    /// A turn of a daemon.
    pub(super) turn: Time,
    /// Calls that a client has in flight.
    pub(super) window: usize,
    /// Longest pause of a client between two calls, in ns.
    pub(super) think_ns: u64,
    /// Share of daemons and clients that sleep when they have nothing to do.
    pub(super) sleepy_permille: u64,
    /// Share of calls whose time is short.
    pub(super) hurried_permille: u64,
    /// Whether the last client of each node provides a service.
    pub(super) has_providers: bool,
    /// Whether callers are introduced to them.
    pub(super) is_direct: bool,
    /// Whether providers of a node share their service. Otherwise the second takes the place of the first.
    pub(super) shares_services: bool,
    /// Whether those providers never answer.
    pub(super) is_silent: bool,
    /// Calls that the first client of each node has in flight, if it is greedier than the others.
    pub(super) greedy_window: Option<usize>,
    /// Whether all clients call rank 0.
    pub(super) is_incast: bool,
    /// Clients call their own node and so many after it.
    pub(super) peers_called: u32,
    /// How much of what finds nothing is simulated.
    pub(super) detail: Detail,
    /// The world is simulated in slices of so long, which is what a packet takes at least. Not with faults that
    /// concern more than one daemon.
    pub(super) slice: Option<Time>,
}

/// How closely waiting and turns are simulated. What is found, and when, is alike.
#[derive(Clone, Copy, Debug)]
pub(super) struct Detail {
    /// Empty turns before a daemon sleeps, or waits for what it would find if it turned on.
    pub(super) idle_turns: u32,
    /// Empty polls before a client sleeps, or waits likewise: it has told its daemon of its requests by then.
    pub(super) polls: u32,
    /// Each phase of a turn is an event, so that others come in between.
    pub(super) splits_turns: bool,
    /// Each step has its own event for the time at which it is due if nothing comes, and each client looks
    /// when any of its node is answered.
    pub(super) looks_often: bool,
}

impl Detail {
    /// Everything, for faults to come in between.
    const FINE: Self = Self { idle_turns: 12, polls: 12, splits_turns: true, looks_often: true };
    /// Phases take their time, but nobody polls for nothing.
    const WAITING: Self = Self { splits_turns: true, ..Self::COARSE };
    /// As few events as possible.
    const COARSE: Self = Self { idle_turns: 1, polls: 0, splits_turns: false, looks_often: false };
}

const MS: u64 = 1_000_000;
/// Links come and go within a small world.
const SMALL_WORLD: DetectorConfig =
    DetectorConfig { interval_ns: 2 * MS, suspect_after_ns: 6 * MS, dead_after_ns: 15 * MS };
/// Heartbeats between all pairs of a large one cost little.
const LARGE_WORLD: DetectorConfig =
    DetectorConfig { interval_ns: 100 * MS, suspect_after_ns: 1000 * MS, dead_after_ns: 3000 * MS };
/// Peers of a world of many nodes meet at the second heartbeat.
const MANY_NODES: DetectorConfig =
    DetectorConfig { interval_ns: 10 * MS, suspect_after_ns: 100 * MS, dead_after_ns: 300 * MS };

/// Up to so many nodes a world with a machine's times is simulated with all polls, not in slices.
const FINE_NODES: u32 = 32;
/// Up to so many its rings take batches that are as long as the load can fill.
const LONG_RING_NODES: u32 = 256;

/// How long a call takes whose time is not short.
pub(super) const TIMEOUT_NS: u64 = 5_000_000;
/// How long a call takes to who never answers.
pub(super) const ENDLESS_NS: u64 = 600_000_000_000;
/// How much longer than the daemon a client waits.
pub(super) const GRACE_NS: u64 = 3_000_000;

impl Plan {
    /// What a seed draws, but for what the workload is about.
    pub(super) fn of(setup: &Setup) -> Self {
        let drawn = Self::draw(setup.seed, setup.nodes, setup.clients);
        match setup.workload {
            ClusterWorkload::Drawn => drawn,
            ClusterWorkload::FullRings => Self {
                ring_bytes: 4 << 10,
                body_bytes_max: if setup.seed.is_multiple_of(2) { 1_000 } else { 20_000 },
                ipc_depth: 64,
                window: 32,
                think_ns: 1,
                hurried_permille: 0,
                ..drawn
            },
            ClusterWorkload::AllSleep => Self {
                window: 1,
                think_ns: 100_000,
                sleepy_permille: 1000,
                hurried_permille: 500,
                ..drawn
            },
            ClusterWorkload::Incast => Self { is_incast: true, hurried_permille: 0, ..drawn },
            ClusterWorkload::Fair => drawn.fair(),
            ClusterWorkload::Greedy => Self { greedy_window: Some(32), ..drawn.fair() },
            ClusterWorkload::Silent => Self { is_silent: true, ..drawn.with_providers() },
            ClusterWorkload::Providers => drawn.with_providers(),
            ClusterWorkload::Direct => drawn.direct(),
        }
    }

    /// All clients alike call one node.
    fn fair(self) -> Self {
        Self {
            is_incast: true,
            hurried_permille: 0,
            window: 1,
            think_ns: 1,
            ipc_depth: 64,
            has_providers: false,
            ..self
        }
    }

    fn with_providers(self) -> Self {
        Self { has_providers: self.clients > 1, hurried_permille: 0, ipc_depth: 64, ..self }
    }

    /// Callers call the providers of their own node, often enough to be introduced.
    fn direct(self) -> Self {
        let random = &mut RandomStream::new(self.seed, "direct");
        Self {
            is_direct: true,
            peers_called: 0,
            think_ns: random.choose(&[1, 1_000, 3_000]),
            turn: Time::from_ns(random.choose(&[200, 1_000])),
            window: random.choose(&[1, 8, 40]),
            hurried_permille: random.choose(&[0, 100, 500]),
            body_bytes_max: self.body_bytes_max.min(4096),
            ..self.with_providers()
        }
    }

    fn draw(seed: u64, nodes: u32, clients: u32) -> Self {
        let random = &mut RandomStream::new(seed, "plan");
        let ring_bytes = random.choose(&[4 << 10, 16 << 10, 64 << 10, 256 << 10]);
        Self {
            seed,
            nodes,
            threads: 1,
            clients,
            detector: SMALL_WORLD,
            machine: None,
            start_ns: 0,
            // Only with one unfinished request per peer there is a window over all peers.
            flush: FlushPolicy::SelfClocked { wqes: if seed % 4 < 2 { 1 } else { 2 } },
            card_mib: 8,
            dcis: 1 + u16::from(seed.is_multiple_of(2)),
            large_bytes: 1 << 20,
            keepalive: Some(Duration::from_millis(1)),
            transport: random.choose(&[TransportKind::Rc, TransportKind::Rc, TransportKind::Dc]),
            ring_bytes,
            calls_max: random.choose(&[2, 16, 1024]),
            receives: random.choose(&[8, 64, 1024]),
            sends: random.choose(&[16, 64]),
            shared_receives: random.happens(700),
            body_bytes_max: random.choose(&[64, 512, 4096, 20_000]),
            ipc_depth: random.choose(&[2, 8, 64]),
            ipc_budget: random.choose(&[1, 4, 32]),
            turn: Time::from_ns(random.choose(&[200, 1_000, 5_000])),
            window: random.choose(&[1, 2, 8, 32]),
            think_ns: random.choose(&[1, 3_000, 30_000, 300_000]),
            sleepy_permille: random.choose(&[0, 500, 1000]),
            hurried_permille: random.choose(&[0, 0, 100, 500]),
            has_providers: clients > 1 && random.happens(400),
            is_direct: false,
            shares_services: RandomStream::new(seed, "services").happens(500),
            is_silent: false,
            greedy_window: None,
            is_incast: false,
            peers_called: nodes - 1,
            detail: Detail::FINE,
            slice: None,
        }
    }

    /// As many nodes as possible: DC, short rings, one call per client, nobody sleeps.
    pub(super) fn large(seed: u64, nodes: u32, clients: u32) -> Self {
        Self {
            seed,
            nodes,
            threads: 1,
            clients,
            detector: MANY_NODES,
            machine: None,
            start_ns: 0,
            flush: FlushPolicy::for_peers(nodes as usize - 1),
            card_mib: 1,
            transport: TransportKind::Dc,
            dcis: 8,
            large_bytes: 0,
            keepalive: None,
            ring_bytes: 2 << 10,
            calls_max: 32,
            receives: 1024,
            sends: 64,
            shared_receives: true,
            body_bytes_max: 32,
            ipc_depth: 2,
            ipc_budget: 32,
            turn: Time::from_ns(300),
            window: 1,
            think_ns: 1,
            sleepy_permille: 0,
            hurried_permille: 0,
            has_providers: false,
            is_direct: false,
            shares_services: false,
            is_silent: false,
            greedy_window: None,
            is_incast: false,
            peers_called: nodes - 1,
            detail: Detail::COARSE,
            slice: Some(Time::from_ns(WIRE_NS)),
        }
    }

    /// Times of a machine, rings that are large enough, and nobody sleeps.
    pub(super) fn calibrated(steady: &Steady) -> Self {
        let Steady { nodes, threads, clients, depth, flush, machine, begin, seed, .. } = *steady;
        let (warm_up, _) = steady.lengths;
        let (transport, dcis) = match steady.transport {
            Connected::Rc => (TransportKind::Rc, 1),
            Connected::Dc(initiators) => (TransportKind::Dc, initiators),
        };
        let start_ns = if begin == Begin::Cold { warm_up.whole_ns() / 2 } else { 0 };
        // The more peers, the less each is sent at a time, and the more memory all rings take.
        let (ring_bytes, calls_max) = if nodes <= FINE_NODES {
            (256 << 10, 4096)
        } else if nodes <= LONG_RING_NODES {
            (64 << 10, 4096)
        } else {
            (4 << 10, 64)
        };
        Self {
            threads,
            detector: LARGE_WORLD,
            detail: if nodes <= FINE_NODES { Detail::FINE } else { Detail::WAITING },
            machine: Some(machine),
            start_ns,
            flush,
            card_mib: 8,
            transport,
            dcis,
            ring_bytes,
            calls_max,
            sends: 256,
            ipc_depth: (2 * depth).next_power_of_two().max(2),
            ipc_budget: 1024,
            turn: Time::from_ns(charge::ns(machine.turn)),
            window: depth.into(),
            think_ns: 1,
            slice: (nodes > FINE_NODES).then(|| Time::from_ns(charge::ns(machine.wire))),
            ..Self::large(seed, nodes, clients.div_ceil(threads))
        }
    }

    /// How many of the clients of each node provide a service: the last ones.
    pub(super) fn providers(&self) -> u32 {
        match self.clients {
            _ if !self.has_providers => 0,
            4.. if self.is_direct => 2,
            _ => 1,
        }
    }

    pub(super) fn worker(&self, socket: Socket) -> WorkerConfig {
        let Socket { rank, life } = socket;
        // Rule C3.8: with a quarter, each line of the ring would be needed soon.
        let batch_bytes = self.ring_bytes / if self.machine.is_some() { 8 } else { 4 };
        WorkerConfig {
            transport: self.transport,
            dcis: self.dcis,
            peers_max: u16::try_from(self.nodes).unwrap_or(u16::MAX).saturating_sub(1).max(1),
            ring_bytes: self.ring_bytes,
            response_bytes: self.ring_bytes / 2,
            batch_bytes: batch_bytes.min(WorkerConfig::default().batch_bytes),
            large_bytes: self.large_bytes,
            large_memory_bytes: 1 << 22,
            accesses_max: 64,
            calls_max: self.calls_max,
            flush: self.flush,
            sends: self.sends,
            receives: self.receives,
            shared_receives: self.shared_receives,
            ack_timeout: Duration::from_micros(300),
            retry_count: 5,
            keepalive: self.keepalive,
            may_sleep: false,
            entropy: Entropy::Seed(
                self.seed ^ u64::from(rank) << 32 ^ u64::from(life).wrapping_mul(0x9e37_79b9),
            ),
            ..WorkerConfig::default()
        }
    }

    pub(super) fn ipc(&self) -> ipc::ServerConfig {
        let head_bytes = u32::try_from(HEAD_BYTES).unwrap_or(0);
        let message_bytes_max =
            client::message::message_bytes_max(self.body_bytes_max + head_bytes);
        ipc::ServerConfig {
            depth: self.ipc_depth,
            request_bytes_max: message_bytes_max,
            response_bytes_max: message_bytes_max,
            // A client that died may still have its place when the next one comes.
            clients_max: u16::try_from(2 * self.clients + 2).unwrap_or(4096),
            turn_budget: self.ipc_budget,
            ..ipc::ServerConfig::default()
        }
    }
}
