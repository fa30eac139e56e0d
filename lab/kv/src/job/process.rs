//! A child process of this host, as whoever started it sees it.

use std::{
    io::{self, Read},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::process::ExitStatusExt as _,
    },
    path::Path,
    process::{ChildStderr, Command, ExitStatus, Stdio},
    thread::{self, JoinHandle},
};

use os::child::{Child, ChildChannel};
use serde::{Deserialize, Serialize};

use super::Launcher;

/// Bytes of a child's standard error that are kept: the last ones.
const STDERR_BYTES_MAX: usize = 8 << 10;

/// How a process has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ended {
    pub(super) is_success: bool,
    /// Exit status or signal, in words.
    pub(super) status: String,
    /// What it wrote last.
    pub(super) stderr: String,
}

/// A child process and what it writes to its standard error. Dropping it kills and reaps the process.
pub(super) struct LocalProcess {
    child: Child,
    stderr: Option<JoinHandle<String>>,
}

impl LocalProcess {
    /// Starts a child with a channel to this process.
    pub(super) fn start(launcher: &Launcher) -> io::Result<(Self, ChildChannel)> {
        let (child, channel) = Child::spawn_with_channel(&mut command(launcher))?;
        Ok((Self::of(child), channel))
    }

    /// Starts a child whose channel is a connection that exists.
    pub(super) fn start_over(launcher: &Launcher, socket: OwnedFd) -> io::Result<Self> {
        Ok(Self::of(Child::spawn_over(&mut command(launcher), socket)?))
    }

    fn of(mut child: Child) -> Self {
        let stderr = child.take_stderr().map(|pipe| thread::spawn(|| tail(pipe)));
        Self { child, stderr }
    }

    /// How it has ended; `None`: it lives when the deadline passes.
    pub(super) fn ended(&mut self, deadline_ns: u64) -> Option<Ended> {
        let status = self.child.wait(deadline_ns).ok()??;
        let stderr = self.stderr.take().and_then(|reader| reader.join().ok()).unwrap_or_default();
        let stderr = stderr.trim().to_owned();
        Some(Ended { is_success: status.success(), status: describe(status), stderr })
    }
}

impl AsFd for LocalProcess {
    /// Readable once the process has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.child.as_fd()
    }
}

fn command(launcher: &Launcher) -> Command {
    let mut command = Command::new::<&Path>(&launcher.program);
    command.args(&launcher.arguments).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Reads to the end, keeps the last bytes.
fn tail(mut pipe: ChildStderr) -> String {
    let mut kept = Vec::new();
    let mut chunk = [0; 1024];
    while let Ok(count @ 1..) = pipe.read(&mut chunk) {
        kept.extend_from_slice(&chunk[..count]);
        if kept.len() > 2 * STDERR_BYTES_MAX {
            kept.drain(..kept.len() - STDERR_BYTES_MAX);
        }
    }
    String::from_utf8_lossy(&kept).into_owned()
}

fn describe(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("was killed by signal {signal}"),
        None => format!("ended with exit code {}", status.code().unwrap_or(-1)),
    }
}
