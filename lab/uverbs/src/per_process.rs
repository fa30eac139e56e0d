//! What each process has one of, its children after `fork` included: a child begins without, and may have its own.

use std::sync::OnceLock;

use memory::sync::{AtomicU32, Ordering};

/// Generations of processes that have one each. A child of the last generation has none.
const GENERATIONS: usize = 16;

/// Forks between the program's first process and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Values by generation. Those of parents stay, and nothing touches them: a lock in one may be held for ever.
#[derive(Debug)]
pub(crate) struct PerProcess<T>([OnceLock<T>; GENERATIONS]);

impl<T> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self([const { OnceLock::new() }; GENERATIONS])
    }

    fn slot(&self) -> Option<&OnceLock<T>> {
        self.0.get(GENERATION.load(Ordering::Relaxed) as usize)
    }

    /// That of this process, if it has one yet.
    pub(crate) fn get(&self) -> Option<&T> {
        self.slot()?.get()
    }

    /// That of this process, which is made by the first call.
    pub(crate) fn get_or_init(&self, make: impl FnOnce() -> T) -> Option<&T> {
        Some(self.slot()?.get_or_init(make))
    }
}

/// This is the child of a `fork`.
pub(crate) fn forked() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
