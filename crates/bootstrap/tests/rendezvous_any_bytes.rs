//! The rendezvous under any input, as in the fuzz target `bootstrap_rendezvous`.

use proptest::{collection::vec, prelude::*};

mod rendezvous_check;

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256, failure_persistence: None, ..Default::default()
    })]

    #[test]
    fn any_bytes_are_refused_or_wait(bytes in vec(any::<u8>(), 0..2000)) {
        rendezvous_check::check(&bytes);
    }
}
