//! One queue pair with its memory.
//!
//! ```text
//! byte 0       ┌─────────────────────────────────────────────┐ peer's NIC (WRITE), own NIC
//!              │ landing: receive buffers, WRITE targets,    │ (receives, READ results)
//!              │          results of READs and atomics       │
//!      16 MiB  ├─────────────────────────────────────────────┤ own CPU; peers READ
//!              │ source of large messages                    │
//!      32 MiB  ├─────────────────────────────────────────────┤ own CPU between samples; peers
//!              │ target word of atomics and small READs      │
//!              └─────────────────────────────────────────────┘
//! ```

use core::time::Duration;

use verbs::{
    Completion, CompletionQueue, Destination, MemoryRegion, Nic, Op, PostRecvError, QueuePair,
    RemoteSlice, SendFlags, SendRequest, SharedReceiveQueue,
};

use crate::{error::Error, shared_words::Patience};

/// Where peers write and receives land: the longest message. Pages that no message reaches are never touched.
pub(crate) const LANDING_BYTES: usize = 16 << 20;
/// What shorter messages cycle over.
pub(crate) const CYCLE_BYTES: usize = crate::limit::COPY_WINDOW_BYTES;
/// Where large messages come from.
pub(crate) const SOURCE_OFFSET: usize = LANDING_BYTES;
/// What atomics act on.
pub(crate) const TARGET_OFFSET: usize = SOURCE_OFFSET + LANDING_BYTES;
/// All of it.
pub(crate) const REGION_BYTES: usize = TARGET_OFFSET + 4096;
/// Receives that can be posted.
pub(crate) const RECEIVES: u16 = 512;
/// Sends that can be outstanding.
pub(crate) const SENDS: u16 = 256;
/// Longest payload that is sent inline.
pub(crate) const INLINE_BYTES: u16 = 32;
/// Area that the NIC puts before a datagram.
pub(crate) const GRH_BYTES: usize = 40;
/// Longest wait of one side for the other.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// What a completion told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Sends up to the one with this index are complete.
    Sent(u16),
    /// A message arrived.
    Received {
        /// Its payload.
        len_bytes: u32,
        /// Its immediate.
        imm: Option<u32>,
    },
}

/// A queue pair, its completion queues, and the region that both sides of the link have alike.
pub(crate) struct Link<N: Nic> {
    /// Declared, and so dropped, before what it uses: its queues and its memory.
    pub(crate) qp: N::Qp,
    /// Of sends, and of receives: apart, so that each has one producer.
    pub(crate) send_cq: N::Cq,
    pub(crate) recv_cq: N::Cq,
    pub(crate) srq: Option<N::Srq>,
    pub(crate) region: N::Mr,
    /// Start of the peer's region.
    pub(crate) peer: RemoteSlice,
    /// Destination of datagrams.
    pub(crate) destination: Option<Destination>,
}

impl<N: Nic> Link<N> {
    /// Takes the next completion, of receives first, and gives its queue space back.
    #[inline(always)]
    pub(crate) fn poll(&mut self) -> Result<Option<Event>, Error> {
        match self.poll_received()? {
            None => self.poll_sent(),
            received => Ok(received),
        }
    }

    /// Takes the next completion of a receive.
    ///
    /// Receives of a queue complete in the order in which they were posted (IBTA 9.5), hence the
    /// n-th received message lies in the n-th posted buffer.
    #[inline(always)]
    pub(crate) fn poll_received(&mut self) -> Result<Option<Event>, Error> {
        let Some(completion) = &self.recv_cq.poll() else { return Ok(None) };
        match &mut self.srq {
            Some(srq) => srq.retire(completion),
            None => self.qp.retire(completion),
        }
        check_success(completion)?;
        Ok(Some(Event::Received { len_bytes: completion.len_bytes, imm: completion.imm }))
    }

    /// Takes the next completion of a send.
    #[inline(always)]
    pub(crate) fn poll_sent(&mut self) -> Result<Option<Event>, Error> {
        let Some(completion) = &self.send_cq.poll() else { return Ok(None) };
        self.qp.retire(completion);
        check_success(completion)?;
        Ok(Some(Event::Sent(completion.wqe)))
    }

