//! `copyrpc_bulk_provider_*`, `copyrpc_work_*`: a service of calls that lend memory.

use std::{
    collections::BTreeMap,
    ffi::{c_char, c_int, c_void},
    ptr,
    time::Duration,
};

use client::{
    ClientConfig, Retry, Status,
    bulk::{BulkProvider, BulkRequest, Direction, Move, Ticket},
};

use crate::{
    bulk::{CopyrpcRegion, region, region_mut},
    caller,
    client::{config, timeout_of},
    place,
    provider::{ENDS_WITH_DAEMON, FOR_EVER},
    report::{Failure, status_of, value_of},
    socket,
};

/// What a provider's handle points at.
pub type CopyrpcBulkProvider = caller::OneThread<BulkProviderState>;

/// A provider, and its transfers whose ends were not told.
#[derive(Debug)]
pub struct BulkProviderState {
    provider: BulkProvider,
    timeout: Duration,
    /// By number. A transfer that is over stays until it is looked at, or its call is answered.
    transfers: BTreeMap<u64, (u64, Ticket)>,
    transfers_begun: u64,
    works_taken: u64,
}

/// A call until it is answered.
#[derive(Debug)]
pub struct CopyrpcWork {
    work: BulkRequest,
    /// Names the call among those of its provider.
    number: u64,
}

/// `copyrpc_move`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CopyrpcMove {
    slice: u32,
    push: c_int,
    offset: u64,
    own_offset: u64,
    length: u64,
}

impl CopyrpcMove {
    fn parse(&self) -> Result<Move, Failure> {
        let none = |_| Failure::argument("a call has no slice of that number");
        Ok(Move {
            slice: self.slice.try_into().map_err(none)?,
            direction: if self.push == 0 { Direction::Pull } else { Direction::Push },
            offset: self.offset,
            local_offset: self.own_offset,
            len_bytes: self.length,
        })
    }
}

