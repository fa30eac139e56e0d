//! The memory that a server and its clients share, wherever it lies.

use std::sync::Arc;

use memory::{MapError, Region};

use crate::{endpoint::handshake::Welcome, wakeup};

/// Bytes of [`ServerMemory::sleep_flag`].
pub(crate) const SLEEP_FLAG_BYTES: usize = size_of::<u32>();

/// Memory that a server shares with all of its clients.
#[derive(Clone, Debug)]
pub struct ServerMemory {
    /// One bit per client, which all clients can set.
    pub wakeup_bits: Arc<Region>,
    /// Whether the server sleeps: one word, which only the server may write.
    pub sleep_flag: Arc<Region>,
}

impl ServerMemory {
    /// Memory of this process.
    pub(crate) fn on_heap(clients_max: u16) -> Result<Self, MapError> {
        Ok(Self {
            wakeup_bits: Arc::new(Region::heap(wakeup::bits_bytes(clients_max))?),
            sleep_flag: Arc::new(Region::heap(SLEEP_FLAG_BYTES)?),
        })
    }

    /// # Panics
    ///
    /// If the memory is shorter than clients in this many slots expect.
    pub(crate) fn check(&self, slots: u16) {
        let is_long_enough = self.wakeup_bits.len() >= wakeup::bits_bytes(slots)
            && self.sleep_flag.len() >= SLEEP_FLAG_BYTES;
        assert!(is_long_enough, "shared memory is as long as client and server agreed");
    }
}

impl ClientMemory {
    /// Sees to it that a server which the client does not trust takes no page of the rings away.
    ///
    /// # Errors
    ///
    /// [`MapError`]: the server did not make the memory as the protocol says.
    pub(crate) fn keep_pages(&self, welcome: &Welcome) -> Result<(), MapError> {
        for (half, shape) in [(&self.up, welcome.up), (&self.down, welcome.down)] {
            half.seal_future_write().map_err(|_| MapError::SealsFinal)?;
            // After the seal: what is there now stays.
            half.commit(0..shape.eager_bytes())?;
        }
        Ok(())
    }
}

/// Memory that a client shares with its server.
#[derive(Clone, Debug)]
pub struct ClientMemory {
    /// Requests; the client writes it.
    pub up: Arc<Region>,
    /// Responses; only the server may write it.
    pub down: Arc<Region>,
    /// The memory that all clients share.
    pub server: ServerMemory,
}
