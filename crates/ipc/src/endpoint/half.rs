//! One half of a client's memory: a control line, a ring of slots and two bulk areas.
//!
//! ```text
//! byte 0   ┌──────────────────────────────┐
//!          │ word 0                       │ control: see `wakeup`
//!        4 │                              │ of the down half: whether the client is asked to leave
//!       64 │ word 1                       │ of the down half: eviction
//!      128 │ word 2                       │ of the up half: responses that the client has read
//!          │                              │ of the down half: requests that the server has taken
//!      192 │ word 3                       │ of the up half: calls that the client has given up
//!      256 ├──────────────────────────────┤
//!          │ slot 0 .. slot depth - 1     │ 64 bytes each, see `ring`
//!          ├──────────────────────────────┤
//!          │ call 0 .. call depth - 1     │ 4160 bytes each, or less if the longest message is shorter
//!          ├──────────────────────────────┤ whole pages from here on, allocated when they are needed
//!          │ call 0 .. call depth - 1     │ longest message each, if longer than 4160 bytes
//!          └──────────────────────────────┘
//! ```
//!
//! The *up* half is written by the client, the *down* half by the server alone: it is sealed against
//! any other writer before its descriptor leaves the process.
//!
//! A message lies in the first of slot, bulk area and large area that takes it. The pages of the large
//! area are allocated by whoever writes them ([`Half::commit`]), call by call, and stay. Nobody can take pages
//! of the down half away (`FALLOC_FL_PUNCH_HOLE`): it is sealed against new writers before its descriptor
//! leaves the process. The up half is sealed in the same way when the first large request arrives, when its
//! client has long mapped it. From then on pages that are there stay, and the server reads a large request
//! through its mapping once it has seen that all of its pages are there ([`Half::is_present`]). Otherwise it
//! reads it by a system call, to which pages that are not there are zeros: a load from one that cannot be
//! allocated would be a SIGBUS.
//!
//! Memory that others write is shared as atomics, or copied. Nothing else can be had of it: a type
//! with invalid values does not compile.
//!
//! ```compile_fail
//! let region = memory::Region::heap(64).unwrap();
//! let flag: &bool = region.shared(0).unwrap();
//! ```

use core::{ops::Range, ptr::NonNull};
use std::sync::Arc;

use memory::{
    Filler, LentBytes, MapError, Region, copy,
    sync::{AtomicU32, AtomicU64},
};

use crate::{
    ending::{EvictionWord, GivenUpBits, LeaveWord},
    header::{DEPTH_MAX, MESSAGE_BYTES_MAX},
    ring::SlotMemory,
};

const CONTROL_BYTES: usize = 256;
const LEAVE_OFFSET_BYTES: usize = 4;
const READ_OFFSET_BYTES: usize = 128;
const ABANDONED_OFFSET_BYTES: usize = 192;
const SLOT_BYTES: usize = 64;
const HEADER_BYTES: usize = size_of::<u64>();

/// Longest message that travels in a slot.
pub const INLINE_BYTES_MAX: usize = SLOT_BYTES - HEADER_BYTES;

/// Longest message that travels in memory which is allocated when a client connects: a body of 4 KiB and
/// what goes before it. A longer one is *large*.
pub const EAGER_BYTES_MAX: usize = 4096 + SLOT_BYTES;

/// Unit in which the large area is allocated: no page is smaller.
const PAGE_BYTES: usize = 4096;

/// Shape of one half: private knowledge of each side, never read from shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HalfShape {
    /// Logarithm of the number of slots and calls.
    pub depth_log2: u32,
    /// Longest message.
    pub message_bytes_max: u32,
}

/// A shape that the header of a slot cannot describe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a ring of 2^{depth_log2} calls of {message_bytes_max} B each is not possible; the most are \
     2^12 calls and 16777215 B"
)]
pub struct BadShape {
    /// As asked for.
    pub depth_log2: u32,
    /// As asked for.
    pub message_bytes_max: u32,
}

impl HalfShape {
    /// Checks a shape.
    ///
    /// # Errors
    ///
    /// [`BadShape`].
    pub fn new(depth_log2: u32, message_bytes_max: u32) -> Result<Self, BadShape> {
        if depth_log2 <= DEPTH_MAX.ilog2() && message_bytes_max <= MESSAGE_BYTES_MAX {
            Ok(Self { depth_log2, message_bytes_max })
        } else {
            Err(BadShape { depth_log2, message_bytes_max })
        }
    }

