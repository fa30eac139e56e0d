//! Handles of other processes: is it dead yet, and is it still the same one?
//!
//! Process ids are recycled, a pidfd (`pidfd_open(2)`) is not: it names one process for ever.

use std::{
    fmt, fs,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    event::PollFlags,
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use crate::{clock, ready};

/// Number of the field `starttime` in `/proc/PID/stat`, counted from the one after `comm`.
///
/// Source: `proc_pid_stat(5)`: field 22, and field 3 is the first after `comm`.
const START_TIME_FIELD: usize = 22 - 3;

/// Clock ticks of `/proc`, `USER_HZ`: 100 on all machines that this runs on.
const TICKS_PER_SECOND: i64 = 100;

/// Why there is no handle of a process.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProcessError {
    /// It is dead already (or the id never named one).
    #[error("process {pid} is gone")]
    Gone {
        /// Its id.
        pid: u32,
    },
    /// The process or the machine is out of descriptors.
    #[error("no file descriptor left to watch process {pid}; raise `ulimit -n`")]
    NoDescriptor {
        /// Its id.
        pid: u32,
    },
    /// It lives, and `/proc` does not show it: that is not mounted, or of another PID namespace.
    #[error("process {pid} is not in /proc; mount that of this PID namespace")]
    Hidden {
        /// Its id.
        pid: u32,
    },
    /// Anything else the kernel says.
    #[error("cannot watch process {pid}: {errno}")]
    Os {
        /// Its id.
        pid: u32,
        /// The error.
        errno: Errno,
    },
}

/// Names a process among all that ever had its id since boot; unlike [`Process`] it can be stored in
/// shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessId {
    /// Process id.
    pub pid: u32,
    /// The start time in clock ticks since boot: tells it from others with this id.
    pub start_ticks: u64,
}

impl ProcessId {
    /// This process. Where `/proc` is not mounted its start is 0, and no other process finds it by this.
    #[must_use]
    pub fn own() -> Self {
        Self { pid: std::process::id(), start_ticks: start_ticks("self").unwrap_or(0) }
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.pid, self.start_ticks)
    }
}

/// A handle that keeps meaning the same process, dead or alive.
#[derive(Debug)]
pub struct Process {
    pidfd: OwnedFd,
    id: ProcessId,
}

impl Process {
    /// Opens a handle of the process that has this id now.
    ///
    /// # Errors
    ///
    /// [`ProcessError`].
    pub fn open(pid: u32) -> Result<Self, ProcessError> {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let raw = raw.ok_or(ProcessError::Gone { pid })?;
        let refused = |errno| match errno {
            Errno::SRCH | Errno::NOENT => ProcessError::Gone { pid },
            Errno::MFILE | Errno::NFILE => ProcessError::NoDescriptor { pid },
            errno => ProcessError::Os { pid, errno },
        };
        let pidfd = pidfd_open(raw, PidfdFlags::empty()).map_err(refused)?;
        let start_ticks = start_ticks(&pid.to_string());
        let id = ProcessId { pid, start_ticks: start_ticks.unwrap_or(0) };
        let process = Self { pidfd, id };
        // Alive after its start was read: so what was read is not of a successor.
        if process.is_dead() {
            return Err(ProcessError::Gone { pid });
        }
        match start_ticks {
            Ok(_) => Ok(process),
            // It was just seen alive.
            Err(Errno::NOENT | Errno::SRCH) => Err(ProcessError::Hidden { pid }),
            Err(errno) => Err(refused(errno)),
        }
    }

    /// A handle of a process that has no id in this PID namespace.
    pub(crate) fn unseen(pidfd: OwnedFd) -> Self {
        Self { pidfd, id: ProcessId { pid: 0, start_ticks: 0 } }
    }

    /// A handle of a process that another process handed to this one; its id is not known.
    #[must_use]
    pub fn of_pidfd(pidfd: OwnedFd) -> Self {
        Self::unseen(pidfd)
    }

    /// Opens a handle of the process that [`Self::id`] described earlier, perhaps elsewhere.
    ///
    /// # Errors
    ///
    /// [`ProcessError::Gone`] also if another process has the id by now.
    pub fn open_same(id: ProcessId) -> Result<Self, ProcessError> {
        let process = Self::open(id.pid)?;
        if process.id == id { Ok(process) } else { Err(ProcessError::Gone { pid: id.pid }) }
    }

    /// Whether the process that this names has ended. One that cannot be looked at has not.
    #[must_use]
    pub fn is_gone(id: ProcessId) -> bool {
        matches!(Self::open_same(id), Err(ProcessError::Gone { .. }))
    }

    /// The identity of the process.
    #[must_use]
    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// Whether the process has ended; a zombie has.
    ///
    /// One system call. If even that fails, the answer is no: better late than wrong.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.wait_dead(clock::NOW).unwrap_or(false)
    }

    /// Waits until the process has ended; `false` if the deadline passed first.
    ///
    /// # Errors
    ///
    /// [`ProcessError::Os`].
    pub fn wait_dead(&self, deadline_ns: u64) -> Result<bool, ProcessError> {
        ready::wait(&self.pidfd, PollFlags::IN, deadline_ns)
            .map_err(|errno| ProcessError::Os { pid: self.id.pid, errno })
    }
}

