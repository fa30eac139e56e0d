//! The side that calls and takes the time.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use ipc::{AsyncClient, CallError, ClientConfig, SyncClient, Wait};
use memory::sync::Ordering;

use super::{CallSample, CallsError, NUMBER_BYTES, Shape};
use crate::{
    board::{Board, Word},
    stats,
    traffic::BATCH,
};

/// Silence before each call of [`Shape::AfterIdle`].
pub(super) const IDLE: Duration = Duration::from_millis(1);
/// Calls that are not timed: pages, caches and the server's attention.
const WARM_UP: u64 = 4 * BATCH;
/// Answers per reading of the clock.
const CHUNK: u64 = 2048;

/// A message that changes with its number.
#[derive(Debug)]
pub struct Message(Vec<u8>);

impl Message {
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

impl CallSample {
    /// Calls, once the server is ready; ns per call, or M calls/s of [`Shape::Window`].
    ///
    /// # Errors
    ///
    /// [`CallsError`].
    pub fn initiate(&self, board: &Board) -> Result<f64, CallsError> {
        let config = ClientConfig {
            wait: if self.calls.blocks() { Wait::Block } else { Wait::Busy },
            ..ClientConfig::default()
        };
        let value = match self.calls.shape {
            Shape::RoundTrip => self.round_trips(config)?,
            Shape::Window(depth) => self.windows(config, usize::from(depth))?,
            Shape::AfterIdle => self.after_idle(config)?,
        };
        // SYNC(calls-done): pairs with the Acquire in `respond`.
        board.word(Word::InitiatorDone).store(self.number, Ordering::Release);
        Ok(value)
    }

    fn caller(&self, config: ClientConfig) -> Result<Caller, CallsError> {
        let client = SyncClient::connect(&self.socket, config)?;
        let mut caller = Caller { client, message: Message::new(self.calls.len_bytes), number: 0 };
        (0..WARM_UP).try_for_each(|_| caller.call())?;
        Ok(caller)
    }

    fn round_trips(&self, config: ClientConfig) -> Result<f64, CallsError> {
        let mut caller = self.caller(config)?;
        let mut batches_ns = Vec::with_capacity(4096);
        let mut last = Instant::now();
        for _ in 0..(self.count / BATCH).max(1) {
            (0..BATCH).try_for_each(|_| caller.call())?;
            let now = Instant::now();
            batches_ns.push((now - last).as_secs_f64() * 1e9 / BATCH as f64);
            last = now;
        }
        Ok(stats::median(&mut batches_ns))
    }

    fn after_idle(&self, config: ClientConfig) -> Result<f64, CallsError> {
        let mut caller = self.caller(config)?;
        let mut calls_ns = Vec::new();
        for _ in 0..self.count {
            thread::sleep(IDLE);
            let begin = Instant::now();
            caller.call()?;
            calls_ns.push(begin.elapsed().as_secs_f64() * 1e9);
        }
        Ok(stats::median(&mut calls_ns))
    }

    /// M calls/s of all clients together: the median over chunks of answers.
    fn windows(&self, config: ClientConfig, depth: usize) -> Result<f64, CallsError> {
        let mut fleet = Fleet::connect(&self.socket, config, self.calls.clients)?;
        let mut message = Message::new(self.calls.len_bytes);
        fleet.run(&mut message, depth, WARM_UP + fleet.clients.len() as u64 * depth as u64)?;
        let mut rates = Vec::with_capacity(4096);
        let (mut last, mut answered) = (Instant::now(), 0);
        while answered < self.count {
            let chunk = fleet.run(&mut message, depth, CHUNK)?;
            let now = Instant::now();
            rates.push(chunk as f64 / (now - last).as_secs_f64() / 1e6);
            answered += chunk;
            last = now;
        }
        fleet.drain(&message)?;
        Ok(stats::median(&mut rates))
    }
}

/// One client that makes numbered calls.
struct Caller {
    client: SyncClient,
    message: Message,
    /// Of the latest call.
    number: u64,
}

impl Caller {
    #[inline]
    fn call(&mut self) -> Result<(), CallsError> {
        self.number += 1;
        let number = self.number;
        let answer = self.client.call(self.message.stamp(number));
        let answer = answer.map_err(|cause| CallsError::Call { number, cause })?;
        if self.message.is(number, answer) {
            Ok(())
        } else {
            Err(CallsError::WrongAnswer { number })
        }
    }
}

/// Clients that are polled in turn.
struct Fleet {
    clients: Vec<AsyncClient<u64>>,
    /// Calls ever sent.
    number: u64,
}

impl Fleet {
    fn connect(socket: &Path, config: ClientConfig, count: u16) -> Result<Self, CallsError> {
        let connect = |_| AsyncClient::connect(socket, config);
        Ok(Self { clients: (0..count).map(connect).collect::<Result<_, _>>()?, number: 0 })
    }

    /// Keeps `depth` calls of each client in flight until at least `least` are answered; returns
    /// how many were.
    #[inline]
    fn run(&mut self, message: &mut Message, depth: usize, least: u64) -> Result<u64, CallsError> {
        let mut answered = 0;
        while answered < least {
            for client in &mut self.clients {
                answered += poll(client, message)?;
                while client.in_flight() < depth {
                    self.number += 1;
                    let number = self.number;
                    client
                        .submit(message.stamp(number), number)
                        .map_err(|refused| CallsError::Call { number, cause: refused.error })?;
                }
            }
        }
        Ok(answered)
    }

    /// Waits for what is in flight.
    fn drain(&mut self, message: &Message) -> Result<(), CallsError> {
        for client in &mut self.clients {
            while client.in_flight() > 0 {
                if poll(client, message)? == 0 {
                    client.rest();
                }
            }
        }
        Ok(())
    }
}

/// Takes answers, and checks them; how many there were.
#[inline]
fn poll(client: &mut AsyncClient<u64>, message: &Message) -> Result<u64, CallsError> {
    let mut wrong = None;
    let count = client.poll(|number, answer: Result<&[u8], CallError>| match answer {
        Ok(answer) if message.is(number, answer) => {}
        Ok(_) => wrong = Some(CallsError::WrongAnswer { number }),
        Err(cause) => wrong = Some(CallsError::Call { number, cause }),
    });
    wrong.map_or(Ok(count as u64), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_with_one_wrong_byte_is_noticed() {
        for len_bytes in [8, 16, 56, 200] {
            let mut message = Message::new(len_bytes);
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
