//! A card's queues as their producers use them: descriptor copied once, checked, then used.

use core::{cell::Cell, ptr::NonNull};

use memory::sync::{AtomicU32, AtomicU64, Ordering};
use wire::{
    cqe::{self, CqeView, Scatter},
    doorbell,
    ids::Srqn,
    wqe::{self, Sge},
};

use super::{
    Card, Half,
    layout::{CqEntry, CqState, LENT, RqEntry, RqState, VALID},
    words::Words,
};
use crate::shared::{
    Holder,
    arm::Armed,
    claims::{Claims, TakeError},
    port_lock::PortLock,
    presence::Alone,
    slots::{ReserveError, Slots, nearest},
};

/// `count` words of a doorbell record.
fn dbrec_words(
    card: &Card,
    geometry: u64,
    offset: u64,
    count: usize,
) -> Option<NonNull<AtomicU32>> {
    let first = card.place(Half::Ro, geometry, offset, count * size_of::<AtomicU32>())?;
    Some(first.cast::<AtomicU32>()).filter(|first| first.is_aligned())
}

/// How long a producer waits for one of the previous lap: 30 ms or more. In proofs on one thread
/// nobody else gets on meanwhile.
const CONTENDED_YIELDS_MAX: u32 = if cfg!(any(test, fuzzing)) { 16 } else { 100_000 };

/// The same for a sender that waits until it may take a receive: each time after 10 µs.
const ORDER_YIELDS_MAX: u32 = if cfg!(any(test, fuzzing)) { 2 } else { 3_000 };

/// The word of a CQE64 that says when it was written, in ticks of the device's clock: nanoseconds.
const TIMESTAMP_WORD: usize = 6;

/// A completion queue, for those who complete into it.
#[derive(Clone, Debug)]
pub(crate) struct CqView {
    /// Keeps everything below mapped.
    card: Card,
    pub(crate) index: u32,
    /// The CQE64 of entry 0: in a 128-byte entry that is the second half.
    ring: NonNull<u8>,
    log_entries: u8,
    log_cqe_bytes: u8,
    words: Words<AtomicU64>,
    state: NonNull<CqState>,
    entry: NonNull<CqEntry>,
    /// The consumer's word of the doorbell record.
    consumed: NonNull<AtomicU32>,
    /// Channel number, 0 without one.
    pub(crate) channel: u32,
    /// Memory of a program, which may want to know when its requests completed.
    is_lent: bool,
}

// SAFETY: the pointers lead into mappings that `card` keeps and that any thread may access through
// atomics.
unsafe impl Send for CqView {}
// SAFETY: as above; all access is by atomics and by entries that `Slots` hands to one producer.
unsafe impl Sync for CqView {}

impl CqView {
    /// The queue at `index`, if its descriptor makes sense.
    pub(crate) fn resolve(card: &Card, index: u32) -> Option<Self> {
        let entry = card.cq(index)?;
        // SYNC(cq-entry): pairs with the owner's `Release` when the queue was created.
        let geometry = entry.geometry.load(Ordering::Acquire);
        let [log_entries, ..] = geometry.to_le_bytes();
        let cqe_bytes = (geometry >> 8 & 0xffff) as usize;
        if geometry & VALID == 0 || log_entries > 22 || !matches!(cqe_bytes, 64 | 128) {
            return None;
        }
        let count = 1usize << log_entries;
        let offset = entry.ring_offset.load(Ordering::Relaxed);
        let ring = card.place(Half::Rw, geometry, offset, count * cqe_bytes)?;
        if !ring.addr().get().is_multiple_of(cqe::CQE_BYTES) {
            return None;
        }
        let state = card.cq_state(index)?;
        let slots_offset = entry.slots_offset.load(Ordering::Relaxed);
        let dbrec_offset = entry.dbrec_offset.load(Ordering::Relaxed);
        Some(Self {
            index,
            // SAFETY: an entry has `cqe_bytes`, of which the last 64 are the CQE64.
            ring: unsafe { ring.add(cqe_bytes - cqe::CQE_BYTES) },
            log_entries,
            log_cqe_bytes: if cqe_bytes == 128 { 7 } else { 6 },
            words: Words::locate(&card.rw, slots_offset, count)?,
            state: NonNull::from(state),
            entry: NonNull::from(entry),
            // SAFETY: one of the two words that were located.
            consumed: unsafe {
                dbrec_words(card, geometry, dbrec_offset, 2)?.add(doorbell::CQ_CONSUMER_WORD)
            },
            channel: u32::try_from(entry.channel.load(Ordering::Relaxed)).ok()?,
            is_lent: geometry & LENT != 0,
            card: card.clone(),
        })
    }

