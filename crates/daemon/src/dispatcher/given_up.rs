//! Calls that their own process gave up: it is there, and waits for other calls.

use std::collections::HashSet;

use rpc::{Status, Worker};
use verbs::Nic;

use crate::{
    client_port::{ClientPort, Replies as _},
    dispatcher::{Dispatcher, PendingCall, ReplyTo, waiting::Waiting},
};

/// Calls that are remembered until the next look, which compares each with all that the thread has.
const REMEMBERED_MAX: usize = 1024;

/// Calls that were given up since the last look.
#[derive(Debug)]
pub(super) struct GivenUp<P: ClientPort>(HashSet<P::ReplyTo>);

impl<P: ClientPort> Default for GivenUp<P> {
    fn default() -> Self {
        Self(HashSet::new())
    }
}

impl<P: ClientPort> Dispatcher<P> {
    /// A client names calls of its own that it does not wait for any more. Numbers of calls that have ended mean
    /// nothing. Calls beyond a bound run until their deadlines.
    #[cold]
    pub(super) fn give_up_calls(
        &mut self,
        reply_to: P::ReplyTo,
        payload: &[u8],
        replies: &P::Replies,
    ) -> Status {
        let (calls, []) = payload.as_chunks() else { return Status::InvalidArgument };
        let room = REMEMBERED_MAX.saturating_sub(self.given_up.0.len());
        let named = calls.iter().map(|call| u16::from_le_bytes(*call)).take(room);
        self.given_up.0.extend(named.filter_map(|call| replies.pending_of(reply_to, call)));
        Status::Ok
    }

    /// Ends the calls that were given up, and tells whoever executes them.
    pub(super) fn end_given_up<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
    ) {
        if self.given_up.0.is_empty() {
            return;
        }
        let given_up = core::mem::take(&mut self.given_up.0);
        self.bulk.given_up.extend(&given_up);
        for key in self.provider_calls.by_clients(|to| given_up.contains(&to)) {
            self.abandon(replies, worker, key);
        }
        let is_wanted = |waiting: &Waiting<P>| match &waiting.reply_to {
            ReplyTo::Client(to) => !given_up.contains(to),
            ReplyTo::Thread(_) | ReplyTo::Nobody => true,
        };
        let unwanted = self.waiting.take_unwanted(&mut self.held, is_wanted);
        self.end_waiting(replies, unwanted, Status::Cancelled);
        // The calls to other nodes: their clients are answered here, and nobody by the end of the calls.
        let mut ended = Vec::new();
        self.calls.orphan(
            |to| given_up.contains(&to),
            |to, PendingCall { taken_ns, .. }| ended.push((to, *taken_ns)),
        );
        for (to, taken_ns) in &ended {
            self.answer(replies, ReplyTo::Client(*to), Status::Cancelled, &[], *taken_ns);
        }
        if !ended.is_empty() {
            self.cancel_calls(worker, |call| matches!(call.reply_to, ReplyTo::Nobody));
        }
    }
}
