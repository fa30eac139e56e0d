//! Messages one way, a window of them in flight: as many small ones per second as possible, or as many bytes.
//!
//! Source and destination cycle over 1 MiB, or one longer message, like the copies they are compared with: message
//! `i` goes from slot `i % slots` to the same slot of the peer. Small messages are inline. A large one ends with its
//! sequence number, and its source slot is stamped anew only when its previous message is complete.
//!
//! A receiver that consumes receives tells how many messages it has consumed by a word in shared memory, so that no
//! message ever finds the receive queue empty: that would measure retry timers.

use std::{collections::VecDeque, time::Instant};

use memory::sync::Ordering;
use serde::{Deserialize, Serialize};
use verbs::{MemoryRegion as _, Nic, Op, Payload};

use super::{
    LinkKind, Verb,
    link::{self, CYCLE_BYTES, Event, LANDING_BYTES, Link, RECEIVES, SENDS, SOURCE_OFFSET},
    payload::{self, Message, SMALL_BYTES, WORD_BYTES, check_small, small},
};
use crate::{
    error::Error,
    limit::{gib_per_second, per_second},
    sample::{Ready, SamplePlan},
    shared_words::{Patience, SharedWord, SharedWords},
};

/// Bytes of a slot for a small message: it fits with a datagram's header.
const SMALL_SLOT_BYTES: usize = 128;
/// Large messages in flight, at most.
const WINDOW: u64 = 64;
/// Messages between two updates of the receiver's count, at most.
const STRIDE: u64 = 32;

/// Messages of `len_bytes` one way. Those of 32 bytes are small: inline, and counted per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OneWay {
    /// The queue pair.
    pub link: LinkKind,
    /// The operation. Small ones: SEND or WRITE with immediate; large ones: all but that.
    pub verb: Verb,
    /// A multiple of 8 up to 16 MiB.
    pub len_bytes: usize,
    /// Messages per doorbell, at most. One lets the NIC use BlueFlame.
    pub batch: u16,
}

/// Runs a method of [`Flow`] whose verb and kind of message the compiler knows: a program that measures one
/// operation does not choose it anew for each message.
macro_rules! with_flow {
    ($shape:expr, $link:expr, $shared:expr, $sample:expr, $method:ident $(, $argument:expr)*) => {
        match ($shape.is_small(), $shape.verb) {
            (true, Verb::Send) => {
                Flow::<N, true, true>::new($shape, $link, $shared, $sample).$method($($argument),*)
            }
            (true, _) => {
                Flow::<N, true, false>::new($shape, $link, $shared, $sample).$method($($argument),*)
            }
            (false, Verb::Send) => {
                Flow::<N, false, true>::new($shape, $link, $shared, $sample).$method($($argument),*)
            }
            (false, _) => {
                Flow::<N, false, false>::new($shape, $link, $shared, $sample).$method($($argument),*)
            }
        }
    };
}

impl OneWay {
    /// M messages/s of small ones, else GiB/s: from the first post until all are complete and consumed.
    pub(super) fn initiate<N: Nic>(
        self,
        link: &mut Link<N>,
        shared: &SharedWords,
        sample: &SamplePlan,
    ) -> Result<f64, Error> {
        if !self.is_small() {
            payload::fill(&link.region, SOURCE_OFFSET, self.cycle_bytes(), sample);
        }
        let begin = Instant::now();
        with_flow!(self, link, shared, sample, send)?;
        Ok(if self.is_small() {
            per_second(sample.count, begin.elapsed()) / 1e6
        } else {
            gib_per_second(sample.count * self.len_bytes as u64, begin.elapsed())
        })
    }

    pub(super) fn respond<N: Nic>(
        self,
        link: &mut Link<N>,
        shared: &SharedWords,
        sample: &SamplePlan,
        ready: Ready<'_>,
    ) -> Result<(), Error> {
        match self.verb {
            Verb::Read => payload::fill(&link.region, SOURCE_OFFSET, self.cycle_bytes(), sample),
            Verb::Write => {}
            Verb::Send | Verb::WriteImm => {
                return with_flow!(self, link, shared, sample, receive, ready);
            }
        }
        ready()
    }

    /// Compares every byte of the last message of every slot, on the side where they are.
    pub(super) fn verify<N: Nic>(
        self,
        link: &Link<N>,
        sample: &SamplePlan,
        is_initiator: bool,
    ) -> Result<(), Error> {
        if self.is_small() || (self.verb == Verb::Read) != is_initiator {
            return Ok(());
        }
        for index in sample.count.saturating_sub(self.slots())..sample.count {
            let offset = self.slot(index) * self.len_bytes;
            let stamp = (self.verb != Verb::Read).then_some(sample.sequence(index));
            let message = Message { sample, index, pattern_offset: offset, stamp };
            payload::verify(&link.region, offset, self.len_bytes, &message)?;
        }
        Ok(())
    }

