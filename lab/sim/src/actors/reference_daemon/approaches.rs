//! Approaches to larger batches, where a turn heeds them, and wrong models.

use std::cmp::Reverse;

use serde::Serialize;

use super::{Simulation, ps, real};

/// An approach to larger batches that was tried on that daemon or proposed for it, beside budgets and holds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum Approach {
    /// No approach.
    None,
    /// A turn without completions polls on, as often as the controller allows.
    PollController,
    /// A batch leaves so many µs after its first message.
    DelayedSends(f64),
    /// A turn that finds a completion waits so many µs for more.
    GatheredCompletions(f64),
    /// A turn after one without completions does not look at clients while a call to another node is in flight.
    SkippedClients,
    /// The first batch to a peer leaves so many µs after that to the peer before it.
    StaggeredPeers(f64),
}

/// Another model, which a check of this one has to tell from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Mutant {
    /// The model.
    None,
    /// A work request takes its time at the node that it arrives at.
    AtReceiver,
    /// A work request takes its time at both nodes, whose NICs do one thing after the other, whichever way it goes.
    WholeNic,
    /// Each message is a work request.
    NoMerging,
}

impl Simulation<'_> {
    /// Whether a turn does not look at clients.
    pub(super) fn skips_clients(&self, node: usize) -> bool {
        let own = &self.nodes[node];
        self.load.approach == Approach::SkippedClients && own.is_idle && own.in_flight > 0
    }

    /// How long a turn waits before its first phase.
    pub(super) fn wait_for_completions(&self, node: usize, began: f64) -> f64 {
        let own = &self.nodes[node];
        let first = own.arrivals.peek();
        let has_arrived = |now: f64| first.is_some_and(|Reverse((at, ..))| *at <= ps(now));
        match self.load.approach {
            Approach::GatheredCompletions(us) if has_arrived(began) => us,
            Approach::PollController => {
                let polls =
                    (0..own.controller.polls()).map(|poll| f64::from(poll) * self.profile.poll);
                let all = f64::from(own.controller.polls()) * self.profile.poll;
                let mut waits = polls.chain([all]);
                waits.find(|wait| has_arrived(began + wait)).unwrap_or(all)
            }
            _ => 0.0,
        }
    }

    /// Whether batches have waited as long as they are to.
    pub(super) fn may_send(&mut self, node: usize, now: f64) -> bool {
        let Approach::DelayedSends(us) = self.load.approach else { return true };
        let own = &mut self.nodes[node];
        if own.pending.order.is_empty() || now - *own.unsent_since.get_or_insert(now) < us {
            return false;
        }
        own.unsent_since = None;
        true
    }

    /// Whether it is the peer's turn to get its first batch.
    pub(super) fn may_begin(&mut self, node: usize, to: usize, now: f64) -> bool {
        let Approach::StaggeredPeers(us) = self.load.approach else { return true };
        let before = (to + self.nodes.len() - node - 1) % self.nodes.len();
        now - *self.nodes[node].first_sent.get_or_insert(now) >= us * real(before as u64)
    }
}
