//! One message there, one message back.

use core::marker::PhantomData;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use verbs::{MemoryRegion as _, Nic, Op, Payload};

use crate::{
    board::{Board, Patience},
    duo::DuoError,
    stats,
    traffic::{
        BATCH, LinkKind, Sample, TrafficError,
        link::{self, LANDING_BYTES, Link, RECEIVES, SOURCE_OFFSET},
        payload::{self, Message, SMALL_BYTES, WORD_BYTES, check_small, small},
        stream::immediate,
    },
};

/// A signaled request after so many, at the latest.
const SIGNAL_EVERY: u64 = 16;
/// Polls of memory between two polls of the completion queue.
const POLLS_PER_CQ_POLL: u32 = 64;
/// Smallest distance of two receive buffers.
const SLOT_BYTES_MIN: usize = 128;

/// How the message travels and how its arrival is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoundTripVerb {
    /// SEND; a completion tells.
    Send,
    /// WRITE with immediate; a completion tells.
    WriteImm,
    /// WRITE; the last word in memory tells.
    Write,
}

/// Messages of `len_bytes` each way, one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundTrip {
    /// The queue pair.
    pub link: LinkKind,
    /// The operation.
    pub verb: RoundTripVerb,
    /// A multiple of 8, from 8 to 1 MiB. Up to 32 the message is inline.
    pub len_bytes: usize,
}

/// A verb that the compiler knows: a program that measures one operation does not choose it anew for
/// each message.
trait Verb {
    const VERB: RoundTripVerb;
}

struct Sends;
struct WritesImm;
struct Writes;

impl Verb for Sends {
    const VERB: RoundTripVerb = RoundTripVerb::Send;
}

impl Verb for WritesImm {
    const VERB: RoundTripVerb = RoundTripVerb::WriteImm;
}

impl Verb for Writes {
    const VERB: RoundTripVerb = RoundTripVerb::Write;
}

impl RoundTrip {
    /// Median batch, in ns per round trip.
    pub(crate) fn initiate<N: Nic>(
        self,
        link: &mut Link<N>,
        board: &Board,
        sample: &Sample,
    ) -> Result<f64, TrafficError> {
        match self.verb {
            RoundTripVerb::Send => self.initiate_by::<N, Sends>(link, board, sample),
            RoundTripVerb::WriteImm => self.initiate_by::<N, WritesImm>(link, board, sample),
            RoundTripVerb::Write => self.initiate_by::<N, Writes>(link, board, sample),
        }
    }

    fn initiate_by<N: Nic, V: Verb>(
        self,
        link: &mut Link<N>,
        board: &Board,
        sample: &Sample,
    ) -> Result<f64, TrafficError> {
        match self.len_bytes {
            SMALL_BYTES => Talk::<N, V, SMALL_BYTES>::new(self, link, board, sample)?.initiate(),
            _ => Talk::<N, V, ANY>::new(self, link, board, sample)?.initiate(),
        }
    }

    pub(crate) fn respond<N: Nic>(
        self,
        link: &mut Link<N>,
        board: &Board,
        sample: &Sample,
        ready: &mut dyn FnMut() -> Result<(), DuoError>,
    ) -> Result<(), TrafficError> {
        match self.verb {
            RoundTripVerb::Send => self.respond_by::<N, Sends>(link, board, sample, ready),
            RoundTripVerb::WriteImm => self.respond_by::<N, WritesImm>(link, board, sample, ready),
            RoundTripVerb::Write => self.respond_by::<N, Writes>(link, board, sample, ready),
        }
    }

    fn respond_by<N: Nic, V: Verb>(
        self,
        link: &mut Link<N>,
        board: &Board,
        sample: &Sample,
        ready: &mut dyn FnMut() -> Result<(), DuoError>,
    ) -> Result<(), TrafficError> {
        match self.len_bytes {
            SMALL_BYTES => {
                Talk::<N, V, SMALL_BYTES>::new(self, link, board, sample)?.respond(ready)
            }
            _ => Talk::<N, V, ANY>::new(self, link, board, sample)?.respond(ready),
        }
    }
}

/// Stands for a length that the compiler does not know.
const ANY: usize = usize::MAX;

