//! Child processes with a control channel: often this program again, in another role.
//!
//! ```text
//! parent                                                child
//!   Child::spawn_with_channel(command) ─ fork, exec ─▶    main or a hidden test
//!   ChildChannel ═══ Unix socket, whole messages ══════ stdin ─ channel_to_parent() ─▶ ChildChannel
//!   Child (pidfd) ◀───────── end of the process           dies with the thread that started it
//! ```
//!
//! Neither side outlives the other unnoticed: the kernel kills the child when its parent dies
//! (`PR_SET_PDEATHSIG`), dropping [`Child`] kills and reaps it, and a channel whose other end is dead says
//! [`ChannelError::Gone`] once all that was sent before has been received.

mod channel;
#[cfg(feature = "json")]
mod json;

use std::{
    env, fs,
    io::{self, stdin},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    process::{self, ChildStderr, Command, ExitStatus, Stdio},
};

use rustix::{
    process::{
        Pid, PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal,
        set_parent_process_death_signal,
    },
    stdio::dup2_stdin,
};

pub use self::channel::{ChannelError, ChildChannel, MESSAGE_BYTES_MAX};
#[cfg(feature = "json")]
pub use self::json::{TypedMessageError, from_json};
use crate::ready;

/// Environment variable in which a parent tells its process id to a child with a channel.
const PARENT_VARIABLE: &str = "COPYRPC_PARENT";

/// A child process. Dropping it kills and reaps the process.
#[derive(Debug)]
pub struct Child {
    child: process::Child,
    pidfd: OwnedFd,
}

impl Child {
    /// Starts `command`.
    ///
    /// # Errors
    ///
    /// As [`Command::spawn`], or if there is no descriptor left to watch the process. Nothing runs then.
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        let mut child = command.spawn()?;
        // A child that was not waited for yet keeps its process id.
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pidfd = pid
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
            .and_then(|pid| Ok(pidfd_open(pid, PidfdFlags::empty())?));
        match pidfd {
            Ok(pidfd) => Ok(Self { child, pidfd }),
            Err(error) => {
                kill_and_reap(&mut child);
                Err(error)
            }
        }
    }

    /// Starts `command`, which finds the other end of the channel with [`channel_to_parent`]. The channel
    /// takes the place of the child's standard input.
    ///
    /// # Errors
    ///
    /// As [`spawn`](Self::spawn), or if there is no descriptor left for the channel.
    pub fn spawn_with_channel(command: &mut Command) -> io::Result<(Self, ChildChannel)> {
        let (ours, theirs) = ChildChannel::pair()?;
        Ok((Self::spawn_over(command, theirs)?, ours))
    }

    /// As [`spawn_with_channel`](Self::spawn_with_channel), over a stream socket that is connected to whom the child
    /// is to talk to: that may be a process of another host.
    ///
    /// # Errors
    ///
    /// As [`spawn`](Self::spawn).
    pub fn spawn_over(command: &mut Command, socket: OwnedFd) -> io::Result<Self> {
        command.env(PARENT_VARIABLE, process::id().to_string());
        command.stdin(Stdio::from(socket));
        let child = Self::spawn(command);
        // A command that is kept would keep the child's end open.
        command.stdin(Stdio::null());
        child
    }

    /// Process id, which is not reused while this exists.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The pipe of the child's standard error, if the command asked for one and nobody has taken it.
    pub fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }

    /// Waits until the child has ended and reaps it; `None` if the deadline passed first.
    ///
    /// # Errors
    ///
    /// As the kernel says.
    pub fn wait(&mut self, deadline_ns: u64) -> io::Result<Option<ExitStatus>> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(Some(status));
        }
        if !ready::wait(&self.pidfd, rustix::event::PollFlags::IN, deadline_ns)? {
            return Ok(None);
        }
        self.child.try_wait()
    }

    /// Asks the child to end (SIGTERM). A child that has ended needs not be asked.
    pub fn terminate(&self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::TERM);
    }

    /// Kills the child (SIGKILL) and reaps it.
    ///
    /// # Errors
    ///
    /// As the kernel says.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        self.child.kill()?;
        self.child.wait()
    }
}

impl AsFd for Child {
    /// Readable once the child has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        kill_and_reap(&mut self.child);
    }
}

fn kill_and_reap(child: &mut process::Child) {
    // Both fail only for a child that was reaped already.
    let _ = child.kill();
    let _ = child.wait();
}

/// Terminates all of `children` (SIGTERM) and waits for them; returns whether all ended before the deadline.
pub fn terminate_all(children: &mut [Child], deadline_ns: u64) -> bool {
    children.iter().for_each(Child::terminate);
    children.iter_mut().all(|child| matches!(child.wait(deadline_ns), Ok(Some(_))))
}

/// The command that runs this program again.
///
/// # Errors
///
/// If the kernel does not tell what this program is.
pub fn this_program() -> io::Result<Command> {
    env::current_exe().map(Command::new)
}

/// Asks the kernel to send `signal` to this process when its parent dies, however that dies. More precisely:
/// when the thread that started this process ends.
///
/// # Errors
///
/// As the kernel says; the parent may also have died before.
pub fn end_with_parent(signal: Signal) -> io::Result<()> {
    Ok(set_parent_process_death_signal(Some(signal))?)
}

/// Why this process has no channel to its parent.
#[derive(Debug, thiserror::Error)]
pub enum NoParentError {
    /// No parent started it with [`Child::spawn_with_channel`].
    #[error("this command is started by its own program, not by hand")]
    NotAChild,
    /// The parent died before the kernel was asked to tell.
    #[error("the parent process is gone")]
    Gone,
    /// The kernel refused.
    #[error("{call} failed: {source}")]
    Os {
        /// The system call that failed.
        call: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
}

/// Whether [`Child::spawn_with_channel`] started this process, by its environment.
#[must_use]
pub fn has_channel() -> bool {
    env::var_os(PARENT_VARIABLE).is_some()
}

/// In a child: takes over the channel to the parent, and makes this process die with it. Standard input is
/// empty afterwards, so that no process that this one starts inherits the channel.
///
/// # Errors
///
/// [`NoParentError`].
pub fn channel_to_parent() -> Result<ChildChannel, NoParentError> {
    let parent = env::var(PARENT_VARIABLE).ok().and_then(|id| id.parse().ok());
    let parent = parent.and_then(Pid::from_raw).ok_or(NoParentError::NotAChild)?;
    let os = |call| move |source| NoParentError::Os { call, source };
    end_with_parent(Signal::KILL).map_err(os("prctl"))?;
    if getppid() != Some(parent) {
        return Err(NoParentError::Gone);
    }
    let socket = stdin().as_fd().try_clone_to_owned().map_err(os("dup"))?;
    let null = fs::File::open("/dev/null").map_err(os("open /dev/null"))?;
    dup2_stdin(&null).map_err(|errno| os("dup2")(errno.into()))?;
    Ok(ChildChannel::new(socket))
}
