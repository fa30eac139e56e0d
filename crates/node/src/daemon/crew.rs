//! The threads of a daemon, and what travels between them.
//!
//! ```text
//!  clients ─▶ thread 0 ─▶ NIC ─▶ ranks 0, 2, 4 …     a thread owns clients and peers:
//!               │  ▲                                  rank r belongs to thread r mod n
//!        errand │  │ outcome    (Flux)
//!               ▼  │
//!  clients ─▶ thread 1 ─▶ NIC ─▶ ranks 1, 3, 5 …
//! ```
//!
//! A call whose client is with one thread and whose peer is with another travels as an [`Errand`],
//! and so does a request for a service that another thread offers. The outcome comes back as the
//! reply, once, whatever happens. A daemon of one thread has no mesh: it asks nobody, and pays a
//! comparison per call for that.
//!
//! # Bounds
//!
//! One thread has at most [`LANE_CALLS`] errands at another. A destination (a rank, or a service)
//! gets at most as many of them as are left for all others, so one that does not answer keeps at most
//! half of them, and never the last. What is not admitted waits in order where it came from, with
//! the bounds of what waits for a ring or a provider.

use std::collections::{HashMap, hash_map::Entry};

use inproc::{
    Token,
    flux::{self, Event},
    spsc::FastForward,
};
use memory::sync::{Arc, AtomicBool, AtomicU8, AtomicUsize, Ordering};
use os::event::{Event as Alarm, EventError};
use rpc::Status;

use crate::daemon::office::Outgoing;

/// Errands that one thread has at another at a time.
pub const LANE_CALLS: u32 = 1024;

/// Errands taken from one thread before the next has its turn.
const BUDGET: u32 = 32;

/// Buffers kept for bodies, and the longest that is kept.
const SPARE_MAX: usize = 256;
const SPARE_BYTES_MAX: usize = 16 << 10;

/// What one thread asks of another.
pub(super) enum Errand {
    /// Call a node whose connection the other thread owns.
    Call { rank: u32, call: Outgoing, body: Vec<u8> },
    /// Answer a request for a service that the other thread offers.
    Serve { service: u16, rank: u32, method: u16, deadline_ns: u64, body: Vec<u8> },
}

/// How it went.
pub(super) struct Outcome {
    status: Status,
    body: Vec<u8>,
}

/// What an errand was for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asked {
    /// A pending call, to a rank.
    Call(u64, u32),
    /// The work for a service.
    Work(u64, u16),
}

/// What a thread hears from another.
pub(super) enum Heard {
    /// It is to be answered with [`Seat::answer`].
    Errand(Errand, Token),
    /// An errand ended.
    Outcome { asked: Asked, status: Status, body: Vec<u8> },
}

/// What all threads share.
pub(super) struct Crew {
    /// By thread: wakes it.
    alarms: Vec<Alarm>,
    /// By service: one more than the number of the thread that offers it; 0: none does.
    offers: Box<[AtomicU8]>,
    /// Whether the daemon ends.
    is_ending: AtomicBool,
    /// Threads that have nothing of their own in flight any more, and take nothing new.
    drained: AtomicUsize,
}

impl Crew {
    fn new(threads: usize) -> Result<Self, EventError> {
        Ok(Self {
            alarms: (0..threads).map(|_| Alarm::new()).collect::<Result<_, _>>()?,
            offers: (0..=u16::MAX).map(|_| AtomicU8::new(0)).collect(),
            is_ending: AtomicBool::new(false),
            drained: AtomicUsize::new(0),
        })
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
        self.drained.load(Ordering::Relaxed) == self.alarms.len()
    }

    fn wake_all(&self) {
        for alarm in &self.alarms {
            ring(alarm);
        }
    }
}

fn ring(alarm: &Alarm) {
    // It fails only if the descriptor is no event.
    let _ = alarm.signal();
}

/// Which services other threads offer. A hint: the other thread knows whether it still does.
pub(super) struct Offers {
    crew: Arc<Crew>,
    own: u8,
}

