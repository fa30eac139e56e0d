//! Delegation at 2 to 32 nodes, against what was measured on ConnectX-7 with another daemon than ours.
//!
//! With 32 calls in flight per client that daemon has two steady states, and falls from one into the other
//! ([`phases`](super::phases)). The reference numbers are of single runs, which began with all clients at once, and so does every
//! simulation here.
//!
//! A start of 8 nodes falls and one of 16 nodes stays up in each of 16 seeds. Rows are medians of seeds.
//!
//! The machine's times come from other measurements; the daemon's own were fitted to a table of 32 calls per client and to both
//! throughputs with a poll budget. [`CONNECT_X7`] says which by which. No constant was chosen by the tables of one call per client, the
//! holds of round trips, calls under way, shares of turns, or the collapse over time.
//!
//! Predicted rows are [`INDEPENDENT`] quantities: the second table of one call per client repeats the conditions of the first.
//!
//! Missed:
//!
//! - One call per client at 4 nodes: the reference is in the upper state, the model in the lower one, from a burst as from
//!   a trickle. A turn of 0.9 µs would keep it up, and would have 8 nodes stay up, too. A histogram of turns at 4 nodes would decide.
//! - Turns and responses per turn of 8 nodes: the reference says 0.97 responses in 14.0 million turns, which are 1.55 M/s per
//!   node and not 1.10; in its steady state it has 0.58 to 0.72.
//! - Turns and calls under way at 16 nodes: the reference alternates between long turns and some 25 empty ones. The model does for some
//!   seeds, with fewer empty ones, and has long turns alone for others: calls under way are 1360 and 720 by that, and the row has the
//!   seed that is farthest off.
//! - The collapse over time, after its first 100 µs: the model falls sooner, and ends later.
//! - Two nodes without a daemon.
//! - Sends that are delayed. The reference gains 1.6 %, and does not say by which delay. In the model 10 µs gather
//!   messages, and more than double the rate.

use serde::Serialize;

use super::{
    Compared, Standing,
    phases::{SteadyState, deep},
};
use crate::{
    actors::reference_daemon::{self, Approach, Hold, Load, Measured, SLICE_US, StartState},
    machine::{CONNECT_X7, DelegationProfile},
};

/// Independent quantities among predicted rows: twelve rates of one call per client, three with holds of round trips; of 8 nodes calls
/// under way, two shares of turns, and the first slice of the collapse.
pub const INDEPENDENT: usize = 19;

/// All numbers of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Of the run.
    pub seed: u64,
    /// Every number.
    pub rows: Vec<Compared>,
    /// Turns simulated.
    pub events: u64,
    /// A hash of all of them.
    pub trace: u64,
}

impl Outcome {
    /// Rows whose error is larger than claimed.
    pub fn misses(&self) -> impl Iterator<Item = &Compared> {
        self.rows.iter().filter(|row| row.is_missed())
    }
}

/// Seeds of a burst with 32 calls per client.
const DEEP_SEEDS: u64 = 9;
/// Seeds with one call per client: numbers are means of them.
const SHALLOW_SEEDS: u64 = 3;

/// With one call per client: nodes, and calls per µs without hold, with 10 µs, and adaptive; then of a second run
/// without hold and with 10 µs.
const SHALLOW: [(usize, [f64; 5]); 5] = [
    (2, [13.79, 14.85, 14.73, 13.76, 14.67]),
    (4, [21.72, 21.08, 20.91, 21.87, 21.43]),
    (8, [8.16, 11.17, 11.11, 8.18, 10.64]),
    (16, [14.38, 20.01, 19.49, 14.71, 20.15]),
    (32, [27.24, 31.69, 38.93, 27.08, 31.30]),
];

const HOLDS: [(Hold, &str); 3] = [
    (Hold::None, "no hold"),
    (Hold::Fixed(10.0), "hold of 10 µs"),
    (Hold::Adaptive(10.0), "adaptive hold"),
];

/// A multiple of the round trip that answers are held for at 8 nodes, and calls per µs.
const ROUND_TRIP_HOLDS: [(f64, f64); 3] = [(1.0, 8.72), (1.5, 9.16), (2.0, 9.45)];

/// What sends are delayed by, in µs: as answers are held. The reference does not say.
pub(super) const SEND_DELAY_US: f64 = 10.0;

/// Without a daemon, one call per client: nodes, and calls per µs.
pub const DIRECT: [(u32, f64); 5] = [(2, 2.75), (4, 6.59), (8, 13.55), (16, 26.31), (32, 54.27)];

/// One call per client, from a burst.
pub(super) fn shallow(nodes: usize, hold: Hold) -> Load {
    let start = StartState::Burst;
    let (warm_up_us, end_us) = (1500.0, 2700.0);
    let approach = Approach::None;
    Load { nodes, depth: 1, start, poll_budget: 0, hold, approach, warm_up_us, end_us }
}

/// Simulations, and the rows that they yield.
struct Table<'a> {
    profile: &'a DelegationProfile,
    outcome: Outcome,
    done: usize,
    progress: &'a mut dyn FnMut(usize, usize),
}

