//! One client, as the server sees it.

use std::io;

use os::{clock, fdpass::RecvError, process::Process, rendezvous::Connection};

use crate::{
    fork::ForkGuard,
    handshake::DOORBELL,
    server::{
        ledger::{Ledger, NotPending},
        stall::Stall,
    },
    status::{EvictReason, Kind},
};

/// Doorbells that a client may be ahead of its requests: an honest one never is by more than those
/// in the queue.
const DOORBELL_SLACK: u64 = 256;

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) ledger: Ledger,
    pub(crate) connection: Connection,
    /// `None` if the client is in another process namespace: then the socket alone tells of death.
    pub(crate) process: Option<Process>,
    pub(crate) generation: u64,
    /// The server polls this client's ring.
    pub(crate) is_polled: bool,
    pub(crate) empty_turns: u32,
    /// Is in the server's list of those who may have to be told.
    pub(crate) is_dirty: bool,
    doorbells: u64,
    stall: Stall,
    fork: ForkGuard,
}

impl Session {
    pub(crate) fn new(
        ledger: Ledger,
        connection: Connection,
        process: Option<Process>,
        generation: u64,
        fork: ForkGuard,
    ) -> Self {
        Self {
            ledger,
            connection,
            process,
            generation,
            is_polled: false,
            empty_turns: 0,
            is_dirty: false,
            doorbells: 0,
            stall: Stall::default(),
            fork,
        }
    }

    #[inline]
    pub(crate) fn answer(
        &mut self,
        call: u16,
        serial: u64,
        kind: Kind,
        message: &[u8],
    ) -> Result<(), NotPending> {
        self.ledger.answer(call, serial, kind, message)
    }

    /// Notes that the client may have to be told of responses.
    #[inline]
    pub(crate) fn mark_dirty(&mut self, place: u16, dirty: &mut Vec<u16>) {
        if !self.is_dirty {
            self.is_dirty = true;
            dirty.push(place);
        }
    }

    /// Wakes the client if it sleeps; final after the barrier that follows responses.
    #[inline]
    pub(crate) fn tell(&mut self) {
        let (armed, told_epoch) = self.ledger.armed();
        if armed.needs_datagram(told_epoch) {
            self.ring();
        }
    }

    fn ring(&self) {
        // A full queue holds doorbells already; a closed one is noticed by the poller. Never waits,
        // whatever the client did to its end.
        let _ = self.connection.send(&[DOORBELL], &[], clock::NOW);
    }

    /// Reads one doorbell per look, so that a storm takes no more of the server's time than that;
    /// `false` if the client is gone.
    pub(crate) fn drain(&mut self) -> Result<bool, EvictReason> {
        let mut datagram = [0; 1];
        match self.connection.recv(&mut datagram, 0, clock::NOW) {
            Ok(_) if datagram == [DOORBELL] => self.doorbells += 1,
            Err(RecvError::TimedOut) => {}
            Err(RecvError::Closed | RecvError::Os(_)) => return Ok(false),
            _ => return Err(EvictReason::BadDatagram),
        }
        if self.doorbells > self.ledger.taken() + DOORBELL_SLACK {
            return Err(EvictReason::DoorbellStorm);
        }
        Ok(true)
    }

    /// How long it has read none of its responses although it can call nothing, in nanoseconds.
    pub(crate) fn stalled_ns(&mut self, now_ns: u64) -> u64 {
        let (read, is_full) = self.ledger.reading();
        self.stall.look(now_ns, read, is_full)
    }

    pub(crate) fn uid(&self) -> u32 {
        self.connection.peer_credentials().uid
    }

    pub(crate) fn watch(&self, poller: &crate::poller::Poller, keys: (u64, u64)) -> io::Result<()> {
        poller.add(&self.connection, keys.0)?;
        match &self.process {
            Some(process) => poller.add(process, keys.1),
            None => Ok(()),
        }
    }

    pub(crate) fn unwatch(&self, poller: &crate::poller::Poller) {
        poller.remove(&self.connection);
        if let Some(process) = &self.process {
            poller.remove(process);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.fork.is_forked() {
            // Closing alone would not be noticed while a forked child holds a copy.
            let _ = rustix::net::shutdown(&self.connection, rustix::net::Shutdown::Both);
        }
    }
}
