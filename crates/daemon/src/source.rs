//! Where a body lies before it is copied, and the memory that long ones may take here meanwhile.

use core::{cell::Cell, fmt, ops::Deref, ops::Range};
use std::rc::Rc;

use client::{Filler, LentBytes};
use rpc::LandedBody;
use verbs::Nic;

use crate::client_port::{ClientPort, Replies as _};

/// A copy of a body, behind heads that were read.
#[derive(Default)]
pub(crate) struct PrivateBody {
    memory: Vec<u8>,
    head_bytes: usize,
}

impl PrivateBody {
    /// A body behind `head_bytes` bytes.
    pub(crate) fn behind(head_bytes: usize, memory: Vec<u8>) -> Self {
        Self { memory, head_bytes }
    }

    /// The memory, for another body.
    pub(crate) fn into_memory(self) -> Vec<u8> {
        self.memory
    }
}

impl From<Vec<u8>> for PrivateBody {
    fn from(memory: Vec<u8>) -> Self {
        Self::behind(0, memory)
    }
}

impl Deref for PrivateBody {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.head_bytes..]
    }
}

impl fmt::Debug for PrivateBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateBody({} B)", self.len())
    }
}

/// A body that lies where a client of this thread put it: as long as the request that it is of is not answered, the
/// memory is the daemon's.
pub(crate) struct LeftBody<P: ClientPort> {
    /// The request.
    pub(crate) from: P::ReplyTo,
    /// What is before the body.
    pub(crate) head_bytes: usize,
    pub(crate) len_bytes: usize,
}

impl<P: ClientPort> LeftBody<P> {
    /// Appends a copy of a part; `false`: its client is gone.
    pub(crate) fn read(
        &self,
        replies: &mut P::Replies,
        part: Range<usize>,
        to: &mut Vec<u8>,
    ) -> bool {
        replies.read_left(self.from, self.head_bytes + part.start..self.head_bytes + part.end, to)
    }
}

/// A [`LandedBody`] of any NIC.
trait Landed {
    fn len_bytes(&self) -> usize;

    fn copy_to(&self, offset: usize, to: &mut [u8]);

    /// `false`: there was no room.
    fn put_to(&self, part: Range<usize>, to: &mut Filler<'_>) -> bool;
}

impl<N: Nic> Landed for LandedBody<N> {
    fn len_bytes(&self) -> usize {
        self.len_bytes()
    }

    fn copy_to(&self, offset: usize, to: &mut [u8]) {
        self.copy_to(offset, to);
    }

    fn put_to(&self, part: Range<usize>, to: &mut Filler<'_>) -> bool {
        self.put_to(part, to).is_ok()
    }
}

/// A body that lies where the NIC put it, behind heads that were read. The bytes may change until they are copied.
pub(crate) struct LandedSource {
    landed: Box<dyn Landed>,
    head_bytes: usize,
}

impl LandedSource {
    /// A body behind `head_bytes` bytes, of which there are so many.
    pub(crate) fn behind<N: Nic>(head_bytes: usize, landed: LandedBody<N>) -> Self {
        Self { landed: Box::new(landed), head_bytes }
    }

    fn len_bytes(&self) -> usize {
        self.landed.len_bytes() - self.head_bytes
    }

    /// Puts a part into a message; `false`: there was no room.
    pub(crate) fn put_to(&self, part: Range<usize>, to: &mut Filler<'_>) -> bool {
        self.landed.put_to(self.head_bytes + part.start..self.head_bytes + part.end, to)
    }

    fn read(&self, part: Range<usize>, to: &mut Vec<u8>) {
        to.resize(part.len(), 0);
        self.landed.copy_to(self.head_bytes + part.start, to);
    }
}

/// A body that is to be copied.
pub(crate) enum Source<P: ClientPort> {
    Private(PrivateBody),
    Left(LeftBody<P>),
    Landed(LandedSource),
}

impl<P: ClientPort> Source<P> {
    pub(crate) fn len_bytes(&self) -> usize {
        match self {
            Self::Private(body) => body.len(),
            Self::Left(body) => body.len_bytes,
            Self::Landed(body) => body.len_bytes(),
        }
    }

