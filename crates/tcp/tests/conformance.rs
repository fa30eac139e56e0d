//! The suite that every NIC must pass, between two ports on loopback: of one process, and of two.
#![cfg(not(any(loom, miri)))]

use std::time::Duration;

use conformance::{NicPlace, Testbed};
use copyrpc_tcp::{Config, open};

fn on_loopback(_: &NicPlace) -> softnic::Nic {
    let config = Config { card_mib: 16, ..Config::default() };
    open(&config).unwrap_or_else(|error| panic!("{error}"))
}

/// What is under way arrives by polls, so that silence has to be watched for long enough to let a thread that
/// was preempted go on.
const PATIENT: Testbed =
    Testbed { quiet: Duration::from_millis(50), wakes_early: true, ..Testbed::FULL };

conformance::suite!(loopback, on_loopback, PATIENT);

#[test]
fn port_options_are_honoured_or_refused() {
    conformance::port_options(|options| {
        open(&Config { options: options.clone(), ..Config::default() })
    });
}
