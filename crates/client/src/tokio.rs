//! Calls as futures of tokio: from any task, on any of its threads.

use std::{
    collections::VecDeque,
    io,
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    thread,
    time::Duration,
};

use memory::sync::{AtomicBool, Ordering};
use os::{
    clock,
    event::{EventError, EventFd},
    idle::{Idle, IdleStep, Wait},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::oneshot;

use crate::{
    CallError, ClientConfig, ConnectError, To,
    bulk::{
        Connection,
        lending::{AsksLater, Beside, lends},
    },
    call_queue::{Answer, Awaits, CallQueue, NewCall},
};

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
/// A thread of its own talks to the daemon, and ends after the last clone and the last call; so this works on every
/// runtime. A call is made at once, also without polls, and waits for room if all
/// others are in flight. Its deadline counts from the call.
///
/// Dropping a call gives it up: the daemon learns of it, and so does the handler. With
/// [`ClientConfig::retry`] calls are made again, and a daemon that is gone is looked for.
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
    trace: u64,
}

/// Tells the thread when the last clone is gone.
#[derive(Debug)]
struct Handle(Arc<Shared>);

/// What tasks tell the thread.
#[derive(Debug)]
struct Shared {
    inbox: Mutex<Inbox>,
    /// The thread sleeps, or is about to.
    is_asleep: AtomicBool,
    /// Readable while something was said to a thread that sleeps.
    event: EventFd,
    /// The process that has the thread: a forked child has none.
    pid: u32,
}

#[derive(Debug)]
struct Inbox {
    made: VecDeque<(NewCall<Teller>, Vec<u8>)>,
    /// Numbers of calls that nobody waits for any more.
    dropped: Vec<u64>,
    /// Number of the latest call.
    latest: u64,
    /// By which the daemon gets regions, when the thread looked last.
    connection: Connection,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// The last clone is gone: the thread ends after the last call.
    Orphaned,
    /// All calls end at once.
    Closed,
}

/// The way to whoever waits for the answer.
type Teller = oneshot::Sender<Answer>;

impl TokioClient {
    /// Connects to the daemon whose socket is at `path`. Blocks as long as that takes.
    ///
    /// # Errors
    ///
    /// [`TokioError`].
    pub fn connect(path: &Path, config: ClientConfig) -> Result<Self, TokioError> {
        let queue = CallQueue::connect(path, config)?;
        let inbox = Inbox {
            made: VecDeque::new(),
            dropped: Vec::new(),
            latest: 0,
            connection: queue.connection(),
            state: State::Open,
        };
        let shared = Arc::new(Shared {
            inbox: Mutex::new(inbox),
            is_asleep: AtomicBool::new(false),
            event: EventFd::new()?,
            pid: std::process::id(),
        });
        let (connection, idle) = (queue.connection(), Idle::default());
        let driver = Driver { queue, shared: Arc::clone(&shared), connection, idle };
        let run = move || driver.run(config.wait);
        thread::Builder::new()
            .name("copyrpc-calls".into())
            .spawn(run)
            .map_err(TokioError::Thread)?;
        Ok(Self { handle: Arc::new(Handle(shared)), timeout: config.timeout, trace: 0 })
    }

    /// A clone whose calls belong to the trace of this number, of which handlers are told; 0: to none.
    #[must_use]
    pub fn with_trace(&self, trace: u64) -> Self {
        Self { trace, ..self.clone() }
    }

    /// The deadline of a call that names none.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Makes a call, with the configured deadline. Dropping the future gives the call up; it may be executed.
    pub fn call(&self, to: To, body: &[u8]) -> TokioCall {
        self.call_within(to, body, self.timeout)
    }

    /// Like [`call`](Self::call), with a deadline of its own.
    pub fn call_within(&self, to: To, body: &[u8], timeout: Duration) -> TokioCall {
        self.ask(to, body, Beside::Nothing, timeout)
    }

