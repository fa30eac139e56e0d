//! A worker: what one thread sends and receives by.

use core::{
    cell::{Cell, RefCell},
    ffi::{c_int, c_void},
    ptr::{self, NonNull},
    slice,
};
use std::{
    collections::BTreeMap,
    os::fd::BorrowedFd,
    rc::Rc,
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use crate::ucp::{
    abi::{
        AM_HANDLER_FIELDS, AM_SEND_REPLY, AmHandlerParam, BUSY, CLOSE_FORCE, ERR_MODE_NONE,
        ERR_MODE_PEER, EndpointParams, OK, OP_FIELDS, RawStatus, RawWorker, RequestCallback,
        RequestParam, Started, THREAD_MODE_SINGLE, WORKER_FIELD_THREAD_MODE, WorkerParams,
        endpoint_field,
    },
    address::UcxAddress,
    api::Api,
    context::{UcxContext, non_null},
    endpoints::{Endpoints, UcxEndpoint},
    error::{SendError, UcxError, UcxStatus, check},
    mailbox::{Arrived, Data, HEADER_BYTES, Mailbox, on_failure, on_message, on_received, on_sent},
};

/// The one active message that workers send each other.
const MESSAGE_ID: u32 = 0;
/// How long a worker sleeps that UCX does not wake.
const NAP: Duration = Duration::from_micros(50);
/// Buffers that are kept for later.
const SPARE_MAX: usize = 1024;

/// A message, or the loss of a peer: [`UcxWorker::poll`] hands them out.
#[derive(Debug)]
pub enum Event<'a> {
    /// A message, whole.
    Message {
        /// The eight bytes beside the body, if the sender gave some.
        header: Option<u64>,
        /// The endpoint to answer by, if the sender asked for it and this worker has connected to the sender.
        from: Option<UcxEndpoint>,
        /// Its bytes.
        body: &'a [u8],
    },
    /// An endpoint failed: nothing is sent by it any more.
    Closed {
        /// The endpoint.
        endpoint: UcxEndpoint,
        /// UCX's reason.
        reason: UcxStatus,
    },
}

/// Totals of a worker since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UcxCounts {
    /// Sends that were complete when the call returned.
    pub sent_at_once: u64,
    /// Sends that took longer.
    pub sent_later: u64,
    /// Sends that failed after they had begun.
    pub sends_failed: u64,
    /// Messages that UCX kept, and that were read where they lay.
    pub kept: u64,
    /// Messages that were announced, and fetched by rendezvous.
    pub fetched: u64,
    /// Messages that were too long, or whose rendezvous failed.
    pub lost: u64,
}

/// A request that is not complete, and the bytes that UCX reads or writes until it is.
#[derive(Debug)]
enum Operation {
    Send(Vec<u8>),
    Receive { header: Option<u64>, from: Option<UcxEndpoint>, body: Vec<u8> },
    Close,
}

/// A worker of a context. It belongs to its thread.
#[derive(Debug)]
pub struct UcxWorker {
    context: UcxContext,
    raw: NonNull<RawWorker>,
    /// UCX has its address until the worker is destroyed.
    mailbox: Rc<Mailbox>,
    /// Becomes readable after `ucp_worker_arm`; owned by UCX.
    event_fd: Option<c_int>,
    endpoints: RefCell<Endpoints>,
    /// By request. Fields are dropped after UCX has destroyed the worker.
    operations: RefCell<BTreeMap<*mut c_void, Operation>>,
    sends: Cell<usize>,
    spare: RefCell<Vec<Vec<u8>>>,
    counts: Cell<UcxCounts>,
}

