//! Sizes and policies of a worker.

use core::time::Duration;

use proto::copyrpc::{BATCHES_MAX, FlushPolicy, Geometry, GeometryError, SLOTS_MAX};
use verbs::{Access, AddressVector, CqConfig, NicAttributes, PathClass, RtsAttr};

use crate::{entropy::Entropy, receives::Refill};

/// The transport that carries batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TransportKind {
    /// A queue pair for each peer.
    #[default]
    Rc,
    /// A few initiators and one target for all peers, who trust each other not to announce each other's
    /// batches (rule C1.5).
    Dc,
}

impl TransportKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Dc => "DC",
        }
    }
}

/// The configuration of a worker. Both sides of a connection may differ in everything but the transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The transport that carries batches.
    pub transport: TransportKind,
    /// DC: initiators; peers are spread over them.
    pub dcis: u16,
    /// Peers at a time.
    pub peers_max: u16,
    /// Ring that each peer writes into; a power of two.
    pub ring_bytes: usize,
    /// Largest ring of a peer that this side connects to, for it registers a mirror of it.
    pub peer_ring_bytes_max: usize,
    /// Share of this side's ring that is kept for responses.
    pub response_bytes: usize,
    /// Longest batch; bodies that do not fit it with their heads go by rendezvous.
    pub batch_bytes: usize,
    /// Longest body that comes by rendezvous, from registered memory, below 2 GiB; 0: none does.
    pub large_bytes: u32,
    /// Registered memory for rendezvous, bodies that peers read and bodies of peers that are read, in all. It
    /// is registered in a few regions as it is needed, and given back when nobody used it for a second or
    /// two. A body that is being read has a private copy beside it.
    pub large_memory_total_bytes: usize,
    /// How much of it one caller may use: a peer, or whoever the program [names](crate::Account). No caller
    /// gets more than is left for all others.
    pub large_memory_bytes: usize,
    /// How much of it bodies of calls of one method may use, and their answers.
    pub large_memory_method_bytes: usize,
    /// One-sided accesses in flight, over all peers.
    pub accesses_max: usize,
    /// Calls in flight per peer.
    pub calls_max: u16,
    /// The flush policy. All but `SelfClocked` and `Immediate` are there for research.
    pub flush: FlushPolicy,
    /// A completion is asked for at least every so many batches.
    pub signal_interval: u16,
    /// Batches up to this length go into the work queue entry; 0: none do.
    pub inline_bytes: usize,
    /// One doorbell for all batches that are posted to a queue at a time; otherwise one each.
    pub doorbell_batching: bool,
    /// Whether [`Worker::sleep`](crate::Worker::sleep) is possible. It costs each sender to this
    /// worker a barrier per doorbell.
    pub may_sleep: bool,
    /// RC: one shared receive queue instead of one for each peer.
    pub shared_receives: bool,
    /// Entries of the receive queue, or of each. Each peer is told its share. A queue that peers share
    /// has four for each peer at least, as far as that is possible.
    pub receives: u16,
    /// Requests that each send queue can have outstanding.
    pub sends: u16,
    /// Completions handled per poll.
    pub poll_budget: u16,
    /// Smallest batch that is answered in two halves when the peer waits for it and nothing else is to
    /// be done, so that both sides work at the same time; `u16::MAX`: none is.
    pub halve_from: u16,
    /// Longest time that credit which the peer may need waits for a batch to ride on (rule C3.8).
    pub credit_delay: Duration,
    /// A peer that nothing came from for this long is written to without news (rule C7.7), so that its
    /// connection fails if it is gone; 250 µs at least. `None`: never, for NICs that tell of ports that are
    /// gone, as the software NIC does.
    pub keepalive: Option<Duration>,
    /// Wait for an acknowledgement before a request is sent again.
    pub ack_timeout: Duration,
    /// Times that a request is sent again before its connection fails: 0 to 7. Some NICs take 7 for ever.
    pub retry_count: u8,
    /// Times that a request is sent again after "receiver not ready": 0 to 6, or 7 for ever. The protocol
    /// sends nothing that no receive is posted for (rule C3.6).
    pub rnr_retry: u8,
    /// Service level of what is sent to peers; `None`: as their addresses say.
    pub service_level: Option<u8>,
    /// The same for the traffic class, where there is a global route header.
    pub traffic_class: Option<u8>,
    /// Whether writes of the NIC to rings, bodies and exposed memory may reach it in any order before their completion
    /// is seen. On some processors (AMD EPYC, A64FX) and in virtual machines the fabric is slow without. Workers look at
    /// no byte before its completion, and bear credit that is overtaken.
    pub relaxed_ordering: bool,
    /// The completion vector of this worker's queues, modulo those of the device.
    pub completion_vector: u32,
    /// The source of epochs, packet numbers and keys.
    pub entropy: Entropy,
}

