//! Clusters in virtual time: determinism, and one scenario per fault.

use std::num::NonZero;

use copyrpc_sim::{
    cluster::{
        ClusterWorkload, End, Outcome, Seeds, Setup,
        fault::Fault,
        run, run_with_timeline,
        scale::{self, Scale},
        swarm,
    },
    world::Time,
};

fn setup(seed: u64) -> Setup {
    Setup {
        nodes: 3,
        clients: 2,
        length: Time::from_ns(500_000),
        seed,
        faults: None,
        workload: ClusterWorkload::Drawn,
    }
}

fn ran(setup: &Setup) -> Outcome {
    let outcome = run(setup).unwrap();
    let explicit = Setup { faults: Some(setup.faults()), ..setup.clone() };
    assert_eq!(outcome.failure, None, "{explicit}");
    outcome
}

fn total(outcome: &Outcome, name: &str) -> u64 {
    let counters = outcome.counters.iter().flatten();
    counters.filter(|(counter, _)| *counter == name).map(|(_, value)| value).sum()
}

fn count(outcome: &Outcome, is_it: impl Fn(&End) -> bool) -> u64 {
    outcome.ends.iter().filter(|(end, _)| is_it(end)).map(|(_, count)| count).sum()
}

/// What came of some seeds with these faults.
fn with(faults: &str) -> Vec<Outcome> {
    let faults = Some(faults.split(',').map(|fault| fault.parse().unwrap()).collect::<Vec<_>>());
    (0..4).map(|seed| ran(&Setup { faults: faults.clone(), ..setup(seed) })).collect()
}

#[test]
fn the_same_seed_gives_the_same_events() {
    for seed in 0..4 {
        let first = ran(&setup(seed));
        assert!(first.events > 1000 && first.ends.values().sum::<u64>() > 5, "{first:?}");
        assert_eq!(first, ran(&setup(seed)));
        assert_ne!(first.trace, ran(&setup(seed + 100)).trace);
    }
}

#[test]
fn seeds_pass_whichever_thread_runs_them() {
    let run = |first, count, threads| {
        let seeds = Seeds { count, twice: false, threads: NonZero::new(threads) };
        swarm(&setup(first), seeds, |_| {}).unwrap()
    };
    let all = run(1000, 12, 2);
    assert_eq!((all.failure.as_ref(), all.seeds), (None, 12));
    let (mut in_parts, rest) = (run(1000, 5, 1), run(1005, 7, 1));
    in_parts.merge(rest);
    assert_eq!(all, in_parts);
}

#[test]
fn without_faults_all_calls_are_answered_or_were_not_to_take_long() {
    for seed in 0..6 {
        let outcome = ran(&Setup { faults: Some(Vec::new()), ..setup(seed) });
        let answered = count(&outcome, |end| *end == End::Answered);
        assert!(answered > 10, "{outcome:?}");
        assert_eq!(count(&outcome, |end| matches!(end, End::DaemonGone | End::Deadline)), 0);
        assert_eq!((total(&outcome, "peers_lost"), total(&outcome, "stale")), (0, 0));
    }
}

#[test]
fn a_timeline_has_turns_calls_faults_and_counters() {
    let faults = Some(vec!["pause:1/0/0@100+50".parse().unwrap()]);
    let setup = Setup { faults, ..setup(3) };
    let (outcome, timeline) = run_with_timeline(&setup).unwrap();
    assert_eq!(outcome, run(&setup).unwrap(), "who looks changes nothing");
    for part in [
        r#""ph":"X","name":"turn""#,
        r#""cat":"call""#,
        r#""name":"pause:1/0/0@100+50""#,
        r#""requests_ipc":"#,
    ] {
        assert!(timeline.contains(part), "{part}");
    }
    assert!(timeline.starts_with('{') && timeline.ends_with("}\n]}\n"));
}

#[test]
fn fault_a1_clients_die_with_calls_in_flight() {
    for outcome in
        with("client-death:0/0/0@100+1,client-death:1/0/1@150+1,client-death:0/0/1@300+1")
    {
        assert!(total(&outcome, "departed") >= 3);
    }
}

