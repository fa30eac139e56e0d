//! The descriptors of a daemon, and how many of them each purpose may take.

use crate::limits::REGIONS_MAX;

/// Descriptors that a client costs: its socket, its process, its memory twice, and one that it may have sent.
const PER_CLIENT: u64 = 5;

/// Descriptors that a daemon needs for itself.
const OWN: u64 = 64;

/// How the descriptors of a daemon are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorShares {
    /// For the daemon and as many clients as it may have.
    pub needed: u64,
    /// For regions of memory that calls lend, one each.
    pub regions: u64,
}

impl DescriptorShares {
    /// The shares where a process has so many descriptors; `None`: it has no limit. Regions get what clients and daemon
    /// leave, or an eighth where these leave less.
    #[must_use]
    pub fn of(clients_max: u64, limit: Option<u64>) -> Self {
        let needed = OWN + PER_CLIENT * clients_max;
        let left = limit.map_or(u64::MAX, |limit| limit.saturating_sub(needed).max(limit / 8));
        Self { needed, regions: left.min(REGIONS_MAX as u64) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_i5_regions_leave_descriptors_to_clients_and_the_daemon() {
        let of = |limit| DescriptorShares::of(256, limit);
        assert_eq!(of(None), DescriptorShares { needed: 1344, regions: 2048 });
        assert_eq!(of(Some(1 << 20)).regions, 2048);
        assert_eq!(of(Some(2000)).regions, 656);
        assert_eq!(of(Some(1024)).regions, 128, "clients_max is more than it can keep");
        assert_eq!(of(Some(32)).regions, 4);
    }
}
