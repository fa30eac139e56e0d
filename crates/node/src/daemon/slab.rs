//! Things with names that are never used twice.

/// Entries by name. A name is a place and how often it was used, so a late answer to an entry that
/// is gone finds nothing.
#[derive(Debug)]
pub(super) struct Slab<T> {
    entries: Vec<Entry<T>>,
    /// Entries with a value.
    len: usize,
    /// The place that is taken next, the head of a list; behind the last entry if none is free.
    free: u32,
}

#[derive(Debug)]
struct Entry<T> {
    /// That of its name, or of the next one if there is no value. Never 0, so that no name is.
    generation: u32,
    /// What `free` is once this place is taken.
    next_free: u32,
    value: Option<T>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), len: 0, free: 0 }
    }
}

impl<T> Slab<T> {
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The name of the entry that is added next. It is not 0.
    #[inline]
    pub(super) fn next_name(&self) -> u64 {
        let entry = self.entries.get(self.free as usize);
        let generation = entry.map_or(1, |entry| entry.generation);
        u64::from(generation) << 32 | u64::from(self.free)
    }

    /// Adds an entry and returns its name.
    #[inline(always)]
    pub(super) fn insert(&mut self, value: T) -> u64 {
        if self.entries.len() == self.free as usize {
            self.grow();
        }
        let name = self.next_name();
        let entry = &mut self.entries[self.free as usize];
        entry.value = Some(value);
        self.free = entry.next_free;
        self.len += 1;
        name
    }

    #[cold]
    fn grow(&mut self) {
        let next_free = self.free.checked_add(1).expect("calls in flight are bounded");
        self.entries.push(Entry { generation: 1, next_free, value: None });
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
        entry.generation = entry.generation.wrapping_add(1).max(1);
        entry.next_free = self.free;
        self.free = u32::try_from(place(name)).unwrap_or(u32::MAX);
        self.len -= 1;
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
        let promised = slab.next_name();
        assert_eq!(slab.get(promised), None);
        assert_eq!(slab.remove(promised), None);
        assert_eq!(slab.next_name(), promised);
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
