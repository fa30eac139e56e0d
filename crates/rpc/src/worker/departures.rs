//! What leaves: batches and credit.

use proto::copyrpc::{CREDIT_BYTES, Emission, FlushPolicy, Violation};
use verbs::{
    MemoryRegion as _, Nic, Op, Payload, PostSendError, RemoteSlice, SendFlags, SendRequest,
};

use super::Worker;
use crate::{
    CloseReason, Config, PeerId, TransportKind,
    peer::{Link, Live},
    queue::{Batch, Queue, What, Work},
};

/// What became of the batches of a peer.
enum Departed {
    /// Nothing is left that waits for anything but new calls.
    All,
    /// Some wait: for the policy, for credit, or for space in the queue.
    Some,
    /// The connection must end. Boxed, because it is rare.
    Never(Box<Broken>),
}

/// Why nothing leaves any more.
enum Broken {
    Post(PostSendError),
    /// The peer says that it gave back what it was not sent.
    Peer(Violation),
}

impl<N: Nic> Worker<N> {
    /// Posts whatever is due, without waiting for the next poll.
    pub fn flush(&mut self) {
        let mut index = 0;
        while let Some(id) = self.agenda.dirty.get(index).copied() {
            match self.flush_peer(id) {
                Departed::All => {
                    self.agenda.dirty.swap_remove(index);
                    if let Some(peer) = self.peer(id) {
                        peer.marks.is_dirty = false;
                    }
                }
                Departed::Some => index += 1,
                Departed::Never(broken) => {
                    self.agenda.dirty.swap_remove(index);
                    self.end_broken(id, &broken);
                }
            }
        }
        self.ring_queues();
    }

