//! Calls that this side made.

use alloc::{collections::VecDeque, vec, vec::Vec};

use super::{Busy, layout::response_bytes, violation::Violation};

/// Names a call: its slot, and how often the slot was used before, modulo 2¹⁶.
///
/// A slot is used again only after the peer answered, and on a reliable, ordered connection it
/// answers once, so a name is never ambiguous. After 2¹⁶ uses of its slot it names another
/// call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub(crate) u32);

impl CallId {
    pub(crate) fn new(slot: u16, generation: u16) -> Self {
        Self(u32::from(generation) << 16 | u32::from(slot))
    }

    #[inline]
    pub(crate) fn slot(self) -> u16 {
        (self.0 & 0xffff) as u16
    }

    #[inline]
    fn generation(self) -> u16 {
        (self.0 >> 16) as u16
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    /// For the response.
    Waiting,
    /// The response is large and being fetched.
    Fetching,
    /// The caller knows how it ended, the peer will still answer.
    Abandoned,
    /// The caller knows how it ended, the large response is still being fetched.
    AbandonedFetching,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    cookie: u64,
    deadline_ns: u64,
    generation: u16,
    /// Set aside for the response; 0 once it has arrived.
    budget_lines: u16,
    state: State,
}

impl Slot {
    /// For its caller.
    fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting | State::Fetching)
    }

    /// Returns whether the caller waited until now.
    fn abandon(&mut self) -> bool {
        self.state = match self.state {
            State::Waiting => State::Abandoned,
            State::Fetching => State::AbandonedFetching,
            _ => return false,
        };
        true
    }

    #[inline]
    fn free(&mut self) {
        self.state = State::Free;
        self.generation = self.generation.wrapping_add(1);
    }
}

/// A table of calls, and the share of this side's ring that their responses may take.
///
/// It is no `ids::slots::SlotTable`, because the generation of a slot travels as 16 bits (rule C5.1) and wraps
/// there, tests begin it anywhere, and a slot that was given up is neither free nor in use.
#[derive(Debug)]
pub(crate) struct Calls {
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// No deadline is earlier: a lower bound, made exact when it has passed.
    ///
    /// A call costs one comparison, and its end nothing; in return the table is read once per
    /// timeout. A timing wheel would spare that and cost some sixty instructions per call.
    earliest_ns: u64,
    /// Set aside and not yet free again.
    budget_lines: u32,
    budget_lines_max: u32,
    /// Lines that responses took, free once the ring is consumed up to a position.
    consumed_at: VecDeque<(u64, u32)>,
    /// Of responses in the batch that is being handled.
    answered_lines: u32,
}

impl Calls {
    pub(crate) fn new(calls_max: u16, budget_lines_max: u32) -> Self {
        let slot =
            Slot { cookie: 0, deadline_ns: 0, generation: 0, budget_lines: 0, state: State::Free };
        Self {
            slots: vec![slot; usize::from(calls_max)],
            free: (0..calls_max).rev().collect(),
            earliest_ns: u64::MAX,
            budget_lines: 0,
            budget_lines_max,
            consumed_at: VecDeque::new(),
            answered_lines: 0,
        }
    }

    /// For tests of wraps.
    pub(crate) fn start_at(&mut self, generation: u16) {
        self.slots.iter_mut().for_each(|slot| slot.generation = generation);
    }

    /// Whether a call with such a response can be made.
    #[inline]
    pub(crate) fn admit(&self, budget_lines: u16) -> Result<(), Busy> {
        if self.free.is_empty() {
            return Err(Busy::Calls);
        }
        let asked = self.budget_lines + u32::from(budget_lines);
        if asked > self.budget_lines_max { Err(Busy::Responses) } else { Ok(()) }
    }

    /// Opens a call that was admitted.
    #[inline]
    pub(crate) fn open(&mut self, cookie: u64, budget_lines: u16, deadline_ns: u64) -> CallId {
        let Some(index) = self.free.pop() else { unreachable!("the call was admitted") };
        let slot = &mut self.slots[usize::from(index)];
        (slot.cookie, slot.budget_lines, slot.state) = (cookie, budget_lines, State::Waiting);
        slot.deadline_ns = deadline_ns;
        self.budget_lines += u32::from(budget_lines);
        self.earliest_ns = self.earliest_ns.min(deadline_ns);
        CallId::new(index, slot.generation)
    }

