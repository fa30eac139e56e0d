//! How a queue pair changes its state: by its owner, and by what fails.

use core::cell::Cell;

use memory::{
    barrier,
    sync::{Arc, Ordering},
};
use verbs::{AsyncEvent, ModifyError, QpState, RnrTimer, RtrAttr, RtsAttr, Transition, Transport};
use wire::cqe::{self, CqeView, Syndrome};

use super::{
    Amendment, Executing, FLUSH, LOSE_PEER, NO_COMMAND, QpShared, State, exec::Exec,
    may_have_sender, wake_own,
};
use crate::nic::{
    card::layout::address_word,
    engine::{SendState, Sequence, Stream},
    left_behind::LeftBehind,
    port_state::{QUIESCE_BRIEFLY_NS, QUIESCE_NS, Way, lock},
};

impl QpShared {
    /// Changes the state, which the driver has checked. Before RTR on RC a dead port of the peer's number is
    /// cleaned up after.
    pub(crate) fn modify(&self, to: &Transition) -> Result<(), ModifyError> {
        let refused = |Executing| {
            let cause = "another thread does not stop executing it; try again later".into();
            ModifyError::Device { to: to.target(), cause }
        };
        let mut state = lock(&self.state);
        state.generation += 1;
        match to {
            Transition::Reset => self.reset(&mut state, refused)?,
            Transition::Init(attr) => {
                state.access = attr.access;
                state.qkey = attr.qkey;
            }
            Transition::Rtr(attr) => self.connect(attr, refused)?,
            Transition::Rts(attr) => {
                let taken = RtsAttr::are_taken_from(state.state).then_some(attr);
                let start = |exec: &mut Exec| {
                    // Of the error that it leaves.
                    self.command.store(NO_COMMAND, Ordering::Relaxed);
                    exec.requester.start(taken);
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
            Transition::Rts(_) => self.schedule(),
            _ => {}
        }
        Ok(())
    }

    /// Changes what counts from the next request of a peer on: whoever has resolved the queue pair does so again.
    pub(crate) fn amend(&self, amendment: &Amendment) {
        const RNR_TIMER_BITS: u64 = 0xff << 8;
        let mut state = lock(&self.state);
        state.generation += 1;
        (state.access, state.qkey) = (amendment.access, amendment.qkey);
        let flags = self.entry().flags.load(Ordering::Relaxed) & !RNR_TIMER_BITS;
        let rnr_timer = u64::from(amendment.rnr_timer.code()) << 8;
        self.entry().flags.store(flags | rnr_timer, Ordering::Relaxed);
        self.show(&state);
    }

    /// What counts for the next request of a peer.
    pub(crate) fn amended(&self) -> Amendment {
        let state = lock(&self.state);
        let [_, rnr_timer, ..] = self.entry().flags.load(Ordering::Relaxed).to_le_bytes();
        let (access, qkey) = (state.access, state.qkey);
        Amendment { access, qkey, rnr_timer: RnrTimer::from_code(rnr_timer) }
    }

    /// RTR.
    fn connect(
        &self,
        attr: &RtrAttr,
        refused: impl FnOnce(Executing) -> ModifyError,
    ) -> Result<(), ModifyError> {
        let reads_in_max = match self.transport {
            Transport::Rc => attr.reads_in_max,
            // A DC target has its device's: Linux `mlx5_ib_modify_dct` does not look at the number.
            Transport::Ud | Transport::Dci | Transport::Dct => u8::MAX,
        };
        let flags = u64::from(reads_in_max) << 16 | u64::from(attr.rnr_timer.code()) << 8;
        let flags = flags | u64::from(self.user_index().get()) << 32;
        let flags = flags | u64::from(self.is_unreliable()) << 1 | u64::from(self.scatter_to_cqe);
        self.entry().flags.store(flags, Ordering::Relaxed);
        let Some(peer) = attr.peer else { return Ok(()) };
        let way = self.port.way_to(&peer.address.route).map_err(|error| {
            let cause = format!(
                "it is unknown whether the peer is on this host: {error}; NIC `tcp` does not ask"
            );
            ModifyError::Device { to: QpState::Rtr, cause }
        })?;
        let lid = way.lid();
        self.entry().peer.store(address_word(lid, peer.qpn), Ordering::Relaxed);
        self.exclusively(|exec| exec.connect(way, peer.qpn)).map_err(refused)?;
        if let Way::Packets(_) = way {
            let sender = (self.qpn, (lid, peer.qpn));
            let expected = Sequence { connection: 0, psn: peer.rq_psn.get() };
            lock(&self.port.streams).insert(sender, Stream::new(expected));
            return Ok(());
        }
        self.calls_card.store(self.port.timeline().is_some(), Ordering::Relaxed);
        // Only starts; a peer that is not there yet is found when something is sent.
        let _ = self.port.import(lid.get());
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
        let is_left = self.port.quiesce(QUIESCE_NS).map_err(|lid| ModifyError::Device {
            to: QpState::Reset,
            cause: format!("port {lid} is stopped inside a request to it; try again later"),
        });
        let is_left = is_left.and_then(|()| {
            self.exclusively(|exec| exec.reset(&self.port, self.transport, self.qpn))
                .map_err(refused)
        });
        if let Err(error) = is_left {
            state.generation += 1;
            state.state = before;
            self.show(state);
            return Err(error);
        }
        self.forget_streams();
        self.unschedule();
        self.calls_card.store(false, Ordering::Relaxed);
        self.command.store(NO_COMMAND, Ordering::Relaxed);
        if let (false, Some(rq)) = (self.has_srq, &self.rq) {
            rq.view.claims().reset();
        }
        if let Some(fault) = self.port.owner.card.qp_fault(self.qpn.get()) {
            fault.syndrome.store(0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// What it has taken of its senders' requests goes with its life.
    fn forget_streams(&self) {
        lock(&self.port.streams).forget(self.qpn);
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
    pub(crate) fn handle_faults(&self) {
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
            self.port.add_event(AsyncEvent::QpFatal(self.qpn));
        }
    }

    /// The port `lid` is gone: falls if it is connected to it.
    pub(crate) fn lose_peer(&self, lid: u16) {
        let still = |state| {
            may_have_sender(state) && self.peer_lid() == Some(lid) && self.state() != QpState::Err
        };
        // The first request in the queue, or the next one, learns why; the rest is flushed.
        self.enter_error(QpState::Err, LOSE_PEER, still);
    }

    /// Gives `command`, and goes to state `to` if that is worse: if `applies` to the state it is in. Says
    /// whether it did.
    pub(super) fn enter_error(
        &self,
        to: QpState,
        command: u32,
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
        // Under the lock: a command for the life that ends must not reach the next one.
        self.command.fetch_max(command, Ordering::Relaxed);
        drop(state);
        self.run();
        if is_worse && to == QpState::Err && self.has_srq {
            self.port.add_event(AsyncEvent::LastWqeReached(self.qpn));
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
            if self.port.quiesce(QUIESCE_BRIEFLY_NS).is_err() {
                // A peer is interrupted, or stopped, inside: housekeeping tries again.
                self.flush_later.store(true, Ordering::Relaxed);
                return self.schedule();
            }
            state.is_quiet = true;
        }
        let holder = self.port.lid.get();
        let posted_seen = Cell::new(0);
        let mut flushed = false;
        while let Ok(taken) = rq.view.take(holder, &posted_seen, false) {
            let cqe = CqeView::Error(cqe::ErrorCqe {
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
        self.forget_streams();
        // The NIC thread may hold it a little longer, but executes nothing any more.
        let stopped = self.exclusively(Exec::stop);
        if stopped.is_err() || self.port.quiesce(QUIESCE_NS).is_err() {
            // A stopped peer is inside, and writes to these queues when it continues.
            self.port.leave_behind(LeftBehind::queue_pair(self.clone()));
        }
    }
}

/// Low byte of a control word in state ERR.
const ERR_CODE: u64 = QpState::ALL.len() as u64 - 1;
const _: () = assert!(matches!(QpState::ALL, [.., QpState::Err]));
