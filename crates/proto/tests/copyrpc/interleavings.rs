//! Any interleaving of calls, answers, leases, cancellations, arrivals and time.

use copyrpc_proto::copyrpc::{FlushPolicy, Geometry};
use proptest::prelude::*;

use crate::{
    pair::{Pair, Setup},
    steps::{Step, apply, check, settle},
};

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
        1 => side.clone().prop_map(|side| Step::Look { side }),
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
    let batches = prop::sample::select(vec![1, 2, 3, 16]);
    (sizes, policy(), 1..5_u16, batches, starts, generations).prop_map(
        |(sizes, flush, signal_interval, batches_max, start_lines, start_generation)| {
            let (ring, responses, batch) = sizes;
            Setup {
                geometry: Geometry::new(ring, responses, batch).unwrap(),
                flush,
                signal_interval,
                batches_max,
                start_lines,
                start_generation,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 256 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Rules C3.1 to C5.3: whatever happens in whatever order, nothing is overwritten that a side
    /// may still read, nothing is sent without a receive, an answer always has a place, every call ends once with its own answer, and
    /// in the end every line and every slot is free again.
    #[test]
    fn bytes_credits_and_tokens_are_conserved(
        setup in setup(),
        steps in prop::collection::vec(step(), 1..if cfg!(miri) { 60 } else { 400 })
    ) {
        let mut pair = Pair::new(setup);
        for step in steps {
            apply(&mut pair, step);
            check(&mut pair, &setup);
        }
        settle(pair);
    }
}
