//! Requests that this side serves.

use alloc::{vec, vec::Vec};

use super::{calls::CallId, violation::Violation};

/// Names a request until it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(pub(crate) CallId);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    /// To be answered.
    Open {
        is_cancelled: bool,
    },
    /// Answered by naming memory, which the caller has not released.
    Lent,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    id: CallId,
    budget_lines: u16,
    state: State,
}

/// A table with the caller's own slots: a caller that uses one twice is caught.
#[derive(Debug)]
pub(crate) struct Served {
    slots: Vec<Slot>,
    /// Lines of the peer's ring that are set aside: for requests not answered, and for responses
    /// that the peer has not given credit for.
    reserved_lines: u32,
    reserved_lines_max: u32,
    open: usize,
}

impl Served {
    pub(crate) fn new(peer_calls_max: u16, reserved_lines_max: u32) -> Self {
        let slot = Slot { id: CallId(0), budget_lines: 0, state: State::Free };
        Self {
            slots: vec![slot; usize::from(peer_calls_max)],
            reserved_lines: 0,
            reserved_lines_max,
            open: 0,
        }
    }

    /// A request arrived: sets lines aside for its response.
    #[inline]
    pub(crate) fn admit(
        &mut self,
        kind: u8,
        token: u32,
        budget_lines: u16,
    ) -> Result<RequestId, Violation> {
        let id = CallId(token);
        if budget_lines == 0 {
            return Err(Violation::NoBudget);
        }
        let free = self.reserved_lines_max - self.reserved_lines;
        let asked = u32::from(budget_lines);
        if asked > free {
            return Err(Violation::Budget { asked, free });
        }
        let slot = self
            .slots
            .get_mut(usize::from(id.slot()))
            .filter(|slot| slot.state == State::Free)
            .ok_or(Violation::Token { kind, token })?;
        *slot = Slot { id, budget_lines, state: State::Open { is_cancelled: false } };
        self.reserved_lines += asked;
        self.open += 1;
        Ok(RequestId(id))
    }

    fn find(&mut self, id: CallId) -> Option<&mut Slot> {
        self.slots.get_mut(usize::from(id.slot())).filter(|slot| slot.id == id)
    }

    /// Lines set aside for the response, if the request is to be answered.
    pub(crate) fn budget_lines(&mut self, id: RequestId) -> Option<u16> {
        let slot = self.find(id.0)?;
        matches!(slot.state, State::Open { .. }).then_some(slot.budget_lines)
    }

    /// The request is answered; `is_lent`: by naming memory.
    #[inline]
    pub(crate) fn answer(&mut self, id: RequestId, is_lent: bool) {
        if let Some(slot) = self.find(id.0) {
            slot.state = if is_lent { State::Lent } else { State::Free };
            self.open -= 1;
        }
    }

    /// The peer has given credit for lines that responses took.
    #[inline]
    pub(crate) fn credited(&mut self, lines: u32) {
        self.reserved_lines -= lines;
    }

    /// The caller has fetched the response. Returns whether there was one to fetch.
    pub(crate) fn release(&mut self, token: u32) -> bool {
        let Some(slot) = self.find(CallId(token)) else { return false };
        let is_lent = slot.state == State::Lent;
        if is_lent {
            slot.state = State::Free;
        }
        is_lent
    }

    /// The caller does not wait any more. It may not have seen the answer yet, so a request that is
    /// not there is no error. Returns whether it is there.
    pub(crate) fn cancel(&mut self, token: u32) -> bool {
        let Some(slot) = self.find(CallId(token)) else { return false };
        let is_open = matches!(slot.state, State::Open { .. });
        if is_open {
            slot.state = State::Open { is_cancelled: true };
        }
        is_open
    }

    pub(crate) fn is_cancelled(&mut self, id: RequestId) -> bool {
        self.find(id.0).is_none_or(|slot| slot.state != State::Open { is_cancelled: false })
    }

    /// Requests to be answered.
    pub(crate) fn open(&self) -> usize {
        self.open
    }

    pub(crate) fn reserved_lines(&self) -> u32 {
        self.reserved_lines
    }
}