    /// Number of calls.
    #[must_use]
    pub fn depth(self) -> usize {
        1 << self.depth_log2
    }

    fn bulk_offset_bytes(self) -> usize {
        CONTROL_BYTES + self.depth() * SLOT_BYTES
    }

    /// Bytes of bulk area per call, whole cache lines.
    fn bulk_stride_bytes(self) -> usize {
        let len_bytes = (self.message_bytes_max as usize).min(EAGER_BYTES_MAX);
        if len_bytes <= INLINE_BYTES_MAX { 0 } else { len_bytes.next_multiple_of(SLOT_BYTES) }
    }

    /// Bytes of the large area per call, whole pages.
    fn large_stride_bytes(self) -> usize {
        let len_bytes = self.message_bytes_max as usize;
        if len_bytes <= EAGER_BYTES_MAX { 0 } else { len_bytes.next_multiple_of(PAGE_BYTES) }
    }

    /// Where the large area of a call begins.
    fn large_offset_bytes(self, call: u16) -> usize {
        self.eager_bytes().next_multiple_of(PAGE_BYTES)
            + usize::from(call) * self.large_stride_bytes()
    }

    /// Bytes of memory that a half takes as long as no message is large.
    #[must_use]
    pub fn eager_bytes(self) -> usize {
        self.bulk_offset_bytes() + self.depth() * self.bulk_stride_bytes()
    }

    /// Whether a message of this length is large.
    #[inline(always)]
    #[must_use]
    pub fn is_large(len_bytes: usize) -> bool {
        len_bytes > EAGER_BYTES_MAX
    }

    /// Whether a message of this length lies in the bulk area of its call, which is the server's from the request to
    /// its response.
    #[inline(always)]
    #[must_use]
    pub fn is_bulk(len_bytes: usize) -> bool {
        len_bytes > INLINE_BYTES_MAX && !Self::is_large(len_bytes)
    }

    /// Bytes of addresses that a half takes.
    #[must_use]
    pub fn len_bytes(self) -> usize {
        match self.large_stride_bytes() {
            0 => self.eager_bytes(),
            stride => self.large_offset_bytes(0) + self.depth() * stride,
        }
    }
}

/// A mapped half.
#[derive(Debug)]
pub struct Half {
    base: NonNull<u8>,
    shape: HalfShape,
    slot_mask: usize,
    /// Keeps `base` mapped.
    region: Arc<Region>,
}

// SAFETY: an address range that belongs to no thread, accessed by atomics and tolerant copies only.
unsafe impl Send for Half {}

impl Half {
    /// Looks at a region as a half.
    ///
    /// # Panics
    ///
    /// If the region is shorter than the shape asks.
    #[must_use]
    pub fn new(region: Arc<Region>, shape: HalfShape) -> Self {
        assert!(region.len() >= shape.len_bytes(), "a half lies inside its region");
        Self { base: region.as_ptr(), slot_mask: shape.depth() - 1, shape, region }
    }

    /// Shape that the half was made with.
    #[must_use]
    pub fn shape(&self) -> HalfShape {
        self.shape
    }

    /// The memory.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Word 0 of the control line: [`PolledFlag`](crate::wakeup::PolledFlag) of the down half,
    /// [`NapEpoch`](crate::wakeup::NapEpoch) of the up half. Of a read-only mapping it is for loads only.
    #[inline]
    #[must_use]
    pub fn control_word(&self) -> &AtomicU32 {
        // SAFETY: mapped while `self` lives and aligned; everybody accesses it as an atomic.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().cast()) }
    }

