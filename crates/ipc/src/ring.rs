//! A ring of slots that carries requests one way, and another one that carries responses back.
//!
//! ```text
//!          slot 0      slot 1                     slot depth - 1
//!        ┌───────────┬───────────┬───────────────┬───────────┐
//!        │ header    │ header    │      ...      │ header    │ 8 bytes, written last: publishes
//!        │ payload   │ payload   │               │ payload   │ 56 bytes; longer: in the bulk area
//!        └───────────┴───────────┴───────────────┴───────────┘
//! ```
//!
//! There is no head, no tail and no credit. A producer writes the slot of its position and then the
//! header with the *tag* of the current lap; a consumer looks at one slot until it carries that tag.
//! A message of up to 56 bytes thus moves in the one cache line that also announces it.
//!
//! # Why no producer overtakes its consumer
//!
//! A client has at most `depth` calls in flight, and a call ends when its response is consumed.
//!
//! - *Requests.* To publish position `p + depth` a client must have had a response to one of the
//!   requests `p ..= p + depth - 1`. The server takes requests in order, so it had taken `p`.
//! - *Responses.* The server publishes response `r + depth` only if it took `r + depth + 1`
//!   requests. The last of these was published after the client consumed `r + 1` responses, so the
//!   client had consumed response `r`.
//!
//! In both cases the chain of publications also orders the consumer's loads of a slot before the
//! producer's next stores to it. The same holds of the bulk area of a call, which belongs to the
//! client until it publishes the request and again once it consumed the response.
//!
//! A client that breaks the rule hurts only itself: its requests are checked against what the server
//! keeps in private memory, and responses land in its own half.

use core::cell::Cell;

use memory::{
    Filler,
    sync::{AtomicU64, Ordering},
};

use crate::header::{Header, Tag};

/// The bytes of one message.
pub trait MessageBytes {
    /// Storing it runs code of the program, which may panic or [give it up](Self::is_given_up): it is stored before
    /// anything is noted about it.
    const MAY_PANIC: bool = false;

    /// Length of the message.
    fn len_bytes(&self) -> usize;

    /// Stores the message as [`SlotMemory::store`] does.
    fn store(&self, slots: &impl SlotMemory, slot: usize, call: u16);

    /// Whether it was found, while it was stored, that there is no such message.
    #[inline(always)]
    fn is_given_up(&self) -> bool {
        false
    }
}

impl MessageBytes for [u8] {
    #[inline(always)]
    fn len_bytes(&self) -> usize {
        self.len()
    }

    #[inline(always)]
    fn store(&self, slots: &impl SlotMemory, slot: usize, call: u16) {
        slots.store(slot, call, self);
    }
}

impl<const N: usize> MessageBytes for [u8; N] {
    #[inline(always)]
    fn len_bytes(&self) -> usize {
        N
    }

    #[inline(always)]
    fn store(&self, slots: &impl SlotMemory, slot: usize, call: u16) {
        slots.store(slot, call, self);
    }
}

/// Parts that follow each other.
impl MessageBytes for [&[u8]] {
    #[inline]
    fn len_bytes(&self) -> usize {
        self.iter().map(|part| part.len()).sum()
    }

    #[inline]
    fn store(&self, slots: &impl SlotMemory, slot: usize, call: u16) {
        slots.store_parts(slot, call, self);
    }
}

/// A message that is filled where its receiver will read it.
pub struct Filled<'h, F> {
    head: &'h [&'h [u8]],
    len_bytes: usize,
    fill: Cell<Option<F>>,
    is_given_up: Cell<bool>,
}

impl<'h, F: FnOnce(&mut Filler<'_>)> Filled<'h, F> {
    /// A message of so many bytes behind its head, which `fill` puts. If `fill` panics, or
    /// [gives up](Filler::give_up), nothing is sent.
    pub fn behind(head: &'h [&'h [u8]], len_bytes: usize, fill: F) -> Self {
        let (fill, is_given_up) = (Cell::new(Some(fill)), Cell::new(false));
        Self { head, len_bytes, fill, is_given_up }
    }
}

impl<F> core::fmt::Debug for Filled<'_, F> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Filled").field("len_bytes", &self.len_bytes).finish_non_exhaustive()
    }
}