impl UcxWorker {
    /// A worker for the calling thread.
    ///
    /// # Errors
    ///
    /// [`UcxError::Call`].
    pub fn open(context: &UcxContext) -> Result<Self, UcxError> {
        let api = context.0.api;
        let config = &context.0.config;
        let params =
            WorkerParams { field_mask: WORKER_FIELD_THREAD_MODE, thread_mode: THREAD_MODE_SINGLE };
        const WHAT: &str = "create a worker";
        let mut raw = ptr::null_mut();
        let parent = context.0.raw.as_ptr();
        // SAFETY: the parameters are valid up to the last field of their mask, and not kept.
        let status = unsafe { (api.ucp_worker_create)(parent, &raw const params, &raw mut raw) };
        check(WHAT, status)?;
        let mut worker = Self {
            raw: non_null(WHAT, raw)?,
            context: context.clone(),
            mailbox: Rc::default(),
            event_fd: None,
            endpoints: RefCell::default(),
            operations: RefCell::default(),
            sends: Cell::default(),
            spare: RefCell::default(),
            counts: Cell::default(),
        };
        worker.listen()?;
        if config.wakeup {
            let mut fd = -1;
            // SAFETY: the number is written during the call.
            let status = unsafe { (api.ucp_worker_get_efd)(worker.raw.as_ptr(), &raw mut fd) };
            check("make an event descriptor (feature WAKEUP)", status)?;
            worker.event_fd = Some(fd);
        }
        Ok(worker)
    }

    fn api(&self) -> &Api {
        &self.context.0.api
    }

    fn mailbox_arg(&self) -> *mut c_void {
        Rc::as_ptr(&self.mailbox).cast_mut().cast()
    }

    fn listen(&self) -> Result<(), UcxError> {
        let param = AmHandlerParam {
            field_mask: AM_HANDLER_FIELDS,
            id: MESSAGE_ID,
            flags: 0,
            callback: Some(on_message),
            arg: self.mailbox_arg(),
        };
        // SAFETY: the mailbox outlives the worker, and the callback is of the type that the field has.
        let status = unsafe {
            (self.api().ucp_worker_set_am_recv_handler)(self.raw.as_ptr(), &raw const param)
        };
        check("listen for active messages", status)
    }

    /// Where other workers reach this one.
    ///
    /// # Errors
    ///
    /// [`UcxError::Call`].
    pub fn address(&self) -> Result<UcxAddress, UcxError> {
        let mut raw = ptr::null_mut();
        let mut len = 0;
        // SAFETY: both are written during the call.
        let status = unsafe {
            (self.api().ucp_worker_get_address)(self.raw.as_ptr(), &raw mut raw, &raw mut len)
        };
        const WHAT: &str = "tell a worker's address";
        check(WHAT, status)?;
        let raw = non_null(WHAT, raw)?;
        // SAFETY: so many bytes are there until they are released.
        let address =
            UcxAddress::new(unsafe { slice::from_raw_parts(raw.as_ptr().cast::<u8>(), len) });
        // SAFETY: it is of this worker, and was copied.
        unsafe { (self.api().ucp_worker_release_address)(self.raw.as_ptr(), raw.as_ptr()) };
        Ok(address)
    }

    /// An endpoint to the worker at `address`. UCX connects it when something is sent.
    ///
    /// # Errors
    ///
    /// [`UcxError::Call`].
    pub fn connect(&self, address: &UcxAddress) -> Result<UcxEndpoint, UcxError> {
        let peer_failures = self.context.0.config.peer_failures;
        let params = EndpointParams {
            field_mask: endpoint_field::REMOTE_ADDRESS
                | endpoint_field::ERR_HANDLING_MODE
                | endpoint_field::ERR_HANDLER,
            address: address.bytes().as_ptr().cast(),
            err_mode: if peer_failures { ERR_MODE_PEER } else { ERR_MODE_NONE },
            err_callback: Some(on_failure),
            err_arg: self.mailbox_arg(),
        };
        let mut raw = ptr::null_mut();
        // SAFETY: the address was made by a worker of this version of UCX, and is not kept; the mailbox outlives
        // the worker and its endpoints.
        let status = unsafe {
            (self.api().ucp_ep_create)(self.raw.as_ptr(), &raw const params, &raw mut raw)
        };
        const WHAT: &str = "create an endpoint";
        check(WHAT, status)?;
        Ok(self.endpoints.borrow_mut().add(non_null(WHAT, raw)?))
    }

