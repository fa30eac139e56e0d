//! The scenarios, each run on every client that it concerns.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
    time::{Duration, Instant},
};

use copyrpc::{ClientConfig, Retry, Status, bulk::BulkProvider};

use crate::{
    clients::{Ask, Ended, Handle, Kind, block_on, join},
    foreign::Foreign,
    node::{Node, PATIENCE, Pair, Service, eventually},
    told::Origin,
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

/// Nodes at a time: each has a daemon that polls.
const NODES: usize = 4;

/// Runs a scenario on clients of a node of their own, each on a thread.
fn each(kinds: impl Fn(Kind) -> bool, run: impl Fn(Kind, &mut Node, &Service) + Sync) {
    let kinds: Vec<_> =
        Kind::ALL.into_iter().filter(|kind| kinds(*kind) && kind.is_there()).collect();
    for kinds in kinds.chunks(NODES) {
        thread::scope(|scope| {
            for &kind in kinds {
                let run = &run;
                let named = thread::Builder::new().name(format!("{kind:?}"));
                let spawned = named.spawn_scoped(scope, move || {
                    let mut node = Node::start();
                    let service = service_of(kind, &node);
                    run(kind, &mut node, &service);
                });
                spawned.unwrap();
            }
        });
    }
}

fn service_of(kind: Kind, node: &Node) -> Service {
    if kind.is_lending() { Service::lending(node) } else { Service::start(node) }
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
            assert_eq!(error.status, Status::DeadlineExceeded, "{kind:?}: {error:?}");
            assert_ne!(error.origin, Origin::Service, "{kind:?}: {error:?}");
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
            let beside = if kind.is_pipeline() { DEPTH } else { 3 * DEPTH };
            let mut asks = vec![Ask::HOLD.within(LONG); beside];
            asks.push(Ask::HOLD.within(SHORT));
            let mut ended = client.calls(&asks);
            let last = ended.pop().unwrap();
            // Those that wait for the room of the first do not wait for a deadline more.
            for Ended { after, .. } in ended {
                assert!(after < 2 * LONG, "{kind:?}: {after:?}");
            }
            let error = last.answer.unwrap_err();
            assert!(last.after < SOON && error.is_not_executed, "{kind:?}: {error:?}");
            if kind.is_pipeline() {
                // Its program waits, and is told so at once.
                let full = (Status::ResourceExhausted, Origin::Library);
                assert_eq!((error.status, error.origin), full, "{kind:?}: {error:?}");
            } else {
                assert!(last.after + TURN >= SHORT, "{kind:?}: {:?}", last.after);
                assert_eq!(error.status, Status::DeadlineExceeded, "{kind:?}: {error:?}");
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
            if kind.is_python() {
                // Python says what it cannot do, as it does of every number, and nothing is sent.
                let error = ended.answer.unwrap_err();
                assert!(error.is_not_executed, "{kind:?}: {error:?}");
                assert!(error.words.starts_with("OverflowError: "), "{kind:?}: {error:?}");
                let longest = Duration::from_micros(u64::from(u32::MAX));
                let ended = client.call(Ask::ECHO.within(longest));
                assert_eq!(ended.answer.unwrap(), b"body", "{kind:?}");
                return;
            }
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
        let error = ended.answer.unwrap_err();
        assert_eq!(error.status, Status::Cancelled, "{kind:?}: {error:?}");
        assert!(!error.is_not_executed, "{kind:?}: {error:?}");
        is_closed(kind, &mut client);
        assert!(begin.elapsed() < SOON, "{kind:?}: {:?}", begin.elapsed());
    });
    // One call at a time: none is under way when the program closes it.
    each(
        |kind| matches!(kind, Kind::PythonClient | Kind::PythonLending),
        |kind, node, _| {
            let mut client = Handle::connect(kind, &node.socket(), config());
            client.close();
            is_closed(kind, &mut client);
        },
    );
}

