//! What a client sends.

use zerocopy::{
    FromBytes as _, IntoBytes as _,
    little_endian::{U32, U64},
};

use super::{HEAD_BYTES, Head, StoreOp, VALUE_BYTES_MAX, Version, from_version, to_version};

/// A request that makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Chosen by the client, repeated in the answer.
    pub tag: u32,
    /// Whose value.
    pub key: u64,
    /// What is to happen to it.
    pub action: StoreCommand<'a>,
}

/// What is to happen to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreCommand<'a> {
    /// Return the value.
    Get,
    /// Store this value.
    Put {
        /// See [`super::value`].
        value: &'a [u8],
    },
    /// Remove the value.
    Delete,
    /// Store this value if the present one has this version (`None`: if there is none).
    Cas {
        /// What the client believes to be there.
        expected: Option<Version>,
        /// See [`super::value`].
        value: &'a [u8],
    },
}

impl<'a> StoreCommand<'a> {
    /// Its operation.
    #[must_use]
    pub fn op(&self) -> StoreOp {
        match self {
            Self::Get => StoreOp::Get,
            Self::Put { .. } => StoreOp::Put,
            Self::Delete => StoreOp::Delete,
            Self::Cas { .. } => StoreOp::Cas,
        }
    }

    /// The value that it writes.
    #[must_use]
    pub fn value(&self) -> Option<&'a [u8]> {
        match self {
            Self::Put { value } | Self::Cas { value, .. } => Some(value),
            Self::Get | Self::Delete => None,
        }
    }
}

/// Why bytes are no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Not even a head.
    #[error("a request of {len_bytes} B is shorter than its head of {HEAD_BYTES} B")]
    Short {
        /// Bytes there are.
        len_bytes: usize,
    },
    /// No such operation.
    #[error("operation {0} does not exist")]
    Op(u8),
    /// A field that must be zero for this operation is not.
    #[error("a request of {0:?} has a field set that it does not have")]
    Reserved(StoreOp),
    /// GET and DELETE carry none.
    #[error("a request of {op:?} carries a value of {len_bytes} B; it must have none")]
    Value {
        /// The operation.
        op: StoreOp,
        /// Bytes of the value.
        len_bytes: usize,
    },
    /// No value is that long.
    #[error("a value of {len_bytes} B is longer than {VALUE_BYTES_MAX} B")]
    Long {
        /// Bytes of the value.
        len_bytes: usize,
    },
}

impl<'a> Request<'a> {
    /// Reads one message.
    ///
    /// # Errors
    ///
    /// [`RequestError`].
    pub fn read(bytes: &'a [u8]) -> Result<Self, RequestError> {
        let (head, value) = Head::ref_from_prefix(bytes)
            .map_err(|_| RequestError::Short { len_bytes: bytes.len() })?;
        let op = StoreOp::from_byte(head.op).ok_or(RequestError::Op(head.op))?;
        let is_version_used = op == StoreOp::Cas;
        if head.status != 0
            || head.reserved != [0; 2]
            || (head.version.get() != 0 && !is_version_used)
        {
            return Err(RequestError::Reserved(op));
        }
        if value.len() > VALUE_BYTES_MAX {
            return Err(RequestError::Long { len_bytes: value.len() });
        }
        let action = match op {
            StoreOp::Put => StoreCommand::Put { value },
            StoreOp::Cas => StoreCommand::Cas { expected: from_version(head.version), value },
            StoreOp::Get | StoreOp::Delete if !value.is_empty() => {
                return Err(RequestError::Value { op, len_bytes: value.len() });
            }
            StoreOp::Get => StoreCommand::Get,
            StoreOp::Delete => StoreCommand::Delete,
        };
        Ok(Self { tag: head.tag.get(), key: head.key.get(), action })
    }

    /// Appends the message to `bytes`.
    pub fn write(&self, bytes: &mut Vec<u8>) {
        let version = match self.action {
            StoreCommand::Cas { expected, .. } => to_version(expected),
            _ => U64::ZERO,
        };
        let (op, tag, key) = (self.action.op() as u8, U32::new(self.tag), U64::new(self.key));
        let head = Head { op, status: 0, reserved: [0; 2], tag, key, version };
        bytes.extend_from_slice(head.as_bytes());
        bytes.extend_from_slice(self.action.value().unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cas_has_the_bytes_that_the_picture_shows() {
        let action = StoreCommand::Cas { expected: Some(Version(0x0102)), value: b"new" };
        let mut bytes = Vec::new();
        Request { tag: 0xa1b2_c3d4, key: 7, action }.write(&mut bytes);
        let head =
            [4, 0, 0, 0, 0xd4, 0xc3, 0xb2, 0xa1, 7, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0];
        assert_eq!(bytes, [&head[..], b"new"].concat());
        assert_eq!(Request::read(&bytes).unwrap().action, action);
    }

    #[test]
    fn each_kind_of_nonsense_has_its_error() {
        let mut get = Vec::new();
        Request { tag: 1, key: 2, action: StoreCommand::Get }.write(&mut get);
        let with = |index: usize, byte: u8| {
            let mut bytes = get.clone();
            bytes[index] = byte;
            bytes
        };
        assert_eq!(Request::read(&get[..23]), Err(RequestError::Short { len_bytes: 23 }));
        assert_eq!(Request::read(&with(0, 9)), Err(RequestError::Op(9)));
        for index in [1, 2, 3, 16, 23] {
            assert_eq!(Request::read(&with(index, 1)), Err(RequestError::Reserved(StoreOp::Get)));
        }
        let long = [&get[..], b"x"].concat();
        assert_eq!(
            Request::read(&long),
            Err(RequestError::Value { op: StoreOp::Get, len_bytes: 1 })
        );
        let mut huge = with(0, StoreOp::Put as u8);
        huge.resize(HEAD_BYTES + VALUE_BYTES_MAX + 1, 0);
        let len_bytes = VALUE_BYTES_MAX + 1;
        assert_eq!(Request::read(&huge), Err(RequestError::Long { len_bytes }));
    }
}
