//! Calls between two processes over `ipc`, every answer checked.
//!
//! | shape | timed |
//! |---|---|
//! | [`Shape::RoundTrip`] | one blocking call at a time, both sides poll; the median of batches of 50 |
//! | [`Shape::InPlace`] | the same, of bodies that are filled and read in place |
//! | [`Shape::Window`] | calls in flight per client, of clients that one thread polls in turn |
//! | [`Shape::Processes`] | the same, each client a process of its own |
//! | [`Shape::OneWay`] | four long requests in flight, answered with eight bytes |
//! | [`Shape::AfterIdle`] | one call after a millisecond of silence, both sides asleep |
//!
//! The server echoes. Each request carries its number in its first and in its last eight bytes, so
//! an answer to another call is noticed, and all bytes of each answer are compared. In place the numbers alone
//! are read, as a program does that looks at the head of a message, and all bytes of one message in sixteen.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::sample::SamplePlan;

mod client;
mod processes;
mod server;

pub use client::NumberedMessage;
pub use processes::{CALLER_COMMAND, serve_caller};

/// Calls in flight per client of short messages that the server has room for.
pub const DEPTH: u16 = 64;
/// Calls in flight that go one way, and the room for calls of long messages.
const DEPTH_ONE_WAY: u16 = 4;
/// Messages that are longer are long.
const LONG_BYTES: usize = 16 << 10;
/// Longest message that travels in a slot.
const INLINE_BYTES_MAX: usize = 56;
const LINE_BYTES: usize = 64;
/// Of messages of which the numbers are read, all bytes of so many are compared.
pub(crate) const COMPARED_EVERY: u64 = 16;
/// Shortest message: it has a number.
const NUMBER_BYTES: usize = size_of::<u64>();

/// How calls follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// The next after the answer.
    RoundTrip,
    /// The next after the answer, both of them filled and read in place.
    InPlace,
    /// So many in flight per client.
    Window(u16),
    /// So many in flight per client, each client a process of its own.
    Processes(u16),
    /// Some in flight, answered with their number alone.
    OneWay,
    /// The next a while after the answer.
    AfterIdle,
}

/// Calls to a server in the other process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calls {
    /// Length of request and response: 8, or at least 16.
    pub len_bytes: usize,
    /// Clients, all in the initiator unless they are [processes](Shape::Processes).
    pub clients: u16,
    /// Slots of the rings of each client; a power of two.
    pub ring: u16,
    /// How calls follow each other.
    pub shape: Shape,
}

impl Calls {
    /// Cache lines that a call moves as designed while both sides poll.
    pub(crate) fn lines(self) -> f64 {
        let bulk_bytes = if self.len_bytes <= INLINE_BYTES_MAX { 0 } else { self.len_bytes };
        2.0 * (1 + bulk_bytes.div_ceil(LINE_BYTES)) as f64
    }

    /// Of an answer.
    fn answer_bytes(self) -> usize {
        if self.shape == Shape::OneWay { NUMBER_BYTES } else { self.len_bytes }
    }

    /// Calls per client that the server has room for.
    fn server_depth(self) -> u16 {
        if self.len_bytes > LONG_BYTES { DEPTH_ONE_WAY } else { self.ring }
    }

    /// Where the server listens.
    fn socket(sample: &SamplePlan) -> PathBuf {
        sample.folder.join("ipc")
    }

    /// Time that passes before each call and is not measured, in ns.
    pub(crate) fn silence_ns(self) -> f64 {
        if self.blocks() { client::IDLE.as_secs_f64() * 1e9 } else { 0.0 }
    }

    /// Whether both sides sleep in the kernel while they wait.
    fn blocks(self) -> bool {
        self.shape == Shape::AfterIdle
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_rig::value_of;

    fn runs(calls: Calls, sample: &SamplePlan) {
        let value = value_of(
            |shared, ready| calls.respond(shared, sample, ready),
            |shared| calls.initiate(shared, sample),
        );
        assert!(value.is_finite() && value > 0.0, "{calls:?}: {value}");
    }

    #[test]
    fn every_shape_checks_its_answers() {
        let folder = std::env::temp_dir().join(format!("copyrpc-t-{}", std::process::id()));
        let shapes = [
            Calls { len_bytes: 8, clients: 1, ring: DEPTH, shape: Shape::RoundTrip },
            Calls { len_bytes: 4096, clients: 1, ring: DEPTH, shape: Shape::RoundTrip },
            Calls { len_bytes: 56, clients: 1, ring: DEPTH, shape: Shape::InPlace },
            Calls { len_bytes: 4096, clients: 1, ring: DEPTH, shape: Shape::InPlace },
            Calls { len_bytes: 56, clients: 16, ring: DEPTH, shape: Shape::Window(4) },
            Calls { len_bytes: 64, clients: 1, ring: DEPTH, shape: Shape::Window(32) },
            Calls { len_bytes: 1 << 20, clients: 1, ring: DEPTH, shape: Shape::RoundTrip },
            Calls { len_bytes: 1 << 20, clients: 1, ring: DEPTH, shape: Shape::OneWay },
            Calls { len_bytes: 56, clients: 1, ring: DEPTH, shape: Shape::AfterIdle },
        ];
        for (calls, number) in shapes.into_iter().zip(1..) {
            let count = if calls.len_bytes > LONG_BYTES { 40 } else { 300 };
            runs(calls, &SamplePlan { count, number, folder: folder.clone(), cores: Vec::new() });
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn longer_messages_are_designed_to_move_their_lines_beside_the_slot() {
        let lines = |len_bytes| {
            Calls { len_bytes, clients: 1, ring: DEPTH, shape: Shape::RoundTrip }
                .lines()
                .to_string()
        };
        assert_eq!([8, 56, 64, 4096].map(lines), ["2", "2", "4", "130"]);
    }
}
