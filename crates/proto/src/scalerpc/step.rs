//! Several servers that switch together, for clients that use them in one transaction.

/// Times of one exchange between a follower and the server whose turns it follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The follower asked, by its clock.
    pub asked_ns: u64,
    /// The leader answered, by its clock.
    pub answered_ns: u64,
    /// The answer arrived, by the follower's clock.
    pub arrived_ns: u64,
    /// When the leader's next turn begins, by its clock.
    pub switch_ns: u64,
}

/// When the follower's next turn begins, by its clock: as the leader's, if both directions take equally long.
///
/// The error is at most half of the round trip.
#[must_use]
pub fn follow_ns(exchange: &Exchange) -> u64 {
    let Exchange { asked_ns, answered_ns, arrived_ns, switch_ns } = *exchange;
    let one_way_ns = arrived_ns.saturating_sub(asked_ns) / 2;
    // A leader that is late tells a time that has passed: turns end a slice after it all the same.
    arrived_ns.saturating_add(switch_ns).saturating_sub(answered_ns.saturating_add(one_way_ns))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Rule S6.1.
        #[test]
        fn a_follower_switches_within_half_a_round_trip(
            offset in 0..1_000_000_000u64, there in 0..20_000u64, back in 0..20_000u64,
            remaining in 20_000..1_000_000u64,
        ) {
            // The leader's clock is the true time; the follower's is `offset` ahead.
            let asked = 5_000_000;
            let answered = 5_000_000 + there;
            let exchange = Exchange {
                asked_ns: asked + offset,
                answered_ns: answered,
                arrived_ns: answered + back + offset,
                switch_ns: answered + remaining,
            };
            let found = follow_ns(&exchange) - offset;
            prop_assert!(found.abs_diff(answered + remaining) <= (there + back) / 2 + 1);
        }
    }
}
