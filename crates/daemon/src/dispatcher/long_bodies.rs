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
//! | a process that waits for one, and comes from another node | the process's memory, from where the NIC put it: the daemon has no copy (`Handler::landed_request`) | the same |
//! | a process, and comes from another thread, or from another node while no process waits | the process's memory, from the private memory in which it came | the same |
//! | a function of the client's thread | private memory, which the function gets as a whole | one per turn and client; at most eight requests at a time |
//!
//! Up to 16 KiB go in one copy, and up to 128 KiB of bytes in private memory.
//!
//! | the answer is of | its place meanwhile | copied at once |
//! |---|---|---|
//! | a process, longer than 4160 B | the memory of the process: the daemon has no copy (`ipc::Server::leave_large`, `Replies::read_left`), and sends the next request on that call after the last piece | up to 16 KiB, or if it fits the caller's room |
//! | a function of the daemon's program | the memory that the function filled, of which 64 MiB may wait | up to 128 KiB, if it fits the caller's room, or if it finds no room to wait |
//! | a process or function of another thread, or a node whose connection that has | private memory of the first thread, which the second copies | up to 128 KiB |

use core::ops::Range;
use std::collections::VecDeque;

use ids::slots::Key;
use rpc::{ReplyError, Status, Worker};
use verbs::Nic;

use crate::{
    client_port::{ClientPort, Replies},
    dispatcher::{Dispatcher, STRIP_BYTES, provider_calls::ProviderCall, said::not_executed},
    fair_queue::{FairQueue, QUANTUM_BYTES},
    limits::CallerId,
    members::Poll,
    metrics::{Counter, Timing},
    request::Caller,
    source::{PrivateMemory, PrivateShare, Source},
};

/// Bytes that are copied in one turn, for all callers: some tens of microseconds. A shorter body is one piece.
pub(super) const PIECE_BYTES: usize = 128 << 10;

/// Bodies that are copied at a time. Others wait, and take no memory of their recipients meanwhile.
const COPIES_MAX: usize = 8;

/// What a body counts for each of its pieces while callers take turns: one turn.
const PIECE_COST: usize = QUANTUM_BYTES;

/// Memory of answers that is kept for later ones.
const SPARE_BYTES_MAX: usize = 16 << 20;

/// Whom a body is for.
pub(super) enum Recipient<P: ClientPort> {
    /// The caller, whom it answers.
    Caller(Option<LeftAnswer<P>>),
    /// A process, whose poll is answered with the request behind these heads.
    Provider { service: u16, poll: Poll<P>, heads: Vec<u8> },
    /// The thread that offers the service of a request, of this method, from this rank.
    Thread { service: u16, rank: u32, method: u16 },
}

/// An answer of a process that lies where that put it: in a request that is its next poll.
pub(super) struct LeftAnswer<P: ClientPort> {
    pub(super) service: u16,
    /// The request that is the poll.
    pub(super) provider: P::ReplyTo,
}

/// A body that is copied.
pub(super) struct LongBody<P: ClientPort> {
    /// The call, as long as it has not ended.
    pub(super) key: Key,
    pub(super) caller: CallerId,
    pub(super) source: Source<P>,
    /// If that is private memory.
    pub(super) share: Option<PrivateShare>,
    pub(super) recipient: Recipient<P>,
    done_bytes: usize,
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
    /// Through which parts of what was left with clients go.
    pub(super) strip: Vec<u8>,
}

