//! Bytes of all buffers and regions of a worker, and by whom the buffers are taken.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, btree_map::Entry},
    rc::Rc,
};

use crate::{Config, PeerId};

/// Whoever a buffer is counted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Payer {
    /// The peer at the other end: nobody here was named.
    Peer(u64),
    /// A caller that the program named.
    Caller(u64),
    /// The method that is called.
    Method(u16),
}

/// Whom a body is for: its memory is counted for the caller and for the method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Number of the caller, as the program knows it; `None`: the peer at the other end is the caller.
    pub caller: Option<u64>,
    /// The method; `None`: it is not known.
    pub method: Option<u16>,
}

impl Account {
    fn payers(self, peer: PeerId) -> [Option<Payer>; 2] {
        let caller = self.caller.map_or(Payer::Peer(peer.0.to_u64()), Payer::Caller);
        [Some(caller), self.method.map(Payer::Method)]
    }
}

/// Memory for large bodies, now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LargeMemory {
    /// Bytes of buffers that hold bodies.
    pub used_bytes: usize,
    /// Bytes of the regions that they are cut from, which are registered.
    pub registered_bytes: usize,
}

/// What the buffers of all pools of a worker may take. A caller gets at most what is left for all others.
#[derive(Debug)]
pub(crate) struct Budget {
    total_bytes: usize,
    caller_bytes: usize,
    method_bytes: usize,
    registered_bytes: Cell<usize>,
    used_bytes: Cell<usize>,
    used_by: RefCell<BTreeMap<Payer, usize>>,
    /// A buffer was given back since this was asked for last.
    has_freed: Cell<bool>,
}

impl Budget {
    pub(crate) fn new(config: &Config) -> Rc<Self> {
        Rc::new(Self {
            total_bytes: config.large_memory_total_bytes,
            caller_bytes: config.large_memory_bytes,
            method_bytes: config.large_memory_method_bytes,
            registered_bytes: Cell::default(),
            used_bytes: Cell::default(),
            used_by: RefCell::default(),
            has_freed: Cell::default(),
        })
    }

    pub(crate) fn memory(&self) -> LargeMemory {
        let (used_bytes, registered_bytes) = (self.used_bytes.get(), self.registered_bytes.get());
        LargeMemory { used_bytes, registered_bytes }
    }

    /// Whether a buffer was given back since this was asked last.
    pub(crate) fn take_freed(&self) -> bool {
        self.has_freed.take()
    }

    /// Bytes that regions may still take.
    pub(super) fn room_bytes(&self) -> usize {
        self.total_bytes.saturating_sub(self.registered_bytes.get())
    }

    /// Counts a region, until the result is dropped.
    pub(super) fn register(self: &Rc<Self>, bytes: usize) -> Registration {
        self.registered_bytes.set(self.registered_bytes.get() + bytes);
        Registration { budget: Rc::clone(self), bytes }
    }

    /// Counts a buffer, until the result is dropped; `None`: whoever it is for has its share.
    pub(super) fn admit(
        self: &Rc<Self>,
        peer: PeerId,
        account: Account,
        bytes: usize,
    ) -> Option<Charge> {
        let payers = account.payers(peer);
        let mut used_by = self.used_by.borrow_mut();
        let left_bytes = self.total_bytes.saturating_sub(self.used_bytes.get());
        let fits = |payer: &Payer| {
            let limit_bytes = match payer {
                Payer::Method(_) => self.method_bytes,
                Payer::Peer(_) | Payer::Caller(_) => self.caller_bytes.min(left_bytes),
            };
            used_by.get(payer).copied().unwrap_or(0).saturating_add(bytes) <= limit_bytes
        };
        if !payers.iter().flatten().all(fits) {
            return None;
        }
        for payer in payers.into_iter().flatten() {
            *used_by.entry(payer).or_default() += bytes;
        }
        self.used_bytes.set(self.used_bytes.get() + bytes);
        Some(Charge { budget: Rc::clone(self), payers, bytes })
    }
}

/// A region that counts.
#[derive(Debug)]
pub(super) struct Registration {
    budget: Rc<Budget>,
    bytes: usize,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let registered_bytes = &self.budget.registered_bytes;
        registered_bytes.set(registered_bytes.get() - self.bytes);
    }
}

