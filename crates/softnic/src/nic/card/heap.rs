//! Where in a card's region a queue lies: first fit over free ranges.

use std::collections::BTreeMap;

/// Free ranges of one region. Memory is handed out in whole cache-line pairs.
#[derive(Debug)]
pub(crate) struct Heap {
    /// Offset to length; neighbours are merged.
    free: BTreeMap<usize, usize>,
}

/// Two cache lines: the unit that adjacent-line prefetch moves.
const UNIT_BYTES: usize = 128;

impl Heap {
    pub(crate) fn new(start: usize, end: usize) -> Self {
        let start = start.next_multiple_of(UNIT_BYTES);
        Self { free: BTreeMap::from([(start, end.saturating_sub(start))]) }
    }

    /// Offset of `len_bytes` free bytes, aligned to 128.
    pub(crate) fn alloc(&mut self, len_bytes: usize) -> Option<usize> {
        let need = len_bytes.max(1).checked_next_multiple_of(UNIT_BYTES)?;
        let (&offset, &len) = self.free.iter().find(|&(_, &len)| len >= need)?;
        self.free.remove(&offset);
        if len > need {
            self.free.insert(offset + need, len - need);
        }
        Some(offset)
    }

    /// Takes back what [`alloc`](Self::alloc) gave out for the same length.
    pub(crate) fn free(&mut self, mut offset: usize, len_bytes: usize) {
        let mut len = len_bytes.max(1).next_multiple_of(UNIT_BYTES);
        if let Some(next) = self.free.remove(&(offset + len)) {
            len += next;
        }
        if let Some((&before, &before_len)) = self.free.range(..offset).next_back()
            && before + before_len == offset
        {
            self.free.remove(&before);
            (offset, len) = (before, before_len + len);
        }
        self.free.insert(offset, len);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 4 } else { 256 }, failure_persistence: None, ..Default::default()
        })]
        #[test]
        fn ranges_never_overlap_and_all_come_back(
            ops in prop::collection::vec((1usize..2000, any::<bool>()), 1..60),
        ) {
            let mut heap = Heap::new(100, 64 << 10);
            let mut live: Vec<(usize, usize)> = Vec::new();
            for (len, free) in ops {
                if free && !live.is_empty() {
                    let (offset, len) = live.swap_remove(len % live.len());
                    heap.free(offset, len);
                } else if let Some(offset) = heap.alloc(len) {
                    prop_assert!(offset >= 100 && offset + len <= 64 << 10 && offset % 128 == 0);
                    for &(other, other_len) in &live {
                        prop_assert!(offset + len <= other || other + other_len <= offset);
                    }
                    live.push((offset, len));
                }
            }
            for (offset, len) in live {
                heap.free(offset, len);
            }
            prop_assert_eq!(heap.free.len(), 1, "everything is one range again");
        }
    }
}
