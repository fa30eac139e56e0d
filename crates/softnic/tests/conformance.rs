//! The suite that every NIC must pass, on both drives, in normal and in strict mode.
#![cfg(not(any(loom, miri)))]

use copyrpc_softnic::{Config, Drive, Link, Nic, open};
use verbs::conformance::{Capabilities, Place, Testbed};

fn nic(place: &Place, drive: Drive, strict: Option<u64>, link: Link) -> Nic {
    let config = Config { drive, strict, fabric: place.fabric.clone(), link, ..Config::default() };
    open(&config).unwrap_or_else(|error| panic!("{error}"))
}

fn inline(place: &Place) -> Nic {
    nic(place, Drive::Inline, None, Link::InfiniBand)
}

fn inline_strict(place: &Place) -> Nic {
    nic(place, Drive::Inline, Some(TESTBED.seed), Link::Roce)
}

fn thread(place: &Place) -> Nic {
    nic(place, Drive::Thread, None, Link::Roce)
}

fn thread_strict(place: &Place) -> Nic {
    nic(place, Drive::Thread, Some(TESTBED.seed), Link::InfiniBand)
}

const TESTBED: Testbed = Testbed::FULL;
/// Strict mode shuffles the bytes of a message, as a relaxed-ordering fabric does.
const STRICT: Testbed = Testbed {
    capabilities: Testbed::FULL.capabilities.difference(Capabilities::LAST_BYTE_POLL),
    ..Testbed::FULL
};

verbs::conformance_tests!(inline_drive, inline, TESTBED);
verbs::conformance_tests!(inline_drive_strict, inline_strict, STRICT);
verbs::conformance_tests!(thread_drive, thread, TESTBED);
verbs::conformance_tests!(thread_drive_strict, thread_strict, STRICT);
