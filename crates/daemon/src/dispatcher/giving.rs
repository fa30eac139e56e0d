//! Requests on their way to the processes and threads that are to answer them: given at once if they are short, else in
//! pieces, and queued while nobody asks for one.

use client::message::{CallerHead, ContextHead, HAS_CONTEXT, PEER_HEAD_BYTES, WorkHead};
use ids::slots::Key;
use rpc::{LandedBody, Status, Worker};
use verbs::Nic;
use zerocopy::IntoBytes as _;

use crate::{
    client_port::{ClientPort, Replies as _},
    dispatcher::{
        Dispatcher, Returned,
        long_bodies::Recipient,
        pieces::PIECE_BYTES,
        provider_calls::{ProviderCall, Server},
        said::not_executed,
    },
    members::Poll,
    metrics::Counter,
    request::{Body, Caller, Request},
    request_head::RequestHead,
    services::{QueuedRequest, Served, dequeue},
    source::{LandedSource, PrivateBody, Source, copied},
    threads::{AskedBy, ThreadCall, ThreadRequest},
};

/// A call that was stored, and who is to answer it.
type Stored<P> = (Key, Server<<P as ClientPort>::Client>);

impl<P: ClientPort> Dispatcher<P> {
    /// Gives a request to the process that provides the service, at once if that polls, else when it
    /// does; or to the thread that offers it, as soon as that has room.
    pub(super) fn hand_over(
        &mut self,
        replies: &mut P::Replies,
        request: Request<'_, P>,
        to: &Served,
    ) -> Result<(), Returned<Caller<P>>> {
        let head = request.head;
        let body = request.body.private();
        let (key, server) = self.store(request, to)?;
        if server == Server::Any
            && let Some(poll) = self.services.take_poll(head.service)
            && self.provider_calls.give(key, poll.client)
        {
            answer_poll::<P>(replies, &poll, key, &head, body);
            return Ok(());
        }
        let body = match server {
            Server::Thread => self.thread_handle.copied(body),
            _ => copied(body),
        };
        let Some(body) = body.map(|body| Source::Private(body.into())) else {
            self.tally.add(Counter::Exhausted, 1);
            return Err(self.take_refused(key, Status::ResourceExhausted));
        };
        let request = QueuedRequest { key, head, body };
        self.hand_on(server, request).map_err(|status| self.take_refused(key, status))
    }

    /// As [`hand_over`](Self::hand_over), with a long body, which is given in pieces.
    pub(super) fn hand_over_in_pieces(
        &mut self,
        replies: &mut P::Replies,
        mut request: Request<'_, P>,
        to: &Served,
    ) -> Result<(), Returned<Caller<P>>> {
        let Body::Long(body) = core::mem::replace(&mut request.body, Body::Private(&[])) else {
            return self.hand_over(replies, request, to);
        };
        let head = request.head;
        let (key, server) = self.store(request, to)?;
        let request = QueuedRequest { key, head, body };
        if server == Server::Any
            && let Some(poll) = self.services.take_poll(head.service)
        {
            self.give(replies, poll, request);
            return Ok(());
        }
        self.hand_on(server, request).map_err(|status| self.take_refused(key, status))
    }

    /// Stores the call of a request that is to be given to somebody.
    fn store(
        &mut self,
        request: Request<'_, P>,
        to: &Served,
    ) -> Result<Stored<P>, Returned<Caller<P>>> {
        let server = match to {
            Served::Elsewhere => Server::Thread,
            Served::Provided | Served::Answered(_) => Server::Any,
        };
        match self.provider_calls.insert(ProviderCall::new(request, server, self.now_ns)) {
            Ok(key) => Ok((key, server)),
            Err(reply_to) => Err(Returned { status: Status::ResourceExhausted, reply_to }),
        }
    }

    /// Takes back a call that was stored just now.
    fn take_refused(&mut self, key: Key, status: Status) -> Returned<Caller<P>> {
        match self.provider_calls.remove(key) {
            Some(call) => Returned { status, reply_to: call.caller },
            None => unreachable!("the call was stored just now"),
        }
    }

