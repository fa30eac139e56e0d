//! Sleeping on a word of shared memory (`futex(2)`, shared between processes).

use core::num::NonZeroU32;

use memory::sync::AtomicU32;
use rustix::{
    io::Errno,
    thread::futex::{self, Flags},
};

use crate::clock;

/// Why [`wait`] returned. Whatever it says, look at the word again: wake-ups may be spurious.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// Somebody called [`wake`], or a signal arrived.
    Woken,
    /// The word did not hold the expected value.
    Changed,
    /// The deadline passed.
    TimedOut,
}

/// Sleeps while `word` holds `expected`, until [`wake`] or the deadline.
///
/// # Panics
///
/// If the kernel has no futex, or cannot reach the word: neither depends on what others do.
pub fn wait(word: &AtomicU32, expected: u32, deadline_ns: u64) -> Woken {
    let timeout = clock::timespec(core::time::Duration::from_nanos(deadline_ns));
    // Unlike `FUTEX_WAIT`, this one takes a deadline of `CLOCK_MONOTONIC`.
    match futex::wait_bitset(word, Flags::empty(), expected, Some(&timeout), NonZeroU32::MAX) {
        Ok(()) | Err(Errno::INTR) => Woken::Woken,
        Err(Errno::AGAIN) => Woken::Changed,
        Err(Errno::TIMEDOUT) => Woken::TimedOut,
        Err(errno) => panic!("futex wait on a valid word failed: {errno}"),
    }
}

/// Wakes up to `count` sleepers of any process, and returns how many. Costs a system call even if
/// nobody sleeps: ask a flag first.
///
/// # Panics
///
/// If the kernel has no futex, or cannot reach the word: neither depends on what others do.
pub fn wake(word: &AtomicU32, count: u32) -> usize {
    futex::wake(word, Flags::empty(), count.min(i32::MAX.unsigned_abs()))
        .unwrap_or_else(|errno| panic!("futex wake on a valid word failed: {errno}"))
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use memory::{Protection, Region, sync::Ordering};

    use super::*;

    #[test]
    fn a_changed_word_and_a_passed_deadline_do_not_sleep() {
        let word = AtomicU32::new(1);
        assert_eq!(wait(&word, 0, u64::MAX), Woken::Changed);
        assert_eq!(wait(&word, 1, clock::NOW), Woken::TimedOut);
        assert_eq!(wake(&word, u32::MAX), 0);
    }

    #[test]
    fn a_sleeper_is_woken_through_another_mapping() {
        let ours = Region::memfd("copyrpc-test", 4096).unwrap();
        let fd = ours.fd().unwrap().try_clone_to_owned().unwrap();
        let theirs = Region::map(fd, 4096, Protection::ReadWrite).unwrap();
        let deadline_ns = clock::deadline_ns(Duration::from_secs(20));
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| wait(theirs.shared(64).unwrap(), 0, deadline_ns));
            let word = ours.shared::<AtomicU32>(64).unwrap();
            while wake(word, 1) == 0 {
                assert!(clock::now_ns() < deadline_ns, "nobody ever slept");
                thread::yield_now();
            }
            word.store(1, Ordering::Relaxed);
            assert_eq!(sleeper.join().unwrap(), Woken::Woken);
        });
    }
}
