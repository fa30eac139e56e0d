//! Requests and answers between processes of this node, which are only passed on: their bytes go from ring to
//! ring.
//!
//! The heads are copied once and checked. Whatever is not as plain as this needs takes the ordinary way, with a
//! copy of all of it, whose heads are read anew: what was found out here is believed here alone.

use std::mem;

use client::{
    LentBytes,
    message::{
        CALL_HEAD_BYTES, CallHead, DAEMON, HAS_EXTRA, HERE, SERVE_HEAD_BYTES, ServeHead, method,
    },
};
use rpc::{Status, Worker};
use slots::Key;
use verbs::Nic;
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::{
    client_port::{ClientPort, Replies as _},
    dispatcher::{
        Answer, Caller, Dispatcher,
        departures::tag_of,
        giving::work_heads,
        incoming::caller_head,
        provider_calls::{ProviderCall, Server},
    },
    limits::CallerId,
    metrics::{Counter, Timing},
    rights::Act,
};

impl<P: ClientPort> Dispatcher<P> {
    /// A request that lies where its client put it, and may change it at any time.
    pub(super) fn serve_lent<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        (client, reply_to): (P::Client, P::ReplyTo),
        lent: LentBytes<'_>,
        replies: &mut P::Replies,
    ) -> Answer {
        if self.pass_on((client, reply_to), lent, replies) {
            return Answer::Later;
        }
        let mut copy = mem::take(&mut self.copy);
        copy.clear();
        lent.append_to(&mut copy);
        let answer = self.serve(worker, client, reply_to, &copy, replies);
        self.copy = copy;
        answer
    }

    /// Passes a request or an answer on; `false` if it needs the ordinary way, and nothing has changed.
    fn pass_on(
        &mut self,
        from: (P::Client, P::ReplyTo),
        lent: LentBytes<'_>,
        replies: &mut P::Replies,
    ) -> bool {
        let mut heads = [0; CALL_HEAD_BYTES + SERVE_HEAD_BYTES];
        let len_bytes = lent.copy_to(&mut heads);
        let Ok((head, rest)) = CallHead::read_from_prefix(&heads[..len_bytes]) else {
            return false;
        };
        let is_here = [HERE, self.rank_info.rank()].contains(&head.rank.get());
        if !is_here || head.response_bytes.get() & HAS_EXTRA != 0 {
            return false;
        }
        if head.service.get() != DAEMON {
            let body = lent.get(CALL_HEAD_BYTES..lent.len());
            return body.is_some_and(|body| self.pass_request(from.1, &head, body, replies));
        }
        let answer = lent.get(CALL_HEAD_BYTES + SERVE_HEAD_BYTES..lent.len());
        match (ServeHead::read_from_bytes(rest), answer) {
            (Ok(head_of_answer), Some(answer)) if head.method.get() == method::SERVE => {
                self.pass_answer(from, &head_of_answer, answer, replies)
            }
            _ => false,
        }
    }

    /// Passes a request on to a process that waits for one.
    fn pass_request(
        &mut self,
        reply_to: P::ReplyTo,
        head: &CallHead,
        body: LentBytes<'_>,
        replies: &mut P::Replies,
    ) -> bool {
        let service = head.service.get();
        if self.is_draining
            || body.len() > self.body_bytes_max
            || self.services.rights().is_limited(Act::Call, service)
            || !self.services.is_polled(service)
        {
            return false;
        }
        let call = ProviderCall {
            caller: Caller::Client(reply_to),
            caller_id: CallerId::Client(tag_of::<P>(self.client_base, reply_to)),
            server: Server::Any,
            service,
            is_queued: false,
            deadline_ns: self.deadline_ns(head.timeout_us.get()),
            came_ns: self.now_ns,
            who: caller_head(replies.process_of(reply_to), 0),
        };
        let Ok(key) = self.provider_calls.insert(call) else { return false };
        let Some(poll) = self.services.take_poll(service) else {
            self.provider_calls.remove(key);
            return false;
        };
        self.services.count_request(service);
        self.tally.add(Counter::RequestsLocal, 1);
        let Some(call) = self.provider_calls.give(key, poll.client) else {
            unreachable!("the call was stored just now")
        };
        let of = (self.rank_info.rank(), head.method.get());
        let (head, context) = work_heads::<P>(&poll, key, of, call);
        let context = context.as_ref().map_or(&[][..], |context| context.as_bytes());
        replies.pass_on(poll.reply_to, &[head.as_bytes(), context], body);
        true
    }

    /// Passes the answer of a process on to the client of this node that waits for it.
    fn pass_answer(
        &mut self,
        (client, reply_to): (P::Client, P::ReplyTo),
        head: &ServeHead,
        answer: LentBytes<'_>,
        replies: &mut P::Replies,
    ) -> bool {
        let service = head.service.get();
        let is_its_own =
            self.services.provider(service).is_some_and(|provider| provider.members.has(client));
        // Only what this very client was given, and once.
        let Some(key) = Key::from_u64(head.work.get()) else { return false };
        let Some(call) = self.provider_calls.get(key) else { return false };
        let Caller::Client(to) = call.caller else { return false };
        let is_given = call.server == Server::Client(client) && !call.is_queued;
        if !is_its_own || !is_given || head.status != Status::Ok.code() {
            return false;
        }
        let trip_ns = self.now_ns.saturating_sub(call.came_ns);
        self.provider_calls.remove(key);
        replies.pass_on(to, &[], answer);
        self.statuses[usize::from(Status::Ok.code())] += 1;
        self.tally.add(Counter::Replies, 1);
        self.tally.record(Timing::Call, trip_ns);
        self.poll_again(replies, service, (client, reply_to), true);
        true
    }
}
