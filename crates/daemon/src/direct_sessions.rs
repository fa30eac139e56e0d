//! Sessions between clients and providers of this node that need no daemon, as one thread of a daemon keeps them: their
//! number, their load, and their end.
//!
//! A client and a provider of two threads of the daemon have a session in the lists of both: the client's thread judges
//! and ends it with the client, the provider's thread introduces and ends it with the provider.
//!
//! Where several processes offer a service, each client has a session with one of them. A newcomer gets the provider
//! with the fewest busy sessions. If the numbers differ by two or more later, clients of the busiest provider are asked
//! to leave ([`ipc::Introducer::ask_to_leave`]), and introduced anew: no call is lost by that.

use std::os::fd::AsFd as _;

use client::message::DirectRecord;
use ipc::{ClientProcess, Introducer, Introduction};
use memory::sync::Arc;
use os::process::is_stopped;
use rpc::Status;
use rustix::process::{Resource, getrlimit};

use crate::direct_link::DirectLink;

/// Sessions at a time, of all clients of a daemon. Each takes a descriptor here, and memory of its provider.
const SESSIONS_MAX: usize = 256;

/// Sessions at a time of one client.
const SESSIONS_PER_CLIENT: usize = 8;

/// Time between two looks at which sessions have ended.
const LOOK_NS: u64 = 100_000_000;

/// Time between two looks at the load of providers: several of the intervals at which they report their calls.
const BALANCE_NS: u64 = 500_000_000;

/// A provider to which clients can be introduced.
struct Host<C> {
    service: u16,
    client: C,
    process: Option<ClientProcess>,
    introducer: Introducer,
}

impl<C> Host<C> {
    /// Whether its process is stopped, as far as that is known.
    fn is_stopped(&self) -> bool {
        self.process.is_some_and(|process| is_stopped(process.pid))
    }
}

/// A client that was introduced to a provider. One of the two may belong to another thread.
struct Session<C> {
    /// `None`: it belongs to another thread.
    client: Option<C>,
    host: Hosted<C>,
    link: Arc<DirectLink>,
    /// Its client makes calls one at a time.
    is_single: bool,
    /// Calls at the latest look at the load.
    seen: u64,
    /// Calls between the two latest looks. A session that began after the one before the latest has at least one: its
    /// provider may not have reported yet.
    recent: u64,
    /// It began after the latest look.
    is_new: bool,
    /// Its client was asked to leave.
    is_leaving: bool,
}

impl<C: Copy + PartialEq> Session<C> {
    fn new(client: Option<C>, host: Hosted<C>, link: Arc<DirectLink>, is_single: bool) -> Self {
        Self { client, host, link, is_single, seen: 0, recent: 1, is_new: true, is_leaving: false }
    }

    /// Whether it counts in the load of its provider.
    fn is_busy(&self) -> bool {
        self.recent > 0 && !self.is_leaving
    }

    /// Looks at the calls since the latest look. A client that calls on does not leave.
    fn look(&mut self) {
        let requests = self.link.requests();
        let recent = requests - self.seen;
        self.is_leaving &= recent == 0;
        self.recent = if std::mem::take(&mut self.is_new) { recent.max(1) } else { recent };
        self.seen = requests;
    }

    /// Asks the client to leave. A provider that does not hear it keeps the session.
    fn ask_to_leave(&mut self, introducer: &Introducer) {
        if let Hosted::Here(_, tag) = self.host {
            self.is_leaving = introducer.ask_to_leave(tag);
        }
    }
}

/// The provider of a session.
enum Hosted<C> {
    /// A client of this thread, and the name of the session between this daemon and it.
    Here(C, u64),
    /// A client of another thread.
    Elsewhere,
}

impl<C: Copy + PartialEq> Hosted<C> {
    fn is(&self, host: C) -> bool {
        matches!(self, Self::Here(client, _) if *client == host)
    }
}

/// A client that may call a provider.
pub(crate) struct Admitted<C> {
    /// `None`: it belongs to another thread.
    pub(crate) client: Option<C>,
    pub(crate) process: ClientProcess,
    pub(crate) link: Arc<DirectLink>,
    pub(crate) is_single: bool,
}

