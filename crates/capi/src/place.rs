//! Places for results in the memory of the C program.

/// Stores a result, if the caller wants it.
///
/// # Safety
///
/// `place` is null, or that of a `T` of the caller's.
pub(crate) unsafe fn store<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: the caller owns the place, which may hold anything before.
        unsafe { place.write(value) };
    }
}
