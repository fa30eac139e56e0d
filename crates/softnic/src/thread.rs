//! The thread drive: a thread that watches doorbell records, as a device does.

use std::sync::Weak;

use memory::{
    barrier,
    sync::{Arc, AtomicU32, Ordering, hint, thread},
};
use os::{clock, futex};

use crate::{context::Context, qp::QpShared};

/// Rounds without work before the thread yields, and before it sleeps.
const SPINS: u32 = 2_000;
const YIELDS: u32 = 2_100;

/// Longest sleep. A doorbell ends it, but foreign drivers ring no bell that wakes a thread.
const SLEEP_NS: u64 = 1_000_000;

/// Rounds before the thread looks whether the port is still in use.
const ROUNDS: u32 = 256;

/// Handle of the NIC thread of a port.
#[derive(Debug)]
pub(crate) struct Worker {
    /// 1 while the thread sleeps or is about to.
    asleep: Arc<AtomicU32>,
}

impl Worker {
    /// Starts the thread. It ends soon after the port is gone.
    ///
    /// # Errors
    ///
    /// The operating system has no room for another thread.
    pub(crate) fn start(context: Weak<Context>) -> std::io::Result<Self> {
        let asleep = Arc::new(AtomicU32::new(0));
        let word = asleep.clone();
        let builder = std::thread::Builder::new().name("copyrpc-softnic".into());
        builder.spawn(move || run(&context, &word))?;
        Ok(Self { asleep })
    }

    /// There is new work.
    #[inline]
    pub(crate) fn notify(&self) {
        barrier::store_load();
        if self.asleep.load(Ordering::Relaxed) != 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        self.asleep.store(0, Ordering::Release);
        futex::wake(&self.asleep, 1);
    }
}

fn run(weak: &Weak<Context>, asleep: &AtomicU32) {
    let mut qps: Vec<Weak<QpShared>> = Vec::new();
    let mut version = u64::MAX;
    let mut idle = 0;
    while let Some(context) = weak.upgrade() {
        for _ in 0..ROUNDS {
            let now = context.qps_version.load(Ordering::Acquire);
            if now != version {
                qps = context.qps().iter().map(Arc::downgrade).collect();
                version = now;
            }
            let mut polls = idle;
            context.idle(&mut polls);
            let mut worked = false;
            for qp in qps.iter().filter_map(Weak::upgrade) {
                worked |= qp.run_if_posted();
            }
            idle = if worked { 0 } else { idle + 1 };
            if idle >= SPINS {
                break;
            }
            hint::spin_loop();
        }
        if idle < SPINS {
            continue;
        }
        if idle < YIELDS {
            thread::yield_now();
            continue;
        }
        idle = SPINS;
        asleep.store(1, Ordering::Relaxed);
        barrier::store_load();
        let posted = qps.iter().filter_map(Weak::upgrade).any(|qp| qp.is_posted());
        let wanting = context.wanting.load(Ordering::Relaxed) > 0;
        // The port may close while this thread sleeps.
        drop(context);
        if !posted && !wanting {
            let _ = futex::wait(asleep, 1, clock::now_ns() + SLEEP_NS);
        }
        asleep.store(0, Ordering::Relaxed);
    }
}
