//! Tells a process from its `fork(2)`: one word that the kernel zeroes in the child
//! (`madvise(2)`, `MADV_WIPEONFORK`). Asking costs one load of a line that nobody writes.

use std::sync::OnceLock;

use memory::{
    Region,
    sync::{AtomicU32, Ordering},
};
use rustix::mm::{Advice, madvise};

/// The page, never freed: advice outlives an allocation. `None` on a kernel without such pages,
/// where forks go unnoticed.
static PAGE: OnceLock<Option<Region>> = OnceLock::new();

/// Remembers which process it was made in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForkGuard {
    word: Option<&'static AtomicU32>,
    pid: u32,
}

impl ForkGuard {
    pub(crate) fn new() -> Self {
        let page = PAGE.get_or_init(wiped_page).as_ref();
        let word = page.and_then(|page| page.shared::<AtomicU32>(0).ok());
        let pid = std::process::id();
        if let Some(word) = word {
            // Zero until now in a child that makes its first handle.
            word.store(pid, Ordering::Relaxed);
        }
        Self { word, pid }
    }

    /// Of memory that no fork shares: nothing is ever forked.
    pub(crate) fn unguarded() -> Self {
        Self { word: None, pid: 0 }
    }

    /// Whether this process is a fork of the one that the guard was made in.
    #[inline(always)]
    pub(crate) fn is_forked(&self) -> bool {
        self.word.is_some_and(|word| word.load(Ordering::Relaxed) != self.pid)
    }
}

fn wiped_page() -> Option<Region> {
    if cfg!(miri) {
        return None;
    }
    let page = Region::heap(1).ok()?;
    // SAFETY: whole pages, allocated for this alone and never freed: nobody else's bytes are wiped.
    let advised =
        unsafe { madvise(page.as_ptr().as_ptr().cast(), page.len(), Advice::LinuxWipeOnFork) };
    advised.is_ok().then_some(page)
}
