//! The rendezvous on sockets: one thread, non-blocking, as many buffers as the [`Rendezvous`] allows.

use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    io::{self, ErrorKind, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use memory::sync::{AtomicBool, AtomicU64, Ordering};
use os::clock;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

pub use crate::rendezvous::RendezvousStats;
use crate::{
    entropy,
    rendezvous::{Action, ConnectionId, Rendezvous, RendezvousConfig},
};

/// Connections accepted per look.
const ACCEPTS_PER_LOOK: usize = 64;

/// Bytes read of one connection per look.
const READ_BYTES: usize = 4096;

/// Connections that may still have something to be sent to them.
const FINISHING_MAX: usize = 1024;

/// The longest time for which the last bytes to a connection may wait.
const FINISH_TIMEOUT_NS: u64 = 10_000_000_000;

/// The pause of accepting when descriptors run out.
const BACKOFF_NS: u64 = 100_000_000;

/// The interval at which the thread checks for its stop flag.
const LOOK_NS: u64 = 50_000_000;

/// Time between two lines of log about strangers.
const LOG_INTERVAL_NS: u64 = 1_000_000_000;

/// A rendezvous that serves until it is dropped.
#[derive(Debug)]
pub struct RendezvousServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    stats: Mutex<RendezvousStats>,
}

/// When each rank lived, as far as the failure detector of this daemon knows.
#[derive(Debug)]
pub struct Lives(Box<[AtomicU64]>);

impl Lives {
    /// Of a job of `size` ranks, none of which is known to live.
    #[must_use]
    pub fn new(size: u32) -> Self {
        Self((0..size).map(|_| AtomicU64::new(0)).collect())
    }

    /// Tells that a rank lived at a time of this machine's clock: it has answered what was sent then. `None`: it
    /// is gone. A rank that the job does not have is ignored.
    pub fn set(&self, rank: u32, lived_ns: Option<u64>) {
        if let Some(life) = self.0.get(rank as usize) {
            // Relaxed: the number is all there is to see.
            life.store(lived_ns.unwrap_or(0), Ordering::Relaxed);
        }
    }

    fn of(&self, rank: u32) -> Option<u64> {
        let life = self.0.get(rank as usize)?.load(Ordering::Relaxed);
        (life != 0).then_some(life)
    }
}

impl RendezvousServer {
    /// Serves at `listener`, on a thread of its own. The roster is kept in the file `remember`.
    ///
    /// # Errors
    ///
    /// If the listener cannot be made non-blocking, or no thread can be made.
    pub fn start(
        listener: TcpListener,
        config: RendezvousConfig,
        remember: Option<PathBuf>,
        lives: Arc<Lives>,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let rendezvous = Rendezvous::new(config, clock::now_ns(), entropy::nonce);
        let server = Server {
            listener,
            rendezvous,
            remember,
            lives,
            sockets: BTreeMap::new(),
            resume_ns: 0,
            logged_ns: 0,
            logged: RendezvousStats::default(),
        };
        let theirs = Arc::clone(&shared);
        let thread =
            thread::Builder::new().name("copyrpc-rdv".into()).spawn(move || server.run(&theirs))?;
        Ok(Self { address, shared, thread: Some(thread) })
    }

    /// The address on which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Counters of connections.
    #[must_use]
    pub fn stats(&self) -> RendezvousStats {
        *self.shared.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RendezvousServer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It panicked already, or has nothing to say.
            let _ = thread.join();
        }
    }
}

struct Socket {
    stream: TcpStream,
    /// Frames still to be sent, and the bytes of the first that were sent.
    out: VecDeque<Arc<[u8]>>,
    sent_bytes: usize,
    /// Set once nothing is expected any more.
    finish_ns: Option<u64>,
}

struct Server {
    listener: TcpListener,
    rendezvous: Rendezvous,
    remember: Option<PathBuf>,
    /// When ranks lived: nobody takes the place of one that does.
    lives: Arc<Lives>,
    sockets: BTreeMap<ConnectionId, Socket>,
    /// Until when nothing is accepted.
    resume_ns: u64,
    logged_ns: u64,
    logged: RendezvousStats,
}

impl Server {
    fn run(mut self, shared: &Shared) {
        let mut now_ns = clock::now_ns();
        while !shared.stop.load(Ordering::Relaxed) && !self.rendezvous.is_over(now_ns) {
            let ready = self.wait(now_ns);
            now_ns = clock::now_ns();
            self.accept(now_ns);
            for id in ready {
                self.read(id);
            }
            for rank in self.rendezvous.contested() {
                self.rendezvous.handle_life(rank, self.lives.of(rank));
            }
            self.rendezvous.handle_timeout(now_ns);
            while let Some(action) = self.rendezvous.poll_action() {
                self.perform(action, now_ns);
            }
            self.sockets.retain(|_, socket| socket.flush(now_ns));
            *shared.stats.lock().unwrap_or_else(PoisonError::into_inner) = self.rendezvous.stats();
            self.log(now_ns);
        }
    }

