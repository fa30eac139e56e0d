//! What processes and daemons tell each other of bulk memory.
//!
//! ```text
//! process ─▶ daemon  CallHead to the own daemon, one of `method`; then
//!    ROOM            RegionHead
//!    REGION          RegionHead, after a descriptor over the socket            ─▶ id u64
//!    FORGET          id u64
//!    CALL            BulkCallHead; SliceHead of each slice; body               ─▶ body
//!    OFFER           service u16, its name
//!    SERVE           BulkServeHead; body of the answer                         ─▶ BulkWorkHead; BulkWorkExtra
//!                                                                                 if it was wanted; SliceInfo
//!                                                                                 of each slice; body
//!    TRANSFER        TransferHead; MoveHead of each move                       ─▶ bytes moved u64
//!    PROGRESS        work u64, ticket u64                                      ─▶ bytes moved u64
//!    WORK            work u64                                                  ─▶ nothing, while it has not ended
//!    LENT            id u64                                                    ─▶ slices lent, writable u64
//! daemon ─▶ daemon   PeerHead, which names the caller, one of `method`; then
//!    PEER_CALL       PeerCallHead; PeerSlice of each slice; body               ─▶ body
//!    PEER_CLOSE      set u64
//! ```

use proto::bulk::{Direction, Move};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

/// Methods of the daemon itself.
pub mod method {
    /// The first of those that are about bulk memory.
    pub const FIRST: u16 = REGION;
    /// Registers memory.
    pub const REGION: u16 = 64;
    /// Takes memory back that no call uses.
    pub const FORGET: u16 = 65;
    /// A call that carries slices.
    pub const CALL: u16 = 66;
    /// Offers a service of such calls.
    pub const OFFER: u16 = 67;
    /// Answers such a call, and asks for the next.
    pub const SERVE: u16 = 68;
    /// Moves ranges of slices.
    pub const TRANSFER: u16 = 69;
    /// Asks for the number of bytes that a transfer has moved.
    pub const PROGRESS: u16 = 70;
    /// Asks for the numbers of slices of a region that are lent, and that are lent to be written.
    pub const LENT: u16 = 71;
    /// Between daemons: a call that carries slices.
    pub const PEER_CALL: u16 = 72;
    /// Between daemons: nothing may be moved any more for a call.
    pub const PEER_CLOSE: u16 = 73;
    /// Asks whether memory of a length may be registered, before it is made.
    pub const ROOM: u16 = 74;
    /// Asks whether the call that is being answered still waits.
    pub const WORK: u16 = 75;
    /// The last.
    pub const LAST: u16 = WORK;
}

/// A bit of [`SliceHead::flags`], [`SliceInfo::flags`] and [`PeerSlice::flags`]: the other side may write the
/// slice.
pub const IS_WRITABLE: u32 = 1;

/// A bit of [`MoveHead::flags`]: bytes go from own memory to the slice.
pub const IS_PUSH: u16 = 1;

/// A bit of [`BulkServeHead::flags`]: the work that is given has a [`BulkWorkExtra`].
pub const WANTS_EXTRA: u8 = 1;

/// A bit of [`BulkServeHead::flags`]: the provider's clock is past the deadline of the call that it answers, whose failure
/// is that, and not the service's word. The daemon reads its own once per turn.
pub const IS_LATE: u8 = 2;

/// A bit of [`BulkServeHead::flags`]: the daemon answers at once, with nothing, as the provider waits for enough calls.
/// Daemons of earlier builds answer with the next call.
pub const WANTS_NO_CALL: u8 = 4;

/// A bit of [`BulkWorkHead::slices`], whose number is far below it: a [`BulkWorkExtra`] follows. Daemons of earlier builds
/// send none.
pub const HAS_EXTRA: u16 = 1 << 15;

/// Longest body of a call that carries slices, and longest answer: more goes into a slice.
pub const BODY_BYTES_MAX: usize = 2048;

