//! The producers' side: connecting, sending, leaving.

use core::fmt;

use memory::sync::Arc;

use super::ReceiverState;
use crate::spsc::{Discipline, Full, Producer};

/// Why [`Connector::connect`] made no sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// As many producers are connected as there are lanes. Retry after one has left and the receiver
    /// has taken its items.
    #[error("all {lanes_max} lanes are taken: retry after a producer has left")]
    NoLane {
        /// Lanes of the queue.
        lanes_max: usize,
    },
    /// The receiver is gone.
    #[error("the receiver is gone: create a new queue")]
    Disconnected,
}

/// Why [`Sender::send`] did not take an item. Hands it back.
#[derive(PartialEq, Eq, thiserror::Error)]
pub enum SendError<T> {
    /// The lane is full. Retry after the receiver has taken items.
    #[error("lane is full: retry after the receiver has taken items")]
    Full(T),
    /// The receiver is gone.
    #[error("the receiver is gone, so the item cannot be delivered")]
    Disconnected(T),
}

impl<T> fmt::Debug for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "Full(_)",
            Self::Disconnected(_) => "Disconnected(_)",
        })
    }
}

/// Makes senders.
pub struct Connector<T, D: Discipline> {
    state: Arc<ReceiverState<T, D>>,
}

impl<T, D: Discipline> Connector<T, D> {
    pub(super) fn new(state: Arc<ReceiverState<T, D>>) -> Self {
        state.join();
        Self { state }
    }

    /// Takes a free lane. Allocates its ring.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub fn connect(&self) -> Result<Sender<T, D>, ConnectError> {
        if self.state.is_closed() {
            return Err(ConnectError::Disconnected);
        }
        let lane = self.state.lanes().free.pop();
        let lanes_max = self.state.config().lanes_max;
        let lane = lane.ok_or(ConnectError::NoLane { lanes_max })?;
        Ok(Sender::open(self.state.clone(), lane, self.state.config().lane_items))
    }
}

impl<T, D: Discipline> Clone for Connector<T, D> {
    fn clone(&self) -> Self {
        Self::new(self.state.clone())
    }
}

impl<T, D: Discipline> Drop for Connector<T, D> {
    fn drop(&mut self) {
        self.state.leave();
    }
}

impl<T, D: Discipline> fmt::Debug for Connector<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").finish_non_exhaustive()
    }
}

/// One producer with its lane. Dropping it hangs up: the receiver gets the items that were sent.
pub struct Sender<T, D: Discipline> {
    state: Arc<ReceiverState<T, D>>,
    /// None only while dropping.
    producer: Option<Producer<T, D>>,
    lane: usize,
}

impl<T, D: Discipline> Sender<T, D> {
    /// Opens `lane`, which must be free.
    pub(crate) fn open(state: Arc<ReceiverState<T, D>>, lane: usize, lane_items: usize) -> Self {
        state.join();
        let producer = Some(state.open(lane, lane_items));
        Self { state, producer, lane }
    }

    /// The lane by which the receiver knows this sender, until the sender has left.
    #[must_use]
    pub fn lane(&self) -> usize {
        self.lane
    }

    /// Whether the receiver is gone.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        self.state.is_closed()
    }

    /// Free slots, at least: exact up to `want`.
    #[inline]
    pub fn free_items(&mut self, want: usize) -> usize {
        self.producer().free_items(want)
    }

    /// Appends `item`, and wakes the receiver if it sleeps.
    ///
    /// # Errors
    ///
    /// [`SendError`] hands `item` back.
    #[inline]
    pub fn send(&mut self, item: T) -> Result<(), SendError<T>> {
        if self.state.is_closed() {
            return Err(SendError::Disconnected(item));
        }
        self.send_anyway(item).map_err(|Full(item)| SendError::Full(item))
    }

    /// As [`send`](Self::send), without asking whether the receiver is gone: if it is, the item is
    /// dropped with the lane.
    #[inline]
    pub(crate) fn send_anyway(&mut self, item: T) -> Result<(), Full<T>> {
        self.producer().push(item)?;
        self.state.raise(self.lane);
        Ok(())
    }

    /// As [`send_anyway`](Self::send_anyway), without a barrier: a receiver that has found this lane empty often
    /// enough to forget it looks at it again after [`announce`](Self::announce), and one that sleeps is woken by that.
    #[inline]
    pub(crate) fn send_unannounced(&mut self, item: T) -> Result<(), Full<T>> {
        self.producer().push(item)
    }

    /// Leads the receiver to all items that were sent, and wakes it if it sleeps.
    pub(crate) fn announce(&self) {
        self.state.raise(self.lane);
    }

    /// Appends from `items` what fits, visible at once, and returns how many. Up to `max_items`, and
    /// no more than fit is taken from the iterator.
    pub fn send_batch(&mut self, max_items: usize, items: impl IntoIterator<Item = T>) -> usize {
        let mut reservation = self.producer().reserve(max_items);
        reservation.extend(items);
        let count = reservation.commit();
        if count > 0 {
            self.state.raise(self.lane);
        }
        count
    }

    #[inline(always)]
    fn producer(&mut self) -> &mut Producer<T, D> {
        self.producer.as_mut().expect("present until drop")
    }
}

impl<T, D: Discipline> Drop for Sender<T, D> {
    fn drop(&mut self) {
        // Hang up first: the bit then leads the receiver to a lane that is at its end.
        self.producer = None;
        self.state.raise(self.lane);
        self.state.leave();
    }
}

impl<T, D: Discipline> fmt::Debug for Sender<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("lane", &self.lane).finish_non_exhaustive()
    }
}
