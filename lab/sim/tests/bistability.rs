//! The measured throughputs of another daemon, and its two steady states.

use copyrpc_sim::{
    actors::reference_daemon::{self, Approach, Hold, Load, Mutant, StartState, SweepStage},
    machine::{CONNECT_X7, DelegationProfile, SEND_QUEUE_NS},
    scenarios::{
        ERROR_MAX, bistability,
        phases::{self, SteadyState, Swept, Threshold},
        rms,
        sensitivity::Model,
        tried,
    },
};

fn is_upper(mops_per_node: f64) -> bool {
    SteadyState::of(mops_per_node) == SteadyState::Upper
}

#[test]
#[ignore = "slow: half a minute of simulating"]
fn claimed_numbers_are_within_their_tolerance_slow() {
    for seed in [1, 300] {
        let outcome = bistability::run(seed, |_, _| {});
        for row in &outcome.rows {
            println!(
                "{:75} {:8.2} {:8.2} {:+6.1} % {:?}",
                row.what,
                row.reference,
                row.simulated,
                100.0 * row.error(),
                row.standing
            );
        }
        let misses: Vec<_> = outcome.misses().map(|row| (&row.what, row.error())).collect();
        assert!(misses.is_empty(), "beyond {ERROR_MAX}, seed {seed}: {misses:?}");
        assert!(rms(&outcome.rows) <= Model::Bistability.rms_max(), "{}", rms(&outcome.rows));
        let count = |name| outcome.rows.iter().filter(|row| row.standing.name() == name).count();
        let classes = ["fitted", "predicted", "missed", "shown"];
        assert_eq!(
            classes.map(count),
            [11, 27, 21, 1],
            "calls under way at 16 nodes depend on the seed"
        );
    }
}

/// The first responses come some µs after the first post, and are counted there: a burst of 8 nodes has them in the first slice.
#[test]
fn a_collapse_is_counted_from_the_first_post_on() {
    let measured = reference_daemon::run(&CONNECT_X7, &phases::deep(8, 0, 0.0), 1);
    let first = measured.timeline[0];
    assert!((first / 640.0 - 1.0).abs() < 0.15, "{first}");
    assert!(measured.timeline[..5].is_sorted_by(|earlier, later| earlier > later));
}

/// The upper state ends with each seed of 8 nodes; with 2, 4 and most seeds of 16 nodes it lasts.
#[test]
fn the_upper_state_lasts_with_few_nodes_and_with_sixteen() {
    let ended = |nodes| {
        let found = phases::lifetime(&CONNECT_X7, nodes, 1);
        println!("{found:?}");
        (found.ended_us.len(), found.seeds)
    };
    assert_eq!([2, 4].map(ended), [(0, 8); 2]);
    assert_eq!(ended(8), (8, 8));
    assert!(ended(16).0 <= 2);
}

/// The constant follows from these four numbers, and from nothing else.
#[test]
fn the_time_per_work_request_is_what_servers_without_a_daemon_take() {
    let times =
        bistability::DIRECT[1..].iter().map(|(nodes, mops)| 1000.0 * f64::from(*nodes) / mops);
    let times: Vec<_> = times.collect();
    let mean = times.iter().sum::<f64>() / 4.0;
    assert!((mean - SEND_QUEUE_NS).abs() < 0.5, "{mean}");
    assert!(times.iter().all(|time| (time / mean - 1.0).abs() < 0.02), "{times:?}");
}

#[test]
fn starts_nodes_and_poll_budgets_lead_to_the_states_of_the_diagram() {
    let found = phases::diagram(&CONNECT_X7, Mutant::None, 1, |_, _| {});
    for found in &found {
        assert!(found.is_as_expected(), "{found:?}");
    }
}

fn rates(swept: &[Swept], nodes: usize, depth: u32) -> Vec<f64> {
    let there = swept.iter().filter(|swept| swept.stage == SweepStage { nodes, depth });
    there.map(|swept| swept.mops_per_node).collect()
}

