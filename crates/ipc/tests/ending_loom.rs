//! Calls that end otherwise than by an answer, in every interleaving.
#![cfg(loom)]

use copyrpc_ipc::{
    ending::{EvictionWord, GivenUpBits, LeaveWord, TakenWord},
    wakeup::{self, PolledFlag, SleepFlag, WakeupBits},
};
use memory::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Ordering, thread};

/// Requests of the models.
const REQUESTS: u64 = 2;
const RETIRED: u32 = 7;

/// What client and server share; `request` and `response` stand for rings of one slot.
#[derive(Default)]
struct Shared {
    /// Requests that were published, and answers: 2 for one that was executed, 1 for one that was not.
    request: AtomicU64,
    response: AtomicU64,
    taken: AtomicU64,
    eviction: AtomicU32,
    leave: AtomicU32,
    given_up: AtomicU64,
    polled_flag: AtomicU32,
    bits: AtomicU64,
    asleep: AtomicU32,
    is_closed: AtomicBool,
}

/// Waits as a process would: loom explores other threads meanwhile.
fn wait(mut is_done: impl FnMut() -> bool) {
    while !is_done() {
        thread::yield_now();
    }
}

/// A server takes some requests and ends the session; a client that reads so compares. Returns how many were executed, and
/// how many the client believes to have been taken.
fn ended_session(reason: impl Fn(&Shared) -> u32) -> (u64, u64) {
    let shared = Arc::new(Shared::default());
    let server = thread::spawn({
        let shared = Arc::clone(&shared);
        move || {
            let mut executed = 0;
            while executed < shared.request.load(Ordering::Acquire) {
                TakenWord(&shared.taken).note(executed + 1);
                executed += 1;
            }
            EvictionWord(&shared.eviction).end(RETIRED);
            executed
        }
    });
    for request in 1..=REQUESTS {
        shared.request.store(request, Ordering::Release);
    }
    wait(|| reason(&shared) == RETIRED);
    let taken = TakenWord(&shared.taken).read();
    (server.join().unwrap(), taken)
}

#[test]
fn what_was_not_taken_at_the_end_is_not_executed() {
    loom::model(|| {
        let (executed, taken) = ended_session(|shared| EvictionWord(&shared.eviction).reason());
        assert_eq!(executed, taken);
    });
}

/// The model can fail: nothing orders the two words.
#[test]
#[should_panic(expected = "executed and said not to be")]
fn an_end_that_is_read_without_order_is_seen_by_the_model() {
    loom::model(|| {
        let (executed, taken) = ended_session(|shared| shared.eviction.load(Ordering::Relaxed));
        assert_eq!(executed, taken, "executed and said not to be");
    });
}

/// Two requests with the number of one call, of which the first is given up. Returns the answer to the second.
fn number_used_again(unmark_in_time: bool) -> u64 {
    let shared = Arc::new(Shared::default());
    let server = thread::spawn({
        let shared = Arc::clone(&shared);
        move || {
            for request in 1..=REQUESTS {
                wait(|| shared.request.load(Ordering::Acquire) == request);
                let is_given_up = GivenUpBits(&shared.given_up).is_marked(3);
                let answer = if is_given_up { 1 } else { 2 };
                shared.response.store(request << 8 | answer, Ordering::Release);
            }
        }
    });
    let next = |request: u64| {
        let answer = || shared.response.load(Ordering::Acquire);
        wait(|| answer() >> 8 == request);
        answer() & 0xff
    };
    shared.request.store(1, Ordering::Release);
    GivenUpBits(&shared.given_up).mark(3, true);
    next(1);
    if unmark_in_time {
        GivenUpBits(&shared.given_up).mark(3, false);
    }
    shared.request.store(2, Ordering::Release);
    if !unmark_in_time {
        GivenUpBits(&shared.given_up).mark(3, false);
    }
    let answer = next(2);
    server.join().unwrap();
    answer
}

#[test]
fn a_mark_does_not_outlive_its_call() {
    loom::model(|| assert_eq!(number_used_again(true), 2));
}

/// The model can fail: the mark is taken away behind the request.
#[test]
#[should_panic(expected = "given up by mistake")]
fn a_mark_that_is_taken_away_late_is_seen_by_the_model() {
    loom::model(|| assert_eq!(number_used_again(false), 2, "given up by mistake"));
}

#[test]
fn a_server_that_falls_asleep_is_woken_or_has_seen_the_mark() {
    loom::model(|| {
        let shared = Arc::new(Shared::default());
        PolledFlag(&shared.polled_flag).promote();
        let client = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                GivenUpBits(&shared.given_up).mark(0, true);
                wakeup::must_wake(PolledFlag(&shared.polled_flag))
                    && wakeup::signal(WakeupBits(&shared.bits), 5, SleepFlag(&shared.asleep))
            }
        });
        PolledFlag(&shared.polled_flag).demote();
        let seen = GivenUpBits(&shared.given_up).is_marked(0) || {
            SleepFlag(&shared.asleep).fall_asleep();
            WakeupBits(&shared.bits).any()
        };
        let datagram = client.join().unwrap();
        assert!(seen || datagram, "a call that was given up holds a server that sleeps");
    });
}

/// A client that is asked to leave while it sends: it makes no more calls, and closes, once it is `done`. Returns how many
/// it made, and how many were answered.
fn left_session(is_done: impl Fn(&Shared, u64) -> bool) -> (u64, u64) {
    let shared = Arc::new(Shared::default());
    let server = thread::spawn({
        let shared = Arc::clone(&shared);
        move || {
            LeaveWord(&shared.leave).ask();
            let mut answered = 0;
            wait(|| {
                let is_closed = shared.is_closed.load(Ordering::Acquire);
                if !is_closed && answered < shared.request.load(Ordering::Acquire) {
                    answered += 1;
                    shared.response.store(answered, Ordering::Release);
                }
                is_closed
            });
            answered
        }
    });
    let mut made = 0;
    while made < REQUESTS && !LeaveWord(&shared.leave).is_asked() {
        made += 1;
        shared.request.store(made, Ordering::Release);
    }
    wait(|| is_done(&shared, made));
    shared.is_closed.store(true, Ordering::Release);
    (made, server.join().unwrap())
}

#[test]
fn a_client_that_is_asked_to_leave_loses_no_call() {
    loom::model(|| {
        let is_idle = |shared: &Shared, made| shared.response.load(Ordering::Acquire) == made;
        let (made, answered) = left_session(is_idle);
        assert_eq!(made, answered);
    });
}

/// The model can fail: the client leaves at once.
#[test]
#[should_panic(expected = "a lost call")]
fn a_client_that_leaves_at_once_is_seen_by_the_model() {
    loom::model(|| {
        let (made, answered) = left_session(|_, _| true);
        assert_eq!(made, answered, "a lost call");
    });
}
