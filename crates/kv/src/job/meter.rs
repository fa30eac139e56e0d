//! What a process spends inside the measured interval: CPU time, and changes from one thread to another.

use std::{fs, io, path::Path, time::Duration};

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
}

impl Spent {
    /// So far.
    fn now() -> Self {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        let (s, ns) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
        let cpu_ns = s.unwrap_or(0) * 1_000_000_000 + ns.unwrap_or(0);
        // Without `/proc` nothing is known about switches.
        Self { cpu_ns, switches: switches().unwrap_or(0) }
    }
}

/// Of all threads of this process.
fn switches() -> io::Result<u64> {
    fs::read_dir("/proc/self/task")?.map(|thread| Ok(switches_of(&thread?.path()))).sum()
}

/// Of the thread with this folder; none if it has just ended. Source: `proc_pid_status(5)`.
fn switches_of(thread: &Path) -> u64 {
    let status = fs::read_to_string(thread.join("status")).unwrap_or_default();
    let counts = status.lines().filter_map(|line| line.split_once("voluntary_ctxt_switches:"));
    counts.filter_map(|(_, count)| count.trim().parse::<u64>().ok()).sum()
}

/// Looks at both ends of the measured interval, whenever it is asked to.
#[derive(Debug, Default)]
pub(super) struct Meter {
    begin: Option<Spent>,
    end: Option<Spent>,
}

impl Meter {
    pub(super) fn look(&mut self, schedule: &Schedule) {
        let now_ns = clock::now_ns();
        if now_ns >= schedule.measure_ns {
            self.begin.get_or_insert_with(Spent::now);
        }
        if now_ns >= schedule.end_ns {
            self.end.get_or_insert_with(Spent::now);
        }
    }

    /// Time until the next look that matters.
    pub(super) fn pause(&self, schedule: &Schedule) -> Duration {
        let next_ns = match (self.begin, self.end) {
            (None, _) => schedule.measure_ns,
            (_, None) => schedule.end_ns,
            _ => return LOOK,
        };
        Duration::from_nanos(next_ns.saturating_sub(clock::now_ns()))
            .clamp(Duration::from_micros(50), LOOK)
    }

    pub(super) fn spent(&self) -> Spent {
        let end = self.end.unwrap_or_else(Spent::now);
        let begin = self.begin.unwrap_or(end);
        // A thread that has ended in between takes its switches along.
        let switches = end.switches.saturating_sub(begin.switches);
        Spent { cpu_ns: end.cpu_ns.saturating_sub(begin.cpu_ns), switches }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Looks at its own thread: those of other tests end, and take what they counted along.
    #[test]
    fn a_thread_that_sleeps_gives_up_its_core_and_is_counted() {
        const NAPS: u64 = 5;
        let this = Path::new("/proc/thread-self");
        let (before, cpu_ns) = (switches_of(this), Spent::now().cpu_ns);
        (0..NAPS).for_each(|_| thread::sleep(Duration::from_millis(1)));
        let after = switches_of(this);
        assert!(after >= before + NAPS, "{before} {after}");
        let now = Spent::now();
        assert!(now.switches >= after, "this thread is one of the process: {now:?} {after}");
        assert!(now.cpu_ns > cpu_ns);
    }
}
