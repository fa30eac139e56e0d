//! The scenarios, each run on every client that it concerns.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
    time::{Duration, Instant},
};

use copyrpc::{CallError, ClientConfig, Retry, Status, ipc};

use crate::{
    clients::{Ask, Handle, Kind, join},
    node::{Node, PATIENCE, Pair, Service, eventually},
};

const SHORT: Duration = Duration::from_millis(100);
/// A daemon reads the clock once per turn of its loop, so a call may end that much before its deadline.
const TURN: Duration = Duration::from_millis(1);
/// Much longer than [`SHORT`] on a busy machine, too.
const LONG: Duration = Duration::from_secs(3);
/// What came because of [`SHORT`], and not of [`LONG`].
const SOON: Duration = Duration::from_millis(2000);
/// Calls that a daemon takes of one client at a time.
const DEPTH: usize = 64;

/// Runs a scenario on clients of a node of their own, each on a thread.
fn each(kinds: impl Fn(Kind) -> bool, run: impl Fn(Kind, &mut Node, &Service) + Sync) {
    thread::scope(|scope| {
        for kind in Kind::ALL.into_iter().filter(|kind| kinds(*kind)) {
            let run = &run;
            let named = thread::Builder::new().name(format!("{kind:?}"));
            let spawned = named.spawn_scoped(scope, move || {
                let mut node = Node::start();
                let service = Service::start(&node);
                run(kind, &mut node, &service);
            });
            spawned.unwrap();
        }
    });
}

fn config() -> ClientConfig {
    ClientConfig { timeout: PATIENCE, ..ClientConfig::default() }
}

fn retrying() -> ClientConfig {
    // Ten retries are saved up, in which a service on a busy machine has to have come.
    let backoff = Duration::from_millis(20);
    let backoff_max = Duration::from_secs(4);
    let retry = Retry { retries_max: 1000, backoff, backoff_max, ..Retry::standard() };
    let retry = Retry { awaits_service: true, ..retry };
    ClientConfig { retry: Retry { budget_percent: 100_000, ..retry }, ..config() }
}

#[test]
fn a_call_without_an_answer_ends_at_its_deadline() {
    each(
        |_| true,
        |kind, node, _| {
            let mut client = Handle::connect(kind, &node.socket(), config());
            let ended = client.call(Ask::HOLD.within(SHORT));
            assert!(ended.after + TURN >= SHORT && ended.after < SOON, "{kind:?}: {ended:?}");
            let error = ended.answer.unwrap_err();
            assert_eq!(error.status(), Status::DeadlineExceeded, "{kind:?}: {error}");
            assert!(!matches!(error, CallError::Service(_)), "{kind:?}: {error}");
            assert_eq!(client.call(Ask::ECHO).answer.unwrap(), b"body");
        },
    );
}

#[test]
fn a_deadline_counts_from_the_call_also_while_it_waits_for_room() {
    each(
        |kind| !kind.is_sync(),
        |kind, node, _| {
            let mut client = Handle::connect(kind, &node.socket(), config());
            let mut asks = vec![Ask::HOLD.within(LONG); DEPTH];
            asks.push(Ask::HOLD.within(SHORT));
            let last = client.calls(&asks).pop().unwrap();
            let error = last.answer.unwrap_err();
            assert!(last.after < SOON && error.is_certainly_not_executed(), "{kind:?}: {error}");
            if kind == Kind::Pipeline {
                // Its program waits, and is told so at once.
                let full = CallError::NotSent(ipc::CallError::Full { depth: DEPTH });
                assert_eq!(error, full);
            } else {
                assert!(last.after + TURN >= SHORT, "{kind:?}: {:?}", last.after);
                assert_eq!(error.status(), Status::DeadlineExceeded, "{kind:?}: {error}");
            }
        },
    );
}

