//! Clients that are introduced to providers of this node, and call them without the daemon from then on.
//!
//! The daemon judges whether a client may call a service, hands the provider the client's socket, and keeps a copy of
//! it: by that it ends the session when what it was admitted for has ended.

use std::os::fd::AsFd as _;

use client::message::{DirectRecord, HERE, WantedHead, method};
use ipc::{Introducer, Introduction};
use os::unix::UnixConnection;
use rpc::Status;
use rustix::process::{Resource, getrlimit};
use zerocopy::FromBytes as _;

use crate::{
    client_port::{ClientPort, ClientTag, Replies as _},
    dispatcher::{Dispatcher, said::not_executed},
    metrics::Counter,
    request::{Body, Caller, Request},
};

/// Sessions at a time, of all clients of a daemon. Each takes a descriptor here, and memory of its provider.
const SESSIONS_MAX: usize = 256;

/// Sessions at a time of one client.
const SESSIONS_PER_CLIENT: usize = 8;

/// Time between two looks at which sessions have ended.
const LOOK_NS: u64 = 100_000_000;

/// A provider to which clients can be introduced.
struct Host<P: ClientPort> {
    service: u16,
    client: P::Client,
    introducer: Introducer,
}

/// A client that was introduced to a provider.
struct Session<P: ClientPort> {
    client: P::Client,
    host: P::Client,
    /// Its name between this daemon and the provider.
    tag: u64,
    /// Calls that went by it, as the provider tells.
    requests: u64,
    /// The client's socket, of which the provider has another copy.
    socket: UnixConnection,
}

/// A request about introductions, without its body, and that.
type Message<P> = (Request<'static, P>, Vec<u8>);

/// Introductions of one thread of a daemon.
pub(crate) struct Introductions<P: ClientPort> {
    /// Requests of this turn.
    inbox: Vec<Message<P>>,
    hosts: Vec<Host<P>>,
    sessions: Vec<Session<P>>,
    sessions_max: usize,
    /// Sessions that there ever were.
    tag: u64,
    look_ns: u64,
    /// Nobody is introduced any more, and sessions are waited for.
    is_draining: bool,
}

impl<P: ClientPort> Introductions<P> {
    /// For one of so many threads.
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            inbox: Vec::new(),
            hosts: Vec::new(),
            sessions: Vec::new(),
            sessions_max: sessions_max() / threads.max(1),
            tag: 0,
            look_ns: 0,
            is_draining: false,
        }
    }

    /// Whether a method of the daemon is about introductions.
    pub(crate) fn is_about(method: u16) -> bool {
        (method::MAY_MEET..=method::COUNTS).contains(&method)
    }

    pub(crate) fn request(&mut self, request: Request<'_, P>) {
        let body = request.body.private().to_vec();
        self.inbox.push((request.without_body(), body));
    }

    #[inline]
    pub(crate) fn has_requests(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// Sessions that are waited for.
    pub(crate) fn awaited(&self) -> usize {
        if self.is_draining { self.sessions.len() } else { 0 }
    }

    /// All sessions end once what was taken in them is answered.
    pub(crate) fn drain(&mut self) {
        self.is_draining = true;
        self.retire(|_| true);
    }

    /// The sessions of the providers for which `is_meant` holds end once what was taken in them is answered.
    fn retire(&mut self, is_meant: impl Fn(u16) -> bool) {
        for host in self.hosts.iter().filter(|host| is_meant(host.service)) {
            // A provider that does not hear it has none any more.
            if !host.introducer.retire(None) {
                end(&mut self.sessions, |session| session.host == host.client);
            }
        }
    }

    /// Another process offers a service, too: the daemon deals out its requests from now on.
    pub(crate) fn share(&mut self, service: u16) {
        self.retire(|of| of == service);
    }

    /// Ends the sessions of clients and providers that are gone.
    pub(crate) fn depart(&mut self, is_there: impl Fn(P::Client) -> bool) {
        self.hosts.retain(|host| is_there(host.client));
        end(&mut self.sessions, |it| !is_there(it.client) || !is_there(it.host));
    }

    /// Forgets sessions that have ended, if it is time to.
    pub(crate) fn expire(&mut self, now_ns: u64) {
        if self.sessions.is_empty() || now_ns < self.look_ns && !self.is_draining {
            return;
        }
        self.look_ns = now_ns + LOOK_NS;
        self.forget_ended();
    }

    fn forget_ended(&mut self) {
        end(&mut self.sessions, |session| session.socket.is_closed().unwrap_or(true));
    }

    /// Calls of a client that went without this daemon.
    pub(crate) fn requests_of(&self, client: ClientTag) -> u64 {
        let sessions = self.sessions.iter().filter(|it| P::tag(it.client) == client);
        sessions.map(|session| session.requests).sum()
    }

    /// Sessions that there are, as far as the daemon looked.
    pub(crate) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether there is room for one more session of a client.
    fn has_room(&mut self, client: P::Client) -> bool {
        if self.sessions.len() >= self.sessions_max {
            self.forget_ended();
        }
        let of_client = self.sessions.iter().filter(|session| session.client == client).count();
        self.sessions.len() < self.sessions_max && of_client < SESSIONS_PER_CLIENT
    }
}

impl<P: ClientPort> Drop for Introductions<P> {
    fn drop(&mut self) {
        end(&mut self.sessions, |_| true);
    }
}

/// Sessions of all threads: no more than an eighth of the descriptors.
fn sessions_max() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit / 8).unwrap_or(usize::MAX).min(SESSIONS_MAX)
}

