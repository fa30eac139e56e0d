//! The thread drive: a thread that watches doorbell records, as a device does.

use std::sync::Weak;

use memory::{
    barrier,
    sync::{Arc, AtomicU32, Ordering, hint, thread},
};
use os::{clock, futex};

use crate::nic::{housekeeping::Housekeeping, qp::QpShared, runner::Worker};

/// Rounds without work before the thread yields, and before it sleeps.
const SPINS: u32 = 2_000;
const YIELDS: u32 = 2_100;

/// Longest sleep. A doorbell ends it, but foreign drivers ring no bell that wakes a thread.
const SLEEP_NS: u64 = 1_000_000;

/// Rounds before the thread looks whether the port is still in use.
const ROUNDS: u32 = 256;

/// Starts the thread. It ends soon after the port is gone.
///
/// # Errors
///
/// The operating system has no room for another thread.
pub(crate) fn start(port: Weak<Housekeeping>) -> std::io::Result<Worker> {
    let asleep = Arc::new(AtomicU32::new(0));
    let word = asleep.clone();
    let builder = std::thread::Builder::new().name("copyrpc-softnic".into());
    builder.spawn(move || run(&port, &word))?;
    Ok(Worker { asleep })
}

fn run(weak: &Weak<Housekeeping>, asleep: &AtomicU32) {
    let mut qps: Vec<Weak<QpShared>> = Vec::new();
    let mut version = u64::MAX;
    let mut idle = 0;
    // Not `idle`: a port under load has sockets, too.
    let mut rounds = 0;
    while let Some(housekeeping) = weak.upgrade() {
        for _ in 0..ROUNDS {
            let now = housekeeping.qps_version.load(Ordering::Acquire);
            if now != version {
                qps = housekeeping.qps().iter().map(Arc::downgrade).collect();
                version = now;
            }
            housekeeping.idle(&mut rounds);
            let mut worked = false;
            for qp in &qps {
                match qp.upgrade() {
                    Some(qp) => worked |= qp.run_if_posted(),
                    // Forget it.
                    None => version = u64::MAX,
                }
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
        let is_scheduled = housekeeping.port.scheduled_qps.load(Ordering::Relaxed) > 0;
        // The port may close while this thread sleeps.
        drop(housekeeping);
        if !posted && !is_scheduled {
            let _ = futex::wait(asleep, 1, clock::now_ns() + SLEEP_NS);
        }
        asleep.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::time::{Duration, Instant};

    use verbs::{
        Access, CqConfig, InitAttr, Mtu, Nic as _, Op, QKey, QpConfig, QueuePair as _, RnrTimer,
        RtrAttr, RtsAttr, SendFlags, SendRequest, Transition, Transport,
    };

    use crate::{Config, Drive, open};

    /// A drained send queue is work that never ends.
    #[test]
    fn a_nic_thread_that_always_finds_work_lets_other_ports_in() {
        let fabric = format!("busy-{}", std::process::id());
        let config = Config { fabric, card_mib: 8, ..Config::default() };
        let busy = open(&Config { drive: Drive::Thread, ..config.clone() }).unwrap();
        let pd = busy.alloc_pd().unwrap();
        let cq = busy.create_cq(&CqConfig::new(256), None).unwrap();
        let mut qp = busy.create_qp(&pd, &QpConfig::new(Transport::Ud, &cq)).unwrap();
        let init = InitAttr { access: Access::empty(), qkey: QKey::default() };
        let rtr = RtrAttr {
            path_mtu: Mtu::B4096,
            peer: None,
            rnr_timer: RnrTimer::at_least(Duration::ZERO),
            reads_in_max: 1,
        };
        let rts = Transition::Rts(RtsAttr::default());
        for to in [Transition::Init(init), Transition::Rtr(rtr), rts, Transition::Sqd] {
            qp.modify(&to).unwrap();
        }
        let nop = SendRequest { op: Op::Nop, flags: SendFlags::empty(), to: None };
        qp.post_send(&nop).unwrap();
        qp.ring_send();

        let newcomer = open(&config).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while newcomer.device().0.port.import(busy.device().0.port.lid.get()).is_err() {
            assert!(Instant::now() < deadline, "it is not let in");
            newcomer.device().0.port.fetch();
        }
    }
}