    /// Whether a payload of `len_bytes` may go into the entry.
    pub(crate) fn scatter_room(&self) -> usize {
        if self.has_payload_half() { cqe::INLINE_64_BYTES } else { cqe::INLINE_32_BYTES }
    }

    /// Whether entries have 128 bytes.
    pub(crate) fn has_payload_half(&self) -> bool {
        1 << self.log_cqe_bytes > cqe::CQE_BYTES
    }

    #[inline(always)]
    fn state(&self) -> &CqState {
        // SAFETY: `card` keeps "rw" mapped, and it is writable.
        unsafe { self.state.as_ref() }
    }

    #[inline(always)]
    pub(crate) fn slots(&self) -> Slots<'_> {
        // SAFETY: `card` keeps "rw" mapped, and it is writable.
        let words = unsafe { self.words.get() };
        Slots::new(words, &self.state().tail, &self.state().consumed_seen)
    }

    pub(crate) fn armed(&self) -> Armed<'_> {
        Armed(&self.state().armed)
    }

    pub(crate) fn is_overrun(&self) -> bool {
        self.state().overrun.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn mark_overrun(&self) {
        self.state().overrun.store(1, Ordering::Relaxed);
        self.card.shared().attention.store(1, Ordering::Release);
    }

    /// Low 24 bits of the consumer's position.
    #[inline]
    pub(crate) fn consumed(&self) -> u32 {
        // SAFETY: `card` keeps "ro" mapped; this is a load.
        let record = unsafe { self.consumed.as_ref() };
        // SYNC(doorbell-record): pairs with the driver's `Release` after it has read an entry.
        doorbell::consumer_of_word(record.load(Ordering::Acquire))
    }

    /// First of the eight words of the CQE64 at `position`.
    fn entry(&self, position: u64) -> *const AtomicU64 {
        #[expect(clippy::cast_possible_truncation, reason = "masked to the number of entries")]
        let index = position as usize & (self.words.count - 1);
        self.ring.as_ptr().wrapping_add(index << self.log_cqe_bytes).cast_const().cast()
    }

    /// Takes the next entry for [`publish_at`](Self::publish_at).
    ///
    /// # Errors
    ///
    /// [`ReserveError`]; nothing was taken, and the queue is marked as overrun.
    #[inline(always)]
    pub(crate) fn reserve(&self, holder: Holder) -> Result<u64, ReserveError> {
        if self.is_exclusive()
            && !self.is_overrun()
            && let Ok(position) = self.slots().reserve_alone(holder, || self.consumed())
        {
            return Ok(position);
        }
        self.reserve_shared(holder)
    }

    #[inline(never)]
    fn reserve_shared(&self, holder: Holder) -> Result<u64, ReserveError> {
        // A queue that has overrun takes no entry any more, however many are polled.
        if self.is_overrun() {
            return Err(ReserveError::Overrun);
        }
        let reserve = || self.slots().reserve(holder, || self.consumed());
        let mut position = reserve();
        for _ in 0..CONTENDED_YIELDS_MAX {
            if position != Err(ReserveError::Contended) {
                break;
            }
            // Another producer was interrupted between publishing an entry and freeing its slot.
            memory::sync::thread::yield_now();
            position = reserve();
        }
        position.inspect_err(|_| self.mark_overrun())
    }

    /// Whether there is only one producer. Valid while inside a presence: a second producer waits
    /// until everybody has left.
    #[inline(always)]
    fn is_exclusive(&self) -> bool {
        // SAFETY: `card` keeps "ro" mapped; this is a load.
        let entry = unsafe { self.entry.as_ref() };
        Alone(&entry.is_exclusive).is_alone()
    }

    /// Writes the entry at `position`, which [`reserve`](Self::reserve) gave to the caller. `payload`
    /// is what a 128-byte entry holds in its first half. Between making the entry visible and
    /// freeing its slot it calls `published`.
    #[inline(always)]
    pub(crate) fn publish_at(
        &self,
        position: u64,
        cqe: &CqeView<'_>,
        payload: &[u8],
        published: impl FnOnce(),
    ) {
        self.fill(position, cqe, payload);
        published();
        self.finish(position);
    }

    /// Frees the slot of the entry at `position`, which the caller has filled.
    #[inline(always)]
    pub(crate) fn finish(&self, position: u64) {
        self.slots().finish(position);
    }

    /// Reserves and publishes, for housekeeping: it runs outside any presence, and so never as the
    /// only producer.
    ///
    /// # Errors
    ///
    /// [`ReserveError`]; nothing was written, and the queue is marked as overrun.
    pub(crate) fn publish(
        &self,
        holder: Holder,
        cqe: &CqeView<'_>,
        published: impl FnOnce(),
    ) -> Result<(), ReserveError> {
        let position = self.reserve_shared(holder)?;
        self.publish_at(position, cqe, &[], published);
        Ok(())
    }

    /// Writes the entry at `position`, which the caller holds.
    #[inline(always)]
    pub(crate) fn fill(&self, position: u64, cqe: &CqeView<'_>, payload: &[u8]) {
        let entry = self.entry(position);
        if !payload.is_empty() && self.has_payload_half() {
            debug_assert!(payload.len() <= cqe::INLINE_64_BYTES);
            let half = entry.cast::<u8>().wrapping_sub(cqe::INLINE_64_BYTES).cast_mut();
            // SAFETY: the first half of the entry; the slot word gave it to this producer.
            unsafe { memory::copy::copy_out(half, payload) };
        }
        #[expect(clippy::cast_possible_truncation, reason = "the low bit of the lap")]
        let owner = (position >> self.log_entries) as u8 & 1;
        let mut words = cqe.encode(owner).to_words();
        if self.is_lent && !matches!(cqe, CqeView::Error(_)) {
            words[TIMESTAMP_WORD] = os::clock::now_ns().to_be();
        }
        for (i, &word) in words[..7].iter().enumerate() {
            // SAFETY: inside the entry, which the slot word gave to this producer.
            let slot = unsafe { &*entry.wrapping_add(i) };
            slot.store(word, Ordering::Relaxed);
        }
        // SAFETY: inside the entry, as above.
        let last = unsafe { &*entry.wrapping_add(7) };
        // SYNC(cqe-owner): pairs with the driver's `Acquire` of the same word.
        last.store(words[7], Ordering::Release);
    }

    /// The entry at `position`, if it has been published.
    pub(crate) fn read(&self, position: u64) -> Option<cqe::Cqe> {
        let entry = self.entry(position);
        let mut words = [0; 8];
        for (i, word) in words.iter_mut().enumerate().rev() {
            // SAFETY: inside the ring, which `card` keeps mapped.
            let slot = unsafe { &*entry.wrapping_add(i) };
            *word = slot.load(Ordering::Acquire);
        }
        #[expect(clippy::cast_possible_truncation, reason = "only the low bits count")]
        let index = position as u32;
        // A lap of more than 32 bits of positions ends in the same bit: entries are a power of 2.
        let op_own = cqe::op_own_of_last_word(words[7]);
        cqe::is_written(op_own, index, self.log_entries).then(|| cqe::Cqe::from_words(words))
    }

    /// Position of the entry that the consumer will poll next, by its doorbell record.
    pub(crate) fn consumer_position(&self) -> u64 {
        // The tail is a hint: a producer may have published before it moved it.
        nearest(self.state().tail.load(Ordering::Relaxed), self.consumed())
    }

    /// Entries that are published and not yet polled, oldest first.
    pub(crate) fn unpolled(&self) -> impl Iterator<Item = cqe::Cqe> + '_ {
        let start = self.consumer_position();
        let end = start.saturating_add(1 << self.log_entries);
        (start..end).map_while(|position| self.read(position))
    }

    /// Writes what a producer has written that dies before the last word.
    #[cfg(test)]
    pub(crate) fn fill_half(&self, position: u64, cqe: &CqeView<'_>) {
        let words = cqe.encode(0).to_words();
        for (i, &word) in words[..4].iter().enumerate() {
            // SAFETY: inside the entry, which the slot word gave to this producer.
            let slot = unsafe { &*self.entry(position).wrapping_add(i) };
            slot.store(word, Ordering::Relaxed);
        }
    }

    /// Fills and frees a held but unpublished entry for a dead producer.
    pub(crate) fn fill_hole(&self, position: u64, cqe: &CqeView<'_>) {
        self.fill(position, cqe, &[]);
        self.slots().finish(position);
    }
}

