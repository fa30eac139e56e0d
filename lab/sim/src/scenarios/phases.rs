//! Two steady states of the delegation daemon: which state follows from which start, how long it lasts, whether it depends on
//! the way there, and the number of nodes at which states begin and end.
//!
//! A daemon with `p` peers posts up to `p` batches per turn, each of which takes its send queue a time `w`. The
//! queue keeps up if a turn takes at least `p w`. A turn takes `t = (t0 + p e) / (1 − u)`: `t0` without work, `e` for each
//! batch, and `u` is the share of time that messages take. So a state with load `u` and a queue that keeps up exists if
//!
//! ```text
//!   p (w (1 − u) − e) ≤ t0
//! ```
//!
//! With the load of the upper state, where the ring of requests is what clients wait for, this gives the most peers of
//! an upper state. With the load of the lower state, one message per work request and as many calls of the own node as belong to it, it
//! gives the peers from which on the queue does not keep up, and the lower state exists. In between both do. The round trip time is in neither. The reference takes it for the threshold; in the
//! model a way that is five times as long changes no state.
//!
//! Items beyond those that caches hold cost more. If with them `u` exceeds `1 − e/w`, a third state without a limit on
//! nodes exists: turns that take all calls. A burst of 16 nodes leads there.

use serde::Serialize;

use crate::{
    actors::reference_daemon::{self, Approach, Hold, Load, Mutant, StartState, SweepStage, Watch},
    machine::DelegationProfile,
};

/// A deep load of so many nodes, from a burst.
#[must_use]
pub fn deep(nodes: usize, poll_budget: u32, warm_up_us: f64) -> Load {
    Load {
        nodes,
        depth: 32,
        start: StartState::Burst,
        poll_budget,
        hold: Hold::None,
        approach: Approach::None,
        warm_up_us,
        end_us: warm_up_us + 1500.0,
    }
}

/// A steady state with 32 calls per client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum SteadyState {
    /// Single messages: the send queue is what calls wait for.
    Lower,
    /// Large batches: the daemon or its ring is.
    Upper,
}

impl SteadyState {
    /// Of a rate in M/s per node. The lower state has at most 1.8 with 5 nodes and more, the upper one 6.
    #[must_use]
    pub fn of(mops_per_node: f64) -> Self {
        if mops_per_node < 4.0 { Self::Lower } else { Self::Upper }
    }
}

/// How a run begins, and on how many nodes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Condition {
    /// Nodes.
    pub nodes: usize,
    /// State of all clients at the start.
    pub start: StartState,
    /// Completions that a turn waits for.
    pub poll_budget: u32,
}

/// A condition, and the state that it leads to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Expected {
    /// The condition.
    pub condition: Condition,
    /// The state of most seeds.
    pub state: SteadyState,
    /// Whether the reference was measured under it; elsewhere the model says it.
    pub is_measured: bool,
}

const fn expected(
    nodes: usize,
    start: StartState,
    poll_budget: u32,
    state: SteadyState,
    is_measured: bool,
) -> Expected {
    Expected { condition: Condition { nodes, start, poll_budget }, state, is_measured }
}

/// The diagram of states.
pub const DIAGRAM: [Expected; 13] = [
    expected(2, StartState::Burst, 0, SteadyState::Upper, true),
    expected(2, StartState::Trickle, 0, SteadyState::Upper, false),
    expected(4, StartState::Burst, 0, SteadyState::Upper, false),
    expected(4, StartState::Trickle, 0, SteadyState::Lower, false),
    expected(6, StartState::Burst, 0, SteadyState::Lower, false),
    expected(6, StartState::Trickle, 0, SteadyState::Lower, false),
    expected(8, StartState::Burst, 0, SteadyState::Lower, true),
    expected(8, StartState::Burst, 16, SteadyState::Upper, true),
    expected(12, StartState::Burst, 0, SteadyState::Lower, false),
    expected(12, StartState::Trickle, 0, SteadyState::Lower, false),
    expected(16, StartState::Burst, 0, SteadyState::Upper, true),
    expected(16, StartState::Burst, 16, SteadyState::Lower, true),
    expected(16, StartState::Trickle, 0, SteadyState::Lower, false),
];

