//! READs and WRITEs beside the batches, from their start to their completion.
//!
//! A transfer is posted in pieces, so that batches get between them, and that a NIC which copies while it
//! is rung keeps the loop no longer than some pieces take. A few pieces are outstanding at a time, so that
//! moving overlaps with what is done about the pieces before.

use std::collections::VecDeque;

use ids::slots::{Key, SlotTable};
use proto::copyrpc::{CallId, RequestId};
use verbs::{Nic, Op, Payload, RemoteSlice, Sge};

use super::{BodyStats, in_flight::InFlight, spares::Spares};
use crate::{BodyForm, BodyPiece, LocalRegion, PeerId, Range, pool::Buffer, queue::Piece};

/// Longest piece: beyond, another one costs less than a hundredth.
pub(super) const PIECE_BYTES_MAX: usize = 128 << 10;

/// Pieces of one transfer that are outstanding at a time.
const PIECES_EACH: u32 = 4;

/// A READ or WRITE that was posted, or waits to be, and the memory that the NIC uses until it
/// completes.
pub(super) struct Transfer<N: Nic> {
    peer: PeerId,
    remote: RemoteSlice,
    purpose: Purpose<N>,
    /// The offset of the next piece; `None`: all pieces were posted.
    next_bytes: Option<usize>,
    /// Pieces that were posted and have not ended.
    outstanding: u32,
    /// Their bytes.
    outstanding_bytes: usize,
    /// The send queue that they are in.
    queue: u16,
    /// It ends without success when its pieces have.
    is_given_up: bool,
    /// Private copy of a body, made piece by piece while each is warm. It may be longer.
    body: Vec<u8>,
}

/// The purpose of a transfer.
pub(super) enum Purpose<N: Nic> {
    /// The body of a request.
    Request { id: RequestId, method: u16, timeout_us: u32, buffer: Buffer<N>, form: BodyForm },
    /// The body of a response.
    Response { call: CallId, buffer: Buffer<N>, form: BodyForm },
    /// One-sided access of the program.
    Access(OneSided<N>),
}

/// One-sided access of the program.
pub(super) struct OneSided<N: Nic> {
    pub(super) is_write: bool,
    pub(super) region: LocalRegion<N>,
    /// It was checked against the region.
    pub(super) range: Range,
    pub(super) cookie: u64,
}

impl<N: Nic> Transfer<N> {
    /// `body`: with room for the private copy, if there is to be one.
    pub(super) fn new(
        peer: PeerId,
        remote: RemoteSlice,
        purpose: Purpose<N>,
        body: Vec<u8>,
    ) -> Self {
        Self {
            peer,
            remote,
            purpose,
            next_bytes: Some(0),
            outstanding: 0,
            outstanding_bytes: 0,
            queue: 0,
            is_given_up: false,
            body,
        }
    }

    pub(super) fn peer(&self) -> PeerId {
        self.peer
    }

    pub(super) fn remote(&self) -> RemoteSlice {
        self.remote
    }

    /// The purpose, whether the transfer succeeded, and the private copy of a body.
    pub(super) fn into_outcome(self) -> (Purpose<N>, bool, Vec<u8>) {
        (self.purpose, !self.is_given_up, self.body)
    }

    /// Copies a piece of a body that has arrived. Returns it instead, with its call, if the handler is to be
    /// told.
    fn take_in(
        &mut self,
        offset_bytes: usize,
        piece_bytes_max: usize,
        stats: &mut BodyStats,
    ) -> Option<(CallId, BodyPiece<'_, N>)> {
        let (call, buffer, form) = match &self.purpose {
            Purpose::Access(_) => return None,
            Purpose::Request { buffer, form, .. } => (None, buffer, form),
            Purpose::Response { call, buffer, form } => (Some(*call), buffer, form),
        };
        let piece = BodyPiece::new(buffer, offset_bytes, piece_bytes_max);
        match form {
            BodyForm::Owned => {}
            BodyForm::Landed => return None,
            BodyForm::Pieces => return call.map(|call| (call, piece)),
        }
        let range = piece.range();
        // There is room for all. No further: a piece takes no longer for what is behind it.
        if self.body.len() < range.end {
            stats.cleared_bytes += (range.end - self.body.len()) as u64;
            self.body.resize(range.end, 0);
        }
        stats.copied_bytes += range.len() as u64;
        piece.copy_to(offset_bytes, &mut self.body[range]);
        None
    }

    fn len_bytes(&self) -> usize {
        match &self.purpose {
            Purpose::Request { buffer, .. } | Purpose::Response { buffer, .. } => {
                buffer.len_bytes()
            }
            Purpose::Access(access) => access.range.len_bytes,
        }
    }

