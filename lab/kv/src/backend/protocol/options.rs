//! What can be switched about eRPC and ScaleRPC.

use std::{net::SocketAddr, time::Duration};

use proto::{erpc::congestion::TimelyConfig, scalerpc::HEADER_BYTES};
use protocols::{Config, Protocol, erpc, scalerpc};

use super::super::{
    JobSetup, Switch, SwitchRange, Switches,
    switches::{bytes, time_ns},
};

pub(in crate::backend) const ERPC_SWITCHES: [Switch; 3] = [
    Switch {
        name: "congestion",
        values: &["off", "timely"],
        range: SwitchRange::Listed,
        meaning: "send as fast as credits allow, or at a rate that follows from round trips",
    },
    Switch {
        name: "credits",
        values: &["32", "8"],
        range: SwitchRange::Count(1, CREDITS as u32),
        meaning: "packets of a session without an answer",
    },
    Switch {
        name: "burst",
        values: &["32", "8", "128"],
        range: SwitchRange::Count(1, 65_536),
        meaning: "packets received, and sent by a session, per turn",
    },
];

pub(in crate::backend) const SCALERPC_SWITCHES: [Switch; 7] = [
    Switch {
        name: "group",
        values: &["40", "4", "2", "1"],
        range: SwitchRange::Count(1, 16_384),
        meaning: "clients that have their turn together; fewer than the job has make turns",
    },
    Switch {
        name: "slice",
        values: &["100us", "10us", "1000us"],
        range: SwitchRange::Time(1_000, 1_000_000_000),
        meaning: "how long a turn lasts if others wait",
    },
    Switch {
        name: "detection",
        values: &["immediate", "polling"],
        range: SwitchRange::Listed,
        meaning: "requests are noticed by their completions, or by looking at every block",
    },
    Switch {
        name: "slots",
        values: &["auto", "1", "64"],
        range: SwitchRange::Count(1, SLOTS_MAX),
        meaning: "calls that a client can have in flight, and blocks of its zone; auto: as many as --qd, up to 64",
    },
    Switch {
        name: "block",
        values: &["auto", "4KiB", "64KiB"],
        range: SwitchRange::Bytes(128, 1 << 26),
        meaning: "bytes of a block, at least what the longest message takes: the pool has slots of them per client of a group",
    },
    Switch {
        name: "regroup",
        values: &["100", "0", "10"],
        range: SwitchRange::Count(0, 1_000_000),
        meaning: "rotations after which clients are grouped by priority; 0: never",
    },
    Switch {
        name: "burst",
        values: &["64", "8", "256"],
        range: SwitchRange::Count(1, 65_536),
        meaning: "completions taken per poll",
    },
];

/// A ScaleRPC client has so many slots at most.
const SLOTS_MAX: u32 = 64;
/// Packets of a session without an answer, at most: a receive for each.
const CREDITS: u16 = 32;
/// Of a link of 100 Gbit/s, in bytes per second.
const LINK_RATE: f64 = 12.5e9;
/// What silence has to exceed, so that a process that was not run for a while is not taken for dead.
const SILENCE_MIN: Duration = Duration::from_secs(5);

/// Settings of an end with so many ends of the other kind.
pub(super) fn config(setup: &JobSetup, protocol: Protocol, others: u16) -> Config {
    let mut config = Config { protocol, ..Config::default() };
    // A server that was lost stays lost: the driver is told once.
    config.erpc_connect.reconnect = false;
    erpc(setup, others, &mut config.erpc);
    scalerpc(setup, &mut config.scalerpc);
    config
}

fn number<T: std::str::FromStr>(switches: &Switches, name: &str) -> Option<T> {
    switches.value(name).parse().ok()
}

fn silence(setup: &JobSetup) -> Duration {
    Duration::from_nanos(setup.timeout_ns).max(SILENCE_MIN)
}

