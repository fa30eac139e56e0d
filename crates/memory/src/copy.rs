//! Copies between private memory and memory that others may write at the same time.
use crate::sync::{Ordering, machine::AtomicU8};

/// Copies `dst.len()` bytes at `src`, which others may write meanwhile, into private memory.
///
/// # Safety
///
/// `src` points to `dst.len()` mapped, initialised bytes that nobody accesses through a reference
/// to plain data.
#[inline]
pub unsafe fn copy_in(dst: &mut [u8], src: *const u8) {
    // SAFETY: by contract.
    unsafe { copy_between(dst.as_mut_ptr(), src, dst.len()) }
}

/// Copies private memory to `dst`, which others may access meanwhile, in ascending order of
/// addresses.
///
/// # Safety
///
/// `dst` points to `src.len()` mapped, writable bytes that nobody accesses through a reference to
/// plain data.
#[inline]
pub unsafe fn copy_out(dst: *mut u8, src: &[u8]) {
    // SAFETY: by contract.
    unsafe { copy_between(dst, src.as_ptr(), src.len()) }
}

/// Copies `len_bytes` bytes in ascending order of addresses. Others may access both meanwhile.
///
/// # Safety
///
/// Both point to `len_bytes` mapped bytes, `dst` to writable ones, that nobody accesses through a
/// reference to plain data, and that do not overlap.
#[inline]
pub unsafe fn copy_between(dst: *mut u8, src: *const u8, len_bytes: usize) {
    for i in 0..len_bytes {
        // SAFETY: in bounds, by contract.
        let from = unsafe { AtomicU8::from_ptr(src.wrapping_add(i).cast_mut()) };
        // SAFETY: in bounds, by contract.
        let to = unsafe { AtomicU8::from_ptr(dst.wrapping_add(i)) };
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Like [`copy_between`], and whoever loads the last byte (with Acquire) as stored here sees all
/// bytes before it, and whatever this thread stored earlier: the rule of an RDMA WRITE.
///
/// # Safety
///
/// As for [`copy_between`].
#[inline]
pub unsafe fn copy_between_publish(dst: *mut u8, src: *const u8, len_bytes: usize) {
    let Some(last) = len_bytes.checked_sub(1) else { return };
    // SAFETY: by contract.
    unsafe { copy_between(dst, src, last) };
    // SAFETY: in bounds, by contract.
    let from = unsafe { AtomicU8::from_ptr(src.wrapping_add(last).cast_mut()) };
    // SAFETY: in bounds, by contract.
    let to = unsafe { AtomicU8::from_ptr(dst.wrapping_add(last)) };
    to.store(from.load(Ordering::Relaxed), Ordering::Release);
}
