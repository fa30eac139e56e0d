//! The frames between a rank and the rendezvous.
//!
//! ```text
//! rank                                        rendezvous
//!   │ Hello: magic, version, job, place, nonce ──▶ │  104 B, all that a stranger can make it keep
//!   │ ◀── Challenge: nonce, proof "of this job"    │
//!   │ Join: length of the blob, proof ───────────▶ │
//!   │ Blob: the blob, proof ─────────────────────▶ │
//!   │            ... until all ranks have come ... │
//!   │ ◀── Roster: the blobs of all, proof          │
//!   │ ◀── Refusal: why not (at any time)           │
//! ```
//!
//! Every proof covers the hello and the rendezvous's nonce, so it fits one connection only. What the
//! rendezvous sends starts with a `Head`.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32},
};

use crate::{
    JobId, RankInfo,
    entropy::{NONCE_BYTES, Nonce},
    secret::Proof,
};
use client::JOB_BYTES_MAX;

/// First bytes of a rank.
pub const MAGIC: [u8; 8] = *b"copyrpcB";

/// Raised with every change of what follows.
pub const VERSION: u16 = 1;

/// Longest reason of a refusal.
pub(super) const REASON_BYTES_MAX: usize = 512;

/// Opens a connection.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Hello {
    magic: [u8; 8],
    version: U16,
    reserved: U16,
    rank: U32,
    size: U32,
    reserved_too: U32,
    nonce: [u8; NONCE_BYTES],
    job: [u8; JOB_BYTES_MAX],
}

pub(super) const HELLO_BYTES: usize = size_of::<Hello>();
const _: () = assert!(HELLO_BYTES == 104);

/// A hello that cannot be answered with a challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadHello {
    Version(u16),
    Job,
}

impl Hello {
    /// The hello of a rank.
    #[must_use]
    pub fn new(job: &JobId, rank_info: RankInfo, nonce: Nonce) -> Self {
        Self {
            magic: MAGIC,
            version: VERSION.into(),
            reserved: 0.into(),
            rank: rank_info.rank().into(),
            size: rank_info.size().into(),
            reserved_too: 0.into(),
            nonce,
            job: job.padded(),
        }
    }

    pub(super) fn check(&self, job: &JobId) -> Result<(), BadHello> {
        if self.version.get() != VERSION {
            return Err(BadHello::Version(self.version.get()));
        }
        if self.job == job.padded() { Ok(()) } else { Err(BadHello::Job) }
    }

    pub(super) fn rank(&self) -> u32 {
        self.rank.get()
    }

    pub(super) fn size(&self) -> u32 {
        self.size.get()
    }
}

/// Whether these first bytes could become a hello.
pub(super) fn may_be_hello(bytes: &[u8]) -> bool {
    let len = bytes.len().min(MAGIC.len());
    bytes[..len] == MAGIC[..len]
}

/// Announces a blob.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Join {
    pub(super) blob_bytes: U32,
    pub(super) reserved: U32,
    pub(super) proof: Proof,
}

pub(super) const JOIN_BYTES: usize = size_of::<Join>();

/// The kind and length of the payload.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Head {
    kind: U32,
    pub(super) len_bytes: U32,
}

pub(super) const HEAD_BYTES: usize = size_of::<Head>();

/// The kinds of frames of the rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadKind {
    Challenge,
    Refusal,
    Roster,
}

impl HeadKind {
    const ALL: [Self; 3] = [Self::Challenge, Self::Refusal, Self::Roster];

    pub(super) fn head(self, len_bytes: u32) -> Head {
        Head { kind: (self as u32 + 1).into(), len_bytes: len_bytes.into() }
    }
}

impl Head {
    pub(super) fn kind(&self) -> Option<HeadKind> {
        HeadKind::ALL.into_iter().find(|kind| *kind as u32 + 1 == self.kind.get())
    }
}

/// Proves that the rendezvous is of the job, and asks for the same.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Challenge {
    pub(super) nonce: [u8; NONCE_BYTES],
    pub(super) proof: Proof,
}

pub(super) const CHALLENGE_BYTES: usize = size_of::<Challenge>();

