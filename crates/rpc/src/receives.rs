//! Receives without buffers: each takes one WRITE WITH IMMEDIATE.

use verbs::{
    Completion, CreateError, Nic, PostRecvError, QueuePair, SharedReceiveQueue as _, SrqConfig,
};

/// Counts receives that were consumed, so that they are posted again many at a time: each time the
/// queue's counter, which senders look at, crosses to the NIC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refill {
    missing: u16,
    threshold: u16,
}

impl Refill {
    /// For a queue of `entries` that is empty.
    pub(crate) fn new(entries: u16) -> Self {
        Self { missing: entries, threshold: Self::threshold(entries) }
    }

    /// The number of receives that are reposted together; one less may be missing.
    pub(crate) fn threshold(entries: u16) -> u16 {
        (entries / 8).max(1)
    }

    #[inline]
    pub(crate) fn consumed(&mut self) {
        self.missing += 1;
    }

    #[inline]
    fn take_due(&mut self) -> u16 {
        if self.missing < self.threshold { 0 } else { core::mem::take(&mut self.missing) }
    }

    /// Fills the receive queue of a queue pair.
    #[inline]
    pub(crate) fn fill_own(&mut self, qp: &mut impl QueuePair) -> Result<(), PostRecvError> {
        let due = self.take_due();
        if due > 0 {
            for _ in 0..due {
                qp.post_recv(&[])?;
            }
            qp.ring_recv();
        }
        Ok(())
    }
}

/// A shared receive queue that is kept full.
pub(crate) struct SharedReceives<N: Nic> {
    srq: N::Srq,
    refill: Refill,
}

impl<N: Nic> SharedReceives<N> {
    pub(crate) fn new(nic: &N, pd: &N::Pd, entries: u16) -> Result<Self, CreateError> {
        let srq = nic.create_srq(pd, &SrqConfig { entries: entries.into(), sges_max: 1 })?;
        Ok(Self { srq, refill: Refill::new(entries) })
    }

    pub(crate) fn srq(&self) -> &N::Srq {
        &self.srq
    }

    #[inline]
    pub(crate) fn retire(&mut self, completion: &Completion) {
        self.srq.retire(completion);
        self.refill.consumed();
    }

    #[inline]
    pub(crate) fn fill(&mut self) -> Result<(), PostRecvError> {
        let due = self.refill.take_due();
        if due > 0 {
            for _ in 0..due {
                self.srq.post(&[])?;
            }
            self.srq.ring();
        }
        Ok(())
    }

    /// Posts all that can be: completions of a queue pair that is gone are gone too, so nobody counts
    /// the receives that they took.
    pub(crate) fn top_up(&mut self) {
        let mut posted = 0;
        while self.srq.post(&[]).is_ok() {
            posted += 1;
        }
        if posted > 0 {
            self.refill.missing = 0;
            self.srq.ring();
        }
    }
}
