//! A load of production daemons, and the ways in which it begins.

use std::fmt;

use proto::copyrpc::FlushPolicy;
use serde::Serialize;

use crate::world::Time;

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

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Steady {
    /// Daemons.
    pub nodes: u32,
    /// Clients of each.
    pub clients: u32,
    /// Calls in flight of each client.
    pub depth: u16,
    /// The policy by which batches leave.
    pub flush: FlushPolicy,
    /// The way in which clients begin.
    pub begin: Begin,
    /// How long calls are not counted, and then how long they are.
    pub lengths: (Time, Time),
    /// Of all random numbers.
    pub seed: u64,
}