/// A refusal, its text cut to what fits.
pub(super) fn refusal(reason: &str) -> Vec<u8> {
    let mut end = reason.len().min(REASON_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let text = &reason.as_bytes()[..end];
    let mut frame = head_bytes(HeadKind::Refusal, text.len());
    frame.extend_from_slice(text);
    frame
}

pub(super) fn head_bytes(kind: HeadKind, len: usize) -> Vec<u8> {
    let len_bytes = u32::try_from(len).expect("answers are bounded by the size of the job");
    kind.head(len_bytes).as_bytes().to_vec()
}

/// Text of a stranger, fit to be shown.
pub(super) fn printable(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.chars().map(|c| if c.is_control() { '?' } else { c }).take(REASON_BYTES_MAX).collect()
}

/// The blobs of all ranks, one after the other, each behind its length.
pub(super) fn write_roster(blobs: &[Vec<u8>]) -> Vec<u8> {
    let mut roster = Vec::with_capacity(blobs.iter().map(|blob| blob.len() + 4).sum());
    for blob in blobs {
        let len = u32::try_from(blob.len()).expect("a blob is bounded");
        roster.extend_from_slice(&len.to_le_bytes());
        roster.extend_from_slice(blob);
    }
    roster
}

/// Reads the blobs of a roster; `None` if it is anything else.
#[must_use]
pub fn read_roster(mut bytes: &[u8], size: u32) -> Option<Vec<Vec<u8>>> {
    let mut blobs = Vec::new();
    while !bytes.is_empty() {
        let (len, rest) = bytes.split_first_chunk::<4>()?;
        let len = usize::try_from(u32::from_le_bytes(*len)).ok()?;
        let (blob, rest) = rest.split_at_checked(len)?;
        blobs.push(blob.to_vec());
        bytes = rest;
    }
    (u32::try_from(blobs.len()).ok()? == size).then_some(blobs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_roster_survives_and_anything_else_is_refused() {
        let blobs = vec![b"zero".to_vec(), Vec::new(), vec![2; 300]];
        let bytes = write_roster(&blobs);
        assert_eq!(read_roster(&bytes, 3), Some(blobs));
        assert_eq!(read_roster(&bytes, 2), None);
        assert_eq!(read_roster(&bytes[..bytes.len() - 1], 3), None);
        assert_eq!(read_roster(&[0xff; 4], 1), None);
        assert_eq!(read_roster(&[], 0), Some(Vec::new()));
    }

    #[test]
    fn a_reason_is_cut_between_characters_and_shown_without_control_codes() {
        let frame = refusal(&"ä".repeat(REASON_BYTES_MAX));
        assert_eq!(frame.len(), HEAD_BYTES + REASON_BYTES_MAX);
        assert!(std::str::from_utf8(&frame[HEAD_BYTES..]).is_ok());
        assert_eq!(printable(b"a\x1b[2Jb\n\xff"), "a?[2Jb?\u{fffd}");
    }

    #[test]
    fn the_first_wrong_byte_gives_a_stranger_away() {
        assert!(may_be_hello(b"") && may_be_hello(b"copy") && may_be_hello(b"copyrpcB..."));
        assert!(!may_be_hello(b"GET / HTTP/1.1") && !may_be_hello(b"\x16\x03\x01"));
        assert!(!may_be_hello(b"copz"));
    }

    /// Another build may be on the other side: whoever changes these bytes raises [`VERSION`].
    #[test]
    fn fault_e7_a_hello_has_the_bytes_that_builds_in_use_have() {
        assert_eq!(VERSION, 1);
        let job = JobId::new("job").unwrap();
        let hello = Hello::new(&job, RankInfo::new(1, 0x0102).unwrap(), [7; NONCE_BYTES]);
        let mut bytes = b"copyrpcB\x01\0\0\0\x01\0\0\0\x02\x01\0\0\0\0\0\0".to_vec();
        bytes.extend([7; NONCE_BYTES]);
        bytes.extend(b"job");
        bytes.resize(104, 0);
        assert_eq!(hello.as_bytes(), bytes);
    }
}