/// Whether a payload can travel in a CQE, and how: in one of 128 bytes it goes into the first half, so that
/// the second still says who sent it.
pub(crate) fn scatter_for<'a>(room: usize, payload: &'a [u8]) -> Option<(Scatter<'a>, &'a [u8])> {
    if payload.is_empty() || payload.len() > room {
        None
    } else if room <= cqe::INLINE_32_BYTES {
        Some((Scatter::InCqe(payload), &[]))
    } else {
        Some((Scatter::Preceding64, payload))
    }
}

/// A receive queue, for those who send into it.
#[derive(Clone, Debug)]
pub(crate) struct RqView {
    /// Keeps everything below mapped.
    _card: Card,
    ring: NonNull<u8>,
    pub(crate) log_entries: u8,
    log_stride: u8,
    /// One less than the entries, which are a power of two.
    last_index: u16,
    pub(crate) srqn: Option<Srqn>,
    /// Domain of the memory that receives lie in: an SRQ's own, which need not be that of the queue
    /// pairs that use it.
    pub(crate) pd: u32,
    posted: NonNull<AtomicU32>,
    claims: Words<AtomicU64>,
    state: NonNull<RqState>,
    entry: NonNull<RqEntry>,
}

// SAFETY: as for `CqView`.
unsafe impl Send for RqView {}
// SAFETY: as for `CqView`.
unsafe impl Sync for RqView {}

