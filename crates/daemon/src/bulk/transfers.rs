//! Ranges that are moved for providers: by the NIC to and from other nodes, by copies on this one.

use client::bulk::message::{MoveHead, TransferHead, entries};
use ids::slots::Key;
use proto::bulk::{Checked, Direction, Plan, Refused};
use rpc::{Range, Status, TransferError};
use verbs::Nic;
use zerocopy::FromBytes as _;

use super::{Answer, Awaited, Bulk, Turn, provider::Source};
use crate::{bulk_inbox::marked, client_port::ClientPort, metrics::Counter};

/// Longest segment that the NIC is given at a time. The worker cuts it into the pieces that it posts.
const SEGMENT_BYTES: u64 = 1 << 20;

/// Segments of one transfer that are under way.
const SEGMENTS_EACH: u32 = 2;

/// Segments of all transfers that are under way.
const SEGMENTS_MAX: usize = 64;

/// Bytes that one turn copies on this node: some tens of microseconds.
const COPY_BYTES_PER_TURN: usize = 256 << 10;

/// Bytes that are copied at a time: they stay in a core's own cache.
const COPY_BYTES: usize = 64 << 10;

/// Ranges that are being moved, with one end.
pub(super) struct Transfer<P: ClientPort> {
    work: Key,
    client: P::Client,
    /// What its provider calls it.
    ticket: u64,
    reply_to: P::ReplyTo,
    /// The provider's own memory.
    region: Key,
    plan: Plan,
    moved_bytes: u64,
    /// Segments that the NIC has been given.
    under_way: u32,
    /// Why it ends early.
    failure: Option<Status>,
    deadline_ns: u64,
}

impl<P: ClientPort> Transfer<P> {
    fn is_over(&self) -> bool {
        self.under_way == 0 && (self.failure.is_some() || self.plan.next_slice().is_none())
    }
}

/// What became of an attempt to begin a segment.
enum Begun {
    /// The NIC moves it.
    UnderWay,
    /// It was copied.
    Copied(u64),
    Failed(Status),
}

impl<N: Nic, P: ClientPort> Bulk<N, P> {
    /// A provider wants ranges moved.
    pub(super) fn transfer(
        &mut self,
        turn: &mut Turn<'_, N, P>,
        client: P::Client,
        reply_to: P::ReplyTo,
        bytes: &[u8],
    ) -> Result<Answer, Status> {
        let (head, rest) =
            TransferHead::read_from_prefix(bytes).map_err(|_| Status::InvalidArgument)?;
        let (moves, _) =
            entries::<MoveHead>(rest, head.moves.get()).ok_or(Status::InvalidArgument)?;
        let work = self.own_work(client, head.work.get()).ok_or(Status::Cancelled)?;
        if self.works.get(work).is_none_or(|work| work.is_over(turn.now_ns())) {
            return Err(Status::Cancelled);
        }
        let (region, len_bytes) =
            self.regions.find(client, head.region.get()).ok_or(Status::PermissionDenied)?;
        let slices = self.works.get(work).map(|work| work.ranges()).unwrap_or_default();
        let moves: Vec<_> = moves.iter().map(MoveHead::entry).collect();
        let plan = Plan::new(&moves, &slices, len_bytes).map_err(|refused| match refused {
            Refused::ReadOnly => Status::PermissionDenied,
            Refused::Slice | Refused::Range => Status::OutOfRange,
            Refused::Ended => Status::Cancelled,
        })?;
        let timeout_ns = turn.dispatcher.timeout_ns(head.timeout_us.get());
        let transfer = Transfer {
            work,
            client,
            ticket: head.ticket.get(),
            reply_to,
            region,
            plan,
            moved_bytes: 0,
            under_way: 0,
            failure: None,
            deadline_ns: turn.now_ns().saturating_add(timeout_ns),
        };
        self.transfers.insert(transfer).map_err(|_| Status::ResourceExhausted)?;
        self.regions.take(region);
        Ok(Answer::Later)
    }