/// Ends sessions, whoever has copies of their sockets.
fn end<P: ClientPort>(sessions: &mut Vec<Session<P>>, is_over: impl Fn(&Session<P>) -> bool) {
    sessions.retain(|session| {
        let is_over = is_over(session);
        if is_over {
            session.socket.shut_down();
        }
        !is_over
    });
}

impl<P: ClientPort> Dispatcher<P> {
    /// Answers the requests of this turn that are about introductions.
    #[cold]
    pub(crate) fn introduce(&mut self, port: &mut P) {
        for (request, body) in core::mem::take(&mut self.introductions.inbox) {
            let Caller::Client(to) = request.reply_to else { continue };
            let done = match request.method {
                method::RECEIVE => self.receive(port, to, &body),
                method::COUNTS => self.count_direct(P::client_of(to), &body),
                _ => self.meet(port, to, &request, &body),
            };
            let rank = self.rank_info.rank().to_le_bytes();
            match done {
                Ok(()) => port.replies().reply(to, Status::Ok, &[&rank]),
                Err(status) => port.replies().reply(to, status, &[not_executed(status)]),
            }
        }
    }

    /// A provider receives clients.
    fn receive(&mut self, port: &mut P, to: P::ReplyTo, body: &[u8]) -> Result<(), Status> {
        let client = P::client_of(to);
        let channel = port.take_descriptor(client).ok_or(Status::InvalidArgument)?;
        let service = body.try_into().map(u16::from_le_bytes);
        let service = service.map_err(|_| Status::InvalidArgument)?;
        let is_its_own = self.services.provider(service).is_some_and(|it| it.members.has(client));
        let is_new = !self.introductions.hosts.iter().any(|host| host.client == client);
        if !is_its_own || !is_new {
            return Err(Status::FailedPrecondition);
        }
        let introducer = Introducer::adopt(channel).map_err(|_| Status::InvalidArgument)?;
        self.introductions.hosts.push(Host { service, client, introducer });
        Ok(())
    }

    /// A provider tells of calls that went without this daemon. Nobody else vouches for them.
    fn count_direct(&mut self, host: P::Client, body: &[u8]) -> Result<(), Status> {
        let records = <[DirectRecord]>::ref_from_bytes(body);
        let records = records.map_err(|_| Status::InvalidArgument)?;
        let service =
            self.introductions.hosts.iter().find(|it| it.client == host).map(|host| host.service);
        let service = service.ok_or(Status::FailedPrecondition)?;
        for record in records {
            let count = u64::from(record.count.get());
            let status = Status::from_code(record.status).unwrap_or(Status::Unknown);
            let mut sessions = self.introductions.sessions.iter_mut();
            if let Some(session) = sessions.find(|it| it.host == host && it.tag == record.tag.get())
            {
                session.requests += count;
            }
            self.services.count_requests(service, count);
            self.tally.add(Counter::RequestsLocal, count);
            self.tally.add(Counter::RequestsDirect, count);
            self.tally.add(Counter::Replies, count);
            self.statuses[usize::from(status.code())] += count;
            match (status, record.is_of_service) {
                (Status::Ok, _) => {}
                (_, 1) => self.tally.add(Counter::HandlerErrors, count),
                (status, _) => self.count_ends(status, count),
            }
        }
        Ok(())
    }

    /// A client asks whether it may be introduced to a provider, or to be.
    fn meet(
        &mut self,
        port: &mut P,
        to: P::ReplyTo,
        request: &Request<'static, P>,
        body: &[u8],
    ) -> Result<(), Status> {
        let client = P::client_of(to);
        let is_asking = request.method == method::MAY_MEET;
        let socket = if is_asking { None } else { port.take_descriptor(client) };
        let head = WantedHead::read_from_bytes(body).map_err(|_| Status::InvalidArgument)?;
        let own = self.rank_info.rank();
        let rank = if head.rank.get() == HERE { own } else { head.rank.get() };
        let wanted = Request {
            rank,
            service: head.service.get(),
            body: Body::Private(&[]),
            ..request.of_client(to)
        };
        self.admission.check(&wanted).map_err(|refusal| refusal.status())?;
        let provider = self.services.provider(wanted.service).filter(|_| rank == own);
        let members = &provider.ok_or(Status::FailedPrecondition)?.members;
        // Where several processes offer a service, each request goes to the one that has the fewest.
        let mut hosts = self.introductions.hosts.iter();
        let host = hosts.find(|host| members.census().0 == 1 && members.has(host.client));
        let host = host.ok_or(Status::FailedPrecondition)?.client;
        if !self.introductions.has_room(client) {
            return Err(Status::ResourceExhausted);
        }
        if is_asking {
            return Ok(());
        }
        let socket = socket.ok_or(Status::InvalidArgument)?;
        let socket = UnixConnection::adopt(socket).map_err(|_| Status::InvalidArgument)?;
        let process = port.replies().process_of(to).ok_or(Status::FailedPrecondition)?;
        // Its own, and not one that somebody else gave it.
        let maker = socket.peer_credentials();
        if (maker.uid, maker.pid) != (process.uid, process.pid) {
            return Err(Status::PermissionDenied);
        }
        let Introductions { hosts, sessions, tag, .. } = &mut self.introductions;
        *tag += 1;
        let introduction = Introduction { tag: *tag, process };
        let host = hosts.iter().find(|it| it.client == host).ok_or(Status::Unavailable)?;
        if !host.introducer.introduce(socket.as_fd(), introduction) {
            return Err(Status::ResourceExhausted);
        }
        sessions.push(Session { client, host: host.client, tag: *tag, requests: 0, socket });
        Ok(())
    }
}
