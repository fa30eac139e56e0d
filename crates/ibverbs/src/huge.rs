//! Regions of kibibytes, on huge pages that they share.
//!
//! An adapter translates a region by one entry for each page of it, or for each run of memory that is contiguous: a ring of 256 KiB takes
//! 64 entries on small pages, and one here. Each region has a key of its own all the same, which reaches no byte of its
//! neighbours.

use core::ptr::NonNull;
use std::sync::{Mutex, PoisonError, Weak};

use memory::{Region, sync::Arc};

/// Bytes that are shared: one huge page.
const CHUNK_BYTES: usize = 2 << 20;
/// Lengths that share: shorter regions fill a page or two, and of longer ones not two would fit.
const SHARED_BYTES: core::ops::RangeInclusive<usize> = 16 << 10..=CHUNK_BYTES / 2;
/// Lengths are rounded up to this, so that whoever rounds reaches no neighbour.
const STEP_BYTES: usize = 4096;

#[derive(Debug)]
struct Chunk {
    region: Region,
    slot_bytes: usize,
    /// Offsets that nobody has.
    free: Mutex<Vec<usize>>,
}

/// Memory of one region: all of a mapping, or a part of one that others share.
#[derive(Debug)]
pub(crate) enum Memory {
    Whole(Region),
    Part(Part),
}

/// A part of a chunk, which goes back when it is dropped.
#[derive(Debug)]
pub(crate) struct Part {
    chunk: Arc<Chunk>,
    offset: usize,
}

impl Drop for Part {
    fn drop(&mut self) {
        self.chunk.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.offset);
    }
}

impl Memory {
    pub(crate) fn region(&self) -> &Region {
        match self {
            Self::Whole(region) => region,
            Self::Part(part) => &part.chunk.region,
        }
    }

    /// Offset of the first byte in [`region`](Self::region).
    #[inline]
    pub(crate) fn begin(&self) -> usize {
        match self {
            Self::Whole(_) => 0,
            Self::Part(part) => part.offset,
        }
    }

    /// The first byte.
    pub(crate) fn base(&self) -> NonNull<u8> {
        // A part lies inside its chunk.
        self.region().span(self.begin(), 1).map_or(self.region().as_ptr(), |span| span.as_ptr())
    }
}

/// The chunks of one domain.
#[derive(Debug)]
pub(crate) struct HugePages {
    chunks: Mutex<Vec<Weak<Chunk>>>,
    has_reserved: bool,
}

impl HugePages {
    /// On reserved pages too, or on none of them.
    pub(crate) fn new(has_reserved: bool) -> Self {
        Self { chunks: Mutex::default(), has_reserved }
    }

    #[cfg(test)]
    pub(crate) fn has_reserved(&self) -> bool {
        self.has_reserved
    }

    /// Zeroed memory.
    pub(crate) fn alloc(&self, len_bytes: usize) -> Result<Memory, String> {
        if !SHARED_BYTES.contains(&len_bytes) {
            return self.map(len_bytes).map(Memory::Whole);
        }
        let slot_bytes = len_bytes.next_multiple_of(STEP_BYTES);
        let mut chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        chunks.retain(|chunk| chunk.strong_count() > 0);
        let of_length =
            chunks.iter().filter_map(Weak::upgrade).filter(|it| it.slot_bytes == slot_bytes);
        let mut parts = of_length.filter_map(|chunk| {
            let offset = chunk.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
            Some(Part { chunk, offset })
        });
        let taken = parts.next();
        drop(parts);
        let part = match taken {
            Some(part) => {
                // Whoever had it before has left its bytes there.
                let span = part.chunk.region.span(part.offset, slot_bytes);
                let cleared = span.and_then(|span| span.copy_out(&vec![0; slot_bytes]));
                cleared.map_err(|error| error.to_string())?;
                part
            }
            None => {
                let region = self.map(CHUNK_BYTES)?;
                let free = (1..CHUNK_BYTES / slot_bytes).rev().map(|slot| slot * slot_bytes);
                let free = Mutex::new(free.collect());
                let chunk = Arc::new(Chunk { region, slot_bytes, free });
                chunks.push(Arc::downgrade(&chunk));
                Part { chunk, offset: 0 }
            }
        };
        drop(chunks);
        Ok(Memory::Part(part))
    }

    /// A mapping of its own, on huge pages if it is so long.
    fn map(&self, len_bytes: usize) -> Result<Region, String> {
        const NAME: &str = "copyrpc-mr";
        let region = match (len_bytes >= CHUNK_BYTES, self.has_reserved) {
            (true, true) => Region::memfd_huge(NAME, len_bytes),
            (true, false) => Region::memfd_transparent(NAME, len_bytes),
            (false, _) => Region::memfd(NAME, len_bytes),
        };
        let region = region.map_err(|error| error.to_string())?;
        region.seal_size().map_err(|error| error.to_string())?;
        Ok(region.detach())
    }
}
