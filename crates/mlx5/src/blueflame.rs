//! BlueFlame registers: how a doorbell, or a whole WQE, gets to an adapter.
//!
//! ```text
//! base          base + half
//! ├──────────────┼──────────────┤      used in turns: the next write must not be merged with the last
//! ```
//!
//! An adapter has fewer registers than programs have queue pairs, so libmlx5 gives several queue pairs the
//! same one. Their writes must not mix: a shared register has a lock. A queue pair with a thread domain of
//! its own has a register of its own, and needs none.
//!
//! Source: rdma-core `providers/mlx5/qp.c`, `post_send_db`; `util/udma_barrier.h`, `mmio_wc_start` and
//! `mmio_flush_writes`.

use core::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use memory::{barrier, mmio, sync::Arc};

use crate::device::WqeBlocks;

/// A register for doorbells, on a write-combining page. For implementers of
/// [`DeviceQp`](crate::device::DeviceQp).
#[derive(Debug)]
pub struct BlueFlame {
    base: NonNull<u8>,
    half_bytes: usize,
    turn: Turn,
}

/// Offset of the half that is written next.
#[derive(Debug)]
enum Turn {
    Own(usize),
    Shared(Arc<Mutex<usize>>),
}

// SAFETY: a pointer to a register, which is tied to no thread; a register that several threads write is
// behind its lock.
unsafe impl Send for BlueFlame {}

impl BlueFlame {
    /// The register at `base`, with two halves of `half_bytes` (`mlx5dv_qp.bf.size`). With 0 bytes it takes
    /// doorbells, and no WQE.
    ///
    /// # Safety
    ///
    /// `base` is 8-byte aligned and maps that register, or memory that plays one, for as long as the result
    /// or anything it was [shared](Self::share) with lives. Nothing else writes there.
    #[must_use]
    pub unsafe fn new(base: NonNull<u8>, half_bytes: usize) -> Self {
        Self { base, half_bytes, turn: Turn::Own(0) }
    }

    /// The same register for another queue pair. From now on each write takes a lock.
    #[must_use]
    pub fn share(&mut self) -> Self {
        let turn = match &self.turn {
            Turn::Own(offset) => Arc::new(Mutex::new(*offset)),
            Turn::Shared(turn) => turn.clone(),
        };
        self.turn = Turn::Shared(turn.clone());
        Self { turn: Turn::Shared(turn), ..*self }
    }

    /// Bytes of a WQE that it takes; 0: only doorbells.
    #[must_use]
    pub fn bytes_max(&self) -> usize {
        self.half_bytes
    }

    /// Stores the first 8 bytes of a WQE.
    #[inline]
    pub fn ring(&mut self, ctrl: [u8; 8]) {
        self.in_turn(|register| {
            // SAFETY: by the contract of `new`, and it is this writer's turn.
            unsafe { mmio::write_u64(register, u64::from_ne_bytes(ctrl)) };
        });
    }

    /// Copies a WQE.
    ///
    /// # Panics
    ///
    /// If it is longer than [`bytes_max`](Self::bytes_max).
    #[inline]
    pub fn write(&mut self, wqe: &(impl WqeBlocks + ?Sized)) {
        let len_bytes = wqe.count() * mmio::BLUEFLAME_UNIT_BYTES;
        assert!(len_bytes <= self.half_bytes, "{len_bytes} B for {} B", self.half_bytes);
        self.in_turn(|register| {
            for index in 0..wqe.count() {
                let block = [wqe.block(index)];
                let at = register.wrapping_add(index * block.as_flattened().len());
                // SAFETY: inside the half by the assertion above; otherwise as in `ring`.
                unsafe { mmio::copy_to_blueflame(at, &block) };
            }
        });
    }

    #[inline]
    fn in_turn(&mut self, write: impl FnOnce(*mut u64)) {
        let (base, half_bytes) = (self.base.as_ptr(), self.half_bytes);
        let go = |offset: &mut usize| {
            barrier::flush_write_combining();
            write(base.wrapping_add(*offset).cast());
            // Before the next write, whoever makes it: this is what the other half is for.
            barrier::flush_write_combining();
            *offset ^= half_bytes;
        };
        match &mut self.turn {
            Turn::Own(offset) => go(offset),
            Turn::Shared(turn) => go(&mut turn.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two halves of 64 bytes and a word that nothing may touch.
    fn register(words: &mut [u64; 17], half_bytes: usize) -> BlueFlame {
        let base = NonNull::new(words.as_mut_ptr().cast::<u8>()).unwrap();
        // SAFETY: a local array plays the register, and outlives it in each test.
        unsafe { BlueFlame::new(base, half_bytes) }
    }

    const BLOCK: [[u64; 8]; 1] = [[1, 2, 3, 4, 5, 6, 7, 8]];

    #[test]
    fn halves_are_written_in_turns() {
        let mut words = [0; 17];
        let mut register = register(&mut words, 64);
        register.write(&BLOCK[..]);
        register.ring(9u64.to_ne_bytes());
        register.ring(10u64.to_ne_bytes());
        assert_eq!(words, [10, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn queue_pairs_of_one_register_take_turns_too() {
        let mut words = [0; 17];
        let mut first = register(&mut words, 64);
        first.ring(1u64.to_ne_bytes());
        let mut second = first.share();
        let mut third = second.share();
        second.ring(2u64.to_ne_bytes());
        third.ring(3u64.to_ne_bytes());
        first.ring(4u64.to_ne_bytes());
        assert_eq!((words[0], words[8]), (3, 4));
        assert_eq!(first.bytes_max(), 64);
    }

    #[test]
    fn a_register_without_halves_takes_doorbells() {
        let mut words = [0; 17];
        let mut register = register(&mut words, 0);
        register.ring(1u64.to_ne_bytes());
        register.ring(2u64.to_ne_bytes());
        assert_eq!(register.bytes_max(), 0);
        assert_eq!(words[..2], [2, 0]);
    }

    #[test]
    #[should_panic(expected = "64 B for 0 B")]
    fn a_wqe_that_does_not_fit_is_not_written() {
        register(&mut [0; 17], 0).write(&BLOCK[..]);
    }
}
