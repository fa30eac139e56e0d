//! Measurements with one and two ranks: what is reproduced, what is not, and what would explain it.

use copyrpc_sim::{
    actors::slot_daemon::{self, Candidate, Load, Pattern},
    machine::TWO_RANK,
    scenarios::{
        Standing,
        two_rank::{self, Reading, THROUGHPUT},
    },
};

/// Each reading has all but what contradicts it, which the other one has.
#[test]
fn numbers_are_within_their_tolerance_or_contradict_the_reading() {
    let outcome = two_rank::run(1);
    for row in &outcome.rows {
        println!(
            "{:45} {:9.4} {:9.4} {:+6.1} % {:?}",
            row.what,
            row.reference,
            row.simulated,
            100.0 * row.error(),
            row.standing
        );
    }
    let misses: Vec<_> = outcome.misses().map(|row| row.what.as_str()).collect();
    assert!(misses.is_empty(), "{misses:?}");
    let contradicted = outcome.rows.iter().filter(|row| row.standing == Standing::Contradicted);
    let off: Vec<_> = contradicted.filter(|row| !row.is_near()).map(|row| &row.what).collect();
    assert_eq!(
        off,
        [
            "as counted: throughput, reported",
            "as counted: slowdown, reported",
            "as reported: turns in 15 s",
            "as reported: throughput, counted",
        ]
    );
    assert_eq!(outcome.trace, two_rank::run(1).trace);
    assert_ne!(outcome.trace, two_rank::run(2).trace);
}

fn total(candidates: &[Candidate]) -> f64 {
    let load = Load { pattern: Pattern::Uniform(2), candidates, warm_up_us: 100, end_us: 600 };
    slot_daemon::run(&TWO_RANK, &load, 1).total_mops()
}

/// A chain alone only delays. With queues it halves the throughput, and a gather alone never does.
#[test]
fn a_chain_of_receives_explains_the_reported_throughput_only_with_queues() {
    use Candidate::{Gather, OneDci, Queueing, SrqChain};
    let is_near = |simulated: f64, reference: f64| (simulated / reference - 1.0).abs() < 0.15;
    let (reported, counted) = THROUGHPUT;
    assert!(is_near(total(&Reading::Reported.candidates()), reported));
    assert!(is_near(total(&Reading::Counted.candidates()), counted));
    for alone in [Gather, SrqChain, OneDci] {
        assert!(total(&[alone]) > 1.8 * reported, "{alone:?}");
    }
    assert!(is_near(total(&[OneDci, Queueing]), reported), "{}", total(&[OneDci, Queueing]));
}
