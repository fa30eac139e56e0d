//! How far apart the two cores are right now.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Instant,
};

use crate::work::pin;

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

/// Ping-pongs for some 3 ms. None if the median is in neither range: somebody else ran.
pub fn regime() -> Option<Regime> {
    const CHUNKS: u64 = 64;
    const TRIPS: u64 = 100;
    let (ping, pong) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let mut chunks_ns = thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            for i in 1..=CHUNKS * TRIPS {
                while ping.0.load(Ordering::Acquire) != i {}
                pong.0.store(i, Ordering::Release);
            }
        });
        let timing = scope.spawn(|| {
            pin(0);
            let mut i = 0;
            let chunk = |_| {
                let start = Instant::now();
                for _ in 0..TRIPS {
                    i += 1;
                    ping.0.store(i, Ordering::Release);
                    while pong.0.load(Ordering::Acquire) != i {}
                }
                start.elapsed().as_nanos() as f64 / TRIPS as f64
            };
            (0..CHUNKS).map(chunk).collect::<Vec<f64>>()
        });
        timing.join().expect("the probe does not panic")
    });
    chunks_ns.sort_by(f64::total_cmp);
    match chunks_ns[chunks_ns.len() / 2] {
        ns if ns < 250.0 => Some(Regime::Near),
        ns if (350.0..700.0).contains(&ns) => Some(Regime::Far),
        _ => None,
    }
}
