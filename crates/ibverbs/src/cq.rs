//! Completion queue.
//!
//! Completions are taken from the library by the dozen, into a stash with a lock: who polls takes them from
//! there, and a queue pair that ends takes its own out of it.

use core::{
    ffi::c_int,
    ptr::{self, NonNull},
};
use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use memory::sync::Arc;
use verbs::{Arm, ArmError, Completion, CompletionQueue, CqConfig, Cqn, CreateError, Qpn, Srqn};

use crate::{
    abi::{self, Wc, status},
    channel::{Armed, ChannelShared},
    context::Context,
    error::last_cause,
    srq::SrqShared,
    wc::{RequestKind, WrId, completion},
};

/// Completions that are taken at once.
const BATCH: usize = 16;
/// The same, as the library counts.
const BATCH_COUNT: c_int = 16;

/// A completion queue.
#[derive(Debug)]
pub struct Cq(pub(crate) Arc<CqShared>);

/// Its one copy: queue pairs on other threads complete into it.
#[derive(Debug)]
pub(crate) struct CqShared {
    context: Arc<Context>,
    raw: NonNull<abi::Cq>,
    channel: Option<Arc<ChannelShared>>,
    /// On the heap, where events find it.
    armed: Box<Armed>,
    cqn: Cqn,
    entries: u32,
    allow_overcommit: bool,
    state: Mutex<State>,
}

/// What is behind the lock.
#[derive(Debug, Default)]
struct State {
    stash: VecDeque<Wc>,
    /// Completions that can be outstanding at once.
    needed: u32,
    /// Each attached shared receive queue, with the number of queue pairs that use it here.
    srqs: Vec<(Srqn, u32)>,
    /// Queue pairs of datagrams that draw from a shared receive queue.
    datagrams: Vec<Qpn>,
}

// SAFETY: objects of libibverbs belong to no thread.
unsafe impl Send for CqShared {}
// SAFETY: the library locks a queue while it polls or arms it, and the state has a lock.
unsafe impl Sync for CqShared {}

impl Cq {
    pub(crate) fn new(
        context: &Arc<Context>,
        config: &CqConfig,
        channel: Option<Arc<ChannelShared>>,
    ) -> Result<Self, CreateError> {
        let asked = u64::from(config.entries);
        let size = |limit| CreateError::Size { what: "completion queue", asked, limit };
        if config.entries == 0 {
            return Err(size("it needs at least one entry"));
        }
        let max = context.attributes.cqes_max;
        let rounded = config.entries.checked_next_power_of_two().filter(|&rounded| rounded <= max);
        // Devices have one less than a power of two, for example.
        let entries = rounded.or(Some(config.entries)).filter(|&entries| entries <= max);
        let entries = entries.ok_or(size("it exceeds the device"))?;
        let cqe = i32::try_from(entries).map_err(|_| size("it exceeds the device"))?;
        let armed = Box::<Armed>::default();
        let id = ptr::from_ref::<Armed>(&armed).cast_mut().cast();
        let channel_raw = channel.as_ref().map_or(ptr::null_mut(), |channel| channel.raw());
        let vector = context.completion_vector(config.vector);
        // SAFETY: context and channel live, and `armed` outlives the queue, as it goes into the same object.
        let raw =
            unsafe { (context.api.ibv_create_cq)(context.raw(), cqe, id, channel_raw, vector) };
        let failed = || CreateError::System { object: "completion queue", cause: last_cause() };
        let raw = NonNull::new(raw).ok_or_else(failed)?;
        // SAFETY: an object of the library, which was just made.
        let cqn = Cqn::from_low_bits(unsafe { raw.as_ref().handle });
        let (context, state) = (context.clone(), Mutex::default());
        let allow_overcommit = config.allow_overcommit;
        Ok(Self(Arc::new(CqShared {
            context,
            raw,
            channel,
            armed,
            cqn,
            entries,
            allow_overcommit,
            state,
        })))
    }
}

impl CqShared {
    pub(crate) fn raw(&self) -> *mut abi::Cq {
        self.raw.as_ptr()
    }

    /// No invariant spans a panic: every change below is complete before anything can fail.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a batch from the library into the stash; how many there were.
    fn refill(&self, stash: &mut VecDeque<Wc>) -> usize {
        let mut batch = [Wc::default(); BATCH];
        // SAFETY: the queue lives, and the batch has as many places as are asked for.
        let count =
            unsafe { (self.context.ops.poll_cq)(self.raw(), BATCH_COUNT, batch.as_mut_ptr()) };
        // A queue that has failed says less than nothing.
        let count = usize::try_from(count).unwrap_or(0).min(BATCH);
        stash.extend(&batch[..count]);
        count
    }

    /// Takes all there is, but not for ever: other queue pairs go on.
    fn gather(&self, stash: &mut VecDeque<Wc>) {
        let mut left = 2 * self.entries as usize + BATCH;
        while left > 0 {
            let count = self.refill(stash);
            if count == 0 {
                return;
            }
            left = left.saturating_sub(count);
        }
    }

    /// Keeps what was completed so far from the device's clean-up.
    pub(crate) fn save(&self) {
        self.gather(&mut self.state().stash);
    }

