//! The time of a simulated process.

use std::{cell::Cell, rc::Rc};

use client::ProviderClock;

/// The clock of a node, as a process of it reads it.
#[derive(Clone, Debug, Default)]
pub(super) struct SimClock(Rc<Cell<u64>>);

impl SimClock {
    pub(super) fn set(&self, now_ns: u64) {
        self.0.set(now_ns);
    }
}

impl ProviderClock for SimClock {
    fn now_ns(&self) -> u64 {
        self.0.get()
    }
}
