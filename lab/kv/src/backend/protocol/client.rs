//! The client thread's end.

use std::{net::SocketAddr, time::Duration};

use os::clock;
use protocols::{Answers, Call, CallError, Caller, Config, Status, Unsupported};
use verbs::Nic;

use super::{meeting, nap};
use crate::{
    backend::{
        BackendError, CallToken, Client, Counters, Event, JobSetup, Roster, SubmitError,
        found::Found, inbox::Inbox,
    },
    place::Shard,
};

/// A caller with a lane per shard.
pub struct ProtocolClient<N: Nic> {
    nic: N,
    caller: Caller<N>,
    /// Whether a lane has ended, by shard.
    is_lost: Vec<bool>,
    call: Call,
    message_bytes_max: usize,
    /// What a poll found that had nobody to tell.
    found: Inbox<Found>,
    /// Why lanes ended: at most one reason for each.
    losses: Vec<String>,
    waits: u64,
}

/// Passes on what a poll finds.
struct Listener<'a, F> {
    is_lost: &'a mut [bool],
    losses: &'a mut Vec<String>,
    tell: F,
}

impl<F: FnMut(Found, &[u8])> Answers for Listener<'_, F> {
    #[inline]
    fn answer(&mut self, cookie: u64, status: Status, body: &[u8]) {
        (self.tell)(Found::Ended(cookie, status), body);
    }

    fn closed(&mut self, lane: usize, reason: String) {
        if let Some(is_lost) = self.is_lost.get_mut(lane)
            && !std::mem::replace(is_lost, true)
        {
            self.losses.push(reason);
            (self.tell)(Found::Lost(lane), &[]);
        }
    }
}

impl<N: Nic> ProtocolClient<N> {
    pub(super) fn open(
        nic: N,
        config: &Config,
        shards: u16,
        setup: &JobSetup,
    ) -> Result<Self, BackendError> {
        let caller = Caller::open(nic.clone(), config, shards, clock::now_ns())
            .map_err(|cause| BackendError::new("cannot open a caller", cause))?;
        let call = Call {
            method: 0,
            cookie: 0,
            response_bytes: setup.message_bytes_max,
            timeout: Duration::from_nanos(setup.timeout_ns),
        };
        Ok(Self {
            nic,
            caller,
            is_lost: vec![false; shards.into()],
            call,
            message_bytes_max: setup.message_bytes_max,
            found: Inbox::default(),
            losses: Vec::new(),
            waits: 0,
        })
    }

    fn poll_into_inbox(&mut self) {
        let Self { caller, is_lost, found, losses, .. } = self;
        let tell = |event, bytes: &[u8]| found.push(event, bytes);
        caller.poll(clock::now_ns(), &mut Listener { is_lost, losses, tell });
    }
}

impl<N: Nic> Client for ProtocolClient<N> {
    fn join(&mut self, roster: &Roster, deadline_ns: u64) -> Result<(), BackendError> {
        let mut answers = Vec::new();
        for (greeting, contact) in self.caller.greetings().iter().zip(&roster.servers) {
            let address = contact.0.parse::<SocketAddr>();
            let address =
                address.map_err(|cause| BackendError::new("a contact makes no sense", cause))?;
            let answer = meeting::greet(address, greeting, deadline_ns);
            answers.push(answer.map_err(|cause| BackendError::new("cannot greet", cause))?);
        }
        self.caller
            .connect(&answers)
            .map_err(|cause| BackendError::new("cannot connect", cause))?;
        while !self.caller.is_connected() {
            self.poll_into_inbox();
            if let Some(reason) = self.losses.first() {
                return Err(BackendError::new("cannot connect", reason.as_str()));
            }
            if clock::now_ns() > deadline_ns {
                return Err(BackendError::new("cannot connect", "a server takes too long"));
            }
            nap(&self.nic, deadline_ns);
        }
        Ok(())
    }

    fn submit(&mut self, to: Shard, token: CallToken, request: &[u8]) -> Result<(), SubmitError> {
        let lane = usize::from(to.0);
        if self.is_lost.get(lane).is_none_or(|is_lost| *is_lost) {
            return Err(SubmitError::Gone(to));
        }
        let (len_bytes, max_bytes) = (request.len(), self.message_bytes_max);
        let too_large = SubmitError::TooLarge { len_bytes, max_bytes };
        if len_bytes > max_bytes {
            return Err(too_large);
        }
        let call = Call { cookie: token.0, ..self.call };
        self.caller.call(lane, &call, request).map_err(|error| match error {
            CallError::Busy => SubmitError::Full,
            CallError::Unsupported(Unsupported::Length { .. }) => too_large,
            CallError::Unsupported(_) | CallError::Gone(_) => SubmitError::Gone(to),
        })
    }

    /// One poll of the caller; it finds no more events than there are calls.
    fn poll(
        &mut self,
        _budget: usize,
        sink: &mut impl FnMut(Event<'_>),
    ) -> Result<usize, BackendError> {
        let mut count = 0;
        while let Some((found, bytes)) = self.found.pop() {
            sink(found.event(bytes));
            count += 1;
        }
        let tell = |found: Found, bytes: &[u8]| {
            sink(found.event(bytes));
            count += 1;
        };
        let Self { caller, is_lost, losses, .. } = self;
        caller.poll(clock::now_ns(), &mut Listener { is_lost, losses, tell });
        Ok(count)
    }

    fn wait(&mut self, deadline_ns: u64) -> Result<(), BackendError> {
        self.poll_into_inbox();
        if self.found.is_empty() {
            self.waits += 1;
            nap(&self.nic, deadline_ns);
        }
        Ok(())
    }

    fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        counters.count("client", "waits", self.waits);
        for (name, count) in self.caller.counts() {
            counters.count("client", name, count);
        }
        for reason in &self.losses {
            counters.count("client", &format!("lost: {reason}"), 1);
        }
        counters
    }
}