/// A body of 16 KiB, behind its heads and those of the program.
const BATCH_BYTES: usize = (16 << 10) + (1 << 10);

impl Default for Config {
    fn default() -> Self {
        Self {
            transport: TransportKind::Rc,
            dcis: 1,
            peers_max: 64,
            ring_bytes: 1 << 18,
            peer_ring_bytes_max: 1 << 26,
            response_bytes: 1 << 17,
            batch_bytes: BATCH_BYTES,
            large_bytes: 1 << 26,
            large_memory_total_bytes: 1 << 30,
            large_memory_bytes: 1 << 28,
            large_memory_method_bytes: 1 << 29,
            accesses_max: 1024,
            calls_max: 1024,
            flush: FlushPolicy::default(),
            signal_interval: 16,
            inline_bytes: 220,
            doorbell_batching: true,
            may_sleep: true,
            shared_receives: true,
            receives: 1024,
            sends: 64,
            poll_budget: 64,
            halve_from: 8,
            credit_delay: Duration::from_micros(100),
            keepalive: None,
            ack_timeout: RtsAttr::default().ack_timeout,
            service_level: None,
            traffic_class: None,
            retry_count: RtsAttr::default().retry_count,
            rnr_retry: RtsAttr::default().rnr_retry,
            relaxed_ordering: true,
            completion_vector: 0,
            entropy: Entropy::System,
        }
    }
}

/// Why a worker cannot be made like that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The sizes of the ring do not fit each other.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The NIC's largest shared receive queue has less than a receive for each peer.
    #[error(
        "a shared receive queue of this NIC has {entries} entries, which is less than one for each of {peers} peers: \
         lower `peers_max` by more threads, raise `rnr_retry` to 7, or set `shared_receives` to false"
    )]
    Receives {
        /// Entries of the largest queue.
        entries: u16,
        /// Peers that would share it.
        peers: u16,
    },
    /// A peer's place has 15 bits in the immediate data of its batches.
    #[error(
        "a worker has at most {max} peers, not {asked}: let more threads share them (of a daemon: `COPYRPC_THREADS`)"
    )]
    Peers {
        /// Peers of this worker.
        asked: u16,
        /// Most that are possible.
        max: u16,
    },
    /// Less or more than possible.
    #[error("`{what}` is {asked}; {min} to {max} are possible")]
    Range {
        /// The field.
        what: &'static str,
        /// Its value.
        asked: usize,
        /// Smallest value.
        min: usize,
        /// Largest value.
        max: usize,
    },
}

/// [`Config::rnr_retry`] of senders that never give up.
const RNR_RETRY_FOR_EVER: u8 = 7;
/// Entries that a receive queue can have.
const RECEIVES_MAX: u16 = 1 << 15;
/// Longest body that one READ can fetch: a scatter entry stays below 2 GiB.
const LARGE_BYTES_MAX: usize = (1 << 31) - 1;

impl Config {
    /// Gives the way to a peer the service level and the traffic class of the settings.
    pub(crate) fn classify(&self, address: &mut AddressVector) {
        let Self { service_level, traffic_class, .. } = *self;
        PathClass { service_level, traffic_class }.apply(address);
    }

    /// Rights of memory that the NIC moves messages and bodies to and from.
    pub(crate) fn access(&self, rights: Access) -> Access {
        if self.relaxed_ordering { rights | Access::RELAXED_ORDERING } else { rights }
    }

    /// A completion queue on the vector of the settings.
    pub(crate) fn cq(&self, entries: u32) -> CqConfig {
        CqConfig { vector: self.completion_vector, ..CqConfig::new(entries) }
    }