    /// How far a transfer is.
    pub(super) fn progress(
        &self,
        client: P::Client,
        work: u64,
        ticket: u64,
    ) -> Result<Answer, Status> {
        let is_meant = |transfer: &Transfer<P>| {
            transfer.client == client && transfer.ticket == ticket && transfer.work.to_u64() == work
        };
        let found = self.transfers.iter().find(|(_, transfer)| is_meant(transfer));
        found.map(|(_, transfer)| Answer::word(transfer.moved_bytes)).ok_or(Status::NotFound)
    }

    /// Begins segments, and tells of transfers that are over. Returns how much was done.
    pub(super) fn pump(&mut self, turn: &mut Turn<'_, N, P>) -> usize {
        let keys: Vec<Key> = self.transfers.iter().map(|(key, _)| key).collect();
        let (mut left_bytes, mut done) = (COPY_BYTES_PER_TURN, 0);
        for key in keys {
            done += self.advance_transfer(turn, key, &mut left_bytes);
            self.finish(turn, key);
        }
        done
    }

    fn advance_transfer(
        &mut self,
        turn: &mut Turn<'_, N, P>,
        key: Key,
        left_bytes: &mut usize,
    ) -> usize {
        let mut begun = 0;
        while *left_bytes > 0
            && self.awaited.len() < SEGMENTS_MAX + self.lent.len()
            && let Some(transfer) = self.transfers.get_mut(key)
            && transfer.failure.is_none()
            && transfer.under_way < SEGMENTS_EACH
        {
            let Some(work) = self.works.get_mut(transfer.work) else {
                transfer.failure = Some(Status::Cancelled);
                break;
            };
            let next_slice = transfer.plan.next_slice();
            let source = next_slice.and_then(|slice| work.slices.get(usize::from(slice)));
            let Some(source) = source.map(|granted| granted.source) else { break };
            let bytes_max = match source {
                Source::Here(_) => COPY_BYTES.min(*left_bytes) as u64,
                Source::There(..) => SEGMENT_BYTES,
            };
            let Some(segment) = transfer.plan.segment(bytes_max) else { break };
            if work.borrowing.begin().is_err() {
                transfer.failure = Some(Status::Cancelled);
                break;
            }
            let (local, work) = (transfer.region, transfer.work);
            let outcome = match source {
                Source::Here(region) => {
                    let len_bytes = usize::try_from(segment.len_bytes).unwrap_or(usize::MAX);
                    *left_bytes = left_bytes.saturating_sub(len_bytes);
                    self.copy(region, local, &segment)
                }
                Source::There(peer, remote) => {
                    self.begin(turn, key, (peer, &remote), local, &segment)
                }
            };
            self.began(turn, key, work, outcome);
            begun += 1;
        }
        begun
    }

    fn began(&mut self, turn: &mut Turn<'_, N, P>, key: Key, work: Key, outcome: Begun) {
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        match outcome {
            Begun::UnderWay => return transfer.under_way += 1,
            Begun::Copied(bytes) => {
                transfer.moved_bytes += bytes;
                turn.count(Counter::BulkBytes, bytes);
            }
            Begun::Failed(status) => transfer.failure = Some(status),
        }
        if let Some(work) = self.works.get_mut(work) {
            work.borrowing.done();
        }
    }

    /// Copies a segment between two regions of this node.
    fn copy(&mut self, slice: Key, local: Key, segment: &Checked) -> Begun {
        let Self { regions, buffer, .. } = self;
        let (Some(slice), Some(local)) = (regions.get(slice), regions.get(local)) else {
            return Begun::Failed(Status::Unavailable);
        };
        if !slice.has_pages() || !local.has_pages() {
            return Begun::Failed(Status::DataLoss);
        }
        if buffer.is_empty() {
            *buffer = vec![0; COPY_BYTES].into();
        }
        let to_usize = |word: u64| usize::try_from(word).unwrap_or(usize::MAX);
        let bytes = &mut buffer[..to_usize(segment.len_bytes)];
        let (remote_at, local_at) =
            (to_usize(segment.remote_offset), to_usize(segment.local_offset));
        match segment.direction {
            Direction::Pull => {
                slice.read(remote_at, bytes);
                local.write(local_at, bytes);
            }
            Direction::Push => {
                local.read(local_at, bytes);
                slice.write(remote_at, bytes);
            }
        }
        Begun::Copied(segment.len_bytes)
    }

