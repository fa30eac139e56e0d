//! Calls between n threads that all call each other.

use std::{
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use inproc::{
    Waiting,
    flux::{self, Config, Event},
    spsc::Discipline,
};

use super::ThreadSetup;
use crate::{
    error::Error,
    shared_words::{PATIENCE, WaitError},
};

/// Calls in flight from one thread to another.
const CALLS_MAX: u32 = 32;
/// Longest sleep while there is nothing to do; replies end it earlier.
const SLEEP: Duration = Duration::from_millis(10);

type Node<D> = flux::Node<u64, u64, u64, D>;

/// One sample: M calls/s of all threads together.
pub(super) fn run<D: Discipline>(
    stage: ThreadSetup<'_>,
    threads: usize,
    count: u64,
) -> Result<f64, Error> {
    let waiting = Waiting::default();
    let config = Config { nodes: threads, calls_max: CALLS_MAX, waiting, ..Config::default() };
    let calls = (count / threads as u64).max(1);
    let barrier = &Barrier::new(threads);
    let times = thread::scope(|scope| {
        let run = move |node: Node<D>| {
            let entered = stage.enter(node.number());
            barrier.wait();
            entered?;
            let start = Instant::now();
            Worker::new(node, threads, calls).work(start)?;
            Ok((start, Instant::now()))
        };
        let mesh = flux::mesh::<u64, u64, u64, D>(config);
        let running =
            mesh.into_iter().map(|node| scope.spawn(move || run(node))).collect::<Vec<_>>();
        let ended = running.into_iter().map(|thread| thread.join().expect("no panics"));
        ended.collect::<Result<Vec<(Instant, Instant)>, Error>>()
    })?;
    let start = times.iter().map(|(start, _)| *start).min();
    let stop = times.iter().map(|(_, stop)| *stop).max();
    let elapsed = stop.zip(start).map_or(Duration::ZERO, |(stop, start)| stop - start);
    Ok((calls * threads as u64) as f64 / elapsed.as_secs_f64() / 1e6)
}

/// Calls the others in turn, answers theirs, and stays until all are done.
struct Worker<D: Discipline> {
    node: Node<D>,
    threads: usize,
    calls: u64,
    sent: u64,
    replied: u64,
    /// Others that were told that this one has all its replies.
    told: usize,
    /// Others that told so.
    ended: usize,
    /// Whom to call next, counted from this one.
    offset: usize,
}

impl<D: Discipline> Worker<D> {
    fn new(node: Node<D>, threads: usize, calls: u64) -> Self {
        Self { node, threads, calls, sent: 0, replied: 0, told: 0, ended: 0, offset: 1 }
    }

    fn other(&self, offset: usize) -> usize {
        (self.node.number() + offset) % self.threads
    }

    fn work(&mut self, start: Instant) -> Result<(), Error> {
        let others = self.threads - 1;
        while self.replied < self.calls || self.told < others || self.ended < others {
            self.call();
            self.tell();
            if !self.poll()? {
                self.node.wait(os::clock::deadline_ns(SLEEP));
                if start.elapsed() > PATIENCE {
                    return Err(WaitError::TimedOut(PATIENCE).into());
                }
            }
        }
        Ok(())
    }

    fn call(&mut self) {
        while self.sent < self.calls {
            let to = self.other(self.offset);
            if self.node.call(to, self.sent, self.sent).is_err() {
                return;
            }
            self.sent += 1;
            self.offset = self.offset % (self.threads - 1) + 1;
        }
    }

    /// Once all replies are here: nobody who still calls may find this thread gone.
    fn tell(&mut self) {
        while self.replied == self.calls && self.told < self.threads - 1 {
            if self.node.notify(self.other(1 + self.told), 0).is_err() {
                return;
            }
            self.told += 1;
        }
    }

    /// False if nothing happened.
    fn poll(&mut self) -> Result<bool, Error> {
        let mut happened = false;
        while let Some(event) = self.node.poll() {
            happened = true;
            match event {
                Event::Request { request, reply, .. } => reply.send(request + 1),
                Event::Notice { .. } => self.ended += 1,
                Event::Reply { user, result: Ok(reply), .. } if reply == user + 1 => {
                    self.replied += 1;
                }
                Event::Reply { user: number, result, .. } => {
                    return Err(Error::Call {
                        index: number,
                        what: format!("came back with {result:?}"),
                    });
                }
            }
        }
        Ok(happened)
    }
}
