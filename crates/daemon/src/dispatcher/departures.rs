//! What clients that are gone leave behind, and callers of other nodes that do not wait any more.

use std::collections::BTreeSet;

use ids::slots::Key;
use rpc::{PeerId, RequestId, Status, Worker};
use verbs::Nic;

use crate::{
    client_port::{ClientPort, ClientTag, Replies as _},
    dispatcher::{
        Dispatcher, PendingCall, ReplyTo,
        provider_calls::{ProviderCall, Server},
        said::not_executed,
        waiting::Waiting,
    },
    limits::CallerId,
    members::Told,
    metrics::Counter,
    request::Caller,
    threads::{AskedBy, ThreadHandle, ThreadNotice},
};

/// Time between two looks for what clients left behind: each costs as much as there is.
const DEPARTURES_NS: u64 = 20_000_000;

/// Clients that have left: those that this thread has acted upon, and what other threads do not know of them.
#[derive(Debug, Default)]
pub(super) struct Departures {
    /// [`ClientPort::departures`] at the last look.
    seen: u64,
    /// The same when providers among those who left were last looked for.
    seen_of_providers: u64,
    /// The earliest time of the next look.
    look_ns: u64,
    /// A thread, and what it is still to be told.
    untold: Vec<(usize, ThreadNotice)>,
}

impl Departures {
    /// Whether clients have left since the last look, and that is long enough ago.
    pub(super) fn is_look_due(&self, departures: u64, now_ns: u64) -> bool {
        self.seen != departures && now_ns >= self.look_ns
    }

    /// Whether clients have left since providers among those were last looked for; they are, now.
    #[inline]
    fn begin_look_for_providers(&mut self, departures: u64) -> bool {
        std::mem::replace(&mut self.seen_of_providers, departures) != departures
    }

    fn looked(&mut self, departures: u64, now_ns: u64) {
        (self.seen, self.seen_of_providers) = (departures, departures);
        self.look_ns = now_ns + DEPARTURES_NS;
    }

    pub(super) fn tell_later(
        &mut self,
        thread: usize,
        notices: impl IntoIterator<Item = ThreadNotice>,
    ) {
        self.untold.extend(notices.into_iter().map(|notice| (thread, notice)));
    }

    pub(super) fn has_untold(&self) -> bool {
        !self.untold.is_empty()
    }

    /// Tells the other threads whom nobody waits for, as far as they have room.
    #[cold]
    pub(super) fn tell(&mut self, threads: &mut ThreadHandle) {
        self.untold.retain(|(thread, notice)| !threads.notify(*thread, notice.clone()));
    }
}

impl<P: ClientPort> Dispatcher<P> {
    /// Withdraws at once the services of providers that have left: whoever offers one of these next is not refused.
    #[inline]
    pub(crate) fn depart_providers<N: Nic>(&mut self, port: &mut P, worker: &mut Worker<N>) {
        if self.departures.begin_look_for_providers(port.departures())
            && self.services.has_lost_provider(|client| port.is_there(client))
        {
            self.depart(port, worker);
        }
    }

    /// Withdraws the services of clients that are gone, and ends what they called and were to answer.
    #[cold]
    pub(super) fn depart<N: Nic>(&mut self, port: &mut P, worker: &mut Worker<N>) {
        self.departures.looked(port.departures(), self.now_ns);
        let is_there = |client| port.is_there(client);
        let waits = |to| port.is_there(P::client_of(to));
        let unhanded = self.services.withdraw(&mut self.held, &mut self.admission, is_there);
        self.introductions.sessions.depart(is_there);
        let unserved = self.provider_calls.of_clients(|client| !is_there(client));
        let unwanted = self.provider_calls.by_clients(|to| !waits(to));
        let is_wanted = |waiting: &Waiting<P>| match &waiting.reply_to {
            ReplyTo::Client(to) => waits(*to),
            ReplyTo::Thread(_) | ReplyTo::Nobody => true,
        };
        let waiting = self.waiting.take_unwanted(&mut self.held, is_wanted);
        let mut of_threads = BTreeSet::new();
        self.calls.orphan(
            |to| !waits(to),
            |to, PendingCall { charge, .. }| {
                if self.thread_handle.owner(charge.rank).is_some() {
                    of_threads.insert(tag_of::<P>(self.client_base, to));
                }
            },
        );
        for key in &unwanted {
            if let Some(ProviderCall { server: Server::Thread, caller, .. }) =
                self.provider_calls.get(*key)
                && let Caller::Client(to) = caller
            {
                of_threads.insert(tag_of::<P>(self.client_base, *to));
            }
        }
        for thread in self.thread_handle.others() {
            let notices = of_threads.iter().map(|client| ThreadNotice::Forget(*client));
            self.departures.tell_later(thread, notices);
        }
        self.cancel_calls(worker, |call| matches!(call.reply_to, ReplyTo::Nobody));
        self.tally.add(Counter::Abandoned, unwanted.len() as u64);
        let ends = [(unhanded, not_executed(Status::Unavailable)), (unserved, &[])];
        for (keys, said) in ends {
            for key in keys {
                let status = Status::Unavailable;
                self.end_provider_call(port.replies(), worker, key, status, said);
            }
        }
        for key in unwanted {
            self.cancel_provider_call(port.replies(), worker, key, Status::Cancelled);
        }
        self.end_waiting(port.replies(), waiting, Status::Cancelled);
    }

