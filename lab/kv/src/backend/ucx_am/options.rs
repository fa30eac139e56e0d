//! What can be switched about UCX.

use crate::{
    backend::{JobSetup, Switch, SwitchRange, Wait},
    ucp::Config,
};

pub(in crate::backend) const SWITCHES: [Switch; 2] = [
    Switch {
        name: "tls",
        values: &["sm", "tcp", "rc_mlx5", "all"],
        range: SwitchRange::Listed,
        meaning: "UCX_TLS: shared memory, TCP, a ConnectX, or what UCX chooses",
    },
    Switch {
        name: "rndv",
        values: &["auto", "8k", "64k", "inf"],
        range: SwitchRange::Listed,
        meaning: "UCX_RNDV_THRESH: bytes from which a message is announced and fetched",
    },
];

/// Settings of a process.
pub(super) fn config(setup: &JobSetup) -> Config {
    let tls = setup.switches.value("tls");
    let mut settings = Vec::new();
    match tls {
        "all" => {}
        // RC needs UD to connect.
        "rc_mlx5" => settings.push(("TLS", "rc_mlx5,ud_mlx5:aux,self".to_owned())),
        tls => settings.push(("TLS", format!("{tls},self"))),
    }
    settings.push(("RNDV_THRESH", setup.switches.value("rndv").to_owned()));
    let depth = setup.queue_depth.max(1) as usize;
    Config {
        settings,
        // Who never sleeps does not ask for what sleeping costs.
        wakeup: matches!(setup.wait, Wait::Block | Wait::Adaptive),
        // UCX's shared memory has no failure handler: with one, it is left out.
        peer_failures: matches!(tls, "tcp" | "rc_mlx5"),
        message_bytes_max: setup.message_bytes_max,
        // For each call a request or an answer, and for each other end a ping or the answer to it.
        sends_max: (depth + 1) * others_max(setup),
        ..Config::default()
    }
}

/// A server's clients, or a client's servers, whatever is more.
fn others_max(setup: &JobSetup) -> usize {
    usize::from(setup.topology.clients().max(setup.topology.shards())).max(1)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use super::*;
    use crate::{backend::Switches, place::Topology};

    fn setup(name: &str, value: &str, wait: Wait) -> JobSetup {
        let given = BTreeMap::from([(name.to_owned(), value.to_owned())]);
        JobSetup {
            topology: Topology { ranks: 2, daemon_threads: 1, clients_per_rank: 30, keys: 10 },
            queue_depth: 100,
            message_bytes_max: 1000,
            timeout_ns: 1,
            wait,
            switches: Switches::resolve("test", &SWITCHES, &given).unwrap(),
            times_turns: false,
            address: crate::backend::loopback(),
        }
    }

    /// A switch that changes nothing would be a lie in every result.
    #[test]
    fn pitfall_30_every_value_of_every_switch_of_ucx_makes_another_end() {
        for switch in SWITCHES {
            let config = |value: &&str| config(&setup(switch.name, value, Wait::Block));
            let distinct = switch.values.iter().map(|value| format!("{:?}", config(value)));
            let distinct = distinct.collect::<HashSet<_>>();
            assert_eq!(distinct.len(), switch.values.len(), "{}", switch.name);
        }
    }

    #[test]
    fn only_threads_that_may_sleep_ask_to_be_woken_and_every_call_has_room() {
        for wait in Wait::ALL {
            let config = config(&setup("tls", "tcp", wait));
            assert_eq!(config.wakeup, matches!(wait, Wait::Block | Wait::Adaptive));
            assert_eq!((config.sends_max, config.message_bytes_max), (60 * 101, 1000));
        }
    }
}
