//! The datagrams of client and server before they share memory.
//!
//! ```text
//! client ──▶ HELLO    magic, version                            no descriptors
//! server ──▶ WELCOME  magic, version, shapes, slot, generation four descriptors:
//!                     up half, down half, wakeup bits, sleep flag
//!         or REFUSED  magic, version, reason                    no descriptors
//! ```
//!
//! All integers are little-endian. Afterwards either side sends datagrams of one byte,
//! [`WAKEUP`], to one that sleeps. A client may send [`DESCRIPTOR`]s to a server that takes them.

use crate::endpoint::half::{BadShape, HalfShape};

/// "copyrpc ipc", in ASCII, cut to 8 bytes.
const MAGIC: u64 = u64::from_le_bytes(*b"crpc-ipc");

/// Changes with anything that either side must know of the other.
pub const VERSION: u32 = 3;

/// A datagram after the handshake: the other side may sleep no longer.
pub const WAKEUP: u8 = 0xb5;

/// A datagram after the handshake, of a client: it comes with a descriptor for the server's program.
pub const DESCRIPTOR: u8 = 0xb6;

/// Bytes that any datagram of the handshake fits into.
pub const DATAGRAM_BYTES_MAX: usize = 64;

/// Descriptors that come with a welcome.
pub const WELCOME_FDS: usize = 4;

/// Most clients that a server can have: each has one of the wakeup bits.
pub const CLIENTS_MAX: u16 = 4096;

const KIND_HELLO: u32 = 1;
const KIND_WELCOME: u32 = 2;
const KIND_REFUSED: u32 = 3;

/// Why a datagram was not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// It is of another protocol.
    #[error("the other side does not speak this protocol")]
    Foreign,
    /// It is of another version of this protocol.
    #[error("the other side speaks version {theirs}, this one version {VERSION}; update the older")]
    Version {
        /// The version that it is of.
        theirs: u32,
    },
    /// It promises something impossible.
    #[error("the other side asks for the impossible: {0}")]
    Shape(#[from] BadShape),
    /// It names a slot that does not exist.
    #[error("the other side gave slot {slot}, which does not exist")]
    Slot {
        /// The slot.
        slot: u16,
    },
}

/// Why a server refuses a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefuseReason {
    /// All slots are taken.
    #[error(
        "the server has as many connections as it takes; raise its `clients_max`, or retry later"
    )]
    ServerFull,
    /// The user has as many clients as one user may have.
    #[error(
        "the server has as many connections of this user as it takes; raise its `clients_max`, or retry later"
    )]
    UserLimit,
    /// The server could not make the client's memory.
    #[error("the server has no memory or descriptors left for another client; retry later")]
    ResourceExhausted,
    /// The client speaks another version.
    #[error("the server speaks another version")]
    Version,
    /// The process has as many clients as one process may have.
    #[error(
        "this process has as many clients as one process may have; raise `clients_per_process`"
    )]
    ProcessLimit,
    /// The server has no descriptor for the client's connection.
    #[error(
        "the server has no descriptor left for another client; raise its `ulimit -n` (systemd: LimitNOFILE), or retry later"
    )]
    Descriptors,
    /// A reason that a newer server knows.
    #[error("the server gave a reason that this version does not know")]
    Unknown,
}

impl RefuseReason {
    const ALL: [Self; 6] = [
        Self::ServerFull,
        Self::UserLimit,
        Self::ResourceExhausted,
        Self::Version,
        Self::ProcessLimit,
        Self::Descriptors,
    ];
}

/// The parameters that an accepted client receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Shape of the up half: requests.
    pub up: HalfShape,
    /// Shape of the down half, of the same depth: responses.
    pub down: HalfShape,
    /// Number of the client's bit among the wakeup bits.
    pub slot: u16,
    /// The first position of both rings.
    pub position: u64,
    /// Tells this server from all that listened at the same path before.
    pub server_generation: u64,
}

/// The answer of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeAnswer {
    /// Come in.
    Welcome(Welcome),
    /// Stay out.
    Refused(RefuseReason),
}

/// A datagram being read: every read is checked.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], HandshakeError> {
        let (head, rest) = self.0.split_first_chunk().ok_or(HandshakeError::Foreign)?;
        self.0 = rest;
        Ok(*head)
    }

    fn u16(&mut self) -> Result<u16, HandshakeError> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, HandshakeError> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, HandshakeError> {
        self.take().map(u64::from_le_bytes)
    }

    /// Magic and version, then the kind.
    fn begin(bytes: &[u8]) -> Result<(Reader<'_>, u32), HandshakeError> {
        let mut reader = Reader(bytes);
        if reader.u64()? != MAGIC {
            return Err(HandshakeError::Foreign);
        }
        let theirs = reader.u32()?;
        if theirs != VERSION {
            return Err(HandshakeError::Version { theirs });
        }
        let kind = reader.u32()?;
        Ok((reader, kind))
    }

    fn end(self) -> Result<(), HandshakeError> {
        if self.0.is_empty() { Ok(()) } else { Err(HandshakeError::Foreign) }
    }
}

fn begin(kind: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(DATAGRAM_BYTES_MAX);
    bytes.extend(MAGIC.to_le_bytes());
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(kind.to_le_bytes());
    bytes
}

/// Client: the first datagram.
#[must_use]
pub fn write_hello() -> Vec<u8> {
    begin(KIND_HELLO)
}

