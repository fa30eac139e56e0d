//! Two pinned processes: this program runs itself a second time as the other side.
//!
//! ```text
//! initiator (parent)                                 responder (child)
//!   Duo ── Unix socket, JSON lines: commands, replies ── stdin
//!    └──── memfd of the board ────────────────────────── stdout
//! ```
//!
//! The child inherits both as standard streams, so no path or number needs to be agreed on. It dies
//! with its parent (`PR_SET_PDEATHSIG`), and dropping [`Duo`] kills and reaps it.

use std::{
    env,
    ffi::OsStr,
    io::{self, BufRead as _, BufReader, ErrorKind, Write as _},
    os::{fd::AsFd as _, fd::OwnedFd, unix::net::UnixStream},
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    board::{Board, BoardError},
    cores::{self, Cores},
};

/// Environment variable in which the parent tells the child its process id.
const PARENT_VARIABLE: &str = "COPYRPC_DUO_PARENT";
/// Longest wait for a message that the other side should send soon.
pub const REPLY_DEADLINE: Duration = Duration::from_secs(10);
/// Sockets know no shorter timeout than this, and zero would mean none.
const TIMEOUT_MIN: Duration = Duration::from_micros(1);
/// Longest message, so that garbage does not fill memory.
const MESSAGE_BYTES_MAX: u64 = 64 << 10;

/// Why two processes could not be set up, or lost each other.
#[derive(Debug, thiserror::Error)]
pub enum DuoError {
    /// A core, a socket or a process could not be had.
    #[error("{what}: {cause}")]
    System {
        /// What was tried.
        what: &'static str,
        /// As the kernel says.
        cause: io::Error,
    },
    /// No shared words.
    #[error(transparent)]
    Board(#[from] BoardError),
    /// The other side is gone: the reason is in its own message.
    #[error("the other process ended")]
    PeerGone,
    /// The other side is stuck.
    #[error("the other process sent nothing for {0:?}")]
    Silent(Duration),
    /// The two sides are not of the same version, or somebody else writes to the socket.
    #[error("the other process sent a message that makes no sense: {0}")]
    Message(#[from] serde_json::Error),
    /// Started by hand instead of by the parent.
    #[error("this command is started by `copyrpc bench` itself, not by hand")]
    NotAChild,
}

impl DuoError {
    fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::System { what, cause }
    }
}

/// One end of the control connection.
#[derive(Debug)]
pub struct Control {
    stream: BufReader<UnixStream>,
    /// What has arrived of the next message.
    partial: Vec<u8>,
}

impl Control {
    fn new(stream: UnixStream) -> Self {
        Self { stream: BufReader::new(stream), partial: Vec::new() }
    }

    /// Sends `message`.
    ///
    /// # Errors
    ///
    /// [`DuoError::PeerGone`].
    pub fn send(&mut self, message: &impl Serialize) -> Result<(), DuoError> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line).map_err(|_| DuoError::PeerGone)
    }

    /// Waits for the next message; `None`: for ever, until the other side is gone. After
    /// [`DuoError::Silent`] it may be called again: nothing is lost.
    ///
    /// # Errors
    ///
    /// [`DuoError`].
    pub fn receive<T: DeserializeOwned>(
        &mut self,
        timeout: Option<Duration>,
    ) -> Result<T, DuoError> {
        let timeout = timeout.map(|timeout| timeout.max(TIMEOUT_MIN));
        self.stream
            .get_ref()
            .set_read_timeout(timeout)
            .map_err(DuoError::system("cannot set a timeout"))?;
        let room = MESSAGE_BYTES_MAX.saturating_sub(self.partial.len() as u64);
        let mut limited = io::Read::take(&mut self.stream, room);
        match limited.read_until(b'\n', &mut self.partial) {
            Ok(_) if self.partial.ends_with(b"\n") => {
                Ok(serde_json::from_slice(&std::mem::take(&mut self.partial))?)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Err(DuoError::Silent(timeout.unwrap_or_default()))
            }
            Ok(_) | Err(_) => Err(DuoError::PeerGone),
        }
    }
}

/// The parent's hold on both sides.
#[derive(Debug)]
pub struct Duo {
    /// The shared words.
    pub board: Board,
    /// To and from the child.
    pub control: Control,
    child: Child,
}

impl Duo {
    /// Starts this program again with `arguments`, which must lead it to [`Side::of_child`], and
    /// pins the calling thread.
    ///
    /// # Errors
    ///
    /// [`DuoError`].
    pub fn start<S: AsRef<OsStr>>(cores: Cores, arguments: &[S]) -> Result<Self, DuoError> {
        cores::pin(cores.initiator).map_err(DuoError::system("cannot pin to the first core"))?;
        let board = Board::new()?;
        let (ours, theirs) =
            UnixStream::pair().map_err(DuoError::system("cannot make a socket pair"))?;
        let program = env::current_exe().map_err(DuoError::system("cannot find this program"))?;
        let child = Command::new(program)
            .args(arguments)
            .env(PARENT_VARIABLE, std::process::id().to_string())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::from(board.descriptor()?))
            .spawn()
            .map_err(DuoError::system("cannot start the second process"))?;
        let mut duo = Self { board, control: Control::new(ours), child };
        duo.control.send(&cores.responder)?;
        match duo.control.receive(Some(REPLY_DEADLINE))? {
            Ok(()) => Ok(duo),
            Err(cause) => Err(DuoError::System {
                what: "cannot pin the second process to its core",
                cause: io::Error::other::<String>(cause),
            }),
        }
    }

    /// Process id of the child.
    #[must_use]
    pub fn child_id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Duo {
    fn drop(&mut self) {
        // Both fail only if it is already dead and reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the child has.
#[derive(Debug)]
pub struct Side {
    /// The shared words.
    pub board: Board,
    /// To and from the parent.
    pub control: Control,
}

impl Side {
    /// Takes over standard input and output, and pins the calling thread. Do not print afterwards.
    ///
    /// # Errors
    ///
    /// [`DuoError`].
    pub fn of_child() -> Result<Self, DuoError> {
        let parent = env::var(PARENT_VARIABLE).ok().and_then(|id| id.parse().ok());
        let parent = parent.and_then(Pid::from_raw).ok_or(DuoError::NotAChild)?;
        set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(|error| DuoError::System { what: "prctl", cause: error.into() })?;
        if getppid() != Some(parent) {
            return Err(DuoError::PeerGone); // it died before the kernel was asked to tell
        }
        let duplicate = DuoError::system("cannot duplicate the standard streams");
        let (input, output) = (io::stdin(), io::stdout());
        let streams = input
            .as_fd()
            .try_clone_to_owned()
            .and_then(|input| output.as_fd().try_clone_to_owned().map(|output| (input, output)));
        let (socket, memory) = streams.map_err(duplicate)?;
        let mut control = Control::new(UnixStream::from(socket));
        let core = control.receive(Some(REPLY_DEADLINE))?;
        control.send(&cores::pin(core).map_err(|error| error.to_string()))?;
        Ok(Self { board: Board::open(memory)?, control })
    }
}
