//! One message there, one message back.

use serde::{Deserialize, Serialize};
use verbs::{MemoryRegion as _, Nic, Op, Payload};

use super::{
    LinkKind, Verb,
    link::{self, LANDING_BYTES, Link, RECEIVES, SOURCE_OFFSET},
    one_way::immediate,
    payload::{self, Message, SMALL_BYTES, WORD_BYTES, check_small, small},
};
use crate::{
    error::Error,
    sample::{Ready, SamplePlan},
    shared_words::{Patience, SharedWords},
    stats::Laps,
};

/// A signaled request after so many, at the latest.
const SIGNAL_EVERY: u64 = 16;
/// Polls of memory between two polls of the completion queue.
const POLLS_PER_CQ_POLL: u32 = 64;
/// Smallest distance of two receive buffers.
const SLOT_BYTES_MIN: usize = 128;

/// Messages of `len_bytes` each way, one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundTrip {
    /// The queue pair.
    pub link: LinkKind,
    /// The operation: anything but READ.
    pub verb: Verb,
    /// A multiple of 8, from 8 to 16 MiB. Up to 32 the message is inline.
    pub len_bytes: usize,
}

/// The verbs, as numbers that the compiler knows: a program that measures one operation does not choose it anew for
/// each message.
const SEND: u8 = 0;
const WRITE_IMM: u8 = 1;
const WRITE: u8 = 2;

/// Makes a [`Talk`] of the shape's verb and length, and runs its method.
macro_rules! with_talk {
    ($shape:expr, $link:expr, $shared:expr, $sample:expr, $method:ident $(, $argument:expr)*) => {
        with_talk!(@verbs $shape, ($link, $shared, $sample, $method $(, $argument)*),
            [Verb::Send => SEND, Verb::WriteImm => WRITE_IMM, _ => WRITE])
    };
    (@verbs $shape:expr, $rest:tt, [$($verb:pat => $number:ident),*]) => {
        match ($shape.verb, $shape.len_bytes) {
            $(($verb, SMALL_BYTES) => with_talk!(@run $shape, $number, SMALL_BYTES, $rest),
            ($verb, _) => with_talk!(@run $shape, $number, ANY, $rest),)*
        }
    };
    (@run $shape:expr, $verb:ident, $len:ident, ($link:expr, $shared:expr, $sample:expr, $method:ident $(, $argument:expr)*)) => {
        Talk::<N, $verb, $len>::new($shape, $link, $shared, $sample)?.$method($($argument),*)
    };
}

impl RoundTrip {
    /// Median batch, in ns per round trip.
    pub(super) fn initiate<N: Nic>(
        self,
        link: &mut Link<N>,
        shared: &SharedWords,
        sample: &SamplePlan,
    ) -> Result<f64, Error> {
        with_talk!(self, link, shared, sample, initiate)
    }

    pub(super) fn respond<N: Nic>(
        self,
        link: &mut Link<N>,
        shared: &SharedWords,
        sample: &SamplePlan,
        ready: Ready<'_>,
    ) -> Result<(), Error> {
        with_talk!(self, link, shared, sample, respond, ready)
    }
}

/// Stands for a length that the compiler does not know.
const ANY: usize = usize::MAX;

/// One side of the conversation: both sides run the same code.
struct Talk<'a, N: Nic, const VERB: u8, const LEN_BYTES: usize> {
    /// That of the shape, which is `LEN_BYTES` or `ANY`.
    len_bytes: usize,
    link: &'a mut Link<N>,
    sample: &'a SamplePlan,
    patience: Patience<'a>,
    /// Receive buffers in use, reused in turn.
    slots: u64,
    /// A send that must be complete before its source may change or the conversation end.
    pending: Option<u16>,
}