    #[cold]
    fn end_broken(&mut self, id: PeerId, broken: &Broken) {
        let reason = match broken {
            Broken::Peer(violation) => CloseReason::Violation(*violation),
            Broken::Post(error) => {
                tracing::warn!(peer = id.slot, %error, "cannot post a batch");
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
            matches!(self.config.flush, FlushPolicy::SelfClocked { .. } | FlushPolicy::Immediate);
        let is_last = self.is_last_arrival;
        if !is_prompt || self.config.transport == TransportKind::Dc && !is_last {
            return;
        }
        if !is_last && self.live(id).is_none_or(|live| live.connection.unconsumed() > 0) {
            return;
        }
        // What fails now fails again at the end of the poll, and is dealt with there.
        if matches!(self.flush_peer(id), Departed::All) && self.agenda.dirty.last() == Some(&id) {
            self.agenda.dirty.pop();
            if let Some(peer) = self.peer(id) {
                peer.marks.is_dirty = false;
            }
        }
        self.ring_queues();
    }

    /// Tells the NIC of everything that was posted, with one doorbell for each queue.
    #[inline]
    fn ring_queues(&mut self) {
        while let Some(index) = self.unrung.pop() {
            if let Some(queue) = &mut self.queues[usize::from(index)] {
                queue.ring();
            }
        }
    }

    fn flush_peer(&mut self, id: PeerId) -> Departed {
        let Self { peers, queues, config, now_ns, stats, flushed_ns, unrung, .. } = self;
        let place = &mut peers[usize::from(id.slot)];
        if place.generation != id.generation {
            return Departed::All;
        }
        let Some(peer) = &mut place.peer else { return Departed::All };
        let index = peer.queue;
        let Some(queue) = &mut queues[usize::from(index)] else { return Departed::All };
        let Link::Live(live) = &mut peer.link else { return Departed::All };
        live.connection.polled();
        if live.connection.is_starved()
            && let Err(violation) = live.look(&peer.ring, *now_ns)
        {
            return Departed::Never(Box::new(Broken::Peer(violation)));
        }
        let posted = post_batches(live, queue, config, id, *now_ns);
        let posted = posted.and_then(|count| {
            if count > 0 {
                *flushed_ns = *now_ns;
            }
            post_credit(live, queue, config, id, *now_ns)
        });
        if config.transport == TransportKind::Rc {
            queue.ring(); // nobody else posts to it
        } else if queue.is_unrung {
            unrung.push(index);
        }
        match posted {
            Ok(()) if live.connection.has_gathered() || live.connection.is_starved() => {
                Departed::Some
            }
            Ok(()) => Departed::All,
            Err(PostSendError::QueueFull { .. }) => {
                stats.send_queue_full += 1;
                Departed::Some
            }
            Err(error) => Departed::Never(Box::new(Broken::Post(error))),
        }
    }

    /// Posts a request that an initiator had not started when it failed for another peer.
    pub(super) fn post_again(&mut self, index: u16, work: &Work) -> Result<(), PostSendError> {
        let (peers, queues) = (&mut self.peers, &mut self.queues);
        let place = &mut peers[usize::from(work.peer.slot)];
        if place.generation != work.peer.generation {
            return Ok(());
        }
        let Some(live) = place.peer.as_mut().and_then(|peer| peer.live()) else { return Ok(()) };
        let Some(queue) = &mut queues[usize::from(index)] else { return Ok(()) };
        let What::Batch(batch) = work.what else {
            live.connection.credit_lost();
            self.mark_timed(work.peer);
            return Ok(());
        };
        let sges = [live.staging.sge(batch.offset_bytes, batch.len_bytes)];
        let op = Op::Write {
            remote: offset(live.remote, batch.offset_bytes),
            payload: Payload::Gather(&sges),
            imm: Some(batch.imm),
        };
        let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
        let request = SendRequest { op, flags, to: live.destination.as_ref() };
        queue.post(&request, work.peer, work.what, true)?;
        self.unrung.push(index);
        Ok(())
    }

    /// Whether received batches are still to be gathered.
    pub(super) fn is_coalescing(&self) -> bool {
        match self.config.flush {
            FlushPolicy::Coalesce { ns } => self.now_ns < self.flushed_ns.saturating_add(ns.into()),
            _ => false,
        }
    }
}

/// Posts what is due; returns how many batches. Pitfall 11: nothing changes in the connection before
/// the queue has taken a batch.
#[inline]
fn post_batches<N: Nic>(
    live: &mut Live<N>,
    queue: &mut Queue<N>,
    config: &Config,
    id: PeerId,
    now_ns: u64,
) -> Result<u32, PostSendError> {
    let mut posted = 0;
    let is_dc = live.destination.is_some();
    while let Some(emission) = live.connection.emission(now_ns, false) {
        let Emission { number, departure, offset_bytes, imm, bytes, is_signaled, is_last } =
            emission;
        let is_inline = bytes.len() <= live.inline_bytes_max;
        // An initiator that fails for one peer must be able to post again what was for others.
        if !is_inline || is_dc {
            live.staging.write(offset_bytes, bytes);
        }
        let batch = Batch { number, offset_bytes, len_bytes: bytes.len(), imm };
        let signaled = if is_signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        let write = |payload| SendRequest {
            op: Op::Write { remote: offset(live.remote, offset_bytes), payload, imm: Some(imm) },
            flags: signaled | SendFlags::SOLICITED,
            to: live.destination.as_ref(),
        };
        // The last batch leaves before anything is written down about it: the peer works meanwhile.
        let is_batched = config.doorbell_batching && (is_dc || !is_last);
        if is_inline {
            queue.post(&write(Payload::Inline(&[bytes])), id, What::Batch(batch), is_batched)?;
        } else {
            let sges = [live.staging.sge(offset_bytes, bytes.len())];
            queue.post(&write(Payload::Gather(&sges)), id, What::Batch(batch), is_batched)?;
        }
        live.connection.posted(departure, now_ns);
        posted += 1;
        if is_last {
            break;
        }
    }
    Ok(posted)
}

fn offset(slice: RemoteSlice, offset_bytes: usize) -> RemoteSlice {
    RemoteSlice { addr: slice.addr + offset_bytes as u64, rkey: slice.rkey }
}

/// Posts credit that has waited long enough.
#[inline]
fn post_credit<N: Nic>(
    live: &mut Live<N>,
    queue: &mut Queue<N>,
    config: &Config,
    id: PeerId,
    now_ns: u64,
) -> Result<(), PostSendError> {
    match live.connection.credit_due(now_ns) {
        Some(words) => post_words(live, queue, config, id, words),
        None => Ok(()),
    }
}

#[inline(never)]
fn post_words<N: Nic>(
    live: &mut Live<N>,
    queue: &mut Queue<N>,
    config: &Config,
    id: PeerId,
    words: [u8; CREDIT_BYTES],
) -> Result<(), PostSendError> {
    let parts = [&words[..]];
    let (remote, payload) = (live.credit_words(), Payload::Inline(&parts));
    // Without an immediate it takes no receive, so it never waits for the peer's program.
    let op = Op::Write { remote, payload, imm: None };
    let to = live.destination.as_ref();
    let request = SendRequest { op, flags: SendFlags::empty(), to };
    queue.post(&request, id, What::Credit, config.doorbell_batching)?;
    live.connection.credit_posted();
    Ok(())
}
