//! All clients behind one interface.

use std::{
    future::Future,
    path::Path,
    pin::Pin,
    process::Command,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use copyrpc::{
    CallError, Client, ClientConfig, FutureClient, HERE, Pipeline, To,
    bulk::{BulkRegion, Slice},
    name,
    tokio::TokioClient,
    typed::TypedError,
};

use crate::{
    foreign::{Foreign, Language},
    node::{PATIENCE, ProbeClient, ProbeFutures},
    told::Told,
};

/// How a call ended.
pub(crate) type Answer = Result<Vec<u8>, Told>;

/// A call that is under way, and goes on by itself.
pub(crate) type Boxed = Pin<Box<dyn Future<Output = Answer>>>;

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Client,
    Pipeline,
    FutureClient,
    TokioClient,
    TypedSync,
    TypedFutures,
    TypedTokio,
    CClient,
    CPipeline,
    PythonClient,
    PythonAsync,
    /// Calls of the following lend their body.
    Lending,
    LendingFutures,
    LendingTokio,
    CLending,
    PythonLending,
}

impl Kind {
    pub(crate) const ALL: [Self; 16] = [
        Self::Client,
        Self::Pipeline,
        Self::FutureClient,
        Self::TokioClient,
        Self::TypedSync,
        Self::TypedFutures,
        Self::TypedTokio,
        Self::CClient,
        Self::CPipeline,
        Self::PythonClient,
        Self::PythonAsync,
        Self::Lending,
        Self::LendingFutures,
        Self::LendingTokio,
        Self::CLending,
        Self::PythonLending,
    ];

    /// The program of another language that has it, and the argument that names it there.
    fn foreign(self) -> Option<(Language, &'static str)> {
        match self {
            Self::CClient => Some((Language::C, "client")),
            Self::CPipeline => Some((Language::C, "pipeline")),
            Self::PythonClient => Some((Language::Python, "client")),
            Self::PythonAsync => Some((Language::Python, "async")),
            Self::CLending => Some((Language::C, "lending")),
            Self::PythonLending => Some((Language::Python, "lending")),
            _ => None,
        }
    }

    pub(crate) fn is_python(self) -> bool {
        matches!(self.foreign(), Some((Language::Python, _)))
    }

    pub(crate) fn is_lending(self) -> bool {
        let of_rust = matches!(self, Self::Lending | Self::LendingFutures | Self::LendingTokio);
        of_rust || matches!(self, Self::CLending | Self::PythonLending)
    }

    pub(crate) fn is_foreign(self) -> bool {
        self.foreign().is_some()
    }

    /// The command that runs it, if it is of another language.
    pub(crate) fn command(self) -> Option<Command> {
        let (language, form) = self.foreign()?;
        let mut command = language.driver()?;
        command.arg(form);
        Some(command)
    }

    /// Whether the machine has what it needs; a machine of CI has to.
    pub(crate) fn is_there(self) -> bool {
        !self.is_foreign() || self.command().is_some()
    }

    /// Its program has a loop of its own, and waits for room itself.
    pub(crate) fn is_pipeline(self) -> bool {
        matches!(self, Self::Pipeline | Self::CPipeline)
    }

    /// One call at a time: nothing waits for room, nothing is given up.
    pub(crate) fn is_sync(self) -> bool {
        let of_rust = matches!(self, Self::Client | Self::TypedSync | Self::Lending);
        of_rust
            || matches!(self, Self::CClient | Self::CLending)
            || matches!(self, Self::PythonClient | Self::PythonLending)
    }

    /// Each call is a future.
    pub(crate) fn is_async(self) -> bool {
        !self.is_sync() && !self.is_pipeline()
    }
}

/// A call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) method: &'static str,
    pub(crate) body: &'static [u8],
    pub(crate) within: Duration,
}

impl Ask {
    pub(crate) const ECHO: Self = Self { method: "echo", body: b"body", within: PATIENCE };
    pub(crate) const HOLD: Self = Self { method: "hold", body: b"body", within: PATIENCE };

    pub(crate) const fn within(self, within: Duration) -> Self {
        Self { within, ..self }
    }

    fn to(&self) -> To {
        let service = name::service_number("probe");
        To { rank: HERE, service, method: name::method_number(self.method) }
    }
}

/// How a call ended, and after what time.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) answer: Answer,
    pub(crate) after: Duration,
}

pub(crate) enum Handle {
    Client(Client),
    Pipeline(Pipeline<(usize, Instant)>),
    FutureClient(FutureClient),
    TokioClient(TokioClient),
    TypedSync(ProbeClient),
    TypedFutures(ProbeFutures, FutureClient),
    TypedTokio(ProbeFutures<TokioClient>, TokioClient),
    Foreign(Rc<Foreign>),
    Lending(Client, BulkRegion),
    LendingFutures(FutureClient, BulkRegion),
    LendingTokio(TokioClient, BulkRegion),
}

