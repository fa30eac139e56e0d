//! One client, as the server sees it, without its socket.

use crate::endpoint::{
    lifeline::Lifeline,
    server::{call_table::CallTable, id::ClientProcess, stall::Stall},
    status::EvictReason,
};

/// Wakeups that a client may be ahead of its requests: an honest one never is by more than those
/// in the queue.
const WAKEUP_SLACK: u64 = 256;

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) calls: CallTable,
    pub(crate) generation: u64,
    /// `None` without an operating system.
    pub(crate) process: Option<ClientProcess>,
    /// `None` without an operating system.
    pub(crate) lifeline: Option<Lifeline>,
    /// The name by which the client was introduced, if it was.
    pub(crate) tag: Option<u64>,
    /// No more of its requests are taken, and it is evicted once those that were are answered.
    pub(crate) is_retired: bool,
    /// The server polls this client's ring.
    pub(crate) is_polled: bool,
    pub(crate) empty_turns: u32,
    /// The client is in the server's list of those with responses that were not announced.
    pub(crate) is_unannounced: bool,
    wakeups: u64,
    stall: Stall,
}

impl Session {
    pub(crate) fn new(calls: CallTable, generation: u64) -> Self {
        Self {
            calls,
            generation,
            process: None,
            lifeline: None,
            tag: None,
            is_retired: false,
            is_polled: false,
            empty_turns: 0,
            is_unannounced: false,
            wakeups: 0,
            stall: Stall::default(),
        }
    }

    /// Notes that the client may have to be told of responses.
    #[inline]
    pub(crate) fn mark_unannounced(&mut self, slot: u16, unannounced: &mut Vec<u16>) {
        if !self.is_unannounced {
            self.is_unannounced = true;
            unannounced.push(slot);
        }
    }

    /// Whether the client sleeps and was not woken in this nap; final after the barrier that follows
    /// responses.
    #[inline]
    pub(crate) fn needs_wakeup(&mut self) -> bool {
        let (nap, told_epoch) = self.calls.nap();
        nap.needs_datagram(told_epoch)
    }

    /// The client sent a wakeup.
    pub(crate) fn count_wakeup(&mut self) -> Result<(), EvictReason> {
        self.wakeups += 1;
        if self.wakeups > 2 * self.calls.taken() + WAKEUP_SLACK {
            return Err(EvictReason::WakeupStorm);
        }
        Ok(())
    }

    /// The time for which the client has read none of its responses although it can call nothing, in nanoseconds.
    pub(crate) fn stalled_ns(&mut self, now_ns: u64) -> u64 {
        let (read, is_full) = self.calls.reading();
        self.stall.look(now_ns, read, is_full)
    }
}
