//! The sending half: batches, and the part of the peer's ring that they may lie in.
//!
//! ```text
//!   credited            producer                     producer + queued
//!   │ posted, not yet     │ batches that are built     │ R for responses │ W for a wrap │
//!   │ given back          │ but not posted             │                 │              │
//!   └────────────── in the ring's ring_lines ──────────────────────────────────────────┘
//! ```
//!
//! A request is added only while all of this fits (rule C3.1), so a response always does.

use alloc::{collections::VecDeque, vec::Vec};

use super::{
    Busy,
    batch::{Address, Batch, Outgoing},
    flush::{FlushClock, FlushPolicy, Gathered},
    geometry::Geometry,
    hello::Hello,
    imm::Imm,
    layout::{low_bits, number_bits},
    violation::Violation,
};

/// A batch to be written. Nothing has changed yet: tell the connection when it was posted.
#[derive(Debug)]
pub struct Emission<'a> {
    /// Its number: pass it to [`Connection::finished`](super::Connection::finished) when it has left.
    pub number: u64,
    /// Pass it to [`Connection::posted`](super::Connection::posted) when it was posted.
    pub departure: Departure,
    /// Its offset in the peer's ring.
    pub offset_bytes: usize,
    /// Immediate data.
    pub imm: u32,
    /// The bytes to write there; private memory that stays as it is until the batch is posted.
    pub bytes: &'a [u8],
    /// Ask for a completion: the flush policy waits for one.
    pub is_signaled: bool,
    /// Nothing else waits to be posted.
    pub is_last: bool,
}

/// The changes that posting a batch makes.
#[derive(Debug)]
pub struct Departure {
    /// Its first line, and the line after its last.
    start: u64,
    end: u64,
    is_signaled: bool,
}

/// A batch that was posted and not given back.
#[derive(Clone, Copy, Debug)]
struct Posted {
    end: u64,
    messages: u16,
    response_lines: u32,
    posted_ns: u64,
}

/// The space that a message takes behind the queued ones: valid until the next one is added.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// Lines that it adds to the queue.
    added: u64,
    /// It starts a batch.
    is_new: bool,
}

/// One direction of a connection, from the side that writes.
#[derive(Debug)]
pub(crate) struct Outbox {
    /// Of the peer's ring.
    geometry: Geometry,
    /// First line not written.
    producer: u64,
    /// First line not given back.
    credited: u64,
    /// Batches that the peer is known to have handled, and how many more it can take.
    handled_count: u64,
    batches_max: u16,
    /// The value of `credited` when there was no place for something.
    refused_at: Option<u64>,
    /// The time of the latest posted batch or returned credit.
    progress_ns: u64,
    /// The batch that takes messages, last to leave.
    open: Batch,
    /// Batches that took what they could, oldest first.
    full: VecDeque<Batch>,
    full_lines: u64,
    spare: Vec<Batch>,
    posted: VecDeque<Posted>,
    /// Messages in them.
    unconsumed: u32,
    /// Batches ever posted, and how many of them are known to have left.
    posted_count: u64,
    finished_count: u64,
    /// Posted since the last one that asked for a completion.
    unsignaled: u16,
    signal_interval: u16,
    pub(crate) clock: FlushClock,
}

impl Outbox {
    /// For a peer with such a ring, which takes so many batches.
    pub(crate) fn new(peer: &Hello, policy: FlushPolicy, signal_interval: u16) -> Self {
        Self {
            geometry: peer.geometry,
            producer: 0,
            credited: 0,
            handled_count: 0,
            batches_max: peer.batches_max,
            refused_at: None,
            progress_ns: 0,
            open: Batch::new(),
            full: VecDeque::new(),
            full_lines: 0,
            spare: Vec::new(),
            posted: VecDeque::new(),
            unconsumed: 0,
            posted_count: 0,
            finished_count: 0,
            unsignaled: 0,
            signal_interval: signal_interval.max(1),
            clock: FlushClock::new(policy),
        }
    }