    /// Queues a request; the NIC learns of it by [`ring_send`](Self::ring_send).
    #[inline(always)]
    pub(crate) fn post(&mut self, op: Op<'_>, signaled: bool) -> Result<u16, Error> {
        let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        let request = SendRequest { op, flags, to: self.destination.as_ref() };
        Ok(self.qp.post_send(&request)?)
    }

    #[inline]
    pub(crate) fn ring_send(&mut self) {
        self.qp.ring_send();
    }

    /// Whether `requests` more can be posted now.
    #[inline]
    pub(crate) fn has_room(&self, requests: u16) -> bool {
        self.qp.send_free() >= requests
    }

    /// Queues a receive of nothing, or of `len_bytes` at `offset`.
    #[inline]
    pub(crate) fn post_receive(
        &mut self,
        buffer: Option<(usize, usize)>,
    ) -> Result<(), PostRecvError> {
        let sge = buffer.map(|(offset, len_bytes)| self.region.sge(offset, len_bytes));
        match &mut self.srq {
            Some(srq) => srq.post(sge.as_slice())?,
            None => self.qp.post_recv(sge.as_slice())?,
        };
        Ok(())
    }

    #[inline]
    pub(crate) fn ring_receives(&mut self) {
        match &mut self.srq {
            Some(srq) => srq.ring(),
            None => self.qp.ring_recv(),
        }
    }

    /// `offset` in the peer's region.
    #[inline]
    pub(crate) fn remote(&self, offset: usize) -> RemoteSlice {
        RemoteSlice { addr: self.peer.addr + offset as u64, rkey: self.peer.rkey }
    }

    /// Bytes before the payload of a received message.
    #[inline]
    pub(crate) fn header_bytes(&self) -> usize {
        if self.destination.is_some() { GRH_BYTES } else { 0 }
    }

    /// Waits for the completion of the send with index `wqe`.
    pub(crate) fn wait_sent(&mut self, wqe: u16, patience: &mut Patience<'_>) -> Result<(), Error> {
        loop {
            match self.poll_sent()? {
                Some(Event::Sent(done)) if done == wqe => break,
                Some(Event::Sent(_)) => patience.progress(),
                Some(Event::Received { .. }) => return Err(Error::Stray),
                None => patience.wait()?,
            }
        }
        patience.progress();
        Ok(())
    }

    /// Waits for the next message.
    #[inline]
    pub(crate) fn wait_received(
        &mut self,
        patience: &mut Patience<'_>,
    ) -> Result<(u32, Option<u32>), Error> {
        loop {
            match self.poll()? {
                Some(Event::Received { len_bytes, imm }) => {
                    patience.progress();
                    return Ok((len_bytes, imm));
                }
                Some(Event::Sent(_)) => {}
                None => patience.wait()?,
            }
        }
    }

    /// Waits until `requests` more can be posted.
    #[inline]
    pub(crate) fn wait_room(
        &mut self,
        requests: u16,
        patience: &mut Patience<'_>,
    ) -> Result<(), Error> {
        while !self.has_room(requests) {
            match self.poll_sent()? {
                Some(Event::Sent(_)) => patience.progress(),
                Some(Event::Received { .. }) => return Err(Error::Stray),
                None => patience.wait()?,
            }
        }
        Ok(())
    }
}

#[inline]
pub(crate) fn check_success(completion: &Completion) -> Result<(), Error> {
    match completion.failure {
        None => Ok(()),
        Some(failure) => Err(Error::Completion { kind: completion.kind, failure }),
    }
}

/// Checks the length and the immediate of message `index`.
#[inline]
pub(crate) fn check_header(
    index: u64,
    found: (u32, Option<u32>),
    expected: (usize, Option<u32>),
) -> Result<(), Error> {
    let wrong = |what, found, expected| Err(Error::Wrong { index, what, found, expected });
    let imm = |imm: Option<u32>| imm.map_or(u64::MAX, u64::from);
    if u64::from(found.0) != expected.0 as u64 {
        wrong("length", u64::from(found.0), expected.0 as u64)
    } else if found.1 != expected.1 {
        wrong("immediate", imm(found.1), imm(expected.1))
    } else {
        Ok(())
    }
}

/// Checks the last word of a large message.
#[inline]
pub(crate) fn check_word(index: u64, found: u64, expected: u64) -> Result<(), Error> {
    let what = "last word";
    if found == expected { Ok(()) } else { Err(Error::Wrong { index, what, found, expected }) }
}