    /// A call that is not made.
    fn refuse(&self, error: CallError) -> TokioCall {
        let (tell, told) = oneshot::channel();
        // The receiver is there.
        let _ = tell.send(Err(error));
        TokioCall { told, shared: Arc::clone(&self.handle.0), number: None }
    }

    fn begin(&self, to: To, body: &[u8], beside: Beside, timeout: Duration) -> TokioCall {
        let shared = &self.handle.0;
        let (tell, told) = oneshot::channel();
        let deadline_ns = clock::deadline_ns(timeout);
        let call = NewCall { number: 0, to, deadline_ns, trace: self.trace, beside, context: tell };
        let number = match shared.push(call, body) {
            Ok(number) => Some(number),
            Err((error, tell)) => {
                // The receiver is there: it is handed out below.
                let _ = tell.send(Err(CallError::NotSent(error)));
                None
            }
        };
        TokioCall { told, shared: Arc::clone(shared), number }
    }

    /// Ends all calls, of clones too. Later ones end at once, with [`ipc::CallError::Closed`].
    pub fn close(&self) {
        self.handle.0.end(State::Closed);
    }
}

impl AsksLater for TokioClient {
    type Asked = TokioCall;

    fn ask(&self, to: To, body: &[u8], beside: Beside, timeout: Duration) -> TokioCall {
        self.begin(to, body, beside, timeout)
    }

    fn connection(&self) -> Connection {
        // The thread of a parent may hold the lock for ever.
        if self.handle.0.is_forked() {
            return Connection::first();
        }
        self.handle.0.lock().connection
    }

    fn patience(&self) -> Duration {
        self.timeout
    }
}

lends!(TokioClient, TokioCall);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.end(State::Orphaned);
    }
}

/// A call that is on its way: its answer. It belongs to no task, and may be awaited by any.
#[derive(Debug)]
#[must_use = "dropping a call gives it up"]
pub struct TokioCall {
    told: oneshot::Receiver<Answer>,
    shared: Arc<Shared>,
    /// `None`: the call has ended.
    number: Option<u64>,
}

impl Future for TokioCall {
    type Output = Result<Vec<u8>, CallError>;

    /// Polled again after it was ready, it stays pending.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.told.is_terminated() {
            return Poll::Pending;
        }
        let told = match Pin::new(&mut self.told).poll(context) {
            Poll::Pending if self.shared.is_forked() => {
                self.told.close();
                Ok(Err(CallError::Daemon(ipc::CallError::ForkedHandle)))
            }
            Poll::Pending => return Poll::Pending,
            Poll::Ready(told) => told,
        };
        self.number = None;
        // Fails only if the thread has panicked.
        Poll::Ready(told.unwrap_or(Err(CallError::Daemon(ipc::CallError::Closed))))
    }
}

impl Drop for TokioCall {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.shared.give_up(number);
        }
    }
}

