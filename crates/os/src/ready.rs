//! Waiting for one descriptor.

use std::os::fd::AsFd;

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};

use crate::clock;

/// Waits until `fd` is ready (or broken, which the next operation on it reports); `false` if the
/// deadline passed first.
pub(crate) fn wait(fd: impl AsFd, flags: PollFlags, deadline_ns: u64) -> Result<bool, Errno> {
    loop {
        let timeout = clock::timespec(clock::left(deadline_ns));
        match poll(&mut [PollFd::new(&fd, flags)], Some(&timeout)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
