//! x86-64: unaligned moves, each size class with the fewest; all stores in ascending order.
//!
//! A class copies its first and its last bytes with two moves that overlap in the middle, so there
//! is neither a loop over single bytes nor a branch on alignment. Bytes in the overlap are fetched
//! and stored twice; what a copy promises, it promises of its end.
//!
//! Best of 7 rounds on an AMD EPYC (Zen 4, 2-core virtual machine, not pinned), nanoseconds
//! including the call and the loop around it; run `cargo bench -p copyrpc-memory --bench copy`:
//!
//! | bytes | this module | 16-byte moves only | volatile `u64` | `rep movsb` | `memcpy` |
//! |---|---|---|---|---|---|
//! | 8 | 2.7 | 2.6 | 2.6 | 4.2 | 3.6 |
//! | 64 | 3.4 | 3.5 | 3.5 | 4.2 | 3.4 |
//! | 256 | 6.2 | 5.6 | 8.3 | 12.6 | 4.6 |
//! | 1024 | 13.6 | 17.7 | 27.2 | 18.6 | 11.1 |
//! | 4096 | 46.0 | 69.8 | 109 | 44.6 | 43.5 |
//! | 16 KiB | 213 | 279 | 451 | 154 | 163 |
//! | 64 KiB | 1125 | 1127 | 1913 | 1143 | 1143 |
//! | 4 MiB | 86600 | 87100 | 149000 | 88500 | 87700 |
//!
//! `rep movsb` is out for its start-up cost, and because its stores are not ordered among
//! themselves. 32-byte moves repay the look at a feature bit between 1 KiB and 32 KiB.

use core::arch::asm;

/// Copies that take no loop.
const SMALL_BYTES_MAX: usize = 64;

const LINE_BYTES: usize = 64;

/// Copies for which 32-byte moves are worth asking whether the CPU has them: beyond, cache
/// misses are the limit, and they were up to a tenth slower.
const AVX_BYTES: core::ops::Range<usize> = 1024..32 << 10;

/// Copies as [`super::copy_in`] does.
///
/// # Safety
///
/// As for [`super::copy_in`].
#[inline(always)]
pub(super) unsafe fn copy_in(dst: &mut [u8], src: *const u8) {
    // SAFETY: `dst` is private and as long; the rest is the caller's promise.
    unsafe { copy(dst.as_mut_ptr(), src, dst.len()) }
}

/// Copies as [`super::copy_out`] does.
///
/// # Safety
///
/// As for [`super::copy_out`].
#[inline(always)]
pub(super) unsafe fn copy_out(dst: *mut u8, src: &[u8]) {
    // SAFETY: `src` is private and as long; the rest is the caller's promise.
    unsafe { copy(dst, src.as_ptr(), src.len()) }
}

/// Copies as [`super::copy_between_past_caches`] does: whole lines by non-temporal stores.
///
/// Two threads on two cores, one copies to memory and the other one copies from there in turn, microseconds of both
/// together, the median, on an AMD EPYC (Zen 4, two virtual cores); near: the cores share a cache, far: they do not:
///
/// | bytes | near, cached | near, past caches | far, cached | far, past caches |
/// |---|---|---|---|---|
/// | 16 KiB | 2.0 | 3.0 | 7.6 | 3.2 |
/// | 64 KiB | 9.4 | 7.3 | 33.7 | 7.2 |
/// | 256 KiB | 35.8 | 27.0 | 128 | 25.5 |
/// | 1 MiB | 116 | 83 | 495 | 83 |
/// | 4 MiB | 271 | 344 | 716 | 383 |
///
/// # Safety
///
/// As for [`super::copy_between`].
pub(super) unsafe fn copy_past_caches(dst: *mut u8, src: *const u8, len_bytes: usize) {
    let head_bytes = (dst.addr().wrapping_neg() % LINE_BYTES).min(len_bytes);
    let tail_bytes = (len_bytes - head_bytes) % LINE_BYTES;
    let lines_bytes = len_bytes - head_bytes - tail_bytes;
    // SAFETY: the first bytes of what the caller promised.
    unsafe { copy(dst, src, head_bytes) };
    let (dst, src) = (dst.wrapping_add(head_bytes), src.wrapping_add(head_bytes));
    if lines_bytes > 0 {
        // SAFETY: the next bytes, at the start of a line; whole lines, at least one.
        unsafe { copy_lines_past_caches(dst, src, lines_bytes) };
    }
    let (dst, src) = (dst.wrapping_add(lines_bytes), src.wrapping_add(lines_bytes));
    // SAFETY: the last bytes of what the caller promised.
    unsafe { copy(dst, src, tail_bytes) };
}

