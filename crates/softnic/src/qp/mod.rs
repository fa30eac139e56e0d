//! A queue pair of this port: its state, and the right to execute it.

mod exec;
pub(crate) mod ring;
mod uses;

use core::{
    cell::{Cell, UnsafeCell},
    ptr::NonNull,
};
use std::sync::Mutex;

use memory::{
    barrier,
    sync::{Arc, AtomicBool, AtomicU32, Ordering},
};
use mlx5::device::QpRequest;
use verbs::{
    Access, AsyncEvent, CreateError, GidRoute, Lid, ModifyError, QKey, QpState, Qpn, Route,
    Transition, Transport,
};
use wire::{
    cqe::{self, CqeView, Syndrome},
    ids::UserIndex,
};

use crate::{
    card::{
        Table,
        layout::{QpEntry, address_word},
        target::Control,
    },
    context::{Context, QUIESCE_BRIEFLY_NS, QUIESCE_NS, lock},
    device::Device,
    engine::{Activity, SendState},
    left_behind::LeftBehind,
    objects::{CqShared, RqShared},
    shared::presence::Presence,
};
use exec::Exec;
pub(crate) use exec::gid_of;
use ring::SendRing;
use uses::Uses;

/// What only changes under the lock of a queue pair.
#[derive(Debug)]
struct State {
    state: QpState,
    generation: u64,
    access: Access,
    qkey: QKey,
    /// In ERR, and no sender is inside any more: receives may be flushed.
    is_quiet: bool,
}

/// A queue pair, shared by its handle, the NIC thread and the port's housekeeping.
#[derive(Debug)]
pub(crate) struct QpShared {
    pub(crate) context: Arc<Context>,
    pub(crate) qpn: Qpn,
    pub(crate) transport: Transport,
    pub(crate) pd: u32,
    access_key: u64,
    scatter_to_cqe: bool,
    pub(crate) send_cq: Arc<CqShared>,
    pub(crate) recv_cq: Arc<CqShared>,
    _uses: Uses,
    /// Own receive queue, or the SRQ.
    pub(crate) rq: Option<Arc<RqShared>>,
    pub(crate) has_srq: bool,
    send: Option<SendRing>,
    /// This queue pair's entry on the own card, which `context` keeps.
    entry: NonNull<QpEntry>,
    state: Mutex<State>,
    /// Whoever has entered [`Self::presence`] has it.
    exec: UnsafeCell<Exec>,
    /// Receives are to be flushed as soon as a stopped peer has left.
    flush_later: AtomicBool,
    /// The requester has failed; `state` and the card follow soon.
    fallen: AtomicBool,
    /// What whoever executes it next does first; [`NO_ORDER`] if nothing.
    order: AtomicU32,
    wants: AtomicBool,
}

// SAFETY: `exec` is accessed only by the thread that has entered the presence; `entry` leads to
// atomics in a mapping that `context` keeps; the rest is `Sync` by itself.
unsafe impl Sync for QpShared {}
// SAFETY: as above; nothing is tied to a thread.
unsafe impl Send for QpShared {}

/// Longest wait for another thread to leave a queue pair, in turns of yielding.
const ENTER_YIELDS_MAX: u32 = if cfg!(test) { 1_000 } else { 1_000_000 };

/// Another thread executes the queue pair for longer than that.
#[derive(Debug)]
struct Executing;

/// Values of [`QpShared::order`]; what counts is the greatest one given.
const NO_ORDER: u32 = 0;
/// Flush the send queue.
const FLUSH: u32 = 1;
/// The same, and say that the peer is gone.
const LOSE_PEER: u32 = 2;

impl QpShared {
    pub(crate) fn create(
        context: &Arc<Context>,
        pd: u32,
        request: &QpRequest<'_, Device>,
    ) -> Result<Arc<Self>, CreateError> {
        let index = context.owner.take_index(Table::Qp);
        let limit = context.limit(Table::Qp);
        let index = index.ok_or(CreateError::Exhausted { object: "queue pair", limit })?;
        Self::build(context, pd, request, index).inspect_err(|_| {
            context.owner.return_index(Table::Qp, index);
        })
    }

