//! The receiving half: what arrived in this side's ring, and what of it can be given back.
//!
//! ```text
//!   advertised         consumed                         parsed
//!   │ free, the peer     │ batches with requests that     │ free
//!   │ does not know      │ requests still hold            │
//! ```

use alloc::collections::VecDeque;

use super::{
    geometry::Geometry, hello::Hello, imm::Imm, layout::number_bits, violation::Violation,
};

/// A batch that arrived, in this side's ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its offset in the ring.
    pub offset_bytes: usize,
    /// All of its lines; what follows the last message is left from an earlier lap.
    pub len_bytes: usize,
    start: u64,
    end: u64,
}

/// Names a batch whose lines are kept because a request in it is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    start: u64,
    /// Of the batch.
    pub offset_bytes: usize,
}

/// A batch that is held.
#[derive(Clone, Copy, Debug)]
struct Held {
    start: u64,
    leases: u32,
}

/// One direction of a connection, from the side that reads.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// Of this side's ring.
    geometry: Geometry,
    /// First line not yet handled.
    parsed: u64,
    /// First line that was not announced to the peer as free.
    advertised: u64,
    /// The batch that is being handled.
    open: Option<Arrival>,
    /// Ordered by start. A batch without leases stays only while an earlier one has some.
    held: VecDeque<Held>,
    /// Batches that were handled, the open one included, and how many of them were announced to the peer.
    handled: u64,
    handled_told: u64,
    /// Batches that the peer may have sent and that were not announced to it.
    batches_max: u16,
}

impl Inbox {
    /// Of a side that announced this.
    pub(crate) fn new(own: &Hello) -> Self {
        let Hello { geometry, batches_max, .. } = *own;
        Self {
            geometry,
            parsed: 0,
            advertised: 0,
            open: None,
            held: VecDeque::new(),
            handled: 0,
            handled_told: 0,
            batches_max,
        }
    }

    /// As [`Outbox::start_at`](super::outbox::Outbox::start_at).
    pub(crate) fn start_at(&mut self, position: u64) {
        (self.parsed, self.advertised) = (position, position);
    }

    /// The mistake that simulations have to find: while a batch is parsed, credit for its lines returns, and
    /// for as many behind it, which are unread.
    #[cfg(feature = "early-credit")]
    pub(crate) fn consumed(&self) -> u64 {
        let parsed = self.open.map_or(self.parsed, |arrival| 2 * arrival.end - arrival.start);
        parsed.max(self.advertised)
    }

    /// First line that is not free.
    #[cfg(not(feature = "early-credit"))]
    #[inline]
    pub(crate) fn consumed(&self) -> u64 {
        let open = self.open.map_or(self.parsed, |arrival| arrival.start);
        self.held.front().map_or(open, |held| held.start)
    }

    /// Batches that were handled, even if requests hold their lines.
    #[inline]
    pub(crate) fn handled(&self) -> u64 {
        self.handled
    }

