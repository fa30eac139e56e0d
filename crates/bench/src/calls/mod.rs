//! Calls between two processes over `ipc`, every answer checked.
//!
//! | shape | timed |
//! |---|---|
//! | [`Shape::RoundTrip`] | one blocking call at a time, both sides poll; the median of batches of 50 |
//! | [`Shape::Window`] | calls in flight per client, of clients that one thread polls in turn |
//! | [`Shape::AfterIdle`] | one call after a millisecond of silence, both sides asleep |
//!
//! The server echoes. Each request carries its number in its first and in its last eight bytes, so
//! an answer to another call is noticed, and all bytes of each answer are compared.

use std::{
    io,
    path::{Path, PathBuf},
};

use ipc::{BindError, CallError, ConnectError, ReplyError};
use serde::{Deserialize, Serialize};

use crate::{
    duo::DuoError,
    plan::{against, planned, references_of_lines, size},
    report::Metric,
    suite::{Job, Planned},
};

mod client;
mod server;

pub use client::Message;

/// Reference of every call: what two processes do with a ring of one-line slots and nothing else.
pub const SLOT_ROUND_TRIP: &str = "limit/slot-round-trip/56B";
/// Reference of every rate of calls.
pub const SLOT_RATE: &str = "limit/slot-window-32/56B";

/// Most calls in flight per client.
const DEPTH: u16 = 64;
/// Most clients at a time.
const CLIENTS_MAX: u16 = 16;
/// Longest message that travels in a slot.
const INLINE_BYTES_MAX: usize = 56;
const LINE_BYTES: usize = 64;
/// Shortest message: it has a number.
const NUMBER_BYTES: usize = size_of::<u64>();

/// How calls follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// The next after the answer.
    RoundTrip,
    /// So many in flight per client.
    Window(u16),
    /// The next a while after the answer.
    AfterIdle,
}

/// Calls to a server in the other process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calls {
    /// Length of request and response: 8, or at least 16.
    pub len_bytes: usize,
    /// Clients, all in the initiator.
    pub clients: u16,
    /// How calls follow each other.
    pub shape: Shape,
}

/// One sample: both sides get the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallSample {
    /// What is called.
    pub calls: Calls,
    /// Calls of all clients together.
    pub count: u64,
    /// Different for every sample, and not 0.
    pub number: u64,
    /// Where the server listens, in a directory that it creates.
    pub socket: PathBuf,
}