    fn build(
        context: &Arc<Context>,
        pd: u32,
        request: &QpRequest<'_, Device>,
        index: u32,
    ) -> Result<Arc<Self>, CreateError> {
        let rq = match (request.srq, request.recv) {
            (Some(srq), _) => Some(srq.shared.clone()),
            (None, Some(recv)) => {
                let (entries, stride) = (recv.log_entries, recv.log_stride);
                let rq = Arc::new(RqShared::create(context, entries, stride, false)?);
                context.add_rq(&rq);
                Some(rq)
            }
            (None, None) => None,
        };
        let send = request.log_send_blocks.map(SendRing::create).transpose()?;
        let uses = Uses::add(request, rq.as_ref())?;
        let card = &context.owner.card;
        let entry = card.qp(index).expect("the index is from this table");
        let fault = card.qp_fault(index).expect("the index is from this table");
        // What broke the last one of this number.
        fault.syndrome.store(0, Ordering::Relaxed);
        let generation = (entry.control.load(Ordering::Relaxed) >> 16) + 1;
        let qpn = Qpn::from_low_bits(index);
        let state = State {
            state: QpState::Reset,
            generation,
            access: Access::empty(),
            qkey: QKey::default(),
            is_quiet: false,
        };
        let qp = Arc::new(Self {
            qpn,
            transport: request.transport,
            pd,
            access_key: request.access_key.get(),
            scatter_to_cqe: request.scatter_to_cqe,
            send_cq: request.send_cq.shared.clone(),
            recv_cq: request.recv_cq.shared.clone(),
            _uses: uses,
            has_srq: request.srq.is_some(),
            rq,
            send,
            entry: NonNull::from(entry),
            exec: UnsafeCell::new(Exec::new(request.transport, qpn, context.config.strict)),
            flush_later: AtomicBool::new(false),
            fallen: AtomicBool::new(false),
            order: AtomicU32::new(NO_ORDER),
            wants: AtomicBool::new(false),
            state: Mutex::new(state),
            context: context.clone(),
        });
        qp.show(&lock(&qp.state));
        context.add_qp(index, &qp);
        Ok(qp)
    }

    pub(crate) fn send_ring(&self) -> Option<&SendRing> {
        self.send.as_ref()
    }

    fn entry(&self) -> &QpEntry {
        // SAFETY: inside the own card, which `context` keeps mapped and writable.
        unsafe { self.entry.as_ref() }
    }

