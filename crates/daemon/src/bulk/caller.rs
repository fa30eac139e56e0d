//! Calls of this node's clients that lend memory, and when it is theirs again.

use std::{collections::HashSet, time::Duration};

use client::{
    bulk::message::{
        BulkCallHead, IS_WRITABLE, PeerCallHead, PeerSlice, SliceHead, entries, method,
    },
    message::{CallerHead, DAEMON, HERE, PEER_HEAD_BYTES, PeerHead},
};
use ids::slots::Key;
use proto::bulk::{Lending, Slice};
use rpc::{Call, CallError, PeerId, Status};
use verbs::Nic;
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::{
    Answer, Awaited, Bulk, Turn,
    provider::{Granted, Lender, Source},
};
use crate::{
    admission::Route,
    bulk_inbox::{BulkMessage, marked},
    client_port::ClientPort,
    metrics::Counter,
    request::{Body, Request},
    request_head::RequestHead,
};

/// How long another daemon may take to say that it has closed the slices of a call, before it is asked again.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Calls of one client whose slices are lent.
const LENT_EACH: usize = 256;

/// A slice that is lent.
#[derive(Clone, Copy)]
struct LentSlice {
    region: Key,
    slice: Slice,
}

/// A call of a client, from the moment that its slices are lent to the one when all are the client's again.
pub(super) struct Lent<P: ClientPort> {
    client: P::Client,
    /// `None`: the client was answered, or is gone.
    reply_to: Option<P::ReplyTo>,
    slices: Vec<LentSlice>,
    lending: Lending,
    to: To,
}

/// Where a call went.
#[derive(Clone, Copy)]
enum To {
    /// To a provider of this node.
    Here(Key),
    There(PeerId),
}

impl<N: Nic, P: ClientPort> Bulk<N, P> {
    /// A client calls.
    pub(super) fn call(
        &mut self,
        turn: &mut Turn<'_, N, P>,
        reply_to: P::ReplyTo,
        message: BulkMessage<P>,
    ) -> Result<Answer, Status> {
        let (head, rest) =
            BulkCallHead::read_from_prefix(&message.body).map_err(|_| Status::InvalidArgument)?;
        let (heads, body) =
            entries::<SliceHead>(rest, head.slices.get()).ok_or(Status::InvalidArgument)?;
        let own = turn.dispatcher.rank_info.rank();
        let head = RequestHead {
            rank: if head.rank.get() == HERE { own } else { head.rank.get() },
            service: head.service.get(),
            method: head.method.get(),
            deadline_ns: turn.dispatcher.deadline_ns(head.timeout_us.get()),
            ..message.request.head
        };
        let request = Request { head, body: Body::WithSlices(body), ..message.request };
        let route = match turn.dispatcher.admit(&request) {
            Ok(route) => route,
            Err(refusal) => return Ok(Answer::refused(refusal)),
        };
        let client = P::client_of(reply_to);
        let lend = |slice| self.lend(client, slice);
        let slices = heads.iter().map(lend).collect::<Result<_, _>>()?;
        let asked = Asked { reply_to, request, slices };
        turn.count(Counter::BulkCalls, 1);
        match route {
            Route::There => self.call_there(turn, asked),
            Route::Here => self.call_here(turn, asked),
            Route::Daemon => Err(Status::Unimplemented),
        }
    }

    /// A slice as its client names it.
    fn lend(&self, client: P::Client, head: &SliceHead) -> Result<LentSlice, Status> {
        let range = (head.offset.get(), head.len_bytes.get());
        let is_writable = head.flags.get() & IS_WRITABLE != 0;
        let (region, slice) = self.regions.slice(client, head.region.get(), range, is_writable)?;
        let is_in_the_way = |lent: &LentSlice| {
            lent.region == region
                && lent.slice.is_writable
                && lent.slice.extent.overlaps(slice.extent)
        };
        let closing = self.lent.iter().filter(|(_, lent)| lent.lending == Lending::Closing);
        if closing.flat_map(|(_, lent)| &lent.slices).any(is_in_the_way) {
            return Err(Status::FailedPrecondition);
        }
        Ok(LentSlice { region, slice })
    }

    /// Stores a call: its slices are lent from now on.
    fn store(&mut self, asked: &Asked<'_, P>, to: To) -> Result<Key, Status> {
        // Those that were given up stay until the other side has closed them.
        let client = P::client_of(asked.reply_to);
        let own = self.lent.iter().filter(|(_, lent)| lent.client == client);
        if own.count() >= LENT_EACH {
            return Err(Status::ResourceExhausted);
        }
        let lent = Lent {
            client,
            reply_to: Some(asked.reply_to),
            slices: asked.slices.clone(),
            lending: Lending::default(),
            to,
        };
        let key = self.lent.insert(lent).map_err(|_| Status::ResourceExhausted)?;
        // Those to other nodes end by the worker.
        if let To::Here(_) = to {
            self.call_deadlines.add(asked.request.head.deadline_ns, key);
        }
        asked.slices.iter().for_each(|slice| self.regions.take(slice.region));
        Ok(key)
    }

