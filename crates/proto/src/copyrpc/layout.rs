//! The bytes of a batch. All integers are little-endian.
//!
//! ```text
//! batch, in lines of 64 B:
//!  0          4       8          10      12        14       16
//!  │ consumed │ epoch │ sequence │ count │ handled │ unused │ message … message │ unused bytes │
//!
//! message, padded to 8 B:
//!  0            3      4       8
//!  │ body bytes │ kind │ token │                                  body │   all but requests
//!  │ body bytes │ kind │ token │ method │ budget lines │ timeout µs │ body │   requests
//!                              8        10             12           16
//!
//! credit words, beside the ring:
//!  0          8         16
//!  │ consumed │ handled │
//! ```
//!
//! Rules: `docs/protocol/copyrpc.md`, section 2.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

/// Unit of ring positions and of credit: a cache line.
pub const LINE_BYTES: usize = 64;
/// Bytes before the first message of a batch.
pub const BATCH_HEADER_BYTES: usize = size_of::<BatchHeader>();
/// Bytes before the body of a message that is no request.
pub(crate) const HEAD_BYTES: usize = size_of::<Head>();
/// Bytes before the body of a request.
pub(crate) const REQUEST_HEAD_BYTES: usize = size_of::<RequestHead>();
/// Bytes that name registered memory.
pub(crate) const LARGE_BYTES: usize = size_of::<LargeBytes>();
/// Messages start at multiples of this.
pub(crate) const MESSAGE_ALIGN: usize = 8;
/// Longest body that its length field can express.
pub(crate) const BODY_BYTES_MAX: usize = (1 << 24) - 1;

/// Start of a batch.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct BatchHeader {
    /// Lines of the reverse ring that the sender has consumed, modulo 2³².
    pub(crate) consumed: U32,
    /// The epoch that the receiver announced.
    pub(crate) epoch: U32,
    /// Number of the batch in its direction, modulo 2¹⁶.
    pub(crate) sequence: U16,
    /// Messages.
    pub(crate) count: U16,
    /// Batches of the reverse direction that the sender has handled, modulo 2¹⁶.
    pub(crate) handled: U16,
    /// Bytes of the last line behind the last message.
    pub(crate) unused_bytes: U16,
}

/// Start of a message.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Head {
    /// Bytes of the body below, kind in the top eight bits.
    pub(crate) word: U32,
    /// The caller's name of the call.
    pub(crate) token: U32,
}

impl Head {
    /// # Panics
    ///
    /// If the body is longer than [`BODY_BYTES_MAX`]: callers check against a smaller limit.
    #[inline]
    pub(crate) fn new(kind: u8, body_bytes: usize, token: u32) -> Self {
        assert!(body_bytes <= BODY_BYTES_MAX, "a body of {body_bytes} B cannot be expressed");
        let body_bytes = low_bits(body_bytes as u64);
        Self { word: U32::new(body_bytes | u32::from(kind) << 24), token: U32::new(token) }
    }

    #[inline]
    pub(crate) fn body_bytes(self) -> usize {
        (self.word.get() & 0x00ff_ffff) as usize
    }

    #[inline]
    pub(crate) fn kind(self) -> u8 {
        self.word.get().to_le_bytes()[3]
    }
}

/// The fields of a request behind its header.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RequestTail {
    pub(crate) method: U16,
    /// Lines of the reverse ring that are set aside for the response.
    pub(crate) budget_lines: U16,
    /// Time left until the caller's deadline, in microseconds, rounded up; saturated.
    pub(crate) timeout_us: U32,
}

/// Start of a request.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RequestHead {
    pub(crate) head: Head,
    pub(crate) tail: RequestTail,
}

/// Registered memory that holds a body too large for the ring.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct LargeBytes {
    pub(crate) addr: U64,
    pub(crate) rkey: U32,
    pub(crate) len_bytes: U32,
}

/// The credit words beside the ring: each only grows and is never seen in part. It
/// does not matter which of them is seen first.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct CreditWords {
    /// As in [`BatchHeader::consumed`], all of it.
    pub(crate) consumed: U64,
    /// As in [`BatchHeader::handled`], all of it.
    pub(crate) handled: U64,
}

