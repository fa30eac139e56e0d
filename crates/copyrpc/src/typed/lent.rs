//! Methods whose calls lend memory.

use std::{path::Path, time::Duration};

use client::{
    CallError, Client, ClientConfig, Context, FutureClient, ProvideError, ServiceError, Status, To,
    bulk::{BulkError, BulkProvider, BulkRegion, BulkRequest, Direction, Move, Slice, SliceLen},
    name,
};

use crate::typed::{Decode, Encode, Failure, LendingCalls, TypedError, method::Method};

/// The answer to a call whose caller means other types.
const MISMATCH: &[u8] = b"the service means other types by this method";

/// The memory that came with a call, as its handler sees it.
#[derive(Debug)]
pub struct Lent<'a> {
    provider: &'a mut BulkProvider,
    work: &'a BulkRequest,
}

impl Lent<'_> {
    /// Rank of the caller's node.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.work.rank
    }

    /// Deadline, user, process and trace of the caller; `None`: the daemon is of an earlier build, and tells none.
    #[must_use]
    pub fn context(&self) -> Option<Context> {
        self.work.context
    }

    /// Time until the caller gives up. Transfers end by then, and a later answer reaches no process: the caller gets
    /// `DeadlineExceeded` from its daemon.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        self.work.context.map_or(Duration::MAX, |context| context.time_left())
    }

    /// Whether no caller waits for the answer any more, as [`BulkProvider::is_cancelled`] says: a handler that works long
    /// looks now and then.
    pub fn is_cancelled(&mut self) -> bool {
        self.provider.is_cancelled(self.work)
    }

    /// Lengths and rights of the slices that came with the call, in order.
    #[must_use]
    pub fn slices(&self) -> &[SliceLen] {
        &self.work.slices
    }

    /// Pulls a whole slice to the beginning of own memory; returns its length.
    ///
    /// # Errors
    ///
    /// A [`Failure`] for the caller: there is no such slice, or [`transfer`](Self::transfer) fails.
    pub fn pull(&mut self, slice: u16, own: &mut BulkRegion) -> Result<u64, Failure> {
        let told = self.work.slices.get(usize::from(slice));
        let none = || Failure::invalid(format!("the call lends no slice {slice}"));
        let len_bytes = told.ok_or_else(none)?.len_bytes;
        let direction = Direction::Pull;
        let all = Move { slice, direction, offset: 0, local_offset: 0, len_bytes };
        self.transfer(own, &[all])
    }

    /// Pushes the first bytes of own memory to the beginning of a slice; returns how many.
    ///
    /// # Errors
    ///
    /// A [`Failure`] for the caller: [`transfer`](Self::transfer) fails.
    pub fn push(
        &mut self,
        slice: u16,
        own: &mut BulkRegion,
        len_bytes: u64,
    ) -> Result<u64, Failure> {
        let direction = Direction::Push;
        let first = Move { slice, direction, offset: 0, local_offset: 0, len_bytes };
        self.transfer(own, &[first])
    }

    /// Moves ranges between slices and own memory of the provider, and waits for the end; returns how many bytes it moved.
    /// Memory that was made with an earlier daemon is [renewed](BulkProvider::renew) first. A transfer ends with its call, and
    /// when the time of the provider has passed ([`BulkProvider::timeout`]).
    ///
    /// # Errors
    ///
    /// A [`Failure`] for the caller, made of the [`CallError`] of [`BulkProvider::wait`] or of a [`BulkError`].
    pub fn transfer(&mut self, own: &mut BulkRegion, moves: &[Move]) -> Result<u64, Failure> {
        self.provider.renew(own)?;
        let timeout = self.provider.timeout().min(self.time_left());
        Ok(self.provider.transfer(self.work, own, moves, timeout)?)
    }
}

impl From<CallError> for Failure {
    /// The status and the words of a call that the handler made.
    fn from(error: CallError) -> Self {
        Self::new(error.status(), error)
    }
}

impl From<BulkError> for Failure {
    /// The status and the words of a refusal of memory.
    fn from(error: BulkError) -> Self {
        Self::new(error.status(), error)
    }
}

/// Offers a service of this name.
///
/// # Errors
///
/// [`ProvideError`].
pub fn offer(
    socket: &Path,
    name: &str,
    config: ClientConfig,
) -> Result<BulkProvider, ProvideError> {
    BulkProvider::offer_named(socket, name, config)
}

