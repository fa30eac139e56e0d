//! Adapters that the NIC can play: what they can do, and what they demand.

use verbs::Capabilities;

/// The adapter that the NIC plays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AdapterProfile {
    /// A ConnectX on a network that keeps the order of packets.
    #[default]
    ConnectX,
    /// A virtual function: short queues, no atomics, and on InfiniBand a global route header in each packet.
    VirtualFunction,
    /// A ConnectX on a network that routes each packet by itself: WRITEs of a queue pair that are not acknowledged are
    /// placed in any order, and complete in theirs.
    AdaptiveRouting,
}

/// Sizes of queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) cqes_max: u32,
    pub(crate) requests_max: u32,
    pub(crate) srq_entries_max: u32,
    pub(crate) sges_max: u8,
    pub(crate) reads_max: u8,
}

impl AdapterProfile {
    /// All of them, by their names.
    pub const ALL: [(&'static str, Self); 3] = [
        ("connectx", Self::ConnectX),
        ("vf", Self::VirtualFunction),
        ("adaptive-routing", Self::AdaptiveRouting),
    ];

    /// The profile of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, profile)| profile)
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(_, known)| *known == self).map_or("", |(name, _)| name)
    }

    /// Whether InfiniBand packets without a global route header are lost (`IBV_QPF_GRH_REQUIRED`).
    #[must_use]
    pub fn needs_grh(self) -> bool {
        self == Self::VirtualFunction
    }

    pub(crate) fn is_unordered(self) -> bool {
        self == Self::AdaptiveRouting
    }

    pub(crate) fn absent(self) -> Capabilities {
        match self {
            Self::ConnectX => Capabilities::empty(),
            Self::VirtualFunction => Capabilities::ATOMICS,
            Self::AdaptiveRouting => Capabilities::ORDERED_PLACEMENT,
        }
    }

    pub(crate) fn sizes(self) -> Sizes {
        match self {
            Self::ConnectX | Self::AdaptiveRouting => Sizes {
                cqes_max: 1 << 22,
                requests_max: 1 << 15,
                srq_entries_max: (1 << 15) - 1,
                sges_max: 30,
                reads_max: 16,
            },
            Self::VirtualFunction => Sizes {
                cqes_max: 1 << 16,
                requests_max: 1 << 12,
                srq_entries_max: (1 << 12) - 1,
                sges_max: 16,
                reads_max: 4,
            },
        }
    }
}
