//! The sending half of a connection: batches, credit, and work that is due by time.

use super::{Connection, Usage};
use crate::copyrpc::{
    CREDIT_BYTES,
    batch::Address,
    batch::Outgoing,
    layout::{CreditWords, KIND_CANCEL, low_bits, number_bits},
    outbox::{Departure, Emission},
};

/// Longest time between two looks of a side that is starved and asleep.
const LOOK_NS_MAX: u64 = 10_000_000;
/// Credit that the peer can do without waits so many times as long for a batch to ride on: where many peers
/// share a NIC and each is called seldom, telling it alone would take the NIC as long as the calls do.
const UNNEEDED_DELAYS: u64 = 32;

impl Connection {
    /// A poll of the driver: the policy may count them.
    #[inline]
    pub fn polled(&mut self) {
        self.outbox.clock.polled();
    }

    /// Whether anything waits to be posted.
    #[inline]
    #[must_use]
    pub fn has_gathered(&self) -> bool {
        !self.outbox.is_empty() || !self.control.is_empty()
    }

    /// Messages that were posted and that the peer, as far as is known, has still to handle.
    #[inline]
    #[must_use]
    pub fn unconsumed(&self) -> u32 {
        self.outbox.unconsumed()
    }

    /// Batches that were posted and that the peer, as far as is known, has still to handle.
    #[must_use]
    pub fn unhandled(&self) -> u64 {
        self.outbox.unhandled()
    }