/// One side of the conversation: both sides run the same code.
struct Talk<'a, N: Nic, V, const LEN_BYTES: usize> {
    /// That of the shape, which is `LEN_BYTES` or `ANY`.
    len_bytes: usize,
    link: &'a mut Link<N>,
    sample: &'a Sample,
    patience: Patience<'a>,
    /// Receive buffers in use, reused in turn.
    slots: u64,
    /// A send that must be complete before its source may change or the conversation end.
    pending: Option<u16>,
    verb: PhantomData<V>,
}

impl<'a, N: Nic, V: Verb, const LEN_BYTES: usize> Talk<'a, N, V, LEN_BYTES> {
    fn new(
        shape: RoundTrip,
        link: &'a mut Link<N>,
        board: &'a Board,
        sample: &'a Sample,
    ) -> Result<Self, TrafficError> {
        let distance = (link.header_bytes() + shape.len_bytes).max(SLOT_BYTES_MIN);
        let slots = ((LANDING_BYTES / distance) as u64).min(u64::from(RECEIVES));
        let patience = board.patience(link::PATIENCE);
        let len_bytes = shape.len_bytes;
        let mut talk =
            Self { len_bytes, link, sample, patience, slots, pending: None, verb: PhantomData };
        if !talk.is_inline() {
            payload::fill(&talk.link.region, SOURCE_OFFSET, len_bytes, sample);
        }
        for index in 0..slots.min(sample.count) {
            talk.post_receive(index)?;
        }
        talk.link.ring_receives();
        Ok(talk)
    }

    #[inline(always)]
    fn len_bytes(&self) -> usize {
        if LEN_BYTES == ANY { self.len_bytes } else { LEN_BYTES }
    }

    #[inline(always)]
    fn is_inline(&self) -> bool {
        self.len_bytes() <= SMALL_BYTES
    }

    /// Median batch, in ns per round trip.
    fn initiate(mut self) -> Result<f64, TrafficError> {
        let mut batches = Vec::new();
        let mut last = Instant::now();
        for index in 0..self.sample.count {
            self.say(index)?;
            if let Some(heard) = index.checked_sub(1) {
                self.replenish(heard)?;
            }
            self.hear(index)?;
            if index % BATCH == BATCH - 1 {
                let now = Instant::now();
                batches.push((now - last).as_secs_f64() * 1e9 / BATCH as f64);
                last = now;
            }
        }
        self.end()?;
        Ok(stats::median(&mut batches))
    }

    fn respond(
        mut self,
        ready: &mut dyn FnMut() -> Result<(), DuoError>,
    ) -> Result<(), TrafficError> {
        ready()?;
        for index in 0..self.sample.count {
            self.hear(index)?;
            self.say(index)?;
            self.replenish(index)?;
        }
        self.end()
    }

    #[inline]
    fn say(&mut self, index: u64) -> Result<(), TrafficError> {
        let len_bytes = self.len_bytes();
        if self.is_inline() {
            let message = small(self.sample, index);
            let bytes = [&message[SMALL_BYTES - len_bytes..]];
            let is_last = index + 1 == self.sample.count;
            let signaled = is_last || index.is_multiple_of(SIGNAL_EVERY);
            self.link.wait_room(1, &mut self.patience)?;
            let wqe = self.post(Payload::Inline(&bytes), index, signaled)?;
            self.pending = is_last.then_some(wqe);
        } else {
            if let Some(wqe) = self.pending.take() {
                self.link.wait_sent(wqe, &mut self.patience)?;
            }
            let stamp = self.sample.sequence(index).to_ne_bytes();
            self.link.region.write(SOURCE_OFFSET + len_bytes - WORD_BYTES, &stamp);
            let gather = [self.link.region.sge(SOURCE_OFFSET, len_bytes)];
            self.pending = Some(self.post(Payload::Gather(&gather), index, true)?);
        }
        self.link.ring_send();
        Ok(())
    }

    #[inline]
    fn post(
        &mut self,
        payload: Payload<'_>,
        index: u64,
        signaled: bool,
    ) -> Result<u16, TrafficError> {
        let remote = self.link.remote(0);
        let op = match V::VERB {
            RoundTripVerb::Send => Op::Send { payload, imm: None },
            RoundTripVerb::WriteImm => Op::Write { remote, payload, imm: Some(immediate(index)) },
            RoundTripVerb::Write => Op::Write { remote, payload, imm: None },
        };
        self.link.post(op, signaled)
    }