/// A receive that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// In the ring.
    pub(crate) index: u16,
    /// In its completion.
    pub(crate) counter: u16,
    /// Receives of the queue that were taken before it.
    pub(crate) count: u64,
}

/// A count as completions and records have it, modulo 2¹⁶.
#[expect(clippy::cast_possible_truncation, reason = "counters are modulo 2^16")]
const fn low_half(count: u64) -> u16 {
    count as u16
}

/// Longest receive WQE.
pub(crate) const RECV_WQE_BYTES_MAX: usize = 1 << 9;

impl RqView {
    /// The queue at `index`, if its descriptor makes sense.
    pub(crate) fn resolve(card: &Card, index: u32) -> Option<Self> {
        let entry = card.rq(index)?;
        // SYNC(rq-entry): pairs with the owner's `Release` when the queue was created.
        let geometry = entry.geometry.load(Ordering::Acquire);
        let [log_entries, log_stride, is_srq, ..] = geometry.to_le_bytes();
        let possible = log_entries <= 15 && (4..=9).contains(&log_stride);
        if geometry & VALID == 0 || !possible {
            return None;
        }
        let count = 1usize << log_entries;
        let offset = entry.ring_offset.load(Ordering::Relaxed);
        let ring = card.place(Half::Ro, geometry, offset, count << log_stride)?;
        if !ring.cast::<AtomicU64>().is_aligned() {
            return None;
        }
        let dbrec_offset = entry.dbrec_offset.load(Ordering::Relaxed);
        let claims_offset = entry.claims_offset.load(Ordering::Relaxed);
        let state = card.rq_state(index)?;
        Some(Self {
            ring,
            log_entries,
            log_stride,
            last_index: (1 << log_entries) - 1,
            srqn: (is_srq != 0).then_some(Srqn::new(index)?),
            pd: u32::try_from(entry.pd.load(Ordering::Relaxed)).ok()?,
            posted: dbrec_words(card, geometry, dbrec_offset, 1)?,
            claims: Words::locate(&card.rw, claims_offset, count)?,
            state: NonNull::from(state),
            entry: NonNull::from(entry),
            _card: card.clone(),
        })
    }

