//! Several servers behind one listener: how many clients each has, and connections on their way to a
//! server.
//!
//! ```text
//! path ─▶ listener ─▶ Server 0      the first server accepts, and reads the hello
//!            │        Server 1 ◀┐   a client belongs to the server that had fewest when it came
//!            └─▶ handoff ───────┴▶ Server 2
//! ```

use std::{
    collections::VecDeque,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use os::{
    event::{EventError, EventFd},
    unix::{PeerCredentials, UnixConnection},
};

use crate::endpoint::{handshake::RefuseReason, server::config::ServerConfig};

/// The state that the servers of a team share.
#[derive(Debug)]
struct Shared {
    /// By server. Locked when clients come and leave, never per request.
    servers: Mutex<Vec<Member>>,
    /// By server: readable while connections may wait for it.
    events: Vec<EventFd>,
    clients_max: usize,
    clients_per_user_max: usize,
    clients_per_process_max: usize,
}

#[derive(Debug, Default)]
struct Member {
    /// Whose its clients are, connections that wait included.
    owners: Vec<PeerCredentials>,
    waiting: VecDeque<UnixConnection>,
    is_gone: bool,
}

/// One server's view of its team.
#[derive(Debug)]
pub(crate) struct Handoff {
    shared: Arc<Shared>,
    number: usize,
}

impl Handoff {
    /// One for each of `count` servers.
    pub(crate) fn team(count: usize, config: &ServerConfig) -> Result<Vec<Self>, EventError> {
        let events = (0..count).map(|_| EventFd::new()).collect::<Result<_, _>>()?;
        let shared = Arc::new(Shared {
            servers: Mutex::new((0..count).map(|_| Member::default()).collect()),
            events,
            clients_max: config.clients_max.into(),
            clients_per_user_max: config.clients_per_user_max.into(),
            clients_per_process_max: config.clients_per_process_max.into(),
        });
        let handoff = |number| Self { shared: Arc::clone(&shared), number };
        Ok((0..count).map(handoff).collect())
    }

    /// Number of this server in its team.
    pub(crate) fn number(&self) -> u64 {
        self.number as u64
    }

    fn servers(&self) -> MutexGuard<'_, Vec<Member>> {
        // Nothing in here panics halfway.
        self.shared.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds a server for a connection that said hello: `Ok(Some)` if it is this one, `Ok(None)` if
    /// it is on its way to another.
    pub(crate) fn choose(
        &self,
        connection: UnixConnection,
        pending_of_user: usize,
    ) -> Result<Option<UnixConnection>, (UnixConnection, RefuseReason)> {
        let owner = connection.peer_credentials();
        let mut servers = self.servers();
        let owners = || servers.iter().flat_map(|server| &server.owners);
        let of_user = owners().filter(|candidate| candidate.uid == owner.uid).count();
        if of_user + pending_of_user >= self.shared.clients_per_user_max {
            return Err((connection, RefuseReason::UserLimit));
        }
        if of_process(owners(), owner) >= self.shared.clients_per_process_max {
            return Err((connection, RefuseReason::ProcessLimit));
        }
        let is_full = owners().count() >= self.shared.clients_max;
        let open = servers.iter_mut().enumerate().filter(|(_, server)| !server.is_gone);
        let emptiest = open.min_by_key(|(_, server)| server.owners.len());
        let Some((number, server)) = emptiest.filter(|_| !is_full) else {
            return Err((connection, RefuseReason::ServerFull));
        };
        server.owners.push(owner);
        if number == self.number {
            return Ok(Some(connection));
        }
        server.waiting.push_back(connection);
        // It fails only if the descriptor is no event.
        let _ = self.shared.events[number].signal();
        Ok(None)
    }

    /// A connection that was handed to this server, and waits.
    pub(crate) fn next(&self) -> Option<UnixConnection> {
        let _ = self.shared.events[self.number].drain();
        self.servers()[self.number].waiting.pop_front()
    }

    /// A client of this server left, or was not admitted after all.
    pub(crate) fn leave(&self, owner: PeerCredentials) {
        let owners = &mut self.servers()[self.number].owners;
        if let Some(index) = owners.iter().position(|candidate| *candidate == owner) {
            owners.swap_remove(index);
        }
    }
}

/// Clients of the process of `owner`. A process of another namespace has no number: it has no limit of its
/// own, beside that of its user.
pub(crate) fn of_process<'a>(
    owners: impl Iterator<Item = &'a PeerCredentials>,
    owner: PeerCredentials,
) -> usize {
    owners.filter(|candidate| owner.pid != 0 && candidate.pid == owner.pid).count()
}

impl AsFd for Handoff {
    /// Readable while a connection may wait.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.events[self.number].as_fd()
    }
}

impl Drop for Handoff {
    fn drop(&mut self) {
        // Connections that wait are closed.
        let gone = Member { is_gone: true, ..Member::default() };
        drop(std::mem::replace(&mut self.servers()[self.number], gone));
    }
}
