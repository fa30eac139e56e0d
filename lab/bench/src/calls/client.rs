//! The side that calls and takes the time.

use std::{path::Path, thread, time::Duration};

use ipc::{BlockingClient, CallError, ClientConfig, PipelinedClient, Wait};
use memory::{LentBytes, sync::Ordering};

use super::{COMPARED_EVERY, Calls, NUMBER_BYTES, Shape};
use crate::{
    error::Error,
    sample::{BATCH, SamplePlan},
    shared_words::{PATIENCE, SharedWord, SharedWords},
    stats::Laps,
};

/// Silence before each call of [`Shape::AfterIdle`].
pub(super) const IDLE: Duration = Duration::from_millis(1);
/// Calls that are not timed: pages, caches and the server's attention.
pub(super) const WARM_UP: u64 = 4 * BATCH;
/// Answers per reading of the clock, and bytes beyond which there are fewer.
const CHUNK: u64 = 2048;
const CHUNK_BYTES: u64 = 16 << 20;

/// A message that changes with its number.
#[derive(Debug)]
pub struct NumberedMessage(Vec<u8>);

impl NumberedMessage {
    /// A message of 8, or at least 16 bytes.
    ///
    /// # Panics
    ///
    /// If it has another length.
    #[must_use]
    pub fn new(len_bytes: usize) -> Self {
        let is_stampable = len_bytes == NUMBER_BYTES || len_bytes >= 2 * NUMBER_BYTES;
        assert!(is_stampable, "a message has its number once, or at both ends");
        Self((0..len_bytes).map(|i| (i % 251).to_le_bytes()[0]).collect())
    }

    /// The message with `number` in its first and its last word.
    #[inline]
    pub fn stamp(&mut self, number: u64) -> &[u8] {
        let tail = self.0.len() - NUMBER_BYTES;
        self.0[..NUMBER_BYTES].copy_from_slice(&number.to_le_bytes());
        self.0[tail..].copy_from_slice(&number.to_le_bytes());
        &self.0
    }

    /// The number that begins and ends what is lent, every sixteenth time compared with all of the message.
    #[must_use]
    pub fn number_of(&self, lent: LentBytes<'_>, compared: &mut u64) -> Option<u64> {
        *compared += 1;
        let (mut first, mut last) = ([0; NUMBER_BYTES], [0; NUMBER_BYTES]);
        lent.copy_to(&mut first);
        lent.get(lent.len().checked_sub(NUMBER_BYTES)?..lent.len())?.copy_to(&mut last);
        let number = u64::from_le_bytes(first);
        let is_right = lent.len() == self.len()
            && first == last
            && (!compared.is_multiple_of(COMPARED_EVERY) || self.is(number, &lent.to_vec()));
        is_right.then_some(number)
    }

    /// Its length.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it has a number")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether `answer` is the message with `number`, every byte of it.
    #[inline]
    #[must_use]
    pub fn is(&self, number: u64, answer: &[u8]) -> bool {
        let number = number.to_le_bytes();
        let (len, tail) = (self.0.len(), self.0.len() - NUMBER_BYTES);
        answer.len() == len
            && answer[..NUMBER_BYTES] == number
            && answer[tail..] == number
            && (tail <= NUMBER_BYTES || answer[NUMBER_BYTES..tail] == self.0[NUMBER_BYTES..tail])
    }
}

fn failed(index: u64, cause: &CallError) -> Error {
    Error::Call { index, what: cause.to_string() }
}

fn wrong(index: u64) -> Error {
    Error::Call { index, what: "its answer is not the request".to_owned() }
}

/// Of every client: a server that is alive may wait long for a core.
pub(super) fn config(wait: Wait) -> ClientConfig {
    ClientConfig { wait, timeout: PATIENCE, connect_timeout: PATIENCE, ..ClientConfig::default() }
}

