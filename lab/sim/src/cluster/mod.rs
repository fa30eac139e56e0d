//! The cluster in a process: production daemons, workers, driver and software NIC in virtual time.
//!
//! ```text
//!  clients   ipc::sans_os::ClientCore        a program that calls and checks each answer, or one that serves
//!  daemon    daemon::Daemon<softnic::Nic>    take, poll, control: each phase of a turn is an event
//!  NIC       softnic, drive virtual          issue, arrive, settle: events of the network
//!  faults    drawn by the seed               between all of these
//! ```
//!
//! What is made up is time, the network, who finds whom (bootstrap), and what the programs do. Everything else
//! is the code of real nodes. A run is a function of its [`Setup`]: the same events, in the same order.
//!
//! # What is checked
//!
//! - Each call ends once, with its own answer or with a status that it may have, and in time.
//! - Each request is executed at most once, and arrives where it was sent as it was sent. None is executed whose client
//!   knows that it is not: it was told so, or gave the call up without its daemon.
//! - No daemon evicts an honest client, or says that an honest peer broke the protocol; nothing panics.
//! - Once faults are over all daemons find each other, all calls end, and a call of each client to each
//!   node succeeds.

mod caller;
mod charge;
mod client;
pub mod datagrams;
mod deaths;
mod direct;
pub mod fault;
mod history;
mod load;
mod network;
mod node;
mod outcome;
mod plan;
mod provider;
mod recovery;
mod ringing;
mod run;
pub mod scale;
mod shrink;
mod sim_clock;
pub mod steady;
mod step;
mod surroundings;
mod swarm;
mod trace;
mod workload;

use std::{
    collections::BTreeMap,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
};

use daemon::metrics::Counter;

use crate::world::Time;
use fault::Fault;
pub use history::End;
use plan::Plan;
use run::Cluster;
pub use shrink::shrink;
pub use swarm::{Seeds, Swarm, swarm};
pub use workload::{ClusterWorkload, UnknownWorkload};

/// A run: everything that happens follows from this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Daemons.
    pub nodes: u32,
    /// Clients of each.
    pub clients: u32,
    /// How long clients call, and faults last.
    pub length: Time,
    /// Of all random numbers.
    pub seed: u64,
    /// What goes wrong; `None`: what the seed draws.
    pub faults: Option<Vec<Fault>>,
    /// Sizes and habits.
    pub workload: ClusterWorkload,
}

impl Setup {
    /// The faults of the run, in order of their begin.
    #[must_use]
    pub fn faults(&self) -> Vec<Fault> {
        match &self.faults {
            Some(faults) => faults.clone(),
            None => fault::draw(self.workload.faults(), self.seed, self.nodes, self.length),
        }
    }
}

/// The command line that repeats it.
impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nodes, clients, length, seed, faults, workload } = self;
        let length_us = length.whole_ns() / 1000;
        write!(
            f,
            "copyrpc-lab sim cluster --nodes {nodes} --clients {clients} --for {length_us}us --seed {seed}"
        )?;
        if *workload != ClusterWorkload::Drawn {
            write!(f, " --workload {workload}")?;
        }
        match faults {
            None => Ok(()),
            Some(faults) if faults.is_empty() => f.write_str(" --faults none"),
            Some(faults) => {
                let faults: Vec<_> = faults.iter().map(Fault::to_string).collect();
                write!(f, " --faults {}", faults.join(","))
            }
        }
    }
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Events.
    pub events: u64,
    /// A hash of all of them, in order, and of how each call ended.
    pub trace: u64,
    /// Virtual time at the end.
    pub end: Time,
    /// Requests that left a NIC, and their bytes.
    pub packets: (u64, u64),
    /// Pieces of WRITEs that became visible before their completions.
    pub torn_pieces: u64,
    /// Calls, by how they ended.
    pub ends: BTreeMap<End, u64>,
    /// Answered calls from other ranks to rank 0, by number of the client at its node.
    pub answered_by_client: BTreeMap<u32, u64>,
    /// By rank: name and value of each counter.
    pub counters: Vec<Vec<(&'static str, u64)>>,
    /// What happened first of what must not.
    pub failure: Option<String>,
}

/// Why there was no run.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// Of a NIC.
    #[error(transparent)]
    Nic(#[from] softnic::OpenError),
    /// Of a worker.
    #[error(transparent)]
    Worker(#[from] rpc::OpenError),
    /// Of the memory between a daemon and its clients.
    #[error(transparent)]
    Clients(#[from] ipc::sans_os::HeapError),
    /// Of counters.
    #[error(transparent)]
    Metrics(#[from] daemon::metrics::MetricsError),
    /// Of a rank.
    #[error(transparent)]
    Rank(#[from] bootstrap::RankError),
    /// Of a service.
    #[error(transparent)]
    Service(#[from] daemon::OfferError),
}

/// Runs a cluster. A panic of production code is a failure, as everything is that must not happen.
///
/// # Errors
///
/// [`ClusterError`], for lack of memory.
pub fn run(setup: &Setup) -> Result<Outcome, ClusterError> {
    run_traced(setup, false).map(|(outcome, _)| outcome)
}

/// As [`run()`], with a timeline for Chrome's trace viewer.
///
/// # Errors
///
/// As [`run()`].
pub fn run_with_timeline(setup: &Setup) -> Result<(Outcome, String), ClusterError> {
    run_traced(setup, true)
}

fn run_traced(setup: &Setup, is_traced: bool) -> Result<(Outcome, String), ClusterError> {
    // Daemons log each peer that they lose, which is what faults are for.
    tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::default(), || {
        let plan = Plan::of(setup);
        let mut cluster = Cluster::new(plan, is_traced)?;
        let ran = catch_unwind(AssertUnwindSafe(|| cluster.run(setup)));
        let failure = match ran {
            Ok(ran) => {
                ran?;
                cluster.history.borrow().failure().map(str::to_owned)
            }
            Err(panic) => Some(format!("panic: {}", message_of(&*panic))),
        };
        let (events, trace) = cluster.network.progress();
        let history = cluster.history.borrow();
        let counters = cluster.counters();
        let timeline = cluster.spans.as_ref().map_or_else(String::new, |spans| {
            trace::chrome(spans, history.ended_calls(), &setup.faults(), &counters)
        });
        let named = |values: &Vec<u64>| {
            Counter::ALL
                .iter()
                .zip(values)
                .map(|(counter, value)| (counter.name(), *value))
                .collect()
        };
        let outcome = Outcome {
            events,
            trace: trace ^ history.hash().rotate_left(1),
            end: cluster.network.now(),
            packets: cluster.network.traffic(),
            torn_pieces: cluster.network.torn_pieces(),
            ends: history.ends().clone(),
            answered_by_client: history.answered_by_client(),
            counters: counters.iter().map(named).collect(),
            failure,
        };
        Ok((outcome, timeline))
    })
}

fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}
