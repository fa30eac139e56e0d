//! Other models than those of the scenarios, each with one mechanism that is missing or elsewhere: what their checks
//! notice of them. A check that does not fail for a wrong model says nothing about the right one.

use serde::Serialize;

use super::{Compared, dct, phases, sensitivity::Model, two_rank};
use crate::{
    actors::{
        reference_daemon::Mutant,
        slot_daemon::Candidate::{
            self, Backpressure, CreditReturn, DoorbellEach, Gather, Queueing, SendQueue, SrqChain,
        },
    },
    machine::{CONNECT_IB, CONNECT_X7, DelegationProfile, NicProfile, TWO_RANK},
    world::Time,
};

/// The part of a model that differs.
#[derive(Clone, Copy)]
enum Change {
    /// Where a send queue's time is spent.
    Place(Mutant),
    /// Times of delegation.
    Delegation(fn(&mut DelegationProfile)),
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

/// All of them.
pub const WRONG_MODELS: [WrongModel; 28] = [
    wrong("a work request takes its time at the receiver", Change::Place(Mutant::AtReceiver)),
    wrong("a work request takes the NIC of both ends", Change::Place(Mutant::WholeNic)),
    wrong("each message is a work request", Change::Place(Mutant::NoMerging)),
    wrong("work requests take no time", Change::Delegation(|it| it.wqe = it.message)),
    wrong("the ring takes no time", Change::Delegation(|it| it.ring /= 100.0)),
    wrong("nothing leaves the caches", Change::Delegation(|it| it.cold = 1.0)),
    wrong("work requests take a fifth less", Change::Delegation(|it| it.wqe *= 0.8)),
    wrong("work requests take a fifth more", Change::Delegation(|it| it.wqe *= 1.2)),
    wrong("the ring takes a fifth less", Change::Delegation(|it| it.ring *= 0.8)),
    wrong("the ring takes a fifth more", Change::Delegation(|it| it.ring *= 1.2)),
    wrong("calls take a fifth less", Change::Delegation(|it| it.call *= 0.8)),
    wrong("calls take a fifth more", Change::Delegation(|it| it.call *= 1.2)),
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
            Change::Place(_) | Change::Delegation(_) => Model::Bistability,
            Change::TwoRank(_) => Model::TwoRank,
            Change::Nic(_) => Model::Dct,
        }
    }

    /// Simulates it until something is off.
    #[must_use]
    pub fn judge(&self, seed: u64) -> Judged {
        let noticed = match self.change {
            Change::Place(mutant) => other_state(&CONNECT_X7, mutant, seed),
            Change::Delegation(change) => {
                let mut profile = CONNECT_X7;
                change(&mut profile);
                other_state(&profile, Mutant::None, seed)
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
        Judged { model: self.model(), name: self.name, noticed, survives: self.survives }
    }
}

fn text_of(row: &Compared) -> String {
    format!("{}: {:+.0} %", row.what, 100.0 * row.error())
}

/// The first start that was measured and leads to another state.
fn other_state(profile: &DelegationProfile, mutant: Mutant, seed: u64) -> Option<String> {
    let measured = phases::DIAGRAM.into_iter().filter(|expected| expected.is_measured);
    let mut found = measured.map(|expected| phases::find(profile, mutant, expected, seed));
    let other = found.find(|found| !found.is_as_expected())?;
    let phases::Condition { nodes, poll_budget, .. } = other.expected.condition;
    let budget = if poll_budget > 0 { " with a poll budget" } else { "" };
    let (others, of) = (other.mops_per_node.len() - other.agreeing, other.mops_per_node.len());
    Some(format!("{nodes} nodes{budget}: {others} of {of} bursts end in the other state"))
}