impl Calls {
    /// Calls, once the server is ready; ns per call, M calls/s of [`Shape::Window`], or GiB/s of [`Shape::OneWay`].
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn initiate(&self, shared: &SharedWords, sample: &SamplePlan) -> Result<f64, Error> {
        let wait = if self.blocks() { Wait::Block } else { Wait::Busy };
        let config = config(wait);
        let (socket, count) = (Self::socket(sample), sample.count);
        let value = match self.shape {
            Shape::RoundTrip | Shape::InPlace => self.round_trips(&socket, config, count)?,
            Shape::AfterIdle => self.after_idle(&socket, config, count)?,
            Shape::Window(depth) => 1e3 / self.windows(&socket, config, depth, count)?,
            Shape::Processes(depth) => 1e3 / self.of_processes(depth, sample)?,
            Shape::OneWay => {
                let each_ns = self.windows(&socket, config, super::DEPTH_ONE_WAY, count)?;
                self.len_bytes as f64 / each_ns * 1e9 / f64::from(1 << 30)
            }
        };
        // SYNC(calls-done): pairs with the Acquire in `respond`.
        shared.word(SharedWord::InitiatorDone).store(sample.number, Ordering::Release);
        Ok(value)
    }

    fn caller(&self, socket: &Path, config: ClientConfig) -> Result<Caller, Error> {
        let client = BlockingClient::connect(socket, config)?;
        let mut caller = Caller {
            client,
            message: NumberedMessage::new(self.len_bytes),
            number: 0,
            compared: (self.shape == Shape::InPlace).then_some(0),
        };
        (0..self.fewer(WARM_UP)).try_for_each(|_| caller.call())?;
        Ok(caller)
    }

    /// So many calls, or fewer if they are long.
    pub(super) fn fewer(&self, calls: u64) -> u64 {
        (CHUNK_BYTES / self.len_bytes as u64).clamp(1, calls)
    }

    fn round_trips(&self, socket: &Path, config: ClientConfig, count: u64) -> Result<f64, Error> {
        let mut caller = self.caller(socket, config)?;
        let mut laps = Laps::start();
        let batch = self.fewer(BATCH);
        for _ in 0..(count / batch).max(1) {
            (0..batch).try_for_each(|_| caller.call())?;
            laps.lap(batch);
        }
        Ok(laps.median_ns())
    }

    fn after_idle(&self, socket: &Path, config: ClientConfig, count: u64) -> Result<f64, Error> {
        let mut caller = self.caller(socket, config)?;
        let mut laps = Laps::start();
        for _ in 0..count {
            thread::sleep(IDLE);
            laps.restart();
            caller.call()?;
            laps.lap(1);
        }
        Ok(laps.median_ns())
    }

    /// ns per call of all clients together: the median over chunks of answers.
    fn windows(
        &self,
        socket: &Path,
        config: ClientConfig,
        depth: u16,
        count: u64,
    ) -> Result<f64, Error> {
        let depth = usize::from(depth);
        let mut fleet = Fleet::connect(socket, config, self)?;
        let in_flight = (fleet.clients.len() * depth) as u64;
        fleet.run(depth, self.fewer(WARM_UP) + in_flight)?;
        let (mut laps, mut answered) = (Laps::start(), 0);
        while answered < count {
            let chunk = fleet.run(depth, self.fewer(CHUNK))?;
            laps.lap(chunk);
            answered += chunk;
        }
        fleet.drain()?;
        Ok(laps.median_ns())
    }
}

/// One client that makes numbered calls.
struct Caller {
    client: BlockingClient,
    message: NumberedMessage,
    /// Of the latest call.
    number: u64,
    /// Calls in place: answers that were looked at.
    compared: Option<u64>,
}

impl Caller {
    #[inline]
    fn call(&mut self) -> Result<(), Error> {
        self.number += 1;
        if let Some(compared) = &mut self.compared {
            let request = self.message.stamp(self.number);
            let answer = self.client.call_lent(request);
            let answer = answer.map_err(|cause| failed(self.number, &cause))?;
            let is_right = self.message.number_of(answer, compared) == Some(self.number);
            return if is_right { Ok(()) } else { Err(wrong(self.number)) };
        }
        let answer = self.client.call(self.message.stamp(self.number));
        let answer = answer.map_err(|cause| failed(self.number, &cause))?;
        if self.message.is(self.number, answer) { Ok(()) } else { Err(wrong(self.number)) }
    }
}

