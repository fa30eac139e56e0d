//! The BlueFlame registers of an open device.

use core::ptr::NonNull;
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use mlx5::BlueFlame;

/// Registers that queue pairs were given, by their addresses. They are mapped as long as the device is open.
#[derive(Debug, Default)]
pub(super) struct Registers(Mutex<HashMap<usize, BlueFlame>>);

impl Registers {
    /// The register at `base`, with two halves of `half_bytes`.
    ///
    /// # Safety
    ///
    /// `base` is a register that libmlx5 has described, of the device that `self` belongs to; the result is
    /// dropped before that is closed.
    pub(super) unsafe fn at(&self, base: NonNull<u8>, half_bytes: usize) -> BlueFlame {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let register = known.entry(base.addr().get()).or_insert_with(|| {
            // SAFETY: by contract; libmlx5 writes to it only for queue pairs that post by libmlx5, and those of
            // this device do not.
            unsafe { BlueFlame::new(base, half_bytes) }
        });
        register.share()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_pairs_of_one_register_take_turns() {
        let mut words = [0u64; 16];
        let base = NonNull::new(words.as_mut_ptr()).unwrap().cast::<u8>();
        let registers = Registers::default();
        // SAFETY: a local array plays the register, and outlives both.
        let [mut first, mut second] = [(), ()].map(|()| unsafe { registers.at(base, 64) });
        first.ring(1u64.to_ne_bytes());
        second.ring(2u64.to_ne_bytes());
        assert_eq!((words[0], words[8]), (1, 2));
    }
}
