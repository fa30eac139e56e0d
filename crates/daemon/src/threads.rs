//! The threads of a daemon, and the requests that they have for each other.
//!
//! ```text
//!  clients ─▶ thread 0 ─▶ NIC ─▶ ranks 0, 2, 4 …     a thread owns clients and peers:
//!               │  ▲                                  rank r belongs to thread r mod n
//!       request │  │ reply      (Flux)
//!               ▼  │
//!  clients ─▶ thread 1 ─▶ NIC ─▶ ranks 1, 3, 5 …
//! ```
//!
//! A call whose client is with one thread and whose peer is with another travels as a [`ThreadRequest`],
//! and so does a request for a service that another thread offers. The [`ThreadReply`] comes back
//! once, whatever happens. A daemon of one thread has no mesh: it asks nobody, and pays a
//! comparison per call for that.
//!
//! # Bounds
//!
//! One thread has at most [`LANE_CALLS`] requests at another. A destination (a rank, or a service)
//! gets at most as many of them as are left for all others, so one that does not answer keeps at most
//! half of them, and never the last. What is not admitted waits in order where it came from, with
//! the bounds of what waits for a ring or a provider.

use std::collections::BTreeMap;

use ids::slots::Key;
use inproc::{
    Token,
    flux::{self, Event},
    spsc::FastForward,
};
use memory::sync::{Arc, AtomicBool, AtomicU16, AtomicUsize, Ordering};
use os::event::{EventError, EventFd as Wakeup};
use rpc::Status;

pub(super) use crate::thread_messages::{
    AskedBy, ThreadCall, ThreadEvent, ThreadNotice, ThreadReply, ThreadRequest,
};
use crate::{process_regions::ProcessRegions, request_head::Outgoing};

/// Requests that one thread has at another at a time.
pub const LANE_CALLS: u32 = 1024;

/// Requests taken from one thread before the next has its turn.
const BUDGET: u32 = 32;

/// Buffers kept for bodies: as many as requests that one thread has at another, so that those of a full lane are kept, too.
const SPARE_MAX: usize = LANE_CALLS as usize;
/// The longest buffer that is kept.
const SPARE_BYTES_MAX: usize = 16 << 10;
/// The shortest buffer that is made: one that fits most bodies is not made again for each length.
const SPARE_BYTES_MIN: usize = 256;

/// State that all threads share.
pub(super) struct Threads {
    /// By thread: wakes it. Empty if no thread sleeps.
    wakeups: Vec<Wakeup>,
    threads: usize,
    /// By service: one more than the number of the thread that offers it, and whether processes of others
    /// may, too; 0: none does.
    offers: Box<[AtomicU16]>,
    /// Whether the daemon ends.
    is_ending: AtomicBool,
    /// Threads that have nothing of their own in flight any more, and take nothing new.
    drained: AtomicUsize,
    /// What processes have registered with any thread.
    regions: Arc<ProcessRegions>,
}

impl Threads {
    fn new(threads: usize, wakeups: Vec<Wakeup>) -> Self {
        Self {
            wakeups,
            threads,
            offers: (0..=u16::MAX).map(|_| AtomicU16::new(0)).collect(),
            is_ending: AtomicBool::new(false),
            drained: AtomicUsize::new(0),
            regions: Arc::default(),
        }
    }

    /// Says that the daemon ends, to all threads.
    pub(super) fn end(&self) {
        // Nothing else is told by it.
        if !self.is_ending.swap(true, Ordering::Relaxed) {
            self.wake_all();
        }
    }

    pub(super) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    /// One more thread takes nothing new and has nothing of its own in flight: what it still does, it
    /// does for others.
    pub(super) fn drain(&self) {
        self.drained.fetch_add(1, Ordering::Relaxed);
        self.wake_all();
    }

    /// Whether no thread has anything in flight. What a thread does for another one is in flight
    /// there, so it is enough that each said once that it has nothing of its own.
    pub(super) fn is_drained(&self) -> bool {
        self.drained.load(Ordering::Relaxed) == self.threads
    }

