//! A queue pair of this port: its state, and the right to execute it.

mod destinations;
mod exec;
mod packets;
pub(crate) mod ring;
mod transition;
mod uses;

use core::{cell::UnsafeCell, ptr::NonNull};
use std::sync::Mutex;

use memory::sync::{Arc, AtomicBool, AtomicU32, Ordering};
use verbs::{Access, CreateError, QKey, QpState, Qpn, RnrTimer, Transport};
use wire::ids::UserIndex;

use crate::{
    nic::{
        card::{Table, layout::QpEntry, target::Control},
        config::CqeVersion,
        engine::{Activity, SendState},
        objects::{CqShared, Place, RqShared},
        port_state::{PortState, lock},
        runner::Runner,
        timeline::{Cause, Timeline},
    },
    shared::presence::Presence,
};
use exec::Exec;
use ring::SendRing;
use uses::Uses;

/// What a queue pair is made of.
#[derive(Debug)]
pub(crate) struct QpQueues {
    pub(crate) transport: Transport,
    pub(crate) send_cq: Arc<CqShared>,
    pub(crate) recv_cq: Arc<CqShared>,
    pub(crate) srq: Option<Arc<RqShared>>,
    /// Base-2 logarithm of the send ring's blocks, if it has one.
    pub(crate) log_send_blocks: Option<u8>,
    /// Base-2 logarithms of its own receive ring's entries and of the bytes of each, if it has one.
    pub(crate) recv: Option<[u8; 2]>,
    pub(crate) scatter_to_cqe: bool,
    /// DCT.
    pub(crate) access_key: u64,
    /// Of a queue pair whose rings a program has made.
    pub(crate) lent: Option<Lent>,
}

/// What a program says of a queue pair whose rings it has made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lent {
    pub(crate) send: Option<Place>,
    pub(crate) recv: Option<Place>,
    /// What its completions call it.
    pub(crate) user_index: UserIndex,
    /// A connection without answers.
    pub(crate) is_unreliable: bool,
}

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
    pub(crate) port: Arc<PortState>,
    pub(crate) qpn: Qpn,
    pub(crate) transport: Transport,
    pub(crate) pd: u32,
    access_key: u64,
    scatter_to_cqe: bool,
    lent: Option<Lent>,
    pub(crate) send_cq: Arc<CqShared>,
    pub(crate) recv_cq: Arc<CqShared>,
    _uses: Uses,
    /// Own receive queue, or the SRQ.
    pub(crate) rq: Option<Arc<RqShared>>,
    pub(crate) has_srq: bool,
    send: Option<SendRing>,
    /// This queue pair's entry on the own card, which `port` keeps.
    entry: NonNull<QpEntry>,
    state: Mutex<State>,
    /// Whoever has entered [`Self::presence`] has it.
    exec: UnsafeCell<Exec>,
    /// Receives are to be flushed as soon as a stopped peer has left.
    flush_later: AtomicBool,
    /// The requester has failed; `state` and the card follow soon.
    fallen: AtomicBool,
    /// What whoever executes it next does first; [`NO_COMMAND`] if nothing.
    command: AtomicU32,
    is_scheduled: AtomicBool,
    /// On a port that sends packets: it calls its peer's card instead. Of this life.
    calls_card: AtomicBool,
}

// SAFETY: `exec` is accessed only by the thread that has entered the presence; `entry` leads to
// atomics in a mapping that `port` keeps; the rest is `Sync` by itself.
unsafe impl Sync for QpShared {}
// SAFETY: as above; nothing is tied to a thread.
unsafe impl Send for QpShared {}

/// What of a queue pair may change without its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amendment {
    /// The rights of peers.
    pub access: Access,
    /// The key that datagrams must carry.
    pub qkey: QKey,
    /// The delay asked of a sender that finds no receive.
    pub rnr_timer: RnrTimer,
}

/// Longest wait for another thread to leave a queue pair, in turns of yielding.
const ENTER_YIELDS_MAX: u32 = if cfg!(test) { 1_000 } else { 1_000_000 };

