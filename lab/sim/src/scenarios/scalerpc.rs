//! ScaleRPC beside plain WRITEs into a pool per client, on a NIC that keeps few connections.
//!
//! The claim is that of the paper (EuroSys 2019), whose curves were not at hand as numbers: the rate of a pool per
//! client falls once connections exceed the NIC's cache, and that of groups in turn does not. The NIC is that of
//! `CONNECT_IB` but for its cache, whose size is a parameter: nobody has measured it on the paper's ConnectX-3.

use serde::Serialize;

use crate::{
    actors::pool_server::{self, Load, Measured, Way},
    machine::{CONNECT_IB, NicProfile, Profile},
    world::Time,
};

/// Threads of the server: as many as a machine of *dct-bench* runs.
pub const THREADS: usize = 14;
/// Contexts of the assumed NIC: about those of three groups of the largest size, of which one has its turn, one is
/// read, and one leaves.
pub const CONTEXTS: usize = 192;

/// Clients, their load, and the NIC of the server.
#[derive(Clone, Debug)]
pub struct PoolPlan {
    /// Numbers of clients.
    pub clients: Vec<u16>,
    /// Calls in flight of each client: 1 to 64.
    pub depth: u8,
    /// Contexts in the cache of the server's NIC.
    pub contexts: usize,
    /// Clients of a group.
    pub group: u16,
    /// Turn of a group.
    pub slice: Time,
    /// Of all random numbers.
    pub seed: u64,
}

impl Default for PoolPlan {
    fn default() -> Self {
        Self {
            clients: vec![40, 80, 120, 200, 300, 400],
            depth: 8,
            contexts: CONTEXTS,
            group: 40,
            slice: Time::from_ns(100_000),
            seed: 1,
        }
    }
}

/// Both ways with so many clients.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Row {
    /// Clients.
    pub clients: u16,
    /// A pool per client.
    pub pool: Figures,
    /// Groups in turn.
    pub scalerpc: Figures,
}

/// What one way does.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Figures {
    /// Calls per second, in millions.
    pub mops: f64,
    /// Contexts that the NIC had to fetch, per call.
    pub misses_per_call: f64,
    /// Median latency, in microseconds.
    pub p50_us: f64,
    /// Latency that 99 of 100 calls do not exceed, in microseconds.
    pub p99_us: f64,
    /// Longest latency, in microseconds.
    pub longest_us: f64,
    /// Turns that ended.
    pub switches: u64,
}

impl From<Measured> for Figures {
    fn from(measured: Measured) -> Self {
        let Measured { mops, misses_per_call, p50_us, p99_us, longest_us, switches, .. } = measured;
        Self { mops, misses_per_call, p50_us, p99_us, longest_us, switches }
    }
}

/// All rows of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// A row for each number of clients.
    pub rows: Vec<Row>,
    /// Events of all simulations together.
    pub events: u64,
    /// A hash of all of them, in order.
    pub trace: u64,
}

impl Outcome {
    /// How far the rates of a way are apart, as a share of the highest.
    #[must_use]
    pub fn spread(&self, of: impl Fn(&Row) -> Figures) -> f64 {
        let rates = || self.rows.iter().map(|row| of(row).mops);
        let most = rates().fold(0.0, f64::max);
        1.0 - rates().fold(f64::INFINITY, f64::min).min(most) / most.max(f64::MIN_POSITIVE)
    }
}

/// Simulates both ways with each number of clients, and tells how many of these are done, of how many.
#[must_use]
pub fn run(plan: &PoolPlan, mut progress: impl FnMut(usize, usize)) -> Outcome {
    let nic = NicProfile { cache_contexts: plan.contexts, ..CONNECT_IB.nic.clone() };
    let profile = Profile { nic, ..CONNECT_IB };
    let mut outcome = Outcome { rows: Vec::new(), events: 0, trace: 0 };
    for &clients in &plan.clients {
        let mut measure = |way| {
            let measured = pool_server::run(&profile, &load(plan, clients, way), plan.seed);
            outcome.events += measured.events;
            outcome.trace = outcome.trace.rotate_left(1) ^ measured.trace;
            Figures::from(measured)
        };
        let pool = measure(Way::Pool);
        let scalerpc = measure(Way::ScaleRpc { group: plan.group, slice: plan.slice });
        outcome.rows.push(Row { clients, pool, scalerpc });
        progress(outcome.rows.len(), plan.clients.len());
    }
    outcome
}

/// Caches fill during one rotation of the groups, and two are counted.
fn load(plan: &PoolPlan, clients: u16, way: Way) -> Load {
    // A group may have three quarters of the clients that it is meant to have, after it was split.
    let groups = u64::from(clients * 4).div_ceil(u64::from(plan.group.max(1)) * 3);
    let rotation_ns = (plan.slice.whole_ns() * groups).max(100_000);
    let (warm_up, end) = (Time::from_ns(rotation_ns), Time::from_ns(3 * rotation_ns));
    Load { way, clients, depth: plan.depth, threads: THREADS, late: None, warm_up, end }
}
