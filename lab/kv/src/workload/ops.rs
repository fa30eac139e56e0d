//! The operations of one client, one after the other.

use super::{Locality, Mix, Popularity, ValueSize, Workload};
use crate::{
    codec,
    place::{ClientId, Shard, Topology, key_of},
    rng::Rng,
    zipf::Zipf,
};

/// One operation to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedOp {
    /// The operation.
    pub op: codec::StoreOp,
    /// To which key.
    pub key: u64,
    /// Shard that owns the key.
    pub shard: Shard,
    /// Whether that is on the client's own node.
    pub is_local: bool,
    /// Length of the value that it writes, if it writes one.
    pub value_bytes: usize,
}

/// An endless sequence of operations, the same for the same seed and client.
#[derive(Clone, Debug)]
pub struct OpStream {
    topology: Topology,
    home: u16,
    rng: Rng,
    mix: Mix,
    zipf: Option<Zipf>,
    locality: Locality,
    value_size: ValueSize,
}

impl OpStream {
    /// The operations of `client`.
    #[must_use]
    pub fn new(workload: &Workload, client: ClientId) -> Self {
        let topology = workload.topology();
        let zipf = match workload.popularity {
            Popularity::Uniform => None,
            Popularity::Zipf(exponent) => Some(Zipf::new(workload.keys, exponent)),
        };
        Self {
            topology,
            home: topology.home_of(client),
            rng: Rng::new(workload.seed, u64::from(client.0)),
            mix: workload.mix,
            zipf,
            locality: workload.locality,
            value_size: workload.value_size,
        }
    }

    /// The next operation.
    ///
    /// Keys of the wrong node are drawn and thrown away, so that those left are as popular, relative
    /// to each other, as without the restriction. That takes as many draws as there are ranks.
    #[expect(clippy::should_implement_trait, reason = "it never ends, so there is no Option")]
    pub fn next(&mut self) -> PlannedOp {
        let op = self.op();
        loop {
            let index = match &self.zipf {
                None => self.rng.below(self.topology.keys),
                Some(zipf) => zipf.draw(&mut self.rng),
            };
            let key = key_of(index);
            let shard = self.topology.owner(key);
            let is_local = self.topology.rank_of(shard) == self.home;
            let is_wanted = match self.locality {
                Locality::Natural => true,
                Locality::Local => is_local,
                Locality::Remote => !is_local,
            };
            if is_wanted {
                let value_bytes = match op {
                    codec::StoreOp::Put | codec::StoreOp::Cas => {
                        self.value_size.draw(&mut self.rng)
                    }
                    codec::StoreOp::Get | codec::StoreOp::Delete => 0,
                };
                return PlannedOp { op, key, shard, is_local, value_bytes };
            }
        }
    }

