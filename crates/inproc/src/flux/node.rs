//! One thread's end of the mesh.

use core::fmt;

use ids::slots::{Key, SlotTable};
use memory::sync::Arc;

use super::{Announce, CallError, Event, Mesh, Message, Responder};
use crate::{
    Unanswered,
    deferred::{Deferred, ForeignToken, Token},
    mpsc::{Bell, Polled, Receiver, Sender},
    spsc::Discipline,
};

/// One of the n parties. Belongs to one thread at a time.
///
/// Dropping it tells the others: calls to it end with [`Unanswered::Gone`].
pub struct Node<Q, R, U, D: Discipline> {
    mesh: Arc<Mesh<Q, R, D>>,
    number: usize,
    inlet: Receiver<Message<Q, R>, D>,
    /// By number, this node included.
    peers: Vec<Peer<Q, R, U, D>>,
    deferred: Deferred<Origin>,
    /// A peer that is gone while calls to it were in flight.
    failing: Option<usize>,
    /// Peers with messages that were not announced.
    unannounced: usize,
}

/// A node's view of another node.
struct Peer<Q, R, U, D: Discipline> {
    /// The lane to it, once used.
    outlet: Option<Sender<Message<Q, R>, D>>,
    /// Calls in flight to it.
    calls: SlotTable<U>,
    /// The lane has messages that were not announced.
    is_unannounced: bool,
}

/// The call that a reply ends.
#[derive(Clone, Copy)]
pub(super) struct Origin {
    pub(super) from: usize,
    pub(super) key: Key,
}

impl<Q, R, U, D: Discipline> Node<Q, R, U, D> {
    pub(super) fn new(mesh: Arc<Mesh<Q, R, D>>, number: usize) -> Self
    where
        Q: Send + 'static,
        R: Send + 'static,
    {
        let state = mesh.receivers[number].clone();
        let bell = Bell { state: state.clone() };
        let calls_max = mesh.config.calls_max;
        let peer =
            |_| Peer { outlet: None, calls: SlotTable::bounded(calls_max), is_unannounced: false };
        Self {
            number,
            inlet: Receiver::new(state),
            peers: (0..mesh.config.nodes).map(peer).collect(),
            deferred: Deferred::new(mesh.config.tokens_max, bell),
            failing: None,
            unannounced: 0,
            mesh,
        }
    }

    /// This node's place in the mesh, from 0.
    #[must_use]
    pub fn number(&self) -> usize {
        self.number
    }

    /// Calls whose replies have not been polled yet.
    #[must_use]
    pub fn calls_in_flight(&self) -> usize {
        self.peers.iter().map(|peer| peer.calls.len()).sum()
    }

    /// Sends `request` to node `to`, which may be this one. `user` comes back with the reply.
    ///
    /// # Errors
    ///
    /// [`CallError`] hands both back.
    #[inline]
    pub fn call(&mut self, to: usize, request: Q, user: U) -> Result<(), CallError<Q, U>> {
        if to >= self.peers.len() {
            return Err(CallError::NoSuchNode { request, user, nodes: self.peers.len() });
        }
        if self.peers[to].calls.is_full() || !self.admits(to) {
            return Err(self.refuse(to, request, user));
        }
        match self.peers[to].calls.insert(user) {
            Ok(key) => {
                self.send_admitted(to, Message::Call { key, request });
                Ok(())
            }
            Err(user) => Err(self.refuse(to, request, user)),
        }
    }

    /// Sends `notice` to node `to`, without a reply.
    ///
    /// # Errors
    ///
    /// [`CallError`] hands it back.
    #[inline]
    pub fn notify(&mut self, to: usize, notice: Q) -> Result<(), CallError<Q, ()>> {
        if to >= self.peers.len() {
            let nodes = self.peers.len();
            return Err(CallError::NoSuchNode { request: notice, user: (), nodes });
        }
        if !self.admits(to) {
            return Err(self.refuse(to, notice, ()));
        }
        self.send_admitted(to, Message::Notice(notice));
        Ok(())
    }

