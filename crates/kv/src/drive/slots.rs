//! The calls that have no answer yet: as many as the queue depth, each with a token that is used once.
//!
//! ```text
//! token   63 … 32   31 … 0
//!         │ lap   │ slot  │
//! ```

use std::collections::HashSet;

use super::judge::{Call, Verdict, Violation};
use crate::backend::{Failure, Token};

/// Calls given up whose answer may still come; beyond this, one that comes late is a surprise.
const GIVEN_UP_MAX: usize = 1 << 20;
const SLOT_BITS: u32 = 32;

/// A call that came to an end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settled {
    pub(super) call: Call,
    pub(super) result: Result<Verdict, Failure>,
}

#[derive(Debug)]
struct Slot {
    /// How often it was used.
    lap: u32,
    call: Option<Call>,
}

#[derive(Debug)]
pub(super) struct Slots {
    slots: Box<[Slot]>,
    free: Vec<u32>,
    given_up: HashSet<Token>,
}

impl Slots {
    pub(super) fn new(depth: u32) -> Self {
        let slot = |_| Slot { lap: 0, call: None };
        let slots = (0..depth).map(slot).collect();
        Self { slots, free: (0..depth).rev().collect(), given_up: HashSet::new() }
    }

    pub(super) fn depth(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    #[expect(clippy::cast_possible_truncation, reason = "the depth is a u32")]
    pub(super) fn outstanding(&self) -> u32 {
        (self.slots.len() - self.free.len()) as u32
    }

    /// The token that the next call has.
    ///
    /// # Panics
    ///
    /// If there is no room.
    pub(super) fn next_token(&self) -> Token {
        let slot = *self.free.last().expect("the caller has seen that there is room");
        let lap = self.slots[slot as usize].lap;
        Token(u64::from(lap) << SLOT_BITS | u64::from(slot))
    }

    /// The call of [`Self::next_token`] is on its way.
    pub(super) fn occupy(&mut self, token: Token, call: Call) {
        let slot = self.free.pop().expect("as in `next_token`");
        debug_assert_eq!(token.0 & u64::from(u32::MAX), u64::from(slot));
        self.slots[slot as usize].call = Some(call);
    }

    /// The call of `token` has an answer; `None`: it was given up before.
    pub(super) fn settle(&mut self, token: Token) -> Result<Option<Call>, Violation> {
        let surprise = Violation::Surprise { token: token.0 };
        let index = usize::try_from(token.0 & u64::from(u32::MAX)).unwrap_or(usize::MAX);
        let slot = self.slots.get_mut(index).ok_or(surprise)?;
        if u64::from(slot.lap) == token.0 >> SLOT_BITS
            && let Some(call) = slot.call.take()
        {
            slot.lap = slot.lap.wrapping_add(1);
            self.free.push(u32::try_from(index).unwrap_or(u32::MAX));
            return Ok(Some(call));
        }
        if self.given_up.remove(&token) { Ok(None) } else { Err(surprise) }
    }

    /// Gives up the calls that `is_chosen`.
    pub(super) fn abandon(
        &mut self,
        is_chosen: impl Fn(&Call) -> bool,
        mut sink: impl FnMut(Call),
    ) {
        for (slot, index) in self.slots.iter_mut().zip(0_u32..) {
            if let Some(call) = slot.call.take_if(|call| is_chosen(call)) {
                if self.given_up.len() < GIVEN_UP_MAX {
                    let token = u64::from(slot.lap) << SLOT_BITS | u64::from(index);
                    self.given_up.insert(Token(token));
                }
                slot.lap = slot.lap.wrapping_add(1);
                self.free.push(index);
                sink(call);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        codec::{Op, Version},
        place::Shard,
    };

    fn call(key: u64) -> Call {
        let (shard, written) = (Shard(0), Version(0));
        let (is_local, expected, due_ns, sent_ns) = (true, None, 0, 0);
        Call { op: Op::Get, key, shard, is_local, written, expected, due_ns, sent_ns }
    }

    fn occupied(slots: &mut Slots, key: u64) -> Token {
        let token = slots.next_token();
        slots.occupy(token, call(key));
        token
    }

    fn is_surprise(slots: &mut Slots, token: Token) -> bool {
        matches!(slots.settle(token), Err(Violation::Surprise { .. }))
    }

    #[test]
    fn fault_k1_a_second_answer_is_a_surprise_also_when_the_slot_has_another_call() {
        let mut slots = Slots::new(1);
        let first = occupied(&mut slots, 1);
        assert_eq!((slots.is_full(), slots.outstanding()), (true, 1));
        assert_eq!(slots.settle(first).unwrap().unwrap().key, 1);
        assert!(is_surprise(&mut slots, first));
        let second = occupied(&mut slots, 2);
        assert!(is_surprise(&mut slots, first), "not an answer to the second call");
        assert_eq!(slots.settle(second).unwrap().unwrap().key, 2);
        assert!(is_surprise(&mut slots, Token(1)), "there is no such slot");
    }

    #[test]
    fn fault_k1_a_call_that_was_given_up_may_be_answered_once() {
        let mut slots = Slots::new(2);
        let (first, second) = (occupied(&mut slots, 1), occupied(&mut slots, 2));
        let mut given_up = Vec::new();
        slots.abandon(|call| call.key == 1, |call| given_up.push(call.key));
        assert_eq!((given_up, slots.outstanding()), (vec![1], 1));
        let third = occupied(&mut slots, 3);
        assert!(matches!(slots.settle(first), Ok(None)), "late");
        assert!(is_surprise(&mut slots, first), "late, and twice");
        assert_eq!(slots.settle(third).unwrap().unwrap().key, 3);
        assert_eq!(slots.settle(second).unwrap().unwrap().key, 2);
    }
}
