//! What the two sides do with calls and answers.

use std::time::Instant;

use rpc::{Call, CloseReason, Handler, PeerId, Request, Status, Worker};
use verbs::Nic;

use crate::{
    traffic::BATCH,
    workers::{WorkerError, WorkerSample},
};

/// Bytes of the word that numbers a call.
const WORD_BYTES: usize = size_of::<u64>();

/// Answers each request with its body, the first word inverted.
#[derive(Debug, Default)]
pub(super) struct Server {
    /// The first thing that went wrong.
    pub(super) failure: Option<WorkerError>,
    pub(super) closed: Option<CloseReason>,
}

impl<N: Nic> Handler<N> for Server {
    #[inline]
    fn request(&mut self, worker: &mut Worker<N>, request: Request<'_>) {
        let Request { token, body, .. } = request;
        let answer = |to: &mut [u8]| {
            to.copy_from_slice(body);
            to.iter_mut().take(WORD_BYTES).for_each(|byte| *byte = !*byte);
        };
        if let Err(error) = worker.reply_with(token, Status::Ok, body.len(), answer) {
            self.failure.get_or_insert(error.into());
        }
    }

    fn response(&mut self, _: &mut Worker<N>, index: u64, status: Status, _: &[u8]) {
        self.failure.get_or_insert(WorkerError::Status { index, status });
    }

    fn closed(&mut self, _: &mut Worker<N>, _: PeerId, reason: CloseReason) {
        self.closed = Some(reason);
    }
}

/// Keeps `depth` calls in flight until all were made.
pub(super) struct Client {
    sample: WorkerSample,
    peers: Vec<PeerId>,
    /// WorkerCalls made, answered, and to be made.
    made: u64,
    done: u64,
    total: u64,
    /// WorkerCalls before the clock starts.
    untimed: u64,
    started: Option<Instant>,
    /// When the last batch of round trips ended, and ns per round trip of each.
    last: Option<Instant>,
    pub(super) round_trips: Vec<f64>,
    pub(super) finished: Option<Instant>,
    pattern: Vec<u8>,
    pub(super) failure: Option<WorkerError>,
}

impl Client {
    pub(super) fn new(sample: WorkerSample, peers: Vec<PeerId>) -> Self {
        let untimed = (sample.count / 8).max(u64::from(sample.calls.depth)).next_multiple_of(BATCH);
        // 251 is prime: no two lines are alike, nor two pages.
        let pattern = (0..=250_u8).cycle().take(sample.calls.len_bytes);
        Self {
            sample,
            peers,
            made: 0,
            done: 0,
            total: untimed + sample.count,
            untimed,
            started: None,
            last: None,
            round_trips: Vec::new(),
            finished: None,
            pattern: pattern.collect(),
            failure: None,
        }
    }

    /// Makes the first calls, spread over the endpoints.
    pub(super) fn begin<N: Nic>(&mut self, worker: &mut Worker<N>) {
        let endpoints = (0..self.peers.len()).cycle();
        for endpoint in endpoints.take(self.sample.calls.depth.into()) {
            self.call(worker, endpoint);
        }
    }

    pub(super) fn started(&self) -> Option<Instant> {
        self.started
    }

    #[inline]
    fn call<N: Nic>(&mut self, worker: &mut Worker<N>, endpoint: usize) {
        if self.made == self.total {
            return;
        }
        let index = self.made;
        let call = Call {
            response_bytes: self.sample.calls.len_bytes,
            cookie: index << 16 | endpoint as u64,
            ..Call::default()
        };
        let number = self.number(index);
        let fill = |to: &mut [u8]| {
            to.copy_from_slice(&self.pattern);
            to[..WORD_BYTES].copy_from_slice(&number.to_ne_bytes());
        };
        match worker.call_with(self.peers[endpoint], &call, self.pattern.len(), fill) {
            Ok(_) => self.made += 1,
            Err(error) => drop(self.failure.get_or_insert(error.into())),
        }
    }

    fn number(&self, index: u64) -> u64 {
        self.sample.number << 32 | index
    }

    #[inline]
    fn check(&self, index: u64, status: Status, body: &[u8]) -> Result<(), WorkerError> {
        let wrong = |what| Err(WorkerError::Wrong { index, what });
        if status != Status::Ok {
            return Err(WorkerError::Status { index, status });
        }
        if body.len() != self.pattern.len() {
            return wrong("its length");
        }
        let (word, rest) = body.split_at(WORD_BYTES);
        if *word != (!self.number(index)).to_ne_bytes() {
            return wrong("its number");
        }
        if *rest != self.pattern[WORD_BYTES..] {
            return wrong("its bytes");
        }
        Ok(())
    }

    #[inline]
    fn count(&mut self) {
        self.done += 1;
        if self.done == self.untimed {
            let now = Instant::now();
            (self.started, self.last) = (Some(now), Some(now));
        } else if self.sample.calls.depth == 1 && self.done.is_multiple_of(BATCH) {
            let now = Instant::now();
            if let Some(last) = self.last.replace(now).filter(|_| self.done > self.untimed) {
                self.round_trips.push((now - last).as_secs_f64() * 1e9 / BATCH as f64);
            }
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
        self.failure.get_or_insert(WorkerError::Closed(reason));
    }
}
