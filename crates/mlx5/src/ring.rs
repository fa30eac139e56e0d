//! Memory that the device accesses too: rings and doorbell records.
//!
//! No reference to plain bytes is ever formed here. Ring contents are relaxed atomics; what hands
//! them over is the doorbell record (Release) or, from the device, the last word of a completion
//! (Acquire).

use core::{marker::PhantomData, ptr::NonNull};

use memory::sync::{AtomicU32, AtomicU64, Ordering};
use wire::wqe::{OCTOWORD_BYTES, Octoword, WqeSink};

/// Bytes per word.
pub(crate) const WORD_BYTES: usize = size_of::<u64>();

/// Words per octoword.
pub(crate) const OCTOWORD_WORDS: usize = OCTOWORD_BYTES / WORD_BYTES;

/// A ring of 8-byte words. Indices wrap at its end.
#[derive(Debug)]
pub(crate) struct Words {
    base: NonNull<u64>,
    /// Number of words, a power of two and more than one, less one.
    mask: usize,
}

// SAFETY: a pointer to memory of the device, which is tied to no thread; all access is atomic.
unsafe impl Send for Words {}

impl Words {
    /// Names the `len_bytes` bytes at `base`.
    ///
    /// # Panics
    ///
    /// If `len_bytes` is not a power of two of at least 16, or `base` is not 8-byte aligned.
    ///
    /// # Safety
    ///
    /// The bytes are valid for as long as the result is used, and everybody who accesses them
    /// meanwhile is a device or uses atomics.
    pub(crate) unsafe fn new(base: NonNull<u8>, len_bytes: usize) -> Self {
        assert!(
            len_bytes.is_power_of_two() && len_bytes >= OCTOWORD_BYTES,
            "ring of {len_bytes} B"
        );
        let base = base.cast::<u64>();
        assert!(base.is_aligned(), "ring at {base:?}");
        Self { base, mask: len_bytes / WORD_BYTES - 1 }
    }

    /// Another name for the same ring.
    ///
    /// # Safety
    ///
    /// As for [`new`](Self::new).
    pub(crate) unsafe fn alias(&self) -> Self {
        Self { ..*self }
    }

    #[inline(always)]
    fn word(&self, index: usize) -> &AtomicU64 {
        let word = self.base.as_ptr().wrapping_add(index & self.mask);
        // SAFETY: in bounds by the mask, aligned as `base` is, valid and shared with nobody but
        // users of atomics by the contract of `new`.
        unsafe { AtomicU64::from_ptr(word) }
    }

    #[inline(always)]
    pub(crate) fn load(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Relaxed)
    }

    /// Loads a word with which the device hands over what it wrote before.
    #[inline(always)]
    pub(crate) fn load_acquire(&self, index: usize) -> u64 {
        // SYNC(cqe-owner): pairs with the device's last store to a completion.
        self.word(index).load(Ordering::Acquire)
    }

    #[inline(always)]
    pub(crate) fn store(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::Relaxed);
    }

    /// Stores `value` to every word.
    pub(crate) fn fill(&self, value: u64) {
        for index in 0..=self.mask {
            self.store(index, value);
        }
    }

    /// The slots of a WQE whose first word is word `first`, an even one.
    #[inline(always)]
    pub(crate) fn wqe_at(&self, first: usize) -> WqeSlots<'_> {
        WqeSlots { base: self.base, mask: self.mask, first, _ring: PhantomData }
    }
}

/// Octowords of one WQE inside a ring; may wrap at the ring's end.
///
/// Copies what it needs of the ring: after each store to shared memory the compiler would load that
/// anew.
#[derive(Debug)]
pub(crate) struct WqeSlots<'a> {
    base: NonNull<u64>,
    mask: usize,
    first: usize,
    _ring: PhantomData<&'a Words>,
}

impl WqeSink for WqeSlots<'_> {
    #[inline(always)]
    fn put(&mut self, index: usize, octoword: Octoword) {
        let [a, b, c, d, e, f, g, h, rest @ ..] = octoword;
        // Even, and the mask is odd: the octoword does not wrap.
        let at = (self.first + index * OCTOWORD_WORDS) & self.mask & !1;
        let at = self.base.as_ptr().wrapping_add(at);
        let words = [u64::from_ne_bytes([a, b, c, d, e, f, g, h]), u64::from_ne_bytes(rest)];
        for (index, word) in words.into_iter().enumerate() {
            // SAFETY: in bounds by the mask, aligned as `base` is; the ring lives as long as the
            // borrow, and is shared with nobody but users of atomics, by the contract of `Words::new`.
            let slot = unsafe { AtomicU64::from_ptr(at.wrapping_add(index)) };
            slot.store(word, Ordering::Relaxed);
        }
    }
}

/// One word of a doorbell record.
#[derive(Debug)]
pub(crate) struct Record(NonNull<u32>);

// SAFETY: a pointer to memory of the device, which is tied to no thread; all access is atomic.
unsafe impl Send for Record {}

impl Record {
    /// Names the word at `word`.
    ///
    /// # Panics
    ///
    /// If `word` is not aligned.
    ///
    /// # Safety
    ///
    /// As for [`Words::new`].
    pub(crate) unsafe fn new(word: NonNull<u32>) -> Self {
        assert!(word.is_aligned(), "doorbell record at {word:?}");
        Self(word)
    }

    /// Another name for the same word.
    ///
    /// # Safety
    ///
    /// As for [`new`](Self::new).
    pub(crate) unsafe fn alias(&self) -> Self {
        Self(self.0)
    }

    /// The index published last.
    pub(crate) fn published(&self) -> u32 {
        // SAFETY: valid, aligned and shared with nobody but users of atomics, by `new`.
        let record = unsafe { AtomicU32::from_ptr(self.0.as_ptr()) };
        record.load(Ordering::Relaxed)
    }

    /// Publishes `word`, already in the device's byte order, and every earlier store.
    #[inline(always)]
    pub(crate) fn publish(&self, word: u32) {
        // SAFETY: valid, aligned and shared with nobody but users of atomics, by `new`.
        let record = unsafe { AtomicU32::from_ptr(self.0.as_ptr()) };
        // SYNC(doorbell-record): pairs with the device's load of the record.
        record.store(word, Ordering::Release);
    }
}

#[cfg(test)]
pub(crate) mod heap {
    //! Rings for unit tests.

    use memory::sync::Arc;

    use super::*;

    /// Zeroed memory, and the ring and the record that live there.
    pub(crate) struct Heap(Arc<[AtomicU64]>);

    impl Heap {
        pub(crate) fn zeroed(len_bytes: usize) -> Self {
            Self((0..len_bytes / WORD_BYTES).map(|_| AtomicU64::new(0)).collect())
        }

        fn base(&self) -> NonNull<u64> {
            NonNull::new(Arc::as_ptr(&self.0).cast::<u64>().cast_mut()).expect("an allocation")
        }

        /// The heap must outlive the result.
        pub(crate) fn ring(&self) -> Words {
            // SAFETY: valid while the heap is, which unit tests keep until they end; all atomics.
            unsafe { Words::new(self.base().cast(), self.0.len() * WORD_BYTES) }
        }

        /// The heap must outlive the result.
        pub(crate) fn record(&self) -> Record {
            // SAFETY: as for `ring`.
            unsafe { Record::new(self.base().cast()) }
        }

        /// The record, as the device takes it.
        pub(crate) fn recorded(&self) -> u32 {
            let [a, b, c, d, ..] = self.0[0].load(Ordering::Relaxed).to_ne_bytes();
            u32::from_be_bytes([a, b, c, d])
        }
    }
}
