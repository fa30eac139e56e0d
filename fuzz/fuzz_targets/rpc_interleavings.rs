//! Any order of calls, answers, arrivals, deadlines and cancellations between two correct sides.

#![no_main]

use copyrpc_proto::copyrpc::{FlushPolicy, Geometry};

#[path = "../../crates/proto/tests/copyrpc/pair.rs"]
mod pair;
#[path = "../../crates/proto/tests/copyrpc/steps.rs"]
mod steps;

use pair::{Pair, Setup};
use steps::{Step, apply, check, settle};

fn setup(a: u8, b: u8) -> Setup {
    let (ring, responses, batch) =
        [(1024, 256, 256), (2048, 512, 256), (1024, 64, 64)][usize::from(a % 3)];
    let flush = match a / 3 % 7 {
        0 => FlushPolicy::SelfClocked { wqes: 1 },
        1 => FlushPolicy::Immediate,
        2 => FlushPolicy::Hold { ns: 2000 },
        3 => FlushPolicy::AdaptiveHold { messages: 4 },
        4 => FlushPolicy::RttHold { permille: 500 },
        5 => FlushPolicy::PollBudget { polls: 2 },
        _ => FlushPolicy::SelfClocked { wqes: 3 },
    };
    Setup {
        geometry: Geometry::new(ring, responses, batch).unwrap(),
        flush,
        signal_interval: u16::from(b % 4) + 1,
        batches_max: [1, 2, 3, 16][usize::from(b / 64)],
        start_lines: [0, 5, 1 << 40, (1 << 32) - 3, (1 << 33) - 40][usize::from(b / 4 % 5)],
        start_generation: [0, u16::MAX, u16::MAX - 1][usize::from(b / 20 % 3)],
    }
}

/// Four bytes say what happens; the top bit of the first, to whom.
fn step([kind, a, b, c]: [u8; 4]) -> Step {
    let side = usize::from(kind >> 7);
    let at = usize::from(a % 16);
    match kind & 15 {
        0..=3 => Step::Call {
            side,
            len_bytes: usize::from(a) % 220,
            response_bytes: usize::from(b),
            timeout_us: u64::from(c) * 80 + 1,
        },
        4..=6 => Step::Reply { side, at, len_bytes: usize::from(b) % 100 },
        7 => Step::ReplyLarge { side, at },
        8 => Step::Fetch { side, at },
        9..=10 => Step::Depart { side, is_forced: a & 1 != 0 },
        11..=13 => Step::Arrive { side, is_held: a & 1 != 0 },
        14 if b & 1 != 0 => Step::Look { side },
        14 => Step::Cancel { side, at: u64::from(a) },
        _ => Step::Advance { us: u64::from(a) * 20 },
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let [a, b, steps @ ..] = bytes else { return };
    let setup = setup(*a, *b);
    let mut pair = Pair::new(setup);
    for bytes in steps.chunks_exact(4).take(500) {
        let Ok(bytes) = bytes.try_into() else { return };
        apply(&mut pair, step(bytes));
        check(&mut pair, &setup);
    }
    settle(pair);
});