    fn is_small(self) -> bool {
        self.len_bytes == SMALL_BYTES
    }

    fn slot_bytes(self) -> usize {
        if self.is_small() { SMALL_SLOT_BYTES } else { self.len_bytes }
    }

    fn slots(self) -> u64 {
        let slots = (self.cycle_bytes() / self.slot_bytes()) as u64;
        if self.is_small() { slots.min(RECEIVES.into()) } else { slots }
    }

    fn slot(self, index: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "below the number of slots")]
        let slot = (index % self.slots()) as usize;
        slot
    }

    fn cycle_bytes(self) -> usize {
        self.len_bytes.max(CYCLE_BYTES)
    }

    fn is_received(self) -> bool {
        matches!(self.verb, Verb::Send | Verb::WriteImm)
    }

    /// Receive buffers posted at a time.
    fn receives(self) -> u64 {
        self.slots().min(u64::from(RECEIVES))
    }
}

/// One side's view of the window.
struct Flow<'a, N: Nic, const IS_SMALL: bool, const IS_SEND: bool> {
    shape: OneWay,
    link: &'a mut Link<N>,
    shared: &'a SharedWords,
    sample: &'a SamplePlan,
    patience: Patience<'a>,
    /// Signaled requests in flight: their index in the queue, and the messages up to them.
    signaled: VecDeque<(u16, u64)>,
    /// Messages that are complete.
    complete: u64,
    /// Messages that the receiver has consumed, as far as known.
    consumed: u64,
}

impl<'a, N: Nic, const IS_SMALL: bool, const IS_SEND: bool> Flow<'a, N, IS_SMALL, IS_SEND> {
    fn new(
        shape: OneWay,
        link: &'a mut Link<N>,
        shared: &'a SharedWords,
        sample: &'a SamplePlan,
    ) -> Self {
        let patience = shared.patience(link::PATIENCE);
        let signaled = VecDeque::with_capacity(SENDS.into());
        Self { shape, link, shared, sample, patience, signaled, complete: 0, consumed: 0 }
    }

    fn send(mut self) -> Result<(), Error> {
        let count = self.sample.count;
        let window =
            if IS_SMALL { u64::from(SENDS) - STRIDE } else { WINDOW.min(self.shape.slots()) };
        let batch = u64::from(self.shape.batch);
        let batch = if IS_SMALL { batch } else { batch.min(window / 2).max(1) };
        let mut posted = 0;
        while posted < count {
            let burst = batch.min(count - posted);
            self.wait_complete((posted + burst).saturating_sub(window))?;
            self.wait_consumed((posted + burst).saturating_sub(self.shape.receives()))?;
            for index in posted..posted + burst {
                let is_last = index + 1 == if IS_SMALL { count } else { posted + burst };
                self.post(index, is_last || (IS_SMALL && index % STRIDE == STRIDE - 1))?;
            }
            self.link.ring_send();
            posted += burst;
        }
        self.wait_complete(count)?;
        self.wait_consumed(count)
    }

    fn wait_complete(&mut self, count: u64) -> Result<(), Error> {
        while self.complete < count {
            self.step()?;
        }
        Ok(())
    }

