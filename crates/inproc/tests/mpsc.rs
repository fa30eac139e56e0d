//! Lanes: fairness, coming and going, hang-ups, sleeping.
#![cfg(not(loom))]

use std::{rc::Rc, sync::Barrier, thread};

use copyrpc_inproc::{
    Waiting,
    mpsc::{self, Config, ConnectError, Connector, LINGER_LOOKS, Receiver, SendError},
    spsc::{FastForward, Lamport, Onesided},
};

const SLEEPY: Waiting = Waiting { spins: 0, yields: 0 };

fn queue<T>(config: Config) -> (Connector<T, Lamport>, Receiver<T, Lamport>) {
    mpsc::channel(config)
}

#[test]
fn a_hog_gets_no_more_than_its_budget_before_the_others() {
    let (connector, mut receiver) =
        queue(Config { lane_items: 64, budget_items: 4, ..Config::default() });
    let mut hog = connector.connect().unwrap();
    let mut modest = connector.connect().unwrap();
    assert_eq!(hog.send_batch(64, 0..64), 64);
    modest.send(1000).unwrap();
    modest.send(1001).unwrap();
    let (first, _) = receiver.recv().unwrap();
    let order: Vec<usize> = std::iter::from_fn(|| receiver.recv()).map(|(lane, _)| lane).collect();
    let waited = order.iter().position(|&lane| lane == modest.lane()).unwrap();
    assert!(first == modest.lane() || waited < 4, "{order:?}");
    let hogged: usize = order.iter().filter(|&&lane| lane == hog.lane()).count();
    assert_eq!(order.len() + 1, 66);
    assert!(hogged >= 63);
}

#[test]
fn all_active_lanes_take_turns() {
    let (connector, mut receiver) =
        queue(Config { lanes_max: 200, lane_items: 8, budget_items: 2, ..Config::default() });
    let mut senders: Vec<_> = (0..200).map(|_| connector.connect().unwrap()).collect();
    for sender in senders.iter_mut().step_by(3) {
        assert_eq!(sender.send_batch(8, 0..8), 8);
    }
    let active = 200usize.div_ceil(3);
    for turn in 0..4 {
        let mut lanes: Vec<usize> =
            (0..2 * active).map(|_| receiver.recv().expect("more to come").0).collect();
        lanes.sort_unstable();
        lanes.dedup();
        assert_eq!(lanes.len(), active, "each active lane in turn {turn}");
    }
    assert_eq!(receiver.recv(), None);
}

#[test]
fn a_full_lane_hands_the_item_back_and_holds_up_nobody() {
    let (connector, mut receiver) = queue(Config { lane_items: 2, ..Config::default() });
    let mut full = connector.connect().unwrap();
    let mut free = connector.connect().unwrap();
    assert_eq!(full.send_batch(9, 0..9), 2);
    assert_eq!(full.send(7), Err(SendError::Full(7)));
    free.send(8).unwrap();
    let mut items: Vec<_> = std::iter::from_fn(|| receiver.recv()).map(|(_, item)| item).collect();
    items.sort_unstable();
    assert_eq!(items, [0, 1, 8]);
}

/// Pitfall: client ids that are never reused.
#[test]
fn lanes_are_reused_for_ever() {
    let (connector, mut receiver) = queue(Config { lanes_max: 3, ..Config::default() });
    for round in 0..if cfg!(miri) { 3 } else { 500 } {
        let senders: Vec<_> = (0..3).map(|_| connector.connect().unwrap()).collect();
        let refused = connector.connect().map(drop);
        assert_eq!(refused, Err(ConnectError::NoLane { lanes_max: 3 }));
        for (i, mut sender) in senders.into_iter().enumerate() {
            sender.send(round * 3 + i).unwrap(); // and hangs up
        }
        let mut got = Vec::new();
        // Sent items are taken first; the hang-up is seen once the lane has rested.
        for _ in 0..LINGER_LOOKS + 8 {
            got.extend(receiver.recv().map(|(_, item)| item));
        }
        got.sort_unstable();
        assert_eq!(got, [round * 3, round * 3 + 1, round * 3 + 2]);
    }
}

#[test]
fn a_receiver_that_leaves_is_noticed_and_drops_what_was_queued() {
    let token = Rc::new(());
    let (connector, receiver) = queue(Config::default());
    let mut sender = connector.connect().unwrap();
    sender.send(token.clone()).unwrap();
    drop(receiver);
    assert!(sender.is_disconnected());
    assert!(matches!(sender.send(token.clone()), Err(SendError::Disconnected(_))));
    assert!(matches!(connector.connect(), Err(ConnectError::Disconnected)));
    drop((sender, connector));
    assert_eq!(Rc::strong_count(&token), 1);
}

#[test]
fn a_passed_deadline_does_not_wait() {
    let (connector, mut receiver) = queue::<u32>(Config { waiting: SLEEPY, ..Config::default() });
    assert!(!receiver.wait(0));
    connector.connect().unwrap().send(1).unwrap();
    assert!(receiver.wait(0));
}

#[cfg(not(miri))] // Miri has no futex with a deadline
#[test]
fn a_deadline_ends_a_sleep() {
    let (_connector, mut receiver) = queue::<u32>(Config { waiting: SLEEPY, ..Config::default() });
    let deadline_ns = os::clock::now_ns() + 2_000_000;
    while os::clock::now_ns() < deadline_ns {
        assert!(!receiver.wait(deadline_ns));
    }
}

/// Senders and a receiver that sleeps whenever it finds nothing: each item is checked, none is lost,
/// and no thread hangs.
fn stress<D: copyrpc_inproc::spsc::Discipline>(waiting: Waiting) {
    const SENDERS: usize = 4;
    let items = if cfg!(miri) { 20 } else { 10_000 };
    let config = Config { lanes_max: 4, lane_items: 8, budget_items: 3, waiting };
    let (connector, mut receiver) = mpsc::channel::<(usize, u64), D>(config);
    let start = Barrier::new(SENDERS);
    thread::scope(|scope| {
        for number in 0..SENDERS {
            let mut sender = connector.connect().unwrap();
            let start = &start;
            scope.spawn(move || {
                start.wait();
                let mut next = 0;
                while next < items {
                    let count = sender.send_batch(3, (next..items).map(|i| (number, i)));
                    next += count as u64;
                    if count == 0 || next % 64 == 0 {
                        thread::yield_now();
                    }
                }
            });
        }
        drop(connector);
        let mut next = [0; SENDERS];
        loop {
            let is_last_look = receiver.is_disconnected();
            match receiver.recv() {
                Some((_, (number, i))) => {
                    assert_eq!(i, next[number], "of sender {number}");
                    next[number] += 1;
                }
                None if is_last_look => break,
                // A hang-up wakes too, so there is no need for a deadline.
                None => drop(receiver.wait(u64::MAX)),
            }
        }
        assert_eq!(next, [items; SENDERS]);
    });
}

#[test]
fn stress_with_sleep_after_each_empty_look() {
    stress::<Lamport>(SLEEPY);
    stress::<FastForward>(SLEEPY);
    stress::<Onesided>(SLEEPY);
}

#[test]
fn stress_with_the_default_wait() {
    stress::<Lamport>(Waiting::default());
    stress::<Onesided>(Waiting::default());
}