    /// Behind word 0 of the down half, on a line that the client reads for each request: not zero if the client is
    /// asked to leave. For loads only at the client.
    #[inline(always)]
    #[must_use]
    pub fn leave_word(&self) -> LeaveWord<'_> {
        let word = self.base.as_ptr().wrapping_add(LEAVE_OFFSET_BYTES);
        // SAFETY: inside the control lines, mapped while `self` lives and aligned; everybody
        // accesses it as an atomic.
        LeaveWord(unsafe { AtomicU32::from_ptr(word.cast()) })
    }

    /// Word 1 of the control line of the down half: zero, or why the client was evicted. For loads
    /// only at the client.
    #[inline]
    #[must_use]
    pub fn eviction(&self) -> EvictionWord<'_> {
        let word = self.base.as_ptr().wrapping_add(SLOT_BYTES);
        // SAFETY: inside the control lines, mapped while `self` lives and aligned; everybody
        // accesses it as an atomic.
        EvictionWord(unsafe { AtomicU32::from_ptr(word.cast()) })
    }

    /// Word 2 of the control lines: position up to which the client has read its responses (up half), or the server
    /// has taken requests (down half). On a line that nothing but a rare look of the other side takes from its
    /// writer. For loads only of a half that the other side writes.
    #[inline(always)]
    #[must_use]
    pub fn read_position(&self) -> &AtomicU64 {
        let word = self.base.as_ptr().wrapping_add(READ_OFFSET_BYTES);
        // SAFETY: inside the control lines, mapped while `self` lives and aligned; everybody
        // accesses it as an atomic.
        unsafe { AtomicU64::from_ptr(word.cast()) }
    }

    /// Word 3 of the control lines of the up half: a bit for each of the first 64 calls, of those that the client has
    /// given up and the server has not answered.
    #[inline(always)]
    #[must_use]
    pub fn given_up(&self) -> GivenUpBits<'_> {
        let word = self.base.as_ptr().wrapping_add(ABANDONED_OFFSET_BYTES);
        // SAFETY: inside the control lines, mapped while `self` lives and aligned; everybody
        // accesses it as an atomic.
        GivenUpBits(unsafe { AtomicU64::from_ptr(word.cast()) })
    }

    #[inline(always)]
    fn slot(&self, slot: usize) -> *mut u8 {
        debug_assert!(slot < self.shape.depth());
        self.base.as_ptr().wrapping_add(CONTROL_BYTES + slot * SLOT_BYTES)
    }

    /// The address of a message of this length.
    #[inline(always)]
    fn message(&self, slot: usize, call: u16, len_bytes: usize) -> *mut u8 {
        if len_bytes <= INLINE_BYTES_MAX {
            return self.slot(slot).wrapping_add(HEADER_BYTES);
        }
        assert!(
            usize::from(call) < self.shape.depth()
                && len_bytes <= self.shape.message_bytes_max as usize,
            "callers check what they did not write themselves"
        );
        let offset = if HalfShape::is_large(len_bytes) {
            self.shape.large_offset_bytes(call)
        } else {
            self.shape.bulk_offset_bytes() + usize::from(call) * self.shape.bulk_stride_bytes()
        };
        self.base.as_ptr().wrapping_add(offset)
    }

    /// Lends a message that the other side published in this slot. `call` is below the depth and the length
    /// was checked.
    #[inline]
    #[must_use]
    pub fn lend(&self, slot: usize, call: u16, len_bytes: usize) -> LentBytes<'_> {
        let from = self.message(slot, call, len_bytes);
        let from = NonNull::new(from).expect("a message lies inside the region");
        // SAFETY: inside the region, mapped while `self` lives. The half is filled by the other side alone,
        // and accessed by atomics and copies.
        unsafe { LentBytes::new(from, len_bytes) }
    }

    /// Lends a part of a large message that the other side put: its pages are there and stay.
    #[must_use]
    pub fn lend_part(&self, call: u16, offset_bytes: usize, len_bytes: usize) -> LentBytes<'_> {
        let offset_bytes = self.large_part(call, offset_bytes, len_bytes);
        let part =
            self.region.span(offset_bytes, len_bytes).expect("callers check what others wrote");
        // SAFETY: mapped while `self` lives. The half is filled by the other side alone, and accessed by atomics and
        // copies.
        unsafe { LentBytes::new(part.as_ptr(), len_bytes) }
    }

    /// Allocates the pages of a byte range of a call's large area, to be written by this side.
    ///
    /// # Errors
    ///
    /// [`MapError`]: there is no memory.
    pub fn commit(&self, call: u16, range_bytes: Range<usize>) -> Result<(), MapError> {
        let base = self.shape.large_offset_bytes(call);
        self.region.commit(base + range_bytes.start..base + range_bytes.end)
    }

    /// A part of a call's large area, to be filled by this side before the message is published. `call` is below
    /// the depth, and the pages of the part are [allocated](Self::commit).
    #[must_use]
    pub fn part_filler(&self, call: u16, range_bytes: Range<usize>) -> Filler<'_> {
        let is_inside = range_bytes.start <= range_bytes.end
            && range_bytes.end <= self.shape.message_bytes_max as usize;
        assert!(usize::from(call) < self.shape.depth() && is_inside, "a part of a large message");
        let offset_bytes = self.shape.large_offset_bytes(call) + range_bytes.start;
        let to = self.base.as_ptr().wrapping_add(offset_bytes);
        // SAFETY: the part lies inside the region, mapped while `self` lives. It is this side's until the
        // header is published; what this side lends is in the other half.
        unsafe { Filler::new(to, range_bytes.len()) }
    }

    /// Sees to it that pages which are there stay, whatever the other side does. Returns whether they do: not
    /// if the other side has fixed the set of seals, or the memory is no file.
    #[must_use]
    pub fn keep_pages(&self) -> bool {
        self.region.seal_future_write().is_ok()
    }

    /// Whether all pages of the first `len_bytes` of a call's large area are there. `call` is below the depth.
    #[must_use]
    pub fn is_present(&self, call: u16, len_bytes: usize) -> bool {
        let base = self.shape.large_offset_bytes(call);
        self.region.is_present(base..base + len_bytes)
    }

    /// Appends a copy of a part of a large message, whatever the other side does to its pages: by loads only
    /// if these are known to [stay](Self::keep_pages). `call` is below the depth and the part inside the
    /// longest message.
    ///
    /// # Errors
    ///
    /// [`MapError`].
    pub fn append_part(
        &self,
        call: u16,
        offset_bytes: usize,
        len_bytes: usize,
        are_pages_kept: bool,
        to: &mut Vec<u8>,
    ) -> Result<(), MapError> {
        let offset_bytes = self.large_part(call, offset_bytes, len_bytes);
        if are_pages_kept {
            self.region.append_present_to(offset_bytes, len_bytes, to)
        } else {
            self.region.append_to(offset_bytes, len_bytes, to)
        }
    }

    /// The place of a part of a large message.
    fn large_part(&self, call: u16, offset_bytes: usize, len_bytes: usize) -> usize {
        let inside = offset_bytes + len_bytes <= self.shape.message_bytes_max as usize;
        assert!(
            usize::from(call) < self.shape.depth() && inside,
            "callers check what others wrote"
        );
        self.shape.large_offset_bytes(call) + offset_bytes
    }
}