    /// Starts as if the ring had been written `position` lines, all given back: for tests of wraps.
    pub(crate) fn start_at(&mut self, position: u64) {
        (self.producer, self.credited) = (position, position);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Whether a request, or anything that no place was set aside for, may be added.
    #[inline]
    pub(crate) fn admit(&mut self, message: &Outgoing) -> Result<Extent, Busy> {
        let extent = self.extent(message.len_bytes());
        let used = self.used_lines() + extent.added;
        let kept =
            u64::from(self.geometry.response_lines()) + u64::from(self.geometry.batch_lines_max());
        if used + kept <= u64::from(self.geometry.ring_lines()) {
            Ok(extent)
        } else {
            self.refused_at = Some(self.credited);
            Err(Busy::Ring)
        }
    }

    #[inline]
    fn extent(&self, len_bytes: usize) -> Extent {
        let together = self.open.lines_with(len_bytes);
        if together > u64::from(self.geometry.batch_lines_max()) || self.open.count == u16::MAX {
            Extent { added: Batch::new().lines_with(len_bytes), is_new: true }
        } else {
            Extent { added: together - self.open.lines(), is_new: false }
        }
    }

    /// Appends a message for which there is a place and returns the place of its body.
    ///
    /// `response_lines` is what the caller set aside for it; 0 for anything but a response.
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        message: &Outgoing,
        response_lines: u16,
        now_ns: u64,
    ) -> &mut [u8] {
        let extent = self.extent(message.len_bytes());
        self.push_at(extent, message, response_lines, now_ns)
    }

    /// The same, where [`admit`](Self::admit) said.
    #[inline(always)]
    pub(crate) fn push_at(
        &mut self,
        Extent { is_new, .. }: Extent,
        message: &Outgoing,
        response_lines: u16,
        now_ns: u64,
    ) -> &mut [u8] {
        if is_new {
            self.close_open();
        }
        self.clock.added(now_ns);
        self.open.response_lines += u32::from(response_lines);
        self.open.push(message)
    }

    #[cold]
    fn close_open(&mut self) {
        self.full_lines += self.open.lines();
        let next = self.spare.pop().unwrap_or_else(Batch::new);
        self.full.push_back(core::mem::replace(&mut self.open, next));
    }

    /// The batch that leaves next; it may be empty.
    #[inline]
    fn front(&self) -> &Batch {
        self.full.front().unwrap_or(&self.open)
    }