impl Shared {
    /// Whether the thread is one of the parent of this process. Then the lock may be held for ever.
    fn is_forked(&self) -> bool {
        self.pid != std::process::id()
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a call to the thread, which gets a number; returns that.
    fn push(&self, call: NewCall<Teller>, body: &[u8]) -> Result<u64, (ipc::CallError, Teller)> {
        if self.is_forked() {
            return Err((ipc::CallError::ForkedHandle, call.context));
        }
        let body = body.to_vec();
        let number = {
            let mut inbox = self.lock();
            if inbox.state == State::Closed {
                return Err((ipc::CallError::Closed, call.context));
            }
            inbox.latest += 1;
            let number = inbox.latest;
            inbox.made.push_back((NewCall { number, ..call }, body));
            number
        };
        self.wake();
        Ok(number)
    }

    /// Nobody waits for a call any more.
    fn give_up(&self, number: u64) {
        if !self.is_forked() {
            self.lock().dropped.push(number);
            self.wake();
        }
    }

    fn end(&self, state: State) {
        if !self.is_forked() {
            let mut inbox = self.lock();
            if inbox.state != State::Closed {
                inbox.state = state;
            }
            drop(inbox);
            self.wake();
        }
    }

    fn wake(&self) {
        // Sequentially consistent, as in `Driver::rest`: either this thread sees that the other sleeps, or the
        // other sees what this one said.
        if self.is_asleep.swap(false, Ordering::SeqCst) {
            // Fails only on a descriptor that is no event.
            let _ = self.event.signal();
        }
    }

    fn has_news(&self) -> bool {
        let inbox = self.lock();
        !inbox.made.is_empty() || !inbox.dropped.is_empty() || inbox.state == State::Closed
    }
}

/// The thread that talks to the daemon.
struct Driver {
    queue: CallQueue<Teller>,
    shared: Arc<Shared>,
    /// That tasks know of.
    connection: Connection,
    idle: Idle,
}

impl Driver {
    fn run(mut self, wait: Wait) {
        loop {
            let (mut count, state) = self.take_news();
            if state == State::Closed {
                self.queue.cancel_all(ipc::CallError::Closed);
            }
            count += self.queue.turn();
            self.tell_connection();
            for (tell, answer) in self.queue.take_ended() {
                count += 1;
                // Whoever gave up is told nothing.
                let _ = tell.send(answer);
            }
            let is_over = match state {
                State::Open => false,
                State::Orphaned => self.queue.is_empty(),
                State::Closed => true,
            };
            if is_over && !self.has_calls() {
                return;
            }
            if count > 0 {
                self.idle.reset();
            } else if self.idle.step(wait) == IdleStep::Sleep {
                self.rest();
            }
        }
    }

    /// Takes what tasks said; returns how much that was.
    fn take_news(&mut self) -> (usize, State) {
        let (made, dropped, state) = {
            let mut inbox = self.shared.lock();
            let made = std::mem::take(&mut inbox.made);
            (made, std::mem::take(&mut inbox.dropped), inbox.state)
        };
        let count = made.len() + dropped.len();
        for (call, body) in made {
            self.queue.push(call, body);
        }
        for number in dropped {
            self.queue.cancel(number);
        }
        (count, state)
    }

    /// Before answers are handed out: whoever learns that a region is of an earlier connection renews it.
    fn tell_connection(&mut self) {
        if self.connection != self.queue.connection() {
            self.connection = self.queue.connection();
            self.shared.lock().connection = self.connection;
        }
    }

    /// Whether the thread is to end now.
    fn is_orphaned(&self) -> bool {
        self.queue.is_empty() && self.shared.lock().state == State::Orphaned
    }

    fn has_calls(&self) -> bool {
        !self.shared.lock().made.is_empty()
    }

    /// Sleeps until the daemon says something, a task does, or a call is late.
    fn rest(&mut self) {
        let shared = Arc::clone(&self.shared);
        shared.is_asleep.store(true, Ordering::SeqCst);
        let awaits = if shared.has_news() || self.is_orphaned() { None } else { self.queue.arm() };
        if let Some(awaits) = awaits {
            let left_ns = self.queue.next_ns().saturating_sub(clock::now_ns());
            let left = Duration::from_nanos(left_ns).min(SLEEP_MAX);
            let timeout = Timespec {
                tv_sec: left.as_secs().cast_signed(),
                tv_nsec: left.subsec_nanos().into(),
            };
            let event = PollFd::new(&shared.event, PollFlags::IN);
            // An error is a signal: the loop looks around.
            let _ = match awaits {
                Awaits::Time => poll(&mut [event], Some(&timeout)),
                Awaits::Daemon => {
                    let daemon = PollFd::new(&self.queue, PollFlags::IN);
                    poll(&mut [event, daemon], Some(&timeout))
                }
            };
        }
        shared.is_asleep.store(false, Ordering::SeqCst);
        let _ = shared.event.drain();
    }
}

impl Drop for Driver {
    /// A panic of the thread leaves no call waiting.
    fn drop(&mut self) {
        let made = {
            let mut inbox = self.shared.lock();
            inbox.state = State::Closed;
            std::mem::take(&mut inbox.made)
        };
        drop(made);
    }
}
