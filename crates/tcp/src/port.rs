//! The port: who the engine of the software NIC asks and tells, and where packets come in and go out.

use core::time::Duration;
use std::{
    net::TcpListener,
    os::fd::{AsFd as _, BorrowedFd},
    sync::{Mutex, OnceLock, PoisonError, TryLockError},
};

use memory::sync::{AtomicU64, Ordering};
use os::{clock, ready_set::ReadySet};
use softnic::{Cause, Timeline, VirtualPort};
use verbs::{AddressVector, Lid, NicAttributes, PortRoute, Qpn};

use crate::{
    PortName, Secret,
    aliases::{Aliases, NOBODY},
    network::{Counts, Network},
    shared::{Ready, Shared},
};

/// How often a thread looks again at what others have left to it.
const ROUNDS_MAX: usize = 16;

/// A port on TCP.
#[derive(Debug)]
pub(crate) struct TcpPort {
    shared: Shared,
    network: Mutex<Network>,
    own: OnceLock<VirtualPort>,
}

impl TcpPort {
    pub(crate) fn new(
        name: PortName,
        key: Secret,
        timeout: Duration,
        listener: TcpListener,
    ) -> std::io::Result<Self> {
        let set = ReadySet::new(&[listener.as_fd()])?;
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let shared = Shared {
            name,
            key,
            aliases: Aliases::new(name),
            ready: Ready::default(),
            set,
            timeout_ns,
            next_ns: AtomicU64::new(0),
        };
        Ok(Self { shared, network: Mutex::new(Network::new(listener)), own: OnceLock::new() })
    }

    /// Names the engine, once it is there.
    pub(crate) fn attach(&self, own: VirtualPort) {
        self.own.get_or_init(|| own);
    }

    pub(crate) fn name(&self) -> PortName {
        self.shared.name
    }

    pub(crate) fn counts(&self) -> Counts {
        self.network.lock().unwrap_or_else(PoisonError::into_inner).counts
    }

    /// Does what there is to do, unless another thread is at it, which then does it. `is_poll`: also reads.
    fn work(&self, mut is_poll: bool) -> bool {
        let Some(own) = self.own.get() else { return false };
        let mut happened = false;
        for _ in 0..ROUNDS_MAX {
            let mut network = match self.network.try_lock() {
                Ok(network) => network,
                // Only a stream can be half done after a panic; it then ends by its timeout.
                Err(TryLockError::Poisoned(network)) => network.into_inner(),
                Err(TryLockError::WouldBlock) => break,
            };
            happened |= network.work(&self.shared, own, is_poll);
            drop(network);
            is_poll = false;
            // Another thread may have left work while this one was inside.
            if self.shared.ready.is_empty() {
                break;
            }
        }
        happened
    }
}

impl Timeline for TcpPort {
    fn now_ns(&self) -> u64 {
        clock::now_ns()
    }

    fn runnable(&self, _: Lid, qp: Qpn, cause: Cause) {
        self.shared.ready.push(qp);
        // The engine itself may report a change of state: the next poll handles it.
        if cause != Cause::Port {
            self.work(false);
        }
    }

    fn idle(&self, _: Lid) -> bool {
        self.work(true)
    }

    fn address(&self) -> Option<AddressVector> {
        Some(AddressVector::new(self.shared.name.route()))
    }

    fn lid_of(&self, route: &PortRoute) -> Option<Lid> {
        Some(PortName::of_route(route).map_or(NOBODY, |name| self.shared.aliases.lid(name)))
    }

    fn instance_of(&self, route: &PortRoute) -> Option<(Lid, u64)> {
        let name = PortName::of_route(route).filter(|name| name.lid != 0)?;
        Some((Lid::new(name.lid), name.instance()))
    }

    fn is_reliable(&self) -> bool {
        true
    }

    fn maps_card(&self) -> bool {
        true
    }

    fn describe(&self, attributes: &mut NicAttributes) {
        let is_alone = self.shared.name.lid == 0;
        attributes.name = if is_alone { "tcp" } else { "hosts" }.into();
    }

    fn poll_timeout(&self) -> Duration {
        if !self.shared.ready.is_empty() {
            return Duration::ZERO;
        }
        let next_ns = self.shared.next_ns.load(Ordering::Relaxed);
        Duration::from_nanos(next_ns.saturating_sub(clock::now_ns()))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.set.as_fd())
    }
}

impl Drop for TcpPort {
    fn drop(&mut self) {
        let network = self.network.get_mut().unwrap_or_else(PoisonError::into_inner);
        network.close(&self.shared.set);
    }
}
