//! Receive queue of one queue pair.

use core::ffi::c_int;

use verbs::{PostRecvError, RecvSize, Sge};

use crate::{
    abi::RecvWr,
    posts::{Posts, Request as _, entries},
    wc::{RequestKind, WrId},
};

/// A receive queue.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    posts: Posts<RecvWr>,
    kind: RequestKind,
}

impl RecvQueue {
    /// A queue of `size.requests`, 1 to 2¹⁵.
    pub(crate) fn new(size: RecvSize, kind: RequestKind) -> Self {
        let requests = u16::try_from(size.requests).unwrap_or(1 << 15);
        Self { posts: Posts::new(requests, size.sges_max), kind }
    }

    /// Posts a buffer.
    pub(crate) fn post(&mut self, into: &[Sge]) -> Result<u16, PostRecvError> {
        let num_sge = count(into, self.posts.sges_max())?;
        if self.posts.free() == 0 {
            return Err(PostRecvError::QueueFull { requests: self.posts.requests().into() });
        }
        let index = self.posts.next_index();
        let wr_id = WrId { index, of: self.kind }.to_word();
        self.posts.post(RecvWr { wr_id, num_sge, ..RecvWr::EMPTY }, entries(into));
        Ok(index)
    }

    /// See [`Posts::ring`].
    #[inline]
    pub(crate) fn ring(
        &mut self,
        hand_over: impl FnOnce(*mut RecvWr, *mut *mut RecvWr) -> c_int,
    ) -> Vec<u64> {
        self.posts.ring(hand_over)
    }

    /// See [`Posts::retire`].
    #[inline]
    pub(crate) fn retire(&mut self, index: u16) {
        self.posts.retire(index);
    }

    /// Forgets everything.
    pub(crate) fn reset(&mut self) {
        self.posts.reset();
    }
}

/// Entries of a receive that have bytes.
pub(crate) fn count(into: &[Sge], max: u8) -> Result<c_int, PostRecvError> {
    let asked = entries(into).count();
    if asked > usize::from(max) {
        return Err(PostRecvError::TooManySges { asked, max });
    }
    Ok(c_int::try_from(asked).unwrap_or(c_int::MAX))
}