    /// To a provider of this node.
    fn call_here(
        &mut self,
        turn: &mut Turn<'_, N, P>,
        asked: Asked<'_, P>,
    ) -> Result<Answer, Status> {
        let granted =
            |lent: &LentSlice| Granted { slice: lent.slice, source: Source::Here(lent.region) };
        let slices = asked.slices.iter().map(granted).collect();
        let work = self.add_work(&asked.request, slices)?;
        match self.store(&asked, To::Here(work)) {
            Ok(set) => {
                self.set_lender(work, Lender::Here(set));
                self.give_works(turn, asked.request.head.service);
                Ok(Answer::Later)
            }
            Err(status) => {
                self.drop_work(work);
                Err(status)
            }
        }
    }

    /// To another node.
    fn call_there(
        &mut self,
        turn: &mut Turn<'_, N, P>,
        asked: Asked<'_, P>,
    ) -> Result<Answer, Status> {
        let request = &asked.request.head;
        let peer = turn.dispatcher.peer_of(request.rank)?;
        let mut bytes = Vec::new();
        let set = self.store(&asked, To::There(peer))?;
        let head = PeerCallHead {
            set: set.to_u64().into(),
            service: request.service.into(),
            method: request.method.into(),
            slices: u16::try_from(asked.slices.len()).unwrap_or(u16::MAX).into(),
            reserved: 0.into(),
        };
        bytes.extend_from_slice(head.as_bytes());
        for LentSlice { region, slice } in &asked.slices {
            let Some(region) = self.regions.get(*region) else { continue };
            let slice = PeerSlice {
                region: region.remote().to_bytes(),
                flags: if slice.is_writable { IS_WRITABLE } else { 0 }.into(),
                offset: slice.extent.offset().into(),
                len_bytes: slice.extent.len_bytes().into(),
            };
            bytes.extend_from_slice(slice.as_bytes());
        }
        bytes.extend_from_slice(asked.request.body.private());
        let timeout = Duration::from_nanos(request.deadline_ns.saturating_sub(turn.now_ns()));
        let heads_bytes = 2 * PEER_HEAD_BYTES + size_of::<CallerHead>() + 64;
        let called = if bytes.len() + heads_bytes > turn.worker.config().batch_bytes {
            // By rendezvous it could arrive after the request to close it.
            Err(Status::OutOfRange)
        } else {
            let awaited = Awaited::Call(set);
            let message = PeerMessage { method: method::PEER_CALL, body: &bytes, timeout };
            self.ask_peer(turn, peer, &request.caller, &message, awaited)
        };
        called.map(|()| Answer::Later).inspect_err(|_| self.free(set))
    }

    /// Asks another daemon for something, for a caller that it is told of.
    fn ask_peer(
        &mut self,
        turn: &mut Turn<'_, N, P>,
        peer: PeerId,
        caller: &CallerHead,
        message: &PeerMessage<'_>,
        awaited: Awaited,
    ) -> Result<(), Status> {
        let key = self.awaited.insert(awaited).map_err(|_| Status::ResourceExhausted)?;
        let (cookie, timeout) = (marked(key.to_u64()), message.timeout);
        let call = Call { method: DAEMON, timeout, cookie, ..Call::default() };
        let (head, caller) = PeerHead::new(message.method, caller);
        let called = turn.worker.call_parts(peer, &call, &[head.as_bytes(), caller, message.body]);
        called.map(drop).map_err(|error| {
            self.awaited.remove(key);
            match error {
                CallError::NotConnected | CallError::Nested => Status::Unavailable,
                CallError::TooLong { .. } | CallError::NoPlace { .. } => Status::OutOfRange,
                _ => Status::ResourceExhausted,
            }
        })
    }

    /// A call to another node has ended, with an answer or without.
    pub(super) fn called(
        &mut self,
        turn: &mut Turn<'_, N, P>,
        set: Key,
        status: Status,
        body: Option<Vec<u8>>,
    ) {
        let Some(lent) = self.lent.get_mut(set) else { return };
        let reply_to = lent.reply_to.take();
        if let Some(body) = body {
            lent.lending.answered();
            self.free(set);
            if let Some(to) = reply_to {
                turn.reply(to, status, &body);
            }
            return;
        }
        let status = match status {
            Status::DeadlineExceeded => status,
            _ => Status::Unavailable,
        };
        let must_ask = lent.lending.given_up();
        if let Some(to) = reply_to {
            turn.count(Counter::Deadlines, u64::from(status == Status::DeadlineExceeded));
            turn.reply(to, status, &[]);
        }
        if must_ask {
            self.ask_to_close(turn, set);
        }
    }

    /// The provider here has answered, and nothing is moved any more.
    pub(super) fn answered_here(
        &mut self,
        turn: &mut Turn<'_, N, P>,
        set: Key,
        status: Status,
        body: &[u8],
    ) {
        let Some(lent) = self.lent.get_mut(set) else { return };
        lent.lending.answered();
        let reply_to = lent.reply_to.take();
        self.free(set);
        if let Some(to) = reply_to {
            turn.reply(to, status, body);
        }
    }

