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

/// The events of a place, and a hash of those that have happened there.
#[derive(Debug)]
struct Place<E> {
    heap: BinaryHeap<Reverse<Scheduled<E>>>,
    /// Events that it has scheduled, for itself and others.
    scheduled: u64,
    trace: TraceHash,
}

impl<E> Default for Place<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), scheduled: 0, trace: TraceHash::default() }
    }
}

/// The events that are to happen, and a clock that stands at the latest one that has.
///
/// A world of many places can be simulated in slices of time: in each slice the events of one place happen, then
/// those of the next, so that the memory of a place is in the caches for all of them. If nothing reaches another
/// place within a slice, every place sees the same events in the same order, however long slices are.
#[derive(Debug)]
pub struct World<E> {
    now: Time,
    /// The latest event that has happened anywhere.
    latest: Time,
    places: Vec<Place<E>>,
    /// When the next event of each place happens; [`NEVER`]: there is none.
    due: Vec<Time>,
    /// The place whose events happen now.
    place: usize,
    slice: Option<Time>,
    /// The end of this slice, which is not part of it.
    slice_end: Time,
    /// An event happens: what it schedules elsewhere belongs to a later slice.
    is_inside: bool,
}

const NEVER: Time = Time(u64::MAX);
/// The low bits of an event's number count the events that its place has scheduled; above is that place.
const PLACE_SHIFT: u32 = 40;

impl<E> Default for World<E> {
    fn default() -> Self {
        Self::of(1, None)
    }
}

impl<E> World<E> {
    /// A world of `places`, simulated in slices of this length. Nothing may reach another place earlier.
    #[must_use]
    pub fn in_slices(places: usize, length: Time) -> Self {
        Self::of(places, Some(length))
    }

    fn of(places: usize, slice: Option<Time>) -> Self {
        Self {
            now: Time::ZERO,
            latest: Time::ZERO,
            places: (0..places).map(|_| Place::default()).collect(),
            due: vec![NEVER; places],
            place: 0,
            slice,
            slice_end: slice.map_or(NEVER, |_| Time::ZERO),
            is_inside: false,
        }
    }

    /// The present.
    #[must_use]
    pub const fn now(&self) -> Time {
        self.now
    }

    /// How many places it has.
    #[must_use]
    pub const fn places(&self) -> usize {
        self.places.len()
    }

    /// The place where the latest event has happened.
    #[must_use]
    pub const fn place(&self) -> usize {
        self.place
    }

    /// Lets an event happen at this place at `at`, or now if that is over.
    pub fn schedule(&mut self, at: Time, event: E) {
        self.schedule_in(self.place, at, event);
    }

    /// Lets an event happen at a place at `at`, or now if that is over.
    ///
    /// # Panics
    ///
    /// If another place is reached within this slice: the world is not one that slices can simulate.
    pub fn schedule_in(&mut self, place: usize, at: Time, event: E) {
        let at = at.max(self.now);
        assert!(
            place == self.place || at >= self.slice_end || !self.is_inside,
            "place {place} is reached within a slice"
        );
        let from = &mut self.places[self.place];
        from.scheduled += 1;
        let number = (self.place as u64) << PLACE_SHIFT | from.scheduled;
        self.places[place].heap.push(Reverse(Scheduled { at, number, event }));
        self.due[place] = self.due[place].min(at);
    }

    /// Moves the clock to the next event that happens until `end`, and returns it.
    pub fn next(&mut self, end: Time) -> Option<E> {
        loop {
            while let Some(due) = self.due.get(self.place) {
                if *due < self.slice_end && *due <= end {
                    return self.happen();
                }
                self.place += 1;
            }
            (self.place, self.now, self.is_inside) = (0, self.latest, false);
            let first = *self.due.iter().min()?;
            if first > end || first == NEVER {
                return None;
            }
            if let Some(Time(length)) = self.slice {
                self.slice_end = Time((first.0 / length + 1) * length);
            }
        }
    }

    /// The next event of this place happens.
    fn happen(&mut self) -> Option<E> {
        let place = &mut self.places[self.place];
        let Reverse(Scheduled { at, number, event }) = place.heap.pop()?;
        place.trace.add(at.0);
        place.trace.add(number);
        self.due[self.place] = place.heap.peek().map_or(NEVER, |next| next.0.at);
        (self.now, self.latest, self.is_inside) = (at, self.latest.max(at), true);
        Some(event)
    }

    /// Adds what an event has brought to the hash of all events.
    pub fn note(&mut self, word: u64) {
        self.places[self.place].trace.add(word);
    }

    /// Events that have happened.
    #[must_use]
    pub fn happened(&self) -> u64 {
        let places = self.places.iter();
        places.map(|place| place.scheduled).sum::<u64>()
            - self.places.iter().map(|place| place.heap.len() as u64).sum::<u64>()
    }

    /// A hash of when which event happened at each place: equal for two runs that went alike.
    #[must_use]
    pub fn trace(&self) -> u64 {
        let mut hashes = self.places.iter().map(|place| place.trace.0);
        let first = TraceHash(hashes.next().unwrap_or(0));
        hashes
            .fold(first, |mut all, hash| {
                all.add(hash);
                all
            })
            .0
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

/// A stream of random numbers for each place of a world, so that no place changes what another one draws.
#[derive(Clone, Debug)]
pub struct PlaceStreams(Vec<RandomStream>);

impl PlaceStreams {
    /// The streams of `purpose`, one for each of `places`. If there is but one place, it is
    /// [`RandomStream::new`].
    #[must_use]
    pub fn new(seed: u64, purpose: &str, places: usize) -> Self {
        if places == 1 {
            return Self(vec![RandomStream::new(seed, purpose)]);
        }
        let stream = |place| RandomStream::new(seed, &format!("{purpose} of place {place}"));
        Self((0..places).map(stream).collect())
    }

    /// That of a place.
    pub fn of(&mut self, place: usize) -> &mut RandomStream {
        &mut self.0[place]
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

    proptest! {
        /// Places that tell each other after at least a slice: each sees the same, however long slices are.
        #[test]
        fn slices_change_nothing(
            seeds in prop::collection::vec((0..4usize, 0..300u64), 1..40),
            slices in prop::collection::vec(1..=100u64, 2),
            pauses in prop::collection::vec(1..900u64, 0..4),
        ) {
            let run = |slice: u64| {
                let mut world = World::in_slices(4, Time(slice));
                seeds.iter().for_each(|(place, at)| world.schedule_in(*place, Time(*at), *at));
                let mut ends = pauses.clone();
                ends.extend([900, 900]);
                ends.sort_unstable();
                for end in ends {
                    while let Some(event) = world.next(Time(end)) {
                        let (now, place) = (world.now(), world.place());
                        // No event repeats itself at once for ever.
                        let word = event.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11;
                        world.note(word);
                        match word % 3 {
                            0 => world.schedule(now + Time(word % 7), word),
                            1 => world.schedule_in((place + 1) % 4, now + Time(100 + word % 50), word),
                            _ => {}
                        }
                    }
                }
                (world.happened(), world.trace(), world.now())
            };
            prop_assert_eq!(run(slices[0]), run(slices[1]));
        }
    }

    #[test]
    #[should_panic(expected = "place 1 is reached within a slice")]
    fn what_reaches_another_place_too_early_is_noticed() {
        let mut world = World::in_slices(2, Time(100));
        world.schedule(Time(10), ());
        world.next(Time(50));
        world.schedule_in(1, Time(99), ());
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
