//! What one client, one service and all of them together may make a daemon hold.

use std::collections::BTreeMap;

use ids::slots::Key;
use rpc::Status;

use crate::client_port::ClientTag;

/// Bytes that are counted for each request that waits, besides its body: about what its entries take.
pub(crate) const ENTRY_BYTES: usize = 192;

/// Bounds of what a daemon, or a thread of it, holds for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all requests that wait, for room at a peer, for a provider or for another thread.
    pub held_bytes: usize,
    /// The same, of one caller: a client of this node, or another node.
    pub caller_held_bytes: usize,
    /// The same, for one service.
    pub service_held_bytes: usize,
    /// Services that one client may offer.
    pub services_per_client: usize,
    /// Registered memory for bodies that go by rendezvous, to and from other nodes.
    pub large_memory_bytes: usize,
    /// The same, of one caller.
    pub caller_large_memory_bytes: usize,
    /// The same, of one service.
    pub service_large_memory_bytes: usize,
    /// Memory that clients have registered for calls to lend, of all of them.
    pub bulk_bytes: u64,
    /// The same, of one process, over all its connections.
    pub caller_bulk_bytes: u64,
    /// Regions of such memory, of all clients: each is a mapping, a descriptor and a key of the NIC.
    pub regions: usize,
    /// The same, of one process, over all its connections.
    pub regions_per_process: usize,
}

/// Regions of all clients at most: half the keys of the software NIC.
pub(crate) const REGIONS_MAX: usize = 2048;

impl Default for Limits {
    /// The limits of a daemon whose settings name none.
    fn default() -> Self {
        Self {
            held_bytes: 64 << 20,
            caller_held_bytes: 1 << 20,
            service_held_bytes: 8 << 20,
            services_per_client: 64,
            large_memory_bytes: 1 << 30,
            caller_large_memory_bytes: 256 << 20,
            service_large_memory_bytes: 512 << 20,
            bulk_bytes: 64 << 30,
            caller_bulk_bytes: 16 << 30,
            regions: REGIONS_MAX,
            regions_per_process: 64,
        }
    }
}

impl Limits {
    /// Those of each of so many threads: what is for all is shared out.
    #[must_use]
    pub fn shared_by(self, threads: u16) -> Self {
        let threads = threads.max(1);
        Self {
            held_bytes: self.held_bytes / usize::from(threads),
            large_memory_bytes: self.large_memory_bytes / usize::from(threads),
            bulk_bytes: self.bulk_bytes / u64::from(threads),
            regions: self.regions / usize::from(threads),
            ..self
        }
    }

    /// The settings of a worker that holds no more for bodies that go by rendezvous.
    #[must_use]
    pub fn bound(&self, worker: rpc::Config) -> rpc::Config {
        rpc::Config {
            large_memory_total_bytes: self.large_memory_bytes,
            large_memory_bytes: self.caller_large_memory_bytes,
            large_memory_method_bytes: self.service_large_memory_bytes,
            ..worker
        }
    }
}

/// Whose request it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CallerId {
    /// A client of this node.
    Client(ClientTag),
    /// Another node.
    Rank(u32),
}

/// Bytes that are held, in all and by caller. A caller gets at most what is left for all others, so
/// that no caller finds nothing left because of one. Within that, a caller that holds nothing may hold one request of
/// any length: who calls once at a time never waits in vain because of its own limit.
#[derive(Debug)]
pub(crate) struct Held {
    limits: Limits,
    bytes: usize,
    by_caller: BTreeMap<CallerId, usize>,
}

impl Held {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, bytes: 0, by_caller: BTreeMap::new() }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Bytes that are held.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes `bytes` for a caller. [`Status::ResourceExhausted`]: it has its share, or nothing is left.
    pub(crate) fn admit(&mut self, caller: CallerId, bytes: usize) -> Result<(), Status> {
        let before = self.by_caller.get(&caller).copied().unwrap_or(0);
        let of_caller = before + bytes;
        let left_for_others = self.limits.held_bytes.saturating_sub(self.bytes + bytes);
        let is_beyond = before > 0 && of_caller > self.limits.caller_held_bytes;
        if is_beyond || of_caller > left_for_others {
            return Err(Status::ResourceExhausted);
        }
        self.bytes += bytes;
        self.by_caller.insert(caller, of_caller);
        Ok(())
    }

    /// Gives back what was [taken](Self::admit).
    pub(crate) fn release(&mut self, caller: CallerId, bytes: usize) {
        self.bytes -= bytes;
        if let Some(of_caller) = self.by_caller.get_mut(&caller) {
            *of_caller -= bytes;
            if *of_caller == 0 {
                self.by_caller.remove(&caller);
            }
        }
    }
}

/// Width of a bucket of a [`Wheel`].
const TICK_NS: u64 = 1_000_000;
/// Buckets of a [`Wheel`]: an entry is looked at once in so many ticks.
const BUCKETS: u64 = 512;

fn bucket(tick: u64) -> usize {
    usize::try_from(tick % BUCKETS).unwrap_or(0)
}

/// Deadlines by time, hashed into buckets (Varghese and Lauck, 1987, scheme 6): an entry costs a few
/// instructions, and a look costs what is due and a 512th of the rest. What ended early is forgotten when
/// its bucket comes by.
#[derive(Debug)]
pub(crate) struct Wheel {
    buckets: Vec<Vec<(u64, Key)>>,
    /// The last tick that was looked at.
    tick: u64,
}

