//! Clients in Rust, each as the documents write it.

use std::{
    collections::VecDeque,
    io::{self, BufRead as _, Write as _},
    path::Path,
    time::Instant,
};

use copyrpc::{
    CallError, Client, ClientConfig, ConnectError, Pipeline, To, name,
    tokio::{TokioClient, TokioError},
    typed::TypedError,
};

use crate::{
    clients::{
        Form,
        registers::{Plan, Planned, RegistersClient, is_right},
    },
    shared_words::PATIENCE,
};

/// Why a client ended.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The arguments of the process are none that this program gives its clients.
    #[error(
        "a client is told FORM SOCKET RANK FIRST_KEY IN_FLIGHT, in numbers but for the first two"
    )]
    Arguments,
    /// There is no daemon.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The same, of tokio's client.
    #[error(transparent)]
    Tokio(#[from] TokioError),
    /// Standard input or output is gone, or the runtime of tokio does not start.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A call has no answer.
    #[error("call {number}: {cause}")]
    Call {
        /// Of the call, from 0.
        number: u64,
        /// In words.
        cause: String,
    },
    /// An answer is not what it must be.
    #[error("wrong answer to call {0}")]
    Wrong(u64),
}

/// Where to call, and how much at a time.
struct Task<'a> {
    socket: &'a Path,
    rank: u32,
    in_flight: usize,
}

impl Task<'_> {
    fn to(&self, call: &Planned) -> To {
        let method = if call.is_put { "put" } else { "get" };
        To {
            rank: self.rank,
            service: name::service_number("registers"),
            method: name::method_number(method),
        }
    }
}

/// The life of a client in a process of its own: reads how many calls it is to make from standard input, makes them, and
/// writes how many ns they took; until standard input ends.
///
/// # Errors
///
/// [`ClientError`]. The first wrong answer ends the client.
pub fn run(arguments: &[String]) -> Result<(), ClientError> {
    let [form, socket, rank, first_key, in_flight] = arguments else {
        return Err(ClientError::Arguments);
    };
    let number = |text: &String| text.parse::<u32>().map_err(|_| ClientError::Arguments);
    let (rank, first_key, in_flight) = (number(rank)?, number(first_key)?, number(in_flight)?);
    let task = Task { socket: Path::new(socket), rank, in_flight: in_flight as usize };
    let mut plan = Plan::new(first_key);
    let form = Form::ALL.into_iter().find(|known| known.name() == form);
    let config = ClientConfig { timeout: PATIENCE, ..ClientConfig::default() };
    match form {
        Some(Form::Blocking) => {
            let mut client = Client::connect(task.socket, config)?;
            converse(|count| one_by_one(&mut client, &task, &mut plan, count))
        }
        Some(Form::Typed) => {
            let mut client = RegistersClient::new(Client::connect(task.socket, config)?, rank);
            converse(|count| typed(&mut client, &mut plan, count))
        }
        Some(Form::Pipeline) => {
            let mut pipeline = Pipeline::connect(task.socket, config)?;
            converse(|count| pipelined(&mut pipeline, &task, &mut plan, count))
        }
        Some(Form::Tokio) => {
            let client = TokioClient::connect(task.socket, config)?;
            let runtime = tokio::runtime::Builder::new_current_thread().build()?;
            converse(|count| runtime.block_on(awaited(&client, &task, &mut plan, count)))
        }
        Some(Form::C | Form::Python) | None => Err(ClientError::Arguments),
    }
}

/// Tells how long calls take, as often as it is asked.
fn converse(mut call: impl FnMut(u64) -> Result<(), ClientError>) -> Result<(), ClientError> {
    for line in io::stdin().lock().lines() {
        let count = line?.trim().parse::<u64>().map_err(|_| ClientError::Arguments)?;
        let begin = Instant::now();
        call(count)?;
        let took_ns = begin.elapsed().as_nanos();
        let mut stdout = io::stdout().lock();
        writeln!(stdout, "{took_ns}")?;
        stdout.flush()?;
    }
    Ok(())
}

fn checked(number: u64, answer: &[u8], word: u64) -> Result<(), ClientError> {
    if is_right(answer, word) { Ok(()) } else { Err(ClientError::Wrong(number)) }
}

fn failed(number: u64, cause: &CallError) -> ClientError {
    ClientError::Call { number, cause: cause.to_string() }
}

fn one_by_one(
    client: &mut Client,
    task: &Task<'_>,
    plan: &mut Plan,
    count: u64,
) -> Result<(), ClientError> {
    for _ in 0..count {
        let number = plan.number;
        let call = plan.next();
        let answer = client.call(task.to(&call), call.body());
        checked(number, answer.map_err(|error| failed(number, &error))?, call.answer)?;
    }
    Ok(())
}

fn typed(client: &mut RegistersClient, plan: &mut Plan, count: u64) -> Result<(), ClientError> {
    for _ in 0..count {
        let number = plan.number;
        let call = plan.next();
        let body = call.body().to_vec();
        let answer = if call.is_put { client.put(body) } else { client.get(body) };
        let failed = |error: TypedError| ClientError::Call { number, cause: error.to_string() };
        checked(number, &answer.map_err(failed)?, call.answer)?;
    }
    Ok(())
}

fn pipelined(
    pipeline: &mut Pipeline<(u64, u64)>,
    task: &Task<'_>,
    plan: &mut Plan,
    count: u64,
) -> Result<(), ClientError> {
    let end = plan.number + count;
    let mut outcome = Ok(());
    while plan.number < end || pipeline.in_flight() > 0 {
        while plan.number < end && pipeline.in_flight() < task.in_flight {
            let number = plan.number;
            let call = plan.next();
            let submitted = pipeline.submit(task.to(&call), call.body(), (number, call.answer));
            submitted.map_err(|refused| failed(number, &refused.error))?;
        }
        let ended = pipeline.poll(|(number, word), answer| {
            let told = answer.map_err(|error| failed(number, &error));
            let told = told.and_then(|answer| checked(number, answer, word));
            if outcome.is_ok() {
                outcome = told;
            }
        });
        std::mem::replace(&mut outcome, Ok(()))?;
        if ended == 0 {
            pipeline.rest();
        }
    }
    outcome
}

/// One future at a time, or as many as are to be in flight.
async fn awaited(
    client: &TokioClient,
    task: &Task<'_>,
    plan: &mut Plan,
    count: u64,
) -> Result<(), ClientError> {
    let end = plan.number + count;
    let mut flying = VecDeque::new();
    loop {
        while plan.number < end && flying.len() < task.in_flight {
            let number = plan.number;
            let call = plan.next();
            flying.push_back((number, call.answer, client.call(task.to(&call), call.body())));
        }
        let Some((number, word, answer)) = flying.pop_front() else { return Ok(()) };
        let answer = answer.await.map_err(|error| failed(number, &error))?;
        checked(number, &answer, word)?;
    }
}