    fn op(&mut self) -> codec::StoreOp {
        let Mix { get, delete, cas } = self.mix;
        let draw = self.rng.below(100);
        let (get, delete, cas) = (u64::from(get), u64::from(delete), u64::from(cas));
        match draw {
            _ if draw < get => codec::StoreOp::Get,
            _ if draw < get + delete => codec::StoreOp::Delete,
            _ if draw < get + delete + cas => codec::StoreOp::Cas,
            _ => codec::StoreOp::Put,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ops(workload: &Workload, client: u16, count: usize) -> Vec<PlannedOp> {
        let mut stream = OpStream::new(workload, ClientId(client));
        (0..count).map(|_| stream.next()).collect()
    }

    /// Half of the requests of earlier "two-node" numbers never left the node.
    #[test]
    fn pitfall_27_local_remote_and_natural_are_what_they_say() {
        let share = |locality| {
            let workload = Workload { ranks: 4, locality, ..Workload::default() };
            let local = ops(&workload, 5, 4000).into_iter().filter(|op| op.is_local).count();
            local as f64 / 4000.0
        };
        assert!((share(Locality::Local) - 1.0).abs() < 1e-9);
        assert!(share(Locality::Remote) < 1e-9);
        assert!((0.15..0.40).contains(&share(Locality::Natural)), "a quarter, more or less");
    }

    #[test]
    fn local_means_that_the_owner_is_at_home() {
        let workload = Workload { ranks: 3, daemon_threads: 2, ..Workload::default() };
        let topology = workload.topology();
        for op in ops(&workload, 9, 1000) {
            assert_eq!(op.shard, topology.owner(op.key));
            let is_local = topology.rank_of(op.shard) == topology.home_of(ClientId(9));
            assert_eq!(op.is_local, is_local);
        }
    }

    #[test]
    fn the_mix_is_the_one_asked_for() {
        let mix = Mix { get: 50, delete: 10, cas: 20 };
        let value_size = ValueSize { min_bytes: 32, max_bytes: 40 };
        let ops = ops(&Workload { mix, value_size, ..Workload::default() }, 0, 10_000);
        for (op, per_mille) in [
            (codec::StoreOp::Get, 500_usize),
            (codec::StoreOp::Delete, 100),
            (codec::StoreOp::Cas, 200),
            (codec::StoreOp::Put, 200),
        ] {
            let count = ops.iter().filter(|o| o.op == op).count();
            assert!(count.abs_diff(per_mille * 10) < 200, "{op:?}: {count}");
        }
        let sizes = ops.iter().map(|op| op.value_bytes).filter(|&size| size > 0);
        assert!(sizes.clone().all(|size| (32..=40).contains(&size)));
        assert_eq!((sizes.clone().min(), sizes.max()), (Some(32), Some(40)));
    }

    #[test]
    fn what_has_no_share_is_never_done_and_what_has_all_is_done_always() {
        for (get, delete, cas, always) in [
            (100, 0, 0, codec::StoreOp::Get),
            (0, 100, 0, codec::StoreOp::Delete),
            (0, 0, 100, codec::StoreOp::Cas),
            (0, 0, 0, codec::StoreOp::Put),
        ] {
            let workload = Workload { mix: Mix { get, delete, cas }, ..Workload::default() };
            assert!(ops(&workload, 0, 2000).iter().all(|op| op.op == always), "{always:?}");
        }
    }

    /// Keys are popular as the workload says: the share of the most popular one tells.
    #[test]
    fn popularity_is_the_one_asked_for() {
        let share_of_hottest = |popularity| {
            let workload = Workload { popularity, keys: 1000, ..Workload::default() };
            let hottest = ops(&workload, 0, 20_000).into_iter().filter(|op| op.key == key_of(0));
            hottest.count() as f64 / 20_000.0
        };
        // 1 over the sum of k^-s for k from 1 to 1000.
        assert!((share_of_hottest(Popularity::Zipf(0.99)) - 0.129).abs() < 0.012);
        assert!((share_of_hottest(Popularity::Zipf(0.5)) - 0.0162).abs() < 0.005);
        assert!(share_of_hottest(Popularity::Uniform) < 0.003);
        let workload =
            Workload { popularity: Popularity::Uniform, keys: 100, ..Workload::default() };
        let asked_for = ops(&workload, 0, 5000).into_iter().map(|op| op.key);
        let asked_for = asked_for.collect::<std::collections::HashSet<_>>();
        assert_eq!(asked_for, (0..100).map(key_of).collect(), "every key, and no other");
    }

    #[test]
    fn the_same_seed_asks_for_the_same() {
        let workload = Workload::default();
        assert_eq!(ops(&workload, 3, 100), ops(&workload, 3, 100));
        let reseeded = Workload { seed: 9, ..workload.clone() };
        assert_ne!(ops(&workload, 3, 100), ops(&reseeded, 3, 100));
        let keys = |client| ops(&workload, client, 100).into_iter().map(|op| op.key);
        assert!(keys(2).ne(keys(3)), "clients of one node do not go in step");
    }
}
