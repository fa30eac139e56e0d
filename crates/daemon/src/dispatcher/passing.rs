//! Requests and answers of processes of this node, which are only passed on: their bytes go from ring to ring, or to
//! the batch of another node.
//!
//! The heads are copied once and checked. Whatever is not as plain as this needs takes the ordinary way, with a
//! copy of all of it, whose heads are read anew: what was found out here is believed here alone.

use client::{
    LentBytes,
    message::{CALL_HEAD_BYTES, DAEMON, HERE, SERVE_HEAD_BYTES, ServeHead, method},
};
use ids::slots::Key;
use rpc::{Status, Worker};
use verbs::Nic;
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::{
    client_port::{ClientPort, Replies as _},
    dispatcher::{
        Answer, Dispatcher,
        giving::work_heads,
        provider_calls::{ProviderCall, Server},
    },
    metrics::{Counter, Timing},
    request::{Body, CallHeads, Caller},
};

impl<P: ClientPort> Dispatcher<P> {
    /// Passes a request or an answer on, or refuses the request; `None` if it needs the ordinary way, and nothing has
    /// changed. Its bytes lie where their client put them, which may change them at any time.
    pub(super) fn pass_on<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        from: P::ReplyTo,
        lent: LentBytes<'_>,
        replies: &mut P::Replies,
    ) -> Option<Answer> {
        let mut bytes = [0; CALL_HEAD_BYTES + SERVE_HEAD_BYTES];
        let len_bytes = lent.copy_to(&mut bytes);
        let heads = CallHeads::read(&bytes[..len_bytes])?;
        let is_here = [HERE, self.rank_info.rank()].contains(&heads.head.rank.get());
        if !is_here {
            return self.pass_to_node(worker, from, &heads, lent, replies);
        }
        if heads.len_bytes != CALL_HEAD_BYTES {
            return None;
        }
        if heads.head.service.get() != DAEMON {
            return self.pass_request(
                from,
                &heads,
                lent.get(CALL_HEAD_BYTES..lent.len())?,
                replies,
            );
        }
        if heads.head.method.get() != method::SERVE {
            return None;
        }
        let head = ServeHead::read_from_bytes(&bytes[CALL_HEAD_BYTES..len_bytes]).ok()?;
        self.pass_answer(worker, from, &head, lent.get(bytes.len()..lent.len())?, replies)
    }

    /// Sends a request to a node whose connection this thread has.
    fn pass_to_node<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        from: P::ReplyTo,
        heads: &CallHeads,
        lent: LentBytes<'_>,
        replies: &P::Replies,
    ) -> Option<Answer> {
        if !self.has_connection(heads.head.rank.get()) {
            return None;
        }
        let body = lent.get(heads.len_bytes..lent.len())?;
        let request = self.request_of(replies, from, heads, Body::Lent(body));
        Some(match self.admit(&request) {
            Ok(_) => self.forward_lent(worker, from, &request, body).into(),
            Err(refusal) => refusal.into(),
        })
    }

    /// Passes a request on to a process that waits for one.
    fn pass_request(
        &mut self,
        reply_to: P::ReplyTo,
        heads: &CallHeads,
        body: LentBytes<'_>,
        replies: &mut P::Replies,
    ) -> Option<Answer> {
        let service = heads.head.service.get();
        if !self.services.is_polled(service) {
            return None;
        }
        let request = self.request_of(replies, reply_to, heads, Body::Lent(body));
        if let Err(refusal) = self.admit(&request) {
            return Some(refusal.into());
        }
        let head = request.head;
        let call = ProviderCall::new(request, Server::Any, self.now_ns);
        let Ok(key) = self.provider_calls.insert(call) else {
            return Some(Answer::Refused(Status::ResourceExhausted));
        };
        let Some(poll) = self.services.take_poll(service) else {
            self.provider_calls.remove(key);
            return Some(Answer::Refused(Status::ResourceExhausted));
        };
        self.services.count_request(service);
        self.provider_calls.give(key, poll.client);
        let (work, context) = work_heads::<P>(&poll, key, &head);
        let context = context.as_ref().map_or(&[][..], |context| context.as_bytes());
        replies.pass_on(poll.reply_to, &[work.as_bytes(), context], body);
        Some(Answer::Later)
    }

    /// Passes the answer of a process on to the client of this node that waits for it, or to the other node.
    fn pass_answer<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        reply_to: P::ReplyTo,
        head: &ServeHead,
        answer: LentBytes<'_>,
        replies: &mut P::Replies,
    ) -> Option<Answer> {
        let (service, client) = (head.service.get(), P::client_of(reply_to));
        let is_its_own =
            self.services.provider(service).is_some_and(|provider| provider.members.has(client));
        // Only what this very client was given, and once.
        let key = Key::from_u64(head.work.get())?;
        let call = self.provider_calls.get(key)?;
        let is_given = call.server == Server::Client(client) && !call.is_queued;
        if !is_its_own || !is_given || head.status != Status::Ok.code() {
            return None;
        }
        let Caller::Client(to) = call.caller else {
            let is_sent = self.end_lent(worker, key, answer);
            return is_sent.then(|| {
                self.poll_again(replies, service, reply_to, true);
                Answer::Later
            });
        };
        let trip_ns = self.now_ns.saturating_sub(call.came_ns);
        self.provider_calls.remove(key);
        replies.pass_on(to, &[], answer);
        self.statuses[usize::from(Status::Ok.code())] += 1;
        self.tally.add(Counter::Replies, 1);
        self.tally.record(Timing::Call, trip_ns);
        self.poll_again(replies, service, reply_to, true);
        Some(Answer::Later)
    }
}
