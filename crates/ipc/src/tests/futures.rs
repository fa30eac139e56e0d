//! Calls as futures, on the smallest of executors.

use core::{
    cell::RefCell,
    future::Future,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::Wake,
    thread::{self, Thread},
    time::Duration,
};

use super::rig::*;
use crate::{CallError, ClientConfig, Filled, Filler, FutureClient, ResponseFuture};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls only when woken: a lost wake-up is a test that ends in an error.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let start = std::time::Instant::now();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park_timeout(PATIENCE);
        assert!(start.elapsed() < PATIENCE, "never woken");
    }
}

fn client(dir: &Dir) -> FutureClient {
    FutureClient::connect(&dir.socket(), patient()).expect("a server is there")
}

#[test]
fn calls_are_answered_in_turn_and_at_once() {
    let dir = Dir::new();
    let _server = ServerThread::start(&dir.socket(), small(), increment);
    let client = client(&dir);
    for _ in 0..50 {
        assert_eq!(block_on(client.call(b"abc")).unwrap(), b"bcd");
    }
    let calls: Vec<_> = (0..8u8).map(|number| client.call(&[number])).collect();
    assert_eq!(block_on(client.call(b"")), Err(CallError::Full { depth: 8 }));
    for (number, call) in (1u8..).zip(calls) {
        assert_eq!(block_on(call).unwrap(), [number]);
    }
}

#[test]
fn a_request_that_is_filled_in_place_is_sent_and_one_whose_filling_panics_is_not() {
    let dir = Dir::new();
    let _server = ServerThread::start(&dir.socket(), small(), increment);
    let client = client(&dir);
    let filled = Filled::behind(&[b"a"], 3, |rest: &mut Filler<'_>| rest.put(b"bc").unwrap());
    let answer = block_on(client.call_filled_within(&filled, PATIENCE)).unwrap();
    assert_eq!(answer, b"bcd\x01", "what was not put is zero");
    let clone = client.clone();
    let nested = Filled::behind(&[], 3, |_: &mut Filler<'_>| drop(clone.call(b"")));
    let call = AssertUnwindSafe(|| drop(client.call_filled_within(&nested, PATIENCE)));
    assert!(catch_unwind(call).is_err(), "it uses the client while that is in use");
    assert_eq!(block_on(client.call(b"abc")).unwrap(), b"bcd");
}

#[test]
fn fault_g2_a_future_that_sleeps_meets_its_deadline() {
    let dir = Dir::new();
    let mut kept = Vec::new();
    let _server = ServerThread::start(&dir.socket(), small(), move |r| kept.push(r.defer()));
    let client = client(&dir);
    let late = client.call_within(b"never", Duration::from_millis(30));
    assert_eq!(block_on(late), Err(CallError::Deadline));
}

#[test]
fn fault_a4_a_future_that_sleeps_learns_of_the_death_of_the_server() {
    let dir = Dir::new();
    let server = Role::start("server", &dir.socket(), Some("request.taken"));
    drop(connect_eventually(&dir.socket()));
    let client = client(&dir);
    let call = client.call(b"to the dead");
    server.wait_stopped();
    drop(server);
    let mut call = pin!(call);
    assert_eq!(block_on(call.as_mut()), Err(CallError::ServerGone));
    let again = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(again, Poll::Pending, "it has ended");
}

#[test]
fn fault_a13_dropped_futures_free_their_calls() {
    let dir = Dir::new();
    let _server = ServerThread::start(&dir.socket(), small(), increment);
    let client = client(&dir);
    for round in 0..100u8 {
        let mut dropped = Box::pin(client.call(b"dropped"));
        if round % 2 == 0 {
            // Registered with the waiting thread, then dropped.
            let mut context = Context::from_waker(Waker::noop());
            let _ = Pin::as_mut(&mut dropped).poll(&mut context);
        }
        drop(dropped);
        assert_eq!(block_on(client.call(&[round])).unwrap(), [round + 1]);
    }
}

/// Does nothing, but is there as long as somebody may wake it.
struct Counted;

impl Wake for Counted {
    fn wake(self: Arc<Self>) {}
}

/// Only the latest waker of a call counts (`Future::poll`), so however often a call is polled by new ones,
/// and calls are made and dropped, no more wakers are kept than there can be calls.
#[test]
fn a_call_that_is_polled_by_ever_new_wakers_keeps_the_latest_only() {
    let dir = Dir::new();
    let mut kept = Vec::new();
    let _server = ServerThread::start(&dir.socket(), small(), move |r| kept.push(r.defer()));
    let client = client(&dir);
    let mut handed = Vec::new();
    let mut poll_with_another = |call: &mut Pin<Box<ResponseFuture>>| {
        let counted = Arc::new(Counted);
        handed.push(Arc::downgrade(&counted));
        let waker = Waker::from(counted);
        assert!(call.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    };
    for _ in 0..3 {
        let mut dropped = Box::pin(client.call(b"dropped"));
        poll_with_another(&mut dropped);
    }
    let mut call = Box::pin(client.call(b"never answered"));
    (0..1000).for_each(|_| poll_with_another(&mut call));
    let there: Vec<_> = handed.iter().map(|waker| waker.strong_count() > 0).collect();
    assert!(there.iter().filter(|is_there| **is_there).count() <= 4);
    assert!(there[1002], "the latest one is kept");
}

/// Polls the call that waits in `NEXT` from within `wake`.
struct Reenter;

thread_local! {
    static NEXT: RefCell<Option<Pin<Box<ResponseFuture>>>> = const { RefCell::new(None) };
    static ANSWER: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

impl Wake for Reenter {
    fn wake(self: Arc<Self>) {
        // Elsewhere than on the client's thread there is none.
        let Some(mut next) = NEXT.take() else { return };
        let waker = Waker::from(Arc::new(Self));
        match next.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => ANSWER.set(Some(answer.expect("the server lives"))),
            Poll::Pending => NEXT.set(Some(next)),
        }
    }
}

#[test]
fn fault_g4_a_waker_may_poll_another_call_of_its_client() {
    let dir = Dir::new();
    let _server = ServerThread::start(&dir.socket(), small(), increment);
    let client = client(&dir);
    let mut first = Box::pin(client.call(b"1"));
    let reenter = Waker::from(Arc::new(Reenter));
    let polled = first.as_mut().poll(&mut Context::from_waker(&reenter));
    NEXT.set(Some(Box::pin(client.call(b"2"))));
    // A third call finds the answer of the first, wakes it, and that polls the second.
    let third = block_on(client.call(b"3"));
    assert_eq!(third.unwrap(), b"4");
    reenter.wake();
    eventually("the second call is answered", || {
        Waker::from(Arc::new(Reenter)).wake();
        ANSWER.take() == Some(b"3".to_vec())
    });
    if polled.is_pending() {
        assert_eq!(block_on(first).unwrap(), b"2");
    }
}

#[test]
fn fault_g4_a_client_dropped_before_its_calls_is_kept_by_them() {
    let dir = Dir::new();
    let server = ServerThread::start(&dir.socket(), small(), increment);
    let config = ClientConfig { timeout: PATIENCE, ..patient() };
    let client = FutureClient::connect(&dir.socket(), config).unwrap();
    let call = client.call(b"abc");
    drop(client);
    assert_eq!(block_on(call).unwrap(), b"bcd");
    expect_baseline(&server, 0);
}
