//! Which of several sockets are ready (`epoll(7)`, level-triggered).

use std::{
    fmt, io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use rustix::{
    buffer::spare_capacity,
    event::{self, PollFd, PollFlags, Timespec, epoll},
    io::Errno,
};

use super::NAP_MAX;

/// Sockets told of at once.
const EVENTS_MAX: usize = 64;
const NS_PER_MS: i64 = 1_000_000;

/// What to wait for on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interest {
    Readable,
    Writable,
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        match self {
            Self::Readable => epoll::EventFlags::IN,
            Self::Writable => epoll::EventFlags::OUT,
        }
    }
}

/// A set of sockets, each with a number.
pub(super) struct Poller {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").field("epoll", &self.epoll).finish_non_exhaustive()
    }
}

impl Poller {
    pub(super) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, events: Vec::with_capacity(EVENTS_MAX) })
    }

    pub(super) fn add(&self, socket: impl AsFd, number: usize) -> io::Result<()> {
        let data = epoll::EventData::new_u64(number as u64);
        Ok(epoll::add(&self.epoll, socket, data, Interest::Readable.flags())?)
    }

    pub(super) fn change(
        &self,
        socket: impl AsFd,
        number: usize,
        interest: Interest,
    ) -> io::Result<()> {
        let data = epoll::EventData::new_u64(number as u64);
        Ok(epoll::modify(&self.epoll, socket, data, interest.flags())?)
    }

    /// Numbers of the sockets that are ready now (`timeout` zero), or soon.
    pub(super) fn wait(
        &mut self,
        timeout: Duration,
    ) -> io::Result<impl Iterator<Item = usize> + '_> {
        self.events.clear();
        let timeout = timeout.min(NAP_MAX);
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(timeout.subsec_nanos()) };
        let mut epoll_timeout = timeout;
        if timeout.tv_nsec % NS_PER_MS != 0 {
            // `epoll_wait` rounds up to milliseconds: too late for a call that is due.
            let mut set = [PollFd::new(&self.epoll, PollFlags::IN)];
            ignore_interrupt(event::poll(&mut set, Some(&timeout)))?;
            epoll_timeout.tv_nsec = 0;
        }
        let found =
            epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&epoll_timeout));
        ignore_interrupt(found.map(|_| 0))?;
        Ok(self.events.iter().filter_map(|event| usize::try_from(event.data.u64()).ok()))
    }
}

fn ignore_interrupt(result: Result<usize, Errno>) -> io::Result<()> {
    match result {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
