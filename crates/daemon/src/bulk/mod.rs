//! Calls that lend memory: grants, transfers, and the end of rights. The rules are in `docs/bulk.md`.
//!
//! | part | holds |
//! |---|---|
//! | [`BulkInbox`](crate::bulk_inbox::BulkInbox) | messages of this turn |
//! | [`Regions`] | memory of clients that is registered |
//! | [`Registrations`] | memory of clients that is to be registered |
//! | `lent` | calls of this node's clients, and the slices that they lend |
//! | `works` | calls that providers of this node answer, and what they may access |
//! | `transfers` | ranges that are being moved for providers |
//!
//! A daemon of several threads has one [`Bulk`] for each. A call reaches the peers of the thread that its
//! client belongs to.

mod caller;
mod provider;
mod regions;
mod registrations;
mod transfers;

use std::collections::BTreeMap;

use client::{
    bulk::message::method,
    message::{DETAIL_BYTES_MAX, origin},
};
use ids::slots::{Key, SlotTable};
use memory::sync::Arc;
use provider::{Offer, Work};
use regions::Regions;
use registrations::Registrations;
use rpc::{PeerId, Status, Worker};
use transfers::Transfer;
use verbs::Nic;

use crate::{
    admission::Refusal,
    bulk_inbox::{BulkMessage, Outcome, unmarked},
    client_port::{ClientPort, Replies as _},
    dispatcher::{Dispatcher, not_executed},
    limits::{Limits, Wheel},
    metrics::Counter,
    process_regions::{Maker, ProcessRegions, RegionCount},
    request::Caller,
};
use caller::Lent;

/// Calls that lend memory, of all clients.
const LENT_MAX: u32 = 1 << 16;

/// Calls that providers are to answer.
const WORKS_MAX: u32 = 1 << 16;

/// What an outcome of the worker is about.
#[derive(Clone, Copy)]
enum Awaited {
    /// The answer to a call.
    Call(Key),
    /// That the slices of a call are closed.
    Close(Key),
    /// The end of a segment of a transfer.
    Segment { transfer: Key, len_bytes: u64 },
}

/// What a turn works with.
pub(crate) struct Turn<'a, N: Nic, P: ClientPort> {
    pub(crate) worker: &'a mut Worker<N>,
    pub(crate) port: &'a mut P,
    pub(crate) dispatcher: &'a mut Dispatcher<P>,
}

impl<N: Nic, P: ClientPort> Turn<'_, N, P> {
    fn now_ns(&self) -> u64 {
        self.dispatcher.now_ns
    }

    fn count(&mut self, counter: Counter, by: u64) {
        self.dispatcher.tally.add(counter, by);
    }

    /// Answers a request of a client. With a status that is no success, what is said about it follows the party that says
    /// so, which daemons of earlier builds leave out.
    fn reply(&mut self, to: P::ReplyTo, status: Status, body: &[u8]) {
        let detail = &body[..body.len().min(DETAIL_BYTES_MAX)];
        let parts: &[&[u8]] = match (status, body) {
            (Status::Ok, _) | (_, [] | [origin::SERVICE | origin::NOT_EXECUTED, ..]) => &[body],
            _ => &[&[origin::SERVICE], detail],
        };
        self.port.replies().reply(to, status, parts);
        self.count(Counter::Replies, 1);
    }
}

/// The process that makes a request.
fn maker<N: Nic, P: ClientPort>(turn: &mut Turn<'_, N, P>, reply_to: P::ReplyTo) -> Maker {
    Maker::of(turn.port.replies().process_of(reply_to), P::tag(P::client_of(reply_to)))
}

/// How a request is answered.
enum Answer {
    Now(Status, Vec<u8>),
    Later,
}

impl Answer {
    fn word(word: u64) -> Self {
        Self::Now(Status::Ok, word.to_le_bytes().to_vec())
    }

    /// The door did not admit a call.
    fn refused(refusal: Refusal) -> Self {
        let status = refusal.status();
        Self::Now(status, not_executed(status).to_vec())
    }
}

