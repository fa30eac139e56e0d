//! What a server knows of one client's calls: private memory, against which every word that the
//! client can write is checked. No system call.

use memory::sync::Ordering;

use crate::{
    bell::{Armed, Attention},
    half::Half,
    header::Header,
    ring::{self, Consumer, Producer, Slots as _},
    status::{EvictReason, Kind},
};

/// A request that was taken and is to be answered once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The client's name of the call, below the depth.
    pub call: u16,
    /// Counts requests of this client from 1; tells this use of `call` from others.
    pub serial: u64,
    /// Length of the request.
    pub len_bytes: usize,
}

/// The request was answered already, or never taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotPending;

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// Zero while the call is the client's.
    serial: u64,
    generation: u16,
}

/// The server's end of one client's rings.
#[derive(Debug)]
pub struct Ledger {
    up: Half,
    down: Half,
    requests: Consumer,
    responses: Producer,
    entries: Box<[Entry]>,
    /// Requests ever taken.
    taken: u64,
    /// Those of them that were answered. It counts up, and only in `answer`: the compiler merges counters
    /// that change together into one wide load, which waits for narrower stores of elsewhere.
    answered: u64,
    told_epoch: u32,
}

impl Ledger {
    /// Prepares both halves for a client that begins at `position`.
    #[must_use]
    pub fn new(up: Half, down: Half, position: u64) -> Self {
        ring::reset(&up, position);
        ring::reset(&down, position);
        up.read_position().store(position, Ordering::Relaxed);
        Self {
            requests: Consumer::new(position),
            responses: Producer::new(position),
            entries: vec![Entry::default(); up.shape().depth()].into(),
            taken: 0,
            answered: 0,
            told_epoch: 0,
            up,
            down,
        }
    }

    pub(crate) fn attention(&self) -> Attention<'_> {
        Attention(self.down.bell())
    }

    pub(crate) fn armed(&mut self) -> (Armed<'_>, &mut u32) {
        (Armed(self.up.bell()), &mut self.told_epoch)
    }

    /// Leaves word why the client loses its place.
    pub(crate) fn write_eviction(&self, reason: EvictReason) {
        self.down.eviction().store(reason as u32, Ordering::Relaxed);
    }

    /// Up to where the client says that it has read, and whether it left a response to each of its
    /// calls unread.
    pub(crate) fn reading(&self) -> (u64, bool) {
        let read = self.up.read_position().load(Ordering::Relaxed);
        (read, self.responses.position().wrapping_sub(read) >= self.depth() as u64)
    }

    /// Requests ever taken.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Requests taken and not answered.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        usize::try_from(self.taken - self.answered).unwrap_or(usize::MAX)
    }

    /// Longest response, in bytes.
    pub(crate) fn response_bytes_max(&self) -> usize {
        self.down.shape().message_bytes_max as usize
    }

    /// Whether a request (or nonsense) waits.
    #[inline]
    #[must_use]
    pub fn has_request(&self) -> bool {
        !matches!(self.requests.peek(&self.up), Ok(None))
    }

    /// Takes the next request, if there is one, into a private copy.
    ///
    /// # Errors
    ///
    /// [`EvictReason`]: the client broke a rule. Nothing was taken.
    #[inline]
    pub fn take(&mut self, copy: &mut [u8]) -> Result<Option<Taken>, EvictReason> {
        let Some(header) = self.requests.peek(&self.up).map_err(|_| EvictReason::BadTag)? else {
            return Ok(None);
        };
        let entry = self.entries.get_mut(usize::from(header.call)).ok_or(EvictReason::BadCall)?;
        if entry.serial != 0 {
            return Err(EvictReason::CallInUse);
        }
        if header.kind != 0 {
            return Err(EvictReason::BadKind);
        }
        if header.len_bytes > self.up.shape().message_bytes_max {
            return Err(EvictReason::BadLength);
        }
        let len_bytes = header.len_bytes as usize;
        let message = copy.get_mut(..len_bytes).ok_or(EvictReason::BadLength)?;
        self.requests.take(&self.up, header, message);
        self.taken += 1;
        *entry = Entry { serial: self.taken, generation: header.generation };
        Ok(Some(Taken { call: header.call, serial: self.taken, len_bytes }))
    }

    /// Answers a request that was taken.
    ///
    /// # Errors
    ///
    /// [`NotPending`].
    #[inline]
    pub(crate) fn answer(
        &mut self,
        call: u16,
        serial: u64,
        kind: Kind,
        message: &[u8],
    ) -> Result<(), NotPending> {
        let entry = self.entries.get_mut(usize::from(call)).ok_or(NotPending)?;
        if serial == 0 || entry.serial != serial {
            return Err(NotPending);
        }
        entry.serial = 0;
        self.answered += 1;
        let generation = entry.generation;
        let len_bytes = u32::try_from(message.len()).unwrap_or(u32::MAX);
        assert!(
            message.len() <= self.down.shape().message_bytes_max as usize
                || message.len() <= Kind::CODE_BYTES
        );
        let header = Header { call, generation, len_bytes, kind: kind as u8 };
        self.responses.publish(&self.down, header, message);
        Ok(())
    }

    /// Answers with a message that fits.
    ///
    /// # Errors
    ///
    /// [`NotPending`].
    pub fn reply(&mut self, taken: Taken, message: &[u8]) -> Result<(), NotPending> {
        self.answer(taken.call, taken.serial, Kind::Ok, message)
    }

    /// Number of calls.
    #[must_use]
    pub fn depth(&self) -> usize {
        1 << self.up.depth_log2()
    }
}
