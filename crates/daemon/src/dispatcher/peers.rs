//! Ranks of peers that are up, and their connections.

use rpc::{PeerId, Status};

/// Maps ranks to connections and back.
pub(super) struct PeerTable {
    /// By rank: the connection to a peer that is up here and there.
    by_rank: Vec<Option<PeerId>>,
    /// By rank: the connection to a peer that is up here. It may call, and is not called before it is up there.
    connected: Vec<Option<PeerId>>,
    /// Ranks that are up here and there.
    up: usize,
    /// By slot of the connection: whose it is.
    by_slot: Vec<Option<(PeerId, u32)>>,
    /// Counters of each peer, by rank.
    counts: Vec<PeerCounts>,
    /// By rank: until when it counts as one that there is no memory for, where it is not up.
    short_until_ns: Vec<u64>,
}

/// What was done with a rank, in all its lives.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerCounts {
    /// Calls to it.
    pub(super) calls: u64,
    /// Those that ended without its answer.
    pub(super) unanswered: u64,
    /// Its requests.
    pub(super) requests: u64,
}

/// How long calls to a peer that is not up end for want of memory, after its connection did.
const SHORT_NS: u64 = 1_000_000_000;

impl PeerTable {
    /// For ranks below `size`, none of which is up.
    pub(super) fn new(size: u32) -> Self {
        let counts = vec![PeerCounts::default(); size as usize];
        let short_until_ns = vec![0; size as usize];
        let [by_rank, connected] = [(); 2].map(|()| vec![None; size as usize]);
        Self { by_rank, connected, up: 0, by_slot: Vec::new(), counts, short_until_ns }
    }

    pub(super) fn counts(&self, rank: u32) -> PeerCounts {
        self.counts[rank as usize]
    }

    /// To count what is done with a rank.
    #[inline]
    pub(super) fn counts_mut(&mut self, rank: u32) -> &mut PeerCounts {
        &mut self.counts[rank as usize]
    }

    /// The connection to a rank that is up here and there.
    #[inline]
    pub(super) fn get(&self, rank: u32) -> Option<PeerId> {
        self.by_rank[rank as usize]
    }

    /// There was no memory to reach a rank.
    pub(super) fn lack_memory(&mut self, rank: u32, now_ns: u64) {
        self.short_until_ns[rank as usize] = now_ns.saturating_add(SHORT_NS);
    }

    /// Whether a rank is not up for want of memory, as far as is known.
    pub(super) fn is_short(&self, rank: u32, now_ns: u64) -> bool {
        self.get(rank).is_none() && now_ns < self.short_until_ns[rank as usize]
    }

    /// The status of calls to a rank that is not up.
    #[cold]
    pub(super) fn absence(&self, rank: u32, now_ns: u64) -> Status {
        if self.is_short(rank, now_ns) { Status::ResourceExhausted } else { Status::Unavailable }
    }

    /// The rank of a connection that is up.
    #[inline]
    pub(super) fn rank_of(&self, peer: PeerId) -> Option<u32> {
        let (known, rank) = (*self.by_slot.get(usize::from(peer.slot()))?)?;
        (known == peer).then_some(rank)
    }

    /// The connections to all ranks that are up.
    pub(super) fn iter(&self) -> impl Iterator<Item = PeerId> {
        self.by_rank.iter().flatten().copied()
    }

    /// Ranks that are up here and there.
    pub(super) fn up(&self) -> usize {
        self.up
    }

    /// A peer came up here.
    pub(super) fn insert(&mut self, rank: u32, peer: PeerId) {
        self.connected[rank as usize] = Some(peer);
        let slot = usize::from(peer.slot());
        self.by_slot.resize(self.by_slot.len().max(slot + 1), None);
        self.by_slot[slot] = Some((peer, rank));
    }

    /// A peer that came up here is up there, too.
    pub(super) fn open(&mut self, rank: u32) {
        let (is_up, connected) = (&mut self.by_rank[rank as usize], self.connected[rank as usize]);
        if is_up.is_none() && connected.is_some() {
            *is_up = connected;
            self.up += 1;
        }
    }

    /// A peer is gone.
    pub(super) fn remove(&mut self, rank: u32) {
        self.up -= usize::from(self.by_rank[rank as usize].take().is_some());
        if let Some(peer) = self.connected[rank as usize].take() {
            self.by_slot[usize::from(peer.slot())].take_if(|(known, _)| *known == peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Before that a request waits for the NIC's next try, and the connection may break.
    #[test]
    fn a_peer_is_called_once_it_is_up_there_too() {
        let fabric = format!("daemon-peers-{}", std::process::id());
        let nic = softnic::open(&softnic::Config { fabric, ..softnic::Config::default() }).unwrap();
        let mut worker = rpc::Worker::open(nic, rpc::Config::default(), 0).unwrap();
        let (peer, _) = worker.invite().unwrap();
        let mut table = PeerTable::new(2);
        table.open(1);
        assert_eq!((table.get(1), table.up()), (None, 0), "it is not up here");
        table.insert(1, peer);
        assert_eq!((table.get(1), table.up(), table.rank_of(peer)), (None, 0, Some(1)));
        table.open(1);
        table.open(1);
        assert_eq!((table.get(1), table.up()), (Some(peer), 1));
        table.remove(1);
        assert_eq!((table.get(1), table.up(), table.rank_of(peer)), (None, 0, None));
    }
}