impl Offers {
    /// Claims a service for this thread; `false` if another offers it. Relaxed, because the number
    /// is all that is told.
    pub(super) fn claim(&self, service: u16) -> bool {
        let word = &self.crew.offers[usize::from(service)];
        word.compare_exchange(0, self.own, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// This thread offers it no more.
    pub(super) fn release(&self, service: u16) {
        self.crew.offers[usize::from(service)].store(0, Ordering::Relaxed);
    }

    /// The other thread that offers a service.
    pub(super) fn elsewhere(&self, service: u16) -> Option<usize> {
        let number = self.crew.offers[usize::from(service)].load(Ordering::Relaxed);
        (number != 0 && number != self.own).then(|| usize::from(number) - 1)
    }
}

type Node = flux::Node<Errand, Outcome, Asked, FastForward>;

/// A thread's place among the threads of its daemon.
pub struct Seat {
    mesh: Option<Box<Mesh>>,
}

/// What a thread has of the others.
struct Mesh {
    node: Node,
    crew: Arc<Crew>,
    number: usize,
    threads: u32,
    lane_calls: u32,
    /// By thread: errands that it has of this one.
    at_thread: Vec<u32>,
    /// The same by destination.
    destinations: Destinations,
    /// Errands of others that this thread has.
    guests: usize,
    /// Buffers of errands that ended.
    spare: Vec<Vec<u8>>,
}

/// How many errands of this thread are on their way, by what they are for.
#[derive(Default)]
struct Destinations {
    /// Calls, by rank.
    calls: Vec<u32>,
    /// Requests, by service; none is 0.
    works: HashMap<u16, u32>,
}

impl Destinations {
    fn count(&self, asked: Asked) -> u32 {
        let count = match asked {
            Asked::Call(_, rank) => self.calls.get(rank as usize),
            Asked::Work(_, service) => self.works.get(&service),
        };
        count.copied().unwrap_or(0)
    }

    fn add(&mut self, asked: Asked) {
        match asked {
            Asked::Call(_, rank) => {
                let rank = rank as usize;
                if self.calls.len() <= rank {
                    self.calls.resize(rank + 1, 0);
                }
                self.calls[rank] += 1;
            }
            Asked::Work(_, service) => *self.works.entry(service).or_default() += 1,
        }
    }

    fn remove(&mut self, asked: Asked) {
        match asked {
            Asked::Call(_, rank) => self.calls[rank as usize] -= 1,
            Asked::Work(_, service) => {
                if let Entry::Occupied(mut count) = self.works.entry(service) {
                    *count.get_mut() -= 1;
                    if *count.get() == 0 {
                        count.remove();
                    }
                }
            }
        }
    }
}

impl Default for Seat {
    fn default() -> Self {
        Self::alone()
    }
}

impl Seat {
    /// That of a daemon of one thread.
    #[must_use]
    pub fn alone() -> Self {
        Self { mesh: None }
    }

    /// Those of a daemon of `threads` threads, each of which has at most `lane_calls` errands at
    /// each other: normally [`LANE_CALLS`].
    ///
    /// # Errors
    ///
    /// [`EventError`].
    ///
    /// # Panics
    ///
    /// If there are no threads or more than 255, or `lane_calls` is 0.
    pub fn crew(threads: u8, lane_calls: u32) -> Result<Vec<Self>, EventError> {
        assert!(threads > 0, "a daemon has a thread");
        let count = usize::from(threads);
        if count == 1 {
            return Ok(vec![Self::alone()]);
        }
        let crew = Arc::new(Crew::new(count)?);
        let config = flux::Config {
            nodes: count,
            calls_max: lane_calls,
            // Each errand can be deferred.
            tokens_max: lane_calls.saturating_mul(u32::from(threads) - 1),
            budget_items: BUDGET,
            ..flux::Config::default()
        };
        let nodes = flux::mesh_with_alarms(config, |number| {
            let crew = Arc::clone(&crew);
            Box::new(move || ring(&crew.alarms[number]))
        });
        let seat = |(number, node)| Self {
            mesh: Some(Box::new(Mesh {
                node,
                crew: Arc::clone(&crew),
                number,
                threads: threads.into(),
                lane_calls,
                at_thread: vec![0; count],
                destinations: Destinations::default(),
                guests: 0,
                spare: Vec::new(),
            })),
        };
        Ok(nodes.into_iter().enumerate().map(seat).collect())
    }

    #[inline]
    pub(super) fn is_alone(&self) -> bool {
        self.mesh.is_none()
    }

    /// What all threads share; `None` if there is one.
    pub(super) fn shared(&self) -> Option<&Arc<Crew>> {
        self.mesh.as_ref().map(|mesh| &mesh.crew)
    }

    pub(super) fn offers(&self) -> Option<Offers> {
        let mesh = self.mesh.as_ref()?;
        let own = u8::try_from(mesh.number + 1).unwrap_or(u8::MAX);
        Some(Offers { crew: Arc::clone(&mesh.crew), own })
    }

    /// The other thread that owns the connection to a rank; `None` if this one does.
    #[inline]
    pub(super) fn owner(&self, rank: u32) -> Option<usize> {
        let mesh = self.mesh.as_ref()?;
        let owner = (rank % mesh.threads) as usize;
        (owner != mesh.number).then_some(owner)
    }

    /// Errands that others wait for.
    #[inline]
    pub(super) fn guests(&self) -> usize {
        self.mesh.as_ref().map_or(0, |mesh| mesh.guests)
    }

    /// Asks another thread to call a rank. [`Status::ResourceExhausted`]: it has no room now.
    pub(super) fn ask_call(
        &mut self,
        to: usize,
        (name, rank): (u64, u32),
        call: Outgoing,
        payload: &[u8],
    ) -> Result<(), Status> {
        let mesh = self.mesh.as_mut().ok_or(Status::Internal)?;
        let asked = Asked::Call(name, rank);
        if !mesh.admits(to, asked) {
            return Err(Status::ResourceExhausted);
        }
        let body = mesh.copied(payload).ok_or(Status::ResourceExhausted)?;
        let asked = mesh.ask(to, Errand::Call { rank, call, body }, asked);
        asked.map_err(|(errand, status)| {
            let (Errand::Call { body, .. } | Errand::Serve { body, .. }) = errand;
            mesh.keep(body);
            status
        })
    }

    /// Asks another thread to serve. [`Status::ResourceExhausted`]: it has no room now.
    pub(super) fn ask_serve(
        &mut self,
        to: usize,
        asked: Asked,
        errand: Errand,
    ) -> Result<(), (Errand, Status)> {
        match &mut self.mesh {
            Some(mesh) if !mesh.admits(to, asked) => Err((errand, Status::ResourceExhausted)),
            Some(mesh) => mesh.ask(to, errand, asked),
            None => Err((errand, Status::Internal)),
        }
    }

    /// The next thing that another thread says.
    #[inline]
    pub(super) fn hear(&mut self) -> Option<Heard> {
        self.mesh.as_mut()?.hear()
    }

    /// Answers an errand of another thread.
    pub(super) fn answer(&mut self, token: Token, status: Status, body: &[u8]) {
        let Some(mesh) = &mut self.mesh else { return };
        mesh.guests -= 1;
        let outcome = match mesh.copied(body) {
            Some(body) => Outcome { status, body },
            // It was executed, so it is not for want of room that it was not.
            None => Outcome { status: Status::Unavailable, body: Vec::new() },
        };
        let answered = mesh.node.reply(token, outcome);
        debug_assert!(answered.is_ok(), "tokens are answered where they were made");
    }

    /// Keeps the buffer of a body that was used.
    pub(super) fn keep(&mut self, body: Vec<u8>) {
        if let Some(mesh) = &mut self.mesh {
            mesh.keep(body);
        }
    }

    /// Before a sleep: `true` if no thread has said anything, so that the alarm will ring.
    pub(super) fn arm(&mut self) -> bool {
        self.mesh.as_mut().is_none_or(|mesh| mesh.node.arm())
    }

    /// After [`arm`](Self::arm).
    pub(super) fn disarm(&mut self) {
        if let Some(mesh) = &mut self.mesh {
            mesh.node.disarm();
            // As `ring`.
            let _ = mesh.alarm().drain();
        }
    }

    /// Readable when another thread has said something to one that armed.
    pub(super) fn alarm(&self) -> Option<&Alarm> {
        self.mesh.as_ref().map(|mesh| mesh.alarm())
    }
}

impl Mesh {
    fn alarm(&self) -> &Alarm {
        &self.crew.alarms[self.number]
    }

    /// Whether the destination has its share of the other thread. The first errand is admitted
    /// whenever anything is left.
    fn admits(&self, to: usize, asked: Asked) -> bool {
        self.destinations.count(asked) < self.lane_calls - self.at_thread[to]
    }

    fn ask(&mut self, to: usize, errand: Errand, asked: Asked) -> Result<(), (Errand, Status)> {
        match self.node.call(to, errand, asked) {
            Ok(()) => {
                self.at_thread[to] += 1;
                self.destinations.add(asked);
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

    fn hear(&mut self) -> Option<Heard> {
        loop {
            return match self.node.poll()? {
                Event::Request { request, reply, .. } => match reply.defer() {
                    Ok(token) => {
                        self.guests += 1;
                        Some(Heard::Errand(request, token))
                    }
                    // There are as many tokens as errands can be.
                    Err(reply) => {
                        reply.send(Outcome { status: Status::ResourceExhausted, body: Vec::new() });
                        continue;
                    }
                },
                Event::Notice { .. } => continue,
                Event::Reply { from, user: asked, result } => {
                    self.at_thread[from] -= 1;
                    self.destinations.remove(asked);
                    // A thread that is gone cannot tell how it went.
                    let gone = Outcome { status: Status::Unavailable, body: Vec::new() };
                    let Outcome { status, body } = result.unwrap_or(gone);
                    Some(Heard::Outcome { asked, status, body })
                }
            };
        }
    }

    /// A copy in a buffer that was used before, unless there is no memory for it.
    fn copied(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut body = self.spare.pop().unwrap_or_default();
        body.try_reserve_exact(bytes.len()).ok()?;
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