    /// The next thing that happened, from each peer in turn. None if nothing did.
    ///
    /// Does not wait, and allocates only when a lane is first used.
    #[inline]
    pub fn poll(&mut self) -> Option<Event<'_, Q, R, U, D>> {
        loop {
            if let Some(origin) = self.deferred.next_broken() {
                self.send_reply(origin, Err(Unanswered::Dropped));
            }
            if let Some(from) = self.failing {
                let calls = &mut self.peers[from].calls;
                let next = calls.iter().next().map(|(key, _)| key);
                if let Some(user) = next.and_then(|key| calls.remove(key)) {
                    return Some(Event::Reply { from, user, result: Err(Unanswered::Gone) });
                }
                self.failing = None;
            }
            match self.inlet.poll() {
                Some(Polled::Item { lane: from, item: Message::Call { key, request } }) => {
                    let reply = Responder::new(self, Origin { from, key });
                    return Some(Event::Request { from, request, reply });
                }
                Some(Polled::Item { lane: from, item: Message::Notice(notice) }) => {
                    return Some(Event::Notice { from, notice });
                }
                Some(Polled::Item { lane: from, item: Message::Reply { key, result } }) => {
                    if let Some(user) = self.peers[from].calls.remove(key) {
                        return Some(Event::Reply { from, user, result });
                    }
                }
                // All replies of that peer have been taken by now.
                Some(Polled::Closed { lane }) => self.failing = Some(lane),
                None => match self.deferred.next_broken() {
                    Some(origin) => self.send_reply(origin, Err(Unanswered::Dropped)),
                    None => return None,
                },
            }
        }
    }

    /// Waits until [`poll`](Self::poll) may find something; false if the deadline (in nanoseconds of
    /// `os::clock`) passed or a signal came before.
    pub fn wait(&mut self, deadline_ns: u64) -> bool {
        self.announce();
        self.failing.is_some() || self.inlet.wait(deadline_ns)
    }

    /// Before waiting elsewhere, such as in `poll(2)`, when [`poll`](Self::poll) found nothing: `true`
    /// if there still is nothing, so that the alarm of [`mesh_with_alarms`](super::mesh_with_alarms)
    /// will ring. [`disarm`](Self::disarm) in any case.
    #[must_use]
    pub fn arm(&mut self) -> bool {
        self.announce();
        self.failing.is_none() && self.inlet.arm()
    }

    /// Leads the receivers to all messages that were sent, and wakes those that sleep: one barrier for each peer that
    /// was sent something. Nothing is left to do here with [`Announce::EachMessage`].
    #[inline]
    pub fn announce(&mut self) {
        if self.unannounced > 0 {
            self.announce_lanes();
        }
    }

    fn announce_lanes(&mut self) {
        for peer in self.peers.iter_mut().filter(|peer| peer.is_unannounced) {
            peer.is_unannounced = false;
            peer.outlet.iter().for_each(Sender::announce);
        }
        self.unannounced = 0;
    }

    /// Ends what [`arm`](Self::arm) began.
    pub fn disarm(&mut self) {
        self.inlet.disarm();
    }

    /// Answers the request that `token` was made of.
    ///
    /// # Errors
    ///
    /// [`ForeignToken`] hands both back if another node made the token: answer there.
    pub fn reply(&mut self, token: Token, response: R) -> Result<(), ForeignToken<R>> {
        match self.deferred.redeem(token) {
            Ok(origin) => {
                self.send_reply(origin, Ok(response));
                Ok(())
            }
            Err(token) => Err(ForeignToken { token, response }),
        }
    }

    pub(super) fn defer(&mut self, origin: Origin) -> Option<Token> {
        self.deferred.defer(origin).ok()
    }

    /// Never fails: the requester's admission left room, see the module documentation.
    pub(super) fn send_reply(&mut self, to: Origin, result: Result<R, Unanswered>) {
        self.send_admitted(to.from, Message::Reply { key: to.key, result });
    }

    #[inline]
    fn send_admitted(&mut self, to: usize, message: Message<Q, R>) {
        // If the other side left just now, its last word ends the call.
        let sent = match self.mesh.config.announce {
            Announce::EachMessage => self.outlet(to).send_anyway(message),
            Announce::OnRequest => {
                let peer = &mut self.peers[to];
                self.unannounced +=
                    usize::from(!core::mem::replace(&mut peer.is_unannounced, true));
                self.outlet(to).send_unannounced(message)
            }
        };
        assert!(sent.is_ok(), "admission kept room for it");
    }

    /// Whether `to` is there, and its lane has room for a request and all replies that may be due.
    #[inline]
    fn admits(&mut self, to: usize) -> bool {
        let replies = self.mesh.config.calls_max as usize;
        let outlet = self.outlet(to);
        !outlet.is_disconnected() && outlet.free_items(replies + 1) > replies
    }

    fn refuse<V>(&self, to: usize, request: Q, user: V) -> CallError<Q, V> {
        match self.mesh.receivers[to].is_closed() {
            true => CallError::Gone(request, user),
            false => CallError::Busy(request, user),
        }
    }

    #[inline]
    fn outlet(&mut self, to: usize) -> &mut Sender<Message<Q, R>, D> {
        let Self { mesh, number, peers, .. } = self;
        peers[to].outlet.get_or_insert_with(|| {
            Sender::open(mesh.receivers[to].clone(), *number, mesh.lane_items())
        })
    }
}

impl<Q, R, U, D: Discipline> Drop for Node<Q, R, U, D> {
    fn drop(&mut self) {
        // First no more requests, then word to all nodes: a lane that ends. A node that has sent something
        // in between finds that out from the lane.
        self.inlet.close();
        for (number, peer) in self.peers.iter_mut().enumerate().filter(|(n, _)| *n != self.number) {
            let state = &self.mesh.receivers[number];
            drop(peer.outlet.take().unwrap_or_else(|| Sender::open(state.clone(), self.number, 1)));
        }
    }
}

impl<Q, R, U, D: Discipline> fmt::Debug for Node<Q, R, U, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("number", &self.number).finish_non_exhaustive()
    }
}
