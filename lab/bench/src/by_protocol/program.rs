//! What the two sides do with calls and answers, whatever carries them.

use protocols::{Answers, Call, CallError, Caller, Replies, Request, Service, Status};
use verbs::Nic;

use super::ProtocolCalls;
use crate::{
    error::Error,
    limit::per_second,
    sample::SamplePlan,
    series::{Series, WORD_BYTES, wrong},
    shared_words::PATIENCE,
};

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
    series: Series,
    /// How many calls are timed.
    count: u64,
    /// Lanes with room for a call.
    free: Vec<u16>,
    pub(super) failure: Option<Error>,
}

impl Client {
    pub(super) fn new(calls: ProtocolCalls, sample: &SamplePlan) -> Self {
        let len_bytes = calls.len_bytes;
        Self {
            series: Series::new(sample, calls.depth, len_bytes, len_bytes),
            count: sample.count,
            free: (0..calls.depth).map(|nth| nth % calls.lanes.max(1)).collect(),
            failure: None,
            calls,
        }
    }

    #[inline]
    pub(super) fn is_finished(&self) -> bool {
        self.series.is_finished()
    }

    /// Makes a call on each lane that has room.
    #[inline]
    pub(super) fn call<N: Nic>(&mut self, caller: &mut Caller<N>) -> Result<(), Error> {
        while let Some(index) = self.series.next()
            && let Some(lane) = self.free.pop()
        {
            let call = Call {
                method: 1,
                cookie: index << 16 | u64::from(lane),
                response_bytes: self.calls.len_bytes,
                timeout: PATIENCE,
            };
            match caller.call(lane.into(), &call, self.series.body(index)) {
                Ok(()) => self.series.count_made(),
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
        match self.series.take_times() {
            None => 0.0,
            Some((_, Some(median_ns))) => median_ns,
            Some((elapsed, None)) if self.calls.depth == 1 => {
                elapsed.as_secs_f64() * 1e9 / self.count.max(1) as f64
            }
            Some((elapsed, None)) => per_second(self.count, elapsed) / 1e6,
        }
    }
}

impl Answers for Client {
    #[inline]
    fn answer(&mut self, cookie: u64, status: Status, body: &[u8]) {
        let (index, lane) = (cookie >> 16, cookie.to_le_bytes());
        if let Err(error) = self.series.check(index, status, body) {
            self.failure.get_or_insert(error);
            return;
        }
        self.free.push(u16::from_le_bytes([lane[0], lane[1]]));
        self.series.count_done();
    }

    fn closed(&mut self, _lane: usize, reason: String) {
        self.failure.get_or_insert(Error::refused("a connection ended")(reason));
    }
}
