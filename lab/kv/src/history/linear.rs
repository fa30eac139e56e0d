//! Is each key's history linearizable? Is there, for each operation, one moment between its begin and
//! its end at which it happened, so that all of them together make sense?
//!
//! Linearizability is local (Herlihy and Wing, 1990): keys are judged one by one. For a key, the
//! search tries, after every prefix, the operations that may come next, and remembers the states it
//! has been in (Wing and Gong, 1993; Lowe, 2017). Two facts keep it short. An operation that changes
//! nothing and agrees with the register can come at once: that never hurts. And as no version is
//! written twice, a version may be overwritten only when all who saw it have come; a write that
//! nobody saw can come right before another write.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
};

use super::{Act, HistoryEvent};
use crate::codec::{Version, value::INITIAL};

/// Work on one key before the search gives up, in operations looked at.
const WORK_MAX: u64 = 400_000_000;

/// What was judged and found right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct HistoryReport {
    /// Keys with at least one operation.
    pub keys: u64,
    /// Operations with a known outcome.
    pub known: u64,
    /// Operations that may or may not have happened.
    pub unknown: u64,
    /// Most operations on one key.
    pub busiest: u64,
}

/// A history that is not linearizable, or not known to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// No order of the operations makes sense.
    #[error(
        "the history of key {key:#x} ({operations} operations) is not linearizable: after \
         {explained} of them, with {register} in the store, no continuation makes sense; the next to \
         end is {stuck}"
    )]
    Violated {
        /// The key.
        key: u64,
        /// Operations with a known outcome.
        operations: usize,
        /// How many of them the best attempt could order.
        explained: usize,
        /// What the key then had.
        register: Held,
        /// The operation that must come next, but cannot.
        stuck: Stuck,
    },
    /// The search takes too long.
    #[error(
        "the history of key {key:#x} ({operations} operations) is too tangled to be judged; use a \
         shorter --duration, more --keys or a lower --qd"
    )]
    Undecided {
        /// The key.
        key: u64,
        /// Operations with a known outcome.
        operations: usize,
    },
}

/// What a register holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held(Option<Version>);

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(version) => write!(f, "version {:#x}", version.0),
            None => f.write_str("nothing"),
        }
    }
}

/// An operation that cannot be explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck(Option<HistoryEvent>);

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(HistoryEvent { act, begin_ns, end_ns, .. }) = self.0 else {
            return f.write_str("what follows");
        };
        let end_ns = end_ns.unwrap_or(u64::MAX);
        match act {
            Act::Read(seen) => write!(f, "a read of {}", Held(seen))?,
            Act::Write(new) => write!(f, "a write of {}", Held(Some(new)))?,
            Act::Remove(seen) => write!(f, "a removal of {}", Held(seen))?,
            Act::Swap { expected, .. } => write!(f, "a swap of {}", Held(expected))?,
            Act::RemoveAny => f.write_str("a removal")?,
        }
        write!(f, " (between {begin_ns} and {end_ns} ns)")
    }
}

/// Judges the histories of all clients together; every key held [`INITIAL`] at first.
///
/// # Errors
///
/// [`CheckError`] of the first key, in ascending order, that is not linearizable.
pub fn check(events: impl IntoIterator<Item = HistoryEvent>) -> Result<HistoryReport, CheckError> {
    let mut by_key = BTreeMap::<u64, Vec<HistoryEvent>>::new();
    for event in events {
        by_key.entry(event.key).or_default().push(event);
    }
    let mut report = HistoryReport::default();
    for (key, events) in by_key {
        report.keys += 1;
        report.busiest = report.busiest.max(events.len() as u64);
        let known = events.iter().filter(|event| event.end_ns.is_some()).count() as u64;
        report.known += known;
        report.unknown += events.len() as u64 - known;
        Search::new(key, events).run(WORK_MAX)?;
    }
    Ok(report)
}