#[test]
fn more_calls_than_there_is_room_for_are_all_made() {
    each(Kind::is_async, |kind, node, _| {
        let mut client = Handle::connect(kind, &node.socket(), config());
        for ended in client.calls(&[Ask::ECHO; 3 * DEPTH]) {
            assert_eq!(ended.answer.unwrap(), b"body", "{kind:?}");
        }
    });
}

#[test]
fn the_longest_deadline_is_one() {
    each(
        |_| true,
        |kind, node, _| {
            let mut client = Handle::connect(kind, &node.socket(), config());
            let ended = client.call(Ask::ECHO.within(Duration::MAX));
            assert_eq!(ended.answer.unwrap(), b"body", "{kind:?}");
            let endless = ClientConfig { timeout: Duration::MAX, ..config() };
            let mut client = Handle::connect(kind, &node.socket(), endless);
            assert_eq!(client.call(Ask::ECHO).answer.unwrap(), b"body", "{kind:?}");
        },
    );
}

#[test]
fn after_close_a_call_ends_at_once_and_so_do_those_under_way() {
    // The others have no close: a value that is dropped makes no calls.
    each(Kind::is_async, |kind, node, service| {
        let mut client = Handle::connect(kind, &node.socket(), config());
        let under_way = client.start(&Ask::HOLD);
        eventually("it is held", || service.holds() == 1);
        let begin = Instant::now();
        client.close();
        let ended = join(vec![under_way], begin).pop().unwrap();
        assert_eq!(ended.answer, Err(CallError::Daemon(ipc::CallError::Closed)), "{kind:?}");
        let later = client.call(Ask::ECHO);
        assert_eq!(later.answer, Err(CallError::NotSent(ipc::CallError::Closed)), "{kind:?}");
        assert!(begin.elapsed() < SOON, "{kind:?}: {:?}", begin.elapsed());
    });
}

// The C library's `fork(2)`; the child below makes calls and exits.
unsafe extern "C" {
    safe fn fork() -> i32;
    safe fn _exit(status: i32) -> !;
    safe fn waitpid(pid: i32, status: Option<&mut i32>, options: i32) -> i32;
    safe fn alarm(seconds: u32) -> u32;
}

#[test]
fn a_forked_child_is_told_and_its_parent_unaffected() {
    let node = Node::start();
    let _service = Service::start(&node);
    for (kind, config) in
        Kind::ALL.into_iter().flat_map(|kind| [(kind, config()), (kind, retrying())])
    {
        let mut client = Handle::connect(kind, &node.socket(), config);
        assert_eq!(client.call(Ask::ECHO).answer.unwrap(), b"body", "{kind:?}");
        let child = fork();
        assert!(child >= 0, "fork failed");
        if child == 0 {
            // What waits for ever is killed, and the parent told.
            alarm(20);
            let told = catch_unwind(AssertUnwindSafe(|| {
                let ended = client.call(Ask::ECHO);
                let forked = Err(CallError::NotSent(ipc::CallError::ForkedHandle));
                ended.answer == forked && ended.after < SOON
            }));
            // Destructors run, as at the exit of a script's interpreter.
            drop(client);
            _exit(i32::from(!told.unwrap_or(false)));
        }
        let mut status = -1;
        assert_eq!(waitpid(child, Some(&mut status), 0), child);
        assert_eq!(status, 0, "{kind:?}: the child was not told");
        assert_eq!(client.call(Ask::ECHO).answer.unwrap(), b"body", "{kind:?}");
    }
}

#[test]
fn calls_of_a_daemon_that_died_say_so_and_later_ones_at_once() {
    each(
        |_| true,
        |kind, node, _| {
            let mut client = Handle::connect(kind, &node.socket(), config());
            assert_eq!(client.call(Ask::ECHO).answer.unwrap(), b"body", "{kind:?}");
            node.stop_daemon();
            for _ in 0..2 {
                let ended = client.call(Ask::ECHO);
                let error = ended.answer.unwrap_err();
                assert!(ended.after < SOON && error.is_daemon_gone(), "{kind:?}: {error}");
                assert_eq!(error.status(), Status::Unavailable, "{kind:?}: {error}");
            }
        },
    );
}