    /// Sends a message, copied.
    ///
    /// # Errors
    ///
    /// [`SendError`]: it was not sent.
    pub fn send(&self, to: UcxEndpoint, header: Option<u64>, body: &[u8]) -> Result<(), SendError> {
        self.send_with(0, to, header, body)
    }

    /// As [`Self::send`], and tells the receiver which endpoint to answer by.
    ///
    /// # Errors
    ///
    /// [`SendError`]: it was not sent.
    pub fn ask(&self, to: UcxEndpoint, header: Option<u64>, body: &[u8]) -> Result<(), SendError> {
        self.send_with(AM_SEND_REPLY, to, header, body)
    }

    fn send_with(
        &self,
        flags: u32,
        to: UcxEndpoint,
        header: Option<u64>,
        body: &[u8],
    ) -> Result<(), SendError> {
        let config = &self.context.0.config;
        let len_bytes = body.len();
        let max_bytes = config.message_bytes_max;
        if len_bytes > max_bytes {
            return Err(SendError::TooLarge { len_bytes, max_bytes });
        }
        let endpoint = self.endpoints.borrow().handle(to).ok_or(SendError::Closed)?;
        if self.sends.get() >= config.sends_max {
            return Err(SendError::Full);
        }
        let mut bytes = self.buffer();
        if let Some(header) = header {
            bytes.extend_from_slice(&header.to_ne_bytes());
        }
        bytes.extend_from_slice(body);
        let (head, body) = bytes.split_at(bytes.len() - len_bytes);
        let param = self.request(flags, RequestCallback { send: on_sent });
        // SAFETY: the endpoint is open, and `bytes` stay where they are until the request is complete or the
        // worker is destroyed.
        let started = unsafe {
            (self.api().ucp_am_send_nbx)(
                endpoint.as_ptr(),
                MESSAGE_ID,
                head.as_ptr().cast(),
                head.len(),
                body.as_ptr().cast(),
                body.len(),
                &raw const param,
            )
        };
        match Started::read(started) {
            Started::Complete => {
                self.count(|counts| counts.sent_at_once += 1);
                self.recycle(bytes);
            }
            Started::Pending(request) => {
                self.count(|counts| counts.sent_later += 1);
                self.sends.set(self.sends.get() + 1);
                self.operations.borrow_mut().insert(request, Operation::Send(bytes));
            }
            Started::Failed(status) => {
                self.recycle(bytes);
                return Err(SendError::Failed(UcxStatus(status)));
            }
        }
        Ok(())
    }

    fn request(&self, flags: u32, callback: RequestCallback) -> RequestParam {
        RequestParam {
            op_attr_mask: OP_FIELDS,
            flags,
            request: ptr::null_mut(),
            callback,
            datatype: 0,
            user_data: self.mailbox_arg(),
        }
    }

    /// Lets UCX make progress, hands its events to `sink`, and returns their number.
    pub fn poll(&self, sink: &mut impl FnMut(Event<'_>)) -> usize {
        // SAFETY: the worker is of this thread, and no callback of it is running.
        unsafe { (self.api().ucp_worker_progress)(self.raw.as_ptr()) };
        let mut events = 0;
        let mut counting = |event: Event<'_>| {
            events += 1;
            sink(event);
        };
        self.end_operations(&mut counting);
        self.deliver(&mut counting);
        self.close_failed(&mut counting);
        events
    }

