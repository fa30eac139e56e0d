//! Copies between private memory and memory that another process or a device may write at the same
//! time: the one place that decides how, so that it can change in one place.
//!
//! A plain `memcpy` races with the other side, which Rust (and C) call undefined, and it may copy
//! in any order, which breaks whoever polls the last byte. What is wanted is a *bytewise atomic
//! memcpy* (RFC 3301), which Rust does not have yet. Until it does, inline assembly stands in for
//! it: to the compiler each copy is an opaque relaxed atomic copy of every byte. Architectures
//! without assembly here use real relaxed atomics, and Miri plain accesses, to report copies that
//! nothing orders.
//!
//! Bytes may be torn at any boundary; nothing is promised of a word but by
//! [`copy_between_publish`]. Stores are made in ascending order of addresses, which on x86-64 is
//! also the order in which other CPUs see them.

use crate::sync::{
    Ordering,
    machine::{AtomicU8, AtomicU16, AtomicU32, AtomicU64},
};

mod body;
#[cfg(miri)]
mod plain;
#[cfg(all(not(miri), any(all(test, not(loom)), not(target_arch = "x86_64"))))]
mod portable;
#[cfg(all(not(miri), target_arch = "x86_64"))]
mod x86_64;

#[cfg(miri)]
use plain as machine_copy;
#[cfg(all(not(miri), not(target_arch = "x86_64")))]
use portable as machine_copy;
#[cfg(all(not(miri), target_arch = "x86_64"))]
use x86_64 as machine_copy;

const WORD_BYTES: usize = size_of::<u64>();

/// Copies `dst.len()` bytes at `src`, which others may write meanwhile, into private memory.
///
/// # Safety
///
/// `src` points to `dst.len()` mapped bytes that nobody accesses through a reference to plain data.
#[inline]
pub unsafe fn copy_in(dst: &mut [u8], src: *const u8) {
    // SAFETY: by contract.
    unsafe { machine_copy::copy_in(dst, src) }
}

/// Copies private memory to `dst`, which others may access meanwhile, in ascending order of
/// addresses.
///
/// # Safety
///
/// `dst` points to `src.len()` mapped, writable bytes that nobody accesses through a reference to
/// plain data.
#[inline]
pub unsafe fn copy_out(dst: *mut u8, src: &[u8]) {
    // SAFETY: by contract.
    unsafe { machine_copy::copy_out(dst, src) }
}

/// Whether [`copy_out_past_caches`] is worth its price on this processor: on those of AMD. On an Intel Xeon long calls
/// took longer with it (docs/performance.md).
fn gains_past_caches() -> bool {
    #[cfg(all(not(miri), target_arch = "x86_64"))]
    {
        static IS_AMD: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| {
            // SAFETY: every x86-64 processor has the instruction, which accesses no memory.
            #[allow(unused_unsafe, reason = "newer compilers call it safe")]
            let vendor = unsafe { core::arch::x86_64::__cpuid(0) };
            let words = [vendor.ebx, vendor.edx, vendor.ecx];
            words == [*b"Auth", *b"enti", *b"cAMD"].map(u32::from_le_bytes)
        });
        *IS_AMD
    }
    #[cfg(any(miri, not(target_arch = "x86_64")))]
    {
        false
    }
}

/// [`copy_out`] of a long body to memory that another core reads next, and has read before: the lines do not come
/// to this core's caches first. Whatever this thread stores afterwards is visible after all of the bytes; their own
/// order is nobody's.
///
/// A store to a line that another core has read waits until that core has given the line up, and such waits hardly
/// overlap. To memory that this core reads next it is the slower one, because the bytes are in no cache.
///
/// # Safety
///
/// As for [`copy_out`].
#[inline]
pub unsafe fn copy_out_past_caches(dst: *mut u8, src: &[u8]) {
    // SAFETY: by contract; nobody writes `src`.
    unsafe { copy_between_past_caches(dst, src.as_ptr(), src.len()) }
}

/// [`copy_between`] in the way of [`copy_out_past_caches`].
///
/// # Safety
///
/// As for [`copy_between`].
#[inline]
pub unsafe fn copy_between_past_caches(dst: *mut u8, src: *const u8, len_bytes: usize) {
    // SAFETY: by contract.
    unsafe { machine_copy::copy_past_caches(dst, src, len_bytes) }
}

