//! eRPC in virtual time, on a network that loses, repeats and reorders datagrams.

use copyrpc_sim::{
    cluster::{
        End,
        datagrams::{DatagramOutcome, DatagramSetup, run},
    },
    world::Time,
};

fn setup(seed: u64, loss_permille: u64) -> DatagramSetup {
    let length = Time::from_ns(2_000_000);
    DatagramSetup { nodes: 3, length, seed, loss_permille, repeat_permille: 0, reorder_ns: 0 }
}

fn ran(setup: &DatagramSetup) -> DatagramOutcome {
    let outcome = run(setup).unwrap();
    println!("{setup:?}: {outcome:?}");
    assert_eq!(outcome.failure, None, "{setup:?}");
    outcome
}

fn answered(outcome: &DatagramOutcome) -> u64 {
    outcome.ends.get(&End::Answered).copied().unwrap_or(0)
}

#[test]
fn datagrams_that_are_not_lost_are_not_sent_again() {
    for seed in 0..3 {
        let outcome = ran(&setup(seed, 0));
        let all: u64 = outcome.ends.values().sum();
        assert!(answered(&outcome) > 200 && answered(&outcome) == all, "{outcome:?}");
        assert_eq!(outcome.retransmissions, 0);
    }
}

#[test]
fn fault_d1_calls_over_datagrams_survive_loss_repetition_and_reordering() {
    for loss_permille in [10, 100, 300] {
        for seed in 0..3 {
            let faulty = DatagramSetup {
                repeat_permille: 200,
                reorder_ns: 5_000,
                ..setup(seed, loss_permille)
            };
            let outcome = ran(&faulty);
            assert!(outcome.retransmissions > 0 && outcome.ignored > 0, "{outcome:?}");
            assert!(answered(&outcome) > 20, "{outcome:?}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_events() {
    let faulty =
        |seed| DatagramSetup { repeat_permille: 100, reorder_ns: 2_000, ..setup(seed, 100) };
    assert_eq!(ran(&faulty(7)), ran(&faulty(7)));
    assert_ne!(ran(&faulty(7)).trace, ran(&faulty(8)).trace);
}
