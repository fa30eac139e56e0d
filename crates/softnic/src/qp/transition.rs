//! How a queue pair changes its state: by its owner, and by what fails.

use core::cell::Cell;

use memory::{
    barrier,
    sync::{Arc, Ordering},
};
use verbs::{AsyncEvent, Lid, ModifyError, QpState, RtrAttr, Transition, Transport};
use wire::cqe::{self, CqeView, Syndrome};

use super::{Executing, FLUSH, LOSE_PEER, NO_ORDER, QpShared, State, exec::Exec, lid_of, wake_own};
use crate::{
    card::layout::address_word,
    context::{QUIESCE_BRIEFLY_NS, QUIESCE_NS, lock},
    engine::SendState,
    left_behind::LeftBehind,
    reap::has_heard,
};

impl QpShared {
    /// Changes the state, which the driver has checked.
    pub(crate) fn modify(&self, to: &Transition) -> Result<(), ModifyError> {
        let refused = |Executing| {
            let cause = "another thread does not stop executing it; try again later".into();
            ModifyError::Device { to: to.target(), cause }
        };
        if let Transition::Rtr(RtrAttr { peer: Some(peer), .. }) = to {
            self.context.prepare_to_meet(lid_of(&peer.address.route));
        }
        let mut state = lock(&self.state);
        state.generation += 1;
        match to {
            Transition::Reset => self.reset(&mut state, refused)?,
            Transition::Init(attr) => {
                state.access = attr.access;
                state.qkey = attr.qkey;
            }
            Transition::Rtr(attr) => self.connect(attr).map_err(refused)?,
            Transition::Rts(attr) => {
                let start = |exec: &mut Exec| {
                    // Of the error that it leaves.
                    self.order.store(NO_ORDER, Ordering::Relaxed);
                    exec.requester.start(attr);
                };
                self.exclusively(start).map_err(refused)?;
                self.fallen.store(false, Ordering::Release);
            }
            Transition::Sqd => {
                self.exclusively(|exec| exec.requester.set_state(SendState::Drained))
                    .map_err(refused)?;
            }
            Transition::Err => {}
        }
        if *to != Transition::Err {
            state.state = to.target();
            self.show(&state);
        }
        drop(state);
        match to {
            Transition::Err => {
                self.enter_error(QpState::Err, FLUSH, |_| true);
            }
            Transition::Rts(_) => self.want(),
            _ => {}
        }
        self.context.progress();
        Ok(())
    }

    /// RTR.
    fn connect(&self, attr: &RtrAttr) -> Result<(), Executing> {
        let reads_in_max = match self.transport {
            Transport::Rc => attr.reads_in_max,
            // A DC target has its device's: Linux `mlx5_ib_modify_dct` does not look at the number.
            Transport::Ud | Transport::Dci | Transport::Dct => u8::MAX,
        };
        let flags = u64::from(reads_in_max) << 16 | u64::from(attr.rnr_timer.code()) << 8;
        let flags = flags | u64::from(self.scatter_to_cqe);
        self.entry().flags.store(flags, Ordering::Relaxed);
        let Some(peer) = attr.peer else { return Ok(()) };
        let lid = lid_of(&peer.address.route);
        self.entry().peer.store(address_word(Lid::new(lid), peer.qpn), Ordering::Relaxed);
        self.exclusively(|exec| exec.connect(lid, peer.qpn))?;
        // Only starts; a peer that is not there yet is found when something is sent.
        let _ = self.context.import(lid);
        Ok(())
    }

