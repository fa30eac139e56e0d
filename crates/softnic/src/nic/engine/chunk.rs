//! Pieces of registered memory, checked and ready to copy.

/// Bytes that lie in a mapped segment, or in a WQE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    pub(crate) ptr: *mut u8,
    pub(crate) len: usize,
    /// Inline payload: in its WQE, or in a private copy of it that was made a moment ago. Of either all
    /// octowords are there.
    pub(crate) is_inline: bool,
}

// SAFETY: a chunk is an address; whoever dereferences it answers for the mapping.
unsafe impl Send for Chunk {}

/// In which order bytes of a message become visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// By ascending address, the last bytes with Release: who polls the last byte sees all.
    Ascending,
    /// In pieces, in an order drawn from the seed: what relaxed ordering and strict mode allow.
    Shuffled(u64),
}

/// Granularity at which strict mode shuffles.
const PIECE_BYTES: usize = 64;

/// Copies the bytes of `from`, one chunk after another, into those of `to`. Stops at the shorter.
///
/// # Safety
///
/// All chunks are mapped, those of `to` writable, and no reference to plain data covers them.
#[inline(always)]
pub(crate) unsafe fn copy(to: &[Chunk], from: &[Chunk], order: Order) {
    if let ([to], [from]) = (to, from)
        && order == Order::Ascending
    {
        let len = to.len.min(from.len);
        if from.is_inline {
            // SAFETY: by contract; a WQE is the engine's until it completes, all of its words.
            return unsafe { memory::copy::copy_behind_header_publish(to.ptr, from.ptr, len) };
        }
        // SAFETY: by contract; the length is the shorter one.
        return unsafe { memory::copy::copy_between_publish(to.ptr, from.ptr, len) };
    }
    // SAFETY: by contract.
    unsafe { copy_pieces(to, from, order) };
}

/// [`copy`] where there is more than one piece.
///
/// # Safety
///
/// As for [`copy`].
unsafe fn copy_pieces(to: &[Chunk], from: &[Chunk], order: Order) {
    match order {
        Order::Ascending => walk(to, from, usize::MAX, |to, from, len| {
            // SAFETY: by contract; `walk` stays inside both.
            unsafe { memory::copy::copy_between_publish(to, from, len) };
        }),
        Order::Shuffled(seed) => {
            let mut pieces = Vec::new();
            walk(to, from, PIECE_BYTES, |to, from, len| pieces.push((to, from, len)));
            let mut random = crate::nic::strict::Random::new(seed);
            while !pieces.is_empty() {
                let (to, from, len) = pieces.swap_remove(random.below(pieces.len()));
                // SAFETY: by contract; `walk` stays inside both.
                unsafe { memory::copy::copy_between(to, from, len) };
            }
        }
    }
}

/// Calls `step` for each longest run, at most `len_max`, that is contiguous on both sides.
fn walk(
    to: &[Chunk],
    from: &[Chunk],
    len_max: usize,
    mut step: impl FnMut(*mut u8, *const u8, usize),
) {
    let (mut to, mut from) = (to.iter().copied(), from.iter().copied());
    let (mut target, mut source) = (to.next(), from.next());
    while let (Some(t), Some(s)) = (&mut target, &mut source) {
        let len = t.len.min(s.len).min(len_max);
        if len > 0 {
            step(t.ptr, s.ptr, len);
        }
        for chunk in [&mut *t, &mut *s] {
            chunk.ptr = chunk.ptr.wrapping_add(len);
            chunk.len -= len;
        }
        if t.len == 0 {
            target = to.next();
        }
        if s.len == 0 {
            source = from.next();
        }
    }
}

/// Copies at most `into.len()` bytes out of `from` and returns how many.
///
/// # Safety
///
/// All chunks are mapped, and no mutable reference covers them.
pub(crate) unsafe fn copy_out_of(from: &[Chunk], into: &mut [u8]) -> usize {
    let mut done = 0;
    let target = Chunk { ptr: into.as_mut_ptr(), len: into.len(), is_inline: false };
    walk(&[target], from, usize::MAX, |to, from, len| {
        // SAFETY: by contract; `to` is inside `into`.
        unsafe { memory::copy::copy_between(to, from, len) };
        done += len;
    });
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_split_copies_every_byte_once() {
        let region = |len: usize| crate::nic::rig::region_of(&vec![0; len]);
        let chunk = |region: &memory::Region, offset: usize, len| Chunk {
            ptr: region.as_ptr().as_ptr().wrapping_add(offset),
            len,
            is_inline: false,
        };
        let all: Vec<u8> = (0..200).collect();
        let from = crate::nic::rig::region_of(&all);
        for order in [Order::Ascending, Order::Shuffled(7)] {
            for cut in [0, 1, 63, 64, 65, 199, 200] {
                let source =
                    [chunk(&from, 0, cut), chunk(&from, 0, 0), chunk(&from, cut, 200 - cut)];
                let (first, second) = (region(150), region(50));
                let target = [chunk(&first, 0, 150), chunk(&second, 0, 50)];
                // SAFETY: live regions of these lengths.
                unsafe { copy(&target, &source, order) };
                let mut found = [0; 200];
                first.span(0, 150).unwrap().copy_in(&mut found[..150]);
                second.span(0, 50).unwrap().copy_in(&mut found[150..]);
                assert_eq!(found[..], all, "{order:?}, cut at {cut}");
            }
        }
    }
}