impl Default for Wheel {
    fn default() -> Self {
        Self { buckets: (0..BUCKETS).map(|_| Vec::new()).collect(), tick: 0 }
    }
}

impl Wheel {
    /// Adds an entry that is due at `deadline_ns`.
    #[inline]
    pub(crate) fn add(&mut self, deadline_ns: u64, key: Key) {
        let tick = (deadline_ns / TICK_NS).max(self.tick);
        self.buckets[bucket(tick)].push((deadline_ns, key));
    }

    /// The entries that are due, oldest bucket first. `is_there` tells those that did not end.
    pub(crate) fn take_due(&mut self, now_ns: u64, is_there: impl Fn(Key) -> bool) -> Vec<Key> {
        let now_tick = now_ns / TICK_NS;
        let mut due = Vec::new();
        // The last bucket again: it had entries that were not due yet.
        for tick in self.tick.max((now_tick + 1).saturating_sub(BUCKETS))..=now_tick {
            self.buckets[bucket(tick)].retain(|&(deadline_ns, key)| {
                let is_due = deadline_ns <= now_ns;
                let is_there = is_there(key);
                if is_due && is_there {
                    due.push(key);
                }
                !is_due && is_there
            });
        }
        self.tick = self.tick.max(now_tick);
        due
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.buckets.iter().map(Vec::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use ids::slots::SlotTable;

    use super::*;

    fn client(slot: u32) -> CallerId {
        CallerId::Client(ClientTag { slot, life: 1 })
    }

    #[test]
    fn a_caller_gets_no_more_than_is_left_for_others_and_gives_all_back() {
        let limits = Limits { held_bytes: 1000, caller_held_bytes: 800, ..Limits::default() };
        let mut held = Held::new(limits);
        let taken = (0..1000).filter(|_| held.admit(client(0), 1).is_ok()).count();
        assert_eq!(taken, 500, "as much as is left for all others");
        let second = (0..1000).filter(|_| held.admit(CallerId::Rank(0), 1).is_ok()).count();
        assert_eq!(second, 250);
        assert!(held.admit(client(2), 1).is_ok(), "the next one finds room");
        held.release(client(2), 1);
        (0..500).for_each(|_| held.release(client(0), 1));
        (0..250).for_each(|_| held.release(CallerId::Rank(0), 1));
        assert_eq!((held.bytes(), held.by_caller.len()), (0, 0));
    }

    #[test]
    fn a_caller_that_holds_nothing_may_hold_one_request_of_any_length_that_leaves_as_much() {
        let limits = Limits { held_bytes: 1000, caller_held_bytes: 100, ..Limits::default() };
        let mut held = Held::new(limits);
        assert!(held.admit(client(0), 501).is_err(), "nobody else could have one");
        assert!(held.admit(client(0), 500).is_ok());
        assert!(held.admit(client(0), 1).is_err(), "it is beyond its limit");
        assert!(
            held.admit(CallerId::Rank(0), 60).is_ok() && held.admit(CallerId::Rank(0), 40).is_ok()
        );
        assert!(held.admit(CallerId::Rank(0), 1).is_err());
        held.release(client(0), 500);
        assert!(held.admit(client(0), 101).is_ok() && held.admit(client(0), 1).is_err());
    }

    #[test]
    fn entries_are_due_at_the_first_look_after_their_deadlines_and_dead_ones_are_forgotten() {
        let mut calls = SlotTable::default();
        let mut wheel = Wheel::default();
        let deadlines =
            [0, 1, 999_999, 1_000_000, 3_500_000, 511_000_000, 600_000_000, 5_000_000_000];
        for deadline_ns in deadlines {
            let key = calls.insert(deadline_ns).unwrap();
            wheel.add(deadline_ns, key);
        }
        let mut seen = Vec::new();
        for now_ns in (0..5_100_000_000_u64).step_by(250_000) {
            for key in wheel.take_due(now_ns, |key| calls.get(key).is_some()) {
                let deadline_ns = calls.remove(key).unwrap();
                assert!(deadline_ns <= now_ns && now_ns < deadline_ns + 250_000, "{deadline_ns}");
                seen.push(deadline_ns);
            }
        }
        assert_eq!(seen, deadlines);
        // Of a million calls that end at once, the wheel keeps those of half a second.
        for number in 0..1_000_000_u64 {
            let now_ns = 6_000_000_000 + number * 10_000;
            let key = calls.insert(0).unwrap();
            wheel.add(now_ns + 3_600_000_000_000, key);
            calls.remove(key);
            wheel.take_due(now_ns, |key| calls.get(key).is_some());
        }
        assert!(wheel.len() <= 52_000, "{} entries", wheel.len());
    }

    #[test]
    fn a_look_after_a_long_pause_finds_all() {
        let mut calls = SlotTable::default();
        let mut wheel = Wheel::default();
        for deadline_ns in (0..2_000_000_000_u64).step_by(1_700_000) {
            wheel.add(deadline_ns, calls.insert(()).unwrap());
        }
        let due = wheel.take_due(9_000_000_000, |key| calls.get(key).is_some());
        assert_eq!(due.len(), calls.len());
    }
}
