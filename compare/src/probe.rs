//! How far apart the two cores are right now.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Instant,
};

use crate::work::{fast_decile_s, pin};

/// What a line ping-pong says about the two cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Regime {
    /// They share a cache: a round trip takes less than 250 ns.
    Near,
    /// They do not: 350 to 700 ns.
    Far,
}

#[repr(align(128))]
struct Line(AtomicU64);

/// Ping-pongs for some 2 ms, and judges by the fastest decile, as samples do. None if that is in
/// neither range.
pub fn regime() -> Option<Regime> {
    const CHUNKS: u64 = 128;
    const TRIPS: u64 = 50;
    let (ping, pong) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let times: Vec<Instant> = thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            for i in 1..=CHUNKS * TRIPS {
                while ping.0.load(Ordering::Acquire) != i {}
                pong.0.store(i, Ordering::Release);
            }
        });
        let timing = scope.spawn(|| {
            pin(0);
            let mut times = Vec::new();
            for i in 1..=CHUNKS * TRIPS {
                ping.0.store(i, Ordering::Release);
                while pong.0.load(Ordering::Acquire) != i {}
                if i % TRIPS == 0 {
                    times.push(Instant::now());
                }
            }
            times
        });
        timing.join().expect("the probe does not panic")
    });
    match fast_decile_s(&times) * 1e9 / TRIPS as f64 {
        ns if ns < 250.0 => Some(Regime::Near),
        ns if (350.0..700.0).contains(&ns) => Some(Regime::Far),
        _ => None,
    }
}
