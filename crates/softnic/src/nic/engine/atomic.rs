//! What an atomic does to its word: atomically with everybody, or only with atomics of the NIC.
//!
//! Hardware may promise the second only (`IBV_ATOMIC_HCA`): it reads the word, and then writes it. What a CPU
//! does in between is lost.

use memory::sync::{AtomicU64, Ordering};

use super::{Reply, Verb};
use crate::shared::{Holder, port_lock::PortLock};

/// Atomic with what CPUs do.
pub(super) fn with_all(word: &AtomicU64, verb: Verb) -> u64 {
    // SYNC(remote-atomic): pairs with itself, and with `MemoryRegion::load_u64`.
    match verb {
        Verb::FetchAdd { add } => word.fetch_add(add, Ordering::AcqRel),
        Verb::CompareSwap { compare, swap } => word
            .compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire)
            .unwrap_or_else(|old| old),
        _ => 0,
    }
}

/// Atomic with other atomics of NICs alone: `between` runs after the word was read, and before it is written.
/// If another one is at it, this one is to ask again soon.
pub(super) fn among_nics(
    word: &AtomicU64,
    verb: Verb,
    (lock, holder): (PortLock<'_>, Holder),
    between: impl FnOnce(),
) -> Reply {
    if !lock.try_take(holder) {
        return Reply::Connecting;
    }
    let old = word.load(Ordering::Acquire);
    between();
    let new = match verb {
        Verb::FetchAdd { add } => Some(old.wrapping_add(add)),
        Verb::CompareSwap { compare, swap } => (old == compare).then_some(swap),
        _ => None,
    };
    if let Some(new) = new {
        word.store(new, Ordering::Release);
    }
    lock.give(holder);
    Reply::Value(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn among_nics_what_a_cpu_does_in_between_is_lost() {
        let (word, lock) = (AtomicU64::new(5), AtomicU64::new(0));
        let add = Verb::FetchAdd { add: 10 };
        let cpu = || {
            word.fetch_add(1, Ordering::Relaxed);
        };
        let lock = (PortLock(&lock), 7);
        assert_eq!(among_nics(&word, add, lock, cpu), Reply::Value(5));
        assert_eq!(word.load(Ordering::Relaxed), 15);
        cpu();
        assert_eq!(with_all(&word, add), 16);
        let swap = Verb::CompareSwap { compare: 26, swap: 3 };
        assert_eq!(among_nics(&word, swap, lock, cpu), Reply::Value(26));
        let miss = Verb::CompareSwap { compare: 26, swap: 9 };
        assert_eq!(among_nics(&word, miss, lock, || {}), Reply::Value(3));
        assert_eq!(word.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn one_at_a_time_is_inside_and_the_place_of_a_dead_one_is_given() {
        let (word, lock) = (AtomicU64::new(0), AtomicU64::new(0));
        let (add, lock) = (Verb::FetchAdd { add: 1 }, PortLock(&lock));
        let between = || {
            assert_eq!(among_nics(&word, add, (lock, 9), || {}), Reply::Connecting);
        };
        assert_eq!(among_nics(&word, add, (lock, 7), between), Reply::Value(0));
        assert!(lock.try_take(7), "and dies");
        lock.give(8);
        assert_eq!(among_nics(&word, add, (lock, 9), || {}), Reply::Connecting);
        lock.give(7);
        assert_eq!(among_nics(&word, add, (lock, 9), || {}), Reply::Value(1));
    }
}