/// Why calls have no number.
#[derive(Debug, thiserror::Error)]
pub enum CallsError {
    /// No server.
    #[error("cannot start the server: {0}")]
    Bind(#[from] BindError),
    /// No client.
    #[error("cannot connect: {0}")]
    Connect(#[from] ConnectError),
    /// A call has no answer.
    #[error("call {number} failed: {cause}")]
    Call {
        /// Counted from 1.
        number: u64,
        /// How it ended.
        cause: CallError,
    },
    /// A call has the answer of another one, or none that anybody sent.
    #[error("the answer of call {number} is not the request")]
    WrongAnswer {
        /// Counted from 1.
        number: u64,
    },
    /// The server could not answer.
    #[error("cannot answer: {0}")]
    Reply(#[from] ReplyError),
    /// The control connection failed.
    #[error(transparent)]
    Duo(#[from] DuoError),
}

impl Calls {
    /// Cache lines that a call moves as designed while both sides poll.
    fn lines(self) -> f64 {
        let bulk_bytes = if self.len_bytes <= INLINE_BYTES_MAX { 0 } else { self.len_bytes };
        2.0 * (1 + bulk_bytes.div_ceil(LINE_BYTES)) as f64
    }

    fn planned(self) -> Planned {
        let (len, clients) = (size(self.len_bytes), self.clients);
        let job = Job::Calls(self);
        match self.shape {
            Shape::RoundTrip => {
                let name = format!("ipc/round-trip/{len}");
                let cell = planned(&name, Metric::RoundTrip, job).lines(self.lines());
                against(cell, SLOT_ROUND_TRIP)
            }
            Shape::Window(depth) => {
                let name = format!("ipc/{clients}-clients/depth-{depth}/{len}");
                against(planned(&name, Metric::Rate, job).lines(self.lines()), SLOT_RATE)
            }
            // Wake-ups of the kernel: lines do not matter.
            Shape::AfterIdle => {
                let name = format!("ipc/after-idle/{len}");
                against(planned(&name, Metric::RoundTrip, job), SLOT_ROUND_TRIP)
            }
        }
    }

    /// Time per call, in ns, of a sample whose number was `value`.
    pub(crate) fn call_ns(self, value: f64) -> f64 {
        match self.shape {
            Shape::RoundTrip => value,
            Shape::Window(_) => 1e3 / value,
            Shape::AfterIdle => value + client::IDLE.as_secs_f64() * 1e9,
        }
    }

    /// Whether both sides sleep in the kernel while they wait.
    fn blocks(self) -> bool {
        self.shape == Shape::AfterIdle
    }
}

/// The cells of `bench ipc`, after what they are compared with.
#[must_use]
pub fn plan(quick: bool) -> Vec<Planned> {
    let slots = |name: &str, metric, window, reference: &str| {
        against(planned(name, metric, Job::Slots(window)).lines(2.0), reference)
    };
    let mut plan = references_of_lines();
    plan.push(slots(SLOT_ROUND_TRIP, Metric::RoundTrip, 1, crate::plan::LINE_ROUND_TRIP));
    plan.push(slots(SLOT_RATE, Metric::Rate, 32, crate::plan::LINE_STREAM));
    let sizes: &[usize] = if quick { &[8, 56, 4096] } else { &[8, 56, 64, 256, 1024, 4096] };
    for &len_bytes in sizes {
        plan.push(Calls { len_bytes, clients: 1, shape: Shape::RoundTrip }.planned());
    }
    let clients: &[u16] = if quick { &[1, 4] } else { &[1, 2, 4, 8, CLIENTS_MAX] };
    for &clients in clients {
        for depth in [1, 4, 32] {
            let shape = Shape::Window(depth);
            plan.push(Calls { len_bytes: 56, clients, shape }.planned());
        }
    }
    for len_bytes in [8, 4096] {
        plan.push(Calls { len_bytes, clients: 1, shape: Shape::Window(32) }.planned());
    }
    plan.push(Calls { len_bytes: 56, clients: 1, shape: Shape::AfterIdle }.planned());
    plan
}

/// Where the server listens; gone with the value.
#[derive(Debug)]
pub(crate) struct SocketDir(PathBuf);

impl SocketDir {
    /// The server creates it, for its user alone.
    pub(crate) fn new() -> Self {
        Self(std::env::temp_dir().join(format!("copyrpc-bench-{}", std::process::id())))
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.0.join("ipc")
    }

    fn remove(&self) -> io::Result<()> {
        std::fs::remove_dir_all(Path::new(&self.0))
    }
}

impl Drop for SocketDir {
    fn drop(&mut self) {
        // It was never created if no cell made calls.
        let _ = self.remove();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::board::Board;

    fn runs(calls: Calls, number: u64, socket: &Path) {
        let board = &Board::new().unwrap();
        let sample = &CallSample { calls, count: 300, number, socket: socket.to_owned() };
        let (ready, is_ready) = std::sync::mpsc::channel();
        let value = thread::scope(|scope| {
            let server = scope.spawn(move || {
                sample.respond(board, &mut || {
                    let _ = ready.send(());
                    Ok(())
                })
            });
            is_ready.recv().unwrap();
            let value = sample.initiate(board);
            server.join().unwrap().unwrap();
            value.unwrap()
        });
        assert!(value.is_finite() && value > 0.0, "{calls:?}: {value}");
    }

    #[test]
    fn every_shape_checks_its_answers() {
        let dir = SocketDir(std::env::temp_dir().join(format!("copyrpc-t-{}", std::process::id())));
        let shapes = [
            Calls { len_bytes: 8, clients: 1, shape: Shape::RoundTrip },
            Calls { len_bytes: 4096, clients: 1, shape: Shape::RoundTrip },
            Calls { len_bytes: 56, clients: 16, shape: Shape::Window(4) },
            Calls { len_bytes: 64, clients: 1, shape: Shape::Window(32) },
            Calls { len_bytes: 56, clients: 1, shape: Shape::AfterIdle },
        ];
        for (calls, number) in shapes.into_iter().zip(1..) {
            runs(calls, number, &dir.socket());
        }
    }

    #[test]
    fn longer_messages_are_designed_to_move_their_lines_beside_the_slot() {
        let lines = |len_bytes| {
            Calls { len_bytes, clients: 1, shape: Shape::RoundTrip }.planned().cell.lines
        };
        let found = [8, 56, 64, 4096].map(lines);
        assert_eq!(found, [2.0, 2.0, 4.0, 130.0].map(Some));
    }
}
