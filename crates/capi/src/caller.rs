//! Memory of the C program: texts, bodies and places for results.

use std::{
    ffi::{CStr, c_char, c_void},
    sync::{Mutex, MutexGuard, TryLockError},
};

use client::Status;

use crate::report::Failure;

/// What a handle of the C program points at: one thread at a time is inside a function with it.
#[derive(Debug)]
pub struct OneThread<T>(Mutex<T>);

const IN_USE: &str = "another thread is inside a function with this handle, or a callback of it uses it: \
                      a handle serves one thread at a time, so give each thread a handle of its own";

impl<T> OneThread<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    fn enter(&self) -> Result<MutexGuard<'_, T>, Failure> {
        match self.0.try_lock() {
            Ok(inside) => Ok(inside),
            // The panic ended at the border of the function that it happened in.
            Err(TryLockError::Poisoned(inside)) => Ok(inside.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(Failure::refused(Status::FailedPrecondition, IN_USE))
            }
        }
    }
}

/// A text of the caller; `None` for null.
///
/// # Safety
///
/// The pointer is null, or that of a text that ends with a zero byte, which nobody changes during `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller owns the text, and promises that it ends.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| Failure::argument("a text is no UTF-8"))
}

/// Bytes of the caller.
///
/// # Safety
///
/// Unless `length` is 0, `body` points at as many bytes, which nobody changes during `'a`.
pub(crate) unsafe fn bytes<'a>(body: *const c_void, length: usize) -> Result<&'a [u8], Failure> {
    match (body.is_null(), length) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Failure::argument("a body that has a length is NULL")),
        (false, _) if isize::try_from(length).is_err() => {
            Err(Failure::argument("a body is too long"))
        }
        // SAFETY: the caller owns the bytes, and lends them for `'a`.
        _ => Ok(unsafe { std::slice::from_raw_parts(body.cast(), length) }),
    }
}

/// Room of the caller for bytes.
///
/// # Safety
///
/// Unless `length` is 0, `room` points at as many initialized bytes, which nobody else uses during `'a`.
pub(crate) unsafe fn room<'a>(room: *mut c_void, length: usize) -> Result<&'a mut [u8], Failure> {
    match (room.is_null(), length) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(Failure::argument("room that has a length is NULL")),
        (false, _) if isize::try_from(length).is_err() => {
            Err(Failure::argument("room is too long"))
        }
        // SAFETY: the caller owns the bytes, and lends them for `'a`.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(room.cast(), length) }),
    }
}

/// An array of the caller.
///
/// # Safety
///
/// Unless `count` is 0, `array` points at as many values, which nobody changes during `'a`.
pub(crate) unsafe fn array<'a, T>(array: *const T, count: usize) -> Result<&'a [T], Failure> {
    let fits = count.checked_mul(size_of::<T>()).is_some_and(|len| isize::try_from(len).is_ok());
    match (array.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Failure::argument("an array that has a length is NULL")),
        (false, _) if !fits => Err(Failure::argument("an array is too long")),
        // SAFETY: the caller owns the values, and lends them for `'a`.
        _ => Ok(unsafe { std::slice::from_raw_parts(array, count) }),
    }
}

/// A handle that the caller got from this library, for this thread alone while the guard lives. A second thread is
/// refused, and so is a callback of a function that has the handle.
///
/// # Safety
///
/// `handle` is null, or came from this library and is not freed during `'a`.
pub(crate) unsafe fn handle<'a, T>(
    handle: *const OneThread<T>,
) -> Result<MutexGuard<'a, T>, Failure> {
    // SAFETY: this library made it by `Box::into_raw`; threads share it, and the lock admits one.
    let handle = unsafe { shared(handle) };
    handle.ok_or_else(|| Failure::argument("a handle is NULL"))?.enter()
}

/// A value that the caller got from this library, and that has no lock.
///
/// # Safety
///
/// `handle` is null, or came from this library and was not freed; no other thread uses it during `'a`.
pub(crate) unsafe fn exclusive<'a, T>(handle: *mut T) -> Result<&'a mut T, Failure> {
    // SAFETY: this library made it by `Box::into_raw`; the caller lends it for `'a`, to one thread.
    unsafe { handle.as_mut() }.ok_or_else(|| Failure::argument("a handle is NULL"))
}

/// As [`handle`], of what several threads may look at.
///
/// # Safety
///
/// `handle` is null, or came from this library and was not freed.
pub(crate) unsafe fn shared<'a, T>(handle: *const T) -> Option<&'a T> {
    // SAFETY: this library made it by `Box::into_raw`; nothing changes it but by shared references.
    unsafe { handle.as_ref() }
}

/// Frees a handle.
///
/// # Safety
///
/// `handle` is null, or came from this library and was not freed; nobody uses it any more.
pub(crate) unsafe fn free<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: this library made it by `Box::into_raw`, and the caller gives it back.
        drop(unsafe { Box::from_raw(handle) });
    }
}

/// Frees a handle, unless a thread is inside a function with it: then it stays, and the caller learns why.
///
/// # Safety
///
/// `handle` is null, or came from this library and was not freed; no thread begins to use it any more.
pub(crate) unsafe fn free_handle<T>(handle: *mut OneThread<T>) -> Result<(), Failure> {
    // SAFETY: as of this function.
    if let Some(held) = unsafe { shared(handle) } {
        drop(held.enter()?);
    }
    // SAFETY: as of this function; no thread is inside, and none begins.
    unsafe { free(handle) };
    Ok(())
}

/// Hands a new handle to the caller.
///
/// # Safety
///
/// `place` is null, or that of a pointer of the caller's.
pub(crate) unsafe fn give<T>(place: *mut *mut T, value: T) -> Result<(), Failure> {
    if place.is_null() {
        return Err(Failure::argument("there is no place for the handle"));
    }
    // SAFETY: the caller owns the place.
    unsafe { place.write(Box::into_raw(Box::new(value))) };
    Ok(())
}