/// Length of what a client lends.
const REGION_BYTES: u64 = 4096;

impl Handle {
    pub(crate) fn connect(kind: Kind, socket: &Path, config: ClientConfig) -> Self {
        Self::traced(kind, socket, config, 0)
    }

    /// A client whose calls belong to a trace, unless that is 0.
    pub(crate) fn traced(kind: Kind, socket: &Path, config: ClientConfig, trace: u64) -> Self {
        let client = || {
            let mut client = Client::connect(socket, config).unwrap();
            client.set_trace(trace);
            client
        };
        let futures = || FutureClient::connect(socket, config).unwrap().with_trace(trace);
        let tokio = || TokioClient::connect(socket, config).unwrap().with_trace(trace);
        match kind {
            Kind::Client => Self::Client(client()),
            Kind::Pipeline => {
                let mut pipeline = Pipeline::connect(socket, config).unwrap();
                pipeline.set_trace(trace);
                Self::Pipeline(pipeline)
            }
            Kind::FutureClient => Self::FutureClient(futures()),
            Kind::TokioClient => Self::TokioClient(tokio()),
            Kind::TypedSync => Self::TypedSync(ProbeClient::new(client(), HERE)),
            Kind::TypedFutures => {
                let client = futures();
                let typed = block_on(ProbeFutures::new(client.clone(), HERE)).unwrap();
                Self::TypedFutures(typed, client)
            }
            Kind::TypedTokio => {
                let client = tokio();
                let typed = block_on(ProbeFutures::new(client.clone(), HERE)).unwrap();
                Self::TypedTokio(typed, client)
            }
            Kind::Lending => {
                let mut client = client();
                let region = client.bulk(REGION_BYTES).unwrap();
                Self::Lending(client, region)
            }
            Kind::LendingFutures => {
                let client = futures();
                let region = block_on(client.bulk(REGION_BYTES)).unwrap();
                Self::LendingFutures(client, region)
            }
            Kind::LendingTokio => {
                let client = tokio();
                let region = block_on(client.bulk(REGION_BYTES)).unwrap();
                Self::LendingTokio(client, region)
            }
            _ => {
                let command = kind.command().expect("the machine has its tools");
                let foreign = Foreign::connect(command, socket, config.timeout);
                if trace != 0 {
                    foreign.trace(trace);
                }
                Self::Foreign(foreign)
            }
        }
    }

    /// Makes these calls together; one after the other if the client makes one at a time.
    pub(crate) fn calls(&mut self, asks: &[Ask]) -> Vec<Ended> {
        match self {
            Self::Client(client) => asks.iter().map(|ask| call(client, ask)).collect(),
            Self::TypedSync(client) => asks.iter().map(|ask| call_typed(client, ask)).collect(),
            Self::Pipeline(pipeline) => submit_all(pipeline, asks),
            Self::Foreign(foreign) => foreign.calls(asks),
            Self::Lending(client, region) => {
                asks.iter().map(|ask| call_lending(client, region, ask)).collect()
            }
            _ => {
                let begin = Instant::now();
                join(asks.iter().map(|ask| self.start(ask)).collect(), begin)
            }
        }
    }

    pub(crate) fn call(&mut self, ask: Ask) -> Ended {
        self.calls(&[ask]).pop().unwrap()
    }

    /// Begins a call of a client of futures.
    pub(crate) fn start(&self, ask: &Ask) -> Boxed {
        let (to, within) = (ask.to(), ask.within);
        match self {
            Self::FutureClient(client) => boxed(client.call_within(to, ask.body, within)),
            Self::TokioClient(client) => boxed(client.call_within(to, ask.body, within)),
            Self::Foreign(foreign) => Box::pin(foreign.start(ask)),
            Self::TypedFutures(typed, _) => start_typed(&typed.within(within), ask),
            Self::TypedTokio(typed, _) => start_typed(&typed.within(within), ask),
            Self::LendingFutures(client, region) => {
                let (slice, body) = lent(region, ask);
                boxed(client.call_bulk(to, body, &[slice], within))
            }
            Self::LendingTokio(client, region) => {
                let (slice, body) = lent(region, ask);
                boxed(client.call_bulk(to, body, &[slice], within))
            }
            Self::Client(_) | Self::Pipeline(_) | Self::TypedSync(_) | Self::Lending(..) => {
                unreachable!("no futures")
            }
        }
    }

    /// Closes the client, if it can be.
    pub(crate) fn close(&self) {
        match self {
            Self::FutureClient(client)
            | Self::TypedFutures(_, client)
            | Self::LendingFutures(client, _) => client.close(),
            Self::TokioClient(client)
            | Self::TypedTokio(_, client)
            | Self::LendingTokio(client, _) => client.close(),
            Self::Foreign(foreign) => foreign.close(),
            Self::Client(_) | Self::Pipeline(_) | Self::TypedSync(_) | Self::Lending(..) => {}
        }
    }

