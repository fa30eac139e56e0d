//! `copyrpc_region_*`, `copyrpc_client_call_bulk`: memory that calls lend.

use std::ffi::{c_int, c_void};

use client::{
    To,
    bulk::{BulkRegion, Slice},
};

use crate::{
    caller,
    client::{CopyrpcClient, timeout_of},
    place,
    report::{Failure, status_of},
};

/// Memory that the daemon has registered; `None` only while it is forgotten.
#[derive(Debug)]
pub struct CopyrpcRegion(pub(crate) Option<BulkRegion>);

/// `copyrpc_slice`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CopyrpcSlice {
    region: *const CopyrpcRegion,
    offset: u64,
    length: u64,
    writable: c_int,
}

/// A region of the caller's.
///
/// # Safety
///
/// As of [`caller::shared`].
pub(crate) unsafe fn region<'a>(region: *const CopyrpcRegion) -> Result<&'a BulkRegion, Failure> {
    // SAFETY: the caller lends the handle for `'a`.
    let region = unsafe { caller::shared(region) };
    region.and_then(|region| region.0.as_ref()).ok_or_else(|| Failure::argument("a region is NULL"))
}

/// A region of the caller's, which becomes another one.
///
/// # Safety
///
/// As of [`caller::exclusive`].
pub(crate) unsafe fn region_mut<'a>(
    region: *mut CopyrpcRegion,
) -> Result<&'a mut BulkRegion, Failure> {
    // SAFETY: the caller lends the handle for `'a`, and nobody else uses it.
    let region = unsafe { caller::exclusive(region) }?;
    region.0.as_mut().ok_or_else(|| Failure::argument("a region is in use"))
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_client_renew(
    client: *mut CopyrpcClient,
    region: *mut CopyrpcRegion,
    renewed: *mut c_int,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller lends the handle for this call.
        let mut client = unsafe { caller::handle(client) }?;
        // SAFETY: the caller lends the handle for this call, and nobody else uses it.
        let is_renewed = client.client.renew(unsafe { region_mut(region) }?)?;
        // SAFETY: the caller owns the place.
        unsafe { place::store(renewed, is_renewed.into()) };
        Ok(())
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_client_region(
    client: *mut CopyrpcClient,
    length: u64,
    region: *mut *mut CopyrpcRegion,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller lends the handle for this call.
        let made = unsafe { caller::handle(client) }?.client.bulk(length)?;
        // SAFETY: the caller owns the place.
        unsafe { caller::give(region, CopyrpcRegion(Some(made))) }
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_client_forget(
    client: *mut CopyrpcClient,
    region: *mut CopyrpcRegion,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller lends the handle for this call.
        let mut client = unsafe { caller::handle(client) }?;
        // SAFETY: the caller lends the handle for this call, and nobody else uses it.
        let held = unsafe { caller::exclusive(region) }?;
        let forgotten = held.0.take().ok_or_else(|| Failure::argument("a region is in use"))?;
        if let Err((kept, error)) = client.client.forget(forgotten) {
            held.0 = Some(kept);
            return Err(error.into());
        }
        // SAFETY: the caller gives the handle back, as this succeeds.
        unsafe { caller::free(region) };
        Ok(())
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_region_free(region: *mut CopyrpcRegion) {
    status_of(|| {
        // SAFETY: the caller gives the handle back.
        unsafe { caller::free(region) };
        Ok(())
    });
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_region_length(handle: *const CopyrpcRegion) -> u64 {
    // SAFETY: the caller lends the handle for this call.
    unsafe { region(handle) }.map_or(0, BulkRegion::len_bytes)
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_region_write(
    handle: *const CopyrpcRegion,
    offset: u64,
    from: *const c_void,
    length: usize,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller owns the bytes, and lends them for this call.
        let from = unsafe { caller::bytes(from, length) }?;
        // SAFETY: the caller lends the handle for this call.
        Ok(unsafe { region(handle) }?.write(offset, from)?)
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_region_read(
    handle: *const CopyrpcRegion,
    offset: u64,
    to: *mut c_void,
    length: usize,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller owns the place, and lends it for this call.
        let to = unsafe { caller::room(to, length) }?;
        // SAFETY: the caller lends the handle for this call.
        Ok(unsafe { region(handle) }?.read(offset, to)?)
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_client_call_bulk(
    client: *mut CopyrpcClient,
    rank: u32,
    service: u16,
    method: u16,
    body: *const c_void,
    length: usize,
    slices: *const CopyrpcSlice,
    count: usize,
    timeout_us: u64,
    answer: *mut *const c_void,
    answer_length: *mut usize,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller lends the handle for this call.
        let mut client = unsafe { caller::handle(client) }?;
        // SAFETY: the caller owns the bytes, and lends them for this call.
        let body = unsafe { caller::bytes(body, length) }?;
        // SAFETY: the caller owns the array, and lends it for this call.
        let told = unsafe { caller::array(slices, count) }?;
        let slice = |told: &CopyrpcSlice| -> Result<Slice<'_>, Failure> {
            // SAFETY: the caller lends the regions for this call.
            let region = unsafe { region(told.region) }?;
            Ok(match told.writable {
                0 => region.slice(told.offset, told.length),
                _ => region.writable(told.offset, told.length),
            })
        };
        let slices = told.iter().map(slice).collect::<Result<Vec<_>, _>>()?;
        let timeout = timeout_of(timeout_us, client.timeout);
        let to = To { rank, service, method };
        let bytes = client.client.call_bulk(to, body, &slices, timeout)?;
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
pub unsafe extern "C" fn copyrpc_client_lent(
    client: *mut CopyrpcClient,
    handle: *const CopyrpcRegion,
    slices: *mut u64,
    writable: *mut u64,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller lends the handle for this call.
        let mut client = unsafe { caller::handle(client) }?;
        // SAFETY: the caller lends the handle for this call.
        let (all, open) = client.client.lent(unsafe { region(handle) }?)?;
        // SAFETY: the caller owns the place.
        unsafe { place::store(slices, all) };
        // SAFETY: the caller owns the place.
        unsafe { place::store(writable, open) };
        Ok(())
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_client_reclaim(
    client: *mut CopyrpcClient,
    handle: *const CopyrpcRegion,
    timeout_us: u64,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller lends the handle for this call.
        let mut client = unsafe { caller::handle(client) }?;
        let timeout = timeout_of(timeout_us, client.timeout);
        // SAFETY: the caller lends the handle for this call.
        Ok(client.client.reclaim(unsafe { region(handle) }?, timeout)?)
    })
}
