//! The handshake that [`barrier::store_load`] is for, in every interleaving.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p copyrpc-memory --test store_load_loom`
#![cfg(loom)]

use copyrpc_memory::{
    barrier,
    sync::{Arc, AtomicBool, Ordering, thread},
};

/// A producer publishes and then looks for a sleeper to wake; a consumer arms and then looks for
/// an entry once more. If neither saw the other, the consumer would sleep for ever.
#[test]
fn at_least_one_side_sees_the_other() {
    loom::model(|| {
        let published = Arc::new(AtomicBool::new(false));
        let armed = Arc::new(AtomicBool::new(false));
        let producer = thread::spawn({
            let (published, armed) = (Arc::clone(&published), Arc::clone(&armed));
            move || {
                published.store(true, Ordering::Relaxed);
                barrier::store_load();
                armed.load(Ordering::Relaxed)
            }
        });
        armed.store(true, Ordering::Relaxed);
        barrier::store_load();
        let consumer_saw = published.load(Ordering::Relaxed);
        let producer_saw = producer.join().unwrap();
        assert!(consumer_saw || producer_saw, "a lost wake-up");
    });
}

/// Without the barrier the model finds the lost wake-up: the test above can fail.
#[test]
#[should_panic = "a lost wake-up"]
fn without_the_barrier_a_wake_up_is_lost() {
    loom::model(|| {
        let published = Arc::new(AtomicBool::new(false));
        let armed = Arc::new(AtomicBool::new(false));
        let producer = thread::spawn({
            let (published, armed) = (Arc::clone(&published), Arc::clone(&armed));
            move || {
                published.store(true, Ordering::Release);
                armed.load(Ordering::Acquire)
            }
        });
        armed.store(true, Ordering::Release);
        let consumer_saw = published.load(Ordering::Acquire);
        let producer_saw = producer.join().unwrap();
        assert!(consumer_saw || producer_saw, "a lost wake-up");
    });
}
