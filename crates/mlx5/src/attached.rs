//! The queues attached to a completion queue: the number of completions that can arrive, and their receivers.
//!
//! Queue pairs live on other threads than the completion queue they complete into, so this part of
//! it is shared. It is touched by creation, destruction and changes of state only; polling looks
//! at one counter to learn that its copy of the receivers is out of date.

use std::sync::{Mutex, MutexGuard, PoisonError};

use memory::sync::{Arc, AtomicU32, Ordering};
use verbs::{Cqn, CreateError, Qpn, Srqn, Transport};

use crate::{entries::Peek, srq::Returned};

/// Shared part of a completion queue.
#[derive(Debug)]
pub(crate) struct Attached {
    cqn: Cqn,
    entries: u32,
    allow_overcommit: bool,
    queues: Mutex<Queues>,
    /// Counts changes of `Queues::receivers` and `Queues::departed`.
    version: AtomicU32,
    /// `None` once the completion queue is gone.
    peek: Mutex<Option<Peek>>,
}

#[derive(Debug, Default)]
struct Queues {
    /// Completions that can be outstanding at once.
    needed: u32,
    /// Each attached shared receive queue, with the number of queue pairs that use it here.
    srqs: Vec<(Srqn, u32)>,
    receivers: Vec<Receiver>,
    /// Not yet taken over by the completion queue.
    departed: Vec<Departed>,
}

/// A queue pair that was reset or destroyed: what it completed before is not reported.
#[derive(Clone, Debug)]
pub(crate) struct Departed {
    pub(crate) qpn: Qpn,
    /// The SRQ of its receives, to which their buffers return.
    pub(crate) srq: Option<Arc<Returned>>,
    /// Its entries lie before this position, modulo 2²⁴.
    pub(crate) until: u32,
}

/// A queue pair whose receives are not those of a plain connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Receiver {
    pub(crate) qpn: Qpn,
    /// UD or DCT.
    pub(crate) transport: Transport,
}

impl Attached {
    pub(crate) fn new(cqn: Cqn, entries: u32, allow_overcommit: bool, peek: Peek) -> Self {
        let (queues, version) = (Mutex::default(), AtomicU32::new(0));
        let peek = Mutex::new(Some(peek));
        Self { cqn, entries, allow_overcommit, queues, version, peek }
    }

    /// The completion queue, and its memory, are about to go.
    pub(crate) fn close(&self) {
        *self.peek.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Queue pair `qpn` was reset or destroyed, and completes nothing any more.
    fn depart(&self, qpn: Qpn, srq: Option<&Arc<Returned>>) {
        let mut peek = self.peek.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(until) = peek.as_mut().and_then(Peek::end) else { return };
        drop(peek);
        let mut queues = self.queues();
        queues.departed.push(Departed { qpn, until, srq: srq.cloned() });
        // SYNC(cq-attached): pairs with the load in `is_known`.
        self.version.fetch_add(1, Ordering::Release);
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

    /// Whether `known` is up to date.
    #[inline(always)]
    pub(crate) fn is_known(&self, known: &Known) -> bool {
        // SYNC(cq-attached): pairs with the increments in `depart` and `change_receivers`.
        self.version.load(Ordering::Acquire) == known.version
    }

    /// Brings `known` up to date.
    #[inline]
    pub(crate) fn refresh(&self, known: &mut Known) {
        if !self.is_known(known) {
            self.update(known);
        }
    }

    #[cold]
    fn update(&self, known: &mut Known) {
        let mut queues = self.queues();
        known.receivers.clone_from(&queues.receivers);
        known.departed.append(&mut queues.departed);
        // Written under the lock only, so this is the version of what was copied.
        known.version = self.version.load(Ordering::Relaxed);
    }

    fn change_receivers(&self, change: impl FnOnce(&mut Vec<Receiver>)) {
        let mut queues = self.queues();
        change(&mut queues.receivers);
        // SYNC(cq-attached): pairs with the load in `is_known`.
        self.version.fetch_add(1, Ordering::Release);
    }
}

/// The copy of the above that the polling half of a completion queue uses.
#[derive(Debug, Default)]
pub(crate) struct Known {
    version: u32,
    pub(crate) receivers: Vec<Receiver>,
    pub(crate) departed: Vec<Departed>,
    /// The queue was armed for solicited events, so solicited entries are noted. Here, because it is one more
    /// reason to look closer at entries.
    pub(crate) is_watched: bool,
}

impl Known {
    /// Whether all queue pairs here are connected ones, none has departed lately, and nobody waits for
    /// solicited events.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        self.receivers.is_empty() && self.departed.is_empty() && !self.is_watched
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
    /// Queue pair `qpn` was reset or destroyed, and completes nothing any more.
    pub(crate) fn depart(&self, qpn: Qpn, srq: Option<&Arc<Returned>>) {
        self.cq.depart(qpn, srq);
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{entries::Entries, ring::heap::Heap};

    #[test]
    fn queue_pairs_that_leave_an_empty_queue_leave_nothing_behind() {
        let (ring, record) = (Heap::zeroed(4 * 64), Heap::zeroed(8));
        let entries = Entries::new(ring.ring(), record.record(), 2, false);
        // SAFETY: the heaps live until the end of the test.
        let peek = unsafe { entries.peek() };
        let attached = Attached::new(Cqn::default(), 4, false, peek);
        (1..1000).for_each(|qpn| attached.depart(Qpn::from_low_bits(qpn), None));
        assert_eq!(attached.queues().departed.len(), 0);
    }

    /// Its memory is gone.
    #[test]
    fn a_queue_that_is_closed_is_not_looked_at() {
        let (ring, record) = (Heap::zeroed(4 * 64), Heap::zeroed(8));
        let entries = Entries::new(ring.ring(), record.record(), 2, false);
        // SAFETY: the heaps live until the end of the test.
        let peek = unsafe { entries.peek() };
        let attached = Attached::new(Cqn::default(), 4, false, peek);
        // An entry that is written, and not polled.
        ring.ring().store(7, 0);
        attached.depart(Qpn::from_low_bits(1), None);
        attached.close();
        attached.depart(Qpn::from_low_bits(2), None);
        let queues = attached.queues();
        assert_eq!(queues.departed.len(), 1);
        let until = queues.departed[0].until;
        assert!(entries.is_before(until));
        for passed in [0, 0xff_ffff, 5] {
            assert!(!entries.is_before(passed), "{passed} was passed, or is not in the queue");
        }
    }
}
