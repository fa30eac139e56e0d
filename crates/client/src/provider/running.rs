//! A provider whose handlers run on threads of their own.
//!
//! To hand a request to another thread, and its answer back, costs two wakeups: more than many handlers take. So one
//! thread *leads*: it talks to the daemon, and answers what it reads. The caller's thread, the *attendant*, watches it,
//! and takes the session when a handler keeps the leader: the attendant then reads requests, and other threads answer
//! them, until their handlers are quick again.
//!
//! ```text
//!  term even: the attendant has the session ── quick handlers, a thread is idle ──▶ term odd: a thread leads
//!                        ▲                                                                │
//!                        └── a handler lasts, many do while others wait, an error, the end ┘
//! ```

use std::{
    collections::VecDeque,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, MutexGuard, PoisonError},
    thread::{self, Thread},
    time::Duration,
};

use inproc::leadership::{BegunStep, Leadership, LedStep};
use os::clock;
use proto::Status;

use crate::{
    CallError,
    provider::{
        inbound::Inbound,
        offer::ProvideError,
        os_place::OsPlace,
        process_clock::OsClock,
        request::Request,
        session::ProviderSession,
        thread_queue::{Job, ThreadQueue},
        verdict::Verdict,
    },
};

/// What it costs to hand a request to another thread and its answer back, more or less.
const HAND_ON: Duration = Duration::from_micros(20);

/// Quick handlers in a row after which a thread leads: at least, and at most.
const QUICK_MIN: u32 = 16;
const QUICK_MAX: u32 = 4096;

/// Of so many handlers that a leader runs, one is timed: to read the clock twice costs what the shortest take.
const TIMED_PERIOD: u64 = 8;

/// Timed handlers in a row that last, while other requests wait, after which a leader hands on.
const SLOW_MAX: u32 = 4;

/// Between two looks of the attendant at a leader that answers requests: a handler that begins and does not end for one
/// to two of these loses the session.
const LOOK: Duration = Duration::from_millis(1);

/// Looks at a leader that answers nothing, before the attendant sleeps until it does.
const IDLE_LOOKS_MAX: u32 = 64;

/// A connection to the daemon, and what was read of it.
struct SharedSession {
    session: ProviderSession<OsPlace>,
    /// Requests that the leader has read and not begun.
    waiting: VecDeque<Request>,
    /// Why the leader gave up.
    failed: Option<CallError>,
    /// Requests that the leader has answered.
    answered: u64,
    /// Its last timed handlers in a row that were not quick.
    slow: u32,
    /// Quick handlers in a row after which a thread leads.
    quick_min: u32,
}

impl SharedSession {
    /// Quick handlers in a row after which a thread leads again: more where the last leader did not last.
    fn quick_min(&mut self) -> u32 {
        let has_lasted = self.answered > u64::from(QUICK_MAX);
        self.quick_min = if has_lasted { QUICK_MIN } else { (self.quick_min * 2).min(QUICK_MAX) };
        self.quick_min
    }

    /// The leader reads requests; returns how much it did, or `None`: it leads no longer.
    fn read(&mut self) -> Option<usize> {
        let Self { session, waiting, failed, .. } = self;
        if failed.is_some() || session.outbox().is_stopped() {
            return None;
        }
        let read = session.take_requests(&mut |request| waiting.push_back(request));
        let count = read.and_then(|taken| Ok(taken + session.send_answers()?));
        let count = count.map_err(|error| *failed = Some(error)).ok()?;
        let keeps_up = self.slow < SLOW_MAX || waiting.len() < 2;
        keeps_up.then_some(count)
    }

    /// Whether the leader times the next handler.
    fn is_timed(&self) -> bool {
        self.answered.is_multiple_of(TIMED_PERIOD)
    }

    /// The leader answers a request.
    fn answer(&mut self, request: Request, status: Status, answer: &[u8]) {
        self.answered += 1;
        let verdict = Verdict::of_service(status, Some(request.context().caller), &OsClock);
        if let Err(error) = self.session.end_request(request.into_work(), verdict, answer) {
            self.failed = Some(error);
        }
    }
}

/// Threads that serve.
struct ServingThreads<'a, F> {
    /// Locked by whoever talks to the daemon, not while a handler runs.
    shared: Mutex<SharedSession>,
    queue: ThreadQueue,
    /// Who has the session. A step is a handler.
    leadership: Leadership,
    attendant: Thread,
    serve: &'a F,
}

/// See [`Provider::serve_on`](crate::Provider::serve_on).
pub(super) fn serve_on<F: Fn(&Inbound<'_>, &mut Vec<u8>) -> Status + Sync>(
    mut session: ProviderSession<OsPlace>,
    threads: usize,
    serve: &F,
) -> Result<(), ProvideError> {
    session.window_at_least(threads);
    session.begin_run()?;
    let shared = SharedSession {
        session,
        waiting: VecDeque::new(),
        failed: None,
        answered: 0,
        slow: 0,
        quick_min: QUICK_MIN / 2,
    };
    let serving = ServingThreads {
        shared: Mutex::new(shared),
        queue: ThreadQueue::default(),
        leadership: Leadership::default(),
        attendant: thread::current(),
        serve,
    };
    thread::scope(|scope| {
        let started = (0..threads.max(1)).try_for_each(|_| {
            let thread = thread::Builder::new().name("copyrpc-serve".to_owned());
            thread.spawn_scoped(scope, || serving.work()).map(drop)
        });
        let served = started.map_err(ProvideError::Os).and_then(|()| serving.attend());
        serving.queue.end();
        served
    })
}

