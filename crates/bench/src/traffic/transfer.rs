//! Large messages one way, a window of them in flight.
//!
//! Source and destination cycle over 1 MiB, like the copies they are compared with: message `i`
//! goes from slot `i % slots` to the same slot of the peer. Its last word is a sequence number, and
//! the source slot is stamped anew only when its previous message is complete.

use std::{collections::VecDeque, time::Instant};

use memory::sync::Ordering;
use serde::{Deserialize, Serialize};
use verbs::{MemoryRegion as _, Nic, Op, Payload};

use crate::{
    board::{Board, Patience, Word},
    duo::DuoError,
    limit::gib_per_second,
    traffic::{
        LinkKind, Sample, TrafficError,
        link::{self, Event, LANDING_BYTES, Link, RECEIVES, SOURCE_BYTES, SOURCE_OFFSET},
        payload::{self, Message, WORD_BYTES},
    },
};

/// Messages in flight, at most.
const WINDOW: u64 = 64;
/// Messages per doorbell, at most.
const BURST: u64 = 16;

/// The operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransferVerb {
    /// WRITE: the receiver's CPU takes no part.
    Write,
    /// READ: the sender's CPU takes no part.
    Read,
    /// SEND into receive buffers.
    Send,
}

/// Messages of `len_bytes` one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// The queue pair.
    pub link: LinkKind,
    /// The operation.
    pub verb: TransferVerb,
    /// A power of two from 8 to 1 MiB.
    pub len_bytes: usize,
}

impl Transfer {
    /// GiB/s from the first post to the last completion.
    pub(crate) fn initiate<N: Nic>(
        self,
        link: &mut Link<N>,
        board: &Board,
        sample: &Sample,
    ) -> Result<f64, TrafficError> {
        payload::fill(&link.region, SOURCE_OFFSET, SOURCE_BYTES, sample);
        let mut flow = Flow::new(self, link, board, sample);
        let begin = Instant::now();
        let mut posted = 0;
        while posted < sample.count {
            let burst = flow.burst().min(sample.count - posted);
            flow.wait_window(posted + burst)?;
            for index in posted..posted + burst {
                flow.post(index, index + 1 == posted + burst)?;
            }
            flow.link.ring_send();
            posted += burst;
        }
        flow.wait_complete(sample.count)?;
        Ok(gib_per_second(sample.count * self.len_bytes as u64, begin.elapsed()))
    }

    pub(crate) fn respond<N: Nic>(
        self,
        link: &mut Link<N>,
        board: &Board,
        sample: &Sample,
        ready: &mut dyn FnMut() -> Result<(), DuoError>,
    ) -> Result<(), TrafficError> {
        match self.verb {
            TransferVerb::Write => {}
            TransferVerb::Read => payload::fill(&link.region, SOURCE_OFFSET, SOURCE_BYTES, sample),
            TransferVerb::Send => return self.receive_all(link, board, sample, ready),
        }
        Ok(ready()?)
    }

    fn receive_all<N: Nic>(
        self,
        link: &mut Link<N>,
        board: &Board,
        sample: &Sample,
        ready: &mut dyn FnMut() -> Result<(), DuoError>,
    ) -> Result<(), TrafficError> {
        let received = board.word(Word::Received);
        let mut patience = board.patience(link::PATIENCE);
        let depth = self.receives();
        let post = |link: &mut Link<N>, index| {
            link.post_receive(Some((self.slot(index) * self.len_bytes, self.len_bytes)))
        };
        for index in 0..depth.min(sample.count) {
            post(link, index)?;
        }
        link.ring_receives();
        ready()?;
        let stride = (depth / 4).max(1);
        for index in 0..sample.count {
            let header = link.wait_received(&mut patience)?;
            link::check_header(index, header, (self.len_bytes, None))?;
            self.check_last_word(link, index, sample.sequence(index))?;
            if index + depth < sample.count {
                post(link, index + depth)?;
            }
            let consumed = index + 1;
            if consumed % stride == 0 || consumed == sample.count {
                link.ring_receives();
                // SYNC(consumed): pairs with the Acquire in `Flow::wait_window`.
                received.store(consumed, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Compares what READs brought.
    pub(crate) fn verify_initiator<N: Nic>(
        self,
        link: &Link<N>,
        sample: &Sample,
    ) -> Result<(), TrafficError> {
        if self.verb == TransferVerb::Read { self.verify(link, sample) } else { Ok(()) }
    }

    /// Compares what WRITEs or SENDs brought.
    pub(crate) fn verify_responder<N: Nic>(
        self,
        link: &Link<N>,
        sample: &Sample,
    ) -> Result<(), TrafficError> {
        if self.verb == TransferVerb::Read { Ok(()) } else { self.verify(link, sample) }
    }

    /// Compares every byte of the last message of every slot.
    fn verify<N: Nic>(self, link: &Link<N>, sample: &Sample) -> Result<(), TrafficError> {
        for index in sample.count.saturating_sub(self.slots())..sample.count {
            let offset = self.slot(index) * self.len_bytes;
            let stamp = (self.verb != TransferVerb::Read).then_some(sample.sequence(index));
            let message = Message { sample, index, pattern_offset: offset, stamp };
            payload::verify(&link.region, offset, self.len_bytes, &message)?;
        }
        Ok(())
    }

    fn check_last_word<N: Nic>(
        self,
        link: &Link<N>,
        index: u64,
        expected: u64,
    ) -> Result<(), TrafficError> {
        let found = link.region.load_u64((self.slot(index) + 1) * self.len_bytes - WORD_BYTES);
        if found == expected {
            Ok(())
        } else {
            Err(TrafficError::WrongMessage { index, what: "last word", found, expected })
        }
    }

    fn slots(self) -> u64 {
        (LANDING_BYTES / self.len_bytes) as u64
    }

    fn slot(self, index: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "below the number of slots")]
        let slot = (index % self.slots()) as usize;
        slot
    }

    /// Receive buffers posted at a time.
    fn receives(self) -> u64 {
        self.slots().min(u64::from(RECEIVES))
    }
}

/// The initiator's window.
struct Flow<'a, N: Nic> {
    shape: Transfer,
    link: &'a mut Link<N>,
    board: &'a Board,
    sample: &'a Sample,
    patience: Patience<'a>,
    /// Signaled requests in flight: their index in the queue, and the messages up to them.
    signaled: VecDeque<(u16, u64)>,
    /// Messages that are complete.
    complete: u64,
    /// Messages that the receiver has consumed, as far as known.
    consumed: u64,
}

impl<'a, N: Nic> Flow<'a, N> {
    fn new(shape: Transfer, link: &'a mut Link<N>, board: &'a Board, sample: &'a Sample) -> Self {
        let patience = board.patience(link::PATIENCE);
        let signaled = VecDeque::new();
        Self { shape, link, board, sample, patience, signaled, complete: 0, consumed: 0 }
    }