impl<P: ClientPort> Default for LongBodies<P> {
    fn default() -> Self {
        Self {
            copied: VecDeque::new(),
            waiting: FairQueue::default(),
            private: PrivateMemory::default(),
            spare: Vec::new(),
            strip: Vec::new(),
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
        (key, caller): (Key, CallerId),
        source: Source<P>,
        share: Option<PrivateShare>,
        recipient: Recipient<P>,
    ) {
        let cost = source.len_bytes().div_ceil(PIECE_BYTES) * PIECE_COST;
        let (done_bytes, gathered) = (0, Vec::new());
        let body = LongBody { key, caller, source, share, recipient, done_bytes, gathered };
        self.waiting.push(caller, cost, body);
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
        let caller = body.caller;
        self.copied.push_front(body);
        // Stable: those of one caller stay in order.
        self.copied.make_contiguous().sort_by_key(|other| other.caller == caller);
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
            let len_bytes = body.source.len_bytes();
            let end = len_bytes.min(body.done_bytes + left_bytes);
            let part = body.done_bytes..end;
            match self.copy_piece(replies, worker, &mut body, part.clone()) {
                Ok(()) if end < len_bytes => {
                    body.done_bytes = end;
                    self.long_bodies.put_back(body);
                }
                Ok(()) => self.finish(replies, worker, body),
                Err(stop) => {
                    if let Stop::Failed(status) = stop {
                        let is_answer = matches!(body.recipient, Recipient::Caller(_));
                        let said = if is_answer { &[] } else { not_executed(status) };
                        self.end_provider_call(replies, worker, body.key, status, said);
                    }
                    self.give_up(replies, worker, body);
                    continue;
                }
            }
            left_bytes -= part.len();
        }
        count
    }

