//! Calls of a [`FutureClient`] to a daemon in this process, on the smallest of executors.

use std::{
    cell::RefCell,
    path::PathBuf,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use bootstrap::{JobId, RankInfo, Secret};
use client::{
    Client, ClientConfig, FutureCall, FutureClient, Offer, Provider, To, message::HERE,
    runtime::Runtime,
};
use copyrpc_daemon::{
    Inbound, Services, Serving, Status,
    config::{DaemonConfig, KNOBS, Layers},
    serve,
};
use memory::sync::{AtomicBool, Ordering};

#[path = "../../bootstrap/tests/common/mod.rs"]
mod common;
use common::{TempFolder, eventually};

/// Bound of every wait of these tests.
const PATIENCE: Duration = Duration::from_secs(30);

/// The daemon answers with what it is asked.
const ECHO: To = To::new(HERE, 7, 0);
/// A process offers it, and answers nothing.
const SILENT: To = To::new(HERE, 8, 0);

fn config() -> ClientConfig {
    ClientConfig { timeout: PATIENCE, ..ClientConfig::default() }
}

/// Runs a test beside a daemon.
fn with_daemon(name: &str, test: impl FnOnce(PathBuf)) {
    use std::os::unix::fs::PermissionsExt as _;
    let temp = TempFolder::new(name);
    std::fs::set_permissions(temp.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let settings = Layers::new(KNOBS.to_vec()).finish();
    let serving = Serving {
        config: DaemonConfig::from_settings(&settings).unwrap(),
        runtime: Runtime::new(temp.path().to_owned(), JobId::new("futures").unwrap(), "").unwrap(),
        rank_info: RankInfo::ALONE,
        secret: Secret::from_bytes(b"sixteen bytes or more"),
    };
    let fabric = temp.path().file_name().unwrap().to_str().unwrap().to_owned();
    let nic = softnic::open(&softnic::Config { fabric, ..softnic::Config::default() }).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let daemon = scope.spawn(|| {
            let mut services = Services::default();
            let echo = |it: &Inbound<'_>, answer: &mut Vec<u8>| {
                answer.extend_from_slice(it.body);
                Status::Ok
            };
            services.offer(7, Box::new(echo)).unwrap();
            serve(&serving, nic, services, &stop)
        });
        let _stops = StopOnDrop(&stop);
        let socket = serving.runtime.socket();
        eventually(|| Client::connect(&socket, config()).is_ok());
        test(socket);
        stop.store(true, Ordering::Relaxed);
        daemon.join().unwrap().unwrap();
    });
}

/// Ends the daemon together with its test, also if that fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

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
    let start = Instant::now();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park_timeout(PATIENCE);
        assert!(start.elapsed() < PATIENCE, "never woken");
    }
}

#[test]
fn fault_a13_dropped_futures_free_their_calls() {
    with_daemon("futures-dropped", |socket| {
        let _silent = Provider::offer(&socket, &Offer::new(SILENT.service), config()).unwrap();
        let client = FutureClient::connect(&socket, config()).unwrap();
        for round in 0..300_u32 {
            let mut dropped = Box::pin(client.call(SILENT, b"dropped"));
            if round % 2 == 0 {
                // Registered with the waking thread, then dropped.
                let polled = dropped.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                assert!(polled.is_pending());
            }
            drop(dropped);
            let body = round.to_le_bytes();
            assert_eq!(block_on(client.call(ECHO, &body)), Ok(body.to_vec()));
        }
    });
}

#[test]
fn fault_g2_a_future_that_sleeps_meets_its_deadline() {
    with_daemon("futures-deadline", |socket| {
        let _silent = Provider::offer(&socket, &Offer::new(SILENT.service), config()).unwrap();
        let client = FutureClient::connect(&socket, config()).unwrap();
        let timeout = Duration::from_secs(1);
        let start = Instant::now();
        let ended = block_on(client.call_within(SILENT, b"never answered", timeout));
        assert_eq!(ended.unwrap_err().status(), Status::DeadlineExceeded);
        // The daemon counts from the begin of a turn of its loop, which lasts as long as others have its core.
        assert!(start.elapsed() >= timeout / 2);
        assert_eq!(block_on(client.call(ECHO, b"on")), Ok(b"on".to_vec()));
    });
}

/// Does nothing, but is there as long as it may be woken.
struct Counted;

impl Wake for Counted {
    fn wake(self: Arc<Self>) {}
}

/// Only the latest waker of a call counts (`Future::poll`), so however often a call is polled by new ones,
/// and calls are made and dropped, no more wakers are kept than calls wait.
#[test]
fn a_call_that_is_polled_by_ever_new_wakers_keeps_the_latest_only() {
    with_daemon("futures-wakers", |socket| {
        let _silent = Provider::offer(&socket, &Offer::new(SILENT.service), config()).unwrap();
        let client = FutureClient::connect(&socket, config()).unwrap();
        let mut handed = Vec::new();
        let mut poll_with_another = |call: &mut Pin<Box<FutureCall>>| {
            let counted = Arc::new(Counted);
            handed.push(Arc::downgrade(&counted));
            let waker = Waker::from(counted);
            assert!(call.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        };
        for _ in 0..3 {
            poll_with_another(&mut Box::pin(client.call(SILENT, b"dropped")));
        }
        let mut call = Box::pin(client.call(SILENT, b"never answered"));
        (0..1000).for_each(|_| poll_with_another(&mut call));
        let there: Vec<_> = handed.iter().map(|waker| waker.strong_count() > 0).collect();
        assert!(there.iter().filter(|is_there| **is_there).count() <= 4);
        assert!(there[1002], "the latest one is kept");
    });
}

/// Polls the call that waits in `NEXT` from within `wake`.
struct Reenter;

thread_local! {
    static NEXT: RefCell<Option<Pin<Box<FutureCall>>>> = const { RefCell::new(None) };
    static ANSWER: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

impl Wake for Reenter {
    fn wake(self: Arc<Self>) {
        // Elsewhere than on the client's thread there is none.
        let Some(mut next) = NEXT.take() else { return };
        let waker = Waker::from(Arc::new(Self));
        match next.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => ANSWER.set(Some(answer.expect("the daemon lives"))),
            Poll::Pending => NEXT.set(Some(next)),
        }
    }
}

#[test]
fn fault_g4_a_waker_may_poll_another_call_of_its_client() {
    with_daemon("futures-reenter", |socket| {
        let client = FutureClient::connect(&socket, config()).unwrap();
        let mut first = Box::pin(client.call(ECHO, b"1"));
        let reenter = Waker::from(Arc::new(Reenter));
        let polled = first.as_mut().poll(&mut Context::from_waker(&reenter));
        NEXT.set(Some(Box::pin(client.call(ECHO, b"2"))));
        // A third call finds the answer of the first, wakes it, and that polls the second.
        assert_eq!(block_on(client.call(ECHO, b"3")), Ok(b"3".to_vec()));
        eventually(|| {
            Waker::from(Arc::new(Reenter)).wake();
            ANSWER.take() == Some(b"2".to_vec())
        });
        if polled.is_pending() {
            assert_eq!(block_on(first), Ok(b"1".to_vec()));
        }
    });
}

#[test]
fn fault_g4_a_client_dropped_before_its_calls_is_kept_by_them() {
    with_daemon("futures-kept", |socket| {
        let client = FutureClient::connect(&socket, config()).unwrap();
        let call = client.call(ECHO, b"abc");
        drop(client);
        assert_eq!(block_on(call), Ok(b"abc".to_vec()));
    });
}