    /// Asks the thread that is to answer a request, or queues the request for whoever is to answer it if there is no room,
    /// or others wait.
    pub(super) fn hand_on(
        &mut self,
        server: Server<P::Client>,
        mut request: QueuedRequest<P>,
    ) -> Result<(), Status> {
        let is_next = !matches!(request.body, Source::Private(_))
            || !self.provider_calls.waits_for_thread(request.head.service);
        if server == Server::Thread && is_next {
            request = match self.ask_thread(request) {
                Err((request, Status::ResourceExhausted)) => request,
                asked => return asked.map_err(|(_, status)| status),
            };
        }
        let key = request.key;
        let queued = match server {
            Server::Thread => self.provider_calls.enqueue_for_thread(&mut self.held, request),
            _ => self.services.enqueue(&mut self.held, request),
        };
        match queued {
            Ok(()) => self.provider_calls.queued(key),
            Err(_) => self.tally.add(Counter::Exhausted, 1),
        }
        queued
    }

    // To processes

    /// Gives a provider the requests that wait for it, one for each of its polls.
    pub(super) fn give_to_provider(&mut self, replies: &mut P::Replies, service: u16) {
        while let Some((poll, request)) = self.next_queued(service) {
            self.give(replies, poll, request);
        }
    }

    /// The request that has waited longest for a provider, and the poll of the process that is to have it.
    fn next_queued(&mut self, service: u16) -> Option<(Poll<P>, QueuedRequest<P>)> {
        loop {
            let provider = self.services.provider(service)?;
            if !provider.members.is_polling() {
                return None;
            }
            let request = dequeue(&mut provider.queue, &mut self.held)?;
            // Its caller may have given up.
            if self.provider_calls.unqueued(request.key).is_some() {
                return Some((provider.members.take_poll()?, request));
            }
        }
    }

    /// Gives a process the request of a call that has not ended: in pieces, unless it is short or finds no private
    /// memory.
    fn give(&mut self, replies: &mut P::Replies, poll: Poll<P>, request: QueuedRequest<P>) {
        let QueuedRequest { key, head, body } = request;
        let Some(call) = self.provider_calls.get_mut(key) else {
            return self.put_poll_back(replies, head.service, poll);
        };
        let share = match &body {
            Source::Private(body) => {
                let is_long = body.len() > PIECE_BYTES && replies.takes_parts(body.len());
                let share = if is_long { self.long_bodies.private.take(body.len()) } else { None };
                if share.is_none() {
                    call.server = Server::Client(poll.client);
                    return answer_poll::<P>(replies, &poll, key, &head, body);
                }
                share
            }
            Source::Left(_) | Source::Landed(_) => None,
        };
        call.server = Server::Given(poll.client);
        let (work, context) = work_heads::<P>(&poll, key, &head);
        let context = context.as_ref().map_or(&[][..], |context| context.as_bytes());
        let heads = [work.as_bytes(), context].concat();
        let recipient = Recipient::Provider { poll, heads };
        self.long_bodies.push((key, head), body, share, recipient);
    }

    /// A process was not given the request for which its poll was taken: it gets the next one.
    pub(super) fn put_poll_back(&mut self, replies: &mut P::Replies, service: u16, poll: Poll<P>) {
        if let Some(provider) = self.services.provider(service) {
            provider.members.put_poll_back(&poll);
            self.give_to_provider(replies, service);
        }
    }

    // Long requests

    /// A long request that was admitted, for processes of this node or other threads.
    pub(super) fn serve_long(
        &mut self,
        replies: &mut P::Replies,
        request: Request<'_, P>,
    ) -> Result<(), Returned<Caller<P>>> {
        let Some(served) = self.services.others(request.head.service) else {
            self.tally.add(Counter::NoService, 1);
            let (status, reply_to) = (Status::Unimplemented, request.reply_to);
            return Err(Returned { status, reply_to });
        };
        self.services.count_request(request.head.service);
        self.hand_over_in_pieces(replies, request, &served)
    }