    /// Has the other side close the slices of a call that was given up.
    pub(super) fn ask_to_close(&mut self, turn: &mut Turn<'_, N, P>, set: Key) {
        let Some(lent) = self.lent.get_mut(set) else { return };
        let peer = match lent.to {
            To::Here(work) => return self.end_work(turn, work, Status::Cancelled, Vec::new()),
            To::There(peer) => peer,
        };
        if !turn.worker.is_connected(peer) {
            lent.lending.disconnected();
            return self.free(set);
        }
        let word = set.to_u64().to_le_bytes();
        let (nobody, awaited) = (CallerHead::default(), Awaited::Close(set));
        let message =
            PeerMessage { method: method::PEER_CLOSE, body: &word, timeout: CLOSE_TIMEOUT };
        let asked = self.ask_peer(turn, peer, &nobody, &message, awaited);
        if asked.is_err() {
            self.unasked.push(set);
        }
    }

    /// The other daemon has said that the slices are closed, or has not.
    pub(super) fn close_ended(&mut self, set: Key, is_closed: bool) {
        let Some(lent) = self.lent.get_mut(set) else { return };
        if is_closed {
            lent.lending.closed();
            self.free(set);
        } else {
            self.unasked.push(set);
        }
    }

    /// The slices of a call are its client's again, or were never lent.
    fn free(&mut self, set: Key) {
        let Some(lent) = self.lent.remove(set) else { return };
        for slice in lent.slices {
            self.regions.give(slice.region);
        }
    }

    pub(super) fn lent_disconnected(&mut self, turn: &mut Turn<'_, N, P>, peer: PeerId) {
        for set in self.lent_keys(|lent| matches!(lent.to, To::There(to) if to == peer)) {
            let Some(lent) = self.lent.get_mut(set) else { continue };
            lent.lending.disconnected();
            let reply_to = lent.reply_to.take();
            self.free(set);
            if let Some(to) = reply_to {
                turn.count(Counter::PeerGone, 1);
                turn.reply(to, Status::Unavailable, &[]);
            }
        }
    }

    /// Calls of clients that are gone.
    pub(super) fn callers_gone(&mut self, turn: &mut Turn<'_, N, P>) {
        for set in self.lent_keys(|lent| !turn.port.is_there(lent.client)) {
            self.give_up(turn, set, None);
        }
    }

    /// Calls that their own processes gave up.
    pub(super) fn give_up_calls(
        &mut self,
        turn: &mut Turn<'_, N, P>,
        given_up: &HashSet<P::ReplyTo>,
    ) {
        if given_up.is_empty() {
            return;
        }
        let is_given_up =
            |lent: &Lent<P>| lent.reply_to.is_some_and(|reply_to| given_up.contains(&reply_to));
        for set in self.lent_keys(is_given_up) {
            turn.count(Counter::Abandoned, 1);
            self.give_up(turn, set, Some(Status::Cancelled));
        }
    }

    /// Calls to providers here that have passed their deadline; those to other nodes end by the worker.
    pub(super) fn expire_lent(&mut self, turn: &mut Turn<'_, N, P>) {
        let Self { lent, call_deadlines, .. } = self;
        let waits = |key| lent.get(key).is_some_and(|lent| lent.reply_to.is_some());
        for set in call_deadlines.take_due(turn.now_ns(), waits) {
            turn.count(Counter::Deadlines, 1);
            self.give_up(turn, set, Some(Status::DeadlineExceeded));
        }
    }

    fn give_up(&mut self, turn: &mut Turn<'_, N, P>, set: Key, status: Option<Status>) {
        let Some(lent) = self.lent.get_mut(set) else { return };
        let (reply_to, must_ask) = (lent.reply_to.take(), lent.lending.given_up());
        if let (Some(to), Some(status)) = (reply_to, status) {
            turn.reply(to, status, &[]);
        }
        if must_ask {
            self.ask_to_close(turn, set);
        }
    }

    fn lent_keys(&self, is_wanted: impl Fn(&Lent<P>) -> bool) -> Vec<Key> {
        self.lent.iter().filter(|(_, lent)| is_wanted(lent)).map(|(key, _)| key).collect()
    }

    /// How many slices of a region are lent, and how many of them may be written.
    pub(super) fn count_lent(&self, client: P::Client, word: u64) -> Result<Answer, Status> {
        let (region, _) = self.regions.find(client, word).ok_or(Status::NotFound)?;
        let slices = self.lent.iter().flat_map(|(_, lent)| &lent.slices);
        let (mut all, mut writable) = (0_u64, 0_u64);
        for lent in slices.filter(|lent| lent.region == region) {
            all += 1;
            writable += u64::from(lent.slice.is_writable);
        }
        let words = [all.to_le_bytes(), writable.to_le_bytes()];
        Ok(Answer::Now(Status::Ok, words.as_flattened().to_vec()))
    }
}

/// A call of a client that was found to be in order.
struct Asked<'a, P: ClientPort> {
    reply_to: P::ReplyTo,
    request: Request<'a, P>,
    slices: Vec<LentSlice>,
}

/// What another daemon is asked.
struct PeerMessage<'a> {
    method: u16,
    body: &'a [u8],
    timeout: Duration,
}
