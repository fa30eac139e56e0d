//! A model of a NIC's time: processing units and a context cache.

use crate::{
    machine::NicProfile,
    world::{RandomStream, Time},
};

/// What a NIC keeps of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NicContext {
    /// The send side of a queue pair.
    Initiator(u32),
    /// What a DC target has of one connected initiator.
    Responder(u32),
    /// A reliable connection: both of its halves.
    Connection(u32),
}

impl NicContext {
    /// Neighbouring numbers lie in neighbouring sets, as low bits of an address would put them. A hash that
    /// spreads them at random makes a cache miss that is two thirds full, and 30 % of the rate of 32
    /// initiators per thread is lost, which measurements do not show.
    const fn set_index(self) -> usize {
        match self {
            Self::Initiator(number) | Self::Responder(number) | Self::Connection(number) => {
                number as usize
            }
        }
    }
}

/// Contexts that lie on the NIC: set-associative, with random replacement. With least recently used
/// replacement a cyclic access pattern would always miss, which measurements do not show.
#[derive(Debug)]
struct ContextCache {
    sets: Vec<Vec<NicContext>>,
    ways: usize,
}

impl ContextCache {
    fn new(profile: &NicProfile) -> Self {
        let ways = profile.cache_ways.max(1);
        Self { sets: vec![Vec::new(); (profile.cache_contexts / ways).max(1)], ways }
    }

    fn set(&mut self, context: NicContext) -> &mut Vec<NicContext> {
        let index = context.set_index() % self.sets.len();
        &mut self.sets[index]
    }

    /// Brings a context in; returns whether it was there.
    fn touch(&mut self, context: NicContext, replacement: &mut RandomStream) -> bool {
        let ways = self.ways;
        let set = self.set(context);
        if set.contains(&context) {
            return true;
        }
        if set.len() < ways {
            set.push(context);
        } else {
            let victim = replacement.below(ways);
            set[victim] = context;
        }
        false
    }

    fn remove(&mut self, context: NicContext) {
        self.set(context).retain(|other| *other != context);
    }
}

/// One NIC.
#[derive(Debug)]
pub struct NicModel {
    /// When each processing unit has finished what it was given.
    units: Vec<Time>,
    cache: ContextCache,
    context_miss: Time,
    varies: bool,
    service: RandomStream,
    replacement: RandomStream,
    misses: u64,
}

impl NicModel {
    /// NIC number `number` of the world of `seed`.
    #[must_use]
    pub fn new(profile: &NicProfile, seed: u64, number: usize) -> Self {
        Self {
            units: vec![Time::ZERO; profile.units.max(1)],
            cache: ContextCache::new(profile),
            context_miss: profile.context_miss,
            varies: profile.varies,
            service: RandomStream::new(seed, &format!("service of NIC {number}")),
            replacement: RandomStream::new(seed, &format!("replacement of NIC {number}")),
            misses: 0,
        }
    }

    /// Contexts that were not on the NIC when they were needed.
    #[must_use]
    pub const fn misses(&self) -> u64 {
        self.misses
    }

    /// Needs a context. Returns how long the processing unit waits for it.
    pub fn need(&mut self, context: NicContext) -> Time {
        if self.cache.touch(context, &mut self.replacement) {
            return Time::ZERO;
        }
        self.misses += 1;
        self.context_miss
    }

    /// Makes a context, in the cache.
    pub fn create(&mut self, context: NicContext) {
        self.cache.touch(context, &mut self.replacement);
    }

    /// Forgets a context. A dead one that stayed would take the place of a live one.
    pub fn destroy(&mut self, context: NicContext) {
        self.cache.remove(context);
    }

    /// Gives work to a processing unit, which does one thing after the other. The time that it takes varies
    /// exponentially around `mean`, unless the profile says otherwise. Returns when it is done.
    pub fn serve(&mut self, unit: usize, now: Time, mean: Time) -> Time {
        let unit = unit % self.units.len();
        let length = if self.varies { self.service.exponential(mean) } else { mean };
        let done = self.units[unit].max(now) + length;
        self.units[unit] = done;
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::CONNECT_IB;

    #[test]
    fn a_unit_does_one_thing_after_the_other_and_units_work_side_by_side() {
        let mut nic = NicModel::new(&CONNECT_IB.nic, 1, 0);
        let (now, mean) = (Time::from_ns(1000), Time::from_ns(100));
        let first = nic.serve(0, now, mean);
        let second = nic.serve(0, now, mean);
        assert!(now <= first && first <= second);
        let mut alone = NicModel::new(&CONNECT_IB.nic, 1, 0);
        let here = alone.serve(0, now, mean);
        let there = alone.serve(1, now, mean);
        assert_eq!(here, first);
        assert_eq!(there.since(now), second.since(first), "the other unit was idle");
    }

    #[test]
    fn contexts_beyond_the_cache_miss_and_others_do_not() {
        let count_misses = |contexts: u32| {
            let mut nic = NicModel::new(&CONNECT_IB.nic, 1, 0);
            let rounds = |nic: &mut NicModel| {
                for _ in 0..20 {
                    (0..contexts).for_each(|number| _ = nic.need(NicContext::Responder(number)));
                }
            };
            rounds(&mut nic);
            let before = nic.misses();
            rounds(&mut nic);
            nic.misses() - before
        };
        let few = count_misses(200);
        let many = count_misses(2240);
        assert!(few < 200 * 20 / 20, "{few} misses of 4000");
        // Random replacement keeps some of what is needed again; least recently used would keep nothing.
        assert!(
            (0.4..0.8).contains(&(f64::from(u32::try_from(many).unwrap()) / 44_800.0)),
            "{many}"
        );
    }

    #[test]
    fn what_was_destroyed_is_needed_anew_and_what_was_created_is_there() {
        let mut nic = NicModel::new(&CONNECT_IB.nic, 1, 0);
        nic.create(NicContext::Responder(7));
        assert_eq!(nic.need(NicContext::Responder(7)), Time::ZERO);
        nic.destroy(NicContext::Responder(7));
        assert_eq!(nic.need(NicContext::Responder(7)), CONNECT_IB.nic.context_miss);
        assert_eq!(nic.misses(), 1);
    }
}
