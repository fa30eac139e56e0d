//! One side of a connection.

mod departures;
mod types;

use alloc::collections::VecDeque;

use super::{
    Busy, CREDIT_BYTES,
    batch::{Large, Message, Messages, Outgoing, RequestFields, large_bytes},
    calls::{CallId, Calls},
    flush::Spent,
    imm::Imm,
    inbox::{Arrival, Inbox, Lease},
    layout::{
        CreditWords, KIND_CANCEL, KIND_LARGE_REQUEST, KIND_LARGE_RESPONSE, KIND_RELEASE,
        KIND_REQUEST, KIND_RESPONSE, LARGE_BYTES, response_bytes, response_lines,
    },
    outbox::Outbox,
    served::{ReplyError, RequestId, Served},
    violation::Violation,
};
use crate::Status;

pub use types::{Call, CallRefused, Config, Counters, Incoming, Rare, Usage};

/// One side of a connection: what to send, and what became of calls.
///
/// | | |
/// |---|---|
/// | commands | [`call`](Self::call), [`call_large`](Self::call_large), [`cancel`](Self::cancel), [`reply`](Self::reply), [`reply_large`](Self::reply_large) |
/// | arrivals | [`arrive`](Self::arrive), then [`open_batch`](Self::open_batch), [`message`](Self::message) for each, [`close_batch`](Self::close_batch); or [`credit`](Self::credit) |
/// | departures | [`emission`](Self::emission), then [`posted`](Self::posted), later [`finished`](Self::finished); [`credit_due`](Self::credit_due), then [`credit_posted`](Self::credit_posted), later [`credit_arrived`](Self::credit_arrived) |
/// | time | [`expire`](Self::expire), [`wake_ns`](Self::wake_ns) |
///
/// After a [`Violation`] only [`drain`](Self::drain) makes sense.
#[derive(Debug)]
pub struct Connection {
    config: Config,
    inbox: Inbox,
    outbox: Outbox,
    calls: Calls,
    served: Served,
    /// Cancellations and releases that no place was set aside for: at most two a call.
    control: VecDeque<Outgoing>,
    /// Since when credit waits.
    credit_since_ns: Option<u64>,
    /// Words were posted and have not arrived.
    is_credit_on_its_way: bool,
    counters: Counters,
}