    /// Has the NIC move a segment.
    fn begin(
        &mut self,
        turn: &mut Turn<'_, N, P>,
        transfer: Key,
        (peer, remote): (rpc::PeerId, &rpc::RemoteRegion),
        local: Key,
        segment: &Checked,
    ) -> Begun {
        let Some(local) = self.regions.get(local) else {
            return Begun::Failed(Status::Unavailable);
        };
        if !local.has_pages() {
            return Begun::Failed(Status::DataLoss);
        }
        let to_usize = |word: u64| usize::try_from(word).unwrap_or(usize::MAX);
        let range = Range {
            remote_offset: segment.remote_offset,
            local_offset: to_usize(segment.local_offset),
            len_bytes: to_usize(segment.len_bytes),
        };
        let awaited = Awaited::Segment { transfer, len_bytes: segment.len_bytes };
        let Ok(key) = self.awaited.insert(awaited) else {
            return Begun::Failed(Status::ResourceExhausted);
        };
        let cookie = marked(key.to_u64());
        let begun = match segment.direction {
            Direction::Pull => turn.worker.read(peer, remote, local, range, cookie),
            Direction::Push => turn.worker.write(peer, local, remote, range, cookie),
        };
        match begun {
            Ok(()) => Begun::UnderWay,
            Err(error) => {
                self.awaited.remove(key);
                Begun::Failed(match error {
                    TransferError::NotConnected => Status::Unavailable,
                    TransferError::Busy(_) => Status::ResourceExhausted,
                    _ => Status::OutOfRange,
                })
            }
        }
    }

    /// The NIC has moved a segment, or will never.
    pub(super) fn segment_ended(
        &mut self,
        turn: &mut Turn<'_, N, P>,
        key: Key,
        len_bytes: u64,
        status: Status,
    ) {
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        transfer.under_way -= 1;
        if status == Status::Ok {
            transfer.moved_bytes += len_bytes;
            turn.count(Counter::BulkBytes, len_bytes);
        } else {
            transfer.failure.get_or_insert(Status::Unavailable);
        }
        let work = transfer.work;
        if let Some(work) = self.works.get_mut(work) {
            work.borrowing.done();
        }
        self.finish(turn, key);
        self.settle(turn, work);
    }

    /// Tells the provider, if a transfer is over.
    fn finish(&mut self, turn: &mut Turn<'_, N, P>, key: Key) {
        if !self.transfers.get(key).is_some_and(Transfer::is_over) {
            return;
        }
        let Some(transfer) = self.transfers.remove(key) else { return };
        self.regions.give(transfer.region);
        let word = transfer.moved_bytes.to_le_bytes();
        match transfer.failure {
            None => turn.reply(transfer.reply_to, Status::Ok, &word),
            Some(status) => turn.reply(transfer.reply_to, status, &[]),
        }
    }

    /// The call has ended: its transfers begin no more segments.
    pub(super) fn stop_transfers(&mut self, turn: &mut Turn<'_, N, P>, work: Key) {
        self.fail(turn, Status::Cancelled, |transfer| transfer.work == work);
    }

    pub(super) fn expire_transfers(&mut self, turn: &mut Turn<'_, N, P>) {
        let now_ns = turn.now_ns();
        self.fail(turn, Status::DeadlineExceeded, |transfer| transfer.deadline_ns <= now_ns);
    }

    fn fail(
        &mut self,
        turn: &mut Turn<'_, N, P>,
        status: Status,
        is_meant: impl Fn(&Transfer<P>) -> bool,
    ) {
        let keys = self.transfers.iter().filter(|(_, transfer)| is_meant(transfer));
        let keys: Vec<Key> = keys.map(|(key, _)| key).collect();
        for key in keys {
            if let Some(transfer) = self.transfers.get_mut(key) {
                transfer.failure.get_or_insert(status);
            }
            self.finish(turn, key);
        }
    }
}