    fn wake_all(&self) {
        for wakeup in &self.wakeups {
            signal(wakeup);
        }
    }
}

fn signal(wakeup: &Wakeup) {
    // It fails only if the descriptor is no event.
    let _ = wakeup.signal();
}

/// The services of other threads. A hint: only the other thread knows whether it still offers one.
pub(super) struct Offers {
    shared: Arc<Threads>,
    own: u16,
}

/// Beside the number of a thread: processes of other threads may offer the service, too.
const SHARED: u16 = 1 << 8;

impl Offers {
    /// Claims a service for this thread; `false` if another offers it. Relaxed, because the number
    /// is all that is told.
    pub(super) fn claim(&self, service: u16) -> bool {
        let word = &self.shared.offers[usize::from(service)];
        word.compare_exchange(0, self.own, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Claims a service that threads may share, unless one does already; `false` if one does not share it.
    pub(super) fn claim_shared(&self, service: u16) -> bool {
        let word = &self.shared.offers[usize::from(service)];
        let claimed =
            word.compare_exchange(0, self.own | SHARED, Ordering::Relaxed, Ordering::Relaxed);
        claimed.is_ok() || word.load(Ordering::Relaxed) & SHARED != 0
    }

    /// This thread offers it no more. If another one shares it, that tells so again.
    pub(super) fn release(&self, service: u16) {
        let word = &self.shared.offers[usize::from(service)];
        if word.load(Ordering::Relaxed) & !SHARED == self.own {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// The other thread that offers a service.
    pub(super) fn elsewhere(&self, service: u16) -> Option<usize> {
        let number = self.shared.offers[usize::from(service)].load(Ordering::Relaxed);
        let number = number & !SHARED;
        (number != 0 && number != self.own).then(|| usize::from(number) - 1)
    }
}

type Node = flux::Node<ThreadRequest, ThreadReply, ThreadCall, FastForward>;

/// The handle of one thread of a daemon on the others.
pub struct ThreadHandle {
    mesh: Option<Box<Mesh>>,
}

/// This thread's endpoint in the mesh.
struct Mesh {
    node: Node,
    shared: Arc<Threads>,
    number: usize,
    threads: u32,
    lane_calls: u32,
    /// By thread: requests of this thread that it has not answered.
    at_thread: Vec<u32>,
    /// The same by destination: a rank, or a service.
    destinations: Destinations,
    /// Requests of other threads that this thread has not answered.
    inbound: usize,
    /// Buffers of requests that ended.
    spare: Vec<Vec<u8>>,
}

/// Requests of this thread that are not answered, by destination.
#[derive(Default)]
struct Destinations {
    /// Calls, by rank.
    calls: Vec<u32>,
    /// Requests, by service; those for reports by 0. A count of 0 stays: there are no more than services of this node.
    works: BTreeMap<u16, u32>,
}

impl Destinations {
    fn count(&self, purpose: ThreadCall) -> u32 {
        let count = match purpose {
            ThreadCall::Peer { rank, .. } => self.calls.get(rank as usize),
            ThreadCall::Provider { service, .. } => self.works.get(&service),
        };
        count.copied().unwrap_or(0)
    }

    fn add(&mut self, purpose: ThreadCall) {
        match purpose {
            ThreadCall::Peer { rank, .. } => {
                let rank = rank as usize;
                if self.calls.len() <= rank {
                    self.calls.resize(rank + 1, 0);
                }
                self.calls[rank] += 1;
            }
            ThreadCall::Provider { service, .. } => *self.works.entry(service).or_default() += 1,
        }
    }

    fn remove(&mut self, purpose: ThreadCall) {
        match purpose {
            ThreadCall::Peer { rank, .. } => self.calls[rank as usize] -= 1,
            ThreadCall::Provider { service, .. } => {
                if let Some(count) = self.works.get_mut(&service) {
                    *count -= 1;
                }
            }
        }
    }
}

impl Default for ThreadHandle {
    fn default() -> Self {
        Self::alone()
    }
}

impl ThreadHandle {
    /// The handle of a daemon of one thread.
    #[must_use]
    pub fn alone() -> Self {
        Self { mesh: None }
    }

    /// The handles of a daemon of `threads` threads, each of which has at most `lane_calls` requests at
    /// each other: normally [`LANE_CALLS`].
    ///
    /// # Errors
    ///
    /// [`EventError`].
    ///
    /// # Panics
    ///
    /// If there are no threads or more than 255, or `lane_calls` is 0.
    pub fn mesh(threads: u8, lane_calls: u32) -> Result<Vec<Self>, EventError> {
        let wakeups = if threads == 1 { 0 } else { threads };
        let wakeups = (0..wakeups).map(|_| Wakeup::new()).collect::<Result<_, _>>()?;
        Ok(Self::mesh_of(threads, lane_calls, wakeups))
    }

    /// The same for threads that poll and never sleep: no kernel object is made.
    ///
    /// # Panics
    ///
    /// As [`mesh`](Self::mesh) does.
    #[must_use]
    pub fn polled_mesh(threads: u8, lane_calls: u32) -> Vec<Self> {
        Self::mesh_of(threads, lane_calls, Vec::new())
    }

    fn mesh_of(threads: u8, lane_calls: u32, wakeups: Vec<Wakeup>) -> Vec<Self> {
        assert!(threads > 0, "a daemon has a thread");
        let count = usize::from(threads);
        if count == 1 {
            return vec![Self::alone()];
        }
        let shared = Arc::new(Threads::new(count, wakeups));
        let config = flux::Config {
            nodes: count,
            calls_max: lane_calls,
            // Each request can be deferred.
            tokens_max: lane_calls.saturating_mul(u32::from(threads) - 1),
            budget_items: BUDGET,
            announce: flux::Announce::OnRequest,
            ..flux::Config::default()
        };
        let nodes = flux::mesh_with_alarms(config, |number| {
            let shared = Arc::clone(&shared);
            Box::new(move || {
                if let Some(wakeup) = shared.wakeups.get(number) {
                    signal(wakeup);
                }
            })
        });
        let thread_handle = |(number, node)| Self {
            mesh: Some(Box::new(Mesh {
                node,
                shared: Arc::clone(&shared),
                number,
                threads: threads.into(),
                lane_calls,
                at_thread: vec![0; count],
                destinations: Destinations::default(),
                inbound: 0,
                spare: Vec::new(),
            })),
        };
        nodes.into_iter().enumerate().map(thread_handle).collect()
    }

    #[inline]
    pub(super) fn is_alone(&self) -> bool {
        self.mesh.is_none()
    }

    /// The state that all threads share; `None` if there is one.
    pub(super) fn shared(&self) -> Option<&Arc<Threads>> {
        self.mesh.as_ref().map(|mesh| &mesh.shared)
    }

    /// What processes have registered with any thread.
    pub(super) fn process_regions(&self) -> Arc<ProcessRegions> {
        self.shared().map_or_else(Arc::default, |shared| Arc::clone(&shared.regions))
    }

    pub(super) fn offers(&self) -> Option<Offers> {
        let mesh = self.mesh.as_ref()?;
        let own = u16::try_from(mesh.number + 1).unwrap_or(SHARED - 1);
        Some(Offers { shared: Arc::clone(&mesh.shared), own })
    }

    /// Number of this thread.
    pub(super) fn number(&self) -> u32 {
        self.mesh.as_ref().map_or(0, |mesh| u32::try_from(mesh.number).unwrap_or(u32::MAX))
    }

    /// How many threads the daemon has.
    pub(super) fn threads(&self) -> u32 {
        self.mesh.as_ref().map_or(1, |mesh| mesh.threads)
    }

    /// Requests that this thread may have at each other.
    pub(super) fn lane_calls(&self) -> u32 {
        self.mesh.as_ref().map_or(u32::MAX, |mesh| mesh.lane_calls)
    }

    /// The other threads.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (number, threads) =
            self.mesh.as_ref().map_or((0, 1), |mesh| (mesh.number, mesh.threads as usize));
        (0..threads).filter(move |thread| *thread != number)
    }

    /// Tells another thread something; `false`: it has no room now.
    pub(super) fn notify(&mut self, to: usize, notice: ThreadNotice) -> bool {
        let Some(mesh) = &mut self.mesh else { return true };
        match mesh.node.notify(to, ThreadRequest::Notice(notice)) {
            Ok(()) | Err(flux::CallError::Gone(..) | flux::CallError::NoSuchNode { .. }) => true,
            Err(flux::CallError::Busy(..)) => false,
        }
    }

    /// The other thread that owns the connection to a rank; `None` if this one does.
    #[inline]
    pub(super) fn owner(&self, rank: u32) -> Option<usize> {
        let mesh = self.mesh.as_ref()?;
        let owner = (rank % mesh.threads) as usize;
        (owner != mesh.number).then_some(owner)
    }

    /// Requests of other threads that this thread has not answered.
    #[inline]
    pub(super) fn inbound(&self) -> usize {
        self.mesh.as_ref().map_or(0, |mesh| mesh.inbound)
    }

    /// Asks another thread to call a rank. [`Status::ResourceExhausted`]: it has no room now.
    pub(super) fn request_call(
        &mut self,
        to: usize,
        key: Key,
        call: &Outgoing,
        payload: &[u8],
    ) -> Result<(), Status> {
        let mesh = self.mesh.as_mut().ok_or(Status::Internal)?;
        let purpose = ThreadCall::Peer { key, rank: call.head.rank };
        if !mesh.admits(to, purpose) {
            return Err(Status::ResourceExhausted);
        }
        let mut body = mesh.copied(payload).ok_or(Status::ResourceExhausted)?;
        let sent = self.request_call_with(to, key, call, &mut body);
        if sent.is_err() {
            self.keep(body);
        }
        sent
    }

    /// As [`request_call`](Self::request_call), with a body that is taken if the other thread is asked.
    pub(super) fn request_call_with(
        &mut self,
        to: usize,
        key: Key,
        call: &Outgoing,
        body: &mut Vec<u8>,
    ) -> Result<(), Status> {
        let purpose = ThreadCall::Peer { key, rank: call.head.rank };
        let request = ThreadRequest::Call { call: *call, body: core::mem::take(body) };
        self.request(to, purpose, request).map_err(|(request, status)| {
            if let ThreadRequest::Call { body: unsent, .. } = request {
                *body = unsent;
            }
            status
        })
    }

    /// Asks another thread for something. [`Status::ResourceExhausted`]: it has no room now.
    pub(super) fn request(
        &mut self,
        to: usize,
        purpose: ThreadCall,
        request: ThreadRequest,
    ) -> Result<(), (ThreadRequest, Status)> {
        match &mut self.mesh {
            Some(mesh) if !mesh.admits(to, purpose) => Err((request, Status::ResourceExhausted)),
            Some(mesh) => mesh.send(to, request, purpose),
            None => Err((request, Status::Internal)),
        }
    }

    /// The next thing that another thread says.
    #[inline]
    pub(super) fn poll(&mut self) -> Option<ThreadEvent> {
        self.mesh.as_mut()?.poll()
    }

    /// Answers a request of another thread.
    pub(super) fn answer(&mut self, token: Token, status: Status, body: &[u8]) {
        let Some(mesh) = &mut self.mesh else { return };
        match mesh.copied(body) {
            Some(body) => self.answer_with(token, status, body),
            // It was executed, so it is not for want of room that it was not.
            None => self.answer_with(token, Status::Unavailable, Vec::new()),
        }
    }

    /// As [`answer`](Self::answer), without a copy.
    pub(super) fn answer_with(&mut self, token: Token, status: Status, body: Vec<u8>) {
        let Some(mesh) = &mut self.mesh else { return };
        mesh.inbound -= 1;
        let answered = mesh.node.reply(token, ThreadReply { status, body });
        debug_assert!(answered.is_ok(), "tokens are answered where they were made");
    }

    /// A copy of a body for another thread, unless there is no memory for it.
    pub(super) fn copied(&mut self, body: &[u8]) -> Option<Vec<u8>> {
        self.mesh.as_mut()?.copied(body)
    }

    /// Keeps the buffer of a body that was used.
    pub(super) fn keep(&mut self, body: Vec<u8>) {
        if let Some(mesh) = &mut self.mesh {
            mesh.keep(body);
        }
    }

    /// At the end of each phase of a turn: leads the other threads to all that they were told in it.
    #[inline]
    pub(super) fn announce(&mut self) {
        if let Some(mesh) = &mut self.mesh {
            mesh.node.announce();
        }
    }

    /// Before a sleep: `true` if no thread has said anything, so that the wakeup will ring.
    pub(super) fn arm(&mut self) -> bool {
        self.mesh.as_mut().is_none_or(|mesh| mesh.node.arm())
    }

    /// After [`arm`](Self::arm).
    pub(super) fn disarm(&mut self) {
        if let Some(mesh) = &mut self.mesh {
            mesh.node.disarm();
            // As `signal`.
            let _ = mesh.wakeup().map(Wakeup::drain);
        }
    }

    /// Readable when another thread has said something to one that armed.
    pub(super) fn wakeup(&self) -> Option<&Wakeup> {
        self.mesh.as_ref()?.wakeup()
    }
}

impl Mesh {
    fn wakeup(&self) -> Option<&Wakeup> {
        self.shared.wakeups.get(self.number)
    }

    /// Whether the destination has its share of the other thread. The first request is admitted
    /// whenever anything is left.
    fn admits(&self, to: usize, purpose: ThreadCall) -> bool {
        self.destinations.count(purpose) < self.lane_calls - self.at_thread[to]
    }

    fn send(
        &mut self,
        to: usize,
        request: ThreadRequest,
        purpose: ThreadCall,
    ) -> Result<(), (ThreadRequest, Status)> {
        match self.node.call(to, request, purpose) {
            Ok(()) => {
                self.at_thread[to] += 1;
                self.destinations.add(purpose);
                Ok(())
            }
            Err(refused) => {
                let status = match &refused {
                    flux::CallError::Busy(..) => Status::ResourceExhausted,
                    flux::CallError::Gone(..) | flux::CallError::NoSuchNode { .. } => {
                        Status::Unavailable
                    }
                };
                Err((refused.into_parts().0, status))
            }
        }
    }

    fn poll(&mut self) -> Option<ThreadEvent> {
        loop {
            return match self.node.poll()? {
                Event::Request { request, reply, .. } => match reply.defer() {
                    Ok(token) => {
                        self.inbound += 1;
                        Some(ThreadEvent::Request(request, token))
                    }
                    // There are as many tokens as requests can be.
                    Err(reply) => {
                        reply.send(ThreadReply {
                            status: Status::ResourceExhausted,
                            body: Vec::new(),
                        });
                        continue;
                    }
                },
                Event::Notice { notice: ThreadRequest::Notice(notice), .. } => {
                    Some(ThreadEvent::Notice(notice))
                }
                Event::Notice { .. } => continue,
                Event::Reply { from, user: purpose, result } => {
                    self.at_thread[from] -= 1;
                    self.destinations.remove(purpose);
                    // A thread that is gone cannot tell how it went.
                    let gone = ThreadReply { status: Status::Unavailable, body: Vec::new() };
                    let ThreadReply { status, body } = result.unwrap_or(gone);
                    Some(ThreadEvent::Reply { to: purpose, status, body })
                }
            };
        }
    }

    /// A copy in a buffer that was used before, unless there is no memory for it.
    fn copied(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut body = self.spare.pop().unwrap_or_default();
        if body.capacity() < bytes.len() {
            body.try_reserve_exact(bytes.len().max(SPARE_BYTES_MIN)).ok()?;
        }
        body.extend_from_slice(bytes);
        Some(body)
    }

    fn keep(&mut self, mut body: Vec<u8>) {
        if self.spare.len() < SPARE_MAX && body.capacity() <= SPARE_BYTES_MAX {
            body.clear();
            self.spare.push(body);
        }
    }
}