/// Sessions of one thread of a daemon. `C` names a client of the thread.
pub(crate) struct DirectSessions<C> {
    hosts: Vec<Host<C>>,
    sessions: Vec<Session<C>>,
    sessions_max: usize,
    /// Sessions that there ever were.
    tag: u64,
    look_ns: u64,
    balance_ns: u64,
    /// No client is introduced any more, and sessions are waited for.
    is_draining: bool,
}

impl<C: Copy + PartialEq> DirectSessions<C> {
    /// For one of so many threads.
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            hosts: Vec::new(),
            sessions: Vec::new(),
            sessions_max: sessions_max() / threads.max(1),
            tag: 0,
            look_ns: 0,
            balance_ns: 0,
            is_draining: false,
        }
    }

    /// A provider receives clients from now on: once.
    pub(crate) fn receive(
        &mut self,
        (service, client): (u16, C),
        process: Option<ClientProcess>,
        introducer: Introducer,
    ) -> Result<(), Status> {
        if self.service_of(client).is_some() {
            return Err(Status::FailedPrecondition);
        }
        self.hosts.push(Host { service, client, process, introducer });
        Ok(())
    }

    /// The service of a provider that receives clients.
    pub(crate) fn service_of(&self, client: C) -> Option<u16> {
        self.hosts.iter().find(|host| host.client == client).map(|host| host.service)
    }

    /// The provider of a service that has the fewest busy sessions, and of those the one with the fewest of all. One that
    /// is stopped is chosen only if all are.
    pub(crate) fn least_busy(&self, service: u16) -> Option<C> {
        let of_service = || self.hosts.iter().filter(|host| host.service == service);
        let has_choice = of_service().count() > 1;
        let count = |host| self.sessions.iter().filter(|it| it.host.is(host)).count();
        let by_load = |Host { client, .. }: &&Host<C>| (self.load(*client), count(*client));
        let is_last_resort = |host: &&Host<C>| has_choice && host.is_stopped();
        let found = of_service().min_by_key(|host| (is_last_resort(host), by_load(host)));
        found.map(|host| host.client)
    }

    /// Busy sessions of a provider.
    fn load(&self, host: C) -> usize {
        self.sessions.iter().filter(|it| it.host.is(host) && it.is_busy()).count()
    }

    /// Hands a provider of this thread the socket of a client.
    pub(crate) fn introduce(&mut self, host: C, admitted: Admitted<C>) -> Result<(), Status> {
        let Self { hosts, sessions, tag, .. } = self;
        let Admitted { client, process, link, is_single } = admitted;
        let to = hosts.iter().find(|it| it.client == host).ok_or(Status::Unavailable)?;
        *tag += 1;
        let introduction = Introduction { tag: *tag, process };
        if !to.introducer.introduce(link.socket().as_fd(), introduction) {
            return Err(Status::ResourceExhausted);
        }
        sessions.push(Session::new(client, Hosted::Here(host, *tag), link, is_single));
        Ok(())
    }

    /// Another thread is to introduce a client of this one.
    pub(crate) fn introduced_elsewhere(&mut self, client: C, link: Arc<DirectLink>) {
        self.sessions.push(Session::new(Some(client), Hosted::Elsewhere, link, true));
    }

    /// Whether there is room for one more session.
    pub(crate) fn has_room(&mut self) -> bool {
        if self.sessions.len() >= self.sessions_max {
            self.forget_ended();
        }
        !self.is_draining && self.sessions.len() < self.sessions_max
    }

    /// Whether there is room for one more session of a client.
    pub(crate) fn has_room_for(&mut self, client: C) -> bool {
        let is_its_own = |it: &&Session<C>| it.client == Some(client);
        self.has_room() && self.sessions.iter().filter(is_its_own).count() < SESSIONS_PER_CLIENT
    }

    /// A provider answered calls of a session, as it says.
    pub(crate) fn count(&self, host: C, record: &DirectRecord) {
        let tag = record.tag.get();
        let is_meant = |it: &&Session<C>| matches!(it.host, Hosted::Here(by, name) if by == host && name == tag);
        if let Some(session) = self.sessions.iter().find(is_meant) {
            session.link.count(record.count.get().into());
        }
    }

    /// Calls in sessions of the clients for which `is_meant` holds.
    pub(crate) fn requests_of(&self, is_meant: impl Fn(C) -> bool) -> u64 {
        let is_its_own = |it: &&Session<C>| it.client.is_some_and(&is_meant);
        self.sessions.iter().filter(is_its_own).map(|session| session.link.requests()).sum()
    }

    /// Sessions of providers of this thread, as far as the daemon looked.
    pub(crate) fn hosted(&self) -> usize {
        let is_here = |it: &&Session<C>| matches!(it.host, Hosted::Here(..));
        self.sessions.iter().filter(is_here).count()
    }

    /// Sessions that are waited for.
    pub(crate) fn awaited(&self) -> usize {
        if self.is_draining { self.sessions.len() } else { 0 }
    }

    /// All sessions end once the requests that were taken in them are answered.
    pub(crate) fn drain(&mut self) {
        self.is_draining = true;
        let Self { hosts, sessions, .. } = self;
        for host in hosts {
            // A provider that does not hear it has none any more.
            if !host.introducer.retire(None) {
                end(sessions, |session| session.host.is(host.client));
            }
        }
    }

    /// Another process of this thread offers a service, too. Clients with several calls in flight are asked to leave:
    /// the daemon deals their requests out, each to the process with the fewest.
    pub(crate) fn share(&mut self, service: u16) {
        self.ask_to_leave(service, |session| !session.is_single);
    }

    /// A process of another thread offers a service, too: the requests of that thread's clients go to it.
    pub(crate) fn share_with_threads(&mut self, service: u16) {
        self.ask_to_leave(service, |session| session.client.is_none());
    }

    /// Asks clients of the providers of a service to leave.
    fn ask_to_leave(&mut self, service: u16, is_meant: impl Fn(&Session<C>) -> bool) {
        let Self { hosts, sessions, .. } = self;
        for host in hosts.iter().filter(|host| host.service == service) {
            let of_host = sessions.iter_mut().filter(|session| session.host.is(host.client));
            for session in of_host.filter(|session| is_meant(session)) {
                session.ask_to_leave(&host.introducer);
            }
        }
    }

    /// Ends the sessions of clients and providers that are gone.
    pub(crate) fn depart(&mut self, is_there: impl Fn(C) -> bool) {
        self.hosts.retain(|host| is_there(host.client));
        end(&mut self.sessions, |Session { client, host, .. }| {
            let is_host_gone = matches!(host, Hosted::Here(host, _) if !is_there(*host));
            is_host_gone || client.is_some_and(|client| !is_there(client))
        });
    }

    /// Forgets sessions that have ended, and looks at the load, if it is time to.
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
        if now_ns >= self.balance_ns {
            self.balance_ns = now_ns + BALANCE_NS;
            self.balance();
        }
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

    /// Asks clients of busy providers to leave, where another provider of the same service has fewer.
    #[cold]
    fn balance(&mut self) {
        self.sessions.iter_mut().for_each(Session::look);
        if self.is_draining {
            return;
        }
        for at in 0..self.hosts.len() {
            let Host { service, client, .. } = self.hosts[at];
            let of_service = self.hosts.iter().filter(|host| host.service == service);
            let Some(least) = of_service.map(|host| self.load(host.client)).min() else { continue };
            let surplus = self.load(client).saturating_sub(least) / 2;
            if surplus > 0 {
                self.shed(at, surplus);
            }
        }
    }

    /// Asks so many clients of a provider to leave: those that called least.
    fn shed(&mut self, at: usize, count: usize) {
        let Self { hosts, sessions, .. } = self;
        let host = &hosts[at];
        let is_its_own = |it: &&mut Session<C>| it.host.is(host.client) && it.is_busy();
        let mut busy: Vec<_> = sessions.iter_mut().filter(is_its_own).collect();
        busy.sort_by_key(|session| session.recent);
        for session in busy.into_iter().take(count) {
            session.ask_to_leave(&host.introducer);
        }
    }
}

