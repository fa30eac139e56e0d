//! The places of the ranks: who has which, which are contested, and whether all have come.

use std::collections::{BTreeMap, VecDeque};

use super::connections::ConnectionId;
use crate::error::Ranks;

/// The state of the exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExchangeState {
    /// Not all have come.
    Waiting,
    /// All came. A rank that joins now has been restarted: it replaces its blob and gets the roster.
    Complete,
    /// Some did not come in time.
    Failed(Ranks),
}

/// The places of all ranks.
pub(super) struct Places {
    size: u32,
    /// Connection and blob by rank.
    ranks: BTreeMap<u32, (ConnectionId, Vec<u8>)>,
    /// Connections of ranks whose places others may hold, about in order of their deadlines. Each holds a blob:
    /// there are no more than ranks.
    pub(super) contested: VecDeque<ConnectionId>,
    pub(super) outcome: ExchangeState,
}

impl Places {
    /// With the blobs of all ranks from an earlier life of the rendezvous, if there was one.
    pub(super) fn new(size: u32, roster: Option<Vec<Vec<u8>>>) -> Self {
        let roster = roster.filter(|roster| roster.len() == size as usize);
        let outcome =
            if roster.is_some() { ExchangeState::Complete } else { ExchangeState::Waiting };
        // No connection has this name.
        let known = |blob| (ConnectionId::MAX, blob);
        let ranks = (0..).zip(roster.into_iter().flatten().map(known)).collect();
        Self { size, ranks, contested: VecDeque::new(), outcome }
    }

    /// The connection that has a rank's place, while not all have come.
    pub(super) fn holder(&self, rank: u32) -> Option<ConnectionId> {
        let (id, _) = self.ranks.get(&rank)?;
        (self.outcome == ExchangeState::Waiting).then_some(*id)
    }

    /// A rank is where it belongs. Whether all are now.
    pub(super) fn take(&mut self, rank: u32, id: ConnectionId, blob: Vec<u8>) -> bool {
        self.ranks.insert(rank, (id, blob));
        if self.ranks.len() == self.size as usize {
            self.outcome = ExchangeState::Complete;
        }
        self.outcome == ExchangeState::Complete
    }

    /// A rank's connection is gone. While others are waited for, another may come in its place.
    pub(super) fn leave(&mut self, rank: u32) {
        if self.outcome == ExchangeState::Waiting {
            self.ranks.remove(&rank);
        }
    }

    /// Not all have come in time: the connections of those that have.
    pub(super) fn give_up(&mut self) -> Vec<ConnectionId> {
        let missing = (0..self.size).filter(|rank| !self.ranks.contains_key(rank));
        self.outcome = ExchangeState::Failed(Ranks(missing.collect()));
        self.ranks.values().map(|(id, _)| *id).collect()
    }

    /// The blobs of all ranks, in their order.
    pub(super) fn blobs(&self) -> Vec<Vec<u8>> {
        self.ranks.values().map(|(_, blob)| blob.clone()).collect()
    }
}