/// Simulations of [`run_on`].
const SIMULATIONS: usize = 5 * 9 + (5 * 3 + 3 + 2) * 3;

impl Table<'_> {
    fn measure(&mut self, load: &Load, seed: u64) -> Measured {
        let measured = reference_daemon::run(self.profile, load, seed);
        self.outcome.events += measured.events;
        self.outcome.trace = self.outcome.trace.rotate_left(1) ^ measured.trace;
        self.done += 1;
        (self.progress)(self.done, SIMULATIONS);
        measured
    }

    fn add(&mut self, what: String, unit: &'static str, numbers: [f64; 2], standing: Standing) {
        let [reference, simulated] = numbers;
        self.outcome.rows.push(Compared { what, unit, reference, simulated, standing });
    }

    /// Calls per µs with one call per client.
    fn shallow(&mut self, nodes: usize, hold: Hold) -> f64 {
        self.mean(&shallow(nodes, hold))
    }

    /// Calls per µs.
    fn mean(&mut self, load: &Load) -> f64 {
        let seed = self.outcome.seed;
        let seeds = seed..seed.saturating_add(SHALLOW_SEEDS);
        let (sum, count) = seeds.fold((0.0, 0.0_f64), |(sum, count), seed| {
            (sum + self.measure(load, seed).total_mops, count + 1.0)
        });
        sum / count.max(1.0)
    }

    /// Runs that ended in `state`, or all if none has.
    #[expect(clippy::cast_precision_loss, reason = "few nodes")]
    fn deep(&mut self, load: &Load, state: SteadyState) -> Deep {
        let seed = self.outcome.seed;
        let seeds = seed..seed.saturating_add(DEEP_SEEDS);
        let mut runs: Vec<_> = seeds.map(|seed| self.measure(load, seed)).collect();
        let is_there =
            |run: &Measured| SteadyState::of(run.total_mops / load.nodes as f64) == state;
        if runs.iter().any(is_there) {
            runs.retain(is_there);
        }
        let label = match load.poll_budget {
            0 => format!("32 calls per client, {} nodes", load.nodes),
            budget => format!("32 calls per client, {} nodes, poll budget {budget}", load.nodes),
        };
        Deep { label, runs }
    }
}

/// Runs that differ in their seeds.
struct Deep {
    label: String,
    runs: Vec<Measured>,
}

impl Deep {
    fn median(&self, of: impl Fn(&Measured) -> f64) -> f64 {
        let mut values: Vec<_> = self.runs.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(0.0)
    }

    fn throughput(&self, table: &mut Table<'_>, reference: f64, standing: Standing) {
        let simulated = self.median(|run| run.total_mops);
        table.add(format!("{}: throughput", self.label), "M/s", [reference, simulated], standing);
    }

    /// Responses per turn, and turns.
    fn turns(&self, table: &mut Table<'_>, references: [f64; 2], standings: [Standing; 2]) {
        let batch = self.median(|run| run.batch);
        let what = format!("{}: responses per turn", self.label);
        table.add(what, "", [references[0], batch], standings[0]);
        let simulated = self.median(|run| run.turns_10s);
        let what = format!("{}: turns in 10 s", self.label);
        table.add(what, "M", [references[1], simulated], standings[1]);
    }

    /// Of the seed that is farthest off.
    fn under_way(&self, table: &mut Table<'_>, reference: f64, standing: Standing) {
        let off = |count: &f64| (count / reference - 1.0).abs();
        let counts = self.runs.iter().map(|run| run.outstanding);
        let simulated = counts.max_by(|one, other| off(one).total_cmp(&off(other))).unwrap_or(0.0);
        let what = format!("{}: calls under way", self.label);
        table.add(what, "", [reference, simulated], standing);
    }

    /// Shares of turns, in percent.
    fn shares(&self, table: &mut Table<'_>, references: [(f64, Standing); 4]) {
        let names = [
            "without response",
            "with one response",
            "with 2 to 10 responses",
            "with more than 100 responses",
        ];
        let shares = names.into_iter().zip(references).enumerate();
        for (index, (name, (reference, standing))) in shares {
            let simulated = 100.0 * self.median(|run| run.shares[index]);
            let what = format!("{}: turns {name}", self.label);
            table.add(what, "%", [reference, simulated], standing);
        }
    }

    /// Responses per turn by time since a node's first post, in slices of 100 µs: which, and how many. The reference counts from
    /// there: its first responses come after 6 to 8 µs.
    fn collapse(&self, table: &mut Table<'_>, references: [(usize, f64, Standing); 5]) {
        for (slice, reference, standing) in references {
            let simulated = self.median(|run| run.timeline[slice]);
            let begin = f64::from(u32::try_from(slice).unwrap_or(0)) * SLICE_US;
            let end = begin + SLICE_US;
            let what =
                format!("collapse of 8 nodes: responses per turn, {begin:.0} to {end:.0} µs");
            table.add(what, "", [reference, simulated], standing);
        }
    }
}

/// Simulates every number. `progress` hears how many simulations of how many are done.
#[must_use]
pub fn run(seed: u64, progress: impl FnMut(usize, usize)) -> Outcome {
    run_on(&CONNECT_X7, seed, progress)
}

