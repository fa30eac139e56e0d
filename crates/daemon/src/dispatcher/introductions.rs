//! Clients that are introduced to providers of this node, and call them without the daemon from then on.
//!
//! The daemon judges whether a client may call a service, hands the provider the client's socket, and keeps a copy of
//! it: by that it ends the session when what it was admitted for has ended ([`DirectSessions`]).

use client::message::{DirectRecord, HERE, IS_SINGLE, WantedHead, method};
use ipc::Introducer;
use memory::sync::Arc;
use os::unix::UnixConnection;
use rpc::Status;
use zerocopy::FromBytes as _;

use crate::{
    client_port::{ClientPort, Replies as _},
    direct_link::{DirectLink, DirectNewcomer},
    direct_sessions::{Admitted, DirectSessions},
    dispatcher::{Dispatcher, said::not_executed},
    metrics::Counter,
    request::{Caller, Request},
    request_head::RequestHead,
    services::Served,
    threads::ThreadNotice,
};

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
    pub(crate) sessions: DirectSessions<P::Client>,
}

impl<P: ClientPort> Introductions<P> {
    /// For one of so many threads.
    pub(crate) fn new(threads: usize) -> Self {
        Self { inbox: Vec::new(), sessions: DirectSessions::new(threads) }
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
}

impl<P: ClientPort> Dispatcher<P> {
    /// Answers the requests of this turn that are about introductions.
    #[cold]
    pub(crate) fn introduce(&mut self, port: &mut P) {
        for (request, body) in core::mem::take(&mut self.introductions.inbox) {
            let Caller::Client(to) = request.reply_to else { continue };
            let done = match request.head.method {
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
        if !is_its_own {
            return Err(Status::FailedPrecondition);
        }
        let introducer = Introducer::adopt(channel).map_err(|_| Status::InvalidArgument)?;
        let process = port.replies().process_of(to);
        self.introductions.sessions.receive((service, client), process, introducer)
    }

    /// A provider tells of calls that went without this daemon. Nobody else vouches for them.
    fn count_direct(&mut self, host: P::Client, body: &[u8]) -> Result<(), Status> {
        let records = <[DirectRecord]>::ref_from_bytes(body);
        let records = records.map_err(|_| Status::InvalidArgument)?;
        let service = self.introductions.sessions.service_of(host);
        let service = service.ok_or(Status::FailedPrecondition)?;
        for record in records {
            let count = u64::from(record.count.get());
            let status = Status::from_code(record.status).unwrap_or(Status::Unknown);
            self.introductions.sessions.count(host, record);
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
        let is_asking = request.head.method == method::MAY_MEET;
        let socket = if is_asking { None } else { port.take_descriptor(client) };
        let head = WantedHead::read_from_bytes(body).map_err(|_| Status::InvalidArgument)?;
        let own = self.rank_info.rank();
        let rank = if head.rank.get() == HERE { own } else { head.rank.get() };
        let service = head.service.get();
        let wanted = Request {
            head: RequestHead { rank, service, ..request.head },
            ..request.of_client(to)
        };
        self.admission.check(&wanted).map_err(|refusal| refusal.status())?;
        if rank != own {
            return Err(Status::FailedPrecondition);
        }
        let is_single = head.flags.get() & IS_SINGLE != 0;
        let place = self.host_of(service, is_single)?;
        if !self.introductions.sessions.has_room_for(client) {
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
                let client = Some(client);
                let admitted = Admitted { client, process, link, is_single };
                return self.introductions.sessions.introduce(host, admitted);
            }
            HostPlace::Thread(thread) => thread,
        };
        let own = Arc::clone(&link);
        let newcomer = DirectNewcomer { service, process, link, is_single };
        if !self.thread_handle.notify(thread, ThreadNotice::Introduce(newcomer)) {
            return Err(Status::ResourceExhausted);
        }
        self.introductions.sessions.introduced_elsewhere(client, own);
        Ok(())
    }

    /// The provider that a client of a service is to be introduced to. Where several processes offer the service, there
    /// is none for a client with several calls in flight: each request goes to the process that has the fewest.
    fn host_of(&mut self, service: u16, is_single: bool) -> Result<HostPlace<P>, Status> {
        match self.services.others(service) {
            Some(Served::Elsewhere) => {
                let thread = self.services.elsewhere(service);
                thread.map(HostPlace::Thread).ok_or(Status::FailedPrecondition)
            }
            Some(Served::Provided) => {
                let provider = self.services.provider(service);
                let (count, _) = provider.ok_or(Status::FailedPrecondition)?.members.census();
                let host = self.introductions.sessions.least_busy(service);
                let host = host.filter(|_| is_single || count == 1);
                host.map(HostPlace::Here).ok_or(Status::FailedPrecondition)
            }
            Some(Served::Answered(_)) | None => Err(Status::FailedPrecondition),
        }
    }

    /// Another thread has admitted a client of its own to a provider of this one. Where that is not introduced, its
    /// socket is shut down, by which it and its thread learn so.
    #[cold]
    pub(super) fn introduce_of_thread(&mut self, newcomer: DirectNewcomer) {
        let DirectNewcomer { service, process, link, is_single } = newcomer;
        let host = self.host_of(service, is_single);
        let own = Arc::clone(&link);
        let admitted = Admitted { client: None, process, link, is_single };
        let sessions = &mut self.introductions.sessions;
        let is_introduced = sessions.has_room()
            && matches!(host, Ok(HostPlace::Here(host)) if sessions.introduce(host, admitted).is_ok());
        if !is_introduced {
            own.end();
        }
    }
}
