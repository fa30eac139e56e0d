//! Virtual time: events in order, the clock that they move, and random numbers.

use std::{cmp::Reverse, collections::BinaryHeap};

use rand_xoshiro::{
    Xoshiro256PlusPlus,
    rand_core::{Rng as _, SeedableRng as _},
};

/// A point in virtual time, or a length of it, in picoseconds. Service times are tens of nanoseconds, so
/// rounding to nanoseconds would be seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The start of the world.
    pub const ZERO: Self = Self(0);

    /// From nanoseconds.
    #[must_use]
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns * 1000)
    }

    /// In nanoseconds.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "2⁵³ ps are 2.5 hours")]
    pub fn as_ns(self) -> f64 {
        self.0 as f64 / 1000.0
    }

    /// In whole nanoseconds, those that have passed.
    #[must_use]
    pub const fn whole_ns(self) -> u64 {
        self.0 / 1000
    }

    /// From picoseconds.
    #[must_use]
    pub const fn from_ps(ps: u64) -> Self {
        Self(ps)
    }

    /// Half of it.
    #[must_use]
    pub const fn half(self) -> Self {
        Self(self.0 / 2)
    }

    /// The time from `earlier` to this one; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add for Time {
    type Output = Self;

    fn add(self, length: Self) -> Self {
        Self(self.0 + length.0)
    }
}

impl std::ops::AddAssign for Time {
    fn add_assign(&mut self, length: Self) {
        self.0 += length.0;
    }
}

/// An event and when it happens. Events of one instant happen in the order in which they were scheduled.
#[derive(Debug)]
struct Scheduled<E> {
    at: Time,
    number: u64,
    event: E,
}

impl<E> PartialEq for Scheduled<E> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<E> Eq for Scheduled<E> {}

impl<E> PartialOrd for Scheduled<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Scheduled<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// The events that are to happen, and a clock that stands at the latest one that has.
#[derive(Debug)]
pub struct World<E> {
    now: Time,
    /// Events scheduled so far.
    scheduled: u64,
    heap: BinaryHeap<Reverse<Scheduled<E>>>,
    trace: TraceHash,
}

impl<E> Default for World<E> {
    fn default() -> Self {
        let (now, trace) = (Time::ZERO, TraceHash::default());
        Self { now, scheduled: 0, heap: BinaryHeap::new(), trace }
    }
}

impl<E> World<E> {
    /// The present.
    #[must_use]
    pub const fn now(&self) -> Time {
        self.now
    }

    /// Lets an event happen at `at`, or now if that is over.
    pub fn schedule(&mut self, at: Time, event: E) {
        let at = at.max(self.now);
        self.scheduled += 1;
        self.heap.push(Reverse(Scheduled { at, number: self.scheduled, event }));
    }

    /// Moves the clock to the next event that happens until `end`, and returns it.
    pub fn next(&mut self, end: Time) -> Option<E> {
        if self.heap.peek()?.0.at > end {
            return None;
        }
        let Reverse(Scheduled { at, number, event }) = self.heap.pop()?;
        self.now = at;
        self.trace.add(at.0);
        self.trace.add(number);
        Some(event)
    }

    /// Adds what an event has brought to the hash of all events.
    pub fn note(&mut self, word: u64) {
        self.trace.add(word);
    }

    /// Events that have happened.
    #[must_use]
    pub fn happened(&self) -> u64 {
        self.scheduled - self.heap.len() as u64
    }

    /// A hash of when which event happened: equal for two runs that went alike.
    #[must_use]
    pub const fn trace(&self) -> u64 {
        self.trace.0
    }
}

/// FNV-1a over 64-bit words.
#[derive(Clone, Copy, Debug)]
struct TraceHash(u64);

impl Default for TraceHash {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl TraceHash {
    fn add(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0100_0000_01b3);
    }
}

/// A stream of random numbers. Each purpose has one of its own, so that asking for one number more in one
/// place changes nothing elsewhere.
#[derive(Clone, Debug)]
pub struct RandomStream(Xoshiro256PlusPlus);

impl RandomStream {
    /// The stream of `purpose` in the world of `seed`.
    #[must_use]
    pub fn new(seed: u64, purpose: &str) -> Self {
        let mut hash = TraceHash::default();
        hash.add(seed);
        purpose.bytes().for_each(|byte| hash.add(byte.into()));
        Self(Xoshiro256PlusPlus::seed_from_u64(hash.0))
    }

    /// A number below `end`, each as likely as the others.
    ///
    /// # Panics
    ///
    /// If `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        assert!(end > 0, "there is no number below 0");
        // The bias is end / 2⁶⁴.
        let wide = u128::from(self.0.next_u64()) * end as u128;
        usize::try_from(wide >> 64).expect("it is below `end`")
    }

    /// As [`below`](Self::below), of another type.
    ///
    /// # Panics
    ///
    /// If `end` is 0.
    pub fn number(&mut self, end: u64) -> u64 {
        assert!(end > 0, "there is no number below 0");
        let wide = u128::from(self.0.next_u64()) * u128::from(end);
        u64::try_from(wide >> 64).expect("it is below `end`")
    }

    /// Whether something happens that does so `permille` times of a thousand.
    pub fn happens(&mut self, permille: u64) -> bool {
        permille > 0 && self.number(1000) < permille
    }

    /// One of them.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn choose<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// A time from the exponential distribution of that mean.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "53 random bits; a positive time below 40 times its mean"
    )]
    pub fn exponential(&mut self, mean: Time) -> Time {
        let uniform = ((self.0.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        Time((-libm::log(uniform) * mean.0 as f64) as u64)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn events_happen_in_order_of_time_and_of_scheduling(times in prop::collection::vec(0..50u64, 0..200)) {
            let mut world = World::default();
            for (number, at) in times.iter().enumerate() {
                world.schedule(Time::from_ns(*at), (*at, number));
            }
            let mut order: Vec<_> = times.iter().copied().zip(0..).collect();
            order.sort_unstable();
            let happened: Vec<_> = std::iter::from_fn(|| world.next(Time::from_ns(50))).collect();
            prop_assert_eq!(happened, order);
            prop_assert_eq!(world.happened(), times.len() as u64);
        }
    }

    #[test]
    fn the_past_is_now_and_the_end_is_included() {
        let mut world = World::default();
        world.schedule(Time::from_ns(5), 'a');
        assert_eq!(world.next(Time::from_ns(4)), None);
        assert_eq!(world.next(Time::from_ns(5)), Some('a'));
        world.schedule(Time::from_ns(1), 'b');
        assert_eq!((world.next(Time::from_ns(5)), world.now()), (Some('b'), Time::from_ns(5)));
    }

    #[test]
    fn streams_are_independent_and_have_the_mean_that_was_asked_for() {
        let (mut a, mut again) = (RandomStream::new(1, "service"), RandomStream::new(1, "service"));
        let (mut other, mut seed) =
            (RandomStream::new(1, "targets"), RandomStream::new(2, "service"));
        let first = a.below(1 << 30);
        assert_eq!(first, again.below(1 << 30));
        assert!(first != other.below(1 << 30) && first != seed.below(1 << 30));
        let sum: f64 = (0..100_000).map(|_| a.exponential(Time::from_ns(100)).as_ns()).sum();
        let mean = sum / 100_000.0;
        assert!((99.0..101.0).contains(&mean), "{mean}");
        let mut counts = [0; 3];
        (0..30_000).for_each(|_| counts[a.below(3)] += 1);
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }
}
