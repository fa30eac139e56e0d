//! The state of one client at the server.

use alloc::{vec, vec::Vec};

use super::{Ignored, RequestOrigin, Trailer, ZoneLease};

/// Where a client is, as the server sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It has no zone.
    Idle,
    /// Its requests are being read into a zone.
    Reading {
        /// The zone.
        place: ZoneLease,
    },
    /// They were read; its turn has not come.
    Warm {
        /// The zone.
        place: ZoneLease,
    },
    /// It is its turn.
    Active {
        /// The zone.
        place: ZoneLease,
    },
    /// Its turn is over; it may still write until it says that it does not.
    Retiring {
        /// The zone.
        place: ZoneLease,
        /// The time of the notice.
        since_ns: u64,
    },
}

/// One client.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) life: u32,
    pub(super) stage: Stage,
    /// Number of the latest announcement.
    pub(super) warm: u32,
    /// Its slots.
    pub(super) mask: u64,
    /// It has not been read.
    pub(super) is_announced: bool,
    /// The client knows its zone: it was answered since its turn began.
    pub(super) is_mapped: bool,
    /// Number of the latest call of each slot that was executed.
    last: Vec<u32>,
    /// Slots whose request is being executed.
    running: u64,
    /// Since clients were grouped last.
    pub(super) answers: u64,
    pub(super) bytes: u64,
}

impl Member {
    pub(super) fn new(life: u32, slots: u8) -> Self {
        Self {
            life,
            stage: Stage::Idle,
            warm: 0,
            mask: 0,
            is_announced: false,
            is_mapped: false,
            last: vec![0; usize::from(slots)],
            running: 0,
            answers: 0,
            bytes: 0,
        }
    }

    pub(super) fn place(&self) -> Option<ZoneLease> {
        match self.stage {
            Stage::Idle => None,
            Stage::Reading { place }
            | Stage::Warm { place }
            | Stage::Active { place }
            | Stage::Retiring { place, .. } => Some(place),
        }
    }

    /// Whether it has requests to be taken when its turn comes.
    pub(super) fn is_ready(&self) -> bool {
        self.is_announced || matches!(self.stage, Stage::Reading { .. } | Stage::Warm { .. })
    }

    pub(super) fn accept(
        &mut self,
        slot: u8,
        header: &Trailer,
        origin: RequestOrigin,
    ) -> Result<(), Ignored> {
        let place = match self.stage {
            Stage::Active { place } | Stage::Retiring { place, .. } => place,
            _ => return Err(Ignored::Generation),
        };
        let expected = match origin {
            RequestOrigin::Read => self.warm,
            RequestOrigin::Written => place.generation,
        };
        if header.generation != expected {
            return Err(Ignored::Generation);
        }
        let last = self.last.get_mut(usize::from(slot)).ok_or(Ignored::Unexpected)?;
        if header.number <= *last {
            return Err(Ignored::Late);
        }
        if self.running >> slot & 1 == 1 {
            // A client that speaks the protocol waits for the answer before it uses a slot again.
            return Err(Ignored::Unexpected);
        }
        *last = header.number;
        self.running |= 1 << slot;
        Ok(())
    }

    /// Whether the request waits for an answer, which it has now.
    pub(super) fn answer(&mut self, slot: u8, number: u32, len_bytes: u32) -> bool {
        let is_waiting = self.running >> slot & 1 == 1
            && self.last.get(usize::from(slot)).is_some_and(|last| *last == number);
        if is_waiting {
            self.running &= !(1 << slot);
            self.answers += 1;
            self.bytes += u64::from(len_bytes);
        }
        is_waiting
    }

    /// The paper's priority: answers per byte of an answer, in steps of a factor of four.
    pub(super) fn class(&self) -> u32 {
        let mean = self.bytes / self.answers.max(1) + 1;
        let priority = self.answers * 1024 / mean;
        priority.checked_ilog2().map_or(0, |log| log / 2)
    }
}
