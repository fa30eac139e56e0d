//! The mover of pieces: the one place where parts of long bodies are copied, from wherever they lie to wherever their
//! recipients read them.

use core::ops::Range;

use client::Filler;
use rpc::{PartialCall, Status, Token, Worker};
use verbs::Nic;

use crate::{
    client_port::{ClientPort, NotCopied, Replies as _},
    source::{PrivateShare, Source},
};

/// Bytes that are copied in one turn, for all callers: some tens of microseconds. A shorter body is one piece.
pub(super) const PIECE_BYTES: usize = 128 << 10;

/// Bytes that are copied at a time: both sides of the copy stay in the first cache.
pub(super) const STRIP_BYTES: usize = 16 << 10;

/// A long body, and how much of it was copied.
pub(super) struct MovingBody<P: ClientPort> {
    pub(super) source: Source<P>,
    /// The share of private memory, of the source or of the place.
    pub(super) share: Option<PrivateShare>,
    done_bytes: usize,
}

impl<P: ClientPort> MovingBody<P> {
    /// A body of which nothing was copied. If its source is private, `share` is of that.
    pub(super) fn new(source: Source<P>, share: Option<PrivateShare>) -> Self {
        Self { source, share, done_bytes: 0 }
    }

    pub(super) fn is_begun(&self) -> bool {
        self.done_bytes > 0
    }

    pub(super) fn is_copied(&self) -> bool {
        self.done_bytes == self.source.len_bytes()
    }
}

/// The place that a long body is copied to.
pub(super) enum Place<'a, P: ClientPort> {
    /// Memory that the client reads which waits for this answer: heads, and so many bytes behind them.
    Client(P::ReplyTo, &'a [u8], usize),
    /// Registered memory of an answer.
    Answer(&'a mut Token),
    /// Registered memory of a request, behind so many bytes.
    Call(&'a PartialCall, usize),
    /// Private memory, which another thread gets.
    Memory(&'a mut Vec<u8>),
}

impl<P: ClientPort> Place<'_, P> {
    /// Puts a part of the body; [`Status::Unavailable`]: there is no memory for it, or its reader is gone.
    pub(super) fn put<N: Nic>(
        &mut self,
        (replies, worker): (&mut P::Replies, &mut Worker<N>),
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), Status> {
        match self {
            Self::Client(to, heads, len_bytes) => {
                let whole_bytes = heads.len() + *len_bytes;
                put_message::<P>(replies, (*to, whole_bytes), heads.len() + offset, bytes)
            }
            Self::Answer(token) => unavailable(worker.put_answer(token, offset, bytes)),
            Self::Call(begun, heads) => unavailable(worker.put_call(begun, *heads + offset, bytes)),
            Self::Memory(memory) => {
                memory.extend_from_slice(bytes);
                Ok(())
            }
        }
    }
}

/// Puts a part of a message that a client reads.
pub(super) fn put_message<P: ClientPort>(
    replies: &mut P::Replies,
    (to, len_bytes): (P::ReplyTo, usize),
    at: usize,
    bytes: &[u8],
) -> Result<(), Status> {
    unavailable(replies.put_part(to, len_bytes, at..at + bytes.len(), |message| {
        // There is room for the whole part.
        let _ = message.put(bytes);
    }))
}

fn unavailable<E>(put: Result<(), E>) -> Result<(), Status> {
    put.map_err(|_| Status::Unavailable)
}

/// How far a body is that got a piece.
pub(super) enum Progress {
    /// More pieces follow.
    Part,
    /// All of it is in its place.
    Whole,
}

/// Copies pieces, and counts what was copied here.
#[derive(Default)]
pub(crate) struct Mover {
    /// Bytes go through it in strips if no one copy leads to their place.
    strip: Vec<u8>,
    /// Bytes of long bodies that were copied, without those that workers copied to registered memory, and count.
    pub(crate) copied_bytes: u64,
}

impl Mover {
    /// Copies the next piece of a body, of at most `bytes_max`, from which it is taken. [`Status::Cancelled`]: the client
    /// is gone with which the body was left.
    pub(super) fn copy<N: Nic, P: ClientPort>(
        &mut self,
        (replies, worker): (&mut P::Replies, &mut Worker<N>),
        body: &mut MovingBody<P>,
        place: Place<'_, P>,
        bytes_max: &mut usize,
    ) -> Result<Progress, Status> {
        let start = body.done_bytes;
        let end = body.source.len_bytes().min(start + *bytes_max);
        self.copy_part((replies, worker), &body.source, start..end, place)?;
        *bytes_max -= end - start;
        body.done_bytes = end;
        Ok(if body.is_copied() { Progress::Whole } else { Progress::Part })
    }

    fn copy_part<N: Nic, P: ClientPort>(
        &mut self,
        (replies, worker): (&mut P::Replies, &mut Worker<N>),
        source: &Source<P>,
        part: Range<usize>,
        mut place: Place<'_, P>,
    ) -> Result<(), Status> {
        let is_counted_there = matches!(place, Place::Answer(_) | Place::Call(..));
        self.copied_bytes += if is_counted_there { 0 } else { part.len() as u64 };
        match (source, &place) {
            (Source::Private(body), _) => {
                return place.put((replies, worker), part.start, &body[part]);
            }
            (Source::Landed(body), Place::Client(to, heads, len_bytes)) => {
                let of_message = heads.len() + part.start..heads.len() + part.end;
                let fill = |message: &mut Filler<'_>| body.put_to(part, message);
                return unavailable(replies.put_part(
                    *to,
                    heads.len() + len_bytes,
                    of_message,
                    fill,
                ));
            }
            (Source::Left(left), Place::Answer(token)) => {
                if let Some(lent) = left.lend(replies, part.clone()) {
                    return unavailable(worker.put_answer(token, part.start, lent));
                }
            }
            (Source::Left(left), Place::Call(begun, heads)) => {
                if let Some(lent) = left.lend(replies, part.clone()) {
                    return unavailable(worker.put_call(begun, heads + part.start, lent));
                }
            }
            _ => {}
        }
        self.copied_bytes += part.len() as u64;
        for at in part.clone().step_by(STRIP_BYTES) {
            let read = source.read(replies, at..part.end.min(at + STRIP_BYTES), &mut self.strip);
            read.map_err(|NotCopied| Status::Cancelled)?;
            place.put((replies, worker), at, &self.strip)?;
        }
        Ok(())
    }
}
