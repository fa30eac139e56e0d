//! Tables of a card: what a port shows to its peers.
//!
//! ```text
//!  "ro"  written by the owner only; peers can map it for reading only (sealed)
//!        Header │ MrEntry… │ QpEntry… │ CqEntry… │ RqEntry… │ doorbell records, receive rings
//!  "rw"  written by everybody
//!        Shared │ QpFault… │ CqState… │ RqState…            │ completion rings, slot and claim words
//! ```
//!
//! Offsets in an entry count from the start of the region they name. A peer copies an entry once,
//! checks every number in the copy, and uses the copy.

use memory::{
    SharedLayout,
    sync::{AtomicU32, AtomicU64},
};
use wire::ids::{Lid, Qpn};

/// ASCII "MLX5SOFT".
pub(crate) const MAGIC: u64 = u64::from_be_bytes(*b"MLX5SOFT");
/// Changes whenever a byte of these tables changes meaning.
pub(crate) const LAYOUT: u64 = 6;

/// First bytes of "ro".
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Header {
    pub(crate) magic: AtomicU64,
    pub(crate) layout: AtomicU64,
    /// The newest segment that is shown to peers, who may not have looked yet; 0 if there is none.
    pub(crate) newest_segment: AtomicU64,
    pub(crate) reserved: [AtomicU64; 5],
}

/// A memory region. Its key is `index << 8 | generation`.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct MrEntry {
    /// [`valid_key`], or anything without `VALID`.
    pub(crate) key: AtomicU64,
    /// First byte, in the owner's address space.
    pub(crate) addr: AtomicU64,
    pub(crate) len_bytes: AtomicU64,
    /// `access << 32 | pd`.
    pub(crate) access_pd: AtomicU64,
    /// Which of the owner's segments holds the bytes, from its start.
    pub(crate) segment: AtomicU64,
    pub(crate) reserved: [AtomicU64; 3],
}

/// Marks [`MrEntry::key`] and [`CqEntry::geometry`] as in use.
pub(crate) const VALID: u64 = 1 << 63;

/// The ring and the doorbell record of a queue are at addresses of its process, not on the card.
pub(crate) const LENT: u64 = 1 << 62;

/// `VALID | segment << 32 | key`, of a segment's number what fits: keys come back, and who remembers one
/// must not take it for the next.
pub(crate) const fn valid_key(segment: u32, key: u32) -> u64 {
    VALID | (segment as u64) << 32 | key as u64
}

/// Whether the word of a region's key says that it is `key`.
pub(crate) const fn is_valid_key(word: u64, key: u32) -> bool {
    let segments = (VALID - 1) & !(u32::MAX as u64);
    word & !segments == VALID | key as u64
}

/// A queue pair of a port: `lid << 32 | qpn`.
#[inline(always)]
pub(crate) const fn address_word(lid: Lid, qpn: Qpn) -> u64 {
    (lid.get() as u64) << 32 | qpn.get() as u64
}

/// A queue pair as its peers need it.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct QpEntry {
    /// `generation << 16 | transport << 8 | state`; changes whenever anything else here does.
    pub(crate) control: AtomicU64,
    /// `access << 32 | pd`.
    pub(crate) access_pd: AtomicU64,
    /// `rq index << 32 | cq index`.
    pub(crate) queues: AtomicU64,
    /// RC: [`address_word`] of the only sender it hears.
    pub(crate) peer: AtomicU64,
    /// Q_Key or DC access key.
    pub(crate) key: AtomicU64,
    /// `what completions of receives call it << 32 | READs and atomics that may be outstanding here << 16 |
    /// rnr timer code << 8 | unreliable connection << 1 | scatter to CQE`.
    pub(crate) flags: AtomicU64,
    pub(crate) reserved: [AtomicU64; 2],
    /// [`Presence`](crate::shared::presence::Presence) of its send queue, alone on its cache line.
    pub(crate) presence: AtomicU64,
    pub(crate) reserved2: [AtomicU64; 7],
}

/// A completion queue as its producers need it.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct CqEntry {
    /// `VALID | LENT if it is | cqe bytes << 8 | log2 of entries`.
    pub(crate) geometry: AtomicU64,
    /// In "rw".
    pub(crate) ring_offset: AtomicU64,
    /// In "rw".
    pub(crate) slots_offset: AtomicU64,
    /// In "ro".
    pub(crate) dbrec_offset: AtomicU64,
    /// Channel number, 0 without one.
    pub(crate) channel: AtomicU64,
    /// Not zero: there is only one producer. A second one waits until that has noticed.
    pub(crate) is_exclusive: AtomicU64,
    pub(crate) reserved: [AtomicU64; 2],
}