    fn window(&self) -> u64 {
        WINDOW.min(self.shape.slots())
    }

    fn burst(&self) -> u64 {
        BURST.min(self.window() / 2).max(1)
    }

    /// Waits until messages up to `posted` may be in flight.
    fn wait_window(&mut self, posted: u64) -> Result<(), TrafficError> {
        self.wait_complete(posted.saturating_sub(self.window()))?;
        while self.shape.verb == TransferVerb::Send
            && posted > self.consumed + self.shape.receives()
        {
            // SYNC(consumed): pairs with the Release in `receive_all`.
            let consumed = self.board.word(Word::Received).load(Ordering::Acquire);
            if consumed != self.consumed {
                self.patience.progress();
            }
            self.consumed = consumed;
            self.step()?;
        }
        Ok(())
    }

    fn wait_complete(&mut self, count: u64) -> Result<(), TrafficError> {
        while self.complete < count {
            self.step()?;
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), TrafficError> {
        match self.link.poll()? {
            Some(Event::Sent(wqe)) => self.sent(wqe),
            Some(Event::Received { .. }) => Err(TrafficError::Stray),
            None => Ok(self.patience.wait()?),
        }
    }

    fn sent(&mut self, wqe: u16) -> Result<(), TrafficError> {
        self.patience.progress();
        let complete = match self.signaled.front() {
            Some(&(index, complete)) if index == wqe => complete,
            _ => return Ok(()), // a signal of the queue's own: a later one says more
        };
        self.signaled.pop_front();
        if self.shape.verb == TransferVerb::Read {
            for index in self.complete..complete {
                let last_word = (self.shape.slot(index) + 1) * self.shape.len_bytes - WORD_BYTES;
                let expected = payload::word(self.sample.number, (last_word / WORD_BYTES) as u64);
                self.shape.check_last_word(self.link, index, expected)?;
            }
        }
        self.complete = complete;
        Ok(())
    }

    fn post(&mut self, index: u64, signaled: bool) -> Result<(), TrafficError> {
        let Transfer { len_bytes, verb, .. } = self.shape;
        let offset = self.shape.slot(index) * len_bytes;
        let wqe = if verb == TransferVerb::Read {
            self.link.region.write(offset + len_bytes - WORD_BYTES, &[0; WORD_BYTES]);
            let into = [self.link.region.sge(offset, len_bytes)];
            let remote = self.link.remote(SOURCE_OFFSET + offset);
            self.link.post(Op::Read { remote, into: &into }, signaled)?
        } else {
            let stamp = self.sample.sequence(index).to_ne_bytes();
            self.link.region.write(SOURCE_OFFSET + offset + len_bytes - WORD_BYTES, &stamp);
            let from = [self.link.region.sge(SOURCE_OFFSET + offset, len_bytes)];
            let (payload, imm) = (Payload::Gather(&from), None);
            let remote = self.link.remote(offset);
            let op = match verb {
                TransferVerb::Send => Op::Send { payload, imm },
                TransferVerb::Write | TransferVerb::Read => Op::Write { remote, payload, imm },
            };
            self.link.post(op, signaled)?
        };
        if signaled {
            self.signaled.push_back((wqe, index + 1));
        }
        Ok(())
    }
}