    /// Cancels calls to peers of this thread. It looks at all of them.
    pub(super) fn cancel_calls<N: Nic>(
        &self,
        worker: &mut Worker<N>,
        is_unwanted: impl Fn(&PendingCall<P>) -> bool,
    ) {
        for peer in self.peers.iter() {
            worker.cancel_all(peer, |cookie| self.calls.get(cookie).is_some_and(&is_unwanted));
        }
    }

    /// Handles what another thread says without an answer.
    #[cold]
    pub(super) fn take_notice<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
        notice: ThreadNotice,
    ) {
        match notice {
            ThreadNotice::Forget(client) => self.forget_client(replies, worker, client),
            ThreadNotice::Cancel(asked) => {
                if let Some(key) = self.provider_calls.of_thread(asked) {
                    self.abandon(replies, worker, key);
                }
            }
            ThreadNotice::Introduce(newcomer) => self.introduce_of_thread(newcomer),
            ThreadNotice::Shared(service) => {
                self.introductions.sessions.share_with_threads(service)
            }
        }
    }

    /// A client of another thread is gone: ends what this thread does for it.
    fn forget_client<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
        client: ClientTag,
    ) {
        let is_wanted = |waiting: &Waiting<P>| waiting.call.client != client;
        let unwanted = self.waiting.take_unwanted(&mut self.held, is_wanted);
        self.end_waiting(replies, unwanted, Status::Cancelled);
        self.cancel_calls(worker, |call| {
            matches!(call.reply_to, ReplyTo::Thread(_)) && call.charge.is_for(client)
        });
        for key in self.provider_calls.of_caller(CallerId::Client(client)) {
            self.abandon(replies, worker, key);
        }
    }

    /// Another node does not wait for an answer any more: a provider that is to give it is not waited for.
    #[cold]
    pub(super) fn cancel<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
        peer: PeerId,
        request: RequestId,
    ) {
        if let Some(key) = self.provider_calls.of_peer(peer, request) {
            self.abandon(replies, worker, key);
        }
    }

    /// The connection to another node has ended: none of its answers arrives any more.
    #[cold]
    pub(super) fn cancel_all_of<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
        peer: PeerId,
    ) {
        for key in self.provider_calls.by_peer(peer) {
            self.abandon(replies, worker, key);
        }
    }

    /// Ends a request whose caller does not wait any more, and tells the thread or the process that has it.
    pub(super) fn abandon<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
        key: Key,
    ) {
        self.tally.add(Counter::Abandoned, 1);
        let call = self.provider_calls.get(key);
        if let Some(ProviderCall { server: Server::Thread, head, .. }) = call
            && let Some(thread) = self.services.elsewhere(head.service)
        {
            let asked = AskedBy { thread: self.thread_handle.number(), key };
            self.departures.tell_later(thread, [ThreadNotice::Cancel(asked)]);
        }
        self.cancel_provider_call(replies, worker, key, Status::Cancelled);
    }

    /// Ends a request that nobody waits for any more, and tells the process that has it.
    #[cold]
    pub(super) fn cancel_provider_call<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
        key: Key,
        status: Status,
    ) {
        let call = self.provider_calls.get(key);
        let given = call.and_then(|call| match call.server {
            Server::Client(client) => Some((call.head.service, client)),
            Server::Given(_) | Server::Any | Server::Thread | Server::Answered => None,
        });
        self.end_provider_call(replies, worker, key, status, &[]);
        let Some((service, client)) = given else { return };
        let bytes_max = self.admission.body_bytes_max();
        let provider = self.services.provider(service);
        let told =
            provider.and_then(|provider| provider.members.cancel(client, key.to_u64(), bytes_max));
        tell_provider::<P>(replies, told);
    }

    /// A provider waits to be told of requests that it has and nobody waits for.
    pub(super) fn watch(
        &mut self,
        reply_to: P::ReplyTo,
        payload: &[u8],
        replies: &mut P::Replies,
    ) -> Result<(), Status> {
        let client = P::client_of(reply_to);
        let service = payload.try_into().map(u16::from_le_bytes);
        let service = service.map_err(|_| Status::InvalidArgument)?;
        let bytes_max = self.admission.body_bytes_max();
        let provider = self.services.provider(service);
        let provider = provider.filter(|provider| provider.members.has(client));
        let members = &mut provider.ok_or(Status::FailedPrecondition)?.members;
        tell_provider::<P>(replies, members.watch(client, reply_to, bytes_max));
        Ok(())
    }
}

/// Answers a provider that watches.
fn tell_provider<P: ClientPort>(replies: &mut P::Replies, told: Option<Told<P>>) {
    if let Some((reply_to, works)) = told {
        let works: Vec<_> = works.into_iter().flat_map(u64::to_le_bytes).collect();
        replies.reply(reply_to, Status::Ok, &[&works]);
    }
}

/// The client that waits for an answer, among those of all threads.
pub(super) fn tag_of<P: ClientPort>(base: u32, to: P::ReplyTo) -> ClientTag {
    let ClientTag { slot, life } = P::tag(P::client_of(to));
    ClientTag { slot: slot + base, life }
}
