//! The side of every host but the leader's.

use std::{
    collections::BTreeMap,
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use bootstrap::Secret;
use os::{
    child::{ChannelError, ChildChannel, TypedMessageError},
    clock,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{
    HostError, HostInfo, HostOrder, HostReport,
    greeting::{Greeting, greet},
    system,
};
use crate::job::{Launcher, process::LocalProcess};

/// Longest wait for the leader to take a connection or a report.
const LEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait between two looks at everything.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Starts children as the leader says, until it says that it is over. `infos` are those of all hosts, and `host` is
/// the number of this one.
///
/// # Errors
///
/// [`HostError`], also if the leader goes away: then its job has failed.
pub fn serve(
    infos: &[HostInfo],
    host: usize,
    secret: &Secret,
    launcher: &Launcher,
) -> Result<(), HostError> {
    let leader = infos.first().and_then(|info| info.leader).ok_or(HostError::NoLeader)?;
    let host = u32::try_from(host).unwrap_or(u32::MAX);
    let channel = connect(leader, secret, Greeting { host, child: None })?;
    let channel = ChildChannel::new(channel.into());
    let mut served = Served { leader, host, secret, launcher, channel, children: BTreeMap::new() };
    while served.take_orders()? {
        served.wait()?;
        served.report_ends()?;
    }
    Ok(())
}

fn connect(
    leader: SocketAddr,
    secret: &Secret,
    greeting: Greeting,
) -> Result<TcpStream, HostError> {
    let connect = || {
        let mut stream = TcpStream::connect_timeout(&leader, LEADER_TIMEOUT)?;
        greet(&mut stream, secret, greeting)?;
        Ok(stream)
    };
    connect().map_err(|cause| HostError::Unreachable { address: leader, cause })
}

struct Served<'a> {
    leader: SocketAddr,
    host: u32,
    secret: &'a Secret,
    launcher: &'a Launcher,
    channel: ChildChannel,
    /// Those that live, by number.
    children: BTreeMap<u32, LocalProcess>,
}

impl Served<'_> {
    /// Does what the leader has ordered so far; `false`: it is over.
    fn take_orders(&mut self) -> Result<bool, HostError> {
        loop {
            match self.channel.recv_json(clock::NOW) {
                Ok(HostOrder::Clock) => self.report(&HostReport::Clock(clock::now_ns()))?,
                Ok(HostOrder::Start(child)) => {
                    let report = match self.start(child) {
                        Ok(()) => HostReport::Started,
                        Err(error) => HostReport::NotStarted(error.to_string()),
                    };
                    self.report(&report)?;
                }
                Ok(HostOrder::End) => return Ok(false),
                Err(TypedMessageError::Channel(ChannelError::TimedOut)) => return Ok(true),
                Err(cause) => return Err(HostError::Control { host: 0, cause }),
            }
        }
    }

    fn start(&mut self, child: u32) -> Result<(), HostError> {
        let greeting = Greeting { host: self.host, child: Some(child) };
        let stream = connect(self.leader, self.secret, greeting)?;
        let process = LocalProcess::start_over(self.launcher, stream.into())
            .map_err(system("cannot start a process"))?;
        self.children.insert(child, process);
        Ok(())
    }

    /// Waits until the leader says something or a child has ended.
    fn wait(&self) -> Result<(), HostError> {
        let children = self.children.values().map(|child| PollFd::new(child, PollFlags::IN));
        let mut all: Vec<_> = children.chain([PollFd::new(&self.channel, PollFlags::IN)]).collect();
        match poll(&mut all, Some(&LOOK)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(system("cannot wait for orders")(errno.into())),
        }
    }

    fn report_ends(&mut self) -> Result<(), HostError> {
        let mut ended = Vec::new();
        self.children.retain(|&child, process| {
            let end = process.ended(clock::NOW);
            let lives = end.is_none();
            ended.extend(end.map(|end| (child, end)));
            lives
        });
        ended.into_iter().try_for_each(|(child, end)| self.report(&HostReport::Ended(child, end)))
    }

    fn report(&mut self, report: &HostReport) -> Result<(), HostError> {
        let sent = self.channel.send_json(report, clock::deadline_ns(LEADER_TIMEOUT));
        sent.map_err(|cause| HostError::Control { host: 0, cause })
    }
}
