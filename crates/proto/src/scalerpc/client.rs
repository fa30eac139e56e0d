//! The client's end of a connection.

use alloc::{collections::VecDeque, vec::Vec};

use super::{Entry, Ignored, Mapping, SLOTS_MAX, Trailer};
use crate::Status;

/// Where a client is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// It may not write requests, and none is announced.
    Idle,
    /// The server will read the requests that it has announced.
    Warmup,
    /// It writes requests to its zone.
    Process,
}

/// The next action of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Write the entry, after the headers of all its slots ([`Client::staged`]) are in the own blocks.
    Announce(Entry),
    /// Write a request to a slot of the zone.
    Write {
        /// Of the own blocks and of the zone.
        slot: u8,
        /// Where the zone is.
        mapping: Mapping,
        /// The end of the block.
        header: Trailer,
    },
}

/// A call that ended without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The call.
    pub cookie: u64,
    /// Status that the call ends with.
    pub status: Status,
    /// Whether the server may have executed it.
    pub was_sent: bool,
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The call.
    pub cookie: u64,
    /// Number of the status.
    pub status: u16,
    /// Of the data.
    pub len_bytes: u32,
}

/// Why a call was not accepted. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum CallError {
    /// Poll, and try again.
    #[error("all {0} slots of the connection are taken")]
    Busy(usize),
    /// It failed, or all call numbers are used up.
    #[error("the connection is closed; connect again")]
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Free,
    /// In the own block only.
    Staged,
    /// The server may read it at any time.
    Announced,
    /// The server has it, or will have it.
    Sent,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    stage: Stage,
    cookie: u64,
    number: u32,
    method: u16,
    len_bytes: u32,
    deadline_ns: u64,
    /// The caller knows how it ended; the slot waits for the server.
    is_reported: bool,
}

const FREE: Slot = Slot {
    stage: Stage::Free,
    cookie: 0,
    number: 0,
    method: 0,
    len_bytes: 0,
    deadline_ns: u64::MAX,
    is_reported: false,
};

/// The client's end.
#[derive(Debug)]
pub struct Client {
    slots: Vec<Slot>,
    free: Vec<u8>,
    /// Slots by stage, as bits.
    staged: u64,
    announced: u64,
    state: State,
    /// Of the latest announcement.
    warm: u32,
    mapping: Option<(Mapping, u32)>,
    /// Generation of the zone that was left last.
    ack: u32,
    is_ack_due: bool,
    number: u32,
    ended: VecDeque<Ended>,
    is_closed: bool,
    ignored: u64,
}

impl Client {
    /// A client with `slots` calls in flight at most.
    ///
    /// # Panics
    ///
    /// If there are none, or more than [`SLOTS_MAX`].
    #[must_use]
    pub fn new(slots: u8) -> Self {
        assert!((1..=SLOTS_MAX).contains(&slots), "{slots} slots");
        Self {
            slots: alloc::vec![FREE; usize::from(slots)],
            free: (0..slots).rev().collect(),
            staged: 0,
            announced: 0,
            state: State::Idle,
            warm: 0,
            mapping: None,
            ack: 0,
            is_ack_due: false,
            number: 0,
            ended: VecDeque::new(),
            is_closed: false,
            ignored: 0,
        }
    }

