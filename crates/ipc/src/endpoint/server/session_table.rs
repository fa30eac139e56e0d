//! The sessions of a server by slot, and the memory that it shares with all clients.

use std::sync::Arc;

use memory::{
    Region,
    sync::{AtomicU32, AtomicU64},
};

use crate::{
    endpoint::{
        fork::ForkGuard,
        half::{Half, HalfShape},
        handshake::Welcome,
        memory::ServerMemory,
        server::{
            call_table::CallTable,
            config::{ConfigError, ServerConfig},
            id::ClientId,
            session::Session,
        },
    },
    wakeup::{self, SleepFlag, WakeupBits},
};

#[derive(Debug)]
pub(crate) struct SessionTable {
    pub(crate) sessions: Vec<Option<Box<Session>>>,
    free: Vec<u16>,
    /// Of the client that was admitted last.
    generation: u64,
    memory: ServerMemory,
    up: HalfShape,
    down: HalfShape,
    config: ServerConfig,
    server_generation: u64,
    fork: ForkGuard,
}

impl SessionTable {
    /// # Panics
    ///
    /// If the memory is shorter than the configuration asks.
    pub(crate) fn new(
        config: ServerConfig,
        memory: ServerMemory,
        (first_generation, server_generation): (u64, u64),
        fork: ForkGuard,
    ) -> Result<Self, ConfigError> {
        let (up, down) = config.shapes()?;
        memory.check(config.clients_max);
        Ok(Self {
            sessions: (0..config.clients_max).map(|_| None).collect(),
            free: (0..config.clients_max).rev().collect(),
            generation: first_generation,
            memory,
            up,
            down,
            config,
            server_generation,
            fork,
        })
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.fork.is_forked()
    }

    pub(crate) fn config(&self) -> &ServerConfig {
        &self.config
    }

    pub(crate) fn memory(&self) -> &ServerMemory {
        &self.memory
    }

    pub(crate) fn server_generation(&self) -> u64 {
        self.server_generation
    }

    /// Clients that are connected.
    pub(crate) fn count(&self) -> usize {
        self.sessions.len() - self.free.len()
    }

    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    pub(crate) fn asleep(&self) -> SleepFlag<'_> {
        match self.memory.sleep_flag.shared::<AtomicU32>(0) {
            Ok(word) => SleepFlag(word),
            Err(_) => unreachable!("the length was checked"),
        }
    }

    /// Takes the wakeup bits of 64 slots.
    #[inline]
    pub(crate) fn take_bits(&self, word: usize) -> u64 {
        self.bits_word(word).take()
    }

    /// Whether any wakeup bit is set.
    pub(crate) fn has_bits(&self) -> bool {
        (0..self.sessions.len().div_ceil(64)).any(|word| self.bits_word(word).any())
    }

    #[inline]
    fn bits_word(&self, word: usize) -> WakeupBits<'_> {
        match self.memory.wakeup_bits.shared::<AtomicU64>(wakeup::word_offset_bytes(word)) {
            Ok(word) => WakeupBits(word),
            Err(_) => unreachable!("the length was checked"),
        }
    }

    /// A client, unless it left, or the clients are those of this process's parent.
    pub(crate) fn session(&mut self, client: ClientId) -> Option<&mut Session> {
        if self.is_forked() {
            return None;
        }
        let session = self.sessions.get_mut(usize::from(client.slot))?.as_deref_mut()?;
        (session.generation == client.generation).then_some(session)
    }

    /// Generation of the client in a slot.
    pub(crate) fn generation_of(&self, slot: u16) -> Option<u64> {
        Some(self.sessions.get(usize::from(slot))?.as_ref()?.generation)
    }

    /// Bytes of the up and of the down half of a client.
    pub(crate) fn half_bytes(&self) -> (usize, usize) {
        (self.up.len_bytes(), self.down.len_bytes())
    }

    /// Bytes of the up and of the down half of a client whose messages are not large.
    pub(crate) fn eager_bytes(&self) -> (usize, usize) {
        (self.up.eager_bytes(), self.down.eager_bytes())
    }

    /// Gives a client a slot, and puts its rings in order before it can look at them; `None` if no slot
    /// is free.
    pub(crate) fn admit(
        &mut self,
        up: Arc<Region>,
        down: Arc<Region>,
    ) -> Option<(ClientId, Welcome)> {
        let slot = self.free.pop()?;
        self.generation += 1;
        let position = self.config.first_position;
        let calls = CallTable::new(Half::new(up, self.up), Half::new(down, self.down), position);
        let session = Session::new(calls, self.generation);
        self.sessions[usize::from(slot)] = Some(Box::new(session));
        let welcome = Welcome {
            up: self.up,
            down: self.down,
            slot,
            position,
            server_generation: self.server_generation,
        };
        Some((ClientId { slot, generation: self.generation }, welcome))
    }

    /// Takes a client's slot away, and the server's use of its memory.
    pub(crate) fn remove(&mut self, slot: u16) {
        if self.sessions[usize::from(slot)].take().is_some() {
            self.free.push(slot);
        }
    }
}
