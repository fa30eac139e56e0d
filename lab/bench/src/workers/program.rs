//! What the two sides do with calls and answers.

use rpc::{Body, Call, CallEnd, CloseReason, Handler, PeerId, Request, Status, Worker};
use verbs::Nic;

use super::WorkerCalls;
use crate::{
    error::Error,
    limit::{gib_per_second, per_second},
    sample::SamplePlan,
    series::{Series, WORD_BYTES, pattern, wrong},
};

/// Of bodies that go one way, all bytes of so many are compared; of the others the word at each end.
const COMPARED_EVERY: u64 = 16;

pub(super) fn closed(reason: CloseReason) -> Error {
    Error::refused("a connection ended")(reason.to_string())
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
    #[inline(always)]
    fn request(&mut self, worker: &mut Worker<N>, request: Request, body: Body<'_, N>) {
        let body = &*body.bytes();
        let Request { token, .. } = request;
        let len_bytes = self.answer_bytes(body);
        let answer = |to: &mut [u8]| {
            to.copy_from_slice(&body[..len_bytes]);
            to.iter_mut().take(WORD_BYTES).for_each(|byte| *byte = !*byte);
        };
        if let Err(error) = worker.reply_with(token, Status::Ok, len_bytes, answer) {
            self.failure.get_or_insert(error.into());
        }
    }

    #[inline(always)]
    fn ended(&mut self, _: &mut Worker<N>, index: u64, end: CallEnd<'_, N>) {
        self.failure.get_or_insert(wrong(index, end.status()));
    }

    fn closed(&mut self, _: &mut Worker<N>, _: PeerId, reason: CloseReason) {
        self.failure.get_or_insert(closed(reason));
    }
}

/// Keeps `depth` calls in flight until all were made.
pub(super) struct Client {
    calls: WorkerCalls,
    series: Series,
    peers: Vec<PeerId>,
    pub(super) failure: Option<Error>,
}

impl Client {
    pub(super) fn new(calls: WorkerCalls, sample: &SamplePlan, peers: Vec<PeerId>) -> Self {
        let series = Series::new(sample, calls.depth, calls.len_bytes, calls.answer_bytes());
        Self { series, peers, failure: None, calls }
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
        self.series.is_finished()
    }

    /// Median batch of round trips in ns, millions of calls per second, or GiB/s.
    pub(super) fn value(&mut self, count: u64) -> f64 {
        let Some((elapsed, median_ns)) = self.series.take_times() else { return 0.0 };
        match median_ns {
            _ if self.calls.is_one_way => {
                gib_per_second(count * self.calls.len_bytes as u64, elapsed)
            }
            Some(median_ns) => median_ns,
            None => per_second(count, elapsed) / 1e6,
        }
    }

    #[inline]
    fn call<N: Nic>(&mut self, worker: &mut Worker<N>, endpoint: usize) {
        let Some(index) = self.series.next() else { return };
        let call = Call {
            response_bytes: self.calls.answer_bytes(),
            cookie: index << 16 | endpoint as u64,
            ..Call::default()
        };
        let fill = |to: &mut [u8]| self.series.write_body(index, to);
        match worker.call_with(self.peers[endpoint], &call, self.series.body_bytes(), fill) {
            Ok(_) => self.series.count_made(),
            Err(error) => drop(self.failure.get_or_insert(error.into())),
        }
    }
}

impl<N: Nic> Handler<N> for Client {
    #[inline(always)]
    fn request(&mut self, _: &mut Worker<N>, request: Request, _: Body<'_, N>) {
        drop(request); // the responder makes no calls; dropping a token answers it
    }

    #[inline(always)]
    fn ended(&mut self, worker: &mut Worker<N>, cookie: u64, end: CallEnd<'_, N>) {
        let (index, endpoint) = (cookie >> 16, (cookie & 0xffff) as usize);
        if let Err(error) = self.series.check(index, end.status(), &end.bytes()) {
            self.failure.get_or_insert(error);
            return;
        }
        self.series.count_done();
        self.call(worker, endpoint);
    }

    fn closed(&mut self, _: &mut Worker<N>, _: PeerId, reason: CloseReason) {
        self.failure.get_or_insert(closed(reason));
    }
}
