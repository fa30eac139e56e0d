//! Calls that wait for room at a peer: in its ring, at the thread that owns it, or within the share of
//! their client.

use std::mem;

use ids::slots::{Key, SlotTable};
use rpc::{PartialCall, Status};

use crate::{
    client_port::{ClientPort, ClientTag},
    dispatcher::{Outgoing, ReplyTo, pieces::MovingBody},
    fair_queue::{FairQueue, NextTurn},
    limits::{CallerId, ENTRY_BYTES, Held, Wheel},
    request_head::RequestHead,
    source::{PrivateMemory, PrivateShare, Source},
};

/// A call that waits.
pub(super) struct Waiting<P: ClientPort> {
    pub(super) reply_to: ReplyTo<P>,
    pub(super) call: Outgoing,
    pub(super) body: Body<P>,
}

/// The body of such a call.
pub(super) enum Body<P: ClientPort> {
    /// A copy.
    Private(Vec<u8>),
    /// It is copied in pieces.
    Long(Box<LongRequest<P>>),
}

/// A request that is copied in pieces to where it goes on from.
pub(super) struct LongRequest<P: ClientPort> {
    pub(super) moving: MovingBody<P>,
    /// The memory that it is copied to, which is taken with the first piece.
    pub(super) begun: Option<Begun>,
    /// There was none though no other body held any: nothing will be given back that it could wait for.
    pub(super) is_beyond_memory: bool,
}

/// Memory that a request is copied to.
pub(super) enum Begun {
    /// That its peer reads.
    Peer(PartialCall),
    /// That of the thread which has the peer, once it is asked.
    Thread(Vec<u8>),
}

impl<P: ClientPort> LongRequest<P> {
    pub(super) fn new(source: Source<P>, share: Option<PrivateShare>) -> Self {
        let moving = MovingBody::new(source, share);
        Self { moving, begun: None, is_beyond_memory: false }
    }

    /// Takes the private memory that it is to be copied to. [`Status::ResourceExhausted`]: there is no room now.
    pub(super) fn begin_private(&mut self, private: &PrivateMemory) -> Result<(), Status> {
        let len_bytes = self.moving.source.len_bytes();
        let Some(share) = private.take(len_bytes) else {
            self.is_beyond_memory = !PrivateMemory::may_have(len_bytes);
            return Err(Status::ResourceExhausted);
        };
        let mut memory = Vec::new();
        // Nobody gives back what the system has not got.
        self.is_beyond_memory = memory.try_reserve_exact(len_bytes).is_err();
        if self.is_beyond_memory {
            return Err(Status::ResourceExhausted);
        }
        self.begun = Some(Begun::Thread(memory));
        self.moving.share = Some(share);
        Ok(())
    }

    /// Whether it has memory, and is to get more pieces.
    pub(super) fn is_under_way(&self) -> bool {
        self.begun.is_some() && !self.moving.is_copied()
    }
}

impl<P: ClientPort> Body<P> {
    /// Whether there is something that it can wait for.
    pub(super) fn may_wait(&self) -> bool {
        !matches!(self, Self::Long(request) if request.is_beyond_memory)
    }

    /// Bytes of it that the daemon holds.
    fn held_bytes(&self) -> usize {
        match self {
            Self::Private(body) => body.len(),
            // It is its client's, or has its share of the private memory.
            Self::Long(_) => 0,
        }
    }
}

/// A call that waits, and for whom; `None` while it is tried.
struct Entry<P: ClientPort> {
    rank: u32,
    bytes: usize,
    client: ClientTag,
    waiting: Option<Waiting<P>>,
}

/// The calls that wait for one peer.
#[derive(Default)]
struct Queue {
    calls: FairQueue<ClientTag, Key>,
    /// The ring, or the other thread, had no room for the call that was tried last: newcomers wait, too.
    is_blocked: bool,
    /// In the list of those with waiting calls.
    is_listed: bool,
    /// A long request to this peer is to get its next piece.
    is_copying: bool,
}

/// A call that is tried, or put back.
#[derive(Clone, Copy)]
pub(super) struct Trial {
    key: Key,
    bytes: usize,
    client: ClientTag,
}

