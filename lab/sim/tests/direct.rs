//! Calls of a node without its daemon, in virtual time: callers are introduced to providers, and processes end.
#![cfg(not(any(feature = "early-credit", feature = "late-taken")))]

use copyrpc_sim::{
    cluster::{ClusterWorkload, End, Outcome, Seeds, Setup, run, swarm},
    world::Time,
};

fn setup(seed: u64, clients: u32) -> Setup {
    let (length, workload) = (Time::from_ns(600_000), ClusterWorkload::Direct);
    Setup { nodes: 2, clients, length, seed, faults: None, workload }
}

/// What came of some seeds with these faults.
fn with(clients: u32, faults: &str) -> Vec<Outcome> {
    let faults = faults.split(',').filter(|fault| !fault.is_empty());
    let faults = Some(faults.map(|fault| fault.parse().unwrap()).collect::<Vec<_>>());
    let ran = |seed| {
        let setup = Setup { faults: faults.clone(), ..setup(seed, clients) };
        let outcome = run(&setup).unwrap();
        assert_eq!(outcome.failure, None, "{setup}");
        outcome
    };
    (0..3).map(ran).collect()
}

fn direct(outcome: &Outcome) -> u64 {
    let counters = outcome.counters.iter().flatten();
    counters.filter(|(name, _)| *name == "requests_direct").map(|(_, count)| count).sum()
}

fn ended(outcomes: &[Outcome], end: End) -> u64 {
    outcomes.iter().filter_map(|outcome| outcome.ends.get(&end)).sum()
}

const UNAVAILABLE: End = End::Status(14);

#[test]
fn callers_are_introduced_and_call_without_the_daemon() {
    for clients in [2, 5] {
        let outcomes = with(clients, "");
        let (answered, direct) =
            (ended(&outcomes, End::Answered), outcomes.iter().map(direct).sum::<u64>());
        assert!(answered > 1000 && direct > answered / 2, "{direct} of {answered}");
        assert_eq!(ended(&outcomes, UNAVAILABLE), 0, "no session ends without a fault");
    }
}

#[test]
fn fault_a1_providers_that_end_end_the_calls_of_their_sessions() {
    for end in ["client-death", "client-exit"] {
        let faults = format!("{end}:0/0/2@200+1,{end}:1/0/2@300+1,{end}:0/0/2@450+1");
        let outcomes = with(3, &faults);
        assert!(ended(&outcomes, UNAVAILABLE) > 0, "{outcomes:?}");
    }
}

#[test]
fn fault_a3_callers_and_providers_that_are_stopped_end_their_calls_when_they_go_on() {
    with(3, "client-pause:0/0/0@100+300,client-pause:1/0/0@50+400");
}

#[test]
fn fault_a8_sessions_end_with_daemons_that_die_or_drain() {
    let outcomes = with(4, "crash:0/0/0@250+100,drain:1/0/0@200+300");
    assert!(ended(&outcomes, End::DaemonGone) > 0, "{outcomes:?}");
}

/// The window of a provider is the depth of its connection, less one: the free entry and those of unanswered requests
/// are for the question about cancelled ones, and for answers.
#[test]
fn counts_of_direct_calls_leave_answers_their_entries() {
    let (length, workload) = (Time::from_ns(150_000), ClusterWorkload::Direct);
    let setup = Setup { nodes: 2, clients: 3, length, seed: 19, faults: Some(vec![]), workload };
    assert_eq!(run(&setup).unwrap().failure, None, "{setup}");
}

#[test]
fn seeds_with_faults_pass_twice_alike() {
    for clients in [3, 4] {
        let seeds = Seeds { count: 8, twice: true, threads: None };
        assert_eq!(swarm(&setup(0, clients), seeds, |_| {}).unwrap().failure, None);
    }
}
