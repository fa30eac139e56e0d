//! Destroying an object that others use, in every interleaving.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p copyrpc-softnic --test loom_presence`
#![cfg(loom)]

use copyrpc_softnic::shared::presence::Presence;
use memory::{
    barrier,
    sync::{Arc, AtomicBool, AtomicU64, Ordering, UnsafeCell, thread},
};

/// A send queue's word, and an object of a peer that the queue uses.
struct World {
    word: AtomicU64,
    is_valid: AtomicBool,
    object: UnsafeCell<u32>,
    /// What only the thread that executes the queue touches.
    queue: UnsafeCell<u32>,
}

// SAFETY: loom checks every access to the cells.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            word: AtomicU64::new(0),
            is_valid: AtomicBool::new(true),
            object: UnsafeCell::new(0),
            queue: UnsafeCell::new(0),
        })
    }

    /// Executes the queue, unless another thread does.
    fn execute(&self) -> bool {
        let presence = Presence(&self.word);
        if !presence.try_enter() {
            return false;
        }
        // SAFETY: inside; loom would notice another access.
        self.queue.with_mut(|queue| unsafe { *queue += 1 });
        if self.is_valid.load(Ordering::Relaxed) {
            // SAFETY: inside and valid; loom would notice the owner's access.
            self.object.with_mut(|object| unsafe { *object += 1 });
        }
        presence.leave();
        true
    }

    /// Destroys the object, and uses its memory for something else.
    fn destroy(&self) {
        self.is_valid.store(false, Ordering::Relaxed);
        barrier::store_load();
        let presence = Presence(&self.word);
        let observed = presence.observe();
        while !presence.has_left(observed) {
            thread::yield_now();
        }
        // SAFETY: nobody is inside any more; loom would notice.
        self.object.with_mut(|object| unsafe { *object = 0xdead });
    }
}

#[test]
fn nobody_is_inside_after_the_owner_has_waited() {
    loom::model(|| {
        let world = World::new();
        let executor = thread::spawn({
            let world = Arc::clone(&world);
            move || assert!(world.execute() && world.execute())
        });
        world.destroy();
        executor.join().unwrap();
        // SAFETY: the only thread.
        let object = world.object.with(|object| unsafe { *object });
        assert_eq!(object, 0xdead, "used after it was destroyed");
    });
}

#[test]
fn two_threads_never_execute_one_queue_at_once() {
    loom::model(|| {
        let world = World::new();
        let other = thread::spawn({
            let world = Arc::clone(&world);
            move || world.execute()
        });
        let executed = u32::from(world.execute()) + u32::from(other.join().unwrap());
        // SAFETY: the only thread.
        let count = world.queue.with(|queue| unsafe { *queue });
        assert!(executed >= 1 && count == executed);
    });
}