/// # Safety
///
/// As for [`super::copy_between`]; `dst` begins a line, and there are whole lines, at least one.
unsafe fn copy_lines_past_caches(dst: *mut u8, src: *const u8, len_bytes: usize) {
    // SAFETY: 64 bytes at each multiple of 64 below the length. The fence orders these stores before all later ones.
    unsafe {
        asm!(
            "xor {at:e}, {at:e}",
            "2:",
            "movdqu {a}, xmmword ptr [{src} + {at}]",
            "movdqu {b}, xmmword ptr [{src} + {at} + 16]",
            "movdqu {c}, xmmword ptr [{src} + {at} + 32]",
            "movdqu {d}, xmmword ptr [{src} + {at} + 48]",
            "movntdq xmmword ptr [{dst} + {at}], {a}",
            "movntdq xmmword ptr [{dst} + {at} + 16], {b}",
            "movntdq xmmword ptr [{dst} + {at} + 32], {c}",
            "movntdq xmmword ptr [{dst} + {at} + 48], {d}",
            "add {at}, 64",
            "cmp {at}, {len}",
            "jb 2b",
            "sfence",
            a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
            at = out(reg) _, len = in(reg) len_bytes,
            src = in(reg) src, dst = in(reg) dst,
            options(nostack)
        );
    }
}

/// Copies as [`super::copy_between`] does.
///
/// # Safety
///
/// As for [`super::copy_between`].
#[inline(always)]
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len_bytes: usize) {
    if len_bytes <= SMALL_BYTES_MAX {
        // SAFETY: by contract, and at most 64 bytes.
        unsafe { copy_small(dst, src, len_bytes) }
    } else if AVX_BYTES.contains(&len_bytes) && std::is_x86_feature_detected!("avx") {
        // SAFETY: by contract, at least 128 bytes, and the CPU has AVX.
        unsafe { copy_avx(dst, src, len_bytes) }
    } else {
        // SAFETY: by contract, and at least 64 bytes.
        unsafe { copy_sse(dst, src, len_bytes) }
    }
}

/// Copies `words` of 8 bytes: a load for each, and a store for two. First comes what is not a multiple
/// of 8 words, so that 7 words before a line's end are stored in four aligned pieces.
///
/// # Safety
///
/// As for [`copy`], with 8 bytes per word.
#[inline(always)]
pub(super) unsafe fn copy_words(mut dst: *mut u8, mut src: *const u8, words: usize) {
    if words & 1 != 0 {
        // SAFETY: the first word, and there is one.
        unsafe {
            asm!(
                "mov {a}, qword ptr [{src}]",
                "mov qword ptr [{dst}], {a}",
                a = out(reg) _, src = in(reg) src, dst = in(reg) dst,
                options(nostack, preserves_flags)
            );
        }
        (dst, src) = (dst.wrapping_add(8), src.wrapping_add(8));
    }
    if words & 2 != 0 {
        // SAFETY: the next two words, and there are two.
        unsafe { copy_two_words(dst, src) };
        (dst, src) = (dst.wrapping_add(16), src.wrapping_add(16));
    }
    if words & 4 != 0 {
        // SAFETY: the next four words, and there are four.
        unsafe { copy_two_words(dst, src) };
        // SAFETY: the last two of these.
        unsafe { copy_two_words(dst.wrapping_add(16), src.wrapping_add(16)) };
        (dst, src) = (dst.wrapping_add(32), src.wrapping_add(32));
    }
    for _ in 0..words / 8 {
        for at in [0, 16, 32, 48] {
            // SAFETY: two of the next eight words, and there are eight.
            unsafe { copy_two_words(dst.wrapping_add(at), src.wrapping_add(at)) };
        }
        (dst, src) = (dst.wrapping_add(64), src.wrapping_add(64));
    }
}

