//! Clients that are introduced to providers of this node, and call them without the daemon from then on.
//!
//! The daemon judges whether a client may call a service, hands the provider the client's socket, and keeps a copy of
//! it: by that it ends the session when what it was admitted for has ended.
//!
//! A client and a provider of two threads of the daemon have a session in the lists of both: the client's thread judges
//! and ends it with the client, the provider's thread introduces and ends it with the provider.

use std::os::fd::AsFd as _;

use client::message::{DirectRecord, HERE, WantedHead, method};
use ipc::{ClientProcess, Introducer, Introduction};
use memory::sync::Arc;
use os::{process::is_stopped, unix::UnixConnection};
use rpc::Status;
use rustix::process::{Resource, getrlimit};
use zerocopy::FromBytes as _;

use crate::{
    client_port::{ClientPort, ClientTag, Replies as _},
    direct_link::{DirectLink, DirectNewcomer},
    dispatcher::{Dispatcher, said::not_executed},
    metrics::Counter,
    request::{Body, Caller, Request},
    services::Served,
    threads::ThreadNotice,
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
    process: Option<ClientProcess>,
    introducer: Introducer,
}

impl<P: ClientPort> Host<P> {
    /// Whether its process is stopped, as far as that is known.
    fn is_stopped(&self) -> bool {
        self.process.is_some_and(|process| is_stopped(process.pid))
    }
}

/// A client that was introduced to a provider. One of the two may belong to another thread.
struct Session<P: ClientPort> {
    /// `None`: it belongs to another thread.
    client: Option<P::Client>,
    host: Hosted<P>,
    link: Arc<DirectLink>,
}

/// The provider of a session.
enum Hosted<P: ClientPort> {
    /// A client of this thread, and the name of the session between this daemon and it.
    Here(P::Client, u64),
    /// A client of another thread.
    Elsewhere,
}

impl<P: ClientPort> Hosted<P> {
    fn is(&self, host: P::Client) -> bool {
        matches!(self, Self::Here(client, _) if *client == host)
    }
}

