//! Every interleaving of small crowds on one MPMC queue: each item arrives once, whole.
//!
//! Run: `RUSTFLAGS="--cfg loom" cargo test --release --test mpmc_loom`
#![cfg(loom)]

use copyrpc_inproc::mpmc::Queue;
use loom::thread;

fn push(queue: &Queue<Box<usize>>, i: usize) {
    let mut item = Box::new(i);
    while let Err(full) = queue.push(item) {
        item = full.0;
        thread::yield_now();
    }
}

fn pop(queue: &Queue<Box<usize>>) -> usize {
    loop {
        match queue.pop() {
            Some(item) => return *item,
            None => thread::yield_now(),
        }
    }
}

#[test]
fn one_producer_and_one_consumer_wrap_in_order() {
    loom::model(|| {
        let queue = Queue::new(2);
        let other = queue.clone();
        let pushing = thread::spawn(move || (0..3).for_each(|i| push(&other, i)));
        for expected in 0..3 {
            assert_eq!(pop(&queue), expected);
        }
        pushing.join().unwrap();
    });
}

#[test]
fn two_producers_lose_nothing() {
    loom::model(|| {
        let queue = Queue::new(2);
        let producers = [1, 2].map(|i| {
            let queue = queue.clone();
            thread::spawn(move || push(&queue, i))
        });
        assert_eq!(pop(&queue) + pop(&queue), 3);
        for producer in producers {
            producer.join().unwrap();
        }
        assert!(queue.pop().is_none());
    });
}

#[test]
fn two_consumers_share_without_doubles() {
    loom::model(|| {
        let queue = Queue::new(2);
        push(&queue, 1);
        push(&queue, 2);
        let consumers = [(); 2].map(|()| {
            let queue = queue.clone();
            thread::spawn(move || pop(&queue))
        });
        let sum: usize = consumers.into_iter().map(|consumer| consumer.join().unwrap()).sum();
        assert_eq!(sum, 3);
    });
}

#[test]
fn leftovers_are_dropped_once() {
    loom::model(|| {
        let queue = Queue::new(2);
        let other = queue.clone();
        let pushing = thread::spawn(move || {
            push(&other, 0);
            push(&other, 1);
        });
        drop(queue.pop());
        drop(queue);
        pushing.join().unwrap();
    });
}
