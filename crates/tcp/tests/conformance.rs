//! The suite that every NIC must pass, between two ports on loopback: of one process, and of two.
#![cfg(not(any(loom, miri)))]

use std::time::Duration;

use conformance::{NicPlace, Testbed};
use copyrpc_tcp::{Config, open};

fn on_loopback(_: &NicPlace) -> softnic::Nic {
    opened(false)
}

/// RC by shared memory, the rest over TCP.
fn on_one_host(_: &NicPlace) -> softnic::Nic {
    opened(true)
}

fn opened(shares_memory: bool) -> softnic::Nic {
    let config = Config { card_mib: 16, shares_memory, ..Config::default() };
    open(&config).unwrap_or_else(|error| panic!("{error}"))
}

/// Messages under way arrive by polls, so that silence has to be watched for long enough to let a thread that
/// was preempted go on.
const PATIENT: Testbed =
    Testbed { quiet: Duration::from_millis(50), wakes_early: true, ..Testbed::FULL };

conformance::suite!(loopback, on_loopback, PATIENT);
conformance::suite!(one_host, on_one_host, PATIENT);

#[test]
fn port_options_are_honoured_or_refused() {
    for shares_memory in [false, true] {
        conformance::port_options(|options| {
            open(&Config { shares_memory, options: options.clone(), ..Config::default() })
        });
    }
}