/// # Safety
///
/// As for [`copy`], and there are 16 bytes.
#[inline(always)]
unsafe fn copy_two_words(dst: *mut u8, src: *const u8) {
    // SAFETY: by contract.
    unsafe {
        asm!(
            "movq {a}, qword ptr [{src}]",
            "movhps {a}, qword ptr [{src} + 8]",
            "movdqu xmmword ptr [{dst}], {a}",
            a = out(xmm_reg) _, src = in(reg) src, dst = in(reg) dst,
            options(nostack, preserves_flags)
        );
    }
}

/// # Safety
///
/// As for [`copy`], and `len_bytes <= 64`.
#[inline(always)]
unsafe fn copy_small(dst: *mut u8, src: *const u8, len_bytes: usize) {
    match len_bytes {
        // SAFETY: by contract, and shorter than 4.
        ..4 => unsafe { copy_tiny(dst, src, len_bytes) },
        // SAFETY: touches the first and the last 4 of at least 4 bytes.
        4..8 => unsafe {
            asm!(
                "mov {a:e}, dword ptr [{src}]",
                "mov {b:e}, dword ptr [{src} + {len} - 4]",
                "mov dword ptr [{dst}], {a:e}",
                "mov dword ptr [{dst} + {len} - 4], {b:e}",
                a = out(reg) _, b = out(reg) _,
                src = in(reg) src, dst = in(reg) dst, len = in(reg) len_bytes,
                options(nostack, preserves_flags)
            );
        },
        // SAFETY: touches the first and the last 8 of at least 8 bytes.
        8..=16 => unsafe {
            asm!(
                "mov {a}, qword ptr [{src}]",
                "mov {b}, qword ptr [{src} + {len} - 8]",
                "mov qword ptr [{dst}], {a}",
                "mov qword ptr [{dst} + {len} - 8], {b}",
                a = out(reg) _, b = out(reg) _,
                src = in(reg) src, dst = in(reg) dst, len = in(reg) len_bytes,
                options(nostack, preserves_flags)
            );
        },
        // SAFETY: touches the first and the last 16 of at least 16 bytes.
        17..=32 => unsafe {
            asm!(
                "movdqu {a}, xmmword ptr [{src}]",
                "movdqu {b}, xmmword ptr [{src} + {len} - 16]",
                "movdqu xmmword ptr [{dst}], {a}",
                "movdqu xmmword ptr [{dst} + {len} - 16], {b}",
                a = out(xmm_reg) _, b = out(xmm_reg) _,
                src = in(reg) src, dst = in(reg) dst, len = in(reg) len_bytes,
                options(nostack, preserves_flags)
            );
        },
        // SAFETY: touches the first and the last 32 of at least 32 bytes.
        _ => unsafe {
            asm!(
                "movdqu {a}, xmmword ptr [{src}]",
                "movdqu {b}, xmmword ptr [{src} + 16]",
                "movdqu {c}, xmmword ptr [{src} + {len} - 32]",
                "movdqu {d}, xmmword ptr [{src} + {len} - 16]",
                "movdqu xmmword ptr [{dst}], {a}",
                "movdqu xmmword ptr [{dst} + 16], {b}",
                "movdqu xmmword ptr [{dst} + {len} - 32], {c}",
                "movdqu xmmword ptr [{dst} + {len} - 16], {d}",
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                src = in(reg) src, dst = in(reg) dst, len = in(reg) len_bytes,
                options(nostack, preserves_flags)
            );
        },
    }
}

/// # Safety
///
/// As for [`copy`], and `len_bytes < 4`.
#[inline(always)]
unsafe fn copy_tiny(dst: *mut u8, src: *const u8, len_bytes: usize) {
    if len_bytes == 0 {
        return;
    }
    // SAFETY: touches bytes 0, len / 2 and len - 1 only: one to three bytes.
    unsafe {
        asm!(
            "movzx {a:e}, byte ptr [{src}]",
            "movzx {b:e}, byte ptr [{src} + {mid}]",
            "movzx {c:e}, byte ptr [{src} + {len} - 1]",
            "mov byte ptr [{dst}], {a:l}",
            "mov byte ptr [{dst} + {mid}], {b:l}",
            "mov byte ptr [{dst} + {len} - 1], {c:l}",
            a = out(reg) _, b = out(reg) _, c = out(reg) _, mid = in(reg) len_bytes / 2,
            src = in(reg) src, dst = in(reg) dst, len = in(reg) len_bytes,
            options(nostack, preserves_flags)
        );
    }
}