/// What became of a condition.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Found {
    /// The condition, and the state that was expected.
    pub expected: Expected,
    /// Seeds that ended in the expected state.
    pub agreeing: usize,
    /// Rates of all seeds, in M/s per node.
    pub mops_per_node: Vec<f64>,
}

impl Found {
    /// Whether three quarters of the seeds agree.
    #[must_use]
    pub fn is_as_expected(&self) -> bool {
        4 * self.agreeing >= 3 * self.mops_per_node.len()
    }
}

/// Before the state is looked at, in µs. A trickle takes 1.5 ms; a burst of 8 nodes falls within 2 ms.
const fn settled_us(condition: Condition) -> f64 {
    match (condition.start, condition.nodes) {
        (StartState::Burst, 8) if condition.poll_budget == 0 => 18_000.0,
        (StartState::Burst, _) => 6000.0,
        (StartState::Trickle, _) => 4500.0,
    }
}

#[expect(clippy::cast_precision_loss, reason = "few nodes")]
const fn real(count: usize) -> f64 {
    count as f64
}

/// Seeds of a condition: a burst of 8 or 16 nodes ends in one state or the other, and the others do not depend on it.
const fn seeds_of(condition: Condition) -> u64 {
    match (condition.start, condition.nodes) {
        (StartState::Burst, 8 | 16) if condition.poll_budget == 0 => 16,
        _ => 3,
    }
}

/// Simulates one condition with some seeds, from `seed` on.
#[must_use]
pub fn find(profile: &DelegationProfile, mutant: Mutant, expected: Expected, seed: u64) -> Found {
    let seeds = seed..seed.saturating_add(seeds_of(expected.condition));
    let Condition { nodes, start, poll_budget } = expected.condition;
    let warm_up_us = settled_us(expected.condition);
    let load = Load { start, end_us: warm_up_us + 700.0, ..deep(nodes, poll_budget, warm_up_us) };
    let rates = seeds.map(|seed| {
        reference_daemon::run_mutant(profile, &load, mutant, seed).total_mops / real(nodes)
    });
    let mops_per_node: Vec<_> = rates.collect();
    let agrees = |rate: &&f64| SteadyState::of(**rate) == expected.state;
    let agreeing = mops_per_node.iter().filter(agrees).count();
    Found { expected, agreeing, mops_per_node }
}

/// Simulates the diagram. `progress` hears how many conditions of how many are done.
#[must_use]
pub fn diagram(
    profile: &DelegationProfile,
    mutant: Mutant,
    seed: u64,
    mut progress: impl FnMut(usize, usize),
) -> Vec<Found> {
    let found = DIAGRAM.into_iter().enumerate().map(|(index, expected)| {
        let found = find(profile, mutant, expected, seed);
        progress(index + 1, DIAGRAM.len());
        found
    });
    found.collect()
}

/// How long the upper state lasts after a burst of 32 calls per client.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lifetime {
    /// Nodes.
    pub nodes: usize,
    /// Of each seed, in µs, from the shortest on; those that last until the end of [`LIFETIME_WATCH`] are not there.
    pub ended_us: Vec<f64>,
    /// Seeds.
    pub seeds: usize,
}

/// The rate of a quarter of a millisecond says the state.
pub const LIFETIME_WATCH: Watch = Watch { look_us: 250.0, end_us: 20_000.0 };

const LIFETIME_NODES: [usize; 9] = [2, 4, 5, 6, 8, 10, 12, 14, 16];
const LIFETIME_SEEDS: u64 = 8;

/// How long the upper state lasts, by nodes, with some seeds from `seed` on. `progress` hears how many nodes of how many are done.
#[must_use]
pub fn lifetimes(
    profile: &DelegationProfile,
    seed: u64,
    mut progress: impl FnMut(usize, usize),
) -> Vec<Lifetime> {
    let all = LIFETIME_NODES.into_iter().zip(1..).map(|(nodes, done)| {
        let lifetime = lifetime(profile, nodes, seed);
        progress(done, LIFETIME_NODES.len());
        lifetime
    });
    all.collect()
}

