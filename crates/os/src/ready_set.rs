//! Several descriptors as one: readable while any of them is (`epoll(7)`, level-triggered).

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::event::{PollFlags, epoll};

use crate::ready;

/// Descriptors of which any makes it readable.
#[derive(Debug)]
pub struct ReadySet(OwnedFd);

impl ReadySet {
    /// A set of these. A descriptor leaves it when its last copy is closed.
    ///
    /// # Errors
    ///
    /// The kernel's reason.
    pub fn new(members: &[BorrowedFd<'_>]) -> io::Result<Self> {
        let set = Self(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        for member in members {
            set.add(member, epoll::EventFlags::IN)?;
        }
        Ok(set)
    }

    /// One more.
    ///
    /// # Errors
    ///
    /// The kernel's reason.
    pub fn add_readable(&self, member: impl AsFd) -> io::Result<()> {
        self.add(member, epoll::EventFlags::IN)
    }

    fn add(&self, member: impl AsFd, flags: epoll::EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.0, member, epoll::EventData::new_u64(0), flags)?)
    }

    /// Also counts room to write in a member, or no longer.
    ///
    /// # Errors
    ///
    /// The kernel's reason.
    pub fn set_writable(&self, member: impl AsFd, wanted: bool) -> io::Result<()> {
        let mut flags = epoll::EventFlags::IN;
        flags.set(epoll::EventFlags::OUT, wanted);
        Ok(epoll::modify(&self.0, member, epoll::EventData::new_u64(0), flags)?)
    }

    /// Waits until one is ready; `false` if the deadline passed first.
    ///
    /// # Errors
    ///
    /// The kernel's reason.
    pub fn wait(&self, deadline_ns: u64) -> io::Result<bool> {
        Ok(ready::wait(&self.0, PollFlags::IN, deadline_ns)?)
    }
}

impl AsFd for ReadySet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;
    use crate::clock;

    #[test]
    fn any_member_makes_it_ready_until_all_are_drained() {
        let ((mut first, mut to_first), (second, mut to_second)) =
            (io::pipe().unwrap(), io::pipe().unwrap());
        let set = ReadySet::new(&[first.as_fd(), second.as_fd()]).unwrap();
        assert!(!set.wait(clock::NOW).unwrap());
        to_first.write_all(b"x").unwrap();
        assert!(set.wait(clock::NOW).unwrap());
        first.read_exact(&mut [0]).unwrap();
        assert!(!set.wait(clock::NOW).unwrap());
        to_second.write_all(b"x").unwrap();
        assert!(set.wait(clock::NOW).unwrap());
        drop(second);
        assert!(!set.wait(clock::NOW).unwrap());
    }
}
