//! A mistake is found by seeds, and the run that shows it is made small.
#![cfg(any(feature = "early-credit", feature = "late-taken"))]

use copyrpc_sim::{
    cluster::{ClusterWorkload, Seeds, Setup, run, shrink, swarm},
    world::Time,
};

/// Seeds that are tried until one fails: the first that shows a request which is said to be taken late was the 90th.
const SEEDS: u64 = 1000;

/// Finds a failure with these words, and a small run that shows it.
fn found_and_shrunk(large: &Setup, words: &str) {
    let found = swarm(large, Seeds { count: SEEDS, twice: false, threads: None }, |_| {}).unwrap();
    let (setup, _) = found.failure.expect("no seed has found it");
    let (small, failure) = shrink(&setup, |_, _| {}).unwrap().expect("it fails each time");
    println!("{failure}: {small}");
    assert!(failure.contains(words), "{failure}");
    // Which of nodes, clients and time shrinks furthest depends on the seed that failed first.
    let size =
        |setup: &Setup| u64::from(setup.nodes) * u64::from(setup.clients) * setup.length.whole_ns();
    assert!(4 * size(&small) <= size(large), "{small}");
    // None is needed, but one may have set the pace in which the seed has met it.
    assert!(small.faults().len() <= 1, "{small}");
    // The line says all that there is to say.
    assert_eq!(run(&small).unwrap().failure, Some(failure));
}

/// Credit that returns before the lines were read (pitfall 9).
#[test]
#[cfg(feature = "early-credit")]
fn pitfall_9_early_credit_is_found_and_shrunk() {
    let (length, workload) = (Time::from_ns(1_000_000), ClusterWorkload::Drawn);
    let large = Setup { nodes: 3, clients: 4, length, seed: 1, faults: None, workload };
    found_and_shrunk(&large, "broke the protocol");
}

/// A provider that dies has taken a request, and its client learns that it has not.
#[test]
#[cfg(feature = "late-taken")]
fn a_request_that_is_said_to_be_taken_late_is_found_and_shrunk() {
    let (length, workload) = (Time::from_ns(600_000), ClusterWorkload::Direct);
    let large = Setup { nodes: 2, clients: 4, length, seed: 1, faults: None, workload };
    found_and_shrunk(&large, "its client is told that it was not");
}
