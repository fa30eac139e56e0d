//! Large bodies, and one-sided access to memory of peers.

use std::os::fd::OwnedFd;

use ids::slots::Key;
use proto::{
    Status,
    copyrpc::{CallId, Large, RequestId},
};
use verbs::{
    Access, MemoryError, Nic, PostSendError, Registration, RemoteSlice, Rkey, SendFlags,
    SendRequest, Shortage,
};

use super::{
    Worker,
    transfers::{OneSided, Purpose, Transfer},
};
use crate::{
    Body, BodyForm, CallEnd, CloseReason, Delivery, Fetch, Handler, LandedBody, LocalRegion,
    PeerId, Range, RemoteRegion, Request, Token, TransferError,
    pool::{Buffer, NoBuffer, Purchase},
    queue::{Piece, What},
};

/// A request whose body the peer has lent.
pub(super) struct LargeRequest {
    pub(super) id: RequestId,
    pub(super) method: u16,
    pub(super) timeout_us: u32,
    pub(super) large: Large,
}

impl<N: Nic> Worker<N> {
    /// Registers zeroed memory that peers may read and write once they are told of it.
    ///
    /// # Errors
    ///
    /// [`MemoryError`].
    pub fn expose(&mut self, len_bytes: usize) -> Result<LocalRegion<N>, MemoryError> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = self.resources.register(len_bytes, access)?;
        Ok(LocalRegion { mr: std::rc::Rc::new(mr) })
    }

    /// Begins what [`expose`](Self::expose) does, with memory that another process made and shares with this one: a memfd
    /// that nobody can shrink. Not every NIC can do that. A NIC that takes long lets another thread wait.
    pub fn begin_expose_memfd(
        &mut self,
        fd: OwnedFd,
        len_bytes: usize,
    ) -> Registration<LocalRegion<N>> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let access = self.config().access(access);
        let pd = self.resources.pd();
        let begun = self.nic().begin_register_memfd(pd, fd, len_bytes, access);
        begun.map(|mr| LocalRegion { mr: std::rc::Rc::new(mr) })
    }

    /// Reads a peer's memory. [`Handler::ended`] tells the end, with `cookie`. The peer's program
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
        to: &LocalRegion<N>,
        range: Range,
        cookie: u64,
    ) -> Result<(), TransferError> {
        let access = OneSided { is_write: false, region: to.clone(), range, cookie };
        self.access(peer, from, access)
    }

    /// Writes a peer's memory. As [`read`](Self::read).
    ///
    /// # Errors
    ///
    /// [`TransferError`]: nothing has changed.
    pub fn write(
        &mut self,
        peer: PeerId,
        from: &LocalRegion<N>,
        to: &RemoteRegion,
        range: Range,
        cookie: u64,
    ) -> Result<(), TransferError> {
        let access = OneSided { is_write: true, region: from.clone(), range, cookie };
        self.access(peer, to, access)
    }

    fn access(
        &mut self,
        peer: PeerId,
        remote: &RemoteRegion,
        access: OneSided<N>,
    ) -> Result<(), TransferError> {
        let range = access.range;
        let remote = remote.slice(&range).ok_or(TransferError::Remote(range))?;
        access.region.sge(&range).ok_or(TransferError::Local(range))?;
        self.live(peer).ok_or(TransferError::NotConnected)?;
        let max = self.config().accesses_max;
        if self.transfers.accesses() >= max {
            return Err(TransferError::Busy(max));
        }
        self.start(Transfer::new(peer, remote, Purpose::Access(access), Vec::new()));
        Ok(())
    }

    /// Fetches the body of a request; a request whose body cannot be fetched is answered, and was not
    /// executed.
    pub(super) fn fetch_request<H: Handler<N> + ?Sized>(
        &mut self,
        peer: PeerId,
        request: LargeRequest,
        handler: &mut H,
    ) {
        let LargeRequest { id, method, timeout_us, large } = request;
        let mut delivery = handler.wants(Fetch::Request(method, large.len_bytes as usize));
        delivery.account.method = Some(method);
        if delivery.form == BodyForm::Pieces {
            delivery.form = BodyForm::Owned;
        }
        match self.take_memory(peer, delivery, large) {
            Some((buffer, body)) => {
                let form = delivery.form;
                let purpose = Purpose::Request { id, method, timeout_us, buffer, form };
                self.start(Transfer::new(peer, slice(large), purpose, body));
            }
            None => self.answer(peer, id, Status::ResourceExhausted),
        }
    }

    /// Fetches the body of a response; if it cannot be fetched, the call ends. It was executed, which
    /// [`Status::ResourceExhausted`] would deny.
    pub(super) fn fetch_response<H: Handler<N> + ?Sized>(
        &mut self,
        peer: PeerId,
        call: CallId,
        large: Large,
        handler: &mut H,
    ) {
        let cookie = self.live(peer).and_then(|live| live.connection.fetching(call));
        let len_bytes = large.len_bytes as usize;
        let wants = |cookie| handler.wants(Fetch::Answer(cookie, len_bytes));
        let delivery = cookie.map_or_else(Delivery::default, wants);
        match self.take_memory(peer, delivery, large) {
            Some((buffer, body)) => {
                let purpose = Purpose::Response { call, buffer, form: delivery.form };
                self.start(Transfer::new(peer, slice(large), purpose, body));
            }
            None => self.end_fetch(peer, call),
        }
    }

    /// The answer to a call will not come.
    fn end_fetch(&mut self, peer: PeerId, call: CallId) {
        let cookie = self.live(peer).and_then(|live| live.connection.fetched(call));
        if let Some(cookie) = cookie {
            self.notices.call_ended(cookie, Status::Unavailable);
        }
        self.peers.mark_dirty(peer);
    }

    /// Memory for a body that the peer is to read.
    pub(super) fn take_lent(&mut self, purchase: &Purchase) -> Result<Buffer<N>, NoBuffer> {
        self.take_buffer(|Self { peers, resources, .. }| {
            let live = peers.live(purchase.peer).ok_or(NoBuffer::Share)?;
            live.bodies.take(resources.nic(), resources.pd(), purchase)
        })
    }

    /// Takes memory, for which unused one makes room.
    fn take_buffer(
        &mut self,
        try_take: impl Fn(&mut Self) -> Result<Buffer<N>, NoBuffer>,
    ) -> Result<Buffer<N>, NoBuffer> {
        let mut taken = try_take(self);
        if let Err(NoBuffer::Regions) = taken {
            self.release_unused_memory();
            taken = try_take(self);
        }
        taken.inspect_err(|cause| {
            if let NoBuffer::Memory(error) = cause {
                tracing::warn!(%error, "no memory for a large body");
            }
        })
    }

    /// Memory to which a body of the peer is to be read, and with room for its private copy, if there is to be one.
    fn take_memory(
        &mut self,
        peer: PeerId,
        delivery: Delivery,
        large: Large,
    ) -> Option<(Buffer<N>, Vec<u8>)> {
        let len_bytes = large.len_bytes as usize;
        let purchase = Purchase { peer, account: delivery.account, len_bytes };
        let buffer = self.take_buffer(|Self { resources, landing, .. }| {
            landing.take(resources.nic(), resources.pd(), &purchase)
        });
        let buffer = buffer.ok()?;
        let copy = match delivery.form {
            BodyForm::Owned => self.take_private(large)?,
            BodyForm::Landed | BodyForm::Pieces => Vec::new(),
        };
        Some((buffer, copy))
    }

    /// Memory with room for the private copy of a body.
    fn take_private(&mut self, large: Large) -> Option<Vec<u8>> {
        let len_bytes = large.len_bytes as usize;
        let mut body = self.transfers.spares.take();
        if body.try_reserve_exact(len_bytes.saturating_sub(body.len())).is_err() {
            tracing::warn!(len_bytes, "no memory for the copy of a large body");
            self.transfers.spares.keep(body);
            return None;
        }
        Some(body)
    }

    fn start(&mut self, transfer: Transfer<N>) {
        if let Err(shortage) = self.reach(&transfer) {
            self.stats.shortages += 1;
            tracing::warn!(%shortage, "memory of a peer is not reached");
            return self.refuse(transfer);
        }
        self.transfers.add(transfer);
        self.post_transfers();
    }

    /// Makes sure that the NIC has the memory that it needs to reach that of the peer: a request that fails
    /// ends the connection.
    fn reach(&mut self, transfer: &Transfer<N>) -> Result<(), Shortage> {
        let lid = self.live(transfer.peer()).and_then(|live| live.lid);
        lid.map_or(Ok(()), |lid| self.nic().reach(lid, transfer.remote()))
    }

    /// Nothing of a transfer was posted, and nothing will be.
    fn refuse(&mut self, transfer: Transfer<N>) {
        let peer = transfer.peer();
        let (purpose, _, body) = transfer.into_outcome();
        match purpose {
            Purpose::Request { id, .. } => self.answer(peer, id, Status::ResourceExhausted),
            Purpose::Response { call, .. } => self.end_fetch(peer, call),
            Purpose::Access(access) => {
                self.notices.call_ended(access.cookie, Status::ResourceExhausted);
            }
        }
        self.transfers.spares.keep(body);
    }

    /// Posts transfers as far as queues have space.
    pub(super) fn post_transfers(&mut self) {
        for _ in 0..self.transfers.unposted_len() {
            let Some(key) = self.transfers.next_unposted() else { return };
            match self.post_transfer(key) {
                Ok(()) => {}
                Err(PostSendError::QueueFull { .. }) => {
                    self.stats.send_queue_full += 1;
                    self.transfers.post_later(key);
                }
                Err(error) => {
                    let peer = self.transfers.get(key).map(|transfer| transfer.peer());
                    tracing::warn!(%error, "cannot post a transfer");
                    self.give_up(key);
                    if let Some(peer) = peer {
                        self.end(peer, CloseReason::QueuePair);
                    }
                }
            }
        }
    }

    fn post_transfer(&mut self, key: Key) -> Result<(), PostSendError> {
        let Self { peers, send, transfers, resources, .. } = self;
        let Some(transfer) = transfers.get(key) else { return Ok(()) };
        let id = transfer.peer();
        let Some((index, live)) = peers.get(id).and_then(|peer| Some((peer.queue, peer.live()?)))
        else {
            self.give_up(key);
            return Ok(());
        };
        let Some(queue) = send.queue(index) else { return Ok(()) };
        let to = live.remote.destination();
        let posted =
            transfers.post(key, index, resources.message_bytes_max(), |op, offset_bytes| {
                let request = SendRequest { op, flags: SendFlags::SIGNALED, to };
                queue.post(&request, id, What::Piece(Piece { transfer: key, offset_bytes }), true)
            });
        if queue.is_unrung() {
            send.ring_later(index);
        }
        posted
    }

    /// A transfer has ended.
    #[cold]
    pub(super) fn transferred<H: Handler<N> + ?Sized>(&mut self, key: Key, handler: &mut H) {
        let Some(transfer) = self.transfers.take(key) else { return };
        let peer = transfer.peer();
        let (purpose, is_complete, mut copy) = transfer.into_outcome();
        if !is_complete {
            return self.tell_failed(&purpose);
        }
        match purpose {
            Purpose::Request { id, method, timeout_us, buffer, form } => {
                let body = fetched(buffer, form, &mut copy);
                if self.is_connected(peer) {
                    let token = Token::new(peer, (id, method), None, &self.tokens);
                    let is_cancelled = self.is_cancelled(&token);
                    handler.request(self, Request { token, method, timeout_us }, body);
                    if is_cancelled {
                        // It was told while the body was on its way, and knew of no request.
                        handler.cancelled(self, peer, id);
                    }
                }
            }
            Purpose::Response { call, buffer, form } => {
                let len_bytes = buffer.len_bytes();
                let body = fetched(buffer, form, &mut copy);
                let cookie = self.live(peer).and_then(|live| live.connection.fetched(call));
                self.peers.mark_dirty(peer);
                if let Some(cookie) = cookie {
                    let end = match form {
                        BodyForm::Pieces => CallEnd::InPieces(len_bytes),
                        BodyForm::Owned | BodyForm::Landed => CallEnd::Answered(Status::Ok, body),
                    };
                    handler.ended(self, cookie, end);
                }
            }
            Purpose::Access(access) => {
                let end = CallEnd::Answered(Status::Ok, Body::Copied(&[]));
                handler.ended(self, access.cookie, end);
            }
        }
        self.transfers.spares.keep(copy);
    }

    /// Keeps memory of a body that a handler took, for those to come.
    pub fn keep_memory(&mut self, body: Vec<u8>) {
        self.transfers.spares.keep(body);
    }

    fn tell_failed(&mut self, purpose: &Purpose<N>) {
        if let Purpose::Access(access) = purpose {
            self.notices.call_ended(access.cookie, Status::Unavailable);
        }
    }

    /// A transfer will not complete. It ends when the NIC does not use its memory any more.
    fn give_up(&mut self, key: Key) {
        if self.transfers.give_up(key) {
            self.abandon(key);
        }
    }

    /// A transfer will not complete, and the NIC does not use its memory any more.
    pub(super) fn abandon(&mut self, key: Key) {
        if let Some(transfer) = self.transfers.take(key) {
            self.tell_failed(&transfer.into_outcome().0);
        }
    }

    /// Abandons the transfers of a peer whose queue pair is gone.
    pub(super) fn abandon_all(&mut self, peer: PeerId) {
        for key in self.transfers.of(peer) {
            self.abandon(key);
        }
    }

    /// An initiator failed before it started this piece.
    pub(super) fn transfer_again(&mut self, piece: Piece) {
        self.transfers.returned(piece);
        let peer = self.transfers.get(piece.transfer).map(|transfer| transfer.peer());
        if peer.is_some_and(|peer| self.is_connected(peer)) {
            self.transfers.post_later(piece.transfer);
        } else {
            self.give_up(piece.transfer);
        }
    }
}

/// A body that has arrived whole. Memory that does not carry it on is free for the handler's answer.
fn fetched<N: Nic>(buffer: Buffer<N>, form: BodyForm, copy: &mut Vec<u8>) -> Body<'_, N> {
    match form {
        BodyForm::Landed => Body::Landed(LandedBody::new(buffer)),
        BodyForm::Owned | BodyForm::Pieces => {
            copy.truncate(buffer.len_bytes());
            Body::Owned(copy)
        }
    }
}

fn slice(large: Large) -> RemoteSlice {
    RemoteSlice { addr: large.addr, rkey: Rkey::new(large.rkey) }
}