impl Connection {
    /// A side that has sent and received nothing.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let Config { own, peer, flush, signal_interval, .. } = config;
        Self {
            inbox: Inbox::new(&own),
            outbox: Outbox::new(&peer, flush, signal_interval),
            calls: Calls::new(own.calls_max, own.geometry.response_lines()),
            served: Served::new(peer.calls_max, peer.geometry.response_lines()),
            control: VecDeque::new(),
            credit_since_ns: None,
            is_credit_on_its_way: false,
            counters: Counters::default(),
            config,
        }
    }

    /// Starts both rings at a position, and names of calls at a generation, as after much use.
    ///
    /// For tests of what wraps; both sides must do the same.
    #[must_use]
    pub fn starting_at(mut self, lines: u64, generation: u16) -> Self {
        self.inbox.start_at(lines);
        self.outbox.start_at(lines);
        self.calls.start_at(generation);
        self
    }

    /// The connection's counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let Spent { held_ns, trips, trips_ns } = self.outbox.clock.spent();
        let batches_in = self.batches_in();
        Counters { batches_in, held_ns, trips, trips_ns, ..self.counters }
    }

    /// Batches of the peer that were handled, the open one included.
    #[inline]
    #[must_use]
    pub fn batches_in(&self) -> u64 {
        self.inbox.handled()
    }

    /// Its own hello and its peer's.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Calls whose callers wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.calls.waiting()
    }

    /// Requests to be answered.
    #[must_use]
    pub fn serving(&self) -> usize {
        self.served.open()
    }

    /// Longest body of a request that goes through the ring.
    #[inline]
    #[must_use]
    pub fn request_bytes_max(&self) -> usize {
        self.config.peer.geometry.body_bytes_max()
    }

    // Commands

    /// Makes a call. Returns its name and the place for its body: `len_bytes` of private memory to be
    /// overwritten.
    ///
    /// # Errors
    ///
    /// [`CallRefused`]: nothing has changed.
    #[inline]
    pub fn call(
        &mut self,
        call: &Call,
        len_bytes: usize,
        now_ns: u64,
    ) -> Result<(CallId, &mut [u8]), CallRefused> {
        let max_bytes = self.request_bytes_max();
        if len_bytes > max_bytes {
            return Err(CallRefused::TooLong { len_bytes, max_bytes });
        }
        self.open_call(call, KIND_REQUEST, len_bytes, now_ns)
    }

    /// Makes a call whose body the peer fetches from `large`, which must stay until the call ends
    /// with a response, or the connection ends.
    ///
    /// # Errors
    ///
    /// [`CallRefused`]: nothing has changed.
    pub fn call_large(
        &mut self,
        call: &Call,
        large: Large,
        now_ns: u64,
    ) -> Result<CallId, CallRefused> {
        self.lendable(large)
            .map_err(|(len_bytes, max_bytes)| CallRefused::TooLong { len_bytes, max_bytes })?;
        let (id, body) = self.open_call(call, KIND_LARGE_REQUEST, LARGE_BYTES, now_ns)?;
        body.copy_from_slice(&large_bytes(large));
        Ok(id)
    }

    #[inline]
    fn open_call(
        &mut self,
        call: &Call,
        kind: u8,
        body_bytes: usize,
        now_ns: u64,
    ) -> Result<(CallId, &mut [u8]), CallRefused> {
        let own = self.config.own.geometry;
        let asked_bytes = call.response_bytes.min(own.body_bytes_max());
        let budget_lines = response_lines(asked_bytes)
            .filter(|lines| u32::from(*lines) <= own.response_lines())
            .ok_or_else(|| {
                let lines = u16::try_from(own.response_lines()).unwrap_or(u16::MAX);
                CallRefused::NoPlace { asked_bytes, max_bytes: response_bytes(lines) }
            })?;
        self.calls.admit(budget_lines)?;
        // The slot of this call may be that of one whose release waits: the peer must see that first.
        if !self.control.is_empty() && !self.push_control(now_ns) {
            self.counters.ring_full += 1;
            return Err(Busy::Ring.into());
        }
        let left_us = call.deadline_ns.saturating_sub(now_ns).div_ceil(1000);
        let timeout_us = u32::try_from(left_us).unwrap_or(u32::MAX);
        let fields = RequestFields { method: call.method, budget_lines, timeout_us };
        let mut request = Outgoing { kind, token: 0, request: Some(fields), body_bytes };
        let extent = self.outbox.admit(&request).inspect_err(|_| self.counters.ring_full += 1)?;
        let id = self.calls.open(call.cookie, budget_lines, call.deadline_ns);
        request.token = id.0;
        Ok((id, self.outbox.push_at(extent, &request, 0, now_ns)))
    }

    /// Gives a call up and tells the peer. Returns the cookie, unless the call has ended.
    pub fn cancel(&mut self, id: CallId) -> Option<u64> {
        let cookie = self.calls.abandon(id)?;
        self.control.push_back(Outgoing::control(KIND_CANCEL, id.0));
        Some(cookie)
    }

    /// Gives up the calls for whose cookies `is_unwanted` holds, and tells the peer. Says their cookies.
    /// It looks at every call.
    pub fn cancel_all(
        &mut self,
        is_unwanted: impl Fn(u64) -> bool,
        mut cancelled: impl FnMut(u64),
    ) {
        let Self { calls, control, .. } = self;
        calls.abandon_all(is_unwanted, |id, cookie| {
            control.push_back(Outgoing::control(KIND_CANCEL, id.0));
            cancelled(cookie);
        });
    }

    /// Answers a request. Returns the place for the response: `len_bytes` of private memory to be
    /// overwritten. The ring always has room for it (rule C4.1).
    ///
    /// # Errors
    ///
    /// [`ReplyError`]: nothing has changed.
    #[inline(always)]
    pub fn reply(
        &mut self,
        id: RequestId,
        status: Status,
        len_bytes: usize,
        now_ns: u64,
    ) -> Result<&mut [u8], ReplyError> {
        let ring_bytes_max = self.config.peer.geometry.body_bytes_max();
        let budget_lines = self.served.answer(id, len_bytes, ring_bytes_max)?;
        let kind = KIND_RESPONSE | status.code();
        let response = Outgoing { kind, token: id.0.0, request: None, body_bytes: len_bytes };
        Ok(self.outbox.push(&response, budget_lines, now_ns))
    }

    /// Answers a request with a body that the caller fetches from `large`, which must stay until
    /// [`Rare::Released`], or the connection ends.
    ///
    /// # Errors
    ///
    /// [`ReplyError`]: nothing has changed.
    pub fn reply_large(
        &mut self,
        id: RequestId,
        large: Large,
        now_ns: u64,
    ) -> Result<(), ReplyError> {
        self.lendable(large)
            .map_err(|(len_bytes, max_bytes)| ReplyError::TooLong { len_bytes, max_bytes })?;
        let budget_lines = self.served.lend(id).ok_or(ReplyError::NotThere)?;
        let response = Outgoing {
            kind: KIND_LARGE_RESPONSE,
            token: id.0.0,
            request: None,
            body_bytes: LARGE_BYTES,
        };
        self.outbox.push(&response, budget_lines, now_ns).copy_from_slice(&large_bytes(large));
        Ok(())
    }

    /// Whether the peer takes a body of this length by rendezvous (C6.2); else its length and the limit.
    fn lendable(&self, large: Large) -> Result<(), (usize, usize)> {
        let max_bytes = self.config.peer.large_bytes_max;
        let fits = (1..=max_bytes).contains(&large.len_bytes);
        if fits { Ok(()) } else { Err((large.len_bytes as usize, max_bytes as usize)) }
    }

    /// Longest answer to a request that goes through the ring; `None`: it was answered.
    pub fn response_bytes_max(&mut self, id: RequestId) -> Option<usize> {
        let ring_bytes_max = self.config.peer.geometry.body_bytes_max();
        self.served.budget_lines(id).map(|lines| response_bytes(lines).min(ring_bytes_max))
    }

    /// Whether the caller has given the request up, or it was answered.
    pub fn is_cancelled(&mut self, id: RequestId) -> bool {
        self.served.is_cancelled(id)
    }

    // Arrivals

    /// A WRITE WITH IMMEDIATE arrived whose immediate names a batch for this connection.
    ///
    /// # Errors
    ///
    /// [`Violation`].
    #[inline]
    pub fn arrive(&mut self, imm: Imm) -> Result<Arrival, Violation> {
        self.inbox.arrive(imm)
    }

    /// The batch, copied out of the ring: checks its header and takes its credit.
    ///
    /// # Errors
    ///
    /// [`Violation`].
    #[inline]
    pub fn open_batch<'a>(
        &mut self,
        copy: &'a [u8],
        now_ns: u64,
    ) -> Result<Messages<'a>, Violation> {
        let (header, messages) = Messages::open(copy)?;
        self.check_epoch(header.epoch.get())?;
        self.inbox.check_sequence(header.sequence.get())?;
        let credit = (header.consumed.get(), header.handled.get());
        let response_lines = self.outbox.credit_of_batch(credit, now_ns)?;
        self.served.credited(response_lines);
        self.counters.messages_in += u64::from(header.count.get());
        Ok(messages)
    }

    /// Takes an announcement back of which [`arrive`](Self::arrive) or
    /// [`open_batch`](Self::open_batch) said a violation that
    /// [is of the announcement](Violation::is_of_announcement): nothing has changed.
    pub fn disregard(&mut self) {
        self.inbox.disregard();
    }

    /// Takes the credit that the peer has returned: `words` is a copy of its words beside the ring. To be
    /// looked at while this side [is starved](Self::is_starved), and now and then while it
    /// [awaits credit](Self::awaits_credit).
    ///
    /// # Errors
    ///
    /// [`Violation`].
    pub fn credit(&mut self, words: [u8; CREDIT_BYTES], now_ns: u64) -> Result<(), Violation> {
        let words: CreditWords = zerocopy::transmute!(words);
        self.outbox.handled(words.handled.get(), now_ns)?;
        let response_lines = self.outbox.credit(words.consumed.get(), now_ns)?;
        self.served.credited(response_lines);
        Ok(())
    }

    #[inline]
    fn check_epoch(&self, found: u32) -> Result<(), Violation> {
        let expected = self.config.own.epoch;
        if found == expected { Ok(()) } else { Err(Violation::Epoch { found, expected }) }
    }

    /// Takes the next message of the open batch: a request is admitted and its response gets a place, a
    /// response ends its call.
    ///
    /// # Errors
    ///
    /// [`Violation`].
    #[inline(always)]
    pub fn message<'a>(&mut self, message: &Message<'a>) -> Result<Incoming<'a>, Violation> {
        let Message { kind, token, body, .. } = *message;
        match kind {
            KIND_REQUEST => {
                let id = self.admit(message)?;
                let method = message.method();
                let timeout_us = message.timeout_us();
                Ok(Incoming::Request { id, method, timeout_us, body })
            }
            KIND_RESPONSE.. => {
                let call = CallId(token);
                let Some(cookie) = self.calls.answered(kind, token, Some(body.len()))? else {
                    self.counters.late += 1;
                    return Ok(Incoming::Rare(Rare::Late(call)));
                };
                // A status that only a newer peer knows is still an answer.
                let status = Status::from_code(kind & !KIND_RESPONSE).unwrap_or(Status::Unknown);
                Ok(Incoming::Response { call, cookie, status, body })
            }
            _ => self.rare(message).map(Incoming::Rare),
        }
    }

    #[inline(always)]
    fn admit(&mut self, message: &Message<'_>) -> Result<RequestId, Violation> {
        let budget_lines = message.tail.budget_lines.get();
        self.served.admit(message.kind, message.token, budget_lines)
    }

    /// Large bodies, and what comes beside calls and answers.
    #[cold]
    fn rare(&mut self, message: &Message<'_>) -> Result<Rare, Violation> {
        let Message { kind, token, .. } = *message;
        let call = CallId(token);
        match kind {
            KIND_LARGE_REQUEST => {
                let large = self.check_large(message)?;
                let id = self.admit(message)?;
                let method = message.method();
                let timeout_us = message.timeout_us();
                Ok(Rare::LargeRequest { id, method, timeout_us, large })
            }
            KIND_LARGE_RESPONSE => {
                let large = self.check_large(message)?;
                if self.calls.answered(kind, token, None)?.is_some() {
                    return Ok(Rare::LargeResponse { call, large });
                }
                self.counters.late += 1;
                self.fetched(call);
                Ok(Rare::Late(call))
            }
            KIND_RELEASE if self.served.release(token) => Ok(Rare::Released(RequestId(call))),
            KIND_RELEASE => Err(Violation::Token { kind, token }),
            // A cancellation may cross the response.
            KIND_CANCEL if self.served.cancel(token) => Ok(Rare::Cancelled(RequestId(call))),
            KIND_CANCEL => Ok(Rare::Crossed),
            _ => Err(Violation::Kind(kind)),
        }
    }

    fn check_large(&self, message: &Message<'_>) -> Result<Large, Violation> {
        let max_bytes = self.config.own.large_bytes_max;
        let large = message.large()?;
        if large.len_bytes == 0 || large.len_bytes > max_bytes {
            let len_bytes = large.len_bytes;
            return Err(Violation::LargeLength { len_bytes, max_bytes });
        }
        Ok(large)
    }

    /// Keeps the lines of the open batch until [`end_lease`](Self::end_lease). `None`: no batch is
    /// open.
    pub fn hold(&mut self) -> Option<Lease> {
        self.inbox.hold()
    }

    /// Ends a lease. Leases end in any order.
    pub fn end_lease(&mut self, lease: Lease, now_ns: u64) {
        self.inbox.end_lease(lease);
        self.calls.consumed_to(self.inbox.consumed());
        self.note_credit(now_ns);
    }

    /// All messages of the open batch were handled: lines without a holder can be given back.
    #[inline]
    pub fn close_batch(&mut self, now_ns: u64) {
        let parsed = self.inbox.close();
        self.calls.close_batch(parsed, self.inbox.consumed());
        self.note_credit(now_ns);
    }

    #[inline]
    fn note_credit(&mut self, now_ns: u64) {
        if self.credit_since_ns.is_none() && self.inbox.has_news() {
            self.credit_since_ns = Some(now_ns);
        }
    }

    /// The cookie of a call whose large response is to be fetched, if the caller still waits.
    pub fn fetching(&mut self, call: CallId) -> Option<u64> {
        self.calls.fetching(call)
    }

    /// The large response of a call was fetched, or given up: the peer gets a release for it.
    /// Returns the cookie if the caller still waits.
    pub fn fetched(&mut self, call: CallId) -> Option<u64> {
        let cookie = self.calls.fetched(call);
        self.control.push_back(Outgoing::control(KIND_RELEASE, call.0));
        cookie
    }
}
