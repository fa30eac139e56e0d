//! Stores to device registers: a doorbell is exactly one store of exactly its width, never torn or merged.
//!
//! A BlueFlame page is write-combining: its stores may wait in a buffer until
//! [`barrier::flush_write_combining`](crate::barrier::flush_write_combining).
//!
//! Source: rdma-core `util/mmio.h`.

/// Bytes that a BlueFlame copy is a multiple of: one basic block of a WQE.
pub const BLUEFLAME_UNIT_BYTES: usize = 64;

/// Stores `value`, whose bytes are already in the order that the device expects.
///
/// # Safety
///
/// `register` is 8-byte aligned and maps a device register (or memory that plays one) that may be
/// written now.
#[inline(always)]
pub unsafe fn write_u64(register: *mut u64, value: u64) {
    // SAFETY: by contract.
    unsafe { register.write_volatile(value) }
}

/// Stores `value` in big-endian order.
///
/// # Safety
///
/// As for [`write_u64`].
#[inline(always)]
pub unsafe fn write_u64_be(register: *mut u64, value: u64) {
    // SAFETY: by contract.
    unsafe { register.write_volatile(value.to_be()) }
}

/// A WQE basic block, as the words that are stored.
type Block = [u64; BLUEFLAME_UNIT_BYTES / 8];

/// Stores WQE basic blocks to a BlueFlame buffer in ascending order: on AArch64 each by one instruction, elsewhere 8 bytes
/// at a time.
///
/// # Safety
///
/// `buffer` is 8-byte aligned and maps as many bytes of a BlueFlame buffer (or of memory that plays
/// one) as `blocks` holds; no other thread writes to it.
#[inline(always)]
pub unsafe fn copy_to_blueflame(buffer: *mut u64, blocks: &[Block]) {
    for (index, block) in blocks.iter().enumerate() {
        // SAFETY: in bounds and aligned, by contract.
        unsafe { store_block(buffer.wrapping_add(index * block.len()), block) };
    }
}

/// Eight stores need not leave as one packet on AArch64, and of a WQE that comes in parts an adapter reads the original.
///
/// Source: rdma-core `util/mmio.h`, `_mmio_memcpy_x64_64b`.
#[cfg(all(target_arch = "aarch64", not(any(miri, loom))))]
#[inline(always)]
unsafe fn store_block(to: *mut u64, block: &Block) {
    // SAFETY: the caller lends the block, which is read, and owns the buffer, where as many bytes are stored; the four
    // registers are named. Miri and loom have the other function: on AArch64 under QEMU, once by hand,
    // `blueflame_copies_whole_blocks_and_nothing_more` has checked this one.
    unsafe {
        core::arch::asm!(
            "ld4 {{v0.2d, v1.2d, v2.2d, v3.2d}}, [{from}]",
            "st4 {{v0.2d, v1.2d, v2.2d, v3.2d}}, [{to}]",
            from = in(reg) block.as_ptr(),
            to = in(reg) to,
            out("v0") _,
            out("v1") _,
            out("v2") _,
            out("v3") _,
            options(nostack, preserves_flags)
        );
    }
}

/// A write-combining buffer makes one packet of them.
#[cfg(any(not(target_arch = "aarch64"), miri, loom))]
#[inline(always)]
unsafe fn store_block(to: *mut u64, block: &Block) {
    for (index, &word) in block.iter().enumerate() {
        // SAFETY: in bounds and aligned, by the caller's contract.
        unsafe { to.wrapping_add(index).write_volatile(word) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doorbell_value_has_device_byte_order() {
        let mut register = 0u64;
        // SAFETY: a local variable plays the register.
        unsafe { write_u64_be(&raw mut register, 0x0102_0304_0506_0708) };
        assert_eq!(register.to_ne_bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn blueflame_copies_whole_blocks_and_nothing_more() {
        let blocks: [[u64; 8]; 2] =
            core::array::from_fn(|b| core::array::from_fn(|w| (b * 8 + w) as u64));
        let mut buffer = [u64::MAX; 17];
        // SAFETY: a local array of more than two blocks plays the buffer.
        unsafe { copy_to_blueflame(buffer.as_mut_ptr(), &blocks) };
        assert_eq!(buffer[..16], *blocks.as_flattened());
        assert_eq!(buffer[16], u64::MAX);
    }
}
