//! What each client asked and saw, and when: what linearizability is judged by.

mod linear;

use serde::{Deserialize, Serialize};

pub use linear::{CheckError, Report, check};

use crate::{
    codec::{Op, Status, Version},
    drive::Verdict,
};

/// Operations that one client remembers, at most.
const EVENTS_MAX: usize = 4_000_000;

/// An operation of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Of which key.
    pub key: u64,
    /// What was asked, and what came of it.
    pub act: Act,
    /// Not carried out before this.
    pub begin_ns: u64,
    /// Carried out before this; `None`: nobody knows whether it was, or will be.
    pub end_ns: Option<u64>,
}

/// An operation on a register that holds a version or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Act {
    /// Saw this.
    Read(Option<Version>),
    /// Wrote this.
    Write(Version),
    /// Removed what was there: this.
    Remove(Option<Version>),
    /// Wrote `new` because `expected` was there.
    Swap {
        /// Was there.
        expected: Option<Version>,
        /// Is there now.
        new: Version,
    },
    /// Removed what was there, but nobody knows what (only without an end).
    RemoveAny,
}

/// More operations than a client remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a client made more than {EVENTS_MAX} calls, which is all that it remembers for --verify full; \
     use a shorter --duration"
)]
pub struct HistoryFull;

/// One client's history.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    events: Vec<Event>,
}

impl Recorder {
    /// Files a call; `None`: it has no answer.
    pub(crate) fn record(
        &mut self,
        call: &crate::drive::Call,
        verdict: Option<Verdict>,
        end_ns: u64,
    ) -> Result<(), HistoryFull> {
        let act = match (call.op, verdict) {
            (Op::Get, None) => return Ok(()), // changed nothing, saw nothing
            (Op::Put, _) => Act::Write(call.written),
            (Op::Delete, None) => Act::RemoveAny,
            (Op::Cas, None) => Act::Swap { expected: call.expected, new: call.written },
            (Op::Cas, Some(Verdict { status: Status::Ok, .. })) => {
                Act::Swap { expected: call.expected, new: call.written }
            }
            (Op::Delete, Some(verdict)) => Act::Remove(verdict.version),
            // A CAS that is refused has seen what was in its way.
            (Op::Get | Op::Cas, Some(verdict)) => Act::Read(verdict.version),
        };
        if self.events.len() == EVENTS_MAX {
            return Err(HistoryFull);
        }
        let end_ns = verdict.map(|_| end_ns);
        self.events.push(Event { key: call.key, act, begin_ns: call.sent_ns, end_ns });
        Ok(())
    }

    /// What was recorded.
    #[must_use]
    pub fn into_events(self) -> Vec<Event> {
        self.events
    }
}