    /// A request of another node whose body came by rendezvous, to `memory`. That is taken if the request is long, and
    /// others are to answer it.
    #[cold]
    pub(super) fn serve_peer_in_pieces<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
        request: rpc::Request,
        memory: &mut Vec<u8>,
        answer: &mut Vec<u8>,
    ) {
        if memory.len() <= PIECE_BYTES || self.services.others(request.method).is_none() {
            return self.serve_peer(replies, worker, request, memory, answer);
        }
        let Some((request, head_bytes)) = self.request_of_peer(worker, request, memory) else {
            return;
        };
        let request = request.without_body();
        let body = PrivateBody::behind(head_bytes, core::mem::take(memory));
        let request = Request { body: Body::Long(Source::Private(body)), ..request };
        self.serve_long_of_peer(replies, worker, request);
    }

    /// A request of another node whose body lies where the NIC put it, because a process waited for a request when this
    /// one came.
    #[cold]
    pub(super) fn serve_landed<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
        request: rpc::Request,
        landed: LandedBody<N>,
    ) {
        let mut heads = [0; PEER_HEAD_BYTES + size_of::<CallerHead>()];
        let heads_bytes = heads.len().min(landed.len_bytes());
        let heads = &mut heads[..heads_bytes];
        // The one look at them.
        landed.copy_to(0, heads);
        let Some((request, head_bytes)) = self.request_of_peer(worker, request, heads) else {
            return;
        };
        let body = Body::Long(Source::Landed(LandedSource::behind(head_bytes, landed)));
        let request = Request { body, ..request.without_body() };
        // The process may have gone since.
        self.serve_long_of_peer(replies, worker, request);
    }

    /// Hands a long request of another node over, or refuses it.
    fn serve_long_of_peer<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
        request: Request<'_, P>,
    ) {
        let handed = match self.admit(&request) {
            Ok(_) => self.serve_long(replies, request),
            Err(refusal) => {
                let Request { reply_to, body, .. } = request;
                if let Body::Long(Source::Private(body)) = body {
                    worker.keep_memory(body.into_memory());
                }
                Err(Returned { status: refusal.status(), reply_to })
            }
        };
        self.refuse_peer(worker, handed);
    }

    /// Answers a request of another node that was not handed over.
    pub(super) fn refuse_peer<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        handed: Result<(), Returned<Caller<P>>>,
    ) {
        if let Err(Returned { status, reply_to: Caller::Peer(token) }) = handed {
            self.reply_peer(worker, token, status, not_executed(status), self.now_ns);
        }
    }

    // To other threads

    /// Asks the thread that offers the service of a request to answer it, as soon as its body is private; hands it back if
    /// that cannot be asked. [`Status::ResourceExhausted`]: it has no room now.
    pub(super) fn ask_thread(
        &mut self,
        request: QueuedRequest<P>,
    ) -> Result<(), (QueuedRequest<P>, Status)> {
        let QueuedRequest { key, head, body } = request;
        let body = match body {
            Source::Private(body) => body,
            body @ (Source::Left(_) | Source::Landed(_)) => {
                self.long_bodies.push((key, head), body, None, Recipient::Thread);
                return Ok(());
            }
        };
        // Its caller may have given up.
        if self.provider_calls.get(key).is_none() {
            return Ok(());
        }
        let hand_back =
            |body, status| (QueuedRequest { key, head, body: Source::Private(body) }, status);
        let Some(thread) = self.services.elsewhere(head.service) else {
            return Err(hand_back(body, Status::Unavailable));
        };
        let asked = AskedBy { thread: self.thread_handle.number(), key };
        let request = ThreadRequest::Serve { head, asked, body };
        let to = ThreadCall::Provider { key, service: head.service };
        match self.thread_handle.request(thread, to, request) {
            Ok(()) => {
                self.tally.add(Counter::ThreadRequests, 1);
                Ok(())
            }
            Err((request, status)) => {
                self.count_refusal(status);
                let ThreadRequest::Serve { body, .. } = request else { return Ok(()) };
                Err(hand_back(body, status))
            }
        }
    }
}

/// Answers a provider's poll with a request.
fn answer_poll<P: ClientPort>(
    replies: &mut P::Replies,
    poll: &Poll<P>,
    key: Key,
    head: &RequestHead,
    body: &[u8],
) {
    let (work, context) = work_heads::<P>(poll, key, head);
    let context = context.as_ref().map_or(&[][..], |context| context.as_bytes());
    replies.reply(poll.reply_to, Status::Ok, &[work.as_bytes(), context, body]);
}

/// What is told of a request to the process that is to answer it.
pub(super) fn work_heads<P: ClientPort>(
    poll: &Poll<P>,
    key: Key,
    head: &RequestHead,
) -> (WorkHead, Option<ContextHead>) {
    let work = WorkHead {
        work: key.to_u64().into(),
        rank: head.from_rank.into(),
        method: head.method.into(),
        flags: if poll.wants_context { HAS_CONTEXT } else { 0 }.into(),
    };
    let context = ContextHead { deadline_ns: head.deadline_ns.into(), caller: head.caller };
    (work, poll.wants_context.then_some(context))
}
