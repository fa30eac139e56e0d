//! The send ring of a queue pair: private memory of this process that the engine reads.

use core::ptr::NonNull;

use memory::{
    Region,
    sync::{AtomicU16, AtomicU32, AtomicU64, Ordering},
};
use verbs::CreateError;
use wire::{
    doorbell,
    ids::Qpn,
    wqe::{
        Ctrl, OCTOWORD_BYTES, OCTOWORDS_MAX, PlainKind, PlainSend, Transport, WQEBB_BYTES,
        peek_ctrl,
    },
};

use crate::nic::{
    engine::{SendQueue, WQE_BYTES_MAX},
    objects::Place,
};

const WORD_BYTES: usize = size_of::<u64>();

/// Ring and doorbell record.
#[derive(Debug)]
pub(crate) struct SendRing {
    place: Place,
    /// What keeps it; `None`: it is lent.
    _region: Option<Region>,
    /// Of the ring, without the record: a power of two.
    bytes: usize,
    /// How far the engine has come. Written while executing, read by the NIC thread as a hint.
    executed: AtomicU16,
}

// SAFETY: ring and record are shared with the driver by design, from any thread, as words of atomics.
unsafe impl Send for SendRing {}
// SAFETY: as above.
unsafe impl Sync for SendRing {}

impl SendRing {
    pub(crate) fn create(log_blocks: u8) -> Result<Self, CreateError> {
        let bytes = WQEBB_BYTES << log_blocks;
        let region = Region::heap(bytes + WQEBB_BYTES).map_err(|error| CreateError::System {
            object: "send queue",
            cause: error.to_string(),
        })?;
        let ring = region.as_ptr();
        // SAFETY: the region has one block more than the ring.
        let dbrec = unsafe { ring.add(bytes) };
        let place = Place { ring, dbrec };
        Ok(Self { place, _region: Some(region), bytes, executed: AtomicU16::new(0) })
    }

    /// One that a program has made, and keeps while the queue pair lives.
    pub(crate) fn lend(log_blocks: u8, place: Place) -> Self {
        let bytes = WQEBB_BYTES << log_blocks;
        Self { place, _region: None, bytes, executed: AtomicU16::new(0) }
    }

    pub(crate) fn ring(&self) -> NonNull<u8> {
        self.place.ring
    }

    /// The send counter: behind the ring, on a cache line of its own.
    pub(crate) fn dbrec(&self) -> NonNull<u32> {
        self.place.dbrec.cast()
    }

    pub(crate) fn posted(&self) -> u16 {
        let dbrec = self.dbrec().cast::<AtomicU32>();
        // SAFETY: inside the region, aligned; driver and engine access it as an atomic.
        let dbrec = unsafe { dbrec.as_ref() };
        // SYNC(doorbell-record): pairs with the driver's `Release` after it wrote the WQEs.
        doorbell::counter_of_word(dbrec.load(Ordering::Acquire))
    }

    pub(crate) fn is_posted(&self) -> bool {
        self.posted() != self.executed.load(Ordering::Relaxed)
    }

    /// Blocks that are posted and not executed; and how many the ring has, if that is fewer.
    pub(crate) fn waiting(&self) -> (u16, Option<u32>) {
        let ahead = self.posted().wrapping_sub(self.executed.load(Ordering::Relaxed));
        let blocks = u32::try_from(self.bytes / WQEBB_BYTES).unwrap_or(u32::MAX);
        (ahead, (u32::from(ahead) > blocks).then_some(blocks))
    }

    pub(super) fn set_executed(&self, counter: u16) {
        self.executed.store(counter, Ordering::Relaxed);
    }

    /// Copies ring bytes from octoword-aligned `offset`, wrapping at the end.
    #[inline(always)]
    fn copy(&self, offset: usize, into: &mut [u8]) {
        let first = into.len().min(self.bytes - offset);
        let (head, tail) = into.split_at_mut(first);
        // SAFETY: inside the ring, by the line above; the driver may write meanwhile.
        unsafe { memory::copy::copy_in_words(head, self.ring().as_ptr().wrapping_add(offset)) };
        if !tail.is_empty() {
            // SAFETY: a WQE is shorter than the smallest ring that could wrap it twice: `tail` is
            // at most `WQE_BYTES_MAX` minus one octoword, and is cut to the ring below.
            unsafe { memory::copy::copy_in_words(tail, self.ring().as_ptr()) };
        }
    }
}

impl SendQueue for SendRing {
    #[inline(always)]
    fn plain_kind(&self, counter: u16) -> Option<PlainKind> {
        let offset = (usize::from(counter) * WQEBB_BYTES) & (self.bytes - 1);
        let first = self.ring().as_ptr().wrapping_add(offset).cast::<AtomicU64>();
        // SAFETY: inside the ring; aligned; driver and engine access its words as atomics.
        PlainKind::of(unsafe { &*first }.load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn plain(
        &self,
        counter: u16,
        transport: Transport,
        kind: PlainKind,
        qpn: Qpn,
    ) -> Option<(PlainSend, *const u8)> {
        let offset = (usize::from(counter) * WQEBB_BYTES) & (self.bytes - 1);
        let ring = self.ring().cast::<AtomicU64>().as_ptr();
        let first = ring.wrapping_add(offset / WORD_BYTES);
        let word = |at: usize| {
            let at = if at < WQEBB_BYTES / WORD_BYTES {
                first.wrapping_add(at)
            } else {
                ring.wrapping_add((offset / WORD_BYTES + at) & (self.bytes / WORD_BYTES - 1))
            };
            // SAFETY: inside the block at `offset`, which does not wrap, or wrapped itself: inside the
            // ring; aligned; driver and engine access its words as atomics.
            unsafe { &*at }.load(Ordering::Relaxed)
        };
        let wqe = PlainSend::read(word, transport, kind, counter, qpn)?;
        let end = offset + usize::from(wqe.octowords) * OCTOWORD_BYTES;
        let inline = first.cast::<u8>().wrapping_add(wqe.inline_offset()).cast_const();
        (end <= self.bytes).then_some((wqe, inline))
    }

    #[inline(always)]
    fn fetch(&self, counter: u16, into: &mut [u8; WQE_BYTES_MAX]) -> (Ctrl, usize) {
        let offset = (usize::from(counter) * WQEBB_BYTES) & (self.bytes - 1);
        let (first, rest) = into.split_at_mut(WQEBB_BYTES);
        // A block never wraps, and most WQEs are one.
        self.copy(offset, first);
        let ctrl = peek_ctrl(first.first_chunk().expect("a block is longer than an octoword"));
        let octowords = ctrl.octowords.clamp(1, OCTOWORDS_MAX);
        // Whatever the length field says: no more than the ring holds.
        let len = (usize::from(octowords) * OCTOWORD_BYTES).min(self.bytes);
        if let Some(more) = len.checked_sub(WQEBB_BYTES) {
            let body = (offset + WQEBB_BYTES) & (self.bytes - 1);
            self.copy(body, &mut rest[..more]);
        }
        (ctrl, len)
    }
}
