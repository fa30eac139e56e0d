//! How clients get in and out: by the server's own door, or by that of its team.

use std::path::Path;

use os::rendezvous::Connection;

use crate::{
    poller::Poller,
    server::{
        door::{self, BindError, Door},
        house::House,
        key::Key,
        lobby::Lobby,
        stats::Stats,
    },
};

#[derive(Debug)]
pub(crate) struct Entrance {
    /// `None` behind the door of another server.
    door: Option<Door>,
    /// Of a server that shares a door.
    lobby: Option<Lobby>,
}

impl Entrance {
    pub(crate) fn open(
        path: Option<&Path>,
        lobby: Option<Lobby>,
        poller: &Poller,
    ) -> Result<Self, BindError> {
        let door = path.map(|path| Door::open(path, poller)).transpose()?;
        if let Some(lobby) = &lobby {
            poller
                .add(lobby, Key::LOBBY.to_word())
                .map_err(|source| BindError::Os { call: "epoll_ctl", source })?;
        }
        Ok(Self { door, lobby })
    }

    /// Takes new connections, or clients that another server of the team let in.
    pub(crate) fn accept(
        &mut self,
        key: Key,
        house: &mut House,
        poller: &Poller,
        stats: &mut Stats,
    ) {
        if key == Key::LOBBY {
            while let Some(connection) = self.lobby.as_ref().and_then(Lobby::next) {
                self.welcome(connection, 0, house, poller, stats);
            }
        } else if let Some(door) = &mut self.door {
            stats.accept_backoffs += u64::from(door.accept(poller));
        }
    }

    /// Lets in who said hello, here or at another server of the team.
    pub(crate) fn greet(
        &mut self,
        number: u64,
        house: &mut House,
        poller: &Poller,
        stats: &mut Stats,
    ) {
        let Some(door) = &mut self.door else { return };
        let Some(connection) = door.greet(number, poller) else { return };
        let pending = door.pending_of(connection.peer_credentials().uid);
        let Some(lobby) = &self.lobby else {
            return self.welcome(connection, pending, house, poller, stats);
        };
        match lobby.place(connection, pending) {
            Ok(Some(connection)) => self.welcome(connection, 0, house, poller, stats),
            Ok(None) => {}
            Err((connection, reason)) => {
                door::refuse(&connection, reason);
                stats.refused += 1;
            }
        }
    }

    fn welcome(
        &self,
        connection: Connection,
        pending_of_user: usize,
        house: &mut House,
        poller: &Poller,
        stats: &mut Stats,
    ) {
        let uid = connection.peer_credentials().uid;
        match house.welcome(connection, pending_of_user, poller) {
            Ok(()) => stats.welcomed += 1,
            Err(_) => {
                stats.refused += 1;
                self.left(uid);
            }
        }
    }

    /// A client of this user is not there any more.
    pub(crate) fn left(&self, uid: u32) {
        if let Some(lobby) = &self.lobby {
            lobby.leave(uid);
        }
    }

    /// Ends what has waited too long.
    pub(crate) fn expire(&mut self, now_ns: u64, poller: &Poller) {
        if let Some(door) = &mut self.door {
            door.expire(now_ns, poller);
        }
    }

    /// Connections that ended before they were let in.
    pub(crate) fn turned_away(&self) -> u64 {
        self.door.as_ref().map_or(0, Door::turned_away)
    }

    /// In a forked child: the door belongs to the parent.
    pub(crate) fn forget(&mut self) {
        if let Some(door) = &mut self.door {
            door.forget();
        }
    }
}
