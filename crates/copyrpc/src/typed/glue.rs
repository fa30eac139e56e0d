//! Parts of the macro's code.

use std::{
    future::poll_fn,
    pin::pin,
    task::Poll,
    time::{Duration, Instant},
};

use client::{
    CallError, Client, Description, Filler, FutureClient, InPlace, Inbound, Offer, Request,
    RequestContext, Status, To,
    message::{DAEMON, MethodRecord, method},
    name,
};

pub use crate::typed::lent::{
    LendingCaller, LendingFutureCaller, answer as answer_lending, offer as offer_lending,
};
pub use crate::typed::method::Method;
use crate::typed::{CodecError, Decode, Encode, Failure, FutureCalls, InPlaceAnswer, TypedError};

/// Whether all methods have numbers of their own.
#[must_use]
pub const fn are_distinct(methods: &[Method]) -> bool {
    let mut one = 0;
    while one < methods.len() {
        let mut other = one + 1;
        while other < methods.len() {
            if methods[one].number == methods[other].number {
                return false;
            }
            other += 1;
        }
        one += 1;
    }
    true
}

fn table(methods: &[Method]) -> Vec<MethodRecord> {
    let record = |method: &Method| MethodRecord {
        method: method.number.into(),
        reserved: [0; 6],
        fingerprint: method.fingerprint.into(),
    };
    methods.iter().map(record).collect()
}

/// A service of this name with these methods.
#[must_use]
pub fn offer(name: &str, methods: &[Method]) -> Offer {
    Offer::named(name).with_methods(&table(methods))
}

/// Reads arguments, calls, and writes the value, or the detail of a failure.
pub fn answer<Codec, A, V>(
    request: &Inbound<'_>,
    answer: &mut Vec<u8>,
    call: impl FnOnce(A) -> Result<V, Failure>,
) -> Status
where
    Codec: Decode<A> + Encode<V>,
{
    let start = answer.len();
    let outcome =
        value::<Codec, A, V>(request, call).and_then(|value| encode::<Codec, V>(&value, answer));
    match outcome {
        Ok(()) => Status::Ok,
        Err(failure) => {
            answer.truncate(start);
            answer.extend_from_slice(&failure.detail);
            failure.status
        }
    }
}

/// Reads arguments, calls, and answers when the future ends. If the caller is gone, the future is dropped.
pub async fn answer_async<Codec, A, V, F>(
    mut request: Request,
    call: impl FnOnce(RequestContext, A) -> F,
) where
    Codec: Decode<A> + Encode<V>,
    F: Future<Output = Result<V, Failure>>,
{
    let body = request.take_body();
    let outcome = match arguments::<Codec, A>(&body) {
        Ok(arguments) => {
            let mut cancelled = pin!(request.context().cancelled());
            let handler = call(request.context().clone(), arguments);
            let mut handler = pin!(request.context().in_span(handler));
            poll_fn(|task| match cancelled.as_mut().poll(task) {
                Poll::Ready(()) => Poll::Ready(Err(Status::Cancelled.into())),
                Poll::Pending => handler.as_mut().poll(task),
            })
            .await
        }
        Err(failure) => Err(failure),
    };
    let mut answer = Vec::new();
    match outcome.and_then(|value| encode::<Codec, V>(&value, &mut answer)) {
        Ok(()) => request.reply(Status::Ok, answer),
        Err(Failure { status, detail }) => request.reply(status, detail),
    }
}

