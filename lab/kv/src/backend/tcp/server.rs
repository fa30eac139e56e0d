//! The daemon thread's end.

use std::{
    io::{self, ErrorKind},
    net::TcpListener,
    os::fd::AsFd as _,
    time::Duration,
};

use os::clock;

use super::{
    Options,
    connection::{Connection, Received, TcpCounters},
    poller::{Interest, Poller},
};
use crate::backend::{BackendError, Contact, Counters, Roster, Server, ServerTurn, Service};

/// Number of the listener in the poller.
const LISTENER: usize = usize::MAX;

/// Serves the connections of all clients.
pub struct TcpServer {
    options: Options,
    listener: TcpListener,
    contact: Contact,
    poller: Poller,
    connections: Vec<Peer>,
    /// Connections with frames to hand out.
    ready: Vec<usize>,
    /// Connections with answers to send.
    dirty: Vec<usize>,
    /// What [`Server::wait`] found, to be looked at by the next turn.
    woken: Vec<usize>,
    counters: TcpCounters,
    service: Service,
    answer: Vec<u8>,
}

#[derive(Debug)]
struct Peer {
    /// `None`: it is gone. Numbers are not used again.
    connection: Option<Connection>,
    interest: Interest,
    is_dirty: bool,
}

impl TcpServer {
    pub(super) fn listen(options: Options, service: Service) -> Result<Self, BackendError> {
        let listen = || {
            let listener = TcpListener::bind((options.address, 0))?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            let poller = Poller::new()?;
            poller.add(&listener, LISTENER)?;
            Ok::<_, io::Error>((listener, address, poller))
        };
        let failed =
            |cause| BackendError::new(format!("cannot listen at {}", options.address), cause);
        let (listener, address, poller) = listen().map_err(failed)?;
        Ok(Self {
            options,
            listener,
            contact: Contact(address.to_string()),
            poller,
            connections: Vec::new(),
            ready: Vec::new(),
            dirty: Vec::new(),
            woken: Vec::new(),
            counters: TcpCounters::default(),
            service,
            answer: Vec::new(),
        })
    }

    /// Accepts one connection, if one is there and clients are expected.
    fn accept(&mut self) -> io::Result<()> {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => return Ok(()),
            Err(error) => return Err(error),
        };
        if self.connections.len() >= self.options.clients_max {
            return Ok(()); // not one of ours: closed by the drop
        }
        let Options { message_bytes_max, is_nodelay, .. } = self.options;
        let connection = Connection::new(stream, message_bytes_max, is_nodelay)?;
        self.poller.add(connection.stream(), self.connections.len())?;
        let peer =
            Peer { connection: Some(connection), interest: Interest::Readable, is_dirty: false };
        self.connections.push(peer);
        Ok(())
    }

    /// Looks at a connection that is readable, or writable again.
    fn look(&mut self, number: usize) -> io::Result<()> {
        if number == LISTENER {
            return self.accept();
        }
        let Some(peer) = self.connections.get_mut(number) else { return Ok(()) };
        let Some(connection) = &mut peer.connection else { return Ok(()) };
        if peer.interest == Interest::Writable {
            return self.flush(number);
        }
        match connection.receive(&mut self.counters) {
            Ok(Received::Open) => {
                if connection.peek() != Ok(false) && !self.ready.contains(&number) {
                    self.ready.push(number);
                }
            }
            // A client that goes away, gracefully or not, is no error of this side.
            Ok(Received::Closed) | Err(_) => peer.connection = None,
        }
        Ok(())
    }

    /// Sends a connection's answers; one that does not take them is not read from until it does.
    fn flush(&mut self, number: usize) -> io::Result<()> {
        let peer = &mut self.connections[number];
        let Some(connection) = &mut peer.connection else { return Ok(()) };
        if connection.flush(&mut self.counters).is_err() {
            peer.connection = None;
            return Ok(());
        }
        let interest =
            if connection.is_pending() { Interest::Writable } else { Interest::Readable };
        if interest != peer.interest {
            peer.interest = interest;
            self.poller.change(connection.stream().as_fd(), number, interest)?;
        }
        // It may have been put aside for lack of room.
        if connection.peek() != Ok(false) && connection.has_room() && !self.ready.contains(&number)
        {
            self.ready.push(number);
        }
        Ok(())
    }

    fn flush_all(&mut self) -> io::Result<()> {
        for number in std::mem::take(&mut self.dirty) {
            self.connections[number].is_dirty = false;
            self.flush(number)?;
        }
        Ok(())
    }

    fn try_turn(&mut self) -> io::Result<()> {
        self.flush_all()?;
        let mut woken = std::mem::take(&mut self.woken);
        if woken.is_empty() && self.ready.is_empty() {
            self.counters.looks += 1;
            woken.extend(self.poller.wait(Duration::ZERO)?);
        }
        for number in woken.drain(..) {
            self.look(number)?;
        }
        self.woken = woken;
        Ok(())
    }

    /// The next connection that has a frame and room for its answer; others are done for now.
    fn next_ready(&mut self) -> Option<usize> {
        loop {
            let &number = self.ready.last()?;
            let connection = &mut self.connections[number].connection;
            match connection.as_ref().map(|connection| (connection.peek(), connection.has_room())) {
                Some((Ok(true), true)) => return Some(number),
                // It broke the framing: nothing after that can be understood.
                Some((Err(_), _)) => *connection = None,
                _ => {}
            }
            self.ready.pop();
        }
    }

    /// Answers the next frame of a connection; `false` if it has none.
    fn serve(&mut self, number: usize) -> bool {
        let Self { connections, service, answer, .. } = self;
        let peer = &mut connections[number];
        let Some(connection) = &mut peer.connection else { return false };
        let Ok(Some((token, request))) = connection.next_frame() else { return false };
        answer.clear();
        service(request, answer);
        connection.push(token, answer);
        if self.options.flushes_each {
            // An error shows again when the turn ends.
            let _ = connection.flush(&mut self.counters);
        }
        if !std::mem::replace(&mut peer.is_dirty, true) {
            self.dirty.push(number);
        }
        true
    }

    fn try_wait(&mut self, deadline_ns: u64) -> io::Result<()> {
        self.flush_all()?;
        if self.ready.is_empty() {
            self.counters.waits += 1;
            let left_ns = deadline_ns.saturating_sub(clock::now_ns());
            self.woken.extend(self.poller.wait(Duration::from_nanos(left_ns))?);
        }
        Ok(())
    }
}

impl Server for TcpServer {
    fn contact(&self) -> Contact {
        self.contact.clone()
    }

    fn join(&mut self, _roster: &Roster, _deadline_ns: u64) -> Result<(), BackendError> {
        Ok(()) // clients come to us
    }

    fn turn(&mut self, budget: usize) -> Result<ServerTurn, BackendError> {
        self.try_turn().map_err(|cause| BackendError::new("the daemon's sockets failed", cause))?;
        let mut served = 0;
        while served < budget
            && let Some(number) = self.next_ready()
        {
            served += usize::from(self.serve(number));
        }
        self.counters.turn(served);
        Ok(ServerTurn::of_answers(served))
    }

    fn wait(&mut self, deadline_ns: u64) -> Result<(), BackendError> {
        self.try_wait(deadline_ns)
            .map_err(|cause| BackendError::new("the daemon's sockets failed", cause))
    }

    fn counters(&self) -> Counters {
        self.counters.to_counters("daemon")
    }
}