/// A receive queue as senders need it.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct RqEntry {
    /// `VALID | LENT if it is | is SRQ << 16 | log2 of stride bytes << 8 | log2 of entries`.
    pub(crate) geometry: AtomicU64,
    /// In "ro".
    pub(crate) ring_offset: AtomicU64,
    /// In "ro".
    pub(crate) dbrec_offset: AtomicU64,
    /// In "rw".
    pub(crate) claims_offset: AtomicU64,
    /// Not zero: only one sender takes receives. A second one waits until that has noticed.
    pub(crate) is_exclusive: AtomicU64,
    /// Domain of the memory that receives lie in.
    pub(crate) pd: AtomicU64,
    pub(crate) reserved: [AtomicU64; 2],
}

/// First bytes of "rw".
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Shared {
    /// Not zero: a peer has set some [`QpFault`] or overrun some queue; the owner should look.
    pub(crate) attention: AtomicU64,
    /// The port that executes an atomic here, where those are atomic among NICs only; 0: none.
    pub(crate) atomics: AtomicU64,
    pub(crate) reserved: [AtomicU64; 6],
}

/// Why a peer moved this queue pair to ERR, 0 if none did.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct QpFault {
    /// A CQE syndrome.
    pub(crate) syndrome: AtomicU64,
}

/// What producers of a completion queue share.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct CqState {
    /// See [`Slots`](crate::shared::slots::Slots).
    pub(crate) tail: AtomicU64,
    /// Consumer's position when somebody last looked; never ahead of the true one. See `Slots`.
    pub(crate) consumed_seen: AtomicU64,
    /// See [`Armed`](crate::shared::arm::Armed).
    pub(crate) armed: AtomicU32,
    /// Not zero: a completion was lost, the queue is dead.
    pub(crate) overrun: AtomicU32,
    pub(crate) reserved: [AtomicU64; 5],
}

/// What senders into a receive queue share.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct RqState {
    /// See [`Claims`](crate::shared::claims::Claims).
    pub(crate) head: AtomicU64,
    /// Who takes a receive of a ring and the entry of its completion, if several do. See
    /// [`PortLock`](crate::shared::port_lock::PortLock).
    pub(crate) order: AtomicU64,
    pub(crate) reserved: [AtomicU64; 6],
}

macro_rules! shared_layouts {
    ($($name:ident: $bytes:literal),* $(,)?) => {$(
        const _: () = assert!(size_of::<$name>() == $bytes);
        // SAFETY: `repr(C)`, atomics only, no padding by the assertion above.
        unsafe impl SharedLayout for $name {}
    )*};
}
shared_layouts! {
    Header: 64, MrEntry: 64, QpEntry: 128, CqEntry: 64, RqEntry: 64,
    Shared: 64, QpFault: 8, CqState: 64, RqState: 64,
}

/// How many of each object a card has room for, and the size of its regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) mrs: u32,
    pub(crate) qps: u32,
    pub(crate) cqs: u32,
    pub(crate) rqs: u32,
    pub(crate) ro_bytes: usize,
    pub(crate) rw_bytes: usize,
}

impl Limits {
    /// Offsets of the tables in "ro", and where its heap begins.
    pub(crate) fn ro_offsets(&self) -> [usize; 5] {
        let mrs = size_of::<Header>();
        let qps = mrs + self.mrs as usize * size_of::<MrEntry>();
        let qps = qps.next_multiple_of(align_of::<QpEntry>());
        let cqs = qps + self.qps as usize * size_of::<QpEntry>();
        let rqs = cqs + self.cqs as usize * size_of::<CqEntry>();
        [mrs, qps, cqs, rqs, rqs + self.rqs as usize * size_of::<RqEntry>()]
    }

    /// Offsets of the tables in "rw", and where its heap begins.
    pub(crate) fn rw_offsets(&self) -> [usize; 4] {
        let faults = size_of::<Shared>();
        let cqs = faults + self.qps as usize * size_of::<QpFault>();
        let cqs = cqs.next_multiple_of(align_of::<CqState>());
        let rqs = cqs + self.cqs as usize * size_of::<CqState>();
        [faults, cqs, rqs, rqs + self.rqs as usize * size_of::<RqState>()]
    }

    /// Whether a peer that claims these limits may be believed: nothing overflows, the tables fit.
    pub(crate) fn are_plausible(&self) -> bool {
        const MAX: u32 = 1 << 20;
        let counts = [self.mrs, self.qps, self.cqs, self.rqs];
        counts.iter().all(|&count| (1..=MAX).contains(&count))
            && self.ro_offsets()[4] <= self.ro_bytes
            && self.rw_offsets()[3] <= self.rw_bytes
    }
}
