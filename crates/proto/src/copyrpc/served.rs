//! Requests that this side serves.

use alloc::{vec, vec::Vec};

use super::{calls::CallId, layout::response_bytes, violation::Violation};

/// Names a request until it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(crate) CallId);

impl RequestId {
    /// The slot of the call at its caller. No other request of the caller that is to be answered has it.
    #[inline]
    #[must_use]
    pub fn slot(self) -> u16 {
        self.0.slot()
    }
}

/// Why an answer was not sent. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// The request was answered before, or never was.
    #[error("the request is not there")]
    NotThere,
    /// Too long for the place that the caller set aside: name registered memory instead.
    #[error("a response of {len_bytes} B exceeds the {max_bytes} B that the caller set aside")]
    TooLong {
        /// Of the response.
        len_bytes: usize,
        /// Set aside.
        max_bytes: usize,
    },
}

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
        let slot = self.slots.get_mut(usize::from(id.slot()));
        let Some(slot) = slot.filter(|slot| slot.state == State::Free) else {
            return Err(Violation::Token { kind, token });
        };
        *slot = Slot { id, budget_lines, state: State::Open { is_cancelled: false } };
        self.reserved_lines += asked;
        self.open += 1;
        Ok(RequestId(id))
    }

    #[inline]
    fn find(&mut self, id: CallId) -> Option<&mut Slot> {
        self.slots.get_mut(usize::from(id.slot())).filter(|slot| slot.id == id)
    }

    /// Lines set aside for the response, if the request is to be answered.
    #[inline]
    pub(crate) fn budget_lines(&mut self, id: RequestId) -> Option<u16> {
        let slot = self.find(id.0)?;
        matches!(slot.state, State::Open { .. }).then_some(slot.budget_lines)
    }

    /// The request is answered with `len_bytes`, if the lines set aside for it have room. Returns
    /// them.
    #[inline]
    pub(crate) fn answer(
        &mut self,
        id: RequestId,
        len_bytes: usize,
        ring_bytes_max: usize,
    ) -> Result<u16, ReplyError> {
        let slot = self.find(id.0).ok_or(ReplyError::NotThere)?;
        if !matches!(slot.state, State::Open { .. }) {
            return Err(ReplyError::NotThere);
        }
        let max_bytes = response_bytes(slot.budget_lines).min(ring_bytes_max);
        if len_bytes > max_bytes {
            return Err(ReplyError::TooLong { len_bytes, max_bytes });
        }
        slot.state = State::Free;
        let budget_lines = slot.budget_lines;
        self.open -= 1;
        Ok(budget_lines)
    }

    /// The request is answered by naming memory. Returns the lines set aside for it.
    pub(crate) fn lend(&mut self, id: RequestId) -> Option<u16> {
        let budget_lines = self.budget_lines(id)?;
        self.find(id.0)?.state = State::Lent;
        self.open -= 1;
        Some(budget_lines)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copyrpc::layout::{KIND_LARGE_REQUEST, KIND_REQUEST};

    const ROOMY: usize = 1 << 20;

    /// Rules C4.2, C4.3 and C5.3.
    #[test]
    fn a_request_needs_a_free_slot_and_a_budget_that_there_is() {
        let mut served = Served::new(2, 4);
        let mut admit = |token, lines| served.admit(KIND_REQUEST, token, lines);
        assert_eq!(admit(0, 0), Err(Violation::NoBudget));
        assert_eq!(admit(0, 5), Err(Violation::Budget { asked: 5, free: 4 }));
        admit(0, 3).unwrap();
        assert_eq!(admit(1, 2), Err(Violation::Budget { asked: 2, free: 1 }));
        for token in [0, 1 << 16, 2] {
            let in_use = Violation::Token { kind: KIND_REQUEST, token };
            assert_eq!(admit(token, 1), Err(in_use), "in use, also by its next life; or none");
        }
        admit(1, 1).unwrap();
        assert_eq!((served.open(), served.reserved_lines()), (2, 4));
    }

    /// Rules C5.3 and C6.4.
    #[test]
    fn a_request_is_answered_once_and_released_only_after_it_was_lent() {
        let mut served = Served::new(1, 4);
        let earlier = served.admit(KIND_REQUEST, 0, 1).unwrap();
        let max_bytes = response_bytes(1);
        let too_long = ReplyError::TooLong { len_bytes: max_bytes + 1, max_bytes };
        assert_eq!(served.answer(earlier, max_bytes + 1, ROOMY), Err(too_long));
        let too_long = ReplyError::TooLong { len_bytes: 9, max_bytes: 8 };
        assert_eq!(served.answer(earlier, 9, 8), Err(too_long), "longer than a batch");
        assert!(!served.release(0), "it was not lent");
        assert_eq!(served.answer(earlier, max_bytes, ROOMY), Ok(1));
        assert_eq!(served.answer(earlier, 0, ROOMY), Err(ReplyError::NotThere));
        assert_eq!(served.lend(earlier), None);
        let later = served.admit(KIND_LARGE_REQUEST, 1 << 16, 1).unwrap();
        assert_eq!(served.answer(earlier, 0, ROOMY), Err(ReplyError::NotThere), "of its slot");
        assert!(!served.cancel(0) && !served.is_cancelled(later));
        assert_eq!(served.lend(later), Some(1));
        assert_eq!(served.answer(later, 0, ROOMY), Err(ReplyError::NotThere));
        assert!(!served.release(0) && served.release(1 << 16) && !served.release(1 << 16));
        assert_eq!(served.open(), 0);
    }
}
