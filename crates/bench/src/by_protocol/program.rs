//! What the two sides do with calls and answers, whatever carries them.

use std::time::Instant;

use protocols::{Answers, Call, CallError, Caller, Replies, Request, Service, Status};
use verbs::Nic;

use super::{ProtocolCalls, TIMEOUT};
use crate::{error::Error, limit::per_second, sample::SamplePlan, stats::Laps};

/// Bytes of the word that numbers a call.
const WORD_BYTES: usize = size_of::<u64>();

fn wrong(index: u64, what: impl ToString) -> Error {
    Error::Call { index, what: what.to_string() }
}

/// Answers each request with its body, the first word inverted.
#[derive(Default)]
pub(super) struct Echo {
    answer: Vec<u8>,
    served: u64,
    /// The first thing that went wrong.
    pub(super) failure: Option<Error>,
}

impl<N: Nic> Service<N> for Echo {
    #[inline]
    fn request(&mut self, replies: &mut Replies<'_, N>, request: Request<'_>) {
        let Request { token, body, .. } = request;
        self.served += 1;
        self.answer.clear();
        self.answer.extend_from_slice(body);
        self.answer.iter_mut().take(WORD_BYTES).for_each(|byte| *byte = !*byte);
        if let Err(error) = replies.reply(token, Status::Ok, &self.answer) {
            self.failure.get_or_insert(wrong(self.served, error));
        }
    }
}

/// Keeps `depth` calls in flight until all were made.
pub(super) struct Client {
    calls: ProtocolCalls,
    /// The high half of every body's first word.
    number: u64,
    /// Calls made, answered, and to be made.
    made: u64,
    done: u64,
    total: u64,
    /// Calls before the clock starts, and per reading of it.
    untimed: u64,
    batch: u64,
    count: u64,
    /// Lanes with room for a call.
    free: Vec<u16>,
    /// When the clock started, and the batches of round trips since.
    started: Option<(Instant, Laps)>,
    pub(super) finished: Option<Instant>,
    /// Every body but its first word. 251 is prime, so no two lines are alike.
    body: Vec<u8>,
    pub(super) failure: Option<Error>,
}

impl Client {
    pub(super) fn new(calls: ProtocolCalls, sample: &SamplePlan) -> Self {
        let batch = sample.batch();
        let untimed = (sample.count / 8).max(u64::from(calls.depth)).next_multiple_of(batch);
        Self {
            number: sample.number,
            made: 0,
            done: 0,
            total: untimed + sample.count,
            untimed,
            batch,
            count: sample.count,
            free: (0..calls.depth).map(|nth| nth % calls.lanes.max(1)).collect(),
            started: None,
            finished: None,
            body: (0..=250_u8).cycle().take(calls.len_bytes).collect(),
            failure: None,
            calls,
        }
    }

    /// Makes a call on each lane that has room.
    #[inline]
    pub(super) fn call<N: Nic>(&mut self, caller: &mut Caller<N>) -> Result<(), Error> {
        while self.made < self.total
            && let Some(lane) = self.free.pop()
        {
            let index = self.made;
            let word = self.number << 32 | index;
            self.body[..WORD_BYTES].copy_from_slice(&word.to_ne_bytes());
            let call = Call {
                method: 1,
                cookie: index << 16 | u64::from(lane),
                response_bytes: self.calls.len_bytes,
                timeout: TIMEOUT,
            };
            match caller.call(lane.into(), &call, &self.body) {
                Ok(()) => self.made += 1,
                Err(CallError::Busy) => {
                    self.free.push(lane);
                    return Ok(());
                }
                Err(error) => return Err(wrong(index, error)),
            }
        }
        Ok(())
    }

    /// Median batch of round trips in ns, or millions of calls per second.
    pub(super) fn value(&mut self) -> f64 {
        let (Some((begin, laps)), Some(end)) = (self.started.take(), self.finished) else {
            return 0.0;
        };
        match self.calls.depth {
            1 if !laps.is_empty() => laps.median_ns(),
            1 => (end - begin).as_secs_f64() * 1e9 / self.count.max(1) as f64,
            _ => per_second(self.count, end - begin) / 1e6,
        }
    }

    #[inline]
    fn check(&self, index: u64, status: Status, body: &[u8]) -> Result<(), Error> {
        let word = self.number << 32 | index;
        match body.split_first_chunk::<WORD_BYTES>() {
            _ if status != Status::Ok => Err(wrong(index, status)),
            Some((found, rest)) if body.len() == self.body.len() => {
                if *found != (!word).to_ne_bytes() {
                    Err(wrong(index, "its answer has another number"))
                } else if *rest != self.body[WORD_BYTES..] {
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

impl Answers for Client {
    #[inline]
    fn answer(&mut self, cookie: u64, status: Status, body: &[u8]) {
        let (index, lane) = (cookie >> 16, cookie.to_le_bytes());
        if let Err(error) = self.check(index, status, body) {
            self.failure.get_or_insert(error);
            return;
        }
        self.free.push(u16::from_le_bytes([lane[0], lane[1]]));
        self.count();
    }

    fn closed(&mut self, _lane: usize, reason: String) {
        self.failure.get_or_insert(Error::refused("a connection ended")(reason));
    }
}
