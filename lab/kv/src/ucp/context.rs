//! A context: UCX as this process has configured it.

use core::{
    ffi::c_uint,
    ptr::{self, NonNull},
};
use std::{ffi::CString, sync::Arc, time::Duration};

use crate::ucp::{
    abi::{
        API_VERSION, Params, RawConfig, RawContext, feature,
        params_field::{FEATURES, MT_WORKERS_SHARED},
    },
    api::{Api, LibraryError},
    error::{UcxError, UcxStatus, check},
};

/// The set-up of UCX. Other settings come from the environment (`UCX_…`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Settings by their names without `UCX_`, such as (`TLS`, `sm,self`).
    pub settings: Vec<(&'static str, String)>,
    /// Whether [`crate::ucp::UcxWorker::wait`] sleeps until UCX wakes it; else it sleeps for a short time.
    pub wakeup: bool,
    /// Whether the loss of a peer is reported: [`crate::ucp::Event::Closed`]. UCX then leaves out transports without that.
    pub peer_failures: bool,
    /// The longest message that is sent or received.
    pub message_bytes_max: usize,
    /// Sends of a worker that are not complete, at most.
    pub sends_max: usize,
    /// How long a worker that is dropped waits for its sends to end, and then for its endpoints to close.
    pub close_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            settings: Vec::new(),
            wakeup: true,
            peer_failures: true,
            message_bytes_max: 1 << 20,
            sends_max: 1024,
            close_timeout: Duration::from_secs(1),
        }
    }
}

/// The version of the library.
///
/// # Errors
///
/// [`LibraryError`]: this tells whether UCX is there.
pub fn version() -> Result<String, LibraryError> {
    let api = Api::load()?;
    let [mut major, mut minor, mut release]: [c_uint; 3] = [0; 3];
    // SAFETY: the three numbers are written during the call.
    unsafe { (api.ucp_get_version)(&raw mut major, &raw mut minor, &raw mut release) };
    Ok(format!("{major}.{minor}.{release}"))
}

/// A context, shared by the workers of a process.
#[derive(Clone, Debug)]
pub struct UcxContext(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) api: Api,
    pub(crate) raw: NonNull<RawContext>,
    pub(crate) config: Config,
}

// SAFETY: a context of UCX belongs to no thread.
unsafe impl Send for Inner {}
// SAFETY: it was made with `mt_workers_shared`, so its workers may be used by several threads, one each.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: it was made once, and every worker held a reference to `self`.
        unsafe { (self.api.ucp_cleanup)(self.raw.as_ptr()) };
    }
}

impl UcxContext {
    /// Opens the library, if this process has not, and sets it up.
    ///
    /// # Errors
    ///
    /// [`UcxError`], with the setting or the transports that are at fault.
    pub fn open(config: Config) -> Result<Self, UcxError> {
        let api = Api::load()?;
        let settings = Settings::read(api)?;
        for (name, value) in &config.settings {
            settings.set(name, value)?;
        }
        let wakeup = if config.wakeup { feature::WAKEUP } else { 0 };
        let params = Params {
            field_mask: FEATURES | MT_WORKERS_SHARED,
            features: feature::AM | wakeup,
            unused: [0; 4],
            mt_workers_shared: 1,
        };
        let (major, minor) = API_VERSION;
        let mut raw = ptr::null_mut();
        let settings_raw = settings.raw.as_ptr();
        // SAFETY: `params` is laid out as the version that is asked for has it, up to the last field of its mask;
        // it and the settings are not kept.
        let status = unsafe {
            (api.ucp_init_version)(major, minor, &raw const params, settings_raw, &raw mut raw)
        };
        let what = format!("be set up with {:?}", config.settings);
        check(&what, status)?;
        let raw = non_null(&what, raw)?;
        Ok(Self(Arc::new(Inner { api, raw, config })))
    }
}

/// A pointer that a function which succeeded has written.
pub(crate) fn non_null<T>(what: &str, pointer: *mut T) -> Result<NonNull<T>, UcxError> {
    /// `UCS_ERR_NO_MEMORY`.
    const NO_MEMORY: UcxStatus = UcxStatus(-4);
    let missing = || UcxError::Call { what: what.to_owned(), status: NO_MEMORY };
    NonNull::new(pointer).ok_or_else(missing)
}

/// Settings that were read from the environment.
struct Settings {
    api: Api,
    raw: NonNull<RawConfig>,
}

impl Settings {
    fn read(api: Api) -> Result<Self, UcxError> {
        let mut raw = ptr::null_mut();
        // SAFETY: neither a prefix nor a file; the descriptor is written during the call.
        let status = unsafe { (api.ucp_config_read)(ptr::null(), ptr::null(), &raw mut raw) };
        const WHAT: &str = "read its settings (environment variables UCX_…)";
        check(WHAT, status)?;
        Ok(Self { api, raw: non_null(WHAT, raw)? })
    }

    fn set(&self, name: &str, value: &str) -> Result<(), UcxError> {
        let what = format!("set UCX_{name} to `{value}`");
        /// `UCS_ERR_INVALID_PARAM`: of text with a zero byte.
        const INVALID: UcxStatus = UcxStatus(-5);
        let text = |text: &str| {
            CString::new(text).map_err(|_| UcxError::Call { what: what.clone(), status: INVALID })
        };
        let name = text(name)?;
        let value = text(value)?;
        // SAFETY: both are strings of C, which are copied.
        let status = unsafe {
            (self.api.ucp_config_modify)(self.raw.as_ptr(), name.as_ptr(), value.as_ptr())
        };
        check(&what, status)
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        // SAFETY: it was read once, and is not used any more.
        unsafe { (self.api.ucp_config_release)(self.raw.as_ptr()) };
    }
}