    /// Sizes of the ring.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]: the first value that is impossible.
    pub fn geometry(&self) -> Result<Geometry, ConfigError> {
        let ranges = [
            ("dcis", self.dcis.into(), 1, 256),
            ("peers_max", self.peers_max.into(), 1, usize::from(u16::MAX)),
            ("large_bytes", self.large_bytes as usize, 0, LARGE_BYTES_MAX),
            ("calls_max", self.calls_max.into(), 1, usize::from(u16::MAX) - 1),
            ("receives", self.receives.into(), 1, RECEIVES_MAX.into()),
            ("sends", self.sends.into(), 2, 1 << 13),
            ("signal_interval", self.signal_interval.into(), 1, self.sends.into()),
            ("poll_budget", self.poll_budget.into(), 1, usize::from(u16::MAX)),
            ("retry_count", self.retry_count.into(), 0, 7),
            ("rnr_retry", self.rnr_retry.into(), 0, 7),
        ];
        for (what, asked, min, max) in ranges {
            if !(min..=max).contains(&asked) {
                return Err(ConfigError::Range { what, asked, min, max });
            }
        }
        if self.peers_max > SLOTS_MAX {
            return Err(ConfigError::Peers { asked: self.peers_max, max: SLOTS_MAX });
        }
        Ok(Geometry::new(self.ring_bytes, self.response_bytes, self.batch_bytes)?)
    }

    /// Longest batch that goes into a work queue entry of this NIC.
    pub(crate) fn inline_bytes_max(&self, nic: &verbs::NicAttributes) -> u16 {
        u16::try_from(self.inline_bytes).unwrap_or(u16::MAX).min(nic.inline_bytes_max)
    }

    /// Send queues: RC has one for each peer, DC its initiators.
    pub(crate) fn send_queues(&self) -> u16 {
        match self.transport {
            TransportKind::Rc => self.peers_max,
            TransportKind::Dc => self.dcis,
        }
    }

