//! What the two sides do with calls and answers.

use std::time::Instant;

use rpc::{Call, CloseReason, Handler, PeerId, Request, Status, Worker};
use verbs::Nic;

use super::WorkerCalls;
use crate::{
    error::Error,
    limit::{gib_per_second, per_second},
    sample::SamplePlan,
    stats::Laps,
};

/// Bytes of the word that numbers a call.
pub(super) const WORD_BYTES: usize = size_of::<u64>();
/// Of bodies that go one way, all bytes of so many are compared; of the others the word at each end.
const COMPARED_EVERY: u64 = 16;

/// The bytes of a body: 251 is prime, so no two lines are alike, nor two pages.
pub(super) fn pattern(len_bytes: usize) -> Vec<u8> {
    (0..=250_u8).cycle().take(len_bytes).collect()
}

pub(super) fn closed(reason: CloseReason) -> Error {
    Error::refused("a connection ended")(reason.to_string())
}

pub(super) fn wrong(index: u64, what: impl ToString) -> Error {
    Error::Call { index, what: what.to_string() }
}

/// Answers each request with its body, the first word inverted, or with that word alone.
pub(super) struct Server {
    /// What bodies that go one way are compared with.
    pattern: Option<Vec<u8>>,
    /// Bodies of other lengths are answered with themselves.
    is_mixed: bool,
    compared: u64,
    /// The first thing that went wrong.
    pub(super) failure: Option<Error>,
}

impl Server {
    pub(super) fn new(calls: &WorkerCalls) -> Self {
        let is_mixed = calls.tail_beside.is_some();
        let one_way_bytes = calls.tail_beside.or(calls.is_one_way.then_some(calls.len_bytes));
        let pattern = one_way_bytes.map(pattern);
        Self { pattern, is_mixed, compared: 0, failure: None }
    }

    /// Compares a body with what it should be, and says how much of it is the answer.
    #[inline]
    fn answer_bytes(&mut self, body: &[u8]) -> usize {
        let Some(pattern) = &self.pattern else { return body.len() };
        if self.is_mixed && body.len() != pattern.len() {
            return body.len();
        }
        self.compared += 1;
        let is_whole = self.compared.is_multiple_of(COMPARED_EVERY);
        let from =
            if is_whole { WORD_BYTES } else { pattern.len().max(2 * WORD_BYTES) - WORD_BYTES };
        if body.len() != pattern.len() || body.get(from..) != pattern.get(from..) {
            self.failure.get_or_insert(wrong(self.compared, "its body is wrong"));
        }
        WORD_BYTES
    }
}

impl<N: Nic> Handler<N> for Server {
    #[inline]
    fn request(&mut self, worker: &mut Worker<N>, request: Request<'_>) {
        let Request { token, body, .. } = request;
        let len_bytes = self.answer_bytes(body);
        let answer = |to: &mut [u8]| {
            to.copy_from_slice(&body[..len_bytes]);
            to.iter_mut().take(WORD_BYTES).for_each(|byte| *byte = !*byte);
        };
        if let Err(error) = worker.reply_with(token, Status::Ok, len_bytes, answer) {
            self.failure.get_or_insert(error.into());
        }
    }

    fn response(&mut self, _: &mut Worker<N>, index: u64, status: Status, _: &[u8]) {
        self.failure.get_or_insert(wrong(index, status));
    }

    fn closed(&mut self, _: &mut Worker<N>, _: PeerId, reason: CloseReason) {
        self.failure.get_or_insert(closed(reason));
    }
}

/// Keeps `depth` calls in flight until all were made.
pub(super) struct Client {
    calls: WorkerCalls,
    /// The high half of every body's first word.
    number: u64,
    peers: Vec<PeerId>,
    /// Calls made, answered, and to be made.
    made: u64,
    done: u64,
    total: u64,
    /// Calls before the clock starts, and per reading of it.
    untimed: u64,
    batch: u64,
    /// When the clock started, and the batches of round trips since.
    started: Option<(Instant, Laps)>,
    finished: Option<Instant>,
    pattern: Vec<u8>,
    pub(super) failure: Option<Error>,
}

