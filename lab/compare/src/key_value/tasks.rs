//! Rivals whose calls are tasks of an executor (tokio), as a backend of crate `kv`: one thread per process, as
//! the others have, which runs the tasks of all its calls.

use std::{
    error::Error,
    future::Future,
    io,
    marker::PhantomData,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use bytes::Bytes;
use copyrpc_os::clock;
use kv::{
    backend::{
        Backend, BackendError, CallFailure, CallToken, Client, Contact, Counters, Event, Roster,
        Server, ServerTurn, Service, SubmitError,
    },
    job::Config,
    place::{ClientId, Shard},
    store::Partition,
    workload::Workload,
};
use tokio::{
    runtime::{Builder, Runtime},
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
    time::timeout,
};

/// What a rival reports.
pub type RivalError = Box<dyn Error + Send + Sync>;

/// Calls of a client: bytes to a shard, and back.
pub trait TaskCalls: 'static {
    /// The way to one shard, shared by all calls.
    type Caller: Clone + Send + 'static;

    /// The way to each shard.
    fn join(&self, roster: &Roster) -> impl Future<Output = Result<Vec<Self::Caller>, RivalError>>;

    fn call(
        caller: Self::Caller,
        request: Bytes,
    ) -> impl Future<Output = Result<Bytes, RivalError>> + Send;
}

/// A rival: bytes to a store of bytes, and back.
pub trait Rival: 'static {
    /// One connection, shared by all its calls.
    type Connection: Clone + Send + 'static;

    /// Serves whoever connects; returns if it cannot go on.
    fn serve(listener: TcpListener, store: Store) -> impl Future<Output = Result<(), RivalError>>;

    fn connect(to: SocketAddr) -> impl Future<Output = Result<Self::Connection, RivalError>>;

    fn call(
        connection: Self::Connection,
        request: Bytes,
    ) -> impl Future<Output = Result<Bytes, RivalError>> + Send;
}

/// A connection of a rival to each shard.
pub struct Connections<R>(PhantomData<fn() -> R>);

impl<R: Rival> TaskCalls for Connections<R> {
    type Caller = R::Connection;

    async fn join(&self, roster: &Roster) -> Result<Vec<R::Connection>, RivalError> {
        let mut connections = Vec::new();
        for Contact(contact) in &roster.servers {
            connections.push(R::connect(contact.parse()?).await?);
        }
        Ok(connections)
    }

    async fn call(connection: R::Connection, request: Bytes) -> Result<Bytes, RivalError> {
        R::call(connection, request).await
    }
}

/// A shard's store, as handlers share it. They run on one thread, so nobody waits for it.
#[derive(Clone, Debug)]
pub struct Store(Arc<Mutex<Partition>>);

impl Store {
    pub fn serve(&self, request: &[u8]) -> Vec<u8> {
        let mut answer = Vec::new();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).serve(request, &mut answer);
        answer
    }
}

/// The backend over a rival.
pub struct Over<R> {
    workload: Workload,
    rival: PhantomData<fn() -> R>,
}

fn executor() -> Result<Runtime, BackendError> {
    let built = Builder::new_current_thread().enable_io().enable_time().build();
    built.map_err(|cause| BackendError::new("cannot make an executor", cause))
}

impl<R: Rival> Over<R> {
    pub fn new(config: &Config) -> Self {
        Self { workload: config.workload.clone(), rival: PhantomData }
    }
}

impl<R: Rival> Backend for Over<R> {
    type Client = TaskClient<Connections<R>>;
    type Server = TaskServer;

    /// Handlers may change their thread, which the service of `kv` may not: the store is made here.
    fn server(&self, shard: Shard, _: Service) -> Result<TaskServer, BackendError> {
        let failed = |cause: io::Error| BackendError::new("cannot serve", cause);
        let Workload { value_size, seed, .. } = self.workload;
        let partition = Partition::filled(self.workload.topology(), shard, value_size, seed);
        let store = Store(Arc::new(Mutex::new(partition)));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let (address, executor) = (listener.local_addr().map_err(failed)?, executor()?);
        let thread = thread::spawn(move || executor.block_on(R::serve(listener, store)));
        Ok(TaskServer { thread: Some(thread), address })
    }

