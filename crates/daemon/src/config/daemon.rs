//! The configuration of a daemon: settings in their types, checked against each other.

use core::time::Duration;
use std::path::PathBuf;

use config::{Knob, Setting, Settings};
use rpc::TransportKind;

use crate::{
    Limits, Rights, RightsError,
    config::table::{
        ACK_TIMEOUT, BOOTSTRAP, BOOTSTRAP_TIMEOUT, BULK_BYTES, CALL_TIMEOUT, CALLER_BULK_BYTES,
        CALLER_HELD_BYTES, CALLER_LARGE_MEMORY_BYTES, CLIENTS_MAX, CLIENTS_PER_PROCESS,
        CONTROL_TRAFFIC_CLASS, DCIS, DEAD_AFTER, DEPTH, DRAIN_TIMEOUT, HANDSHAKE_TIMEOUT,
        HEARTBEAT_INTERVAL, HELD_BYTES, LARGE_MEMORY_BYTES, MESSAGE_BYTES_MAX, RELAXED_ORDERING,
        RENDEZVOUS, RIGHTS, RING_BYTES, SAMPLE_EVERY, SERVICE_HELD_BYTES,
        SERVICE_LARGE_MEMORY_BYTES, SERVICE_LEVEL, SERVICES_PER_CLIENT, STALL_TIMEOUT,
        SUSPECT_AFTER, THREADS, TRAFFIC_CLASS, TRANSPORT, TURN_BUDGET, WAIT,
    },
};

/// The way in which daemons find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// There is one.
    Alone,
    /// They meet at `HOST:PORT`, where rank 0 listens.
    Tcp(String),
    /// The same, and nothing is kept for a rank 0 that is restarted: the address is that of one launch.
    Once(String),
    /// They meet at `HOST:PORT`, where another process listens, such as the parent of all ranks.
    Join(String),
    /// They meet in a folder that all nodes share.
    File(PathBuf),
}

/// The waiting mode of an idle daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitPolicy {
    /// Threads poll and never sleep.
    Busy,
    /// Poll for a while, then sleep.
    Adaptive,
    /// Threads sleep when there is nothing to do, until an event.
    Block,
}

/// Settings of a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonConfig {
    /// The way in which daemons find each other.
    pub start: Start,
    /// The longest bootstrap.
    pub bootstrap_timeout: Duration,
    /// The longest time in which a new connection must prove that it belongs to the job.
    pub handshake_timeout: Duration,
    /// Threads that share clients and peers.
    pub threads: u16,
    /// The transport of calls to other nodes.
    pub transport: TransportKind,
    /// Initiators of each thread, with DC.
    pub dcis: u16,
    /// Wait for an acknowledgement of another node before the NIC sends again.
    pub ack_timeout: Duration,
    /// Whether writes of the NIC to rings and bodies may overtake each other on PCIe.
    pub relaxed_ordering: bool,
    /// Ring that each other node writes into; a power of two.
    pub ring_bytes: usize,
    /// Service level of calls to other nodes.
    pub service_level: u8,
    /// Their traffic class.
    pub traffic_class: u8,
    /// Traffic class of the datagrams by which daemons watch each other.
    pub control_traffic_class: u8,
    /// Most clients at a time.
    pub clients_max: u16,
    /// Most clients of one process at a time.
    pub clients_per_process: u16,
    /// Limits on what the daemon keeps for clients and services.
    pub limits: Limits,
    /// Rules that say who may offer and call which services.
    pub rights: Rights,
    /// Most calls in flight per client, a power of two.
    pub depth: u16,
    /// Longest request and longest response.
    pub message_bytes_max: u32,
    /// Most requests taken of one client in one turn.
    pub turn_budget: u32,
    /// The longest time for which a client may leave its answers unread.
    pub stall_timeout: Duration,
    /// The waiting mode of an idle daemon.
    pub wait: WaitPolicy,
    /// The deadline of a call that names none.
    pub call_timeout: Duration,
    /// Time between two heartbeats.
    pub heartbeat_interval: Duration,
    /// Silence after which a peer is suspected.
    pub suspect_after: Duration,
    /// Silence after which a peer is gone.
    pub dead_after: Duration,
    /// The longest time for calls in flight after SIGTERM.
    pub drain_timeout: Duration,
    /// One in so many turns of the loop is timed; 0: none.
    pub sample_every: u32,
}

