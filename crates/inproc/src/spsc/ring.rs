//! The memory that both ends of a ring share: slots, the words of the discipline, and the hang-up flags.

use core::{mem::MaybeUninit, ptr::NonNull};
use std::alloc::{self, Layout};

use memory::{
    Line, line,
    sync::{Arc, AtomicBool, AtomicUsize, Ordering, UnsafeCell},
};

/// The protocol of a [`Discipline`](super::Discipline): stateless decisions over shared words.
///
/// `tail` and `head` are positions: items ever published, and items ever taken out.
pub trait Rules: Sized + 'static {
    /// Per slot, next to the item.
    type Stamp: Default + Send + Sync;
    /// Per ring, on cache lines of their own.
    type Words: Send + Sync;

    /// Whether what says that slots are full is one word for all of them.
    const HAS_INDEX: bool;

    /// Slots (a power of two) for at least `capacity_items`, and how many items surely fit.
    fn slots(capacity_items: usize) -> (usize, usize);
    /// Words of an empty ring.
    fn words(slots: usize) -> Self::Words;

    /// Producer: a position `p` such that all slots of `tail..p` are free. `p - tail >= want` if
    /// that many are free, and `p > tail` if any is.
    fn free_until<T>(ring: &Ring<T, Self>, tail: usize, want: usize) -> usize;
    /// Producer: the items at `from..to` are written. Makes them visible, in order.
    fn publish<T>(ring: &Ring<T, Self>, from: usize, to: usize);
    /// Consumer: a position `p` such that all slots of `head..p` are full. `p - head >= want` if
    /// that many are full, and `p > head` if any is.
    fn full_until<T>(ring: &Ring<T, Self>, head: usize, want: usize) -> usize;
    /// Consumer: the items at `from..to` are moved out. Returns their slots.
    fn release<T>(ring: &Ring<T, Self>, from: usize, to: usize);
}

/// A ring; see [`Rules`] for who may touch a slot when.
pub struct Ring<T, D: Rules> {
    pub(super) slots: Slots<T, D::Stamp>,
    pub(super) words: D::Words,
    pub(super) ends: Line<Ends>,
    pub(super) capacity_items: usize,
}

// SAFETY: a `Ring` is reached only through one producer and one consumer, which hand items from one
// thread to the other (hence `T: Send`) and never give out `&T` (hence no `T: Sync`).
unsafe impl<T: Send, D: Rules> Sync for Ring<T, D> {}
// SAFETY: owning a `Ring` means owning its `T`s.
unsafe impl<T: Send, D: Rules> Send for Ring<T, D> {}

/// The hang-up flags. Written when an end leaves, read by the other end.
#[derive(Default)]
pub(super) struct Ends {
    /// Final position of the producer.
    pub(super) tail: AtomicUsize,
    /// Final position of the consumer.
    pub(super) head: AtomicUsize,
    pub(super) is_producer_gone: AtomicBool,
    pub(super) is_consumer_gone: AtomicBool,
}

impl<T, D: Rules> Ring<T, D> {
    pub(super) fn shared(capacity_items: usize) -> Arc<Self> {
        let (slots, capacity_items) = D::slots(capacity_items);
        Arc::new(Self {
            slots: Slots::new(slots),
            words: D::words(slots),
            ends: Line::default(),
            capacity_items,
        })
    }
}

impl<T, D: Rules> Drop for Ring<T, D> {
    fn drop(&mut self) {
        // Both ends are gone, and dropping the last `Arc` synchronised with them.
        let tail = self.ends.tail.load(Ordering::Relaxed);
        let mut head = self.ends.head.load(Ordering::Relaxed);
        while head != tail {
            self.slots.at(head).item.with_mut(|item| {
                // SAFETY: `head..tail` hold published items that were not taken; `&mut self` owns them.
                unsafe { item.cast::<T>().drop_in_place() };
            });
            head = head.wrapping_add(1);
        }
    }
}

/// One item and what the discipline keeps next to it.
#[repr(C)]
pub(super) struct Slot<T, S> {
    pub(super) stamp: S,
    pub(super) item: UnsafeCell<MaybeUninit<T>>,
}

/// A power of two of slots that begin on a cache line, so that items of 64 bytes occupy one line.
pub(super) struct Slots<T, S> {
    first: NonNull<Slot<T, S>>,
    mask: usize,
}

