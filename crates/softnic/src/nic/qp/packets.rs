//! A queue pair whose requests leave as packets: executed one step at a time, and settled by answers.

use memory::sync::{Ordering, thread};
use verbs::{Lid, QpState, Transport};
use wire::wqe::{WQEBB_BYTES, wqebbs};

use super::{NO_COMMAND, QpShared, exec::Exec};
use crate::nic::{
    engine::{ReplyPacket, SendQueue as _, WQE_BYTES_MAX},
    timeline::{Issued, NextWqe},
};

impl QpShared {
    /// Runs `step` once no other thread executes the queue pair.
    fn inside<R>(&self, step: impl FnOnce(&mut Exec) -> R) -> R {
        while !self.presence().try_enter() {
            thread::yield_now();
        }
        // SAFETY: this thread has entered the presence, and leaves it below.
        let exec = unsafe { &mut *self.exec.get() };
        if self.command.load(Ordering::Relaxed) != NO_COMMAND {
            self.apply_command(exec);
        }
        let result = step(exec);
        exec.signal(&self.port);
        self.presence().leave();
        result
    }

    /// Executes at most one WQE, or sends one request again.
    pub(crate) fn issue(&self) -> Issued {
        if self.flush_later.swap(false, Ordering::Relaxed) {
            self.received();
        }
        let Some(posted) = self.posted() else { return Issued::Idle };
        let (issued, fell) = self.inside(|exec| {
            if let Some(packet) = exec.take_packet() {
                return (Issued::Packet(packet), false);
            }
            let before = exec.requester.next();
            let ran = exec.advance_by(self, posted, 1);
            let issued = match exec.take_packet() {
                Some(packet) => Issued::Packet(packet),
                None if exec.requester.next() != before => Issued::Done,
                None => exec.requester.wake_at_ns().map_or(Issued::Idle, Issued::WaitUntil),
            };
            (issued, ran.fell)
        });
        if fell {
            self.fall();
        }
        issued
    }

    /// Takes the answer to a packet of this queue pair; `false` if nothing waits for it.
    pub(crate) fn settle(&self, answer: &ReplyPacket) -> bool {
        let (settled, fell) = self.inside(|exec| exec.settle(self, answer));
        if fell {
            self.fall();
        }
        settled
    }

    /// Falls if it waits for answers of a queue pair of port `lid`, which is gone; whether it does.
    pub(crate) fn lose_target(&self, lid: Lid) -> bool {
        let sends = matches!(self.transport, Transport::Rc | Transport::Dci);
        let waits = sends && self.inside(|exec| exec.requester.waits_for(lid));
        let still = |state| !matches!(state, QpState::Err | QpState::Reset);
        waits && self.enter_error(QpState::Err, super::LOSE_PEER, still)
    }

    /// The WQE that [`issue`](Self::issue) takes next, as its bytes say.
    pub(crate) fn peek(&self) -> Option<NextWqe> {
        let posted = self.posted()?;
        let ring = self.send_ring()?;
        let counter = self.inside(|exec| exec.requester.next());
        if counter == posted {
            return None;
        }
        let mut bytes = [0; WQE_BYTES_MAX];
        let (ctrl, len) = ring.fetch(counter, &mut bytes);
        debug_assert!(len <= usize::from(wqebbs(ctrl.octowords).max(1)) * WQEBB_BYTES);
        Some(NextWqe::parse(&bytes[..len], &ctrl, self.transport))
    }
}