impl<F: Fn(&Inbound<'_>, &mut Vec<u8>) -> Status + Sync> ServingThreads<'_, F> {
    fn lock(&self) -> MutexGuard<'_, SharedSession> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The attendant: until the provider was stopped.
    fn attend(&self) -> Result<(), ProvideError> {
        while !self.read()? {
            self.watch();
        }
        Ok(())
    }

    /// The attendant reads requests for other threads, until one of them leads. Returns whether it is over.
    fn read(&self) -> Result<bool, ProvideError> {
        let mut shared = self.lock();
        let quick_min = shared.quick_min();
        let is_first = self.leadership.term() == 0;
        shared.session.take_clients(false);
        let SharedSession { session, waiting, failed, .. } = &mut *shared;
        waiting.drain(..).for_each(|request| self.queue.push(request));
        if let Some(error) = failed.take() {
            session.recover(error, &mut || 0)?;
        }
        loop {
            let is_calm = is_first || self.queue.quick() >= quick_min;
            if is_calm && !session.outbox().is_stopped() && self.queue.lead() {
                session.take_clients(true);
                self.leadership.begin_term();
                return Ok(false);
            }
            if session.run_turn(&mut |request| self.queue.push(request), &mut || 0)? {
                return Ok(true);
            }
        }
    }

    /// The attendant watches the leader, until it has the session.
    fn watch(&self) {
        let (mut seen, mut idle_looks) = (self.leadership.look(), 0);
        loop {
            if idle_looks >= IDLE_LOOKS_MAX && self.leadership.fall_asleep(seen) {
                thread::park();
                self.leadership.awake();
            } else {
                thread::park_timeout(LOOK);
            }
            if !self.leadership.is_led() {
                return;
            }
            let progress = self.leadership.look();
            let is_still = progress == seen;
            idle_looks = if is_still { idle_looks + 1 } else { 0 };
            if is_still && progress.step().is_some_and(|step| self.depose(step)) {
                return;
            }
            seen = progress;
        }
    }

    /// Takes the session from a leader whose handler lasts; returns whether.
    fn depose(&self, step: LedStep) -> bool {
        // Locked: the handler has just ended.
        let Ok(_locked) = self.shared.try_lock() else { return false };
        let lasts = self.leadership.end_step(step);
        if lasts {
            self.end_term();
        }
        lasts
    }

    /// The attendant has the session. With the session locked.
    fn end_term(&self) {
        self.queue.count(false);
        self.leadership.end_term();
    }

    /// One of the threads: until there is nothing more to do.
    fn work(&self) {
        let mut answer = Vec::new();
        while let Some(job) = self.queue.take() {
            match job {
                Job::Lead => self.lead(&mut answer),
                Job::Serve(request) => {
                    let Some(request) = request.end_if_cancelled(&OsClock) else { continue };
                    let begin_ns = clock::now_ns();
                    let status = self.handle(&request, &mut answer);
                    self.queue.count(is_quick(begin_ns));
                    request.reply(status, mem::take(&mut answer));
                }
            }
        }
    }

    /// Talks to the daemon and answers what it reads, until handlers last, something fails or the provider is stopped.
    fn lead(&self, answer: &mut Vec<u8>) {
        let mut shared = self.lock();
        (shared.answered, shared.slow) = (0, 0);
        while let Some(count) = shared.read() {
            while let Some(request) = shared.waiting.pop_front() {
                let Some(request) = request.end_if_cancelled(&OsClock) else { continue };
                let step = self.begin_handler();
                let begin_ns = shared.is_timed().then(clock::now_ns);
                drop(shared);
                let status = self.handle(&request, answer);
                if !self.leadership.end_step(step) {
                    return request.reply(status, mem::take(answer));
                }
                shared = self.lock();
                if let Some(begin_ns) = begin_ns {
                    shared.slow =
                        if is_quick(begin_ns) { 0 } else { shared.slow.saturating_add(1) };
                }
                shared.answer(request, status, answer);
            }
            shared.session.flush();
            shared.session.rest(count > 0);
        }
        self.end_term();
        self.attendant.unpark();
    }

    /// The leader begins a handler.
    fn begin_handler(&self) -> LedStep {
        let BegunStep { step, wakes } = self.leadership.begin_step();
        if wakes {
            self.attendant.unpark();
        }
        step
    }

    /// Runs the handler; returns what it says.
    fn handle(&self, request: &Request, answer: &mut Vec<u8>) -> Status {
        let context = request.context();
        let inbound = Inbound {
            rank: context.rank,
            method: context.method,
            body: request.body(),
            context: Some(context.caller),
            cancellation: Some(context.cancellation()),
        };
        answer.clear();
        // What the handler captured is its own affair.
        let status = catch_unwind(AssertUnwindSafe(|| (self.serve)(&inbound, answer)));
        status.unwrap_or_else(|_| {
            answer.clear();
            Status::Internal
        })
    }
}

/// Whether a handler that began then took less time than to hand its request on.
fn is_quick(begin_ns: u64) -> bool {
    clock::now_ns().saturating_sub(begin_ns) < clock::duration_ns(HAND_ON)
}
