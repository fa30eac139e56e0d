//! LIDs that stand for ports in this port's packets: the engine knows ports by such numbers.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use verbs::Lid;

use crate::PortName;

/// A port that shares no memory, in its own packets.
pub(crate) const ALONE: Lid = Lid::new(1);
/// The first LID that stands for another port: none that shares memory has such a one.
const FIRST: u16 = 0xc000;
/// No port: packets to it are dropped.
pub(crate) const NOBODY: Lid = Lid::new(0xffff);

#[derive(Debug, Default)]
struct Table {
    lids: HashMap<PortName, Lid>,
    names: HashMap<Lid, PortName>,
}

/// The LID of each port that was heard of.
#[derive(Debug)]
pub(crate) struct Aliases {
    own: PortName,
    own_lid: Lid,
    table: Mutex<Table>,
}

impl Aliases {
    pub(crate) fn new(own: PortName) -> Self {
        let own_lid = if own.lid == 0 { ALONE } else { Lid::new(own.lid) };
        Self { own, own_lid, table: Mutex::default() }
    }

    /// The first LID of others.
    fn first(&self) -> usize {
        if self.own.lid == 0 { usize::from(ALONE.get()) + 1 } else { usize::from(FIRST) }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Both maps are complete after each change of one of them.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The LID of a port, which keeps it; [`NOBODY`] once all are given away.
    pub(crate) fn lid(&self, name: PortName) -> Lid {
        if name == self.own {
            return self.own_lid;
        }
        let mut table = self.lock();
        if let Some(&lid) = table.lids.get(&name) {
            return lid;
        }
        let next =
            u16::try_from(table.lids.len() + self.first()).ok().filter(|&lid| lid < NOBODY.get());
        let Some(lid) = next.map(Lid::new) else { return NOBODY };
        table.lids.insert(name, lid);
        table.names.insert(lid, name);
        lid
    }

    /// The LID of a port that was heard of.
    pub(crate) fn known(&self, name: PortName) -> Option<Lid> {
        self.lock().lids.get(&name).copied()
    }

    pub(crate) fn name(&self, lid: Lid) -> Option<PortName> {
        self.lock().names.get(&lid).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddrV4;

    use super::*;

    #[test]
    fn every_port_and_life_has_a_lid_of_its_own_until_all_are_given_away() {
        let address = SocketAddrV4::new([127, 0, 0, 1].into(), 9);
        let name = |life| PortName { address, life, lid: 0 };
        let aliases = Aliases::new(name(0));
        assert_eq!(aliases.lid(name(0)), ALONE);
        for life in 1..=0xfffd {
            let lid = aliases.lid(name(life));
            assert_eq!(u32::from(lid.get()), life + 1);
            assert_eq!(aliases.name(lid), Some(name(life)));
        }
        assert_eq!(aliases.lid(name(0x1_0000)), NOBODY);
        assert_eq!((aliases.lid(name(5)), aliases.name(NOBODY)), (Lid::new(6), None));
    }

    #[test]
    fn no_port_has_the_lid_of_one_that_shares_memory() {
        let address = SocketAddrV4::new([127, 0, 0, 1].into(), 9);
        let name = |life| PortName { address, life, lid: 0xbfff };
        let aliases = Aliases::new(name(0));
        assert_eq!(aliases.lid(name(0)), Lid::new(0xbfff));
        for life in 1..=0x3fff {
            assert_eq!(u32::from(aliases.lid(name(life)).get()), 0xbfff + life);
        }
        assert_eq!(aliases.lid(name(0x4000)), NOBODY);
    }
}
