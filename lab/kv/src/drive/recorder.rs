//! What a client asked and saw, and when, for the history.

use super::judge::{Call, JudgedAnswer};
use crate::{
    codec::{StoreOp, StoreStatus},
    history::{Act, HistoryEvent},
};

/// Operations that one client remembers, at most.
const EVENTS_MAX: usize = 4_000_000;

/// More operations than a client remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a client made more than {EVENTS_MAX} calls, which is all that it remembers for --verify full; \
     use a shorter --duration"
)]
pub struct HistoryFull;

/// One client's history.
#[derive(Clone, Debug, Default)]
pub struct HistoryRecorder {
    events: Vec<HistoryEvent>,
}

impl HistoryRecorder {
    /// Files a call; `None`: it has no answer.
    pub(crate) fn record(
        &mut self,
        call: &Call,
        verdict: Option<JudgedAnswer>,
        end_ns: u64,
    ) -> Result<(), HistoryFull> {
        let act = match (call.op, verdict) {
            (StoreOp::Get, None) => return Ok(()), // changed nothing, saw nothing
            (StoreOp::Put, _) => Act::Write(call.written),
            (StoreOp::Delete, None) => Act::RemoveAny,
            (StoreOp::Cas, None) => Act::Swap { expected: call.expected, new: call.written },
            (StoreOp::Cas, Some(JudgedAnswer { status: StoreStatus::Ok, .. })) => {
                Act::Swap { expected: call.expected, new: call.written }
            }
            (StoreOp::Delete, Some(verdict)) => Act::Remove(verdict.version),
            // A CAS that is refused has seen what was in its way.
            (StoreOp::Get | StoreOp::Cas, Some(verdict)) => Act::Read(verdict.version),
        };
        if self.events.len() == EVENTS_MAX {
            return Err(HistoryFull);
        }
        let end_ns = verdict.map(|_| end_ns);
        self.events.push(HistoryEvent { key: call.key, act, begin_ns: call.sent_ns, end_ns });
        Ok(())
    }

    /// The events that were recorded since the last call, in order.
    #[must_use]
    pub fn take_events(&mut self) -> Vec<HistoryEvent> {
        std::mem::take(&mut self.events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{codec::Version, place::Shard};

    const WRITTEN: Version = Version(5);
    const EXPECTED: Option<Version> = Some(Version(4));
    const SEEN: Option<Version> = Some(Version(3));

    fn recorded(
        op: StoreOp,
        verdict: Option<(StoreStatus, Option<Version>)>,
    ) -> Option<HistoryEvent> {
        let call = Call {
            op,
            key: 9,
            shard: Shard(0),
            is_local: true,
            written: WRITTEN,
            expected: EXPECTED,
            due_ns: 10,
            sent_ns: 20,
        };
        let mut recorder = HistoryRecorder::default();
        let verdict = verdict.map(|(status, version)| JudgedAnswer { status, version });
        recorder.record(&call, verdict, 30).unwrap();
        recorder.take_events().pop()
    }

    #[test]
    fn an_answer_is_what_was_seen_between_its_request_and_itself() {
        for (op, status, version, act) in [
            (StoreOp::Get, StoreStatus::Ok, SEEN, Act::Read(SEEN)),
            (StoreOp::Get, StoreStatus::NotFound, None, Act::Read(None)),
            (StoreOp::Put, StoreStatus::Ok, None, Act::Write(WRITTEN)),
            (StoreOp::Delete, StoreStatus::Ok, SEEN, Act::Remove(SEEN)),
            (StoreOp::Delete, StoreStatus::NotFound, None, Act::Remove(None)),
            (StoreOp::Cas, StoreStatus::Ok, None, Act::Swap { expected: EXPECTED, new: WRITTEN }),
            (StoreOp::Cas, StoreStatus::Mismatch, SEEN, Act::Read(SEEN)),
        ] {
            let expected = HistoryEvent { key: 9, act, begin_ns: 20, end_ns: Some(30) };
            assert_eq!(recorded(op, Some((status, version))), Some(expected), "{op:?} {status:?}");
        }
    }

    #[test]
    fn a_call_without_an_answer_may_have_happened_from_when_it_was_sent() {
        for (op, act) in [
            (StoreOp::Put, Act::Write(WRITTEN)),
            (StoreOp::Delete, Act::RemoveAny),
            (StoreOp::Cas, Act::Swap { expected: EXPECTED, new: WRITTEN }),
        ] {
            let expected = HistoryEvent { key: 9, act, begin_ns: 20, end_ns: None };
            assert_eq!(recorded(op, None), Some(expected), "{op:?}");
        }
        assert_eq!(recorded(StoreOp::Get, None), None, "a GET changes nothing");
    }
}
