//! Servers of stored values, Redis and memcached, as a backend of crate `kv`.
//!
//! A client has a connection per shard that does not block. All requests that are ready go into one system
//! call, and replies are read where they lie: what `kv` calls an answer is the value with a head written over
//! bytes before it that were handed out already.

use std::{
    collections::VecDeque,
    io::{self, ErrorKind, Read as _, Write as _},
    marker::PhantomData,
    net::{SocketAddr, TcpStream},
    thread,
    time::Duration,
};

use copyrpc_os::clock;
use kv::{
    backend::{
        Backend, BackendError, CallToken, Client, Contact, Counters, Event, Roster, Server,
        ServerTurn, Service, SubmitError,
    },
    codec::{Answer, HEAD_BYTES, Request, StoreCommand, StoreOp, StoreStatus, value},
    job::Config,
    place::{ClientId, Shard, Topology, key_of},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{
    conversation::{Reply, ReplyOutcome, ValueProtocol, Wish},
    server_process::ServerProcess,
};

/// Longest time to connect, and to store the first values.
const PATIENCE: Duration = Duration::from_secs(20);
/// Of input, beside the longest reply.
const BUFFER_BYTES: usize = 256 << 10;
/// Requests in flight while the first values are stored.
const FILL_WINDOW: usize = 16;

fn failed(what: &str) -> impl Fn(io::Error) -> BackendError + '_ {
    move |cause| BackendError::new(what, cause)
}

/// The backend.
#[derive(Debug)]
pub struct Stored<P> {
    topology: Topology,
    value_bytes_max: usize,
    protocol: PhantomData<fn() -> P>,
}

impl<P: ValueProtocol> Stored<P> {
    pub fn new(config: &Config) -> Self {
        let (topology, value_bytes_max) =
            (config.workload.topology(), config.workload.value_size.max_bytes);
        Self { topology, value_bytes_max, protocol: PhantomData }
    }
}

impl<P: ValueProtocol> Backend for Stored<P> {
    type Client = StoredClient<P>;
    type Server = StoredServer;

    fn server(&self, shard: Shard, service: Service) -> Result<StoredServer, BackendError> {
        let bytes = self.topology.keys * self.value_bytes_max as u64;
        let process = ServerProcess::start(|port| P::command(port, bytes))
            .map_err(|cause| BackendError::new(format!("cannot start {}", P::PACKAGE), cause))?;
        self.fill(shard, service, process.address)?;
        Ok(StoredServer { process })
    }

    fn client(&self, _: ClientId) -> Result<StoredClient<P>, BackendError> {
        Ok(StoredClient { connections: Vec::new(), value_bytes_max: self.value_bytes_max })
    }
}

impl<P: ValueProtocol> Stored<P> {
    /// Stores what `service` has for each key of `shard`.
    fn fill(&self, shard: Shard, mut service: Service, to: SocketAddr) -> Result<(), BackendError> {
        let refused = failed("cannot store the first values");
        let mut connection = Connection::<P>::open(to, self.value_bytes_max).map_err(&refused)?;
        let deadline_ns = clock::deadline_ns(PATIENCE);
        let (mut request, mut answer) = (Vec::new(), Vec::new());
        for key in (0..self.topology.keys).map(key_of) {
            if self.topology.owner(key) != shard {
                continue;
            }
            request.clear();
            answer.clear();
            Request { tag: 0, key, action: StoreCommand::Get }.write(&mut request);
            service(&request, &mut answer);
            let action = StoreCommand::Put { value: &answer[HEAD_BYTES..] };
            connection.push(CallToken(key), &Request { tag: 0, key, action });
            while connection.asked.len() >= FILL_WINDOW {
                connection.drain(deadline_ns).map_err(&refused)?;
            }
        }
        while !connection.asked.is_empty() {
            connection.drain(deadline_ns).map_err(&refused)?;
        }
        Ok(())
    }
}

/// The thread of a shard: it waits while its child process serves.
#[derive(Debug)]
pub struct StoredServer {
    process: ServerProcess,
}

impl Server for StoredServer {
    fn contact(&self) -> Contact {
        Contact(self.process.address.to_string())
    }

    fn join(&mut self, _: &Roster, _: u64) -> Result<(), BackendError> {
        Ok(())
    }

    fn turn(&mut self, _: usize) -> Result<ServerTurn, BackendError> {
        if self.process.has_ended() {
            return Err(BackendError::new("cannot go on", "the server has ended"));
        }
        Ok(ServerTurn::default())
    }