impl SlotMemory for Half {
    #[inline(always)]
    fn depth_log2(&self) -> u32 {
        self.shape.depth_log2
    }

    #[inline(always)]
    fn slot_mask(&self) -> usize {
        self.slot_mask
    }

    #[inline(always)]
    fn header(&self, slot: usize) -> &AtomicU64 {
        // SAFETY: inside the region by `HalfShape::len_bytes`, mapped while `self` lives and aligned;
        // everybody accesses it as an atomic.
        unsafe { AtomicU64::from_ptr(self.slot(slot).cast()) }
    }

    #[inline(always)]
    fn store(&self, slot: usize, call: u16, message: &[u8]) {
        let to = self.message(slot, call, message.len());
        if message.len() <= INLINE_BYTES_MAX {
            // SAFETY: `message` lies inside the region. By the rule of `ring` the other side does
            // not read it before the header is published; if it does, it breaks the rule and may see
            // anything. It was written a moment ago, by the application or by `load`.
            return unsafe { copy::copy_out_words(to, message) };
        }
        // SAFETY: as above.
        unsafe { copy::copy_out_body(to, message) }
    }

    fn store_parts(&self, slot: usize, call: u16, parts: &[&[u8]]) {
        let len_bytes = parts.iter().map(|part| part.len()).sum();
        let mut to = self.message(slot, call, len_bytes);
        for part in parts {
            // SAFETY: the message lies inside the region, and its parts are as long together. As for
            // `store`.
            unsafe { copy::copy_out_body(to, part) };
            to = to.wrapping_add(part.len());
        }
    }

    #[inline]
    fn filler(&self, slot: usize, call: u16, len_bytes: usize) -> Filler<'_> {
        let to = self.message(slot, call, len_bytes);
        // SAFETY: the message lies inside the region, mapped while `self` lives. It is this side's until the
        // header is published, which ends the filler; what this side lends is in the other half.
        unsafe { Filler::new(to, len_bytes) }
    }

    #[inline(always)]
    fn prefetch(&self, slot: usize) {
        memory::line::prefetch(self.slot(slot).cast_const());
    }

    #[inline(always)]
    fn load(&self, slot: usize, call: u16, message: &mut [u8]) {
        let from = self.message(slot, call, message.len());
        if message.len() <= INLINE_BYTES_MAX {
            // SAFETY: `message` lies inside the region, and is ours since the header was published. A
            // hostile other side may still write it: then the private copy holds anything.
            return unsafe { copy::copy_in_words(message, from) };
        }
        // SAFETY: as above.
        unsafe { copy::copy_in(message, from) }
    }
}
