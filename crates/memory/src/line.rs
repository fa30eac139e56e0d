//! Cache-line isolation.

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