    /// Forgets everything, once nobody is inside any more; else it stays what it was.
    fn reset(
        &self,
        state: &mut State,
        refused: impl FnOnce(Executing) -> ModifyError,
    ) -> Result<(), ModifyError> {
        let before = core::mem::replace(&mut state.state, QpState::Reset);
        state.is_quiet = false;
        self.show(state);
        let is_left = self.context.quiesce(QUIESCE_NS).map_err(|lid| ModifyError::Device {
            to: QpState::Reset,
            cause: format!("port {lid} is stopped inside a request to it; try again later"),
        });
        let is_left = is_left.and_then(|()| {
            self.exclusively(|exec| exec.reset(self.transport, self.qpn)).map_err(refused)
        });
        if let Err(error) = is_left {
            state.generation += 1;
            state.state = before;
            self.show(state);
            return Err(error);
        }
        self.unwant();
        self.order.store(NO_ORDER, Ordering::Relaxed);
        if let (false, Some(rq)) = (self.has_srq, &self.rq) {
            rq.view.claims().reset();
        }
        if let Some(fault) = self.context.owner.card.qp_fault(self.qpn.get()) {
            fault.syndrome.store(0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The requester has failed, and flushes: ERR, or SQE for datagrams.
    ///
    /// Whoever executed it is outside by now: its owner may have moved it on meanwhile.
    pub(super) fn fall(&self) {
        let still = |state: QpState| {
            self.fallen.load(Ordering::Acquire)
                && !matches!(state, QpState::Reset | QpState::Init | QpState::Rtr)
        };
        self.enter_error(self.fallen_state(), FLUSH, still);
    }

    /// Falls if a peer, or a dead completion queue, has broken it.
    pub(crate) fn heed_faults(&self) {
        self.break_down(|| {
            let is_cq_dead = self.send_cq.view.is_overrun() || self.recv_cq.view.is_overrun();
            self.has_fault() || is_cq_dead
        });
    }

    /// Its software has done what no device accepts.
    pub(crate) fn fall_by_violation(&self) {
        self.break_down(|| true);
    }

    fn break_down(&self, is_broken: impl FnOnce() -> bool) {
        let still = |state| !matches!(state, QpState::Err | QpState::Reset) && is_broken();
        if self.enter_error(QpState::Err, FLUSH, still) {
            self.context.add_event(AsyncEvent::QpFatal(self.qpn));
        }
    }

    /// The port `lid` is gone: falls if it is connected to it.
    pub(crate) fn lose_peer(&self, lid: u16) {
        let still = |state| {
            has_heard(state) && self.peer_lid() == Some(lid) && self.state() != QpState::Err
        };
        // The first request in the queue, or the next one, learns why; the rest is flushed.
        self.enter_error(QpState::Err, LOSE_PEER, still);
    }

    /// Gives `order`, and goes to state `to` if that is worse: if `applies` to the state it is in. Says
    /// whether it did.
    pub(super) fn enter_error(
        &self,
        to: QpState,
        order: u32,
        applies: impl FnOnce(QpState) -> bool,
    ) -> bool {
        let mut state = lock(&self.state);
        if !applies(state.state) {
            return false;
        }
        let is_worse = state.state != QpState::Err && state.state != to;
        if is_worse {
            state.generation += 1;
            state.state = to;
            self.show(&state);
        }
        if to == QpState::Err {
            self.flush_receives(&mut state);
        }
        // Under the lock: an order for the life that ends must not reach the next one.
        self.order.fetch_max(order, Ordering::Relaxed);
        drop(state);
        self.run();
        if is_worse && to == QpState::Err && self.has_srq {
            self.context.add_event(AsyncEvent::LastWqeReached(self.qpn));
        }
        true
    }

    /// Receives were posted.
    #[inline]
    pub(crate) fn received(&self) {
        if self.entry().control.load(Ordering::Relaxed) & 0xff == ERR_CODE {
            self.flush_receives(&mut lock(&self.state));
        }
    }

    /// Completes every posted receive as flushed, once no sender is inside any more.
    fn flush_receives(&self, state: &mut State) {
        let (false, Some(rq)) = (self.has_srq, &self.rq) else { return };
        if !state.is_quiet {
            barrier::store_load();
            if self.context.quiesce(QUIESCE_BRIEFLY_NS).is_err() {
                // A peer is interrupted, or stopped, inside: housekeeping tries again.
                self.flush_later.store(true, Ordering::Relaxed);
                return self.want();
            }
            state.is_quiet = true;
        }
        let holder = self.context.lid.get();
        let posted_seen = Cell::new(0);
        let mut flushed = false;
        while let Ok(taken) = rq.view.take(holder, &posted_seen, false) {
            let cqe = CqeView::Error(cqe::Error {
                is_requester: false,
                qpn: self.qpn,
                wqe_counter: taken.counter,
                user_index: self.user_index(),
                send_opcode: 0,
                syndrome: Syndrome::Flushed,
                vendor_syndrome: 0,
            });
            let release = || rq.view.release(taken, holder);
            if self.recv_cq.view.publish(holder, &cqe, release).is_err() {
                break;
            }
            flushed = true;
        }
        if flushed {
            wake_own(&self.recv_cq, true);
        }
    }

    /// The handle is gone: nobody may enter any more, and whoever is inside leaves.
    pub(crate) fn destroy(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        state.generation += 1;
        state.state = QpState::Reset;
        self.show(&state);
        drop(state);
        // The NIC thread may hold it a little longer, but executes nothing any more.
        let stopped = self.exclusively(Exec::stop);
        if stopped.is_err() || self.context.quiesce(QUIESCE_NS).is_err() {
            // A stopped peer is inside, and writes to these queues when it continues.
            self.context.leave_behind(LeftBehind::QueuePair { _queues: self.clone() });
        }
    }
}

/// Low byte of a control word in state ERR.
const ERR_CODE: u64 = QpState::ALL.len() as u64 - 1;
const _: () = assert!(matches!(QpState::ALL, [.., QpState::Err]));
