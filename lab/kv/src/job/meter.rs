//! What a process spends inside the measured interval: CPU time, and changes from one thread to another; and its
//! memory.

use std::{collections::BTreeSet, fs, time::Duration};

use measure::events::{EventCounts, EventMeter};
use nix::sys::resource::{UsageWho, getrusage};
use os::clock;
use rustix::time::{ClockId, clock_gettime};

use super::coordinator::LOOK;
use crate::drive::Schedule;

/// Of all threads of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Spent {
    pub(super) cpu_ns: u64,
    /// Times that a core went from one of its threads to something else. A thread that offers its core
    /// and keeps it, because nobody wants it, does not count.
    pub(super) switches: u64,
    /// CPU time of the thread that asks, which does nothing for any call.
    pub(super) harness_cpu_ns: u64,
}

impl Spent {
    /// So far.
    fn now() -> Self {
        let cpu_ns = cpu_time_ns(ClockId::ProcessCPUTime);
        let switches = switches(UsageWho::RUSAGE_SELF);
        Self { cpu_ns, switches, harness_cpu_ns: cpu_time_ns(ClockId::ThreadCPUTime) }
    }
}

/// CPU time of this process or thread.
pub(crate) fn cpu_time_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Memory of this process: its proportional share of each page (PSS), in bytes; 0 where the kernel does not tell.
/// Source: `proc_pid_smaps(5)`.
pub(super) fn pss_bytes() -> u64 {
    let rollup = fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    pss_bytes_in(&rollup).unwrap_or(0)
}

fn pss_bytes_in(rollup: &str) -> Option<u64> {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kib = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?;
    kib.checked_mul(1024)
}

/// Of a process, those of its threads that have ended included, or of this thread; none where the kernel does not tell.
fn switches(of: UsageWho) -> u64 {
    let counts = getrusage(of)
        .map(|usage| usage.voluntary_context_switches() + usage.involuntary_context_switches());
    counts.ok().and_then(|count| u64::try_from(count).ok()).unwrap_or(0)
}

/// Looks at both ends of the measured interval, whenever it is asked to.
#[derive(Debug)]
pub(super) struct Meter<'a> {
    begin: Option<Spent>,
    end: Option<Spent>,
    /// Of all threads of this process, if it counts.
    events: Option<&'a mut EventMeter>,
    counted: EventCounts,
}

impl<'a> Meter<'a> {
    pub(super) fn new(events: Option<&'a mut EventMeter>) -> Self {
        Self { begin: None, end: None, events, counted: EventCounts::default() }
    }

    pub(super) fn look(&mut self, schedule: &Schedule) {
        let now_ns = clock::now_ns();
        if now_ns >= schedule.measure_ns && self.begin.is_none() {
            self.begin = Some(Spent::now());
            self.events.iter_mut().for_each(|events| events.begin());
        }
        if now_ns >= schedule.end_ns && self.end.is_none() {
            self.end = Some(Spent::now());
            self.counted = self.events.as_mut().map(|events| events.end()).unwrap_or_default();
        }
    }

    /// What the machine does not count, a sentence each.
    pub(super) fn uncounted(&self) -> BTreeSet<String> {
        let missing = self.events.as_ref().map(|events| events.missing());
        missing.into_iter().flatten().collect()
    }

    /// What was counted between both ends.
    pub(super) fn events(&self) -> EventCounts {
        self.counted
    }

    /// Time until the next look that matters.
    pub(super) fn pause(&self, schedule: &Schedule) -> Duration {
        let next_ns = match (self.begin, self.end) {
            (None, _) => schedule.measure_ns,
            (_, None) => schedule.end_ns,
            _ => return LOOK,
        };
        Duration::from_nanos(next_ns.saturating_sub(clock::now_ns())).max(Duration::from_micros(50))
    }

    pub(super) fn spent(&self) -> Spent {
        let end = self.end.unwrap_or_else(Spent::now);
        let begin = self.begin.unwrap_or(end);
        let switches = end.switches.saturating_sub(begin.switches);
        let harness_cpu_ns = end.harness_cpu_ns.saturating_sub(begin.harness_cpu_ns);
        Spent { cpu_ns: end.cpu_ns.saturating_sub(begin.cpu_ns), switches, harness_cpu_ns }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn memory_is_the_proportional_share() {
        let rollup =
            "55d0-7fff ---p 0 00:00 0 [rollup]\nRss:   2000 kB\nPss:   1234 kB\nPss_Dirty: 9 kB\n";
        assert_eq!(pss_bytes_in(rollup), Some(1234 * 1024));
        assert_eq!(pss_bytes_in(""), None);
        assert!(pss_bytes() > 0, "this kernel tells");
    }

    #[test]
    fn a_thread_that_sleeps_gives_up_its_core_and_is_counted() {
        const NAPS: u64 = 5;
        let before = switches(UsageWho::RUSAGE_THREAD);
        let cpu_ns = Spent::now().cpu_ns;
        (0..NAPS).for_each(|_| thread::sleep(Duration::from_millis(1)));
        let after = switches(UsageWho::RUSAGE_THREAD);
        assert!(after >= before + NAPS, "{before} {after}");
        let now = Spent::now();
        assert!(now.switches >= after, "this thread is one of the process: {now:?} {after}");
        assert!(now.cpu_ns > cpu_ns);
    }
}
