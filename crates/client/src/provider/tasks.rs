//! Futures of a provider, run on the thread that talks to the daemon.

use std::{
    cell::RefCell,
    pin::Pin,
    sync::Arc,
    task::{Context, Wake, Waker},
};

use crate::provider::outbox::Outbox;

/// Wakes one task.
struct TaskWaker {
    task: usize,
    outbox: Arc<Outbox>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.outbox.wake_task(self.task);
    }
}

struct Slots<F> {
    /// A place is taken again once its future has ended: a late waker then polls another one for nothing.
    futures: Vec<Option<(Pin<Box<F>>, Waker)>>,
    free: Vec<usize>,
}

/// Futures that have not ended.
pub(super) struct Tasks<F> {
    outbox: Arc<Outbox>,
    slots: RefCell<Slots<F>>,
}

impl<F: Future<Output = ()>> Tasks<F> {
    pub(super) fn new(outbox: Arc<Outbox>) -> Self {
        Self { outbox, slots: RefCell::new(Slots { futures: Vec::new(), free: Vec::new() }) }
    }

    /// Adds a future; it is polled at the next [`poll`](Self::poll).
    pub(super) fn start(&self, future: F) {
        let slots = &mut *self.slots.borrow_mut();
        let task = slots.free.pop().unwrap_or_else(|| {
            slots.futures.push(None);
            slots.futures.len() - 1
        });
        let waker = Waker::from(Arc::new(TaskWaker { task, outbox: Arc::clone(&self.outbox) }));
        slots.futures[task] = Some((Box::pin(future), waker));
        self.outbox.wake_task(task);
    }

    /// Polls those that were woken; returns how many.
    pub(super) fn poll(&self) -> usize {
        let woken = self.outbox.take_woken();
        for task in &woken {
            // Not borrowed while the future runs.
            let Some((mut future, waker)) = self.slots.borrow_mut().futures[*task].take() else {
                continue;
            };
            let ended = future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
            let slots = &mut *self.slots.borrow_mut();
            if ended {
                slots.free.push(*task);
            } else {
                slots.futures[*task] = Some((future, waker));
            }
        }
        woken.len()
    }
}