/// Simulates every number on a machine that may differ from [`CONNECT_X7`].
#[must_use]
pub fn run_on(
    profile: &DelegationProfile,
    seed: u64,
    mut progress: impl FnMut(usize, usize),
) -> Outcome {
    let outcome = Outcome { seed, rows: Vec::new(), events: 0, trace: 0 };
    let mut table = Table { profile, outcome, done: 0, progress: &mut progress };
    for add_rows in [two_nodes, eight_nodes, sixteen_nodes, shallow_rows, direct_rows] {
        add_rows(&mut table);
    }
    table.outcome
}

fn two_nodes(table: &mut Table<'_>) {
    use Standing::Fitted;
    let two = table.deep(&deep(2, 0, 3000.0), SteadyState::Upper);
    two.throughput(table, 15.26, Fitted);
    two.turns(table, [4.6, 8.6], [Fitted; 2]);
}

fn eight_nodes(table: &mut Table<'_>) {
    use Standing::{Fitted, Missed, Predicted};
    // A burst of 8 nodes falls within 2 ms.
    let eight = table.deep(&deep(8, 0, 18_000.0), SteadyState::Lower);
    eight.throughput(table, 8.79, Fitted);
    eight.turns(table, [0.97, 14.0], [Missed(0.45), Missed(0.22)]);
    eight.under_way(table, 1343.0, Predicted);
    let shares = [(62.0, Predicted), (32.4, Predicted), (5.6, Missed(0.85)), (0.037, Missed(1.0))];
    eight.shares(table, shares);
    let slices = [
        (0, 640.0, Predicted),
        (2, 150.0, Missed(0.82)),
        (3, 75.0, Missed(0.83)),
        (4, 37.0, Missed(0.84)),
        (9, 1.0, Missed(1.72)),
    ];
    eight.collapse(table, slices);
}

fn sixteen_nodes(table: &mut Table<'_>) {
    use Standing::{Fitted, Missed, Shown};
    let sixteen = table.deep(&deep(16, 0, 6000.0), SteadyState::Upper);
    sixteen.throughput(table, 110.04, Fitted);
    sixteen.turns(table, [28.0, 2.3], [Missed(11.9), Missed(0.92)]);
    sixteen.under_way(table, 833.0, Shown);
    let shares =
        [(93.1, Missed(1.0)), (0.76, Missed(1.0)), (0.67, Missed(19.9)), (3.68, Missed(26.2))];
    sixteen.shares(table, shares);
    let budget = table.deep(&deep(8, 16, 4000.0), SteadyState::Upper);
    budget.throughput(table, 58.4, Fitted);
    let budget = table.deep(&deep(16, 16, 4000.0), SteadyState::Lower);
    budget.throughput(table, 24.7, Fitted);
}

fn shallow_rows(table: &mut Table<'_>) {
    use Standing::{Missed, Predicted};
    for (nodes, [none, fixed, adaptive, none_again, fixed_again]) in SHALLOW {
        let runs = HOLDS.map(|(hold, name)| {
            let what = format!("1 call per client, {nodes} nodes, {name}");
            (what, table.shallow(nodes, hold))
        });
        // 4 nodes are in the other state.
        let standings = match nodes {
            4 => [Missed(0.76), Missed(0.66), Missed(0.7)],
            _ => [Predicted; 3],
        };
        let rows = runs.iter().zip(standings);
        for (((what, simulated), standing), reference) in rows.clone().zip([none, fixed, adaptive])
        {
            let what = format!("{what}: throughput");
            table.add(what, "M/s", [reference, *simulated], standing);
        }
        for (((what, simulated), standing), reference) in rows.zip([none_again, fixed_again]) {
            let what = format!("{what}, second table: throughput");
            table.add(what, "M/s", [reference, *simulated], standing);
        }
    }
    for (times, reference) in ROUND_TRIP_HOLDS {
        let simulated = table.shallow(8, Hold::RoundTrip(times));
        let what =
            format!("1 call per client, 8 nodes, hold of {times:.1} round trips: throughput");
        table.add(what, "M/s", [reference, simulated], Predicted);
    }
    let plain = shallow(8, Hold::None);
    let delayed = Load { approach: Approach::DelayedSends(SEND_DELAY_US), ..plain.clone() };
    let gain = 100.0 * (table.mean(&delayed) / table.mean(&plain) - 1.0);
    table.add(
        "batching where it is sent, 8 nodes: gain".to_owned(),
        "%",
        [1.6, gain],
        Missed(75.0),
    );
}

/// One server per node answers each call by a work request of its one send queue.
fn direct_rows(table: &mut Table<'_>) {
    for (nodes, reference) in DIRECT {
        let simulated = f64::from(nodes) / table.profile.wqe;
        let standing = if nodes == 2 { Standing::Missed(0.22) } else { Standing::Fitted };
        let what = format!("1 call per client, {nodes} nodes, without a daemon: throughput");
        table.add(what, "M/s", [reference, simulated], standing);
    }
}
