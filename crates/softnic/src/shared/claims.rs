//! Taking the next receive of a queue that several senders share.
//!
//! An RQ is cyclic, an SRQ is a linked list; the hardware takes receives from the head of either,
//! one by one. Here any sender's thread may do the taking:
//!
//! ```text
//!  head   ┌ count (48) ──────────┬ index (16) ┐   `count` receives taken so far, `index` is next
//!  claim  ┌ count (48) ──────────┬ holder(16) ┐   one per receive: by whom, and as the how-manieth,
//!         └──────────────────────┴────────────┘   it was taken last; holder 0: that has completed
//! ```
//!
//! A receive is taken by CAS on its *claim*; whoever sees a claimed head helps to move the head on.
//! So a sender that dies right after its CAS blocks nobody, and its name stays in the claim. Counts
//! never repeat in practice (2⁴⁸), so a sender that slept through any number of laps fails its CAS.
//!
//! These words order nothing but themselves, so every access is `Relaxed`: a stale one fails its CAS.
//! What a sender reads of a receive is ordered by the doorbell record that announced it, and what
//! the owner writes there next by the completion.

use memory::sync::{AtomicU64, Ordering};

use super::{Holder, NOBODY};

const COUNT_MASK: u64 = (1 << 48) - 1;

/// Senders' words of one receive queue.
#[derive(Clone, Copy, Debug)]
pub struct Claims<'a> {
    head: &'a AtomicU64,
    claims: &'a [AtomicU64],
}

/// Why no receive was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeError {
    /// None is posted: receiver not ready.
    Empty,
    /// Others were faster every time; try later.
    Contended,
    /// The list leads out of the queue: its owner wrote nonsense.
    Broken,
}

const fn pack(count: u64, low: u16) -> u64 {
    (count & COUNT_MASK) << 16 | low as u64
}

#[expect(clippy::cast_possible_truncation, reason = "the low 16 bits are the index or holder")]
const fn unpack(word: u64) -> (u64, u16) {
    (word >> 16, word as u16)
}

impl<'a> Claims<'a> {
    /// Wraps the words of a queue.
    #[inline(always)]
    #[must_use]
    pub fn new(head: &'a AtomicU64, claims: &'a [AtomicU64]) -> Self {
        Self { head, claims }
    }

    /// Forgets everything. Only while nobody else is inside the queue.
    pub fn reset(&self) {
        for claim in self.claims {
            claim.store(pack(COUNT_MASK, NOBODY), Ordering::Relaxed);
        }
        self.head.store(0, Ordering::Relaxed);
    }

    /// Receives taken so far.
    #[must_use]
    pub fn taken(&self) -> u64 {
        unpack(self.head.load(Ordering::Relaxed)).0
    }

    /// Takes the receive at the head; returns its index, and how many were taken before it.
    ///
    /// `available(count)` tells whether more than `count` receives were ever posted; `next(index)`
    /// returns the index that follows, as the queue's owner wrote it.
    ///
    /// # Errors
    ///
    /// [`TakeError`]; nothing was taken.
    #[inline(never)]
    pub fn take(
        &self,
        holder: Holder,
        mut available: impl FnMut(u64) -> bool,
        mut next: impl FnMut(u16) -> u16,
    ) -> Result<(u16, u64), TakeError> {
        debug_assert_ne!(holder, NOBODY);
        // Each turn either moves the head or loses to somebody who did.
        for _ in 0..64 {
            let head = self.head.load(Ordering::Relaxed);
            let (count, index) = unpack(head);
            if !available(count) {
                if self.head.load(Ordering::Relaxed) == head {
                    return Err(TakeError::Empty);
                }
                continue; // others went on while this one looked
            }
            let claim = self.claims.get(usize::from(index)).ok_or(TakeError::Broken)?;
            let seen = claim.load(Ordering::Relaxed);
            let (claimed, _) = unpack(seen);
            if claimed == count {
                self.advance(head, next(index));
                continue;
            }
            if is_newer(claimed, count) {
                continue; // `head` is stale
            }
            let mine = pack(count, holder);
            // The winner owns the receive.
            let won = claim.compare_exchange(seen, mine, Ordering::Relaxed, Ordering::Relaxed);
            if won.is_ok() {
                // Must happen before the receive completes: afterwards its owner may rewrite it,
                // and `next` would lead astray.
                self.advance(head, next(index));
                return Ok((index, count));
            }
        }
        Err(TakeError::Contended)
    }

