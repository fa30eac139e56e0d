//! Things with names that are never used twice.

/// Entries by name. A name is a place and how often it was used, so a late answer to an entry that
/// is gone finds nothing.
#[derive(Debug)]
pub(super) struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Adds an entry and returns its name, which is not 0.
    #[inline(always)]
    pub(super) fn insert(&mut self, value: T) -> u64 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry { generation: 0, value: None });
            u32::try_from(self.entries.len() - 1).expect("calls in flight are bounded")
        });
        let entry = &mut self.entries[place as usize];
        // Never 0, so that no name is.
        entry.generation = entry.generation.wrapping_add(1).max(1);
        entry.value = Some(value);
        u64::from(entry.generation) << 32 | u64::from(place)
    }

    #[inline]
    pub(super) fn get(&self, name: u64) -> Option<&T> {
        self.entries.get(place(name)).filter(|entry| is_of(entry, name))?.value.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, name: u64) -> Option<&mut T> {
        self.entries.get_mut(place(name)).filter(|entry| is_of(entry, name))?.value.as_mut()
    }

    #[inline]
    pub(super) fn remove(&mut self, name: u64) -> Option<T> {
        let entry = self.entries.get_mut(place(name)).filter(|entry| is_of(entry, name))?;
        let value = entry.value.take()?;
        self.free.push(u32::try_from(place(name)).unwrap_or(0));
        Some(value)
    }

    /// Names of all entries for which `is_wanted` holds.
    pub(super) fn names(&self, is_wanted: impl Fn(&T) -> bool) -> Vec<u64> {
        let named = self.entries.iter().zip(0u64..).filter_map(|(entry, place)| {
            let value = entry.value.as_ref()?;
            is_wanted(value).then_some(u64::from(entry.generation) << 32 | place)
        });
        named.collect()
    }
}

fn place(name: u64) -> usize {
    usize::try_from(name & u64::from(u32::MAX)).unwrap_or(usize::MAX)
}

fn is_of<T>(entry: &Entry<T>, name: u64) -> bool {
    u64::from(entry.generation) == name >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_b5_a_name_that_was_used_or_invented_finds_nothing() {
        let mut slab = Slab::default();
        let (first, second) = (slab.insert('a'), slab.insert('b'));
        assert_eq!((slab.remove(first), slab.remove(first)), (Some('a'), None));
        let third = slab.insert('c');
        assert_ne!(first, third);
        assert_eq!(
            (slab.get(first), slab.get(third), slab.get(second)),
            (None, Some(&'c'), Some(&'b'))
        );
        for forged in [0, 1, u64::MAX, third + (1 << 32), third + 1000] {
            assert_eq!(slab.remove(forged), None);
        }
        assert_eq!((slab.len(), slab.names(|c| *c == 'c')), (2, vec![third]));
    }
}
