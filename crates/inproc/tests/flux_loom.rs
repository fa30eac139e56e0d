//! Every interleaving of two nodes that sleep between polls: each call ends, once, as it should.
//!
//! Run: `RUSTFLAGS="--cfg loom" cargo test --release --test flux_loom`
#![cfg(loom)]

use copyrpc_inproc::{
    Unanswered, Waiting,
    flux::{self, Announce, Config, Event, Node},
    spsc::Lamport,
};
use loom::thread;
use memory::sync::{Arc, AtomicBool, Ordering};

/// Boxed, so that loom sees one leak.
type Body = Box<u32>;
type TestNode = Node<Body, Body, u32, Lamport>;

fn config(announce: Announce) -> Config {
    let waiting = Waiting { spins: 0, yields: 0 };
    Config { nodes: 2, calls_max: 1, tokens_max: 1, budget_items: 1, waiting, announce }
}

fn pair(announce: Announce) -> [TestNode; 2] {
    flux::mesh(config(announce)).try_into().expect("two nodes")
}

fn reply_of(node: &mut TestNode) -> (u32, Result<u32, Unanswered>) {
    loop {
        if let Some(event) = node.poll() {
            let Event::Reply { user, result, .. } = event else { panic!("unexpected {event:?}") };
            return (user, result.map(|body| *body));
        }
        node.wait(u64::MAX);
    }
}

fn serve_one(node: &mut TestNode) {
    loop {
        if let Some(event) = node.poll() {
            let Event::Request { request, reply, .. } = event else { panic!("{event:?}") };
            break reply.send(Box::new(*request + 1));
        }
        node.wait(u64::MAX);
    }
    node.announce();
}

#[test]
fn a_call_is_answered_though_both_sides_sleep() {
    call_of_sleepers(Announce::EachMessage);
}

#[test]
fn a_call_announced_late_is_answered_though_both_sides_sleep() {
    call_of_sleepers(Announce::OnRequest);
}

fn call_of_sleepers(announce: Announce) {
    loom::model(move || {
        let [mut caller, mut server] = pair(announce);
        let serving = thread::spawn(move || {
            serve_one(&mut server);
            server
        });
        caller.call(1, Box::new(41), 7).unwrap();
        assert_eq!(reply_of(&mut caller), (7, Ok(42)));
        serving.join().unwrap();
    });
}

/// The server sleeps elsewhere, and looks again only when its alarm has rung.
#[test]
fn an_alarm_rings_for_a_node_that_armed_and_has_work() {
    notice_to_a_sleeper(Announce::EachMessage);
}

#[test]
fn an_alarm_rings_for_what_is_announced_late() {
    notice_to_a_sleeper(Announce::OnRequest);
}

fn notice_to_a_sleeper(announce: Announce) {
    loom::model(move || {
        let rung = Arc::new(AtomicBool::new(false));
        let nodes: Vec<TestNode> = flux::mesh_with_alarms(config(announce), |_| {
            let rung = rung.clone();
            Box::new(move || rung.store(true, Ordering::Relaxed))
        });
        let [mut caller, mut server]: [_; 2] = nodes.try_into().expect("two nodes");
        let calling = thread::spawn(move || {
            caller.notify(1, Box::new(41)).unwrap();
            caller.announce();
            caller
        });
        loop {
            if let Some(event) = server.poll() {
                let Event::Notice { notice, .. } = event else { panic!("{event:?}") };
                break assert_eq!(*notice, 41);
            }
            if server.arm() {
                while !rung.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
            }
            server.disarm();
        }
        calling.join().unwrap();
    });
}

#[test]
fn a_node_that_leaves_ends_the_calls_to_it() {
    loom::model(|| {
        let [mut caller, server] = pair(Announce::EachMessage);
        let leaving = thread::spawn(move || drop(server));
        if caller.call(1, Box::new(0), 7).is_ok() {
            assert_eq!(reply_of(&mut caller), (7, Err(Unanswered::Gone)));
        }
        leaving.join().unwrap();
    });
}

#[test]
fn a_token_dropped_elsewhere_wakes_its_node_and_ends_the_call() {
    loom::model(|| {
        let [mut caller, mut server] = pair(Announce::EachMessage);
        caller.call(1, Box::new(0), 7).unwrap();
        let Some(Event::Request { reply, .. }) = server.poll() else { panic!("sent before") };
        let token = reply.defer().unwrap();
        let dropping = thread::spawn(move || drop(token));
        while caller.calls_in_flight() > 0 {
            assert!(server.poll().is_none());
            match caller.poll() {
                Some(Event::Reply { result, .. }) => assert_eq!(result, Err(Unanswered::Dropped)),
                _ => assert!(server.wait(u64::MAX)),
            }
        }
        dropping.join().unwrap();
    });
}
