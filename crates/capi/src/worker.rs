//! `copyrpc_worker_*`: calls over a NIC of one's own, without a daemon.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    ffi::{c_char, c_int, c_void},
    hint, ptr,
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use client::Status;
use nics::{Opener, Selection, Visitor};
use os::clock::now_ns;
use rpc::{Call, Config, Invitation, PeerId, Token, Worker};

use crate::{
    arrivals::{Arrived, Engine},
    caller, place,
    report::{Failure, status_of},
};

/// Deadline of calls that have none.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Polls that find nothing before the thread sleeps.
const SPINS: u32 = 2000;

/// Longest sleep without a look around.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// As in `copyrpc.h`.
const EVENT_NONE: i32 = 0;
const EVENT_REQUEST: i32 = 1;
const EVENT_ENDED: i32 = 2;
const EVENT_CANCELLED: i32 = 3;
const EVENT_CLOSED: i32 = 4;

/// A worker, and what its C program knows by numbers.
pub struct CopyrpcWorker {
    owner: ThreadId,
    // Before the worker that they are of.
    requests: BTreeMap<u64, Token>,
    engine: Box<dyn Engine>,
    peers: BTreeMap<u64, PeerId>,
    numbers: HashMap<PeerId, u64>,
    /// The latest number of a peer or a request.
    number: u64,
    /// What the latest poll found and the program was not told. The next poll waits until this is empty, so
    /// there are as many as one poll finds.
    arrived: VecDeque<Arrived>,
    /// Body of the latest event.
    body: Vec<u8>,
    invitation: Option<Invitation>,
}

/// `copyrpc_event`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CopyrpcEvent {
    kind: i32,
    status: i32,
    answered: c_int,
    method: u16,
    peer: u64,
    request: u64,
    timeout_us: u64,
    context: *mut c_void,
    body: *const c_void,
    length: usize,
}

impl CopyrpcEvent {
    const NONE: Self = Self {
        kind: EVENT_NONE,
        status: 0,
        answered: 0,
        method: 0,
        peer: 0,
        request: 0,
        timeout_us: 0,
        context: ptr::null_mut(),
        body: ptr::null(),
        length: 0,
    };
}

/// Opens a worker on whatever NIC was selected.
struct Open;

impl Visitor for Open {
    type Output = Result<Box<dyn Engine>, Failure>;

    fn visit<O: Opener>(self, opener: O) -> Self::Output {
        let nic = opener.open().map_err(Failure::library)?;
        let worker = Worker::open(nic, Config::default(), now_ns()).map_err(Failure::library)?;
        Ok(Box::new(worker))
    }
}

impl CopyrpcWorker {
    fn number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    fn peer(&self, peer: u64) -> Result<PeerId, Failure> {
        let known = self.peers.get(&peer).copied();
        known.ok_or_else(|| Failure::argument("there is no such peer"))
    }

    /// Waits for something to tell.
    fn wait(&mut self, timeout: Duration) -> Result<Option<Arrived>, Failure> {
        let (begin, mut spins) = (Instant::now(), 0);
        loop {
            if let Some(arrived) = self.arrived.pop_front() {
                return Ok(Some(arrived));
            }
            self.engine.poll(now_ns(), &mut self.arrived);
            let left = timeout.saturating_sub(begin.elapsed());
            if !self.arrived.is_empty() {
                continue;
            }
            if left.is_zero() {
                return Ok(None);
            }
            if spins < SPINS {
                spins += 1;
                hint::spin_loop();
            } else {
                self.engine.sleep(left.min(SLEEP_MAX))?;
            }
        }
    }

    /// What the program is told of something.
    fn event(&mut self, arrived: Arrived) -> CopyrpcEvent {
        let none = CopyrpcEvent::NONE;
        let known = |peers: &HashMap<PeerId, u64>, peer| peers.get(&peer).copied().unwrap_or(0);
        let (event, body) = match arrived {
            Arrived::Request { token, method, timeout_us, body } => {
                let (request, peer) = (self.number(), known(&self.numbers, token.peer()));
                self.requests.insert(request, token);
                let (kind, timeout_us) = (EVENT_REQUEST, timeout_us.into());
                (CopyrpcEvent { kind, peer, request, method, timeout_us, ..none }, body)
            }
            Arrived::Ended { cookie, status, is_answered, body } => {
                // An address of this process, as it was given.
                let context = usize::try_from(cookie).unwrap_or_default();
                let context = ptr::with_exposed_provenance_mut(context);
                let (status, answered) = (status.code().into(), is_answered.into());
                (CopyrpcEvent { kind: EVENT_ENDED, status, answered, context, ..none }, body)
            }
            Arrived::Cancelled { peer, request } => {
                let is_it = |token: &Token| token.peer() == peer && token.request() == request;
                let named = self.requests.iter().find(|(_, token)| is_it(token));
                let request = named.map_or(0, |(number, _)| *number);
                let (kind, peer) = (EVENT_CANCELLED, known(&self.numbers, peer));
                (CopyrpcEvent { kind, peer, request, ..none }, Vec::new())
            }
            Arrived::Closed { peer, status, why } => {
                let number = self.numbers.remove(&peer).unwrap_or(0);
                self.peers.remove(&number);
                let (kind, status) = (EVENT_CLOSED, status.code().into());
                (CopyrpcEvent { kind, peer: number, status, ..none }, why.into_bytes())
            }
        };
        self.body = body;
        CopyrpcEvent { body: self.body.as_ptr().cast(), length: self.body.len(), ..event }
    }
}

