//! Bounds-checked access to a [`Region`] that forms no reference to bytes others may write.
//!
//! Two ways in: copy bytes out once, validate the copy and use the copy ([`Span`]); or share
//! atomics ([`SharedLayout`]). What an atomic or a copy holds is an allegation of the other side.

use core::{marker::PhantomData, ptr::NonNull, slice};

use crate::{
    LentBytes, Line, Region, copy,
    sync::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

/// Why a part of a region cannot be accessed as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ViewError {
    /// Some byte of the range is not inside.
    #[error("{len_bytes} B at offset {offset_bytes} are outside {limit_bytes} B")]
    OutOfBounds {
        /// Offset asked for.
        offset_bytes: usize,
        /// Length asked for; `usize::MAX` if it overflows.
        len_bytes: usize,
        /// Length of the region or span.
        limit_bytes: usize,
    },
    /// The address is not a multiple of the type's alignment.
    #[error("offset {offset_bytes} is not aligned to {align_bytes} B")]
    Misaligned {
        /// Offset asked for.
        offset_bytes: usize,
        /// Alignment needed.
        align_bytes: usize,
    },
    /// The mapping is read-only, and what was asked for could store.
    #[error("the region is mapped read-only; map it read-write, or use a load")]
    ReadOnly,
}

/// Types that can live in memory which any process may write at any time.
///
/// # Safety
///
/// The type is `repr(C)` or `repr(transparent)` and consists only of atomics of [`crate::sync`],
/// other `SharedLayout` types, and arrays of these. Any bit pattern is a valid value. Bytes of
/// padding are never read. It has no drop glue.
pub unsafe trait SharedLayout: Sync {}

macro_rules! shared_atomics {
    ($($atomic:ty),*) => {$(
        // SAFETY: an atomic for which every bit pattern is valid.
        unsafe impl SharedLayout for $atomic {}
    )*};
}
shared_atomics!(AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize);

// SAFETY: `repr(C)` with one field, of such a type, and trailing padding.
unsafe impl<T: SharedLayout> SharedLayout for Line<T> {}
// SAFETY: an array adds nothing to its elements.
unsafe impl<T: SharedLayout, const N: usize> SharedLayout for [T; N] {}

impl Region {
    /// The `len_bytes` bytes at `offset_bytes`.
    ///
    /// # Errors
    ///
    /// [`ViewError::OutOfBounds`].
    #[inline]
    pub fn span(&self, offset_bytes: usize, len_bytes: usize) -> Result<Span<'_>, ViewError> {
        self.whole().sub(offset_bytes, len_bytes)
    }

    /// All bytes of the region.
    #[inline]
    #[must_use]
    pub fn whole(&self) -> Span<'_> {
        Span {
            base: self.as_ptr(),
            len_bytes: self.len(),
            writable: self.is_writable(),
            region: PhantomData,
        }
    }

    /// The atomics that live at `offset_bytes`.
    ///
    /// # Errors
    ///
    /// [`ViewError`].
    #[inline]
    pub fn shared<T: SharedLayout>(&self, offset_bytes: usize) -> Result<&T, ViewError> {
        let base = self.whole().writable()?.locate::<T>(offset_bytes, 1)?;
        // SAFETY: in bounds, aligned and mapped for the life of `&self`, by `locate`. Everybody may
        // write these bytes; `SharedLayout` says that the type expects that.
        Ok(unsafe { base.as_ref() })
    }

    /// `count` consecutive values that live at `offset_bytes`.
    ///
    /// # Errors
    ///
    /// [`ViewError`].
    #[inline]
    pub fn shared_slice<T: SharedLayout>(
        &self,
        offset_bytes: usize,
        count: usize,
    ) -> Result<&[T], ViewError> {
        let base = self.whole().writable()?.locate::<T>(offset_bytes, count)?;
        // SAFETY: in bounds, aligned and mapped for the life of `&self`, by `locate`. Everybody may
        // write these bytes; `SharedLayout` says that the type expects that.
        Ok(unsafe { slice::from_raw_parts(base.as_ptr(), count) })
    }

    /// Like [`shared`](Self::shared), also on a read-only mapping.
    ///
    /// # Errors
    ///
    /// [`ViewError::OutOfBounds`] and [`ViewError::Misaligned`].
    ///
    /// # Safety
    ///
    /// If the region is read-only, the result is used for loads only: a store, and any
    /// read-modify-write even if it changes nothing, raises SIGSEGV.
    #[inline]
    pub unsafe fn shared_for_loads<T: SharedLayout>(
        &self,
        offset_bytes: usize,
    ) -> Result<&T, ViewError> {
        let base = self.whole().locate::<T>(offset_bytes, 1)?;
        // SAFETY: in bounds, aligned and mapped for the life of `&self`, by `locate`. Others may
        // write these bytes; `SharedLayout` says that the type expects that, and the caller
        // promised not to.
        Ok(unsafe { base.as_ref() })
    }
}

