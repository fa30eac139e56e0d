//! What can be switched about copyrpc.

use rpc::{Config, FlushPolicy, TransportKind};

use super::super::{
    JobSetup, Switch, SwitchRange, Switches, Wait,
    switches::{bytes, flush},
};

pub(in crate::backend) const SWITCHES: [Switch; 9] = [
    Switch {
        name: "transport",
        values: &["rc", "dc"],
        range: SwitchRange::Listed,
        meaning: "a queue pair per peer, or few initiators and one target for all",
    },
    Switch {
        name: "flush",
        values: &[
            "auto",
            "self-clocked-2",
            "self-clocked-1",
            "self-clocked-4",
            "immediate",
            "hold-5us",
            "hold-20us",
            "adaptive-hold-8",
            "rtt-hold",
            "poll-budget-4",
            "poll-budget-16",
            "coalesce-5us",
        ],
        range: SwitchRange::Flush,
        meaning: "when a batch of messages is posted; auto: as a daemon with so many peers does it",
    },
    Switch {
        name: "inline",
        values: &["220", "0"],
        range: SwitchRange::Count(0, 220),
        meaning: "bytes of a batch that go into the work queue entry itself",
    },
    Switch {
        name: "doorbells",
        values: &["batched", "each"],
        range: SwitchRange::Listed,
        meaning: "one doorbell for all that a poll posts, or one per batch",
    },
    Switch {
        name: "srq",
        values: &["on", "off"],
        range: SwitchRange::Listed,
        meaning: "one shared receive queue, or one per peer",
    },
    Switch {
        name: "signal",
        values: &["16", "1", "64"],
        range: SwitchRange::Count(1, 64),
        meaning: "a completion is asked for every so many batches",
    },
    Switch {
        name: "dcis",
        values: &["1", "4"],
        range: SwitchRange::Count(1, 256),
        meaning: "DC: initiators",
    },
    Switch {
        name: "poll-budget",
        values: &["64", "16", "256"],
        range: SwitchRange::Count(1, 65_535),
        meaning: "completions handled per poll",
    },
    Switch {
        name: "ring",
        values: &["256KiB", "4MiB"],
        range: SwitchRange::PowerOfTwo(1 << 16, 1 << 26),
        meaning: "ring that each peer writes into, half of it for answers",
    },
];

/// Shares of the ring that a longest response may take; longer ones go by rendezvous.
const RESPONSE_BYTES_MAX: usize = 8 << 10;

/// What a worker for `peers` peers is made of.
pub(in crate::backend) fn config(setup: &JobSetup, peers: u16) -> Config {
    let default = Config::default();
    let switches = &setup.switches;
    let number = |name: &str| switches.value(name).parse::<u16>().ok();
    let transport =
        if switches.value("transport") == "dc" { TransportKind::Dc } else { TransportKind::Rc };
    let ring_bytes = bytes(switches.value("ring")).map_or(default.ring_bytes, |n| n as usize);
    Config {
        transport,
        ring_bytes,
        response_bytes: ring_bytes / 2,
        batch_bytes: default.batch_bytes.min(ring_bytes / 4),
        dcis: number("dcis").unwrap_or(default.dcis),
        peers_max: peers,
        calls_max: u16::try_from(setup.queue_depth).unwrap_or(u16::MAX - 1).max(16),
        flush: flush_policy(switches, peers.into()),
        signal_interval: number("signal").unwrap_or(default.signal_interval),
        inline_bytes: number("inline").map_or(default.inline_bytes, usize::from),
        doorbell_batching: switches.value("doorbells") != "each",
        may_sleep: matches!(setup.wait, Wait::Block | Wait::Adaptive),
        shared_receives: switches.value("srq") != "off",
        poll_budget: number("poll-budget").unwrap_or(default.poll_budget),
        ..default
    }
}

/// Room for a response that is set aside in the ring.
pub(in crate::backend) fn response_bytes(setup: &JobSetup) -> usize {
    setup.message_bytes_max.min(RESPONSE_BYTES_MAX)
}

fn flush_policy(switches: &Switches, peers: usize) -> FlushPolicy {
    match switches.value("flush") {
        // Its name before it had a number.
        "rtt-hold" => FlushPolicy::RttHold { permille: 500 },
        other => flush(other).unwrap_or(FlushPolicy::for_peers(peers)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use super::*;
    use crate::place::Topology;

    fn config_with(name: &str, value: &str) -> Config {
        let given = BTreeMap::from([(name.to_owned(), value.to_owned())]);
        let setup = JobSetup {
            topology: Topology { ranks: 2, daemon_threads: 1, clients_per_rank: 1, keys: 10 },
            queue_depth: 32,
            message_bytes_max: 100,
            timeout_ns: 1,
            wait: Wait::Yield,
            switches: Switches::resolve("direct", &SWITCHES, &given).unwrap(),
            times_turns: false,
            address: crate::backend::loopback(),
        };
        config(&setup, 4)
    }

    /// A switch that changes nothing would be a lie in every result.
    #[test]
    fn pitfall_30_every_value_of_every_switch_makes_another_worker() {
        for switch in SWITCHES {
            // The automatic value is one of the others, which of them depends on the number of peers.
            let values = switch.values.iter().filter(|value| **value != "auto");
            let configs = values.clone().map(|value| config_with(switch.name, value));
            let distinct = configs.map(|config| format!("{config:?}")).collect::<HashSet<_>>();
            assert_eq!(distinct.len(), values.count(), "{}", switch.name);
        }
    }

    #[test]
    fn defaults_are_those_of_the_library() {
        let (ours, theirs) = (config_with("srq", "on"), Config::default());
        assert_eq!(ours.flush, FlushPolicy::for_peers(4), "as a daemon with four peers");
        assert_eq!(ours.signal_interval, theirs.signal_interval);
        assert_eq!(ours.inline_bytes, theirs.inline_bytes);
        assert_eq!((ours.dcis, ours.poll_budget), (theirs.dcis, theirs.poll_budget));
        assert_eq!(ours.ring_bytes, theirs.ring_bytes);
        assert_eq!(
            (ours.response_bytes, ours.batch_bytes),
            (theirs.response_bytes, theirs.batch_bytes)
        );
        assert!(ours.geometry().is_ok());
    }

    /// The whole range of each switch can be opened.
    #[test]
    fn the_ends_of_every_range_are_possible() {
        for (name, values) in [
            ("ring", ["64KiB", "64MiB"]),
            ("dcis", ["1", "256"]),
            ("signal", ["1", "64"]),
            ("inline", ["0", "220"]),
            ("poll-budget", ["1", "65535"]),
            ("flush", ["hold-1ns", "self-clocked-65535"]),
        ] {
            let [low, high] = values.map(|value| config_with(name, value));
            assert!(low.geometry().is_ok() && high.geometry().is_ok(), "{name}");
            assert_ne!(format!("{low:?}"), format!("{high:?}"), "{name}");
        }
    }
}