    /// Requests that are complete give their bytes back.
    fn end_operations(&self, sink: &mut impl FnMut(Event<'_>)) {
        let mut ended = self.mailbox.ended.take();
        for (request, status) in ended.drain(..) {
            let operation = self.operations.borrow_mut().remove(&request);
            // SAFETY: a request of this worker that is complete, which its callback said once.
            unsafe { (self.api().ucp_request_free)(request) };
            match operation {
                Some(Operation::Send(bytes)) => {
                    self.sends.set(self.sends.get() - 1);
                    self.count(|counts| counts.sends_failed += u64::from(status != OK));
                    self.recycle(bytes);
                }
                Some(Operation::Receive { header, from, body }) => {
                    self.fetched(status, header, from, body, sink);
                }
                Some(Operation::Close) | None => {}
            }
        }
        put_back(&self.mailbox.ended, ended);
    }

    fn fetched(
        &self,
        status: RawStatus,
        header: Option<u64>,
        from: Option<UcxEndpoint>,
        body: Vec<u8>,
        sink: &mut impl FnMut(Event<'_>),
    ) {
        if status == OK {
            self.count(|counts| counts.fetched += 1);
            sink(Event::Message { header, from, body: &body });
        } else {
            self.count(|counts| counts.lost += 1);
        }
        self.recycle(body);
    }

    /// Messages that have arrived.
    fn deliver(&self, sink: &mut impl FnMut(Event<'_>)) {
        let mut arrived = self.mailbox.arrived.take();
        let mut bytes = self.mailbox.bytes.take();
        for Arrived { header, from, data } in arrived.drain(..) {
            let from = self.endpoints.borrow().find(from);
            match data {
                Data::Copied(range) => sink(Event::Message { header, from, body: &bytes[range] }),
                Data::Kept(data, len) => {
                    self.count(|counts| counts.kept += 1);
                    let kept = Kept { worker: self, data, len };
                    sink(Event::Message { header, from, body: kept.bytes() });
                }
                Data::Announced(data, len) => self.fetch(data, len, header, from, sink),
            }
        }
        put_back(&self.mailbox.arrived, arrived);
        bytes.clear();
        put_back(&self.mailbox.bytes, bytes);
    }

    /// Starts the rendezvous of a large message.
    fn fetch(
        &self,
        descriptor: *mut c_void,
        len: usize,
        header: Option<u64>,
        from: Option<UcxEndpoint>,
        sink: &mut impl FnMut(Event<'_>),
    ) {
        if len > self.context.0.config.message_bytes_max {
            self.count(|counts| counts.lost += 1);
            return self.release(descriptor);
        }
        let mut body = self.buffer();
        body.resize(len, 0);
        let param = self.request(0, RequestCallback { recv: on_received });
        let worker = self.raw.as_ptr();
        let buffer = body.as_mut_ptr().cast();
        // SAFETY: the descriptor was kept by `on_message` and is used once; `body` stays where it is until the
        // request is complete or the worker is destroyed.
        let started = unsafe {
            (self.api().ucp_am_recv_data_nbx)(worker, descriptor, buffer, len, &raw const param)
        };
        match Started::read(started) {
            Started::Complete => self.fetched(OK, header, from, body, sink),
            Started::Pending(request) => {
                let operation = Operation::Receive { header, from, body };
                self.operations.borrow_mut().insert(request, operation);
            }
            Started::Failed(status) => self.fetched(status, header, from, body, sink),
        }
    }

    fn release(&self, data: *mut c_void) {
        // SAFETY: a descriptor that `on_message` kept, which is not used any more.
        unsafe { (self.api().ucp_am_data_release)(self.raw.as_ptr(), data) };
    }

    /// Endpoints that UCX gave up are closed and reported.
    fn close_failed(&self, sink: &mut impl FnMut(Event<'_>)) {
        for (address, status) in self.mailbox.failed.take() {
            let found = self.endpoints.borrow().find(address);
            if let Some(endpoint) = found {
                self.close(endpoint);
                sink(Event::Closed { endpoint, reason: UcxStatus(status) });
            }
        }
    }

    /// Closes an endpoint: its sends are cancelled if UCX handles failures of peers.
    fn close(&self, endpoint: UcxEndpoint) {
        let Some(handle) = self.endpoints.borrow_mut().remove(endpoint) else { return };
        let flags = if self.context.0.config.peer_failures { CLOSE_FORCE } else { 0 };
        let param = self.request(flags, RequestCallback { send: on_sent });
        // SAFETY: the handle was open, and is not used any more.
        let started = unsafe { (self.api().ucp_ep_close_nbx)(handle.as_ptr(), &raw const param) };
        if let Started::Pending(request) = Started::read(started) {
            self.operations.borrow_mut().insert(request, Operation::Close);
        }
    }

    /// Sleeps until [`Self::poll`] may find something, or for `timeout`.
    ///
    /// # Errors
    ///
    /// [`UcxError::Wait`], and [`UcxError::Call`] if UCX cannot be asked to wake this thread.
    pub fn wait(&self, timeout: Duration) -> Result<(), UcxError> {
        let Some(fd) = self.event_fd else {
            thread::sleep(timeout.min(NAP));
            return Ok(());
        };
        // SAFETY: the worker is of this thread.
        let status = unsafe { (self.api().ucp_worker_arm)(self.raw.as_ptr()) };
        if status == BUSY {
            return Ok(()); // something is there already
        }
        check("arm a worker", status)?;
        // SAFETY: it is open for as long as the worker.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(UcxError::Wait(errno.into())),
        }
    }

    /// Its counters so far.
    #[must_use]
    pub fn counts(&self) -> UcxCounts {
        let counts = self.counts.get();
        UcxCounts { lost: counts.lost + self.mailbox.malformed.get(), ..counts }
    }

    fn count(&self, change: impl FnOnce(&mut UcxCounts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    /// An empty buffer.
    fn buffer(&self) -> Vec<u8> {
        self.spare.borrow_mut().pop().unwrap_or_default()
    }

    fn recycle(&self, mut bytes: Vec<u8>) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARE_MAX {
            bytes.clear();
            spare.push(bytes);
        }
    }

    /// Makes progress until no request is left, or for `patience`.
    fn drain(&self, patience: Duration) {
        let begin = Instant::now();
        while !self.operations.borrow().is_empty() && begin.elapsed() < patience {
            self.poll(&mut |_| {});
            thread::yield_now();
        }
    }
}

impl Drop for UcxWorker {
    /// Sends that have begun may end, then endpoints close; each for the time that is configured.
    fn drop(&mut self) {
        let patience = self.context.0.config.close_timeout;
        self.drain(patience);
        loop {
            let open = self.endpoints.borrow().any();
            let Some(endpoint) = open else { break };
            self.close(endpoint);
        }
        self.drain(patience);
        for &request in self.operations.borrow().keys() {
            // SAFETY: of this worker, and not freed yet; UCX takes those that are not complete, too.
            unsafe { (self.api().ucp_request_free)(request) };
        }
        // SAFETY: it was created once. Memory of requests that are left is dropped with the fields, after this.
        unsafe { (self.api().ucp_worker_destroy)(self.raw.as_ptr()) };
    }
}

/// Bytes of a message that UCX keeps until this is dropped.
struct Kept<'a> {
    worker: &'a UcxWorker,
    data: *mut c_void,
    len: usize,
}

impl Kept<'_> {
    fn bytes(&self) -> &[u8] {
        // SAFETY: UCX keeps so many bytes until they are released, and does not change them.
        unsafe { slice::from_raw_parts(self.data.cast::<u8>(), self.len) }
    }
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        self.worker.release(self.data);
    }
}

/// Keeps the memory of a queue that was looked through, unless there is a new one.
fn put_back<T>(queue: &Cell<Vec<T>>, looked_through: Vec<T>) {
    let new = queue.take();
    queue.set(if new.is_empty() { looked_through } else { new });
}

const _: () = assert!(HEADER_BYTES == size_of::<u64>());
