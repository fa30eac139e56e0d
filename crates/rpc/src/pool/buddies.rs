//! Which parts of a region are free, by halves of halves.

/// A binary tree over a power of two of units: each node tells the longest free run below it that is a node
/// itself.
#[derive(Debug)]
pub(super) struct Buddies {
    /// Per node, the root first, the children of node *i* at *2i + 1* and *2i + 2*: the order of that run, plus
    /// one; 0: nothing is free.
    longest: Box<[u8]>,
    /// Logarithm of the number of units.
    order: u8,
}

impl Buddies {
    /// # Panics
    ///
    /// If `units` is no power of two.
    pub(super) fn new(units: usize) -> Self {
        assert!(units.is_power_of_two(), "halves of halves");
        let order_of = |node: usize| units.ilog2() - (node + 1).ilog2();
        let longest = (0..2 * units - 1).map(|node| level(order_of(node))).collect();
        Self { longest, order: level(units.ilog2()) - 1 }
    }

    /// Whether nothing is taken.
    pub(super) fn is_whole(&self) -> bool {
        self.longest[0] == self.order + 1
    }

    /// Takes 2^`order` units, the first that are free; returns the first of them.
    pub(super) fn take(&mut self, order: u8) -> Option<usize> {
        if self.longest[0] <= order {
            return None;
        }
        let mut node = 0;
        for _ in order..self.order {
            let left = 2 * node + 1;
            node = if self.longest[left] > order { left } else { left + 1 };
        }
        self.longest[node] = 0;
        self.correct_above(node, order);
        Some(((node + 1) << order) - (1 << self.order))
    }

    /// Gives back what [`take`](Self::take) returned for the same order.
    pub(super) fn give(&mut self, unit: usize, order: u8) {
        let node = ((unit + (1 << self.order)) >> order) - 1;
        debug_assert_eq!(self.longest[node], 0, "it was taken");
        self.longest[node] = order + 1;
        self.correct_above(node, order);
    }

    /// A node of this order has changed.
    fn correct_above(&mut self, mut node: usize, order: u8) {
        for below in order..self.order {
            node = (node - 1) / 2;
            let (left, right) = (self.longest[2 * node + 1], self.longest[2 * node + 2]);
            // Two free halves are one whole.
            let is_free = left == below + 1 && right == below + 1;
            self.longest[node] = if is_free { below + 2 } else { left.max(right) };
        }
    }
}

/// What a free node of this order says.
fn level(order: u32) -> u8 {
    u8::try_from(order + 1).expect("fewer than 2^255 units")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None, cases: if cfg!(miri) { 4 } else { 256 }, ..Default::default()
        })]

        /// What is taken lies inside, is aligned to its length and shared with nobody; what is refused
        /// does not fit; what was given back is there again.
        #[test]
        fn agrees_with_a_list_of_units(steps in prop::collection::vec((any::<bool>(), 0_u8..6), 0..100)) {
            const UNITS: usize = 32;
            let mut buddies = Buddies::new(UNITS);
            let mut is_taken = [false; UNITS];
            let mut taken = Vec::new();
            for (is_give, number) in steps {
                if is_give && !taken.is_empty() {
                    let (unit, order) = taken.swap_remove(usize::from(number) % taken.len());
                    buddies.give(unit, order);
                    is_taken[unit..unit + (1 << order)].fill(false);
                } else {
                    let len = 1 << number;
                    let fits = is_taken.chunks(len).any(|run| !run.contains(&true));
                    let unit = buddies.take(number);
                    prop_assert_eq!(unit.is_some(), fits);
                    if let Some(unit) = unit {
                        prop_assert_eq!(unit % len, 0);
                        prop_assert!(!is_taken[unit..unit + len].contains(&true));
                        is_taken[unit..unit + len].fill(true);
                        taken.push((unit, number));
                    }
                }
                prop_assert_eq!(buddies.is_whole(), taken.is_empty());
            }
        }
    }

    #[test]
    fn one_unit_is_a_region_too() {
        let mut buddies = Buddies::new(1);
        assert_eq!((buddies.take(0), buddies.take(0), buddies.take(1)), (Some(0), None, None));
        buddies.give(0, 0);
        assert!(buddies.is_whole());
    }
}