#[test]
fn fault_a3_clients_that_are_stopped_end_their_calls_when_they_go_on() {
    with("client-pause:0/0/0@100+300,client-pause:1/0/0@50+400");
}

#[test]
fn fault_a5_a_daemon_that_is_stopped_executes_nothing_twice() {
    with("pause:1/0/0@50+400,pause:2/0/0@200+100");
}

#[test]
fn fault_a8_a_daemon_that_dies_is_found_again() {
    let outcomes = with("crash:1/0/0@100+200");
    assert!(outcomes.iter().any(|outcome| count(outcome, |end| *end == End::DaemonGone) > 0));
    assert!(outcomes.iter().all(|outcome| total(outcome, "peers_joined") > 6));
}

#[test]
fn fault_a8_daemons_whose_clocks_went_back_are_found_again() {
    for outcome in with("crash-clock-back:1/0/0@100+1,crash-clock-back:2/0/0@200+100") {
        assert!(total(&outcome, "peers_joined") > 6);
    }
}

/// Each connection had one end for an interval of heartbeats, broke meanwhile, and took the next one with it, for ever.
#[test]
fn fault_a8_of_two_daemons_that_come_back_each_connects_before_the_other_breaks_off() {
    let faults = "crash-clock-back:0/0/0@108+64,crash-clock-back:1/1/0@8+191";
    let faults = Some(faults.split(',').map(|fault| fault.parse().unwrap()).collect());
    let length = Time::from_ns(200_000);
    let outcome = ran(&Setup { faults, length, ..setup(3_100_741) });
    assert!(total(&outcome, "peers_lost") <= 4, "{outcome:?}");
}

/// The NIC answers, and the daemon behind it does nothing: heartbeats tell.
#[test]
fn fault_a9_a_node_whose_daemon_hangs_for_long_is_given_up_and_comes_back() {
    let faults = Some(vec!["pause:1/0/0@1000+20000".parse().unwrap()]);
    let long = Time::from_ns(22_000_000);
    let seed = (0..20).find(|seed| {
        let setup =
            Setup { faults: faults.clone(), nodes: 2, clients: 1, length: long, ..setup(*seed) };
        let outcome = ran(&setup);
        total(&outcome, "suspicions") > 0 && total(&outcome, "peers_lost") > 0
    });
    assert!(seed.is_some(), "nobody was given up");
}

#[test]
fn fault_d1_loss_repetition_and_reordering_below_reliable_connections() {
    with("loss:0/0/100@0+500,repeat:0/0/300@0+500,reorder:0/0/5000@0+500");
}

#[test]
fn fault_d2_ways_that_are_cut_in_one_direction_heal() {
    with("cut-fabric:0/1/0@50+300,cut-control:2/1/0@50+400");
}

/// Daemons poll rings, credit and completions while bytes of WRITEs come in any order.
#[test]
fn fault_d3_bytes_that_are_not_announced_are_not_read() {
    let torn = "torn:0/0/20000@0+500,torn:1/0/2000@0+500,torn:2/0/100@0+500";
    for outcome in with(torn).into_iter().chain(with(&format!("{torn},reorder:0/0/5000@0+500"))) {
        assert_eq!(total(&outcome, "peers_lost"), 0);
        assert!(count(&outcome, |end| *end == End::Answered) > 5, "{outcome:?}");
        assert!(outcome.torn_pieces > 10, "{outcome:?}");
    }
}

/// Bodies that do not fit the ring are read by their receiver.
#[test]
fn fault_d9_a_key_that_is_revoked_during_a_read_ends_the_connection_and_no_daemon() {
    let faults = Some(vec!["revoked:1/0/2@100+300".parse().unwrap()]);
    let full = |seed: u64| Setup {
        faults: faults.clone(),
        workload: ClusterWorkload::FullRings,
        ..setup(2 * seed + 1)
    };
    let outcomes: Vec<_> = (0..4).map(|seed| ran(&full(seed))).collect();
    assert!(outcomes.iter().any(|outcome| total(outcome, "peers_lost") > 0), "{outcomes:?}");
    assert!(outcomes.iter().all(|outcome| count(outcome, |end| *end == End::Answered) > 50));
}

