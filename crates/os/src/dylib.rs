//! Libraries of the system, opened at run time: their functions by name and type.
//!
//! The interface of a library to a crate is a table of function pointers ([`functions!`](crate::dylib::functions)). An open
//! library stays open until the process ends: it starts threads, loads plugins or drivers, and hands out pointers to
//! its code.

#![expect(unsafe_code, reason = "opening a library runs its code")]

use std::error::Error as _;

use libloading::Library;
#[doc(hidden)]
pub use libloading::Library as Opened;

#[doc(inline)]
pub use crate::dylib_functions as functions;

/// Why a library cannot be used. The caller knows the remedy: the package, and its first version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DylibError {
    /// It is not there, or does not load.
    #[error("cannot open {library}: {cause}")]
    Absent {
        /// Its file name.
        library: &'static str,
        /// The dynamic linker's reason.
        cause: String,
    },
    /// It lacks a function.
    #[error("{library} has no `{symbol}`")]
    Symbol {
        /// Its file name.
        library: &'static str,
        /// The function.
        symbol: &'static str,
    },
}

/// Opens a library. [`functions!`](crate::dylib::functions) does it for its callers.
///
/// # Errors
///
/// [`DylibError::Absent`].
///
/// # Safety
///
/// Initialisers of the library touch nothing that this program relies on, or the caller restores it.
pub unsafe fn open(library: &'static str) -> Result<Opened, DylibError> {
    // SAFETY: what its initialisers do is the caller's promise.
    unsafe { Library::new(library) }.map_err(|error| {
        // The message of the dynamic linker is the source.
        let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        DylibError::Absent { library, cause }
    })
}

/// Declares a table of a library's functions, and `open`, which fills it.
///
/// ```
/// copyrpc_os::dylib::functions! {
///     /// Of the C library.
///     struct Libc of "libc.so.6" {
///         fn abs(core::ffi::c_int) -> core::ffi::c_int;
///     }
/// }
///
/// // SAFETY: this program runs on it anyway.
/// let libc = unsafe { Libc::open() }.expect("every Linux has it");
/// // SAFETY: it takes any number but the least.
/// assert_eq!(unsafe { (libc.abs)(-7) }, 7);
/// ```
///
/// Functions behind `optional` are those of later versions of the library: each is `None` in a library without it.
///
/// The type of each function must be the one of the library's header: `open` cannot check it, and every call relies
/// on it.
#[doc(hidden)]
#[macro_export]
macro_rules! dylib_functions {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $table:ident of $library:literal {
            $(fn $name:ident($($argument:ty),* $(,)?) -> $result:ty;)*
            $(optional fn $later:ident($($given:ty),* $(,)?) -> $returned:ty;)*
        }
    ) => {
        $(#[$attribute])*
        #[allow(non_snake_case, reason = "the names of the library")]
        #[derive(Clone, Copy, Debug)]
        $visibility struct $table {
            $($visibility $name: unsafe extern "C" fn($($argument),*) -> $result,)*
            $($visibility $later: Option<unsafe extern "C" fn($($given),*) -> $returned>,)*
        }

        impl $table {
            /// File name of the library, with the version of its ABI.
            $visibility const LIBRARY: &'static str = $library;

            /// Opens the library, for as long as the process lives, and looks each function up.
            ///
            /// # Errors
            ///
            /// [`DylibError`]($crate::dylib::DylibError).
            ///
            /// # Safety
            ///
            /// As for [`open`]($crate::dylib::open).
            #[allow(non_snake_case, reason = "the names of the library")]
            $visibility unsafe fn open() -> Result<Self, $crate::dylib::DylibError> {
                // SAFETY: the caller promises it.
                let library = unsafe { $crate::dylib::open(Self::LIBRARY) }?;
                $(
                    // SAFETY: this is the function's type in the library's header.
                    let found = unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) };
                    let missing = |_| $crate::dylib::DylibError::Symbol {
                        library: Self::LIBRARY,
                        symbol: stringify!($name),
                    };
                    let $name = *found.map_err(missing)?;
                )*
                $(
                    // SAFETY: this is the function's type in the library's header.
                    let found = unsafe { library.get(concat!(stringify!($later), "\0").as_bytes()) };
                    let $later = found.ok().map(|function| *function);
                )*
                core::mem::forget(library);
                Ok(Self { $($name,)* $($later,)* })
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::{DylibError, functions};

    functions! {
        struct Absent of "libcopyrpc-which-nobody-has.so.1" {
            fn nothing() -> ();
        }
    }

    functions! {
        struct Older of "libc.so.6" {
            fn abs(i32) -> i32;
            fn copyrpc_of_a_later_version() -> ();
        }
    }

    functions! {
        struct Either of "libc.so.6" {
            fn abs(i32) -> i32;
            optional fn labs(core::ffi::c_long) -> core::ffi::c_long;
            optional fn copyrpc_of_a_later_version() -> ();
        }
    }

    #[test]
    fn an_optional_function_may_be_missing() {
        // SAFETY: this program runs on it anyway.
        let libc = unsafe { Either::open() }.unwrap();
        assert!(libc.copyrpc_of_a_later_version.is_none());
        // SAFETY: it takes any number but the least.
        assert_eq!(unsafe { (libc.labs.unwrap())(-8) }, 8);
        // SAFETY: the same.
        assert_eq!(unsafe { (libc.abs)(-7) }, 7);
    }

    #[test]
    fn a_library_that_is_not_there_is_named_with_the_linkers_reason() {
        // SAFETY: there is none, so nothing runs.
        let error = unsafe { Absent::open() }.map(|absent| absent.nothing).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(Absent::LIBRARY) && text.contains("No such file"), "{text}");
    }

    #[test]
    fn a_function_that_is_not_there_is_named() {
        // SAFETY: this program runs on it anyway.
        let older = unsafe { Older::open() };
        let error = older.map(|older| (older.abs, older.copyrpc_of_a_later_version)).unwrap_err();
        let expected =
            DylibError::Symbol { library: "libc.so.6", symbol: "copyrpc_of_a_later_version" };
        assert_eq!(error, expected);
    }
}
