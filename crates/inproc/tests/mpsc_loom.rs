//! Every interleaving of senders and a receiver that sleeps: no item, hang-up or wake-up is lost. A
//! lost wake-up is a sleeper that loom reports as a model without end.
//!
//! Run: `RUSTFLAGS="--cfg loom" cargo test --release --test mpsc_loom`
#![cfg(loom)]

use copyrpc_inproc::{
    Waiting,
    mpsc::{self, Config, ConnectError, Connector, Receiver},
    spsc::Lamport,
};
use loom::thread;

/// Boxed, so that loom sees an item leak.
type Item = Box<usize>;

/// Asleep at once: every look in between is one more interleaving, and proves nothing else.
const WAITING: Waiting = Waiting { spins: 0, yields: 0 };

fn queue(lanes_max: usize) -> (Connector<Item, Lamport>, Receiver<Item, Lamport>) {
    mpsc::channel(Config { lanes_max, lane_items: 2, budget_items: 1, waiting: WAITING })
}

/// Receives until "disconnected, and then empty"; sleeps in between.
fn receive_all(receiver: &mut Receiver<Item, Lamport>) -> Vec<usize> {
    let mut items = Vec::new();
    loop {
        let is_last_look = receiver.is_disconnected();
        match receiver.recv() {
            Some((_, item)) => items.push(*item),
            None if is_last_look => return items,
            None => drop(receiver.wait(u64::MAX)),
        }
    }
}

#[test]
fn disconnected_and_then_empty_is_the_end() {
    loom::model(|| {
        let (connector, mut receiver) = queue(1);
        let sending = thread::spawn(move || {
            let mut sender = connector.connect().unwrap();
            drop(connector);
            sender.send(Box::new(0)).unwrap();
            sender.send(Box::new(1)).unwrap();
        });
        assert_eq!(receive_all(&mut receiver), [0, 1]);
        sending.join().unwrap();
    });
}

#[test]
fn a_sleeper_wakes_when_the_last_connector_leaves() {
    loom::model(|| {
        let (connector, mut receiver) = queue(1);
        let leaving = thread::spawn(move || drop(connector));
        assert_eq!(receive_all(&mut receiver), [0; 0]);
        leaving.join().unwrap();
    });
}

#[test]
fn a_sleeper_wakes_for_each_item() {
    loom::model(|| {
        let (connector, mut receiver) = queue(1);
        let mut sender = connector.connect().unwrap();
        let sending = thread::spawn(move || {
            for i in 0..2 {
                sender.send(Box::new(i)).unwrap();
            }
            sender
        });
        for expected in 0..2 {
            let (_, item) = loop {
                match receiver.recv() {
                    Some(found) => break found,
                    None => receiver.wait(u64::MAX),
                };
            };
            assert_eq!(*item, expected);
        }
        sending.join().unwrap();
    });
}

#[test]
fn a_sleeper_wakes_for_either_of_two_senders() {
    loom::model(|| {
        let (connector, mut receiver) = queue(2);
        let senders = [0, 1].map(|i| {
            let mut sender = connector.connect().unwrap();
            thread::spawn(move || {
                sender.send(Box::new(i)).unwrap();
                sender
            })
        });
        let mut sum = 0;
        for _ in 0..2 {
            let (_, item) = loop {
                match receiver.recv() {
                    Some(found) => break found,
                    None => receiver.wait(u64::MAX),
                };
            };
            sum += *item + 1;
        }
        assert_eq!(sum, 3);
        for sender in senders {
            sender.join().unwrap();
        }
    });
}

/// The second producer gets the lane of the first, whose last item and hang-up may still be on
/// their way.
#[test]
fn a_lane_is_reused_without_mixing_up_its_producers() {
    let mut builder = loom::model::Builder::new();
    // Two lives of a lane are long: a third preemption takes a minute.
    builder.preemption_bound = builder.preemption_bound.map(|bound| bound.min(2));
    builder.check(|| {
        let (connector, mut receiver) = queue(1);
        let sending = thread::spawn(move || {
            let mut first = connector.connect().unwrap();
            first.send(Box::new(0)).unwrap();
            drop(first);
            let mut second = loop {
                match connector.connect() {
                    Ok(sender) => break sender,
                    Err(error) => assert_eq!(error, ConnectError::NoLane { lanes_max: 1 }),
                }
                thread::yield_now();
            };
            second.send(Box::new(1)).unwrap();
        });
        assert_eq!(receive_all(&mut receiver), [0, 1]);
        sending.join().unwrap();
    });
}
