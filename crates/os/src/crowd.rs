//! Whether others want the core that a thread waits on.

use std::thread;

use crate::clock;

/// Longest time that `sched_yield(2)` takes if nobody else runs: some 0.4 µs, where a switch to somebody
/// else and back takes more than 1 µs even if he does nothing.
const ALONE_NS: u64 = 1_000;

/// Gives the core to others who want it. Returns whether somebody took it.
///
/// Who shares a core should not spin: what it waits for may have to come from whom it keeps from
/// running.
pub fn yield_core() -> bool {
    let before_ns = clock::now_ns();
    thread::yield_now();
    clock::now_ns().saturating_sub(before_ns) > ALONE_NS
}
