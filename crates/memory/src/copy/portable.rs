//! Any architecture: relaxed atomics.
//!
//! Each side is accessed by aligned words where it has them and by bytes elsewhere, whatever the
//! alignment of the other side, so that the same bytes are accessed by the same sizes every time:
//! Rust's memory model has no races between atomics of two sizes.

use crate::sync::{
    Ordering,
    machine::{AtomicU8, AtomicU64},
};

const WORD_BYTES: usize = size_of::<u64>();

/// Bytes on their way from one side to the other.
const CHUNK_BYTES: usize = 64;

/// Copies as [`super::copy_between`] does.
///
/// # Safety
///
/// As for [`super::copy_between`].
#[inline]
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len_bytes: usize) {
    let mut chunk = [0; CHUNK_BYTES];
    for at in (0..len_bytes).step_by(CHUNK_BYTES) {
        let chunk = &mut chunk[..CHUNK_BYTES.min(len_bytes - at)];
        // SAFETY: `at + chunk.len() <= len_bytes`.
        unsafe { copy_in(chunk, src.wrapping_add(at)) };
        // SAFETY: `at + chunk.len() <= len_bytes`.
        unsafe { copy_out(dst.wrapping_add(at), chunk) };
    }
}

/// Copies `words` of 8 bytes: [`copy`] has words already.
///
/// # Safety
///
/// As for [`super::copy_between`], with 8 bytes per word.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub(super) unsafe fn copy_words(dst: *mut u8, src: *const u8, words: usize) {
    // SAFETY: by contract.
    unsafe { copy(dst, src, WORD_BYTES * words) }
}

/// Copies as [`super::copy_in`] does: the private side needs no atomics.
///
/// # Safety
///
/// As for [`super::copy_in`].
#[inline]
pub(super) unsafe fn copy_in(mut into: &mut [u8], src: *const u8) {
    let mut src = src.cast_mut();
    while !into.is_empty() {
        let step = step_bytes(src, into.len());
        let (now, later) = into.split_at_mut(step);
        if step == WORD_BYTES {
            // SAFETY: in bounds and aligned, by `step_bytes`.
            let word = unsafe { AtomicU64::from_ptr(src.cast()) };
            now.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        } else {
            // SAFETY: in bounds, by `step_bytes`.
            let byte = unsafe { AtomicU8::from_ptr(src) };
            now[0] = byte.load(Ordering::Relaxed);
        }
        (into, src) = (later, src.wrapping_add(step));
    }
}

/// Copies as [`super::copy_out`] does: the private side needs no atomics.
///
/// # Safety
///
/// As for [`super::copy_out`].
#[inline]
pub(super) unsafe fn copy_out(dst: *mut u8, mut from: &[u8]) {
    let mut dst = dst;
    while let Some(&first) = from.first() {
        let step = step_bytes(dst, from.len());
        if let (Some(&value), WORD_BYTES) = (from.first_chunk(), step) {
            // SAFETY: in bounds and aligned, by `step_bytes`.
            let word = unsafe { AtomicU64::from_ptr(dst.cast()) };
            word.store(u64::from_ne_bytes(value), Ordering::Relaxed);
        } else {
            // SAFETY: in bounds, by `step_bytes`.
            let byte = unsafe { AtomicU8::from_ptr(dst) };
            byte.store(first, Ordering::Relaxed);
        }
        (from, dst) = (&from[step..], dst.wrapping_add(step));
    }
}

/// Copies as [`super::copy_between_past_caches`] does: there are no stores past the caches here.
///
/// # Safety
///
/// As for [`super::copy_between`].
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub(super) unsafe fn copy_past_caches(dst: *mut u8, src: *const u8, len_bytes: usize) {
    // SAFETY: by contract.
    unsafe { copy(dst, src, len_bytes) }
    // Later stores, of any size, are seen after these.
    core::sync::atomic::fence(Ordering::Release);
}

/// A word if there is one, else a byte.
fn step_bytes(at: *mut u8, left_bytes: usize) -> usize {
    if left_bytes >= WORD_BYTES && at.addr().is_multiple_of(WORD_BYTES) { WORD_BYTES } else { 1 }
}
