//! Is this the answer to what was asked? Decided with the client's own memory alone.

use crate::{
    backend::CallToken,
    codec::{
        Answer, AnswerError, StoreOp, StoreStatus, Version,
        value::{self, INITIAL, ValueBytesError},
    },
    place::{ClientId, Shard},
    workload::{ValueSize, Workload},
};

/// A call, as it was asked.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub(crate) op: StoreOp,
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
pub struct JudgedAnswer {
    /// What became of the request.
    pub status: StoreStatus,
    /// The version that was found, removed or in the way.
    pub version: Option<Version>,
}

impl JudgedAnswer {
    /// The key's version when the call was carried out, as far as the answer tells.
    pub(crate) fn present(self, call: &Call) -> Option<Version> {
        match (call.op, self.status) {
            (StoreOp::Put | StoreOp::Cas, StoreStatus::Ok) => Some(call.written),
            (StoreOp::Delete, _) => None,
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
        asked: StoreOp,
        /// The key that was asked for.
        key: u64,
        /// The tag that was sent.
        tag: u32,
        /// What the answer says.
        got: Got,
    },
    /// A value is not what it says.
    #[error(transparent)]
    Value(#[from] ValueBytesError),
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
    #[error("key {key:#x} has version {version:#x}, which no client wrote")]
    Unwritten {
        /// The key.
        key: u64,
        /// The version.
        version: u64,
    },
    /// No value of this workload has this length.
    #[error("key {key:#x} has a value of {len_bytes} B, which no client wrote")]
    Length {
        /// The key.
        key: u64,
        /// Of the value.
        len_bytes: usize,
    },
    /// The key is there: nobody deletes.
    #[error("key {key:#x} is not found, though no client deletes keys")]
    Vanished {
        /// The key.
        key: u64,
    },
    /// Not a possible outcome of this operation.
    #[error("{op:?} of key {key:#x} ended with {status:?}, version {version:?}")]
    Outcome {
        /// The operation.
        op: StoreOp,
        /// The key.
        key: u64,
        /// Its status.
        status: StoreStatus,
        /// Its version.
        version: Option<Version>,
    },
}

/// What an answer says it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Got {
    op: Option<StoreOp>,
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
pub(super) fn tag_of(token: CallToken) -> u32 {
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
        token: CallToken,
        bytes: &[u8],
        writes: u64,
    ) -> Result<JudgedAnswer, Violation> {
        let answer = Answer::read(bytes)?;
        let tag = tag_of(token);
        if (answer.op, answer.key, answer.tag) != (Some(call.op), call.key, tag) {
            let got = Got { op: answer.op, key: answer.key, tag: answer.tag };
            return Err(Violation::Other { asked: call.op, key: call.key, tag, got });
        }
        let Answer { status, version, value, .. } = answer;
        let key = call.key;
        let is_possible = match (call.op, status) {
            (StoreOp::Get, StoreStatus::Ok) => {
                self.judge_value(key, version, value)?;
                true
            }
            (StoreOp::Delete, StoreStatus::Ok) => version.is_some(),
            (StoreOp::Get | StoreOp::Delete, StoreStatus::NotFound) => version.is_none(),
            (StoreOp::Cas, StoreStatus::Mismatch) => version != call.expected,
            (StoreOp::Put | StoreOp::Cas, StoreStatus::Ok) => version.is_none(),
            _ => false,
        };
        if !is_possible {
            return Err(Violation::Outcome { op: call.op, key, status, version });
        }
        let is_absent = match status {
            StoreStatus::NotFound => true,
            StoreStatus::Mismatch => version.is_none(),
            _ => false,
        };
        if is_absent && !self.has_deletes {
            return Err(Violation::Vanished { key });
        }
        version.map_or(Ok(()), |version| self.judge_version(key, version, writes))?;
        Ok(JudgedAnswer { status, version })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Mix;

    const ME: ClientId = ClientId(1);
    const OTHER: ClientId = ClientId(0);
    const NOBODY: ClientId = ClientId(2);
    const KEY: u64 = 0x55;
    const TOKEN: CallToken = CallToken(7);
    /// Versions that this client has given away.
    const WRITES: u64 = 5;

    fn call(op: StoreOp) -> Call {
        let (shard, is_local) = (Shard(0), true);
        let (written, expected) = (Version::of(ME, WRITES - 1), Some(INITIAL));
        Call { op, key: KEY, shard, is_local, written, expected, due_ns: 0, sent_ns: 0 }
    }

    fn value(key: u64, version: Version, len_bytes: usize) -> Vec<u8> {
        let mut bytes = vec![0; len_bytes];
        value::fill(&mut bytes, key, version);
        bytes
    }

    /// Two clients, values of 32 to 64 B.
    fn judge(deletes: u8, op: StoreOp, answer: Answer<'_>) -> Result<JudgedAnswer, Violation> {
        let workload = Workload {
            clients_per_rank: 1,
            mix: Mix { get: 50, delete: deletes, cas: 10 },
            value_size: ValueSize { min_bytes: 32, max_bytes: 64 },
            ..Workload::default()
        };
        let mut bytes = Vec::new();
        answer.write(&mut bytes);
        Judge::new(&workload, ME).judge(&call(op), TOKEN, &bytes, WRITES)
    }

    fn answer(op: StoreOp, status: StoreStatus, version: Option<Version>) -> Answer<'static> {
        Answer { op: Some(op), status, tag: tag_of(TOKEN), key: KEY, version, value: &[] }
    }

    fn found(version: Version, value: &[u8]) -> Answer<'_> {
        Answer { value, ..answer(StoreOp::Get, StoreStatus::Ok, Some(version)) }
    }

