//! Long bodies on their way inside this node, piece by piece, so that none keeps the calls of others for longer than a
//! piece takes: answers to their callers, and requests to the processes and threads that are to answer them.
//!
//! A call whose body is under way stays among [`ProviderCalls`](super::ProviderCalls), so it ends once, by whatever
//! comes first: its last piece if that is of an answer, its deadline, or the loss of its caller or its provider. What
//! is left of a body whose call has ended is dropped when its turn comes. Then a process that was to get a request
//! polls as before: it knows of nothing.
//!
//! | the request is for | it is copied to | pieces |
//! |---|---|---|
//! | a node whose connection the client's thread has, and exceeds the ring | registered memory, from the client's memory: the daemon has no copy (`Worker::begin_call`, `put_call`, `finish_call`) | one per turn of the thread, of all requests to other nodes together |
//! | a node whose connection another thread has | private memory of the first thread, then registered memory | one per turn on each of the two threads |
//! | a process of the own node | the process's memory, from the client's memory: the daemon has no copy | one per turn of the thread, of all bodies inside the node together |
//! | a process of another thread, or a function that another thread alone has | private memory of the first thread; then as the next row | the same |
//! | a process that waits for one, and comes from another node | the process's memory, from where the NIC put it: the daemon has no copy (`rpc::Body::Landed`) | the same |
//! | a process, and comes from another thread, or from another node while no process waits | the process's memory, from the private memory in which it came | the same |
//! | a function of the client's thread | private memory, which the function gets as a whole | one per turn and client; at most eight requests at a time |
//!
//! Up to 16 KiB go in one copy (to the batch of another node: module `lent_bodies`), and up to 128 KiB of bytes in private memory.
//!
//! | the answer is of | its place meanwhile | copied at once |
//! |---|---|---|
//! | a process, longer than 4160 B | the memory of the process: the daemon has no copy (`ipc::Server::leave_large`, `Replies::read_left`), and sends the next request on that call after the last piece | up to 16 KiB, or if it fits the caller's room |
//! | a function of the daemon's program | the memory that the function filled, of which 64 MiB may wait | up to 128 KiB, if it fits the caller's room, or if it finds no room to wait |
//! | a process or function of another thread, or a node whose connection that has | private memory of the first thread, which the second copies | up to 128 KiB |
//!
//! # Session memory as the ends of a transfer: a design, not built
//!
//! Both copies that daemons make of a body would go if the NIC moved it between the sessions of two processes: a READ by
//! the receiver's daemon, from the half that the sender's process writes to the half that the receiver's process reads.
//! Heads stay in the batch, because a daemon has to check a private copy of them.
//!
//! | | source: large area of the sender's half | destination: large area of the receiver's half |
//! |---|---|---|
//! | registration | with the first long message, when pages are kept (`lend_left`); bytes count for the client, within `large_memory` | the same; the daemon has the pages made before |
//! | rights | REMOTE_READ, by a key for each peer and call (a window, or a region of one area): the key of a whole half would show a peer the requests to others (rule C6.5) | LOCAL_WRITE alone; no peer has a key |
//! | lifetime | call slot, key and pages stay until the answer (of a request) or the release (of an answer) | slot and pages stay until the READ's completion, and then the call is answered |
//! | cancellation | slot and key outlive the call until the peer has released the body, its key is invalid, or the queue pair is in error: else the peer reads the client's next request | slot outlives the call until the READ has ended: else the READ writes into the next answer |
//! | death of the process | the daemon's mapping and region stay, as its session is retired like a peer's memory (`SendSide::retire`) | the same |
//!
//! A client needs a state beside answered: ended, and its slot not free. The depth of a session bounds such slots, and a
//! client with no other slot waits. Bytes that change under a READ harm their sender alone, as lent bytes do today.

use std::collections::VecDeque;

use ids::slots::Key;
use rpc::{ReplyError, Status, Worker};
use verbs::Nic;

use crate::{
    client_port::{ClientPort, Replies},
    dispatcher::{
        Dispatcher,
        pieces::{MovingBody, PIECE_BYTES, Place, Progress, put_message},
        provider_calls::{ProviderCall, Server},
        said::not_executed,
    },
    fair_queue::{FairQueue, QUANTUM_BYTES},
    limits::CallerId,
    members::Poll,
    metrics::{Counter, Timing},
    request::Caller,
    request_head::RequestHead,
    services::QueuedRequest,
    source::{LeftBody, PrivateMemory, PrivateShare, Source},
};

/// Bodies that are copied at a time. Others wait, and take no memory of their recipients meanwhile.
const COPIES_MAX: usize = 8;

/// What a body counts for each of its pieces while callers take turns: one turn.
const PIECE_COST: usize = QUANTUM_BYTES;

/// Memory of answers that is kept for later ones.
const SPARE_BYTES_MAX: usize = 16 << 20;

/// Whom a body is for.
pub(super) enum Recipient<P: ClientPort> {
    /// The caller, whom it answers. An answer that was left with its process is that one's next poll, for this service.
    Caller(Option<u16>),
    /// A process, whose poll is answered with the request behind these heads.
    Provider { poll: Poll<P>, heads: Vec<u8> },
    /// The thread that offers the service of a request.
    Thread,
}