/// A call of a closed client ends at once, and is not executed.
fn is_closed(kind: Kind, client: &mut Handle) {
    let later = client.call(Ask::ECHO);
    let error = later.answer.unwrap_err();
    // In Python the program did what it must not do.
    let status = if kind.is_foreign() { Status::FailedPrecondition } else { Status::Cancelled };
    let expected = (status, Origin::Library, true);
    let told = (error.status, error.origin, error.is_not_executed);
    assert_eq!(told, expected, "{kind:?}: {error:?}");
    assert!(later.after < SOON, "{kind:?}: {:?}", later.after);
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
    let _services = [Service::start(&node), Service::lending(&node)];
    for (kind, config) in
        Kind::ALL.into_iter().flat_map(|kind| [(kind, config()), (kind, retrying())])
    {
        if !kind.is_there() {
            continue;
        }
        let mut client = Handle::connect(kind, &node.socket(), config);
        assert_eq!(client.call(Ask::ECHO).answer.unwrap(), b"body", "{kind:?}");
        if let Handle::Foreign(foreign) = &client {
            assert!(foreign.tells_a_child(), "{kind:?}: the child was not told");
            assert_eq!(client.call(Ask::ECHO).answer.unwrap(), b"body", "{kind:?}");
            continue;
        }
        let child = fork();
        assert!(child >= 0, "fork failed");
        if child == 0 {
            // What waits for ever is killed, and the parent told.
            alarm(20);
            let told = catch_unwind(AssertUnwindSafe(|| {
                let ended = client.call(Ask::ECHO);
                let is_told = ended.answer.is_err_and(|error| {
                    let told = (error.status, error.origin, error.is_not_executed);
                    told == (Status::Unavailable, Origin::Library, true)
                });
                is_told && ended.after < SOON
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
                assert!(ended.after < SOON, "{kind:?}: {:?}", ended.after);
                let told = (error.status, error.origin);
                assert_eq!(told, (Status::Unavailable, Origin::DaemonGone), "{kind:?}: {error:?}");
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
    is_shared::<copyrpc::tokio::TokioClient>();
    is_shared::<crate::node::ProbeFutures<copyrpc::tokio::TokioClient>>();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(3).build().unwrap();
    let node = Node::start();
    let _service = Service::start(&node);
    runtime.block_on(async {
        let client = copyrpc::tokio::TokioClient::connect(&node.socket(), config()).unwrap();
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

#[test]
fn threads_of_another_language_share_a_client_or_are_refused() {
    each(Kind::is_foreign, |kind, node, _| {
        let foreign = Foreign::connect(kind.command().unwrap(), &node.socket(), PATIENCE);
        let [fine, refused, other] = foreign.threads();
        assert_eq!((fine + refused, other), (200, 0), "{kind:?}");
        match kind {
            // Threads take turns.
            Kind::PythonClient | Kind::PythonLending => assert_eq!(refused, 0),
            // It belongs to its loop.
            Kind::PythonAsync => assert_eq!(fine, 0),
            // The second thread at the same time is refused.
            _ => assert!(fine > 0, "{kind:?}"),
        }
    });
}

#[test]
fn the_handler_is_told_the_number_of_the_trace() {
    const TRACE: u64 = 0xfeed_0000_0000_0007;
    each(
        |_| true,
        |kind, node, service| {
            for trace in [TRACE, 0] {
                let mut client = Handle::traced(kind, &node.socket(), config(), trace);
                // More than are made before a provider of the node is called without the daemon.
                for _ in 0..100 {
                    assert_eq!(client.call(Ask::ECHO).answer.unwrap(), b"body", "{kind:?}");
                }
                let traces = std::mem::take(&mut *service.traces.lock().unwrap());
                assert_eq!(traces, [trace; 100], "{kind:?}");
            }
        },
    );
}

#[test]
fn a_way_of_waiting_that_does_not_exist_is_refused_with_those_that_do() {
    const VARIABLE: &str = "COPYRPC_CLIENT_WAIT";
    let nowhere = std::path::Path::new("/nonexistent/copyrpc.sock");
    if std::env::var_os(VARIABLE).is_some_and(|said| said == "Block") {
        // This process was started below.
        let refused = |error: String| {
            assert!(
                error.contains("`Block`") && error.contains("busy, adaptive or block"),
                "{error}"
            );
        };
        refused(copyrpc::Client::connect(nowhere, config()).unwrap_err().to_string());
        let pipeline = copyrpc::Pipeline::<()>::connect(nowhere, config());
        refused(pipeline.unwrap_err().to_string());
        refused(copyrpc::FutureClient::connect(nowhere, config()).unwrap_err().to_string());
        refused(copyrpc::tokio::TokioClient::connect(nowhere, config()).unwrap_err().to_string());
        let offer = copyrpc::Offer::new(1);
        refused(copyrpc::Provider::offer(nowhere, &offer, config()).unwrap_err().to_string());
        let lending = copyrpc::bulk::BulkProvider::offer(nowhere, 1, config());
        return refused(lending.unwrap_err().to_string());
    }
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    let name = "a_way_of_waiting_that_does_not_exist_is_refused_with_those_that_do";
    child.args(["--exact", &format!("scenarios::{name}")]).env(VARIABLE, "Block");
    let told = child.output().unwrap();
    let said = String::from_utf8_lossy(&told.stdout);
    assert!(told.status.success() && said.contains("1 passed"), "{said}");
    for kind in Kind::ALL.into_iter().filter(|kind| kind.is_foreign()) {
        let Some(mut command) = kind.command() else { continue };
        command.env(VARIABLE, "Block");
        let (_foreign, told) = Foreign::try_connect(command, nowhere, PATIENCE);
        let error = told.unwrap_err();
        assert_eq!(error.status, Status::InvalidArgument, "{kind:?}: {error:?}");
        let words = [VARIABLE, "`Block`", "busy, adaptive or block"];
        assert!(words.iter().all(|word| error.words.contains(word)), "{kind:?}: {error:?}");
    }
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
                eventually("the handler is told", || service.are_told());
                let elapsed = begin.elapsed();
                service.let_go();
                elapsed
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
    let client = copyrpc::tokio::TokioClient::connect(&pair.sockets[0], config()).unwrap();
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
        eventually("the handler is told", || service.are_told());
        service.let_go();
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
        // A provider has one place more for what it tells the daemon.
        let most = if kind.is_lending() { DEPTH - 1 } else { DEPTH - 2 };
        eventually("all that there is room for are held", || service.holds() == most);
        drop(calls);
        // The provider answers, and has room for others.
        eventually("they are given up", || {
            service.let_cancelled_go();
            service.holds() == 0
        });
        let ended = client.call(Ask::ECHO);
        assert_eq!(ended.answer.unwrap(), b"body", "{kind:?}");
        assert!(ended.after < LONG, "{kind:?}: {:?}", ended.after);
    });
}

#[test]
fn a_provider_of_calls_that_lend_memory_answers_more_than_its_connection_has_places_for() {
    let node = Node::start();
    let mut provider = BulkProvider::offer_named(&node.socket(), "probe", config()).unwrap();
    let callers = [(); 3].map(|()| Handle::connect(Kind::LendingFutures, &node.socket(), config()));
    let calls: Vec<_> = callers
        .iter()
        .flat_map(|caller| (0..DEPTH / 2).map(|_| caller.start(&Ask::HOLD)))
        .collect();
    let (mut held, begin) = (Vec::new(), Instant::now());
    while held.len() < calls.len() {
        assert!(begin.elapsed() < PATIENCE, "{} of {} calls came", held.len(), calls.len());
        held.extend(provider.next(SHORT).unwrap());
    }
    assert!(held.len() > DEPTH);
    for work in held {
        provider.answer(work, Status::Ok, b"held").unwrap();
    }
    for ended in join(calls, begin) {
        assert_eq!(ended.answer.unwrap(), b"held");
    }
    // Its connection has places as before.
    let call = callers[0].start(&Ask::HOLD);
    let work = provider.next(PATIENCE).unwrap().unwrap();
    assert!(!provider.is_cancelled(&work));
    provider.answer(work, Status::Ok, b"next").unwrap();
    assert_eq!(block_on(call).unwrap(), b"next");
}

#[test]
fn a_retry_waits_for_a_service_that_is_offered_later() {
    // A pipeline reports, and its program decides; so do clients of other languages.
    let kinds = |kind: &Kind| !kind.is_pipeline() && !kind.is_foreign();
    thread::scope(|scope| {
        for kind in Kind::ALL.into_iter().filter(kinds) {
            scope.spawn(move || {
                let node = Node::start();
                let socket = node.socket();
                let calling = thread::spawn(move || {
                    Handle::connect(kind, &socket, retrying()).call(Ask::ECHO).answer
                });
                thread::sleep(SHORT);
                let _service = service_of(kind, &node);
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
                let known = [Origin::DaemonGone, Origin::Library, Origin::NoService];
                if kind.is_lending() && error.status == Status::NotFound {
                    client.renew();
                    continue;
                }
                assert!(known.contains(&error.origin), "{kind:?}: {error:?}");
                assert!(begin.elapsed() < PATIENCE, "{kind:?}: {error:?}");
                if let Handle::Foreign(foreign) = &client
                    && error.origin == Origin::DaemonGone
                {
                    // Programs of other languages say when.
                    foreign.reconnect().unwrap();
                }
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
            assert_eq!(refused.origin, Origin::Service, "{kind:?}: {refused:?}");
            assert_eq!((refused.status, &*refused.detail), (Status::NotFound, &b"why"[..]));
            let absent = client.call(ask("absent", b"")).answer.unwrap_err();
            assert_eq!(absent.origin, Origin::NoMethod, "{kind:?}: {absent:?}");
            let too_long = client.call(ask("echo", TOO_LONG)).answer.unwrap_err();
            let told = (too_long.status, too_long.origin, too_long.is_not_executed);
            assert_eq!(told, (Status::OutOfRange, Origin::Library, true), "{kind:?}: {too_long:?}");
            let instead = if kind.is_lending() { "put the body in a slice" } else { "bulk" };
            assert!(too_long.words.contains(instead), "{kind:?}: {too_long:?}");
            assert_eq!(client.call(Ask::ECHO).answer.unwrap(), b"body", "{kind:?}");
        },
    );
}
