//! Calls as futures, on any executor that runs local tasks.

use std::{
    cell::RefCell,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use ipc::Filler;
use os::clock;

use crate::{
    CallError, ClientConfig, ConnectError, To,
    alarm::Alarm,
    bulk::{
        Connection,
        lending::{AsksLater, Beside, lends},
    },
    call_queue::{Answer, Awaits, CallQueue, NewCall},
};

/// Longest wait of a call that is dropped, if it is the last of many and the daemon does not answer at once.
const TELLING_MAX: Duration = Duration::from_millis(5);

/// A process's connection to its daemon, whose calls are futures.
///
/// It belongs to one thread, and needs no executor of its own kind: one thread per client waits in the kernel
/// while all calls wait, and wakes their tasks. A call is made at once, and goes on without polls; a call that finds
/// no room waits for it, and goes on with the next poll of any call. Its deadline counts from the call.
///
/// Dropping a call gives it up: the daemon learns of it, and so does the handler. With
/// [`ClientConfig::retry`] calls are made again, and a daemon that is gone is looked for.
///
/// ```no_run
/// # use copyrpc_client::{ClientConfig, FutureClient, To};
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let client = FutureClient::connect("/run/user/1000/copyrpc/job.sock".as_ref(), ClientConfig::default())?;
/// let calls = [0, 1, 2].map(|rank| client.call(To { rank, service: 17, method: 1 }, b"hello"));
/// for call in calls {
///     println!("{:?}", call.await?);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct FutureClient {
    inner: Rc<RefCell<Inner>>,
    timeout: Duration,
    trace: u64,
}

/// The calls of a client, each with the place of its answer.
type Queue = CallQueue<Rc<RefCell<Completion>>>;

#[derive(Debug)]
struct Inner {
    queue: Queue,
    alarm: Alarm,
    /// The descriptor of the connection of this number.
    readable: Option<(Connection, Arc<OwnedFd>)>,
    /// Number of the next call.
    next: u64,
    is_closed: bool,
}

/// How a call ended, and who waits for that.
#[derive(Debug, Default)]
struct Completion {
    answer: Option<Answer>,
    waker: Option<Waker>,
}