/// The operations on one key.
struct Search {
    key: u64,
    /// With an end, by begin.
    known: Vec<HistoryEvent>,
    /// Without: they may come at any time after their begin, or never.
    unknown: Vec<HistoryEvent>,
    /// How many known operations saw each version; 0: only unknown ones did.
    uses: HashMap<Version, u32>,
    work: u64,
}

/// A prefix of an order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// All known operations below this have come.
    low: usize,
    /// And these above it, ascending.
    beyond: Vec<usize>,
    /// These unknown ones have come, ascending.
    applied: Vec<usize>,
    register: Option<Version>,
    /// Operations that saw the register's version and have come.
    used: u32,
}

#[derive(Clone, Copy, Debug)]
enum Choice {
    Known(usize),
    Unknown(usize),
}

impl Search {
    fn new(key: u64, events: Vec<HistoryEvent>) -> Self {
        let (mut known, unknown): (Vec<_>, Vec<_>) =
            events.into_iter().partition(|event| event.end_ns.is_some());
        known.sort_by_key(|event| event.begin_ns);
        let mut uses = HashMap::new();
        for version in known.iter().filter_map(|event| seen_by(event.act)) {
            *uses.entry(version).or_default() += 1;
        }
        let unknown = noticed(unknown, &uses);
        for version in unknown.iter().filter_map(|event| seen_by(event.act)) {
            uses.entry(version).or_default();
        }
        Self { key, known, unknown, uses, work: 0 }
    }

    /// Gives up after `work_max` operations looked at.
    fn run(mut self, work_max: u64) -> Result<(), CheckError> {
        let (beyond, applied) = (Vec::new(), Vec::new());
        let mut state = State { low: 0, beyond, applied, register: Some(INITIAL), used: 0 };
        self.absorb(&mut state);
        let mut best = state.clone();
        let mut visited = HashSet::new();
        let mut stack = vec![(self.choices(&state), state)];
        while let Some((choices, state)) = stack.last_mut() {
            if state.low == self.known.len() {
                return Ok(());
            }
            let Some(choice) = choices.pop() else {
                stack.pop();
                continue;
            };
            let mut next = state.clone();
            self.apply(&mut next, choice);
            self.absorb(&mut next);
            self.work += 1 + (next.beyond.len() + next.applied.len()) as u64;
            if self.work > work_max {
                return Err(CheckError::Undecided { key: self.key, operations: self.known.len() });
            }
            if next.low + next.beyond.len() > best.low + best.beyond.len() {
                best = next.clone();
            }
            if visited.insert(next.clone()) {
                stack.push((self.choices(&next), next));
            }
        }
        Err(CheckError::Violated {
            key: self.key,
            operations: self.known.len(),
            explained: best.low + best.beyond.len(),
            register: Held(best.register),
            stuck: Stuck(self.stuck_in(&best)),
        })
    }

    /// The operation whose end comes first among those that have not come.
    fn stuck_in(&self, state: &State) -> Option<HistoryEvent> {
        let left = (state.low..self.known.len()).filter(|index| !state.beyond.contains(index));
        left.map(|index| self.known[index]).min_by_key(|event| event.end_ns)
    }

    /// Known operations that may come next: none that has not come ended before they began. Also the
    /// end that is the first of these.
    fn enabled(&mut self, state: &State) -> (Vec<usize>, u64) {
        let mut first_end_ns = u64::MAX;
        let mut enabled = Vec::new();
        let mut beyond = state.beyond.iter().peekable();
        for index in state.low..self.known.len() {
            let event = &self.known[index];
            if event.begin_ns > first_end_ns {
                break;
            }
            self.work += 1;
            if beyond.next_if(|&&next| next == index).is_none() {
                first_end_ns = first_end_ns.min(event.end_ns.unwrap_or(u64::MAX));
                enabled.push(index);
            }
        }
        enabled.retain(|&index| self.known[index].begin_ns <= first_end_ns);
        (enabled, first_end_ns)
    }

