//! Completion channels: a file descriptor that armed completion queues make readable.

use core::time::Duration;
use std::os::fd::{AsFd as _, BorrowedFd};

use memory::sync::Arc;
use os::{clock, ready_set::ReadySet};

use crate::nic::{housekeeping::Housekeeping, in_use::InUse, objects::ChannelShared};

/// A completion channel of a software NIC.
#[derive(Debug)]
pub struct Channel {
    pub(crate) housekeeping: Arc<Housekeeping>,
    pub(crate) shared: Arc<ChannelShared>,
    /// The event, and what else wakes the port; `None`: the event alone.
    pub(crate) ready: Option<ReadySet>,
    pub(crate) _in_use: Arc<InUse>,
}

impl verbs::Channel for Channel {
    fn fd(&self) -> BorrowedFd<'_> {
        self.ready.as_ref().map_or(self.shared.event.as_fd(), |ready| ready.as_fd())
    }

    fn wait(&self, timeout: Duration) -> bool {
        let deadline_ns = clock::deadline_ns(timeout);
        loop {
            // Before the event is looked at: the work may signal it.
            self.housekeeping.progress();
            let now_ns = clock::now_ns();
            let until_ns = match self.housekeeping.poll_timeout() {
                Some(timeout) => deadline_ns.min(now_ns.saturating_add(nanos(timeout))),
                None => deadline_ns,
            };
            let is_signaled = match &self.ready {
                Some(ready) => ready.wait(until_ns).unwrap_or(false),
                None => self.shared.event.wait(until_ns).unwrap_or(false),
            };
            // Several CQs may have fired; one wait takes them all, as their owner looks at all.
            if is_signaled && self.shared.event.drain().is_ok_and(|count| count > 0) {
                return true;
            }
            if clock::now_ns() >= deadline_ns {
                return false;
            }
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.housekeeping.port.forget_channel(self.shared.id);
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use verbs::{Channel as _, CreateError, Nic as _};

    use super::*;
    use crate::{
        Config,
        nic::fabric::{CHANNELS_MAX, Export},
        open,
    };

    /// Between the look at the event and its consumption another thread may be quicker.
    #[test]
    fn who_waits_does_not_give_up_when_another_thread_takes_the_event() {
        let fabric = format!("waiters-{}", std::process::id());
        let nic = open(&Config { fabric, card_mib: 8, ..Config::default() }).unwrap();
        let channel = nic.create_channel().unwrap();
        let event = &channel.shared.event;
        std::thread::scope(|scope| {
            for _ in 0..50 {
                let waiter = scope.spawn(|| channel.wait(Duration::from_secs(600)));
                for _ in 0..1000 {
                    event.signal().unwrap();
                    event.drain().unwrap();
                }
                event.signal().unwrap();
                assert!(waiter.join().unwrap());
                event.drain().unwrap();
            }
        });
    }

    /// Peers would take one that shows more for broken, and go.
    #[test]
    fn there_are_no_more_channels_than_peers_take() {
        let fabric = format!("channels-{}", std::process::id());
        let nic = open(&Config { fabric, card_mib: 8, ..Config::default() }).unwrap();
        let port = &nic.device().0.port;
        let first = nic.create_channel().unwrap();
        let event = first.shared.event.clone();
        for _ in 1..CHANNELS_MAX {
            port.export(Export::Channel { id: port.new_id(), event: event.clone() });
        }
        let refused = nic.create_channel().map(drop).unwrap_err();
        assert!(matches!(refused, CreateError::Exhausted { .. }), "{refused}");
        drop(first);
        nic.create_channel().unwrap();
    }
}
