//! What a backend may count about itself; the report shows what is there.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Counters of one end, or of several together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// Messages that were moved together, and how often.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub batch_sizes: BTreeMap<u32, u64>,
    /// Anything else, by name: system calls, doorbells, credits.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub named: BTreeMap<String, u64>,
    /// Time spent in each phase of the daemon's loop, in ns, of the loops that were sampled.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub phases_ns: BTreeMap<String, u64>,
}

impl Counters {
    /// Counts a batch of `messages`.
    pub fn batch(&mut self, messages: u32) {
        *self.batch_sizes.entry(messages).or_default() += 1;
    }

    /// Adds those of another end.
    pub fn add(&mut self, other: &Self) {
        fn sum<K: Ord + Clone>(to: &mut BTreeMap<K, u64>, from: &BTreeMap<K, u64>) {
            for (key, count) in from {
                *to.entry(key.clone()).or_default() += count;
            }
        }
        sum(&mut self.batch_sizes, &other.batch_sizes);
        sum(&mut self.named, &other.named);
        sum(&mut self.phases_ns, &other.phases_ns);
    }

    /// Messages per batch, on average.
    #[must_use]
    pub fn mean_batch(&self) -> Option<f64> {
        let batches = self.batch_sizes.values().sum::<u64>();
        let messages = self.batch_sizes.iter().map(|(&size, count)| u64::from(size) * count);
        (batches > 0).then(|| messages.sum::<u64>() as f64 / batches as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_two_ends_add_up() {
        let mut one = Counters::default();
        one.batch(1);
        one.batch(1);
        one.named.insert("reads".into(), 3);
        let mut two = Counters::default();
        two.batch(4);
        two.named.insert("reads".into(), 4);
        one.add(&two);
        assert_eq!(one.named["reads"], 7);
        assert_eq!(one.mean_batch(), Some(2.0));
        assert_eq!(Counters::default().mean_batch(), None);
    }
}
