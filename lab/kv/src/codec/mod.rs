//! Bytes of a request and of its answer.
//!
//! ```text
//! byte   0    1        2      4     8     16        24
//! request  │ op │ 0      │ 0    │ tag │ key │ version │ value (PUT, CAS)
//! answer   │ op │ status │ 0    │ tag │ key │ version │ value (GET, found)
//! ```
//!
//! An answer repeats the operation, the tag and the key of its request, so that a client can tell
//! with its own memory alone whether it is the answer to what it asked. Little-endian; the length of
//! a value is that of the message, less the head.
//!
//! Neither reader trusts a byte: each returns a typed error or a value that says the same bytes.

mod answer;
mod request;
pub mod value;

use serde::{Deserialize, Serialize};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

pub use answer::{Answer, AnswerError, StoreStatus};
pub use request::{Request, RequestError, StoreCommand};

/// Bytes of a message before its value.
pub const HEAD_BYTES: usize = size_of::<Head>();
/// Longest value, so that a length from outside allocates no more.
pub const VALUE_BYTES_MAX: usize = 1 << 20;
/// Longest message.
pub const MESSAGE_BYTES_MAX: usize = HEAD_BYTES + VALUE_BYTES_MAX;
/// What stands where a version stands if there is none.
const NO_VERSION: u64 = u64::MAX;

/// Names one write of the whole job: no two share a version. See [`value`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Version(pub u64);

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum StoreOp {
    /// Read.
    Get = 1,
    /// Write, whatever was there.
    Put = 2,
    /// Remove.
    Delete = 3,
    /// Write if the version is still the expected one.
    Cas = 4,
}

impl StoreOp {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Get, Self::Put, Self::Delete, Self::Cas];

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|&op| op as u8 == byte)
    }
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    op: u8,
    status: u8,
    reserved: [u8; 2],
    tag: U32,
    key: U64,
    version: U64,
}
const _: () = assert!(size_of::<Head>() == 24);

fn to_version(version: Option<Version>) -> U64 {
    U64::new(version.map_or(NO_VERSION, |version| version.0))
}

fn from_version(version: U64) -> Option<Version> {
    Some(Version(version.get())).filter(|version| version.0 != NO_VERSION)
}

/// Reads `bytes` as a request and as an answer, and checks that what is understood writes the same
/// bytes again. Fuzzed.
///
/// # Panics
///
/// If it does not: that is what it is for.
pub fn check(bytes: &[u8]) {
    let mut again = Vec::new();
    if let Ok(request) = Request::read(bytes) {
        request.write(&mut again);
        assert_eq!(again, bytes);
        if let Some(value) = request.action.value() {
            let _ = value::read(value);
        }
    }
    if let Ok(answer) = Answer::read(bytes) {
        again.clear();
        answer.write(&mut again);
        assert_eq!(again, bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_understood_without_loss(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..80), op in 0_u8..6, status in 0_u8..8
        ) {
            check(&bytes);
            // Random bytes seldom pass the first checks: help them.
            if bytes.len() >= HEAD_BYTES {
                bytes[..4].copy_from_slice(&[op, status, 0, 0]);
                check(&bytes);
            }
        }
    }
}