    fn wait(&mut self, deadline_ns: u64) -> Result<(), BackendError> {
        thread::sleep(Duration::from_nanos(deadline_ns.saturating_sub(clock::now_ns())));
        Ok(())
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

/// A connection per shard; `None`: it is gone.
pub struct StoredClient<P> {
    connections: Vec<Option<Connection<P>>>,
    value_bytes_max: usize,
}

impl<P: ValueProtocol> Client for StoredClient<P> {
    fn join(&mut self, roster: &Roster, _: u64) -> Result<(), BackendError> {
        for Contact(contact) in &roster.servers {
            let address = contact.parse().map_err(|e| BackendError::new("no address", e))?;
            let opened = Connection::open(address, self.value_bytes_max);
            self.connections.push(Some(opened.map_err(failed("cannot connect"))?));
        }
        Ok(())
    }

    fn submit(&mut self, to: Shard, token: CallToken, bytes: &[u8]) -> Result<(), SubmitError> {
        let connection = self.connections.get_mut(usize::from(to.0)).and_then(Option::as_mut);
        let connection = connection.ok_or(SubmitError::Gone(to))?;
        // The mix has GETs and PUTs, and `kv` writes requests that make sense.
        let request = Request::read(bytes).map_err(|_| SubmitError::Gone(to))?;
        connection.push(token, &request);
        Ok(())
    }

    fn poll(
        &mut self,
        budget: usize,
        sink: &mut impl FnMut(Event<'_>),
    ) -> Result<usize, BackendError> {
        let mut count = 0;
        for (shard, slot) in (0..).zip(&mut self.connections) {
            let Some(connection) = slot else { continue };
            let done = connection.flush().and_then(|()| {
                connection.receive()?;
                while count < budget && connection.next(sink)? {
                    count += 1;
                }
                Ok(())
            });
            match done {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    return Err(BackendError::new("cannot read a reply", error));
                }
                Err(_) => {
                    *slot = None;
                    sink(Event::Lost { shard: Shard(shard) });
                    count += 1;
                }
            }
        }
        Ok(count)
    }

    fn wait(&mut self, deadline_ns: u64) -> Result<(), BackendError> {
        let mut sockets = Vec::new();
        for connection in self.connections.iter_mut().flatten() {
            // An error is found again by the next poll.
            let _ = connection.flush();
            let out = if connection.is_pending() { PollFlags::OUT } else { PollFlags::empty() };
            sockets.push(PollFd::new(&connection.stream, PollFlags::IN | out));
        }
        let left = Duration::from_nanos(deadline_ns.saturating_sub(clock::now_ns()));
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut sockets, Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(BackendError::new("cannot wait", io::Error::from(errno))),
        }
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

/// A request without a reply.
#[derive(Clone, Copy, Debug)]
struct Asked {
    token: CallToken,
    op: StoreOp,
    key: u64,
    tag: u32,
}

/// One connection, on which replies come in the order of requests.
struct Connection<P> {
    stream: TcpStream,
    /// `output[sent..]` is to be sent.
    output: Vec<u8>,
    sent: usize,
    /// `input[begin..end]` was received and not handed out; `begin` is at least [`HEAD_BYTES`].
    input: Box<[u8]>,
    begin: usize,
    end: usize,
    asked: VecDeque<Asked>,
    protocol: PhantomData<fn() -> P>,
}

impl<P: ValueProtocol> Connection<P> {
    fn open(to: SocketAddr, value_bytes_max: usize) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            output: Vec::new(),
            sent: 0,
            input: vec![0; BUFFER_BYTES + 2 * value_bytes_max].into_boxed_slice(),
            begin: HEAD_BYTES,
            end: HEAD_BYTES,
            asked: VecDeque::new(),
            protocol: PhantomData,
        })
    }

    fn is_pending(&self) -> bool {
        self.sent < self.output.len()
    }

    fn push(&mut self, token: CallToken, request: &Request<'_>) {
        let wish = request.action.value().map_or(Wish::Get, Wish::Put);
        P::write(request.key, wish, &mut self.output);
        let (op, key, tag) = (request.action.op(), request.key, request.tag);
        self.asked.push_back(Asked { token, op, key, tag });
    }

