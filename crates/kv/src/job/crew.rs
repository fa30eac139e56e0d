//! The coordinator's hold on its children.

use std::{
    env,
    ffi::OsString,
    io::{self, Read},
    os::{fd::OwnedFd, unix::net::UnixStream, unix::process::ExitStatusExt as _},
    path::PathBuf,
    process::{Child, ChildStderr, Command, ExitStatus, Stdio},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{
    Order, Report,
    child::PARENT_VARIABLE,
    control::{Control, ControlError},
    run::JobError,
};

/// What is kept of a child's standard error.
const STDERR_BYTES_MAX: usize = 8 << 10;
/// Longest wait for a child that was told to end, or whose socket is closed, to be dead.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(100);
/// See [`Launcher::patience`]; enough for a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(60);

/// How children are started: which program, with which arguments. It must call [`super::child()`].
#[derive(Clone, Debug)]
pub struct Launcher {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Longest time to start and connect, beside the time that filling the store takes.
    pub patience: Duration,
}

impl Launcher {
    /// This program, with one argument.
    ///
    /// # Errors
    ///
    /// If the kernel does not tell what this program is.
    pub fn this_program(argument: &str) -> io::Result<Self> {
        let (program, arguments) = (env::current_exe()?, vec![argument.into()]);
        Ok(Self { program, arguments, patience: PATIENCE })
    }
}

/// One child.
struct Member {
    name: String,
    child: Child,
    control: Control,
    stderr: Option<JoinHandle<String>>,
}

/// All children of a job. Dropping it kills and reaps them.
pub(super) struct Crew {
    members: Vec<Member>,
}

impl Crew {
    pub(super) fn new() -> Self {
        Self { members: Vec::new() }
    }

    /// Starts a child and gives it its first order.
    pub(super) fn add(
        &mut self,
        name: String,
        launcher: &Launcher,
        order: &Order,
    ) -> Result<(), JobError> {
        let start = || {
            let (ours, theirs) = UnixStream::pair()?;
            let mut child = Command::new(&launcher.program)
                .args(&launcher.arguments)
                .env(PARENT_VARIABLE, std::process::id().to_string())
                .stdin(Stdio::from(OwnedFd::from(theirs)))
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()?;
            let stderr = child.stderr.take().map(|pipe| thread::spawn(|| tail(pipe)));
            Ok((Control::new(ours)?, child, stderr))
        };
        let (control, child, stderr) =
            start().map_err(|cause| JobError::Spawn { name: name.clone(), cause })?;
        self.members.push(Member { name, child, control, stderr });
        let last = self.members.len() - 1;
        self.send(last, order)
    }

    /// Gives an order to the child number `member`.
    pub(super) fn send(&mut self, member: usize, order: &Order) -> Result<(), JobError> {
        match self.members[member].control.send(order) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.failure(member, error)),
        }
    }

    /// Gives an order to all of `members`.
    pub(super) fn send_all(
        &mut self,
        members: std::ops::Range<usize>,
        order: &Order,
    ) -> Result<(), JobError> {
        members.into_iter().try_for_each(|member| self.send(member, order))
    }

    /// Hears all children until each of `members` has said something that `is_last` for it. Any
    /// child that fails, or the deadline, ends this.
    pub(super) fn hear(
        &mut self,
        members: std::ops::Range<usize>,
        timeout: Duration,
        mut is_last: impl FnMut(usize, Report) -> bool,
    ) -> Result<(), JobError> {
        let begin = Instant::now();
        let mut missing = members.collect::<Vec<_>>();
        while !missing.is_empty() {
            if begin.elapsed() > timeout {
                let names = missing.iter().map(|&member| self.members[member].name.as_str());
                return Err(JobError::Silent {
                    names: names.collect::<Vec<_>>().join(", "),
                    timeout,
                });
            }
            for member in self.readable()? {
                if let Err(error) = self.members[member].control.fill(Duration::from_millis(1)) {
                    return Err(self.failure(member, error));
                }
                loop {
                    match self.members[member].control.next() {
                        Ok(None) => break,
                        Ok(Some(Report::Failed(reason))) => {
                            let name = self.members[member].name.clone();
                            return Err(JobError::Failed { name, reason });
                        }
                        Ok(Some(report)) => {
                            let is_last = is_last(member, report);
                            missing.retain(|&other| other != member || !is_last);
                        }
                        Err(error) => return Err(self.failure(member, error)),
                    }
                }
            }
        }
        Ok(())
    }

    /// Children that have said something, or are gone; waits a little for the first.
    fn readable(&self) -> Result<Vec<usize>, JobError> {
        let sockets = self.members.iter().map(|member| PollFd::new(&member.control, PollFlags::IN));
        let mut sockets = sockets.collect::<Vec<_>>();
        let nap = Timespec { tv_sec: 0, tv_nsec: i64::from(LOOK.subsec_nanos()) };
        match poll(&mut sockets, Some(&nap)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(JobError::Poll(errno.into())),
        }
        let is_ready =
            |(index, socket): (usize, &PollFd<'_>)| (!socket.revents().is_empty()).then_some(index);
        Ok(sockets.iter().enumerate().filter_map(is_ready).collect())
    }

    /// What is to be said about a child whose socket failed. One that is gone is reaped: how it
    /// ended and what it wrote last is the reason.
    fn failure(&mut self, member: usize, error: ControlError) -> JobError {
        let Member { name, child, stderr, .. } = &mut self.members[member];
        let name = name.clone();
        if !matches!(error, ControlError::Gone) {
            return JobError::Control { name, cause: error };
        }
        let status = wait(child, EXIT_TIMEOUT);
        let stderr = match (&status, stderr.take()) {
            (Some(_), Some(reader)) => reader.join().unwrap_or_default(),
            _ => String::new(), // it still lives, and so does its standard error
        };
        JobError::Died { name, status: describe(status), stderr: stderr.trim().to_owned() }
    }

    /// Waits until all children have ended well.
    pub(super) fn finish(mut self) -> Result<(), JobError> {
        for member in 0..self.members.len() {
            let status = wait(&mut self.members[member].child, EXIT_TIMEOUT);
            if !status.is_some_and(|status| status.success()) {
                return Err(self.failure(member, ControlError::Gone));
            }
        }
        Ok(())
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for member in &mut self.members {
            // Both fail only if it is already dead and reaped.
            let _ = member.child.kill();
            let _ = member.child.wait();
            if let Some(reader) = member.stderr.take() {
                let _ = reader.join();
            }
        }
    }
}

/// Reads to the end, keeps the end.
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

fn wait(child: &mut Child, timeout: Duration) -> Option<ExitStatus> {
    let begin = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if begin.elapsed() < timeout => thread::sleep(Duration::from_millis(2)),
            _ => return None,
        }
    }
}

fn describe(status: Option<ExitStatus>) -> String {
    match status {
        None => "closed its control socket but lives on".to_owned(),
        Some(status) => match status.signal() {
            Some(signal) => format!("was killed by signal {signal}"),
            None => format!("ended with exit code {}", status.code().unwrap_or(-1)),
        },
    }
}
