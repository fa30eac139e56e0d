//! The sleep protocol, in every interleaving: no wake-up is lost.
#![cfg(loom)]

use copyrpc_ipc::wakeup::{self, NapEpoch, PolledFlag, SleepFlag, WakeupBits};
use memory::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Ordering, thread};

/// What client and server share; `request` and `response` stand for slots.
#[derive(Default)]
struct Shared {
    request: AtomicBool,
    response: AtomicBool,
    polled_flag: AtomicU32,
    bits: AtomicU64,
    asleep: AtomicU32,
    armed: AtomicU32,
}

/// Client: publishes, and rings if need be; `true` if it sent a datagram.
fn publish(shared: &Shared) -> bool {
    shared.request.store(true, Ordering::Release);
    wakeup::must_wake(PolledFlag(&shared.polled_flag))
        && wakeup::signal(WakeupBits(&shared.bits), 5, SleepFlag(&shared.asleep))
}

fn has_request(shared: &Shared) -> bool {
    shared.request.load(Ordering::Acquire)
}

/// Stops polling the client; `true` if it saw the request at the last look.
fn demote(shared: &Shared) -> bool {
    PolledFlag(&shared.polled_flag).demote();
    has_request(shared)
}

#[test]
fn a_server_that_falls_asleep_is_woken_or_has_seen_the_request() {
    loom::model(|| {
        let shared = Arc::new(Shared::default());
        PolledFlag(&shared.polled_flag).promote();
        let client = thread::spawn({
            let shared = Arc::clone(&shared);
            move || publish(&shared)
        });
        let seen = demote(&shared) || {
            SleepFlag(&shared.asleep).fall_asleep();
            WakeupBits(&shared.bits).any()
        };
        let datagram = client.join().unwrap();
        assert!(seen || datagram, "a lost wake-up");
    });
}

#[test]
fn a_server_that_stays_awake_finds_the_request_by_its_bit() {
    loom::model(|| {
        let shared = Arc::new(Shared::default());
        PolledFlag(&shared.polled_flag).promote();
        let client = thread::spawn({
            let shared = Arc::clone(&shared);
            move || publish(&shared)
        });
        let mut seen = demote(&shared);
        // The bit may be taken early; then the request must be visible with it.
        let taken = WakeupBits(&shared.bits).take();
        if taken != 0 {
            assert_eq!(taken, 1 << 5);
            assert!(has_request(&shared), "a bit came before its request");
            seen = true;
        }
        client.join().unwrap();
        assert!(seen || WakeupBits(&shared.bits).take() != 0, "a lost request");
    });
}

#[test]
fn a_client_that_falls_asleep_is_woken_or_has_seen_the_response() {
    loom::model(|| {
        let shared = Arc::new(Shared::default());
        let server = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                shared.response.store(true, Ordering::Release);
                wakeup::after_responses();
                NapEpoch(&shared.armed).needs_datagram(&mut 0)
            }
        });
        let mut epoch = 0;
        NapEpoch(&shared.armed).arm(&mut epoch);
        let seen = shared.response.load(Ordering::Acquire);
        let datagram = server.join().unwrap();
        assert!(seen || datagram, "a lost wake-up");
    });
}

#[test]
fn a_nap_is_answered_by_one_datagram() {
    loom::model(|| {
        let armed = AtomicU32::new(0);
        let (mut epoch, mut told) = (u32::MAX - 2, 0);
        for _ in 0..3 {
            NapEpoch(&armed).arm(&mut epoch);
            assert!(NapEpoch(&armed).needs_datagram(&mut told));
            assert!(!NapEpoch(&armed).needs_datagram(&mut told));
            NapEpoch(&armed).disarm(&mut epoch);
            assert!(!NapEpoch(&armed).needs_datagram(&mut told));
        }
    });
}
