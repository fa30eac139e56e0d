//! The peers of a worker, and which of them are to be looked at: no poll goes through all of them, for
//! there may be thousands.

use core::mem;

use ids::slots::SlotTable;
use proto::copyrpc::{Connection, Counters};
use verbs::Nic;

use crate::{
    PeerId,
    peer::{Live, Peer},
};

/// The lists that a peer is in: dirty peers are timed, and timed peers are active.
#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    is_dirty: bool,
    is_timed: bool,
    is_active: bool,
}

/// A pass over dirty peers, between two of which the list only grows.
#[derive(Default)]
pub(super) struct DirtyPass {
    looked_at: usize,
    /// Those of them that stay, at the begin of the list.
    kept: usize,
}

struct Entry<N: Nic> {
    peer: Peer<N>,
    marks: Marks,
}

/// Peers by [`PeerId`], with three lists of them. Polls remove peers that are gone from the lists.
pub(super) struct PeerTable<N: Nic> {
    entries: SlotTable<Entry<N>>,
    /// They may have something to post.
    dirty: Vec<PeerId>,
    /// Something of theirs may become due by time.
    timed: Vec<PeerId>,
    /// Something happened since their counters were looked at. No peer here is gone.
    active: Vec<PeerId>,
}

impl<N: Nic> PeerTable<N> {
    pub(super) fn new(peers_max: u16) -> Self {
        let entries = SlotTable::bounded(peers_max.into());
        Self { entries, dirty: Vec::new(), timed: Vec::new(), active: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.entries.is_full()
    }

    /// Adds a peer; `None`: the table is full.
    pub(super) fn insert(&mut self, peer: Peer<N>) -> Option<PeerId> {
        let entry = Entry { peer, marks: Marks::default() };
        self.entries.insert(entry).ok().map(PeerId)
    }

    /// Takes a peer out of the table and of the list that perhaps no poll goes through.
    pub(super) fn remove(&mut self, id: PeerId) -> Option<Peer<N>> {
        let Entry { peer, .. } = self.entries.remove(id.0)?;
        self.active.retain(|active| *active != id);
        Some(peer)
    }

    #[inline]
    pub(super) fn get(&mut self, id: PeerId) -> Option<&mut Peer<N>> {
        self.entries.get_mut(id.0).map(|entry| &mut entry.peer)
    }

    /// The peer that is in a slot now, and its name.
    #[inline]
    pub(super) fn at(&mut self, slot: u16) -> Option<(PeerId, &mut Peer<N>)> {
        let (key, entry) = self.entries.at_mut(slot.into())?;
        Some((PeerId(key), &mut entry.peer))
    }

    /// The name of the peer that is in a slot now.
    #[inline]
    pub(super) fn occupant(&self, slot: u16) -> Option<PeerId> {
        self.entries.key_at(slot.into()).map(PeerId)
    }

    #[inline]
    pub(super) fn live(&mut self, id: PeerId) -> Option<&mut Live<N>> {
        self.get(id)?.live()
    }

    /// The connection to a peer that will have something to post.
    #[inline]
    pub(super) fn live_dirty(&mut self, id: PeerId) -> Option<&mut Live<N>> {
        let Self { entries, dirty, timed, active } = self;
        let Entry { peer, marks } = entries.get_mut(id.0)?;
        if !mem::replace(&mut marks.is_dirty, true) {
            dirty.push(id);
            add_timed(id, marks, timed, active);
        }
        peer.live()
    }

    pub(super) fn connection(&self, id: PeerId) -> Option<&Connection> {
        self.entries.get(id.0)?.peer.connection()
    }

    /// Connected peers that `is_meant` names, by slot.
    pub(super) fn live_where(&self, is_meant: impl Fn(&Peer<N>) -> bool) -> Vec<PeerId> {
        let live = self.entries.iter().filter(|(_, entry)| entry.peer.connection().is_some());
        live.filter(|(_, entry)| is_meant(&entry.peer)).map(|(key, _)| PeerId(key)).collect()
    }

    /// Connected peers, in slots from `slot` on, until `is_enough`. Returns the slot to go on with; `None`:
    /// there is no other.
    pub(super) fn visit_live_from(
        &mut self,
        slot: u32,
        mut visit: impl FnMut(PeerId, &mut Peer<N>) -> bool,
    ) -> Option<u32> {
        let from = self.entries.iter_mut().skip_while(|(key, _)| key.slot() < slot);
        for (key, entry) in from {
            if entry.peer.connection().is_some() && !visit(PeerId(key), &mut entry.peer) {
                return Some(key.slot() + 1);
            }
        }
        None
    }

    // Peers that have something to post

    #[inline]
    pub(super) fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Remembers that a peer may have something to post.
    #[inline]
    pub(super) fn mark_dirty(&mut self, id: PeerId) {
        self.live_dirty(id);
    }

    /// The next peer of a pass over them, in the order in which they were marked.
    #[inline]
    pub(super) fn next_dirty(&self, pass: &mut DirtyPass) -> Option<PeerId> {
        let id = self.dirty.get(pass.looked_at).copied()?;
        pass.looked_at += 1;
        Some(id)
    }

    /// The peer that the pass has come to stays in the list.
    #[inline]
    pub(super) fn keep_dirty(&mut self, pass: &mut DirtyPass, id: PeerId) {
        self.dirty[pass.kept] = id;
        pass.kept += 1;
    }

    /// The peer that the pass has come to has nothing more to post.
    #[inline]
    pub(super) fn clean(&mut self, id: PeerId) {
        self.unmark_dirty(id);
    }

    /// Takes those that were looked at and not kept out of the list.
    #[inline]
    pub(super) fn end_pass(&mut self, DirtyPass { looked_at, kept }: DirtyPass) {
        if kept == 0 && looked_at == self.dirty.len() {
            self.dirty.clear();
        } else {
            self.dirty.drain(kept..looked_at);
        }
    }

    /// Removes a peer from the list if it is the last one.
    #[inline]
    pub(super) fn clean_last(&mut self, id: PeerId) {
        if self.dirty.last() == Some(&id) {
            self.dirty.pop();
            self.unmark_dirty(id);
        }
    }

    #[inline]
    fn unmark_dirty(&mut self, id: PeerId) {
        if let Some(entry) = self.entries.get_mut(id.0) {
            entry.marks.is_dirty = false;
        }
    }

    // Peers that something becomes due to

    /// Remembers that something of a peer may become due by time.
    #[inline]
    pub(super) fn mark_timed(&mut self, id: PeerId) {
        let Self { entries, timed, active, .. } = self;
        if let Some(entry) = entries.get_mut(id.0) {
            add_timed(id, &mut entry.marks, timed, active);
        }
    }

    pub(super) fn timed_at(&self, index: usize) -> Option<PeerId> {
        self.timed.get(index).copied()
    }

    /// Removes a peer from the list: nothing of it becomes due by time.
    pub(super) fn untime_at(&mut self, index: usize) {
        let id = self.timed.swap_remove(index);
        if let Some(entry) = self.entries.get_mut(id.0) {
            entry.marks.is_timed = false;
        }
    }

    pub(super) fn is_dirty(&self, id: PeerId) -> bool {
        self.entries.get(id.0).is_some_and(|entry| entry.marks.is_dirty)
    }

    /// Connections of which something may become due by time.
    pub(super) fn timed_connections(&self) -> impl Iterator<Item = &Connection> {
        self.timed.iter().filter_map(|id| self.connection(*id))
    }

    // Peers that did something

    /// Tells the counters of connections that did something since the last time, and perhaps of some
    /// others.
    pub(super) fn visit_active(&mut self, mut visit: impl FnMut(PeerId, Counters)) {
        let Self { entries, active, .. } = self;
        active.retain(|id| {
            let Some(Entry { peer, marks }) = entries.get_mut(id.0) else { return false };
            if let Some(connection) = peer.connection() {
                visit(*id, connection.counters());
            }
            marks.is_active = marks.is_timed; // a visit that panics is made again
            marks.is_active
        });
    }
}

#[inline]
fn add_timed(id: PeerId, marks: &mut Marks, timed: &mut Vec<PeerId>, active: &mut Vec<PeerId>) {
    if !mem::replace(&mut marks.is_timed, true) {
        timed.push(id);
        if !mem::replace(&mut marks.is_active, true) {
            active.push(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Call, Config, Worker};

    /// Most programs never ask which connections did something.
    #[test]
    fn nothing_is_remembered_of_connections_that_ended() {
        let fabric = format!("agenda-{}", std::process::id());
        let [mut a, mut b] = [(); 2].map(|()| {
            let nic = softnic::Config { fabric: fabric.clone(), ..softnic::Config::default() };
            Worker::open(softnic::open(&nic).unwrap(), Config::default(), 0).unwrap()
        });
        for _ in 0..3 {
            let ((to_b, ours), (to_a, theirs)) = (a.invite().unwrap(), b.invite().unwrap());
            a.connect(to_b, &theirs).unwrap();
            b.connect(to_a, &ours).unwrap();
            a.call(to_b, &Call::default(), b"").unwrap();
            assert_eq!(a.peers.active, [to_b]);
            a.close(to_b);
            b.close(to_a);
        }
        assert_eq!(a.peers.active, []);
    }
}
