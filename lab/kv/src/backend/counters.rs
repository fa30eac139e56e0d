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
    /// By name: values, and how often. Times are in ns if the name ends in `_ns`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub distributions: BTreeMap<String, BTreeMap<u64, u64>>,
    /// Some moments, in ns of the clock that all processes share, and the calls to other nodes in
    /// flight then. Of one end alone: not added up, and not kept in results.
    #[serde(skip)]
    pub samples: Vec<(u64, u64)>,
}

impl Counters {
    /// Counts a batch of `messages`.
    pub fn batch(&mut self, messages: u32) {
        *self.batch_sizes.entry(messages).or_default() += 1;
    }

    /// Adds to the count of a name, of a client or a daemon.
    pub fn count(&mut self, side: &str, name: &str, count: u64) {
        *self.named.entry(format!("{side} {name}")).or_default() += count;
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
        for (name, values) in &other.distributions {
            sum(self.distributions.entry(name.clone()).or_default(), values);
        }
    }

    /// What came since an earlier look at the same end.
    #[must_use]
    pub fn since(mut self, earlier: &Self) -> Self {
        fn subtract<K: Ord>(from: &mut BTreeMap<K, u64>, earlier: &BTreeMap<K, u64>) {
            for (key, count) in from.iter_mut() {
                *count = count.saturating_sub(earlier.get(key).copied().unwrap_or(0));
            }
        }
        subtract(&mut self.batch_sizes, &earlier.batch_sizes);
        subtract(&mut self.named, &earlier.named);
        subtract(&mut self.phases_ns, &earlier.phases_ns);
        for (name, values) in &mut self.distributions {
            if let Some(before) = earlier.distributions.get(name) {
                subtract(values, before);
            }
            values.retain(|_, count| *count > 0);
        }
        self.batch_sizes.retain(|_, count| *count > 0);
        self.distributions.retain(|_, values| !values.is_empty());
        self
    }

    /// Sum of the counters that have these names.
    #[must_use]
    pub fn total(&self, names: &[&str]) -> u64 {
        names.iter().filter_map(|&name| self.named.get(name)).sum()
    }

    /// Median and 99th percentile of a distribution, if it has values.
    #[must_use]
    pub fn quantiles(&self, name: &str) -> Option<(u64, u64)> {
        let values = self.distributions.get(name)?;
        let total = values.values().map(|&count| u128::from(count)).sum::<u128>();
        let at = |percent: u128| {
            let mut below = 0;
            let reaches = |&(_, &count): &(&u64, &u64)| {
                below += u128::from(count);
                below * 100 >= total * percent
            };
            values.iter().find(reaches).map(|(value, _)| *value)
        };
        Some((at(50)?, at(99)?))
    }

    /// Messages per batch, on average.
    #[must_use]
    pub fn mean_batch(&self) -> Option<f64> {
        let batches = self.batch_sizes.values().sum::<u64>();
        let messages =
            self.batch_sizes.iter().map(|(&size, &count)| f64::from(size) * count as f64);
        (batches > 0).then(|| messages.sum::<f64>() / batches as f64)
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

    #[test]
    fn the_measured_interval_lies_between_two_looks() {
        let mut early = Counters::default();
        early.batch(1);
        early.named.insert("reads".into(), 3);
        early.distributions.insert("rtt_ns".into(), [(5, 1)].into());
        let mut late = early.clone();
        assert_eq!(late.clone().since(&early).distributions.len(), 0, "nothing came");
        late.batch(4);
        late.named.insert("writes".into(), 2);
        late.distributions.insert("rtt_ns".into(), [(5, 1), (7, 2)].into());
        let between = late.clone().since(&early);
        assert_eq!(between.batch_sizes, [(4, 1)].into());
        assert_eq!(late.total(&["reads", "writes", "none"]), 5);
        assert_eq!(between.named, [("reads".into(), 0), ("writes".into(), 2)].into());
        assert_eq!(between.distributions["rtt_ns"], [(7, 2)].into());
        assert_eq!((late.quantiles("rtt_ns"), late.quantiles("none")), (Some((7, 7)), None));
    }
}