/// [`copy_out`] of a body of any length to memory that a process of another core reads next: a long one
/// [past the caches](copy_out_past_caches) where this process found that to pay.
///
/// # Safety
///
/// As for [`copy_out`].
#[inline]
pub unsafe fn copy_out_body(dst: *mut u8, src: &[u8]) {
    // SAFETY: by contract; nobody writes `src`.
    unsafe { copy_between_body(dst, src.as_ptr(), src.len()) }
}

/// [`copy_between`] in the way of [`copy_out_body`].
///
/// # Safety
///
/// As for [`copy_between`].
#[inline]
pub unsafe fn copy_between_body(dst: *mut u8, src: *const u8, len_bytes: usize) {
    // SAFETY: by contract.
    unsafe { body::copy(&body::MESSAGES, dst, src, len_bytes) }
}

/// [`copy_between`] to registered memory that a peer on another core reads next through its NIC: a long body in the way
/// of [`copy_out_body`], by measurements of such memory alone.
///
/// # Safety
///
/// As for [`copy_between`].
#[inline]
pub unsafe fn copy_between_registered(dst: *mut u8, src: *const u8, len_bytes: usize) {
    // SAFETY: by contract.
    unsafe { body::copy(&body::REGISTERED, dst, src, len_bytes) }
}

