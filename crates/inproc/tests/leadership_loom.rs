//! Every interleaving of a leader and its watcher: each step is ended by one of them, only one has what both use, and
//! no watcher sleeps on.
//!
//! Run: `RUSTFLAGS="--cfg loom" cargo test --release --test leadership_loom`
#![cfg(loom)]

use copyrpc_inproc::leadership::Leadership;
use loom::{
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

#[derive(Default)]
struct Parts {
    leadership: Leadership,
    /// The parts of both threads: steps that the leader has begun, and those whose answers went by the lock.
    shared: Mutex<(usize, usize)>,
    /// Steps whose answers went around the lock.
    told_late: AtomicUsize,
    /// The watcher's token, as of `std::thread::park`: loom's wakes a thread that joins another.
    token: (Mutex<bool>, Condvar),
}

impl Parts {
    fn unpark(&self) {
        *self.token.0.lock().unwrap() = true;
        self.token.1.notify_one();
    }

    fn park(&self) {
        let mut token = self.token.0.lock().unwrap();
        while !*token {
            token = self.token.1.wait(token).unwrap();
        }
        *token = false;
    }
}

/// The leader takes at most so many steps, then ends its term, unless the watcher has. Returns whether it did.
fn lead(parts: &Parts, steps: usize) -> bool {
    let mut shared = parts.shared.lock().unwrap();
    let term = parts.leadership.term();
    for _ in 0..steps {
        shared.0 += 1;
        let begun = parts.leadership.begin_step();
        if begun.wakes {
            parts.unpark();
        }
        drop(shared);
        if !parts.leadership.end_step(begun.step) {
            parts.told_late.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        shared = parts.shared.lock().unwrap();
        assert_eq!(parts.leadership.term(), term, "the thread that ended the step leads still");
        shared.1 += 1;
    }
    parts.leadership.end_term();
    drop(shared);
    parts.unpark();
    true
}

/// The watcher ends a step that runs, if it finds one; returns whether.
fn depose(parts: &Parts) -> bool {
    let Some(step) = parts.leadership.look().step() else { return false };
    let _shared = parts.shared.lock().unwrap();
    let lasts = parts.leadership.end_step(step);
    if lasts {
        assert!(parts.leadership.is_led());
        parts.leadership.end_term();
    }
    lasts
}

fn begun() -> Arc<Parts> {
    let parts = Arc::new(Parts::default());
    parts.leadership.begin_term();
    parts
}

#[test]
fn a_step_is_ended_by_one_thread_and_that_one_goes_on() {
    loom::model(|| {
        let parts = begun();
        let leader = {
            let parts = Arc::clone(&parts);
            thread::spawn(move || lead(&parts, 2))
        };
        let has_deposed = depose(&parts);
        let has_led_on = leader.join().unwrap();
        assert_ne!(has_deposed, has_led_on, "the term was ended once");
        assert!(!parts.leadership.is_led());
        let (steps, told) = *parts.shared.lock().unwrap();
        let told_late = parts.told_late.load(Ordering::Relaxed);
        assert_eq!(told + told_late, steps, "the end of each step was told once");
        assert_eq!(told_late, usize::from(has_deposed));
    });
}

#[test]
fn a_watcher_that_sleeps_hears_of_a_step_and_of_the_end_of_the_term() {
    loom::model(|| {
        let parts = begun();
        let leader = {
            let parts = Arc::clone(&parts);
            thread::spawn(move || lead(&parts, 1))
        };
        let seen = parts.leadership.look();
        // A watcher that is woken for nothing sleeps again; loom reports one that is never woken.
        if parts.leadership.fall_asleep(seen) {
            while parts.leadership.look() == seen && parts.leadership.is_led() {
                parts.park();
            }
            parts.leadership.awake();
            assert!(parts.leadership.look() != seen || !parts.leadership.is_led());
        }
        assert!(leader.join().unwrap());
    });
}

#[test]
fn a_step_that_does_not_end_wakes_a_watcher_that_sleeps() {
    loom::model(|| {
        let parts = begun();
        let leader = {
            let parts = Arc::clone(&parts);
            thread::spawn(move || {
                if parts.leadership.begin_step().wakes {
                    parts.unpark();
                }
            })
        };
        let seen = parts.leadership.look();
        if parts.leadership.fall_asleep(seen) {
            parts.park();
            parts.leadership.awake();
        }
        assert!(parts.leadership.look().step().is_some());
        leader.join().unwrap();
    });
}

#[test]
fn a_step_ends_while_the_watcher_falls_asleep() {
    loom::model(|| {
        let parts = begun();
        let step = parts.leadership.begin_step().step;
        let leader = {
            let parts = Arc::clone(&parts);
            thread::spawn(move || parts.leadership.end_step(step))
        };
        let seen = parts.leadership.look();
        if parts.leadership.fall_asleep(seen) {
            parts.leadership.awake();
        }
        assert!(leader.join().unwrap(), "nobody else has ended it");
        assert_eq!(parts.leadership.look().step(), None);
    });
}
