//! Calls to a service that several ranks offer: one of them is chosen, or all are asked.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use crate::{CallError, ClientConfig, ConnectError, Pipeline, Status, SubmitError, To};

/// How long a rank that was not up is asked last.
const AVOID: Duration = Duration::from_secs(1);

/// The choice of the rank that a call goes to.
///
/// ```no_run
/// # use copyrpc_client as copyrpc;
/// use copyrpc::{ClientConfig, Route, Runtime, Spread};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let socket = Runtime::from_env()?.socket();
/// let mut spread = Spread::connect(&socket, ClientConfig::default(), 17, [0, 1, 2])?;
/// let owner = spread.rank_of(Route::Key(42));
/// spread.submit(Route::Key(42), 1, b"for the owner of key 42", owner)?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Any: they take turns.
    Any,
    /// The one with the fewest calls of this process that are not answered.
    LeastLoaded,
    /// The one that owns the key: the same for every caller. When the list of ranks changes, only the keys
    /// of ranks that came or went have other owners (rendezvous hashing; Thaler and Ravishankar, 1998).
    Key(u64),
}

/// One rank that offers the service.
#[derive(Clone, Debug)]
struct Target {
    rank: u32,
    in_flight: usize,
    /// It was not up a moment ago.
    avoided_until: Option<Instant>,
}

/// Chooses among ranks, and knows what is in flight to each.
#[derive(Debug)]
struct Ranks {
    targets: Vec<Target>,
    /// Where the next look begins.
    next: usize,
}

/// A [`Pipeline`] to a service that several ranks offer.
///
/// ```no_run
/// # use copyrpc_client::{ClientConfig, Route, Spread};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let socket = "/run/user/1000/copyrpc/job.sock".as_ref();
/// let mut spread = Spread::connect(socket, ClientConfig::default(), 17, [0, 1, 2])?;
/// spread.submit(Route::Key(42), 1, b"for the owner of key 42", "owner")?;
/// spread.submit(Route::LeastLoaded, 1, b"for the least busy rank", "idle")?;
/// while spread.in_flight() > 0 {
///     spread.poll(|what, rank, answer| println!("{what}: rank {rank} says {answer:?}"));
///     spread.rest();
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Spread<C> {
    /// With the place of the rank among the targets.
    pipeline: Pipeline<(usize, C)>,
    service: u16,
    ranks: Ranks,
}

impl<C> Spread<C> {
    /// Connects to the daemon whose socket is at `path`, to call a service on these ranks.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    ///
    /// # Panics
    ///
    /// If there is no rank.
    pub fn connect(
        path: &Path,
        config: ClientConfig,
        service: u16,
        ranks: impl IntoIterator<Item = u32>,
    ) -> Result<Self, ConnectError> {
        let ranks = Ranks::new(ranks);
        assert!(!ranks.targets.is_empty(), "a service is offered by one rank at least");
        Ok(Self { pipeline: Pipeline::connect(path, config)?, service, ranks })
    }

    /// The rank that a call would go to.
    #[must_use]
    pub fn rank_of(&self, route: Route) -> u32 {
        self.ranks.targets[self.ranks.choose(route, Instant::now())].rank
    }

    /// Makes a call; returns the rank that it goes to. A rank that was not up within the last second is chosen
    /// last, unless it owns the key.
    ///
    /// # Errors
    ///
    /// [`SubmitError`], as of [`Pipeline::submit`].
    pub fn submit(
        &mut self,
        route: Route,
        method: u16,
        body: &[u8],
        context: C,
    ) -> Result<u32, SubmitError<C>> {
        let place = self.ranks.choose(route, Instant::now());
        self.submit_at(place, method, body, context)
    }

    fn submit_at(
        &mut self,
        place: usize,
        method: u16,
        body: &[u8],
        context: C,
    ) -> Result<u32, SubmitError<C>> {
        let rank = self.ranks.targets[place].rank;
        let to = To { rank, service: self.service, method };
        match self.pipeline.submit(to, body, (place, context)) {
            Ok(_) => {
                self.ranks.made(place);
                Ok(rank)
            }
            Err(SubmitError { error, context: (_, context) }) => {
                Err(SubmitError { error, context })
            }
        }
    }

    /// Reports calls that ended, with the ranks that they went to; returns how many. Never sleeps.
    pub fn poll(&mut self, mut done: impl FnMut(C, u32, Result<&[u8], CallError>)) -> usize {
        let Self { pipeline, ranks, .. } = self;
        pipeline.poll(|(place, context), answer| {
            let rank = ranks.ended(place, answer.as_ref().err(), Instant::now());
            done(context, rank, answer);
        })
    }

    /// After a poll that reported nothing: waits as [`Pipeline::rest`] does.
    pub fn rest(&mut self) {
        self.pipeline.rest();
    }

    /// Calls in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.pipeline.in_flight()
    }
}

