//! The consumer's side: finding lanes with items, fairly, and sleeping when there are none.

use core::fmt;

use memory::sync::{Arc, Ordering};

use super::ReceiverState;
use crate::spsc::{Consumer, Discipline};

/// Looks in a row that find a lane empty until its bit is cleared: enough for the partner of a
/// conversation to find its bit still set, and few enough to forget a lane that went idle.
pub const LINGER_LOOKS: u32 = if cfg!(any(loom, miri)) { 1 } else { 64 };

/// The result of [`Receiver::poll`].
pub(crate) enum Polled<T> {
    Item {
        lane: usize,
        item: T,
    },
    /// The producer of `lane` left and all its items are taken; see [`Receiver::reuse`].
    Closed {
        lane: usize,
    },
}

/// The consumer of all lanes.
pub struct Receiver<T, D: Discipline> {
    state: Arc<ReceiverState<T, D>>,
    /// By lane; none where no sender is connected, or none has sent yet.
    lanes: Vec<Lane<T, D>>,
    /// The lane that the round continues with.
    cursor: usize,
    /// Items that may still be taken from `cursor` in this visit.
    budget_left: u32,
}

struct Lane<T, D: Discipline> {
    consumer: Option<Consumer<T, D>>,
    /// Looks in a row that found nothing.
    empty_looks: u32,
}

impl<T, D: Discipline> Receiver<T, D> {
    pub(crate) fn new(state: Arc<ReceiverState<T, D>>) -> Self {
        let lane = |_| Lane { consumer: None, empty_looks: 0 };
        let lanes = (0..state.config().lanes_max).map(lane).collect();
        Self { state, lanes, cursor: 0, budget_left: 0 }
    }

    /// The oldest item of the next lane in the round, and the lane.
    #[inline]
    pub fn recv(&mut self) -> Option<(usize, T)> {
        loop {
            match self.poll()? {
                Polled::Item { lane, item } => return Some((lane, item)),
                Polled::Closed { lane } => self.reuse(lane),
            }
        }
    }

    /// Waits until there may be something to receive, or no sender is left; false if the deadline (in nanoseconds of
    /// `os::clock`) passed or a signal came before.
    pub fn wait(&mut self, deadline_ns: u64) -> bool {
        let state = &*self.state;
        let has_work = || state.ready.any() || state.is_deserted();
        state.parker.wait(state.config.waiting, deadline_ns, has_work)
    }

    /// Before a sleep that the alarm ends: `true` if there is nothing to receive.
    pub(crate) fn arm(&self) -> bool {
        self.state.parker.arm(|| self.state.ready.any())
    }

    /// Ends what [`arm`](Self::arm) began.
    pub(crate) fn disarm(&self) {
        self.state.parker.disarm();
    }

    /// Whether no sender and no connector is left. Ask *before* the [`recv`](Self::recv) that finds
    /// nothing: "disconnected, and then empty" is the end.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        self.state.is_deserted()
    }

    /// As [`recv`](Self::recv), and also tells when a lane ended.
    #[inline]
    pub(crate) fn poll(&mut self) -> Option<Polled<T>> {
        if self.budget_left > 0
            && let Some(item) = self.lanes[self.cursor].pop()
        {
            self.budget_left -= 1;
            return Some(Polled::Item { lane: self.cursor, item });
        }
        self.poll_round()
    }

    /// Makes the lane of a producer that left available to another one.
    pub(crate) fn reuse(&self, lane: usize) {
        self.state.lanes().free.push(lane);
    }

    /// From now on senders learn that there is no receiver.
    pub(crate) fn close(&self) {
        self.state.is_closed.store(true, Ordering::Relaxed);
    }

    /// One round over the set bits, beginning behind the lane visited last.
    fn poll_round(&mut self) -> Option<Polled<T>> {
        let start = self.cursor + 1;
        let mut from = start;
        while let Some(lane) = self.state.ready.next(from) {
            if let Some(polled) = self.visit(lane) {
                return Some(polled);
            }
            from = lane + 1;
        }
        from = 0;
        while let Some(lane) = self.state.ready.next(from).filter(|&lane| lane < start) {
            if let Some(polled) = self.visit(lane) {
                return Some(polled);
            }
            from = lane + 1;
        }
        self.budget_left = 0;
        None
    }

    fn visit(&mut self, lane: usize) -> Option<Polled<T>> {
        if lane >= self.lanes.len() {
            self.state.ready.rest(lane); // a bell: its sender looks after us
            return None;
        }
        if self.lanes[lane].consumer.is_none() {
            self.admit();
        }
        let looked = &mut self.lanes[lane];
        let mut item = looked.pop();
        if item.is_none() {
            looked.empty_looks += 1;
            if looked.empty_looks < LINGER_LOOKS {
                return None;
            }
            match self.last_look(lane) {
                Some(Polled::Item { item: found, .. }) => item = Some(found),
                other => return other,
            }
        }
        self.cursor = lane;
        self.budget_left = self.state.config.budget_items - 1;
        item.map(|item| Polled::Item { lane, item })
    }

    /// Clears the bit of a lane that is empty, unless it turns out not to be.
    fn last_look(&mut self, lane: usize) -> Option<Polled<T>> {
        self.state.ready.rest(lane);
        if self.lanes[lane].consumer.is_none() {
            self.admit();
        }
        let looked = &mut self.lanes[lane];
        looked.empty_looks = 0;
        let is_gone = looked.consumer.as_ref()?.is_disconnected();
        if let Some(item) = looked.pop() {
            self.state.ready.keep(lane);
            return Some(Polled::Item { lane, item });
        }
        is_gone.then(|| {
            looked.consumer = None;
            Polled::Closed { lane }
        })
    }

    /// Takes over lanes that were opened since.
    fn admit(&mut self) {
        let Self { state, lanes, .. } = self;
        for (lane, consumer) in state.lanes().arrivals.drain(..) {
            lanes[lane] = Lane { consumer: Some(consumer), empty_looks: 0 };
        }
    }
}

impl<T, D: Discipline> Lane<T, D> {
    #[inline(always)]
    fn pop(&mut self) -> Option<T> {
        let item = self.consumer.as_mut()?.pop_at_once()?;
        self.empty_looks = 0;
        Some(item)
    }
}

impl<T, D: Discipline> Drop for Receiver<T, D> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<T, D: Discipline> fmt::Debug for Receiver<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("cursor", &self.cursor).finish_non_exhaustive()
    }
}
