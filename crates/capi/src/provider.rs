//! `copyrpc_provider_*` and `copyrpc_request_*`: a service.

use std::{
    ffi::{c_char, c_int, c_void},
    sync::{Mutex, PoisonError, TryLockError},
    time::Duration,
};

use client::{ClientConfig, Offer, Provider, ProviderStop, Request, Retry, Status};

use crate::{
    caller, place,
    report::{Failure, status_of, value_of},
    socket,
};

/// A provider until it serves, and how it is stopped.
#[derive(Debug)]
pub struct CopyrpcProvider {
    provider: Mutex<Option<Provider>>,
    stop: ProviderStop,
    /// Held while a thread serves: the handle is not freed then.
    serving: Mutex<()>,
}

/// As in `copyrpc.h`.
const IS_SHARED: c_int = 1;
pub(crate) const ENDS_WITH_DAEMON: c_int = 2;

/// A daemon that is gone is looked for as long as the process lives, at least once in half a second.
pub(crate) const FOR_EVER: Retry =
    Retry { retries_max: u32::MAX, backoff_max: Duration::from_millis(500), ..Retry::standard() };

/// A request until it is answered.
#[derive(Debug)]
pub struct CopyrpcRequest(Request);

/// `copyrpc_serve`.
type Serve = unsafe extern "C" fn(*mut CopyrpcRequest, *mut c_void);

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_provider_offer(
    path: *const c_char,
    service: u16,
    name: *const c_char,
    flags: c_int,
    window: usize,
    provider: *mut *mut CopyrpcProvider,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller owns the text, and lends it for this call.
        let path = unsafe { caller::text(path) }?;
        // SAFETY: as above.
        let name = unsafe { caller::text(name) }?;
        let mut offer = Offer::new(service).with_name(name.unwrap_or_default());
        if flags & !(IS_SHARED | ENDS_WITH_DAEMON) != 0 {
            return Err(Failure::argument("the flags hold a bit that means nothing"));
        }
        if flags & IS_SHARED != 0 {
            offer = offer.shared();
        }
        if flags & ENDS_WITH_DAEMON == 0 {
            offer = offer.reconnecting(FOR_EVER);
        }
        if window > 0 {
            offer = offer.window(window);
        }
        let offered = Provider::offer(&socket(path)?, &offer, ClientConfig::default())?;
        let stop = offered.stop_handle();
        let provider_cell = Mutex::new(Some(offered));
        let made = CopyrpcProvider { provider: provider_cell, stop, serving: Mutex::default() };
        // SAFETY: the caller owns the place.
        unsafe { caller::give(provider, made) }
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_provider_free(provider: *mut CopyrpcProvider) {
    status_of(|| {
        // SAFETY: the caller lends the handle for this call.
        let serving = unsafe { caller::shared(provider) }.map(|held| held.serving.try_lock());
        if matches!(serving, Some(Err(TryLockError::WouldBlock))) {
            let text =
                "a thread is inside copyrpc_provider_serve(): stop the provider, and free it then";
            return Err(Failure::refused(Status::FailedPrecondition, text));
        }
        drop(serving);
        // SAFETY: the caller gives the handle back, and no thread serves.
        unsafe { caller::free(provider) };
        Ok(())
    });
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_provider_serve(
    provider: *mut CopyrpcProvider,
    serve: Option<Serve>,
    user: *mut c_void,
) -> i32 {
    status_of(|| {
        let serve = serve.ok_or_else(|| Failure::argument("there is no function that serves"))?;
        // SAFETY: the caller lends the handle for this call; other threads only stop it.
        let provider = unsafe { caller::shared(provider) };
        let provider = provider.ok_or_else(|| Failure::argument("a handle is NULL"))?;
        let _serving = provider.serving.try_lock();
        let taken = provider.provider.lock().unwrap_or_else(PoisonError::into_inner).take();
        let taken = taken.ok_or_else(|| Failure::argument("the provider has served"))?;
        let run = taken.run(|request| {
            // Nobody waits for it, so nothing is executed.
            if request.context().time_left().is_zero() {
                return request.reply(Status::DeadlineExceeded, Vec::new());
            }
            let request = Box::into_raw(Box::new(CopyrpcRequest(request)));
            // SAFETY: the caller's function, with what the caller said; it gets the request for good.
            unsafe { serve(request, user) };
        });
        Ok(run?)
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_provider_stop(provider: *const CopyrpcProvider) {
    // SAFETY: the caller lends the handle for this call.
    let provider = unsafe { caller::shared(provider) };
    value_of((), || provider.map_or((), |provider| provider.stop.stop()));
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_request_method(request: *const CopyrpcRequest) -> u16 {
    // SAFETY: the caller lends the request for this call.
    unsafe { caller::shared(request) }.map_or(0, |request| request.0.method())
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_request_rank(request: *const CopyrpcRequest) -> u32 {
    // SAFETY: the caller lends the request for this call.
    unsafe { caller::shared(request) }.map_or(u32::MAX, |request| request.0.context().rank)
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_request_body(
    request: *const CopyrpcRequest,
    length: *mut usize,
) -> *const c_void {
    // SAFETY: the caller lends the request for this call.
    let body = unsafe { caller::shared(request) }.map_or(&[][..], |request| request.0.body());
    // SAFETY: the caller owns the place.
    unsafe { place::store(length, body.len()) };
    body.as_ptr().cast()
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_request_time_left_us(request: *const CopyrpcRequest) -> u64 {
    // SAFETY: the caller lends the request for this call.
    let request = unsafe { caller::shared(request) };
    let left = request.map(|request| request.0.context().time_left()).unwrap_or_default();
    u64::try_from(left.as_micros()).unwrap_or(u64::MAX)
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_request_is_cancelled(request: *const CopyrpcRequest) -> c_int {
    // SAFETY: the caller lends the request for this call.
    let request = unsafe { caller::shared(request) };
    request.is_some_and(|request| request.0.context().is_cancelled()).into()
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_request_trace(request: *const CopyrpcRequest) -> u64 {
    // SAFETY: the caller lends the request for this call.
    unsafe { caller::shared(request) }.map_or(0, |request| request.0.context().caller.trace)
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_request_caller(
    request: *const CopyrpcRequest,
    uid: *mut u32,
    pid: *mut u32,
) -> c_int {
    // SAFETY: the caller lends the request for this call.
    let Some(request) = (unsafe { caller::shared(request) }) else { return 0 };
    let known = request.0.context().caller;
    let Some(user) = known.uid else { return 0 };
    // SAFETY: the caller owns the place.
    unsafe { place::store(uid, user) };
    // SAFETY: the caller owns the place.
    unsafe { place::store(pid, known.pid.unwrap_or(0)) };
    1
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_request_reply(
    request: *mut CopyrpcRequest,
    status: i32,
    body: *const c_void,
    length: usize,
) -> i32 {
    status_of(|| {
        if request.is_null() {
            return Err(Failure::argument("a handle is NULL"));
        }
        // SAFETY: this library made it by `Box::into_raw`, and the caller gives it back.
        let CopyrpcRequest(request) = *unsafe { Box::from_raw(request) };
        let status = u8::try_from(status).ok().and_then(Status::from_code);
        let status = status.ok_or_else(|| Failure::argument("there is no such status"))?;
        // SAFETY: the caller owns the bytes, and lends them for this call.
        let body = unsafe { caller::bytes(body, length) }?;
        request.reply(status, body.to_vec());
        Ok(())
    })
}