impl Spread<()> {
    /// Asks all ranks at once, and waits until each has answered or its call has ended: rank and answer, in the
    /// order of the ranks as they were given. Calls that were made before are waited for, and forgotten.
    pub fn gather(&mut self, method: u16, body: &[u8]) -> Vec<(u32, Result<Vec<u8>, CallError>)> {
        let ranks: Vec<_> = self.ranks.targets.iter().map(|target| target.rank).collect();
        while self.in_flight() > 0 {
            if self.poll(|(), _, _| ()) == 0 {
                self.rest();
            }
        }
        let mut ended: Vec<Option<Result<Vec<u8>, CallError>>> = vec![None; ranks.len()];
        let (mut next, mut left) = (0, ranks.len());
        while left > 0 {
            while next < ranks.len() && self.pipeline.in_flight() < self.pipeline.depth() {
                if let Err(SubmitError { error, .. }) = self.submit_at(next, method, body, ()) {
                    ended[next] = Some(Err(error));
                    left -= 1;
                }
                next += 1;
            }
            let Self { pipeline, ranks, .. } = self;
            let reported = pipeline.poll(|(place, ()), answer| {
                ranks.ended(place, answer.as_ref().err(), Instant::now());
                ended[place] = Some(answer.map(<[u8]>::to_vec));
            });
            left -= reported;
            if reported == 0 && left > 0 {
                self.rest();
            }
        }
        ranks.into_iter().zip(ended.into_iter().flatten()).collect()
    }
}

impl Ranks {
    fn new(ranks: impl IntoIterator<Item = u32>) -> Self {
        let target = |rank| Target { rank, in_flight: 0, avoided_until: None };
        Self { targets: ranks.into_iter().map(target).collect(), next: 0 }
    }

    /// The place of the rank that is next.
    fn choose(&self, route: Route, now: Instant) -> usize {
        let count = self.targets.len();
        let turns = (0..count).map(|step| (self.next + step) % count);
        let is_avoided =
            |place: usize| self.targets[place].avoided_until.is_some_and(|until| now < until);
        let chosen = match route {
            Route::Any => turns.min_by_key(|place| is_avoided(*place)),
            Route::LeastLoaded => {
                turns.min_by_key(|place| (is_avoided(*place), self.targets[*place].in_flight))
            }
            Route::Key(key) => {
                let weight = |place: &usize| mixed(key ^ mixed(self.targets[*place].rank.into()));
                (0..count).max_by_key(weight)
            }
        };
        chosen.unwrap_or(0)
    }

    fn made(&mut self, place: usize) {
        self.targets[place].in_flight += 1;
        self.next = (place + 1) % self.targets.len();
    }

    /// A call ended; returns the rank.
    fn ended(&mut self, place: usize, error: Option<&CallError>, now: Instant) -> u32 {
        let target = &mut self.targets[place];
        target.in_flight = target.in_flight.saturating_sub(1);
        let is_down = match error {
            Some(CallError::Refused(status) | CallError::Unanswered(status)) => {
                *status == Status::Unavailable
            }
            Some(CallError::NoService(_)) => true,
            _ => false,
        };
        target.avoided_until = is_down.then(|| now + AVOID);
        target.rank
    }
}

/// Spreads numbers that are close to each other (`SplitMix64`; Steele, Lea and Flood, 2014).
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_one_owner_each_and_few_change_it_when_a_rank_goes() {
        let (all, fewer) = (Ranks::new(0..5), Ranks::new([0, 1, 3, 4]));
        let now = Instant::now();
        let owner = |ranks: &Ranks, key| ranks.targets[ranks.choose(Route::Key(key), now)].rank;
        let mut owned = [0; 5];
        for key in 0..5000 {
            let before = owner(&all, key);
            owned[before as usize] += 1;
            let after = owner(&fewer, key);
            assert!(before == after || before == 2, "key {key} moved from {before} to {after}");
        }
        assert!(owned.iter().all(|count| (800..1200).contains(count)), "{owned:?}");
    }

    #[test]
    fn ranks_take_turns_the_idle_one_is_next_and_one_that_is_down_is_last() {
        let (mut ranks, now) = (Ranks::new([7, 8, 9]), Instant::now());
        let turn = |ranks: &mut Ranks, route| {
            let place = ranks.choose(route, now);
            ranks.made(place);
            ranks.targets[place].rank
        };
        let turns = [(); 4].map(|()| turn(&mut ranks, Route::Any));
        assert_eq!(turns, [7, 8, 9, 7]);
        assert_eq!(turn(&mut ranks, Route::LeastLoaded), 8, "rank 7 has two");
        assert_eq!(turn(&mut ranks, Route::LeastLoaded), 9);
        ranks.ended(0, None, now);
        assert_eq!(turn(&mut ranks, Route::LeastLoaded), 7);
        let down = CallError::Refused(Status::Unavailable);
        for _ in 0..3 {
            ranks.ended(1, Some(&down), now);
        }
        assert_eq!([(); 3].map(|()| turn(&mut ranks, Route::Any)), [9, 7, 9]);
        let later = now + 2 * AVOID;
        assert_eq!(ranks.targets[ranks.choose(Route::LeastLoaded, later)].rank, 8);
    }
}
