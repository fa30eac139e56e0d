//! Wakeups without a lost one: the words by which client and server tell each other whether they poll,
//! and whether they sleep.
//!
//! | word | written by | says |
//! |---|---|---|
//! | [`PolledFlag`] | server, one per client | whether the server polls this client's ring |
//! | [`WakeupBits`] | all clients | which clients that are not polled have published something |
//! | [`SleepFlag`] | server | whether it sleeps, and needs a datagram to look at the bits |
//! | [`NapEpoch`] | client | odd while it sleeps, and needs a datagram to look at its ring |
//!
//! In each of the two handshakes, one side publishes, and then looks whether the other side must be
//! told. The other side announces that it must be told, and then looks once more. Both have a
//! [`store_load`](memory::barrier::store_load) between the two steps.
//!
//! The barrier waits until all earlier stores are visible, which costs as much as a cache-line
//! transfer. Both sides therefore first look *without* it, which finds a side that has slept for
//! longer than that. They look again *with* it once they have been idle for a few polls, or after a
//! few more messages, and always before they sleep themselves.
//!
//! [`WakeupBits`] is the only word that one client can change under another one. A hostile client can
//! make the server look in vain, or clear the bit of another client. The victim then waits until the
//! server looks at the rings of all clients, which it does at a fixed interval.

use memory::{
    barrier,
    sync::{AtomicU32, AtomicU64, Ordering},
};

/// Bytes between the words of [`WakeupBits`], so that clients of different words do not share a line.
const BITS_STRIDE_BYTES: usize = 128;

/// Offset of the word with the bit of a slot.
#[must_use]
pub fn bits_offset_bytes(slot: u16) -> usize {
    word_offset_bytes(usize::from(slot / 64))
}

/// Offset of a word that has the bits of 64 slots.
#[must_use]
pub fn word_offset_bytes(word: usize) -> usize {
    word * BITS_STRIDE_BYTES
}

/// The bit of a slot in its word.
#[must_use]
pub fn bit_of(slot: u16) -> u32 {
    u32::from(slot % 64)
}

/// Bytes that the bits of this many slots take.
#[must_use]
pub fn bits_bytes(slots: u16) -> usize {
    usize::from(slots.div_ceil(64)) * BITS_STRIDE_BYTES
}

/// Whether the server polls a client's ring by itself.
#[derive(Clone, Copy, Debug)]
pub struct PolledFlag<'a>(pub &'a AtomicU32);

const UNATTENDED: u32 = 0;
const POLLED: u32 = 1;

/// One bit per client, 64 clients per word.
#[derive(Clone, Copy, Debug)]
pub struct WakeupBits<'a>(pub &'a AtomicU64);

/// Whether the server sleeps.
#[derive(Clone, Copy, Debug)]
pub struct SleepFlag<'a>(pub &'a AtomicU32);

/// Whether a client sleeps.
#[derive(Clone, Copy, Debug)]
pub struct NapEpoch<'a>(pub &'a AtomicU32);

impl PolledFlag<'_> {
    /// Client: whether the server did not poll its ring a moment ago. A hint without a barrier, which
    /// may miss a server that stops polling right now: ask [`must_wake`] in time.
    #[inline]
    #[must_use]
    pub fn is_unattended(self) -> bool {
        self.0.load(Ordering::Relaxed) != POLLED
    }

    /// Server: this client's ring is polled from now on.
    #[inline]
    pub fn promote(self) {
        self.0.store(POLLED, Ordering::Relaxed);
    }

    /// Server: this client's ring is no longer polled, once the caller looked at it *again*.
    #[inline]
    pub fn demote(self) {
        self.0.store(UNATTENDED, Ordering::Relaxed);
        // SYNC(polled_flag): the announcement before the caller's last look at the ring; pairs with
        // the barrier in `must_wake`.
        barrier::store_load();
    }
}

/// Client, after publishing requests: whether it must [`signal`].
#[inline]
#[must_use]
pub fn must_wake(polled_flag: PolledFlag<'_>) -> bool {
    // SYNC(polled_flag): the requests before the look; pairs with the barrier in `demote`.
    // SYNC(bits): the requests before the bit that `signal` sets; pairs with the Acquire in
    // `WakeupBits::take`.
    barrier::store_load();
    polled_flag.is_unattended()
}

/// Client that [`must_wake`]: leaves a hint. Returns whether the server sleeps, and needs a
/// datagram too.
#[inline]
#[must_use]
pub fn signal(bits: WakeupBits<'_>, bit: u32, asleep: SleepFlag<'_>) -> bool {
    bits.0.fetch_or(1 << bit, Ordering::Relaxed);
    // SYNC(asleep): the bit before the look; pairs with the barrier in `SleepFlag::fall_asleep`.
    barrier::store_load();
    asleep.0.load(Ordering::Relaxed) != 0
}

impl WakeupBits<'_> {
    /// Server: takes all bits, which are hints.
    #[inline]
    pub fn take(self) -> u64 {
        if self.0.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        // SYNC(bits): the bit before the look at the ring that it hints at; pairs with the barrier
        // in `must_wake`.
        self.0.swap(0, Ordering::Acquire)
    }

    /// Server: whether there is any bit.
    #[inline]
    #[must_use]
    pub fn any(self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

impl SleepFlag<'_> {
    /// Server: sleeps once the caller looked at the bits *again*.
    #[inline]
    pub fn fall_asleep(self) {
        self.0.store(1, Ordering::Relaxed);
        // SYNC(asleep): the announcement before the caller's last look at the bits; pairs with the
        // barrier in `signal`.
        barrier::store_load();
    }

    /// Server: looks at the bits by itself again.
    #[inline]
    pub fn wake_up(self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

impl NapEpoch<'_> {
    /// Client: sleeps once the caller looked at the responses *again*. `epoch` counts naps.
    #[inline]
    pub fn arm(self, epoch: &mut u32) {
        *epoch = epoch.wrapping_add(1) | 1;
        self.0.store(*epoch, Ordering::Relaxed);
        // SYNC(armed): the announcement before the caller's last look at the responses; pairs with
        // the barrier in `after_responses`.
        barrier::store_load();
    }

    /// Client: polls by itself again.
    #[inline]
    pub fn disarm(self, epoch: &mut u32) {
        *epoch = epoch.wrapping_add(1) & !1;
        self.0.store(*epoch, Ordering::Relaxed);
    }

    /// Server: whether the client sleeps and was not told in this nap. Final only after
    /// [`after_responses`].
    #[inline]
    pub fn needs_datagram(self, told_epoch: &mut u32) -> bool {
        let epoch = self.0.load(Ordering::Relaxed);
        let needs = epoch % 2 == 1 && epoch != *told_epoch;
        if needs {
            *told_epoch = epoch;
        }
        needs
    }
}

/// Server, once after publishing responses to any number of clients, and before it asks
/// [`NapEpoch::needs_datagram`] for each of them.
#[inline]
pub fn after_responses() {
    // SYNC(armed): the responses before the looks; pairs with the barrier in `NapEpoch::arm`.
    barrier::store_load();
}
