//! Posting batches and credit, when the flush policy says so.

use proto::copyrpc::{CREDIT_BYTES, Emission, FlushPolicy, Violation};
use verbs::{Nic, Op, Payload, PostSendError, SendFlags, SendRequest};

use super::{Worker, peers::DirtyPass};
use crate::{
    CloseReason, PeerId,
    peer::{Live, PeerState},
    queue::{PostedBatch, Queue, What, Work},
};

/// Result of posting the batches of a peer.
enum FlushOutcome {
    /// Nothing is left that waits for anything but new calls.
    Drained,
    /// Some wait: for the policy, for credit, or for space in the queue.
    Waiting,
    /// The connection must end. Boxed, because it is rare.
    Broken(Box<Broken>),
}

/// Why a connection can post nothing more.
enum Broken {
    Post(PostSendError),
    /// The peer says that it gave back what it was not sent.
    Peer(Violation),
}

impl<N: Nic> Worker<N> {
    /// Posts whatever is due, without waiting for the next poll.
    pub fn flush(&mut self) {
        let mut pass = DirtyPass::default();
        while self.has_room()
            && let Some(id) = self.peers.next_dirty(&mut pass)
        {
            match self.flush_peer(id) {
                FlushOutcome::Drained => self.peers.clean(id),
                FlushOutcome::Waiting => self.peers.keep_dirty(&mut pass, id),
                FlushOutcome::Broken(broken) => {
                    self.peers.clean(id);
                    self.end_broken(id, &broken);
                }
            }
        }
        self.peers.end_pass(pass);
        self.send.ring_all();
    }

    /// Whether the NIC may be given another batch now.
    #[inline]
    fn has_room(&mut self) -> bool {
        let Self { window, send, .. } = self;
        window.as_mut().is_none_or(|window| window.has_room(send.unfinished()))
    }

    #[cold]
    fn end_broken(&mut self, id: PeerId, broken: &Broken) {
        let reason = match broken {
            Broken::Peer(violation) => CloseReason::Violation(*violation),
            Broken::Post(error) => {
                tracing::warn!(peer = id.slot(), %error, "cannot post a batch");
                CloseReason::QueuePair
            }
        };
        self.end(id, reason);
    }

    /// Posts what is due to a peer whose batch was just handled, so that it works while the next
    /// one's batch is handled here.
    ///
    /// While the peer has work left, and more has arrived, answers keep merging: that is how small
    /// batches grow again under load. A queue that peers share waits for the last arrival, so that
    /// there is a doorbell for all of them and not one for each.
    #[inline]
    pub(super) fn flush_early(&mut self, id: PeerId) {
        let is_prompt =
            matches!(self.config().flush, FlushPolicy::SelfClocked { .. } | FlushPolicy::Immediate);
        let is_last = self.receive.is_last();
        if !is_prompt || self.resources.is_dc() && !is_last {
            return;
        }
        if !self.has_room() {
            return;
        }
        if !is_last && self.live(id).is_none_or(|live| live.connection.unconsumed() > 0) {
            return;
        }
        // What fails now fails again at the end of the poll, and is dealt with there.
        if matches!(self.flush_peer(id), FlushOutcome::Drained) {
            self.peers.clean_last(id);
        }
        self.send.ring_all();
    }

    fn flush_peer(&mut self, id: PeerId) -> FlushOutcome {
        let Self { peers, send, resources, timers, stats, .. } = self;
        let Some(peer) = peers.get(id) else { return FlushOutcome::Drained };
        let index = peer.queue;
        let Some(queue) = send.queue(index) else { return FlushOutcome::Drained };
        let PeerState::Live(live) = &mut peer.state else { return FlushOutcome::Drained };
        let now_ns = timers.now_ns();
        live.connection.polled();
        if live.connection.is_starved()
            && let Err(violation) = live.read_credit(&peer.ring, now_ns)
        {
            return FlushOutcome::Broken(Box::new(Broken::Peer(violation)));
        }
        let is_batched = resources.config().doorbell_batching;
        let post = Post { id, is_batched, now_ns };
        let posted = post.batches(live, queue, &mut stats.mirrored_bytes).and_then(|count| {
            if count > 0 {
                timers.flushed();
            }
            post.credit_that_is_due(live, queue)
        });
        if !resources.is_dc() {
            queue.ring(); // no other peer uses the queue
        } else if queue.is_unrung() {
            send.ring_later(index);
        }
        match posted {
            Ok(()) if live.connection.has_gathered() || live.connection.is_starved() => {
                FlushOutcome::Waiting
            }
            Ok(()) => FlushOutcome::Drained,
            Err(PostSendError::QueueFull { .. }) => {
                stats.send_queue_full += 1;
                FlushOutcome::Waiting
            }
            Err(error) => FlushOutcome::Broken(Box::new(Broken::Post(error))),
        }
    }

