//! libucs takes over signals when it is opened; this gives them back, so that a program dies as it did without UCX.

use core::{ffi::c_int, mem::MaybeUninit, ptr};

/// Those that libucs 1.13 handles: to print a stack, and to change its log level (SIGHUP).
const TAKEN: [c_int; 5] = [libc::SIGHUP, libc::SIGILL, libc::SIGBUS, libc::SIGFPE, libc::SIGSEGV];

/// How signals were handled; they are handled so again when this is dropped.
pub(crate) struct SavedSignals([Option<libc::sigaction>; TAKEN.len()]);

impl SavedSignals {
    pub(crate) fn save() -> Self {
        Self(TAKEN.map(|signal| {
            let mut action = MaybeUninit::uninit();
            // SAFETY: nothing is changed, and the present action is written if the call succeeds.
            let result = unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) };
            // SAFETY: written, as it succeeded.
            (result == 0).then(|| unsafe { action.assume_init() })
        }))
    }
}

impl Drop for SavedSignals {
    fn drop(&mut self) {
        for (signal, action) in TAKEN.iter().zip(&self.0) {
            if let Some(action) = action {
                // SAFETY: the action that was there before; its handler, if any, is of this program.
                unsafe { libc::sigaction(*signal, action, ptr::null_mut()) };
            }
        }
    }
}