    #[inline]
    fn hear(&mut self, index: u64) -> Result<(), TrafficError> {
        let offset = match V::VERB {
            RoundTripVerb::Send => {
                self.receive(index, None)?;
                self.slot_offset(index) + self.link.header_bytes()
            }
            RoundTripVerb::WriteImm => {
                self.receive(index, Some(immediate(index)))?;
                0
            }
            RoundTripVerb::Write => {
                self.watch(index)?;
                0
            }
        };
        self.check(index, offset)
    }

    /// Reuses the receive of message `index`, while the other side is at work.
    #[inline]
    fn replenish(&mut self, index: u64) -> Result<(), TrafficError> {
        if index + self.slots < self.sample.count {
            self.post_receive(index + self.slots)?;
            self.link.ring_receives();
        }
        Ok(())
    }

    /// Waits for a completion. One of an own send may come first: it clears the source.
    #[inline]
    fn receive(&mut self, index: u64, imm: Option<u32>) -> Result<(), TrafficError> {
        loop {
            let event = match self.link.poll_received()? {
                None if self.pending.is_some() => self.link.poll_sent()?,
                event => event,
            };
            match event {
                Some(link::Event::Received { len_bytes, imm: found }) => {
                    self.patience.progress();
                    let expected = (self.len_bytes(), imm);
                    return link::check_header(index, (len_bytes, found), expected);
                }
                Some(link::Event::Sent(wqe)) => self.sent(wqe),
                None => self.patience.pause()?,
            }
        }
    }

    #[inline]
    fn sent(&mut self, wqe: u16) {
        if self.pending == Some(wqe) {
            self.pending = None;
        }
    }

    /// Waits until the last word of the landing area is that of message `index`.
    #[inline]
    fn watch(&mut self, index: u64) -> Result<(), TrafficError> {
        let (sequence, last_word) = (self.sample.sequence(index), self.len_bytes() - WORD_BYTES);
        let mut polls = 0;
        while self.link.region.load_u64(last_word) != sequence {
            polls += 1;
            if polls % POLLS_PER_CQ_POLL == 0 {
                match self.link.poll()? {
                    Some(link::Event::Sent(wqe)) => self.sent(wqe),
                    Some(link::Event::Received { .. }) => return Err(TrafficError::Stray),
                    None => {}
                }
            }
            self.patience.wait()?;
        }
        self.patience.progress();
        Ok(())
    }

    #[inline]
    fn check(&mut self, index: u64, offset: usize) -> Result<(), TrafficError> {
        let len_bytes = self.len_bytes();
        if self.is_inline() {
            let mut message = [0; SMALL_BYTES];
            let message = &mut message[..len_bytes];
            self.link.region.read(offset, message);
            return check_small(self.sample, index, message);
        }
        let stamp = self.sample.sequence(index);
        if index + 1 == self.sample.count {
            let message =
                Message { sample: self.sample, index, pattern_offset: 0, stamp: Some(stamp) };
            return payload::verify(&self.link.region, offset, len_bytes, &message);
        }
        let mut last_word = [0; WORD_BYTES];
        self.link.region.read(offset + len_bytes - WORD_BYTES, &mut last_word);
        let (found, expected) = (u64::from_ne_bytes(last_word), stamp);
        if found == expected {
            Ok(())
        } else {
            Err(TrafficError::WrongMessage { index, what: "last word", found, expected })
        }
    }

    fn post_receive(&mut self, index: u64) -> Result<(), TrafficError> {
        let len_bytes = self.link.header_bytes() + self.len_bytes();
        let buffer = match V::VERB {
            RoundTripVerb::Send => Some((self.slot_offset(index), len_bytes)),
            RoundTripVerb::WriteImm => None,
            RoundTripVerb::Write => return Ok(()),
        };
        Ok(self.link.post_receive(buffer)?)
    }

    #[inline]
    fn slot_offset(&self, index: u64) -> usize {
        let distance = (self.link.header_bytes() + self.len_bytes()).max(SLOT_BYTES_MIN);
        #[expect(clippy::cast_possible_truncation, reason = "below the number of slots")]
        let slot = (index % self.slots) as usize;
        slot * distance
    }

    fn end(&mut self) -> Result<(), TrafficError> {
        match self.pending.take() {
            Some(wqe) => self.link.wait_sent(wqe, &mut self.patience),
            None => Ok(()),
        }
    }
}