    /// Whether neither messages nor credit are to be posted now: only time can change that.
    #[inline]
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        !self.has_gathered() && !self.inbox.has_much_news()
    }

    /// Whether nothing becomes due by time: no call is in flight, and nothing is to be posted, given back,
    /// or got back.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.calls.in_use() == 0
            && !self.has_gathered()
            && !self.awaits_credit()
            && self.credit_since_ns.is_none()
    }

    /// Whether the peer has something to give back.
    #[must_use]
    pub fn awaits_credit(&self) -> bool {
        self.outbox.awaits_credit()
    }

    /// Whether something waits that the peer may have given back: look at its [credit](Self::credit).
    #[inline]
    #[must_use]
    pub fn is_starved(&self) -> bool {
        self.outbox.is_starved()
    }

    /// The next batch to post, if one is due; with `is_forced`, if there is one.
    #[inline]
    pub fn emission(&mut self, now_ns: u64, is_forced: bool) -> Option<Emission<'_>> {
        if !self.control.is_empty() {
            self.push_control(now_ns);
        }
        if self.outbox.is_empty() {
            return None;
        }
        if self.outbox.is_window_full() {
            self.counters.window_full += 1;
            return None;
        }
        let address = self.address();
        self.outbox.emission(now_ns, is_forced, &address)
    }

    /// Adds what waits for a place, in order. Returns whether nothing waits any more.
    #[cold]
    pub(super) fn push_control(&mut self, now_ns: u64) -> bool {
        while let Some(message) = self.control.front() {
            let Ok(extent) = self.outbox.admit(message) else { return false };
            self.outbox.push_at(extent, message, 0, now_ns);
            self.control.pop_front();
        }
        true
    }

    #[inline]
    fn address(&self) -> Address {
        Address {
            slot: self.config.peer.slot,
            epoch: self.config.peer.epoch,
            consumed: low_bits(self.inbox.consumed()),
            handled: number_bits(self.inbox.handled()),
        }
    }

    /// The batch that [`emission`](Self::emission) returned was posted. No message may be added in between.
    #[inline]
    pub fn posted(&mut self, departure: Departure, now_ns: u64) {
        self.counters.messages_out += u64::from(self.outbox.posted(departure, now_ns));
        self.counters.batches_out += 1;
        self.advertise();
    }

    fn advertise(&mut self) {
        self.inbox.advertise();
        self.credit_since_ns = None;
    }

    /// All batches up to this number have left the NIC.
    #[inline]
    pub fn finished(&mut self, number: u64) {
        self.outbox.finished(number);
    }

    /// The words to write beside the peer's ring, when credit has waited long enough for a batch to
    /// ride on (rules C3.4, C3.8). Whatever else waits, they need nothing from the peer.
    #[inline]
    #[must_use]
    pub fn credit_due(&self, now_ns: u64) -> Option<[u8; CREDIT_BYTES]> {
        let waited_ns = now_ns.saturating_sub(self.credit_since_ns?);
        if self.is_credit_on_its_way {
            return None;
        }
        // Most often neither is the case, and no more has to be known.
        if waited_ns < self.config.credit_delay_ns && !self.inbox.has_much_news() {
            return None;
        }
        let is_due = self.credit_due_ns()? <= now_ns || self.inbox.has_much_news();
        is_due.then(|| self.credit_words())
    }

    /// When credit has waited long enough; `None`: there is none to announce, or older words have to arrive first.
    fn credit_due_ns(&self) -> Option<u64> {
        if self.is_credit_on_its_way {
            return None;
        }
        let delays = if self.inbox.has_needed_news() { 1 } else { UNNEEDED_DELAYS };
        let delay_ns = self.config.credit_delay_ns.saturating_mul(delays);
        self.credit_since_ns.map(|since_ns| since_ns.saturating_add(delay_ns))
    }

    /// The words as they are by now. Written though nothing is due, they tell the peer nothing new, and
    /// this side's NIC whether the peer's still answers (rule C7.7).
    #[inline]
    #[must_use]
    pub fn credit_words(&self) -> [u8; CREDIT_BYTES] {
        let consumed = self.inbox.consumed();
        let handled = self.inbox.handled();
        let words = CreditWords { consumed: consumed.into(), handled: handled.into() };
        zerocopy::transmute!(words)
    }

    /// Credit that was posted did not arrive: more is due at once.
    pub fn credit_lost(&mut self) {
        self.is_credit_on_its_way = false;
        self.credit_since_ns = Some(0);
    }

    /// The words were posted. Until they have [arrived](Self::credit_arrived) no others are due: a fabric that routes
    /// adaptively may place an older WRITE behind a newer one, and older words would then be the last (rule C3.4).
    pub fn credit_posted(&mut self) {
        self.counters.credits_out += 1;
        self.is_credit_on_its_way = true;
        self.advertise();
    }

    /// The NIC has completed the WRITE of the words: the peer's memory has them.
    pub fn credit_arrived(&mut self) {
        self.is_credit_on_its_way = false;
    }

    /// Whether words were posted and have not arrived.
    #[must_use]
    pub fn is_credit_on_its_way(&self) -> bool {
        self.is_credit_on_its_way
    }

    // Time

    /// Ends calls whose deadlines have passed for their callers, and says their cookies.
    pub fn expire(&mut self, now_ns: u64, mut ended: impl FnMut(u64)) {
        let Self { calls, counters, control, .. } = self;
        calls.expire(now_ns, |id, cookie| {
            counters.expired += 1;
            control.push_back(Outgoing::control(KIND_CANCEL, id.0));
            ended(cookie);
        });
    }

    /// The time of the next work if nothing arrives; `None`: there is none.
    ///
    /// The peer's credit wakes no sleeper, so a starved side looks again: after as long as
    /// nothing has come already, up to 10 ms.
    #[must_use]
    pub fn wake_ns(&self, now_ns: u64) -> Option<u64> {
        let deadlines = self.calls.expiry_ns();
        let delay_ns = self.config.credit_delay_ns;
        let credit = self.credit_due_ns();
        // A batch without a receive at the peer waits for the peer, however long it has been due.
        let flush = self.outbox.clock.due_ns().filter(|_| !self.outbox.is_window_full());
        let look = self.is_starved().then(|| {
            let waited_ns = now_ns.saturating_sub(self.outbox.progress_ns());
            now_ns.saturating_add(waited_ns.max(delay_ns).min(LOOK_NS_MAX))
        });
        [deadlines, credit, flush, look].into_iter().flatten().min()
    }

    /// Ends every call, and says the cookies of those whose callers wait.
    pub fn drain(&mut self, ended: impl FnMut(u64)) {
        self.calls.drain(ended);
    }

    /// The resources in use. All zero, but `ring_lines`, when no call is in flight or waiting; that too,
    /// once the peer has given everything back.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage {
            ring_lines: self.outbox.used_lines(),
            calls: self.calls.in_use(),
            call_budget_lines: self.calls.budget_lines(),
            served_budget_lines: self.served.reserved_lines(),
            control: self.control.len(),
        }
    }
}
