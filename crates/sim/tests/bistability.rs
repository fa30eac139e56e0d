//! The measured throughputs of another daemon are reproduced, and so is that it has two steady states.

use copyrpc_sim::{
    actors::reference_daemon::{self, Hold, Load, StartState},
    machine::DELEGATION,
    scenarios::bistability::{self, ERROR_MAX},
};

#[test]
fn throughputs_are_within_their_tolerance() {
    let outcome = bistability::run(1, |_, _| {});
    for row in &outcome.rows {
        println!(
            "{:60} {:8.2} {:8.2} {:+6.1} %",
            row.what,
            row.reference,
            row.simulated,
            100.0 * row.error()
        );
    }
    for attractor in &outcome.attractors {
        println!("{attractor:?}");
    }
    let misses: Vec<_> = outcome.misses().map(|row| (&row.what, row.error())).collect();
    assert!(misses.is_empty(), "beyond {ERROR_MAX}: {misses:?}");
    assert_eq!(outcome.rows.iter().filter(|row| row.is_claimed).count(), 20);
}

#[test]
fn the_same_seed_gives_the_same_turns() {
    let load = Load {
        nodes: 4,
        depth: 4,
        start: StartState::Burst,
        poll_budget: 0,
        hold: Hold::Fixed(5.0),
        warm_up_us: 100.0,
        end_us: 400.0,
    };
    let first = reference_daemon::run(&DELEGATION, &load, 7);
    assert!(first.events > 500, "{first:?}");
    assert_eq!(first, reference_daemon::run(&DELEGATION, &load, 7));
    assert_ne!(first.trace, reference_daemon::run(&DELEGATION, &load, 8).trace);
}