/// A queue for each peer, in which clients take turns.
pub(super) struct WaitQueues<P: ClientPort> {
    /// Calls that wait for each peer, by rank.
    queues: Vec<Queue>,
    entries: SlotTable<Entry<P>>,
    deadlines: Wheel,
    /// Ranks whose queue is not empty, each once. Between two looks it may name one that is.
    listed: Vec<u32>,
    /// Ranks to which long requests are being copied. All are listed.
    copying: usize,
}

impl<P: ClientPort> WaitQueues<P> {
    /// For ranks below `size`.
    pub(super) fn new(size: u32) -> Self {
        Self {
            queues: (0..size).map(|_| Queue::default()).collect(),
            entries: SlotTable::default(),
            deadlines: Wheel::default(),
            listed: Vec::new(),
            copying: 0,
        }
    }

    /// Calls that wait, for any peer.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Calls that wait for a peer.
    pub(super) fn len_of(&self, rank: u32) -> usize {
        self.queues[rank as usize].calls.len()
    }

    /// Whether a call of a client may be tried at once: nothing of it waits for the peer, and the others
    /// wait for their own shares alone.
    #[inline]
    pub(super) fn may_try(&self, rank: u32, client: ClientTag) -> bool {
        let queue = &self.queues[rank as usize];
        queue.calls.is_empty() || !queue.is_blocked && queue.calls.bytes_of(client) == 0
    }

    /// A peer had no room for a call.
    pub(super) fn block(&mut self, rank: u32) {
        self.queues[rank as usize].is_blocked = true;
    }

    /// Whether a peer had no room for the call that was tried last.
    pub(super) fn is_blocked(&self, rank: u32) -> bool {
        self.queues[rank as usize].is_blocked
    }

    /// A long request that waits for a peer is to get its next piece.
    pub(super) fn mark_copying(&mut self, rank: u32) {
        self.copying +=
            usize::from(!mem::replace(&mut self.queues[rank as usize].is_copying, true));
    }

    /// Whether a long request to a peer was to get its next piece at the last look.
    pub(super) fn take_copying(&mut self, rank: u32) -> bool {
        let is_copying = mem::take(&mut self.queues[rank as usize].is_copying);
        self.copying -= usize::from(is_copying);
        is_copying
    }

    /// Whether long requests are to get their next pieces.
    #[inline]
    pub(super) fn is_copying(&self) -> bool {
        self.copying > 0
    }

    /// Adds a call behind those of its client; hands it back if that has too much that waits.
    pub(super) fn push(&mut self, held: &mut Held, waiting: Waiting<P>) -> Result<(), Waiting<P>> {
        let Outgoing { head: RequestHead { rank, deadline_ns, .. }, client, .. } = waiting.call;
        let bytes = waiting.body.held_bytes() + ENTRY_BYTES;
        if held.admit(CallerId::Client(client), bytes).is_err() {
            return Err(waiting);
        }
        let entry = Entry { rank, bytes, client, waiting: Some(waiting) };
        let key = match self.entries.insert(entry) {
            Ok(key) => key,
            Err(Entry { waiting, .. }) => {
                held.release(CallerId::Client(client), bytes);
                return Err(waiting.unwrap_or_else(|| unreachable!("it was stored just now")));
            }
        };
        self.deadlines.add(deadline_ns, key);
        self.queues[rank as usize].calls.push(client, bytes, key);
        self.list(rank);
        Ok(())
    }

    fn list(&mut self, rank: u32) {
        if !mem::replace(&mut self.queues[rank as usize].is_listed, true) {
            self.listed.push(rank);
        }
    }

    /// Callers that wait for a peer.
    pub(super) fn clients(&self, rank: u32) -> usize {
        self.queues[rank as usize].calls.callers()
    }

