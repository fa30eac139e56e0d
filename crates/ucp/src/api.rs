//! libucp, opened at run time.

use core::ffi::{c_char, c_int, c_uint, c_void};
use std::{error::Error as _, sync::OnceLock};

use libloading::Library;

use crate::{
    abi::{
        AmHandlerParam, EndpointParams, Params, RawAddress, RawConfig, RawContext, RawEndpoint,
        RawStatus, RawWorker, RequestParam, WorkerParams,
    },
    signals::SavedSignals,
};

/// The library, by the version of its ABI.
const LIBRARY: &str = "libucp.so.0";

/// Why the library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// The library is not there, or does not load.
    #[error("cannot open {library}: {cause}; install UCX (Debian: libucx0, others: ucx)")]
    Library {
        /// Its file name.
        library: &'static str,
        /// The dynamic linker's reason.
        cause: String,
    },
    /// The library is older than what is needed.
    #[error("libucp has no `{symbol}`; UCX 1.10 or later is needed")]
    Symbol {
        /// The function.
        symbol: &'static str,
    },
}

/// Declares the functions, and looks each of them up.
macro_rules! functions {
    ($(fn $name:ident($($argument:ty),*) -> $result:ty;)*) => {
        /// The library's functions, by their names.
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct Api {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Api {
            fn look_up(library: &Library) -> Result<Self, LibraryError> {
                $(
                    // SAFETY: this is the function's type in the library's header.
                    let found = unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) };
                    let $name = *found.map_err(|_| LibraryError::Symbol { symbol: stringify!($name) })?;
                )*
                Ok(Self { $($name),* })
            }
        }
    };
}

functions! {
    fn ucp_get_version(*mut c_uint, *mut c_uint, *mut c_uint) -> ();
    fn ucp_config_read(*const c_char, *const c_char, *mut *mut RawConfig) -> RawStatus;
    fn ucp_config_modify(*mut RawConfig, *const c_char, *const c_char) -> RawStatus;
    fn ucp_config_release(*mut RawConfig) -> ();
    fn ucp_init_version(c_uint, c_uint, *const Params, *const RawConfig, *mut *mut RawContext) -> RawStatus;
    fn ucp_cleanup(*mut RawContext) -> ();
    fn ucp_worker_create(*mut RawContext, *const WorkerParams, *mut *mut RawWorker) -> RawStatus;
    fn ucp_worker_destroy(*mut RawWorker) -> ();
    fn ucp_worker_get_address(*mut RawWorker, *mut *mut RawAddress, *mut usize) -> RawStatus;
    fn ucp_worker_release_address(*mut RawWorker, *mut RawAddress) -> ();
    fn ucp_worker_set_am_recv_handler(*mut RawWorker, *const AmHandlerParam) -> RawStatus;
    fn ucp_worker_progress(*mut RawWorker) -> c_uint;
    fn ucp_worker_get_efd(*mut RawWorker, *mut c_int) -> RawStatus;
    fn ucp_worker_arm(*mut RawWorker) -> RawStatus;
    fn ucp_ep_create(*mut RawWorker, *const EndpointParams, *mut *mut RawEndpoint) -> RawStatus;
    fn ucp_ep_close_nbx(*mut RawEndpoint, *const RequestParam) -> *mut c_void;
    fn ucp_am_send_nbx(
        *mut RawEndpoint, c_uint, *const c_void, usize, *const c_void, usize, *const RequestParam
    ) -> *mut c_void;
    fn ucp_am_recv_data_nbx(
        *mut RawWorker, *mut c_void, *mut c_void, usize, *const RequestParam
    ) -> *mut c_void;
    fn ucp_am_data_release(*mut RawWorker, *mut c_void) -> ();
    fn ucp_request_free(*mut c_void) -> ();
    fn ucs_status_string(RawStatus) -> *const c_char;
}

impl Api {
    /// The library of this process, opened by the first call and never closed: contexts hold pointers to its
    /// functions. One thread opens it: another one that did so at the same time would take the library's handlers of
    /// signals for the program's.
    ///
    /// # Errors
    ///
    /// [`LibraryError::Library`] and [`LibraryError::Symbol`]; the same each time.
    pub(crate) fn load() -> Result<Self, LibraryError> {
        static LOADED: OnceLock<Result<Api, LibraryError>> = OnceLock::new();
        LOADED.get_or_init(Self::open).clone()
    }

    fn open() -> Result<Self, LibraryError> {
        let signals = SavedSignals::save();
        // SAFETY: its initialisers take over signals, which are given back, and touch nothing else of this program.
        let library = unsafe { Library::new(LIBRARY) };
        let library = library.map_err(|error| {
            // What the dynamic linker says is the source.
            let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            LibraryError::Library { library: LIBRARY, cause }
        })?;
        let api = Self::look_up(&library)?;
        core::mem::forget(library);
        drop(signals);
        Ok(api)
    }
}