/// Its daemon says so and ends: nothing that it has could be told of anything.
#[test]
fn fault_d4_a_daemon_whose_completion_queues_overrun_ends_and_comes_back() {
    let outcomes = with("cq-overrun:1/0/0@100+1,cq-overrun:2/0/0@350+1");
    assert!(outcomes.iter().any(|outcome| count(outcome, |end| *end == End::DaemonGone) > 0));
    assert!(outcomes.iter().all(|outcome| total(outcome, "peers_joined") > 6));
}

#[test]
fn fault_d4_queue_pairs_that_fail_are_connected_again() {
    let outcomes = with("qp-error:0/0/2@100+100,qp-error:2/0/1@300+100");
    assert!(outcomes.iter().any(|outcome| total(outcome, "peers_lost") > 0));
}

#[test]
fn fault_d4_receivers_that_are_not_ready_are_asked_again() {
    for outcome in with("rnr:1/0/1000@100+300,rnr:2/0/500@0+500") {
        assert_eq!(total(&outcome, "peers_lost"), 0);
    }
}

#[test]
fn fault_d4_a_nic_that_stalls_goes_on() {
    with("nic-stall:1/0/0@100+200");
}

/// What earlier lives have sent comes late and twice.
#[test]
fn fault_d8_packets_of_an_earlier_life_reach_nobody() {
    with(
        "crash:1/0/0@100+1,crash:1/0/0@200+20,crash:2/0/0@250+1,repeat:0/0/300@0+500,reorder:0/0/50000@0+500",
    );
}

/// What is in flight both ways is more than a ring holds, and a response may need more room than its request.
#[test]
fn fault_c4_rings_that_are_full_both_ways_go_on() {
    for seed in 0..4 {
        let full =
            Setup { faults: Some(Vec::new()), workload: ClusterWorkload::FullRings, ..setup(seed) };
        let outcome = ran(&full);
        let (answered, all) =
            (count(&outcome, |end| *end == End::Answered), outcome.ends.values().sum());
        assert!(answered > 100, "{outcome:?}");
        assert_eq!((answered, total(&outcome, "peers_lost")), (all, 0), "{outcome:?}");
    }
}

/// A peer dies, and nobody is awake but for what timers and wakeups do.
#[test]
fn fault_g2_deadlines_come_although_everybody_sleeps() {
    let faults = || vec!["crash:1/0/0@100+300".parse().unwrap()];
    let mut ended_late = 0;
    for seed in 0..6 {
        let asleep =
            Setup { faults: Some(faults()), workload: ClusterWorkload::AllSleep, ..setup(seed) };
        let outcome = ran(&asleep);
        ended_late += count(&outcome, |end| matches!(end, End::Deadline | End::DaemonGone));
    }
    assert!(ended_late > 0, "no call met the death");
}

#[test]
fn fault_d11_all_nodes_call_one() {
    for seed in 0..4 {
        let incast = ClusterWorkload::Incast;
        let setup = Setup { faults: Some(Vec::new()), workload: incast, nodes: 6, ..setup(seed) };
        let outcome = ran(&setup);
        assert_eq!(total(&outcome, "peers_lost"), 0);
        assert!(count(&outcome, |end| *end == End::Answered) > 50, "{outcome:?}");
    }
}

#[test]
fn fault_d11_a_slow_node_costs_nobody_a_connection() {
    for outcome in with("slow:1/0/30@0+500") {
        assert_eq!(total(&outcome, "peers_lost"), 0);
    }
}

#[test]
fn fault_g3_clocks_that_gain_break_nothing() {
    for outcome in with("clock-rate:0/0/10000@50+400,clock-rate:1/0/10000@50+100") {
        assert_eq!(total(&outcome, "peers_lost"), 0);
    }
}

