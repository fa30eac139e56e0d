//! The kernel's part of librdmacm: connections between queue pairs, by IP addresses of this machine.
//!
//! ```text
//!  program ─ librdmacm ─ write(fd, command) ─▶ commands ─▶ Manager ── sockets ── Managers of other processes
//!                │                                            │ thread
//!                └─ read(fd), poll(fd) ◀── eventfd ◀── events ┘
//! ```
//!
//! A port number is the abstract name of a socket, on which a listener hears from others and who connects is heard:
//! one socket per connection. A process that ends closes it, and its peer is disconnected, as by a kernel that closes
//! the identifiers of a dead process. Which IP address is named does not matter, so long as it is one of this machine.
//! Queue pairs are moved by the program, by what [`attributes`] tell it. The engine is only asked to take in what has
//! arrived before a program is told that its peer is gone.

mod address;
mod addressing;
mod attributes;
mod commands;
mod event;
mod id;
mod manager;
mod message;
mod private;
mod query;
mod socket;

use std::{
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use attributes::PortIdentity;
use manager::Manager;
use memory::sync::{AtomicU32, Ordering};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::Errno,
};

use crate::{Refusal, descriptors::hide, engine::Engine, per_process::PerProcess, polls::Polls};

/// For fuzzing: any bytes are refused as a message between connection managers, or are one that survives as bytes.
///
/// # Panics
///
/// If it does not.
pub fn check_message(bytes: &[u8]) {
    message::check(bytes);
}

/// How long the thread sleeps where nobody calls it.
const SLEEP: Duration = Duration::from_secs(1);

/// How long whoever waits for the thread sleeps between looks.
const LET_GO: Duration = Duration::from_micros(20);

/// The connection manager of a process.
#[derive(Debug)]
pub(crate) struct ConnectionManager {
    manager: Mutex<Manager>,
    /// Tells the thread that there is another socket to look at.
    bell: OwnedFd,
    /// Has the engine take in what has arrived.
    catch_up: fn(),
    /// Odd while the thread may be waiting for descriptors, which keeps what others close meanwhile open.
    waits: AtomicU32,
}

static MANAGER: PerProcess<Option<ConnectionManager>> = PerProcess::new();

/// That of this process.
pub(crate) fn get() -> Option<&'static ConnectionManager> {
    MANAGER.get().and_then(Option::as_ref)
}

/// That of this process, which begins with the first call.
pub(crate) fn start(
    engine: &Engine,
    fabric: &str,
    catch_up: fn(),
) -> Option<&'static ConnectionManager> {
    let started = MANAGER.get_or_init(|| {
        let gids = engine.gid_table();
        let port = PortIdentity { lid: engine.lid, link: engine.link, gids };
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
        hide(&bell);
        let manager = Mutex::new(Manager::new(fabric.to_owned(), port));
        Some(ConnectionManager { manager, bell, catch_up, waits: AtomicU32::new(0) })
    });
    static THREAD: PerProcess<bool> = PerProcess::new();
    let manager = started?.as_ref()?;
    let is_served = THREAD.get_or_init(|| {
        let thread = std::thread::Builder::new().name("uverbs-cm".into());
        thread.spawn(|| manager.work()).is_ok()
    });
    is_served?.then_some(manager)
}

impl ConnectionManager {
    fn lock(&self) -> MutexGuard<'_, Manager> {
        self.manager.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the thread; which of its waits that ends, for [`Self::let_go`].
    fn ring(&self) -> u32 {
        // Before the bell, after which the thread may already be in its next wait, that no bell ends.
        let wait = self.waits.load(Ordering::Acquire);
        // It is full, and so readable, or it counts one more.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        wait
    }

    /// Makes a channel, whose descriptor becomes the program's.
    pub(crate) fn open(&self) -> Result<OwnedFd, Errno> {
        self.lock().open()
    }

    /// A channel is about to be closed.
    pub(crate) fn close(&self, channel: RawFd) {
        self.lock().close(channel);
        self.let_go(self.ring());
    }

