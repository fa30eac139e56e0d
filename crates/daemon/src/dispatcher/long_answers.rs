//! Long answers of this node on their way to their callers, piece by piece, so that no answer keeps the calls of
//! others for longer than a piece takes.
//!
//! A call whose answer is under way stays among [`ProviderCalls`](super::ProviderCalls), so it ends once, by whatever
//! comes first: its last piece, its deadline, or the loss of its caller or its provider. What is left of an answer
//! whose call has ended is dropped when its turn comes.

use core::ops::Range;
use std::{collections::VecDeque, mem};

use client::message::CallHead;
use rpc::{ReplyError, Status, Token, Worker};
use slots::Key;
use verbs::Nic;

use crate::{
    client_port::{AnswerHead, ClientPort, Replies},
    dispatcher::{
        Answer, Caller, Dispatcher, STRIP_BYTES,
        departures::tag_of,
        provider_calls::{ProviderCall, Server},
    },
    limits::CallerId,
    metrics::{Counter, Timing},
};

/// Bytes that are copied in one turn, for all callers: some tens of microseconds. A shorter answer is one piece.
const PIECE_BYTES: usize = 128 << 10;

/// Answers that are copied at a time. Others wait, and take no registered memory meanwhile.
const COPIES_MAX: usize = 8;

/// Bytes of answers that wait here in private memory. Beyond, an answer of a function is copied at once.
const PRIVATE_BYTES_MAX: usize = 64 << 20;

/// Memory of such answers that is kept for later ones.
const SPARE_BYTES_MAX: usize = 16 << 20;

/// An answer of a process that lies where that put it.
struct LeftAnswer<P: ClientPort> {
    service: u16,
    /// Whose it is, and the request that it lies in: as long as that is not answered, the memory is the daemon's.
    provider: (P::Client, P::ReplyTo),
}

/// Where the body of an answer is.
enum Source<P: ClientPort> {
    Private(Vec<u8>),
    Left(LeftAnswer<P>),
}

/// An answer that is copied.
struct LongAnswer<P: ClientPort> {
    /// The call, as long as it has not ended.
    key: Key,
    caller: CallerId,
    source: Source<P>,
    len_bytes: usize,
    done_bytes: usize,
    /// What another thread is to be given.
    gathered: Vec<u8>,
}

/// Why an answer is not copied any further.
enum Stop {
    /// Its call has ended.
    Ended,
    /// Its call is to end so.
    Failed(Status),
}

/// The answers that are copied, or wait for that.
pub(super) struct LongAnswers<P: ClientPort> {
    /// As many as are copied at a time, the next one first, and those that wait, in the order in which they came.
    /// Each takes one of the calls that its process can make, or some of the private memory.
    queue: VecDeque<LongAnswer<P>>,
    private_bytes: usize,
    /// Memory of answers before.
    spare: Vec<Vec<u8>>,
    /// Through which parts of what was left with clients go.
    strip: Vec<u8>,
}

impl<P: ClientPort> Default for LongAnswers<P> {
    fn default() -> Self {
        Self { queue: VecDeque::new(), private_bytes: 0, spare: Vec::new(), strip: Vec::new() }
    }
}

impl<P: ClientPort> LongAnswers<P> {
    /// An answer gave its piece: it is the turn of other callers. Answers to one caller are copied one after the
    /// other, so that the first is fetched while the next is copied.
    fn put_back(&mut self, answer: LongAnswer<P>) {
        let caller = answer.caller;
        self.queue.push_front(answer);
        let copied = self.queue.len().min(COPIES_MAX);
        // Stable: those of one caller stay in order.
        self.queue.make_contiguous()[..copied].sort_by_key(|other| other.caller == caller);
    }

    /// Keeps the memory of an answer for later ones.
    fn keep(&mut self, mut body: Vec<u8>) {
        let kept_bytes: usize = self.spare.iter().map(Vec::capacity).sum();
        if kept_bytes + body.capacity() <= SPARE_BYTES_MAX {
            body.clear();
            self.spare.push(body);
        }
    }
}