/// The first client of each node has 32 times as many calls in flight as the others, and the longest bodies.
#[test]
fn fault_i1_i9_greedy_clients_leave_others_half_of_their_share() {
    let honest = |workload, seed| {
        let faults = Some(Vec::new());
        let outcome = ran(&Setup { faults, workload, clients: 3, ..setup(seed) });
        outcome.answered_by_client[&1] + outcome.answered_by_client[&2]
    };
    let (mut all_alone, mut all_beside) = (0, 0);
    for seed in 0..6 {
        let alone = honest(ClusterWorkload::Fair, seed);
        let beside = honest(ClusterWorkload::Greedy, seed);
        println!("{alone} calls of honest clients, {beside} beside greedy ones");
        // Clients of one seed come at half, to a call or two: when links come up shifts them.
        assert!(alone > 20 && 5 * beside >= 2 * alone, "seed {seed}: {beside} of {alone}");
        all_alone += alone;
        all_beside += beside;
    }
    assert!(2 * all_beside >= all_alone, "{all_beside} of {all_alone}");
}

fn faults_of(list: impl Iterator<Item = String>) -> Option<Vec<Fault>> {
    Some(list.map(|fault| fault.parse().unwrap()).collect())
}

/// Callers have ten minutes; some of them die. Calls to daemons go on beside those that nobody answers.
#[test]
fn fault_i1_i2_calls_to_a_silent_service_end_with_their_callers_and_stop_no_others() {
    let clients = 3;
    // All die once, and again when the run is over.
    let deaths = (0..3 * clients).map(|number| {
        let (node, client) = (number / clients, number % clients);
        format!("client-death:{node}/0/{client}@{}+1", 200 + number)
    });
    let faults = faults_of(deaths);
    for seed in 0..4 {
        let workload = ClusterWorkload::Silent;
        let outcome = ran(&Setup { faults: faults.clone(), workload, clients, ..setup(seed) });
        assert!(count(&outcome, |end| *end == End::Answered) > 10, "{outcome:?}");
        assert!(total(&outcome, "abandoned") > 0, "{outcome:?}");
        assert_eq!((total(&outcome, "held_bytes"), total(&outcome, "waiting")), (0, 0));
    }
}

/// Its provider never answers, so who got it would keep it for ten minutes. The caller dies while the body is read, and
/// so does another node.
#[test]
fn fault_i2_a_request_that_is_given_up_while_its_body_is_read_ends() {
    let faults = "nic-stall:1/0/0@83+92,crash:0/0/0@195+148".split(',');
    let faults = faults_of(faults.map(str::to_owned));
    let (length, workload) = (Time::from_ns(175_000), ClusterWorkload::Silent);
    ran(&Setup { faults, length, workload, ..setup(500_187) });
}

/// Callers and services leave while calls are under way, and others come.
#[test]
fn fault_i3_i5_clients_that_come_and_leave_in_a_loop_leave_nothing_behind() {
    let deaths = (0..40).map(|number| {
        let (node, client) = (number % 3, number % 4 % 3);
        format!("client-death:{node}/0/{client}@{}+1", 20 + 12 * number)
    });
    let faults = faults_of(deaths);
    for seed in 0..4 {
        let workload = ClusterWorkload::Providers;
        let outcome = ran(&Setup { faults: faults.clone(), workload, clients: 3, ..setup(seed) });
        assert!(total(&outcome, "departed") >= 35, "{outcome:?}");
        assert_eq!((total(&outcome, "held_bytes"), total(&outcome, "waiting")), (0, 0));
    }
}

/// It has the LID of the life before, and numbers of DC connections that its peers have not seen.
#[test]
fn fault_d8_a_restarted_port_is_not_taken_for_the_one_before_it() {
    let faults = Some(vec!["crash-clock-back:0/1/0@369+802".parse().unwrap()]);
    let length = Time::from_ns(11_000);
    for seed in 100..112 {
        ran(&Setup { nodes: 2, clients: 1, length, faults: faults.clone(), ..setup(seed) });
    }
}

#[test]
fn more_nodes_do_more_at_the_same_time() {
    let at = |nodes| {
        let scale = Scale { nodes, clients: 2, peers: 64, length: Time::from_ns(50_000), seed: 1 };
        let scaled = scale::run(scale, || ()).unwrap();
        assert_eq!((scaled.failure.as_deref(), scaled.others), (None, 0));
        scaled.answered
    };
    let (few, many) = (at(3), at(8));
    assert!(few > 50 && many > 2 * few, "{few} calls of 3 nodes, {many} of 8");
}
