//! Numbers that other processes cannot guess, or that a seed determines.

use std::hash::{BuildHasher as _, RandomState};

/// The source of a worker's epochs, packet numbers and DC keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Entropy {
    /// The operating system's: nobody else can guess them.
    #[default]
    System,
    /// A seed: two workers with the same seed, NIC and calls send the same bytes. For simulators and tests,
    /// because whoever knows the seed knows every key.
    Seed(u64),
}

/// Draws from an [`Entropy`].
#[derive(Debug)]
pub(crate) struct Random {
    entropy: Entropy,
}

impl Random {
    pub(crate) fn new(entropy: Entropy) -> Self {
        Self { entropy }
    }

    /// Sixty-four bits.
    pub(crate) fn next_u64(&mut self) -> u64 {
        match &mut self.entropy {
            Entropy::System => RandomState::new().hash_one(std::process::id()),
            Entropy::Seed(state) => split_mix(state),
        }
    }

    /// Thirty-two bits.
    pub(crate) fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }
}

/// `SplitMix64` (Steele, Lea, Flood 2014).
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_determines_every_number_and_the_system_none() {
        let draw = |entropy| {
            let mut random = Random::new(entropy);
            [(); 8].map(|()| random.next_u64())
        };
        assert_eq!(draw(Entropy::Seed(1)), draw(Entropy::Seed(1)));
        assert_ne!(draw(Entropy::Seed(1)), draw(Entropy::Seed(2)));
        assert_ne!(draw(Entropy::System), draw(Entropy::System));
        // Reference value of SplitMix64 from seed 0.
        assert_eq!(draw(Entropy::Seed(0))[0], 0xe220_a839_7b1d_cdaf);
    }
}
