//! `libcopyrpc`: what `copyrpc.h` declares, over the crates `client` and `rpc`.
//!
//! | module | functions |
//! |---|---|
//! | `client` | `copyrpc_client_*` |
//! | `bulk` | `copyrpc_region_*`, and the functions of a client that lend regions |
//! | `bulk_provider` | `copyrpc_bulk_provider_*`, `copyrpc_work_*` |
//! | `pipeline` | `copyrpc_pipeline_*` |
//! | `provider` | `copyrpc_provider_*`, `copyrpc_request_*` |
//! | `worker` | `copyrpc_worker_*`; `arrivals` has what is generic over the NIC |
//! | `report` | `copyrpc_last_*`; how results become statuses |
//!
//! The header is written by hand; `tests/header.rs` compares its functions with those here, and a program in
//! C is compiled against it and run where there is a compiler. Each function catches panics at its border.

mod arrivals;
pub mod bulk;
pub mod bulk_provider;
mod caller;
pub mod client;
pub mod in_place;
pub mod pipeline;
mod place;
pub mod provider;
pub mod report;
pub mod worker;

use std::ffi::{CStr, c_char};

use ::client::name;

/// What `COPYRPC_ABI` is in the header, from which the build script takes it.
const ABI: u32 = match u32::from_str_radix(env!("COPYRPC_ABI"), 10) {
    Ok(abi) => abi,
    Err(_) => panic!("the header names the ABI by a number"),
};

/// See `copyrpc.h`.
#[unsafe(no_mangle)]
pub extern "C" fn copyrpc_abi() -> u32 {
    ABI
}

/// See `copyrpc.h`.
#[unsafe(no_mangle)]
pub extern "C" fn copyrpc_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// `name` is a text that ends with a zero byte, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_service_number(name: *const c_char) -> u16 {
    // SAFETY: the caller owns the text, and lends it for this call.
    let text = unsafe { caller::text(name) };
    name::service_number(text.ok().flatten().unwrap_or_default())
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// `name` is a text that ends with a zero byte, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_method_number(name: *const c_char) -> u16 {
    // SAFETY: the caller owns the text, and lends it for this call.
    let text = unsafe { caller::text(name) };
    name::method_number(text.ok().flatten().unwrap_or_default())
}

/// The socket that a path names, or the environment.
fn socket(path: Option<&str>) -> Result<std::path::PathBuf, report::Failure> {
    match path {
        Some(path) => Ok(path.into()),
        None => Ok(::client::Runtime::from_env().map_err(report::Failure::library)?.socket()),
    }
}

/// The C text of a constant.
const fn c_text(text: &'static CStr) -> *const c_char {
    text.as_ptr()
}
