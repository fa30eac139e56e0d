//! What clients of a run do, if it is about one thing.

use std::{fmt, str::FromStr};

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
}

impl ClusterWorkload {
    /// All, with their names.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Drawn, "drawn"),
        (Self::FullRings, "full-rings"),
        (Self::AllSleep, "all-sleep"),
        (Self::Incast, "incast"),
    ];
}

impl fmt::Display for ClusterWorkload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(workload, _)| workload == self);
        f.write_str(name.map_or("", |(_, name)| name))
    }
}

/// A name that is none of [`ClusterWorkload::ALL`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no workload has the name {0:?}: it is one of drawn, full-rings, all-sleep, incast")]
pub struct UnknownWorkload(String);

impl FromStr for ClusterWorkload {
    type Err = UnknownWorkload;

    fn from_str(name: &str) -> Result<Self, UnknownWorkload> {
        let known = Self::ALL.iter().find(|(_, known)| *known == name);
        known.map(|(workload, _)| *workload).ok_or_else(|| UnknownWorkload(name.to_owned()))
    }
}
