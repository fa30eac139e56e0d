//! Requests that a provider or another thread of this daemon is to answer.

use std::{collections::BTreeMap, mem};

use ids::slots::{Key, SlotTable};
use rpc::{PeerId, RequestId, Status, Token};

use crate::{
    client_port::ClientPort,
    limits::{CallerId, Held, Wheel},
    request::{Caller, Request},
    request_head::RequestHead,
    services::{QueuedRequest, RequestQueue, Services, enqueue},
    threads::AskedBy,
};

/// The process or thread that is to answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Server<C> {
    /// A client of this thread.
    Client(C),
    /// The first process that polls, of those that offer the service.
    Any,
    /// A client of this thread, to which the request is on its way: it knows of nothing.
    Given(C),
    /// The thread that offers the service.
    Thread,
    /// Nobody any more: its answer is on its way, in pieces.
    Answered,
}

/// A request that is not answered yet.
pub(super) struct ProviderCall<P: ClientPort> {
    pub(super) caller: Caller<P>,
    pub(super) head: RequestHead,
    pub(super) server: Server<P::Client>,
    /// It waits in the queue of its service.
    pub(super) is_queued: bool,
    pub(super) came_ns: u64,
}

impl<P: ClientPort> ProviderCall<P> {
    /// The call of a request that came just now.
    #[inline]
    pub(super) fn new(request: Request<'_, P>, server: Server<P::Client>, now_ns: u64) -> Self {
        let Request { reply_to: caller, head, .. } = request;
        Self { caller, head, server, is_queued: false, came_ns: now_ns }
    }
}

/// Requests to providers by their keys, and those that wait to travel to other threads.
pub(super) struct ProviderCalls<P: ClientPort> {
    calls: SlotTable<ProviderCall<P>>,
    deadlines: Wheel,
    /// By slot of the peer, and of its call: the request that came there last.
    of_peers: Vec<Vec<Option<Key>>>,
    /// By service: requests for services of other threads that these have no room for.
    /// Ordered, so that the same events end the same calls first.
    cross_thread: BTreeMap<u16, RequestQueue<P>>,
    /// Services with such a queue, each once.
    ready: Vec<u16>,
}

impl<P: ClientPort> Default for ProviderCalls<P> {
    fn default() -> Self {
        Self {
            calls: SlotTable::default(),
            deadlines: Wheel::default(),
            of_peers: Vec::new(),
            cross_thread: BTreeMap::new(),
            ready: Vec::new(),
        }
    }
}

impl<P: ClientPort> ProviderCalls<P> {
    /// Requests that are not answered yet.
    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    /// Adds a request; hands its caller back if there are too many.
    pub(super) fn insert(&mut self, call: ProviderCall<P>) -> Result<Key, Caller<P>> {
        let deadline_ns = call.head.deadline_ns;
        let key = self.calls.insert(call).map_err(|call| call.caller)?;
        self.deadlines.add(deadline_ns, key);
        let call = self.calls.get(key);
        if let Some(Caller::Peer(token)) = call.map(|call| &call.caller) {
            let (peer, slot) = place(token.peer(), token.request());
            if self.of_peers.len() <= peer {
                self.of_peers.resize_with(peer + 1, Vec::new);
            }
            let of_peer = &mut self.of_peers[peer];
            if of_peer.len() <= slot {
                of_peer.resize(slot + 1, None);
            }
            of_peer[slot] = Some(key);
        }
        Ok(key)
    }

    /// The request of a peer that is not answered yet, by its name.
    pub(super) fn of_peer(&self, peer: PeerId, request: RequestId) -> Option<Key> {
        let (at, slot) = place(peer, request);
        let key = (*self.of_peers.get(at)?.get(slot)?)?;
        let names = |token: &Token| token.peer() == peer && token.request() == request;
        match &self.calls.get(key)?.caller {
            Caller::Peer(token) if names(token) => Some(key),
            Caller::Peer(_) | Caller::Client(_) | Caller::Thread(..) => None,
        }
    }

    /// The request of another thread that is not answered yet, by its name. It looks at all of them.
    pub(super) fn of_thread(&self, asked: AskedBy) -> Option<Key> {
        let is_it = |caller: &Caller<P>| matches!(caller, Caller::Thread(_, by) if *by == asked);
        self.calls.iter().find(|(_, call)| is_it(&call.caller)).map(|(key, _)| key)
    }

    /// A request left its queue.
    pub(super) fn unqueued(&mut self, key: Key) -> Option<&ProviderCall<P>> {
        let call = self.calls.get_mut(key)?;
        call.is_queued = false;
        Some(call)
    }

    /// A request waits in the queue of its service.
    pub(super) fn queued(&mut self, key: Key) {
        if let Some(call) = self.calls.get_mut(key) {
            call.is_queued = true;
        }
    }

