//! Who is in: places, the memory that is shared with all clients, and who comes and goes.

use std::sync::Arc;

use memory::{
    Region,
    sync::{AtomicU32, AtomicU64},
};
use os::{clock, rendezvous::Connection};

use crate::{
    bell::{self, Asleep, Bits},
    fork::ForkGuard,
    half::{Half, Shape},
    handshake::{self, Answer, RefuseReason, Welcome},
    poller::Poller,
    server::{
        config::ServerConfig,
        door::{self, BindError},
        key::{Key, Kind},
        ledger::Ledger,
        session::Session,
        token::ClientId,
    },
};

#[derive(Debug)]
pub(crate) struct House {
    pub(crate) sessions: Vec<Option<Box<Session>>>,
    free: Vec<u16>,
    /// Clients ever welcomed.
    generation: u64,
    /// Bits that all clients can set.
    bell: Region,
    /// Whether the server sleeps: sealed, so that only the server can say so.
    beacon: Region,
    up: Shape,
    down: Shape,
    config: ServerConfig,
    server_generation: u64,
    fork: ForkGuard,
}

impl House {
    pub(crate) fn new(config: ServerConfig) -> Result<Self, BindError> {
        let (up, down) = config.shapes()?;
        let bell = Region::memfd("copyrpc-bell", bell::bits_bytes(config.clients_max))?;
        bell.seal_size()?;
        let beacon = Region::memfd("copyrpc-beacon", size_of::<u32>())?;
        beacon.seal_future_write()?;
        Ok(Self {
            sessions: (0..config.clients_max).map(|_| None).collect(),
            free: (0..config.clients_max).rev().collect(),
            generation: 0,
            bell,
            beacon,
            up,
            down,
            config,
            // The lock lets one server bind at a time, so no two of a path share a nanosecond.
            server_generation: clock::now_ns(),
            fork: ForkGuard::new(),
        })
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.fork.is_forked()
    }

    pub(crate) fn config(&self) -> &ServerConfig {
        &self.config
    }

    pub(crate) fn server_generation(&self) -> u64 {
        self.server_generation
    }

    pub(crate) fn count(&self) -> usize {
        self.sessions.len() - self.free.len()
    }

    pub(crate) fn asleep(&self) -> Asleep<'_> {
        match self.beacon.shared::<AtomicU32>(0) {
            Ok(word) => Asleep(word),
            Err(_) => unreachable!("the beacon was made with this length"),
        }
    }

    /// Takes the hints of 64 places.
    #[inline]
    pub(crate) fn bits(&self, word: usize) -> u64 {
        self.bits_word(word).take()
    }

    /// Whether there is any hint.
    pub(crate) fn has_bits(&self) -> bool {
        (0..self.sessions.len().div_ceil(64)).any(|word| self.bits_word(word).any())
    }

    #[inline]
    fn bits_word(&self, word: usize) -> Bits<'_> {
        match self.bell.shared::<AtomicU64>(bell::word_offset_bytes(word)) {
            Ok(word) => Bits(word),
            Err(_) => unreachable!("the bell was made with this length"),
        }
    }

    /// A client, unless it left, or the clients are those of this process's parent.
    pub(crate) fn session(&mut self, client: ClientId) -> Option<&mut Session> {
        if self.is_forked() {
            return None;
        }
        let session = self.sessions.get_mut(usize::from(client.place))?.as_deref_mut()?;
        (session.generation == client.generation).then_some(session)
    }

    /// Gives a connection that said hello a place, or refuses it.
    pub(crate) fn welcome(
        &mut self,
        connection: Connection,
        pending_of_user: usize,
        poller: &Poller,
    ) -> Result<(), RefuseReason> {
        let place = self.admit(connection.peer_credentials().uid, pending_of_user);
        let made = place.and_then(|place| {
            let halves = self.make_halves().map_err(|_| RefuseReason::ResourceExhausted)?;
            Ok((place, halves))
        });
        let (place, (up, down)) = made.inspect_err(|reason| door::refuse(&connection, *reason))?;
        let position = self.config.first_position;
        let welcome = Welcome {
            up: self.up,
            down: self.down,
            place,
            position,
            server_generation: self.server_generation,
        };
        let generation = self.generation + 1;
        let halves = (Half::new(Arc::clone(&up), self.up), Half::new(Arc::clone(&down), self.down));
        // Both rings are in order before the client can look at them.
        let ledger = Ledger::new(halves.0, halves.1, position);
        let process = connection.peer_process().ok();
        let session = Session::new(ledger, connection, process, generation, self.fork);
        let fds = [up.fd(), down.fd(), self.bell.fd(), self.beacon.fd()];
        let [Some(up), Some(down), Some(bell), Some(beacon)] = fds else {
            unreachable!("all four are files");
        };
        let key = |kind| Key { kind, place, generation }.to_word();
        let answer = handshake::write_answer(Answer::Welcome(welcome));
        let sent = session.watch(poller, (key(Kind::Socket), key(Kind::Process))).is_ok_and(|()| {
            session.connection.send(&answer, &[up, down, bell, beacon], clock::NOW).is_ok()
        });
        if !sent {
            session.unwatch(poller);
            return Err(RefuseReason::ResourceExhausted);
        }
        self.generation = generation;
        self.free.pop();
        self.sessions[usize::from(place)] = Some(Box::new(session));
        Ok(())
    }

    /// A place for one more client of a user.
    fn admit(&self, uid: u32, pending_of_user: usize) -> Result<u16, RefuseReason> {
        let of_user = self.sessions.iter().flatten().filter(|session| session.uid() == uid);
        if of_user.count() + pending_of_user >= usize::from(self.config.clients_per_user_max) {
            return Err(RefuseReason::UserLimit);
        }
        self.free.last().copied().ok_or(RefuseReason::ServerFull)
    }

    /// Memory of one client. Mapped first, then sealed, so that it never leaves this process
    /// writable by anybody but its writer.
    fn make_halves(&self) -> Result<(Arc<Region>, Arc<Region>), BindError> {
        let up = Region::memfd("copyrpc-up", self.up.len_bytes())?;
        up.seal_size()?;
        let down = Region::memfd("copyrpc-down", self.down.len_bytes())?;
        down.seal_future_write()?;
        Ok((Arc::new(up), Arc::new(down)))
    }

    /// Takes a client's place and memory away; returns whose client it was.
    pub(crate) fn remove(&mut self, place: u16, poller: &Poller) -> Option<u32> {
        let session = self.sessions[usize::from(place)].take()?;
        session.unwatch(poller);
        self.free.push(place);
        Some(session.uid())
    }
}
