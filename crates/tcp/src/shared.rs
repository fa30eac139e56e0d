//! The common state of the parts of a port: its name and secret, the ports that it knows, and ready queue pairs.

use std::{
    collections::{HashSet, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

use memory::sync::{AtomicBool, AtomicU64, Ordering};
use os::ready_set::ReadySet;
use verbs::Qpn;

use crate::{PortName, Secret, aliases::Aliases};

/// Queue pairs that have something to do, each once.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    queue: Mutex<(VecDeque<Qpn>, HashSet<Qpn>)>,
    has_some: AtomicBool,
}

impl Ready {
    fn lock(&self) -> MutexGuard<'_, (VecDeque<Qpn>, HashSet<Qpn>)> {
        // A queue pair that is in one of the two only is looked at once more, or once less often.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, qp: Qpn) {
        let mut queue = self.lock();
        if queue.1.insert(qp) {
            queue.0.push_back(qp);
        }
        self.has_some.store(true, Ordering::Relaxed);
    }

    pub(crate) fn pop(&self) -> Option<Qpn> {
        if !self.has_some.load(Ordering::Relaxed) {
            return None;
        }
        let mut queue = self.lock();
        let qp = queue.0.pop_front();
        match qp {
            Some(qp) => drop(queue.1.remove(&qp)),
            None => self.has_some.store(false, Ordering::Relaxed),
        }
        qp
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.has_some.load(Ordering::Relaxed) || self.lock().0.is_empty()
    }
}

/// The common state of all parts of a port.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) name: PortName,
    pub(crate) key: Secret,
    pub(crate) aliases: Aliases,
    pub(crate) ready: Ready,
    /// Listener and streams.
    pub(crate) set: ReadySet,
    /// Longest silence of a port that owes answers.
    pub(crate) timeout_ns: u64,
    /// When a program that sleeps has to call in.
    pub(crate) next_ns: AtomicU64,
}
