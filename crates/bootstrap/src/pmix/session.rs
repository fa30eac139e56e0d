//! A process as a client of its launcher's PMIx server.

use core::{
    ffi::{CStr, c_char, c_int, c_void},
    ptr,
    time::Duration,
};

use super::{
    abi::{COLLECT_DATA, GLOBAL, Info, Proc, STRING, SUCCESS, Status, TIMEOUT, Value},
    api::Api,
    error::PmixError,
};

unsafe extern "C" {
    /// `free(3)`: what the library hands out was allocated by `malloc(3)`.
    fn free(memory: *mut c_void);
}

/// A client of the launcher's PMIx server, until it is dropped.
///
/// While it lives, a launcher may take the end of this process for a failure of the launch.
#[derive(Debug)]
pub struct Session {
    api: Api,
    own: Proc,
}

impl Session {
    /// Opens the library and tells the server of this process, as the launcher's variables say
    /// (`PMIX_NAMESPACE`, `PMIX_RANK` and others). The library reads the environment and may set variables: no
    /// other thread may use it meanwhile.
    ///
    /// # Errors
    ///
    /// [`PmixError`].
    pub fn start() -> Result<Self, PmixError> {
        let api = Api::load()?;
        let mut own = Proc { nspace: [0; 256], rank: 0 };
        // SAFETY: `own` is writable, and no attribute is given.
        let status = unsafe { (api.PMIx_Init)(&raw mut own, ptr::null_mut(), 0) };
        if status == SUCCESS {
            Ok(Self { api, own })
        } else {
            // No PMIx_Finalize: without a server, OpenPMIx 4.2 dereferences a null pointer in it.
            Err(PmixError::Init { cause: api.words(status) })
        }
    }

    /// The number of this process in its launch.
    #[must_use]
    pub const fn rank(&self) -> u32 {
        self.own.rank
    }

    /// Keeps `text` under `key`, for all ranks once a fence has passed.
    ///
    /// # Errors
    ///
    /// [`PmixError::Failed`].
    pub fn put(&self, key: &CStr, text: &CStr) -> Result<(), PmixError> {
        let mut value = Value::string(text.as_ptr().cast_mut());
        // SAFETY: both texts are terminated and outlive the call, which copies the text and never writes to it.
        let status = unsafe { (self.api.PMIx_Put)(GLOBAL, key.as_ptr(), &raw mut value) };
        self.check("PMIx_Put", status)
    }

    /// Waits until every rank has come to its fence, and brings what they have put to all.
    ///
    /// # Errors
    ///
    /// [`PmixError::Failed`].
    pub fn fence(&self, timeout: Duration) -> Result<(), PmixError> {
        // SAFETY: it takes nothing.
        let status = unsafe { (self.api.PMIx_Commit)() };
        self.check("PMIx_Commit", status)?;
        let attributes = [Info::new(COLLECT_DATA, Value::flag(true)), timeout_of(timeout)];
        let first = attributes.as_ptr();
        let count = attributes.len();
        // SAFETY: no process named means all ranks; the attributes outlive the call.
        let status = unsafe { (self.api.PMIx_Fence)(ptr::null(), 0, first, count) };
        self.check("PMIx_Fence", status)
    }

    /// The text that `rank` put under `key` before a fence.
    ///
    /// # Errors
    ///
    /// [`PmixError::Failed`] and [`PmixError::NoText`].
    pub fn get(&self, rank: u32, key: &CStr, timeout: Duration) -> Result<String, PmixError> {
        let proc = Proc { rank, ..self.own };
        let attributes = [timeout_of(timeout)];
        let first = attributes.as_ptr();
        let count = attributes.len();
        let mut value = ptr::null_mut();
        // SAFETY: the pointees outlive the call, and `value` is writable.
        let status = unsafe {
            (self.api.PMIx_Get)(&raw const proc, key.as_ptr(), first, count, &raw mut value)
        };
        self.check("PMIx_Get", status)?;
        let text = take_text(value);
        let key = || key.to_string_lossy().into_owned();
        text.ok_or_else(|| PmixError::NoText { rank, key: key() })
    }

    fn check(&self, function: &'static str, status: Status) -> Result<(), PmixError> {
        if status == SUCCESS {
            Ok(())
        } else {
            Err(PmixError::Failed { function, cause: self.api.words(status) })
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: no attribute is given. It fails only where the server is gone, which is not needed any more.
        let _ = unsafe { (self.api.PMIx_Finalize)(ptr::null(), 0) };
    }
}

/// A timeout as servers take it: in whole seconds, and at least one, as 0 means none.
fn timeout_of(timeout: Duration) -> Info {
    let seconds = timeout.as_secs().clamp(1, c_int::MAX as u64);
    Info::new(TIMEOUT, Value::integer(c_int::try_from(seconds).unwrap_or(c_int::MAX)))
}

/// Takes over a value that the library has allocated, and frees it. A value of another kind may hold more
/// allocations, which are left: no rank of copyrpc puts one.
fn take_text(value: *mut Value) -> Option<String> {
    if value.is_null() {
        return None;
    }
    // SAFETY: after success it is a whole value, which this process owns.
    let Value { kind, data } = unsafe { value.read() };
    let text = if kind == STRING {
        // SAFETY: its kind says that this member is the one that was written.
        let string = unsafe { data.string };
        take_string(string)
    } else {
        None
    };
    // SAFETY: the library has allocated it by malloc, and nothing refers to it any more.
    unsafe { free(value.cast()) };
    text
}

fn take_string(string: *mut c_char) -> Option<String> {
    if string.is_null() {
        return None;
    }
    // SAFETY: the library terminates its texts.
    let text = unsafe { CStr::from_ptr(string) }.to_str().ok().map(str::to_owned);
    // SAFETY: the library has allocated it by malloc, and `text` is a copy.
    unsafe { free(string.cast()) };
    text
}