impl<T, S: Default> Slots<T, S> {
    fn new(len: usize) -> Self {
        assert!(len.is_power_of_two());
        let layout = Self::layout(len);
        let first = if layout.size() == 0 {
            NonNull::dangling()
        } else {
            // SAFETY: the layout is not empty.
            let first = unsafe { alloc::alloc(layout) };
            NonNull::new(first.cast()).unwrap_or_else(|| alloc::handle_alloc_error(layout))
        };
        let slots = Self { first, mask: len - 1 };
        for index in 0..len {
            let slot = Slot { stamp: S::default(), item: UnsafeCell::new(MaybeUninit::uninit()) };
            // SAFETY: in bounds, by the mask; the slot is ours alone and holds nothing yet.
            unsafe { slots.pointer(index).write(slot) };
        }
        slots
    }
}

impl<T, S> Slots<T, S> {
    /// Slots that begin in one cache line, at least: a power of two.
    const PER_LINE: usize = {
        let bytes = size_of::<Slot<T, S>>();
        if bytes > 32 { 1 } else { 64 / bytes.next_power_of_two() }
    };

    fn layout(len: usize) -> Layout {
        let layout = Layout::array::<Slot<T, S>>(len).and_then(|all| all.align_to(LINE_ALIGN));
        layout.expect("the slots fit the address space")
    }

    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.mask + 1
    }

    #[inline(always)]
    fn pointer(&self, position: usize) -> *mut Slot<T, S> {
        self.first.as_ptr().wrapping_add(position & self.mask)
    }

    #[inline(always)]
    pub(super) fn at(&self, position: usize) -> &Slot<T, S> {
        // SAFETY: in bounds, by the mask, and initialised by `new`. A shared reference is fine:
        // what changes is an atomic or inside an `UnsafeCell`.
        unsafe { &*self.pointer(position) }
    }

    /// Slots that begin in one cache line, at least.
    #[inline(always)]
    pub(super) fn per_line(&self) -> usize {
        Self::PER_LINE
    }

    /// Producer: asks for a line ahead of `position`, which is about to be written, so that it does not
    /// wait for one after the other. Slots before `limit` are free: no other thread wants that line.
    #[inline(always)]
    pub(super) fn prefetch_to_write(&self, position: usize, limit: usize) {
        if let Some(ahead) = Self::slot_ahead(position, limit) {
            line::prefetch_to_write(self.pointer(ahead));
        }
    }

    /// Consumer: the same of a line that is about to be read. Slots before `limit` are full.
    #[inline(always)]
    pub(super) fn prefetch_to_read(&self, position: usize, limit: usize) {
        if let Some(ahead) = Self::slot_ahead(position, limit) {
            line::prefetch(self.pointer(ahead));
        }
    }

    /// The slot to prefetch at the first slot of a line, if it is before `limit`.
    #[inline(always)]
    fn slot_ahead(position: usize, limit: usize) -> Option<usize> {
        let distance = LINES_AHEAD * Self::PER_LINE;
        let is_due = position & (Self::PER_LINE - 1) == 0;
        (is_due && limit.wrapping_sub(position) > distance).then(|| position.wrapping_add(distance))
    }

    /// Slots from `position` on that lie next to each other, at most `max`.
    #[inline(always)]
    pub(super) fn run(&self, position: usize, max: usize) -> &[Slot<T, S>] {
        let count = max.min(self.len() - (position & self.mask));
        // SAFETY: `count` slots from `position` on are in bounds; otherwise as in `at`.
        unsafe { core::slice::from_raw_parts(self.pointer(position), count) }
    }
}

impl<T, S> Drop for Slots<T, S> {
    fn drop(&mut self) {
        for index in 0..self.len() {
            // SAFETY: initialised by `new`; the ring dropped the items before.
            unsafe { self.pointer(index).drop_in_place() };
        }
        let layout = Self::layout(self.len());
        if layout.size() > 0 {
            // SAFETY: allocated by `new` with this layout.
            unsafe { alloc::dealloc(self.first.as_ptr().cast(), layout) };
        }
    }
}

/// The distance of prefetches ahead of both ends: as many lines as travel at the same time.
const LINES_AHEAD: usize = 8;

const LINE_ALIGN: usize = align_of::<Line<u8>>();
