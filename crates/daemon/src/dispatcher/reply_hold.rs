//! Answers of other nodes that wait for each other before their clients get them.
//!
//! For research: batches between daemons are as large as what clients send at a time, and clients that get their answers
//! at a time send at a time. docs/instruments.md names the measurements that it repeats.

use rpc::Status;

use crate::{
    client_port::ClientPort,
    dispatcher::{Dispatcher, ReplyTo},
    metrics::Counter,
};

/// Time that answers of other nodes wait for as many as there are nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyHold {
    /// At most so long. After as many answers as there are nodes have come in time, none waits until a poll finds
    /// nothing.
    Fixed {
        /// The time.
        ns: u32,
    },
    /// At most as long as so many take by their recent rate: 0.5 to 100 µs.
    Adaptive {
        /// The time at first.
        ns: u32,
    },
    /// At most so many thousandths of the time from a post to the next answer.
    RoundTrip {
        /// Thousandths.
        permille: u32,
    },
}

/// Bounds of the adaptive time.
const ADAPTIVE_NS: (f64, f64) = (500.0, 100_000.0);
/// Least time that a rate is taken over.
const RATE_NS: f64 = 50.0;
/// Weight of a new sample.
const WEIGHT: f64 = 0.125;

struct Held<P: ClientPort> {
    reply_to: ReplyTo<P>,
    status: Status,
    body: Vec<u8>,
    taken_ns: u64,
}

/// What waits, and for how long.
pub(crate) struct Holding<P: ClientPort> {
    policy: ReplyHold,
    /// Answers that are enough.
    target: usize,
    may_hold: bool,
    since_ns: Option<u64>,
    hold_ns: f64,
    /// Answers per ns; 0: not known.
    rate: f64,
    round_trip_ns: f64,
    posted_ns: Option<u64>,
    /// No more than there are calls of clients in flight.
    held: Vec<Held<P>>,
}

impl<P: ClientPort> Holding<P> {
    pub(crate) fn new(policy: ReplyHold, nodes: usize) -> Self {
        let hold_ns = match policy {
            ReplyHold::Fixed { ns } | ReplyHold::Adaptive { ns } => ns.into(),
            ReplyHold::RoundTrip { .. } => 0.0,
        };
        let (since_ns, posted_ns, held) = (None, None, Vec::new());
        let (may_hold, rate, round_trip_ns) = (true, 0.0, 0.0);
        let target = nodes;
        Self { policy, target, may_hold, since_ns, hold_ns, rate, round_trip_ns, posted_ns, held }
    }

    /// A batch was posted.
    pub(crate) fn posted(&mut self, now_ns: u64) {
        self.posted_ns.get_or_insert(now_ns);
    }

    /// Takes an answer.
    pub(super) fn take(
        &mut self,
        now_ns: u64,
        reply_to: ReplyTo<P>,
        status: Status,
        body: &[u8],
        taken_ns: u64,
    ) {
        if let Some(posted_ns) = self.posted_ns.take() {
            let sample = now_ns.saturating_sub(posted_ns) as f64;
            self.round_trip_ns = mean(self.round_trip_ns, sample);
            if let ReplyHold::RoundTrip { permille } = self.policy {
                self.hold_ns = self.round_trip_ns * f64::from(permille) / 1000.0;
            }
        }
        self.since_ns.get_or_insert(now_ns);
        self.held.push(Held { reply_to, status, body: body.to_owned(), taken_ns });
    }

    /// Whether what waits has waited long enough, or is enough.
    fn is_due(&mut self, now_ns: u64) -> bool {
        let Some(since_ns) = self.since_ns else {
            self.may_hold = true;
            return false;
        };
        let (count, waited_ns) = (self.held.len(), now_ns.saturating_sub(since_ns) as f64);
        if self.may_hold && count < self.target && waited_ns < self.hold_ns {
            return false;
        }
        let is_adaptive = matches!(self.policy, ReplyHold::Adaptive { .. });
        if is_adaptive {
            self.rate = mean(self.rate, count as f64 / waited_ns.max(RATE_NS));
            self.hold_ns = (self.target as f64 / self.rate).clamp(ADAPTIVE_NS.0, ADAPTIVE_NS.1);
        }
        self.may_hold = is_adaptive || count < self.target;
        self.since_ns = None;
        true
    }
}

