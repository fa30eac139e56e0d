//! A client process that dies while others are measured.

use std::{
    io,
    os::fd::OwnedFd,
    thread::{self, JoinHandle},
    time::Duration,
};

use os::clock;
use rustix::process::{Signal, pidfd_send_signal};

/// A death that is to come, or came.
pub(super) struct Death {
    /// Name of the child.
    pub(super) name: String,
    thread: JoinHandle<io::Result<u64>>,
}

impl Death {
    /// Ends a process by SIGKILL at a time.
    pub(super) fn of(name: String, process: OwnedFd, at_ns: u64) -> Self {
        let thread = thread::spawn(move || {
            thread::sleep(Duration::from_nanos(at_ns.saturating_sub(clock::now_ns())));
            let now_ns = clock::now_ns();
            pidfd_send_signal(&process, Signal::KILL)?;
            Ok(now_ns)
        });
        Self { name, thread }
    }

    /// When it came.
    pub(super) fn time_ns(self) -> io::Result<u64> {
        let panicked = |_| Err(io::Error::other("its thread panicked"));
        self.thread.join().unwrap_or_else(panicked)
    }
}
