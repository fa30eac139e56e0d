//! A queue pair of this port: its state, and the right to execute it.

mod exec;
pub(crate) mod ring;
mod transition;
mod uses;

use core::{cell::UnsafeCell, ptr::NonNull};
use std::sync::Mutex;

use memory::sync::{Arc, AtomicBool, AtomicU32, Ordering};
use mlx5::device::QpRequest;
use verbs::{Access, CreateError, GidRoute, QKey, QpState, Qpn, Route, Transport};
use wire::ids::UserIndex;

use crate::{
    card::{Table, layout::QpEntry, target::Control},
    context::{Context, lock},
    device::Device,
    engine::{Activity, SendState},
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
                let rq = Arc::new(RqShared::create(context, pd, entries, stride, false)?);
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
}

impl Drop for QpShared {
    fn drop(&mut self) {
        self.unwant();
        self.context.forget_qp(self.qpn.get());
        self.context.owner.return_index(Table::Qp, self.qpn.get());
    }
}

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

#[cfg(all(test, not(miri)))]
mod tests;
