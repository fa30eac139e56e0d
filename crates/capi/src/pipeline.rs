//! `copyrpc_pipeline_*`: many calls at a time.

use std::{
    collections::BTreeMap,
    ffi::{c_char, c_int, c_void},
    os::fd::{AsFd as _, AsRawFd as _},
    time::Duration,
};

use client::{CallError, CallId, Pipeline, Status, To};
use os::clock;

use crate::{
    caller,
    client::{config, timeout_of},
    place,
    report::{Failure, remember, status_of, value_of},
    socket,
};

/// The context of a call: an address of the caller's that this library only hands back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    address: *mut c_void,
    /// Names a call that can be given up; 0: it cannot.
    name: u64,
}

// SAFETY: the library never follows the address; whose it is and on which thread is the caller's affair.
unsafe impl Send for Context {}

/// What a pipeline's handle points at.
pub type CopyrpcPipeline = caller::OneThread<PipelineState>;

/// A pipeline, and the deadline of calls that have none.
#[derive(Debug)]
pub struct PipelineState {
    pub(crate) pipeline: Pipeline<Context>,
    pub(crate) timeout: Duration,
    pub(crate) named: Named,
}

/// Calls in flight that can be given up.
#[derive(Debug, Default)]
pub(crate) struct Named {
    calls: BTreeMap<u64, CallId>,
    latest: u64,
}

impl Context {
    pub(crate) fn unnamed(address: *mut c_void) -> Self {
        Self { address, name: 0 }
    }
}

impl PipelineState {
    /// The context of a call that can be given up.
    fn name(&self, address: *mut c_void) -> Result<Context, Failure> {
        if self.pipeline.free() == 1 && self.pipeline.depth() > 1 {
            // The last place is that of the message which tells of calls that were given up.
            let text = "all calls are in flight; nothing was sent, retry after a response";
            return Err(Failure::refused(Status::ResourceExhausted, text));
        }
        Ok(Context { address, name: self.named.latest + 1 })
    }
}

impl Named {
    /// A call is in flight.
    fn begin(&mut self, context: Context, id: CallId) {
        if context.name != 0 {
            self.latest = context.name;
            self.calls.insert(context.name, id);
        }
    }

    /// A call has ended; returns what its program handed over.
    pub(crate) fn end(&mut self, context: Context) -> *mut c_void {
        if context.name != 0 {
            self.calls.remove(&context.name);
        }
        context.address
    }
}

/// `copyrpc_done`.
pub(crate) type Done = unsafe extern "C" fn(*mut c_void, i32, *const c_void, usize, *mut c_void);

