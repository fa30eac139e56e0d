//! The client thread's end.

use std::{
    io,
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use os::clock;

use super::{
    Options,
    connection::{Connection, Received, TcpCounters},
    poller::Poller,
};
use crate::{
    backend::{BackendError, CallToken, Client, Contact, Counters, Event, Roster, SubmitError},
    place::Shard,
};

/// One connection per shard.
#[derive(Debug)]
pub struct TcpClient {
    options: Options,
    poller: Poller,
    /// By shard; `None`: it is gone.
    connections: Vec<Option<Connection>>,
    /// Shards with frames to send.
    dirty: Vec<usize>,
    /// Shards that have sent something.
    readable: Vec<usize>,
    /// Shards that the caller has yet to be told of.
    lost: Vec<usize>,
    counters: TcpCounters,
}

impl TcpClient {
    pub(super) fn new(options: Options) -> Result<Self, BackendError> {
        let poller =
            Poller::new().map_err(|cause| BackendError::new("cannot poll sockets", cause))?;
        let (connections, dirty) = (Vec::new(), Vec::new());
        let (readable, lost) = (Vec::new(), Vec::new());
        let counters = TcpCounters::default();
        Ok(Self { options, poller, connections, dirty, readable, lost, counters })
    }

    fn connect(&mut self, contact: &Contact, deadline_ns: u64) -> io::Result<()> {
        let address = contact.0.parse::<SocketAddr>().map_err(io::Error::other)?;
        let left = Duration::from_nanos(deadline_ns.saturating_sub(clock::now_ns()));
        let stream = TcpStream::connect_timeout(&address, left.max(Duration::from_millis(1)))?;
        let Options { message_bytes_max, is_nodelay, .. } = self.options;
        let connection = Connection::new(stream, message_bytes_max, is_nodelay)?;
        self.poller.add(connection.stream(), self.connections.len())?;
        self.connections.push(Some(connection));
        Ok(())
    }

    fn flush(&mut self, shard: usize) {
        if let Some(connection) = &mut self.connections[shard]
            && connection.flush(&mut self.counters).is_err()
        {
            self.lose(shard);
        }
    }

    fn lose(&mut self, shard: usize) {
        self.connections[shard] = None;
        self.lost.push(shard);
    }

    /// What the kernel does not take now is tried again.
    fn flush_all(&mut self) {
        for index in (0..self.dirty.len()).rev() {
            let shard = self.dirty[index];
            self.flush(shard);
            if !self.connections[shard].as_ref().is_some_and(Connection::is_pending) {
                self.dirty.swap_remove(index);
            }
        }
    }

    /// Hands out complete frames of a shard, and the fact that it is gone.
    fn take_frames(
        &mut self,
        shard: usize,
        budget: usize,
        sink: &mut impl FnMut(Event<'_>),
    ) -> usize {
        let Some(connection) = &mut self.connections[shard] else { return 0 };
        let mut taken = 0;
        while taken < budget {
            match connection.next_frame() {
                Ok(Some((token, bytes))) => sink(Event::Answer { token, bytes }),
                Ok(None) => break,
                Err(_) => {
                    self.lose(shard);
                    break;
                }
            }
            taken += 1;
        }
        taken
    }

    fn receive(&mut self, shard: usize) {
        let Some(connection) = &mut self.connections[shard] else { return };
        if !matches!(connection.receive(&mut self.counters), Ok(Received::Open)) {
            self.lose(shard);
        }
    }
}

impl Client for TcpClient {
    fn join(&mut self, roster: &Roster, deadline_ns: u64) -> Result<(), BackendError> {
        for contact in &roster.servers {
            self.connect(contact, deadline_ns).map_err(|cause| {
                BackendError::new(format!("cannot connect to {}", contact.0), cause)
            })?;
        }
        Ok(())
    }

    fn submit(&mut self, to: Shard, token: CallToken, request: &[u8]) -> Result<(), SubmitError> {
        let max_bytes = self.options.message_bytes_max;
        if request.len() > max_bytes {
            return Err(SubmitError::TooLarge { len_bytes: request.len(), max_bytes });
        }
        let shard = usize::from(to.0);
        let connection = self.connections.get_mut(shard).and_then(Option::as_mut);
        let connection = connection.ok_or(SubmitError::Gone(to))?;
        if !connection.has_room() {
            return Err(SubmitError::Full);
        }
        let was_pending = connection.is_pending();
        connection.push(token, request);
        if !was_pending {
            self.dirty.push(shard);
        }
        if self.options.flushes_each {
            self.flush(shard);
        }
        Ok(())
    }

    fn poll(
        &mut self,
        budget: usize,
        sink: &mut impl FnMut(Event<'_>),
    ) -> Result<usize, BackendError> {
        self.flush_all();
        if self.readable.is_empty() {
            self.counters.looks += 1;
            let found = self.poller.wait(Duration::ZERO);
            self.readable
                .extend(found.map_err(|cause| BackendError::new("cannot poll sockets", cause))?);
            for index in 0..self.readable.len() {
                self.receive(self.readable[index]);
            }
        }
        let mut taken = 0;
        while taken < budget
            && let Some(&shard) = self.readable.last()
        {
            taken += self.take_frames(shard, budget - taken, sink);
            if taken < budget {
                self.readable.pop();
            }
        }
        self.counters.turn(taken);
        for shard in std::mem::take(&mut self.lost) {
            sink(Event::Lost { shard: Shard(u16::try_from(shard).unwrap_or(u16::MAX)) });
            taken += 1;
        }
        Ok(taken)
    }

    fn wait(&mut self, deadline_ns: u64) -> Result<(), BackendError> {
        self.flush_all();
        if !self.readable.is_empty() || !self.lost.is_empty() {
            return Ok(());
        }
        self.counters.waits += 1;
        let left = Duration::from_nanos(deadline_ns.saturating_sub(clock::now_ns()));
        let found = self.poller.wait(left);
        self.readable
            .extend(found.map_err(|cause| BackendError::new("cannot poll sockets", cause))?);
        for index in 0..self.readable.len() {
            self.receive(self.readable[index]);
        }
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.counters.to_counters("client")
    }
}
