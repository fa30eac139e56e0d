//! The owner of time of a process's port: the monotonic clock.

use std::sync::{Mutex, PoisonError};

use softnic::{Cause, Timeline};
use verbs::{Lid, Qpn};

/// Time, and queue pairs that the port wants to be executed.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    runnable: Mutex<Vec<Qpn>>,
}

impl Clock {
    /// Queue pairs that have something to do, for a reason other than a doorbell.
    pub(crate) fn take(&self) -> Vec<Qpn> {
        core::mem::take(&mut self.runnable.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Timeline for Clock {
    fn now_ns(&self) -> u64 {
        os::clock::now_ns()
    }

    fn runnable(&self, _: Lid, qp: Qpn, _: Cause) {
        self.runnable.lock().unwrap_or_else(PoisonError::into_inner).push(qp);
    }

    fn idle(&self, _: Lid) -> bool {
        false
    }

    fn is_reliable(&self) -> bool {
        true
    }
}