    /// Whether the peer does not know all that it could use.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.handled > self.handled_told || self.consumed() > self.advertised
    }

    /// Whether the peer may soon have to wait for it.
    #[inline]
    pub(crate) fn has_much_news(&self) -> bool {
        let lines = self.consumed() - self.advertised;
        let batches = self.handled - self.handled_told;
        lines >= u64::from(self.geometry.ring_lines() / 4)
            || batches >= u64::from(self.batches_max).div_ceil(2)
    }

    /// Whether the peer may have to wait for it before it can send a longest batch, even if all else that it
    /// sent was handled (rule C3.4).
    #[inline]
    pub(crate) fn has_needed_news(&self) -> bool {
        // The lines that a request leaves free by rule C3.1, and the longest batch.
        let kept = self.geometry.response_lines() + 2 * u32::from(self.geometry.batch_lines_max());
        let spare = self.geometry.ring_lines().saturating_sub(kept);
        self.consumed() - self.advertised > u64::from(spare)
    }

    /// The peer will know the free lines and the handled batches.
    #[inline]
    pub(crate) fn advertise(&mut self) {
        (self.advertised, self.handled_told) = (self.consumed(), self.handled);
    }

    /// A batch was announced. Checks that it lies where the peer may write.
    #[inline]
    pub(crate) fn arrive(&mut self, imm: Imm) -> Result<Arrival, Violation> {
        let ring = u64::from(self.geometry.ring_lines());
        let lines = u64::from(imm.lines);
        let max = u64::from(self.geometry.batch_lines_max());
        if lines > max {
            return Err(Violation::BatchTooLong { lines, max });
        }
        let at = self.parsed % ring;
        if imm.is_wrapped && at == 0 {
            return Err(Violation::Wrap);
        }
        let start = if imm.is_wrapped { self.geometry.next_lap(self.parsed) } else { self.parsed };
        let end = start + lines;
        if end > self.geometry.next_lap(start) {
            return Err(Violation::OutsideRing { at: start % ring, lines, ring });
        }
        let free = if self.is_advertised(self.parsed) { start } else { self.advertised };
        #[cfg(feature = "early-credit")]
        let free = free.min(start);
        if end - free > ring {
            return Err(Violation::NoCredit { lines: end - free - ring });
        }
        let offset_bytes = self.geometry.offset_bytes(start);
        let len_bytes = usize::from(imm.lines) * super::layout::LINE_BYTES;
        let arrival = Arrival { offset_bytes, len_bytes, start, end };
        self.open = Some(arrival);
        Ok(arrival)
    }

    /// The batch that was announced is not there.
    pub(crate) fn disregard(&mut self) {
        self.open = None;
    }

    /// Checks the batch's number.
    #[inline]
    pub(crate) fn check_sequence(&mut self, found: u16) -> Result<(), Violation> {
        let expected = number_bits(self.handled);
        if found != expected {
            return Err(Violation::Sequence { found, expected });
        }
        if self.handled - self.handled_told >= u64::from(self.batches_max) {
            return Err(Violation::Unhandled { max: self.batches_max });
        }
        self.handled += 1;
        if let Some(open) = self.open.filter(|_| self.is_advertised(self.parsed)) {
            self.advertised = open.start; // skipped lines were free (rule C2.10)
        }
        Ok(())
    }

    /// Whether the peer knows that all lines before this one are free.
    fn is_advertised(&self, line: u64) -> bool {
        self.advertised == line
    }

    /// Keeps the lines of the batch that is being handled.
    pub(crate) fn hold(&mut self) -> Option<Lease> {
        let Arrival { start, offset_bytes, .. } = self.open?;
        match self.held.back_mut() {
            Some(held) if held.start == start => held.leases += 1,
            _ => self.held.push_back(Held { start, leases: 1 }),
        }
        Some(Lease { start, offset_bytes })
    }

    /// Ends a lease, in any order.
    pub(crate) fn end_lease(&mut self, lease: Lease) {
        if let Ok(at) = self.held.binary_search_by_key(&lease.start, |held| held.start) {
            let held = &mut self.held[at];
            held.leases = held.leases.saturating_sub(1);
        }
        while self.held.front().is_some_and(|held| held.leases == 0) {
            self.held.pop_front();
        }
    }

    /// The batch was handled.
    #[inline]
    pub(crate) fn close(&mut self) -> u64 {
        if let Some(arrival) = self.open.take() {
            self.parsed = arrival.end;
        }
        self.parsed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copyrpc::Features;

    fn inbox() -> Inbox {
        // 16 lines, batches of up to 4, two of them at a time.
        Inbox::new(&Hello {
            features: Features::ALL,
            epoch: 1,
            slot: 0,
            calls_max: 4,
            geometry: Geometry::new(1024, 256, 256).unwrap(),
            batches_max: 2,
            large_bytes_max: 0,
        })
    }

    fn imm(lines: u16, is_wrapped: bool) -> Imm {
        Imm { is_wrapped, slot: 0, lines }
    }

    fn take(inbox: &mut Inbox, lines: u16, is_wrapped: bool) -> Result<Arrival, Violation> {
        let arrival = inbox.arrive(imm(lines, is_wrapped))?;
        inbox.close();
        Ok(arrival)
    }

    /// Rule C3.5, pitfall 9: lines of a held request are not given back, whatever follows.
    #[test]
    fn pitfall_9_credit_returns_only_for_lines_whose_leases_ended() {
        let mut inbox = inbox();
        inbox.arrive(imm(2, false)).unwrap();
        let first = inbox.hold().unwrap();
        let second = inbox.hold().unwrap();
        assert_eq!(first, second);
        inbox.close();
        inbox.arrive(imm(3, false)).unwrap();
        let third = inbox.hold().unwrap();
        inbox.close();
        take(&mut inbox, 1, false).unwrap();
        assert_eq!(inbox.consumed(), 0);
        inbox.end_lease(first);
        assert_eq!(inbox.consumed(), 0);
        inbox.end_lease(second);
        assert_eq!(inbox.consumed(), 2);
        inbox.end_lease(third);
        assert_eq!(inbox.consumed(), 6);
    }

    /// Rule C3.4: a quarter of the ring, or half of the batches.
    #[test]
    fn much_is_a_quarter_of_the_lines_or_half_of_the_batches() {
        let mut inbox = inbox();
        for lines in [1, 2] {
            take(&mut inbox, lines, false).unwrap();
            assert!(!inbox.has_much_news(), "3 of 16 lines");
        }
        take(&mut inbox, 1, false).unwrap();
        assert!(inbox.has_much_news());
        inbox.advertise();
        assert!(!inbox.has_much_news());
        inbox.arrive(imm(1, false)).unwrap();
        inbox.check_sequence(0).unwrap();
        assert!(inbox.has_much_news(), "1 of 2 batches");
    }

    /// Rule C3.5: while a batch is handled any request of it may still be held, so nothing that leaves
    /// meanwhile gives its lines back.
    #[test]
    fn lines_of_a_batch_that_is_being_handled_are_not_free() {
        let mut inbox = inbox();
        inbox.arrive(imm(2, false)).unwrap();
        inbox.check_sequence(0).unwrap();
        assert_eq!((inbox.consumed(), inbox.handled()), (0, 1));
        inbox.advertise();
        inbox.close();
        assert_eq!(inbox.consumed(), 2);
        assert!(inbox.has_news());
    }

    /// Rule C3.5.
    #[test]
    fn leases_end_in_any_order() {
        let mut inbox = inbox();
        inbox.arrive(imm(1, false)).unwrap();
        let first = inbox.hold().unwrap();
        inbox.close();
        inbox.arrive(imm(1, false)).unwrap();
        let second = inbox.hold().unwrap();
        inbox.close();
        inbox.end_lease(second);
        assert_eq!(inbox.consumed(), 0);
        inbox.end_lease(first);
        assert_eq!(inbox.consumed(), 2);
    }

    /// Rules C2.2, C2.3, C2.4 and C3.2, pitfall 13, fault D5.
    #[test]
    fn a_batch_must_lie_in_lines_that_the_peer_owns() {
        let mut inbox = inbox();
        let too_long = Violation::BatchTooLong { lines: 5, max: 4 };
        assert_eq!(inbox.arrive(imm(5, false)), Err(too_long));
        assert_eq!(inbox.arrive(imm(1, true)), Err(Violation::Wrap));
        for _ in 0..3 {
            take(&mut inbox, 4, false).unwrap();
        }
        take(&mut inbox, 2, false).unwrap();
        let outside = Violation::OutsideRing { at: 14, lines: 3, ring: 16 };
        assert_eq!(inbox.arrive(imm(3, false)), Err(outside));
        // 14 of 16 lines are used and nothing was given back.
        assert_eq!(inbox.arrive(imm(3, true)), Err(Violation::NoCredit { lines: 3 }));
        inbox.advertise();
        let arrival = take(&mut inbox, 3, true).unwrap();
        assert_eq!((arrival.offset_bytes, arrival.len_bytes), (0, 192));
    }

    /// Rule C2.10: skipped lines are free at once, wherever the sender starts over.
    #[test]
    fn a_sender_that_knows_all_lines_to_be_free_may_start_over_anywhere() {
        let mut inbox = inbox();
        for number in 0..4 {
            take(&mut inbox, 1, false).unwrap();
            inbox.check_sequence(2 * number).unwrap();
            inbox.advertise();
            let arrival = inbox.arrive(imm(4, true)).unwrap();
            assert_eq!(arrival.offset_bytes, 0);
            inbox.check_sequence(2 * number + 1).unwrap();
            inbox.close();
            for _ in 0..3 {
                take(&mut inbox, 4, false).unwrap();
            }
            assert_eq!(take(&mut inbox, 1, true), Err(Violation::Wrap), "a ring of its own");
            inbox.advertise();
        }
    }

    /// Rule C2.5.
    #[test]
    fn numbers_of_batches_wrap() {
        let mut inbox = inbox();
        (inbox.handled, inbox.handled_told) = (0xffff, 0xffff);
        assert_eq!(inbox.check_sequence(u16::MAX), Ok(()));
        assert_eq!(inbox.check_sequence(0), Ok(()));
        for found in [0, 2] {
            let wrong = Violation::Sequence { found, expected: 1 };
            assert_eq!(inbox.check_sequence(found), Err(wrong), "repeated, or one was lost");
        }
    }

    /// Rule C3.6: the peer may send as many batches as this side can take, counted from its announcements.
    #[test]
    fn more_batches_than_were_announced_are_a_violation() {
        let mut inbox = inbox();
        for number in 0..2 {
            inbox.arrive(imm(1, false)).unwrap();
            assert_eq!(inbox.check_sequence(number), Ok(()));
            assert!(inbox.hold().is_some());
            inbox.close();
        }
        assert!(inbox.has_much_news(), "half of what it can take");
        assert_eq!(inbox.check_sequence(2), Err(Violation::Unhandled { max: 2 }));
        inbox.advertise();
        assert!(!inbox.has_news());
        assert_eq!(inbox.consumed(), 0, "what is held is handled, and not given back");
        assert_eq!(inbox.check_sequence(2), Ok(()));
    }
}
