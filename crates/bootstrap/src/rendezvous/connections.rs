//! Connections: their handshakes, how many of them there may be, and what is to be sent to them.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use crate::{
    entropy::Nonce,
    frame::{self, HELLO_BYTES, Hello},
};

/// Most connections that have not finished their handshake.
pub const PENDING_MAX: usize = 128;

/// Names a connection.
pub type ConnectionId = u64;

/// An action for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send these bytes.
    Send(ConnectionId, Arc<[u8]>),
    /// Close once everything is sent; nothing is expected any more.
    Finish(ConnectionId),
    /// Close now: it deserves no answer.
    Drop(ConnectionId),
    /// Keep this roster, in case the rendezvous is restarted.
    Remember(Arc<[u8]>),
}

/// Counters of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RendezvousStats {
    /// Connections.
    pub connections: u64,
    /// Connections that spoke another protocol.
    pub garbage: u64,
    /// Connections that were too slow, or displaced.
    pub slow: u64,
    /// Connections of another version or job.
    pub foreign: u64,
    /// Connections without a valid proof.
    pub unproved: u64,
    /// Ranks that were there already, or cannot be.
    pub misplaced: u64,
    /// Ranks that joined.
    pub joined: u64,
}

/// How far a connection has come, and what it has said.
pub(super) enum Stage {
    Hello,
    Join {
        hello: Hello,
        nonce: Nonce,
    },
    Blob {
        hello: Hello,
        nonce: Nonce,
    },
    /// Another one may live in its place.
    Contested {
        hello: Hello,
        nonce: Nonce,
        blob: Vec<u8>,
        since_ns: u64,
    },
    Waiting {
        rank: u32,
        hello: Hello,
        nonce: Nonce,
    },
}

/// One connection.
pub(super) struct Peer {
    pub(super) label: String,
    pub(super) deadline_ns: u64,
    pub(super) stage: Stage,
    /// Bytes of this stage so far.
    buffer: Vec<u8>,
    /// Bytes that complete it.
    want: usize,
}

/// Why a connection ends.
pub(super) enum Bad {
    /// Without a word.
    Silently(fn(&mut RendezvousStats)),
    /// With a reason.
    Refuse(fn(&mut RendezvousStats), String),
}

/// All connections, and what is to be done with them.
#[derive(Default)]
pub(super) struct Connections {
    peers: BTreeMap<ConnectionId, Peer>,
    /// Connections that have not finished their handshake, oldest first, so in order of deadlines.
    pending: BTreeSet<ConnectionId>,
    actions: VecDeque<Action>,
    next: ConnectionId,
    pub(super) stats: RendezvousStats,
}

impl Connections {
    pub(super) fn len(&self) -> usize {
        self.peers.len()
    }

    pub(super) fn get(&self, id: ConnectionId) -> Option<&Peer> {
        self.peers.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Peer> {
        self.peers.get_mut(&id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ConnectionId, &Peer)> {
        self.peers.iter().map(|(id, peer)| (*id, peer))
    }

    /// A new connection. The oldest one that is in its handshake makes room, if there are too many.
    pub(super) fn open(&mut self, label: String, deadline_ns: u64) -> ConnectionId {
        self.stats.connections += 1;
        if self.pending.len() == PENDING_MAX
            && let Some(&oldest) = self.pending.first()
        {
            self.end(oldest, Bad::Silently(|stats| stats.slow += 1));
        }
        let id = self.next;
        self.next += 1;
        let peer =
            Peer { label, deadline_ns, stage: Stage::Hello, buffer: Vec::new(), want: HELLO_BYTES };
        self.peers.insert(id, peer);
        self.pending.insert(id);
        id
    }

    /// Takes bytes of one stage off the front of `bytes`. Returns the stage once it is whole.
    pub(super) fn take(
        &mut self,
        id: ConnectionId,
        bytes: &mut &[u8],
    ) -> Result<Option<Vec<u8>>, Bad> {
        let Some(peer) = self.peers.get_mut(&id) else { return Ok(None) };
        let (now, later) = bytes.split_at(bytes.len().min(peer.want - peer.buffer.len()));
        peer.buffer.extend_from_slice(now);
        *bytes = later;
        let is_garbage = matches!(peer.stage, Stage::Hello) && !frame::may_be_hello(&peer.buffer);
        // A rank that waits has nothing to say; and nobody can know what to say before a
        // challenge.
        if is_garbage || now.is_empty() {
            return Err(Bad::Silently(|stats| stats.garbage += 1));
        }
        let is_whole = peer.buffer.len() == peer.want;
        Ok(is_whole.then(|| std::mem::take(&mut peer.buffer)))
    }

    /// The next stage of a connection, which ends with `want` bytes.
    pub(super) fn enter(&mut self, id: ConnectionId, stage: Stage, want: usize) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.stage = stage;
            peer.want = want;
        }
    }

    /// The handshake is over: the connection is none of those that are bounded in number and time.
    pub(super) fn settle(&mut self, id: ConnectionId) {
        self.pending.remove(&id);
    }

    pub(super) fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    pub(super) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When the next handshake takes too long.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.pending.first().and_then(|id| self.peers.get(id)).map(|peer| peer.deadline_ns)
    }

    /// Ends the handshakes that took too long.
    pub(super) fn expire(&mut self, now_ns: u64) {
        while let Some(&oldest) = self.pending.first()
            && self.peers.get(&oldest).is_none_or(|peer| peer.deadline_ns <= now_ns)
        {
            self.pending.remove(&oldest);
            self.end(oldest, Bad::Silently(|stats| stats.slow += 1));
        }
    }

    /// Forgets a connection.
    pub(super) fn remove(&mut self, id: ConnectionId) -> Option<Peer> {
        self.pending.remove(&id);
        self.peers.remove(&id)
    }

    /// Ends a connection for a reason, and returns it.
    pub(super) fn end(&mut self, id: ConnectionId, bad: Bad) -> Option<Peer> {
        let peer = self.remove(id)?;
        match bad {
            Bad::Silently(count) => {
                count(&mut self.stats);
                self.act(Action::Drop(id));
            }
            Bad::Refuse(count, reason) => {
                count(&mut self.stats);
                self.act(Action::Send(id, frame::refusal(&reason).into()));
                self.act(Action::Finish(id));
            }
        }
        Some(peer)
    }
}
