//! Who must be told that there is work, and who looks by himself: two handshakes without a lost
//! wake-up.
//!
//! | word | written by | says |
//! |---|---|---|
//! | [`Attention`] | server, one per client | whether the server polls this client's ring |
//! | [`Bits`] | all clients | which clients that are not polled have published something |
//! | [`Asleep`] | server | whether it sleeps, and needs a datagram to look at the bits |
//! | [`Armed`] | client | odd while it sleeps, and needs a datagram to look at its ring |
//!
//! Each handshake is of the form *publish, then look whether somebody must be told* against
//! *announce that one must be told, then look once more*, with
//! [`store_load`](memory::barrier::store_load) in between on both sides.
//!
//! The barrier waits until all earlier stores are visible, which costs as much as a cache-line
//! transfer. Both sides therefore first look *without* it, which finds everybody who sleeps for
//! longer than that, and look again *with* it once they have been idle for a few polls, or after a
//! few more messages, and always before they sleep themselves.
//!
//! [`Bits`] is the only word that one client can change under another one. A hostile client can
//! make the server look in vain, or clear a bit of somebody else; that costs the victim no more than
//! the time until the server looks at everybody, which it does at a fixed interval.

use memory::{
    barrier,
    sync::{AtomicU32, AtomicU64, Ordering},
};

/// Bytes between the words of [`Bits`], so that clients of different words do not share a line.
const BITS_STRIDE_BYTES: usize = 128;

/// Where the word with the bit of a place is.
#[must_use]
pub fn bits_offset_bytes(place: u16) -> usize {
    word_offset_bytes(usize::from(place / 64))
}

/// Where a word is that has the bits of 64 places.
#[must_use]
pub fn word_offset_bytes(word: usize) -> usize {
    word * BITS_STRIDE_BYTES
}

/// Which bit of its word belongs to a place.
#[must_use]
pub fn bit_of(place: u16) -> u32 {
    u32::from(place % 64)
}

/// Bytes that the bits of this many places take.
#[must_use]
pub fn bits_bytes(places: u16) -> usize {
    usize::from(places.div_ceil(64)) * BITS_STRIDE_BYTES
}

/// Whether the server polls a client's ring by itself.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a>(pub &'a AtomicU32);

const UNATTENDED: u32 = 0;
const POLLED: u32 = 1;

/// One bit per client, 64 clients per word.
#[derive(Clone, Copy, Debug)]
pub struct Bits<'a>(pub &'a AtomicU64);

/// Whether the server sleeps.
#[derive(Clone, Copy, Debug)]
pub struct Asleep<'a>(pub &'a AtomicU32);

/// Whether a client sleeps.
#[derive(Clone, Copy, Debug)]
pub struct Armed<'a>(pub &'a AtomicU32);

impl Attention<'_> {
    /// Client: whether the server did not poll its ring a moment ago. A hint without a barrier, which
    /// may miss a server that stops polling right now: ask [`must_ring`] in time.
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
        // SYNC(attention): the announcement before the caller's last look at the ring; pairs with
        // the barrier in `must_ring`.
        barrier::store_load();
    }
}

/// Client, after publishing requests: whether it must [`ring`].
#[inline]
#[must_use]
pub fn must_ring(attention: Attention<'_>) -> bool {
    // SYNC(attention): the requests before the look; pairs with the barrier in `demote`.
    // SYNC(bits): the requests before the bit that `ring` sets; pairs with the Acquire in
    // `Bits::take`.
    barrier::store_load();
    attention.is_unattended()
}

/// Client that [`must_ring`]: leaves a hint. Returns whether the server sleeps, and needs a
/// datagram too.
#[inline]
#[must_use]
pub fn ring(bits: Bits<'_>, bit: u32, asleep: Asleep<'_>) -> bool {
    bits.0.fetch_or(1 << bit, Ordering::Relaxed);
    // SYNC(asleep): the bit before the look; pairs with the barrier in `Asleep::fall_asleep`.
    barrier::store_load();
    asleep.0.load(Ordering::Relaxed) != 0
}

impl Bits<'_> {
    /// Server: takes all bits, which are hints.
    #[inline]
    pub fn take(self) -> u64 {
        if self.0.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        // SYNC(bits): the bit before the look at the ring that it hints at; pairs with the barrier
        // in `must_ring`.
        self.0.swap(0, Ordering::Acquire)
    }

    /// Server: whether there is any bit.
    #[inline]
    #[must_use]
    pub fn any(self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

impl Asleep<'_> {
    /// Server: sleeps once the caller looked at the bits *again*.
    #[inline]
    pub fn fall_asleep(self) {
        self.0.store(1, Ordering::Relaxed);
        // SYNC(asleep): the announcement before the caller's last look at the bits; pairs with the
        // barrier in `ring`.
        barrier::store_load();
    }

    /// Server: looks at the bits by itself again.
    #[inline]
    pub fn wake_up(self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

impl Armed<'_> {
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
/// [`Armed::needs_datagram`] for each of them.
#[inline]
pub fn after_responses() {
    // SYNC(armed): the responses before the looks; pairs with the barrier in `Armed::arm`.
    barrier::store_load();
}