/// A body that is copied.
struct LongBody<P: ClientPort> {
    /// The call, as long as it has not ended.
    key: Key,
    head: RequestHead,
    moving: MovingBody<P>,
    recipient: Recipient<P>,
    /// What another thread is to be given.
    gathered: Vec<u8>,
}

/// Why a body is not copied any further.
enum Stop {
    /// Its call has ended.
    Ended,
    /// Its call is to end so.
    Failed(Status),
}

/// The bodies that are copied, or wait for that.
pub(super) struct LongBodies<P: ClientPort> {
    /// Those that are copied, at most [`COPIES_MAX`], the next one first.
    copied: VecDeque<LongBody<P>>,
    /// Those that wait to be copied. Each takes one of the calls that a process can make, or some of the private memory.
    waiting: FairQueue<CallerId, LongBody<P>>,
    pub(super) private: PrivateMemory,
    /// Memory of answers before.
    spare: Vec<Vec<u8>>,
}

impl<P: ClientPort> Default for LongBodies<P> {
    fn default() -> Self {
        Self {
            copied: VecDeque::new(),
            waiting: FairQueue::default(),
            private: PrivateMemory::default(),
            spare: Vec::new(),
        }
    }
}

impl<P: ClientPort> LongBodies<P> {
    pub(super) fn is_empty(&self) -> bool {
        self.copied.is_empty() && self.waiting.is_empty()
    }

    /// Queues a body. If its source is private, `share` is of that.
    pub(super) fn push(
        &mut self,
        (key, head): (Key, RequestHead),
        source: Source<P>,
        share: Option<PrivateShare>,
        recipient: Recipient<P>,
    ) {
        let cost = source.len_bytes().div_ceil(PIECE_BYTES) * PIECE_COST;
        let moving = MovingBody::new(source, share);
        let body = LongBody { key, head, moving, recipient, gathered: Vec::new() };
        self.waiting.push(head.caller_id, cost, body);
    }

    /// Takes the body that is to give its next piece.
    fn next(&mut self) -> Option<LongBody<P>> {
        while self.copied.len() < COPIES_MAX
            && let Some((_, _, body)) = self.waiting.pop()
        {
            self.copied.push_back(body);
        }
        self.copied.pop_front()
    }

    /// A body gave its piece: it is the turn of other callers. Bodies of one caller are copied one after the other, so
    /// that the first is fetched while the next is copied.
    fn put_back(&mut self, body: LongBody<P>) {
        let caller = body.head.caller_id;
        self.copied.push_front(body);
        // Stable: those of one caller stay in order.
        self.copied.make_contiguous().sort_by_key(|other| other.head.caller_id == caller);
    }

    /// Memory of an answer before.
    pub(super) fn take_spare(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Keeps the memory of an answer for later ones.
    fn keep(&mut self, mut memory: Vec<u8>) {
        let kept_bytes: usize = self.spare.iter().map(Vec::capacity).sum();
        if kept_bytes + memory.capacity() <= SPARE_BYTES_MAX {
            memory.clear();
            self.spare.push(memory);
        }
    }
}

impl<P: ClientPort> Dispatcher<P> {
    /// Whether bodies wait for their next pieces.
    #[inline]
    pub(crate) fn is_copying(&self) -> bool {
        !self.long_bodies.is_empty() || self.waiting.is_copying()
    }

    /// Copies the next piece of long bodies; returns whose turn it was.
    #[inline]
    pub(crate) fn copy_bodies<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
    ) -> usize {
        if self.long_bodies.is_empty() { 0 } else { self.copy_pieces(replies, worker) }
    }

    #[inline(never)]
    fn copy_pieces<N: Nic>(&mut self, replies: &mut P::Replies, worker: &mut Worker<N>) -> usize {
        let (mut left_bytes, mut count) = (PIECE_BYTES, 0);
        while left_bytes > 0
            && let Some(mut body) = self.long_bodies.next()
        {
            count += 1;
            match self.copy_piece(replies, worker, &mut body, &mut left_bytes) {
                Ok(Progress::Part) => self.long_bodies.put_back(body),
                Ok(Progress::Whole) => self.finish(replies, worker, body),
                Err(stop) => {
                    if let Stop::Failed(status) = stop {
                        let is_answer = matches!(body.recipient, Recipient::Caller(_));
                        let said = if is_answer { &[] } else { not_executed(status) };
                        self.end_provider_call(replies, worker, body.key, status, said);
                    }
                    self.give_up(replies, worker, body);
                }
            }
        }
        count
    }

