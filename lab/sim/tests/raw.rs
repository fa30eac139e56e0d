//! Raw operations and calls of one machine with itself are reproduced.

use copyrpc_sim::scenarios::raw;

#[test]
fn numbers_are_within_their_tolerance() {
    let outcome = raw::run();
    for row in &outcome.rows {
        println!(
            "{:40} {:8.2} {:8.2} {:+6.1} %",
            row.what,
            row.reference,
            row.simulated,
            100.0 * row.error()
        );
    }
    let misses: Vec<_> = outcome.misses().map(|row| (&row.what, row.error())).collect();
    assert!(misses.is_empty(), "{misses:?}");
    assert_eq!(outcome.rows.len(), 13);
    assert_eq!(outcome.trace, raw::run().trace);
}
