//! Barriers, each named after its use; a call site needs no further explanation.
//!
//! The first four order this CPU against a DMA device, and nothing else. [`store_load`] orders CPUs
//! against each other, and is what the software NIC uses where hardware has its own rules. All
//! other ordering between CPUs is Acquire and Release on an atomic of [`crate::sync`].
//!
//! | name | x86-64 | AArch64 | elsewhere, Miri, loom |
//! |---|---|---|---|
//! | [`before_dbrec`] | compiler only | `dmb oshst` | Release fence |
//! | [`before_doorbell`] | compiler only | `dmb oshst` | Release fence |
//! | [`after_ownership`] | compiler only | `dmb oshld` | Acquire fence |
//! | [`flush_write_combining`] | `sfence` | `dsb st` | `SeqCst` fence |
//! | [`store_load`] | `SeqCst` fence | `SeqCst` fence | `SeqCst` fence |
//! | [`store_load_after_rmw`] | compiler only | `dmb ish` | `SeqCst` fence |
//!
//! Source: rdma-core `util/udma_barrier.h`.

use crate::sync::Ordering;

#[cfg_attr(
    not(loom),
    expect(clippy::disallowed_methods, reason = "this module is where fences get their names")
)]
#[inline(always)]
fn fence(order: Ordering) {
    #[cfg(loom)]
    loom::sync::atomic::fence(order);
    #[cfg(not(loom))]
    core::sync::atomic::fence(order);
}

/// Emits `$instruction` on `$arch`; a fence of the named order where there is no such machine to
/// talk to: other architectures, Miri and loom.
macro_rules! device_barrier {
    ($x86:literal, $aarch64:literal, $order:ident) => {{
        #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
        // SAFETY: touches no register, flag or memory; as it may access memory for all that the
        // compiler knows, no access moves across it.
        unsafe {
            core::arch::asm!($x86, options(nostack, preserves_flags));
        }
        #[cfg(all(target_arch = "aarch64", not(any(miri, loom))))]
        // SAFETY: touches no register, flag or memory; as it may access memory for all that the
        // compiler knows, no access moves across it.
        unsafe {
            core::arch::asm!($aarch64, options(nostack, preserves_flags));
        }
        #[cfg(any(miri, loom, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
        fence(Ordering::$order);
    }};
}

/// Between WQEs (or consumed CQEs) and the doorbell record that announces them: a device that reads
/// the record sees them.
#[inline(always)]
pub fn before_dbrec() {
    device_barrier!("", "dmb oshst", Release);
}

/// Between stores to DMA memory and the MMIO store that rings a doorbell: a device that takes the
/// doorbell sees them.
///
/// On x86-64 an MMIO store to uncached memory is never ahead of earlier stores. One to a
/// write-combining BlueFlame page may be: it stands between two [`flush_write_combining`].
#[inline(always)]
pub fn before_doorbell() {
    device_barrier!("", "dmb oshst", Release);
}

/// After seeing an ownership bit that says "software's": loads that follow see what the device
/// wrote before it flipped the bit.
#[inline(always)]
pub fn after_ownership() {
    device_barrier!("", "dmb oshld", Acquire);
}

/// Before and after stores to write-combining memory: pushes out what was stored before, to the device
/// too, ahead of any later store.
#[inline(always)]
pub fn flush_write_combining() {
    device_barrier!("sfence", "dsb st", SeqCst);
}

/// Between a store that others look for and a load of what they store: at least one side of a
/// Dekker-style handshake sees the other.
///
/// Used where two parties each announce something and then look for the other's announcement, both
/// with this barrier in between:
///
/// - *publish, then check armed*: a producer publishes an entry, then loads the `armed` word to
///   learn whether to wake the consumer; the consumer arms, then looks for an entry once more.
/// - *announce a hazard, then recheck*: a user names the object it is about to touch, then loads
///   the object's state again; the owner invalidates the object, then looks for announcements.
///
/// Acquire and Release do not order a store before a later load, on any machine.
#[inline(always)]
pub fn store_load() {
    fence(Ordering::SeqCst);
}

/// [`store_load`] where the store was the atomic read-modify-write, with `SeqCst`, right before.
///
/// On x86-64 a locked instruction orders everything before it against everything after it (Intel
/// SDM 3A, 9.2.3.9; AMD APM 2, 7.4.2), so only the compiler has to be told.
#[inline(always)]
pub fn store_load_after_rmw() {
    device_barrier!("", "dmb ish", SeqCst);
}