impl From<Status> for Answer {
    fn from(status: Status) -> Self {
        Self::Now(status, Vec::new())
    }
}

/// All about bulk memory, for one thread of a daemon.
pub(crate) struct Bulk<N: Nic, P: ClientPort> {
    regions: Regions<N, P::Client>,
    registrations: Registrations<N, P>,
    lent: SlotTable<Lent<P>>,
    works: SlotTable<Work<P>>,
    /// Deadlines of `works`.
    work_deadlines: Wheel,
    /// Deadlines of calls to providers of this node, among `lent`.
    call_deadlines: Wheel,
    /// By number of the service.
    offers: BTreeMap<u16, Offer<P>>,
    /// The earliest time of the next report about them.
    report_ns: u64,
    /// There were some at the latest one.
    has_reported: bool,
    transfers: SlotTable<Transfer<P>>,
    awaited: SlotTable<Awaited>,
    /// Calls whose slices another daemon is to be asked to close.
    unasked: Vec<Key>,
    /// For copies between regions of this node.
    buffer: Box<[u8]>,
    departures: u64,
}

impl<N: Nic, P: ClientPort> Bulk<N, P> {
    pub(crate) fn new(limits: &Limits, processes: Arc<ProcessRegions>) -> Self {
        Self {
            regions: Regions::new(limits, processes),
            registrations: Registrations::default(),
            lent: SlotTable::bounded(LENT_MAX),
            works: SlotTable::bounded(WORKS_MAX),
            work_deadlines: Wheel::default(),
            call_deadlines: Wheel::default(),
            offers: BTreeMap::new(),
            report_ns: 0,
            has_reported: false,
            transfers: SlotTable::bounded(WORKS_MAX),
            awaited: SlotTable::default(),
            unasked: Vec::new(),
            buffer: Box::default(),
            departures: 0,
        }
    }

    /// Memory that clients have registered.
    pub(crate) fn held(&self) -> RegionCount {
        self.regions.held()
    }

    /// Calls that lend or borrow memory, and registrations.
    #[inline]
    pub(crate) fn open(&self) -> usize {
        self.lent.len() + self.works.len() + self.registrations.len()
    }

    /// Time of the next look at memory that is being registered; `u64::MAX` if there is none.
    #[inline]
    pub(crate) fn registering_look_ns(&self) -> u64 {
        self.registrations.look_ns()
    }

    /// Handles what came in this turn, and moves what is to be moved. Returns how much was done.
    #[inline]
    pub(crate) fn advance(&mut self, turn: &mut Turn<'_, N, P>) -> usize {
        let is_idle = self.transfers.is_empty() && self.registrations.is_empty();
        if turn.dispatcher.bulk.is_empty() && is_idle {
            return 0;
        }
        self.work(turn)
    }

    #[cold]
    fn work(&mut self, turn: &mut Turn<'_, N, P>) -> usize {
        let inbox = core::mem::take(&mut turn.dispatcher.bulk);
        let mut done = inbox.messages.len() + inbox.outcomes.len();
        for outcome in inbox.outcomes {
            self.outcome(turn, outcome);
        }
        for peer in inbox.closed {
            self.disconnected(turn, peer);
        }
        for message in inbox.messages {
            match message.request.reply_to {
                Caller::Client(to) => {
                    if let Answer::Now(status, body) = self.request(turn, to, message) {
                        turn.reply(to, status, &body);
                    }
                }
                Caller::Peer(_) => self.peer_request(turn, message),
                Caller::Thread(..) => {}
            }
        }
        done += self.registrations.advance(turn, &mut self.regions);
        done += self.pump(turn);
        done
    }