    /// The oldest batch, if it is due and lies inside the ring.
    #[inline]
    pub(crate) fn emission(
        &mut self,
        now_ns: u64,
        is_forced: bool,
        to: &Address,
    ) -> Option<Emission<'_>> {
        if self.is_empty() {
            return None;
        }
        let messages = self.open.count;
        let unfinished_wqes = self.posted_count - self.finished_count;
        let is_full = !self.full.is_empty();
        let gathered = Gathered { messages, unfinished_wqes };
        if !is_full && !is_forced && !self.clock.is_due(now_ns, gathered) {
            return None;
        }
        let (start, end) = self.front_place()?;
        let is_signaled = self.is_next_signaled(unfinished_wqes);
        let batch = if is_full { self.full.front_mut()? } else { &mut self.open };
        let imm = Imm {
            is_wrapped: start != self.producer,
            slot: to.slot,
            lines: u16::try_from(end - start).ok()?,
        };
        Some(Emission {
            number: self.posted_count + 1,
            departure: Departure { start, end, is_signaled },
            offset_bytes: self.geometry.offset_bytes(start),
            imm: imm.encode(),
            bytes: batch.seal(to, number_bits(self.posted_count)),
            is_signaled,
            is_last: !is_full, // the open batch leaves last, and is never empty while others wait
        })
    }

    /// First line, and the line after the last, of the oldest batch.
    #[inline]
    fn front_place(&self) -> Option<(u64, u64)> {
        let lines = self.front().lines();
        let lap = self.geometry.next_lap(self.producer);
        let is_over = self.producer + lines > lap || self.starts_over(lap);
        let start = if is_over { lap } else { self.producer };
        let end = start + lines;
        // An admitted message has a place, unless the peer takes more than was granted to it. Then
        // the batch waits: lines that were not given back are never overwritten. A ring that is empty
        // has a place for all: skipped lines and a longest batch are one lap at most.
        (end - self.credited <= u64::from(self.geometry.ring_lines())).then_some((start, end))
    }

    #[inline]
    fn is_given_back(&self) -> bool {
        self.credited == self.producer
    }

    /// A ring that is empty is begun again once a longest batch is behind (rule C2.10).
    #[inline]
    fn starts_over(&self, lap: u64) -> bool {
        let left = lap - self.producer;
        let used = u64::from(self.geometry.ring_lines()) - left;
        self.is_given_back() && used >= self.geometry.batch_lines_max().into()
    }

    /// Whether to ask for a completion of the batch that leaves when so many before it are unfinished.
    #[inline]
    fn is_next_signaled(&self, unfinished_wqes: u64) -> bool {
        let is_window_full = match self.clock.policy() {
            FlushPolicy::SelfClocked { wqes } => unfinished_wqes + 1 >= u64::from(wqes),
            _ => false,
        };
        is_window_full || self.unsignaled + 1 >= self.signal_interval
    }

    /// The batch that [`emission`](Self::emission) showed was posted, and nothing was added to it since.
    /// Returns how many messages it has.
    #[inline]
    pub(crate) fn posted(&mut self, departure: Departure, now_ns: u64) -> u16 {
        let Departure { start, end, is_signaled } = departure;
        debug_assert_eq!(end - start, self.front().lines(), "a departure of another batch");
        if self.is_given_back() {
            self.refused_at = self.refused_at.filter(|at| *at == self.credited).map(|_| start);
            self.credited = start; // skipped lines were free
        }
        let (messages, response_lines) =
            if self.full.is_empty() { self.open.take() } else { self.take_full() };
        self.producer = end;
        self.posted_count += 1;
        self.progress_ns = now_ns;
        self.unsignaled = if is_signaled { 0 } else { self.unsignaled + 1 };
        self.posted.push_back(Posted { end, messages, response_lines, posted_ns: now_ns });
        self.unconsumed += u32::from(messages);
        self.clock.posted(now_ns, messages);
        if !self.is_empty() {
            self.clock.added(now_ns);
        }
        messages
    }

    /// Empties the oldest of the full batches.
    #[cold]
    fn take_full(&mut self) -> (u16, u32) {
        let Some(mut batch) = self.full.pop_front() else { return (0, 0) };
        self.full_lines -= batch.lines();
        let taken = batch.take();
        self.spare.push(batch);
        taken
    }

    /// All batches up to the one with this number have left the NIC.
    #[inline]
    pub(crate) fn finished(&mut self, number: u64) {
        self.finished_count = self.finished_count.max(number.min(self.posted_count));
    }

    /// The short form of credit in a batch: see [`credit`](Self::credit) and [`handled`](Self::handled).
    #[inline]
    pub(crate) fn credit_of_batch(
        &mut self,
        (consumed, handled): (u32, u16),
        now_ns: u64,
    ) -> Result<u32, Violation> {
        let news = handled.wrapping_sub(number_bits(self.handled_count));
        // Behind the known position: the credit words were read when later ones had been written (C3.3).
        if news <= u16::MAX / 2 {
            self.handled(self.handled_count + u64::from(news), now_ns)?;
        }
        let given = consumed.wrapping_sub(low_bits(self.credited));
        if given > u32::MAX / 2 {
            return Ok(0);
        }
        self.credit(self.credited + u64::from(given), now_ns)
    }

    /// The peer has handled so many batches.
    #[inline]
    pub(crate) fn handled(&mut self, count: u64, now_ns: u64) -> Result<(), Violation> {
        if count > self.posted_count {
            return Err(Violation::Handled { found: count, sent: self.posted_count });
        }
        if count > self.handled_count {
            (self.handled_count, self.progress_ns) = (count, now_ns);
        }
        Ok(())
    }

    /// Whether the peer has a receive for the next batch only once it has handled others.
    #[inline]
    pub(crate) fn is_window_full(&self) -> bool {
        self.unhandled() >= self.batches_max.into()
    }

    /// Batches that were posted and that the peer is not known to have handled.
    #[inline]
    pub(crate) fn unhandled(&self) -> u64 {
        self.posted_count - self.handled_count
    }

    /// Whether something waits for what the peer may have given back.
    #[inline]
    pub(crate) fn is_starved(&self) -> bool {
        let is_refused = self.refused_at == Some(self.credited) && !self.is_given_back();
        is_refused || self.is_window_full() && !self.is_empty()
    }

    /// Whether the peer has something to give back.
    pub(crate) fn awaits_credit(&self) -> bool {
        !self.is_given_back() || self.unhandled() > 0
    }

    /// The time of the latest posted batch or returned credit.
    pub(crate) fn progress_ns(&self) -> u64 {
        self.progress_ns
    }

    /// The peer has consumed lines up to `consumed`. Returns how many of those were set aside for
    /// responses.
    #[inline]
    pub(crate) fn credit(&mut self, consumed: u64, now_ns: u64) -> Result<u32, Violation> {
        if consumed <= self.credited {
            return Ok(0);
        }
        if consumed > self.producer {
            let sent = self.producer;
            let credited = self.credited;
            return Err(Violation::Credit { found: consumed, sent, credited });
        }
        (self.credited, self.progress_ns) = (consumed, now_ns);
        let mut response_lines = 0;
        let mut left_ns = None;
        while let Some(batch) = self.posted.front() {
            if batch.end > self.credited {
                break;
            }
            response_lines += batch.response_lines;
            self.unconsumed -= u32::from(batch.messages);
            left_ns = Some(batch.posted_ns);
            self.posted.pop_front();
        }
        if let Some(posted_ns) = left_ns {
            self.clock.round_trip(now_ns.saturating_sub(posted_ns));
            // Batches that the peer has consumed have left the NIC, with or without a completion.
            self.finished(self.posted_count - self.posted.len() as u64);
        }
        Ok(response_lines)
    }

    /// Messages that were posted and that the peer has not given credit for.
    #[inline]
    pub(crate) fn unconsumed(&self) -> u32 {
        self.unconsumed
    }

    /// Lines of the ring in use or spoken for by built batches.
    #[inline]
    pub(crate) fn used_lines(&self) -> u64 {
        self.producer - self.credited + self.full_lines + self.open.lines()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copyrpc::{
        Features,
        layout::{KIND_CANCEL, KIND_RESPONSE},
    };

    /// A ring of 16 lines, of which 4 are for responses and 4 for a wrap.
    fn outbox(policy: FlushPolicy, signal_interval: u16, geometry: Geometry) -> Outbox {
        let hello = Hello {
            features: Features::ALL,
            epoch: 1,
            slot: 0,
            calls_max: 4,
            geometry,
            batches_max: 100,
            large_bytes_max: 0,
        };
        Outbox::new(&hello, policy, signal_interval)
    }

    fn small(policy: FlushPolicy, signal_interval: u16) -> Outbox {
        outbox(policy, signal_interval, Geometry::new(1024, 256, 256).unwrap())
    }

    const TO: Address = Address { slot: 0, epoch: 1, consumed: 0, handled: 0 };

    /// Adds a message of one line, and posts the batch that is due; `None`: none is. Returns whether a completion
    /// is asked for.
    fn send(outbox: &mut Outbox, now_ns: u64) -> Option<bool> {
        let message = Outgoing { body_bytes: 40, ..Outgoing::control(KIND_RESPONSE, 0) };
        outbox.push(&message, 1, now_ns).fill(0);
        let Emission { departure, is_signaled, .. } = outbox.emission(now_ns, false, &TO)?;
        outbox.posted(departure, now_ns);
        Some(is_signaled)
    }

    /// Rule C7.4.
    #[test]
    fn completions_are_asked_for_when_the_window_fills_and_now_and_then() {
        let mut immediate = small(FlushPolicy::Immediate, 3);
        let signaled: Vec<_> = (0..7).map(|_| send(&mut immediate, 0).unwrap()).collect();
        assert_eq!(signaled, [false, false, true, false, false, true, false]);
        let mut clocked = small(FlushPolicy::SelfClocked { wqes: 2 }, 100);
        assert_eq!(send(&mut clocked, 0), Some(false));
        assert_eq!(send(&mut clocked, 0), Some(true), "nothing else would open the window again");
        assert_eq!(send(&mut clocked, 0), None);
    }

    /// Rule C7.2: what the peer gave back has left, though no completion said so.
    #[test]
    fn credit_opens_the_window() {
        let mut outbox = small(FlushPolicy::SelfClocked { wqes: 1 }, 100);
        send(&mut outbox, 0).unwrap();
        assert_eq!(send(&mut outbox, 0), None);
        assert_eq!(outbox.credit(1, 0), Ok(1));
        assert!(outbox.emission(0, false, &TO).is_some());
    }

    /// A sender that was refused for want of lines looks at the peer's credit until there is some; one that was not
    /// does not.
    #[test]
    fn who_was_refused_is_starved_until_lines_are_given_back() {
        let mut outbox = small(FlushPolicy::Immediate, 1);
        let request = Outgoing { body_bytes: 40, ..Outgoing::control(KIND_CANCEL, 0) };
        for _ in 0..8 {
            assert!(outbox.admit(&request).is_ok() && !outbox.is_starved());
            send(&mut outbox, 0).unwrap();
        }
        assert!(outbox.admit(&request).is_err() && outbox.is_starved());
        outbox.credit(1, 0).unwrap();
        assert!(!outbox.is_starved(), "it may try again");
        send(&mut outbox, 0).unwrap();
        assert!(outbox.admit(&request).is_err() && outbox.is_starved());
        outbox.credit(9, 0).unwrap();
        assert!(!outbox.is_starved() && outbox.admit(&request).is_ok());
    }

    /// Rule C2.10: a caller that was refused because of a batch that is built, and not posted, does not wait for the
    /// peer; once that batch begins the ring anew, it waits for the lines that the batch takes there.
    #[test]
    fn who_was_refused_is_starved_also_when_the_ring_is_begun_anew() {
        let mut outbox = small(FlushPolicy::Immediate, 1);
        for _ in 0..5 {
            send(&mut outbox, 0).unwrap();
        }
        outbox.credit(5, 0).unwrap();
        let request = Outgoing { body_bytes: 232, ..Outgoing::control(KIND_CANCEL, 0) };
        for _ in 0..2 {
            let place = outbox.admit(&request).unwrap();
            outbox.push_at(place, &request, 0, 0);
        }
        assert!(outbox.admit(&request).is_err() && !outbox.is_starved(), "all was given back");
        let departure = outbox.emission(0, false, &TO).unwrap().departure;
        assert_eq!(departure.start, 16);
        outbox.posted(departure, 0);
        assert!(outbox.is_starved());
        outbox.credit(20, 0).unwrap();
        assert!(!outbox.is_starved());
    }

    /// A header counts to 65535.
    #[test]
    fn a_batch_has_no_more_messages_than_its_header_can_count() {
        let geometry = Geometry::new(1 << 22, 1 << 10, 1 << 20).unwrap();
        let mut outbox = outbox(FlushPolicy::Immediate, 1, geometry);
        for _ in 0..=u16::MAX {
            outbox.push(&Outgoing::control(KIND_CANCEL, 0), 0, 0);
        }
        let departure = outbox.emission(0, false, &TO).unwrap().departure;
        assert_eq!(outbox.posted(departure, 0), u16::MAX);
        let departure = outbox.emission(0, false, &TO).unwrap().departure;
        assert_eq!(outbox.posted(departure, 0), 1);
    }
}