    /// Lets everything come that may, changes nothing, and agrees with the register.
    fn absorb(&mut self, state: &mut State) {
        loop {
            let (enabled, _) = self.enabled(state);
            let is_absorbed = |&index: &usize| match self.known[index].act {
                Act::Read(seen) => seen == state.register,
                Act::Remove(None) => state.register.is_none(),
                _ => false,
            };
            let absorbed = enabled.into_iter().filter(is_absorbed).collect::<Vec<_>>();
            if absorbed.is_empty() {
                return;
            }
            if state.register.is_some() {
                state.used += u32::try_from(absorbed.len()).unwrap_or(u32::MAX);
            }
            state.come(absorbed);
        }
    }

    /// What may come next and changes the register; the most urgent last.
    fn choices(&mut self, state: &State) -> Vec<Choice> {
        let (mut enabled, first_end_ns) = self.enabled(state);
        enabled.retain(|&index| self.can_change(state, self.known[index].act, true));
        enabled.sort_by_key(|&index| std::cmp::Reverse(self.known[index].end_ns));
        let unknown = (0..self.unknown.len()).filter(|index| {
            let event = &self.unknown[*index];
            event.begin_ns <= first_end_ns
                && !state.applied.contains(index)
                && self.can_change(state, event.act, false)
        });
        unknown.map(Choice::Unknown).chain(enabled.into_iter().map(Choice::Known)).collect()
    }

    fn can_change(&self, state: &State, act: Act, is_known: bool) -> bool {
        let is_possible = match act {
            Act::Write(_) => true,
            Act::Remove(seen) => seen.is_some() && seen == state.register,
            Act::RemoveAny => state.register.is_some(),
            Act::Swap { expected, .. } => expected == state.register,
            Act::Read(_) => false,
        };
        let uses_itself = is_known && seen_by(act).is_some() && seen_by(act) == state.register;
        let is_used_up = state.register.is_none_or(|version| {
            let uses = self.uses.get(&version).copied().unwrap_or(0);
            state.used + u32::from(uses_itself) == uses
        });
        is_possible && is_used_up
    }

    fn apply(&mut self, state: &mut State, choice: Choice) {
        let act = match choice {
            Choice::Known(index) => self.known[index].act,
            Choice::Unknown(index) => self.unknown[index].act,
        };
        match choice {
            Choice::Known(index) if matches!(act, Act::Write(_)) => {
                // Writes that nobody saw come right before this one.
                let (mut enabled, _) = self.enabled(state);
                enabled.retain(|&other| other == index || self.is_unseen_write(other));
                state.come(enabled);
            }
            Choice::Known(index) => state.come([index]),
            Choice::Unknown(index) => {
                let at = state.applied.partition_point(|&other| other < index);
                state.applied.insert(at, index);
            }
        }
        state.used = 0;
        state.register = match act {
            Act::Write(new) | Act::Swap { new, .. } => Some(new),
            Act::Read(_) | Act::Remove(_) | Act::RemoveAny => None,
        };
    }

    fn is_unseen_write(&self, index: usize) -> bool {
        matches!(self.known[index].act, Act::Write(new) if !self.uses.contains_key(&new))
    }
}

/// Leaves out unknown writes whose version nobody saw: whether they happened makes no difference.
fn noticed(mut unknown: Vec<HistoryEvent>, uses: &HashMap<Version, u32>) -> Vec<HistoryEvent> {
    loop {
        let seen = unknown.iter().filter_map(|event| seen_by(event.act)).collect::<HashSet<_>>();
        let count = unknown.len();
        unknown.retain(|event| match event.act {
            Act::Write(new) | Act::Swap { new, .. } => {
                uses.contains_key(&new) || seen.contains(&new)
            }
            _ => true,
        });
        if unknown.len() == count {
            return unknown;
        }
    }
}