    fn copy_piece<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
        body: &mut LongBody<P>,
        left_bytes: &mut usize,
    ) -> Result<Progress, Stop> {
        let call = self.provider_calls.get_mut(body.key).ok_or(Stop::Ended)?;
        let LongBody { moving, recipient, gathered, .. } = body;
        let len_bytes = moving.source.len_bytes();
        let mut place = match (&*recipient, &mut call.caller) {
            (Recipient::Provider { poll, heads, .. }, _) => {
                Place::Client(poll.reply_to, heads, len_bytes)
            }
            (Recipient::Caller(_), Caller::Client(to)) => Place::Client(*to, &[], len_bytes),
            (Recipient::Caller(_), Caller::Peer(token)) => Place::Answer(token),
            (Recipient::Caller(_), Caller::Thread(..)) | (Recipient::Thread, _) => {
                Place::Memory(gathered)
            }
        };
        let mut begun = Ok(());
        if !moving.is_begun() {
            begun = begin(&mut place, len_bytes, replies, worker);
        }
        let copied =
            begun.and_then(|()| self.mover.copy((replies, worker), moving, place, left_bytes));
        let is_answer = matches!(recipient, Recipient::Caller(_));
        copied.map_err(|status| match status {
            // The request was executed, so it is not for want of room that it was not, and who made it waits.
            Status::ResourceExhausted | Status::Cancelled if is_answer => {
                Stop::Failed(Status::Unavailable)
            }
            status => Stop::Failed(status),
        })
    }

    /// All of a body is where its recipient reads it.
    fn finish<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
        body: LongBody<P>,
    ) {
        let LongBody { key, head, moving: MovingBody { source, share, .. }, .. } = body;
        let LongBody { recipient, gathered, .. } = body;
        let len_bytes = source.len_bytes();
        drop(share);
        match recipient {
            Recipient::Caller(_) => {
                self.finish_answer(replies, worker, key, len_bytes, gathered);
                self.release(replies, worker, source, &recipient);
            }
            Recipient::Provider { ref poll, ref heads, .. } => {
                replies.reply_stored(poll.reply_to, heads.len() + len_bytes);
                self.provider_calls.give(key, poll.client);
                self.release(replies, worker, source, &recipient);
            }
            Recipient::Thread => {
                let request = QueuedRequest { key, head, body: Source::Private(gathered.into()) };
                if let Err(status) = self.hand_on(Server::Thread, request) {
                    let said = not_executed(status);
                    self.end_provider_call(replies, worker, key, status, said);
                }
            }
        }
    }

    fn finish_answer<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
        key: Key,
        len_bytes: usize,
        gathered: Vec<u8>,
    ) {
        let Some(ProviderCall { caller, came_ns, .. }) = self.provider_calls.remove(key) else {
            return;
        };
        match caller {
            Caller::Client(to) => {
                replies.reply_stored(to, len_bytes);
                self.count_reply(Status::Ok, came_ns);
            }
            Caller::Peer(token) => {
                self.tally.record(Timing::Turnaround, self.now_ns.saturating_sub(came_ns));
                self.tally.add(Counter::BytesOut, len_bytes as u64);
                // A caller that is gone needs no answer.
                let _ = worker.finish_answer(token);
            }
            Caller::Thread(token, _) => {
                self.thread_handle.answer_with(token, Status::Ok, gathered);
            }
        }
    }

    /// Nothing more is copied of a body: its memory is free, or its provider's again, and who polled for it polls.
    fn give_up<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
        body: LongBody<P>,
    ) {
        let LongBody { head, moving: MovingBody { source, share, .. }, recipient, .. } = body;
        drop(share);
        self.release(replies, worker, source, &recipient);
        if let Recipient::Provider { poll, .. } = recipient {
            self.put_poll_back(replies, head.service, poll);
        }
    }

    /// A source is not read any more: private memory is kept for where it came from, and a process that answered polls.
    fn release<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
        source: Source<P>,
        recipient: &Recipient<P>,
    ) {
        match (source, recipient) {
            (Source::Private(body), Recipient::Caller(_)) => {
                self.long_bodies.keep(body.into_memory());
            }
            (Source::Private(body), _) => worker.keep_memory(body.into_memory()),
            (Source::Left(LeftBody { from, .. }), Recipient::Caller(Some(service))) => {
                self.poll_again(replies, *service, from, true);
            }
            (Source::Left(_) | Source::Landed(_), _) => {}
        }
    }
}

/// Takes the memory that a body is copied to, and puts what is before the body.
fn begin<N: Nic, P: ClientPort>(
    place: &mut Place<'_, P>,
    len_bytes: usize,
    replies: &mut P::Replies,
    worker: &mut Worker<N>,
) -> Result<(), Status> {
    match place {
        Place::Client(_, [], _) | Place::Call(..) => Ok(()),
        Place::Client(to, heads, _) => {
            let whole_bytes = heads.len() + len_bytes;
            if !replies.takes_parts(whole_bytes) {
                return Err(Status::OutOfRange);
            }
            put_message::<P>(replies, (*to, whole_bytes), 0, heads)
        }
        Place::Answer(token) => {
            worker.begin_answer(token, len_bytes).map_err(|error| match error {
                ReplyError::TooLong { .. } => Status::OutOfRange,
                _ => Status::Unavailable,
            })
        }
        Place::Memory(memory) => {
            memory.try_reserve_exact(len_bytes).map_err(|_| Status::ResourceExhausted)
        }
    }
}
