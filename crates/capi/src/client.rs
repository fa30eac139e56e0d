//! `copyrpc_client_*`: one call at a time.

use std::{
    ffi::{c_char, c_void},
    time::Duration,
};

use client::{Client, ClientConfig, To};

use crate::{
    caller, place,
    report::{Failure, status_of},
    socket,
};

/// What a client's handle points at.
pub type CopyrpcClient = caller::OneThread<ClientState>;

/// A client, and the deadline of calls that have none.
#[derive(Debug)]
pub struct ClientState {
    pub(crate) client: Client,
    pub(crate) timeout: Duration,
}

/// A configuration whose calls have this deadline, unless it is 0.
pub(crate) fn config(timeout_us: u64) -> ClientConfig {
    let config = ClientConfig::default();
    ClientConfig { timeout: timeout_of(timeout_us, config.timeout), ..config }
}

pub(crate) fn timeout_of(timeout_us: u64, otherwise: Duration) -> Duration {
    if timeout_us == 0 { otherwise } else { Duration::from_micros(timeout_us) }
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_client_connect(
    path: *const c_char,
    timeout_us: u64,
    client: *mut *mut CopyrpcClient,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller owns the text, and lends it for this call.
        let path = unsafe { caller::text(path) }?;
        let config = config(timeout_us);
        let connected = Client::connect(&socket(path)?, config);
        let connected = connected.map_err(|error| Failure::connect(&error))?;
        let made = ClientState { client: connected, timeout: config.timeout };
        // SAFETY: the caller owns the place.
        unsafe { caller::give(client, CopyrpcClient::new(made)) }
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_client_free(client: *mut CopyrpcClient) {
    status_of(|| {
        // SAFETY: the caller gives the handle back.
        unsafe { caller::free_handle(client) }
    });
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_client_reconnect(client: *mut CopyrpcClient) -> i32 {
    status_of(|| {
        // SAFETY: the caller lends the handle for this call.
        let mut client = unsafe { caller::handle(client) }?;
        client.client.reconnect().map_err(Failure::library)
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_client_set_trace(client: *mut CopyrpcClient, trace: u64) -> i32 {
    status_of(|| {
        // SAFETY: the caller lends the handle for this call.
        unsafe { caller::handle(client) }?.client.set_trace(trace);
        Ok(())
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_client_call(
    client: *mut CopyrpcClient,
    rank: u32,
    service: u16,
    method: u16,
    body: *const c_void,
    length: usize,
    timeout_us: u64,
    answer: *mut *const c_void,
    answer_length: *mut usize,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller lends the handle for this call.
        let mut client = unsafe { caller::handle(client) }?;
        // SAFETY: the caller owns the bytes, and lends them for this call.
        let body = unsafe { caller::bytes(body, length) }?;
        let timeout = timeout_of(timeout_us, client.timeout);
        let bytes = client.client.call_within(To::new(rank, service, method), body, timeout)?;
        // SAFETY: the caller owns the place; what is stored belongs to the handle.
        unsafe { place::store(answer, bytes.as_ptr().cast()) };
        // SAFETY: the caller owns the place.
        unsafe { place::store(answer_length, bytes.len()) };
        Ok(())
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_client_who(
    client: *mut CopyrpcClient,
    rank: *mut u32,
    size: *mut u32,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller lends the handle for this call.
        let (own, all) = unsafe { caller::handle(client) }?.client.who()?;
        // SAFETY: the caller owns the place.
        unsafe { place::store(rank, own) };
        // SAFETY: the caller owns the place.
        unsafe { place::store(size, all) };
        Ok(())
    })
}
