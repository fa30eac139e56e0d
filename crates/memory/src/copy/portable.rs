//! Any architecture, and Miri: relaxed atomics, in words where both sides are aligned alike.

use crate::sync::{
    Ordering,
    machine::{AtomicU8, AtomicU64},
};

const WORD_BYTES: usize = size_of::<u64>();

/// Copies as [`super::copy_between`] does.
///
/// # Safety
///
/// As for [`super::copy_between`].
#[inline]
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len_bytes: usize) {
    let src = src.cast_mut();
    let mut at = 0;
    while at < len_bytes {
        let (from, to) = (src.wrapping_add(at), dst.wrapping_add(at));
        if len_bytes - at >= WORD_BYTES && (from.addr() | to.addr()) % WORD_BYTES == 0 {
            // SAFETY: aligned, and `WORD_BYTES` bytes from here are in bounds.
            let from = unsafe { AtomicU64::from_ptr(from.cast()) };
            // SAFETY: aligned, and `WORD_BYTES` bytes from here are in bounds.
            let to = unsafe { AtomicU64::from_ptr(to.cast()) };
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            at += WORD_BYTES;
        } else {
            // SAFETY: `at < len_bytes`.
            let from = unsafe { AtomicU8::from_ptr(from) };
            // SAFETY: `at < len_bytes`.
            let to = unsafe { AtomicU8::from_ptr(to) };
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            at += 1;
        }
    }
}
