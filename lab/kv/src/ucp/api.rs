//! libucp, opened at run time.

use core::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use os::dylib::DylibError;

use crate::ucp::{
    abi::{
        AmHandlerParam, EndpointParams, Params, RawAddress, RawConfig, RawContext, RawEndpoint,
        RawStatus, RawWorker, RequestParam, WorkerParams,
    },
    signals::SavedSignals,
};

/// Why the library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}; install UCX 1.10 or later (Debian: libucx0, others: ucx)")]
pub struct LibraryError(#[from] DylibError);

os::dylib::functions! {
    /// The library's functions, by their names.
    pub(crate) struct Api of "libucp.so.0" {
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
}

impl Api {
    /// The library of this process, opened by the first call. One thread opens it: another one that did so at the same time would take the library's handlers of
    /// signals for the program's.
    ///
    /// # Errors
    ///
    /// [`LibraryError`]; the same each time.
    pub(crate) fn load() -> Result<Self, LibraryError> {
        static LOADED: OnceLock<Result<Api, LibraryError>> = OnceLock::new();
        LOADED.get_or_init(Self::open_quietly).clone()
    }

    fn open_quietly() -> Result<Self, LibraryError> {
        let signals = SavedSignals::save();
        // SAFETY: its initialisers take over signals, which are given back, and touch nothing else of this program.
        let api = unsafe { Self::open() };
        drop(signals);
        Ok(api?)
    }
}