/// A buffer that counts.
#[derive(Debug)]
pub(super) struct Charge {
    budget: Rc<Budget>,
    payers: [Option<Payer>; 2],
    bytes: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        let Budget { used_bytes, used_by, has_freed, .. } = &*self.budget;
        used_bytes.set(used_bytes.get() - self.bytes);
        let mut used_by = used_by.borrow_mut();
        for payer in self.payers.into_iter().flatten() {
            if let Entry::Occupied(mut used) = used_by.entry(payer) {
                *used.get_mut() -= self.bytes;
                if *used.get() == 0 {
                    used.remove();
                }
            }
        }
        has_freed.set(true);
    }
}

#[cfg(test)]
mod tests {
    use ids::slots::Key;
    use proptest::prelude::*;

    use super::*;

    fn peer(slot: u64) -> PeerId {
        PeerId(Key::from_u64(1 << 32 | slot).unwrap())
    }

    fn budget(total: usize, caller: usize, method: usize) -> Rc<Budget> {
        Budget::new(&Config {
            large_memory_total_bytes: total,
            large_memory_bytes: caller,
            large_memory_method_bytes: method,
            ..Config::default()
        })
    }

    fn of(caller: u64) -> Account {
        Account { caller: Some(caller), method: Some(1) }
    }

    #[test]
    fn fault_i4_a_caller_a_method_and_all_have_their_bounds_and_the_next_finds_room() {
        let budget = budget(1000, 400, 700);
        let take = |account: Account| -> Vec<_> {
            std::iter::from_fn(|| budget.admit(peer(0), account, 10)).collect()
        };
        let first = take(of(1));
        assert_eq!(first.len(), 40, "as much as one may have");
        let second = take(of(2));
        assert_eq!(second.len(), 30, "the method has no more");
        let other_method = Account { method: Some(2), ..of(3) };
        let third = take(other_method);
        assert_eq!(third.len(), 15, "as much as is left for all others");
        assert!(budget.admit(peer(0), Account { caller: Some(4), method: None }, 10).is_some());
        // Calls of nobody in particular count for the peer.
        let peers = [0, 1].map(|slot| budget.admit(peer(slot), Account::default(), 10).unwrap());
        assert_eq!(budget.memory().used_bytes, 870);
        assert!(budget.take_freed() && !budget.take_freed());
        drop((first, second, third, peers));
        assert!(budget.take_freed());
        assert_eq!((budget.memory().used_bytes, budget.used_by.borrow().len()), (0, 0));
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None, cases: if cfg!(miri) { 4 } else { 256 }, ..Default::default()
        })]

        /// Whatever is asked for, no bound is passed, a caller that has nothing finds something while any
        /// is left, and nothing is counted once all is given back.
        #[test]
        fn no_bound_is_passed(
            steps in prop::collection::vec((0_u64..4, 0_u16..3, 1_usize..200, any::<bool>()), 0..200),
        ) {
            let budget = budget(1000, 300, 500);
            let mut held: Vec<(u64, u16, usize, Charge)> = Vec::new();
            for (caller, method, bytes, is_give) in steps {
                if is_give && !held.is_empty() {
                    held.swap_remove(bytes % held.len());
                }
                let sum = |held: &[(u64, u16, usize, Charge)], of: &dyn Fn(u64, u16) -> bool| {
                    held.iter().filter(|one| of(one.0, one.1)).map(|one| one.2).sum::<usize>()
                };
                let left = 1000 - sum(&held, &|_, _| true);
                let account = Account { caller: Some(caller), method: Some(method) };
                let charge = budget.admit(peer(0), account, bytes);
                let fits = sum(&held, &|one, _| one == caller) + bytes <= left.min(300)
                    && sum(&held, &|_, one| one == method) + bytes <= 500;
                prop_assert_eq!(charge.is_some(), fits);
                held.extend(charge.map(|charge| (caller, method, bytes, charge)));
            }
            held.clear();
            prop_assert_eq!(budget.memory().used_bytes, 0);
        }
    }
}
