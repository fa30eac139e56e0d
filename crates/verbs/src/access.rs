//! Access rights of a memory region.

use crate::Capabilities;

bitflags::bitflags! {
    /// Access rights of a memory region, or the remote rights of a queue pair.
    ///
    /// The bits are those of `enum ibv_access_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The NIC may write here for its owner: receives, READ results, atomic results.
        const LOCAL_WRITE = 1;
        /// Peers may WRITE here. Needs `LOCAL_WRITE`.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may READ from here.
        const REMOTE_READ = 1 << 2;
        /// Peers may run atomics here. Needs `LOCAL_WRITE`.
        const REMOTE_ATOMIC = 1 << 3;
        /// Writes may become visible in any order until their completion is seen: less work for
        /// the PCIe fabric, and no polling on the last byte.
        const RELAXED_ORDERING = 1 << 20;
    }
}

impl Access {
    /// Those that queue pairs of a NIC with these capabilities can grant: a kernel refuses rights to atomics that the
    /// device has not, and relaxed ordering is a matter of memory.
    #[must_use]
    pub fn of_queue_pairs(self, capabilities: Capabilities) -> Self {
        let has_atomics = capabilities.contains(Capabilities::ATOMICS);
        let lacking = if has_atomics { Self::empty() } else { Self::REMOTE_ATOMIC };
        self - Self::RELAXED_ORDERING - lacking
    }

    /// Whether the combination is one that the specification allows.
    ///
    /// IBTA 10.6.3.1: remote write and remote atomic access imply local write access.
    #[must_use]
    pub fn is_consistent(self) -> bool {
        !self.intersects(Self::REMOTE_WRITE | Self::REMOTE_ATOMIC)
            || self.contains(Self::LOCAL_WRITE)
    }
}