    /// The daemon of now gets what is lent. Programs in other languages do so when they reconnect.
    pub(crate) fn renew(&mut self) {
        let renewed = match self {
            Self::Lending(client, region) => client.renew(region),
            Self::LendingFutures(client, region) => block_on(client.renew(region)),
            Self::LendingTokio(client, region) => block_on(client.renew(region)),
            _ => return,
        };
        assert!(renewed.unwrap());
    }
}

/// A call whose error is told in the words of all languages.
fn boxed(call: impl Future<Output = Result<Vec<u8>, CallError>> + 'static) -> Boxed {
    Box::pin(async move { call.await.map_err(Told::from) })
}

fn call(client: &mut Client, ask: &Ask) -> Ended {
    let begin = Instant::now();
    let answer = client.call_within(ask.to(), ask.body, ask.within);
    Ended { answer: answer.map(<[u8]>::to_vec).map_err(Told::from), after: begin.elapsed() }
}

/// What a call lends, and what it passes: all is lent, unless the region is too short for that.
fn lent<'a>(region: &'a BulkRegion, ask: &Ask) -> (Slice<'a>, &'static [u8]) {
    let len_bytes = ask.body.len() as u64;
    if len_bytes > REGION_BYTES {
        return (region.slice(0, 0), ask.body);
    }
    // A child of `fork(2)` may not write; its call says so.
    let _ = region.write(0, ask.body);
    (region.slice(0, len_bytes), b"")
}

fn call_lending(client: &mut Client, region: &BulkRegion, ask: &Ask) -> Ended {
    let (begin, (slice, body)) = (Instant::now(), lent(region, ask));
    let answer = client.call_bulk(ask.to(), body, &[slice], ask.within);
    Ended { answer: answer.map(<[u8]>::to_vec).map_err(Told::from), after: begin.elapsed() }
}

fn call_typed(client: &mut ProbeClient, ask: &Ask) -> Ended {
    let (begin, body) = (Instant::now(), ask.body.to_vec());
    let client = client.within(ask.within);
    let answer = match ask.method {
        "echo" => client.echo(body),
        "hold" => client.hold(body),
        "refuse" => client.refuse(body),
        _ => client.absent(body),
    };
    let answer = answer.map_err(|error| Told::from(untyped(error)));
    Ended { answer, after: begin.elapsed() }
}

fn start_typed<C: copyrpc::typed::FutureCalls + 'static>(
    client: &ProbeFutures<C>,
    ask: &Ask,
) -> Boxed {
    let body = ask.body.to_vec();
    macro_rules! boxed {
        ($call:expr) => {{
            let call = $call;
            boxed(async move { call.await.map_err(untyped) })
        }};
    }
    match ask.method {
        "echo" => boxed!(client.echo(body)),
        "hold" => boxed!(client.hold(body)),
        "refuse" => boxed!(client.refuse(body)),
        _ => boxed!(client.absent(body)),
    }
}

fn untyped(error: TypedError) -> CallError {
    match error {
        TypedError::Call { error, .. } => error,
        other => panic!("{other}"),
    }
}

fn submit_all(pipeline: &mut Pipeline<(usize, Instant)>, asks: &[Ask]) -> Vec<Ended> {
    let mut ended: Vec<Option<Ended>> = asks.iter().map(|_| None).collect();
    for (index, ask) in asks.iter().enumerate() {
        let context = (index, Instant::now());
        if let Err(refused) = pipeline.submit_within(ask.to(), ask.body, ask.within, context) {
            let (answer, after) = (Err(refused.error.into()), context.1.elapsed());
            ended[index] = Some(Ended { answer, after });
        }
    }
    while pipeline.in_flight() > 0 {
        let count = pipeline.poll(|(index, begin), answer| {
            let answer = answer.map(<[u8]>::to_vec).map_err(Told::from);
            ended[index] = Some(Ended { answer, after: begin.elapsed() });
        });
        if count == 0 {
            pipeline.rest();
        }
    }
    ended.into_iter().map(Option::unwrap).collect()
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs all on this thread.
pub(crate) fn join(mut calls: Vec<Boxed>, begin: Instant) -> Vec<Ended> {
    let mut ended: Vec<Option<Ended>> = calls.iter().map(|_| None).collect();
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut task = Context::from_waker(&waker);
    while ended.iter().any(Option::is_none) {
        for (call, ended) in calls.iter_mut().zip(&mut ended).filter(|(_, it)| it.is_none()) {
            if let Poll::Ready(answer) = call.as_mut().poll(&mut task) {
                *ended = Some(Ended { answer, after: begin.elapsed() });
            }
        }
        if ended.iter().any(Option::is_none) {
            thread::park();
        }
    }
    ended.into_iter().map(Option::unwrap).collect()
}

/// Runs one on this thread.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        thread::park();
    }
}
