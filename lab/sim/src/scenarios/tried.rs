//! What was tried on the delegation daemon, or proposed for it, against small batches: what each approach brings in the model.

use serde::Serialize;

use super::{
    ERROR_MAX,
    bistability::{SEND_DELAY_US, shallow},
    phases::deep,
};
use crate::{
    actors::reference_daemon::{self, Approach, Hold, Load},
    machine::DelegationProfile,
};

/// The round trip by the reference, in µs: what completions are gathered for, and what peers are apart.
const ROUND_TRIP_US: f64 = 6.0;
/// What answers are held for, in µs.
const HOLD_US: f64 = 10.0;
/// Numbers are medians of so many seeds.
const SEEDS: u64 = 3;

/// A load and an approach, and what the reference had.
#[derive(Clone, Debug)]
struct Trial {
    name: &'static str,
    load: Load,
    /// Without and with it, in M/s of all nodes.
    reference: Option<[f64; 2]>,
    words: Option<ReferenceWords>,
}

/// What an approach brings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ApproachGain {
    /// The approach.
    pub name: &'static str,
    /// Nodes.
    pub nodes: usize,
    /// Calls in flight per client.
    pub depth: u32,
    /// As measured without and with it, in M/s of all nodes.
    pub reference: Option<[f64; 2]>,
    /// What the reference says of it in words, where it gives no number.
    pub words: Option<ReferenceWords>,
    /// As simulated without and with it.
    pub mops: [f64; 2],
}

/// What the reference says of an approach without a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum ReferenceWords {
    /// It stands still, or clients starve.
    Stalls,
}

impl ApproachGain {
    /// Whether the model has it otherwise: a rate with the approach that is off by more than [`ERROR_MAX`], or no loss of more
    /// than that where the reference stalls.
    #[must_use]
    pub fn is_missed(&self) -> bool {
        let [without, with] = self.mops;
        match (self.reference, self.words) {
            (Some([_, reference]), _) => (with / reference - 1.0).abs() > ERROR_MAX,
            (None, Some(ReferenceWords::Stalls)) => with > (1.0 - ERROR_MAX) * without,
            (None, None) => false,
        }
    }
}

fn budget(nodes: usize, reference: [f64; 2]) -> Trial {
    let load = deep(nodes, 16, settled_us(nodes));
    Trial { name: "polls up to 16 times", load, reference: Some(reference), words: None }
}

fn hold(name: &'static str, nodes: usize, hold: Hold, reference: [f64; 2]) -> Trial {
    Trial { name, load: shallow(nodes, hold), reference: Some(reference), words: None }
}

fn approach(name: &'static str, load: Load, approach: Approach) -> Trial {
    Trial { name, load: Load { approach, ..load }, reference: None, words: None }
}

fn stalls(trial: Trial) -> Trial {
    Trial { words: Some(ReferenceWords::Stalls), ..trial }
}

/// A burst of 8 nodes falls within 2 ms; a controller takes longer.
const fn settled_us(nodes: usize) -> f64 {
    if nodes == 8 { 18_000.0 } else { 6000.0 }
}

fn trials() -> Vec<Trial> {
    let deep = |nodes| deep(nodes, 0, settled_us(nodes));
    let one = |nodes| shallow(nodes, Hold::None);
    let controller = |nodes| approach("poll controller", deep(nodes), Approach::PollController);
    let gathered = |nodes| {
        let gathered = Approach::GatheredCompletions(ROUND_TRIP_US);
        stalls(approach("completions gathered for 6 µs", one(nodes), gathered))
    };
    let skipped =
        |nodes| stalls(approach("idle turns skip clients", one(nodes), Approach::SkippedClients));
    let staggered = |nodes| {
        approach("peers begin 6 µs apart", deep(nodes), Approach::StaggeredPeers(ROUND_TRIP_US))
    };
    let delayed = approach("sends delayed by 10 µs", one(8), Approach::DelayedSends(SEND_DELAY_US));
    vec![
        budget(8, [8.79, 58.4]),
        budget(16, [110.04, 24.7]),
        controller(8),
        controller(16),
        hold("answers held for 10 µs", 8, Hold::Fixed(HOLD_US), [8.16, 11.17]),
        hold("held for 2 round trips", 8, Hold::RoundTrip(2.0), [8.16, 9.45]),
        hold("held by their rate", 32, Hold::Adaptive(HOLD_US), [27.24, 38.93]),
        // The reference has a gain of 1.6 %.
        Trial { reference: Some([8.16, 8.29]), ..delayed },
        gathered(2),
        gathered(8),
        skipped(2),
        skipped(4),
        staggered(4),
        staggered(8),
        staggered(16),
    ]
}

fn median(profile: &DelegationProfile, load: &Load, seed: u64) -> f64 {
    let seeds = seed..seed.saturating_add(SEEDS);
    let mut rates: Vec<_> =
        seeds.map(|seed| reference_daemon::run(profile, load, seed).total_mops).collect();
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or(0.0)
}

/// Simulates all of them. `progress` hears how many of how many are done.
#[must_use]
pub fn run(
    profile: &DelegationProfile,
    seed: u64,
    mut progress: impl FnMut(usize, usize),
) -> Vec<ApproachGain> {
    let trials = trials();
    let of = trials.len();
    let tried = trials.into_iter().enumerate().map(|(index, trial)| {
        let Trial { name, load, reference, words } = trial;
        let plain =
            Load { poll_budget: 0, hold: Hold::None, approach: Approach::None, ..load.clone() };
        let mops = [&plain, &load].map(|load| median(profile, load, seed));
        progress(index + 1, of);
        ApproachGain { name, nodes: load.nodes, depth: load.depth, reference, words, mops }
    });
    tried.collect()
}