impl Process {
    /// Asks the process to end (SIGTERM).
    ///
    /// # Errors
    ///
    /// [`ProcessError::Gone`] if it has ended, and [`ProcessError::Os`].
    pub fn terminate(&self) -> Result<(), ProcessError> {
        let pid = self.id.pid;
        pidfd_send_signal(&self.pidfd, Signal::TERM).map_err(|errno| match errno {
            Errno::SRCH => ProcessError::Gone { pid },
            errno => ProcessError::Os { pid, errno },
        })
    }
}

impl AsFd for Process {
    /// Readable once the process has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// Whether a process is stopped: by a signal, or by a debugger. A process that has ended, or that this one does not see, is
/// not.
#[must_use]
pub fn is_stopped(pid: u32) -> bool {
    let stat = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    matches!(parse_state(&String::from_utf8_lossy(&stat)), Some("T" | "t"))
}

fn parse_state(stat: &str) -> Option<&str> {
    let (_, after_comm) = stat.rsplit_once(')')?;
    after_comm.split_ascii_whitespace().next()
}

/// The start of a process, by the name of its folder in `/proc`, the same in all time namespaces.
fn start_ticks(pid: &str) -> Result<u64, Errno> {
    let stat = fs::read(format!("/proc/{pid}/stat"))
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let shown = parse_start_ticks(&String::from_utf8_lossy(&stat)).ok_or(Errno::IO)?;
    // A kernel without time namespaces has no such file.
    let offsets = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    Ok(shown.wrapping_add_signed(parse_boot_offset(&offsets).wrapping_neg()))
}

/// By how many ticks this time namespace is ahead of the machine's clock since boot.
///
/// Source: `time_namespaces(7)`: lines of a clock, seconds and nanoseconds.
fn parse_boot_offset(offsets: &str) -> i64 {
    let parse = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let is_boot = matches!(words.next(), Some("boottime" | "7"));
        let seconds: i64 = words.next().filter(|_| is_boot)?.parse().ok()?;
        let nanos: i64 = words.next()?.parse().ok()?;
        Some(seconds.saturating_mul(TICKS_PER_SECOND) + nanos / (1_000_000_000 / TICKS_PER_SECOND))
    };
    offsets.lines().find_map(parse).unwrap_or(0)
}

/// `comm` may contain anything, parentheses and spaces too; what follows the last one does not.
fn parse_start_ticks(stat: &str) -> Option<u64> {
    let (_, after_comm) = stat.rsplit_once(')')?;
    after_comm.split_ascii_whitespace().nth(START_TIME_FIELD)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_alive_and_keeps_its_identity() {
        let this = Process::open(std::process::id()).unwrap();
        assert_eq!(this.id(), ProcessId::own());
        assert!(!this.is_dead());
        assert_eq!(Process::open_same(this.id()).unwrap().id(), this.id());
    }

    #[test]
    fn a_recycled_id_is_not_the_same_process() {
        let mut id = Process::open(std::process::id()).unwrap().id();
        id.start_ticks -= 1;
        assert_eq!(Process::open_same(id).unwrap_err(), ProcessError::Gone { pid: id.pid });
    }

    #[test]
    fn a_process_is_stopped_between_two_signals() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        let comes_to = |is_wanted: bool| {
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
            while is_stopped(child.id()) != is_wanted {
                assert!(std::time::Instant::now() < deadline);
                std::thread::yield_now();
            }
        };
        assert!(!is_stopped(child.id()));
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        comes_to(true);
        rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
        comes_to(false);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_stopped(u32::MAX));
    }

    #[test]
    fn ids_that_name_no_process_are_gone() {
        for pid in [0, i32::MAX.unsigned_abs(), u32::MAX] {
            assert_eq!(Process::open(pid).unwrap_err(), ProcessError::Gone { pid });
        }
    }

    #[test]
    fn the_offset_of_a_time_namespace_is_read_in_ticks() {
        let offsets = "monotonic           7         0\nboottime       86400 500000000\n";
        assert_eq!(parse_boot_offset(offsets), 8_640_050);
        assert_eq!(parse_boot_offset("boottime -2000 0"), -200_000);
        assert_eq!((parse_boot_offset(""), parse_boot_offset("boottime x")), (0, 0));
    }

    #[test]
    fn a_hostile_command_name_does_not_shift_the_fields() {
        let stat = "7 (a) 1 (b) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 123456 8192 9";
        assert_eq!(parse_start_ticks(stat), Some(123_456));
        assert_eq!(parse_state(stat), Some("S"));
        assert_eq!(parse_start_ticks("7 (a"), None);
        assert_eq!(parse_state("7 (a"), None);
    }
}
