//! The only place in the workspace that names atomics: `--cfg loom` swaps in loom's.
//!
//! [`UnsafeCell`] has loom's closure API under both, so that code which keeps plain data behind an
//! atomic protocol compiles, and is checked, under both. Loom cannot see mapped files, so a
//! protocol that is to be checked takes references to these types (or is generic over where they
//! live) and leaves the mapping to its caller.
#![expect(clippy::disallowed_types, reason = "the one place that names atomics")]

#[cfg(loom)]
pub use loom::{
    cell::UnsafeCell,
    hint,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering,
        },
    },
    thread,
};

#[cfg(not(loom))]
pub use core::{hint, sync::atomic::Ordering};
#[cfg(not(loom))]
pub use std::{sync::Arc, thread};

#[cfg(not(loom))]
pub use machine::{AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize};

/// Atomics of the machine, also under loom: for bytes that loom cannot track anyway.
///
/// Aliases, because clippy sees through a re-export and would reject every use of it.
#[cfg_attr(
    loom,
    expect(unreachable_pub, dead_code, reason = "under loom only `copy` needs some of them")
)]
pub(crate) mod machine {
    use core::sync::atomic;

    /// `core::sync::atomic::AtomicBool`.
    pub type AtomicBool = atomic::AtomicBool;
    /// `core::sync::atomic::AtomicPtr`.
    pub type AtomicPtr<T> = atomic::AtomicPtr<T>;
    /// `core::sync::atomic::AtomicU8`.
    pub type AtomicU8 = atomic::AtomicU8;
    /// `core::sync::atomic::AtomicU16`.
    pub type AtomicU16 = atomic::AtomicU16;
    /// `core::sync::atomic::AtomicU32`.
    pub type AtomicU32 = atomic::AtomicU32;
    /// `core::sync::atomic::AtomicU64`.
    pub type AtomicU64 = atomic::AtomicU64;
    /// `core::sync::atomic::AtomicUsize`.
    pub type AtomicUsize = atomic::AtomicUsize;
}

#[cfg(not(loom))]
pub use cell::UnsafeCell;

#[cfg(not(loom))]
mod cell {
    /// `core::cell::UnsafeCell` with loom's closure API.
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        /// Wraps `value`.
        pub const fn new(value: T) -> Self {
            Self(core::cell::UnsafeCell::new(value))
        }

        /// Calls `f` with a pointer through which it may read, if nobody writes meanwhile.
        #[inline(always)]
        pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        /// Calls `f` with a pointer through which it may write, if nobody else accesses meanwhile.
        #[inline(always)]
        pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}