impl BulkProviderState {
    fn ticket(&self, transfer: u64) -> Result<Ticket, Failure> {
        let known = self.transfers.get(&transfer).map(|(_, ticket)| *ticket);
        known.ok_or_else(|| Failure::argument("there is no such transfer, or its end was reported"))
    }
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_bulk_provider_offer(
    path: *const c_char,
    service: u16,
    timeout_us: u64,
    provider: *mut *mut CopyrpcBulkProvider,
) -> i32 {
    // SAFETY: as of this function.
    unsafe { copyrpc_bulk_provider_offer_with(path, service, 0, timeout_us, provider) }
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_bulk_provider_offer_with(
    path: *const c_char,
    service: u16,
    flags: c_int,
    timeout_us: u64,
    provider: *mut *mut CopyrpcBulkProvider,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller owns the text, and lends it for this call.
        let path = unsafe { caller::text(path) }?;
        if flags & !ENDS_WITH_DAEMON != 0 {
            return Err(Failure::argument("the flags hold a bit that means nothing here"));
        }
        let retry = if flags == 0 { FOR_EVER } else { Retry::NEVER };
        let config = ClientConfig { retry, ..config(timeout_us) };
        let made = BulkProviderState {
            provider: BulkProvider::offer(&socket(path)?, service, config)?,
            timeout: config.timeout,
            transfers: BTreeMap::new(),
            transfers_begun: 0,
            works_taken: 0,
        };
        // SAFETY: the caller owns the place.
        unsafe { caller::give(provider, CopyrpcBulkProvider::new(made)) }
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_bulk_provider_free(provider: *mut CopyrpcBulkProvider) {
    status_of(|| {
        // SAFETY: the caller gives the handle back.
        unsafe { caller::free_handle(provider) }
    });
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_bulk_provider_region(
    provider: *mut CopyrpcBulkProvider,
    length: u64,
    region: *mut *mut CopyrpcRegion,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller lends the handle for this call.
        let made = unsafe { caller::handle(provider) }?.provider.bulk(length)?;
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
pub unsafe extern "C" fn copyrpc_bulk_provider_renew(
    provider: *mut CopyrpcBulkProvider,
    region: *mut CopyrpcRegion,
    renewed: *mut c_int,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller lends the handle for this call.
        let mut provider = unsafe { caller::handle(provider) }?;
        // SAFETY: the caller lends the handle for this call, and nobody else uses it.
        let region = unsafe { region_mut(region) }?;
        let is_renewed = provider.provider.renew(region)?;
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
pub unsafe extern "C" fn copyrpc_bulk_provider_next(
    provider: *mut CopyrpcBulkProvider,
    timeout_us: u64,
    work: *mut *mut CopyrpcWork,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller lends the handle for this call.
        let mut provider = unsafe { caller::handle(provider) }?;
        if work.is_null() {
            return Err(Failure::argument("there is no place for the call"));
        }
        // SAFETY: the caller owns the place.
        unsafe { place::store(work, ptr::null_mut()) };
        let Some(next) = provider.provider.next(Duration::from_micros(timeout_us))? else {
            return Ok(());
        };
        provider.works_taken += 1;
        let taken = CopyrpcWork { work: next, number: provider.works_taken };
        // SAFETY: the caller owns the place.
        unsafe { caller::give(work, taken) }
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_work_method(work: *const CopyrpcWork) -> u16 {
    // SAFETY: the caller lends the call for this one.
    unsafe { caller::shared(work) }.map_or(0, |work| work.work.method)
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_work_rank(work: *const CopyrpcWork) -> u32 {
    // SAFETY: the caller lends the call for this one.
    unsafe { caller::shared(work) }.map_or(u32::MAX, |work| work.work.rank)
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_work_body(
    work: *const CopyrpcWork,
    length: *mut usize,
) -> *const c_void {
    // SAFETY: the caller lends the call for this one.
    let body = unsafe { caller::shared(work) }.map_or(&[][..], |work| &work.work.body);
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
pub unsafe extern "C" fn copyrpc_work_time_left_us(work: *const CopyrpcWork) -> u64 {
    // SAFETY: the caller lends the call for this one.
    let context = unsafe { caller::shared(work) }.and_then(|work| work.work.context);
    context.map_or(u64::MAX, |context| {
        u64::try_from(context.time_left().as_micros()).unwrap_or(u64::MAX)
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_work_trace(work: *const CopyrpcWork) -> u64 {
    // SAFETY: the caller lends the call for this one.
    let context = unsafe { caller::shared(work) }.and_then(|work| work.work.context);
    context.map_or(0, |context| context.trace)
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_work_caller(
    work: *const CopyrpcWork,
    uid: *mut u32,
    pid: *mut u32,
) -> c_int {
    // SAFETY: the caller lends the call for this one.
    let context = unsafe { caller::shared(work) }.and_then(|work| work.work.context);
    let Some((user, process)) = context.and_then(|it| it.uid.map(|uid| (uid, it.pid))) else {
        return 0;
    };
    // SAFETY: the caller owns the place.
    unsafe { place::store(uid, user) };
    // SAFETY: the caller owns the place.
    unsafe { place::store(pid, process.unwrap_or(0)) };
    1
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_bulk_provider_is_cancelled(
    provider: *mut CopyrpcBulkProvider,
    work: *const CopyrpcWork,
) -> c_int {
    // SAFETY: the caller lends the call for this one.
    let Some(work) = (unsafe { caller::shared(work) }) else { return 0 };
    // SAFETY: the caller lends the handle for this call.
    let provider = unsafe { caller::handle(provider) };
    value_of(0, || provider.is_ok_and(|mut it| it.provider.is_cancelled(&work.work)).into())
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_work_slices(work: *const CopyrpcWork) -> usize {
    // SAFETY: the caller lends the call for this one.
    unsafe { caller::shared(work) }.map_or(0, |work| work.work.slices.len())
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_work_slice(
    work: *const CopyrpcWork,
    slice: usize,
    length: *mut u64,
    writable: *mut c_int,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller lends the call for this one.
        let work = unsafe { caller::shared(work) };
        let slice = work.and_then(|work| work.work.slices.get(slice));
        let slice = slice.ok_or_else(|| Failure::argument("a call has no slice of that number"))?;
        // SAFETY: the caller owns the place.
        unsafe { place::store(length, slice.len_bytes) };
        // SAFETY: the caller owns the place.
        unsafe { place::store(writable, slice.is_writable.into()) };
        Ok(())
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_bulk_provider_begin(
    provider: *mut CopyrpcBulkProvider,
    work: *const CopyrpcWork,
    own: *const CopyrpcRegion,
    moves: *const CopyrpcMove,
    count: usize,
    timeout_us: u64,
    transfer: *mut u64,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller lends the handle for this call.
        let mut provider = unsafe { caller::handle(provider) }?;
        // SAFETY: the caller lends the handle for this call.
        let work = unsafe { caller::shared(work) };
        let work = work.ok_or_else(|| Failure::argument("a handle is NULL"))?;
        // SAFETY: the caller lends the handle for this call.
        let own = unsafe { region(own) }?;
        // SAFETY: the caller owns the array, and lends it for this call.
        let moves = unsafe { caller::array(moves, count) }?;
        let moves = moves.iter().map(CopyrpcMove::parse).collect::<Result<Vec<_>, _>>()?;
        let timeout = timeout_of(timeout_us, provider.timeout);
        let ticket = provider.provider.begin(&work.work, own, &moves, timeout)?;
        provider.transfers_begun += 1;
        let number = provider.transfers_begun;
        provider.transfers.insert(number, (work.number, ticket));
        // SAFETY: the caller owns the place.
        unsafe { place::store(transfer, number) };
        Ok(())
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_bulk_provider_look(
    provider: *mut CopyrpcBulkProvider,
    transfer: u64,
    ended: *mut c_int,
    moved: *mut u64,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller lends the handle for this call.
        let mut provider = unsafe { caller::handle(provider) }?;
        let ticket = provider.ticket(transfer)?;
        let outcome = provider.provider.look(ticket);
        // SAFETY: the caller owns the place.
        unsafe { place::store(ended, outcome.is_some().into()) };
        let Some(outcome) = outcome else { return Ok(()) };
        provider.transfers.remove(&transfer);
        // SAFETY: the caller owns the place.
        unsafe { place::store(moved, outcome?) };
        Ok(())
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_bulk_provider_wait(
    provider: *mut CopyrpcBulkProvider,
    transfer: u64,
    moved: *mut u64,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller lends the handle for this call.
        let mut provider = unsafe { caller::handle(provider) }?;
        let ticket = provider.ticket(transfer)?;
        provider.transfers.remove(&transfer);
        let bytes = provider.provider.wait(ticket)?;
        // SAFETY: the caller owns the place.
        unsafe { place::store(moved, bytes) };
        Ok(())
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_bulk_provider_progress(
    provider: *mut CopyrpcBulkProvider,
    transfer: u64,
    moved: *mut u64,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller lends the handle for this call.
        let mut provider = unsafe { caller::handle(provider) }?;
        let ticket = provider.ticket(transfer)?;
        let bytes = provider.provider.progress(ticket)?;
        // SAFETY: the caller owns the place.
        unsafe { place::store(moved, bytes) };
        Ok(())
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_bulk_provider_answer(
    provider: *mut CopyrpcBulkProvider,
    work: *mut CopyrpcWork,
    status: i32,
    body: *const c_void,
    length: usize,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller lends the handle for this call.
        let mut provider = unsafe { caller::handle(provider) }?;
        if work.is_null() {
            return Err(Failure::argument("a handle is NULL"));
        }
        let status = u8::try_from(status).ok().and_then(Status::from_code);
        let status = status.ok_or_else(|| Failure::argument("there is no such status"))?;
        // SAFETY: the caller owns the bytes, and lends them for this call.
        let body = unsafe { caller::bytes(body, length) }?;
        // SAFETY: this library made it by `Box::into_raw`, and the caller gives it back.
        let CopyrpcWork { work, number } = *unsafe { Box::from_raw(work) };
        provider.transfers.retain(|_, (of, _)| *of != number);
        Ok(provider.provider.answer(work, status, body)?)
    })
}
