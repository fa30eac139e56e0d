//! Many producers, one consumer: a lane (an SPSC ring) per producer and a bit per lane.
//!
//! ```text
//! Sender 0 ──► lane 0 ─┐   ready bits: 1 0 1 …      one word per 64 lanes
//! Sender 1 ──► lane 1 ─┤
//! Sender 2 ──► lane 2 ─┴─► Receiver: round robin over set bits, `budget_items` per visit
//! ```
//!
//! Producers never contend with each other for a slot, and one that stops in the middle of anything
//! delays no other. The receiver looks at lanes that are or were just active: an idle lane costs it
//! nothing, 64 idle lanes one load. A lane that ran empty stays in the round for [`LINGER_LOOKS`] more
//! looks, so that a caller who answers at once does not set and clear its bit each time.
//!
//! Per send on a busy lane: the ring's own cost, one barrier and one load of a line without a writer.
//! Per send on a resting lane: one fetch-or more, and a wake-up if the receiver sleeps.
//!
//! Producers come and go: a lane is free again when the receiver has taken the last item of a producer
//! that hung up.

mod ready;
mod receiver;
mod sender;

use memory::{
    Line,
    sync::{Arc, AtomicBool, AtomicUsize, Ordering},
};

use self::ready::Ready;
pub(crate) use self::receiver::Polled;
pub use self::{
    receiver::{LINGER_LOOKS, Receiver},
    sender::{ConnectError, Connector, SendError, Sender},
};
use crate::{
    lock::{Mutex, MutexGuard, lock},
    parker::{Alarm, Parker, Waiting},
    spsc::{self, Consumer, Discipline, Producer},
};

/// Bounds of an MPSC queue.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Producers at a time.
    pub lanes_max: usize,
    /// Items that surely fit each lane.
    pub lane_items: usize,
    /// Items that the receiver takes from one lane before it looks at the next.
    pub budget_items: u32,
    /// The waiting of [`Receiver::wait`].
    pub waiting: Waiting,
}

impl Default for Config {
    fn default() -> Self {
        Self { lanes_max: 64, lane_items: 256, budget_items: 32, waiting: Waiting::default() }
    }
}

/// Creates a queue without producers: [`Connector::connect`] makes them.
///
/// # Panics
///
/// If `lane_items` or `budget_items` is zero.
#[must_use]
pub fn channel<T, D: Discipline>(config: Config) -> (Connector<T, D>, Receiver<T, D>) {
    let state = Arc::new(ReceiverState::new(config));
    (Connector::new(state.clone()), Receiver::new(state))
}

/// As [`channel`], with a bell that makes the receiver look around.
pub(crate) fn channel_with_bell<T, D: Discipline>(
    config: Config,
) -> (Connector<T, D>, Receiver<T, D>, Bell<T, D>) {
    let state = Arc::new(ReceiverState::new(config));
    let bell = Bell { state: state.clone() };
    (Connector::new(state.clone()), Receiver::new(state), bell)
}

/// Wakes the receiver for work that comes by other ways than a lane.
pub(crate) struct Bell<T, D: Discipline> {
    pub(crate) state: Arc<ReceiverState<T, D>>,
}

impl<T, D: Discipline> Bell<T, D> {
    pub(crate) fn ring(&self) {
        self.state.ring();
    }
}

/// State that the receiver shares with its connectors and senders.
pub(crate) struct ReceiverState<T, D: Discipline> {
    ready: Ready,
    parker: Parker,
    /// The receiver is gone.
    is_closed: Line<AtomicBool>,
    /// Connectors and senders alive.
    users: Line<AtomicUsize>,
    /// Locked to connect, and by the receiver when a bit is set that it has no lane for.
    lanes: Mutex<Lanes<T, D>>,
    config: Config,
}

struct Lanes<T, D: Discipline> {
    /// Lanes without a producer.
    free: Vec<usize>,
    /// Lanes that the receiver has not seen yet.
    arrivals: Vec<(usize, Consumer<T, D>)>,
}

impl<T, D: Discipline> ReceiverState<T, D> {
    pub(crate) fn new(config: Config) -> Self {
        Self::with_alarm(config, None)
    }

    /// For a receiver that may sleep elsewhere, where `alarm` wakes it.
    pub(crate) fn with_alarm(config: Config, alarm: Option<Alarm>) -> Self {
        assert!(config.lane_items > 0, "a lane holds at least one item");
        assert!(config.budget_items > 0, "a visit takes at least one item");
        Self {
            ready: Ready::new(config.lanes_max + 1),
            parker: Parker::with_alarm(alarm),
            is_closed: Line::default(),
            users: Line::default(),
            lanes: Mutex::new(Lanes {
                free: (0..config.lanes_max).rev().collect(),
                arrivals: Vec::new(),
            }),
            config,
        }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn is_closed(&self) -> bool {
        // No data follows from the answer, so nothing to order.
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Announces work that is in no lane, by the bit behind those of the lanes.
    fn ring(&self) {
        self.raise(self.config.lanes_max);
    }

    /// Announces work in `lane`.
    #[inline]
    fn raise(&self, lane: usize) {
        if self.ready.raise(lane) {
            self.parker.wake();
        }
    }

    /// Opens `lane`, which must be free, with a new ring.
    pub(crate) fn open(&self, lane: usize, lane_items: usize) -> Producer<T, D> {
        let (producer, consumer) = spsc::channel(lane_items);
        self.lanes().arrivals.push((lane, consumer));
        producer
    }

    fn lanes(&self) -> MutexGuard<'_, Lanes<T, D>> {
        lock(&self.lanes)
    }

    fn is_deserted(&self) -> bool {
        // SYNC(mpsc-users): pairs with the barrier in `Ready::raise`: all that was sent comes
        // before.
        self.users.load(Ordering::Acquire) == 0
    }

    /// Counts one more connector or sender.
    pub(crate) fn join(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    fn leave(&self) {
        // Behind the barrier of the last `raise`, which is what SYNC(mpsc-users) relies on.
        let users = self.users.fetch_sub(1, Ordering::Relaxed);
        if users == 1 {
            self.ring(); // a sleeping receiver waits for this, too
        }
    }
}
