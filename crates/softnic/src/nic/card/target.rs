//! A queue pair as the senders that reach it see it: its entry copied once, checked, then used.

use core::{cell::Cell, ptr::NonNull};

use memory::sync::Ordering;
use verbs::{Access, QpState, RnrTimer, Transport};
use wire::{
    cqe::Syndrome,
    ids::{Lid, Qpn, UserIndex},
};

use super::{
    Card,
    layout::{QpEntry, QpFault, address_word},
    views::{CqView, RqView, Taken},
};
use crate::shared::{Holder, claims::TakeError, slots::ReserveError};

/// Of a completion, or why there is no room for it.
type Position = Result<u64, ReserveError>;

/// What a [`QpEntry::control`] word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Control {
    pub(crate) generation: u64,
    pub(crate) transport: Transport,
    pub(crate) state: QpState,
}

impl Control {
    pub(crate) fn encode(self) -> u64 {
        let position = |all: &[QpState]| all.iter().position(|&s| s == self.state).unwrap_or(0);
        self.generation << 16 | (self.transport as u64) << 8 | position(&QpState::ALL) as u64
    }

    pub(crate) fn decode(word: u64) -> Option<Self> {
        let [state, transport, ..] = word.to_le_bytes();
        let transport = match transport {
            0 => Transport::Rc,
            1 => Transport::Ud,
            2 => Transport::Dci,
            3 => Transport::Dct,
            _ => return None,
        };
        let state = *QpState::ALL.get(usize::from(state))?;
        Some(Self { generation: word >> 16, transport, state })
    }
}

/// A queue pair that can be sent to.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// Keeps the entries mapped.
    card: Card,
    entry: NonNull<QpEntry>,
    fault: NonNull<QpFault>,
    /// What `control` said when everything below was copied.
    control: u64,
    pub(crate) qpn: Qpn,
    pub(crate) transport: Transport,
    pub(crate) pd: u32,
    pub(crate) access: Access,
    /// RC: the only sender that is heard, as the entry names it.
    peer: u64,
    /// Q_Key or DC access key.
    pub(crate) key: u64,
    pub(crate) rnr_wait_ns: u64,
    /// READs and atomics that may be outstanding here.
    pub(crate) reads_in_max: u8,
    pub(crate) scatter_to_cqe: bool,
    /// A connection without answers.
    pub(crate) is_unreliable: bool,
    pub(crate) cq: CqView,
    pub(crate) rq: Option<RqView>,
    /// What completions of receives call it.
    pub(crate) user_index: UserIndex,
    /// How many receives this sender knows to be posted.
    posted_seen: Cell<u64>,
}

// SAFETY: the pointers lead into mappings that `card` keeps and hold atomics.
unsafe impl Send for Target {}

impl Target {
    /// The queue pair `qpn`, if it exists, takes messages, and its entry makes sense.
    pub(crate) fn resolve(card: &Card, qpn: Qpn) -> Option<Self> {
        let entry = card.qp(qpn.get())?;
        // SYNC(qp-entry): pairs with the owner's `Release` after it changed the entry.
        let control = entry.control.load(Ordering::Acquire);
        let decoded = Control::decode(control)?;
        if !decoded.state.responds() || decoded.transport == Transport::Dci {
            return None;
        }
        let access_pd = entry.access_pd.load(Ordering::Relaxed);
        let queues = entry.queues.load(Ordering::Relaxed);
        let (user_index, flags) = split(entry.flags.load(Ordering::Relaxed));
        let [flags, rnr_code, reads_in_max, ..] = flags.to_le_bytes();
        let (rq_index, cq_index) = split(queues);
        let (access, pd) = split(access_pd);
        let rq = RqView::resolve(card, rq_index);
        let target = Self {
            user_index: UserIndex::from_low_bits(user_index),
            entry: NonNull::from(entry),
            fault: NonNull::from(card.qp_fault(qpn.get())?),
            control,
            qpn,
            transport: decoded.transport,
            pd,
            access: Access::from_bits_truncate(access),
            peer: entry.peer.load(Ordering::Relaxed),
            key: entry.key.load(Ordering::Relaxed),
            rnr_wait_ns: u64::from(RnrTimer::from_code(rnr_code).wait().subsec_nanos()),
            reads_in_max,
            scatter_to_cqe: flags & 1 != 0,
            is_unreliable: flags & 2 != 0,
            cq: CqView::resolve(card, cq_index)?,
            rq,
            posted_seen: Cell::new(0),
            card: card.clone(),
        };
        target.is_current().then_some(target)
    }

    /// Whether nothing has changed since it was resolved.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        // SAFETY: `card` keeps it mapped; this is a load.
        let entry = unsafe { self.entry.as_ref() };
        // SYNC(qp-entry): pairs with the owner's `Release` after it changed the entry.
        entry.control.load(Ordering::Acquire) == self.control && self.fault_word() == 0
    }

    /// Whether `from` is the peer that it is connected to.
    #[inline(always)]
    pub(crate) fn is_peer(&self, (lid, qpn): (Lid, Qpn)) -> bool {
        self.peer == address_word(lid, qpn)
    }

    /// Takes a receive from `rq`, which is its queue, and the position of its completion; `is_alone`: the
    /// queue is exclusive. Before any byte is moved: read-modify-writes wait for all stores before them.
    #[inline(always)]
    pub(crate) fn take(
        &self,
        rq: &RqView,
        holder: Holder,
        is_alone: bool,
    ) -> Result<(Taken, Position), TakeError> {
        if !is_alone && rq.srqn.is_none() {
            return self.take_in_order(rq, holder);
        }
        let taken = rq.take(holder, &self.posted_seen, is_alone)?;
        Ok((taken, self.cq.reserve(holder)))
    }

    /// [`take`](Self::take) from a ring that several senders share: its receives complete in order, which a
    /// driver relies on, so one sender at a time takes both.
    #[inline(never)]
    fn take_in_order(&self, rq: &RqView, holder: Holder) -> Result<(Taken, Position), TakeError> {
        rq.enter_order(holder)?;
        let taken = rq.take(holder, &self.posted_seen, true);
        let both = taken.map(|taken| (taken, self.cq.reserve(holder)));
        rq.order().give(holder);
        both
    }

    #[inline]
    fn fault_word(&self) -> u64 {
        // SAFETY: `card` keeps "rw" mapped.
        unsafe { self.fault.as_ref() }.syndrome.load(Ordering::Relaxed)
    }

    /// Moves the queue pair to ERR on behalf of its owner, who will flush it.
    pub(crate) fn break_down(&self, syndrome: Syndrome) {
        // SAFETY: `card` keeps "rw" mapped, and it is writable.
        let fault = unsafe { self.fault.as_ref() };
        fault.syndrome.store(u64::from(syndrome.code()), Ordering::Relaxed);
        // SYNC(attention): pairs with the owner's `Acquire` swap when it is idle.
        self.card.shared().attention.store(1, Ordering::Release);
    }
}

#[expect(clippy::cast_possible_truncation, reason = "takes a word apart")]
const fn split(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}
