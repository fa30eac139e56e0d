//! One descriptor that is readable when any of a set has something to say (`epoll(7)`).

use core::mem::MaybeUninit;
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    event::{
        Timespec,
        epoll::{self, CreateFlags, Event, EventData, EventFlags},
    },
    io::Errno,
};

/// Events taken at a time: a budget per look.
const EVENTS_MAX: usize = 32;

/// An event of a member of the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ready {
    /// As given when it was added.
    pub(crate) key: u64,
    /// Its other end is gone.
    pub(crate) hung_up: bool,
}

/// A set of descriptors.
#[derive(Debug)]
pub(crate) struct Poller(OwnedFd);

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(CreateFlags::CLOEXEC)?))
    }

    /// Watches for input and hang-up, until [`remove`](Self::remove).
    pub(crate) fn add(&self, source: impl AsFd, key: u64) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::RDHUP;
        Ok(epoll::add(&self.0, source, EventData::new_u64(key), flags)?)
    }

    /// Closing is not enough where a forked child keeps a copy of the descriptor.
    pub(crate) fn remove(&self, source: impl AsFd) {
        // Fails only if it is not watched any more, which is what is wanted.
        let _ = epoll::delete(&self.0, source);
    }

    /// Waits until something happens or the timeout passes, and says what, up to a budget.
    pub(crate) fn wait(&self, timeout_ns: u64) -> impl Iterator<Item = Ready> + use<> {
        let mut events = [MaybeUninit::<Event>::uninit(); EVENTS_MAX];
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout_ns / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(timeout_ns % 1_000_000_000).unwrap_or(0),
        };
        let count = match epoll::wait(&self.0, &mut events[..], Some(&timeout)) {
            Ok((ready, _)) => ready.len(),
            // A signal: the caller looks at its clock and waits again.
            Err(Errno::INTR) => 0,
            Err(errno) => panic!("epoll_wait on a set that is ours failed: {errno}"),
        };
        events.into_iter().take(count).map(|event| {
            // SAFETY: the kernel filled the first `count` entries.
            let event = unsafe { event.assume_init() };
            let (data, flags) = (event.data, event.flags);
            let hung_up = flags.intersects(EventFlags::HUP | EventFlags::RDHUP | EventFlags::ERR);
            Ready { key: data.u64(), hung_up }
        })
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
