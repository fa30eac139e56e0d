//! Raw operations and calls of one machine with itself, against what was measured on ConnectX-7 (copyrpc performance
//! analysis of 2026-02-08, layer 3).
//!
//! The rate of one queue is a parameter, and so is the time of a byte, so the rows of rates and of large transfers say
//! little: eight constants meet eight rows, and rows of UD and of relaxed ordering are the same simulated number once more, and are called
//! fitted. Predicted is 1x32 of calls, by a time per message that was fitted to 8x256.

use serde::Serialize;

use super::{Compared, Standing};
use crate::{
    actors::pipeline::{self, Work},
    machine::LOOPBACK,
};

/// All numbers of a run. There is nothing random in it.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Every number.
    pub rows: Vec<Compared>,
    /// A hash of all turns.
    pub trace: u64,
}

impl Outcome {
    /// Numbers that are claimed and off by more than that.
    pub fn misses(&self) -> impl Iterator<Item = &Compared> {
        self.rows.iter().filter(|row| row.is_missed())
    }
}

/// Entries in flight that keep a queue busy.
const DEEP: u32 = 128;
const MIB: f64 = 1_048_576.0;

/// Simulates every number.
#[must_use]
pub fn run() -> Outcome {
    use Standing::{Fitted, Predicted, Shown};
    let mut outcome = Outcome { rows: Vec::new(), trace: 0 };
    let mut simulate = |work| {
        let (ns, trace) = pipeline::run(&LOOPBACK, work, 200);
        outcome.trace = outcome.trace.rotate_left(1) ^ trace;
        ns
    };
    let mut entries =
        |depth, queue_ns, post_ns| simulate(Work::Entries { depth, queue_ns, post_ns });
    let send = entries(DEEP, LOOPBACK.send, 0.0);
    let blue = entries(DEEP, LOOPBACK.send, LOOPBACK.doorbell);
    let write = entries(DEEP, LOOPBACK.write, 0.0);
    let trip_us = entries(1, LOOPBACK.send, 0.0) / 1000.0;
    let mut calls = |endpoints, depth| simulate(Work::Calls { endpoints, depth });
    let (one, pipelined, wide) = (calls(1, 1) / 1000.0, calls(1, 32), calls(8, 256));
    let mebibyte_us = trip_us + MIB * LOOPBACK.byte_ps / 1e6;
    let card = &measure::reference::LOOPBACK;
    let mut add = |what: &str, unit, reference, simulated, standing| {
        let what = what.to_owned();
        outcome.rows.push(Compared { what, unit, reference, simulated, standing });
    };
    add("SEND of 32 B, inline", "ns", card.send, send, Fitted);
    add("SEND of 32 B, a doorbell each", "ns", card.send_doorbell_each, blue, Fitted);
    add("WRITE with immediate of 32 B", "ns", card.write_imm, write, Fitted);
    add("SEND of 32 B over UD", "ns", card.ud_send, send, Fitted);
    add("RC, 32 B: round trip", "µs", card.round_trip / 1e3, trip_us, Fitted);
    add("UD, 32 B: round trip", "µs", card.ud_round_trip / 1e3, trip_us, Fitted);
    add("READ of 1 MiB", "µs", 47.4, mebibyte_us, Fitted);
    add("READ of 1 MiB, relaxed ordering", "µs", 47.3, mebibyte_us, Fitted);
    add("WRITE of 1 MiB, relaxed ordering", "µs", 47.4, mebibyte_us, Fitted);
    // The order of writes on PCIe is not in the model.
    add("WRITE of 1 MiB", "µs", 52.8, mebibyte_us, Shown);
    add("calls 1x1: round trip", "µs", card.call / 1e3, one, Fitted);
    add("calls 1x32: per call", "ns", card.call_of_32, pipelined, Predicted);
    add("calls 8x256: per call", "ns", 34.7, wide, Fitted);
    outcome
}
