//! The settings of a server and of a client.

use core::time::Duration;

use proto::scalerpc::{HEADER_BYTES, SLOTS_MAX, server};
use verbs::PathClass;

/// How a server notices requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Detection {
    /// By the completion that a WRITE with immediate data makes: a poll costs the same however many slots
    /// there are.
    #[default]
    Immediate,
    /// As the paper has it: it looks at the end of every block of every client whose turn it is. For
    /// comparison.
    Polling,
}

/// Settings of a [`Server`](crate::scalerpc::Server).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// Clients of a group.
    pub group: u16,
    /// Turn of a group.
    pub slice: Duration,
    /// Calls that a client can have in flight: 1 to 64.
    pub slots: u8,
    /// Bytes of a block: the longest message and 16.
    pub block_bytes: u32,
    /// Clients at a time.
    pub clients_max: u16,
    /// Time in which a client leaves its zone.
    pub ack_timeout: Duration,
    /// Rotations after which clients are grouped by priority; 0: never.
    pub regroup_rotations: u32,
    /// How requests are noticed.
    pub detection: Detection,
    /// Completions taken per poll.
    pub burst: u32,
    /// Service level and traffic class of requests.
    pub class: PathClass,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            group: 40,
            slice: Duration::from_micros(100),
            slots: 8,
            block_bytes: 4096,
            clients_max: 512,
            ack_timeout: Duration::from_secs(1),
            regroup_rotations: 100,
            detection: Detection::Immediate,
            burst: 64,
            class: PathClass::default(),
        }
    }
}

/// Settings that are not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is {value}, possible are {min} to {max}")]
pub struct ConfigError {
    /// Of the setting.
    pub name: &'static str,
    /// As set.
    pub value: u64,
    /// Smallest.
    pub min: u64,
    /// Largest.
    pub max: u64,
}

fn range(name: &'static str, value: u64, min: u64, max: u64) -> Result<(), ConfigError> {
    match (min..=max).contains(&value) {
        true => Ok(()),
        false => Err(ConfigError { name, value, min, max }),
    }
}

impl ServerConfig {
    /// Sizes and times of the core.
    pub(crate) fn core(&self) -> Result<server::ServerConfig, ConfigError> {
        range("group", self.group.into(), 1, 1 << 14)?;
        range("slots", self.slots.into(), 1, SLOTS_MAX.into())?;
        range("clients_max", self.clients_max.into(), 1, 1 << 14)?;
        range("burst", self.burst.into(), 1, 1 << 16)?;
        let block_min = HEADER_BYTES as u64 + 8;
        range("block_bytes", self.block_bytes.into(), block_min, 1 << 26)?;
        Ok(server::ServerConfig {
            group: self.group,
            slice_ns: ns(self.slice).max(1),
            slots: self.slots,
            clients_max: self.clients_max,
            ack_timeout_ns: ns(self.ack_timeout),
            regroup_rotations: self.regroup_rotations,
        })
    }
}

/// Settings of a [`Client`](crate::scalerpc::Client). The rest the server decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// Most slots that it uses of those that the server has for it.
    pub slots_max: u8,
    /// Longest block that it accepts.
    pub block_bytes_max: u32,
    /// Service level and traffic class of requests.
    pub class: PathClass,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self { slots_max: SLOTS_MAX, block_bytes_max: 1 << 26, class: PathClass::default() }
    }
}

/// As in settings, in ns.
pub(crate) fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
