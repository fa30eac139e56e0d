//! What a request carries besides its body.
//!
//! ```text
//! client ─▶ daemon   CallHead: rank, service, method, timeout, room for the response │ body
//! daemon ─▶ daemon   method of the protocol: the service; PeerHead: method           │ body
//! provider ─▶ daemon CallHead to the own daemon, method SERVE; ServeHead: an answer  │ body
//! daemon ─▶ provider WorkHead: which request, of whom, method                        │ body
//! ```

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

/// The daemon itself, as a service.
pub const DAEMON: u16 = 0;

/// Methods of [`DAEMON`].
pub mod method {
    /// Answers with the body. The only one that other nodes may call.
    pub const PING: u16 = 0;
    /// Offers a service: the body is its number.
    pub const REGISTER: u16 = 1;
    /// Answers a request, and asks for the next.
    pub const SERVE: u16 = 2;
    /// Answers with this daemon's rank and the number of ranks.
    pub const WHO: u16 = 3;
}

/// Before the body of a client's request.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct CallHead {
    /// Where the service is; [`HERE`]: on this node.
    pub rank: U32,
    /// Which service.
    pub service: U16,
    /// Which of its methods.
    pub method: U16,
    /// How long the caller waits; 0: as long as the daemon is configured to.
    pub timeout_us: U32,
    /// Longest response that needs no detour.
    pub response_bytes: U32,
}

/// The node of whoever asks.
pub const HERE: u32 = u32::MAX;

/// Bytes before the body of a client's request.
pub const CALL_HEAD_BYTES: usize = size_of::<CallHead>();
const _: () = assert!(CALL_HEAD_BYTES == 16);

/// Before the body of a request to another node. The service is the method of the protocol.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PeerHead {
    /// Which method of the service.
    pub method: U16,
    reserved: [u8; 6],
}

/// Bytes before the body of a request to another node.
pub const PEER_HEAD_BYTES: usize = size_of::<PeerHead>();

impl PeerHead {
    /// Names a method.
    #[must_use]
    pub fn new(method: u16) -> Self {
        Self { method: method.into(), reserved: [0; 6] }
    }
}

/// First in the body of [`method::SERVE`]; the body of the answer follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ServeHead {
    /// Which request is answered; 0: none.
    pub work: U64,
    /// The service that the provider offers.
    pub service: U16,
    /// How the request went: a status of the protocol.
    pub status: u8,
    /// Zero.
    pub reserved: [u8; 5],
}

/// Bytes before the body of a provider's answer, behind a [`CallHead`].
pub(crate) const SERVE_HEAD_BYTES: usize = size_of::<ServeHead>();

/// First in what answers [`method::SERVE`]; the body of the request follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct WorkHead {
    /// Which request.
    pub work: U64,
    /// Rank of the caller.
    pub rank: U32,
    /// Which method of the service.
    pub method: U16,
    /// Zero.
    pub reserved: U16,
}

/// Bytes before the body of a request to a provider.
pub const WORK_HEAD_BYTES: usize = size_of::<WorkHead>();
const _: () = assert!(CALL_HEAD_BYTES + SERVE_HEAD_BYTES == 32 && WORK_HEAD_BYTES == 16);

/// Longest message of the client's protocol that carries a body of `body_bytes`.
#[must_use]
pub fn message_bytes_max(body_bytes: u32) -> u32 {
    // A provider's answer lies behind two heads.
    body_bytes.saturating_add(32)
}