    #[test]
    fn fault_k1_every_possible_outcome_is_believed() {
        use StoreStatus::{Mismatch, NotFound, Ok};
        let theirs = Version::of(OTHER, 1 << 30);
        for (op, status, version) in [
            (StoreOp::Put, Ok, None),
            (StoreOp::Cas, Ok, None),
            (StoreOp::Cas, Mismatch, Some(theirs)),
            (StoreOp::Cas, Mismatch, None),
            (StoreOp::Get, NotFound, None),
            (StoreOp::Delete, NotFound, None),
            (StoreOp::Delete, Ok, Some(INITIAL)),
        ] {
            let verdict = judge(5, op, answer(op, status, version));
            assert_eq!(verdict, Result::Ok(JudgedAnswer { status, version }), "{op:?} {status:?}");
        }
        for (version, len_bytes) in [(INITIAL, 32), (theirs, 64), (Version::of(ME, WRITES - 1), 50)]
        {
            let verdict = judge(0, StoreOp::Get, found(version, &value(KEY, version, len_bytes)));
            assert_eq!(verdict, Result::Ok(JudgedAnswer { status: Ok, version: Some(version) }));
        }
    }

    #[test]
    fn fault_k1_an_answer_to_another_request_is_refused() {
        let right = answer(StoreOp::Put, StoreStatus::Ok, None);
        for wrong in [
            Answer { op: Some(StoreOp::Delete), ..right },
            Answer { op: None, ..right },
            Answer { key: KEY + 1, ..right },
            Answer { tag: right.tag ^ 1, ..right },
        ] {
            let refused = judge(5, StoreOp::Put, wrong);
            assert!(matches!(refused, Err(Violation::Other { .. })), "{wrong:?}: {refused:?}");
        }
    }

    #[test]
    fn fault_k1_an_outcome_that_the_operation_does_not_have_is_refused() {
        use StoreStatus::{Malformed, Mismatch, NoRoom, NotFound, Ok, WrongShard};
        let some = Some(INITIAL);
        for (op, status, version) in [
            (StoreOp::Put, Ok, some),
            (StoreOp::Cas, Ok, some),
            (StoreOp::Put, NotFound, None),
            (StoreOp::Put, Mismatch, some),
            (StoreOp::Cas, NotFound, None),
            (StoreOp::Cas, Mismatch, some), // what was expected is not in the way
            (StoreOp::Get, NotFound, some),
            (StoreOp::Get, Mismatch, some),
            (StoreOp::Delete, NotFound, some),
            (StoreOp::Delete, Ok, None),
            (StoreOp::Get, Malformed, None),
            (StoreOp::Get, WrongShard, None),
            (StoreOp::Put, NoRoom, None),
        ] {
            let refused = judge(5, op, answer(op, status, version));
            assert!(
                matches!(refused, Err(Violation::Outcome { .. })),
                "{op:?} {status:?}: {refused:?}"
            );
        }
    }

    #[test]
    fn fault_k1_a_key_that_vanished_is_missed_where_nobody_deletes() {
        for (op, status) in
            [(StoreOp::Get, StoreStatus::NotFound), (StoreOp::Cas, StoreStatus::Mismatch)]
        {
            let refused = judge(0, op, answer(op, status, None));
            assert_eq!(refused, Err(Violation::Vanished { key: KEY }), "{op:?}");
        }
    }

    #[test]
    fn fault_k1_a_value_that_is_not_what_it_says_is_refused() {
        let refused = |version: Version, bytes: &[u8]| {
            judge(0, StoreOp::Get, found(version, bytes)).unwrap_err()
        };
        let theirs = Version::of(OTHER, 3);
        let wrong = refused(theirs, &value(KEY + 1, theirs, 40));
        assert_eq!(wrong, Violation::Key { key: KEY, got: KEY + 1 });
        let wrong = refused(theirs, &value(KEY, INITIAL, 40));
        assert_eq!(wrong, Violation::Versions { head: theirs.0, value: INITIAL.0 });
        for len_bytes in [31, 65] {
            let wrong = refused(theirs, &value(KEY, theirs, len_bytes));
            assert_eq!(wrong, Violation::Length { key: KEY, len_bytes });
        }
        let mut broken = value(KEY, theirs, 40);
        broken[39] ^= 1;
        assert!(matches!(refused(theirs, &broken), Violation::Value(_)));
    }

    #[test]
    fn fault_k1_a_version_that_nobody_can_have_written_is_refused() {
        for version in
            [Version(1), Version::of(ME, WRITES), Version::of(NOBODY, 0), Version(u64::MAX - 1)]
        {
            let unwritten = Err(Violation::Unwritten { key: KEY, version: version.0 });
            assert_eq!(judge(0, StoreOp::Get, found(version, &value(KEY, version, 40))), unwritten);
            for (op, status) in
                [(StoreOp::Delete, StoreStatus::Ok), (StoreOp::Cas, StoreStatus::Mismatch)]
            {
                assert_eq!(judge(5, op, answer(op, status, Some(version))), unwritten, "{op:?}");
            }
        }
    }
}
