//! Delegation at 2 to 32 nodes, against what was measured on ConnectX-7 with another daemon than ours.
//!
//! With 32 calls in flight per client that daemon has two steady states, and falls from one into the other.
//! The reference numbers are of single runs.
//!
//! The upper state of 16 nodes does not last from every start: of its number, the best of some starts is shown,
//! and [`Outcome::attractors`] says where each start has led to.

use serde::Serialize;

use crate::{
    actors::reference_daemon::{self, Hold, Load, Measured, StartState},
    machine::DELEGATION,
};

/// Largest error of a throughput, as a share of its reference.
pub const ERROR_MAX: f64 = 0.15;

/// One number of the reference beside the simulated one.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Quantity and its conditions.
    pub what: String,
    /// Of what.
    pub unit: &'static str,
    /// As measured on hardware.
    pub reference: f64,
    /// As simulated.
    pub simulated: f64,
    /// Whether the model claims [`ERROR_MAX`]: for throughput it does.
    pub is_claimed: bool,
}

impl Row {
    /// How far the simulated number is from the reference, as a share of it.
    #[must_use]
    pub fn error(&self) -> f64 {
        self.simulated / self.reference - 1.0
    }

    /// Whether the error is what was claimed.
    #[must_use]
    pub fn is_as_claimed(&self) -> bool {
        !self.is_claimed || self.error().abs() <= ERROR_MAX
    }
}

/// A steady state that a start has led to.
#[derive(Clone, Debug, Serialize)]
pub struct Attractor {
    /// Nodes.
    pub nodes: usize,
    /// State of the clients at the start.
    pub start: StartState,
    /// Seed of the run.
    pub seed: u64,
    /// Calls per µs, of all nodes.
    pub total_mops: f64,
    /// Messages per batch.
    pub messages_per_wqe: f64,
}

/// All numbers of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Of the run.
    pub seed: u64,
    /// Every number.
    pub rows: Vec<Row>,
    /// Where starts have led to, with 32 calls per client.
    pub attractors: Vec<Attractor>,
    /// Turns simulated.
    pub events: u64,
    /// A hash of all of them.
    pub trace: u64,
}

impl Outcome {
    /// Rows whose error is larger than claimed.
    pub fn misses(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| !row.is_as_claimed())
    }

    fn add(&mut self, measured: &Measured) {
        self.events += measured.events;
        self.trace = self.trace.rotate_left(1) ^ measured.trace;
    }
}

type Deep = (usize, u32, StartState, f64, Option<(f64, f64)>);

/// With 32 calls per client: nodes, poll budget, how it begins, calls per µs, responses per turn, turns in 10 s.
const DEEP: [Deep; 5] = [
    (2, 0, StartState::Burst, 15.26, Some((4.6, 8.6))),
    (8, 0, StartState::Trickle, 8.79, Some((0.97, 14.0))),
    (16, 0, StartState::Burst, 110.04, Some((28.0, 2.3))),
    (8, 16, StartState::Trickle, 58.4, None),
    (16, 16, StartState::Trickle, 24.7, None),
];

/// With one call per client: nodes, and calls per µs without hold, with 10 µs, and adaptive.
const SHALLOW: [(usize, [f64; 3]); 5] = [
    (2, [13.79, 14.85, 14.73]),
    (4, [21.72, 21.08, 20.91]),
    (8, [8.16, 11.17, 11.11]),
    (16, [14.38, 20.01, 19.49]),
    (32, [27.24, 31.69, 38.93]),
];

const HOLDS: [(Hold, &str, f64); 3] = [
    (Hold::None, "no hold", 1200.0),
    (Hold::Fixed(10.0), "hold of 10 µs", 1200.0),
    (Hold::Adaptive(10.0), "adaptive hold", 1500.0),
];

/// Seeds of a burst.
const SEEDS: u64 = 4;

