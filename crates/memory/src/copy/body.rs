//! Long bodies to memory that a process of another core reads next: through the caches, or past them.
//!
//! A store to a line that the reader's core holds waits for that core. Where both cores share a cache, the wait is short,
//! and the body may stay in that cache; where they do not, stores past the caches are several times as fast. The kernel
//! moves processes between cores, so this process measures both ways, and uses the one that pays. It does so apart for
//! messages between processes and for memory that peers read through their NICs: their readers are on other cores.

use crate::sync::{Ordering, machine::AtomicU32};

/// Shorter messages between processes go through the caches; the way of others is measured.
const MESSAGE_BYTES_MIN: usize = 32 << 10;
/// Shorter bodies go to registered memory through the caches.
const REGISTERED_BYTES_MIN: usize = 8 << 10;
/// Shorter ones go past the caches wherever the reader is, which gained near, too; the way of others is measured.
const REGISTERED_CHOICE_BYTES_MIN: usize = 128 << 10;
/// Of so many copies, one goes the other way, for its pace.
const LOOK_EVERY: u32 = 128;
/// Past the caches the reader fetches the body from memory, so the stores alone have to be so much faster.
const FACTOR: u32 = 3;

/// Of messages between processes, of all threads of this process.
pub(super) static MESSAGES: Paces = Paces::new(MESSAGE_BYTES_MIN, MESSAGE_BYTES_MIN);
/// Of registered memory, of all threads of this process.
pub(super) static REGISTERED: Paces = Paces::new(REGISTERED_BYTES_MIN, REGISTERED_CHOICE_BYTES_MIN);

/// The paces of both ways to memory of one kind: time per KiB, in units of a clock that all cores share; 0: not known.
///
/// The words are hints: threads may overwrite each other's samples.
pub(super) struct Paces {
    /// Shorter copies go through the caches.
    past_bytes_min: usize,
    /// Shorter ones, but for those, go past the caches.
    choice_bytes_min: usize,
    cached: AtomicU32,
    past: AtomicU32,
    /// Copies until now.
    copies: AtomicU32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Cached,
    Past,
}

impl Paces {
    const fn new(past_bytes_min: usize, choice_bytes_min: usize) -> Self {
        let [cached, past, copies] = [const { AtomicU32::new(0) }; 3];
        Self { past_bytes_min, choice_bytes_min, cached, past, copies }
    }

    fn of(&self, way: Way) -> &AtomicU32 {
        match way {
            Way::Cached => &self.cached,
            Way::Past => &self.past,
        }
    }

    /// The way of the next copy.
    fn next(&self) -> Way {
        let number = self.copies.load(Ordering::Relaxed);
        self.copies.store(number.wrapping_add(1), Ordering::Relaxed);
        let [cached, past] =
            [Way::Cached, Way::Past].map(|way| self.of(way).load(Ordering::Relaxed));
        let is_look = number % LOOK_EVERY == LOOK_EVERY - 1;
        match () {
            () if cached == 0 => Way::Cached,
            () if past == 0 => Way::Past,
            () if (cached > past.saturating_mul(FACTOR)) != is_look => Way::Past,
            () => Way::Cached,
        }
    }

    /// Takes a sample. A faster one counts at once, since page faults and preemption make some copies slower and none
    /// faster; a slower one by an eighth.
    fn record(&self, way: Way, elapsed: u64, len_bytes: usize) {
        let sample = elapsed.saturating_mul(1024) / len_bytes as u64;
        let sample = u32::try_from(sample).unwrap_or(u32::MAX).max(1);
        let pace = self.of(way);
        let known = pace.load(Ordering::Relaxed);
        let next = match known {
            0 => sample,
            known if sample <= known => sample,
            known => known + (sample.min(known.saturating_mul(8)) - known).div_ceil(8),
        };
        pace.store(next, Ordering::Relaxed);
    }
}

/// Copies as [`super::copy_between`] does, in the way that pays.
///
/// # Safety
///
/// As for [`super::copy_between`].
#[inline]
pub(super) unsafe fn copy(paces: &Paces, dst: *mut u8, src: *const u8, len_bytes: usize) {
    if len_bytes < paces.past_bytes_min || !super::gains_past_caches() {
        // SAFETY: by contract.
        return unsafe { super::copy_between(dst, src, len_bytes) };
    }
    if len_bytes < paces.choice_bytes_min {
        // SAFETY: by contract.
        return unsafe { super::copy_between_past_caches(dst, src, len_bytes) };
    }
    // SAFETY: by contract.
    unsafe { copy_long(paces, dst, src, len_bytes) }
}

/// # Safety
///
/// As for [`super::copy_between`].
unsafe fn copy_long(paces: &Paces, dst: *mut u8, src: *const u8, len_bytes: usize) {
    let way = paces.next();
    let start = super::ticks();
    match way {
        // SAFETY: by contract.
        Way::Cached => unsafe { super::copy_between(dst, src, len_bytes) },
        // SAFETY: by contract.
        Way::Past => unsafe { super::copy_between_past_caches(dst, src, len_bytes) },
    }
    paces.record(way, super::ticks().wrapping_sub(start), len_bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY_BYTES: usize = 64 << 10;

    /// Copies that went past the caches, of so many, where each way takes so many units per KiB.
    fn run(paces: &Paces, copies: usize, cached: u64, past: u64) -> usize {
        let went_past = |_: &usize| {
            let way = paces.next();
            let each = if way == Way::Cached { cached } else { past };
            paces.record(way, each * BODY_BYTES as u64 / 1024, BODY_BYTES);
            way == Way::Past
        };
        (0..copies).filter(went_past).count()
    }

    #[test]
    fn the_way_that_pays_is_found_again_whenever_cores_change() {
        let paces = Paces::new(MESSAGE_BYTES_MIN, MESSAGE_BYTES_MIN);
        let (far, near) = ((430, 70), (110, 70));
        assert!(run(&paces, 1000, far.0, far.1) >= 990, "one look in 128");
        // A look finds the caches fast again.
        run(&paces, 128, near.0, near.1);
        let past = run(&paces, 1280, near.0, near.1);
        assert!((1..=10).contains(&past), "{past}");
        // Far again: a few slow copies are enough.
        assert!(run(&paces, 100, far.0, far.1) >= 80);
    }

    #[test]
    fn one_slow_copy_decides_nothing_for_long() {
        let paces = Paces::new(MESSAGE_BYTES_MIN, MESSAGE_BYTES_MIN);
        // Fresh pages.
        let way = paces.next();
        paces.record(way, 100_000 * 64, BODY_BYTES);
        run(&paces, 256, 110, 70);
        assert!(run(&paces, 128, 110, 70) <= 1);
        // A preempted copy.
        paces.record(Way::Cached, u64::MAX, BODY_BYTES);
        assert!(run(&paces, 1280, 110, 70) <= 20);
        assert_eq!(paces.cached.load(Ordering::Relaxed), 110);
    }
}