    fn client(&self, _: ClientId) -> Result<Self::Client, BackendError> {
        TaskClient::new(Connections(PhantomData))
    }
}

/// The thread of a shard: it waits while another one serves, which ends with the process.
pub struct TaskServer {
    /// `None`: its end was told.
    thread: Option<JoinHandle<Result<(), RivalError>>>,
    address: SocketAddr,
}

impl Server for TaskServer {
    fn contact(&self) -> Contact {
        Contact(self.address.to_string())
    }

    fn join(&mut self, _: &Roster, _: u64) -> Result<(), BackendError> {
        Ok(())
    }

    fn turn(&mut self, _: usize) -> Result<ServerTurn, BackendError> {
        let ended = match self.thread.take_if(|thread| thread.is_finished()).map(JoinHandle::join) {
            None if self.thread.is_some() => return Ok(ServerTurn::default()),
            Some(Ok(Err(cause))) => cause,
            None | Some(Ok(Ok(())) | Err(_)) => "its thread has ended".into(),
        };
        Err(BackendError::new("cannot go on", ended))
    }

    fn wait(&mut self, deadline_ns: u64) -> Result<(), BackendError> {
        thread::sleep(Duration::from_nanos(deadline_ns.saturating_sub(clock::now_ns())));
        Ok(())
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

/// A call that came to an end.
type Done = (CallToken, Result<Bytes, RivalError>);

/// A thread whose calls are tasks.
pub struct TaskClient<C: TaskCalls> {
    calls: C,
    executor: Runtime,
    /// By shard.
    callers: Vec<C::Caller>,
    tell: UnboundedSender<Done>,
    done: UnboundedReceiver<Done>,
    /// What ended a wait.
    found: Option<Done>,
}

impl<C: TaskCalls> TaskClient<C> {
    pub fn new(calls: C) -> Result<Self, BackendError> {
        let (tell, done) = mpsc::unbounded_channel();
        let executor = executor()?;
        Ok(Self { calls, executor, callers: Vec::new(), tell, done, found: None })
    }
}

impl<C: TaskCalls> Client for TaskClient<C> {
    fn join(&mut self, roster: &Roster, deadline_ns: u64) -> Result<(), BackendError> {
        let left = Duration::from_nanos(deadline_ns.saturating_sub(clock::now_ns()));
        let joined = self.executor.block_on(async { timeout(left, self.calls.join(roster)).await });
        let joined = joined.map_err(RivalError::from).flatten();
        self.callers = joined.map_err(|cause| BackendError::new("cannot connect", cause))?;
        Ok(())
    }

    fn submit(&mut self, to: Shard, token: CallToken, request: &[u8]) -> Result<(), SubmitError> {
        let caller = self.callers.get(usize::from(to.0)).ok_or(SubmitError::Gone(to))?.clone();
        let (request, tell) = (Bytes::copy_from_slice(request), self.tell.clone());
        self.executor.spawn(async move {
            // Nobody listens any more when the client ends.
            let _ = tell.send((token, C::call(caller, request).await));
        });
        Ok(())
    }

    fn poll(
        &mut self,
        budget: usize,
        sink: &mut impl FnMut(Event<'_>),
    ) -> Result<usize, BackendError> {
        self.executor.block_on(tokio::task::yield_now());
        let mut count = 0;
        while count < budget
            && let Some((token, result)) = self.found.take().or_else(|| self.done.try_recv().ok())
        {
            match &result {
                Ok(bytes) => sink(Event::Answer { token, bytes }),
                Err(cause) => {
                    eprintln!("a call failed: {cause}");
                    sink(Event::Failed { token, failure: CallFailure::PeerGone });
                }
            }
            count += 1;
        }
        Ok(count)
    }

    fn wait(&mut self, deadline_ns: u64) -> Result<(), BackendError> {
        if self.found.is_none() {
            let left = Duration::from_nanos(deadline_ns.saturating_sub(clock::now_ns()));
            let Self { executor, done, .. } = self;
            let found = executor.block_on(async { timeout(left, done.recv()).await });
            self.found = found.ok().flatten();
        }
        Ok(())
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}