    /// Sends what the kernel takes.
    fn flush(&mut self) -> io::Result<()> {
        while self.is_pending() {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(())
    }

    /// Takes in what is there, by one read.
    fn receive(&mut self) -> io::Result<()> {
        if self.begin == self.end {
            (self.begin, self.end) = (HEAD_BYTES, HEAD_BYTES);
        } else if self.end == self.input.len() {
            self.input.copy_within(self.begin..self.end, HEAD_BYTES);
            (self.begin, self.end) = (HEAD_BYTES, HEAD_BYTES + self.end - self.begin);
        }
        match self.stream.read(&mut self.input[self.end..]) {
            Ok(0) if self.end < self.input.len() => Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.end += count;
                Ok(())
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Hands out the next answer, if its reply is there.
    fn next(&mut self, sink: &mut impl FnMut(Event<'_>)) -> io::Result<bool> {
        let invalid = |cause: &str| io::Error::new(ErrorKind::InvalidData, cause);
        let Some(&Asked { token, op, key, tag }) = self.asked.front() else {
            return match self.begin == self.end {
                true => Ok(false),
                false => Err(invalid("a reply that nobody asked for")),
            };
        };
        let input = &self.input[self.begin..self.end];
        let is_get = op == StoreOp::Get;
        let reply = P::read(input, is_get).map_err(|strange| invalid(&strange.to_string()))?;
        let Some(Reply { outcome, len_bytes }) = reply else {
            return match input.len() < self.input.len() - HEAD_BYTES {
                true => Ok(false),
                false => Err(invalid("a reply that is longer than the buffer of its connection")),
            };
        };
        self.asked.pop_front();
        let (status, value) = match outcome {
            ReplyOutcome::Found(value) => (StoreStatus::Ok, value),
            ReplyOutcome::Missing => (StoreStatus::NotFound, 0..0),
            ReplyOutcome::Stored => (StoreStatus::Ok, 0..0),
        };
        // A value that says no version is found out by the judge.
        let version = value::peek(&input[value.clone()]).ok().map(|(_, version)| version);
        let version = if is_get { version } else { None };
        let mut head = Vec::with_capacity(HEAD_BYTES);
        Answer { op: Some(op), status, tag, key, version, value: &[] }.write(&mut head);
        let (begin, end) = (self.begin + value.start, self.begin + value.end);
        self.input[begin - HEAD_BYTES..begin].copy_from_slice(&head);
        sink(Event::Answer { token, bytes: &self.input[begin - HEAD_BYTES..end] });
        self.begin += len_bytes;
        Ok(true)
    }

    /// Sends, and takes the replies that are there; all have to say that a value was stored.
    fn drain(&mut self, deadline_ns: u64) -> io::Result<()> {
        self.flush()?;
        self.receive()?;
        while self.next(&mut |_| {})? {}
        if clock::now_ns() > deadline_ns {
            return Err(ErrorKind::TimedOut.into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use kv::codec::Version;

    use super::*;
    use crate::key_value::redis::Resp;

    /// What an event of an answer says, owned.
    type Told = (CallToken, StoreStatus, Option<Version>, Vec<u8>);

    fn take(connection: &mut Connection<Resp>, count: usize) -> io::Result<Vec<Told>> {
        let (mut told, deadline_ns) = (Vec::new(), clock::deadline_ns(PATIENCE));
        while told.len() < count {
            connection.receive()?;
            while connection.next(&mut |event| {
                let Event::Answer { token, bytes } = event else { panic!("{event:?}") };
                let Answer { status, version, value, .. } = Answer::read(bytes).unwrap();
                told.push((token, status, version, value.to_vec()));
            })? {}
            assert!(clock::now_ns() < deadline_ns, "{} of {count} replies", told.len());
        }
        Ok(told)
    }

    #[test]
    fn a_reply_longer_than_the_buffer_is_refused() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut connection = Connection::<Resp>::open(listener.local_addr().unwrap(), 64).unwrap();
        let mut server = listener.accept().unwrap().0;
        connection.push(CallToken(1), &Request { tag: 5, key: 7, action: StoreCommand::Get });
        let reply = [&b"$1000000\r\n"[..], &[0; 2 * BUFFER_BYTES]].concat();
        // It ends with an error when the connection is closed.
        let sender = thread::spawn(move || server.write_all(&reply));
        let refused = take(&mut connection, 1).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidData, "{refused}");
        drop(connection);
        let _ = sender.join().unwrap();
    }

    #[test]
    fn replies_become_answers_to_the_oldest_request_whatever_their_pieces() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut connection = Connection::<Resp>::open(listener.local_addr().unwrap(), 64).unwrap();
        let mut server = listener.accept().unwrap().0;
        server.set_nodelay(true).unwrap();
        let mut value = vec![0; 40];
        value::fill(&mut value, 7, Version(0x100));
        for (token, action) in [
            (1, StoreCommand::Get),
            (2, StoreCommand::Put { value: &value }),
            (3, StoreCommand::Get),
        ] {
            connection.push(CallToken(token), &Request { tag: 5, key: 7, action });
        }
        connection.flush().unwrap();
        let replies = [&b"$40\r\n"[..], &value, b"\r\n+OK\r\n$-1\r\n"].concat();
        let sender = thread::spawn(move || {
            for byte in replies {
                server.write_all(&[byte]).unwrap();
            }
            server
        });
        let expected = [
            (CallToken(1), StoreStatus::Ok, Some(Version(0x100)), value),
            (CallToken(2), StoreStatus::Ok, None, Vec::new()),
            (CallToken(3), StoreStatus::NotFound, None, Vec::new()),
        ];
        assert_eq!(take(&mut connection, 3).unwrap(), expected);
        let mut server = sender.join().unwrap();
        server.write_all(b"+OK\r\n").unwrap();
        let refused = take(&mut connection, 1).unwrap_err();
        assert_eq!(refused.to_string(), "a reply that nobody asked for");
    }
}
