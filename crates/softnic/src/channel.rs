//! Completion channels: a file descriptor that armed completion queues make readable.

use core::time::Duration;
use std::os::fd::{AsFd as _, BorrowedFd};

use memory::sync::Arc;
use os::{clock, event::Event};

use crate::{context::Context, left_behind::InUse};

/// A channel as its CQs and the fabric share it.
#[derive(Debug)]
pub(crate) struct ChannelShared {
    /// Never 0.
    pub(crate) id: u32,
    pub(crate) event: Arc<Event>,
}

/// A completion channel of a software NIC.
#[derive(Debug)]
pub struct Channel {
    pub(crate) context: Arc<Context>,
    pub(crate) shared: Arc<ChannelShared>,
    pub(crate) _in_use: Arc<InUse>,
}

impl verbs::Channel for Channel {
    fn fd(&self) -> BorrowedFd<'_> {
        self.shared.event.as_fd()
    }

    fn wait(&self, timeout: Duration) -> bool {
        let deadline_ns = clock::deadline_ns(timeout);
        loop {
            // Before the event is looked at: the work may signal it.
            self.context.progress();
            let now_ns = clock::now_ns();
            let until_ns = match self.context.poll_timeout() {
                Some(timeout) => deadline_ns.min(now_ns.saturating_add(nanos(timeout))),
                None => deadline_ns,
            };
            if self.shared.event.wait(until_ns).unwrap_or(false) {
                // Several CQs may have fired; one wait takes them all, as their owner looks at all.
                return self.shared.event.drain().is_ok_and(|count| count > 0);
            }
            if clock::now_ns() >= deadline_ns {
                return false;
            }
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.context.forget_channel(self.shared.id);
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