    /// The call that is next for a peer. Then [`done`](Self::done) or [`put_back`](Self::put_back).
    pub(super) fn next(&mut self, rank: u32) -> Option<(Trial, Waiting<P>)> {
        let queue = &mut self.queues[rank as usize];
        loop {
            let Some((client, bytes, key)) = queue.calls.pop() else {
                queue.is_blocked = false;
                return None;
            };
            let entry = self.entries.get_mut(key);
            // It may have ended.
            if let Some(waiting) = entry.and_then(|entry| entry.waiting.take()) {
                queue.is_blocked = false;
                return Some((Trial { key, bytes, client }, waiting));
            }
        }
    }

    /// The call that was tried waits no more.
    pub(super) fn done(&mut self, held: &mut Held, trial: Trial) {
        self.entries.remove(trial.key);
        held.release(CallerId::Client(trial.client), trial.bytes);
    }

    /// The call that was tried waits on: before those of others if it keeps its turn or the peer is blocked, else behind
    /// one of each.
    pub(super) fn put_back(
        &mut self,
        rank: u32,
        trial: Trial,
        waiting: Waiting<P>,
        next: NextTurn,
    ) {
        let Trial { key, bytes, client } = trial;
        if let Some(entry) = self.entries.get_mut(key) {
            entry.waiting = Some(waiting);
        }
        let queue = &mut self.queues[rank as usize];
        let next = if queue.is_blocked { NextTurn::Own } else { next };
        queue.calls.put_back(client, bytes, key, next);
        self.list(rank);
    }

    /// Whether no call waits for any peer.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.listed.is_empty()
    }

    /// The ranks that calls wait for. Those that long requests are copied to take turns.
    pub(super) fn take_listed(&mut self) -> Vec<u32> {
        if self.is_copying() {
            self.listed.rotate_left(1);
        }
        for rank in &self.listed {
            self.queues[*rank as usize].is_listed = false;
        }
        mem::take(&mut self.listed)
    }

    /// A rank that was listed is looked at again if calls wait for it.
    pub(super) fn relist(&mut self, rank: u32) {
        if !self.queues[rank as usize].calls.is_empty() {
            self.list(rank);
        }
    }

    /// Takes all calls that wait for a peer.
    pub(super) fn take_all(&mut self, held: &mut Held, rank: u32) -> Vec<Waiting<P>> {
        let queue = &mut self.queues[rank as usize];
        queue.is_blocked = false;
        let keys: Vec<_> = queue.calls.take_all().map(|(_, _, key)| key).collect();
        keys.into_iter().filter_map(|key| self.take(held, key)).collect()
    }

    fn take(&mut self, held: &mut Held, key: Key) -> Option<Waiting<P>> {
        let entry = self.entries.remove(key)?;
        held.release(CallerId::Client(entry.client), entry.bytes);
        entry.waiting
    }

    /// Takes calls out of the middle of their queues.
    fn take_ended(&mut self, held: &mut Held, keys: Vec<Key>) -> Vec<Waiting<P>> {
        let mut ended = Vec::with_capacity(keys.len());
        for key in keys {
            let Some(rank) = self.entries.get(key).map(|entry| entry.rank) else { continue };
            ended.extend(self.take(held, key));
            let Self { queues, entries, .. } = self;
            queues[rank as usize].calls.mark_dead(|key| entries.get(*key).is_some(), |_, _| {});
        }
        ended
    }

    /// Takes all calls whose deadline is not later than `now_ns`.
    pub(super) fn take_late(&mut self, held: &mut Held, now_ns: u64) -> Vec<Waiting<P>> {
        let Self { deadlines, entries, .. } = self;
        let keys = deadlines.take_due(now_ns, |key| entries.get(key).is_some());
        self.take_ended(held, keys)
    }

    /// Takes the calls for which `is_wanted` does not hold.
    pub(super) fn take_unwanted(
        &mut self,
        held: &mut Held,
        is_wanted: impl Fn(&Waiting<P>) -> bool,
    ) -> Vec<Waiting<P>> {
        let is_unwanted =
            |entry: &Entry<P>| entry.waiting.as_ref().is_some_and(|one| !is_wanted(one));
        let keys = self.entries.iter().filter(|(_, entry)| is_unwanted(entry)).map(|(key, _)| key);
        let keys = keys.collect();
        self.take_ended(held, keys)
    }
}
