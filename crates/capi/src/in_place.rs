//! Calls whose body is written, and whose answer is read, where the daemon reads and writes them.

use std::ffi::c_void;

use client::{Filler, To};

use crate::{
    caller,
    client::{ClientState, CopyrpcClient, timeout_of},
    pipeline::{Context, CopyrpcPipeline, Done, PipelineState},
    place,
    report::{Failure, remember, status_of},
};

/// `copyrpc_fill`.
type Fill = unsafe extern "C" fn(*mut c_void, usize, *mut c_void);

/// What writes a body of `length` bytes.
///
/// # Safety
///
/// `fill` writes to the room that it is given, and to no more of it, before it returns.
unsafe fn filler(
    fill: Option<Fill>,
    length: usize,
    user: *mut c_void,
) -> Result<impl FnOnce(&mut Filler<'_>), Failure> {
    if fill.is_none() && length > 0 {
        return Err(Failure::argument("there is no function to write a body that has a length"));
    }
    Ok(move |body: &mut Filler<'_>| {
        let room = body.take_room();
        if let Some(fill) = fill {
            // SAFETY: the caller's function, with what the caller said; the room is its own while it runs.
            unsafe { fill(room.cast(), room.len(), user) };
        }
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_client_call_in_place(
    client: *mut CopyrpcClient,
    rank: u32,
    service: u16,
    method: u16,
    length: usize,
    fill: Option<Fill>,
    user: *mut c_void,
    timeout_us: u64,
    answer: *mut *const c_void,
    answer_length: *mut usize,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller lends the handle for this call.
        let mut state = unsafe { caller::handle(client) }?;
        let ClientState { client, timeout } = &mut *state;
        // SAFETY: as the header asks of the function.
        let fill = unsafe { filler(fill, length, user) }?;
        let (to, timeout) = (To { rank, service, method }, timeout_of(timeout_us, *timeout));
        let lent = client.call_in_place_within(to, length, timeout, fill)?;
        // SAFETY: the caller owns the place; what is stored stays until the next call.
        unsafe { place::store(answer, lent.as_ptr().as_ptr().cast_const().cast()) };
        // SAFETY: the caller owns the place.
        unsafe { place::store(answer_length, lent.len()) };
        Ok(())
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_pipeline_submit_in_place(
    pipeline: *mut CopyrpcPipeline,
    rank: u32,
    service: u16,
    method: u16,
    length: usize,
    fill: Option<Fill>,
    user: *mut c_void,
    timeout_us: u64,
    context: *mut c_void,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller lends the handle for this call.
        let mut state = unsafe { caller::handle(pipeline) }?;
        let PipelineState { pipeline, timeout, .. } = &mut *state;
        // SAFETY: as the header asks of the function.
        let fill = unsafe { filler(fill, length, user) }?;
        let (to, timeout) = (To { rank, service, method }, timeout_of(timeout_us, *timeout));
        let context = Context::unnamed(context);
        pipeline.submit_in_place_within(to, length, timeout, context, fill)?;
        Ok(())
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_pipeline_poll_lent(
    pipeline: *mut CopyrpcPipeline,
    done: Option<Done>,
    user: *mut c_void,
    count: *mut usize,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller lends the handle for this call.
        let mut state = unsafe { caller::handle(pipeline) }?;
        let done = done.ok_or_else(|| Failure::argument("there is no function to report to"))?;
        let PipelineState { pipeline, named, .. } = &mut *state;
        let ended = pipeline.poll_lent(|context, answer| {
            let context = named.end(context);
            let status = remember(answer.as_ref().err().cloned().map(Into::into));
            let (body, length) = match &answer {
                Ok(lent) => (lent.as_ptr().as_ptr().cast_const(), lent.len()),
                Err(error) => (error.detail().as_ptr(), error.detail().len()),
            };
            // SAFETY: the caller's function, with what the caller said; the body is lent while it runs.
            unsafe { done(context, status, body.cast(), length, user) };
        });
        // SAFETY: the caller owns the place.
        unsafe { place::store(count, ended) };
        Ok(())
    })
}
