//! A load of production daemons, and the ways in which it begins.

use std::{fmt, str::FromStr};

use proto::copyrpc::FlushPolicy;
use serde::Serialize;

use crate::{machine::DelegationProfile, world::Time};

/// How a load begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Begin {
    /// Clients begin one after the other, in the first half of the warm-up.
    Cold,
    /// All at once.
    Burst,
    /// All at once; in the middle of the warm-up a daemon stands still for a tenth of it.
    Perturbed,
}

impl Begin {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Cold, Self::Burst, Self::Perturbed];
}

impl fmt::Display for Begin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cold => "cold",
            Self::Burst => "burst",
            Self::Perturbed => "perturbed",
        })
    }
}

/// How daemons are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Connected {
    /// A queue pair for each peer.
    Rc,
    /// This many initiators for all peers.
    Dc(u16),
}

impl fmt::Display for Connected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rc => f.write_str("rc"),
            Self::Dc(initiators) => write!(f, "dc:{initiators}"),
        }
    }
}

/// Text that is no transport.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no transport: `rc`, or `dc:N` with 1 to 64 initiators")]
pub struct UnknownTransport(String);

impl FromStr for Connected {
    type Err = UnknownTransport;

    fn from_str(text: &str) -> Result<Self, UnknownTransport> {
        let initiators = text.strip_prefix("dc:").and_then(|count| count.parse().ok());
        match initiators.filter(|count| (1..=64).contains(count)) {
            Some(initiators) => Ok(Self::Dc(initiators)),
            None if text == "rc" => Ok(Self::Rc),
            None => Err(UnknownTransport(text.to_owned())),
        }
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Steady {
    /// Daemons.
    pub nodes: u32,
    /// Threads of each daemon.
    pub threads: u32,
    /// Clients of each daemon.
    pub clients: u32,
    /// Calls in flight of each client.
    pub depth: u16,
    /// The policy by which batches leave.
    pub flush: FlushPolicy,
    /// How daemons are connected.
    pub transport: Connected,
    /// Whose times CPU and NIC have.
    pub machine: DelegationProfile,
    /// The way in which clients begin.
    pub begin: Begin,
    /// How long calls are not counted, and then how long they are.
    pub lengths: (Time, Time),
    /// Of all random numbers.
    pub seed: u64,
}