impl<F: FnOnce(&mut Filler<'_>)> MessageBytes for Filled<'_, F> {
    const MAY_PANIC: bool = true;

    #[inline]
    fn len_bytes(&self) -> usize {
        self.head.iter().fold(self.len_bytes, |sum, part| sum.saturating_add(part.len()))
    }

    #[inline]
    fn store(&self, slots: &impl SlotMemory, slot: usize, call: u16) {
        let mut filler = slots.filler(slot, call, self.len_bytes());
        for part in self.head {
            filler.put(part).expect("the head is a part of the message");
        }
        if let Some(fill) = self.fill.take() {
            fill(&mut filler);
        }
        self.is_given_up.set(filler.is_given_up());
        filler.finish();
    }

    #[inline]
    fn is_given_up(&self) -> bool {
        self.is_given_up.get()
    }
}

/// The memory of a ring's slots.
pub trait SlotMemory {
    /// Logarithm of the number of slots.
    fn depth_log2(&self) -> u32;

    /// The depth less one.
    #[inline(always)]
    fn slot_mask(&self) -> usize {
        (1 << self.depth_log2()) - 1
    }

    /// Header of a slot below the depth.
    fn header(&self, slot: usize) -> &AtomicU64;

    /// Stores a message to a slot or, if it is too long, to the bulk area of its call.
    fn store(&self, slot: usize, call: u16, message: &[u8]);

    /// Stores the parts of a message, one behind the other, where [`store`](Self::store) would.
    fn store_parts(&self, slot: usize, call: u16, parts: &[&[u8]]);

    /// The bytes of a message of this length, to be filled where [`store`](Self::store) would put them.
    fn filler(&self, slot: usize, call: u16, len_bytes: usize) -> Filler<'_>;

    /// Asks for the line of a slot below the depth, without waiting for it.
    fn prefetch(&self, slot: usize);

    /// Loads a message, once. `call` is below the depth and the length was checked.
    fn load(&self, slot: usize, call: u16, message: &mut [u8]);
}

/// The other side wrote a tag of neither this lap nor the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadTag;

/// Position of the side that fills a ring.
#[derive(Debug)]
pub struct Producer {
    position: u64,
}

/// Position of the side that empties a ring.
#[derive(Debug)]
pub struct Consumer {
    position: u64,
}

/// Messages between the one that is consumed and the one that is asked for: what is handled while a
/// line travels.
const PREFETCH_SLOTS: u64 = 8;

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "masked to the depth, at most 4096")]
fn slot_of(position: u64, slots: &impl SlotMemory) -> usize {
    position as usize & slots.slot_mask()
}

/// Gives all slots the tag of the lap before the one that contains `position`.
pub fn reset(slots: &impl SlotMemory, position: u64) {
    let depth = 1u64 << slots.depth_log2();
    for position in (0..depth).map(|offset| position.wrapping_add(offset)) {
        let tag = Tag::of(position, slots.depth_log2()).before();
        let header = slots.header(slot_of(position, slots));
        header.store(tag.to_word(), Ordering::Relaxed);
    }
}

impl Producer {
    /// Begins at a position that the consumer begins at, too.
    #[must_use]
    pub fn new(position: u64) -> Self {
        Self { position }
    }

    /// Number of messages ever published, plus the first position.
    #[inline]
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Publishes one message. The caller keeps the rule above: fewer than `depth` calls in flight.
    #[inline(always)]
    pub fn publish<M: MessageBytes + ?Sized>(
        &mut self,
        slots: &impl SlotMemory,
        header: Header,
        message: &M,
    ) {
        self.store(slots, header.call, message);
        self.announce(slots, header);
    }

    /// The first half of [`publish`](Self::publish), with which nothing changes.
    #[inline(always)]
    pub fn store<M: MessageBytes + ?Sized>(&self, slots: &impl SlotMemory, call: u16, message: &M) {
        message.store(slots, slot_of(self.position, slots), call);
    }

    /// The second half of [`publish`](Self::publish).
    #[inline(always)]
    pub fn announce(&mut self, slots: &impl SlotMemory, header: Header) {
        let slot = slot_of(self.position, slots);
        crate::pause::at("filled");
        let word = header.pack(Tag::of(self.position, slots.depth_log2()));
        // SYNC(slot): the message before its header; pairs with the Acquire in `Consumer::peek`.
        slots.header(slot).store(word, Ordering::Release);
        self.position = self.position.wrapping_add(1);
    }
}

impl Consumer {
    /// Begins at a position that the producer begins at, too.
    #[must_use]
    pub fn new(position: u64) -> Self {
        Self { position }
    }

    /// Number of messages ever consumed, plus the first position.
    #[inline]
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Header of the next message, an allegation of the other side, if it is published.
    ///
    /// # Errors
    ///
    /// [`BadTag`].
    #[inline(always)]
    pub fn peek(&self, slots: &impl SlotMemory) -> Result<Option<Header>, BadTag> {
        let header = slots.header(slot_of(self.position, slots));
        let tag = Tag::of(self.position, slots.depth_log2());
        // SYNC(slot): the header before its message; pairs with the Release in `Producer::publish`.
        let word = header.load(Ordering::Acquire);
        match Tag::of_word(word) {
            found if found == tag => Ok(Some(Header::unpack(word))),
            found if found == tag.before() => Ok(None),
            _ => Err(BadTag),
        }
    }

    /// Asks for the line of a message that may have been published behind the next: a consumer that
    /// waits for one line after the other gets no more than one per transfer.
    #[inline(always)]
    pub fn prefetch(&self, slots: &impl SlotMemory) {
        let ahead = self.position.wrapping_add(PREFETCH_SLOTS);
        slots.prefetch(slot_of(ahead, slots));
    }

    /// The slot of the message that [`peek`](Self::peek) looks at.
    #[inline(always)]
    pub fn slot(&self, slots: &impl SlotMemory) -> usize {
        slot_of(self.position, slots)
    }

    /// Moves on behind a message that was copied by other means, or is lent.
    #[inline(always)]
    pub fn skip(&mut self) {
        self.position = self.position.wrapping_add(1);
    }

    /// Copies the message of a header that [`peek`](Self::peek) just returned and the caller found
    /// plausible, and moves on.
    #[inline(always)]
    pub fn take(&mut self, slots: &impl SlotMemory, header: Header, message: &mut [u8]) {
        slots.load(slot_of(self.position, slots), header.call, message);
        self.position = self.position.wrapping_add(1);
    }
}
