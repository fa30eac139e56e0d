//! What a daemon is started with: settings in their types, checked against each other.

use core::time::Duration;
use std::path::PathBuf;

use rpc::TransportKind;

use crate::config::{
    knob::Knob,
    settings::{Setting, Settings},
    table::{
        BOOTSTRAP, BOOTSTRAP_TIMEOUT, CALL_TIMEOUT, CLIENTS_MAX, DEAD_AFTER, DEPTH, DRAIN_TIMEOUT,
        HANDSHAKE_TIMEOUT, HEARTBEAT_INTERVAL, MESSAGE_BYTES_MAX, RENDEZVOUS, RING_BYTES,
        SAMPLE_EVERY, STALL_TIMEOUT, SUSPECT_AFTER, THREADS, TRANSPORT, TURN_BUDGET, WAIT,
    },
};

/// How daemons find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// There is one.
    Alone,
    /// At `HOST:PORT`, where rank 0 listens.
    Tcp(String),
    /// At `HOST:PORT`, where somebody else listens, such as the parent of all ranks.
    Join(String),
    /// In a folder that all share.
    File(PathBuf),
}

/// What to do while there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitPolicy {
    /// Poll.
    Busy,
    /// Poll for a while, then sleep.
    Adaptive,
    /// Sleep.
    Block,
}

/// Settings of a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonConfig {
    /// How daemons find each other.
    pub start: Start,
    /// How long they may take for it.
    pub bootstrap_timeout: Duration,
    /// How long a new connection may take to prove that it belongs to the job.
    pub handshake_timeout: Duration,
    /// Threads that share clients and peers.
    pub threads: u16,
    /// What carries calls to other nodes.
    pub transport: TransportKind,
    /// Ring that each other node writes into; a power of two.
    pub ring_bytes: usize,
    /// Most clients at a time.
    pub clients_max: u16,
    /// Most calls in flight per client, a power of two.
    pub depth: u16,
    /// Longest request and longest response.
    pub message_bytes_max: u32,
    /// Most requests taken of one client in one turn.
    pub turn_budget: u32,
    /// How long a client may leave its answers unread.
    pub stall_timeout: Duration,
    /// What to do while there is nothing to do.
    pub wait: WaitPolicy,
    /// How long a call may take.
    pub call_timeout: Duration,
    /// Time between two heartbeats.
    pub heartbeat_interval: Duration,
    /// Silence after which a peer is suspected.
    pub suspect_after: Duration,
    /// Silence after which a peer is gone.
    pub dead_after: Duration,
    /// How long calls in flight may take after SIGTERM.
    pub drain_timeout: Duration,
    /// One in so many turns of the loop is timed; 0: none.
    pub sample_every: u32,
}

/// Settings that are right by themselves, but not together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Incompatible {
    /// One duration must be longer than another.
    #[error("{long} must be at least {factor} times {short}: {reason}")]
    TooShort {
        /// What is too short.
        long: Box<Setting>,
        /// How many times the other.
        factor: u64,
        /// The other.
        short: Box<Setting>,
        /// Why.
        reason: &'static str,
    },
    /// A number that must be a power of two.
    #[error("{0} is not a power of two")]
    NotAPowerOfTwo(Box<Setting>),
    /// There is no place to meet.
    #[error("bootstrap = {method} needs rendezvous; set COPYRPC_RENDEZVOUS to {example}")]
    NoRendezvous {
        /// The method.
        method: String,
        /// How it could look.
        example: &'static str,
    },
}

/// Pairs `(long, factor, short, reason)`: the first must be at least so many times the second.
const LONGER: [(Knob, u64, Knob, &str); 4] = [
    (SUSPECT_AFTER, 4, HEARTBEAT_INTERVAL, "one lost heartbeat each way is no suspicion"),
    (DEAD_AFTER, 2, SUSPECT_AFTER, "a suspected peer needs time to recover"),
    (CALL_TIMEOUT, 1, DEAD_AFTER, "a call to a dead peer should end with `unavailable`"),
    (BOOTSTRAP_TIMEOUT, 1, HANDSHAKE_TIMEOUT, "bootstrap is made of handshakes"),
];

impl DaemonConfig {
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
            ring_bytes: narrow(settings, &RING_BYTES),
            clients_max: narrow(settings, &CLIENTS_MAX),
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
        "alone" => return Ok(Start::Alone),
        "tcp" if !place.is_empty() => return Ok(Start::Tcp(place.to_owned())),
        "join" if !place.is_empty() => return Ok(Start::Join(place.to_owned())),
        "file" if !place.is_empty() => return Ok(Start::File(place.into())),
        "tcp" | "join" => "the HOST:PORT that somebody listens at",
        _ => "a folder that all nodes share",
    };
    Err(Incompatible::NoRendezvous { method: method.to_owned(), example })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{KNOBS, Layers};

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
    }
}
