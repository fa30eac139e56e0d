//! The configuration of a server.

use core::time::Duration;

use os::idle::Wait;

use crate::endpoint::{
    half::{BadShape, HalfShape},
    handshake::CLIENTS_MAX,
};

/// The configuration of a server.
#[derive(Clone, Copy, Debug)]
pub struct ServerConfig {
    /// Most calls in flight per client, a power of two up to 4096.
    pub depth: u16,
    /// Longest request, up to 16 MiB - 1. Up to 56 bytes travel in one cache line. Memory for up to 4160 is
    /// there from the start, for a longer one when the client makes it.
    pub request_bytes_max: u32,
    /// Longest response, up to 16 MiB - 1. As for requests.
    pub response_bytes_max: u32,
    /// Most clients at a time, up to 4096.
    pub clients_max: u16,
    /// Most clients of one user at a time.
    pub clients_per_user_max: u16,
    /// Most clients of one process at a time.
    pub clients_per_process_max: u16,
    /// Most requests taken of one client before the others have their turn.
    pub turn_budget: u32,
    /// The longest time for which a client may leave its responses unread once all its calls are answered. Then it is
    /// evicted: it is stopped, or does not poll. `Duration::MAX`: for ever.
    pub stall_timeout: Duration,
    /// Whether a client may send a descriptor, one at a time, which
    /// [`Server::take_descriptor`](crate::Server::take_descriptor) hands out. One that comes otherwise evicts
    /// its client.
    pub takes_descriptors: bool,
    /// The waiting mode while there is no request.
    pub wait: Wait,
    /// The first position of rings: near a wrap in tests.
    #[doc(hidden)]
    pub first_position: u64,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            depth: 64,
            request_bytes_max: 4096,
            response_bytes_max: 4096,
            clients_max: 256,
            clients_per_user_max: 256,
            clients_per_process_max: 256,
            turn_budget: 32,
            stall_timeout: Duration::from_secs(30),
            takes_descriptors: false,
            wait: Wait::default(),
            first_position: 0,
        }
    }
}

/// A configuration that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Only powers of two can be indexed by masking.
    #[error("a depth of {depth} is not a power of two")]
    Depth {
        /// As configured.
        depth: u16,
    },
    /// Messages or rings are too large.
    #[error(transparent)]
    Shape(#[from] BadShape),
    /// No clients, or too many.
    #[error("{clients} clients are not between 1 and {CLIENTS_MAX}")]
    Clients {
        /// As configured.
        clients: u16,
    },
    /// No request would ever be taken.
    #[error("a turn budget of zero serves no client")]
    Budget,
}

impl ServerConfig {
    /// Checks that the configuration can be.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        self.shapes().map(drop)
    }

    /// Shapes of the up and the down half of each client.
    pub(crate) fn shapes(&self) -> Result<(HalfShape, HalfShape), ConfigError> {
        if !self.depth.is_power_of_two() {
            return Err(ConfigError::Depth { depth: self.depth });
        }
        if self.clients_max == 0 || self.clients_max > CLIENTS_MAX {
            return Err(ConfigError::Clients { clients: self.clients_max });
        }
        if self.turn_budget == 0 {
            return Err(ConfigError::Budget);
        }
        let depth_log2 = self.depth.ilog2();
        let up = HalfShape::new(depth_log2, self.request_bytes_max)?;
        Ok((up, HalfShape::new(depth_log2, self.response_bytes_max)?))
    }
}
