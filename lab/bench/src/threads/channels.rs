//! The calls of [`flux`](super::flux) over channels of the standard library: what a program has without Flux.
//!
//! Each thread receives from one channel (`std::sync::mpsc`), into which all others send.

use std::{
    sync::{
        Barrier,
        mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError},
    },
    thread,
    time::{Duration, Instant},
};

use super::ThreadSetup;
use crate::{
    error::Error,
    shared_words::{PATIENCE, WaitError},
};

/// Calls in flight from one thread to another, as over Flux.
const CALLS_MAX: u64 = 32;
/// Longest sleep while there is nothing to do.
const SLEEP: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug)]
enum Message {
    Request {
        from: usize,
        number: u64,
    },
    Reply {
        from: usize,
        number: u64,
        reply: u64,
    },
    /// The sender has all its replies.
    Ended,
}

/// One sample: M calls/s of all threads together.
pub(super) fn run(stage: ThreadSetup<'_>, threads: usize, count: u64) -> Result<f64, Error> {
    let calls = (count / threads as u64).max(1);
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..threads).map(|_| mpsc::channel()).unzip();
    let barrier = &Barrier::new(threads);
    let times = thread::scope(|scope| {
        let start = |(number, receiver): (usize, Receiver<Message>)| {
            let senders = senders.clone();
            scope.spawn(move || {
                let entered = stage.enter(number);
                barrier.wait();
                entered?;
                let start = Instant::now();
                let mut worker = Worker::new(number, senders, receiver, calls);
                stage.leave(worker.work(start))?;
                Ok((start, Instant::now()))
            })
        };
        let running = receivers.into_iter().enumerate().map(start).collect::<Vec<_>>();
        let ended = running.into_iter().map(|thread| thread.join().expect("no panics"));
        ended.collect::<Result<Vec<(Instant, Instant)>, Error>>()
    })?;
    let start = times.iter().map(|(start, _)| *start).min();
    let stop = times.iter().map(|(_, stop)| *stop).max();
    let elapsed = stop.zip(start).map_or(Duration::ZERO, |(stop, start)| stop - start);
    Ok((calls * threads as u64) as f64 / elapsed.as_secs_f64() / 1e6)
}

/// Calls the others in turn, answers theirs, and stays until all are done.
struct Worker {
    number: usize,
    senders: Vec<Sender<Message>>,
    receiver: Receiver<Message>,
    calls: u64,
    sent: u64,
    replied: u64,
    /// Calls in flight, by thread.
    in_flight: Vec<u64>,
    ended: usize,
    has_told: bool,
    to: usize,
}

impl Worker {
    fn new(
        number: usize,
        senders: Vec<Sender<Message>>,
        receiver: Receiver<Message>,
        calls: u64,
    ) -> Self {
        let in_flight = vec![0; senders.len()];
        let to = (number + 1) % senders.len();
        let (sent, replied, ended, has_told) = (0, 0, 0, false);
        Self { number, senders, receiver, calls, sent, replied, in_flight, ended, has_told, to }
    }

    fn work(&mut self, start: Instant) -> Result<(), Error> {
        let others = self.senders.len() - 1;
        while !self.has_told || self.ended < others {
            self.call();
            if self.replied == self.calls && !self.has_told {
                self.has_told = true;
                let others = (0..self.senders.len()).filter(|other| *other != self.number);
                others.for_each(|other| self.send(other, Message::Ended));
            }
            let mut message = match self.receiver.try_recv() {
                Err(TryRecvError::Empty) if !self.has_told || self.ended < others => {
                    match self.receiver.recv_timeout(SLEEP) {
                        Err(RecvTimeoutError::Timeout) if start.elapsed() > PATIENCE => {
                            return Err(WaitError::TimedOut(PATIENCE).into());
                        }
                        received => received.ok(),
                    }
                }
                received => received.ok(),
            };
            while let Some(one) = message {
                self.take(one)?;
                message = self.receiver.try_recv().ok();
            }
        }
        Ok(())
    }

    /// Who is gone has all its replies, and needs nothing any more.
    fn send(&self, to: usize, message: Message) {
        let _ = self.senders[to].send(message);
    }

    fn call(&mut self) {
        let threads = self.senders.len();
        while self.sent < self.calls && self.in_flight[self.to] < CALLS_MAX {
            let number = self.sent;
            self.send(self.to, Message::Request { from: self.number, number });
            self.in_flight[self.to] += 1;
            self.sent += 1;
            self.to = (self.to + 1) % threads;
            if self.to == self.number {
                self.to = (self.to + 1) % threads;
            }
        }
    }

    fn take(&mut self, message: Message) -> Result<(), Error> {
        match message {
            Message::Request { from, number } => {
                self.send(from, Message::Reply { from: self.number, number, reply: number + 1 });
            }
            Message::Reply { from, number, reply } if reply == number + 1 => {
                self.in_flight[from] -= 1;
                self.replied += 1;
            }
            Message::Reply { number, reply, .. } => {
                let what = format!("came back with {reply}");
                return Err(Error::Call { index: number, what });
            }
            Message::Ended => self.ended += 1,
        }
        Ok(())
    }
}