impl<C> Drop for DirectSessions<C> {
    fn drop(&mut self) {
        self.sessions.iter().for_each(|session| session.link.end());
    }
}

/// Sessions of all threads: no more than an eighth of the descriptors.
fn sessions_max() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit / 8).unwrap_or(usize::MAX).min(SESSIONS_MAX)
}

/// Ends sessions, whoever has copies of their sockets.
fn end<C>(sessions: &mut Vec<Session<C>>, is_over: impl Fn(&Session<C>) -> bool) {
    sessions.retain(|session| {
        let is_over = is_over(session);
        if is_over {
            session.link.end();
        }
        !is_over
    });
}

#[cfg(test)]
mod tests {
    use ipc::{Server, ServerConfig};
    use os::unix::UnixConnection;

    use super::*;

    const SERVICE: u16 = 9;

    /// Sessions of providers 1 and 2, which live as long as the rest of the value.
    struct Rig {
        sessions: DirectSessions<u32>,
        _providers: Vec<Server>,
        /// The clients' ends of their sockets.
        ends: Vec<UnixConnection>,
    }

    impl Rig {
        fn new() -> Self {
            let (mut sessions, mut providers) = (DirectSessions::new(1), Vec::new());
            for provider in [1, 2] {
                let (server, channel) = Server::introduced(ServerConfig::default()).unwrap();
                let introducer = Introducer::adopt(channel).unwrap();
                sessions.receive((SERVICE, provider), None, introducer).unwrap();
                providers.push(server);
            }
            Self { sessions, _providers: providers, ends: Vec::new() }
        }