    #[inline(always)]
    pub(crate) fn claims(&self) -> Claims<'_> {
        // SAFETY: `card` keeps "rw" mapped, and it is writable.
        let state = unsafe { self.state.as_ref() };
        // SAFETY: as above.
        Claims::new(&state.head, unsafe { self.claims.get() })
    }

    /// Whether only one sender takes receives. Valid while inside a presence: a second one waits until
    /// everybody has left.
    #[inline(always)]
    pub(crate) fn is_exclusive(&self) -> bool {
        // SAFETY: `card` keeps "ro" mapped; this is a load.
        let entry = unsafe { self.entry.as_ref() };
        Alone(&entry.is_exclusive).is_alone()
    }

    /// Who takes a receive, and the position of its completion: of a ring that several senders share.
    #[inline(always)]
    pub(crate) fn order(&self) -> PortLock<'_> {
        // SAFETY: `card` keeps "rw" mapped, and it is writable.
        PortLock(unsafe { &self.state.as_ref().order })
    }

    /// Nobody takes a receive. Only before anyone else knows the queue.
    pub(crate) fn reset_order(&self) {
        self.order().0.store(0, Ordering::Relaxed);
    }

    /// Waits until `holder` has the [order](Self::order).
    ///
    /// # Errors
    ///
    /// [`TakeError::Contended`]: who has it was stopped, or is dead and not yet known to be.
    pub(crate) fn enter_order(&self, holder: Holder) -> Result<(), TakeError> {
        for _ in 0..ORDER_YIELDS_MAX {
            if self.order().try_take(holder) {
                return Ok(());
            }
            memory::sync::thread::yield_now();
        }
        Err(TakeError::Contended)
    }

    /// Receives posted so far, modulo 2¹⁶.
    pub(crate) fn posted(&self) -> u16 {
        // SAFETY: `card` keeps "ro" mapped; this is a load.
        let record = unsafe { self.posted.as_ref() };
        // SYNC(doorbell-record): pairs with the driver's `Release` after it wrote the receive WQEs.
        doorbell::counter_of_word(record.load(Ordering::Acquire))
    }

    /// Takes the next receive. `posted_seen` is how many this sender knows to be posted: it reads
    /// the doorbell record again only when it has used those up. The record counts modulo 2¹⁶, a
    /// sender that comes back after 2¹⁶ receives of others must not, so it counts on. `alone`:
    /// the queue [is exclusive](Self::is_exclusive), or this sender has its [order](Self::order).
    #[inline(always)]
    pub(crate) fn take(
        &self,
        holder: Holder,
        posted_seen: &Cell<u64>,
        alone: bool,
    ) -> Result<Taken, TakeError> {
        // The closures are written twice so that each has one use, and is inlined there.
        if alone {
            let available = |count| self.is_posted(count, posted_seen);
            let taken = self.claims().take_alone(holder, available, |index| self.next(index));
            if taken != Err(TakeError::Contended) {
                return taken.map(|(index, count)| self.taken(index, count));
            }
        }
        let available = |count| self.is_posted(count, posted_seen);
        let taken = self.claims().take(holder, available, |index| self.next(index));
        taken.map(|(index, count)| self.taken(index, count))
    }

    /// Whether more than `count` receives were ever posted.
    #[inline(always)]
    fn is_posted(&self, count: u64, posted_seen: &Cell<u64>) -> bool {
        if count >= posted_seen.get() {
            let left = self.posted().wrapping_sub(low_half(count));
            if (1..=1u16 << self.log_entries).contains(&left) {
                posted_seen.set(count + u64::from(left));
            }
        }
        count < posted_seen.get()
    }

    /// Names a receive as completions do: in an SRQ by index, in an RQ by the running counter.
    #[inline(always)]
    pub(crate) fn taken(&self, index: u16, count: u64) -> Taken {
        Taken { index, counter: if self.srqn.is_some() { index } else { low_half(count) }, count }
    }

    /// Does for a dead sender what remained of taking a receive.
    pub(crate) fn pass(&self, taken: Taken) {
        self.claims().pass(taken.index, taken.count, |index| self.next(index));
    }

    /// The completion of a receive that `holder` took is published.
    #[inline]
    pub(crate) fn release(&self, taken: Taken, holder: Holder) {
        self.claims().release(taken.index, taken.count, holder);
    }

    /// [`release`](Self::release) after [`take`](Self::take) with `alone`.
    #[inline(always)]
    pub(crate) fn release_alone(&self, taken: Taken) {
        self.claims().release_alone(taken.index, taken.count);
    }

    #[inline(always)]
    fn next_in_ring(&self, index: u16) -> u16 {
        index.wrapping_add(1) & self.last_index
    }

    /// Index that follows `index`: in a list, what the owner wrote there.
    #[inline(always)]
    fn next(&self, index: u16) -> u16 {
        if self.srqn.is_none() {
            return self.next_in_ring(index);
        }
        let first = self.wqe(index).cast::<AtomicU64>();
        // SAFETY: inside the ring, by `wqe`, which `card` keeps mapped; aligned as the ring is; this is a
        // load.
        let [_, _, high, low, ..] = unsafe { &*first }.load(Ordering::Relaxed).to_ne_bytes();
        let next = u16::from_be_bytes([high, low]);
        // Its owner wrote it, and whoever takes it has to look at it before anything is done.
        memory::line::prefetch(self.wqe(next));
        next
    }

    fn wqe(&self, index: u16) -> *const u8 {
        let mask = (1usize << self.log_entries) - 1;
        let offset = (usize::from(index) & mask) << self.log_stride;
        self.ring.as_ptr().wrapping_add(offset)
    }

    /// The entry of receive `index`, if it has just one.
    #[inline(always)]
    pub(crate) fn only_entry(&self, index: u16) -> Option<Sge> {
        let first = self.wqe(index).cast::<AtomicU64>();
        let word = |at: usize| {
            // SAFETY: inside the receive, by the check below, and so inside the ring, which `card`
            // keeps mapped; aligned as the ring is; this is a load.
            unsafe { &*first.wrapping_add(at) }.load(Ordering::Relaxed)
        };
        let (at, words) = (if self.srqn.is_some() { 2 } else { 0 }, 1 << self.log_stride >> 3);
        if at + 2 > words {
            return None;
        }
        let after = (at + 2 < words).then(|| word(at + 2));
        wqe::plain_receive([word(at), word(at + 1)], after)
    }

    /// Copies receive WQE `index` to the start of `into` and returns that part of it.
    pub(crate) fn read_wqe<'b>(
        &self,
        index: u16,
        into: &'b mut [u8; RECV_WQE_BYTES_MAX],
    ) -> &'b [u8] {
        let wqe = &mut into[..1 << self.log_stride];
        // SAFETY: inside the ring, by `wqe`; `card` keeps it mapped; the owner may write meanwhile.
        unsafe { memory::copy::copy_in(wqe, self.wqe(index)) };
        wqe
    }
}
