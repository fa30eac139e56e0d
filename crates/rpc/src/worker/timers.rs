//! The time of the last poll, and what is due by time.

use core::time::Duration;

use proto::copyrpc::FlushPolicy;

/// The interval at which deadlines and credit are checked.
const LOOK_NS: u64 = 250_000;

/// The interval at which memory is looked for that nobody uses.
const RELEASE_NS: u64 = 1_000_000_000;

/// A worker's clock and timers.
#[derive(Debug)]
pub(super) struct Timers {
    now_ns: u64,
    look_ns: u64,
    release_ns: u64,
    flushed_ns: u64,
}

impl Timers {
    pub(super) fn new(now_ns: u64) -> Self {
        let release_ns = now_ns.saturating_add(RELEASE_NS);
        Self { now_ns, look_ns: now_ns, release_ns, flushed_ns: now_ns }
    }

    #[inline]
    pub(super) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Takes the time from a clock. Earlier times than the latest one mean nothing.
    #[inline]
    pub(super) fn observe(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// Whether deadlines and credit are to be looked at now; then the next look is put off.
    #[inline]
    pub(super) fn take_look(&mut self) -> bool {
        let is_due = self.now_ns >= self.look_ns;
        if is_due {
            self.look_ns = self.now_ns.saturating_add(LOOK_NS);
        }
        is_due
    }

    /// When memory is looked for that nobody uses.
    pub(super) fn release_ns(&self) -> u64 {
        self.release_ns
    }

    /// When a poll does so: at a look at what is due by time.
    pub(super) fn release_look_ns(&self) -> u64 {
        self.release_ns.max(self.look_ns)
    }

    /// Some of it was given back, and more of it may go at the next look; or there was none.
    pub(super) fn released(&mut self, is_more: bool) {
        let pause_ns = if is_more { LOOK_NS } else { RELEASE_NS };
        self.release_ns = self.now_ns.saturating_add(pause_ns);
    }

    /// The next poll looks.
    pub(super) fn look_soon(&mut self) {
        self.look_ns = self.now_ns;
    }

    /// Batches were posted.
    #[inline]
    pub(super) fn flushed(&mut self) {
        self.flushed_ns = self.now_ns;
    }

    /// Whether received batches are still to be gathered.
    #[inline]
    pub(super) fn is_coalescing(&self, policy: FlushPolicy) -> bool {
        match policy {
            FlushPolicy::Coalesce { ns } => self.now_ns < self.flushed_ns.saturating_add(ns.into()),
            _ => false,
        }
    }
}

/// The keepalive of silent peers: its timer, and the progress of its round.
#[derive(Debug)]
pub(super) struct Keepalive {
    /// `None`: never.
    interval_ns: Option<u64>,
    /// The time of the next round.
    due_ns: u64,
    /// The slot with which the round that is under way goes on.
    next_slot: Option<u32>,
}

impl Keepalive {
    pub(super) fn new(interval: Option<Duration>, now_ns: u64) -> Self {
        let interval_ns = interval
            .map(|interval| u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX).max(LOOK_NS));
        let due_ns = now_ns.saturating_add(interval_ns.unwrap_or(u64::MAX));
        Self { interval_ns, due_ns, next_slot: None }
    }

    /// The time of the next probe; `None`: never.
    pub(super) fn due_ns(&self) -> Option<u64> {
        self.interval_ns.map(|_| if self.next_slot.is_some() { 0 } else { self.due_ns })
    }

    /// The slot to go on with, if a round is under way or begins now.
    pub(super) fn begin(&mut self, now_ns: u64) -> Option<u32> {
        let interval_ns = self.interval_ns?;
        if self.next_slot.is_none() && now_ns >= self.due_ns {
            self.due_ns = now_ns.saturating_add(interval_ns);
            self.next_slot = Some(0);
        }
        self.next_slot
    }

    /// The round goes on with this slot, or is over.
    pub(super) fn go_on(&mut self, next_slot: Option<u32>) {
        self.next_slot = next_slot;
    }
}