macro_rules! head {
    ($(#[$outer:meta])* $name:ident { $($(#[$inner:meta])* $field:ident: $kind:ty,)* }) => {
        $(#[$outer])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
            Unaligned,
        )]
        #[repr(C)]
        pub struct $name { $($(#[$inner])* pub $field: $kind,)* }
    };
}

head! {
    /// First in the body of [`method::REGION`] and [`method::ROOM`].
    RegionHead {
        /// Length of the memory.
        len_bytes: U64,
    }
}

head! {
    /// First in the body of [`method::CALL`].
    BulkCallHead {
        /// Where the service is.
        rank: U32,
        /// Number of the service.
        service: U16,
        /// Which of its methods.
        method: U16,
        /// How long the caller waits.
        timeout_us: U32,
        /// Slices that follow.
        slices: U16,
        /// Zero.
        reserved: U16,
    }
}

head! {
    /// A slice of the caller's memory.
    SliceHead {
        /// Number of the region.
        region: U64,
        /// Offset of its first byte.
        offset: U64,
        /// Its length.
        len_bytes: U64,
        /// [`IS_WRITABLE`], or 0.
        flags: U32,
        /// Zero.
        reserved: U32,
    }
}

head! {
    /// First in the body of [`method::SERVE`].
    BulkServeHead {
        /// Which call is answered; 0: none.
        work: U64,
        /// The service that is offered.
        service: U16,
        /// How the call went: a status of the protocol.
        status: u8,
        /// [`WANTS_EXTRA`], [`IS_LATE`], [`WANTS_NO_CALL`].
        flags: u8,
        /// Zero.
        reserved: [u8; 4],
    }
}

head! {
    /// First in what answers [`method::SERVE`].
    BulkWorkHead {
        /// Number of the call, as its provider was told it.
        work: U64,
        /// Rank of the caller.
        rank: U32,
        /// Which method of the service.
        method: U16,
        /// Slices that follow; [`HAS_EXTRA`].
        slices: U16,
    }
}

head! {
    /// Behind a [`BulkWorkHead`]: how long its caller waits, and who that is.
    BulkWorkExtra {
        /// Time until the caller gives up. Clocks of processes differ, so no message has a time of a clock.
        left_us: U64,
        /// As of [`CallerHead`](crate::message::CallerHead).
        uid: U32,
        /// As of [`CallerHead`](crate::message::CallerHead).
        pid: U32,
        /// Number of the caller's trace; 0: none.
        trace: U64,
    }
}

head! {
    /// A slice, as the side that answers knows it.
    SliceInfo {
        /// Its length.
        len_bytes: U64,
        /// [`IS_WRITABLE`], or 0.
        flags: U32,
        /// Zero.
        reserved: U32,
    }
}

head! {
    /// First in the body of [`method::TRANSFER`].
    TransferHead {
        /// For which call.
        work: U64,
        /// What the process calls the transfer.
        ticket: U64,
        /// The own memory.
        region: U64,
        /// How long it may take.
        timeout_us: U32,
        /// Moves that follow.
        moves: U16,
        /// Zero.
        reserved: U16,
    }
}

head! {
    /// One entry of a transfer.
    MoveHead {
        /// Index of the slice.
        slice: U16,
        /// [`IS_PUSH`], or 0.
        flags: U16,
        /// Zero.
        reserved: U32,
        /// Offset in the slice.
        offset: U64,
        /// Offset in the own memory.
        local_offset: U64,
        /// Bytes to move.
        len_bytes: U64,
    }
}

impl MoveHead {
    /// A move, to be sent.
    #[must_use]
    pub fn new(entry: &Move) -> Self {
        let flags = if entry.direction == Direction::Push { IS_PUSH } else { 0 };
        Self {
            slice: entry.slice.into(),
            flags: flags.into(),
            reserved: 0.into(),
            offset: entry.offset.into(),
            local_offset: entry.local_offset.into(),
            len_bytes: entry.len_bytes.into(),
        }
    }

    /// The move that was sent.
    #[must_use]
    pub fn entry(&self) -> Move {
        let is_push = self.flags.get() & IS_PUSH != 0;
        Move {
            slice: self.slice.get(),
            direction: if is_push { Direction::Push } else { Direction::Pull },
            offset: self.offset.get(),
            local_offset: self.local_offset.get(),
            len_bytes: self.len_bytes.get(),
        }
    }
}

head! {
    /// First in the body of [`method::PEER_CALL`].
    PeerCallHead {
        /// What the caller's daemon calls the slices of the call.
        set: U64,
        /// Number of the service.
        service: U16,
        /// Which of its methods.
        method: U16,
        /// Slices that follow.
        slices: U16,
        /// Zero.
        reserved: U16,
    }
}

head! {
    /// A slice, as daemons tell each other.
    PeerSlice {
        /// Address, length and key of its region.
        region: [u8; 20],
        /// [`IS_WRITABLE`], or 0.
        flags: U32,
        /// Where it begins in the region.
        offset: U64,
        /// Its length.
        len_bytes: U64,
    }
}

/// The `count` entries that a body begins with, and the rest; `None`: it is too short, or they are more than
/// a call can have.
#[must_use]
pub fn entries<T: FromBytes + Immutable + KnownLayout + Unaligned>(
    bytes: &[u8],
    count: u16,
) -> Option<(&[T], &[u8])> {
    let count = usize::from(count);
    if count > proto::bulk::SLICES_MAX {
        return None;
    }
    <[T]>::ref_from_prefix_with_elems(bytes, count).ok()
}