impl Client {
    pub(super) fn new(calls: WorkerCalls, sample: &SamplePlan, peers: Vec<PeerId>) -> Self {
        let batch = sample.batch();
        let untimed = (sample.count / 8).max(u64::from(calls.depth)).next_multiple_of(batch);
        Self {
            number: sample.number,
            peers,
            made: 0,
            done: 0,
            total: untimed + sample.count,
            untimed,
            batch,
            started: None,
            finished: None,
            pattern: pattern(calls.len_bytes),
            failure: None,
            calls,
        }
    }

    /// Makes the first calls, spread over the endpoints.
    pub(super) fn begin<N: Nic>(&mut self, worker: &mut Worker<N>) {
        let endpoints = (0..self.peers.len()).cycle();
        for endpoint in endpoints.take(self.calls.depth.into()) {
            self.call(worker, endpoint);
        }
    }

    #[inline]
    pub(super) fn is_finished(&self) -> bool {
        self.finished.is_some()
    }

    /// Median batch of round trips in ns, millions of calls per second, or GiB/s.
    pub(super) fn value(&mut self, count: u64) -> f64 {
        let (Some((begin, laps)), Some(end)) = (self.started.take(), self.finished) else {
            return 0.0;
        };
        let elapsed = end - begin;
        match &self.calls {
            calls if calls.is_one_way => gib_per_second(count * calls.len_bytes as u64, elapsed),
            calls if calls.depth == 1 && !laps.is_empty() => laps.median_ns(),
            _ => per_second(count, elapsed) / 1e6,
        }
    }

    #[inline]
    fn call<N: Nic>(&mut self, worker: &mut Worker<N>, endpoint: usize) {
        if self.made == self.total {
            return;
        }
        let index = self.made;
        let call = Call {
            response_bytes: self.calls.answer_bytes(),
            cookie: index << 16 | endpoint as u64,
            ..Call::default()
        };
        let number = self.word(index);
        let fill = |to: &mut [u8]| {
            to.copy_from_slice(&self.pattern);
            to[..WORD_BYTES].copy_from_slice(&number.to_ne_bytes());
        };
        match worker.call_with(self.peers[endpoint], &call, self.pattern.len(), fill) {
            Ok(_) => self.made += 1,
            Err(error) => drop(self.failure.get_or_insert(error.into())),
        }
    }

    fn word(&self, index: u64) -> u64 {
        self.number << 32 | index
    }

    #[inline]
    fn check(&self, index: u64, status: Status, body: &[u8]) -> Result<(), Error> {
        let expected = &self.pattern[..self.calls.answer_bytes()];
        match body.split_first_chunk::<WORD_BYTES>() {
            _ if status != Status::Ok => Err(wrong(index, status)),
            Some((word, rest)) if body.len() == expected.len() => {
                if *word != (!self.word(index)).to_ne_bytes() {
                    Err(wrong(index, "its answer has another number"))
                } else if *rest != expected[WORD_BYTES..] {
                    Err(wrong(index, "its answer has other bytes"))
                } else {
                    Ok(())
                }
            }
            _ => Err(wrong(index, "its answer has another length")),
        }
    }

    #[inline]
    fn count(&mut self) {
        self.done += 1;
        if self.done == self.untimed {
            self.started = Some((Instant::now(), Laps::start()));
        } else if self.calls.depth == 1
            && self.done.is_multiple_of(self.batch)
            && let Some((_, laps)) = &mut self.started
        {
            laps.lap(self.batch);
        }
        if self.done == self.total {
            self.finished = Some(Instant::now());
        }
    }
}

impl<N: Nic> Handler<N> for Client {
    fn request(&mut self, _: &mut Worker<N>, request: Request<'_>) {
        drop(request); // the responder makes no calls; dropping a token answers it
    }

    #[inline]
    fn response(&mut self, worker: &mut Worker<N>, cookie: u64, status: Status, body: &[u8]) {
        let (index, endpoint) = (cookie >> 16, (cookie & 0xffff) as usize);
        if let Err(error) = self.check(index, status, body) {
            self.failure.get_or_insert(error);
            return;
        }
        self.count();
        self.call(worker, endpoint);
    }

    fn closed(&mut self, _: &mut Worker<N>, _: PeerId, reason: CloseReason) {
        self.failure.get_or_insert(closed(reason));
    }
}
