//! Any interleaving of calls, answers, leases, cancellations, arrivals and time.

use copyrpc_proto::copyrpc::{FlushPolicy, Geometry, Usage};
use proptest::prelude::*;

use crate::pair::{Pair, Setup};

#[derive(Clone, Copy, Debug)]
enum Step {
    Call { side: usize, len_bytes: usize, response_bytes: usize, timeout_us: u64 },
    Reply { side: usize, at: usize, len_bytes: usize },
    ReplyLarge { side: usize, at: usize },
    Fetch { side: usize, at: usize },
    Depart { side: usize, is_forced: bool },
    Arrive { side: usize, is_held: bool },
    Cancel { side: usize, at: u64 },
    Advance { us: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let side = 0..2_usize;
    prop_oneof![
        4 => (side.clone(), 0..220_usize, 0..300_usize, 1..20_000_u64).prop_map(
            |(side, len_bytes, response_bytes, timeout_us)| Step::Call {
                side, len_bytes, response_bytes, timeout_us
            }
        ),
        3 => (side.clone(), 0..16_usize, 0..100_usize)
            .prop_map(|(side, at, len_bytes)| Step::Reply { side, at, len_bytes }),
        1 => (side.clone(), 0..16_usize).prop_map(|(side, at)| Step::ReplyLarge { side, at }),
        1 => (side.clone(), 0..16_usize).prop_map(|(side, at)| Step::Fetch { side, at }),
        3 => (side.clone(), any::<bool>())
            .prop_map(|(side, is_forced)| Step::Depart { side, is_forced }),
        3 => (side.clone(), any::<bool>())
            .prop_map(|(side, is_held)| Step::Arrive { side, is_held }),
        1 => (side, 0..40_u64).prop_map(|(side, at)| Step::Cancel { side, at }),
        1 => (0..5000_u64).prop_map(|us| Step::Advance { us }),
    ]
}

fn policy() -> impl Strategy<Value = FlushPolicy> {
    prop_oneof![
        (1..4_u16).prop_map(|wqes| FlushPolicy::SelfClocked { wqes }),
        Just(FlushPolicy::Immediate),
        (0..3000_u32).prop_map(|ns| FlushPolicy::Hold { ns }),
        (1..8_u16).prop_map(|messages| FlushPolicy::AdaptiveHold { messages }),
        (0..2000_u32).prop_map(|permille| FlushPolicy::RttHold { permille }),
        (1..4_u32).prop_map(|polls| FlushPolicy::PollBudget { polls }),
        (0..3000_u32).prop_map(|ns| FlushPolicy::Coalesce { ns }),
    ]
}

fn setup() -> impl Strategy<Value = Setup> {
    let sizes = prop::sample::select(vec![(1024, 256, 256), (2048, 512, 256), (1024, 64, 64)]);
    // A lap, a position beyond 32 bits of lines, and one where their low 32 bits wrap soon.
    let starts = prop::sample::select(vec![0, 5, 1 << 40, (1 << 32) - 3, (1 << 33) - 40]);
    let generations = prop::sample::select(vec![0, u16::MAX, u16::MAX - 1]);
    (sizes, policy(), 1..5_u16, starts, generations).prop_map(
        |((ring, responses, batch), flush, signal_interval, start_lines, start_generation)| Setup {
            geometry: Geometry::new(ring, responses, batch).unwrap(),
            flush,
            signal_interval,
            start_lines,
            start_generation,
        },
    )
}

fn apply(pair: &mut Pair, step: Step) {
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
        Step::Cancel { side, at } => {
            let made = pair.sides[side].made.len() as u64;
            if made > 0 {
                pair.sides[side].cancel(at % made);
            }
        }
        Step::Advance { us } => pair.advance(us * 1000),
    }
}

fn check(pair: &mut Pair, setup: &Setup) {
    let ring = u64::from(setup.geometry.ring_lines());
    let now_ns = pair.now_ns;
    for side in &mut pair.sides {
        // What was admitted has a place now, whatever is held and whatever wraps. (Cancellations
        // are not admitted; they wait.)
        let is_admitted = side.connection.usage().control == 0 && side.connection.has_gathered();
        assert!(!is_admitted || side.connection.emission(now_ns, true).is_some());
        let usage = side.connection.usage();
        assert!(usage.ring_lines <= ring, "{usage:?}");
        assert!(usage.call_budget_lines <= setup.geometry.response_lines(), "{usage:?}");
        assert!(usage.served_budget_lines <= setup.geometry.response_lines(), "{usage:?}");
        assert_eq!(side.made.len(), side.ended.len() + side.connection.waiting());
    }
    // Nobody serves more than the other has asked and not heard of.
    for (caller, server) in [(0, 1), (1, 0)] {
        let calls = pair.sides[caller].connection.usage().calls;
        assert!(pair.sides[server].connection.serving() <= calls);
    }
}

proptest! {
    /// Rules C3.1 to C5.3: whatever happens in whatever order, nothing is overwritten that somebody
    /// may still read, an answer always has a place, every call ends once with its own answer, and
    /// in the end every line and every slot is free again.
    #[test]
    fn bytes_credits_and_tokens_are_conserved(
        setup in setup(),
        steps in prop::collection::vec(step(), 1..400)
    ) {
        let mut pair = Pair::new(setup);
        for step in steps {
            apply(&mut pair, step);
            check(&mut pair, &setup);
        }
        pair.settle();
        for side in &pair.sides {
            prop_assert_eq!(side.made.len(), side.ended.len());
            prop_assert_eq!(side.connection.usage(), Usage::default());
            prop_assert_eq!(side.lent.len(), 0);
        }
    }
}