#[test]
fn a_client_is_of_all_threads_or_moves_between_them_or_does_not_compile() {
    fn moves<T: Send>() {}
    fn is_shared<T: Send + Sync + Clone>() {}
    moves::<copyrpc::Client>();
    moves::<copyrpc::Pipeline<()>>();
    moves::<crate::node::ProbeClient>();
    is_shared::<client::tokio::TokioClient>();
    is_shared::<crate::node::ProbeFutures<client::tokio::TokioClient>>();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(3).build().unwrap();
    let node = Node::start();
    let _service = Service::start(&node);
    runtime.block_on(async {
        let client = client::tokio::TokioClient::connect(&node.socket(), config()).unwrap();
        let typed = crate::node::ProbeFutures::new(client, copyrpc::HERE).await.unwrap();
        let tasks: Vec<_> = (0..300_u32)
            .map(|number| {
                let typed = typed.clone();
                tokio::spawn(async move {
                    let body = number.to_le_bytes().to_vec();
                    assert_eq!(typed.echo(body.clone()).await.unwrap(), body);
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

/// Whoever executes a call that was given up is told within this time, on a machine that has time for it.
const TOLD_MAX: Duration = Duration::from_millis(100);

#[test]
fn whoever_executes_a_call_that_is_given_up_is_told() {
    each(
        |kind| !kind.is_sync(),
        |kind, node, service| {
            let mut client = Handle::connect(kind, &node.socket(), config());
            let told_after = (0..5).map(|_| {
                match &mut client {
                    Handle::Pipeline(pipeline) => {
                        let to = copyrpc::To {
                            rank: copyrpc::HERE,
                            service: copyrpc::name::service_number("probe"),
                            method: copyrpc::name::method_number("hold"),
                        };
                        let id = pipeline.submit(to, b"", (0, Instant::now())).unwrap();
                        pipeline.flush();
                        eventually("it is held", || service.holds() == 1);
                        assert!(pipeline.cancel(id).is_some());
                        pipeline.flush();
                    }
                    client => {
                        let call = client.start(&Ask::HOLD);
                        eventually("it is held", || service.holds() == 1);
                        drop(call);
                    }
                }
                let begin = Instant::now();
                let is_told =
                    || service.held.lock().unwrap().iter().all(|it| it.context().is_cancelled());
                eventually("the handler is told", is_told);
                service.held.lock().unwrap().clear();
                begin.elapsed()
            });
            let soonest = told_after.min().unwrap();
            assert!(soonest < TOLD_MAX, "{kind:?}: {soonest:?}");
            assert_eq!(client.call(Ask::ECHO).answer.unwrap(), b"body", "{kind:?}");
        },
    );
}

#[test]
fn whoever_executes_a_call_of_another_rank_that_is_given_up_is_told() {
    let pair = Pair::start();
    let service = Service::start_at(&pair.sockets[1]);
    let client = client::tokio::TokioClient::connect(&pair.sockets[0], config()).unwrap();
    let futures = copyrpc::FutureClient::connect(&pair.sockets[0], config()).unwrap();
    let to = copyrpc::To {
        rank: 1,
        service: copyrpc::name::service_number("probe"),
        method: copyrpc::name::method_number("hold"),
    };
    let told_after = |drop_call: Box<dyn FnOnce()>| {
        eventually("it is held", || service.holds() == 1);
        let begin = Instant::now();
        drop_call();
        let is_told = || service.held.lock().unwrap().iter().all(|it| it.context().is_cancelled());
        eventually("the handler is told", is_told);
        service.held.lock().unwrap().clear();
        begin.elapsed()
    };
    let soonest = (0..5).map(|_| {
        let call = client.call(to, b"");
        let of_tokio = told_after(Box::new(move || drop(call)));
        let call = futures.call(to, b"");
        of_tokio.max(told_after(Box::new(move || drop(call))))
    });
    let soonest = soonest.min().unwrap();
    assert!(soonest < TOLD_MAX, "{soonest:?}");
}

#[test]
fn calls_that_are_given_up_leave_room_for_others() {
    each(Kind::is_async, |kind, node, service| {
        let mut client = Handle::connect(kind, &node.socket(), config());
        let calls: Vec<_> = (0..2 * DEPTH).map(|_| client.start(&Ask::HOLD)).collect();
        eventually("all that there is room for are held", || service.holds() == DEPTH - 1);
        drop(calls);
        // The provider answers, and has room for others.
        eventually("they are given up", || {
            let mut held = service.held.lock().unwrap();
            held.retain(|request| !request.context().is_cancelled());
            held.is_empty()
        });
        let ended = client.call(Ask::ECHO);
        assert_eq!(ended.answer.unwrap(), b"body", "{kind:?}");
        assert!(ended.after < LONG, "{kind:?}: {:?}", ended.after);
    });
}

#[test]
fn a_retry_waits_for_a_service_that_is_offered_later() {
    // A pipeline reports, and its program decides.
    let kinds = |kind: &Kind| *kind != Kind::Pipeline;
    thread::scope(|scope| {
        for kind in Kind::ALL.into_iter().filter(kinds) {
            scope.spawn(move || {
                let node = Node::start();
                let socket = node.socket();
                let calling = thread::spawn(move || {
                    Handle::connect(kind, &socket, retrying()).call(Ask::ECHO).answer
                });
                thread::sleep(SHORT);
                let _service = Service::start(&node);
                assert_eq!(calling.join().unwrap().unwrap(), b"body", "{kind:?}");
            });
        }
    });
}

#[test]
fn a_client_that_may_retry_finds_the_next_life_of_its_daemon_and_of_the_service() {
    each(
        |_| true,
        |kind, node, _| {
            let mut client = Handle::connect(kind, &node.socket(), retrying());
            assert_eq!(client.call(Ask::ECHO).answer.unwrap(), b"body", "{kind:?}");
            node.stop_daemon();
            // Longer than a provider looked for it once.
            thread::sleep(Duration::from_millis(1200));
            node.start_daemon();
            let begin = Instant::now();
            while let Err(error) = client.call(Ask::ECHO).answer {
                // The first call may have been executed by the old one; a pipeline makes none again.
                let is_known = matches!(
                    error,
                    CallError::Daemon(_) | CallError::NotSent(_) | CallError::NoService(_)
                );
                assert!(is_known && begin.elapsed() < PATIENCE, "{kind:?}: {error}");
                thread::sleep(Duration::from_millis(10));
            }
        },
    );
}

#[test]
fn each_status_says_who_speaks() {
    const TOO_LONG: &[u8] = &[0; 3 << 20];
    each(
        |_| true,
        |kind, node, _| {
            let mut client = Handle::connect(kind, &node.socket(), config());
            let ask = |method, body| Ask { method, body, within: PATIENCE };
            let refused = client.call(ask("refuse", b"why")).answer.unwrap_err();
            assert!(matches!(refused, CallError::Service(_)), "{kind:?}: {refused}");
            assert_eq!((refused.status(), refused.detail()), (Status::NotFound, &b"why"[..]));
            let absent = client.call(ask("absent", b"")).answer.unwrap_err();
            assert!(matches!(absent, CallError::NoMethod(_)), "{kind:?}: {absent}");
            let too_long = client.call(ask("echo", TOO_LONG)).answer.unwrap_err();
            assert!(
                matches!(too_long, CallError::NotSent(ipc::CallError::TooLarge { .. })),
                "{kind:?}: {too_long}"
            );
            assert_eq!(too_long.status(), Status::OutOfRange);
            assert!(too_long.to_string().contains("bulk"), "{too_long}");
            assert_eq!(client.call(Ask::ECHO).answer.unwrap(), b"body", "{kind:?}");
        },
    );
}
