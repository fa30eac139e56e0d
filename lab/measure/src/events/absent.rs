//! A build without counters.

use std::io;

use super::{CounterReading, EventCounter, EventSource, PerfEvent};

/// There is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineCounter {}

/// No event is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineEvents;

impl EventCounter for MachineCounter {
    fn read(&mut self) -> io::Result<CounterReading> {
        match *self {}
    }
}

impl EventSource for MachineEvents {
    type Counter = MachineCounter;

    fn open(&self, _: PerfEvent) -> Result<MachineCounter, String> {
        Err("this program was built without the feature `counters`; `cargo lab bench` has it"
            .to_owned())
    }
}
