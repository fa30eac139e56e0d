//! Random numbers that are the same in every version of this program: the workload is a function of
//! its seed, and two results may be compared only if it was the same one.
//!
//! Source: xoshiro256++ 1.0 and splitmix64 by D. Blackman and S. Vigna, prng.di.unimi.it, public
//! domain.

/// Fractional part of the golden ratio, in units of 2⁻⁶⁴.
pub(crate) const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// Bits of a `f64`'s mantissa, with the hidden one.
const MANTISSA_BITS: u32 = 53;

/// The finalizer of splitmix64: a bijection of `u64` in which every input bit moves every output bit.
#[inline]
#[must_use]
pub const fn mix64(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A generator of uniform numbers.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The sequence number `stream` of those that belong to `seed`.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut at = seed ^ mix64(stream);
        let state = [(); 4].map(|()| {
            at = at.wrapping_add(GOLDEN);
            mix64(at)
        });
        Self { state }
    }

    /// 64 uniform bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A uniform number below `end`, which is not zero. The bias is below `end` / 2⁶⁴.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(end)) >> 64) as u64
    }

    /// A uniform number in [0, 1).
    #[inline]
    pub fn unit(&mut self) -> f64 {
        let bits = self.next_u64() >> (u64::BITS - MANTISSA_BITS);
        bits as f64 / (1_u64 << MANTISSA_BITS) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_published_algorithms() {
        let mut rng = Rng { state: [1, 2, 3, 4] };
        let first = [(); 5].map(|()| rng.next_u64());
        assert_eq!(
            first,
            [
                41_943_041,
                58_720_359,
                3_588_806_011_781_223,
                3_591_011_842_654_386,
                9_228_616_714_210_784_205
            ]
        );
        let splitmix = |count: u64| mix64(1_234_567_u64.wrapping_add(GOLDEN.wrapping_mul(count)));
        assert_eq!(
            [splitmix(1), splitmix(2)],
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]
        );
    }

    #[test]
    fn streams_of_one_seed_differ_and_repeat() {
        let draw = |seed, stream| Rng::new(seed, stream).next_u64();
        assert_eq!(draw(1, 0), draw(1, 0));
        assert_ne!(draw(1, 0), draw(1, 1));
        assert_ne!(draw(1, 0), draw(2, 0));
    }

    #[test]
    fn ranges_are_kept_and_filled() {
        let mut rng = Rng::new(7, 0);
        let mut seen = [0_u32; 6];
        for _ in 0..6000 {
            seen[usize::try_from(rng.below(6)).unwrap()] += 1;
            assert!((0.0..1.0).contains(&rng.unit()));
        }
        assert!(seen.iter().all(|&count| (850..1150).contains(&count)), "{seen:?}");
    }
}