/// Reads arguments and calls. A value whose codec knows its length is written later, where the daemon reads it.
pub fn answer_in_place<Codec, A, V>(
    request: &Inbound<'_>,
    call: impl FnOnce(A) -> Result<V, Failure>,
) -> InPlaceAnswer
where
    Codec: Decode<A> + Encode<V>,
    V: 'static,
{
    let answered = value::<Codec, A, V>(request, call).and_then(|value| {
        if let Some(len_bytes) = Codec::len_bytes(&value) {
            let put = move |body: &mut Filler<'_>| {
                // The caller gets no answer.
                let _ = fill::<Codec, V>(&value, body);
            };
            return Ok(InPlaceAnswer::of(len_bytes, Box::new(put)));
        }
        let mut bytes = Vec::new();
        encode::<Codec, V>(&value, &mut bytes)?;
        let len_bytes = bytes.len();
        let put = move |body: &mut Filler<'_>| {
            // The room is as long as was said.
            let _ = body.put(&bytes);
        };
        Ok(InPlaceAnswer::of(len_bytes, Box::new(put)))
    });
    answered.unwrap_or_else(|Failure { status, detail }| InPlace::failed(status, detail))
}

fn value<Codec: Decode<A>, A, V>(
    request: &Inbound<'_>,
    call: impl FnOnce(A) -> Result<V, Failure>,
) -> Result<V, Failure> {
    let arguments = arguments::<Codec, A>(request.body)?;
    request.in_span(|| call(arguments))
}

fn arguments<Codec: Decode<A>, A>(body: &[u8]) -> Result<A, Failure> {
    Codec::decode(body)
        .map_err(|error| Failure::invalid(format!("the arguments cannot be read: {error}")))
}

fn encode<Codec: Encode<V>, V>(value: &V, into: &mut Vec<u8>) -> Result<(), Failure> {
    Codec::encode(value, into)
        .map_err(|error| Failure::new(Status::Internal, format!("the answer: {error}")))
}

/// The difference between what a service says and what a caller means.
fn agree(told: &Description, methods: &[Method]) -> Result<(), TypedError> {
    let Some(number) = told.mismatch(&table(methods)) else { return Ok(()) };
    let differs = methods.iter().find(|method| method.number == number);
    Err(TypedError::Mismatch { method: differs.map_or("", |method| method.name) })
}

/// The error of a call of this method, with names.
fn named(service: &'static str, method: &'static str) -> impl Fn(CallError) -> TypedError {
    move |error| TypedError::Call { service, method, error }
}

/// Puts arguments or a value where the daemon reads them, or gives the message up.
fn fill<Codec: Encode<T>, T>(value: &T, body: &mut Filler<'_>) -> Result<(), CodecError> {
    Codec::fill(value, body).inspect_err(|_| body.give_up())
}

/// A client of one service on one rank.
#[derive(Debug)]
pub struct Caller {
    client: Client,
    rank: u32,
    name: &'static str,
    service: u16,
    has_agreed: bool,
    /// The deadline of the next call, if that has one of its own.
    within: Option<Duration>,
    /// Memory of bodies that are not put in place.
    scratch: Vec<u8>,
}

impl Caller {
    /// Calls the service of this name on `rank`.
    #[must_use]
    pub fn new(client: Client, rank: u32, name: &'static str) -> Self {
        let service = name::service_number(name);
        let scratch = Vec::new();
        Self { client, rank, name, service, has_agreed: false, within: None, scratch }
    }

    /// Gives the next call a deadline of its own.
    pub fn within(&mut self, timeout: Duration) {
        self.within = Some(timeout);
    }