    /// Bytes of it that the daemon holds.
    pub(crate) fn held_bytes(&self) -> usize {
        match self {
            Self::Private(body) => body.len(),
            Self::Landed(body) => body.len_bytes(),
            Self::Left(_) => 0,
        }
    }

    /// Bytes that [`copy`](Self::copy) copies before it hands them out, of a part of so many.
    pub(crate) fn copies_of(&self, part_bytes: usize) -> u64 {
        if matches!(self, Self::Private(_)) { 0 } else { part_bytes as u64 }
    }

    /// Lends a part of what was left with a client; `None`: it is to be [copied](Self::copy).
    pub(crate) fn lend<'r>(
        &self,
        replies: &'r mut P::Replies,
        part: Range<usize>,
    ) -> Option<LentBytes<'r>> {
        let Self::Left(LeftBody { from, head_bytes, .. }) = self else { return None };
        replies.lend_left(*from, head_bytes + part.start..head_bytes + part.end)
    }

    /// Hands a part to `put` in strips, with the offset of each. `put` does not fail for want of the source: that is
    /// `gone`.
    pub(crate) fn copy<E>(
        &self,
        replies: &mut P::Replies,
        part: Range<usize>,
        (strip, strip_bytes): (&mut Vec<u8>, usize),
        gone: E,
        mut put: impl FnMut(&mut P::Replies, usize, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        for at in part.clone().step_by(strip_bytes) {
            let of_strip = at..part.end.min(at + strip_bytes);
            match self {
                Self::Private(body) => return put(replies, part.start, &body[part]),
                Self::Landed(body) => body.read(of_strip, strip),
                Self::Left(body) => {
                    strip.clear();
                    if !body.read(replies, of_strip, strip) {
                        return Err(gone);
                    }
                }
            }
            put(replies, at, strip)?;
        }
        Ok(())
    }
}

impl<P: ClientPort> fmt::Debug for Source<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source({} B)", self.len_bytes())
    }
}

/// Bytes of long bodies that lie here in private memory while they are copied, or are copied to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct PrivateMemory(Rc<Uses>);

#[derive(Debug, Default)]
struct Uses {
    bytes: Cell<usize>,
    /// Some was given back since the last question.
    is_freed: Cell<bool>,
}

/// Such bytes. Beyond, a body waits or is copied at once.
const PRIVATE_BYTES_MAX: usize = 64 << 20;

impl PrivateMemory {
    /// Takes bytes; `None`: there is no room.
    pub(crate) fn take(&self, bytes: usize) -> Option<PrivateShare> {
        let taken = self.0.bytes.get() + bytes;
        (taken <= PRIVATE_BYTES_MAX).then(|| {
            self.0.bytes.set(taken);
            PrivateShare { memory: self.clone(), bytes }
        })
    }

    /// Whether a body of so many bytes will find room when others have given theirs back.
    pub(crate) fn may_have(bytes: usize) -> bool {
        bytes <= PRIVATE_BYTES_MAX
    }

    /// Whether some was given back since the last question.
    pub(crate) fn take_freed(&self) -> bool {
        self.0.is_freed.take()
    }
}

/// Private memory of one body. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct PrivateShare {
    memory: PrivateMemory,
    bytes: usize,
}

impl Drop for PrivateShare {
    fn drop(&mut self) {
        let Uses { bytes, is_freed } = &*self.memory.0;
        bytes.set(bytes.get() - self.bytes);
        is_freed.set(true);
    }
}

/// A copy of bytes whose length somebody else chose, unless there is no memory for it: that is no reason for a daemon to
/// end.
pub(crate) fn copied(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).ok()?;
    copy.extend_from_slice(bytes);
    Some(copy)
}
