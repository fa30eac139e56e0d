//! What a daemon sends back.

use serde::{Deserialize, Serialize};
use zerocopy::{
    FromBytes as _, IntoBytes as _,
    little_endian::{U32, U64},
};

use super::{HEAD_BYTES, Head, StoreOp, VALUE_BYTES_MAX, Version, from_version, to_version};

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum StoreStatus {
    /// Done.
    Ok = 0,
    /// The key has no value.
    NotFound = 1,
    /// The version was not the expected one; nothing changed.
    Mismatch = 2,
    /// The store is full; nothing changed.
    NoRoom = 3,
    /// Another shard owns the key; nothing changed.
    WrongShard = 4,
    /// The request made no sense; nothing changed.
    Malformed = 5,
}

impl StoreStatus {
    const ALL: [Self; 6] =
        [Self::Ok, Self::NotFound, Self::Mismatch, Self::NoRoom, Self::WrongShard, Self::Malformed];
}

/// An answer that makes sense by itself; whether it answers the question is for the client to judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// The operation that was asked for; `None` if that could not be read.
    pub op: Option<StoreOp>,
    /// What became of it.
    pub status: StoreStatus,
    /// The tag of the request.
    pub tag: u32,
    /// The key of the request.
    pub key: u64,
    /// Of the value found (GET), removed (DELETE) or in the way (CAS); `None` if there is none.
    pub version: Option<Version>,
    /// What a GET found; else empty.
    pub value: &'a [u8],
}

/// Why bytes are no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// Not even a head.
    #[error("an answer of {len_bytes} B is shorter than its head of {HEAD_BYTES} B")]
    Short {
        /// Bytes there are.
        len_bytes: usize,
    },
    /// No such operation.
    #[error("an answer to operation {0}, which does not exist")]
    Op(u8),
    /// No such status.
    #[error("status {0} does not exist")]
    Status(u8),
    /// A field that must be zero is not.
    #[error("an answer has a reserved field set")]
    Reserved,
    /// Only a GET that found something returns a value.
    #[error("an answer to {op:?} with status {status:?} carries a value of {len_bytes} B")]
    Value {
        /// The operation.
        op: Option<StoreOp>,
        /// The status.
        status: StoreStatus,
        /// Bytes of the value.
        len_bytes: usize,
    },
}

impl<'a> Answer<'a> {
    /// Reads one message.
    ///
    /// # Errors
    ///
    /// [`AnswerError`].
    pub fn read(bytes: &'a [u8]) -> Result<Self, AnswerError> {
        let (head, value) = Head::ref_from_prefix(bytes)
            .map_err(|_| AnswerError::Short { len_bytes: bytes.len() })?;
        let op = match head.op {
            0 => None,
            byte => Some(StoreOp::from_byte(byte).ok_or(AnswerError::Op(byte))?),
        };
        let status = StoreStatus::ALL.into_iter().find(|&status| status as u8 == head.status);
        let status = status.ok_or(AnswerError::Status(head.status))?;
        if head.reserved != [0; 2] {
            return Err(AnswerError::Reserved);
        }
        let may_have_value = op == Some(StoreOp::Get) && status == StoreStatus::Ok;
        if value.len() > if may_have_value { VALUE_BYTES_MAX } else { 0 } {
            return Err(AnswerError::Value { op, status, len_bytes: value.len() });
        }
        let (tag, key, version) = (head.tag.get(), head.key.get(), from_version(head.version));
        Ok(Self { op, status, tag, key, version, value })
    }

    /// Appends the message to `bytes`.
    pub fn write(&self, bytes: &mut Vec<u8>) {
        let head = Head {
            op: self.op.map_or(0, |op| op as u8),
            status: self.status as u8,
            reserved: [0; 2],
            tag: U32::new(self.tag),
            key: U64::new(self.key),
            version: to_version(self.version),
        };
        bytes.extend_from_slice(head.as_bytes());
        bytes.extend_from_slice(self.value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOUND: Answer<'_> = Answer {
        op: Some(StoreOp::Get),
        status: StoreStatus::Ok,
        tag: 9,
        key: 7,
        version: Some(Version(3)),
        value: b"value",
    };

    fn bytes_of(answer: &Answer<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        answer.write(&mut bytes);
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        for answer in [
            FOUND,
            Answer { status: StoreStatus::NotFound, version: None, value: b"", ..FOUND },
            Answer { op: None, status: StoreStatus::Malformed, value: b"", ..FOUND },
        ] {
            assert_eq!(Answer::read(&bytes_of(&answer)), Ok(answer));
        }
    }

    #[test]
    fn each_kind_of_nonsense_has_its_error() {
        let good = bytes_of(&FOUND);
        let with = |index: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[index] = byte;
            bytes
        };
        assert_eq!(Answer::read(&good[..5]), Err(AnswerError::Short { len_bytes: 5 }));
        assert_eq!(Answer::read(&with(0, 77)), Err(AnswerError::Op(77)));
        assert_eq!(Answer::read(&with(1, 6)), Err(AnswerError::Status(6)));
        assert_eq!(Answer::read(&with(2, 1)), Err(AnswerError::Reserved));
        let (op, len_bytes) = (Some(StoreOp::Put), 5);
        let error = AnswerError::Value { op, status: StoreStatus::Ok, len_bytes };
        assert_eq!(Answer::read(&with(0, StoreOp::Put as u8)), Err(error));
    }
}