    pub(super) fn get(&self, key: Key) -> Option<&ProviderCall<P>> {
        self.calls.get(key)
    }

    /// A client is given a request; `false` if nobody waits for it any more.
    pub(super) fn give(&mut self, key: Key, client: P::Client) -> bool {
        let call = self.calls.get_mut(key);
        call.map(|call| call.server = Server::Client(client)).is_some()
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut ProviderCall<P>> {
        self.calls.get_mut(key)
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<ProviderCall<P>> {
        self.calls.remove(key)
    }

    /// The requests that clients are to answer for which `is_wanted` holds.
    pub(super) fn of_clients(&self, is_wanted: impl Fn(P::Client) -> bool) -> Vec<Key> {
        let is_wanted = |call: &ProviderCall<P>| match call.server {
            Server::Client(client) | Server::Given(client) => is_wanted(client),
            Server::Any | Server::Thread | Server::Answered => false,
        };
        self.keys(is_wanted)
    }

    /// The requests that clients made for which `is_wanted` holds.
    pub(super) fn by_clients(&self, is_wanted: impl Fn(P::ReplyTo) -> bool) -> Vec<Key> {
        let is_wanted = |call: &ProviderCall<P>| match &call.caller {
            Caller::Client(to) => is_wanted(*to),
            Caller::Thread(..) | Caller::Peer(_) => false,
        };
        self.keys(is_wanted)
    }

    /// The requests that came by a connection.
    pub(super) fn by_peer(&self, peer: PeerId) -> Vec<Key> {
        self.keys(|call| matches!(&call.caller, Caller::Peer(token) if token.peer() == peer))
    }

    /// The requests of one caller.
    pub(super) fn of_caller(&self, caller: CallerId) -> Vec<Key> {
        self.keys(|call| call.head.caller_id == caller)
    }

    /// The requests whose deadline is not later than `now_ns`, oldest first.
    pub(super) fn late(&mut self, now_ns: u64) -> Vec<Key> {
        let Self { calls, deadlines, .. } = self;
        deadlines.take_due(now_ns, |key| calls.get(key).is_some())
    }

    fn keys(&self, is_wanted: impl Fn(&ProviderCall<P>) -> bool) -> Vec<Key> {
        self.calls.iter().filter(|(_, call)| is_wanted(call)).map(|(key, _)| key).collect()
    }

    /// A request ended that waits in a queue: it keeps no others out of it.
    pub(super) fn forget_queued(
        &mut self,
        services: &mut Services<P>,
        held: &mut Held,
        (service, server): (u16, Server<P::Client>),
    ) {
        let Self { calls, cross_thread, .. } = self;
        let queue = match server {
            Server::Client(_) | Server::Given(_) | Server::Any | Server::Answered => {
                services.provider(service).map(|provider| &mut provider.queue)
            }
            Server::Thread => cross_thread.get_mut(&service),
        };
        if let Some(queue) = queue {
            let is_wanted = |request: &QueuedRequest<P>| calls.get(request.key).is_some();
            queue.mark_dead(is_wanted, |caller, bytes| held.release(caller, bytes));
        }
    }

    /// Whether no request waits to travel to another thread.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.ready.is_empty()
    }

    /// The thread that offers a service may get a request at the next look.
    pub(super) fn mark_ready(&mut self, service: u16) {
        if !self.ready.contains(&service) {
            self.ready.push(service);
        }
    }

    /// The services that were marked.
    pub(super) fn take_ready(&mut self) -> Vec<u16> {
        mem::take(&mut self.ready)
    }

    /// Queues a request for a service of another thread. [`Status::ResourceExhausted`]: too much waits.
    pub(super) fn enqueue_for_thread(
        &mut self,
        held: &mut Held,
        request: QueuedRequest<P>,
    ) -> Result<(), Status> {
        let service = request.head.service;
        enqueue(self.cross_thread.entry(service).or_default(), held, request)?;
        self.mark_ready(service);
        Ok(())
    }

    /// Whether requests wait for a service of another thread.
    pub(super) fn waits_for_thread(&self, service: u16) -> bool {
        self.cross_thread.get(&service).is_some_and(|queue| !queue.is_empty())
    }

    /// Takes the queue of a service of another thread.
    #[inline]
    pub(super) fn take_queue(&mut self, service: u16) -> Option<RequestQueue<P>> {
        self.cross_thread.remove(&service)
    }

    /// Puts back what is left of a queue.
    pub(super) fn put_queue_back(&mut self, service: u16, queue: RequestQueue<P>) {
        self.cross_thread.insert(service, queue);
        self.mark_ready(service);
    }
}

/// Where a request of a peer is looked up.
fn place(peer: PeerId, request: RequestId) -> (usize, usize) {
    (peer.slot().into(), request.slot().into())
}
