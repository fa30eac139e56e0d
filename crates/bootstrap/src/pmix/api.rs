//! The library, opened at run time.

use core::ffi::{CStr, c_char};
use std::sync::OnceLock;

use super::{
    abi::{Info, Proc, Status, Value},
    error::PmixError,
};

/// The library, by the version of its ABI.
pub const LIBRARY: &str = Api::LIBRARY;

/// Versions of OpenPMIx whose structures are those of `abi`.
const MAJOR_MIN: u32 = 3;
const MAJOR_MAX: u32 = 5;

os::dylib::functions! {
    /// The library's functions, by their names.
    pub(crate) struct Api of "libpmix.so.2" {
        fn PMIx_Get_version() -> *const c_char;
        fn PMIx_Error_string(Status) -> *const c_char;
        fn PMIx_Init(*mut Proc, *mut Info, usize) -> Status;
        fn PMIx_Finalize(*const Info, usize) -> Status;
        fn PMIx_Put(u8, *const c_char, *mut Value) -> Status;
        fn PMIx_Commit() -> Status;
        fn PMIx_Fence(*const Proc, usize, *const Info, usize) -> Status;
        fn PMIx_Get(*const Proc, *const c_char, *const Info, usize, *mut *mut Value) -> Status;
    }
}

impl Api {
    /// The library of this process, opened by the first call.
    ///
    /// # Errors
    ///
    /// [`PmixError::Library`] and [`PmixError::Version`]; the same each time.
    pub(crate) fn load() -> Result<Self, PmixError> {
        static LOADED: OnceLock<Result<Api, PmixError>> = OnceLock::new();
        LOADED.get_or_init(Self::open_known).clone()
    }

    fn open_known() -> Result<Self, PmixError> {
        // SAFETY: its initialisers start no thread and touch nothing of this program.
        let api = unsafe { Self::open() }.map_err(PmixError::Library)?;
        // SAFETY: it takes nothing, and may be called before PMIx_Init.
        let version = unsafe { (api.PMIx_Get_version)() };
        check_version(&text_of(version))?;
        Ok(api)
    }

    /// A status in the library's words.
    pub(crate) fn words(&self, status: Status) -> String {
        // SAFETY: it takes any number.
        let words = unsafe { (self.PMIx_Error_string)(status) };
        format!("{} ({status})", text_of(words))
    }
}

/// A constant text of the library.
fn text_of(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: it is terminated, and never changes.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

/// Compares the first number of a version such as `OpenPMIx 4.2.2 (PMIx Standard: 4.2, ...)`.
fn check_version(version: &str) -> Result<(), PmixError> {
    let digits = version.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    match digits[..end].parse() {
        Ok(MAJOR_MIN..=MAJOR_MAX) => Ok(()),
        _ => Err(PmixError::Version { version: version.to_owned(), known: (MAJOR_MIN, MAJOR_MAX) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_other_layouts_are_refused() {
        for version in ["OpenPMIx 4.2.2rc2 (PMIx Standard: 4.2)", "3.2", "OpenPMIx 5.0.1"] {
            assert!(check_version(version).is_ok(), "{version}");
        }
        for version in ["OpenPMIx 2.1.4", "OpenPMIx 99.0", "", "OpenPMIx", "99999999999"] {
            let error = check_version(version).unwrap_err().to_string();
            assert!(error.contains("3 to 5"), "{error}");
        }
    }
}