    /// [`take`](Self::take) for a caller that knows to be the only one who takes: the same words,
    /// without a read-modify-write.
    ///
    /// # Errors
    ///
    /// [`TakeError`]; nothing was taken. `Contended`: a sender that is gone has taken it, and not moved
    /// the head: [`take`](Self::take) does.
    #[inline(always)]
    pub fn take_alone(
        &self,
        holder: Holder,
        mut available: impl FnMut(u64) -> bool,
        mut next: impl FnMut(u16) -> u16,
    ) -> Result<(u16, u64), TakeError> {
        debug_assert_ne!(holder, NOBODY);
        let (count, index) = unpack(self.head.load(Ordering::Relaxed));
        if !available(count) {
            return Err(TakeError::Empty);
        }
        let claim = self.claims.get(usize::from(index)).ok_or(TakeError::Broken)?;
        if unpack(claim.load(Ordering::Relaxed)).0 == count {
            return Err(TakeError::Contended);
        }
        claim.store(pack(count, holder), Ordering::Relaxed);
        self.head.store(pack(count + 1, next(index)), Ordering::Relaxed);
        Ok((index, count))
    }

    /// Moves the head past a claimed receive, unless somebody else has.
    #[inline]
    fn advance(&self, head: u64, next: u16) {
        let (count, _) = unpack(head);
        let moved = pack(count + 1, next);
        // Failure means that others moved it.
        let _ = self.head.compare_exchange(head, moved, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The completion of the receive that `holder` took as `count` at `index` is published: the
    /// claim has served. Only `holder` calls this, or the owner of the queue once it is dead.
    ///
    /// The owner may have posted `index` again by now, and somebody taken it: then that claim stays.
    #[inline]
    pub fn release(&self, index: u16, count: u64, holder: Holder) {
        if let Some(claim) = self.claims.get(usize::from(index)) {
            let (mine, served) = (pack(count, holder), pack(count, NOBODY));
            let _ = claim.compare_exchange(mine, served, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// [`release`](Self::release) for the only one who takes, after [`take_alone`](Self::take_alone):
    /// nobody else can have taken the receive again.
    #[inline(always)]
    pub fn release_alone(&self, index: u16, count: u64) {
        if let Some(claim) = self.claims.get(usize::from(index)) {
            claim.store(pack(count, NOBODY), Ordering::Relaxed);
        }
    }

    /// Moves the head past a claimed receive whose holder died before it did so. The owner of the
    /// queue calls this before it completes the receive: what is posted in its place would look
    /// like one too many.
    pub fn pass(&self, index: u16, count: u64, next: impl FnOnce(u16) -> u16) {
        let head = pack(count, index);
        if self.head.load(Ordering::Relaxed) == head {
            self.advance(head, next(index));
        }
    }

    /// Receives that `holder` has taken and not completed, as [`take`](Self::take) returned them.
    /// For use after its death.
    pub fn held_by(&self, holder: Holder) -> impl Iterator<Item = (u16, u64)> + use<'a> {
        let words = self.claims.iter().map(|claim| unpack(claim.load(Ordering::Relaxed)));
        let held = words.zip(0..).filter(move |((_, by), _)| *by == holder);
        held.map(|((count, _), index)| (index, count))
    }
}

/// Whether count `a` was handed out after `b`. The initial value counts as older than any.
fn is_newer(a: u64, b: u64) -> bool {
    let ahead = a.wrapping_sub(b) & COUNT_MASK;
    ahead != 0 && ahead < COUNT_MASK / 2
}