/// The place of the provider that a client is to be introduced to.
enum HostPlace<P: ClientPort> {
    Here(P::Client),
    Thread(usize),
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
                end(&mut self.sessions, |session| session.host.is(host.client));
            }
        }
    }

    /// Another process offers a service, too: the daemon deals out its requests from now on.
    pub(crate) fn share(&mut self, service: u16) {
        self.retire(|of| of == service);
    }

    /// A process of another thread offers a service, too: the requests of that thread's clients go to it.
    pub(crate) fn share_with_threads(&mut self, service: u16) {
        let Self { hosts, sessions, .. } = self;
        for host in hosts.iter().filter(|host| host.service == service) {
            end(sessions, |session| match (&session.client, &session.host) {
                (None, Hosted::Here(by, tag)) if *by == host.client => {
                    !host.introducer.retire(Some(*tag))
                }
                _ => false,
            });
        }
    }

    /// Ends the sessions of clients and providers that are gone.
    pub(crate) fn depart(&mut self, is_there: impl Fn(P::Client) -> bool) {
        self.hosts.retain(|host| is_there(host.client));
        end(&mut self.sessions, |Session { client, host, .. }| {
            let is_host_gone = matches!(host, Hosted::Here(host, _) if !is_there(*host));
            is_host_gone || client.is_some_and(|client| !is_there(client))
        });
    }

    /// Forgets sessions that have ended, if it is time to.
    pub(crate) fn expire(&mut self, now_ns: u64) {
        let is_due = now_ns >= self.look_ns;
        if self.sessions.is_empty() || !is_due && !self.is_draining {
            return;
        }
        if is_due {
            self.look_ns = now_ns + LOOK_NS;
            self.end_of_stopped();
        }
        self.forget_ended();
    }

    /// Ends the sessions of providers that are stopped, and that will not end them when the daemon waits for that.
    fn end_of_stopped(&mut self) {
        if self.is_draining {
            let Self { hosts, sessions, .. } = self;
            for host in hosts.iter().filter(|host| host.is_stopped()) {
                end(sessions, |session| session.host.is(host.client));
            }
        }
    }

    fn forget_ended(&mut self) {
        end(&mut self.sessions, |session| session.link.is_over());
    }

    /// Calls of a client that went without this daemon.
    pub(crate) fn requests_of(&self, client: ClientTag) -> u64 {
        let is_its_own = |it: &&Session<P>| it.client.is_some_and(|it| P::tag(it) == client);
        self.sessions.iter().filter(is_its_own).map(|session| session.link.requests()).sum()
    }

    /// Sessions of providers of this thread, as far as the daemon looked.
    pub(crate) fn hosted(&self) -> usize {
        let is_here = |it: &&Session<P>| matches!(it.host, Hosted::Here(..));
        self.sessions.iter().filter(is_here).count()
    }

    /// Whether there is room for one more session.
    fn has_room(&mut self) -> bool {
        if self.sessions.len() >= self.sessions_max {
            self.forget_ended();
        }
        self.sessions.len() < self.sessions_max
    }

    /// Whether there is room for one more session of a client.
    fn has_room_for(&mut self, client: P::Client) -> bool {
        let is_its_own = |it: &&Session<P>| it.client == Some(client);
        self.has_room() && self.sessions.iter().filter(is_its_own).count() < SESSIONS_PER_CLIENT
    }

    /// Hands a provider of this thread the socket of a client.
    fn introduce(
        &mut self,
        host: P::Client,
        client: Option<P::Client>,
        (process, link): (ClientProcess, Arc<DirectLink>),
    ) -> Result<(), Status> {
        let Self { hosts, sessions, tag, .. } = self;
        let to = hosts.iter().find(|it| it.client == host).ok_or(Status::Unavailable)?;
        *tag += 1;
        let introduction = Introduction { tag: *tag, process };
        if !to.introducer.introduce(link.socket().as_fd(), introduction) {
            return Err(Status::ResourceExhausted);
        }
        sessions.push(Session { client, host: Hosted::Here(host, *tag), link });
        Ok(())
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
            session.link.end();
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
        let process = port.replies().process_of(to);
        self.introductions.hosts.push(Host { service, client, process, introducer });
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
            let tag = record.tag.get();
            let is_meant = |it: &&mut Session<P>| matches!(it.host, Hosted::Here(by, name) if by == host && name == tag);
            if let Some(session) = sessions.find(is_meant) {
                session.link.count(count);
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
        if rank != own {
            return Err(Status::FailedPrecondition);
        }
        let place = self.host_of(wanted.service)?;
        if !self.introductions.has_room_for(client) {
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
        let link = Arc::new(DirectLink::new(socket));
        let thread = match place {
            HostPlace::Here(host) => {
                return self.introductions.introduce(host, Some(client), (process, link));
            }
            HostPlace::Thread(thread) => thread,
        };
        let newcomer = DirectNewcomer { service: wanted.service, process, link: Arc::clone(&link) };
        if !self.thread_handle.notify(thread, ThreadNotice::Introduce(newcomer)) {
            return Err(Status::ResourceExhausted);
        }
        let session = Session { client: Some(client), host: Hosted::Elsewhere, link };
        self.introductions.sessions.push(session);
        Ok(())
    }

    /// The provider that clients of a service can be introduced to. Where several processes offer it, there is none: each
    /// request goes to the one that has the fewest.
    fn host_of(&mut self, service: u16) -> Result<HostPlace<P>, Status> {
        match self.services.others(service) {
            Some(Served::Elsewhere) => {
                let thread = self.services.elsewhere(service);
                thread.map(HostPlace::Thread).ok_or(Status::FailedPrecondition)
            }
            Some(Served::Provided) => {
                let provider = self.services.provider(service);
                let members = &provider.ok_or(Status::FailedPrecondition)?.members;
                let mut hosts = self.introductions.hosts.iter();
                let is_alone = members.census().0 == 1;
                let host = hosts.find(|host| is_alone && members.has(host.client));
                host.map(|host| HostPlace::Here(host.client)).ok_or(Status::FailedPrecondition)
            }
            Some(Served::Answered(_)) | None => Err(Status::FailedPrecondition),
        }
    }

    /// Another thread has admitted a client of its own to a provider of this one. Where that is not introduced, its
    /// socket is shut down, by which it and its thread learn so.
    #[cold]
    pub(super) fn introduce_of_thread(&mut self, newcomer: DirectNewcomer) {
        let DirectNewcomer { service, process, link } = newcomer;
        let is_introduced = !self.introductions.is_draining
            && self.introductions.has_room()
            && matches!(self.host_of(service), Ok(HostPlace::Here(host))
                if self.introductions.introduce(host, None, (process, Arc::clone(&link))).is_ok());
        if !is_introduced {
            link.end();
        }
    }
}