    /// Waits for something to do, and says which connections have it.
    fn wait(&self, now_ns: u64) -> Vec<ConnectionId> {
        let is_accepting = now_ns >= self.resume_ns;
        let interest = |socket: &Socket| {
            if socket.out.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT }
        };
        let mut fds: Vec<_> = self
            .sockets
            .values()
            .map(|socket| PollFd::from_borrowed_fd(socket.stream.as_fd(), interest(socket)))
            .collect();
        if is_accepting {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        let until_ns = self.rendezvous.poll_timeout().unwrap_or(u64::MAX).min(now_ns + LOOK_NS);
        let timeout = Duration::from_nanos(until_ns.saturating_sub(now_ns));
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // An error means that nothing is ready: the next look tells.
        let _ = poll(&mut fds, Some(&timeout));
        let ids = self.sockets.keys().zip(&fds);
        ids.filter(|(_, fd)| !fd.revents().is_empty()).map(|(id, _)| *id).collect()
    }

    fn accept(&mut self, now_ns: u64) {
        if now_ns < self.resume_ns {
            return;
        }
        for _ in 0..ACCEPTS_PER_LOOK {
            match self.listener.accept() {
                Ok((stream, address)) => {
                    if stream.set_nonblocking(true).is_err() {
                        continue;
                    }
                    // Small answers should not wait for more; without it they do.
                    let _ = stream.set_nodelay(true);
                    let id = self.rendezvous.handle_connection(address.to_string(), now_ns);
                    let out = VecDeque::new();
                    let socket = Socket { stream, out, sent_bytes: 0, finish_ns: None };
                    self.sockets.insert(id, socket);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if is_exhausted(&error) => {
                    tracing::warn!("the rendezvous cannot accept: {error}; raise `ulimit -n`");
                    self.resume_ns = now_ns + BACKOFF_NS;
                    return;
                }
                // Somebody who left before being accepted.
                Err(_) => {}
            }
        }
    }

    fn read(&mut self, id: ConnectionId) {
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        let mut buffer = [0; READ_BYTES];
        match socket.stream.read(&mut buffer) {
            Ok(0) => {
                self.rendezvous.handle_closed(id);
                self.sockets.remove(&id);
            }
            // What comes after the last word is not read for its content.
            Ok(_) if socket.finish_ns.is_some() => {}
            Ok(count) => self.rendezvous.handle_bytes(id, &buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => {
                self.rendezvous.handle_closed(id);
                self.sockets.remove(&id);
            }
        }
    }

    fn perform(&mut self, action: Action, now_ns: u64) {
        match action {
            Action::Send(id, bytes) => {
                if let Some(socket) = self.sockets.get_mut(&id) {
                    socket.out.push_back(bytes);
                }
            }
            Action::Finish(id) => {
                let finishing = self.sockets.values().filter(|s| s.finish_ns.is_some()).count();
                if let Some(socket) = self.sockets.get_mut(&id) {
                    let timeout_ns = if finishing < FINISHING_MAX { FINISH_TIMEOUT_NS } else { 0 };
                    socket.finish_ns = Some(now_ns + timeout_ns);
                }
            }
            Action::Drop(id) => drop(self.sockets.remove(&id)),
            Action::Remember(roster) => {
                if let Some(path) = &self.remember
                    && let Err(error) = write_whole(path, &roster)
                {
                    // Only a restart of this daemon would need it.
                    let path = path.display();
                    tracing::warn!(%path, %error, "cannot store the addresses of the other ranks");
                }
            }
        }
    }

    /// One line a second at most, whatever comes in.
    fn log(&mut self, now_ns: u64) {
        let strangers =
            |stats: &RendezvousStats| stats.garbage + stats.slow + stats.foreign + stats.unproved;
        let stats = self.rendezvous.stats();
        if strangers(&stats) != strangers(&self.logged)
            && now_ns.saturating_sub(self.logged_ns) >= LOG_INTERVAL_NS
        {
            let RendezvousStats { garbage, slow, foreign, unproved, .. } = stats;
            tracing::warn!(
                garbage,
                slow,
                foreign,
                unproved,
                "the rendezvous turned strangers away"
            );
            (self.logged, self.logged_ns) = (stats, now_ns);
        }
    }
}

impl Socket {
    /// Sends what can be sent; `false` once the connection is over.
    fn flush(&mut self, now_ns: u64) -> bool {
        while let Some(front) = self.out.front() {
            match self.stream.write(&front[self.sent_bytes..]) {
                Ok(count) => {
                    self.sent_bytes += count;
                    if self.sent_bytes == front.len() {
                        self.sent_bytes = 0;
                        self.out.pop_front();
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => return false,
            }
        }
        let Some(finish_ns) = self.finish_ns else { return true };
        if self.out.is_empty() {
            // Not closed yet: bytes of the other side that nobody read would reset the connection
            // before it has read the last word. It closes when it has.
            let _ = self.stream.shutdown(Shutdown::Write);
        }
        now_ns < finish_ns
    }
}

/// Replaces a file whole.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("roster-tmp");
    fs::write(&temporary, bytes)?;
    fs::rename(&temporary, path)
}

fn is_exhausted(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| {
        matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)
    })
}
