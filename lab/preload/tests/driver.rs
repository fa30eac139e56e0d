//! The driver `mlx5` on libmlx5, whose NIC is the software NIC: the suite that every NIC must pass, in a process of
//! its own that finds the device.
#![cfg(not(any(loom, miri)))]

mod common;

use std::time::Duration;

use common::{has_library, run_tests};
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
    #[ignore = "needs a device: `the_driver_passes_the_suite_on_libmlx5` starts it where there is one"]
    libmlx5,
    on_libmlx5,
    UVERBS
);

/// Each scenario between threads and between processes, and the death of a process.
#[test]
fn the_driver_passes_the_suite_on_libmlx5() {
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
