//! Sleeping on a completion queue, in every interleaving: no wake-up is lost, none comes twice.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p copyrpc-softnic --test loom_arm`
#![cfg(loom)]

use copyrpc_softnic::shared::arm::{Armed, NEXT, SOLICITED};
use memory::sync::{Arc, AtomicU32, Ordering, thread};

#[derive(Default)]
struct Queue {
    armed: AtomicU32,
    /// Completions that each producer has published.
    published: [AtomicU32; 2],
    signals: AtomicU32,
}

impl Queue {
    fn produce(&self, producer: usize, solicited: bool) {
        self.published[producer].store(1, Ordering::Release);
        if Armed(&self.armed).fires(solicited) {
            self.signals.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Arms and looks once more, as a consumer does before it sleeps; whether it found something.
    fn arm(&self, kind: u32) -> bool {
        Armed(&self.armed).arm(kind);
        let found = self.published.iter().any(|count| count.load(Ordering::Acquire) != 0);
        if found && Armed(&self.armed).take() {
            self.signals.fetch_add(1, Ordering::Relaxed);
        }
        found
    }
}

#[test]
fn of_two_producers_and_the_consumer_exactly_one_signals() {
    loom::model(|| {
        let queue = Arc::new(Queue::default());
        let producers = [0, 1].map(|producer| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.produce(producer, false))
        });
        queue.arm(NEXT);
        producers.into_iter().for_each(|producer| producer.join().unwrap());
        assert_eq!(queue.signals.load(Ordering::Relaxed), 1);
        assert!(!Armed(&queue.armed).take(), "one shot");
    });
}

#[test]
fn only_solicited_completions_wake_who_asked_for_those() {
    loom::model(|| {
        let queue = Arc::new(Queue::default());
        Armed(&queue.armed).arm(SOLICITED);
        let producers = [(0, false), (1, true)].map(|(producer, solicited)| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.produce(producer, solicited))
        });
        producers.into_iter().for_each(|producer| producer.join().unwrap());
        assert_eq!(queue.signals.load(Ordering::Relaxed), 1);
    });
}

/// A consumer that sleeps only when it found nothing is woken by the completion it did not see.
#[test]
fn whoever_sleeps_is_woken() {
    loom::model(|| {
        let queue = Arc::new(Queue::default());
        let producer = thread::spawn({
            let queue = Arc::clone(&queue);
            move || queue.produce(0, false)
        });
        let found = queue.arm(NEXT);
        producer.join().unwrap();
        let is_woken = queue.signals.load(Ordering::Relaxed) == 1;
        assert!(found || is_woken, "a lost wake-up");
    });
}