/// Reads arguments, calls, and returns status and body of the answer.
pub fn answer<Codec, A, V>(
    method: &Method,
    provider: &mut BulkProvider,
    work: &BulkRequest,
    call: impl FnOnce(&mut Lent<'_>, A) -> Result<V, Failure>,
) -> (Status, Vec<u8>)
where
    Codec: Decode<A> + Encode<V>,
{
    let answered = arguments::<Codec, A>(method, &work.body)
        .and_then(|arguments| call(&mut Lent { provider, work }, arguments))
        .and_then(|value| bytes::<Codec, V>(&value));
    match answered {
        Ok(body) => (Status::Ok, body),
        Err(Failure { status, detail }) => (status, detail),
    }
}

fn arguments<Codec: Decode<A>, A>(method: &Method, body: &[u8]) -> Result<A, Failure> {
    let (types, body) = body.split_first_chunk().ok_or_else(|| {
        Failure::invalid("the arguments have no number of their types before them")
    })?;
    // 0: the caller does not know the definition.
    if ![0, method.fingerprint].contains(&u64::from_le_bytes(*types)) {
        return Err(Failure { status: Status::FailedPrecondition, detail: MISMATCH.to_vec() });
    }
    Codec::decode(body)
        .map_err(|error| Failure::invalid(format!("the arguments cannot be read: {error}")))
}

fn bytes<Codec: Encode<V>, V>(value: &V) -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    Codec::encode(value, &mut body)
        .map_err(|error| Failure::new(Status::Internal, format!("the answer: {error}")))?;
    Ok(body)
}

/// A client of one service on one rank, whose calls lend memory.
#[derive(Debug)]
pub struct LendingCaller {
    client: Client,
    rank: u32,
    name: &'static str,
    /// Of the next call alone.
    timeout: Option<Duration>,
}

impl LendingCaller {
    /// Calls the service of this name on `rank`.
    #[must_use]
    pub fn new(client: Client, rank: u32, name: &'static str) -> Self {
        Self { client, rank, name, timeout: None }
    }

    /// Gives the next call a deadline of its own.
    pub fn within(&mut self, timeout: Duration) {
        self.timeout = Some(timeout);
    }

    /// The client, which makes regions.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// The client.
    #[must_use]
    pub fn into_client(self) -> Client {
        self.client
    }

    /// Calls a method, which may use the slices until it answers.
    ///
    /// # Errors
    ///
    /// [`TypedError`].
    pub fn call<Codec, A, V>(
        &mut self,
        method: &Method,
        slices: &[Slice<'_>],
        arguments: &A,
    ) -> Result<V, TypedError>
    where
        Codec: Encode<A> + Decode<V>,
    {
        let timeout = self.timeout.take().unwrap_or(self.client.timeout());
        let body = request::<Codec, A>(method, arguments)?;
        let to = To::new(self.rank, name::service_number(self.name), method.number);
        match self.client.call_bulk(to, &body, slices, timeout) {
            Ok(answer) => Codec::decode(answer).map_err(TypedError::Decode),
            Err(error) => Err(told(self.name, method.name, error)),
        }
    }
}

/// A client of one service on one rank, whose calls are futures and lend memory.
#[derive(Clone, Debug)]
pub struct LendingFutureCaller<C = FutureClient> {
    client: C,
    rank: u32,
    name: &'static str,
    timeout: Duration,
}

impl<C: LendingCalls> LendingFutureCaller<C> {
    /// Calls the service of this name on `rank`.
    #[must_use]
    pub fn new(client: C, rank: u32, name: &'static str) -> Self {
        let timeout = client.timeout();
        Self { client, rank, name, timeout }
    }

    /// The same, with calls that have this deadline.
    #[must_use]
    pub fn within(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    /// The client, which makes regions.
    pub fn client(&self) -> &C {
        &self.client
    }

    /// Calls a method, which may use the slices until it answers: the call is made at once.
    ///
    /// # Errors
    ///
    /// [`TypedError`].
    pub fn call<Codec, A, V>(
        &self,
        method: &Method,
        slices: &[Slice<'_>],
        arguments: &A,
    ) -> impl Future<Output = Result<V, TypedError>> + use<C, Codec, A, V>
    where
        Codec: Encode<A> + Decode<V>,
    {
        let to = To::new(self.rank, name::service_number(self.name), method.number);
        let body = request::<Codec, A>(method, arguments);
        let call = body.map(|body| self.client.call_bulk(to, &body, slices, self.timeout));
        let service = self.name;
        let method = method.name;
        async move {
            let answer = call?.await.map_err(|error| told(service, method, error))?;
            Codec::decode(&answer).map_err(TypedError::Decode)
        }
    }
}

/// Arguments behind the number of their types.
fn request<Codec: Encode<A>, A>(method: &Method, arguments: &A) -> Result<Vec<u8>, TypedError> {
    let mut body = method.fingerprint.to_le_bytes().to_vec();
    Codec::encode(arguments, &mut body).map_err(TypedError::Encode)?;
    Ok(body)
}

/// The error of a call.
fn told(service: &'static str, method: &'static str, error: CallError) -> TypedError {
    match error {
        CallError::Service(ServiceError { status: Status::FailedPrecondition, detail })
            if &*detail == MISMATCH =>
        {
            TypedError::Mismatch { method }
        }
        error => TypedError::Call { service, method, error },
    }
}
