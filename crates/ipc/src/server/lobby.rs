//! Several servers behind one door: who has which clients, and clients on their way to one.
//!
//! ```text
//! path ─▶ Door ─▶ Server 0         the first server accepts, and reads the hello
//!           │       Server 1 ◀┐    a client belongs to the server that had fewest when it came
//!           └────▶ lobby ─────┴▶ Server 2
//! ```

use std::{
    collections::VecDeque,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use os::{
    event::{Event, EventError},
    rendezvous::Connection,
};

use crate::{handshake::RefuseReason, server::config::ServerConfig};

/// What the servers of a team share.
#[derive(Debug)]
struct Shared {
    /// By server. Locked when clients come and leave, never per request.
    servers: Mutex<Vec<Member>>,
    /// By server: somebody waits for it.
    events: Vec<Event>,
    clients_max: usize,
    clients_per_user_max: usize,
}

#[derive(Debug, Default)]
struct Member {
    /// Users of its clients, those that wait included; one entry each.
    users: Vec<u32>,
    waiting: VecDeque<Connection>,
    is_gone: bool,
}

/// One server's view of its team.
#[derive(Debug)]
pub(crate) struct Lobby {
    shared: Arc<Shared>,
    number: usize,
}

impl Lobby {
    /// One for each of `count` servers.
    pub(crate) fn team(count: usize, config: &ServerConfig) -> Result<Vec<Self>, EventError> {
        let events = (0..count).map(|_| Event::new()).collect::<Result<_, _>>()?;
        let shared = Arc::new(Shared {
            servers: Mutex::new((0..count).map(|_| Member::default()).collect()),
            events,
            clients_max: config.clients_max.into(),
            clients_per_user_max: config.clients_per_user_max.into(),
        });
        let lobby = |number| Self { shared: Arc::clone(&shared), number };
        Ok((0..count).map(lobby).collect())
    }

    fn servers(&self) -> MutexGuard<'_, Vec<Member>> {
        // Nothing in here panics halfway.
        self.shared.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds a server for a connection that said hello: `Ok(Some)` if it is this one, `Ok(None)` if
    /// it is on its way to another.
    pub(crate) fn place(
        &self,
        connection: Connection,
        pending_of_user: usize,
    ) -> Result<Option<Connection>, (Connection, RefuseReason)> {
        let uid = connection.peer_credentials().uid;
        let mut servers = self.servers();
        let users = || servers.iter().flat_map(|server| &server.users);
        let of_user = users().filter(|candidate| **candidate == uid).count();
        if of_user + pending_of_user >= self.shared.clients_per_user_max {
            return Err((connection, RefuseReason::UserLimit));
        }
        let is_full = users().count() >= self.shared.clients_max;
        let open = servers.iter_mut().enumerate().filter(|(_, server)| !server.is_gone);
        let emptiest = open.min_by_key(|(_, server)| server.users.len());
        let Some((number, server)) = emptiest.filter(|_| !is_full) else {
            return Err((connection, RefuseReason::ServerFull));
        };
        server.users.push(uid);
        if number == self.number {
            return Ok(Some(connection));
        }
        server.waiting.push_back(connection);
        // It fails only if the descriptor is no event.
        let _ = self.shared.events[number].signal();
        Ok(None)
    }

    /// Somebody who was placed at this server, and waits.
    pub(crate) fn next(&self) -> Option<Connection> {
        let _ = self.shared.events[self.number].drain();
        self.servers()[self.number].waiting.pop_front()
    }

    /// A client of this server left, or was not let in after all.
    pub(crate) fn leave(&self, uid: u32) {
        let users = &mut self.servers()[self.number].users;
        if let Some(index) = users.iter().position(|candidate| *candidate == uid) {
            users.swap_remove(index);
        }
    }
}

impl AsFd for Lobby {
    /// Readable while somebody may wait.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.events[self.number].as_fd()
    }
}

impl Drop for Lobby {
    fn drop(&mut self) {
        // Who waits is hung up on.
        let gone = Member { is_gone: true, ..Member::default() };
        drop(std::mem::replace(&mut self.servers()[self.number], gone));
    }
}