/// Settings that are right by themselves, but not together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Incompatible {
    /// One setting must be several times another.
    #[error("{long} must be at least {factor} times {short}: {reason}")]
    TooShort {
        /// The setting that is too short.
        long: Box<Setting>,
        /// The smallest ratio of the two.
        factor: u64,
        /// The other.
        short: Box<Setting>,
        /// The reason, as a phrase.
        reason: &'static str,
    },
    /// A number that must be a power of two.
    #[error("{0} is not a power of two")]
    NotAPowerOfTwo(Box<Setting>),
    /// The place to meet is none.
    #[error("rendezvous = {place} {why}")]
    BadRendezvous {
        /// The rendezvous that is set.
        place: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Nobody knows who may do what.
    #[error(transparent)]
    Rights(#[from] RightsError),
    /// There is no place to meet.
    #[error("bootstrap = {method} needs rendezvous; set COPYRPC_RENDEZVOUS to {example}")]
    NoRendezvous {
        /// The method.
        method: String,
        /// An example of a valid value.
        example: &'static str,
    },
}

/// Pairs `(long, factor, short, reason)`: the first must be at least so many times the second.
const LONGER: [(Knob, u64, Knob, &str); 7] = [
    (SUSPECT_AFTER, 4, HEARTBEAT_INTERVAL, "one lost heartbeat each way is no suspicion"),
    (DEAD_AFTER, 2, SUSPECT_AFTER, "a suspected peer needs time to recover"),
    (CALL_TIMEOUT, 1, DEAD_AFTER, "a call to a dead peer should end with `unavailable`"),
    (BOOTSTRAP_TIMEOUT, 1, HANDSHAKE_TIMEOUT, "bootstrap is made of handshakes"),
    (LARGE_MEMORY_BYTES, 4, MESSAGE_BYTES_MAX, TWO_MESSAGES),
    (CALLER_LARGE_MEMORY_BYTES, 4, MESSAGE_BYTES_MAX, TWO_MESSAGES),
    (SERVICE_LARGE_MEMORY_BYTES, 4, MESSAGE_BYTES_MAX, TWO_MESSAGES),
];

const TWO_MESSAGES: &str = "it holds a request and an answer, each in up to twice its length";

/// What a daemon needs of a memory limit, whoever its clients are.
const OWN_BYTES: u64 = 24 << 20;

impl DaemonConfig {
    /// Bytes of shared memory that an ordinary client makes the daemon's control group pay for.
    #[must_use]
    pub fn client_bytes(&self) -> u64 {
        let message_bytes = u64::from(client::message::message_bytes_max(self.message_bytes_max));
        // Two rings with a slot and an eager body for each call. Pages of a large body are allocated when it is
        // written; those of a request are charged to its client. So one large answer is counted.
        let eager_bytes = message_bytes.min(ipc::EAGER_BYTES_MAX as u64);
        2 * u64::from(self.depth) * (eager_bytes + 64) + message_bytes + (16 << 10)
    }

    /// Address space of a client, whose rings have room for the longest message in each place.
    #[must_use]
    pub fn client_address_bytes(&self) -> u64 {
        /// Of a place: its slot, and what fills its last page.
        const PLACE_BYTES: u64 = 8 << 10;
        let message_bytes = u64::from(client::message::message_bytes_max(self.message_bytes_max));
        2 * u64::from(self.depth) * (message_bytes.next_multiple_of(4096) + PLACE_BYTES)
    }

    /// Most clients whose memory fits into a limit, beside what the daemon holds for those that wait.
    #[must_use]
    pub fn clients_that_fit(&self, limit_bytes: Option<u64>) -> u16 {
        let Some(limit_bytes) = limit_bytes else { return self.clients_max };
        let held_bytes = (self.limits.held_bytes as u64).min(limit_bytes / 4);
        let large_bytes = self.large_memory_that_fits(Some(limit_bytes)) as u64;
        let left = limit_bytes.saturating_sub(OWN_BYTES + held_bytes + large_bytes);
        let fitting = (left / self.client_bytes()).max(1);
        self.clients_max.min(u16::try_from(fitting).unwrap_or(u16::MAX))
    }

    /// Most memory for bodies that go by rendezvous, of all threads: an eighth of a limit, but what four of the
    /// longest messages take for each thread.
    #[must_use]
    pub fn large_memory_that_fits(&self, limit_bytes: Option<u64>) -> usize {
        let least_bytes = 4 * self.message_bytes_max as usize * usize::from(self.threads);
        let part_bytes = limit_bytes.map_or(u64::MAX, |limit_bytes| limit_bytes / 8);
        let part_bytes = usize::try_from(part_bytes).unwrap_or(usize::MAX);
        self.limits.large_memory_bytes.min(part_bytes).max(least_bytes)
    }

    /// Settings in their types.
    ///
    /// # Errors
    ///
    /// [`Incompatible`]: the first contradiction.
    pub fn from_settings(settings: &Settings) -> Result<Self, Incompatible> {
        check_together(settings)?;
        let duration = |knob| Duration::from_nanos(settings.number(knob));
        Ok(Self {
            start: start(settings)?,
            bootstrap_timeout: duration(&BOOTSTRAP_TIMEOUT),
            handshake_timeout: duration(&HANDSHAKE_TIMEOUT),
            threads: narrow(settings, &THREADS),
            transport: match settings.text(&TRANSPORT) {
                "dc" => TransportKind::Dc,
                _ => TransportKind::Rc,
            },
            dcis: narrow(settings, &DCIS),
            ack_timeout: duration(&ACK_TIMEOUT),
            relaxed_ordering: settings.text(&RELAXED_ORDERING) == "on",
            ring_bytes: narrow(settings, &RING_BYTES),
            service_level: narrow(settings, &SERVICE_LEVEL),
            traffic_class: narrow(settings, &TRAFFIC_CLASS),
            control_traffic_class: narrow(settings, &CONTROL_TRAFFIC_CLASS),
            clients_max: narrow(settings, &CLIENTS_MAX),
            clients_per_process: clients_per_process(settings),
            limits: Limits {
                held_bytes: narrow(settings, &HELD_BYTES),
                caller_held_bytes: narrow(settings, &CALLER_HELD_BYTES),
                service_held_bytes: narrow(settings, &SERVICE_HELD_BYTES),
                services_per_client: narrow(settings, &SERVICES_PER_CLIENT),
                large_memory_bytes: narrow(settings, &LARGE_MEMORY_BYTES),
                caller_large_memory_bytes: narrow(settings, &CALLER_LARGE_MEMORY_BYTES),
                service_large_memory_bytes: narrow(settings, &SERVICE_LARGE_MEMORY_BYTES),
                bulk_bytes: settings.number(&BULK_BYTES),
                caller_bulk_bytes: settings.number(&CALLER_BULK_BYTES),
                ..Limits::default()
            },
            rights: Rights::parse(settings.text(&RIGHTS))?,
            depth: narrow(settings, &DEPTH),
            message_bytes_max: narrow(settings, &MESSAGE_BYTES_MAX),
            turn_budget: narrow(settings, &TURN_BUDGET),
            stall_timeout: duration(&STALL_TIMEOUT),
            wait: match settings.text(&WAIT) {
                "busy" => WaitPolicy::Busy,
                "block" => WaitPolicy::Block,
                _ => WaitPolicy::Adaptive,
            },
            call_timeout: duration(&CALL_TIMEOUT),
            heartbeat_interval: duration(&HEARTBEAT_INTERVAL),
            suspect_after: duration(&SUSPECT_AFTER),
            dead_after: duration(&DEAD_AFTER),
            drain_timeout: duration(&DRAIN_TIMEOUT),
            sample_every: narrow(settings, &SAMPLE_EVERY),
        })
    }
}

/// A number whose knob's bounds fit the type.
fn narrow<T: TryFrom<u64>>(settings: &Settings, knob: &Knob) -> T {
    match T::try_from(settings.number(knob)) {
        Ok(number) => number,
        Err(_) => unreachable!("the bounds of {} fit", knob.env),
    }
}

/// As set, or a quarter of all places.
fn clients_per_process(settings: &Settings) -> u16 {
    let quarter = settings.number(&CLIENTS_MAX).div_ceil(4);
    let asked = settings.number_if_set(&CLIENTS_PER_PROCESS).unwrap_or(quarter);
    u16::try_from(asked).unwrap_or(u16::MAX)
}

fn check_together(settings: &Settings) -> Result<(), Incompatible> {
    for (long, factor, short, reason) in &LONGER {
        if settings.number(long) < settings.number(short).saturating_mul(*factor) {
            return Err(Incompatible::TooShort {
                long: Box::new(settings.of(long).clone()),
                factor: *factor,
                short: Box::new(settings.of(short).clone()),
                reason,
            });
        }
    }
    let even = |knob: &&Knob| settings.number(knob).is_power_of_two();
    match [&DEPTH, &RING_BYTES].into_iter().find(|knob| !even(knob)) {
        Some(knob) => Err(Incompatible::NotAPowerOfTwo(Box::new(settings.of(knob).clone()))),
        None => Ok(()),
    }
}

fn start(settings: &Settings) -> Result<Start, Incompatible> {
    let place = settings.text(&RENDEZVOUS);
    let method = match settings.text(&BOOTSTRAP) {
        "auto" if place.is_empty() => "alone",
        // A folder has a slash; HOST:PORT has none.
        "auto" if place.contains('/') => "file",
        "auto" => "tcp",
        method => method,
    };
    let example = match method {
        // With `pmi` the place comes from the launcher.
        "alone" | "pmi" => return Ok(Start::Alone),
        "tcp" if !place.is_empty() => return address(place).map(Start::Tcp),
        "join" if !place.is_empty() => return address(place).map(Start::Join),
        "file" if !place.is_empty() => return Ok(Start::File(place.into())),
        "tcp" | "join" => "the HOST:PORT of the listening rank",
        _ => "a folder that all nodes share",
    };
    Err(Incompatible::NoRendezvous { method: method.to_owned(), example })
}

/// `HOST:PORT`, if it can be that.
fn address(place: &str) -> Result<String, Incompatible> {
    let why = match place.rsplit_once(':') {
        None => "is no HOST:PORT; a folder that all share is written with a slash, such as ./meet",
        Some(("", _)) => "has no host before its port",
        // Port 0 is any free port, which no other rank could know.
        Some((_, port)) if port.parse().map_or(true, |port: u16| port == 0) => {
            "has no port from 1 to 65535"
        }
        Some(_) => return Ok(place.to_owned()),
    };
    Err(Incompatible::BadRendezvous { place: place.to_owned(), why })
}

#[cfg(test)]
mod tests {
    use config::Layers;

    use super::*;
    use crate::config::KNOBS;

    fn daemon(flags: &[(&str, &str)]) -> Result<DaemonConfig, Incompatible> {
        let layers = flags.iter().fold(Layers::new(KNOBS.to_vec()), |layers, (key, text)| {
            layers.flag(key, text).unwrap()
        });
        DaemonConfig::from_settings(&layers.finish())
    }

    #[test]
    fn the_defaults_agree_with_each_other() {
        let config = daemon(&[]).unwrap();
        assert_eq!((config.start, config.wait), (Start::Alone, WaitPolicy::Adaptive));
        assert_eq!((config.threads, config.transport), (1, TransportKind::Rc));
        assert_eq!(config.call_timeout, Duration::from_secs(5));
    }

    #[test]
    fn timeouts_that_contradict_each_other_are_refused_with_both_origins() {
        let error = daemon(&[("dead-after", "1500ms")]).unwrap_err().to_string();
        assert_eq!(
            error,
            "dead_after = 1500ms (--dead-after) must be at least 2 times suspect_after = 1s \
             (default): a suspected peer needs time to recover"
        );
        for (key, text) in
            [("call-timeout", "2s"), ("suspect-after", "700ms"), ("handshake-timeout", "60s")]
        {
            let refused = daemon(&[(key, text), ("bootstrap-timeout", "59s")]);
            assert!(matches!(refused, Err(Incompatible::TooShort { .. })), "{key}");
        }
        for uneven in [("depth", "48"), ("ring-bytes", "48KiB")] {
            let refused = daemon(&[uneven]);
            assert!(matches!(refused, Err(Incompatible::NotAPowerOfTwo(_))), "{refused:?}");
        }
    }

    #[test]
    fn the_place_of_the_rendezvous_tells_the_method() {
        let start = |flags: &[(&str, &str)]| daemon(flags).map(|config| config.start);
        assert_eq!(start(&[("rendezvous", "n0:7000")]), Ok(Start::Tcp("n0:7000".into())));
        assert_eq!(start(&[("rendezvous", "./meet")]), Ok(Start::File("./meet".into())));
        assert_eq!(start(&[("bootstrap", "alone"), ("rendezvous", "x:1")]), Ok(Start::Alone));
        assert!(matches!(start(&[("bootstrap", "tcp")]), Err(Incompatible::NoRendezvous { .. })));
        for (place, cause) in [
            ("n0:99999", "rendezvous = n0:99999 has no port from 1 to 65535"),
            ("n0:0", "rendezvous = n0:0 has no port from 1 to 65535"),
            ("n0:x", "rendezvous = n0:x has no port from 1 to 65535"),
            (":7000", "rendezvous = :7000 has no host before its port"),
            (
                "meet",
                "rendezvous = meet is no HOST:PORT; a folder that all share is written with a slash, such as \
                 ./meet",
            ),
        ] {
            assert_eq!(start(&[("rendezvous", place)]).unwrap_err().to_string(), cause);
        }
    }
}
