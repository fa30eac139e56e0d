//! Bytes that no correct peer sends, and the seeds of a fuzz target: for every protocol alike.

use proptest::{prelude::*, test_runner::TestRunner};

/// Longest input.
const BYTES_MAX: usize = 2000;

/// The seeds of `target` reach what they are for, or at least nothing that panics.
pub(crate) fn seeds_pass(target: &str, check: fn(&[u8])) {
    if cfg!(miri) {
        return; // it reads no files
    }
    let folder = format!("{}/../../fuzz/seeds/{target}", env!("CARGO_MANIFEST_DIR"));
    let mut count = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        check(&std::fs::read(file.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count >= 4, "{count} seeds");
}

/// No sequence of such bytes makes `check` panic.
pub(crate) fn bytes_pass(byte: impl Strategy<Value = u8>, check: fn(&[u8])) {
    let mut runner = TestRunner::new(ProptestConfig {
        failure_persistence: None,
        cases: if cfg!(miri) { 4 } else { 300 },
        ..ProptestConfig::default()
    });
    let bytes = proptest::collection::vec(byte, 0..BYTES_MAX);
    let passed = runner.run(&bytes, |bytes| {
        check(&bytes);
        Ok(())
    });
    passed.unwrap_or_else(|error| panic!("{error}"));
}
