//! A libibverbs of this process, for tests: one device, whose queues complete what they are told to.
//!
//! Its state belongs to the thread, so that tests do not meet. Objects are real structures, whose fields are read
//! by the code under test.

use core::{
    cell::RefCell,
    ffi::{c_char, c_int, c_uint, c_void},
    mem::MaybeUninit,
    ptr,
};
use std::{
    collections::{HashMap, VecDeque},
    os::fd::AsRawFd as _,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use os::event::EventFd;

use crate::{
    abi::{
        Ah, AhAttr, AsyncEvent, CompChannel, Context, Cq, Device, DeviceAttr, Mr, Pd, PortAttr, Qp,
        QpAttr, QpInitAttr, RawGid, RecvWr, SendWr, Srq, SrqInitAttr, Wc, mask, port_state, send,
    },
    api::Api,
};

/// What the device is, and what has happened.
pub(crate) struct Fake {
    pub(crate) devices: c_int,
    pub(crate) port_state: c_int,
    pub(crate) gids: Vec<RawGid>,
    /// Rows of the P_Key table.
    pub(crate) pkeys: Vec<u16>,
    /// Events of the port that nobody has taken.
    pub(crate) port_events: VecDeque<c_int>,
    /// Requests that `post_send` takes before it refuses one.
    pub(crate) takes: usize,
    /// Numbers of buffers of shared receive queues.
    pub(crate) buffers: VecDeque<u64>,
    /// Objects that exist.
    pub(crate) live: i32,
    /// Completion vectors of the queues that were made.
    pub(crate) vectors: Vec<c_int>,
    /// What `ibv_is_fork_initialized` says.
    pub(crate) fork_status: c_int,
    /// What `ibv_fork_init` returns.
    pub(crate) fork_result: c_int,
    /// Calls whose order counts for a fork.
    pub(crate) calls: Vec<&'static str>,
    done: HashMap<usize, VecDeque<Wc>>,
    /// Armed queues, each with its context.
    armed: Vec<usize>,
    events: VecDeque<usize>,
    channel: Option<EventFd>,
    asynchronous: Option<EventFd>,
    states: HashMap<usize, c_int>,
}

thread_local! {
    static FAKE: RefCell<Fake> = RefCell::new(Fake {
        devices: 1,
        port_state: port_state::ACTIVE,
        gids: vec![RawGid([1; 16])],
        pkeys: vec![0xffff],
        port_events: VecDeque::new(),
        takes: usize::MAX,
        buffers: VecDeque::new(),
        live: 0,
        vectors: Vec::new(),
        fork_status: 0,
        fork_result: 0,
        calls: Vec::new(),
        done: HashMap::new(),
        armed: Vec::new(),
        events: VecDeque::new(),
        channel: None,
        asynchronous: None,
        states: HashMap::new(),
    });
}

/// Looks at the device of this thread, or changes it.
pub(crate) fn with<R>(change: impl FnOnce(&mut Fake) -> R) -> R {
    FAKE.with_borrow_mut(change)
}

/// Completes `wc` into queue `cq`, and raises the event that it is armed for.
pub(crate) fn complete(cq: *mut Cq, wc: Wc) {
    with(|fake| {
        fake.done.entry(cq.addr()).or_default().push_back(wc);
        raise(fake, cq.addr());
    });
}

fn raise(fake: &mut Fake, cq: usize) {
    if let Some(at) = fake.armed.iter().position(|armed| *armed == cq) {
        fake.armed.swap_remove(at);
        fake.events.push_back(cq);
        fake.channel.as_ref().unwrap().signal().unwrap();
    }
}

/// An object of zeros, counted.
fn make<T>() -> *mut T {
    with(|fake| fake.live += 1);
    // SAFETY: objects of the library are made of integers, pointers and optional functions.
    Box::into_raw(Box::new(unsafe { MaybeUninit::<T>::zeroed().assume_init() }))
}

extern "C" fn destroy<T>(object: *mut T) -> c_int {
    with(|fake| fake.live -= 1);
    // SAFETY: made by `make`, and destroyed once by the code under test.
    drop(unsafe { Box::from_raw(object) });
    0
}

/// Descriptor of an event, which the state keeps.
fn descriptor(event: &EventFd) -> c_int {
    use std::os::fd::AsFd as _;
    event.as_fd().as_raw_fd()
}

extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut Device {
    // SAFETY: the caller's integer.
    unsafe { *count = with(|fake| fake.devices) };
    let list = make::<[*mut Device; 4]>();
    // SAFETY: just made. Devices are numbers, which are not looked behind.
    unsafe { *list = [1, 2, 3, 4].map(ptr::without_provenance_mut) };
    list.cast()
}

extern "C" fn free_device_list(list: *mut *mut Device) {
    destroy(list.cast::<[*mut Device; 4]>());
}

extern "C" fn get_device_name(device: *mut Device) -> *const c_char {
    [c"fake0", c"fake1", c"fake2", c"fake3"][device.addr() - 1].as_ptr()
}

/// A fork is made safe once, as in the library.
extern "C" fn fork_init() -> c_int {
    with(|fake| {
        fake.calls.push("fork_init");
        if fake.fork_result == 0 {
            fake.fork_status = 1;
        }
        fake.fork_result
    })
}

extern "C" fn is_fork_initialized() -> c_int {
    with(|fake| fake.fork_status)
}

extern "C" fn open_device(_: *mut Device) -> *mut Context {
    with(|fake| fake.calls.push("open_device"));
    let context = make::<Context>();
    let event = EventFd::new().unwrap();
    // SAFETY: just made.
    let opened = unsafe { &mut *context };
    opened.async_fd = descriptor(&event);
    opened.num_comp_vectors = 3;
    opened.ops.poll_cq = Some(poll_cq);
    opened.ops.req_notify_cq = Some(req_notify_cq);
    opened.ops.post_srq_recv = Some(post_srq_recv);
    opened.ops.post_send = Some(post_send);
    opened.ops.post_recv = Some(post_recv);
    with(|fake| fake.asynchronous = Some(event));
    context
}

extern "C" fn query_device(_: *mut Context, attr: *mut DeviceAttr) -> c_int {
    // SAFETY: the caller's structure, of zeros.
    let attr = unsafe { &mut *attr };
    (attr.max_qp_wr, attr.max_sge, attr.max_sge_rd) = (64, 8, 4);
    (attr.max_cqe, attr.max_qp_rd_atom, attr.max_qp_init_rd_atom) = (255, 16, 300);
    (attr.max_srq, attr.max_srq_wr, attr.phys_port_cnt) = (1, 48, 1);
    attr.max_srq_sge = 2;
    0
}

extern "C" fn query_port(_: *mut Context, _: u8, attr: *mut PortAttr) -> c_int {
    // SAFETY: the caller's structure.
    let attr = unsafe { &mut *attr };
    let (state, pkeys) = with(|fake| (fake.port_state, fake.pkeys.len()));
    (attr.state, attr.pkey_tbl_len) = (state, u16::try_from(pkeys).unwrap());
    (attr.active_mtu, attr.link_layer, attr.gid_tbl_len) = (5, 2, 4);
    0
}

extern "C" fn query_gid(_: *mut Context, _: u8, index: c_int, gid: *mut RawGid) -> c_int {
    let row = usize::try_from(index).unwrap();
    // SAFETY: the caller's structure.
    unsafe { *gid = with(|fake| fake.gids.get(row).copied().unwrap_or_default()) };
    0
}

extern "C" fn query_pkey(_: *mut Context, _: u8, index: c_int, pkey: *mut u16) -> c_int {
    let row = usize::try_from(index).unwrap();
    // SAFETY: the caller's integer.
    unsafe { *pkey = with(|fake| fake.pkeys[row].to_be()) };
    0
}

extern "C" fn alloc_pd(_: *mut Context) -> *mut Pd {
    make::<u64>().cast()
}

extern "C" fn dealloc_pd(pd: *mut Pd) -> c_int {
    destroy(pd.cast::<u64>())
}

/// Regions of this length take as long as the test holds [`PINNING`].
pub(crate) const SLOW_BYTES: usize = 77 * 4096;

/// Held by a test while the kernel pins the pages of a region of [`SLOW_BYTES`].
pub(crate) static PINNING: Mutex<()> = Mutex::new(());

extern "C" fn reg_mr(_: *mut Pd, _: *mut c_void, len: usize, _: u64, _: c_uint) -> *mut Mr {
    with(|fake| fake.calls.push("reg_mr"));
    // A library that is called by the test's own thread would wait for ever.
    let end = Instant::now() + Duration::from_secs(10);
    while len == SLOW_BYTES && PINNING.try_lock().is_err() && Instant::now() < end {
        thread::yield_now();
    }
    make()
}

extern "C" fn create_comp_channel(_: *mut Context) -> *mut CompChannel {
    let channel = make::<CompChannel>();
    let event = EventFd::new().unwrap();
    // SAFETY: just made.
    unsafe { (*channel).fd = descriptor(&event) };
    with(|fake| fake.channel = Some(event));
    channel
}

extern "C" fn create_cq(
    _: *mut Context,
    _: c_int,
    id: *mut c_void,
    _: *mut CompChannel,
    vector: c_int,
) -> *mut Cq {
    with(|fake| fake.vectors.push(vector));
    let cq = make::<Cq>();
    // SAFETY: just made.
    unsafe { (*cq).cq_context = id };
    cq
}

extern "C" fn get_cq_event(_: *mut CompChannel, cq: *mut *mut Cq, id: *mut *mut c_void) -> c_int {
    let next = with(|fake| {
        let next = fake.events.pop_front();
        if fake.events.is_empty() {
            fake.channel.as_ref().unwrap().drain().unwrap();
        }
        next
    });
    let Some(address) = next else { return -1 };
    let raised = ptr::with_exposed_provenance_mut::<Cq>(address);
    // SAFETY: the caller's pointer.
    unsafe { *cq = raised };
    // SAFETY: a queue that was armed, and is not destroyed yet.
    let context = unsafe { (*raised).cq_context };
    // SAFETY: the caller's pointer.
    unsafe { *id = context };
    0
}

extern "C" fn ack_cq_events(_: *mut Cq, _: c_uint) {}

extern "C" fn create_srq(_: *mut Pd, _: *mut SrqInitAttr) -> *mut Srq {
    make()
}

extern "C" fn create_qp(_: *mut Pd, init: *mut QpInitAttr) -> *mut Qp {
    // SAFETY: the caller's structure.
    let init = unsafe { &*init };
    if init.cap.max_inline_data > 220 {
        return ptr::null_mut();
    }
    let qp = make::<Qp>();
    // SAFETY: just made.
    let made = unsafe { &mut *qp };
    (made.qp_num, made.send_cq, made.recv_cq) = (77, init.send_cq, init.recv_cq);
    qp
}

extern "C" fn modify_qp(qp: *mut Qp, attr: *mut QpAttr, changed: c_int) -> c_int {
    assert_ne!(changed & mask::STATE, 0);
    // SAFETY: the caller's structure.
    let state = unsafe { (*attr).qp_state };
    with(|fake| fake.states.insert(qp.addr(), state));
    0
}

extern "C" fn query_qp(qp: *mut Qp, attr: *mut QpAttr, _: c_int, _: *mut QpInitAttr) -> c_int {
    let state = with(|fake| fake.states.get(&qp.addr()).copied().unwrap_or(0));
    // SAFETY: the caller's structure.
    unsafe { (*attr).qp_state = state };
    0
}

extern "C" fn destroy_qp(qp: *mut Qp) -> c_int {
    with(|fake| fake.states.remove(&qp.addr()));
    destroy(qp)
}

extern "C" fn create_ah(_: *mut Pd, _: *mut AhAttr) -> *mut Ah {
    make::<u64>().cast()
}

extern "C" fn destroy_ah(ah: *mut Ah) -> c_int {
    destroy(ah.cast::<u64>())
}

extern "C" fn get_async_event(_: *mut Context, event: *mut AsyncEvent) -> c_int {
    let Some(event_type) = with(|fake| fake.port_events.pop_front()) else { return -1 };
    // SAFETY: the caller's structure.
    unsafe { *event = AsyncEvent { element: ptr::null_mut(), event_type } };
    0
}

extern "C" fn ack_async_event(_: *mut AsyncEvent) {}

extern "C" fn poll_cq(cq: *mut Cq, count: c_int, to: *mut Wc) -> c_int {
    let next = || with(|fake| fake.done.get_mut(&cq.addr()).and_then(VecDeque::pop_front));
    for at in 0..count {
        let Some(wc) = next() else { return at };
        // SAFETY: the caller has `count` places.
        unsafe { *to.wrapping_add(usize::try_from(at).unwrap()) = wc };
    }
    count
}

extern "C" fn req_notify_cq(cq: *mut Cq, _: c_int) -> c_int {
    with(|fake| fake.armed.push(cq.expose_provenance()));
    0
}

/// Signaled requests complete at once.
extern "C" fn post_send(qp: *mut Qp, mut list: *mut SendWr, bad: *mut *mut SendWr) -> c_int {
    // SAFETY: the queue pair lives.
    let &Qp { send_cq: cq, qp_num, .. } = unsafe { &*qp };
    while !list.is_null() {
        if with(|fake| fake.takes == 0) {
            // SAFETY: the caller's pointer.
            unsafe { *bad = list };
            return 12;
        }
        with(|fake| fake.takes -= 1);
        // SAFETY: a request of the caller's list.
        let wr = unsafe { *list };
        if wr.send_flags & send::SIGNALED != 0 {
            complete(cq, Wc { wr_id: wr.wr_id, qp_num, ..Wc::default() });
        }
        list = wr.next;
    }
    0
}

extern "C" fn post_recv(_: *mut Qp, _: *mut RecvWr, _: *mut *mut RecvWr) -> c_int {
    0
}

extern "C" fn post_srq_recv(_: *mut Srq, mut list: *mut RecvWr, _: *mut *mut RecvWr) -> c_int {
    while !list.is_null() {
        // SAFETY: a request of the caller's list.
        let wr = unsafe { *list };
        with(|fake| fake.buffers.push_back(wr.wr_id));
        list = wr.next;
    }
    0
}

/// The library.
pub(crate) const API: Api = Api {
    ibv_get_device_list: get_device_list,
    ibv_free_device_list: free_device_list,
    ibv_get_device_name: get_device_name,
    ibv_open_device: open_device,
    ibv_close_device: destroy::<Context>,
    ibv_query_device: query_device,
    ibv_query_port: query_port,
    ibv_query_gid: query_gid,
    ibv_query_pkey: query_pkey,
    ibv_alloc_pd: alloc_pd,
    ibv_dealloc_pd: dealloc_pd,
    ibv_reg_mr_iova2: reg_mr,
    ibv_dereg_mr: destroy::<Mr>,
    ibv_create_comp_channel: create_comp_channel,
    ibv_destroy_comp_channel: destroy::<CompChannel>,
    ibv_create_cq: create_cq,
    ibv_destroy_cq: destroy::<Cq>,
    ibv_get_cq_event: get_cq_event,
    ibv_ack_cq_events: ack_cq_events,
    ibv_create_srq: create_srq,
    ibv_destroy_srq: destroy::<Srq>,
    ibv_create_qp: create_qp,
    ibv_modify_qp: modify_qp,
    ibv_query_qp: query_qp,
    ibv_destroy_qp: destroy_qp,
    ibv_create_ah: create_ah,
    ibv_destroy_ah: destroy_ah,
    ibv_get_async_event: get_async_event,
    ibv_ack_async_event: ack_async_event,
    ibv_is_fork_initialized: Some(is_fork_initialized),
    ibv_fork_init: Some(fork_init),
};
