//! What a daemon needs of a limit of address space (`ulimit -v`).

use std::fs;

use bootstrap::RankInfo;
use rustix::process::{Resource, getrlimit};

use crate::config::DaemonConfig;

/// What is needed besides clients and peers: stacks, the heap, and what libraries map.
const OTHER_BYTES: u64 = 8 << 20;

/// Rings of a peer that are mapped: that which it writes, the mirror of its own, and its own.
const RINGS: u64 = 3;

/// The address space that a daemon needs so that it can let a client in and reach all other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressSpaceNeed {
    /// Other nodes.
    pub peers: u64,
    /// Bytes for each of the other nodes.
    pub peer_bytes: u64,
    /// Bytes for clients and for everything that does not grow with the number of nodes.
    pub own_bytes: u64,
}

/// The limit of address space leaves too little.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no memory to {purpose}: {limit_bytes} B of address space may be used, {used_bytes} B are, and {need_bytes} B \
     are needed besides, {peer_bytes} B for each other node; raise `ulimit -v` (systemd: LimitAS), or lower \
     COPYRPC_DEPTH, COPYRPC_MESSAGE_BYTES_MAX, COPYRPC_SOFT_CARD_MIB or COPYRPC_RING_BYTES"
)]
pub struct AddressSpaceError {
    /// What it is needed for.
    pub purpose: &'static str,
    /// The limit.
    pub limit_bytes: u64,
    /// Mapped now.
    pub used_bytes: u64,
    /// What the process needs besides.
    pub need_bytes: u64,
    /// The part of it that is for each other node, in bytes.
    pub peer_bytes: u64,
}

impl AddressSpaceNeed {
    /// Of a daemon, where the NIC maps so much of each port that it reaches.
    #[must_use]
    pub fn of(config: &DaemonConfig, rank_info: RankInfo, peer_mapping_bytes: u64) -> Self {
        Self {
            peers: u64::from(rank_info.size()).saturating_sub(1),
            peer_bytes: peer_mapping_bytes + RINGS * config.ring_bytes as u64,
            own_bytes: OTHER_BYTES + config.client_address_bytes(),
        }
    }

    /// All of it.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.peers.saturating_mul(self.peer_bytes).saturating_add(self.own_bytes)
    }

    /// Whether this process, whose NIC is open, may have it.
    ///
    /// # Errors
    ///
    /// [`AddressSpaceError`].
    pub fn check(&self) -> Result<(), AddressSpaceError> {
        self.check_besides(0)
    }

    /// As [`check`](Self::check), with so many bytes for a NIC that is not open.
    ///
    /// # Errors
    ///
    /// [`AddressSpaceError`].
    pub fn check_besides(&self, nic_bytes: u64) -> Result<(), AddressSpaceError> {
        match (limit_bytes(), used_bytes()) {
            (Some(limit_bytes), Some(used_bytes)) => {
                self.check_within(limit_bytes, used_bytes.saturating_add(nic_bytes))
            }
            _ => Ok(()),
        }
    }

    fn check_within(&self, limit_bytes: u64, used_bytes: u64) -> Result<(), AddressSpaceError> {
        let (need_bytes, peer_bytes) = (self.bytes(), self.peer_bytes);
        if used_bytes.saturating_add(need_bytes) > limit_bytes {
            let purpose = match self.peers {
                0 => "let a client in",
                _ => "reach other nodes and let a client in",
            };
            return Err(AddressSpaceError {
                purpose,
                limit_bytes,
                used_bytes,
                need_bytes,
                peer_bytes,
            });
        }
        Ok(())
    }
}

/// The limit of this process; `None`: there is none.
fn limit_bytes() -> Option<u64> {
    getrlimit(Resource::As).current
}

/// Address space that this process uses; `None` if that cannot be read.
fn used_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_i8_a_limit_is_refused_with_all_numbers_where_a_peer_does_not_fit() {
        let need = AddressSpaceNeed { peers: 2, peer_bytes: 100, own_bytes: 10 };
        assert_eq!(need.check_within(1210, 1000), Ok(()));
        let error = need.check_within(1209, 1000).unwrap_err();
        let text = error.to_string();
        for part in ["1209 B", "1000 B", "210 B", "100 B for each other node", "ulimit -v"] {
            assert!(text.contains(part), "{text}");
        }
        let alone = AddressSpaceNeed { peers: 0, peer_bytes: 100, own_bytes: 10 };
        let error = alone.check_within(1009, 1000).unwrap_err().to_string();
        assert!(error.starts_with("no memory to let a client in: 1009 B"), "{error}");
        assert!(used_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }
}
