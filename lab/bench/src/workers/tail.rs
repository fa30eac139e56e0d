//! The slowest calls of one endpoint while another one is given long bodies.

use std::time::Instant;

use rpc::{Body, Call, CallEnd, CloseReason, Handler, PeerId, Request, Status, Worker};
use verbs::Nic;

use super::program::closed;
use crate::series::{WORD_BYTES, pattern, wrong};
use crate::{error::Error, sample::SamplePlan};

/// Long bodies in flight.
const STREAM_DEPTH: usize = 4;
/// Cookies of their calls begin here.
const STREAM_COOKIE: u64 = 1 << 32;
/// The slowest of so many calls is the number.
const OF: usize = 100;

/// Makes one call after the other over the first endpoint and times each. Meanwhile long bodies go over the
/// second one all the time, if they have a length.
pub(super) struct Client {
    peers: Vec<PeerId>,
    body: Vec<u8>,
    stream: Vec<u8>,
    /// Calls before the clock counts.
    untimed: usize,
    total: usize,
    number: u64,
    done: usize,
    begun: Instant,
    times_ns: Vec<u64>,
    pub(super) failure: Option<Error>,
}

impl Client {
    pub(super) fn new(
        len_bytes: usize,
        stream_bytes: usize,
        sample: &SamplePlan,
        peers: Vec<PeerId>,
    ) -> Self {
        let count = usize::try_from(sample.count).unwrap_or(usize::MAX);
        let untimed = count / 8 + 1;
        Self {
            peers,
            body: pattern(len_bytes),
            stream: pattern(stream_bytes),
            untimed,
            total: count.saturating_add(untimed),
            number: sample.number,
            done: 0,
            begun: Instant::now(),
            times_ns: Vec::with_capacity(count.min(1 << 24)),
            failure: None,
        }
    }

    pub(super) fn begin<N: Nic>(&mut self, worker: &mut Worker<N>) {
        if !self.stream.is_empty() {
            (0..STREAM_DEPTH).for_each(|_| self.send_long(worker));
        }
        self.call(worker);
    }

    pub(super) fn is_finished(&self) -> bool {
        self.done >= self.total
    }

    /// Time in ns that all but a hundredth of the calls stayed below.
    pub(super) fn value(&mut self, _count: u64) -> f64 {
        self.times_ns.sort_unstable();
        let index = self.times_ns.len().saturating_sub(1 + self.times_ns.len() / OF);
        self.times_ns.get(index).map_or(0.0, |time_ns| *time_ns as f64)
    }

    fn call<N: Nic>(&mut self, worker: &mut Worker<N>) {
        let word = self.number << 32 | self.done as u64;
        self.body[..WORD_BYTES].copy_from_slice(&word.to_ne_bytes());
        let call =
            Call { response_bytes: self.body.len(), cookie: self.done as u64, ..Call::default() };
        self.begun = Instant::now();
        if let Err(error) = worker.call(self.peers[0], &call, &self.body) {
            self.failure.get_or_insert(error.into());
        }
    }

    fn send_long<N: Nic>(&mut self, worker: &mut Worker<N>) {
        let call = Call { response_bytes: WORD_BYTES, cookie: STREAM_COOKIE, ..Call::default() };
        let (to, body) = (self.peers[1 % self.peers.len()], &self.stream);
        if let Err(error) = worker.call(to, &call, body) {
            self.failure.get_or_insert(error.into());
        }
    }

    /// A call of the first endpoint was answered.
    fn check(&self, index: u64, body: &[u8]) -> Result<(), Error> {
        let word = !(self.number << 32 | self.done as u64);
        if body.get(..WORD_BYTES) == Some(&word.to_ne_bytes())
            && body.get(WORD_BYTES..) == self.body.get(WORD_BYTES..)
        {
            Ok(())
        } else {
            Err(wrong(index, "its answer is wrong"))
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
        let status = end.status();
        if status != Status::Ok {
            self.failure.get_or_insert(wrong(cookie, status));
        } else if cookie >= STREAM_COOKIE {
            if !self.is_finished() {
                self.send_long(worker);
            }
        } else {
            let time_ns = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
            if let Err(error) = self.check(cookie, &end.bytes()) {
                self.failure.get_or_insert(error);
                return;
            }
            self.done += 1;
            if self.done > self.untimed {
                self.times_ns.push(time_ns);
            }
            if !self.is_finished() {
                self.call(worker);
            }
        }
    }

    fn closed(&mut self, _: &mut Worker<N>, _: PeerId, reason: CloseReason) {
        self.failure.get_or_insert(closed(reason));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_what_all_but_a_hundredth_stay_below() {
        let sample = SamplePlan { count: 1000, number: 1, ..SamplePlan::default() };
        let mut client = Client::new(56, 0, &sample, Vec::new());
        assert!(client.value(1000) == 0.0);
        client.times_ns = (1..=1000).rev().collect();
        assert!(client.value(1000) == 990.0);
        client.times_ns = vec![7];
        assert!(client.value(1000) == 7.0);
    }
}