    /// Writes this side's credit beside the peer's ring though nothing is new (rule C7.7): if the peer is
    /// gone, its NIC does not answer, and the connection fails.
    pub(super) fn post_probe(&mut self, id: PeerId) {
        let Self { peers, send, resources, timers, stats, .. } = self;
        let Some(peer) = peers.get(id) else { return };
        let index = peer.queue;
        let (Some(queue), Some(live)) = (send.queue(index), peer.live()) else { return };
        if live.connection.is_credit_on_its_way() {
            return; // it asks the same
        }
        let words = live.connection.credit_words();
        let is_batched = resources.config().doorbell_batching;
        let post = Post { id, is_batched, now_ns: timers.now_ns() };
        // A queue that is full has requests that ask the same.
        stats.keepalives += u64::from(post.words(words, live, queue).is_ok());
        queue.ring();
    }

    /// Posts a request that an initiator had not started when it failed for another peer.
    pub(super) fn post_again(&mut self, index: u16, work: &Work) -> Result<(), PostSendError> {
        let Self { peers, send, .. } = self;
        let Some(live) = peers.live(work.peer) else { return Ok(()) };
        let Some(queue) = send.queue(index) else { return Ok(()) };
        let What::Batch(batch) = work.what else {
            live.connection.credit_lost();
            peers.mark_timed(work.peer);
            return Ok(());
        };
        let sges = [live.remote.staged(batch.offset_bytes, batch.len_bytes)];
        let op = Op::Write {
            remote: live.remote.at(batch.offset_bytes),
            payload: Payload::Gather(&sges),
            imm: Some(batch.imm),
        };
        let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
        let request = SendRequest { op, flags, to: live.remote.destination() };
        queue.post(&request, work.peer, work.what, true)?;
        send.ring_later(index);
        Ok(())
    }
}

/// Posts what leaves for one peer.
#[derive(Clone, Copy)]
struct Post {
    id: PeerId,
    /// One doorbell for all that is posted.
    is_batched: bool,
    now_ns: u64,
}

impl Post {
    /// Posts what is due; returns how many batches, and counts bytes that went to the mirror. Pitfall 11: nothing
    /// changes in the connection before the queue has taken a batch.
    #[inline]
    fn batches<N: Nic>(
        self,
        live: &mut Live<N>,
        queue: &mut Queue<N>,
        mirrored_bytes: &mut u64,
    ) -> Result<u32, PostSendError> {
        let Live { connection, remote, .. } = live;
        let mut posted = 0;
        let is_dc = remote.is_dc();
        while let Some(emission) = connection.emission(self.now_ns, false) {
            let Emission { number, departure, offset_bytes, imm, bytes, is_signaled, is_last } =
                emission;
            let is_inline = remote.is_inline(bytes.len());
            // An initiator that fails for one peer must be able to post again what was for others.
            if !is_inline || is_dc {
                remote.stage(offset_bytes, bytes);
                *mirrored_bytes += bytes.len() as u64;
            }
            let len_bytes = bytes.len();
            let posted_ns = self.now_ns;
            let batch = PostedBatch { number, offset_bytes, len_bytes, imm, posted_ns };
            let what = What::Batch(batch);
            let signaled = if is_signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
            let write = |payload| SendRequest {
                op: Op::Write { remote: remote.at(offset_bytes), payload, imm: Some(imm) },
                flags: signaled | SendFlags::SOLICITED,
                to: remote.destination(),
            };
            // The last batch leaves before anything is written down about it: the peer works meanwhile.
            let is_batched = self.is_batched && (is_dc || !is_last);
            if is_inline {
                queue.post(&write(Payload::Inline(&[bytes])), self.id, what, is_batched)?;
            } else {
                let sges = [remote.staged(offset_bytes, bytes.len())];
                queue.post(&write(Payload::Gather(&sges)), self.id, what, is_batched)?;
            }
            connection.posted(departure, self.now_ns);
            posted += 1;
            if is_last {
                break;
            }
        }
        Ok(posted)
    }

    /// Posts credit that has waited long enough.
    #[inline]
    fn credit_that_is_due<N: Nic>(
        self,
        live: &mut Live<N>,
        queue: &mut Queue<N>,
    ) -> Result<(), PostSendError> {
        match live.connection.credit_due(self.now_ns) {
            Some(words) => self.words(words, live, queue),
            None => Ok(()),
        }
    }

    #[inline(never)]
    fn words<N: Nic>(
        self,
        words: [u8; CREDIT_BYTES],
        live: &mut Live<N>,
        queue: &mut Queue<N>,
    ) -> Result<(), PostSendError> {
        let parts = [&words[..]];
        let (remote, payload) = (live.credit_words(), Payload::Inline(&parts));
        // Without an immediate it takes no receive, so it never waits for the peer's program.
        let op = Op::Write { remote, payload, imm: None };
        let to = live.remote.destination();
        // No other words leave before these are known to have arrived.
        let request = SendRequest { op, flags: SendFlags::SIGNALED, to };
        queue.post(&request, self.id, What::Credit, self.is_batched)?;
        live.connection.credit_posted();
        Ok(())
    }
}
