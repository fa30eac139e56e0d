//! The calls that have no answer yet: as many as the queue depth, each with a token that is used once.

use std::collections::HashSet;

use ids::slots::{Key, SlotTable};

use super::judge::{Call, JudgedAnswer, Violation};
use crate::backend::{CallFailure, CallToken};

/// Calls given up whose answer may still come; beyond this, one that comes late is a surprise.
const ABANDONED_MAX: usize = 1 << 20;

/// A call that came to an end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settled {
    pub(super) call: Call,
    pub(super) result: Result<JudgedAnswer, CallFailure>,
}

/// Outstanding calls by [`CallToken`], which is the call's [`Key`] as a number.
#[derive(Debug)]
pub(super) struct CallTable {
    calls: SlotTable<Call>,
    abandoned: HashSet<CallToken>,
}

impl CallTable {
    pub(super) fn new(depth: u32) -> Self {
        Self { calls: SlotTable::bounded(depth), abandoned: HashSet::new() }
    }

    pub(super) fn depth(&self) -> usize {
        self.calls.slots_max() as usize
    }

    pub(super) fn is_full(&self) -> bool {
        self.calls.is_full()
    }

    #[expect(clippy::cast_possible_truncation, reason = "the depth is a u32")]
    pub(super) fn outstanding(&self) -> u32 {
        self.calls.len() as u32
    }

    /// A call is about to be submitted, under this token.
    ///
    /// # Panics
    ///
    /// If there is no room.
    pub(super) fn insert(&mut self, call: Call) -> CallToken {
        let key = self.calls.insert(call).expect("the caller has seen that there is room");
        CallToken(key.to_u64())
    }

    /// The call of `token` was not submitted.
    pub(super) fn withdraw(&mut self, token: CallToken) {
        Key::from_u64(token.0).and_then(|key| self.calls.remove(key));
    }

    /// The call of `token` has an answer; `None`: it was given up before.
    pub(super) fn settle(&mut self, token: CallToken) -> Result<Option<Call>, Violation> {
        if let Some(call) = Key::from_u64(token.0).and_then(|key| self.calls.remove(key)) {
            return Ok(Some(call));
        }
        let surprise = Violation::Surprise { token: token.0 };
        if self.abandoned.remove(&token) { Ok(None) } else { Err(surprise) }
    }

    /// Gives up the calls that `is_chosen`.
    pub(super) fn abandon(
        &mut self,
        is_chosen: impl Fn(&Call) -> bool,
        mut sink: impl FnMut(Call),
    ) {
        let chosen = self.calls.iter().filter(|(_, call)| is_chosen(call)).map(|(key, _)| key);
        for key in chosen.collect::<Vec<_>>() {
            if self.abandoned.len() < ABANDONED_MAX {
                self.abandoned.insert(CallToken(key.to_u64()));
            }
            self.calls.remove(key).map(&mut sink);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        codec::{StoreOp, Version},
        place::Shard,
    };

    fn call(key: u64) -> Call {
        let (shard, written) = (Shard(0), Version(0));
        let (is_local, expected, due_ns, sent_ns) = (true, None, 0, 0);
        Call { op: StoreOp::Get, key, shard, is_local, written, expected, due_ns, sent_ns }
    }

    fn is_surprise(calls: &mut CallTable, token: CallToken) -> bool {
        matches!(calls.settle(token), Err(Violation::Surprise { .. }))
    }

    #[test]
    fn fault_k1_a_second_answer_is_a_surprise_also_when_the_slot_has_another_call() {
        let mut calls = CallTable::new(1);
        let first = calls.insert(call(1));
        assert_eq!((calls.is_full(), calls.outstanding()), (true, 1));
        assert_eq!(calls.settle(first).unwrap().unwrap().key, 1);
        assert!(is_surprise(&mut calls, first));
        let second = calls.insert(call(2));
        assert!(is_surprise(&mut calls, first), "not an answer to the second call");
        assert_eq!(calls.settle(second).unwrap().unwrap().key, 2);
        assert!(is_surprise(&mut calls, CallToken(1)), "no call was ever named so");
    }

    #[test]
    fn fault_k1_a_call_that_was_given_up_may_be_answered_once() {
        let mut calls = CallTable::new(2);
        let (first, second) = (calls.insert(call(1)), calls.insert(call(2)));
        let mut given_up = Vec::new();
        calls.abandon(|call| call.key == 1, |call| given_up.push(call.key));
        assert_eq!((given_up, calls.outstanding()), (vec![1], 1));
        let third = calls.insert(call(3));
        assert!(matches!(calls.settle(first), Ok(None)), "late");
        assert!(is_surprise(&mut calls, first), "late, and twice");
        assert_eq!(calls.settle(third).unwrap().unwrap().key, 3);
        assert_eq!(calls.settle(second).unwrap().unwrap().key, 2);
    }
}
