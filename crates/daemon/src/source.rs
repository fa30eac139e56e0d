//! Where a body lies before it is copied, and the memory that long ones may take here meanwhile.

use core::{cell::Cell, fmt, ops::Deref, ops::Range};
use std::rc::Rc;

use client::{Filler, LentBytes};
use rpc::LandedBody;
use verbs::Nic;

use crate::client_port::{ClientPort, NotCopied, Replies as _};

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
    /// Appends a copy of a part.
    pub(crate) fn read(
        &self,
        replies: &mut P::Replies,
        part: Range<usize>,
        to: &mut Vec<u8>,
    ) -> Result<(), NotCopied> {
        replies.read_left(self.from, self.head_bytes + part.start..self.head_bytes + part.end, to)
    }

    /// Lends a part; `None`: it is to be [read](Self::read).
    pub(crate) fn lend<'r>(
        &self,
        replies: &'r mut P::Replies,
        part: Range<usize>,
    ) -> Option<LentBytes<'r>> {
        replies.lend_left(self.from, self.head_bytes + part.start..self.head_bytes + part.end)
    }
}

/// A [`LandedBody`] of any NIC.
trait Landed {
    fn len_bytes(&self) -> usize;

    fn copy_to(&self, offset: usize, to: &mut [u8]);

    /// Puts a part where there is room for the whole of it.
    fn put_to(&self, part: Range<usize>, to: &mut Filler<'_>);
}

impl<N: Nic> Landed for LandedBody<N> {
    fn len_bytes(&self) -> usize {
        self.len_bytes()
    }

    fn copy_to(&self, offset: usize, to: &mut [u8]) {
        self.copy_to(offset, to);
    }

    fn put_to(&self, part: Range<usize>, to: &mut Filler<'_>) {
        let _ = self.put_to(part, to);
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

    /// Puts a part into a message that has room for it.
    pub(crate) fn put_to(&self, part: Range<usize>, to: &mut Filler<'_>) {
        self.landed.put_to(self.head_bytes + part.start..self.head_bytes + part.end, to);
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

    /// Copies a part, in the place of what was there.
    pub(crate) fn read(
        &self,
        replies: &mut P::Replies,
        part: Range<usize>,
        to: &mut Vec<u8>,
    ) -> Result<(), NotCopied> {
        to.clear();
        match self {
            Self::Private(body) => to.extend_from_slice(&body[part]),
            Self::Left(body) => return body.read(replies, part, to),
            Self::Landed(body) => body.read(part, to),
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
pub(crate) fn copied<'b>(bytes: impl Into<LentBytes<'b>>) -> Option<Vec<u8>> {
    let (mut copy, bytes) = (Vec::new(), bytes.into());
    copy.try_reserve_exact(bytes.len()).ok()?;
    bytes.append_to(&mut copy);
    Some(copy)
}