impl<'a, N: Nic, const VERB: u8, const LEN_BYTES: usize> Talk<'a, N, VERB, LEN_BYTES> {
    fn new(
        shape: RoundTrip,
        link: &'a mut Link<N>,
        shared: &'a SharedWords,
        sample: &'a SamplePlan,
    ) -> Result<Self, Error> {
        let distance = (link.header_bytes() + shape.len_bytes).max(SLOT_BYTES_MIN);
        let slots = ((LANDING_BYTES / distance) as u64).min(u64::from(RECEIVES));
        let patience = shared.patience(link::PATIENCE);
        let len_bytes = shape.len_bytes;
        let mut talk = Self { len_bytes, link, sample, patience, slots, pending: None };
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
    fn initiate(mut self) -> Result<f64, Error> {
        let batch = self.sample.batch();
        let mut laps = Laps::start();
        for index in 0..self.sample.count {
            self.say(index)?;
            if let Some(heard) = index.checked_sub(1) {
                self.replenish(heard)?;
            }
            self.hear(index)?;
            if (index + 1).is_multiple_of(batch) {
                laps.lap(batch);
            }
        }
        self.end()?;
        Ok(laps.median_ns())
    }

    fn respond(mut self, ready: Ready<'_>) -> Result<(), Error> {
        ready()?;
        for index in 0..self.sample.count {
            self.hear(index)?;
            self.say(index)?;
            self.replenish(index)?;
        }
        self.end()
    }

    #[inline]
    fn say(&mut self, index: u64) -> Result<(), Error> {
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
    fn post(&mut self, payload: Payload<'_>, index: u64, signaled: bool) -> Result<u16, Error> {
        let remote = self.link.remote(0);
        let op = match VERB {
            SEND => Op::Send { payload, imm: None },
            WRITE_IMM => Op::Write { remote, payload, imm: Some(immediate(index)) },
            _ => Op::Write { remote, payload, imm: None },
        };
        self.link.post(op, signaled)
    }

    #[inline]
    fn hear(&mut self, index: u64) -> Result<(), Error> {
        let offset = match VERB {
            SEND => {
                self.receive(index, None)?;
                self.slot_offset(index) + self.link.header_bytes()
            }
            WRITE_IMM => {
                self.receive(index, Some(immediate(index)))?;
                0
            }
            _ => {
                self.watch(index)?;
                0
            }
        };
        self.check(index, offset)
    }

    /// Reuses the receive of message `index`, while the other side is at work.
    #[inline]
    fn replenish(&mut self, index: u64) -> Result<(), Error> {
        if index + self.slots < self.sample.count {
            self.post_receive(index + self.slots)?;
            self.link.ring_receives();
        }
        Ok(())
    }

    /// Waits for a completion. One of an own send may come first: it clears the source.
    #[inline]
    fn receive(&mut self, index: u64, imm: Option<u32>) -> Result<(), Error> {
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
    fn watch(&mut self, index: u64) -> Result<(), Error> {
        let (sequence, last_word) = (self.sample.sequence(index), self.len_bytes() - WORD_BYTES);
        let mut polls = 0;
        while self.link.region.load_u64(last_word) != sequence {
            polls += 1;
            if polls % POLLS_PER_CQ_POLL == 0 {
                match self.link.poll()? {
                    Some(link::Event::Sent(wqe)) => self.sent(wqe),
                    Some(link::Event::Received { .. }) => return Err(Error::Stray),
                    None => {}
                }
            }
            self.patience.wait()?;
        }
        self.patience.progress();
        Ok(())
    }

    #[inline]
    fn check(&mut self, index: u64, offset: usize) -> Result<(), Error> {
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
        link::check_word(index, u64::from_ne_bytes(last_word), stamp)
    }

    fn post_receive(&mut self, index: u64) -> Result<(), Error> {
        let len_bytes = self.link.header_bytes() + self.len_bytes();
        let buffer = match VERB {
            SEND => Some((self.slot_offset(index), len_bytes)),
            WRITE_IMM => None,
            _ => return Ok(()),
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

    fn end(&mut self) -> Result<(), Error> {
        match self.pending.take() {
            Some(wqe) => self.link.wait_sent(wqe, &mut self.patience),
            None => Ok(()),
        }
    }
}