impl FutureClient {
    /// Connects to the daemon whose socket is at `path`. Blocks as long as that takes.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub fn connect(path: &Path, config: ClientConfig) -> Result<Self, ConnectError> {
        let queue = CallQueue::connect(path, config)?;
        let os = |source| ConnectError::Os { call: "start of the waking thread", source };
        let alarm = Alarm::start().map_err(os)?;
        let inner = Inner { queue, alarm, readable: None, next: 0, is_closed: false };
        Ok(Self { inner: Rc::new(RefCell::new(inner)), timeout: config.timeout, trace: 0 })
    }

    /// A clone whose calls belong to the trace of this number, of which handlers are told; 0: to none.
    #[must_use]
    pub fn with_trace(&self, trace: u64) -> Self {
        Self { trace, ..self.clone() }
    }

    /// Connects again, to the same daemon or its successor. Calls in flight end, and calls that wait for room go to it.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]; the client stays as it was.
    pub fn reconnect(&self) -> Result<(), ConnectError> {
        let connected = self.inner.borrow_mut().queue.reconnect();
        self.tell_ended();
        connected
    }

    /// Ends all calls, of clones too. Later ones end at once, with [`ipc::CallError::Closed`].
    pub fn close(&self) {
        {
            let mut inner = self.inner.borrow_mut();
            inner.is_closed = true;
            inner.queue.cancel_all(ipc::CallError::Closed);
        }
        self.tell_ended();
    }

    /// The deadline of a call that names none.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Makes a call, with the configured deadline. Dropping the future gives the call up; it may be executed.
    pub fn call(&self, to: To, body: &[u8]) -> FutureCall {
        self.call_within(to, body, self.timeout)
    }

    /// Like [`call`](Self::call), with a deadline of its own.
    pub fn call_within(&self, to: To, body: &[u8], timeout: Duration) -> FutureCall {
        self.ask(to, body, Beside::Nothing, timeout)
    }

    /// Like [`call`](Self::call), with a body of `len_bytes` bytes that `fill` puts, at once, where the daemon
    /// reads them; if the call has to wait for room, or may be made again, to private memory. Other bytes are
    /// zeros. If it panics or [gives up](Filler::give_up), no call is made; it panics if it uses this client or a clone
    /// of it.
    pub fn call_in_place(
        &self,
        to: To,
        len_bytes: usize,
        fill: impl FnOnce(&mut Filler<'_>),
    ) -> FutureCall {
        self.call_in_place_within(to, len_bytes, self.timeout, fill)
    }

    /// Like [`call_in_place`](Self::call_in_place), with a deadline of its own.
    pub fn call_in_place_within(
        &self,
        to: To,
        len_bytes: usize,
        timeout: Duration,
        fill: impl FnOnce(&mut Filler<'_>),
    ) -> FutureCall {
        let push = |queue: &mut Queue, call| queue.push_filled(call, len_bytes, fill);
        self.begin(to, Beside::Nothing, timeout, push)
    }

    /// A call that is not made.
    fn refuse(&self, error: CallError) -> FutureCall {
        let completion = Completion { answer: Some(Err(error)), waker: None };
        let completion = Rc::new(RefCell::new(completion));
        FutureCall { client: self.clone(), completion, number: 0, is_over: false }
    }

    fn begin(
        &self,
        to: To,
        beside: Beside,
        timeout: Duration,
        push: impl FnOnce(&mut Queue, NewCall<Rc<RefCell<Completion>>>),
    ) -> FutureCall {
        let completion = Rc::new(RefCell::new(Completion::default()));
        let number = {
            let mut inner = self.inner.borrow_mut();
            inner.next += 1;
            let (number, deadline_ns) = (inner.next, clock::deadline_ns(timeout));
            if inner.is_closed {
                let error = CallError::NotSent(ipc::CallError::Closed);
                completion.borrow_mut().answer = Some(Err(error));
            } else {
                let context = Rc::clone(&completion);
                let trace = self.trace;
                push(&mut inner.queue, NewCall { number, to, deadline_ns, trace, beside, context });
                inner.queue.turn();
            }
            number
        };
        self.tell_ended();
        FutureCall { client: self.clone(), completion, number, is_over: false }
    }

    /// Hands out the answers that came, and wakes the tasks that wait for them, which may call this again at once.
    fn tell_ended(&self) {
        let ended = self.inner.borrow_mut().queue.take_ended();
        for (completion, answer) in ended {
            let waker = {
                let mut completion = completion.borrow_mut();
                completion.answer = Some(answer);
                completion.waker.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// Serves all calls; returns how many were sent or ended.
    fn turn(&self) -> usize {
        let count = self.inner.borrow_mut().queue.turn();
        self.tell_ended();
        count
    }
}

impl AsksLater for FutureClient {
    type Asked = FutureCall;

    fn ask(&self, to: To, body: &[u8], beside: Beside, timeout: Duration) -> FutureCall {
        self.begin(to, beside, timeout, |queue, call| queue.push(call, body.to_vec()))
    }

    fn connection(&self) -> Connection {
        self.inner.borrow().queue.connection()
    }

    fn patience(&self) -> Duration {
        self.timeout
    }
}

lends!(FutureClient, FutureCall);

impl Inner {
    /// Has a task woken when there is something to do; `None`: there is, and it was not.
    fn wake_later(&mut self, number: u64, waker: &Waker) -> Option<Displaced> {
        let awaits = self.queue.arm()?;
        let next_ns = self.queue.next_ns();
        let connection = self.queue.connection();
        if self.readable.as_ref().is_none_or(|(of, _)| *of != connection) {
            let fd = self.queue.as_fd().try_clone_to_owned();
            // Without a descriptor left the calls end by their deadlines.
            self.readable = fd.ok().map(|fd| (connection, Arc::new(fd)));
        }
        let readable = self.readable.as_ref().map(|(_, fd)| fd);
        let readable = readable.filter(|_| awaits == Awaits::Daemon);
        Some(Displaced { _waker: self.alarm.set(number, waker, next_ns, readable) })
    }
}

/// A waker that is dropped when nothing is borrowed: it belongs to an executor.
struct Displaced {
    _waker: Option<Waker>,
}

/// A call that is on its way: its answer.
///
/// ```
/// # use copyrpc_client as copyrpc;
/// use copyrpc::{FutureCall, FutureClient, To};
///
/// fn begin(client: &FutureClient) -> Vec<FutureCall> {
///     // Both calls are under way before the first is awaited.
///     [0, 1].map(|rank| client.call(To::new(rank, 17, 1), b"hello")).into()
/// }
/// ```
#[derive(Debug)]
#[must_use = "dropping a call gives it up"]
pub struct FutureCall {
    client: FutureClient,
    completion: Rc<RefCell<Completion>>,
    number: u64,
    is_over: bool,
}

impl Future for FutureCall {
    type Output = Result<Vec<u8>, CallError>;

    /// Polled again after it was ready, it stays pending.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let answer = self.completion.borrow_mut().answer.take();
            if let Some(answer) = answer {
                self.is_over = true;
                return Poll::Ready(answer);
            }
            if self.is_over {
                return Poll::Pending;
            }
            if self.client.turn() > 0 {
                continue;
            }
            let displaced = self.completion.borrow_mut().waker.replace(context.waker().clone());
            drop(displaced);
            let armed = self.client.inner.borrow_mut().wake_later(self.number, context.waker());
            if armed.is_some() {
                return Poll::Pending;
            }
        }
    }
}

impl Drop for FutureCall {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let (context, waker) = {
            let mut inner = self.client.inner.borrow_mut();
            if inner.queue.is_forked() {
                return; // what is left is the parent's
            }
            let context = inner.queue.cancel(self.number);
            inner.queue.tell_given_up(TELLING_MAX);
            (context, inner.alarm.forget(self.number))
        };
        // Dropped after the borrow has ended: a waker may belong to anybody.
        drop((context, waker));
        self.client.tell_ended();
    }
}