pub(crate) const KIND_REQUEST: u8 = 1;
pub(crate) const KIND_LARGE_REQUEST: u8 = 2;
pub(crate) const KIND_LARGE_RESPONSE: u8 = 3;
pub(crate) const KIND_RELEASE: u8 = 4;
pub(crate) const KIND_CANCEL: u8 = 5;
/// Responses: this and the status.
pub(crate) const KIND_RESPONSE: u8 = 0x80;

/// Changes whenever a byte above changes its meaning: peers with different hashes refuse each other.
///
/// FNV-1a over the picture of the layout, so that no number has to be raised by hand.
pub const LAYOUT_HASH: u32 = fnv1a(
    b"batch{consumed:u32,epoch:u32,sequence:u16,count:u16,handled:u16,unused:u16}\
      head{len:u24,kind:u8,token:u32}request{method:u16,budget:u16,timeout_us:u32}\
      large{addr:u64,rkey:u32,len:u32}credit{consumed:u64,handled:u64}\
      kinds{request=1,large_request=2,large_response=3,release=4,cancel=5,response=0x80|status}\
      imm{wrap:1,slot:15,lines:16}line=64,align=8",
);

const fn fnv1a(bytes: &[u8]) -> u32 {
    let mut hash = 0x811c_9dc5_u32;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u32).wrapping_mul(0x0100_0193);
        at += 1;
    }
    hash
}

/// Lines that a response of `len_bytes` can take of a ring, alone in its batch.
///
/// `None`: more than a budget can express.
#[must_use]
#[inline]
pub fn response_lines(len_bytes: usize) -> Option<u16> {
    let bytes = len_bytes.checked_add(BATCH_HEADER_BYTES + HEAD_BYTES)?;
    u16::try_from(bytes.div_ceil(LINE_BYTES)).ok()
}

/// Bytes that a message of `len_bytes` takes. Lengths are far from overflow, which
/// `next_multiple_of` would look for.
#[inline]
pub(crate) const fn padded(len_bytes: usize) -> usize {
    (len_bytes + MESSAGE_ALIGN - 1) & !(MESSAGE_ALIGN - 1)
}

/// Lines that a batch of `len_bytes` takes.
#[inline]
pub(crate) const fn lines(len_bytes: usize) -> u64 {
    ((len_bytes + LINE_BYTES - 1) >> LINE_BYTES.trailing_zeros()) as u64
}

/// The low 32 bits of a position: what goes over the wire.
#[inline]
pub(crate) fn low_bits(position: u64) -> u32 {
    (position & 0xffff_ffff) as u32
}

/// The low 16 bits of the number of a batch: what goes over the wire.
#[inline]
pub(crate) fn number_bits(number: u64) -> u16 {
    (number & 0xffff) as u16
}

/// Longest response that a budget has room for.
#[must_use]
#[inline]
pub const fn response_bytes(budget_lines: u16) -> usize {
    (budget_lines as usize * LINE_BYTES).saturating_sub(BATCH_HEADER_BYTES + HEAD_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_picture() {
        assert_eq!(BATCH_HEADER_BYTES, 16);
        assert_eq!(HEAD_BYTES, 8);
        assert_eq!(REQUEST_HEAD_BYTES, 16);
        assert_eq!(LARGE_BYTES, 16);
        assert_eq!(size_of::<CreditWords>(), 16);
    }

    #[test]
    fn a_budget_and_the_response_it_allows_agree() {
        for len in 0..5000 {
            let lines = response_lines(len).unwrap();
            assert!(response_bytes(lines) >= len);
            assert!(lines == 1 || response_bytes(lines - 1) < len);
        }
        assert_eq!(response_bytes(0), 0);
        assert_eq!(response_lines(1 << 23), None);
        assert!(response_bytes(1) >= LARGE_BYTES, "an answer by rendezvous fits every budget");
    }

    #[test]
    fn a_32_byte_request_fills_one_line() {
        assert_eq!(BATCH_HEADER_BYTES + REQUEST_HEAD_BYTES + 32, LINE_BYTES);
    }
}
