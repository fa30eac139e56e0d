//! What clients of a run do, if it is about one thing.

use std::{fmt, str::FromStr};

use super::fault::FaultKind;

/// Sizes and habits of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ClusterWorkload {
    /// Those that the seed draws.
    #[default]
    Drawn,
    /// Rings of 4 KiB that are full both ways, of calls whose responses may be longer than their requests.
    FullRings,
    /// Daemons and clients that sleep between few calls, half of whose deadlines are short.
    AllSleep,
    /// All clients call rank 0.
    Incast,
    /// All clients call rank 0, one call after the other, without a pause.
    Fair,
    /// The same, but for the first client of each node, which has 32 calls with the longest bodies in flight.
    Greedy,
    /// Services of clients that take requests and never answer; callers have minutes.
    Silent,
    /// Services of clients, whose callers have no deadline that is short.
    Providers,
    /// The same, of the own node: callers are introduced, and call without the daemon.
    Direct,
}

impl ClusterWorkload {
    /// All, with their names.
    pub const ALL: [(Self, &'static str); 9] = [
        (Self::Drawn, "drawn"),
        (Self::FullRings, "full-rings"),
        (Self::AllSleep, "all-sleep"),
        (Self::Incast, "incast"),
        (Self::Fair, "fair"),
        (Self::Greedy, "greedy"),
        (Self::Silent, "silent"),
        (Self::Providers, "providers"),
        (Self::Direct, "direct"),
    ];

    /// Faults that seeds draw.
    pub(super) fn faults(self) -> &'static [FaultKind] {
        if self == Self::Direct { &FaultKind::OF_A_NODE } else { &FaultKind::OF_CLUSTERS }
    }
}

impl fmt::Display for ClusterWorkload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(workload, _)| workload == self);
        f.write_str(name.map_or("", |(_, name)| name))
    }
}

/// A name that is none of [`ClusterWorkload::ALL`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no workload has the name {0:?}: it is one of drawn, full-rings, all-sleep, incast, fair, greedy, silent, \
         providers, direct"
)]
pub struct UnknownWorkload(String);

impl FromStr for ClusterWorkload {
    type Err = UnknownWorkload;

    fn from_str(name: &str) -> Result<Self, UnknownWorkload> {
        let known = Self::ALL.iter().find(|(_, known)| *known == name);
        known.map(|(workload, _)| *workload).ok_or_else(|| UnknownWorkload(name.to_owned()))
    }
}