impl State {
    /// These known operations, ascending, have come.
    fn come(&mut self, indices: impl IntoIterator<Item = usize>) {
        self.beyond.extend(indices);
        self.beyond.sort_unstable();
        let low = self.low;
        let prefix = self.beyond.iter().zip(low..).take_while(|&(&have, want)| have == want);
        let count = prefix.count();
        self.beyond.drain(..count);
        self.low += count;
    }
}

/// The version that an operation has seen.
fn seen_by(act: Act) -> Option<Version> {
    match act {
        Act::Read(seen) | Act::Remove(seen) => seen,
        Act::Swap { expected, .. } => expected,
        Act::Write(_) | Act::RemoveAny => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rng::Rng;

    const KEY: u64 = 1;

    fn event(begin_ns: u64, end_ns: u64, act: Act) -> HistoryEvent {
        HistoryEvent { key: KEY, act, begin_ns, end_ns: Some(end_ns) }
    }

    fn unknown(begin_ns: u64, act: Act) -> HistoryEvent {
        HistoryEvent { key: KEY, act, begin_ns, end_ns: None }
    }

    fn read(version: u64) -> Act {
        Act::Read(Some(Version(version)))
    }

    fn write(version: u64) -> Act {
        Act::Write(Version(version))
    }

    fn swap(expected: u64, new: u64) -> Act {
        Act::Swap { expected: Some(Version(expected)), new: Version(new) }
    }

    fn is_linearizable(events: &[HistoryEvent]) -> bool {
        check(events.iter().copied()).is_ok()
    }

    #[test]
    fn fault_k1_known_histories_are_judged_right() {
        let absent = Act::Read(None);
        for (expected, events) in [
            (true, &[event(0, 1, read(0))][..]),
            (false, &[event(0, 1, read(7))]), // never written
            (true, &[event(0, 9, write(1)), event(1, 2, read(0)), event(3, 4, read(1))]),
            // The new value was seen, then the old one again.
            (false, &[event(0, 9, write(1)), event(1, 2, read(1)), event(3, 4, read(0))]),
            // A write that had ended is not seen.
            (false, &[event(0, 1, write(1)), event(2, 3, read(0))]),
            // Two writes at once may come in either order, but in one only.
            (true, &[event(0, 9, write(1)), event(0, 9, write(2)), event(10, 11, read(1))]),
            (
                false,
                &[
                    event(0, 9, write(1)),
                    event(0, 9, write(2)),
                    event(10, 11, read(1)),
                    event(12, 13, read(2)),
                ],
            ),
            (true, &[event(0, 1, Act::Remove(Some(INITIAL))), event(2, 3, absent)]),
            (false, &[event(0, 1, Act::Remove(Some(INITIAL))), event(2, 3, read(0))]),
            (true, &[event(0, 5, Act::Remove(None)), event(0, 5, Act::Remove(Some(INITIAL)))]),
            (false, &[event(0, 1, Act::Remove(None)), event(2, 3, Act::Remove(Some(INITIAL)))]),
            (true, &[event(0, 1, swap(0, 1)), event(2, 3, swap(1, 2)), event(4, 5, read(2))]),
            // Both swaps took the same version.
            (false, &[event(0, 9, swap(0, 1)), event(0, 9, swap(0, 2))]),
            // What was removed, or swapped, was not there.
            (false, &[event(0, 1, Act::Remove(Some(Version(7))))]),
            (false, &[event(0, 1, write(1)), event(2, 3, Act::Remove(Some(INITIAL)))]),
            (false, &[event(0, 1, write(1)), event(2, 3, swap(0, 2))]),
            (false, &[event(0, 1, Act::Remove(Some(INITIAL))), event(2, 3, swap(0, 2))]),
            // Ends that touch a begin are concurrent.
            (true, &[event(0, 2, write(1)), event(2, 3, read(0))]),
        ] {
            assert_eq!(is_linearizable(events), expected, "{events:?}");
        }
    }

    #[test]
    fn fault_k1_unknown_outcomes_may_have_happened_or_not() {
        let lost = unknown(0, write(1));
        assert!(is_linearizable(&[lost, event(5, 6, read(0))]), "never");
        assert!(is_linearizable(&[lost, event(5, 6, read(1))]), "before");
        assert!(is_linearizable(&[lost, event(5, 6, read(0)), event(7, 8, read(1))]), "later");
        let twice = [lost, event(5, 6, read(1)), event(7, 8, write(2)), event(9, 10, read(1))];
        assert!(!is_linearizable(&twice), "a retry would make it happen twice");
        assert!(!is_linearizable(&[unknown(7, write(1)), event(5, 6, read(1))]), "too early");
        assert!(is_linearizable(&[unknown(6, write(1)), event(5, 6, read(1))]), "they touch");
        let removed = [unknown(0, Act::RemoveAny), event(5, 6, Act::Read(None))];
        assert!(is_linearizable(&removed));
        let removed_twice = [event(7, 8, write(1)), event(9, 10, Act::Read(None))];
        assert!(is_linearizable(&[&removed[..1], &removed_twice].concat()), "later");
        assert!(!is_linearizable(&[&removed[..], &removed_twice].concat()), "only once");
        // Nobody saw the write itself, but a swap that was lost, too, saw it.
        let chain = [lost, unknown(0, swap(1, 2)), event(5, 6, read(2))];
        assert!(is_linearizable(&chain), "both came");
        assert!(!is_linearizable(&chain[1..]), "the swap had nothing to see");
    }

    /// Write 2 is seen by the swap alone, which has no answer: it comes after write 1 all the same, and
    /// not right before it as a write does that nobody saw.
    #[test]
    fn fault_k1_a_write_that_only_a_lost_swap_saw_was_seen() {
        assert!(is_linearizable(&[
            event(0, 9, write(1)),
            event(0, 9, write(2)),
            event(1, 2, read(1)),
            unknown(0, swap(2, 3)),
            event(10, 11, read(3)),
        ]));
        let swapped = [unknown(0, swap(3, 1)), event(5, 6, read(1))];
        assert!(!is_linearizable(&swapped), "its version was never there");
    }

    #[test]
    fn a_violation_names_the_key_and_what_cannot_be_explained() {
        let events = [event(0, 1, write(1)), event(2, 3, read(0))];
        let message = check(events).unwrap_err().to_string();
        for part in ["key 0x1", "2 operations", "after 0 of them", "version 0x0 in the store"] {
            assert!(message.contains(part), "{part:?} in {message}");
        }
        let events = [event(0, 9, read(8)), event(0, 5, read(7))];
        let message = check(events).unwrap_err().to_string();
        assert!(message.contains("the next to end is a read of version 0x7"), "{message}");
    }

    #[test]
    fn a_report_counts_keys_and_operations() {
        let of_key = |key, event: HistoryEvent| HistoryEvent { key, ..event };
        let events = [
            event(0, 1, write(1)),
            event(2, 3, read(1)),
            unknown(4, write(2)),
            of_key(2, event(0, 1, read(0))),
        ];
        let report = check(events).unwrap();
        assert_eq!(report, HistoryReport { keys: 2, known: 3, unknown: 1, busiest: 3 });
    }

    /// Sets of writes at once that nobody can put in order: it gives up, and does not say "right".
    #[test]
    fn what_takes_too_long_is_undecided() {
        let writes = (1..40).map(|version| event(0, 1000, write(version)));
        let reads = (1..40).map(|version| event(0, 1000, read(version)));
        let tangled = writes.chain(reads).chain([event(2000, 2001, read(77))]).collect();
        let undecided = Search::new(KEY, tangled).run(10_000);
        assert!(
            matches!(undecided, Err(CheckError::Undecided { operations: 79, .. })),
            "{undecided:?}"
        );
    }

    /// A history that is linearizable by construction: each operation happens at one moment, its
    /// interval is stretched around that.
    fn random_history(
        seed: u64,
        count: u64,
        stretch: u64,
        may_be_lost: fn(&Act) -> bool,
    ) -> Vec<HistoryEvent> {
        let mut rng = Rng::new(seed, 0);
        let mut register = Some(INITIAL);
        let mut events = Vec::new();
        for number in 1..=count {
            let now = number * 10 + 1_000_000;
            let new = Version(number);
            let act = match rng.below(10) {
                0 => Act::Remove(register.take()),
                1..4 => {
                    register = Some(new);
                    Act::Write(new)
                }
                4 if register.is_some() => Act::Swap { expected: register.replace(new), new },
                _ => Act::Read(register),
            };
            let (begin, end) = (now - rng.below(stretch), now + rng.below(stretch));
            let lost = match act {
                Act::Read(_) => None,
                Act::Remove(_) => Some(Act::RemoveAny),
                other => Some(other),
            };
            let lost = lost.filter(|act| may_be_lost(act) && rng.below(10) == 0);
            events.push(lost.map_or_else(|| event(begin, end, act), |act| unknown(begin, act)));
        }
        events
    }

    #[test]
    fn long_histories_are_judged_in_time() {
        let report =
            check(random_history(3, 20_000, 200, |act| matches!(act, Act::Write(_)))).unwrap();
        assert_eq!((report.keys, report.known + report.unknown), (1, 20_000));
    }

    /// All orders of a few operations.
    fn brute_force(events: &[HistoryEvent]) -> bool {
        fn search(left: &[HistoryEvent], register: Option<Version>) -> bool {
            if left.iter().all(|event| event.end_ns.is_none()) {
                return true;
            }
            let first_end = left.iter().filter_map(|event| event.end_ns).min().unwrap_or(u64::MAX);
            (0..left.len()).any(|index| {
                let event = left[index];
                let next = match event.act {
                    Act::Read(seen) if seen == register => register,
                    Act::Write(new) => Some(new),
                    Act::Remove(seen) if seen == register => None,
                    Act::RemoveAny => None,
                    Act::Swap { expected, new } if expected == register => Some(new),
                    _ => return false,
                };
                let rest = [&left[..index], &left[index + 1..]].concat();
                event.begin_ns <= first_end && search(&rest, next)
            })
        }
        search(events, Some(INITIAL))
    }

    proptest! {
        #[test]
        fn agrees_with_trying_all_orders(seed in any::<u64>(), lies in 0_usize..3, stretch in 1_u64..60) {
            let mut events = random_history(seed, 7, stretch, |_| true);
            let mut rng = Rng::new(seed, 1);
            for _ in 0..lies {
                let index = usize::try_from(rng.below(7)).unwrap();
                let lie = Some(Version(rng.below(8))).filter(|version| version.0 < 7);
                match &mut events[index].act {
                    Act::Read(seen) | Act::Remove(seen) | Act::Swap { expected: seen, .. } => *seen = lie,
                    Act::Write(_) | Act::RemoveAny => {}
                }
            }
            prop_assert_eq!(is_linearizable(&events), brute_force(&events), "{:?}", events);
        }

        #[test]
        fn what_happened_at_moments_is_linearizable(seed in any::<u64>(), stretch in 1_u64..300) {
            let writes = random_history(seed, 300, stretch, |act| matches!(act, Act::Write(_)));
            prop_assert_eq!(check(writes).err(), None);
            // Many lost removals may take too long, but are no violation.
            let search = Search::new(KEY, random_history(seed, 300, stretch, |_| true));
            let judged = search.run(100_000);
            prop_assert!(!matches!(judged, Err(CheckError::Violated { .. })), "{judged:?}");
        }
    }
}
