//! Calls as futures of tokio: from any task, on any of its threads.

use std::{
    collections::VecDeque,
    io,
    path::Path,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use memory::sync::{Arc, AtomicBool, Ordering};
use os::{
    clock,
    event::{EventError, EventFd},
    idle::{Idle, IdleStep, Wait},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::{CallError, ClientConfig, ConnectError, Pipeline, Status, SubmitError, To};

/// Calls that were made and have not ended, of all tasks; those who make more wait themselves.
const CALLS_MAX: usize = 4096;

/// Longest sleep without a look around.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum TokioError {
    /// There is no daemon.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Nothing wakes its thread.
    #[error(transparent)]
    Event(#[from] EventError),
    /// The kernel gives no thread.
    #[error("cannot start the thread that talks to the daemon: {0}")]
    Thread(#[source] io::Error),
}

/// A process's connection to its daemon, whose calls are futures. Clones share it.
///
/// A thread of its own talks to the daemon, and ends after the last clone; so this works on every runtime, and
/// nobody has to turn one on.
///
/// ```no_run
/// # use copyrpc_client::{ClientConfig, To, tokio::TokioClient};
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let socket = "/run/user/1000/copyrpc/job.sock".as_ref();
/// let client = TokioClient::connect(socket, ClientConfig::default())?;
/// let answer = client.call(To { rank: 3, service: 17, method: 1 }, b"hello").await?;
/// # let _ = answer; Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct TokioClient {
    handle: Arc<Handle>,
    timeout: Duration,
}

/// Closes with the last clone.
#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    places: Arc<Semaphore>,
}

/// What tasks tell the thread.
#[derive(Debug)]
struct Shared {
    made: Mutex<VecDeque<Call>>,
    /// The thread sleeps, or is about to.
    is_asleep: AtomicBool,
    is_closed: AtomicBool,
    /// Readable while something was said to a thread that sleeps.
    event: EventFd,
}

#[derive(Debug)]
struct Call {
    to: To,
    body: Vec<u8>,
    deadline: Instant,
    tell: Teller,
}

/// Whoever waits for the answer, and the place that the call takes.
#[derive(Debug)]
struct Teller {
    tell: oneshot::Sender<Result<Vec<u8>, CallError>>,
    _place: OwnedSemaphorePermit,
}

impl TokioClient {
    /// Connects to the daemon whose socket is at `path`. Blocks as long as that takes.
    ///
    /// # Errors
    ///
    /// [`TokioError`].
    pub fn connect(path: &Path, config: ClientConfig) -> Result<Self, TokioError> {
        let pipeline = Pipeline::connect(path, config)?;
        let shared = Arc::new(Shared {
            made: Mutex::default(),
            is_asleep: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            event: EventFd::new()?,
        });
        let driver = Driver { pipeline, shared: Arc::clone(&shared), idle: Idle::default() };
        let run = move || driver.run(config.wait);
        thread::Builder::new()
            .name("copyrpc-calls".into())
            .spawn(run)
            .map_err(TokioError::Thread)?;
        let places = Arc::new(Semaphore::new(CALLS_MAX));
        Ok(Self { handle: Arc::new(Handle { shared, places }), timeout: config.timeout })
    }

    /// Makes a call, with the configured deadline. Dropping the future gives the call up; it may be executed.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub async fn call(&self, to: To, body: &[u8]) -> Result<Vec<u8>, CallError> {
        self.call_within(to, body, self.timeout).await
    }

    /// Like [`call`](Self::call), with a deadline of its own.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub async fn call_within(
        &self,
        to: To,
        body: &[u8],
        timeout: Duration,
    ) -> Result<Vec<u8>, CallError> {
        let deadline = Instant::now() + timeout;
        // Nobody closes it.
        let place = Arc::clone(&self.handle.places).acquire_owned().await;
        let over = || CallError::Unanswered(Status::Cancelled);
        let (tell, told) = oneshot::channel();
        let tell = Teller { tell, _place: place.map_err(|_| over())? };
        self.handle.shared.push(Call { to, body: body.to_vec(), deadline, tell });
        // Fails only if the thread has panicked.
        told.await.map_err(|_| over())?
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Ordering::SeqCst);
        self.shared.wake();
    }
}

impl Shared {
    fn push(&self, call: Call) {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push_back(call);
        self.wake();
    }

    fn wake(&self) {
        // Sequentially consistent, as in `Driver::rest`: either this thread sees that the other sleeps, or the
        // other sees what this one said.
        if self.is_asleep.swap(false, Ordering::SeqCst) {
            // Fails only on a descriptor that is no event.
            let _ = self.event.signal();
        }
    }

    fn take(&self) -> Option<Call> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn is_idle(&self) -> bool {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }
}

/// The thread that talks to the daemon.
struct Driver {
    pipeline: Pipeline<Teller>,
    shared: Arc<Shared>,
    idle: Idle,
}

impl Driver {
    fn run(mut self, wait: Wait) {
        loop {
            let mut count = 0;
            while self.has_room()
                && let Some(call) = self.shared.take()
            {
                count += 1;
                self.submit(call);
            }
            self.pipeline.flush();
            count += self.pipeline.poll(|teller, answer| {
                // Whoever gave up is told nothing.
                let _ = teller.tell.send(answer.map(<[u8]>::to_vec));
            });
            if count > 0 {
                self.idle.reset();
            } else if self.shared.is_closed() && self.pipeline.in_flight() == 0 {
                return;
            } else if self.idle.step(wait) == IdleStep::Sleep {
                self.rest();
            }
        }
    }

    fn has_room(&self) -> bool {
        self.pipeline.in_flight() < self.pipeline.depth()
    }

    fn submit(&mut self, call: Call) {
        let Call { to, body, deadline, tell } = call;
        let left = deadline.saturating_duration_since(Instant::now());
        if let Err(SubmitError { error, context }) =
            self.pipeline.submit_within(to, &body, left, tell)
        {
            let _ = context.tell.send(Err(error));
        }
    }

    /// Sleeps until the daemon says something, a call is made or one is late.
    fn rest(&mut self) {
        let shared = Arc::clone(&self.shared);
        shared.is_asleep.store(true, Ordering::SeqCst);
        let may_take = self.has_room() && !shared.is_idle();
        let is_over = shared.is_closed() && self.pipeline.in_flight() == 0;
        let is_silent = self.pipeline.in_flight() == 0 || self.pipeline.arm();
        if !may_take && !is_over && is_silent {
            let left_ns = self.pipeline.earliest_deadline_ns().saturating_sub(clock::now_ns());
            let left = Duration::from_nanos(left_ns).min(SLEEP_MAX);
            let timeout = Timespec {
                tv_sec: left.as_secs().cast_signed(),
                tv_nsec: left.subsec_nanos().into(),
            };
            let mut fds = [
                PollFd::new(&self.pipeline, PollFlags::IN),
                PollFd::new(&shared.event, PollFlags::IN),
            ];
            // An error is a signal: the loop looks around.
            let _ = poll(&mut fds, Some(&timeout));
        }
        shared.is_asleep.store(false, Ordering::SeqCst);
        let _ = shared.event.drain();
    }
}
