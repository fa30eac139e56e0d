//! Rights to memory that a call lends, and the pieces that transfers are made of. Pure: no memory, no time.
//!
//! A call carries *slices* of its caller's memory. The side that answers may read them, and write those that
//! it was allowed to, until the call has ended: see [docs/bulk.md](../../../docs/bulk.md), whose rules this
//! module keeps.
//!
//! ```text
//!  caller's side    Granted ──answered──────────────────────▶ Closed      Lending
//!                      └─given up─▶ Closing ─got closed, or connection dead──▶ Closed
//!
//!  other side       Open ──answer, close, deadline, death──▶ Draining ──last transfer done──▶ Drained
//! ```

use alloc::vec::Vec;

/// Most slices of one call, and most moves of one transfer.
pub const SLICES_MAX: usize = 64;

/// A part of memory of `of` bytes: offsets and lengths of others are allegations until [`new`](Self::new) has
/// checked them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    offset: u64,
    len_bytes: u64,
}

impl Extent {
    /// `len_bytes` at `offset`; `None`: they do not lie inside `of` bytes.
    #[must_use]
    pub fn new(offset: u64, len_bytes: u64, of: u64) -> Option<Self> {
        let end = offset.checked_add(len_bytes)?;
        (end <= of).then_some(Self { offset, len_bytes })
    }

    /// A part of this part.
    #[must_use]
    pub fn part(self, offset: u64, len_bytes: u64) -> Option<Self> {
        let part = Self::new(offset, len_bytes, self.len_bytes)?;
        Some(Self { offset: self.offset + part.offset, len_bytes })
    }

    /// Offset of its first byte.
    #[must_use]
    pub fn offset(self) -> u64 {
        self.offset
    }

    /// Its length.
    #[must_use]
    pub fn len_bytes(self) -> u64 {
        self.len_bytes
    }

    /// Whether the two have a byte in common.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        let starts_before_end = |a: Self, b: Self| a.offset < b.offset + b.len_bytes;
        self.len_bytes > 0
            && other.len_bytes > 0
            && starts_before_end(self, other)
            && starts_before_end(other, self)
    }
}

/// A slice that was granted for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Where in its region.
    pub extent: Extent,
    /// The other side may write it.
    pub is_writable: bool,
}

/// The direction of a move, as the side that makes it sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the slice to own memory.
    Pull,
    /// From own memory to the slice.
    Push,
}

/// One entry of a transfer: a range of a slice, and where its bytes go or come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Index of the slice.
    pub slice: u16,
    /// Direction of the transfer.
    pub direction: Direction,
    /// Offset in the slice.
    pub offset: u64,
    /// Offset in the own region.
    pub local_offset: u64,
    /// Bytes to move.
    pub len_bytes: u64,
}

/// Why a move is not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The call has no such slice.
    Slice,
    /// The slice may only be read.
    ReadOnly,
    /// The range does not lie inside the slice, or inside the own region.
    Range,
    /// The call has ended.
    Ended,
}

impl Move {
    /// The two ranges of the move: of the slice's region, and of the own region of `local_bytes`.
    ///
    /// # Errors
    ///
    /// [`Refused`].
    pub fn check(&self, slices: &[Slice], local_bytes: u64) -> Result<(Extent, Extent), Refused> {
        let slice = slices.get(usize::from(self.slice)).ok_or(Refused::Slice)?;
        if self.direction == Direction::Push && !slice.is_writable {
            return Err(Refused::ReadOnly);
        }
        let remote = slice.extent.part(self.offset, self.len_bytes).ok_or(Refused::Range)?;
        let local =
            Extent::new(self.local_offset, self.len_bytes, local_bytes).ok_or(Refused::Range)?;
        Ok((remote, local))
    }
}

/// A move that was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Index of the slice.
    pub slice: u16,
    /// Direction of the transfer.
    pub direction: Direction,
    /// Offset in the region of the slice.
    pub remote_offset: u64,
    /// Offset in the own region.
    pub local_offset: u64,
    /// Bytes to move.
    pub len_bytes: u64,
}

/// The moves of a transfer, cut into segments that follow each other.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    moves: Vec<Checked>,
    /// The move that is being cut, and how far.
    next: usize,
    cut_bytes: u64,
}

