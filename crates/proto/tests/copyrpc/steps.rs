//! The events of two connections, and the invariants after each.

use copyrpc_proto::copyrpc::Usage;

use crate::pair::{Pair, Setup};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Call { side: usize, len_bytes: usize, response_bytes: usize, timeout_us: u64 },
    Reply { side: usize, at: usize, len_bytes: usize },
    ReplyLarge { side: usize, at: usize },
    Fetch { side: usize, at: usize },
    Depart { side: usize, is_forced: bool },
    Arrive { side: usize, is_held: bool },
    Look { side: usize },
    Cancel { side: usize, at: u64 },
    Advance { us: u64 },
}

/// Does one thing.
pub(crate) fn apply(pair: &mut Pair, step: Step) {
    match step {
        Step::Call { side, len_bytes, response_bytes, timeout_us } => {
            // Refusals are back-pressure, or bodies too long for these small rings.
            let _ = pair.call(side, 7, len_bytes, response_bytes, timeout_us * 1000);
        }
        Step::Reply { side, at, len_bytes } => {
            let requests = pair.sides[side].requests.len();
            if requests > 0 {
                // Every caller sets at least a line aside, and the smallest batch is a line.
                pair.reply(side, at % requests, len_bytes.min(32));
            }
        }
        Step::ReplyLarge { side, at } => {
            let requests = pair.sides[side].requests.len();
            if requests > 0 {
                pair.reply_large(side, at % requests);
            }
        }
        Step::Fetch { side, at } => {
            let fetching = pair.sides[side].fetching.len();
            if fetching > 0 {
                pair.fetch(side, at % fetching);
            }
        }
        Step::Depart { side, is_forced } => drop(pair.depart(side, is_forced)),
        Step::Arrive { side, is_held } => {
            pair.arrive(side, is_held).expect("two correct sides");
        }
        Step::Look { side } => pair.look(side),
        Step::Cancel { side, at } => {
            let made = pair.sides[side].made.len() as u64;
            if made > 0 {
                pair.sides[side].cancel(at % made);
            }
        }
        Step::Advance { us } => pair.advance(us * 1000),
    }
}

/// Everything that holds at all times.
pub(crate) fn check(pair: &mut Pair, setup: &Setup) {
    let ring = u64::from(setup.geometry.ring_lines());
    let now_ns = pair.now_ns;
    for side in &mut pair.sides {
        // An admitted message has a place now, whatever is held and whatever wraps. (Cancellations
        // are not admitted; they wait.)
        let is_admitted = side.connection.usage().control == 0 && side.connection.has_gathered();
        let is_window_full = side.connection.unhandled() >= setup.batches_max.into();
        let is_due = side.connection.emission(now_ns, true).is_some();
        assert!(is_due || is_window_full || !is_admitted, "a batch without a place");
        assert!(!is_due || !is_window_full, "a batch without a receive");
        let usage = side.connection.usage();
        assert!(usage.ring_lines <= ring, "{usage:?}");
        assert!(usage.call_budget_lines <= setup.geometry.response_lines(), "{usage:?}");
        assert!(usage.served_budget_lines <= setup.geometry.response_lines(), "{usage:?}");
        assert_eq!(side.made.len(), side.ended.len() + side.connection.waiting());
    }
    // No side serves more than the other has requested and not seen answered.
    for (caller, server) in [(0, 1), (1, 0)] {
        let calls = pair.sides[caller].connection.usage().calls;
        assert!(pair.sides[server].connection.serving() <= calls);
    }
}

/// Everything that holds when nothing is left to happen.
pub(crate) fn settle(mut pair: Pair) {
    pair.settle();
    for side in &pair.sides {
        assert_eq!(side.made.len(), side.ended.len());
        assert_eq!(side.connection.usage(), Usage::default());
        assert_eq!(side.lent, []);
    }
}