    fn request(
        &mut self,
        turn: &mut Turn<'_, N, P>,
        reply_to: P::ReplyTo,
        message: BulkMessage<P>,
    ) -> Answer {
        let (client, body) = (P::client_of(reply_to), &message.body);
        let word = |at: usize| {
            let bytes = body.get(at..).and_then(<[u8]>::first_chunk);
            bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
        };
        let outcome = match message.request.head.method {
            method::ROOM => {
                let maker = maker(turn, reply_to);
                self.regions.check_share(maker, word(0)).map(|()| Status::Ok.into())
            }
            method::REGION => {
                let maker = maker(turn, reply_to);
                let Some(fd) = turn.port.take_descriptor(client) else {
                    return Status::InvalidArgument.into();
                };
                let deadline_ns = message.request.head.deadline_ns;
                let Self { regions, registrations, .. } = self;
                regions.reserve(client, maker, word(0)).and_then(|reserved| {
                    match registrations.add(reply_to, deadline_ns, reserved, fd) {
                        Ok(()) => Ok(Answer::Later),
                        Err(reserved) => {
                            regions.release(reserved);
                            Err(Status::ResourceExhausted)
                        }
                    }
                })
            }
            method::FORGET => Ok(self.regions.forget(client, word(0)).into()),
            method::LENT => self.count_lent(client, word(0)),
            method::CALL => self.call(turn, reply_to, message),
            method::OFFER => return self.offer(turn, client, &message).into(),
            method::SERVE => self.serve(turn, client, reply_to, body),
            method::TRANSFER => self.transfer(turn, client, reply_to, body),
            // No breach: that is what it asks.
            method::WORK => return self.waits(client, word(0)).unwrap_or_else(Answer::from),
            method::PROGRESS => self.progress(client, word(0), word(8)),
            _ => Err(Status::Unimplemented),
        };
        outcome.unwrap_or_else(|status| {
            let is_breach = matches!(
                status,
                Status::PermissionDenied
                    | Status::OutOfRange
                    | Status::Cancelled
                    | Status::DataLoss
            );
            if is_breach {
                turn.count(Counter::BulkRefused, 1);
            }
            Answer::from(status)
        })
    }

    fn peer_request(&mut self, turn: &mut Turn<'_, N, P>, message: BulkMessage<P>) {
        match message.request.head.method {
            method::PEER_CALL => self.peer_call(turn, message),
            method::PEER_CLOSE => self.peer_close(turn, message),
            // It is answered by the drop of its token.
            _ => {}
        }
    }

    fn outcome(&mut self, turn: &mut Turn<'_, N, P>, outcome: Outcome) {
        let key = Key::from_u64(unmarked(outcome.cookie));
        match key.and_then(|key| self.awaited.remove(key)) {
            Some(Awaited::Call(set)) => self.called(turn, set, outcome.status, outcome.body),
            Some(Awaited::Close(set)) => self.close_ended(set, outcome.body.is_some()),
            Some(Awaited::Segment { transfer, len_bytes }) => {
                self.segment_ended(turn, transfer, len_bytes, outcome.status);
            }
            None => turn.count(Counter::Stale, 1),
        }
    }

    /// A connection has ended: nothing that it carried is under way any more.
    fn disconnected(&mut self, turn: &mut Turn<'_, N, P>, peer: PeerId) {
        self.lent_disconnected(turn, peer);
        self.works_disconnected(turn, peer);
    }

    /// Looks at deadlines and at clients that are gone.
    pub(crate) fn expire(&mut self, turn: &mut Turn<'_, N, P>) {
        let departures = turn.port.departures();
        if core::mem::replace(&mut self.departures, departures) != departures {
            self.clients_gone(turn);
        }
        let given_up = core::mem::take(&mut turn.dispatcher.bulk.given_up);
        if self.open() > 0 {
            self.give_up_calls(turn, &given_up);
            self.registrations.expire(turn, &mut self.regions);
            self.expire_lent(turn);
            self.expire_works(turn);
            self.expire_transfers(turn);
        }
        self.report_offers(turn);
        for set in core::mem::take(&mut self.unasked) {
            self.ask_to_close(turn, set);
        }
    }

    fn clients_gone(&mut self, turn: &mut Turn<'_, N, P>) {
        self.callers_gone(turn);
        self.providers_gone(turn);
        let Self { registrations, regions, .. } = self;
        registrations.retain(regions, |client| turn.port.is_there(client));
        regions.retain(|client| turn.port.is_there(client));
    }
}
