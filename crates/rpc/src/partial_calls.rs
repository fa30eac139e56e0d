//! Calls whose bodies a program writes part by part.

use std::{cell::RefCell, rc::Rc};

use crate::PeerId;

/// Names a body among those that are being written.
pub(crate) type BodyNumber = u64;

/// Partial calls that are over: sent or not. Each has a handle of the list.
#[derive(Clone, Debug, Default)]
pub(crate) struct EndedCalls(Rc<RefCell<Vec<(PeerId, BodyNumber)>>>);

impl EndedCalls {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    pub(crate) fn take(&self) -> Vec<(PeerId, BodyNumber)> {
        self.0.take()
    }
}

/// A call whose body is being written: [`Worker::put_call`](crate::Worker::put_call) puts parts, and
/// [`Worker::finish_call`](crate::Worker::finish_call) makes the call. The peer knows of nothing until then.
///
/// Dropping it gives the memory back at the next poll, unless the call was made.
#[derive(Debug)]
#[must_use = "dropping it forgets the body"]
pub struct PartialCall {
    pub(crate) peer: PeerId,
    pub(crate) number: BodyNumber,
    pub(crate) ended: EndedCalls,
}

impl Drop for PartialCall {
    fn drop(&mut self) {
        self.ended.0.borrow_mut().push((self.peer, self.number));
    }
}
