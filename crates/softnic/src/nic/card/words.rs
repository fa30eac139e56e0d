//! Words of a card, as many as a table says.

use core::ptr::NonNull;

/// `count` atomics in a region that a [`Card`](super::Card) keeps mapped.
#[derive(Debug)]
pub(super) struct Words<T> {
    first: NonNull<T>,
    pub(super) count: usize,
}

impl<T> Clone for Words<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Words<T> {}

impl<T: memory::SharedLayout> Words<T> {
    pub(super) fn locate(region: &memory::Region, offset: u64, count: usize) -> Option<Self> {
        let offset = usize::try_from(offset).ok()?;
        let len = count.checked_mul(size_of::<T>())?;
        let first = region.span(offset, len).ok()?.as_ptr().cast::<T>();
        first.is_aligned().then_some(Self { first, count })
    }

    /// # Safety
    ///
    /// The region is mapped while the result is used, writable if it is stored to.
    pub(super) unsafe fn get<'a>(self) -> &'a [T] {
        // SAFETY: in bounds and aligned, by `locate`; anybody may write, which the type expects.
        unsafe { core::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}
