//! Other models than those of the scenarios, each with one mechanism that is missing or elsewhere: what their checks
//! notice of them. A check that does not fail for a wrong model says nothing about the right one.

use serde::Serialize;

use super::{Compared, bistability, dct, phases, sensitivity::Model, two_rank};
use crate::{
    actors::{
        reference_daemon::Mutant,
        slot_daemon::Candidate::{
            self, Backpressure, CreditReturn, DoorbellEach, Gather, Queueing, SendQueue, SrqChain,
        },
    },
    machine::{
        BadConstant, CONNECT_IB, CONNECT_X7, Constants as _, DelegationProfile, NicProfile,
        TWO_RANK, with_constant,
    },
    world::Time,
};

/// The part of a model that differs.
#[derive(Clone, Copy)]
enum Change {
    /// Where a send queue's time is spent.
    Place(Mutant),
    /// Times of delegation.
    Delegation(fn(&mut DelegationProfile)),
    /// A constant of delegation, and its factor.
    Constant(&'static str, f64),
    /// The candidates of two ranks that are on.
    TwoRank(&'static [Candidate]),
    /// The NIC of READs.
    Nic(fn(&mut NicProfile)),
}

/// A model that is wrong on purpose.
#[derive(Clone, Copy)]
pub struct WrongModel {
    /// The mistake, in words.
    pub name: &'static str,
    change: Change,
    /// Why no measured number tells it from the model, if none does.
    pub survives: Option<&'static str>,
}

const fn wrong(name: &'static str, change: Change) -> WrongModel {
    WrongModel { name, change, survives: None }
}

/// One that no number tells from the model.
const fn survivor(name: &'static str, change: Change, why: &'static str) -> WrongModel {
    WrongModel { name, change, survives: Some(why) }
}

/// Factors of a constant that is a fifth smaller, and larger.
const LESS: f64 = 0.8;
const MORE: f64 = 1.2;

/// All of them. Each constant of delegation that is said to matter is a fifth smaller in one and larger in another.
pub const WRONG_MODELS: [WrongModel; 40] = [
    wrong("a work request takes its time at the receiver", Change::Place(Mutant::AtReceiver)),
    wrong("a work request takes the NIC of both ends", Change::Place(Mutant::WholeNic)),
    wrong("each message is a work request", Change::Place(Mutant::NoMerging)),
    wrong("work requests take no time", Change::Delegation(|it| it.wqe = it.message)),
    wrong("the ring takes no time", Change::Delegation(|it| it.ring /= 100.0)),
    wrong("nothing leaves the caches", Change::Delegation(|it| it.cold = 1.0)),
    wrong("work requests take a fifth less", Change::Constant("wqe", LESS)),
    wrong("work requests take a fifth more", Change::Constant("wqe", MORE)),
    wrong("the ring takes a fifth less", Change::Constant("ring", LESS)),
    wrong("the ring takes a fifth more", Change::Constant("ring", MORE)),
    wrong("calls to other nodes take a fifth less", Change::Constant("call", LESS)),
    wrong("calls to other nodes take a fifth more", Change::Constant("call", MORE)),
    wrong("calls to the own node take a fifth less", Change::Constant("local", LESS)),
    wrong("calls to the own node take a fifth more", Change::Constant("local", MORE)),
    wrong("empty turns take a fifth less", Change::Constant("turn", LESS)),
    wrong("empty turns take a fifth more", Change::Constant("turn", MORE)),
    wrong("responses take a fifth less", Change::Constant("response", LESS)),
    wrong("responses take a fifth more", Change::Constant("response", MORE)),
    wrong("calls of other nodes take a fifth less", Change::Constant("serve", LESS)),
    wrong("calls of other nodes take a fifth more", Change::Constant("serve", MORE)),
    wrong("messages of a batch take a fifth less", Change::Constant("message", LESS)),
    wrong("messages of a batch take a fifth more", Change::Constant("message", MORE)),
    wrong("work beyond the caches takes a fifth less", Change::Constant("cold", LESS)),
    wrong("work beyond the caches takes a fifth more", Change::Constant("cold", MORE)),
    wrong("nothing takes any time", Change::TwoRank(&[])),
    wrong("the send queue takes no time", Change::TwoRank(&[Queueing])),
    wrong("nothing waits for anything", Change::TwoRank(&[SendQueue])),
    wrong("batches are read from memory instead", Change::TwoRank(&[Gather, Queueing])),
    wrong("a doorbell for each message instead", Change::TwoRank(&[DoorbellEach, Queueing])),
    survivor(
        "a time per received message instead",
        Change::TwoRank(&[SrqChain, Queueing]),
        "it fits two ranks as well; at the receiver it does not have the states of delegation",
    ),
    wrong("credit in batches of its own", Change::TwoRank(&[SendQueue, CreditReturn, Queueing])),
    wrong("a send queue of one entry", Change::TwoRank(&[SendQueue, Backpressure, Queueing])),
    wrong("targets change while READs are on the way", Change::Nic(|it| it.drains = false)),
    wrong("times of units do not vary", Change::Nic(|it| it.varies = false)),
    wrong("the cache holds all contexts", Change::Nic(|it| it.cache_contexts = 1 << 20)),
    survivor(
        "a queue pair sends any number of READs",
        Change::Nic(|it| it.reads_max = 1 << 20),
        "no number needs the limit, which is documented behaviour",
    ),
    survivor(
        "no WQE is read again",
        Change::Nic(|it| it.refetch = Time::ZERO),
        "one latency is 13 % shorter, which is within the tolerance",
    ),
    wrong("targets change without DISCONNECT", Change::Nic(without_disconnect)),
    wrong("one processing unit", Change::Nic(|it| it.units = 1)),
    wrong("a processing unit for each queue pair", Change::Nic(|it| it.units = 1 << 12)),
];

fn without_disconnect(nic: &mut NicProfile) {
    (nic.disconnect_issue, nic.disconnect_respond) = (Time::ZERO, Time::ZERO);
}

/// A wrong model, and what is noticed.
#[derive(Clone, Debug, Serialize)]
pub struct Judged {
    /// The model that it is a mutant of.
    pub model: Model,
    /// The mistake, in words.
    pub name: &'static str,
    /// The first measured number or state that it misses; `None`: it survives.
    pub noticed: Option<String>,
    /// Why it survives, as far as that is known.
    pub survives: Option<&'static str>,
}

impl Judged {
    /// Whether it survives exactly if that is known.
    #[must_use]
    pub const fn is_as_expected(&self) -> bool {
        self.noticed.is_none() == self.survives.is_some()
    }
}

impl WrongModel {
    /// Whose mutant it is.
    #[must_use]
    pub const fn model(&self) -> Model {
        match self.change {
            Change::Place(_) | Change::Delegation(_) | Change::Constant(..) => Model::Bistability,
            Change::TwoRank(_) => Model::TwoRank,
            Change::Nic(_) => Model::Dct,
        }
    }

    /// The constant of delegation that differs, and its factor.
    #[must_use]
    pub const fn constant(&self) -> Option<(&'static str, f64)> {
        match self.change {
            Change::Constant(name, factor) => Some((name, factor)),
            _ => None,
        }
    }

    /// Simulates it until something is off.
    ///
    /// # Errors
    ///
    /// If it is of a constant that delegation does not have.
    pub fn judge(&self, seed: u64) -> Result<Judged, BadConstant> {
        let noticed = match self.change {
            Change::Place(mutant) => other_state(&CONNECT_X7, mutant, seed),
            Change::Delegation(change) => {
                let mut profile = CONNECT_X7;
                change(&mut profile);
                other_state(&profile, Mutant::None, seed)
            }
            Change::Constant(name, factor) => {
                let constants = CONNECT_X7.constants();
                let value = constants.iter().find(|(known, _)| *known == name);
                let value = factor * value.map_or(0.0, |(_, value)| *value);
                let profile = with_constant(&CONNECT_X7, name, value)?;
                let state = other_state(&profile, Mutant::None, seed);
                let number = state.or_else(|| other_number(&profile, seed));
                number.or_else(|| other_start(&profile, Mutant::None, seed, false))
            }
            Change::TwoRank(candidates) => {
                let outcome = two_rank::run_with(&TWO_RANK, candidates, seed);
                outcome.misses().find(|row| row.standing.is_claimed()).map(text_of)
            }
            Change::Nic(change) => {
                let mut profile = CONNECT_IB;
                change(&mut profile.nic);
                dct::first_miss(&profile, seed).as_ref().map(text_of)
            }
        };
        Ok(Judged { model: self.model(), name: self.name, noticed, survives: self.survives })
    }
}

fn text_of(row: &Compared) -> String {
    format!("{}: {:+.0} %", row.what, 100.0 * row.error())
}

/// The first number that is missed, or the mean of all errors, if that is beyond what is claimed.
fn other_number(profile: &DelegationProfile, seed: u64) -> Option<String> {
    let outcome = bistability::run_on(profile, seed, |_, _| {});
    let missed = outcome.misses().next().map(text_of);
    let rms = super::rms(&outcome.rows);
    let is_beyond = rms > Model::Bistability.rms_max();
    missed
        .or_else(|| is_beyond.then(|| format!("root mean square of errors: {:.1} %", 100.0 * rms)))
}

/// The first start that was measured and leads to another state.
fn other_state(profile: &DelegationProfile, mutant: Mutant, seed: u64) -> Option<String> {
    other_start(profile, mutant, seed, true)
}

/// The first start that leads to another state, of those that were measured, or of the others.
fn other_start(
    profile: &DelegationProfile,
    mutant: Mutant,
    seed: u64,
    is_measured: bool,
) -> Option<String> {
    let starts = phases::DIAGRAM.into_iter().filter(|expected| expected.is_measured == is_measured);
    let mut found = starts.map(|expected| phases::find(profile, mutant, expected, seed));
    let other = found.find(|found| !found.is_as_expected())?;
    let phases::Condition { nodes, poll_budget, start } = other.expected.condition;
    let budget = if poll_budget > 0 { " with a poll budget" } else { "" };
    let start = format!("{start:?}").to_lowercase();
    let (others, of) = (other.mops_per_node.len() - other.agreeing, other.mops_per_node.len());
    Some(format!(
        "{nodes} nodes{budget}: {others} of {of} seeds end in the other state after a {start}"
    ))
}
