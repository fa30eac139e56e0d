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

/// A rival: bytes to a store of bytes, and back.
pub trait Rival: 'static {
    /// One connection, shared by all its calls.
    type Caller: Clone + Send + 'static;

    /// Serves whoever connects; returns if it cannot go on.
    fn serve(listener: TcpListener, store: Store) -> impl Future<Output = Result<(), RivalError>>;

    fn connect(to: SocketAddr) -> impl Future<Output = Result<Self::Caller, RivalError>>;

    fn call(
        caller: Self::Caller,
        request: Bytes,
    ) -> impl Future<Output = Result<Bytes, RivalError>> + Send;
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
    type Client = TaskClient<R>;
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

    fn client(&self, _: ClientId) -> Result<TaskClient<R>, BackendError> {
        let (tell, done) = mpsc::unbounded_channel();
        Ok(TaskClient { executor: executor()?, callers: Vec::new(), tell, done, found: None })
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

/// A connection per shard.
pub struct TaskClient<R: Rival> {
    executor: Runtime,
    callers: Vec<R::Caller>,
    tell: UnboundedSender<Done>,
    done: UnboundedReceiver<Done>,
    /// What ended a wait.
    found: Option<Done>,
}

impl<R: Rival> Client for TaskClient<R> {
    fn join(&mut self, roster: &Roster, deadline_ns: u64) -> Result<(), BackendError> {
        for Contact(contact) in &roster.servers {
            let address = contact.parse().map_err(|e| BackendError::new("no address", e))?;
            let left = Duration::from_nanos(deadline_ns.saturating_sub(clock::now_ns()));
            let connected =
                self.executor.block_on(async { timeout(left, R::connect(address)).await });
            let connected = connected.map_err(RivalError::from).flatten();
            self.callers
                .push(connected.map_err(|cause| BackendError::new("cannot connect", cause))?);
        }
        Ok(())
    }

    fn submit(&mut self, to: Shard, token: CallToken, request: &[u8]) -> Result<(), SubmitError> {
        let caller = self.callers.get(usize::from(to.0)).ok_or(SubmitError::Gone(to))?.clone();
        let (request, tell) = (Bytes::copy_from_slice(request), self.tell.clone());
        self.executor.spawn(async move {
            // Nobody listens any more when the client ends.
            let _ = tell.send((token, R::call(caller, request).await));
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
