//! Cache lines: isolation, and asking for one early.

use core::ops::Deref;

/// Keeps `T` on its own pair of cache lines: adjacent-line prefetch moves two at a time, and
/// AArch64 server cores have lines of up to 128 bytes.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Line<T>(pub T);

/// Bytes that a [`Line`] of a small `T` occupies.
pub const LINE_BYTES: usize = 128;

const _: () = assert!(size_of::<Line<u64>>() == LINE_BYTES && align_of::<Line<u8>>() == LINE_BYTES);

impl<T> Deref for Line<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// Asks for the line of `address` without waiting for it, which repays if another core wrote it and
/// this one loads it soon. A hint that changes nothing: any address will do.
#[inline(always)]
pub fn prefetch<T>(address: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: never faults, and loads into no register (Intel SDM 2B, PREFETCHh).
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// Asks for the line of `address` to be written soon, without waiting for it: takes it away from the core
/// that read it last. A hint that changes nothing, and does nothing where it does not exist.
#[inline(always)]
pub fn prefetch_to_write<T>(address: *const T) {
    // Not by an intrinsic, which becomes PREFETCHT0 unless the whole program is compiled for newer
    // processors.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: never faults, and loads into no register; all 64-bit processors have it, or ignore it
    // (Intel SDM 2B, PREFETCHW; AMD64 APM 3, PREFETCHW).
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}