/// Server: checks the first datagram.
///
/// # Errors
///
/// [`HandshakeError`].
pub fn read_hello(bytes: &[u8]) -> Result<(), HandshakeError> {
    match Reader::begin(bytes)? {
        (reader, KIND_HELLO) => reader.end(),
        _ => Err(HandshakeError::Foreign),
    }
}

/// Server: the answer.
#[must_use]
pub fn write_answer(answer: HandshakeAnswer) -> Vec<u8> {
    match answer {
        HandshakeAnswer::Refused(reason) => {
            let mut bytes = begin(KIND_REFUSED);
            let code = RefuseReason::ALL.iter().position(|candidate| *candidate == reason);
            bytes.push(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX));
            bytes
        }
        HandshakeAnswer::Welcome(welcome) => {
            let mut bytes = begin(KIND_WELCOME);
            for word in [
                welcome.up.depth_log2,
                welcome.up.message_bytes_max,
                welcome.down.message_bytes_max,
            ] {
                bytes.extend(word.to_le_bytes());
            }
            bytes.extend(welcome.slot.to_le_bytes());
            bytes.extend(welcome.position.to_le_bytes());
            bytes.extend(welcome.server_generation.to_le_bytes());
            bytes
        }
    }
}

/// Client: checks the answer.
///
/// # Errors
///
/// [`HandshakeError`].
pub fn read_answer(bytes: &[u8]) -> Result<HandshakeAnswer, HandshakeError> {
    let (mut reader, kind) = Reader::begin(bytes)?;
    let answer = match kind {
        KIND_REFUSED => {
            let [code] = reader.take()?;
            let reason = RefuseReason::ALL.get(usize::from(code)).copied();
            HandshakeAnswer::Refused(reason.unwrap_or(RefuseReason::Unknown))
        }
        KIND_WELCOME => {
            let depth_log2 = reader.u32()?;
            let up = HalfShape::new(depth_log2, reader.u32()?)?;
            let down = HalfShape::new(depth_log2, reader.u32()?)?;
            let slot = reader.u16()?;
            if slot >= CLIENTS_MAX {
                return Err(HandshakeError::Slot { slot });
            }
            let (position, server_generation) = (reader.u64()?, reader.u64()?);
            HandshakeAnswer::Welcome(Welcome { up, down, slot, position, server_generation })
        }
        _ => return Err(HandshakeError::Foreign),
    };
    reader.end()?;
    Ok(answer)
}

#[cfg(test)]
#[path = "../../tests/handshake_check/mod.rs"]
mod check;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn welcome() -> Welcome {
        let (up, down) = (HalfShape::new(5, 4096).unwrap(), HalfShape::new(5, 100).unwrap());
        Welcome { up, down, slot: 7, position: u64::MAX - 3, server_generation: 42 }
    }

    #[test]
    fn answers_survive_the_socket() {
        for answer in [
            HandshakeAnswer::Welcome(welcome()),
            HandshakeAnswer::Refused(RefuseReason::ServerFull),
            HandshakeAnswer::Refused(RefuseReason::Unknown),
        ] {
            let bytes = write_answer(answer);
            assert!(bytes.len() <= DATAGRAM_BYTES_MAX);
            assert_eq!(read_answer(&bytes), Ok(answer));
        }
        assert_eq!(read_hello(&write_hello()), Ok(()));
    }

    #[test]
    fn versions_are_named_and_impossible_promises_refused() {
        let mut hello = write_hello();
        hello[8] = 9;
        assert_eq!(read_hello(&hello), Err(HandshakeError::Version { theirs: 9 }));
        let mut bytes = write_answer(HandshakeAnswer::Welcome(welcome()));
        bytes[16] = 13;
        let shape = BadShape { depth_log2: 13, message_bytes_max: 4096 };
        assert_eq!(read_answer(&bytes), Err(HandshakeError::Shape(shape)));
        let slot = CLIENTS_MAX;
        let bytes = write_answer(HandshakeAnswer::Welcome(Welcome { slot, ..welcome() }));
        assert_eq!(read_answer(&bytes), Err(HandshakeError::Slot { slot }));
    }

    /// Another build of this version may be on the other side: whoever changes these bytes raises [`VERSION`].
    #[test]
    fn fault_e7_this_version_has_the_bytes_that_builds_in_use_have() {
        assert_eq!(VERSION, 3);
        let hello = b"crpc-ipc\x03\0\0\0\x01\0\0\0";
        assert_eq!(write_hello(), hello);
        let mut bytes =
            b"crpc-ipc\x03\0\0\0\x02\0\0\0\x05\0\0\0\0\x10\0\0\x64\0\0\0\x07\0".to_vec();
        bytes.extend(b"\xfc\xff\xff\xff\xff\xff\xff\xff\x2a\0\0\0\0\0\0\0");
        assert_eq!(write_answer(HandshakeAnswer::Welcome(welcome())), bytes);
        for (reason, code) in RefuseReason::ALL.into_iter().zip(0..) {
            let refused = write_answer(HandshakeAnswer::Refused(reason));
            assert_eq!(refused[16..], [code], "{reason:?}");
        }
        let [first, .., last] = RefuseReason::ALL;
        assert_eq!((first, last), (RefuseReason::ServerFull, RefuseReason::Descriptors));
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 8 } else { 256 }, failure_persistence: None, ..Default::default()
        })]
        #[test]
        fn any_bytes_are_refused_or_understood(
            bytes in prop::collection::vec(any::<u8>(), 0..80),
            kind in 0u32..5,
        ) {
            check::check(&bytes);
            check::check(&[&begin(kind)[..], &bytes].concat());
        }
    }
}
