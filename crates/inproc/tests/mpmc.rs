//! The MPMC queue against its model, and under stress.
#![cfg(not(loom))]

use std::{
    collections::VecDeque,
    rc::Rc,
    thread,
    time::{Duration, Instant},
};

use copyrpc_inproc::{mpmc::Queue, spsc::Full};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 128 }, failure_persistence: None, ..Default::default()
    })]
    #[test]
    fn agrees_with_vec_deque(capacity in 1usize..20, pushes in prop::collection::vec(any::<bool>(), 0..200)) {
        let queue = Queue::new(capacity);
        let mut oracle = VecDeque::new();
        for (i, is_push) in pushes.into_iter().enumerate() {
            if is_push {
                let is_full = oracle.len() == queue.capacity_items();
                let expected = if is_full { Err(Full(Box::new(i))) } else { Ok(()) };
                prop_assert_eq!(queue.push(Box::new(i)), expected);
                if !is_full {
                    oracle.push_back(i);
                }
            } else {
                prop_assert_eq!(queue.pop().map(|item| *item), oracle.pop_front());
            }
        }
    }
}

#[test]
fn leftovers_are_dropped_once() {
    let token = Rc::new(());
    let queue = Queue::new(4);
    for _ in 0..3 {
        queue.push(token.clone()).unwrap();
    }
    drop(queue.pop());
    assert_eq!(Rc::strong_count(&token), 3);
    drop(queue);
    assert_eq!(Rc::strong_count(&token), 1);
}

/// Pitfall of unverified MPMC queues: hung in a twentieth of the stress runs. Each consumer sees each
/// producer's items in order, and all of them arrive once.
#[test]
fn pitfall_17_stress_keeps_the_order_of_each_producer() {
    const CROWD: usize = 3;
    let items = if cfg!(miri) { 20 } else { 20_000 };
    let deadline = Instant::now() + Duration::from_secs(300);
    for capacity in [2, 64] {
        let queue = Queue::<(usize, u64)>::new(capacity);
        let sums: Vec<u64> = thread::scope(|scope| {
            for producer in 0..CROWD {
                let queue = &queue;
                scope.spawn(move || {
                    for i in 0..items {
                        while queue.push((producer, i)).is_err() {
                            assert!(Instant::now() < deadline, "hung");
                            thread::yield_now();
                        }
                    }
                });
            }
            let consume = || {
                let mut next = [0; CROWD];
                let mut sum = 0;
                let mut count = 0;
                while count < items {
                    let Some((producer, i)) = queue.pop() else {
                        assert!(Instant::now() < deadline, "hung");
                        thread::yield_now();
                        continue;
                    };
                    assert!(i >= next[producer], "item {i} of {producer} came late");
                    next[producer] = i + 1;
                    sum += i;
                    count += 1;
                }
                sum
            };
            let consumers: Vec<_> = (0..CROWD).map(|_| scope.spawn(consume)).collect();
            consumers.into_iter().map(|consumer| consumer.join().unwrap()).collect()
        });
        assert_eq!(sums.iter().sum::<u64>(), CROWD as u64 * items * (items - 1) / 2);
        assert!(queue.pop().is_none());
    }
}
