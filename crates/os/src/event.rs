//! Events that wake another thread or process through `poll(2)` (`eventfd(2)`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::{
    event::{EventfdFlags, PollFlags, eventfd},
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::Errno,
};

use crate::ready;

/// Why an operation on an [`EventFd`] failed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// The process or the machine is out of descriptors.
    #[error("no file descriptor left for an event; raise `ulimit -n`")]
    NoDescriptor,
    /// Anything else the kernel says.
    #[error("{call} failed on an event: {errno}")]
    Os {
        /// System call.
        call: &'static str,
        /// Its error.
        errno: Errno,
    },
}

/// A counter that is readable while it is not zero. Never blocks.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// Makes an event that is not signaled.
    ///
    /// # Errors
    ///
    /// [`EventError`].
    pub fn new() -> Result<Self, EventError> {
        match eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) {
            Ok(fd) => Ok(Self(fd)),
            Err(Errno::MFILE | Errno::NFILE) => Err(EventError::NoDescriptor),
            Err(errno) => Err(EventError::Os { call: "eventfd", errno }),
        }
    }

    /// Takes an event that another process made and sent, or something else that it says is one: that
    /// must not block, either. (What a hostile process does to it later, it does to both.)
    ///
    /// # Errors
    ///
    /// [`EventError::Os`].
    pub fn from_fd(fd: OwnedFd) -> Result<Self, EventError> {
        let flags = fcntl_getfl(&fd).and_then(|flags| fcntl_setfl(&fd, flags | OFlags::NONBLOCK));
        flags.map_err(|errno| EventError::Os { call: "fcntl", errno })?;
        Ok(Self(fd))
    }

    /// Makes the event readable. Signals add up until somebody drains them.
    ///
    /// # Errors
    ///
    /// [`EventError::Os`] if the descriptor is no event.
    pub fn signal(&self) -> Result<(), EventError> {
        match rustix::io::retry_on_intr(|| rustix::io::write(&self.0, &1u64.to_ne_bytes())) {
            // A full counter is signaled already.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(errno) => Err(EventError::Os { call: "write", errno }),
        }
    }

    /// Takes all signals so far and returns their number.
    ///
    /// # Errors
    ///
    /// [`EventError::Os`] if the descriptor is no event.
    pub fn drain(&self) -> Result<u64, EventError> {
        let mut count = [0; size_of::<u64>()];
        match rustix::io::retry_on_intr(|| rustix::io::read(&self.0, &mut count)) {
            Ok(_) => Ok(u64::from_ne_bytes(count)),
            Err(Errno::AGAIN) => Ok(0),
            Err(errno) => Err(EventError::Os { call: "read", errno }),
        }
    }

    /// Waits until the event is signaled; `false` if the deadline passed first.
    ///
    /// # Errors
    ///
    /// [`EventError::Os`].
    pub fn wait(&self, deadline_ns: u64) -> Result<bool, EventError> {
        ready::wait(&self.0, PollFlags::IN, deadline_ns)
            .map_err(|errno| EventError::Os { call: "poll", errno })
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn signals_add_up_and_drain_takes_them_all() {
        let event = EventFd::new().unwrap();
        assert_eq!((event.wait(clock::NOW), event.drain()), (Ok(false), Ok(0)));
        event.signal().unwrap();
        event.signal().unwrap();
        assert_eq!((event.wait(clock::NOW), event.drain()), (Ok(true), Ok(2)));
        assert_eq!(event.wait(clock::NOW), Ok(false));
    }

    #[test]
    fn what_another_process_calls_an_event_does_not_block() {
        let blocking = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let (_reads, writes) = std::io::pipe().unwrap();
        for fd in [blocking, writes.into()] {
            let event = EventFd::from_fd(fd).unwrap();
            rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
            // More than a pipe holds.
            (0..10_000).for_each(|_| event.signal().unwrap());
        }
    }
}