/// A worker of this thread.
///
/// # Safety
///
/// As of [`caller::exclusive`].
unsafe fn own<'a>(worker: *mut CopyrpcWorker) -> Result<&'a mut CopyrpcWorker, Failure> {
    // SAFETY: whoever opened it wrote its thread before any other could have the handle; that never changes.
    let owner = unsafe { caller::shared(worker) }.map(|worker| worker.owner);
    if owner.is_some_and(|owner| owner != thread::current().id()) {
        return Err(Failure::argument("a worker belongs to the thread that opened it"));
    }
    // SAFETY: the caller lends the handle for `'a`, and no other thread gets here.
    unsafe { caller::exclusive(worker) }
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_worker_open(
    nic: *const c_char,
    worker: *mut *mut CopyrpcWorker,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller owns the text, and lends it for this call.
        let selection = match unsafe { caller::text(nic) }? {
            Some(name) => Selection::from_lookup(name, |variable| std::env::var(variable).ok()),
            None => Selection::from_env(),
        };
        let made = CopyrpcWorker {
            owner: thread::current().id(),
            requests: BTreeMap::new(),
            engine: selection.with(Open).map_err(Failure::library)??,
            peers: BTreeMap::new(),
            numbers: HashMap::new(),
            number: 0,
            arrived: VecDeque::new(),
            body: Vec::new(),
            invitation: None,
        };
        // SAFETY: the caller owns the place.
        unsafe { caller::give(worker, made) }
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_worker_free(worker: *mut CopyrpcWorker) -> i32 {
    status_of(|| {
        if worker.is_null() {
            return Ok(());
        }
        // SAFETY: the caller lends the handle for this call.
        unsafe { own(worker) }?;
        // SAFETY: the caller gives the handle back.
        unsafe { caller::free(worker) };
        Ok(())
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_worker_invite(
    worker: *mut CopyrpcWorker,
    peer: *mut u64,
    invitation: *mut *const c_void,
    length: *mut usize,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller lends the handle for this call.
        let worker = unsafe { own(worker) }?;
        let (id, invites) = worker.engine.invite()?;
        let number = worker.number();
        worker.peers.insert(number, id);
        worker.numbers.insert(id, number);
        let bytes = worker.invitation.insert(invites).as_bytes();
        // SAFETY: the caller owns the place; what is stored belongs to the handle.
        unsafe { place::store(invitation, bytes.as_ptr().cast()) };
        // SAFETY: the caller owns the place.
        unsafe { place::store(length, bytes.len()) };
        // SAFETY: the caller owns the place.
        unsafe { place::store(peer, number) };
        Ok(())
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_worker_connect(
    worker: *mut CopyrpcWorker,
    peer: u64,
    invitation: *const c_void,
    length: usize,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller lends the handle for this call.
        let worker = unsafe { own(worker) }?;
        // SAFETY: the caller owns the bytes, and lends them for this call.
        let theirs = unsafe { caller::bytes(invitation, length) }?;
        let theirs = Invitation::from_bytes(theirs)
            .map_err(|error| Failure::refused(Status::InvalidArgument, error))?;
        let peer = worker.peer(peer)?;
        worker.engine.connect(peer, &theirs)
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_worker_close(worker: *mut CopyrpcWorker, peer: u64) -> i32 {
    status_of(|| {
        // SAFETY: the caller lends the handle for this call.
        let worker = unsafe { own(worker) }?;
        let peer = worker.peer(peer)?;
        worker.engine.close(peer);
        Ok(())
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_worker_call(
    worker: *mut CopyrpcWorker,
    peer: u64,
    method: u16,
    body: *const c_void,
    length: usize,
    timeout_us: u64,
    context: *mut c_void,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller lends the handle for this call.
        let worker = unsafe { own(worker) }?;
        // SAFETY: the caller owns the bytes, and lends them for this call.
        let body = unsafe { caller::bytes(body, length) }?;
        let peer = worker.peer(peer)?;
        let timeout = crate::client::timeout_of(timeout_us, TIMEOUT);
        let cookie = context.expose_provenance() as u64;
        let call = Call { method, timeout, cookie, ..Call::default() };
        worker.engine.call(peer, &call, body)
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_worker_next(
    worker: *mut CopyrpcWorker,
    timeout_us: u64,
    event: *mut CopyrpcEvent,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller lends the handle for this call.
        let worker = unsafe { own(worker) }?;
        if event.is_null() {
            return Err(Failure::argument("there is no place for the event"));
        }
        let arrived = worker.wait(Duration::from_micros(timeout_us))?;
        let told = arrived.map_or(CopyrpcEvent::NONE, |arrived| worker.event(arrived));
        // SAFETY: the caller owns the place; what the event points at belongs to the handle.
        unsafe { place::store(event, told) };
        Ok(())
    })
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_worker_reply(
    worker: *mut CopyrpcWorker,
    request: u64,
    status: i32,
    body: *const c_void,
    length: usize,
) -> i32 {
    status_of(|| {
        // SAFETY: the caller lends the handle for this call.
        let worker = unsafe { own(worker) }?;
        let status = u8::try_from(status).ok().and_then(Status::from_code);
        let status = status.ok_or_else(|| Failure::argument("there is no such status"))?;
        // SAFETY: the caller owns the bytes, and lends them for this call.
        let body = unsafe { caller::bytes(body, length) }?;
        let token = worker.requests.remove(&request);
        let token = token.ok_or_else(|| Failure::argument("there is no such request"))?;
        worker.engine.reply(token, status, body)
    })
}
