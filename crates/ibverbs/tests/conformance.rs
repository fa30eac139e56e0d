//! The suite that every NIC must pass, between two ports of soft-RoCE: `tests/rxe/run` boots a machine that
//! has them. Elsewhere it is left out, as it needs a device.
#![cfg(not(any(loom, miri)))]

use std::{env, time::Duration};

use conformance::{NicPlace, Testbed};
use copyrpc_ibverbs::{Config, any::Nic, open};
use verbs::Capabilities;

/// The roles' devices, `rxe0,rxe1`.
const DEVICES: &str = "RXE_DEVICES";

fn on_rxe(place: &NicPlace) -> Nic {
    let devices = env::var(DEVICES).unwrap_or_else(|_| "rxe0,rxe1".to_owned());
    let device = devices.split(',').nth(place.role.index()).unwrap_or("rxe0").to_owned();
    let config = Config { device, ..Config::default() };
    Nic::Library(open(&config).unwrap_or_else(|error| panic!("{error}")))
}

/// What soft-RoCE of Linux 6.1 does otherwise than the specification says.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("bad_receive_buffer_fails_at_both_ends", "a bad local key is LOC_QP_OP_ERR"),
    ("local_protection_is_checked", "a bad local key is LOC_QP_OP_ERR"),
    ("missing_rights_are_denied", "a right that the queue pair lacks is REM_INV_REQ_ERR"),
    ("pitfall_05_empty_entry_has_no_bytes", "a message that is too long is LOC_QP_OP_ERR"),
    ("too_long_send_fails_at_both_ends", "a message that is too long is LOC_QP_OP_ERR"),
    ("srq_has_a_domain_of_its_own", "buffers have to be in the domain of the queue pair"),
    ("unaligned_atomics_are_invalid", "an atomic that is not aligned is refused by the library"),
];

/// The machine is emulated: everything takes ten times as long.
const RXE: Testbed = Testbed {
    absent: Capabilities::DC
        .union(Capabilities::SOLICITED)
        .union(Capabilities::NOP)
        .union(Capabilities::ORDERED_PLACEMENT)
        .union(Capabilities::CQ_OVERRUN_EVENT)
        .union(Capabilities::SQD)
        .union(Capabilities::RESPONDER_ERR)
        .union(Capabilities::PEER_GONE_EVENT),
    exceptions: EXCEPTIONS,
    deadline: Duration::from_secs(30),
    scenario_deadline: Duration::from_secs(900),
    quiet: Duration::from_millis(50),
    wakes_early: true,
    ..Testbed::FULL
};

conformance::suite!(
    #[ignore = "needs soft-RoCE: tests/rxe/run"]
    rxe,
    on_rxe,
    RXE
);