/// A trickle ends in the same state, whatever the seed.
const fn seeds_of(start: StartState) -> u64 {
    match start {
        StartState::Burst => SEEDS,
        StartState::Trickle => 1,
    }
}

/// Simulates every number. `progress` hears how many simulations of how many are done.
#[must_use]
pub fn run(seed: u64, mut progress: impl FnMut(usize, usize)) -> Outcome {
    let starts = [StartState::Burst, StartState::Trickle];
    let attracted: u64 = starts.iter().map(|start| 3 * seeds_of(*start)).sum();
    let attracted = usize::try_from(attracted).unwrap_or(0);
    let bursts = usize::try_from(SEEDS).unwrap_or(0) - 1;
    let count = DEEP.len() + bursts + SHALLOW.len() * HOLDS.len() + attracted;
    let mut outcome =
        Outcome { seed, rows: Vec::new(), attractors: Vec::new(), events: 0, trace: 0 };
    let mut done = 0;
    let mut step = |outcome: &mut Outcome, load: &Load, seed| {
        let measured = reference_daemon::run(&DELEGATION, load, seed);
        outcome.add(&measured);
        done += 1;
        progress(done, count);
        measured
    };
    for (nodes, poll_budget, start, reference, turns) in DEEP {
        // A burst of 16 nodes may leave the upper state: the reference is of one that has not.
        let bursts = if nodes == 16 && start == StartState::Burst { SEEDS } else { 1 };
        let runs = (seed..seed + bursts)
            .map(|seed| step(&mut outcome, &deep(nodes, poll_budget, start), seed));
        let best = runs.max_by(|one, other| one.total_mops.total_cmp(&other.total_mops));
        let Some(measured) = best else { continue };
        let budget =
            if poll_budget > 0 { format!(", poll budget {poll_budget}") } else { String::new() };
        let best = if bursts > 1 { format!(", best of {bursts} starts") } else { String::new() };
        let label = format!("32 calls per client, {nodes} nodes{budget}{best}");
        let mut add = |what: &str, unit, reference, simulated, is_claimed| {
            let what = format!("{label}: {what}");
            outcome.rows.push(Row { what, unit, reference, simulated, is_claimed });
        };
        add("throughput", "M/s", reference, measured.total_mops, true);
        if let Some((batch, turns)) = turns {
            add("responses per turn", "", batch, measured.batch, false);
            add("turns in 10 s", "M", turns, measured.turns_10s, false);
        }
    }
    for (nodes, references) in SHALLOW {
        for ((hold, name, warm_up_us), reference) in HOLDS.into_iter().zip(references) {
            let end_us = warm_up_us + 1200.0;
            let start = StartState::Burst;
            let load = Load { nodes, depth: 1, start, poll_budget: 0, hold, warm_up_us, end_us };
            let simulated = step(&mut outcome, &load, seed).total_mops;
            let what = format!("1 call per client, {nodes} nodes, {name}: throughput");
            outcome.rows.push(Row { what, unit: "M/s", reference, simulated, is_claimed: true });
        }
    }
    for nodes in [2, 8, 16] {
        for start in starts {
            for seed in seed..seed + seeds_of(start) {
                let Measured { total_mops, messages_per_wqe, .. } =
                    step(&mut outcome, &deep(nodes, 0, start), seed);
                let attractor = Attractor { nodes, start, seed, total_mops, messages_per_wqe };
                outcome.attractors.push(attractor);
            }
        }
    }
    outcome
}

fn deep(nodes: usize, poll_budget: u32, start: StartState) -> Load {
    let (warm_up_us, length_us) = match (start, poll_budget) {
        (StartState::Burst, _) => (9000.0, 2000.0),
        (StartState::Trickle, 0) => (4500.0, 2000.0),
        (StartState::Trickle, _) => (6500.0, 1500.0),
    };
    let end_us = warm_up_us + length_us;
    Load { nodes, depth: 32, start, poll_budget, hold: Hold::None, warm_up_us, end_us }
}
