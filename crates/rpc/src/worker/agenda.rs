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

/// Lists of peers. Those that are gone are found out when a list is gone through, as polls do.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    /// They may have something to post.
    pub(super) dirty: Vec<PeerId>,
    /// Something of theirs may become due by time.
    pub(super) timed: Vec<PeerId>,
    /// Something happened since their counters were looked at. Only who is here.
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

    /// Drops a peer that is gone from the list that perhaps nobody goes through.
    pub(super) fn forget(&mut self, id: PeerId) {
        self.active.retain(|active| *active != id);
    }
}

impl<N: Nic> Worker<N> {
    /// Says what connections have done so far, of those that did something since the last time that this
    /// was called, and perhaps of some others.
    pub fn visit_active(&mut self, mut visit: impl FnMut(PeerId, Counters)) {
        let Self { peers, agenda, .. } = self;
        agenda.active.retain(|id| {
            let Some(peer) = peers[usize::from(id.slot)].at(*id) else { return false };
            if let Some(live) = peer.live() {
                visit(*id, live.connection.counters());
            }
            peer.marks.is_active = peer.marks.is_timed; // a visit that panics is made again
            peer.marks.is_active
        });
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
            assert_eq!(a.agenda.active, [to_b]);
            a.close(to_b);
            b.close(to_a);
        }
        assert_eq!(a.agenda.active, []);
    }
}