    /// Waits until the thread has left that wait: sockets that were closed have lost their names then.
    fn let_go(&self, wait: u32) {
        let deadline = Instant::now() + SLEEP;
        while wait % 2 == 1
            && self.waits.load(Ordering::Acquire) == wait
            && Instant::now() < deadline
        {
            std::thread::sleep(LET_GO);
        }
    }

    /// Runs a command that was written to a channel.
    ///
    /// # Errors
    ///
    /// For `errno`, with what is to be said.
    ///
    /// # Safety
    ///
    /// It comes from librdmacm: the response that it names is memory of this process.
    pub(crate) unsafe fn command(&self, channel: RawFd, bytes: &[u8]) -> Result<(), Refusal> {
        let command = commands::Command::parse(bytes)
            .ok_or_else(|| Refusal::new("a command of rdma_cm", "it is too short", Errno::INVAL))?;
        let response = if command.is_get_event() {
            self.wait_for_event(channel).map_err(|errno| command.refusal(errno))?
        } else {
            let ran = commands::run(&mut self.lock(), channel, &command);
            let wait = self.ring();
            if command.ends_id() {
                self.let_go(wait);
            }
            ran?
        };
        // SAFETY: by contract.
        unsafe { command.respond(&response) };
        Ok(())
    }

    /// Waits as the channel's descriptor says: not at all if it is non-blocking. The program ends the wait by a
    /// signal, as it does with a kernel.
    fn wait_for_event(&self, channel: RawFd) -> Result<Vec<u8>, Errno> {
        // SAFETY: the program writes to the descriptor, and so has it open.
        let counter = unsafe { BorrowedFd::borrow_raw(channel) };
        loop {
            rustix::io::read(counter, &mut [0; 8])?;
            // What was counted may have gone with its identifier.
            if let Some(event) = self.lock().take_event(channel) {
                return Ok(event.encode());
            }
        }
    }

    fn work(&self) {
        loop {
            let manager = self.lock();
            let (sources, due) = manager.sources();
            // Under the lock: whoever closes one of them afterwards sees that the thread waits.
            self.waits.fetch_add(1, Ordering::AcqRel);
            drop(manager);
            let readable = self.wait(&sources, due);
            self.waits.fetch_add(1, Ordering::AcqRel);
            let mut manager = self.lock();
            for handle in readable {
                manager.serve(handle);
            }
            manager.expire(Instant::now());
            manager.request_again();
            let has_heard_end = manager.has_heard_end();
            // A program's thread may hold the engine, and ask for the manager.
            drop(manager);
            if has_heard_end {
                (self.catch_up)();
            }
            let (polls, now) = (Polls::now(), Instant::now());
            let mut manager = self.lock();
            if has_heard_end {
                manager.completed(polls, now);
            }
            manager.part(polls, now);
        }
    }

    /// Identifiers whose sockets are readable, at the latest after [`SLEEP`].
    fn wait(&self, sources: &[(u32, RawFd)], due: Option<Instant>) -> Vec<u32> {
        // SAFETY: only numbers for `poll`, which refuses what is closed.
        let borrow = |fd: RawFd| unsafe { BorrowedFd::borrow_raw(fd) };
        let mut fds: Vec<PollFd<'_>> = sources
            .iter()
            .map(|(_, fd)| PollFd::from_borrowed_fd(borrow(*fd), PollFlags::IN))
            .collect();
        fds.push(PollFd::from_borrowed_fd(borrow(self.bell.as_fd().as_raw_fd()), PollFlags::IN));
        let timeout =
            due.map_or(SLEEP, |due| due.saturating_duration_since(Instant::now()).min(SLEEP));
        let timeout = Timespec::try_from(timeout).ok();
        let _ = poll(&mut fds, timeout.as_ref());
        // It is empty, or is made so.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        let found = sources.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty());
        found.map(|((handle, _), _)| *handle).collect()
    }
}

#[cfg(test)]
mod tests;