    /// One receive queue for all peers.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared_receives || self.transport == TransportKind::Dc
    }

    /// Entries of a receive queue on this NIC.
    pub(crate) fn receive_entries(&self, nic: &NicAttributes) -> u16 {
        let (for_each, nic_max) = if self.is_shared() {
            (self.peers_max.saturating_mul(4), nic.srq_entries_max)
        } else {
            (1, nic.requests_max)
        };
        let entries = self.receives.max(for_each.min(RECEIVES_MAX));
        entries.min(u16::try_from(nic_max).unwrap_or(u16::MAX))
    }

    /// Batches that each peer may have sent here and not been told that they were handled (rule
    /// C3.6): its share of the receives of a queue of `entries` that are posted at any time.
    pub(crate) fn batches_max(&self, entries: u16) -> u16 {
        (self.posted(entries) / self.sharers()).clamp(1, BATCHES_MAX)
    }

    /// Receives of a queue of `entries` that are posted at any time.
    fn posted(&self, entries: u16) -> u16 {
        entries - (Refill::threshold(entries) - 1)
    }

    fn sharers(&self) -> u16 {
        if self.is_shared() { self.peers_max } else { 1 }
    }

    /// Refuses a queue with less than a receive for each peer, unless senders that find none try again for ever.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Receives`].
    pub fn check_receives(&self, nic: &NicAttributes) -> Result<(), ConfigError> {
        let entries = self.receive_entries(nic);
        let (posted, peers) = (self.posted(entries), self.sharers());
        if posted >= peers || self.rnr_retry == RNR_RETRY_FOR_EVER {
            return Ok(());
        }
        Err(ConfigError::Receives { entries, peers })
    }

    pub(crate) fn credit_delay_ns(&self) -> u64 {
        u64::try_from(self.credit_delay.as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use verbs::{Gid, GidRoute, Lid, PortRoute};

    use super::*;

    fn nic(srq_entries_max: u32) -> NicAttributes {
        NicAttributes {
            name: String::new(),
            capabilities: verbs::Capabilities::all(),
            cqes_max: 1 << 22,
            requests_max: 1 << 15,
            srq_entries_max,
            srq_sges_max: 1,
            sges_max: 1,
            inline_bytes_max: 220,
            cqe_payload_bytes_max: 0,
            message_bytes_max: 1 << 30,
            reads_max: 16,
        }
    }

    /// Rule C3.6: what all peers together may send never exceeds what is posted.
    #[test]
    fn each_peer_has_its_share_of_the_receives() {
        let large = nic((1 << 15) - 1);
        let share = |config: &Config| config.batches_max(config.receive_entries(&large));
        let shared = Config { receives: 16, peers_max: 4, ..Config::default() };
        assert_eq!(share(&shared), 3, "of 15: two go back together");
        let own = Config { shared_receives: false, ..shared.clone() };
        assert_eq!(share(&own), 15);
        let dc = Config { transport: TransportKind::Dc, ..own };
        assert_eq!(share(&dc), 3);
        assert_eq!(share(&Config { receives: 2, ..shared.clone() }), 3, "four for each");
        for peers_max in [1000, 8192, 20_000] {
            let many = Config { peers_max, ..shared.clone() };
            let posted = u32::from(many.receive_entries(&large)) * 7 / 8;
            assert!(u32::from(share(&many)) * u32::from(peers_max) <= posted, "{peers_max} peers");
        }
        assert_eq!(share(&Config::default()), 14);
    }

    /// A small adapter, or more peers than entries: the queue is as long as it can be.
    #[test]
    fn no_queue_is_longer_than_the_nic_makes_it() {
        let small = nic((1 << 12) - 1);
        let many = Config { peers_max: 2000, ..Config::default() };
        assert_eq!(many.receive_entries(&small), 4095);
        assert_eq!(many.batches_max(4095), 1);
        assert_eq!(many.check_receives(&small), Ok(()));
        let most = Config { peers_max: 1 << 15, ..Config::default() };
        assert_eq!(most.receive_entries(&nic((1 << 15) - 1)), 32_767);
        assert_eq!(most.check_receives(&small), Ok(()), "senders try again for ever");
        let told = Config { rnr_retry: 6, ..most }.check_receives(&small).unwrap_err();
        assert_eq!(told, ConfigError::Receives { entries: 4095, peers: 1 << 15 });
        let own = Config { shared_receives: false, receives: 1 << 15, ..Config::default() };
        assert_eq!(own.receive_entries(&small), 1 << 15, "not shared");
    }

    #[test]
    fn the_way_to_a_peer_has_the_service_level_and_the_traffic_class_that_are_set() {
        let global =
            GidRoute { gid: Gid::default(), hop_limit: 64, traffic_class: 1, flow_label: 2 };
        for route in [PortRoute::Gid(global), PortRoute::Global(Lid::new(7), global)] {
            let mut address = AddressVector { route, service_level: 3 };
            Config::default().classify(&mut address);
            assert_eq!(address, AddressVector { route, service_level: 3 });
            let set =
                Config { service_level: Some(5), traffic_class: Some(106), ..Config::default() };
            set.classify(&mut address);
            assert_eq!(address.service_level, 5);
            let (PortRoute::Gid(route) | PortRoute::Global(_, route)) = address.route else {
                unreachable!()
            };
            assert_eq!(route, GidRoute { traffic_class: 106, ..global });
        }
    }

    #[test]
    fn the_default_is_possible_and_zeros_are_not() {
        assert!(Config::default().geometry().is_ok());
        let none = Config { calls_max: 0, ..Config::default() };
        let error = none.geometry().unwrap_err();
        assert_eq!(error.to_string(), "`calls_max` is 0; 1 to 65534 are possible");
        let beyond = Config { large_bytes: 1 << 31, ..Config::default() };
        let error = beyond.geometry().unwrap_err();
        assert_eq!(error.to_string(), "`large_bytes` is 2147483648; 0 to 2147483647 are possible");
        let peers = Config { peers_max: 65_534, ..Config::default() };
        let error = peers.geometry().unwrap_err().to_string();
        assert!(
            error.contains("at most 32768 peers, not 65534") && error.contains("COPYRPC_THREADS")
        );
        let many = Config { retry_count: 8, ..Config::default() };
        let error = many.geometry().unwrap_err();
        assert_eq!(error.to_string(), "`retry_count` is 8; 0 to 7 are possible");
        let few = Config { sends: 1, signal_interval: 1, ..Config::default() };
        let error = few.geometry().unwrap_err();
        assert_eq!(error.to_string(), "`sends` is 1; 2 to 8192 are possible");
        let odd = Config { ring_bytes: 1000, ..Config::default() };
        assert!(matches!(odd.geometry(), Err(ConfigError::Geometry(_))));
    }
}