/// Reports the end of a call to the program.
fn report(
    named: &mut Named,
    done: Done,
    user: *mut c_void,
    ended: (Context, Result<&[u8], CallError>),
) {
    let (context, answer) = ended;
    let context = named.end(context);
    let status = remember(answer.as_ref().err().cloned().map(Into::into));
    let body = match &answer {
        Ok(body) => body,
        Err(error) => error.detail(),
    };
    // SAFETY: the caller's function, with what the caller said; the body is lent while it runs.
    unsafe { done(context, status, body.as_ptr().cast(), body.len(), user) };
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_pipeline_connect(
    path: *const c_char,
    timeout_us: u64,
    pipeline: *mut *mut CopyrpcPipeline,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller owns the text, and lends it for this call.
        let path = unsafe { caller::text(path) }?;
        let config = config(timeout_us);
        let connected = Pipeline::connect(&socket(path)?, config);
        let connected = connected.map_err(|error| Failure::connect(&error))?;
        let named = Named::default();
        let made = PipelineState { pipeline: connected, timeout: config.timeout, named };
        // SAFETY: the caller owns the place.
        unsafe { caller::give(pipeline, CopyrpcPipeline::new(made)) }
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_pipeline_free(pipeline: *mut CopyrpcPipeline) {
    status_of(|| {
        // SAFETY: the caller gives the handle back.
        unsafe { caller::free_handle(pipeline) }
    });
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_pipeline_set_trace(
    pipeline: *mut CopyrpcPipeline,
    trace: u64,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller lends the handle for this call.
        unsafe { caller::handle(pipeline) }?.pipeline.set_trace(trace);
        Ok(())
    })
}

/// Submits a call, whose context `admit` makes.
///
/// # Safety
///
/// `pipeline` as of [`caller::handle`], `body` as of [`caller::bytes`].
unsafe fn submit(
    pipeline: *mut CopyrpcPipeline,
    to: To,
    body: (*const c_void, usize),
    timeout_us: u64,
    admit: impl FnOnce(&PipelineState) -> Result<Context, Failure>,
) -> Result<u64, Failure> {
    // SAFETY: the caller lends the handle for this call.
    let mut state = unsafe { caller::handle(pipeline) }?;
    // SAFETY: the caller owns the bytes, and lends them for this call.
    let body = unsafe { caller::bytes(body.0, body.1) }?;
    let context = admit(&state)?;
    let timeout = timeout_of(timeout_us, state.timeout);
    let id = state.pipeline.submit_within(to, body, timeout, context)?;
    state.named.begin(context, id);
    Ok(context.name)
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_pipeline_submit(
    pipeline: *mut CopyrpcPipeline,
    rank: u32,
    service: u16,
    method: u16,
    body: *const c_void,
    length: usize,
    timeout_us: u64,
    context: *mut c_void,
) -> i32 {
    status_of(|| {
        let (to, body) = (To { rank, service, method }, (body, length));
        // SAFETY: the caller lends the handle and the bytes for this call.
        unsafe { submit(pipeline, to, body, timeout_us, |_| Ok(Context::unnamed(context))) }?;
        Ok(())
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_pipeline_submit_named(
    pipeline: *mut CopyrpcPipeline,
    rank: u32,
    service: u16,
    method: u16,
    body: *const c_void,
    length: usize,
    timeout_us: u64,
    context: *mut c_void,
    call: *mut u64,
) -> i32 {
    status_of(|| {
        let (to, body) = (To { rank, service, method }, (body, length));
        let admit = |state: &PipelineState| state.name(context);
        // SAFETY: the caller lends the handle and the bytes for this call.
        let name = unsafe { submit(pipeline, to, body, timeout_us, admit) }?;
        // SAFETY: the caller owns the place.
        unsafe { place::store(call, name) };
        Ok(())
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_pipeline_cancel(
    pipeline: *mut CopyrpcPipeline,
    call: u64,
    context: *mut *mut c_void,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller lends the handle for this call.
        let mut state = unsafe { caller::handle(pipeline) }?;
        let PipelineState { pipeline, named, .. } = &mut *state;
        let id = named.calls.remove(&call);
        let given_up = id.and_then(|id| pipeline.cancel(id));
        let Some(given_up) = given_up else {
            let text = "no call of this name is in flight: it has ended, or was given up";
            return Err(Failure::refused(Status::NotFound, text));
        };
        pipeline.flush();
        // SAFETY: the caller owns the place.
        unsafe { place::store(context, given_up.address) };
        Ok(())
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_pipeline_poll(
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
        let ended = pipeline.poll(|context, answer| report(named, done, user, (context, answer)));
        // SAFETY: the caller owns the place.
        unsafe { place::store(count, ended) };
        Ok(())
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_pipeline_rest(pipeline: *mut CopyrpcPipeline) -> i32 {
    status_of(|| {
        // SAFETY: the caller lends the handle for this call.
        unsafe { caller::handle(pipeline) }?.pipeline.rest();
        Ok(())
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_pipeline_in_flight(pipeline: *const CopyrpcPipeline) -> usize {
    // SAFETY: the caller lends the handle for this call.
    let state = unsafe { caller::handle(pipeline) };
    value_of(0, || state.map_or(0, |state| state.pipeline.in_flight() + state.pipeline.held()))
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_pipeline_fd(pipeline: *const CopyrpcPipeline) -> c_int {
    // SAFETY: the caller lends the handle for this call.
    let state = unsafe { caller::handle(pipeline) };
    value_of(-1, || state.map_or(-1, |state| state.pipeline.as_fd().as_raw_fd()))
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_pipeline_arm(pipeline: *mut CopyrpcPipeline) -> c_int {
    // SAFETY: the caller lends the handle for this call.
    let state = unsafe { caller::handle(pipeline) };
    value_of(0, || state.is_ok_and(|mut state| state.pipeline.arm()).into())
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_pipeline_time_left_us(pipeline: *const CopyrpcPipeline) -> u64 {
    // SAFETY: the caller lends the handle for this call.
    let state = unsafe { caller::handle(pipeline) };
    value_of(u64::MAX, || match state.map(|state| state.pipeline.earliest_deadline_ns()) {
        Ok(u64::MAX) | Err(_) => u64::MAX,
        // Rounded up: who waits so long finds the deadline passed.
        Ok(deadline_ns) => deadline_ns.saturating_sub(clock::now_ns()).div_ceil(1000),
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_pipeline_reconnect(
    pipeline: *mut CopyrpcPipeline,
    done: Option<Done>,
    user: *mut c_void,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller lends the handle for this call.
        let mut state = unsafe { caller::handle(pipeline) }?;
        let done = done.ok_or_else(|| Failure::argument("there is no function to report to"))?;
        let PipelineState { pipeline, named, .. } = &mut *state;
        let connected =
            pipeline.reconnect(|context, answer| report(named, done, user, (context, answer)));
        connected.map_err(Failure::library)
    })
}
