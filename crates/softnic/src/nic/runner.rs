//! Who executes the queue pairs of a port, if not the thread that rings their doorbells.

use memory::{
    barrier,
    sync::{Arc, AtomicU32, Ordering},
};
use os::futex;

use crate::nic::timeline::Timeline;

/// Who executes the queue pairs of a port.
#[derive(Debug)]
pub(crate) enum Runner {
    /// Its NIC thread.
    Thread(Worker),
    /// Whoever holds its [`VirtualPort`](crate::VirtualPort), at times of this timeline.
    Timeline(Arc<dyn Timeline>),
}

/// Handle of the NIC thread of a port.
#[derive(Debug)]
pub(crate) struct Worker {
    /// 1 while the thread sleeps or is about to.
    pub(crate) asleep: Arc<AtomicU32>,
}

impl Worker {
    /// There is new work.
    #[inline]
    pub(crate) fn notify(&self) {
        barrier::store_load();
        if self.asleep.load(Ordering::Relaxed) != 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        self.asleep.store(0, Ordering::Release);
        futex::wake(&self.asleep, 1);
    }
}