    /// Calls a method.
    ///
    /// # Errors
    ///
    /// [`TypedError`].
    pub fn call<Codec, A, V>(
        &mut self,
        methods: &[Method],
        method: &Method,
        arguments: &A,
    ) -> Result<V, TypedError>
    where
        Codec: Encode<A> + Decode<V>,
    {
        let timeout = self.within.take().unwrap_or_else(|| self.client.timeout());
        let begin = Instant::now();
        if !self.has_agreed {
            let description = self.client.describe_within(self.rank, self.service, timeout);
            agree(&description.map_err(named(self.name, ""))?, methods)?;
            self.has_agreed = true;
        }
        let timeout = timeout.saturating_sub(begin.elapsed());
        let Self { client, rank, name, service, scratch, .. } = self;
        let named = named(name, method.name);
        // A call that may be made again keeps its body.
        let to = To::new(*rank, *service, method.number);
        let len_bytes = if client.retries() { None } else { Codec::len_bytes(arguments) };
        let Some(len_bytes) = len_bytes else {
            scratch.clear();
            Codec::encode(arguments, scratch).map_err(TypedError::Encode)?;
            let answer = client.call_within(to, scratch, timeout).map_err(named)?;
            return Codec::decode(answer).map_err(TypedError::Decode);
        };
        let mut filled = Ok(());
        let put = |body: &mut Filler<'_>| filled = fill::<Codec, A>(arguments, body);
        let answer = client.call_in_place_within(to, len_bytes, timeout, put);
        filled.map_err(TypedError::Encode)?;
        Codec::decode_lent(answer.map_err(named)?, scratch).map_err(TypedError::Decode)
    }

    /// The client.
    #[must_use]
    pub fn into_client(self) -> Client {
        self.client
    }
}

/// A client of one service on one rank, whose calls are futures.
#[derive(Clone, Debug)]
pub struct FutureCaller<C = FutureClient> {
    client: C,
    rank: u32,
    name: &'static str,
    service: u16,
    timeout: Duration,
}

impl<C: FutureCalls> FutureCaller<C> {
    /// Calls the service of this name on `rank`.
    #[must_use]
    pub fn new(client: C, rank: u32, name: &'static str) -> Self {
        let timeout = client.timeout();
        Self { client, rank, name, service: name::service_number(name), timeout }
    }

    /// The same, with calls that have this deadline.
    #[must_use]
    pub fn within(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    /// Compares what the service says about itself with what the caller means.
    ///
    /// # Errors
    ///
    /// [`TypedError`].
    pub async fn check(&self, methods: &[Method]) -> Result<(), TypedError> {
        let to = To { rank: self.rank, service: DAEMON, method: method::DESCRIBE };
        let call = self.client.call_within(to, &self.service.to_le_bytes(), self.timeout);
        let answer = call.await.map_err(|error| self.of_description(error));
        let description = answer.and_then(|answer| {
            Description::decode(&answer).ok_or(CallError::Unanswered(Status::Internal))
        });
        agree(&description.map_err(named(self.name, ""))?, methods)
    }

    /// The daemon's refusal of a question about the service names the service.
    fn of_description(&self, error: CallError) -> CallError {
        match error {
            CallError::NoService(_) => {
                CallError::NoService(To { rank: self.rank, service: self.service, method: 0 })
            }
            error => error,
        }
    }

    /// Calls a method: the call is made at once, and ends when its future does.
    pub fn call<Codec, A, V>(
        &self,
        method: &Method,
        arguments: &A,
    ) -> impl Future<Output = Result<V, TypedError>> + use<C, Codec, A, V>
    where
        Codec: Encode<A> + Decode<V>,
    {
        let to = To { rank: self.rank, service: self.service, method: method.number };
        let call = self.begin::<Codec, A>(to, arguments);
        let named = named(self.name, method.name);
        async move {
            let answer = call?.await.map_err(named)?;
            Codec::decode(&answer).map_err(TypedError::Decode)
        }
    }

    fn begin<Codec: Encode<A>, A>(&self, to: To, arguments: &A) -> Result<C::Call, TypedError> {
        if let Some(len_bytes) = Codec::len_bytes(arguments) {
            let mut filled = Ok(());
            let put = |body: &mut Filler<'_>| filled = fill::<Codec, A>(arguments, body);
            let call = self.client.call_in_place_within(to, len_bytes, self.timeout, put);
            filled.map_err(TypedError::Encode)?;
            if let Some(call) = call {
                return Ok(call);
            }
        }
        let mut body = Vec::new();
        Codec::encode(arguments, &mut body).map_err(TypedError::Encode)?;
        Ok(self.client.call_within(to, &body, self.timeout))
    }
}
