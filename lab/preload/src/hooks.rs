//! The data path of libibverbs: who posts or polls does the NIC's work on the same thread, and need not wait for
//! the NIC's own.

use std::{
    ffi::{c_int, c_void},
    sync::OnceLock,
};

type PostSend = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut *mut c_void) -> c_int;
type PollCq = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> c_int;
type OpenDevice = unsafe extern "C" fn(*mut c_void) -> *mut c_void;

/// Offsets in `struct ibv_context`: its operations, and two of them there. Source: rdma-core `libibverbs/verbs.h`.
const OPS: usize = 8;
const POLL_CQ: usize = OPS + 88;
const POST_SEND: usize = OPS + 200;

static REAL_POST_SEND: OnceLock<PostSend> = OnceLock::new();
static REAL_POLL_CQ: OnceLock<PollCq> = OnceLock::new();

/// # Safety
///
/// As for `ibv_open_device(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut c_void) -> *mut c_void {
    // SAFETY: constant names.
    let Some(real) = (unsafe { real_open() }) else { return core::ptr::null_mut() };
    // SAFETY: by contract.
    let context = unsafe { real(device) };
    if !context.is_null() {
        // SAFETY: libibverbs has just made it, and nobody else knows it yet.
        unsafe { hook(context.cast()) };
    }
    context
}

/// # Safety
///
/// libibverbs is loaded.
unsafe fn real_open() -> Option<OpenDevice> {
    let (library, flags) = (c"libibverbs.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
    // SAFETY: constant names; the library is loaded already.
    let library = unsafe { libc::dlopen(library, flags) };
    let (name, version) = (c"ibv_open_device".as_ptr(), c"IBVERBS_1.1".as_ptr());
    // SAFETY: constant names.
    let found = unsafe { libc::dlvsym(library, name, version) };
    // SAFETY: the function has this type, and a null pointer is none.
    unsafe { core::mem::transmute::<*mut c_void, Option<OpenDevice>>(found) }
}

/// # Safety
///
/// `context` is a `struct ibv_context` that no other thread uses.
unsafe fn hook(context: *mut u8) {
    // SAFETY: a field of the structure.
    let post_send = unsafe { context.add(POST_SEND) }.cast::<Option<PostSend>>();
    // SAFETY: as above.
    let poll_cq = unsafe { context.add(POLL_CQ) }.cast::<Option<PollCq>>();
    // SAFETY: as above; a null pointer is none.
    let post = unsafe { post_send.read() };
    // SAFETY: as above.
    let poll = unsafe { poll_cq.read() };
    let (Some(post), Some(poll)) = (post, poll) else { return };
    REAL_POST_SEND.get_or_init(|| post);
    REAL_POLL_CQ.get_or_init(|| poll);
    // SAFETY: as above.
    unsafe { post_send.write(Some(hooked_post_send)) };
    // SAFETY: as above.
    unsafe { poll_cq.write(Some(hooked_poll_cq)) };
}

unsafe extern "C" fn hooked_post_send(
    qp: *mut c_void,
    requests: *mut c_void,
    bad: *mut *mut c_void,
) -> c_int {
    let Some(real) = REAL_POST_SEND.get() else { return libc::EIO };
    // SAFETY: the program's own arguments.
    let result = unsafe { real(qp, requests, bad) };
    uverbs::process::send_posted();
    result
}

unsafe extern "C" fn hooked_poll_cq(cq: *mut c_void, count: c_int, into: *mut c_void) -> c_int {
    let Some(real) = REAL_POLL_CQ.get() else { return -1 };
    // SAFETY: the program's own arguments.
    let found = unsafe { real(cq, count, into) };
    if found != 0 {
        return found;
    }
    if uverbs::process::poll_engine() {
        // SAFETY: as above.
        return unsafe { real(cq, count, into) };
    }
    found
}
