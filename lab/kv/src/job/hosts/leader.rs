//! The leader's side: connections to the other hosts.

use std::{
    collections::BTreeMap,
    io::ErrorKind,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use bootstrap::Secret;
use os::{
    affinity::{self, AffinityError},
    child::{ChannelError, ChildChannel, TypedMessageError},
    clock,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{
    ClockBounds, HostError, HostInfo, HostOrder, HostReport,
    greeting::{self, Greeting},
    system,
};
use crate::{backend::loopback, job::process::Ended};

/// Longest wait for a report of a host that is due at once.
const REPORT_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for a connection before the host is listened to.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// Exchanges per look at a clock: the fastest counts.
const CLOCK_EXCHANGES: usize = 16;

/// The leader before the others have connected.
#[derive(Debug)]
pub struct Leader {
    listener: TcpListener,
    address: SocketAddr,
}

impl Leader {
    /// Listens at a port of `address`.
    ///
    /// # Errors
    ///
    /// [`HostError::System`].
    pub fn listen(address: IpAddr) -> Result<Self, HostError> {
        let listen = || {
            let listener = TcpListener::bind((address, 0))?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok(Self { listener, address })
        };
        listen().map_err(system("cannot listen for other hosts"))
    }

    /// Where the others are to connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for the connections of all hosts but the first, which is this one.
    ///
    /// # Errors
    ///
    /// [`HostError::Missing`] if the time passes.
    pub fn gather(
        self,
        infos: Vec<HostInfo>,
        secret: Secret,
        timeout: Duration,
    ) -> Result<Hosts, HostError> {
        let deadline_ns = clock::deadline_ns(timeout);
        let address = self.address;
        let mut hosts = Hosts {
            listener: Some(self),
            secret,
            channels: infos.iter().map(|_| None).collect(),
            infos,
            children: 0,
            ended: BTreeMap::new(),
        };
        while let Some(host) = (1..hosts.count()).find(|&host| hosts.channels[host].is_none()) {
            if clock::now_ns() > deadline_ns {
                return Err(HostError::Missing { host, address });
            }
            if let Some((Greeting { host, child: None }, channel)) = hosts.accept()?
                && let Some(place) = hosts.channels.get_mut(host as usize)
            {
                *place = Some(channel);
            }
        }
        Ok(hosts)
    }
}

/// The hosts of a job. Dropping it ends what runs on the others.
#[derive(Debug)]
pub struct Hosts {
    infos: Vec<HostInfo>,
    /// `None` with one host.
    listener: Option<Leader>,
    secret: Secret,
    /// By host; that of the leader is `None`.
    channels: Vec<Option<ChildChannel>>,
    /// Children that were started on other hosts so far: their numbers are not used again.
    children: u32,
    /// Children of other hosts that have ended, by number.
    ended: BTreeMap<u32, Ended>,
}

impl Hosts {
    /// This host alone.
    ///
    /// # Errors
    ///
    /// If the kernel does not tell which cores this process may use.
    pub fn only_this() -> Result<Self, AffinityError> {
        let cores = affinity::allowed_cores()?;
        let info = HostInfo { address: loopback(), cores, nic_knobs: None, leader: None };
        Ok(Self {
            infos: vec![info],
            listener: None,
            secret: Secret::random(),
            channels: vec![None],
            children: 0,
            ended: BTreeMap::new(),
        })
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.infos.len()
    }

    /// The host of a rank of the job.
    pub(in crate::job) fn of_rank(&self, rank: u16) -> usize {
        usize::from(rank) % self.count()
    }

    /// Which of how many ranks of its host a rank is.
    pub(in crate::job) fn place_of_rank(&self, rank: u16, ranks: u16) -> (u16, u16) {
        let count = u16::try_from(self.count()).unwrap_or(u16::MAX);
        (rank / count, (ranks - rank % count).div_ceil(count))
    }

    /// What a host has told.
    pub(in crate::job) fn info(&self, host: usize) -> &HostInfo {
        &self.infos[host]
    }

    /// Starts a child on another host; returns its number there, and the channel to it.
    pub(in crate::job) fn start(&mut self, host: usize) -> Result<(u32, ChildChannel), HostError> {
        let child = self.children;
        self.children += 1;
        self.order(host, &HostOrder::Start(child))?;
        let deadline_ns = clock::deadline_ns(REPORT_TIMEOUT);
        let mut channel = None;
        let expected =
            Greeting { host: u32::try_from(host).unwrap_or(u32::MAX), child: Some(child) };
        loop {
            if channel.is_none() {
                let accepted = self.accept()?;
                let is_it = |(greeting, _): &(Greeting, _)| *greeting == expected;
                channel = accepted.filter(is_it).map(|(_, channel)| channel);
            }
            match (self.next_report(host, clock::NOW)?, channel.take()) {
                (Some(HostReport::Started), Some(channel)) => return Ok((child, channel)),
                (Some(HostReport::NotStarted(reason)), _) => {
                    return Err(HostError::NotStarted { reason });
                }
                (Some(_), _) => return Err(HostError::OutOfTurn { host }),
                (None, taken) => channel = taken,
            }
            if clock::now_ns() > deadline_ns {
                let cause = ChannelError::TimedOut.into();
                return Err(HostError::Control { host, cause });
            }
        }
    }

    /// How a child of another host has ended; `None`: the host has not told when the time passes.
    pub(in crate::job) fn ended(
        &mut self,
        host: usize,
        child: u32,
        deadline_ns: u64,
    ) -> Result<Option<Ended>, HostError> {
        while !self.ended.contains_key(&child) && clock::now_ns() <= deadline_ns {
            // Ends are put aside; no other report is due.
            if self.next_report(host, deadline_ns)?.is_some() {
                return Err(HostError::OutOfTurn { host });
            }
        }
        Ok(self.ended.remove(&child))
    }

    /// How far the clock of each host is ahead of this one's.
    pub(in crate::job) fn clocks(&mut self) -> Result<Vec<ClockBounds>, HostError> {
        let mut all = vec![ClockBounds::SAME];
        for host in 1..self.count() {
            let mut bounds = ClockBounds::UNKNOWN;
            for _ in 0..CLOCK_EXCHANGES {
                let asked_ns = clock::now_ns();
                self.order(host, &HostOrder::Clock)?;
                let deadline_ns = clock::deadline_ns(REPORT_TIMEOUT);
                let theirs_ns = loop {
                    match self.next_report(host, deadline_ns)? {
                        Some(HostReport::Clock(theirs_ns)) => break theirs_ns,
                        // A child has ended: its channel tells the job.
                        None if clock::now_ns() <= deadline_ns => {}
                        _ => return Err(HostError::OutOfTurn { host }),
                    }
                };
                bounds.narrow(asked_ns, theirs_ns, clock::now_ns());
            }
            all.push(bounds);
        }
        Ok(all)
    }

    /// Tells all other hosts that it is over.
    ///
    /// # Errors
    ///
    /// [`HostError::Control`] if one of them is gone.
    pub fn end(mut self) -> Result<(), HostError> {
        (1..self.count()).try_for_each(|host| self.order(host, &HostOrder::End))
    }

    fn order(&mut self, host: usize, order: &HostOrder) -> Result<(), HostError> {
        let failed = |cause| HostError::Control { host, cause };
        let channel =
            self.channels[host].as_mut().ok_or_else(|| failed(ChannelError::Gone.into()))?;
        channel.send_json(order, clock::deadline_ns(REPORT_TIMEOUT)).map_err(failed)
    }

    /// The next report that is not the end of a child: that is put aside. `None`: none has come in time.
    fn next_report(
        &mut self,
        host: usize,
        deadline_ns: u64,
    ) -> Result<Option<HostReport>, HostError> {
        let failed = |cause| HostError::Control { host, cause };
        let channel =
            self.channels[host].as_mut().ok_or_else(|| failed(ChannelError::Gone.into()))?;
        loop {
            match channel.recv_json(deadline_ns) {
                Ok(HostReport::Ended(child, ended)) => {
                    self.ended.insert(child, ended);
                    // Who waits for it looks.
                    if deadline_ns != clock::NOW {
                        return Ok(None);
                    }
                }
                Ok(report) => return Ok(Some(report)),
                Err(TypedMessageError::Channel(ChannelError::TimedOut)) => return Ok(None),
                Err(cause) => return Err(failed(cause)),
            }
        }
    }

    /// The next connection, if one comes soon. Who does not know the secret is turned away.
    fn accept(&self) -> Result<Option<(Greeting, ChildChannel)>, HostError> {
        let Some(Leader { listener, .. }) = &self.listener else { return Ok(None) };
        let failed = system("cannot take the connection of a host");
        let accepted: std::io::Result<Option<TcpStream>> = (|| {
            poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&LOOK))?;
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false)?;
                    Ok(Some(stream))
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
                Err(error) => Err(error),
            }
        })();
        let Some(mut stream) = accepted.map_err(failed)? else { return Ok(None) };
        let greeted = greeting::answer(&mut stream, &self.secret).ok();
        Ok(greeted.map(|greeting| (greeting, ChildChannel::new(stream.into()))))
    }
}