    /// Whether pieces are left that were not posted, though none is outstanding whose end would post them.
    fn is_stalled(&self) -> bool {
        self.next_bytes.is_some() && self.outstanding == 0
    }

    /// Posts pieces of up to `piece_bytes_max` until all are posted, as many are outstanding as may be, or
    /// one is refused.
    fn post<E>(
        &mut self,
        piece_bytes_max: usize,
        in_flight: &mut InFlight,
        mut post: impl FnMut(Op<'_>, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some(offset_bytes) = self.next_bytes {
            let left_bytes = self.len_bytes() - offset_bytes;
            let piece_bytes = left_bytes.min(piece_bytes_max);
            if self.outstanding >= PIECES_EACH || !in_flight.has_room(self.queue, piece_bytes) {
                break;
            }
            let sges = [self.sge(offset_bytes, piece_bytes)];
            let RemoteSlice { addr, rkey } = self.remote;
            let remote = RemoteSlice { addr: addr + offset_bytes as u64, rkey };
            let op = match self.purpose {
                Purpose::Access(OneSided { is_write: true, .. }) => {
                    Op::Write { remote, payload: Payload::Gather(&sges), imm: None }
                }
                _ => Op::Read { remote, into: &sges },
            };
            post(op, offset_bytes)?;
            in_flight.add(self.queue, piece_bytes);
            self.outstanding += 1;
            self.outstanding_bytes += piece_bytes;
            self.next_bytes = (piece_bytes < left_bytes).then_some(offset_bytes + piece_bytes);
        }
        Ok(())
    }

    /// A piece has ended, or was never started.
    fn end(&mut self, offset_bytes: usize, piece_bytes_max: usize, in_flight: &mut InFlight) {
        let piece_bytes = (self.len_bytes() - offset_bytes).min(piece_bytes_max);
        self.outstanding -= 1;
        self.outstanding_bytes -= piece_bytes;
        in_flight.remove(self.queue, 1, piece_bytes);
    }

    fn sge(&self, offset_bytes: usize, len_bytes: usize) -> Sge {
        match &self.purpose {
            Purpose::Request { buffer, .. } | Purpose::Response { buffer, .. } => {
                buffer.sge(offset_bytes, len_bytes)
            }
            Purpose::Access(OneSided { region, range, .. }) => {
                let local_offset = range.local_offset + offset_bytes;
                region.mr_sge(&Range { local_offset, len_bytes, ..*range })
            }
        }
    }
}

/// The transfers of a worker.
pub(super) struct Transfers<N: Nic> {
    table: SlotTable<Transfer<N>>,
    /// One-sided accesses among them.
    accesses: usize,
    /// Pieces of all of them that were posted and have not ended.
    in_flight: InFlight,
    /// Transfers that found no space in a queue. Their keys may be of transfers that ended meanwhile.
    unposted: VecDeque<Key>,
    /// Pieces that have arrived and were not looked at. Their transfers may have been given up meanwhile.
    arrived: VecDeque<Piece>,
    /// Transfers that have ended and whose ends are to be reported.
    ended: VecDeque<Key>,
    pub(super) spares: Spares,
    pub(super) stats: BodyStats,
    /// Longest piece that was posted: that of the NIC's longest message, if that is shorter.
    piece_bytes_max: usize,
}

impl<N: Nic> Transfers<N> {
    pub(super) fn new() -> Self {
        Self {
            table: SlotTable::default(),
            accesses: 0,
            in_flight: InFlight::default(),
            unposted: VecDeque::new(),
            arrived: VecDeque::new(),
            ended: VecDeque::new(),
            spares: Spares::default(),
            stats: BodyStats::default(),
            piece_bytes_max: PIECE_BYTES_MAX,
        }
    }

    pub(super) fn accesses(&self) -> usize {
        self.accesses
    }

    /// Adds a transfer, which waits to be posted.
    pub(super) fn add(&mut self, transfer: Transfer<N>) {
        let is_access = matches!(transfer.purpose, Purpose::Access(_));
        // The table has no bound of its own.
        if let Ok(key) = self.table.insert(transfer) {
            self.accesses += usize::from(is_access);
            self.unposted.push_back(key);
        }
    }

    pub(super) fn get(&mut self, key: Key) -> Option<&mut Transfer<N>> {
        self.table.get_mut(key)
    }

    /// Takes a transfer whose memory the NIC does not use any more.
    pub(super) fn take(&mut self, key: Key) -> Option<Transfer<N>> {
        let transfer = self.table.remove(key)?;
        let &Transfer { queue, outstanding, outstanding_bytes, .. } = &transfer;
        self.in_flight.remove(queue, outstanding, outstanding_bytes);
        self.accesses -= usize::from(matches!(transfer.purpose, Purpose::Access(_)));
        Some(transfer)
    }