/// A range of bytes of a [`Region`], checked once.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    base: NonNull<u8>,
    len_bytes: usize,
    writable: bool,
    region: PhantomData<&'a Region>,
}

// SAFETY: no more than a `&Region` with a narrower range.
unsafe impl Send for Span<'_> {}
// SAFETY: no more than a `&Region` with a narrower range.
unsafe impl Sync for Span<'_> {}

impl<'a> Span<'a> {
    /// Length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len_bytes
    }

    /// Whether there are no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// First byte. Others may access the bytes at any time: use it with [`crate::copy`] and
    /// atomics, never to form a reference to plain data.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.base
    }

    /// The `len_bytes` bytes at `offset_bytes` of this span.
    ///
    /// # Errors
    ///
    /// [`ViewError::OutOfBounds`].
    #[inline]
    pub fn sub(&self, offset_bytes: usize, len_bytes: usize) -> Result<Self, ViewError> {
        match offset_bytes.checked_add(len_bytes) {
            Some(end) if end <= self.len_bytes => {}
            _ => {
                let limit_bytes = self.len_bytes;
                return Err(ViewError::OutOfBounds { offset_bytes, len_bytes, limit_bytes });
            }
        }
        // SAFETY: `offset_bytes <= self.len_bytes`, so it stays in, or one past, the same mapping.
        let base = unsafe { self.base.add(offset_bytes) };
        Ok(Self { base, len_bytes, ..*self })
    }

    /// Copies the whole span into private memory. This is the one fetch: validate and use `into`.
    ///
    /// # Panics
    ///
    /// If `into` has another length.
    #[inline]
    pub fn copy_in(&self, into: &mut [u8]) {
        assert_eq!(into.len(), self.len_bytes, "copy_in takes the whole span");
        // SAFETY: as many bytes, mapped while `'a` lasts; others may write them meanwhile.
        unsafe { copy::copy_in(into, self.base.as_ptr()) }
    }

    /// Copies private memory to the whole span, in ascending order of addresses.
    ///
    /// # Errors
    ///
    /// [`ViewError::ReadOnly`].
    ///
    /// # Panics
    ///
    /// If `from` has another length.
    #[inline]
    pub fn copy_out(&self, from: &[u8]) -> Result<(), ViewError> {
        let base = self.writable()?.base;
        assert_eq!(from.len(), self.len_bytes, "copy_out fills the whole span");
        // SAFETY: as many bytes, mapped writable while `'a` lasts; others may access them meanwhile.
        unsafe { copy::copy_out(base.as_ptr(), from) }
        Ok(())
    }

    /// [`copy_out`](Self::copy_out) to registered memory that a peer reads next:
    /// [`copy_between_registered`](crate::copy::copy_between_registered). The order of the bytes is nobody's.
    ///
    /// # Errors
    ///
    /// [`ViewError::ReadOnly`].
    ///
    /// # Panics
    ///
    /// If `from` has another length.
    pub fn copy_out_registered(&self, from: &[u8]) -> Result<(), ViewError> {
        let base = self.writable()?.base;
        assert_eq!(from.len(), self.len_bytes, "copy_out fills the whole span");
        // SAFETY: as many bytes, mapped writable while `'a` lasts; others may access them meanwhile. Nobody writes `from`.
        unsafe { copy::copy_between_registered(base.as_ptr(), from.as_ptr(), from.len()) }
        Ok(())
    }

    /// Copies bytes that others may write meanwhile to the whole span, and as
    /// [`copy_out_registered`](Self::copy_out_registered) does if `is_registered`: one copy, and none of them is believed.
    ///
    /// # Errors
    ///
    /// [`ViewError::ReadOnly`].
    ///
    /// # Panics
    ///
    /// If there are more or fewer bytes, or they are of this span.
    pub fn copy_lent(&self, from: LentBytes<'_>, is_registered: bool) -> Result<(), ViewError> {
        let to = self.writable()?.base.as_ptr();
        let (from, len_bytes) = (from.as_ptr().as_ptr().cast_const(), from.len());
        assert_eq!(len_bytes, self.len_bytes, "copy_lent fills the whole span");
        assert!(to.addr().abs_diff(from.addr()) >= len_bytes, "a copy of bytes to themselves");
        if is_registered {
            // SAFETY: as many bytes, mapped writable while `'a` lasts; what is lent is mapped, and elsewhere. Others may
            // access both meanwhile.
            unsafe { copy::copy_between_registered(to, from, len_bytes) }
        } else {
            // SAFETY: as above.
            unsafe { copy::copy_between(to, from, len_bytes) }
        }
        Ok(())
    }

    /// Stores zero to every byte.
    ///
    /// # Errors
    ///
    /// [`ViewError::ReadOnly`].
    pub fn zero(&self) -> Result<(), ViewError> {
        const ZEROS: [u8; 4096] = [0; 4096];
        let base = self.writable()?.base;
        for offset in (0..self.len_bytes).step_by(ZEROS.len()) {
            let len = ZEROS.len().min(self.len_bytes - offset);
            let chunk = base.as_ptr().wrapping_add(offset);
            // SAFETY: `offset + len <= len_bytes`, mapped writable while `'a` lasts; others may
            // access them meanwhile.
            unsafe { copy::copy_out(chunk, &ZEROS[..len]) }
        }
        Ok(())
    }

    /// Loads the aligned 8 bytes at `offset_bytes`, in the byte order of the machine; also from a
    /// read-only mapping.
    ///
    /// # Errors
    ///
    /// [`ViewError::OutOfBounds`] and [`ViewError::Misaligned`].
    #[inline]
    pub fn load_u64(&self, offset_bytes: usize, order: Ordering) -> Result<u64, ViewError> {
        let word = self.locate::<AtomicU64>(offset_bytes, 1)?;
        // SAFETY: in bounds and aligned, by `locate`; used for one load, which read-only mappings
        // allow.
        Ok(unsafe { word.as_ref() }.load(order))
    }

    /// Like [`load_u64`](Self::load_u64).
    ///
    /// # Errors
    ///
    /// [`ViewError::OutOfBounds`] and [`ViewError::Misaligned`].
    #[inline]
    pub fn load_u32(&self, offset_bytes: usize, order: Ordering) -> Result<u32, ViewError> {
        let word = self.locate::<AtomicU32>(offset_bytes, 1)?;
        // SAFETY: in bounds and aligned, by `locate`; used for one load, which read-only mappings
        // allow.
        Ok(unsafe { word.as_ref() }.load(order))
    }

    /// The byte at `offset_bytes`.
    ///
    /// # Errors
    ///
    /// [`ViewError`].
    #[inline]
    pub fn atomic_u8(&self, offset_bytes: usize) -> Result<&'a AtomicU8, ViewError> {
        self.atomic(offset_bytes)
    }

    /// The aligned 4 bytes at `offset_bytes`.
    ///
    /// # Errors
    ///
    /// [`ViewError`].
    #[inline]
    pub fn atomic_u32(&self, offset_bytes: usize) -> Result<&'a AtomicU32, ViewError> {
        self.atomic(offset_bytes)
    }

    /// The aligned 8 bytes at `offset_bytes`.
    ///
    /// # Errors
    ///
    /// [`ViewError`].
    #[inline]
    pub fn atomic_u64(&self, offset_bytes: usize) -> Result<&'a AtomicU64, ViewError> {
        self.atomic(offset_bytes)
    }

    #[inline]
    fn atomic<T: SharedLayout>(&self, offset_bytes: usize) -> Result<&'a T, ViewError> {
        let base = self.writable()?.locate::<T>(offset_bytes, 1)?;
        // SAFETY: in bounds, aligned and mapped while `'a` lasts, by `locate`. Everybody may write
        // these bytes; `SharedLayout` says that the type expects that.
        Ok(unsafe { base.as_ref() })
    }

    #[inline]
    fn writable(&self) -> Result<&Self, ViewError> {
        if self.writable { Ok(self) } else { Err(ViewError::ReadOnly) }
    }

    /// The address of `count` values of `T` at `offset_bytes`: in bounds and aligned.
    #[inline]
    fn locate<T>(&self, offset_bytes: usize, count: usize) -> Result<NonNull<T>, ViewError> {
        let len_bytes = size_of::<T>().saturating_mul(count);
        let base = self.sub(offset_bytes, len_bytes)?.base.cast::<T>();
        if base.is_aligned() {
            Ok(base)
        } else {
            Err(ViewError::Misaligned { offset_bytes, align_bytes: align_of::<T>() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    struct Header {
        tail: Line<AtomicU64>,
        slots: [AtomicU32; 4],
    }
    // SAFETY: `repr(C)`, atomics only.
    unsafe impl SharedLayout for Header {}

    #[test]
    fn bytes_survive_the_way_out_and_in() {
        let region = Region::heap(100).unwrap();
        let span = region.span(13, 77).unwrap();
        let message: Vec<u8> = (0..77).collect();
        span.copy_out(&message).unwrap();
        let mut copy = [0; 77];
        span.copy_in(&mut copy);
        assert_eq!(copy[..], message);
        assert_eq!(region.atomic_sum(), (0..77).sum::<u64>(), "nothing outside was touched");
        region.whole().zero().unwrap();
        assert_eq!(region.atomic_sum(), 0);
    }

    impl Region {
        fn atomic_sum(&self) -> u64 {
            let bytes = self.shared_slice::<AtomicU8>(0, self.len()).unwrap();
            bytes.iter().map(|byte| u64::from(byte.load(Ordering::Relaxed))).sum()
        }
    }

    #[test]
    fn a_layout_is_the_same_memory_as_its_bytes() {
        let region = Region::heap(4096).unwrap();
        let header = region.shared::<Header>(1024).unwrap();
        header.tail.store(7, Ordering::Relaxed);
        header.slots[3].store(9, Ordering::Relaxed);
        assert_eq!(region.whole().load_u64(1024, Ordering::Relaxed), Ok(7));
        assert_eq!(region.whole().load_u32(1024 + 128 + 12, Ordering::Relaxed), Ok(9));
        region.span(1024, 8).unwrap().atomic_u64(0).unwrap().store(8, Ordering::Relaxed);
        assert_eq!(header.tail.load(Ordering::Relaxed), 8);
    }

    #[test]
    fn whatever_is_out_of_bounds_is_refused() {
        let region = Region::heap(4096).unwrap();
        let len = region.len();
        let out_of_bounds =
            |r: Result<Span<'_>, _>| matches!(r, Err(ViewError::OutOfBounds { .. }));
        assert!(region.span(len, 0).is_ok_and(|span| span.is_empty()));
        assert!(out_of_bounds(region.span(len, 1)));
        assert!(out_of_bounds(region.span(len + 1, 0)));
        assert!(out_of_bounds(region.span(usize::MAX, 2)), "the end overflows");
        assert!(out_of_bounds(region.span(8, 8).unwrap().sub(7, 2)));
        assert!(region.shared::<AtomicU64>(len - 8).is_ok());
        assert!(region.shared::<AtomicU64>(len - 7).is_err());
        assert!(region.shared_slice::<AtomicU64>(8, usize::MAX / 4).is_err(), "the size overflows");
    }

    #[test]
    fn a_misaligned_atomic_is_refused() {
        let region = Region::heap(4096).unwrap();
        let misaligned = |align_bytes| ViewError::Misaligned { offset_bytes: 4, align_bytes };
        assert_eq!(region.shared::<AtomicU64>(4).unwrap_err(), misaligned(8));
        assert_eq!(region.shared::<Header>(4).err(), Some(misaligned(128)));
        let odd = region.span(3, 64).unwrap();
        assert!(odd.atomic_u64(0).is_err() && odd.atomic_u64(5).is_ok());
    }

    #[cfg(not(miri))]
    #[test]
    fn a_read_only_region_gives_loads_only() {
        use crate::Protection;
        let ours = Region::memfd("copyrpc-test", 4096).unwrap();
        let fd = ours.fd().unwrap().try_clone_to_owned().unwrap();
        let theirs = Region::map(fd, 4096, Protection::ReadOnly).unwrap();
        ours.shared::<AtomicU64>(8).unwrap().store(5, Ordering::Relaxed);
        assert_eq!(theirs.whole().load_u64(8, Ordering::Relaxed), Ok(5));
        assert_eq!(theirs.shared::<AtomicU64>(8).err(), Some(ViewError::ReadOnly));
        assert_eq!(theirs.whole().copy_out(&[0; 4096]), Err(ViewError::ReadOnly));
        assert_eq!(theirs.whole().zero(), Err(ViewError::ReadOnly));
        // SAFETY: used for a load.
        let word = unsafe { theirs.shared_for_loads::<AtomicU64>(8) };
        assert_eq!(word.unwrap().load(Ordering::Relaxed), 5);
    }
}