/// Clients that are polled in turn.
pub(super) struct Fleet {
    clients: Vec<PipelinedClient<u64>>,
    message: NumberedMessage,
    /// What answers are compared with.
    answer: NumberedMessage,
    /// Calls ever sent.
    number: u64,
}

impl Fleet {
    pub(super) fn connect(
        socket: &Path,
        config: ClientConfig,
        calls: &Calls,
    ) -> Result<Self, Error> {
        let connect = |_| PipelinedClient::connect(socket, config);
        let clients = (0..calls.clients).map(connect).collect::<Result<_, _>>()?;
        let (message, answer) =
            (NumberedMessage::new(calls.len_bytes), NumberedMessage::new(calls.answer_bytes()));
        Ok(Self { clients, message, answer, number: 0 })
    }

    /// Keeps `depth` calls of each client in flight until at least `least` are answered; returns
    /// how many were.
    #[inline]
    fn run(&mut self, depth: usize, least: u64) -> Result<u64, Error> {
        let mut answered = 0;
        while answered < least {
            for client in &mut self.clients {
                answered += poll(client, &self.answer)?;
                fill(client, &mut self.message, &mut self.number, depth)?;
            }
        }
        Ok(answered)
    }

    /// Lets each client have `depth` calls in flight.
    fn fill(&mut self, depth: usize) -> Result<(), Error> {
        let Self { clients, message, number, .. } = self;
        clients.iter_mut().try_for_each(|client| fill(client, message, number, depth))
    }

    /// As [`run`](Self::run), and offers the core while there is nothing to do.
    pub(super) fn run_or_rest(&mut self, depth: usize, least: u64) -> Result<u64, Error> {
        let mut answered = 0;
        while answered < least {
            let before = answered;
            for client in &mut self.clients {
                answered += poll(client, &self.answer)?;
            }
            // One client in its own process: what it waits for comes from elsewhere.
            if answered == before && self.clients[0].in_flight() >= depth {
                self.clients[0].rest();
            }
            self.fill(depth)?;
        }
        Ok(answered)
    }

    /// Waits for what is in flight.
    pub(super) fn drain(&mut self) -> Result<(), Error> {
        for client in &mut self.clients {
            while client.in_flight() > 0 {
                if poll(client, &self.answer)? == 0 {
                    client.rest();
                }
            }
        }
        Ok(())
    }
}

/// Lets a client have `depth` calls in flight.
#[inline]
fn fill(
    client: &mut PipelinedClient<u64>,
    message: &mut NumberedMessage,
    number: &mut u64,
    depth: usize,
) -> Result<(), Error> {
    while client.in_flight() < depth {
        *number += 1;
        let number = *number;
        let submitted = client.submit(message.stamp(number), number);
        submitted.map_err(|refused| failed(number, &refused.error))?;
    }
    Ok(())
}

/// Takes answers, and checks them; how many there were.
#[inline]
fn poll(client: &mut PipelinedClient<u64>, expected: &NumberedMessage) -> Result<u64, Error> {
    let mut error = None;
    let count = client.poll(|number, answer: Result<&[u8], CallError>| match answer {
        Ok(answer) if expected.is(number, answer) => {}
        Ok(_) => error = Some(wrong(number)),
        Err(cause) => error = Some(failed(number, &cause)),
    });
    error.map_or(Ok(count as u64), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_with_one_wrong_byte_is_noticed() {
        for len_bytes in [8, 16, 56, 200] {
            let mut message = NumberedMessage::new(len_bytes);
            let answer = message.stamp(7).to_vec();
            assert!(message.is(7, &answer));
            assert!(!message.is(8, &answer) && !message.is(7, &answer[1..]));
            for index in 0..len_bytes {
                let mut wrong = answer.clone();
                wrong[index] ^= 1;
                assert!(!message.is(7, &wrong), "byte {index} of {len_bytes}");
            }
        }
    }
}
