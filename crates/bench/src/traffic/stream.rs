//! Small messages one way, as many per second as possible.
//!
//! The receiver tells how many it has consumed by a word in shared memory, so that no message ever
//! finds the receive queue empty: that would measure retry timers.

use std::time::Instant;

use memory::sync::Ordering;
use serde::{Deserialize, Serialize};
use verbs::{MemoryRegion as _, Nic, Op, Payload};

use crate::{
    board::{Board, Word},
    duo::DuoError,
    limit::per_second,
    traffic::{
        LinkKind, Sample, TrafficError,
        link::{self, Link, RECEIVES},
        payload::{SMALL_BYTES, check_small, small},
    },
};

/// Bytes of a receive buffer or WRITE target: a message and a datagram's header fit.
const SLOT_BYTES: usize = 128;
/// Messages that may be on their way or unconsumed.
const WINDOW: u64 = RECEIVES as u64;
/// Receives per doorbell, and messages between two updates of the receiver's count.
const STRIDE: u64 = 32;
/// A signaled request after so many, at the latest.
const SIGNAL_EVERY: u64 = 32;

/// How a small message travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamVerb {
    /// SEND into the next receive buffer.
    Send,
    /// WRITE with immediate into a slot of the peer's ring, consuming an empty receive.
    WriteImm,
}

/// 32-byte inline messages one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream {
    /// The queue pair.
    pub link: LinkKind,
    /// The operation.
    pub verb: StreamVerb,
    /// Messages per doorbell. One lets the NIC use BlueFlame.
    pub batch: u16,
}

impl Stream {
    /// M messages/s from the first post to the last acknowledgement of consumption.
    pub(crate) fn initiate<N: Nic>(
        self,
        link: &mut Link<N>,
        board: &Board,
        sample: &Sample,
    ) -> Result<f64, TrafficError> {
        match self.verb {
            StreamVerb::Send => self.initiate_by::<N, true>(link, board, sample),
            StreamVerb::WriteImm => self.initiate_by::<N, false>(link, board, sample),
        }
    }

    /// [`initiate`](Self::initiate) by a verb that the compiler knows: a program that measures one
    /// operation does not choose it anew for each message.
    fn initiate_by<N: Nic, const IS_SEND: bool>(
        self,
        link: &mut Link<N>,
        board: &Board,
        sample: &Sample,
    ) -> Result<f64, TrafficError> {
        let received = board.word(Word::Received);
        let mut patience = board.patience(link::PATIENCE);
        let (mut sent, mut consumed, mut last) = (0, 0, None);
        let begin = Instant::now();
        while sent < sample.count {
            let burst = u64::from(self.batch).min(sample.count - sent);
            while sent + burst > consumed + WINDOW {
                if link.poll()?.is_some() {
                    patience.progress();
                } else {
                    patience.wait()?;
                }
                // SYNC(consumed): pairs with the Release in `respond`.
                let fresh = received.load(Ordering::Acquire);
                if fresh != consumed {
                    patience.progress();
                }
                consumed = fresh;
            }
            link.wait_room(self.batch, &mut patience)?;
            for index in sent..sent + burst {
                let is_last = index + 1 == sample.count;
                let signaled = is_last || index % SIGNAL_EVERY == SIGNAL_EVERY - 1;
                last = Some(Self::post::<N, IS_SEND>(link, sample, index, signaled)?);
            }
            link.ring_send();
            sent += burst;
        }
        if let Some(last) = last {
            link.wait_sent(last, &mut patience)?;
        }
        // SYNC(consumed): pairs with the Release in `respond`.
        while received.load(Ordering::Acquire) != sample.count {
            if link.poll()?.is_none() {
                patience.wait()?;
            }
        }
        Ok(per_second(sample.count, begin.elapsed()) / 1e6)
    }

    #[inline]
    fn post<N: Nic, const IS_SEND: bool>(
        link: &mut Link<N>,
        sample: &Sample,
        index: u64,
        signaled: bool,
    ) -> Result<u16, TrafficError> {
        let message = small(sample, index);
        let bytes = [&message[..]];
        let payload = Payload::Inline(&bytes);
        let op = if IS_SEND {
            Op::Send { payload, imm: None }
        } else {
            let remote = link.remote(slot_offset(index));
            Op::Write { remote, payload, imm: Some(immediate(index)) }
        };
        link.post(op, signaled)
    }

    /// Consumes and compares every message.
    pub(crate) fn respond<N: Nic>(
        self,
        link: &mut Link<N>,
        board: &Board,
        sample: &Sample,
        ready: &mut dyn FnMut() -> Result<(), DuoError>,
    ) -> Result<(), TrafficError> {
        match self.verb {
            StreamVerb::Send => Self::respond_by::<N, true>(link, board, sample, ready),
            StreamVerb::WriteImm => Self::respond_by::<N, false>(link, board, sample, ready),
        }
    }

    fn respond_by<N: Nic, const IS_SEND: bool>(
        link: &mut Link<N>,
        board: &Board,
        sample: &Sample,
        ready: &mut dyn FnMut() -> Result<(), DuoError>,
    ) -> Result<(), TrafficError> {
        let received = board.word(Word::Received);
        let mut patience = board.patience(link::PATIENCE);
        for index in 0..WINDOW.min(sample.count) {
            Self::post_receive::<N, IS_SEND>(link, index)?;
        }
        link.ring_receives();
        ready()?;
        for index in 0..sample.count {
            let header = link.wait_received(&mut patience)?;
            Self::check::<N, IS_SEND>(link, sample, index, header)?;
            if index + WINDOW < sample.count {
                Self::post_receive::<N, IS_SEND>(link, index + WINDOW)?;
            }
            let consumed = index + 1;
            if consumed % STRIDE == 0 || consumed == sample.count {
                link.ring_receives();
                // SYNC(consumed): pairs with the Acquire in `initiate`.
                received.store(consumed, Ordering::Release);
            }
        }
        Ok(())
    }

    #[inline]
    fn post_receive<N: Nic, const IS_SEND: bool>(
        link: &mut Link<N>,
        index: u64,
    ) -> Result<(), TrafficError> {
        let buffer = (slot_offset(index), link.header_bytes() + SMALL_BYTES);
        Ok(link.post_receive(IS_SEND.then_some(buffer))?)
    }

    #[inline]
    fn check<N: Nic, const IS_SEND: bool>(
        link: &Link<N>,
        sample: &Sample,
        index: u64,
        header: (u32, Option<u32>),
    ) -> Result<(), TrafficError> {
        let (imm, before) =
            if IS_SEND { (None, link.header_bytes()) } else { (Some(immediate(index)), 0) };
        link::check_header(index, header, (SMALL_BYTES, imm))?;
        let mut message = [0; SMALL_BYTES];
        link.region.read(slot_offset(index) + before, &mut message);
        check_small(sample, index, &message)
    }
}

#[inline]
fn slot_offset(index: u64) -> usize {
    (index % WINDOW) as usize * SLOT_BYTES
}

/// The low 32 bits.
#[inline]
pub(crate) fn immediate(index: u64) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "an immediate has 32 bits")]
    let low = index as u32;
    low
}

const _: () = assert!(RECEIVES as usize * SLOT_BYTES <= link::LANDING_BYTES);
const _: () = assert!(link::GRH_BYTES + SMALL_BYTES <= SLOT_BYTES && STRIDE < WINDOW);