    /// Where it is in its life.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Calls whose callers wait.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        let waits = |slot: &&Slot| slot.stage != Stage::Free && !slot.is_reported;
        self.slots.iter().filter(waits).count()
    }

    /// Messages that changed nothing.
    #[must_use]
    pub fn ignored(&self) -> u64 {
        self.ignored
    }

    /// Takes a slot for a call. Its data goes to the end of that own block, before the header.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub fn call(
        &mut self,
        cookie: u64,
        method: u16,
        len_bytes: u32,
        deadline_ns: u64,
    ) -> Result<u8, CallError> {
        if self.is_closed || self.number == u32::MAX {
            return Err(CallError::Closed);
        }
        // Ends that were not taken yet count too, so that `ended` is bounded.
        if self.ended.len() >= self.slots.len() {
            return Err(CallError::Busy(self.slots.len()));
        }
        let index = self.free.pop().ok_or(CallError::Busy(self.slots.len()))?;
        self.number += 1;
        let stage = Stage::Staged;
        let number = self.number;
        self.slots[usize::from(index)] =
            Slot { stage, cookie, number, method, len_bytes, deadline_ns, is_reported: false };
        self.staged |= 1 << index;
        Ok(index)
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        if self.is_closed {
            return None;
        }
        match (self.state, self.mapping) {
            (State::Idle, _) if self.staged != 0 => {
                self.warm = self.warm.wrapping_add(1);
                self.announced = core::mem::take(&mut self.staged);
                self.each(self.announced, |slot| slot.stage = Stage::Announced);
                self.state = State::Warmup;
                self.is_ack_due = false;
                Some(Action::Announce(self.entry()))
            }
            (State::Idle, _) if core::mem::take(&mut self.is_ack_due) => {
                Some(Action::Announce(Entry { mask: 0, ..self.entry() }))
            }
            (State::Process, Some((mapping, generation))) if self.staged != 0 => {
                let index = self.staged.trailing_zeros();
                self.staged &= self.staged - 1;
                let slot = &mut self.slots[index as usize];
                slot.stage = Stage::Sent;
                let header = request(slot, generation);
                let slot = u8::try_from(index).unwrap_or(0);
                Some(Action::Write { slot, mapping, header })
            }
            _ => None,
        }
    }

    fn entry(&self) -> Entry {
        Entry { mask: self.announced, ack: self.ack, warm: self.warm }
    }

    /// The end of the own block of an announced slot.
    #[must_use]
    pub fn staged(&self, slot: u8) -> Option<Trailer> {
        let slot = self.slots.get(usize::from(slot))?;
        (slot.stage == Stage::Announced).then(|| request(slot, self.warm))
    }

    fn each(&mut self, mask: u64, change: impl Fn(&mut Slot)) {
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if mask >> index & 1 == 1 {
                change(slot);
            }
        }
    }

    /// The server has read the announcement: it answered some of it, or the turn is over.
    fn taken(&mut self) {
        let announced = core::mem::take(&mut self.announced);
        self.each(announced, |slot| {
            if slot.stage == Stage::Announced {
                slot.stage = Stage::Sent;
            }
        });
    }

    /// Takes the header of a response.
    ///
    /// # Errors
    ///
    /// [`Ignored`]; a mapping that came with it counts nevertheless.
    pub fn receive(&mut self, slot: u8, header: &Trailer) -> Result<Answered, Ignored> {
        let result = self.accept(slot, header);
        self.ignored += u64::from(result.is_err());
        result
    }

    fn accept(&mut self, index: u8, header: &Trailer) -> Result<Answered, Ignored> {
        let slot = *self.slots.get(usize::from(index)).ok_or(Ignored::Unexpected)?;
        let is_waiting = matches!(slot.stage, Stage::Sent | Stage::Announced);
        if !is_waiting || header.number != slot.number {
            return Err(Ignored::Late);
        }
        if let Some(mapping) = header.mapping
            && self.state == State::Warmup
        {
            self.taken();
            self.state = State::Process;
            self.mapping = Some((mapping, header.generation));
        }
        self.release(index);
        if slot.is_reported {
            return Err(Ignored::Late);
        }
        let Slot { cookie, .. } = slot;
        Ok(Answered { cookie, status: header.method, len_bytes: header.len_bytes })
    }

    fn release(&mut self, index: u8) {
        self.announced &= !(1 << index);
        self.staged &= !(1 << index);
        self.slots[usize::from(index)] = FREE;
        self.free.push(index);
    }

    /// The turn is over: the client leaves its zone. Requests that it has not written are announced again.
    pub fn handle_event(&mut self, generation: u32) {
        let is_own = match (self.state, self.mapping) {
            (State::Process, Some((_, mapped))) => mapped == generation,
            // The server has read the announcement and answered none of it yet.
            (State::Warmup, _) => true,
            _ => false,
        };
        if !is_own {
            self.ignored += 1;
            return;
        }
        self.taken();
        self.state = State::Idle;
        self.mapping = None;
        self.ack = generation;
        self.is_ack_due = true;
    }

    /// Gives a call up. Its slot stays taken until the server answers, unless it was never sent.
    pub fn cancel(&mut self, cookie: u64) -> bool {
        let is_it =
            |slot: &Slot| slot.stage != Stage::Free && !slot.is_reported && slot.cookie == cookie;
        let Some(index) = self.slots.iter().position(is_it) else { return false };
        self.abandon(index, Status::Cancelled);
        true
    }

    fn abandon(&mut self, index: usize, status: Status) {
        let slot = &mut self.slots[index];
        slot.is_reported = true;
        let cookie = slot.cookie;
        let was_sent = slot.stage != Stage::Staged;
        self.ended.push_back(Ended { cookie, status, was_sent });
        if !was_sent {
            self.release(u8::try_from(index).unwrap_or(0));
        }
    }

    /// Ends calls whose deadline has passed. Returns when it has to be called again at the latest.
    pub fn handle_timeout(&mut self, now_ns: u64) -> Option<u64> {
        let mut earliest_ns = u64::MAX;
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            if slot.stage == Stage::Free || slot.is_reported {
                continue;
            }
            if slot.deadline_ns <= now_ns {
                self.abandon(index, Status::DeadlineExceeded);
            } else {
                earliest_ns = earliest_ns.min(slot.deadline_ns);
            }
        }
        (earliest_ns < u64::MAX).then_some(earliest_ns)
    }

    /// The next call that ended without an answer.
    pub fn poll_ended(&mut self) -> Option<Ended> {
        self.ended.pop_front()
    }

    /// Ends every call with `status`: the connection is of no more use.
    pub fn close(&mut self, status: Status) {
        self.is_closed = true;
        for index in 0..self.slots.len() {
            if self.slots[index].stage != Stage::Free && !self.slots[index].is_reported {
                self.abandon(index, status);
            }
        }
    }
}

fn request(slot: &Slot, generation: u32) -> Trailer {
    let Slot { len_bytes, method, number, .. } = *slot;
    Trailer { len_bytes, method, mapping: None, generation, number }
}