    fn wait_consumed(&mut self, count: u64) -> Result<(), Error> {
        while self.shape.is_received() && self.consumed < count {
            // SYNC(consumed): pairs with the Release in `receive`.
            let consumed = self.shared.word(SharedWord::Received).load(Ordering::Acquire);
            if consumed != self.consumed {
                self.patience.progress();
                self.consumed = consumed;
            } else {
                self.step()?;
            }
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), Error> {
        match self.link.poll()? {
            Some(Event::Sent(wqe)) => self.sent(wqe),
            Some(Event::Received { .. }) => Err(Error::Stray),
            None => Ok(self.patience.wait()?),
        }
    }

    fn sent(&mut self, wqe: u16) -> Result<(), Error> {
        self.patience.progress();
        let complete = match self.signaled.front() {
            Some(&(index, complete)) if index == wqe => complete,
            _ => return Ok(()), // a signal of the queue's own: a later one says more
        };
        self.signaled.pop_front();
        if self.shape.verb == Verb::Read {
            for index in self.complete..complete {
                let last_word = (self.shape.slot(index) + 1) * self.shape.len_bytes - WORD_BYTES;
                let expected = payload::word(self.sample.number, (last_word / WORD_BYTES) as u64);
                self.check_last_word(index, expected)?;
            }
        }
        self.complete = complete;
        Ok(())
    }

    #[inline]
    fn post(&mut self, index: u64, signaled: bool) -> Result<(), Error> {
        let OneWay { len_bytes, verb, .. } = self.shape;
        let offset = self.shape.slot(index) * self.shape.slot_bytes();
        let remote = self.link.remote(offset);
        let wqe = if IS_SMALL {
            let message = small(self.sample, index);
            let bytes = [&message[..]];
            let payload = Payload::Inline(&bytes);
            let op = if IS_SEND {
                Op::Send { payload, imm: None }
            } else {
                Op::Write { remote, payload, imm: Some(immediate(index)) }
            };
            self.link.post(op, signaled)?
        } else if verb == Verb::Read {
            self.link.region.write(offset + len_bytes - WORD_BYTES, &[0; WORD_BYTES]);
            let into = [self.link.region.sge(offset, len_bytes)];
            let remote = self.link.remote(SOURCE_OFFSET + offset);
            self.link.post(Op::Read { remote, into: &into }, signaled)?
        } else {
            let stamp = self.sample.sequence(index).to_ne_bytes();
            self.link.region.write(SOURCE_OFFSET + offset + len_bytes - WORD_BYTES, &stamp);
            let from = [self.link.region.sge(SOURCE_OFFSET + offset, len_bytes)];
            let (payload, imm) = (Payload::Gather(&from), None);
            let op = if IS_SEND {
                Op::Send { payload, imm }
            } else {
                Op::Write { remote, payload, imm }
            };
            self.link.post(op, signaled)?
        };
        if signaled {
            self.signaled.push_back((wqe, index + 1));
        }
        Ok(())
    }

    /// Consumes and compares every message.
    fn receive(mut self, ready: Ready<'_>) -> Result<(), Error> {
        let (count, depth) = (self.sample.count, self.shape.receives());
        for index in 0..depth.min(count) {
            self.post_receive(index)?;
        }
        self.link.ring_receives();
        ready()?;
        let stride = (depth / 4).clamp(1, STRIDE);
        for index in 0..count {
            let header = self.link.wait_received(&mut self.patience)?;
            self.check(index, header)?;
            if index + depth < count {
                self.post_receive(index + depth)?;
            }
            let consumed = index + 1;
            if consumed % stride == 0 || consumed == count {
                self.link.ring_receives();
                // SYNC(consumed): pairs with the Acquire in `wait_consumed`.
                self.shared.word(SharedWord::Received).store(consumed, Ordering::Release);
            }
        }
        Ok(())
    }

    #[inline]
    fn post_receive(&mut self, index: u64) -> Result<(), Error> {
        let offset = self.shape.slot(index) * self.shape.slot_bytes();
        let buffer = (offset, self.link.header_bytes() + self.shape.len_bytes);
        Ok(self.link.post_receive(IS_SEND.then_some(buffer))?)
    }

    #[inline]
    fn check(&self, index: u64, header: (u32, Option<u32>)) -> Result<(), Error> {
        let imm = (!IS_SEND).then(|| immediate(index));
        link::check_header(index, header, (self.shape.len_bytes, imm))?;
        if !IS_SMALL {
            return self.check_last_word(index, self.sample.sequence(index));
        }
        let before = if IS_SEND { self.link.header_bytes() } else { 0 };
        let mut message = [0; SMALL_BYTES];
        self.link.region.read(self.shape.slot(index) * SMALL_SLOT_BYTES + before, &mut message);
        check_small(self.sample, index, &message)
    }

    fn check_last_word(&self, index: u64, expected: u64) -> Result<(), Error> {
        let end = (self.shape.slot(index) + 1) * self.shape.len_bytes;
        link::check_word(index, self.link.region.load_u64(end - WORD_BYTES), expected)
    }
}

/// The low 32 bits.
#[inline]
pub(super) fn immediate(index: u64) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "an immediate has 32 bits")]
    let low = index as u32;
    low
}

const _: () = assert!(RECEIVES as usize * SMALL_SLOT_BYTES <= CYCLE_BYTES);
const _: () = assert!(CYCLE_BYTES <= LANDING_BYTES);
const _: () = assert!(link::GRH_BYTES + SMALL_BYTES <= SMALL_SLOT_BYTES);
