use super::{CpuProfile, NicProfile, Profile};
use crate::world::Time;

/// A Connect-IB under FDR InfiniBand with one switch, as *dct-bench* of FaSST measured it (A. Kalia,
/// M. Kaminsky, D. Andersen, OSDI 2016, repository *fasst*, `other/dct-bench`).
///
/// The cache's size is fitted to the rows that [`dct`](crate::scenarios::dct) calls fitted; the other numbers
/// are those of a model in Python that was fitted to all rows. The turns of the program are not fitted: they
/// are the inverse of the single thread's 7.2 M/s, and the 250 ns that explain 4 µs for 16 READs in flight.
pub const CONNECT_IB: Profile = Profile {
    name: "Connect-IB, FDR",
    wire: Time::from_ns(191),
    cpu: CpuProfile { turn: Time::from_ns(139), timed_turn: Time::from_ns(250) },
    nic: NicProfile {
        units: 11,
        issue: Time::from_ns(74),
        complete: Time::from_ns(74),
        respond: Time::from_ns(116),
        connect: Time::from_ns(62),
        disconnect_issue: Time::from_ns(125),
        disconnect_respond: Time::from_ns(62),
        payload_read: Time::from_ns(350),
        doorbell: Time::from_ns(408),
        completion: Time::from_ns(498),
        refetch: Time::from_ns(369),
        reads_max: 16,
        cache_contexts: 1350,
        cache_ways: 4,
        context_miss: Time::from_ns(647),
        varies: true,
        drains: true,
    },
};
