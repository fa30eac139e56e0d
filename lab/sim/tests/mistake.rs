//! A mistake in the protocol is found by seeds, and the run that shows it is made small.
#![cfg(feature = "early-credit")]

use copyrpc_sim::{
    cluster::{ClusterWorkload, Seeds, Setup, run, shrink, swarm},
    world::Time,
};

/// Credit that returns before the lines were read (pitfall 9).
#[test]
fn pitfall_9_early_credit_is_found_and_shrunk() {
    let (length, workload) = (Time::from_ns(1_000_000), ClusterWorkload::Drawn);
    let large = Setup { nodes: 3, clients: 4, length, seed: 1, faults: None, workload };
    let found = swarm(&large, Seeds { count: 50, twice: false, threads: None }, |_| {}).unwrap();
    let (setup, _) = found.failure.expect("no seed has found it");
    let (small, failure) = shrink(&setup, |_, _| {}).unwrap().expect("it fails each time");
    println!("{failure}: {small}");
    assert!(failure.contains("broke the protocol"), "{failure}");
    // Which of nodes, clients and time shrinks furthest depends on the seed that failed first.
    let size =
        |setup: &Setup| u64::from(setup.nodes) * u64::from(setup.clients) * setup.length.whole_ns();
    assert!(4 * size(&small) <= size(&large), "{small}");
    // None is needed, but one may have set the pace in which the seed has met it.
    assert!(small.faults().len() <= 1, "{small}");
    // The line says all that there is to say.
    assert_eq!(run(&small).unwrap().failure, Some(failure));
}
