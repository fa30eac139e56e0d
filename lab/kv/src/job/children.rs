//! The child processes of a job, as the coordinator holds them.

use std::{
    borrow::BorrowMut,
    env,
    ffi::OsString,
    io,
    ops::Range,
    os::fd::AsFd as _,
    path::PathBuf,
    time::{Duration, Instant},
};

use os::{
    affinity,
    child::{ChannelError, ChildChannel, TypedMessageError},
    clock,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{
    Order, Report,
    hosts::{HostError, Hosts},
    process::{Ended, LocalProcess},
    victim::Death,
};
use crate::history::{CheckError, HistoryFile};

/// Longest time for a child to end after it was told to, on a machine that does much else.
const END_TIMEOUT: Duration = Duration::from_secs(60);
/// The same, after its channel has closed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time for a child to take an order.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_PERIOD: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Default of [`Launcher::patience`]; enough for a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why a run has no numbers.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// A process cannot be started.
    #[error("cannot start {name}: {cause}")]
    Spawn {
        /// Name of the child.
        name: String,
        /// As the kernel says.
        cause: io::Error,
    },
    /// A process says that it cannot go on.
    #[error("{name}: {reason}")]
    Failed {
        /// Name of the child.
        name: String,
        /// In its words.
        reason: String,
    },
    /// A process ended before its time.
    #[error("{name} {status}; {}", last_words(stderr))]
    Died {
        /// Name of the child.
        name: String,
        /// Exit status or signal that it ended with.
        status: String,
        /// What it wrote last.
        stderr: String,
    },
    /// A process is stuck.
    #[error("no word from {names} for {timeout:?}; the job was ended")]
    Silent {
        /// Name of the child.
        names: String,
        /// The time that was allowed.
        timeout: Duration,
    },
    /// A process sends something else than reports, or takes no orders.
    #[error("{name}: {cause}")]
    Control {
        /// Name of the child.
        name: String,
        /// Cause of the refusal.
        cause: TypedMessageError,
    },
    /// A process that was to be killed was not.
    #[error("cannot kill {name}: {cause}")]
    Kill {
        /// Name of the child.
        name: String,
        /// As the kernel says.
        cause: io::Error,
    },
    /// The coordinator cannot wait.
    #[error("cannot wait for the processes of the job: {0}")]
    Poll(io::Error),
    /// Several hosts do not work together.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The coordinator's own cores are unknown.
    #[error(transparent)]
    Affinity(#[from] affinity::AffinityError),
    /// All answers are right, but not together.
    #[error(transparent)]
    History(#[from] CheckError),
    /// The history cannot be written.
    #[error("cannot write the history: {0}")]
    Export(#[source] io::Error),
}

fn last_words(stderr: &str) -> String {
    match stderr {
        "" => "its standard error is empty".to_owned(),
        words => format!("its standard error ends with:\n{words}"),
    }
}

/// The command that starts a child. Its program must call [`super::child()`].
#[derive(Clone, Debug)]
pub struct Launcher {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Longest time to start and connect, beside the time that filling the store takes.
    pub patience: Duration,
    /// Gets the histories of runs that record one.
    pub history: Option<HistoryFile>,
}

impl Launcher {
    /// This program, with one argument.
    ///
    /// # Errors
    ///
    /// If the kernel does not tell what this program is.
    pub fn this_program(argument: &str) -> io::Result<Self> {
        let (program, arguments) = (env::current_exe()?, vec![argument.into()]);
        Ok(Self { program, arguments, patience: PATIENCE, history: None })
    }
}

/// The process of a child, here or on another host.
enum Process {
    Here(LocalProcess),
    There { host: usize, number: u32 },
}

struct NamedChild {
    name: String,
    process: Process,
    channel: ChildChannel,
    fate: Fate,
}

/// Whether the end of a child is a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It is.
    Needed,
    /// It is to be killed.
    Doomed,
    /// It was killed, and nothing is left to be read from it.
    Dead,
}

/// All children of a job, by index. Dropping it kills and reaps those of this host; those of others lose their
/// channels, and end.
pub(super) struct Children<H> {
    children: Vec<NamedChild>,
    hosts: H,
}

impl<H: BorrowMut<Hosts>> Children<H> {
    pub(super) fn on(hosts: H) -> Self {
        Self { children: Vec::new(), hosts }
    }

    /// The hosts that the children are on.
    pub(super) fn hosts(&mut self) -> &mut Hosts {
        self.hosts.borrow_mut()
    }

    /// Starts a child on a host and gives it its first order.
    pub(super) fn start(
        &mut self,
        name: String,
        host: usize,
        launcher: &Launcher,
        order: &Order,
    ) -> Result<(), JobError> {
        let (process, channel) = if host == 0 {
            let started = LocalProcess::start(launcher);
            let failed = |cause| JobError::Spawn { name: name.clone(), cause };
            let (process, channel) = started.map_err(failed)?;
            (Process::Here(process), channel)
        } else {
            let (number, channel) = self.hosts().start(host)?;
            (Process::There { host, number }, channel)
        };
        self.children.push(NamedChild { name, process, channel, fate: Fate::Needed });
        self.send(self.children.len() - 1, order)
    }

    fn send(&mut self, index: usize, order: &Order) -> Result<(), JobError> {
        let deadline_ns = clock::deadline_ns(SEND_TIMEOUT);
        let sent = self.children[index].channel.send_json(order, deadline_ns);
        sent.map_err(|error| self.failure(index, error))
    }

    /// Lets a child of this host be killed at a time. From now on nobody misses it.
    pub(super) fn doom(&mut self, index: usize, at_ns: u64) -> Result<Death, JobError> {
        let child = &mut self.children[index];
        let process = match &child.process {
            Process::Here(process) => process.as_fd().try_clone_to_owned(),
            Process::There { .. } => Err(io::Error::from(io::ErrorKind::Unsupported)),
        };
        let process =
            process.map_err(|cause| JobError::Kill { name: child.name.clone(), cause })?;
        child.fate = Fate::Doomed;
        Ok(Death::of(child.name.clone(), process, at_ns))
    }

    /// Gives each of `children` an order of its own.
    pub(super) fn send_each(
        &mut self,
        children: impl IntoIterator<Item = usize>,
        mut order: impl FnMut(usize) -> Order,
    ) -> Result<(), JobError> {
        children.into_iter().try_for_each(|index| self.send(index, &order(index)))
    }

    /// Gives an order to all of `children`.
    pub(super) fn send_all(
        &mut self,
        children: impl IntoIterator<Item = usize>,
        order: &Order,
    ) -> Result<(), JobError> {
        children.into_iter().try_for_each(|index| self.send(index, order))
    }

    /// Receives the reports of all children until each of `awaited` has sent one for which `is_last`
    /// returns true. A child that fails, or the timeout, ends this.
    pub(super) fn receive(
        &mut self,
        awaited: impl IntoIterator<Item = usize>,
        timeout: Duration,
        mut is_last: impl FnMut(usize, Report) -> bool,
    ) -> Result<(), JobError> {
        let begin = Instant::now();
        let mut missing = awaited.into_iter().collect::<Vec<_>>();
        while !missing.is_empty() {
            if begin.elapsed() > timeout {
                let names = missing.iter().map(|&index| self.children[index].name.as_str());
                return Err(JobError::Silent {
                    names: names.collect::<Vec<_>>().join(", "),
                    timeout,
                });
            }
            for index in self.readable()? {
                while let Some(report) = self.next_report(index)? {
                    let is_last = is_last(index, report);
                    missing.retain(|&other| other != index || !is_last);
                }
            }
        }
        Ok(())
    }

    /// The next report of a child, if one has arrived as a whole.
    fn next_report(&mut self, index: usize) -> Result<Option<Report>, JobError> {
        match self.children[index].channel.recv_json(clock::NOW) {
            Ok(Report::Failed(reason)) => {
                Err(JobError::Failed { name: self.children[index].name.clone(), reason })
            }
            Ok(report) => Ok(Some(report)),
            Err(TypedMessageError::Channel(ChannelError::TimedOut)) => Ok(None),
            Err(_) if self.children[index].fate != Fate::Needed => {
                self.children[index].fate = Fate::Dead;
                Ok(None)
            }
            Err(error) => Err(self.failure(index, error)),
        }
    }

    /// Children whose channels are readable or closed; waits at most [`POLL_PERIOD`] for the first.
    fn readable(&self) -> Result<Vec<usize>, JobError> {
        let living = self.children.iter().enumerate();
        let living = living.filter(|(_, child)| child.fate != Fate::Dead);
        let (indices, mut sockets): (Vec<_>, Vec<_>) = living
            .map(|(index, child)| (index, PollFd::new(&child.channel, PollFlags::IN)))
            .unzip();
        match poll(&mut sockets, Some(&POLL_PERIOD)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(JobError::Poll(errno.into())),
        }
        let is_ready =
            |(index, socket): (usize, &PollFd<'_>)| (!socket.revents().is_empty()).then_some(index);
        Ok(indices.into_iter().zip(&sockets).filter_map(is_ready).collect())
    }

    /// The error of a child whose channel failed. Of a child that is gone the error has its exit status and the end
    /// of its standard error.
    fn failure(&mut self, index: usize, error: TypedMessageError) -> JobError {
        let name = self.children[index].name.clone();
        if !matches!(error, TypedMessageError::Channel(ChannelError::Gone)) {
            return JobError::Control { name, cause: error };
        }
        match self.ended(index, EXIT_TIMEOUT) {
            Ok(Some(Ended { status, stderr, .. })) => JobError::Died { name, status, stderr },
            Ok(None) => {
                let status = "closed its control channel but lives on".to_owned();
                JobError::Died { name, status, stderr: String::new() }
            }
            Err(error) => error.into(),
        }
    }

    /// How a child has ended; `None`: it lives.
    fn ended(&mut self, index: usize, timeout: Duration) -> Result<Option<Ended>, HostError> {
        let deadline_ns = clock::deadline_ns(timeout);
        match &mut self.children[index].process {
            Process::Here(process) => Ok(process.ended(deadline_ns)),
            Process::There { host, number } => {
                self.hosts.borrow_mut().ended(*host, *number, deadline_ns)
            }
        }
    }

    /// Waits until all children of a range have ended with success.
    pub(super) fn finish(&mut self, range: Range<usize>) -> Result<(), JobError> {
        for index in range {
            let name = self.children[index].name.clone();
            match self.ended(index, END_TIMEOUT)? {
                Some(Ended { is_success: true, .. }) => {}
                Some(Ended { status, stderr, .. }) => {
                    return Err(JobError::Died { name, status, stderr });
                }
                None => {
                    return Err(JobError::Silent { names: name, timeout: END_TIMEOUT });
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_of_the_dead_are_told_if_there_were_any() {
        let told = |stderr: &str| {
            let (name, status) = ("rank 0".to_owned(), "was killed by signal 9".to_owned());
            JobError::Died { name, status, stderr: stderr.to_owned() }.to_string()
        };
        assert_eq!(told(""), "rank 0 was killed by signal 9; its standard error is empty");
        assert_eq!(told("oh"), "rank 0 was killed by signal 9; its standard error ends with:\noh");
    }
}