    /// Queue pair `qpn` completes nothing any more: forgets what it has completed. Buffers of `srq` come back.
    pub(crate) fn forget(&self, qpn: Qpn, srq: Option<&SrqShared>) {
        let mut state = self.state();
        self.gather(&mut state.stash);
        state.stash.retain(|wc| {
            let is_kept = Qpn::from_low_bits(wc.qp_num) != qpn;
            let id = WrId::from_word(wc.wr_id);
            if let (false, RequestKind::SrqRecv, Some(srq)) = (is_kept, id.of, srq) {
                srq.give_back(id.index);
            }
            is_kept
        });
    }

    /// Completes requests of queue pair `qpn` that never left. Of those without a predecessor the first is the
    /// one that failed.
    pub(crate) fn fail(&self, qpn: Qpn, ids: &[u64]) {
        let failed = ids.iter().enumerate().map(|(nth, &wr_id)| {
            let status = if nth == 0 { status::LOC_QP_OP_ERR } else { status::WR_FLUSH_ERR };
            Wc { wr_id, status, qp_num: qpn.get(), ..Wc::default() }
        });
        let mut state = self.state();
        // What left before has completed before.
        self.gather(&mut state.stash);
        state.stash.extend(failed);
        drop(state);
        self.fire_if_armed();
    }

    fn fire_if_armed(&self) {
        if let Some(channel) = &self.channel
            && self.armed.take()
        {
            channel.fire();
        }
    }

    /// Reserves room for `completions` at once, once per `srq` if they are of one.
    pub(crate) fn attach(
        self: &Arc<Self>,
        completions: u32,
        srq: Option<Srqn>,
    ) -> Result<Share, CreateError> {
        let mut state = self.state();
        let known = srq.and_then(|srqn| state.srqs.iter().position(|known| known.0 == srqn));
        let added = if known.is_some() { 0 } else { completions };
        let needed = state.needed.saturating_add(added);
        if needed > self.entries && !self.allow_overcommit {
            let (cqn, entries) = (self.cqn, self.entries);
            return Err(CreateError::CqTooSmall { cqn, entries, needed });
        }
        state.needed = needed;
        match (known, srq) {
            (Some(at), _) => state.srqs[at].1 += 1,
            (None, Some(srqn)) => state.srqs.push((srqn, 1)),
            (None, None) => {}
        }
        drop(state);
        Ok(Share { cq: Arc::clone(self), completions, srq, datagrams: None })
    }
}

impl Drop for CqShared {
    fn drop(&mut self) {
        // SAFETY: made by `ibv_create_cq`; every queue pair that completes here held `self`. Waits for
        // acknowledgements of events, which come right after the events.
        let _ = unsafe { (self.context.api.ibv_destroy_cq)(self.raw()) };
    }
}

/// Room in a completion queue, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) cq: Arc<CqShared>,
    completions: u32,
    srq: Option<Srqn>,
    datagrams: Option<Qpn>,
}

impl Share {
    /// What `qpn` receives from a shared queue are datagrams.
    pub(crate) fn receives_datagrams(&mut self, qpn: Qpn) {
        self.cq.state().datagrams.push(qpn);
        self.datagrams = Some(qpn);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut state = self.cq.state();
        let mut is_last = true;
        if let Some(at) = self.srq.and_then(|srqn| state.srqs.iter().position(|srq| srq.0 == srqn))
        {
            state.srqs[at].1 -= 1;
            is_last = state.srqs[at].1 == 0;
            if is_last {
                state.srqs.swap_remove(at);
            }
        }
        if is_last {
            state.needed = state.needed.saturating_sub(self.completions);
        }
        if let Some(qpn) = self.datagrams {
            state.datagrams.retain(|known| *known != qpn);
        }
    }
}

impl CompletionQueue for Cq {
    fn cqn(&self) -> Cqn {
        self.0.cqn
    }

    fn entries(&self) -> u32 {
        self.0.entries
    }

    #[inline]
    fn poll(&mut self) -> Option<Completion> {
        let state = &mut *self.0.state();
        if state.stash.is_empty() {
            self.0.refill(&mut state.stash);
        }
        let wc = state.stash.pop_front()?;
        let datagrams = &state.datagrams;
        Some(completion(&wc, |qpn| datagrams.contains(&Qpn::from_low_bits(qpn))))
    }

    fn inline_data(&self) -> &[u8] {
        &[]
    }

    fn arm(&mut self, which: Arm) -> Result<(), ArmError> {
        let cq = &*self.0;
        let channel = cq.channel.as_ref().ok_or(ArmError::NoChannel)?;
        let mut state = cq.state();
        // What an earlier arming has caused must not be taken for news of this one.
        if channel.take_events() {
            channel.fire();
        }
        cq.armed.set();
        let solicited_only = i32::from(which == Arm::Solicited);
        // SAFETY: the queue lives.
        let result = unsafe { (cq.context.ops.req_notify_cq)(cq.raw(), solicited_only) };
        // What came before the request causes no event.
        if state.stash.is_empty() {
            cq.refill(&mut state.stash);
        }
        // A queue that cannot be armed wakes its owner, who finds it dead.
        if result != 0 || !state.stash.is_empty() {
            cq.fire_if_armed();
        }
        Ok(())
    }
}
