//! One half of a client's memory: a control line, a ring of slots and a bulk area.
//!
//! ```text
//! byte 0   ┌──────────────────────────────┐
//!          │ word 0                       │ control: see `bell`
//!       64 │ word 1                       │ of the down half: eviction
//!      128 │ word 2                       │ of the up half: responses that the client has read
//!      256 ├──────────────────────────────┤
//!          │ slot 0 .. slot depth - 1     │ 64 bytes each, see `ring`
//!          ├──────────────────────────────┤
//!          │ call 0 .. call depth - 1     │ longest message each, if longer than 56 bytes
//!          └──────────────────────────────┘
//! ```
//!
//! The *up* half is written by the client, the *down* half by the server alone: it is sealed against
//! any other writer before its descriptor leaves the process.
//!
//! Memory that others write is shared as atomics, or copied. Nothing else can be had of it: a type
//! with invalid values does not compile.
//!
//! ```compile_fail
//! let region = memory::Region::heap(64).unwrap();
//! let flag: &bool = region.shared(0).unwrap();
//! ```

use core::ptr::NonNull;
use std::sync::Arc;

use memory::{
    Region, copy,
    sync::{AtomicU32, AtomicU64},
};

use crate::{
    header::{DEPTH_MAX, MESSAGE_BYTES_MAX},
    ring::Slots,
};

const CONTROL_BYTES: usize = 256;
const READ_OFFSET_BYTES: usize = 128;
const SLOT_BYTES: usize = 64;
const HEADER_BYTES: usize = size_of::<u64>();

/// Longest message that travels in a slot.
pub const INLINE_BYTES_MAX: usize = SLOT_BYTES - HEADER_BYTES;

/// Shape of one half: private knowledge of each side, never read from shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
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

impl Shape {
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
        let len_bytes = self.message_bytes_max as usize;
        if len_bytes <= INLINE_BYTES_MAX { 0 } else { len_bytes.next_multiple_of(SLOT_BYTES) }
    }

    /// Bytes of memory that a half takes.
    #[must_use]
    pub fn len_bytes(self) -> usize {
        self.bulk_offset_bytes() + self.depth() * self.bulk_stride_bytes()
    }
}

/// A mapped half.
#[derive(Debug)]
pub struct Half {
    base: NonNull<u8>,
    shape: Shape,
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
    pub fn new(region: Arc<Region>, shape: Shape) -> Self {
        assert!(region.len() >= shape.len_bytes(), "a half lies inside its region");
        Self { base: region.as_ptr(), slot_mask: shape.depth() - 1, shape, region }
    }

    /// Shape that the half was made with.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The memory.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Word 0 of the control line: [`Attention`](crate::bell::Attention) of the down half,
    /// [`Armed`](crate::bell::Armed) of the up half. Of a read-only mapping it is for loads only.
    #[inline]
    #[must_use]
    pub fn bell(&self) -> &AtomicU32 {
        // SAFETY: mapped while `self` lives and aligned; everybody accesses it as an atomic.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().cast()) }
    }

    /// Word 1 of the control line of the down half: zero, or why the client was evicted. For loads
    /// only at the client.
    #[inline]
    #[must_use]
    pub fn eviction(&self) -> &AtomicU32 {
        let word = self.base.as_ptr().wrapping_add(SLOT_BYTES);
        // SAFETY: inside the control lines, mapped while `self` lives and aligned; everybody
        // accesses it as an atomic.
        unsafe { AtomicU32::from_ptr(word.cast()) }
    }

    /// Word 2 of the control lines of the up half: position up to which the client has read its
    /// responses. On a line that nothing but the server's rare look at it takes from the client.
    #[inline(always)]
    #[must_use]
    pub fn read_position(&self) -> &AtomicU64 {
        let word = self.base.as_ptr().wrapping_add(READ_OFFSET_BYTES);
        // SAFETY: inside the control lines, mapped while `self` lives and aligned; everybody
        // accesses it as an atomic.
        unsafe { AtomicU64::from_ptr(word.cast()) }
    }

    #[inline(always)]
    fn slot(&self, slot: usize) -> *mut u8 {
        debug_assert!(slot < self.shape.depth());
        self.base.as_ptr().wrapping_add(CONTROL_BYTES + slot * SLOT_BYTES)
    }

    /// Where a message of this length lies.
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
        let offset = usize::from(call) * self.shape.bulk_stride_bytes();
        self.base.as_ptr().wrapping_add(self.shape.bulk_offset_bytes() + offset)
    }
}

impl Slots for Half {
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
        // SAFETY: inside the region by `Shape::len_bytes`, mapped while `self` lives and aligned;
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
        unsafe { copy::copy_out(to, message) }
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
