//! Log-linear histograms: 16 buckets per power of two, so a bucket's bounds differ by at most 6.25 %.
//!
//! ```text
//! value    0 .. 15   one bucket each
//!         16 .. 31   one each
//!         32 .. 63   two values each, and so on to 2^40 - 1 (18 minutes in nanoseconds)
//! ```
//!
//! The layout is that of HDR histograms (Tene, hdrhistogram.org) with four significant bits.

/// Bits of a value that are kept after its first.
const SUB_BITS: u32 = 4;
const SUB_BUCKETS: u64 = 1 << SUB_BITS;

/// Largest value that is told from larger ones.
pub(super) const VALUE_MAX: u64 = (1 << 40) - 1;

/// Buckets of a histogram.
pub const BUCKETS: usize = bucket_of(VALUE_MAX) + 1;

/// The bucket of a value.
#[inline]
#[must_use]
pub const fn bucket_of(value: u64) -> usize {
    let value = if value > VALUE_MAX { VALUE_MAX } else { value };
    if value < SUB_BUCKETS {
        #[expect(clippy::cast_possible_truncation, reason = "below 16")]
        return value as usize;
    }
    let shift = value.ilog2() - SUB_BITS;
    // The first bit of the shifted value is always set, and counts as the next octave.
    #[expect(clippy::cast_possible_truncation, reason = "below 592")]
    return (shift as u64 * SUB_BUCKETS + (value >> shift)) as usize;
}

/// The largest value of a bucket.
#[must_use]
pub const fn upper_bound(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 2 * SUB_BUCKETS {
        return bucket;
    }
    let shift = bucket / SUB_BUCKETS - 1;
    let first = (bucket % SUB_BUCKETS + SUB_BUCKETS) << shift;
    first + (1 << shift) - 1
}

/// A distribution, as copied from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    sum: u64,
    buckets: Vec<u64>,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { sum: 0, buckets: vec![0; BUCKETS] }
    }
}

impl Histogram {
    pub(super) fn from_words(sum: u64, buckets: Vec<u64>) -> Self {
        debug_assert_eq!(buckets.len(), BUCKETS);
        Self { sum, buckets }
    }

    /// The number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Sum of all values.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// The value that a share `quantile` of all values does not exceed: the upper bound of its
    /// bucket, so never too small, and at most 6.25 % too large. 0 if there are no values.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> u64 {
        #[expect(clippy::cast_precision_loss, reason = "a share of a count")]
        let due = quantile.clamp(0.0, 1.0) * self.count() as f64;
        let mut seen = 0_u64;
        for (bucket, count) in self.buckets.iter().enumerate().filter(|(_, count)| **count > 0) {
            seen = seen.saturating_add(*count);
            #[expect(clippy::cast_precision_loss, reason = "a share of a count")]
            if seen as f64 >= due {
                return upper_bound(bucket);
            }
        }
        0
    }

    /// Buckets with something in them, as `(largest value, count)`.
    pub fn filled(&self) -> impl Iterator<Item = (u64, u64)> {
        let filled = self.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
        filled.map(|(bucket, count)| (upper_bound(bucket), *count))
    }

    /// Adds the values of another.
    pub fn merge(&mut self, other: &Self) {
        self.sum = self.sum.wrapping_add(other.sum);
        for (ours, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *ours = ours.saturating_add(*theirs);
        }
    }

    /// The values since an earlier copy of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let buckets = self.buckets.iter().zip(&earlier.buckets);
        Self {
            sum: self.sum.wrapping_sub(earlier.sum),
            buckets: buckets.map(|(now, then)| now.saturating_sub(*then)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn buckets_are_contiguous_and_end_where_they_should() {
        assert_eq!(BUCKETS, 592);
        for bucket in 0..BUCKETS - 1 {
            assert_eq!(bucket_of(upper_bound(bucket)), bucket);
            assert_eq!(bucket_of(upper_bound(bucket) + 1), bucket + 1);
        }
        assert_eq!(upper_bound(BUCKETS - 1), VALUE_MAX);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    fn of(values: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        for value in values {
            histogram.buckets[bucket_of(*value)] += 1;
            histogram.sum += value;
        }
        histogram
    }

    #[test]
    fn quantiles_of_nothing_are_zero_and_differences_are_what_came_since() {
        assert_eq!(Histogram::default().quantile(0.5), 0);
        let (early, mut late) = (of(&[1, 2]), of(&[1, 2]));
        late.merge(&of(&[500]));
        assert_eq!(late.since(&early), of(&[500]));
        assert_eq!((late.count(), late.sum()), (3, 503));
        assert_eq!(late.filled().collect::<Vec<_>>(), [(1, 1), (2, 1), (511, 1)]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn a_quantile_is_never_too_small_and_at_most_a_sixteenth_too_large(
            mut values in proptest::collection::vec(0..VALUE_MAX, 1..200),
            share in 0.01_f64..1.0,
        ) {
            let quantile = of(&values).quantile(share);
            values.sort_unstable();
            #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation,
                clippy::cast_sign_loss, reason = "an index below 200")]
            let index = (share * values.len() as f64).ceil() as usize - 1;
            let exact = values[index];
            prop_assert!(quantile >= exact && quantile - exact <= exact / 16, "{quantile} {exact}");
        }
    }
}
