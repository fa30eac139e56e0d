//! All clients behind one interface.

use std::{
    future::Future,
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use client::tokio::TokioClient;
use copyrpc::{
    CallError, Client, ClientConfig, FutureClient, HERE, Pipeline, To, name, typed::TypedError,
};

use crate::node::{PATIENCE, ProbeClient, ProbeFutures};

/// How a call ended.
pub(crate) type Answer = Result<Vec<u8>, CallError>;

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
}

impl Kind {
    pub(crate) const ALL: [Self; 7] = [
        Self::Client,
        Self::Pipeline,
        Self::FutureClient,
        Self::TokioClient,
        Self::TypedSync,
        Self::TypedFutures,
        Self::TypedTokio,
    ];

    /// One call at a time: nothing waits for room, nothing is given up.
    pub(crate) fn is_sync(self) -> bool {
        matches!(self, Self::Client | Self::TypedSync)
    }

    /// Each call is a future.
    pub(crate) fn is_async(self) -> bool {
        !self.is_sync() && self != Self::Pipeline
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
}

impl Handle {
    pub(crate) fn connect(kind: Kind, socket: &Path, config: ClientConfig) -> Self {
        let client = || Client::connect(socket, config).unwrap();
        let futures = || FutureClient::connect(socket, config).unwrap();
        let tokio = || TokioClient::connect(socket, config).unwrap();
        match kind {
            Kind::Client => Self::Client(client()),
            Kind::Pipeline => Self::Pipeline(Pipeline::connect(socket, config).unwrap()),
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
        }
    }

    /// Makes these calls together; one after the other if the client makes one at a time.
    pub(crate) fn calls(&mut self, asks: &[Ask]) -> Vec<Ended> {
        match self {
            Self::Client(client) => asks.iter().map(|ask| call(client, ask)).collect(),
            Self::TypedSync(client) => asks.iter().map(|ask| call_typed(client, ask)).collect(),
            Self::Pipeline(pipeline) => submit_all(pipeline, asks),
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
            Self::FutureClient(client) => Box::pin(client.call_within(to, ask.body, within)),
            Self::TokioClient(client) => Box::pin(client.call_within(to, ask.body, within)),
            Self::TypedFutures(typed, _) => start_typed(&typed.within(within), ask),
            Self::TypedTokio(typed, _) => start_typed(&typed.within(within), ask),
            Self::Client(_) | Self::Pipeline(_) | Self::TypedSync(_) => unreachable!("no futures"),
        }
    }

    /// Closes the client, if it can be.
    pub(crate) fn close(&self) {
        match self {
            Self::FutureClient(client) | Self::TypedFutures(_, client) => client.close(),
            Self::TokioClient(client) | Self::TypedTokio(_, client) => client.close(),
            Self::Client(_) | Self::Pipeline(_) | Self::TypedSync(_) => {}
        }
    }
}

fn call(client: &mut Client, ask: &Ask) -> Ended {
    let begin = Instant::now();
    let answer = client.call_within(ask.to(), ask.body, ask.within);
    Ended { answer: answer.map(<[u8]>::to_vec), after: begin.elapsed() }
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
    Ended { answer: answer.map_err(untyped), after: begin.elapsed() }
}

fn start_typed<C: copyrpc::typed::FutureCalls + 'static>(
    client: &ProbeFutures<C>,
    ask: &Ask,
) -> Boxed {
    let body = ask.body.to_vec();
    macro_rules! boxed {
        ($call:expr) => {{
            let call = $call;
            Box::pin(async move { call.await.map_err(untyped) })
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
            let (answer, after) = (Err(refused.error), context.1.elapsed());
            ended[index] = Some(Ended { answer, after });
        }
    }
    while pipeline.in_flight() > 0 {
        let count = pipeline.poll(|(index, begin), answer| {
            let answer = answer.map(<[u8]>::to_vec);
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
