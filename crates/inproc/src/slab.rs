//! A bounded table with keys that never come back: a slot is reused under a new generation.

/// Names one value ever inserted, until its slot has been reused 2³² times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) index: u32,
    generation: u32,
}

#[derive(Debug)]
struct Slot<V> {
    generation: u32,
    value: Option<V>,
}

/// At most `max` values. Grows as slots are first used, and never shrinks.
#[derive(Debug)]
pub(crate) struct Slab<V> {
    slots: Vec<Slot<V>>,
    free: Vec<u32>,
    max: u32,
}

impl<V> Slab<V> {
    pub(crate) fn new(max: u32) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), max }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() == self.max as usize
    }

    /// The value comes back if `max` are there.
    pub(crate) fn insert(&mut self, value: V) -> Result<Key, V> {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.value = Some(value);
            return Ok(Key { index, generation: slot.generation });
        }
        match u32::try_from(self.slots.len()) {
            Ok(index) if index < self.max => {
                self.slots.push(Slot { generation: 0, value: Some(value) });
                // Room for every slot, so that returning one never allocates.
                self.free.reserve(self.slots.len());
                Ok(Key { index, generation: 0 })
            }
            _ => Err(value),
        }
    }

    /// The value that `key` was made for; none if it was removed before.
    pub(crate) fn remove(&mut self, key: Key) -> Option<V> {
        let slot = self.slots.get(key.index as usize)?;
        if slot.generation != key.generation {
            return None;
        }
        self.remove_at(key.index)
    }

    /// The value in slot `index`, if there is one.
    pub(crate) fn remove_at(&mut self, index: u32) -> Option<V> {
        let slot = self.slots.get_mut(index as usize)?;
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        Some(value)
    }

    /// Any value. Looks at every slot: for clearing up.
    pub(crate) fn remove_any(&mut self) -> Option<V> {
        let index = self.slots.iter().position(|slot| slot.value.is_some())?;
        self.remove_at(u32::try_from(index).ok()?)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 4 } else { 128 }, failure_persistence: None, ..Default::default()
        })]
        #[test]
        fn agrees_with_hash_map(ops in prop::collection::vec((any::<bool>(), 0usize..64), 0..200)) {
            let mut slab = Slab::new(5);
            let (mut keys, mut oracle) = (Vec::new(), HashMap::new());
            for (number, (is_insert, pick)) in ops.into_iter().enumerate() {
                if is_insert {
                    prop_assert_eq!(slab.is_full(), oracle.len() == 5);
                    match slab.insert(number) {
                        Ok(key) => {
                            keys.push(key);
                            oracle.insert(keys.len() - 1, number);
                        }
                        Err(back) => prop_assert!(back == number && oracle.len() == 5),
                    }
                } else if !keys.is_empty() {
                    // Also keys that were removed long ago.
                    let pick = pick % keys.len();
                    prop_assert_eq!(slab.remove(keys[pick]), oracle.remove(&pick));
                }
                prop_assert_eq!(slab.len(), oracle.len());
            }
            while slab.remove_any().is_some() {}
            prop_assert_eq!(slab.len(), 0);
        }
    }
}