impl<P: ClientPort> Dispatcher<P> {
    /// Whether answers or requests wait for their next pieces.
    #[inline]
    pub(crate) fn is_copying(&self) -> bool {
        !self.long_answers.queue.is_empty() || self.waiting.is_copying()
    }

    /// Whether the answer that a function has just made is longer than a piece, and may wait.
    #[inline]
    pub(super) fn may_be_in_pieces(&self, status: Status) -> bool {
        status == Status::Ok && self.body.len() > PIECE_BYTES && self.has_room(self.body.len())
    }

    fn has_room(&self, len_bytes: usize) -> bool {
        self.long_answers.private_bytes + len_bytes <= PRIVATE_BYTES_MAX
    }

    /// A function has answered a client of this thread at length; `false` if that is to be copied at once.
    #[cold]
    pub(super) fn answer_client_in_pieces(&mut self, to: P::ReplyTo, head: &CallHead) -> bool {
        let tag = tag_of::<P>(self.client_base, to);
        let deadline_ns = self.deadline_ns(head.timeout_us.get());
        let caller = (Caller::Client(to), CallerId::Client(tag));
        self.answer_in_pieces(caller, head.service.get(), deadline_ns).is_ok()
    }

    /// A function has answered another node at length.
    #[cold]
    pub(super) fn answer_peer_in_pieces<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        token: Token,
        (from, service): (u32, u16),
        deadline_ns: u64,
    ) {
        let token = if self.body.len() > worker.answer_bytes_max(&token) {
            let caller = (Caller::Peer(token), CallerId::Rank(from));
            match self.answer_in_pieces(caller, service, deadline_ns) {
                Err(Caller::Peer(token)) => token,
                _ => return,
            }
        } else {
            token
        };
        let body = mem::take(&mut self.body);
        self.reply_peer(worker, token, Status::Ok, &body, self.now_ns);
        self.body = body;
    }

    /// Stores the call whose answer is in the dispatcher's buffer, and queues that; hands the caller back if there
    /// are too many calls.
    fn answer_in_pieces(
        &mut self,
        (caller, caller_id): (Caller<P>, CallerId),
        service: u16,
        deadline_ns: u64,
    ) -> Result<(), Caller<P>> {
        let call = ProviderCall {
            caller,
            caller_id,
            server: Server::Answered,
            service,
            is_queued: false,
            deadline_ns,
            came_ns: self.now_ns,
            who: self.who,
        };
        let key = self.provider_calls.insert(call).map_err(|call| call.caller)?;
        let spare = self.long_answers.spare.pop().unwrap_or_default();
        let body = mem::replace(&mut self.body, spare);
        self.queue_private((key, caller_id), body);
        Ok(())
    }

    fn queue_private(&mut self, (key, caller): (Key, CallerId), body: Vec<u8>) {
        let len_bytes = body.len();
        self.long_answers.private_bytes += len_bytes;
        self.queue_answer((key, caller), Source::Private(body), len_bytes);
    }

    fn queue_answer(
        &mut self,
        (key, caller): (Key, CallerId),
        source: Source<P>,
        len_bytes: usize,
    ) {
        let (done_bytes, gathered) = (0, Vec::new());
        let answer = LongAnswer { key, caller, source, len_bytes, done_bytes, gathered };
        self.long_answers.queue.push_back(answer);
    }

    /// Another thread has answered a request; hands the answer back if that is to be copied at once.
    pub(super) fn end_in_pieces<N: Nic>(
        &mut self,
        replies: &P::Replies,
        worker: &mut Worker<N>,
        key: Key,
        status: Status,
        body: Vec<u8>,
    ) -> Result<(), Vec<u8>> {
        let len_bytes = body.len();
        let may = status == Status::Ok && len_bytes > PIECE_BYTES && self.has_room(len_bytes);
        let call = self.provider_calls.get_mut(key).filter(|_| may);
        match call.filter(|call| takes_pieces(&call.caller, replies, worker, len_bytes)) {
            Some(call) => {
                call.server = Server::Answered;
                let caller = call.caller_id;
                self.queue_private((key, caller), body);
                Ok(())
            }
            None => Err(body),
        }
    }

    /// A process answers, and polls for the next request, or calls another node. The message lies where the process
    /// put it.
    #[cold]
    pub(super) fn serve_left<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        provider: (P::Client, P::ReplyTo),
        (head, len_bytes): (&[u8], usize),
        replies: &mut P::Replies,
    ) -> Answer {
        let Some(AnswerHead(head)) = AnswerHead::read(head) else {
            return self.serve_left_request(worker, provider, (head, len_bytes), replies);
        };
        let key = match self.answered_by(provider.0, &head) {
            Ok(key) => key,
            Err(status) => return Answer::Now(status),
        };
        let service = head.service.get();
        let Some((key, call)) = key.and_then(|key| Some((key, self.provider_calls.get_mut(key)?)))
        else {
            self.tally.add(Counter::Stale, 1);
            self.poll_again(replies, service, provider, true);
            return Answer::Later;
        };
        call.server = Server::Answered;
        let body_bytes = len_bytes.saturating_sub(AnswerHead::BYTES);
        let left = LeftAnswer { service, provider };
        if body_bytes > STRIP_BYTES && takes_pieces(&call.caller, replies, worker, body_bytes) {
            let caller = call.caller_id;
            self.queue_answer((key, caller), Source::Left(left), body_bytes);
        } else {
            self.copy_at_once(replies, worker, key, left, len_bytes);
        }
        Answer::Later
    }

    /// Answers with a body that is short, or whose caller takes no pieces.
    fn copy_at_once<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
        key: Key,
        left: LeftAnswer<P>,
        len_bytes: usize,
    ) {
        let mut body = mem::take(&mut self.long_answers.strip);
        body.clear();
        let has_room = body.try_reserve(len_bytes).is_ok();
        let part = AnswerHead::BYTES..len_bytes;
        if has_room && replies.read_left(left.provider.1, part, &mut body) {
            self.end_provider_call(replies, worker, key, Status::Ok, &body);
        } else {
            self.end_provider_call(replies, worker, key, Status::Unavailable, &[]);
        }
        self.long_answers.strip = body;
        self.poll_again(replies, left.service, left.provider, true);
    }

    /// Copies the next piece of long answers; returns whose turn it was.
    #[inline]
    pub(crate) fn copy_answers<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
    ) -> usize {
        if !self.long_answers.queue.is_empty() { self.copy_pieces(replies, worker) } else { 0 }
    }

    #[inline(never)]
    fn copy_pieces<N: Nic>(&mut self, replies: &mut P::Replies, worker: &mut Worker<N>) -> usize {
        let (mut left_bytes, mut count) = (PIECE_BYTES, 0);
        while left_bytes > 0
            && let Some(mut answer) = self.long_answers.queue.pop_front()
        {
            count += 1;
            let end = answer.len_bytes.min(answer.done_bytes + left_bytes);
            let part = answer.done_bytes..end;
            match self.copy_piece(replies, worker, &mut answer, part.clone()) {
                Ok(()) if end < answer.len_bytes => {
                    answer.done_bytes = end;
                    self.long_answers.put_back(answer);
                }
                Ok(()) => self.finish(replies, worker, answer),
                Err(stop) => {
                    if let Stop::Failed(status) = stop {
                        self.end_provider_call(replies, worker, answer.key, status, &[]);
                    }
                    self.end_copy(replies, answer.source);
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
        answer: &mut LongAnswer<P>,
        part: Range<usize>,
    ) -> Result<(), Stop> {
        let Self { provider_calls, long_answers, .. } = self;
        let call = provider_calls.get_mut(answer.key).ok_or(Stop::Ended)?;
        let LongAnswer { source, len_bytes, gathered, .. } = answer;
        let len_bytes = *len_bytes;
        if part.start == 0 {
            begin(&mut call.caller, worker, len_bytes, gathered)?;
        }
        let mut to = Destination { caller: &call.caller, len_bytes, replies, worker, gathered };
        match source {
            Source::Private(body) => to.put(part.start, &body[part]),
            Source::Left(LeftAnswer { provider, .. }) => {
                let strip = &mut long_answers.strip;
                for at in part.clone().step_by(STRIP_BYTES) {
                    strip.clear();
                    let from = AnswerHead::BYTES + at;
                    let strip_bytes = STRIP_BYTES.min(part.end - at);
                    if !to.replies.read_left(provider.1, from..from + strip_bytes, strip) {
                        return Err(Stop::Failed(Status::Unavailable));
                    }
                    to.put(at, strip)?;
                }
                Ok(())
            }
        }
    }

    /// All of an answer is where its caller reads it.
    fn finish<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
        answer: LongAnswer<P>,
    ) {
        let LongAnswer { key, source, len_bytes, gathered, .. } = answer;
        if let Some(ProviderCall { caller, came_ns, .. }) = self.provider_calls.remove(key) {
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
        self.end_copy(replies, source);
    }

    /// Nothing more is copied of an answer: its memory is free, or its provider's again, which polls.
    fn end_copy(&mut self, replies: &mut P::Replies, source: Source<P>) {
        match source {
            Source::Private(body) => {
                self.long_answers.private_bytes -= body.len();
                self.long_answers.keep(body);
            }
            Source::Left(LeftAnswer { service, provider }) => {
                self.poll_again(replies, service, provider, true);
            }
        }
    }
}

/// Whether an answer can reach a caller in pieces.
fn takes_pieces<N: Nic, P: ClientPort>(
    caller: &Caller<P>,
    replies: &P::Replies,
    worker: &mut Worker<N>,
    len_bytes: usize,
) -> bool {
    match caller {
        Caller::Client(_) => replies.takes_parts(len_bytes),
        Caller::Thread(..) => true,
        Caller::Peer(token) => len_bytes > worker.answer_bytes_max(token),
    }
}

/// Takes the memory that an answer is copied to. It was executed, so it is not for want of room that it was not.
fn begin<N: Nic, P: ClientPort>(
    caller: &mut Caller<P>,
    worker: &mut Worker<N>,
    len_bytes: usize,
    gathered: &mut Vec<u8>,
) -> Result<(), Stop> {
    let begun = match caller {
        Caller::Client(_) => Ok(()),
        Caller::Peer(token) => worker.begin_answer(token, len_bytes).map_err(|error| match error {
            ReplyError::TooLong { .. } => Status::OutOfRange,
            _ => Status::Unavailable,
        }),
        Caller::Thread(..) => {
            gathered.try_reserve_exact(len_bytes).map_err(|_| Status::Unavailable)
        }
    };
    begun.map_err(Stop::Failed)
}

/// Where an answer is copied to.
struct Destination<'a, N: Nic, P: ClientPort> {
    caller: &'a Caller<P>,
    len_bytes: usize,
    replies: &'a mut P::Replies,
    worker: &'a mut Worker<N>,
    gathered: &'a mut Vec<u8>,
}

impl<N: Nic, P: ClientPort> Destination<'_, N, P> {
    fn put(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Stop> {
        let is_put = match self.caller {
            Caller::Client(to) => {
                let part = offset..offset + bytes.len();
                self.replies.put_part(*to, self.len_bytes, part, |answer| {
                    // There is room for the whole part.
                    let _ = answer.put(bytes);
                })
            }
            Caller::Peer(token) => self.worker.put_answer(token, offset, bytes).is_ok(),
            Caller::Thread(..) => {
                self.gathered.extend_from_slice(bytes);
                true
            }
        };
        // There is no memory for it, or its caller is gone.
        if is_put { Ok(()) } else { Err(Stop::Failed(Status::Unavailable)) }
    }
}