fn erpc(setup: &JobSetup, others: u16, config: &mut erpc::Config) {
    config.management = SocketAddr::new(setup.address, 0);
    let switches = &setup.switches;
    config.sessions_max = others.max(1);
    config.receives = others.saturating_mul(CREDITS).clamp(2 * CREDITS, 1 << 15);
    config.backlog_max = setup.queue_depth as usize;
    config.failure_after = silence(setup);
    config.credits = number(switches, "credits").unwrap_or(config.credits);
    config.burst = number(switches, "burst").unwrap_or(config.burst);
    if switches.value("congestion") == "timely" {
        config.congestion = erpc::Congestion::Timely(TimelyConfig::new(LINK_RATE));
    }
}

fn scalerpc(setup: &JobSetup, config: &mut scalerpc::ServerConfig) {
    let switches = &setup.switches;
    let clients = setup.topology.clients().max(1);
    config.clients_max = clients;
    // The pools have zones for a group, so a small job needs small pools.
    config.group = number(switches, "group").unwrap_or(config.group).min(clients);
    let slice = time_ns(switches.value("slice"));
    config.slice = slice.map_or(config.slice, |ns| Duration::from_nanos(ns.into()));
    config.regroup_rotations = number(switches, "regroup").unwrap_or(config.regroup_rotations);
    config.burst = number(switches, "burst").unwrap_or(config.burst);
    if switches.value("detection") == "polling" {
        config.detection = scalerpc::Detection::Polling;
    }
    let slots = number(switches, "slots").unwrap_or(setup.queue_depth.clamp(1, SLOTS_MAX));
    config.slots = u8::try_from(slots).unwrap_or(u8::MAX);
    let block = setup.message_bytes_max + HEADER_BYTES;
    let least = u32::try_from(block.next_multiple_of(64)).unwrap_or(u32::MAX);
    config.block_bytes = bytes(switches.value("block")).map_or(least, |block| block.max(least));
    config.ack_timeout = silence(setup);
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use super::*;
    use crate::{backend::Wait, place::Topology};

    fn setup(table: &[Switch], name: &str, value: &str) -> JobSetup {
        let given = BTreeMap::from([(name.to_owned(), value.to_owned())]);
        JobSetup {
            topology: Topology { ranks: 2, daemon_threads: 1, clients_per_rank: 30, keys: 10 },
            queue_depth: 20,
            message_bytes_max: 1000,
            timeout_ns: 1,
            wait: Wait::Yield,
            switches: Switches::resolve("test", table, &given).unwrap(),
            times_turns: false,
            address: crate::backend::loopback(),
        }
    }

    /// A switch that changes nothing would be a lie in every result.
    #[test]
    fn pitfall_30_every_value_of_every_switch_makes_another_end() {
        let tables =
            [(Protocol::Erpc, &ERPC_SWITCHES[..]), (Protocol::Scalerpc, &SCALERPC_SWITCHES)];
        for (protocol, table) in tables {
            for switch in table {
                let config = |value: &&str| config(&setup(table, switch.name, value), protocol, 60);
                let distinct = switch.values.iter().map(|value| format!("{:?}", config(value)));
                let distinct = distinct.collect::<HashSet<_>>();
                assert_eq!(distinct.len(), switch.values.len(), "{}", switch.name);
            }
        }
    }

    #[test]
    fn defaults_are_those_of_the_libraries() {
        let switch = ERPC_SWITCHES[0];
        let ours = config(&setup(&ERPC_SWITCHES, switch.name, switch.values[0]), Protocol::Erpc, 9);
        let theirs = erpc::Config::default();
        let of = |config: &erpc::Config| (config.credits, config.burst, config.congestion);
        assert_eq!(of(&ours.erpc), of(&theirs));
        assert_eq!(u32::from(CREDITS), theirs.credits);
        let setup = setup(&SCALERPC_SWITCHES, "group", "40");
        let (ours, theirs) =
            (config(&setup, Protocol::Scalerpc, 9).scalerpc, scalerpc::ServerConfig::default());
        let of = |config: &scalerpc::ServerConfig| {
            let settings = (config.group, config.slice, config.detection);
            (settings, config.regroup_rotations, config.burst)
        };
        assert_eq!(of(&ours), of(&theirs));
        assert!(ours.block_bytes as usize >= setup.message_bytes_max + HEADER_BYTES);
    }
}