    fn copy_piece<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
        body: &mut LongBody<P>,
        part: Range<usize>,
    ) -> Result<(), Stop> {
        let Self { provider_calls, long_bodies, .. } = self;
        let call = provider_calls.get_mut(body.key).ok_or(Stop::Ended)?;
        let LongBody { source, recipient, gathered, .. } = body;
        let len_bytes = source.len_bytes();
        if part.start == 0 {
            begin(recipient, &mut call.caller, (replies, worker), len_bytes, gathered)?;
        }
        // What goes to registered memory is counted there.
        if let (Recipient::Caller(_), Caller::Peer(token)) = (&*recipient, &call.caller)
            && let Some(lent) = source.lend(replies, part.clone())
        {
            let put = worker.put_answer(token, part.start, lent);
            return put.map_err(|_| Stop::Failed(Status::Unavailable));
        }
        if let (Recipient::Provider { poll, heads, .. }, Source::Landed(body)) =
            (&*recipient, &*source)
        {
            self.copied_bytes += part.len() as u64;
            let place = heads.len() + part.start..heads.len() + part.end;
            let is_put =
                replies.put_part(poll.reply_to, heads.len() + len_bytes, place, |message| {
                    // There is room for the whole part.
                    let _ = body.put_to(part, message);
                });
            return if is_put { Ok(()) } else { Err(Stop::Failed(Status::Unavailable)) };
        }
        let is_for_peer =
            matches!((&*recipient, &call.caller), (Recipient::Caller(_), Caller::Peer(_)));
        self.copied_bytes +=
            source.copies_of(part.len()) + if is_for_peer { 0 } else { part.len() as u64 };
        let gone = Stop::Failed(match recipient {
            Recipient::Caller(_) => Status::Unavailable,
            // Whatever it is told reaches nobody.
            Recipient::Provider { .. } | Recipient::Thread { .. } => Status::Cancelled,
        });
        let mut to = Destination { recipient, caller: &call.caller, len_bytes, worker, gathered };
        let strip = (&mut long_bodies.strip, STRIP_BYTES);
        source.copy(replies, part, strip, gone, |replies, at, bytes| to.put(replies, at, bytes))
    }

    /// All of a body is where its recipient reads it.
    fn finish<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
        body: LongBody<P>,
    ) {
        let LongBody { key, caller, source, share, recipient, gathered, .. } = body;
        let len_bytes = source.len_bytes();
        drop(share);
        match recipient {
            Recipient::Caller(left) => {
                self.finish_answer(replies, worker, key, len_bytes, gathered);
                self.keep(worker, source, true);
                self.poll_after_answer(replies, left);
            }
            Recipient::Provider { poll, heads, .. } => {
                replies.reply_stored(poll.reply_to, heads.len() + len_bytes);
                self.provider_calls.give(key, poll.client);
                self.keep(worker, source, false);
            }
            Recipient::Thread { service, rank, method } => {
                let asked = self.ask_thread_or_queue(
                    (key, caller),
                    service,
                    (rank, method),
                    gathered.into(),
                );
                if let Err(status) = asked {
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
        let LongBody { source, share, recipient, .. } = body;
        drop(share);
        match recipient {
            Recipient::Caller(left) => {
                self.keep(worker, source, true);
                self.poll_after_answer(replies, left);
            }
            Recipient::Provider { service, poll, .. } => {
                self.keep(worker, source, false);
                self.put_poll_back(replies, service, poll);
            }
            Recipient::Thread { .. } => {}
        }
    }

    /// Keeps private memory for where it came from.
    fn keep<N: Nic>(&mut self, worker: &mut Worker<N>, source: Source<P>, is_answer: bool) {
        match source {
            Source::Private(body) if is_answer => self.long_bodies.keep(body.into_memory()),
            Source::Private(body) => worker.keep_memory(body.into_memory()),
            Source::Left(_) | Source::Landed(_) => {}
        }
    }

    fn poll_after_answer(&mut self, replies: &mut P::Replies, left: Option<LeftAnswer<P>>) {
        if let Some(LeftAnswer { service, provider }) = left {
            self.poll_again(replies, service, provider, true);
        }
    }
}

/// Takes the memory that a body is copied to.
fn begin<N: Nic, P: ClientPort>(
    recipient: &Recipient<P>,
    caller: &mut Caller<P>,
    (replies, worker): (&mut P::Replies, &mut Worker<N>),
    len_bytes: usize,
    gathered: &mut Vec<u8>,
) -> Result<(), Stop> {
    let begun = match (recipient, caller) {
        (Recipient::Provider { poll, heads, .. }, _) => {
            let whole_bytes = heads.len() + len_bytes;
            if replies.takes_parts(whole_bytes) {
                let put = put_part::<P>(replies, poll.reply_to, whole_bytes, 0, heads);
                if put { Ok(()) } else { Err(Status::Unavailable) }
            } else {
                Err(Status::OutOfRange)
            }
        }
        (Recipient::Thread { .. }, _) => {
            gathered.try_reserve_exact(len_bytes).map_err(|_| Status::ResourceExhausted)
        }
        // An answer: its request was executed, so it is not for want of room that it was not.
        (Recipient::Caller(_), Caller::Client(_)) => Ok(()),
        (Recipient::Caller(_), Caller::Peer(token)) => {
            worker.begin_answer(token, len_bytes).map_err(|error| match error {
                ReplyError::TooLong { .. } => Status::OutOfRange,
                _ => Status::Unavailable,
            })
        }
        (Recipient::Caller(_), Caller::Thread(..)) => {
            gathered.try_reserve_exact(len_bytes).map_err(|_| Status::Unavailable)
        }
    };
    begun.map_err(Stop::Failed)
}

/// Where a body is copied to.
struct Destination<'a, N: Nic, P: ClientPort> {
    recipient: &'a Recipient<P>,
    caller: &'a Caller<P>,
    len_bytes: usize,
    worker: &'a mut Worker<N>,
    gathered: &'a mut Vec<u8>,
}

impl<N: Nic, P: ClientPort> Destination<'_, N, P> {
    fn put(&mut self, replies: &mut P::Replies, offset: usize, bytes: &[u8]) -> Result<(), Stop> {
        let len_bytes = self.len_bytes;
        let is_put = match (self.recipient, self.caller) {
            (Recipient::Provider { poll, heads, .. }, _) => {
                let (before, to) = (heads.len(), poll.reply_to);
                put_part::<P>(replies, to, before + len_bytes, before + offset, bytes)
            }
            (Recipient::Caller(_), Caller::Client(to)) => {
                put_part::<P>(replies, *to, len_bytes, offset, bytes)
            }
            (Recipient::Caller(_), Caller::Peer(token)) => {
                self.worker.put_answer(token, offset, bytes).is_ok()
            }
            (Recipient::Caller(_), Caller::Thread(..)) | (Recipient::Thread { .. }, _) => {
                self.gathered.extend_from_slice(bytes);
                true
            }
        };
        // There is no memory for it, or who would read it is gone.
        if is_put { Ok(()) } else { Err(Stop::Failed(Status::Unavailable)) }
    }
}

/// Puts a part of what a client reads; `false`: there is no memory for it, or the client is gone.
fn put_part<P: ClientPort>(
    replies: &mut P::Replies,
    to: P::ReplyTo,
    len_bytes: usize,
    offset: usize,
    bytes: &[u8],
) -> bool {
    let part = offset..offset + bytes.len();
    replies.put_part(to, len_bytes, part, |answer| {
        // There is room for the whole part.
        let _ = answer.put(bytes);
    })
}
