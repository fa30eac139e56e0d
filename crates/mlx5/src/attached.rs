//! What is attached to a completion queue: how many completions can arrive, and for whom.
//!
//! Queue pairs live on other threads than the completion queue they complete into, so this part of
//! it is shared. It is touched by creation, destruction and changes of state only; polling looks
//! at one counter to learn that its copy of the receivers is out of date.

use std::sync::{Mutex, MutexGuard, PoisonError};

use memory::sync::{Arc, AtomicU32, Ordering};
use verbs::{Cqn, CreateError, Qpn, Srqn, Transport};

/// Shared part of a completion queue.
#[derive(Debug)]
pub(crate) struct Attached {
    cqn: Cqn,
    entries: u32,
    allow_overcommit: bool,
    queues: Mutex<Queues>,
    /// Counts changes of `Queues::receivers`.
    version: AtomicU32,
}

#[derive(Debug, Default)]
struct Queues {
    /// Completions that can be outstanding at once.
    needed: u32,
    /// Each attached shared receive queue, with the number of queue pairs that use it here.
    srqs: Vec<(Srqn, u32)>,
    receivers: Vec<Receiver>,
}

/// A queue pair whose receives are not those of a plain connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Receiver {
    pub(crate) qpn: Qpn,
    /// UD or DCT.
    pub(crate) transport: Transport,
}

impl Attached {
    pub(crate) fn new(cqn: Cqn, entries: u32, allow_overcommit: bool) -> Self {
        let (queues, version) = (Mutex::default(), AtomicU32::new(0));
        Self { cqn, entries, allow_overcommit, queues, version }
    }

    pub(crate) fn cqn(&self) -> Cqn {
        self.cqn
    }

    /// No invariant spans a panic: every change below is complete before anything can fail.
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves room for `completions` at once, once per `srq` if they are of one.
    ///
    /// # Errors
    ///
    /// [`CreateError::CqTooSmall`], unless overcommitment is allowed.
    pub(crate) fn attach(
        self: &Arc<Self>,
        completions: u32,
        srq: Option<Srqn>,
    ) -> Result<Share, CreateError> {
        let mut queues = self.queues();
        let known = srq.and_then(|srqn| queues.srqs.iter().position(|srq| srq.0 == srqn));
        let added = if known.is_some() { 0 } else { completions };
        let needed = queues.needed.saturating_add(added);
        if needed > self.entries && !self.allow_overcommit {
            let (cqn, entries) = (self.cqn, self.entries);
            return Err(CreateError::CqTooSmall { cqn, entries, needed });
        }
        queues.needed = needed;
        match (known, srq) {
            (Some(at), _) => queues.srqs[at].1 += 1,
            (None, Some(srqn)) => queues.srqs.push((srqn, 1)),
            (None, None) => {}
        }
        drop(queues);
        Ok(Share { cq: Arc::clone(self), completions, srq, receiver: None })
    }

    /// Copies the receivers to `known` if they changed since `version`.
    #[inline]
    pub(crate) fn refresh(&self, version: &mut u32, known: &mut Vec<Receiver>) {
        // SYNC(cq-receivers): pairs with the increment in `Share::set_receiver`.
        if self.version.load(Ordering::Acquire) != *version {
            self.copy_receivers(version, known);
        }
    }

    #[cold]
    fn copy_receivers(&self, version: &mut u32, known: &mut Vec<Receiver>) {
        let queues = self.queues();
        known.clone_from(&queues.receivers);
        // Written under the lock only, so this is the version of what was copied.
        *version = self.version.load(Ordering::Relaxed);
    }

    fn change_receivers(&self, change: impl FnOnce(&mut Vec<Receiver>)) {
        let mut queues = self.queues();
        change(&mut queues.receivers);
        // SYNC(cq-receivers): pairs with the load in `refresh`.
        self.version.fetch_add(1, Ordering::Release);
    }
}

/// One queue's share of a completion queue. Dropping it gives the share back.
#[derive(Debug)]
pub(crate) struct Share {
    cq: Arc<Attached>,
    completions: u32,
    srq: Option<Srqn>,
    receiver: Option<Qpn>,
}

impl Share {
    /// Says of whom, and of what kind, the receive completions of this share are; `None`: of a
    /// connected queue pair, or of nobody.
    pub(crate) fn set_receiver(&mut self, receiver: Option<Receiver>) {
        let old = core::mem::replace(&mut self.receiver, receiver.map(|receiver| receiver.qpn));
        if old.is_none() && receiver.is_none() {
            return;
        }
        self.cq.change_receivers(|receivers| {
            receivers.retain(|known| Some(known.qpn) != old);
            receivers.extend(receiver);
        });
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set_receiver(None);
        let mut queues = self.cq.queues();
        let at = self.srq.and_then(|srqn| queues.srqs.iter().position(|srq| srq.0 == srqn));
        if let Some(at) = at {
            queues.srqs[at].1 -= 1;
            if queues.srqs[at].1 > 0 {
                return;
            }
            queues.srqs.swap_remove(at);
        }
        // Saturates where an overcommitted sum did.
        queues.needed = queues.needed.saturating_sub(self.completions);
    }
}
