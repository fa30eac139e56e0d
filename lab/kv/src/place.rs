//! Who owns a key: the hash that spreads keys over ranks and their daemon threads.
//!
//! Keys are a bijection of their index (0 is the most popular one), and owners a hash of the key:
//! neither popular nor neighbouring keys share a rank.

use serde::{Deserialize, Serialize};

use crate::rng::{GOLDEN, mix64};

/// One daemon thread of one rank, and the part of the store that it alone serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Shard(pub u16);

/// One client of the whole job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClientId(pub u16);

/// How many there are of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// Nodes, each with one daemon process.
    pub ranks: u16,
    /// Threads of each daemon.
    pub daemon_threads: u16,
    /// Clients on each node.
    pub clients_per_rank: u16,
    /// Keys of the whole store.
    pub keys: u64,
}

impl Topology {
    /// Daemon threads of all ranks.
    #[must_use]
    pub fn shards(&self) -> u16 {
        self.ranks * self.daemon_threads
    }

    /// Clients of all ranks.
    #[must_use]
    pub fn clients(&self) -> u16 {
        self.ranks * self.clients_per_rank
    }

    /// The rank that a shard belongs to.
    #[inline]
    #[must_use]
    pub fn rank_of(&self, shard: Shard) -> u16 {
        shard.0 / self.daemon_threads
    }

    /// The rank whose node a client runs on.
    #[inline]
    #[must_use]
    pub fn home_of(&self, client: ClientId) -> u16 {
        client.0 / self.clients_per_rank
    }

    /// The shards of a rank.
    pub fn shards_of(&self, rank: u16) -> impl Iterator<Item = Shard> + use<> {
        (rank * self.daemon_threads..(rank + 1) * self.daemon_threads).map(Shard)
    }

    /// The clients of a rank.
    pub fn clients_of(&self, rank: u16) -> impl Iterator<Item = ClientId> + use<> {
        (rank * self.clients_per_rank..(rank + 1) * self.clients_per_rank).map(ClientId)
    }

    /// The shard that owns `key`. This hash is a contract between clients and daemons.
    #[inline]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "below the number of shards, a u16")]
    pub fn owner(&self, key: u64) -> Shard {
        let hash = mix64(key ^ GOLDEN);
        Shard(((u128::from(hash) * u128::from(self.shards())) >> 64) as u16)
    }
}

/// The key that has `index` in the order of popularity.
#[inline]
#[must_use]
pub fn key_of(index: u64) -> u64 {
    mix64(index.wrapping_add(GOLDEN))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{rng::Rng, zipf::Zipf};

    fn topology(ranks: u16, daemon_threads: u16) -> Topology {
        Topology { ranks, daemon_threads, clients_per_rank: 4, keys: 100_000 }
    }

    #[test]
    fn owners_are_shards_and_share_the_keys() {
        for (ranks, threads) in [(1, 1), (2, 1), (2, 3), (7, 2)] {
            let topology = topology(ranks, threads);
            let mut owned = vec![0_u64; usize::from(topology.shards())];
            for index in 0..topology.keys {
                owned[usize::from(topology.owner(key_of(index)).0)] += 1;
            }
            let fair = topology.keys / u64::from(topology.shards());
            assert!(owned.iter().all(|&n| n.abs_diff(fair) < fair / 20), "{owned:?}");
        }
    }

    /// All hot keys of an earlier implementation lived on rank 0.
    #[test]
    fn pitfall_28_hot_keys_are_spread_over_ranks() {
        let topology = topology(4, 1);
        let hottest = (0..4).map(|index| topology.owner(key_of(index))).collect::<Vec<_>>();
        assert!(hottest.iter().any(|shard| shard != &hottest[0]), "{hottest:?}");
        let zipf = Zipf::new(topology.keys, 0.99);
        let mut rng = Rng::new(5, 0);
        let mut load = [0_u32; 4];
        for _ in 0..100_000 {
            load[usize::from(topology.owner(key_of(zipf.draw(&mut rng))).0)] += 1;
        }
        assert!(load.iter().all(|&n| (15_000..40_000).contains(&n)), "{load:?}");
    }

    #[test]
    fn homes_and_ranks_agree_with_the_lists() {
        let topology = topology(3, 2);
        for rank in 0..topology.ranks {
            assert!(topology.shards_of(rank).all(|shard| topology.rank_of(shard) == rank));
            assert!(topology.clients_of(rank).all(|client| topology.home_of(client) == rank));
        }
        assert_eq!((topology.shards(), topology.clients()), (6, 12));
    }
}
