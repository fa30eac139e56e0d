//! Is this the answer to what was asked? Decided with the client's own memory alone.

use crate::{
    backend::Token,
    codec::{
        Answer, AnswerError, Op, Status, Version,
        value::{self, INITIAL, ValueError},
    },
    place::{ClientId, Shard},
    workload::{ValueSize, Workload},
};

/// What was asked.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub(crate) op: Op,
    pub(crate) key: u64,
    pub(crate) shard: Shard,
    pub(crate) is_local: bool,
    /// The version that it writes, if it writes.
    pub(crate) written: Version,
    /// The version that a CAS expects.
    pub(crate) expected: Option<Version>,
    /// Intended start.
    pub(crate) due_ns: u64,
    /// Actual start.
    pub(crate) sent_ns: u64,
}

/// What a right answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What became of the request.
    pub status: Status,
    /// The version that was found, removed or in the way.
    pub version: Option<Version>,
}

impl Verdict {
    /// The key's version when the call was carried out, as far as the answer tells.
    pub(crate) fn present(self, call: &Call) -> Option<Version> {
        match (call.op, self.status) {
            (Op::Put | Op::Cas, Status::Ok) => Some(call.written),
            (Op::Delete, _) => None,
            _ => self.version,
        }
    }
}

/// A wrong answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Its bytes make no sense.
    #[error(transparent)]
    Answer(#[from] AnswerError),
    /// A second answer, or one to a call that was never made.
    #[error("an answer for token {token:#x}, which waits for none: a duplicate, or made up")]
    Surprise {
        /// The token.
        token: u64,
    },
    /// It answers another request.
    #[error("asked {asked:?} of key {key:#x} (tag {tag:#x}), got an answer to {got}")]
    Other {
        /// The operation that was asked for.
        asked: Op,
        /// The key that was asked for.
        key: u64,
        /// The tag that was sent.
        tag: u32,
        /// What the answer says.
        got: Got,
    },
    /// A value is not what it says.
    #[error(transparent)]
    Value(#[from] ValueError),
    /// A value of another key.
    #[error("asked for key {key:#x}, got a value of key {got:#x}")]
    Key {
        /// Asked for.
        key: u64,
        /// Got.
        got: u64,
    },
    /// Head and value do not agree on the version.
    #[error("the head says version {head:#x}, the value {value:#x}")]
    Versions {
        /// Of the head.
        head: u64,
        /// Of the value.
        value: u64,
    },
    /// Nobody can have written this version.
    #[error("key {key:#x} has version {version:#x}, which nobody wrote")]
    Unwritten {
        /// The key.
        key: u64,
        /// The version.
        version: u64,
    },
    /// No value of this workload has this length.
    #[error("key {key:#x} has a value of {len_bytes} B, which nobody wrote")]
    Length {
        /// The key.
        key: u64,
        /// Of the value.
        len_bytes: usize,
    },
    /// The key is there: nobody deletes.
    #[error("key {key:#x} is not found, though nobody deletes keys")]
    Vanished {
        /// The key.
        key: u64,
    },
    /// Not a possible outcome of this operation.
    #[error("{op:?} of key {key:#x} ended with {status:?}, version {version:?}")]
    Outcome {
        /// The operation.
        op: Op,
        /// The key.
        key: u64,
        /// Its status.
        status: Status,
        /// Its version.
        version: Option<Version>,
    },
}

/// What an answer says it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Got {
    op: Option<Op>,
    key: u64,
    tag: u32,
}

impl std::fmt::Display for Got {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} of key {:#x} (tag {:#x})", self.op, self.key, self.tag)
    }
}

/// The tag of a call: of two calls that are outstanding together, or one after the other, no two
/// have the same.
#[expect(clippy::cast_possible_truncation, reason = "mixed so that every bit counts")]
pub(super) fn tag_of(token: Token) -> u32 {
    crate::rng::mix64(token.0) as u32
}

/// What a client knows that is true of every answer.
#[derive(Debug)]
pub(super) struct Judge {
    me: ClientId,
    clients: u16,
    value_size: ValueSize,
    has_deletes: bool,
}

impl Judge {
    pub(super) fn new(workload: &Workload, me: ClientId) -> Self {
        Self {
            me,
            clients: workload.topology().clients(),
            value_size: workload.value_size,
            has_deletes: workload.mix.delete > 0,
        }
    }

    /// Judges the answer in `bytes`; `writes` is how many versions this client has given away.
    pub(super) fn judge(
        &self,
        call: &Call,
        token: Token,
        bytes: &[u8],
        writes: u64,
    ) -> Result<Verdict, Violation> {
        let answer = Answer::read(bytes)?;
        let tag = tag_of(token);
        if (answer.op, answer.key, answer.tag) != (Some(call.op), call.key, tag) {
            let got = Got { op: answer.op, key: answer.key, tag: answer.tag };
            return Err(Violation::Other { asked: call.op, key: call.key, tag, got });
        }
        let Answer { status, version, value, .. } = answer;
        let key = call.key;
        let is_possible = match (call.op, status) {
            (Op::Get, Status::Ok) => {
                self.judge_value(key, version, value)?;
                true
            }
            (Op::Delete, Status::Ok) => version.is_some(),
            (Op::Get | Op::Delete, Status::NotFound) => version.is_none(),
            (Op::Cas, Status::Mismatch) => version != call.expected,
            (Op::Put | Op::Cas, Status::Ok) => version.is_none(),
            _ => false,
        };
        if !is_possible {
            return Err(Violation::Outcome { op: call.op, key, status, version });
        }
        let is_absent = match status {
            Status::NotFound => true,
            Status::Mismatch => version.is_none(),
            _ => false,
        };
        if is_absent && !self.has_deletes {
            return Err(Violation::Vanished { key });
        }
        version.map_or(Ok(()), |version| self.judge_version(key, version, writes))?;
        Ok(Verdict { status, version })
    }

    fn judge_value(&self, key: u64, head: Option<Version>, bytes: &[u8]) -> Result<(), Violation> {
        let (got, version) = value::read(bytes)?;
        let ValueSize { min_bytes, max_bytes } = self.value_size;
        if got != key {
            return Err(Violation::Key { key, got });
        }
        if head != Some(version) {
            let head = head.map_or(u64::MAX, |head| head.0);
            return Err(Violation::Versions { head, value: version.0 });
        }
        if !(min_bytes..=max_bytes).contains(&bytes.len()) {
            return Err(Violation::Length { key, len_bytes: bytes.len() });
        }
        Ok(())
    }

    fn judge_version(&self, key: u64, version: Version, writes: u64) -> Result<(), Violation> {
        let is_written = match version.writer() {
            None => version == INITIAL,
            Some(writer) if writer == self.me => version.count() < writes,
            Some(writer) => writer.0 < self.clients,
        };
        if is_written { Ok(()) } else { Err(Violation::Unwritten { key, version: version.0 }) }
    }
}