/// The way there decides the state.
#[test]
fn nodes_and_depth_that_go_down_and_up_again_come_back_to_another_state() {
    let swept = phases::sweep(&CONNECT_X7, &phases::nodes_down_and_up(), 1);
    println!("{swept:?}");
    assert!(rates(&swept, 16, 32)[0] > 6.0 && rates(&swept, 16, 32)[1] < 1.5);
    assert!(rates(&swept, 8, 32)[0] > 6.0 && rates(&swept, 8, 32)[1] < 1.5);
    // What has fallen at 6 nodes stays down until there are 2, and what is up at 2 stays up until there are 5.
    assert!(!is_upper(rates(&swept, 4, 32)[0]) && is_upper(rates(&swept, 4, 32)[1]));
    assert!(is_upper(rates(&swept, 2, 32)[0]));
    let swept = phases::sweep(&CONNECT_X7, &phases::depth_down_and_up(), 1);
    println!("{swept:?}");
    let deepest = rates(&swept, 16, 32);
    assert!(deepest[0] > 6.0 && deepest[1] < 1.5, "{deepest:?}");
}

/// States begin and end at the nodes of the formula, and a way that is five times as long moves neither.
#[test]
fn the_formula_says_where_states_begin_and_end_and_round_trips_are_not_in_it() {
    let threshold = phases::threshold(&CONNECT_X7);
    assert_eq!(threshold, Threshold { lower_from: 3, upper_to: Some(4) });
    let far = DelegationProfile { wire: 5.0 * CONNECT_X7.wire, ..CONNECT_X7 };
    assert_eq!(phases::threshold(&far), threshold);
    let after = |profile: &DelegationProfile, nodes: u8, start| {
        let warm_up_us = 18_000.0;
        let load = Load { start, ..phases::deep(nodes.into(), 0, warm_up_us) };
        is_upper(reference_daemon::run(profile, &load, 1).total_mops / f64::from(nodes))
    };
    for profile in [&CONNECT_X7, &far] {
        assert!(after(profile, 2, StartState::Trickle), "no lower state");
        for nodes in [3, 4] {
            assert!(after(profile, nodes, StartState::Burst));
            assert!(!after(profile, nodes, StartState::Trickle));
        }
        assert!(!after(profile, 5, StartState::Burst), "no upper state");
    }
}

/// Time that gathers messages lifts many nodes and costs two; what adds none changes little.
#[test]
#[ignore = "slow: half a minute of simulating"]
fn approaches_that_gather_messages_help_where_the_send_queue_is_the_limit_slow() {
    let tried = tried::run(&CONNECT_X7, 1, |_, _| {});
    println!("{tried:?}");
    let gain = |name: &str, nodes| {
        let row =
            tried.iter().find(|row| row.name.starts_with(name) && row.nodes == nodes).unwrap();
        row.mops[1] / row.mops[0]
    };
    assert!(gain("polls up to", 8) > 6.0 && gain("polls up to", 16) < 0.3);
    assert!(gain("sends delayed", 8) > 1.5 && gain("completions gathered", 8) > 1.5);
    assert!(gain("completions gathered", 2) < 0.6);
    // The reference stands still with gathered completions, and clients starve that turns skip.
    let missed = tried.iter().filter(|row| row.is_missed());
    let missed: Vec<_> = missed.map(|row| (row.name, row.nodes)).collect();
    let expected = [
        ("sends delayed by 10 µs", 8),
        ("completions gathered for 6 µs", 8),
        ("idle turns skip clients", 2),
        ("idle turns skip clients", 4),
    ];
    assert_eq!(missed, expected);
    for (name, nodes) in [("poll controller", 8), ("idle turns", 2), ("peers begin", 8)] {
        assert!((0.9..1.2).contains(&gain(name, nodes)), "{name}");
    }
}

#[test]
fn the_same_seed_gives_the_same_turns() {
    let load = Load {
        nodes: 4,
        depth: 4,
        start: StartState::Burst,
        poll_budget: 0,
        hold: Hold::Fixed(5.0),
        approach: Approach::None,
        warm_up_us: 100.0,
        end_us: 400.0,
    };
    let first = reference_daemon::run(&CONNECT_X7, &load, 7);
    assert!(first.events > 500, "{first:?}");
    assert_eq!(first, reference_daemon::run(&CONNECT_X7, &load, 7));
    assert_ne!(first.trace, reference_daemon::run(&CONNECT_X7, &load, 8).trace);
}