/// The time, in units of a clock that all cores share.
fn ticks() -> u64 {
    #[cfg(all(not(miri), target_arch = "x86_64"))]
    {
        // SAFETY: every x86-64 processor has the instruction, which accesses no memory.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
    #[cfg(any(miri, not(target_arch = "x86_64")))]
    {
        0
    }
}

/// Copies `len_bytes` bytes in ascending order of addresses. Others may access both sides
/// meanwhile.
///
/// # Safety
///
/// Both point to `len_bytes` mapped bytes, `dst` to writable ones, that nobody accesses through a
/// reference to plain data (for a private source or destination there is [`copy_out`] or
/// [`copy_in`]). The two ranges do not overlap.
#[inline]
pub unsafe fn copy_between(dst: *mut u8, src: *const u8, len_bytes: usize) {
    // SAFETY: by contract.
    unsafe { machine_copy::copy(dst, src, len_bytes) }
}

/// Like [`copy_between`], and publishes: whoever loads the last byte with Acquire, and finds what
/// was stored here, sees all bytes before it and whatever this thread stored earlier. That is what
/// pollers of the last byte of an RDMA WRITE rely on.
///
/// The bytes of the last aligned 8-byte word of `dst` are stored by naturally aligned Release
/// stores, as few as possible; if it is the whole word, then by a single one.
///
/// # Safety
///
/// As for [`copy_between`].
#[inline]
pub unsafe fn copy_between_publish(dst: *mut u8, src: *const u8, len_bytes: usize) {
    let end = dst.wrapping_add(len_bytes);
    let in_last_word = (end.addr().wrapping_sub(1) % WORD_BYTES).wrapping_add(1);
    let tail_bytes = in_last_word.min(len_bytes);
    let body_bytes = len_bytes - tail_bytes;
    // SAFETY: a prefix of what the caller promised.
    unsafe { machine_copy::copy(dst, src, body_bytes) };
    let mut tail = [0; WORD_BYTES];
    // SAFETY: the rest of what the caller promised, at most a word.
    unsafe { copy_in(&mut tail[..tail_bytes], src.wrapping_add(body_bytes)) };
    if tail_bytes == WORD_BYTES {
        // SAFETY: `end` is word-aligned and the word before it is the caller's.
        let word = unsafe { AtomicU64::from_ptr(dst.wrapping_add(body_bytes).cast()) };
        // SYNC(last-byte): pairs with the Acquire load of whoever polls the last byte.
        word.store(u64::from_ne_bytes(tail), Ordering::Release);
    } else {
        // SAFETY: the same bytes, fewer than a word.
        unsafe { publish_part(dst.wrapping_add(body_bytes), &tail[..tail_bytes]) };
    }
}

/// [`copy_in`] of bytes that were stored a moment ago as aligned 8-byte words: loads such words too.
///
/// A wider load would find its bytes in several stores that are still on their way to the cache,
/// and wait for all of them; behind stores to a line that another core holds, that takes long.
///
/// # Safety
///
/// As for [`copy_in`].
#[inline(always)]
pub unsafe fn copy_in_words(dst: &mut [u8], src: *const u8) {
    if dst.len().is_multiple_of(WORD_BYTES) {
        // SAFETY: `dst` is private and as long; the rest is the caller's promise.
        return unsafe { machine_copy::copy_words(dst.as_mut_ptr(), src, dst.len() / WORD_BYTES) };
    }
    // SAFETY: by contract.
    unsafe { copy_in(dst, src) }
}

/// [`copy_out`] of private bytes that were stored a moment ago as aligned 8-byte words: loads such
/// words, since a wider load would wait as [`copy_in_words`] says.
///
/// # Safety
///
/// As for [`copy_out`].
#[inline(always)]
pub unsafe fn copy_out_words(dst: *mut u8, src: &[u8]) {
    if src.len().is_multiple_of(WORD_BYTES) {
        // SAFETY: `src` is private and as long; the rest is the caller's promise.
        return unsafe { machine_copy::copy_words(dst, src.as_ptr(), src.len() / WORD_BYTES) };
    }
    // SAFETY: by contract.
    unsafe { copy_out(dst, src) }
}

/// Bytes of a word that lie before inline payload: its header.
const HEADER_BYTES: usize = size_of::<u32>();

/// Longest copy of payload behind a header.
const BEHIND_HEADER_BYTES_MAX: usize = 256;

/// [`copy_between_publish`] of bytes that this thread, or one that has handed them over, stored a
/// moment ago as aligned 8-byte words, and that begin in the middle of such a word, as payload behind a
/// header does: loads those words, each once. See [`copy_in_words`].
///
/// # Safety
///
/// As for [`copy_between_publish`]; all of the aligned words that the bytes at `src` lie in are mapped,
/// and nobody writes them meanwhile.
#[inline(always)]
pub unsafe fn copy_behind_header_publish(dst: *mut u8, src: *const u8, len_bytes: usize) {
    let is_usual = src.addr() % WORD_BYTES == HEADER_BYTES
        && (dst.addr() | len_bytes).is_multiple_of(WORD_BYTES);
    if !is_usual || len_bytes > BEHIND_HEADER_BYTES_MAX || cfg!(target_endian = "big") {
        // SAFETY: by contract.
        return unsafe { copy_between_publish(dst, src, len_bytes) };
    }
    let from = src.wrapping_sub(HEADER_BYTES);
    // SAFETY: the word that the first half of these bytes lies in.
    let mut word = unsafe { load_word(from) };
    for at in 0..len_bytes / WORD_BYTES {
        // SAFETY: the next word, in which half a word of these bytes lies.
        let next = unsafe { load_word(from.wrapping_add((at + 1) * WORD_BYTES)) };
        // SAFETY: in bounds and aligned; others access it as the caller said.
        let to = unsafe { AtomicU64::from_ptr(dst.wrapping_add(at * WORD_BYTES).cast()) };
        // SYNC(last-byte): pairs with the Acquire load of whoever polls the last byte.
        to.store(next << 32 | word >> 32, Ordering::Release);
        word = next;
    }
}

/// A word, by a single load.
///
/// # Safety
///
/// `at` points to eight bytes that nobody writes meanwhile, and is aligned to them.
#[inline(always)]
unsafe fn load_word(at: *const u8) -> u64 {
    if cfg!(miri) {
        // SAFETY: by contract. Miri does not take an address for a proof of alignment.
        return unsafe { at.cast::<u64>().read_unaligned() };
    }
    // SAFETY: by contract. Volatile, or the compiler joins or splits loads.
    unsafe { at.cast::<u64>().read_volatile() }
}

/// Stores fewer than 8 bytes, all of one aligned word, by the largest naturally aligned pieces.
///
/// # Safety
///
/// As for [`copy_out`].
unsafe fn publish_part(dst: *mut u8, mut from: &[u8]) {
    let mut to = dst;
    while let Some((&byte, rest)) = from.split_first() {
        let address = to.addr();
        if let (Some((half, rest)), 0) = (from.split_first_chunk(), address % 4) {
            // SAFETY: aligned, and 4 bytes are left.
            let half_word = unsafe { AtomicU32::from_ptr(to.cast()) };
            // SYNC(last-byte): pairs with the Acquire load of whoever polls the last byte.
            half_word.store(u32::from_ne_bytes(*half), Ordering::Release);
            (from, to) = (rest, to.wrapping_add(4));
        } else if let (Some((pair, rest)), 0) = (from.split_first_chunk(), address % 2) {
            // SAFETY: aligned, and 2 bytes are left.
            let quarter_word = unsafe { AtomicU16::from_ptr(to.cast()) };
            // SYNC(last-byte): pairs with the Acquire load of whoever polls the last byte.
            quarter_word.store(u16::from_ne_bytes(*pair), Ordering::Release);
            (from, to) = (rest, to.wrapping_add(2));
        } else {
            // SAFETY: 1 byte is left.
            let single = unsafe { AtomicU8::from_ptr(to) };
            // SYNC(last-byte): pairs with the Acquire load of whoever polls the last byte.
            single.store(byte, Ordering::Release);
            (from, to) = (rest, to.wrapping_add(1));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use proptest::prelude::*;

    use super::*;
    use crate::Region;

    const POISON: u8 = 0xa5;

    type Copy = unsafe fn(*mut u8, *const u8, usize);

    unsafe fn by_words(dst: *mut u8, src: *const u8, len_bytes: usize) {
        // SAFETY: private to the test, and as long.
        let src = unsafe { core::slice::from_raw_parts(src, len_bytes) };
        // SAFETY: by contract.
        unsafe { copy_out_words(dst, src) };
    }

    unsafe fn by_words_in(dst: *mut u8, src: *const u8, len_bytes: usize) {
        // SAFETY: private to the test, and as long.
        let dst = unsafe { core::slice::from_raw_parts_mut(dst, len_bytes) };
        // SAFETY: by contract.
        unsafe { copy_in_words(dst, src) }
    }

    /// Puts the bytes behind a header first.
    unsafe fn behind_header(dst: *mut u8, src: *const u8, len_bytes: usize) {
        let mut words = vec![u64::MAX; len_bytes / WORD_BYTES + 2];
        let from = words.as_mut_ptr().cast::<u8>().wrapping_add(HEADER_BYTES);
        // SAFETY: by contract; there is room behind the header.
        unsafe { from.copy_from_nonoverlapping(src, len_bytes) };
        // SAFETY: by contract; all words are mapped, and private to the test.
        unsafe { copy_behind_header_publish(dst, from, len_bytes) };
    }

    unsafe fn past_caches(dst: *mut u8, src: *const u8, len_bytes: usize) {
        // SAFETY: private to the test, and as long.
        let src = unsafe { core::slice::from_raw_parts(src, len_bytes) };
        // SAFETY: by contract.
        unsafe { copy_out_past_caches(dst, src) }
    }

    /// What follows a copy past the caches is seen after it.
    unsafe fn past_caches_publish(dst: *mut u8, src: *const u8, len_bytes: usize) {
        let tail_bytes = len_bytes.min(WORD_BYTES);
        let body_bytes = len_bytes - tail_bytes;
        // SAFETY: all but the last bytes.
        unsafe { past_caches(dst, src, body_bytes) };
        // SAFETY: the rest.
        unsafe {
            copy_between_publish(
                dst.wrapping_add(body_bytes),
                src.wrapping_add(body_bytes),
                tail_bytes,
            );
        };
    }

    const WAYS: &[(&str, Copy)] = &[
        ("behind a header", behind_header),
        ("past caches", past_caches),
        ("registered", copy_between_registered),
        ("words out", by_words),
        ("words in", by_words_in),
        ("between", copy_between),
        ("publish", copy_between_publish),
        #[cfg(not(miri))]
        ("portable", portable::copy),
    ];

    /// Copies `len` bytes between given offsets of word-aligned buffers by every way.
    fn copies_exactly(to_offset: usize, from_offset: usize, len: usize) {
        let words = len / WORD_BYTES + 10;
        let from: Vec<u64> =
            (1..=words as u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        let from_bytes: Vec<u8> = from.iter().flat_map(|word| word.to_ne_bytes()).collect();
        for &(name, copy) in WAYS {
            let mut to = vec![u64::from_ne_bytes([POISON; WORD_BYTES]); words];
            let src = from.as_ptr().cast::<u8>().wrapping_add(from_offset);
            let dst = to.as_mut_ptr().cast::<u8>().wrapping_add(to_offset);
            // SAFETY: both buffers have `len + 64` bytes from any offset below 16.
            unsafe { copy(dst, src, len) };
            let mut expected = vec![POISON; words * WORD_BYTES];
            expected[to_offset..to_offset + len]
                .copy_from_slice(&from_bytes[from_offset..from_offset + len]);
            let actual: Vec<u8> = to.iter().flat_map(|word| word.to_ne_bytes()).collect();
            assert!(actual == expected, "{name}: {len} B from +{from_offset} to +{to_offset}");
        }
    }

    #[test]
    fn every_small_size_and_alignment_is_copied_exactly() {
        let (len_max, offset_max) = if cfg!(miri) { (12, 3) } else { (300, 16) };
        for len in 0..len_max {
            for to_offset in 0..offset_max {
                for from_offset in 0..offset_max {
                    copies_exactly(to_offset, from_offset, len);
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 4 } else { 256 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn large_copies_are_exact(
            to in 0usize..16,
            from in 0usize..16,
            len in 0usize..if cfg!(miri) { 200 } else { 20_000 },
        ) {
            copies_exactly(to, from, len);
        }
    }

    /// Loads byte `len - 1` by an access as wide as the store: Rust's memory model has no races
    /// between atomics of two sizes, and Miri says so.
    fn last_byte(region: &Region, len: usize) -> u8 {
        // SYNC(last-byte): pairs with the Release stores of the publishing copies.
        const SEEN: Ordering = Ordering::Acquire;
        match len % WORD_BYTES {
            0 => region.shared::<AtomicU64>(len - 8).unwrap().load(SEEN).to_ne_bytes()[7],
            4 => region.shared::<AtomicU32>(len - 4).unwrap().load(SEEN).to_ne_bytes()[3],
            2 | 6 => region.shared::<AtomicU16>(len - 2).unwrap().load(SEEN).to_ne_bytes()[1],
            _ => region.shared::<AtomicU8>(len - 1).unwrap().load(SEEN),
        }
    }

    /// A poller of the last byte, at each alignment of the end, never sees an older byte before it.
    #[test]
    fn whoever_sees_the_last_byte_sees_all() {
        for len in [1usize, 3, 4, 6, 7, 8, 12, 13, 64, 65, 71, 1101] {
            if !cfg!(miri) || len <= 13 {
                poll_last_byte(copy_between_publish, len);
                poll_last_byte(past_caches_publish, len);
                poll_last_byte(behind_header, len);
            }
        }
        poll_last_byte(behind_header, 16);
    }

    fn poll_last_byte(publish: Copy, len: usize) {
        let rounds: u8 = if cfg!(miri) { 3 } else { 200 };
        let region = Region::heap(len).unwrap();
        let seen = AtomicU8::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=rounds {
                    let words =
                        vec![u64::from_ne_bytes([round; WORD_BYTES]); len.div_ceil(WORD_BYTES)];
                    let dst = region.as_ptr().as_ptr();
                    // SAFETY: in bounds; the poller reads by atomics and by `copy_in`.
                    unsafe { publish(dst, words.as_ptr().cast(), len) };
                    // SYNC(copied-in): pairs with the Release store below.
                    while seen.load(Ordering::Acquire) != round {
                        thread::yield_now();
                    }
                }
            });
            for round in 1..=rounds {
                while last_byte(&region, len) != round {
                    thread::yield_now();
                }
                let mut copy = vec![0; len];
                // SAFETY: in bounds, and the writer waits for `seen`.
                unsafe { copy_in(&mut copy, region.as_ptr().as_ptr()) };
                assert!(copy.iter().all(|&byte| byte == round), "{len} B, round {round}");
                // SYNC(copied-in): pairs with the Acquire load above.
                seen.store(round, Ordering::Release);
            }
        });
    }
}
