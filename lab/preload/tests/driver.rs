//! The driver `mlx5` on libmlx5, whose NIC is the software NIC: the suite that every NIC must pass, in a process of
//! its own that finds the device.
#![cfg(not(any(loom, miri)))]

mod common;

use std::time::Duration;

use common::{has_library, run_tests, run_tests_on};
use conformance::{NicPlace, Testbed};
use ibverbs::{Config, any::Nic, mlx5dv};
use verbs::{Capabilities, LinkLayer};

fn on_libmlx5(_: &NicPlace) -> Nic {
    let device = mlx5dv::open(&Config::default()).unwrap_or_else(|error| panic!("{error}"));
    Nic::Driver(mlx5::Nic::new(device))
}

/// Requests travel as packets to a thread that sleeps between looks at doorbell records. What libmlx5 cannot promise
/// is absent: the order of bytes on PCIe, and that somebody tells of dead peers. So is SQD, to which the kernel's driver
/// knows no way.
const UVERBS: Testbed = Testbed {
    absent: Capabilities::ORDERED_PLACEMENT
        .union(Capabilities::PEER_GONE_EVENT)
        .union(Capabilities::SQD),
    deadline: Duration::from_secs(20),
    // A scenario goes round rings with a few thousand sleeps, and others want the cores.
    scenario_deadline: Duration::from_secs(600),
    quiet: Duration::from_millis(50),
    wakes_early: true,
    ..Testbed::FULL
};

conformance::suite!(
    #[ignore = "needs a device: `the_driver_passes_the_suite_on_libmlx5_slow` starts it where there is one"]
    libmlx5,
    on_libmlx5,
    UVERBS
);

/// A virtual function: short queues, no atomics, and a global route header in each packet.
const VIRTUAL_FUNCTION: Testbed =
    Testbed { absent: UVERBS.absent.union(Capabilities::ATOMICS), ..UVERBS };

mod vf {
    use super::*;

    #[ignore = "needs a device: `a_virtual_function_is_driven_within_its_limits` starts it where there is one"]
    #[test]
    fn scenarios() {
        let names = [
            "capabilities_are_what_the_testbed_says",
            "port_is_addressed_as_it_is_described",
            "read_moves_every_size",
            "missing_rights_are_denied",
            "pitfall_01_each_srq_message_has_its_own_buffer",
            "datagram_carries_data_and_source",
            "initiator_does_every_operation",
        ];
        for name in names {
            let scenario = conformance::scenario(name);
            conformance::run_threads(name, scenario, on_libmlx5, &VIRTUAL_FUNCTION);
        }
    }

    /// libmlx5 would make half a ring in silence for what exceeds the adapter's largest.
    #[ignore = "needs a device: `a_virtual_function_is_driven_within_its_limits` starts it where there is one"]
    #[test]
    fn shared_receive_queues() {
        use verbs::{CreateError, Nic as _, SharedReceiveQueue as _, SrqConfig};
        let place = NicPlace { fabric: "vf".into(), role: conformance::Role::Client };
        let nic = on_libmlx5(&place);
        assert_eq!(nic.attributes().srq_entries_max, 4095);
        assert!(!nic.attributes().capabilities.contains(Capabilities::ATOMICS));
        let pd = nic.alloc_pd().unwrap();
        let mut longest = nic.create_srq(&pd, &SrqConfig { entries: 4095, sges_max: 1 }).unwrap();
        for _ in 0..4095 {
            longest.post(&[]).unwrap();
        }
        longest.ring();
        let refused = nic.create_srq(&pd, &SrqConfig { entries: 4096, sges_max: 1 });
        let refused = refused.map(drop).unwrap_err();
        assert!(matches!(refused, CreateError::Size { asked: 4096, .. }), "{refused}");
    }
}

mod adaptive {
    use super::*;

    #[ignore = "needs a device: `writes_that_overtake_others_do_no_harm` starts it where there is one"]
    #[test]
    fn scenarios() {
        let names = [
            "write_is_visible_when_a_later_send_completes",
            "full_send_queue_recovers",
            "both_directions_at_once",
            "missing_rights_are_denied",
        ];
        for name in names {
            let scenario = conformance::scenario(name);
            conformance::run_threads(name, scenario, on_libmlx5, &UVERBS);
        }
    }
}

#[test]
fn writes_that_overtake_others_do_no_harm() {
    if has_library() {
        let profile = softnic::AdapterProfile::AdaptiveRouting;
        assert_eq!(run_tests_on("adaptive::", LinkLayer::InfiniBand, profile), 1);
    }
}

#[test]
fn a_virtual_function_is_driven_within_its_limits() {
    if has_library() {
        let profile = softnic::AdapterProfile::VirtualFunction;
        assert_eq!(run_tests_on("vf::", LinkLayer::InfiniBand, profile), 2);
    }
}

/// Each scenario between threads and between processes, and the death of a process.
#[test]
#[ignore = "slow: the whole suite, in processes"]
fn the_driver_passes_the_suite_on_libmlx5_slow() {
    if has_library() {
        let scenarios = conformance::scenarios::<Nic>().len();
        assert_eq!(run_tests("libmlx5::", LinkLayer::InfiniBand), 2 * scenarios + 1);
    }
}

/// Queues of one process share the register that arms them, and its owner then reads the record of each: also of one
/// whose own doorbell comes a moment later.
mod beside {
    use super::*;

    const NAME: &str = "no_wakeup_is_lost";

    #[ignore = "needs a device: `no_wakeup_is_lost_beside_other_queues` starts it where there is one"]
    #[test]
    fn other_queues() {
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for _ in 0..16 {
                        let scenario = conformance::scenario(NAME);
                        conformance::run_threads(NAME, scenario, on_libmlx5, &UVERBS);
                    }
                });
            }
        });
    }
}

#[test]
fn no_wakeup_is_lost_beside_other_queues() {
    if has_library() {
        assert_eq!(run_tests("beside::", LinkLayer::InfiniBand), 1);
    }
}
