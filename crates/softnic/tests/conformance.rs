//! The suite that every NIC must pass, on both drives, in normal and in strict mode.
#![cfg(not(any(loom, miri)))]

#[path = "common/world.rs"]
mod world;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use conformance::{NicPlace, Role, Testbed};
use copyrpc_softnic::{AdapterProfile, Config, Drive, Nic, open};
use mlx5::{CqeSize, DoorbellMode, Options};
use verbs::{Capabilities, LinkLayer};
use world::{Faults, World};

fn nic(place: &NicPlace, drive: Drive, strict: Option<u64>, link: LinkLayer) -> Nic {
    let config = Config { drive, strict, fabric: place.fabric.clone(), link, ..Config::default() };
    open(&config).unwrap_or_else(|error| panic!("{error}"))
}

fn inline(place: &NicPlace) -> Nic {
    nic(place, Drive::Inline, None, LinkLayer::InfiniBand)
}

fn inline_strict(place: &NicPlace) -> Nic {
    nic(place, Drive::Inline, Some(TESTBED.seed), LinkLayer::Ethernet)
}

fn thread(place: &NicPlace) -> Nic {
    nic(place, Drive::Thread, None, LinkLayer::Ethernet)
}

/// Both ports of a run are in one world.
fn virtual_drive(place: &NicPlace) -> Nic {
    in_world(place, Faults::default())
}

/// The network loses, repeats and delays packets.
fn virtual_faulty(place: &NicPlace) -> Nic {
    in_world(place, Faults { lose_one_in: 40, repeat_one_in: 20, delay_ns_max: 5_000 })
}

/// The same, and WRITEs that overtake others are placed at once.
fn virtual_adaptive(place: &NicPlace) -> Nic {
    let faults = Faults { delay_ns_max: 5_000, ..Faults::default() };
    in_world_as(place, faults, AdapterProfile::AdaptiveRouting)
}

fn virtual_function(place: &NicPlace) -> Nic {
    let (fabric, profile) = (place.fabric.clone(), AdapterProfile::VirtualFunction);
    let config = Config { fabric, profile, ..Config::default() };
    open(&config).unwrap_or_else(|error| panic!("{error}"))
}

fn in_world(place: &NicPlace, faults: Faults) -> Nic {
    in_world_as(place, faults, AdapterProfile::ConnectX)
}

fn in_world_as(place: &NicPlace, faults: Faults, profile: AdapterProfile) -> Nic {
    static WORLDS: Mutex<BTreeMap<String, Weak<World>>> = Mutex::new(BTreeMap::new());
    let mut worlds = WORLDS.lock().unwrap_or_else(PoisonError::into_inner);
    let world = worlds.get(&place.fabric).and_then(Weak::upgrade).unwrap_or_else(|| {
        let world = World::new(TESTBED.seed, faults);
        worlds.insert(place.fabric.clone(), Arc::downgrade(&world));
        world
    });
    let lid = if place.role == Role::Client { 1 } else { 2 };
    world.open(lid, &Config { card_mib: 16, profile, ..Config::default() })
}

fn thread_strict(place: &NicPlace) -> Nic {
    nic(place, Drive::Thread, Some(TESTBED.seed), LinkLayer::InfiniBand)
}

const TESTBED: Testbed = Testbed::FULL;
/// What is under way in virtual time arrives by polls, one thing at a time, so that silence has to be watched
/// for long enough to let a thread that was preempted go on. Requests that are lost come late.
const PATIENT: Testbed = Testbed {
    deadline: Duration::from_secs(60),
    scenario_deadline: Duration::from_secs(400),
    quiet: Duration::from_millis(100),
    ..Testbed::FULL
};
/// Strict mode shuffles the bytes of a message, as a relaxed-ordering fabric does.
const STRICT: Testbed = Testbed { absent: Capabilities::ORDERED_PLACEMENT, ..Testbed::FULL };
/// A virtual function has no atomics.
const VIRTUAL_FUNCTION: Testbed = Testbed { absent: Capabilities::ATOMICS, ..Testbed::FULL };
const ADAPTIVE: Testbed = Testbed { absent: Capabilities::ORDERED_PLACEMENT, ..PATIENT };

/// What entries of 64 bytes, or of 128, take of a payload, and that they report all the rest as usual.
macro_rules! variants {
    ($($module:ident: $make_nic:path, $testbed:expr;)*) => {$(
        mod $module {
            use super::*;

            fn plain_doorbell(place: &NicPlace) -> Nic {
                let doorbell = DoorbellMode::Plain;
                $make_nic(place).with_options(Options { doorbell, ..Options::default() })
            }

            fn cqe_64(place: &NicPlace) -> Nic {
                $make_nic(place)
                    .with_options(Options { scatter_to_cqe: true, ..Options::default() })
            }

            fn cqe_128_plain(place: &NicPlace) -> Nic {
                let cqe_size = CqeSize::B128;
                $make_nic(place).with_options(Options { cqe_size, ..Options::default() })
            }

            fn cqe_128(place: &NicPlace) -> Nic {
                let (cqe_size, scatter_to_cqe) = (CqeSize::B128, true);
                let options = Options { cqe_size, scatter_to_cqe, ..Options::default() };
                $make_nic(place).with_options(options)
            }

            conformance::suite_part!(
                doorbells,
                plain_doorbell,
                $testbed,
                [pitfall_03_every_batch_rings]
            );
            conformance::suite_part!(
                payload_of_32_bytes,
                cqe_64,
                $testbed,
                [small_payload_may_come_in_the_completion]
            );
            conformance::suite_part!(
                entries_of_128_bytes,
                cqe_128_plain,
                $testbed,
                [rings_of_completions_wrap, error_state_flushes_everything]
            );
            conformance::suite_part!(
                payload_of_64_bytes,
                cqe_128,
                $testbed,
                [rings_of_completions_wrap, small_payload_may_come_in_the_completion]
            );
        }
    )*};
}

variants! {
    inline_drive_variants: inline, TESTBED;
    inline_drive_strict_variants: inline_strict, STRICT;
    thread_drive_variants: thread, TESTBED;
    thread_drive_strict_variants: thread_strict, STRICT;
}

conformance::suite!(inline_drive, inline, TESTBED);
conformance::suite!(inline_drive_strict, inline_strict, STRICT);
conformance::suite!(thread_drive, thread, TESTBED);
conformance::suite!(thread_drive_strict, thread_strict, STRICT);
conformance::suite!(virtual_function, virtual_function, VIRTUAL_FUNCTION);

/// A world is in one process.
mod virtual_ports {
    use super::*;
    conformance::for_each_scenario!(conformance::suite_mode, threads, virtual_drive, PATIENT);
}
mod virtual_ports_with_faults {
    use super::*;
    conformance::for_each_scenario!(conformance::suite_mode, threads, virtual_faulty, PATIENT);
}
mod virtual_ports_with_adaptive_routing {
    use super::*;
    conformance::for_each_scenario!(conformance::suite_mode, threads, virtual_adaptive, ADAPTIVE);
}

#[test]
fn port_options_are_honoured_or_refused() {
    for drive in [Drive::Inline, Drive::Thread] {
        conformance::port_options(|options| {
            let fabric = format!("options-{}", std::process::id());
            open(&Config { drive, fabric, options: options.clone(), ..Config::default() })
        });
    }
}
