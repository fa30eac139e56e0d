//! Which peers are to be looked at: nobody goes through all of them, of whom there may be thousands.

use core::mem;

use proto::copyrpc::Counters;
use verbs::Nic;

use super::Worker;
use crate::{PeerId, peer::Peer};

/// In which lists a peer is: dirty ones are timed, and timed ones are active.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Marks {
    pub(super) is_dirty: bool,
    pub(super) is_timed: bool,
    is_active: bool,
}

/// Lists of peers. Those that are gone are found out when a list is gone through.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    /// They may have something to post.
    pub(super) dirty: Vec<PeerId>,
    /// Something of theirs may become due by time.
    pub(super) timed: Vec<PeerId>,
    /// Something happened since their counters were looked at.
    active: Vec<PeerId>,
}

impl Agenda {
    #[inline]
    pub(super) fn add_dirty<N: Nic>(&mut self, id: PeerId, peer: &mut Peer<N>) {
        if !mem::replace(&mut peer.marks.is_dirty, true) {
            self.dirty.push(id);
            self.add_timed(id, peer);
        }
    }

    #[inline]
    pub(super) fn add_timed<N: Nic>(&mut self, id: PeerId, peer: &mut Peer<N>) {
        if !mem::replace(&mut peer.marks.is_timed, true) {
            self.timed.push(id);
            if !mem::replace(&mut peer.marks.is_active, true) {
                self.active.push(id);
            }
        }
    }
}

impl<N: Nic> Worker<N> {
    /// Says what connections have done so far, of those that did something since the last time that this
    /// was called, and perhaps of some others.
    pub fn visit_active(&mut self, mut visit: impl FnMut(PeerId, Counters)) {
        let mut active = mem::take(&mut self.agenda.active);
        active.retain(|id| {
            let Some(peer) = self.peer(*id) else { return false };
            peer.marks.is_active = peer.marks.is_timed;
            let is_active = peer.marks.is_active;
            let Some(live) = peer.live() else { return is_active };
            visit(*id, live.connection.counters());
            is_active
        });
        self.agenda.active = active;
    }

    /// Remembers that a peer may have something to post.
    #[inline]
    pub(super) fn mark_dirty(&mut self, id: PeerId) {
        self.live_dirty(id);
    }

    /// Remembers that something of a peer may become due by time.
    #[inline]
    pub(super) fn mark_timed(&mut self, id: PeerId) {
        let Self { peers, agenda, .. } = self;
        if let Some(peer) = peers.get_mut(usize::from(id.slot)).and_then(|place| place.at(id)) {
            agenda.add_timed(id, peer);
        }
    }
}
