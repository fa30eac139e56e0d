//! Ways to copy bytes that another process may write meanwhile: nanoseconds per copy and GB/s.
//!
//! `cargo bench -p copyrpc-memory --bench copy` measures; `cargo test --benches` only checks that
//! every way copies. The candidates that lost are kept here, because the reason to reject them is a
//! number that the next machine may change.

#![allow(clippy::disallowed_macros, reason = "candidates are compared before one gets a name")]

#[cfg(target_arch = "x86_64")]
use core::arch::asm;
use core::hint::black_box;
use std::time::{Duration, Instant};

use copyrpc_memory::copy;

type Copy = unsafe fn(*mut u8, *const u8, usize);

const CANDIDATES: &[(&str, Copy)] = &[
    ("memory::copy", chosen),
    ("publish", publish),
    ("volatile u64", volatile_words),
    #[cfg(target_arch = "x86_64")]
    ("16-byte moves", sse),
    #[cfg(target_arch = "x86_64")]
    ("rep movsb", rep_movsb),
    ("memcpy", memcpy),
];

const SIZES_BYTES: [usize; 17] = [
    1,
    8,
    16,
    24,
    32,
    48,
    64,
    100,
    128,
    256,
    512,
    1024,
    4096,
    16 << 10,
    64 << 10,
    1 << 20,
    4 << 20,
];

#[inline(never)]
unsafe fn chosen(dst: *mut u8, src: *const u8, len_bytes: usize) {
    // SAFETY: forwarded.
    unsafe { copy::copy_between(dst, src, len_bytes) }
}

#[inline(never)]
unsafe fn publish(dst: *mut u8, src: *const u8, len_bytes: usize) {
    // SAFETY: forwarded.
    unsafe { copy::copy_between_publish(dst, src, len_bytes) }
}

#[inline(never)]
unsafe fn memcpy(dst: *mut u8, src: *const u8, len_bytes: usize) {
    // SAFETY: forwarded; nobody else writes in this benchmark.
    unsafe { core::ptr::copy_nonoverlapping(src, dst, len_bytes) }
}

#[inline(never)]
unsafe fn volatile_words(dst: *mut u8, src: *const u8, len_bytes: usize) {
    let words = len_bytes / 8;
    for i in 0..words {
        // SAFETY: forwarded; the buffers are aligned.
        let word = unsafe { src.cast::<u64>().wrapping_add(i).read_volatile() };
        // SAFETY: forwarded; the buffers are aligned.
        unsafe { dst.cast::<u64>().wrapping_add(i).write_volatile(word) };
    }
    for i in words * 8..len_bytes {
        // SAFETY: forwarded.
        let byte = unsafe { src.wrapping_add(i).read_volatile() };
        // SAFETY: forwarded.
        unsafe { dst.wrapping_add(i).write_volatile(byte) };
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(never)]
unsafe fn rep_movsb(dst: *mut u8, src: *const u8, len_bytes: usize) {
    // SAFETY: forwarded.
    unsafe {
        asm!("rep movsb", inout("rcx") len_bytes => _, inout("rdi") dst => _,
            inout("rsi") src => _, options(nostack, preserves_flags));
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(never)]
unsafe fn sse(dst: *mut u8, src: *const u8, len_bytes: usize) {
    let Some(last) = len_bytes.checked_sub(64) else {
        // SAFETY: forwarded.
        return unsafe { copy::copy_between(dst, src, len_bytes) };
    };
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

/// How much to measure.
struct Effort {
    rounds: u32,
    round: Duration,
    /// Copies between two looks at the clock.
    burst: u32,
}

/// Best of several rounds: noise on a shared machine only ever adds time.
fn ns_per_copy(f: Copy, dst: *mut u8, src: *const u8, len_bytes: usize, effort: &Effort) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..effort.rounds {
        let (mut copies, start) = (0, Instant::now());
        loop {
            for _ in 0..effort.burst {
                // SAFETY: both buffers hold the largest size.
                unsafe { f(black_box(dst), black_box(src), black_box(len_bytes)) };
            }
            copies += effort.burst;
            if start.elapsed() >= effort.round {
                break;
            }
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(copies));
    }
    best
}

fn main() {
    let measured = std::env::args().any(|arg| arg == "--bench");
    let effort = if measured {
        Effort { rounds: 7, round: Duration::from_millis(5), burst: 64 }
    } else {
        Effort { rounds: 1, round: Duration::ZERO, burst: 1 }
    };
    let src: Vec<u64> =
        (0..(4 << 20) / 8).map(|i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    let mut dst = vec![0u64; src.len()];
    print!("{:>8}", "bytes");
    CANDIDATES.iter().for_each(|(name, _)| print!(" | {name:>20}"));
    println!();
    for len_bytes in SIZES_BYTES {
        print!("{len_bytes:>8}");
        for &(name, f) in CANDIDATES {
            dst.fill(0);
            let (to, from) = (dst.as_mut_ptr().cast::<u8>(), src.as_ptr().cast::<u8>());
            let ns = ns_per_copy(f, to, from, len_bytes, &effort);
            let words = len_bytes / 8;
            assert_eq!(dst[..words], src[..words], "{name} of {len_bytes} B");
            #[expect(clippy::cast_precision_loss, reason = "sizes are small")]
            let gb_per_s = len_bytes as f64 / ns;
            print!(" | {ns:>10.1} {gb_per_s:>9.1}");
        }
        println!();
    }
}
