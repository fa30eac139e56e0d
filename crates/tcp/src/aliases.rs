//! LIDs that stand for ports in this port's packets: the engine knows ports by such numbers.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use verbs::Lid;

use crate::PortName;

/// This port.
pub(crate) const OWN: Lid = Lid::new(1);
/// Nobody: what is sent there is dropped.
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
    table: Mutex<Table>,
}

impl Aliases {
    pub(crate) fn new(own: PortName) -> Self {
        Self { own, table: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Both maps are complete after each change of one of them.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The LID of a port, which keeps it; [`NOBODY`] once all are given away.
    pub(crate) fn lid(&self, name: PortName) -> Lid {
        if name == self.own {
            return OWN;
        }
        let mut table = self.lock();
        if let Some(&lid) = table.lids.get(&name) {
            return lid;
        }
        let next = u16::try_from(table.lids.len() + 2).ok().filter(|&lid| lid < NOBODY.get());
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
        let name = |life| PortName { address: SocketAddrV4::new([127, 0, 0, 1].into(), 9), life };
        let aliases = Aliases::new(name(0));
        assert_eq!(aliases.lid(name(0)), OWN);
        for life in 1..=0xfffd {
            let lid = aliases.lid(name(life));
            assert_eq!(u32::from(lid.get()), life + 1);
            assert_eq!(aliases.name(lid), Some(name(life)));
        }
        assert_eq!(aliases.lid(name(0x1_0000)), NOBODY);
        assert_eq!((aliases.lid(name(5)), aliases.name(NOBODY)), (Lid::new(6), None));
    }
}
