//! The words by which client and server of a session tell each other what comes of requests that end otherwise than by
//! an answer.
//!
//! | word | written by | says |
//! |---|---|---|
//! | [`TakenWord`] | server | up to which position it has taken requests, before it handles the last of them |
//! | [`EvictionWord`] | server | that it takes nothing more, and why |
//! | [`LeaveWord`] | server | that the client is asked to leave: it may finish what it began |
//! | [`GivenUpBits`] | client | which of its first 64 calls it has given up and were not answered |
//!
//! A call whose request lies behind the taken position of a session that was ended by the eviction word was not executed,
//! and never will be. A mark of a call that was given up is no promise: a server that has looked already executes the
//! request. No mark outlives its call: the next call with the same number is not taken for it.

use memory::sync::{AtomicU32, AtomicU64, Ordering};

/// Position up to which the server has taken requests.
#[derive(Clone, Copy, Debug)]
pub struct TakenWord<'a>(pub &'a AtomicU64);

/// Zero, or why the server takes nothing more.
#[derive(Clone, Copy, Debug)]
pub struct EvictionWord<'a>(pub &'a AtomicU32);

/// Whether the client is asked to leave.
#[derive(Clone, Copy, Debug)]
pub struct LeaveWord<'a>(pub &'a AtomicU32);

/// Calls that the client has given up, a bit for each.
#[derive(Clone, Copy, Debug)]
pub struct GivenUpBits<'a>(pub &'a AtomicU64);

impl TakenWord<'_> {
    /// Server: requests before this position were taken.
    #[inline(always)]
    pub fn note(self, position: u64) {
        #[cfg(feature = "late-taken")]
        let position = position.wrapping_sub(1);
        self.0.store(position, Ordering::Relaxed);
    }

    /// Client: the position, final once the server is dead or the [`EvictionWord`] is set.
    pub fn read(self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl EvictionWord<'_> {
    /// Server: takes nothing more.
    pub fn end(self, reason: u32) {
        // SYNC(eviction): the position of the last request that was taken before the end; pairs with the Acquire in
        // `reason`.
        self.0.store(reason, Ordering::Release);
    }

    /// Client: why the server takes nothing more; zero: it does.
    #[must_use]
    pub fn reason(self) -> u32 {
        // SYNC(eviction): the end before the look at the taken position; pairs with the Release in `end`.
        self.0.load(Ordering::Acquire)
    }
}

impl LeaveWord<'_> {
    /// Server: the client is to leave. Relaxed: no other memory depends on the word.
    pub fn ask(self) {
        self.0.store(1, Ordering::Relaxed);
    }

    /// Client: whether it is to leave.
    #[inline(always)]
    #[must_use]
    pub fn is_asked(self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

impl GivenUpBits<'_> {
    /// Client: has given a call up, or is to use its number again. Relaxed: the next request with that number is published
    /// behind it.
    #[cold]
    pub fn mark(self, call: u16, is_given_up: bool) {
        if let Some(bit) = 1_u64.checked_shl(call.into()) {
            // This side alone writes the word.
            let bits = self.0.load(Ordering::Relaxed);
            let bits = if is_given_up { bits | bit } else { bits & !bit };
            self.0.store(bits, Ordering::Relaxed);
        }
    }

    /// Server, after it took a request of a call: whether that was given up.
    #[inline]
    #[must_use]
    pub fn is_marked(self, call: u16) -> bool {
        call < 64 && self.0.load(Ordering::Relaxed) >> call & 1 == 1
    }
}