        /// Introduces a client; returns the provider.
        fn introduce(&mut self, client: u32, is_single: bool) -> u32 {
            let (end, socket) = UnixConnection::pair().unwrap();
            self.ends.push(end);
            let link = Arc::new(DirectLink::new(UnixConnection::adopt(socket).unwrap()));
            let process = ClientProcess { uid: 1, pid: 2 };
            let host = self.sessions.least_busy(SERVICE).unwrap();
            let admitted = Admitted { client: Some(client), process, link, is_single };
            self.sessions.introduce(host, admitted).unwrap();
            host
        }

        fn count(&self, host: u32, tag: u64, count: u32) {
            let (tag, count) = (tag.into(), count.into());
            let record = DirectRecord { tag, count, status: 0, is_of_service: 1, reserved: [0; 2] };
            self.sessions.count(host, &record);
        }

        /// Clients that were asked to leave.
        fn leaving(&self) -> Vec<u32> {
            let leaving = self.sessions.sessions.iter().filter(|session| session.is_leaving);
            leaving.filter_map(|session| session.client).collect()
        }
    }

    #[test]
    fn clients_are_dealt_out_evenly_and_those_that_call_least_leave_a_busy_provider() {
        let mut rig = Rig::new();
        let hosts = [10, 11, 12, 13].map(|client| rig.introduce(client, true));
        assert_eq!(hosts, [1, 2, 1, 2]);
        // All are new, and count.
        rig.sessions.expire(0);
        rig.count(1, 1, 9);
        rig.count(1, 3, 5);
        rig.sessions.expire(BALANCE_NS);
        assert_eq!(rig.leaving(), [12], "of the two busy ones of provider 1");
        assert_eq!(rig.introduce(14, true), 2, "it has no busy ones");
        assert_eq!(rig.sessions.requests_of(|client| client == 10), 9);
        // It called on: provider 1 has two busy sessions, provider 2 the new one.
        rig.count(1, 1, 1);
        rig.count(1, 3, 1);
        rig.sessions.expire(2 * BALANCE_NS);
        assert!(rig.leaving().is_empty());
    }

    #[test]
    fn a_drain_retires_all_sessions_and_pipelines_leave_a_service_that_is_shared() {
        let mut rig = Rig::new();
        rig.introduce(10, false);
        rig.introduce(11, true);
        rig.sessions.share(SERVICE);
        assert_eq!(rig.leaving(), [10]);
        rig.sessions.depart(|client| client != 11);
        assert_eq!((rig.sessions.hosted(), rig.sessions.awaited()), (1, 0));
        rig.sessions.drain();
        assert!(!rig.sessions.has_room() && rig.sessions.awaited() == 1);
        rig.ends.clear();
        rig.sessions.expire(BALANCE_NS);
        assert_eq!(rig.sessions.awaited(), 0, "the client has gone");
    }
}