/// A moving average; the first sample is one.
fn mean(before: f64, sample: f64) -> f64 {
    if before == 0.0 { sample } else { (1.0 - WEIGHT) * before + WEIGHT * sample }
}

impl<P: ClientPort> Dispatcher<P> {
    /// From now on answers of other nodes wait; of calls that clients of this thread made.
    pub(crate) fn hold_replies(&mut self, policy: ReplyHold, nodes: usize) {
        self.holding = Some(Box::new(Holding::new(policy, nodes)));
    }

    /// Whether answers wait.
    pub(crate) fn holds_replies(&self) -> bool {
        self.holding.as_ref().is_some_and(|holding| !holding.held.is_empty())
    }

    /// Gives clients what has waited long enough.
    pub(crate) fn release_replies(&mut self, replies: &mut P::Replies) {
        let now_ns = self.now_ns;
        let Some(holding) = &mut self.holding else { return };
        if !holding.is_due(now_ns) {
            return;
        }
        let mut held = std::mem::take(&mut holding.held);
        self.tally.add(Counter::ReplyHolds, 1);
        for Held { reply_to, status, body, taken_ns } in held.drain(..) {
            self.answer(replies, reply_to, status, &body, taken_ns);
        }
        if let Some(holding) = &mut self.holding {
            holding.held = held;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IpcPort;

    fn holding(policy: ReplyHold) -> Holding<IpcPort> {
        Holding::new(policy, 4)
    }

    fn take(holding: &mut Holding<IpcPort>, now_ns: u64, answers: usize) {
        (0..answers).for_each(|_| holding.take(now_ns, ReplyTo::Nobody, Status::Ok, b"x", 0));
    }

    fn release(holding: &mut Holding<IpcPort>, now_ns: u64) -> usize {
        if holding.is_due(now_ns) { std::mem::take(&mut holding.held).len() } else { 0 }
    }

    #[test]
    fn answers_wait_for_as_many_as_there_are_nodes_or_for_the_time() {
        let mut it = holding(ReplyHold::Fixed { ns: 10_000 });
        assert_eq!(release(&mut it, 0), 0);
        take(&mut it, 100, 3);
        assert_eq!(release(&mut it, 10_099), 0);
        assert_eq!(release(&mut it, 10_100), 3);
        take(&mut it, 20_000, 3);
        take(&mut it, 20_001, 1);
        assert_eq!(release(&mut it, 20_001), 4);
        // Batches are large enough: nothing waits until a poll finds nothing.
        take(&mut it, 20_100, 1);
        assert_eq!(release(&mut it, 20_100), 1);
        assert_eq!(release(&mut it, 20_101), 0);
        take(&mut it, 20_200, 1);
        assert_eq!(release(&mut it, 20_200), 0);
    }

    #[test]
    fn the_adaptive_time_follows_the_rate_and_that_of_round_trips_follows_them() {
        let mut it = holding(ReplyHold::Adaptive { ns: 1_000 });
        take(&mut it, 0, 1);
        assert_eq!(release(&mut it, 1_000), 1, "one per µs, so four take four");
        assert!((it.hold_ns - 4_000.0).abs() < 1e-6, "{}", it.hold_ns);
        let mut it = holding(ReplyHold::RoundTrip { permille: 1500 });
        it.posted(1_000);
        it.posted(2_000);
        take(&mut it, 5_000, 1);
        assert!((it.hold_ns - 6_000.0).abs() < 1e-6, "{}", it.hold_ns);
        assert_eq!((release(&mut it, 10_999), release(&mut it, 11_000)), (0, 1));
    }
}