/// Another thread executes the queue pair for longer than that.
#[derive(Debug)]
struct Executing;

/// Values of [`QpShared::command`]; what counts is the greatest one given.
const NO_COMMAND: u32 = 0;
/// Flush the send queue.
const FLUSH: u32 = 1;
/// The same, and say that the peer is gone.
const LOSE_PEER: u32 = 2;

impl QpShared {
    pub(crate) fn create(
        port: &Arc<PortState>,
        pd: u32,
        request: QpQueues,
    ) -> Result<Arc<Self>, CreateError> {
        let index = port.owner.take_index(Table::Qp);
        let limit = port.limit(Table::Qp);
        let index = index.ok_or(CreateError::Exhausted { object: "queue pair", limit })?;
        Self::build(port, pd, request, index).inspect_err(|_| {
            port.owner.return_index(Table::Qp, index);
        })
    }

    fn build(
        port: &Arc<PortState>,
        pd: u32,
        request: QpQueues,
        index: u32,
    ) -> Result<Arc<Self>, CreateError> {
        let has_srq = request.srq.is_some();
        let rq = match (&request.srq, request.recv) {
            (Some(srq), _) => Some(srq.clone()),
            (None, Some([entries, stride])) => {
                let place = request.lent.and_then(|lent| lent.recv);
                Some(Arc::new(RqShared::create(port, pd, entries, stride, false, place)?))
            }
            (None, None) => None,
        };
        let lent_send = request.lent.and_then(|lent| lent.send);
        let send = match (request.log_send_blocks, lent_send) {
            (Some(blocks), Some(place)) => Some(SendRing::lend(blocks, place)),
            (blocks, _) => blocks.map(SendRing::create).transpose()?,
        };
        let uses = Uses::add(&request, rq.as_ref())?;
        let card = &port.owner.card;
        let entry = card.qp(index).expect("the index is from this table");
        let fault = card.qp_fault(index).expect("the index is from this table");
        // What broke the last one of this number.
        fault.syndrome.store(0, Ordering::Relaxed);
        let generation = (entry.control.load(Ordering::Relaxed) >> 16) + 1;
        let qpn = Qpn::from_low_bits(index);
        let is_unreliable = request.lent.is_some_and(|lent| lent.is_unreliable);
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
            access_key: request.access_key,
            scatter_to_cqe: request.scatter_to_cqe,
            lent: request.lent,
            send_cq: request.send_cq,
            recv_cq: request.recv_cq,
            _uses: uses,
            has_srq,
            rq,
            send,
            entry: NonNull::from(entry),
            exec: UnsafeCell::new(Exec::new(port, request.transport, qpn, is_unreliable)),
            flush_later: AtomicBool::new(false),
            fallen: AtomicBool::new(false),
            command: AtomicU32::new(NO_COMMAND),
            is_scheduled: AtomicBool::new(false),
            calls_card: AtomicBool::new(false),
            state: Mutex::new(state),
            port: port.clone(),
        });
        qp.show(&lock(&qp.state));
        Ok(qp)
    }

    pub(crate) fn send_ring(&self) -> Option<&SendRing> {
        self.send.as_ref()
    }

    /// Whether it is a connection without answers.
    pub(crate) fn is_unreliable(&self) -> bool {
        self.lent.is_some_and(|lent| lent.is_unreliable)
    }

    fn entry(&self) -> &QpEntry {
        // SAFETY: inside the own card, which `port` keeps mapped and writable.
        unsafe { self.entry.as_ref() }
    }

    fn presence(&self) -> Presence<'_> {
        Presence(&self.entry().presence)
    }

    /// What completions of this queue pair name as user index.
    pub(crate) fn user_index(&self) -> UserIndex {
        if let Some(lent) = &self.lent {
            return lent.user_index;
        }
        let srqn = || self.rq.as_ref().and_then(|rq| rq.view.srqn);
        UserIndex::from_low_bits(match self.port.config.cqe_version {
            CqeVersion::V0 => srqn().map_or(0, |srqn| srqn.get()),
            CqeVersion::V1 => self.qpn.get(),
        })
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
        let fault = self.port.owner.card.qp_fault(self.qpn.get());
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
        let heard = self.transport == Transport::Rc && may_have_sender(self.state());
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

    /// Who executes it, if whoever rings its doorbell does not.
    fn timeline(&self) -> Option<&Arc<dyn Timeline>> {
        self.port.timeline().filter(|_| !self.calls_card.load(Ordering::Relaxed))
    }

    /// Asks to be run when somebody finds time.
    pub(crate) fn schedule(&self) {
        if let Some(timeline) = self.timeline() {
            return timeline.runnable(self.port.lid, self.qpn, Cause::Port);
        }
        if !self.is_scheduled.swap(true, Ordering::AcqRel) {
            self.port.scheduled_qps.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn unschedule(&self) -> bool {
        let wanted = self.is_scheduled.swap(false, Ordering::AcqRel);
        if wanted {
            self.port.scheduled_qps.fetch_sub(1, Ordering::Relaxed);
        }
        wanted
    }

    pub(crate) fn run_if_scheduled(&self) {
        if self.is_scheduled.load(Ordering::Relaxed) && self.unschedule() {
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
    pub(crate) fn kick(&self, doorbell: Cause) {
        match self.port.runner.get() {
            None => self.execute(),
            Some(Runner::Thread(worker)) => worker.notify(),
            Some(Runner::Timeline(_)) if self.calls_card.load(Ordering::Relaxed) => self.execute(),
            Some(Runner::Timeline(timeline)) => {
                timeline.runnable(self.port.lid, self.qpn, doorbell);
            }
        }
    }

    /// [`execute`](Self::execute) on this thread, or by whoever drives the port.
    pub(crate) fn run(&self) {
        if self.timeline().is_some() {
            return self.schedule();
        }
        self.execute();
    }

    /// Executes the send queue, unless another thread is at it.
    #[inline]
    fn execute(&self) {
        let Some(posted) = self.posted() else { return };
        if !self.presence().try_enter() {
            // The other thread may have read the doorbell record already: come back.
            self.schedule();
            return;
        }
        // SAFETY: this thread has entered the presence, and leaves it below.
        let exec = unsafe { &mut *self.exec.get() };
        if self.command.load(Ordering::Relaxed) != NO_COMMAND {
            self.apply_command(exec);
        }
        let ran = exec.advance(self, posted);
        // Still inside: a peer's queue whose arm word is touched must not go away.
        exec.signal(&self.port);
        self.presence().leave();
        if ran.activity != Activity::Idle {
            self.schedule();
        }
        if ran.fell {
            self.fall();
        }
    }

    /// Forgets regions that are no longer registered; `false`: a thread executes the queue pair at this moment.
    #[must_use]
    pub(crate) fn forget_stale_regions(&self) -> bool {
        if !self.presence().try_enter() {
            return false;
        }
        // SAFETY: this thread has entered the presence, and leaves it below.
        unsafe { &mut *self.exec.get() }.forget_stale_regions();
        self.presence().leave();
        true
    }

    #[cold]
    fn apply_command(&self, exec: &mut Exec) {
        match self.command.swap(NO_COMMAND, Ordering::Relaxed) {
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
        self.unschedule();
        self.port.owner.return_index(Table::Qp, self.qpn.get());
    }
}

/// A queue pair in these states may have a receive in its peer's hands. In ERR, too: what the peer held
/// when the queue pair fell was not flushed.
pub(crate) fn may_have_sender(state: QpState) -> bool {
    !matches!(state, QpState::Reset | QpState::Init)
}

pub(crate) fn wake_own(cq: &CqShared, solicited: bool) {
    if let Some(channel) = &cq.channel
        && cq.view.armed().fires(solicited)
    {
        // An event that cannot be written is full, and so readable.
        let _ = channel.event.signal();
    }
}

#[cfg(all(test, not(miri)))]
mod tests;