/// Blocks of 64 bytes from the start, then the last 64, which overlap the block before.
///
/// # Safety
///
/// As for [`copy`], and `len_bytes >= 64`.
#[inline]
unsafe fn copy_sse(dst: *mut u8, src: *const u8, len_bytes: usize) {
    let last = len_bytes - 64;
    // SAFETY: blocks begin at multiples of 64 below `last`, and at `last`, 64 bytes before the end.
    unsafe {
        asm!(
            "xor {at:e}, {at:e}",
            "2:",
            "movdqu {a}, xmmword ptr [{src} + {at}]",
            "movdqu {b}, xmmword ptr [{src} + {at} + 16]",
            "movdqu {c}, xmmword ptr [{src} + {at} + 32]",
            "movdqu {d}, xmmword ptr [{src} + {at} + 48]",
            "movdqu xmmword ptr [{dst} + {at}], {a}",
            "movdqu xmmword ptr [{dst} + {at} + 16], {b}",
            "movdqu xmmword ptr [{dst} + {at} + 32], {c}",
            "movdqu xmmword ptr [{dst} + {at} + 48], {d}",
            "add {at}, 64",
            "cmp {at}, {last}",
            "jb 2b",
            "movdqu {a}, xmmword ptr [{src} + {last}]",
            "movdqu {b}, xmmword ptr [{src} + {last} + 16]",
            "movdqu {c}, xmmword ptr [{src} + {last} + 32]",
            "movdqu {d}, xmmword ptr [{src} + {last} + 48]",
            "movdqu xmmword ptr [{dst} + {last}], {a}",
            "movdqu xmmword ptr [{dst} + {last} + 16], {b}",
            "movdqu xmmword ptr [{dst} + {last} + 32], {c}",
            "movdqu xmmword ptr [{dst} + {last} + 48], {d}",
            a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
            at = out(reg) _, last = in(reg) last,
            src = in(reg) src, dst = in(reg) dst,
            options(nostack)
        );
    }
}

/// Blocks of 128 bytes from the start, then the last 128, which overlap the block before.
///
/// # Safety
///
/// As for [`copy`], `len_bytes >= 128`, and the CPU has AVX.
unsafe fn copy_avx(dst: *mut u8, src: *const u8, len_bytes: usize) {
    let last = len_bytes - 128;
    // SAFETY: blocks begin at multiples of 128 below `last`, and at `last`, 128 bytes before the end.
    unsafe {
        asm!(
            "xor {at:e}, {at:e}",
            "2:",
            "vmovdqu ymm0, ymmword ptr [{src} + {at}]",
            "vmovdqu ymm1, ymmword ptr [{src} + {at} + 32]",
            "vmovdqu ymm2, ymmword ptr [{src} + {at} + 64]",
            "vmovdqu ymm3, ymmword ptr [{src} + {at} + 96]",
            "vmovdqu ymmword ptr [{dst} + {at}], ymm0",
            "vmovdqu ymmword ptr [{dst} + {at} + 32], ymm1",
            "vmovdqu ymmword ptr [{dst} + {at} + 64], ymm2",
            "vmovdqu ymmword ptr [{dst} + {at} + 96], ymm3",
            "add {at}, 128",
            "cmp {at}, {last}",
            "jb 2b",
            "vmovdqu ymm0, ymmword ptr [{src} + {last}]",
            "vmovdqu ymm1, ymmword ptr [{src} + {last} + 32]",
            "vmovdqu ymm2, ymmword ptr [{src} + {last} + 64]",
            "vmovdqu ymm3, ymmword ptr [{src} + {last} + 96]",
            "vmovdqu ymmword ptr [{dst} + {last}], ymm0",
            "vmovdqu ymmword ptr [{dst} + {last} + 32], ymm1",
            "vmovdqu ymmword ptr [{dst} + {last} + 64], ymm2",
            "vmovdqu ymmword ptr [{dst} + {last} + 96], ymm3",
            "vzeroupper",
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            at = out(reg) _, last = in(reg) last, src = in(reg) src, dst = in(reg) dst,
            options(nostack)
        );
    }
}
