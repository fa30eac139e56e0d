//! READs and WRITEs beside the batches: large bodies, and one-sided access.

use proto::{
    Status,
    copyrpc::{CallId, Large, RequestId},
};
use verbs::{
    Access, MemoryError, Nic, Op, Payload, PostSendError, RemoteSlice, Rkey, SendFlags, SendRequest,
};

use super::Worker;
use crate::{
    CloseReason, Handler, PeerId, Range, Region, RemoteRegion, Request, Token, TransferError,
    large::{Buffer, NoBuffer},
    queue::What,
};

/// A READ or WRITE that was posted, or waits to be, and the memory that the NIC uses until it
/// completes.
pub(crate) struct Transfer<N: Nic> {
    peer: PeerId,
    remote: RemoteSlice,
    purpose: Purpose<N>,
}

enum Purpose<N: Nic> {
    /// The body of a request.
    Request { id: RequestId, method: u16, timeout_us: u32, buffer: Buffer<N> },
    /// The body of a response.
    Response { call: CallId, buffer: Buffer<N> },
    /// One-sided access of the program.
    Access { is_write: bool, region: Region<N>, range: Range, cookie: u64 },
}

impl<N: Nic> Worker<N> {
    /// Registers zeroed memory that peers may read and write once they are told of it.
    ///
    /// # Errors
    ///
    /// [`MemoryError`].
    pub fn expose(&mut self, len_bytes: usize) -> Result<Region<N>, MemoryError> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = self.nic.alloc_mr(&self.pd, len_bytes, access)?;
        Ok(Region { mr: std::rc::Rc::new(mr) })
    }

    /// Reads a peer's memory. [`Handler::response`] tells the end, with `cookie`. The peer's program
    /// takes no part. It has no deadline of its own: it ends with the connection at the latest, on DC as
    /// soon as the NIC has done with the region.
    ///
    /// # Errors
    ///
    /// [`TransferError`]: nothing has changed.
    pub fn read(
        &mut self,
        peer: PeerId,
        from: &RemoteRegion,
        to: &Region<N>,
        range: Range,
        cookie: u64,
    ) -> Result<(), TransferError> {
        self.access(peer, from, to, range, (false, cookie))
    }

    /// Writes a peer's memory. As [`read`](Self::read).
    ///
    /// # Errors
    ///
    /// [`TransferError`]: nothing has changed.
    pub fn write(
        &mut self,
        peer: PeerId,
        from: &Region<N>,
        to: &RemoteRegion,
        range: Range,
        cookie: u64,
    ) -> Result<(), TransferError> {
        self.access(peer, to, from, range, (true, cookie))
    }

    fn access(
        &mut self,
        peer: PeerId,
        remote: &RemoteRegion,
        local: &Region<N>,
        range: Range,
        (is_write, cookie): (bool, u64),
    ) -> Result<(), TransferError> {
        let remote = remote.slice(&range).ok_or(TransferError::Remote(range))?;
        local.sge(&range).ok_or(TransferError::Local(range))?;
        self.live(peer).ok_or(TransferError::NotConnected)?;
        let max = self.config.accesses_max;
        if self.accesses >= max {
            return Err(TransferError::Busy(max));
        }
        self.accesses += 1;
        let region = local.clone();
        let purpose = Purpose::Access { is_write, region, range, cookie };
        self.start(Transfer { peer, remote, purpose });
        Ok(())
    }

    /// Fetches the body of a request; what cannot be fetched is answered, and was not executed.
    pub(super) fn fetch_request(
        &mut self,
        peer: PeerId,
        id: RequestId,
        large: Large,
        (method, timeout_us): (u16, u32),
    ) {
        match self.take_buffer(peer, large.len_bytes as usize) {
            Ok(buffer) => {
                let purpose = Purpose::Request { id, method, timeout_us, buffer };
                self.start(Transfer { peer, remote: slice(large), purpose });
            }
            Err(_) => self.answer(peer, id, Status::ResourceExhausted),
        }
    }

    /// Fetches the body of a response; if it cannot be fetched, the call ends. It was executed, which
    /// [`Status::ResourceExhausted`] would deny.
    pub(super) fn fetch_response(&mut self, peer: PeerId, call: CallId, large: Large) {
        match self.take_buffer(peer, large.len_bytes as usize) {
            Ok(buffer) => {
                let purpose = Purpose::Response { call, buffer };
                self.start(Transfer { peer, remote: slice(large), purpose });
            }
            Err(_) => {
                let cookie = self.live(peer).and_then(|live| live.connection.fetched(call));
                self.ended.extend(cookie.map(|cookie| (cookie, Status::Unavailable)));
                self.mark_dirty(peer);
            }
        }
    }

    pub(super) fn take_buffer(
        &mut self,
        peer: PeerId,
        len_bytes: usize,
    ) -> Result<Buffer<N>, NoBuffer> {
        let Self { peers, nic, pd, .. } = self;
        let place = &mut peers[usize::from(peer.slot)];
        let live = place.live(peer).ok_or(NoBuffer::Limit)?;
        live.buffers.take(nic, pd, len_bytes).inspect_err(|cause| {
            if let NoBuffer::Memory(error) = cause {
                tracing::warn!(%error, "no memory for a large body");
            }
        })
    }

    fn start(&mut self, transfer: Transfer<N>) {
        let index = self.transfers.iter().position(Option::is_none).unwrap_or_else(|| {
            self.transfers.push(None);
            self.transfers.len() - 1
        });
        self.transfers[index] = Some(transfer);
        self.unposted.push_back(index);
        self.post_transfers();
    }

    /// Posts transfers as far as queues have space.
    pub(super) fn post_transfers(&mut self) {
        for _ in 0..self.unposted.len() {
            let Some(index) = self.unposted.pop_front() else { return };
            match self.post_transfer(index) {
                Ok(()) => {}
                Err(PostSendError::QueueFull { .. }) => {
                    self.stats.send_queue_full += 1;
                    self.unposted.push_back(index);
                }
                Err(error) => {
                    let peer = self.transfers[index].as_ref().map(|transfer| transfer.peer);
                    tracing::warn!(%error, "cannot post a transfer");
                    self.abandon(index);
                    if let Some(peer) = peer {
                        self.end(peer, CloseReason::QueuePair);
                    }
                }
            }
        }
    }

    fn post_transfer(&mut self, index: usize) -> Result<(), PostSendError> {
        let Self { peers, queues, transfers, unrung, .. } = self;
        let Some(transfer) = &transfers[index] else { return Ok(()) };
        let place = &mut peers[usize::from(transfer.peer.slot)];
        let Some(slot) = place.peer.as_ref().map(|peer| peer.queue) else {
            self.abandon(index);
            return Ok(());
        };
        let Some(live) = place.live(transfer.peer) else {
            self.abandon(index);
            return Ok(());
        };
        let Some(queue) = &mut queues[usize::from(slot)] else { return Ok(()) };
        let remote = transfer.remote;
        let sges = match &transfer.purpose {
            Purpose::Request { buffer, .. } | Purpose::Response { buffer, .. } => [buffer.sge()],
            // The range was checked when the access was made.
            Purpose::Access { region, range, .. } => [region.mr_sge(range)],
        };
        let op = match transfer.purpose {
            Purpose::Access { is_write: true, .. } => {
                Op::Write { remote, payload: Payload::Gather(&sges), imm: None }
            }
            _ => Op::Read { remote, into: &sges },
        };
        let request = SendRequest { op, flags: SendFlags::SIGNALED, to: live.destination.as_ref() };
        queue.post(&request, transfer.peer, What::Transfer(index), true)?;
        unrung.push(slot);
        Ok(())
    }

    /// A transfer has completed.
    pub(super) fn transferred<H: Handler<N> + ?Sized>(&mut self, index: usize, handler: &mut H) {
        let Some(Transfer { peer, purpose, .. }) = self.transfers[index].take() else { return };
        let mut body = core::mem::take(&mut self.large_scratch);
        match purpose {
            Purpose::Request { id, method, timeout_us, buffer } => {
                buffer.copy_to(&mut body);
                if let Some(live) = self.live(peer) {
                    live.buffers.give(buffer);
                    let token = Token::new(peer, id, None, &self.dropped);
                    handler.request(self, Request { token, method, body: &body, timeout_us });
                }
            }
            Purpose::Response { call, buffer } => {
                buffer.copy_to(&mut body);
                let cookie = self.live(peer).and_then(|live| {
                    live.buffers.give(buffer);
                    live.connection.fetched(call)
                });
                self.mark_dirty(peer);
                if let Some(cookie) = cookie {
                    handler.response(self, cookie, Status::Ok, &body);
                }
            }
            Purpose::Access { cookie, .. } => {
                self.accesses -= 1;
                handler.response(self, cookie, Status::Ok, &[]);
            }
        }
        self.large_scratch = body;
    }

    /// A transfer will not complete, and the NIC does not use its memory any more.
    pub(super) fn abandon(&mut self, index: usize) {
        let Some(Transfer { purpose, .. }) = self.transfers[index].take() else { return };
        if let Purpose::Access { cookie, .. } = purpose {
            self.accesses -= 1;
            self.ended.push_back((cookie, Status::Unavailable));
        }
    }

    /// Abandons what was to be moved for a peer whose queue pair is gone.
    pub(super) fn abandon_all(&mut self, peer: PeerId) {
        for index in 0..self.transfers.len() {
            if self.transfers[index].as_ref().is_some_and(|transfer| transfer.peer == peer) {
                self.abandon(index);
                // The place may be taken again before these are looked at.
                self.unposted.retain(|waiting| *waiting != index);
                self.transferred.retain(|completed| *completed != index);
            }
        }
    }

    /// An initiator failed before it started this transfer.
    pub(super) fn transfer_again(&mut self, index: usize) {
        let peer = self.transfers[index].as_ref().map(|transfer| transfer.peer);
        if peer.is_some_and(|peer| self.is_connected(peer)) {
            self.unposted.push_back(index);
        } else {
            self.abandon(index);
        }
    }
}

fn slice(large: Large) -> RemoteSlice {
    RemoteSlice { addr: large.addr, rkey: Rkey::new(large.rkey) }
}