impl Plan {
    /// Checks the moves of a transfer, all of them before any is made.
    ///
    /// # Errors
    ///
    /// [`Refused`]: the first that may not be made.
    pub fn new(moves: &[Move], slices: &[Slice], local_bytes: u64) -> Result<Self, Refused> {
        let check = |entry: &Move| {
            let (remote, local) = entry.check(slices, local_bytes)?;
            Ok(Checked {
                slice: entry.slice,
                direction: entry.direction,
                remote_offset: remote.offset(),
                local_offset: local.offset(),
                len_bytes: remote.len_bytes(),
            })
        };
        let moves: Result<Vec<_>, _> = moves.iter().map(check).collect();
        Ok(Self { moves: moves?, next: 0, cut_bytes: 0 })
    }

    /// Bytes of all moves.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.moves.iter().fold(0, |sum, entry| sum.saturating_add(entry.len_bytes))
    }

    /// The slice of the next segment; `None`: no segment is left.
    #[must_use]
    pub fn next_slice(&self) -> Option<u16> {
        let (first, rest) = self.moves.get(self.next..)?.split_first()?;
        if first.len_bytes > self.cut_bytes {
            return Some(first.slice);
        }
        rest.iter().find(|entry| entry.len_bytes > 0).map(|entry| entry.slice)
    }

    /// The next segment, of `bytes_max` at most; `None`: none is left. Moves of 0 bytes have none.
    pub fn segment(&mut self, bytes_max: u64) -> Option<Checked> {
        while let Some(entry) = self.moves.get(self.next) {
            let len_bytes = (entry.len_bytes - self.cut_bytes).min(bytes_max.max(1));
            if len_bytes == 0 {
                (self.next, self.cut_bytes) = (self.next + 1, 0);
                continue;
            }
            let segment = Checked {
                remote_offset: entry.remote_offset + self.cut_bytes,
                local_offset: entry.local_offset + self.cut_bytes,
                len_bytes,
                ..*entry
            };
            self.cut_bytes += len_bytes;
            return Some(segment);
        }
        None
    }
}

/// The state of the slices of one call, at the caller's side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lending {
    /// The other side may use them.
    #[default]
    Granted,
    /// The call has ended here, and the other side was asked to stop.
    Closing,
    /// They are unused: they are the caller's again.
    Closed,
}

impl Lending {
    /// The other side has answered the call, which says that it is done with all slices.
    pub fn answered(&mut self) {
        *self = Self::Closed;
    }

    /// The call ended here: by its deadline, or because its caller is gone. Returns whether the other side
    /// must be asked to close, and be asked again until it answers or the connection is dead.
    #[must_use]
    pub fn given_up(&mut self) -> bool {
        let must_ask = *self == Self::Granted;
        if must_ask {
            *self = Self::Closing;
        }
        must_ask
    }

    /// The other side says that it has closed the slices.
    pub fn closed(&mut self) {
        *self = Self::Closed;
    }

    /// The connection that could carry an access is dead, and nothing of it is under way.
    pub fn disconnected(&mut self) {
        *self = Self::Closed;
    }

    /// Whether the memory is the caller's again.
    #[must_use]
    pub fn is_closed(self) -> bool {
        self == Self::Closed
    }
}

/// The state of the slices of one call, at the answering side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Borrowing {
    /// Segments that are under way.
    under_way: u32,
    is_ended: bool,
}

impl Borrowing {
    /// A segment is about to be moved.
    ///
    /// # Errors
    ///
    /// [`Refused::Ended`]: it must not be.
    pub fn begin(&mut self) -> Result<(), Refused> {
        if self.is_ended {
            return Err(Refused::Ended);
        }
        self.under_way += 1;
        Ok(())
    }

    /// A segment is moved, or will never be.
    pub fn done(&mut self) {
        self.under_way -= 1;
    }

    /// No further segment may begin.
    pub fn end(&mut self) {
        self.is_ended = true;
    }

    /// Whether no further segment may begin.
    #[must_use]
    pub fn is_ended(self) -> bool {
        self.is_ended
    }

    /// Whether nothing is under way and nothing will be: the caller may learn so.
    #[must_use]
    pub fn is_drained(self) -> bool {
        self.is_ended && self.under_way == 0
    }
}
