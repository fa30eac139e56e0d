//! Miri: plain accesses, so that Miri reports every copy which the protocol around it does not
//! order. (Its weak-memory emulation cannot keep atomics of two sizes at one place, either.)

/// Copies as [`super::copy_in`] does.
///
/// # Safety
///
/// As for [`super::copy_in`].
pub(super) unsafe fn copy_in(dst: &mut [u8], src: *const u8) {
    // SAFETY: `dst` is private and as long; the rest is the caller's promise.
    unsafe { copy(dst.as_mut_ptr(), src, dst.len()) }
}

/// Copies as [`super::copy_out`] does.
///
/// # Safety
///
/// As for [`super::copy_out`].
pub(super) unsafe fn copy_out(dst: *mut u8, src: &[u8]) {
    // SAFETY: `src` is private and as long; the rest is the caller's promise.
    unsafe { copy(dst, src.as_ptr(), src.len()) }
}

/// Copies as [`super::copy_between_past_caches`] does.
///
/// # Safety
///
/// As for [`super::copy_between`].
pub(super) unsafe fn copy_past_caches(dst: *mut u8, src: *const u8, len_bytes: usize) {
    // SAFETY: by contract.
    unsafe { copy(dst, src, len_bytes) }
}

/// Copies `words` of 8 bytes.
///
/// # Safety
///
/// As for [`super::copy_between`], with 8 bytes per word.
pub(super) unsafe fn copy_words(dst: *mut u8, src: *const u8, words: usize) {
    // SAFETY: by contract.
    unsafe { copy(dst, src, 8 * words) }
}

/// Copies as [`super::copy_between`] does.
///
/// # Safety
///
/// As for [`super::copy_between`].
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len_bytes: usize) {
    // SAFETY: by contract; Miri checks that nobody races.
    unsafe { core::ptr::copy_nonoverlapping(src, dst, len_bytes) }
}
