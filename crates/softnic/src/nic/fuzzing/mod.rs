//! Bodies of the fuzz targets, which the tests run on random bytes too.

mod card;
mod packet;
mod send_ring;

pub use card::card;
pub use packet::packet;
pub use send_ring::send_ring;

/// Any messages from a peer.
pub fn message(bytes: &[u8]) {
    crate::nic::fabric::hostile::message(bytes);
}

/// Numbers out of fuzz input, zero when it is used up.
#[derive(Debug)]
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(core::array::from_fn(|_| self.byte()))
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    #[test]
    fn a_ring_that_a_peer_says_was_lent_is_none() {
        super::card(&[38, 241, 96, 0, 20, 126, 10]);
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 4 } else { 400 }, failure_persistence: None, ..Default::default()
        })]
        #[test]
        fn any_bytes_in_the_send_ring_end_in_completions(
            bytes in prop::collection::vec(any::<u8>(), 0..1200),
        ) {
            super::send_ring(&bytes);
        }

        #[test]
        fn any_bytes_on_a_card_of_a_peer_are_survived(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            super::card(&bytes);
        }
    }

    #[cfg(not(miri))]
    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]
        #[test]
        fn any_bytes_from_a_port_on_another_machine_are_survived(
            bytes in prop::collection::vec(any::<u8>(), 0..400),
        ) {
            super::packet(&bytes);
        }

        #[test]
        fn any_message_from_a_peer_is_survived(
            bytes in prop::collection::vec(any::<u8>(), 0..400),
        ) {
            super::message(&bytes);
        }
    }
}