/// Of so many nodes.
#[must_use]
pub fn lifetime(profile: &DelegationProfile, nodes: usize, seed: u64) -> Lifetime {
    let load = deep(nodes, 0, 0.0);
    let is_up = |mops| SteadyState::of(mops) == SteadyState::Upper;
    let seeds = seed..seed.saturating_add(LIFETIME_SEEDS);
    let lasts = |seed| reference_daemon::lasts_us(profile, &load, LIFETIME_WATCH, seed, is_up);
    let all: Vec<_> = seeds.map(lasts).collect();
    let mut ended_us: Vec<f64> = all.iter().copied().flatten().collect();
    ended_us.sort_by(f64::total_cmp);
    Lifetime { nodes, ended_us, seeds: all.len() }
}

/// A stage of a sweep, and its rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Swept {
    /// The stage.
    pub stage: SweepStage,
    /// In its second half.
    pub mops_per_node: f64,
}

/// One world in which nodes or calls per client are taken away and added again, 6 ms each.
#[must_use]
pub fn sweep(profile: &DelegationProfile, stages: &[SweepStage], seed: u64) -> Vec<Swept> {
    let nodes = stages.iter().map(|stage| stage.nodes).max().unwrap_or(2);
    // Its first stage is a burst.
    let load = Load {
        nodes,
        depth: stages.first().map_or(1, |stage| stage.depth),
        start: StartState::Burst,
        poll_budget: 0,
        hold: Hold::None,
        approach: Approach::None,
        warm_up_us: 0.0,
        end_us: f64::MAX,
    };
    let rates = reference_daemon::run_stages(profile, &load, stages, 6000.0, seed);
    stages
        .iter()
        .zip(rates)
        .map(|(stage, mops_per_node)| Swept { stage: *stage, mops_per_node })
        .collect()
}

/// Nodes with 32 calls per client from 16 to 2 and back.
#[must_use]
pub fn nodes_down_and_up() -> Vec<SweepStage> {
    let down = [16, 14, 12, 10, 8, 6, 5, 4, 3, 2];
    let up = down.into_iter().rev().skip(1);
    down.into_iter().chain(up).map(|nodes| SweepStage { nodes, depth: 32 }).collect()
}

/// Calls per client at 16 nodes from 32 to 1 and back.
#[must_use]
pub fn depth_down_and_up() -> Vec<SweepStage> {
    let down = [32, 24, 16, 8, 4, 2, 1];
    let up = down.into_iter().rev().skip(1);
    down.into_iter().chain(up).map(|depth| SweepStage { nodes: 16, depth }).collect()
}

/// Nodes at which states begin and end, by the formula.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Threshold {
    /// The lower state exists from so many nodes on.
    pub lower_from: u32,
    /// The upper state whose turns fit the caches exists up to so many; `None`: it has no limit.
    pub upper_to: Option<u32>,
}

/// More nodes than that are not looked at.
const NODES_MAX: u32 = 4096;

/// The formula of this module.
#[must_use]
pub fn threshold(profile: &DelegationProfile) -> Threshold {
    let batch = profile.flush + profile.completion;
    let keeps_up = |nodes: u32, load: f64| {
        f64::from(nodes - 1) * (profile.wqe * (1.0 - load) - batch) <= profile.turn
    };
    let upper_load = |nodes: u32| {
        let remote = f64::from(nodes - 1) / f64::from(nodes);
        let call = profile.call + profile.response + profile.serve;
        (remote * call + (1.0 - remote) * profile.local) / profile.ring
    };
    // A call to another node is two messages, and there are as many calls of the own node as of each peer.
    let lower_load = |nodes: u32| {
        let call = profile.call + profile.response + profile.serve;
        (call + profile.local / f64::from(nodes - 1)) / 2.0 / profile.wqe
    };
    let first = |is: &dyn Fn(u32) -> bool| (2..=NODES_MAX).find(|nodes| is(*nodes));
    Threshold {
        lower_from: first(&|nodes| !keeps_up(nodes, lower_load(nodes))).unwrap_or(NODES_MAX),
        upper_to: first(&|nodes| !keeps_up(nodes, upper_load(nodes))).map(|nodes| nodes - 1),
    }
}