    #[inline]
    fn find(&mut self, id: CallId) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(usize::from(id.slot()))?;
        (slot.generation == id.generation() && slot.state != State::Free).then_some(slot)
    }

    /// A response arrived. Returns the call's cookie; `None`: the caller gave up.
    ///
    /// `inline_bytes` is the length of its body, unless that is large. After a violation the call
    /// waits on, so that it ends with the connection.
    #[inline]
    pub(crate) fn answered(
        &mut self,
        kind: u8,
        token: u32,
        inline_bytes: Option<usize>,
    ) -> Result<Option<u64>, Violation> {
        let id = CallId(token);
        let unknown = Violation::Token { kind, token };
        let slot = self.find(id).ok_or(unknown)?;
        let cookie = match slot.state {
            State::Waiting => Some(slot.cookie),
            State::Abandoned => None,
            _ => return Err(unknown),
        };
        let max_bytes = response_bytes(slot.budget_lines);
        if let Some(len_bytes) = inline_bytes.filter(|len_bytes| *len_bytes > max_bytes) {
            return Err(Violation::ResponseTooLong { len_bytes, max_bytes });
        }
        let budget_lines = core::mem::take(&mut slot.budget_lines);
        if inline_bytes.is_none() {
            slot.state = if cookie.is_some() { State::Fetching } else { State::AbandonedFetching };
        } else {
            slot.free();
            self.free.push(id.slot());
        }
        self.answered_lines += u32::from(budget_lines);
        Ok(cookie)
    }

    /// The large response of a call was fetched, or will not be. Returns the cookie, if the caller
    /// still waits.
    pub(crate) fn fetched(&mut self, id: CallId) -> Option<u64> {
        let slot = self.find(id)?;
        let cookie = (slot.state == State::Fetching).then_some(slot.cookie);
        if matches!(slot.state, State::Fetching | State::AbandonedFetching) {
            slot.free();
            self.free.push(id.slot());
        }
        cookie
    }

    /// The cookie of a call whose large response is being fetched, if the caller still waits.
    pub(crate) fn fetching(&mut self, id: CallId) -> Option<u64> {
        let slot = self.find(id)?;
        (slot.state == State::Fetching).then_some(slot.cookie)
    }

    /// The caller does not wait any more. Returns its cookie, if it still did.
    pub(crate) fn abandon(&mut self, id: CallId) -> Option<u64> {
        let slot = self.find(id)?;
        slot.abandon().then_some(slot.cookie)
    }

    /// Abandons the calls for whose cookies `is_unwanted` holds, and names each with its cookie.
    pub(crate) fn abandon_all(
        &mut self,
        is_unwanted: impl Fn(u64) -> bool,
        mut abandoned: impl FnMut(CallId, u64),
    ) {
        for (index, slot) in (0_u16..).zip(&mut self.slots) {
            if slot.is_waiting() && is_unwanted(slot.cookie) {
                slot.abandon();
                abandoned(CallId::new(index, slot.generation), slot.cookie);
            }
        }
    }

    /// Abandons the calls whose deadlines have passed and names each with its cookie.
    pub(crate) fn expire(&mut self, now_ns: u64, mut expired: impl FnMut(CallId, u64)) {
        if now_ns < self.earliest_ns {
            return;
        }
        self.earliest_ns = u64::MAX;
        for (index, slot) in (0_u16..).zip(&mut self.slots) {
            if !slot.is_waiting() {
                continue;
            }
            if slot.deadline_ns <= now_ns {
                slot.abandon();
                expired(CallId::new(index, slot.generation), slot.cookie);
            } else {
                self.earliest_ns = self.earliest_ns.min(slot.deadline_ns);
            }
        }
    }

    /// The time of the next expiry check; `None`: no call is in flight.
    pub(crate) fn expiry_ns(&self) -> Option<u64> {
        (self.in_use() > 0 && self.earliest_ns < u64::MAX).then_some(self.earliest_ns)
    }

    /// The batch that ends at line `parsed` was handled, and the ring is consumed up to `consumed`.
    #[inline]
    pub(crate) fn close_batch(&mut self, parsed: u64, consumed: u64) {
        let lines = core::mem::take(&mut self.answered_lines);
        if lines > 0 {
            self.consumed_at.push_back((parsed, lines));
        }
        self.consumed_to(consumed);
    }

    /// Rule C4.5: what a response took is free only once the peer can know so, for the next
    /// request may reserve it again.
    pub(crate) fn consumed_to(&mut self, consumed: u64) {
        while let Some((at, lines)) = self.consumed_at.front() {
            if *at > consumed {
                break;
            }
            self.budget_lines -= lines;
            self.consumed_at.pop_front();
        }
    }

    /// Ends every call, and says the cookies of those whose callers wait.
    pub(crate) fn drain(&mut self, mut ended: impl FnMut(u64)) {
        for slot in self.slots.iter_mut().filter(|slot| slot.is_waiting()) {
            slot.state = State::Abandoned;
            ended(slot.cookie);
        }
    }

    /// Calls whose callers wait.
    pub(crate) fn waiting(&self) -> usize {
        self.slots.iter().filter(|slot| slot.is_waiting()).count()
    }

    /// Slots in use, abandoned calls included.
    pub(crate) fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn budget_lines(&self) -> u32 {
        self.budget_lines
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, vec::Vec};

    use proptest::prelude::*;

    use super::*;
    use crate::copyrpc::layout::KIND_RESPONSE;

    /// Rules C5.1 and C5.3: an answer to an earlier call of the slot names a call that is not in flight.
    #[test]
    fn an_answer_to_an_earlier_call_of_a_slot_is_a_violation() {
        let mut calls = Calls::new(1, 8);
        let earlier = calls.open(1, 1, u64::MAX);
        assert_eq!(calls.answered(KIND_RESPONSE, earlier.0, Some(0)), Ok(Some(1)));
        let later = calls.open(2, 1, u64::MAX);
        let unknown = Violation::Token { kind: KIND_RESPONSE, token: earlier.0 };
        assert_eq!(calls.answered(KIND_RESPONSE, earlier.0, Some(0)), Err(unknown));
        assert_eq!(calls.abandon(earlier), None);
        assert_eq!(calls.answered(KIND_RESPONSE, later.0, Some(0)), Ok(Some(2)));
    }

    /// Rules C4.4 and C5.3: an answer is as long as its budget at most, and the only one.
    #[test]
    fn an_answer_that_is_too_long_or_the_second_one_is_a_violation() {
        let mut calls = Calls::new(1, 8);
        let call = calls.open(1, 1, u64::MAX);
        let max_bytes = response_bytes(1);
        let too_long = Violation::ResponseTooLong { len_bytes: max_bytes + 1, max_bytes };
        assert_eq!(calls.answered(KIND_RESPONSE, call.0, Some(max_bytes + 1)), Err(too_long));
        assert_eq!(calls.answered(KIND_RESPONSE, call.0, Some(max_bytes)), Ok(Some(1)));
        let unknown = |call: CallId| Violation::Token { kind: KIND_RESPONSE, token: call.0 };
        for is_given_up in [false, true] {
            let call = calls.open(1, 1, u64::MAX);
            assert_eq!(calls.answered(KIND_RESPONSE, call.0, None), Ok(Some(1)));
            if is_given_up {
                assert_eq!(calls.abandon(call), Some(1));
            }
            for again in [None, Some(0)] {
                let second = calls.answered(KIND_RESPONSE, call.0, again);
                assert_eq!(second, Err(unknown(call)), "it is being fetched");
            }
            assert_eq!(calls.fetched(call), (!is_given_up).then_some(1));
            assert_eq!(calls.in_use(), 0);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 4 } else { 256 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        /// Against an ordered map of deadlines: the same calls expire at the same looks, and the time
        /// of the next look is never late.
        #[test]
        fn calls_expire_when_a_map_of_deadlines_says_so(
            steps in prop::collection::vec((0_u8..3, any::<prop::sample::Index>(), 0_u64..300), 1..200)
        ) {
            let mut calls = Calls::new(8, 8);
            let mut model = BTreeMap::new();
            let mut now_ns = 0;
            for (what, at, ns) in steps {
                match what {
                    0 if calls.admit(1).is_ok() => {
                        let id = calls.open(0, 1, now_ns + ns);
                        model.insert(id.0, now_ns + ns);
                    }
                    1 if !model.is_empty() => {
                        let token = *model.keys().nth(at.index(model.len())).unwrap();
                        model.remove(&token);
                        prop_assert_eq!(calls.answered(0, token, Some(0)), Ok(Some(0)));
                        calls.close_batch(0, 0);
                    }
                    _ => now_ns += ns,
                }
                let mut passed = Vec::new();
                calls.expire(now_ns, |id, _| passed.push(id.0));
                passed.sort_unstable();
                let due: Vec<_> =
                    model.iter().filter(|(_, at)| **at <= now_ns).map(|(id, _)| *id).collect();
                prop_assert_eq!(&passed, &due);
                for token in due {
                    model.remove(&token);
                    prop_assert_eq!(calls.answered(0, token, Some(0)), Ok(None));
                }
                calls.close_batch(0, 0);
                let next = model.values().min();
                prop_assert!(next.is_none_or(|next| calls.expiry_ns().unwrap() <= *next));
            }
        }
    }
}