    fn presence(&self) -> Presence<'_> {
        Presence(&self.entry().presence)
    }

    /// What completions call this queue pair, or its SRQ.
    pub(crate) fn user_index(&self) -> UserIndex {
        let srqn = self.rq.as_ref().and_then(|rq| rq.view.srqn);
        UserIndex::from_low_bits(srqn.map_or(self.qpn.get(), |srqn| srqn.get()))
    }

    /// Publishes state and generation to peers.
    fn show(&self, state: &State) {
        let entry = self.entry();
        let queues = self.rq.as_ref().map_or(0, |rq| u64::from(rq.index())) << 32;
        entry.queues.store(queues | u64::from(self.recv_cq.index()), Ordering::Relaxed);
        let access = u64::from(state.access.bits()) << 32;
        entry.access_pd.store(access | u64::from(self.pd), Ordering::Relaxed);
        let key = match self.transport {
            Transport::Dct => self.access_key,
            _ => u64::from(state.qkey.get()),
        };
        entry.key.store(key, Ordering::Relaxed);
        let (generation, transport, state) = (state.generation, self.transport, state.state);
        let control = Control { generation, transport, state }.encode();
        // SYNC(qp-entry): pairs with the `Acquire` in `Target`.
        entry.control.store(control, Ordering::Release);
    }

    pub(crate) fn has_fault(&self) -> bool {
        let fault = self.context.owner.card.qp_fault(self.qpn.get());
        fault.is_some_and(|fault| fault.syndrome.load(Ordering::Relaxed) != 0)
    }

    /// State as peers and errors have made it.
    pub(crate) fn state(&self) -> QpState {
        let shown = Control::decode(self.entry().control.load(Ordering::Acquire));
        let shown = shown.map_or(QpState::Err, |control| control.state);
        let has_fallen = self.fallen.load(Ordering::Acquire);
        match shown {
            QpState::Reset => shown,
            _ if self.has_fault() => QpState::Err,
            QpState::Rts | QpState::Sqd if has_fallen => self.fallen_state(),
            _ => shown,
        }
    }

    /// Where a failure of a request leads.
    fn fallen_state(&self) -> QpState {
        if self.transport == Transport::Ud { QpState::Sqe } else { QpState::Err }
    }

    fn note_fall(&self) {
        self.fallen.store(true, Ordering::Release);
    }

    /// RC: the port whose requests it takes, or took until it fell.
    pub(crate) fn peer_lid(&self) -> Option<u16> {
        let peer = self.entry().peer.load(Ordering::Relaxed);
        let heard = self.transport == Transport::Rc && crate::reap::has_heard(self.state());
        heard.then(|| u16::try_from(peer >> 32).unwrap_or(0))
    }

    /// Posted counter, if there is a send queue.
    fn posted(&self) -> Option<u16> {
        self.send.as_ref().map(SendRing::posted)
    }

    /// Whether the doorbell record is ahead of what was executed. A hint, for the NIC thread.
    pub(crate) fn is_posted(&self) -> bool {
        self.send.as_ref().is_some_and(SendRing::is_posted)
    }

    /// Asks to be run when somebody finds time.
    pub(crate) fn want(&self) {
        if !self.wants.swap(true, Ordering::AcqRel) {
            self.context.wanting.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn unwant(&self) -> bool {
        let wanted = self.wants.swap(false, Ordering::AcqRel);
        if wanted {
            self.context.wanting.fetch_sub(1, Ordering::Relaxed);
        }
        wanted
    }

    pub(crate) fn run_if_wanted(&self) {
        if self.wants.load(Ordering::Relaxed) && self.unwant() {
            self.run();
            if self.flush_later.swap(false, Ordering::Relaxed) {
                self.received();
            }
        }
    }

    /// For the NIC thread; `true` if there was something to do.
    pub(crate) fn run_if_posted(&self) -> bool {
        let posted = self.is_posted();
        if posted {
            self.run();
        }
        posted
    }

    /// The doorbell was rung.
    #[inline]
    pub(crate) fn kick(&self) {
        match self.context.worker.get() {
            None => self.run(),
            Some(worker) => worker.notify(),
        }
    }

    /// Executes the send queue, unless another thread is at it.
    #[inline]
    pub(crate) fn run(&self) {
        let Some(posted) = self.posted() else { return };
        if !self.presence().try_enter() {
            // The other thread may have read the doorbell record already: come back.
            self.want();
            return;
        }
        // SAFETY: this thread has entered the presence, and leaves it below.
        let exec = unsafe { &mut *self.exec.get() };
        if self.order.load(Ordering::Relaxed) != NO_ORDER {
            self.obey(exec);
        }
        let ran = exec.advance(self, posted);
        // Still inside: a peer's queue whose arm word is touched must not go away.
        exec.signal(&self.context);
        self.presence().leave();
        if ran.activity != Activity::Idle {
            self.want();
        }
        if ran.fell {
            self.fall();
        }
    }

    #[cold]
    fn obey(&self, exec: &mut Exec) {
        match self.order.swap(NO_ORDER, Ordering::Relaxed) {
            LOSE_PEER => exec.requester.lose_peer(),
            FLUSH => exec.requester.set_state(SendState::Flushing),
            _ => {}
        }
    }

    /// Runs `change` while no thread executes the queue pair.
    ///
    /// # Errors
    ///
    /// Another thread did not leave in time.
    fn exclusively<R>(&self, change: impl FnOnce(&mut Exec) -> R) -> Result<R, Executing> {
        for _ in 0..ENTER_YIELDS_MAX {
            if self.presence().try_enter() {
                // SAFETY: this thread has entered the presence, and leaves it below.
                let result = change(unsafe { &mut *self.exec.get() });
                self.presence().leave();
                return Ok(result);
            }
            memory::sync::thread::yield_now();
        }
        Err(Executing)
    }

    /// Changes the state, which the driver has checked.
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
            Transition::Rtr(attr) => {
                let flags = u64::from(attr.rnr_timer.code()) << 8 | u64::from(self.scatter_to_cqe);
                self.entry().flags.store(flags, Ordering::Relaxed);
                if let Some(peer) = attr.peer {
                    let lid = lid_of(&peer.address.route);
                    let word = address_word(Lid::new(lid), peer.qpn);
                    self.entry().peer.store(word, Ordering::Relaxed);
                    self.exclusively(|exec| exec.connect(lid, peer.qpn)).map_err(refused)?;
                    // Only starts; a peer that is not there yet is found when something is sent.
                    let _ = self.context.import(lid);
                }
            }
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
            Transition::Err => self.enter_error(QpState::Err, FLUSH),
            Transition::Rts(_) => self.want(),
            _ => {}
        }
        self.context.progress();
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
    fn fall(&self) {
        self.enter_error(self.fallen_state(), FLUSH);
    }

    /// A peer, or a dead completion queue, has broken this queue pair.
    pub(crate) fn fall_by_fault(&self) {
        let before = lock(&self.state).state;
        if !matches!(before, QpState::Err | QpState::Reset) {
            self.enter_error(QpState::Err, FLUSH);
            self.context.add_event(AsyncEvent::QpFatal(self.qpn));
        }
    }

    /// The port that it is connected to is gone.
    pub(crate) fn lose_peer(&self) {
        // The first request in the queue, or the next one, learns why; the rest is flushed.
        self.enter_error(QpState::Err, LOSE_PEER);
    }

    fn enter_error(&self, to: QpState, order: u32) {
        let mut state = lock(&self.state);
        let worse = state.state != QpState::Err && state.state != to;
        if worse {
            state.generation += 1;
            state.state = to;
            self.show(&state);
        }
        if to == QpState::Err {
            self.flush_receives(&mut state);
        }
        drop(state);
        self.order.fetch_max(order, Ordering::Relaxed);
        self.run();
        if worse && to == QpState::Err && self.has_srq {
            self.context.add_event(AsyncEvent::LastWqeReached(self.qpn));
        }
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
}

/// Low byte of a control word in state ERR.
const ERR_CODE: u64 = QpState::ALL.len() as u64 - 1;
const _: () = assert!(matches!(QpState::ALL, [.., QpState::Err]));

fn wake_own(cq: &CqShared, solicited: bool) {
    if let Some(channel) = &cq.channel
        && cq.view.armed().fires(solicited)
    {
        // An event that cannot be written is full, and so readable.
        let _ = channel.event.signal();
    }
}

/// LID that a route leads to: on RoCE it is in the last bytes of the GID.
pub(crate) fn lid_of(route: &Route) -> u16 {
    match route {
        Route::Lid(lid) => lid.get(),
        Route::Gid(GidRoute { gid, .. }) => {
            let bytes = gid.to_bytes();
            u16::from_be_bytes([bytes[14], bytes[15]])
        }
    }
}

impl QpShared {
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

impl Drop for QpShared {
    fn drop(&mut self) {
        self.unwant();
        self.context.forget_qp(self.qpn.get());
        self.context.owner.return_index(Table::Qp, self.qpn.get());
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use verbs::{
        CompletionQueue as _, CqConfig, InitAttr, Mtu, Nic as _, Op, QpConfig, QueuePair as _,
        RcPeer, RnrTimer, RtrAttr, RtsAttr, SendRequest,
    };

    use super::*;
    use crate::{Config, Nic, card::target::Target, open};

    type Qp = <Nic as verbs::Nic>::Qp;
    type Cq = <Nic as verbs::Nic>::Cq;

    fn port(name: &str) -> Nic {
        let fabric = format!("{name}-{}", std::process::id());
        open(&Config { fabric, card_mib: 8, ..Config::default() }).unwrap()
    }

    fn queue_pair(nic: &Nic) -> (Qp, Cq) {
        let cq = nic.create_cq(&CqConfig::new(256), None).unwrap();
        let pd = nic.alloc_pd().unwrap();
        (nic.create_qp(&pd, &QpConfig::new(Transport::Rc, &cq)).unwrap(), cq)
    }

    fn shared(nic: &Nic, qp: &Qp) -> Arc<QpShared> {
        let qps = nic.device().0.qps();
        qps.into_iter().find(|shared| shared.qpn == qp.qpn()).unwrap()
    }

    fn transitions(peer: verbs::Endpoint) -> [Transition; 3] {
        let access = Access::empty();
        let peer =
            RcPeer { qpn: peer.qpn, address: peer.address, rq_psn: verbs::Psn::new(0).unwrap() };
        let rtr = RtrAttr {
            path_mtu: Mtu::B4096,
            peer: Some(peer),
            rnr_timer: RnrTimer::from_code(1),
            reads_in_max: 1,
        };
        let init = InitAttr { access, qkey: QKey::default() };
        [Transition::Init(init), Transition::Rtr(rtr), Transition::Rts(RtsAttr::default())]
    }

    /// Two queue pairs of one port, connected to each other.
    fn connected(nic: &Nic) -> [(Qp, Cq); 2] {
        let mut ends = [(); 2].map(|()| queue_pair(nic));
        let [a, b] = [0, 1].map(|nth: usize| nic.endpoint(&ends[nth].0));
        for ((qp, _), peer) in ends.iter_mut().zip([b, a]) {
            transitions(peer).iter().for_each(|to| qp.modify(to).unwrap());
        }
        ends
    }

    fn events(nic: &Nic) -> Vec<AsyncEvent> {
        core::iter::from_fn(|| nic.poll_event()).collect()
    }

    /// RESET clears it, too.
    #[test]
    fn what_a_peer_broke_is_told_once_and_works_again_after_reset() {
        let nic = port("broken");
        let [(mut qp, _cq), (peer, _)] = connected(&nic);
        let target = Target::resolve(&nic.device().0.owner.card, qp.qpn()).unwrap();
        target.break_down(Syndrome::LocalAccess);
        assert_eq!(qp.state(), QpState::Err, "before anybody has looked at it");
        nic.device().0.progress();
        assert_eq!(events(&nic), [AsyncEvent::QpFatal(qp.qpn())]);
        qp.modify(&Transition::Reset).unwrap();
        for to in transitions(nic.endpoint(&peer)) {
            qp.modify(&to).unwrap();
            assert_eq!(qp.state(), to.target());
        }
        assert_eq!(events(&nic), []);
    }

    /// Whoever sees the completion finds the queue pair in its new state.
    #[test]
    fn a_request_that_has_failed_shows_in_the_state_at_once() {
        let nic = port("fallen");
        let [(mut qp, _cq), (peer, _)] = connected(&nic);
        shared(&nic, &qp).note_fall();
        assert_eq!(qp.state(), QpState::Err);
        qp.modify(&Transition::Reset).unwrap();
        transitions(nic.endpoint(&peer)).iter().for_each(|to| qp.modify(to).unwrap());
        assert_eq!(qp.state(), QpState::Rts);
    }

    #[test]
    fn who_knows_a_queue_pair_looks_again_after_it_was_reset() {
        let nic = port("again");
        let [(mut qp, _cq), (peer, _)] = connected(&nic);
        let card = &nic.device().0.owner.card;
        let before = Target::resolve(card, qp.qpn()).unwrap();
        assert_eq!(before.rnr_wait_ns, 10_000, "by the timer of code 1");
        qp.modify(&Transition::Reset).unwrap();
        transitions(nic.endpoint(&peer)).iter().for_each(|to| qp.modify(to).unwrap());
        assert!(!before.is_current(), "it may have another peer now");
        assert!(Target::resolve(card, qp.qpn()).is_some());
    }

    /// After a RESET as well: what was known of the last time says nothing about this one.
    #[test]
    fn receives_are_flushed_when_nobody_is_inside_any_more() {
        let nic = port("inside");
        let [(mut qp, mut cq), (peer, _)] = connected(&nic);
        let executor = shared(&nic, &peer);
        for round in 0..2 {
            qp.post_recv(&[]).unwrap();
            qp.ring_recv();
            assert!(executor.presence().try_enter(), "a request of it is inside the queue pair");
            qp.modify(&Transition::Err).unwrap();
            assert_eq!(cq.poll(), None, "round {round}: the receive may be taken");
            executor.presence().leave();
            nic.device().0.progress();
            let failure = cq.poll().and_then(|done| done.failure).map(|failure| failure.syndrome);
            assert_eq!(failure, Some(Syndrome::Flushed), "round {round}");
            qp.modify(&Transition::Reset).unwrap();
            transitions(nic.endpoint(&peer)).iter().for_each(|to| qp.modify(to).unwrap());
        }
    }

    /// A program that shares receives frees them when it hears that this queue pair takes no more.
    #[test]
    fn the_last_receive_of_a_shared_queue_is_told_once() {
        let nic = port("last-wqe");
        let (cq, pd) = (nic.create_cq(&CqConfig::new(256), None).unwrap(), nic.alloc_pd().unwrap());
        let srq = nic.create_srq(&pd, &verbs::SrqConfig { entries: 8, sges_max: 1 }).unwrap();
        let config = QpConfig { srq: Some(&srq), ..QpConfig::new(Transport::Rc, &cq) };
        let mut qp = nic.create_qp(&pd, &config).unwrap();
        let (peer, _) = queue_pair(&nic);
        transitions(nic.endpoint(&peer)).iter().for_each(|to| qp.modify(to).unwrap());
        for _ in 0..2 {
            qp.modify(&Transition::Err).unwrap();
        }
        assert_eq!(events(&nic), [AsyncEvent::LastWqeReached(qp.qpn())]);
    }

    /// Nobody but the queue pair itself completes there, so nobody else can notice.
    #[test]
    fn a_queue_pair_whose_own_completions_are_lost_ends() {
        let nic = port("own-overrun");
        let (pd, receives) =
            (nic.alloc_pd().unwrap(), nic.create_cq(&CqConfig::new(256), None).unwrap());
        let small = CqConfig { allow_overcommit: true, ..CqConfig::new(2) };
        let sends = nic.create_cq(&small, None).unwrap();
        let config = QpConfig { send_cq: &sends, ..QpConfig::new(Transport::Rc, &receives) };
        let mut qp = nic.create_qp(&pd, &config).unwrap();
        let (peer, _) = queue_pair(&nic);
        transitions(nic.endpoint(&peer)).iter().for_each(|to| qp.modify(to).unwrap());
        for _ in 0..3 {
            qp.post_send(&SendRequest::signaled(Op::Nop)).unwrap();
            qp.ring_send();
        }
        nic.device().0.progress();
        assert_eq!(qp.state(), QpState::Err);
        nic.device().0.owner.card.shared().attention.store(1, Ordering::Release);
        let told = [AsyncEvent::CqOverrun(sends.cqn()), AsyncEvent::QpFatal(qp.qpn())];
        assert_eq!(events(&nic), told);
    }

    /// Whoever executes it may have read the doorbell record before.
    #[test]
    fn a_doorbell_that_finds_the_queue_pair_executed_is_not_lost() {
        let nic = port("executed");
        let [(mut qp, mut cq), _peer] = connected(&nic);
        let shared = shared(&nic, &qp);
        assert!(shared.presence().try_enter(), "another thread executes it");
        qp.post_send(&SendRequest::signaled(Op::Nop)).unwrap();
        qp.ring_send();
        assert_eq!(cq.poll(), None);
        shared.presence().leave();
        nic.device().0.progress();
        assert!(cq.poll().is_some());
    }

    /// A datagram may fail while software moves its queue pair.
    #[test]
    fn a_failed_request_does_not_lead_out_of_err() {
        let nic = port("worse");
        let [(mut qp, _cq), _peer] = connected(&nic);
        qp.modify(&Transition::Err).unwrap();
        shared(&nic, &qp).enter_error(QpState::Sqe, FLUSH);
        assert_eq!(qp.state(), QpState::Err);
    }

    /// The other thread may have gigabytes to copy.
    #[test]
    fn a_queue_pair_that_is_executed_when_its_peer_dies_ends_after_that() {
        let nic = port("busy-loses");
        let [(mut qp, mut cq), _peer] = connected(&nic);
        let shared = shared(&nic, &qp);
        assert!(shared.presence().try_enter(), "another thread executes it");
        qp.post_send(&SendRequest::signaled(Op::Nop)).unwrap();
        qp.ring_send();
        shared.lose_peer();
        assert_eq!(qp.state(), QpState::Err);
        shared.presence().leave();
        nic.device().0.progress();
        let failure = cq.poll().and_then(|done| done.failure).map(|failure| failure.syndrome);
        assert_eq!(failure, Some(Syndrome::RetryExceeded));
    }

    #[test]
    fn a_refused_transition_is_named_and_changes_nothing() {
        let nic = port("refused");
        let [(mut qp, _), (mut other, _)] = connected(&nic);
        let inside = shared(&nic, &other);
        assert!(inside.presence().try_enter(), "a request of it is inside the queue pair");
        let refused = qp.modify(&Transition::Reset).unwrap_err();
        assert!(matches!(refused, ModifyError::Device { to: QpState::Reset, .. }), "{refused}");
        assert_eq!(qp.state(), QpState::Rts);
        let refused = other.modify(&Transition::Sqd).unwrap_err();
        assert!(matches!(refused, ModifyError::Device { to: QpState::Sqd, .. }), "{refused}");
        assert_eq!(other.state(), QpState::Rts);
        inside.presence().leave();
        qp.modify(&Transition::Reset).unwrap();
        other.modify(&Transition::Sqd).unwrap();
    }
}