    /// The transfers of a peer, by slot.
    pub(super) fn of(&self, peer: PeerId) -> Vec<Key> {
        let of_peer = self.table.iter().filter(|(_, transfer)| transfer.peer == peer);
        of_peer.map(|(key, _)| key).collect()
    }

    // Posting

    #[inline]
    pub(super) fn unposted_len(&self) -> usize {
        self.unposted.len()
    }

    pub(super) fn next_unposted(&mut self) -> Option<Key> {
        self.unposted.pop_front()
    }

    /// Posts pieces of a transfer to the send queue of its peer, as many as may be outstanding.
    pub(super) fn post<E>(
        &mut self,
        key: Key,
        queue: u16,
        message_bytes_max: usize,
        post: impl FnMut(Op<'_>, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(transfer) = self.table.get_mut(key) else { return Ok(()) };
        let before = transfer.outstanding;
        let from_bytes = transfer.next_bytes;
        self.piece_bytes_max = message_bytes_max.min(PIECE_BYTES_MAX);
        transfer.queue = queue;
        let posted = transfer.post(self.piece_bytes_max, &mut self.in_flight, post);
        let pieces = transfer.outstanding - before;
        let to_bytes = transfer.next_bytes.unwrap_or(transfer.len_bytes());
        self.stats.pieces += u64::from(pieces);
        self.stats.moved_bytes += (to_bytes - from_bytes.unwrap_or(to_bytes)) as u64;
        self.stats.outstanding_max = self.stats.outstanding_max.max(self.in_flight.pieces() as u64);
        if posted.is_ok() && transfer.is_stalled() {
            self.post_later(key);
        }
        posted
    }

    /// A transfer, or the rest of it, is to be posted later.
    pub(super) fn post_later(&mut self, key: Key) {
        if !self.unposted.contains(&key) {
            self.unposted.push_back(key);
        }
    }

    // Ends

    pub(super) fn has_arrivals(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Whether there are none. What has arrived of one that was given up waits for the next.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Counts a poll in which no piece has ended, if some are outstanding.
    pub(super) fn count_poll_in_vain(&mut self) {
        self.stats.polls_in_vain += u64::from(self.in_flight.pieces() > 0);
    }

    /// Takes the next piece that has arrived, if there is one: copies it, or returns it with its peer and call, if a
    /// handler may be to be told.
    pub(super) fn take_arrival(&mut self) -> Option<Option<(PeerId, CallId, BodyPiece<'_, N>)>> {
        let Self { arrived, table, stats, piece_bytes_max, .. } = self;
        let piece = arrived.pop_front()?;
        let transfer = table.get_mut(piece.transfer).filter(|transfer| !transfer.is_given_up);
        Some(transfer.and_then(|transfer| {
            let peer = transfer.peer;
            let told = transfer.take_in(piece.offset_bytes, *piece_bytes_max, stats)?;
            Some((peer, told.0, told.1))
        }))
    }

    #[inline]
    pub(super) fn ended_len(&self) -> usize {
        self.ended.len()
    }

    pub(super) fn next_ended(&mut self) -> Option<Key> {
        self.ended.pop_front()
    }

    /// The NIC has done with a piece.
    pub(super) fn finished(&mut self, piece: Piece) {
        let Some(transfer) = self.table.get_mut(piece.transfer) else { return };
        if !transfer.is_given_up {
            self.arrived.push_back(piece);
        }
        transfer.end(piece.offset_bytes, self.piece_bytes_max, &mut self.in_flight);
        if transfer.next_bytes.is_some() && !transfer.is_given_up {
            self.post_later(piece.transfer);
        } else if transfer.outstanding == 0 {
            self.ended.push_back(piece.transfer);
        }
    }

    /// The NIC never started a piece, which is to be posted again.
    pub(super) fn returned(&mut self, piece: Piece) {
        let Some(transfer) = self.table.get_mut(piece.transfer) else { return };
        transfer.end(piece.offset_bytes, self.piece_bytes_max, &mut self.in_flight);
        let next_bytes = transfer.next_bytes.unwrap_or(usize::MAX);
        transfer.next_bytes = Some(next_bytes.min(piece.offset_bytes));
    }

    /// Gives a transfer up. Returns whether the NIC uses its memory no more; else it ends later.
    pub(super) fn give_up(&mut self, key: Key) -> bool {
        let Some(transfer) = self.table.get_mut(key) else { return true };
        transfer.is_given_up = true;
        transfer.outstanding == 0
    }
}
