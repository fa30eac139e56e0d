//! Every number of the file of measurements is a row, and scenarios compare themselves with no other number.

use copyrpc_sim::scenarios::seeds::{self, Class};

#[test]
fn every_measurement_is_a_row_and_every_number_of_a_scenario_is_a_measurement() {
    let outcome = seeds::run(1, |_, _| {}).unwrap();
    assert_eq!(outcome.strangers, [""; 0]);
    let count = |class| outcome.rows.iter().filter(|row| row.class == class).count();
    assert_eq!(outcome.rows.len(), seeds::measurements().unwrap().len());
    assert_eq!(Class::ALL.map(count), [63, 50, 30, 3, 213]);
    let missed: Vec<_> = outcome.rows.iter().filter(|row| row.is_missed).collect();
    assert!(missed.is_empty(), "{missed:?}");
    // A command that simulates has a number for each of its rows, and no other command has one.
    for row in &outcome.rows {
        let simulates = row.measurement.command.is_some_and(|command| command.starts_with("sim "));
        assert_eq!(simulates, row.simulated.is_some(), "{row:?}");
    }
}
