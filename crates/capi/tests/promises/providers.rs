//! What every form of serving promises.

use std::{
    collections::HashSet,
    sync::{Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use copyrpc::{
    CallError, Client, ClientConfig, Filler, HERE, InPlace, Inbound, Offer, ProvideError, Provider,
    Request, Retry, Status, To,
    bulk::{BulkProvider, BulkRegion, BulkRequest, Direction, Move},
};

use crate::{
    foreign::{Driver, Language},
    node::{Node, PATIENCE},
};

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Serve,
    ServeInPlace,
    ServeOn,
    Run,
    RunAsync,
    CServe,
    CThreads,
    PythonServe,
    PythonThreads,
    PythonAsync,
}

impl Form {
    const ALL: [Self; 10] = [
        Self::Serve,
        Self::ServeInPlace,
        Self::ServeOn,
        Self::Run,
        Self::RunAsync,
        Self::CServe,
        Self::CThreads,
        Self::PythonServe,
        Self::PythonThreads,
        Self::PythonAsync,
    ];

    /// The program of another language that has it, and the argument that names it there.
    fn foreign(self) -> Option<(Language, &'static str)> {
        match self {
            Self::CServe => Some((Language::C, "serve")),
            Self::CThreads => Some((Language::C, "threads")),
            Self::PythonServe => Some((Language::Python, "serve")),
            Self::PythonThreads => Some((Language::Python, "threads")),
            Self::PythonAsync => Some((Language::Python, "async")),
            _ => None,
        }
    }
}

const SERVICE: u16 = 900;
const ECHO: u16 = 1;
/// Sleeps beyond the deadline, looks whether anybody waits, and says what a service says then.
const SLEEP: u16 = 2;
/// Answers with as many bytes as the body says.
const LENGTH: u16 = 3;

fn handle(request: &Inbound<'_>, answer: &mut Vec<u8>) -> Status {
    match request.method {
        ECHO => answer.extend_from_slice(request.body),
        SLEEP => {
            while !request.is_cancelled() {
                thread::sleep(Duration::from_millis(1));
            }
            answer.extend_from_slice(b"nobody waits");
            return Status::Cancelled;
        }
        LENGTH => {
            let len_bytes = u32::from_le_bytes(request.body.try_into().unwrap());
            answer.resize(len_bytes as usize, 7);
        }
        _ => return Status::Unimplemented,
    }
    Status::Ok
}

fn handle_later(request: Request) {
    let context = request.context();
    let inbound = Inbound {
        rank: context.rank,
        method: context.method,
        body: request.body(),
        context: Some(context.caller),
        cancellation: None,
    };
    let mut answer = Vec::new();
    let status = handle(&inbound, &mut answer);
    request.reply(status, answer);
}

fn serve(form: Form, provider: Provider) -> Result<(), ProvideError> {
    match form {
        Form::Serve => provider.serve(|request, answer| Some(handle(request, answer))),
        Form::ServeInPlace => provider.serve_in_place(|request| {
            let mut answer = Vec::new();
            Some(match handle(request, &mut answer) {
                Status::Ok => InPlace::of(answer.len(), move |to: &mut Filler<'_>| {
                    to.put(&answer).unwrap();
                }),
                status => InPlace::failed(status, answer),
            })
        }),
        Form::ServeOn => provider.serve_on(2, handle),
        Form::Run => provider.run(handle_later),
        Form::RunAsync => provider.run_async(|request| async move { handle_later(request) }),
        foreign => unreachable!("{foreign:?} is a program of its own"),
    }
}

/// Nodes at a time: each has a daemon that polls.
const NODES: usize = 4;

/// Runs a scenario on each form, with a node of its own.
fn each(run: impl Fn(Form, &mut Node) + Sync) {
    for forms in Form::ALL.chunks(NODES) {
        thread::scope(|scope| {
            for &form in forms {
                let run = &run;
                scope.spawn(move || {
                    let mut node = Node::start();
                    match form.foreign() {
                        Some(program) => with_program(program, form, &mut node, run),
                        None => with_provider(form, &mut node, run),
                    }
                });
            }
        });
    }
}

fn with_provider(form: Form, node: &mut Node, run: impl Fn(Form, &mut Node)) {
    let offer = Offer::new(SERVICE).reconnecting(Retry::standard());
    let provider = Provider::offer(&node.socket(), &offer, ClientConfig::default()).unwrap();
    let stop = provider.stop_handle();
    let serving = thread::spawn(move || serve(form, provider));
    run(form, node);
    stop.stop();
    serving.join().unwrap().unwrap();
}

/// Without its tools there is nothing to run; in CI there is.
fn with_program(
    (language, name): (Language, &str),
    form: Form,
    node: &mut Node,
    run: impl Fn(Form, &mut Node),
) {
    let Some(mut command) = language.driver() else { return };
    command.arg(name).arg(node.socket()).arg(SERVICE.to_string());
    let driver = Driver::start(command);
    assert_eq!(driver.next(), "serving");
    run(form, node);
    driver.end();
}

fn client(node: &Node) -> Client {
    let config = ClientConfig { timeout: PATIENCE, ..ClientConfig::default() };
    Client::connect(&node.socket(), config).unwrap()
}

#[test]
fn what_came_too_late_ends_with_its_deadline_and_nobody_blames_the_service() {
    each(|form, node| {
        let mut client = client(node);
        for number in 0..600_u64 {
            let within = Duration::from_micros(number % 3 * 20);
            if let Err(error) = client.call_within(To::new(HERE, SERVICE, ECHO), b"late", within) {
                assert_eq!(error.status(), Status::DeadlineExceeded, "{form:?}: {error}");
                assert!(!matches!(error, CallError::Service(_)), "{form:?}: {error}");
            }
        }
        assert_eq!(
            client.call(To::new(HERE, SERVICE, ECHO), b"in time"),
            Ok(&b"in time"[..]),
            "{form:?}"
        );
    });
}

#[test]
fn what_a_service_says_after_the_deadline_is_not_its_word() {
    each(|form, node| {
        let mut client = client(node);
        for _ in 0..20 {
            let within = Duration::from_millis(20);
            let error = client.call_within(To::new(HERE, SERVICE, SLEEP), b"", within).unwrap_err();
            assert_eq!(error.status(), Status::DeadlineExceeded, "{form:?}: {error}");
            assert!(!matches!(error, CallError::Service(_)), "{form:?}: {error}");
        }
    });
}

#[test]
fn an_answer_that_is_too_long_says_so_and_what_to_use_instead() {
    each(|form, node| {
        let mut client = client(node);
        let len_bytes = 8_u32 << 20;
        let error =
            client.call(To::new(HERE, SERVICE, LENGTH), &len_bytes.to_le_bytes()).unwrap_err();
        assert_eq!(error.status(), Status::OutOfRange, "{form:?}: {error}");
        let words = error.to_string();
        let said = ["8388608 B", "stream", "bulk", "COPYRPC_MESSAGE_BYTES_MAX"];
        assert!(said.iter().all(|said| words.contains(said)), "{form:?}: {words}");
        assert!(error.detail().len() <= ClientConfig::default().response_bytes as usize, "{words}");
    });
}

#[test]
fn a_provider_that_reconnects_waits_longer_than_a_service_manager_takes() {
    each(|form, node| {
        let mut first = client(node);
        assert_eq!(
            first.call(To::new(HERE, SERVICE, ECHO), b"first"),
            Ok(&b"first"[..]),
            "{form:?}"
        );
        node.stop_daemon();
        thread::sleep(Duration::from_millis(1500));
        node.start_daemon();
        let (mut next, begin) = (client(node), Instant::now());
        while let Err(error) = next.call(To::new(HERE, SERVICE, ECHO), b"next") {
            assert!(begin.elapsed() < PATIENCE, "{form:?}: {error}");
            thread::sleep(Duration::from_millis(10));
        }
    });
}

#[test]
fn a_provider_that_is_to_give_up_does_and_one_that_is_stopped_ends_at_once() {
    let mut node = Node::start();
    let socket = node.socket();
    let longest = Duration::from_millis(200);
    let offers = [
        Offer::new(1).reconnecting_within(Retry::standard(), longest),
        Offer::new(2).reconnecting(Retry { backoff: PATIENCE, ..Retry::standard() }),
    ];
    let providers =
        offers.map(|offer| Provider::offer(&socket, &offer, ClientConfig::default()).unwrap());
    let stops = providers.each_ref().map(Provider::stop_handle);
    let [giving_up, stopped] = providers.map(|it| thread::spawn(move || serve(Form::Serve, it)));
    node.stop_daemon();
    let error = giving_up.join().unwrap().unwrap_err();
    assert!(matches!(&error, ProvideError::Call(error) if error.is_daemon_gone()), "{error}");
    assert!(!stopped.is_finished());
    stops[1].stop();
    stopped.join().unwrap().unwrap();
}

#[test]
fn the_next_call_with_lent_memory_is_waited_for_as_long_as_was_said() {
    let node = Node::start();
    let config = ClientConfig::default();
    let mut provider = BulkProvider::offer(&node.socket(), 5, config).unwrap();
    let shortest = (0..5).map(|_| {
        let begin = Instant::now();
        assert!(provider.next(Duration::from_millis(50)).unwrap().is_none());
        assert!(begin.elapsed() >= Duration::from_millis(50));
        begin.elapsed()
    });
    let shortest = shortest.min().unwrap();
    assert!(shortest < Duration::from_millis(500), "{shortest:?}");
}

/// How a provider of calls that lend memory answers: by what it pulled.
fn answer_lent(provider: &mut BulkProvider, own: &mut BulkRegion, work: BulkRequest) {
    provider.renew(own).unwrap();
    let len_bytes = work.slices[0].len_bytes;
    let moves =
        [Move { slice: 0, direction: Direction::Pull, offset: 0, local_offset: 0, len_bytes }];
    let moved = provider.transfer(&work, own, &moves, PATIENCE).unwrap();
    let mut pulled = vec![0; usize::try_from(moved).unwrap()];
    own.read(0, &mut pulled).unwrap();
    provider.answer(work, Status::Ok, &pulled).unwrap();
}

#[test]
fn a_provider_of_calls_that_lend_memory_finds_the_next_life_of_its_daemon() {
    let mut node = Node::start();
    let config =
        ClientConfig { retry: Retry::standard(), timeout: PATIENCE, ..ClientConfig::default() };
    let mut provider = BulkProvider::offer(&node.socket(), SERVICE, config).unwrap();
    let mut own = provider.bulk(4096).unwrap();
    own.write(1000, b"kept").unwrap();
    let mut client = client(&node);
    let mut region = client.bulk(4096).unwrap();
    region.write(0, b"lent").unwrap();
    let to = To { rank: HERE, service: SERVICE, method: 1 };
    thread::scope(|scope| {
        let calling = scope.spawn(|| {
            let slices = [region.slice(0, 4)];
            client.call_bulk(to, b"", &slices, PATIENCE).map(<[u8]>::to_vec)
        });
        // A call that is under way ends with its daemon, and nobody is told the answer.
        let work = provider.next(PATIENCE).unwrap().unwrap();
        node.stop_daemon();
        let gone = calling.join().unwrap().unwrap_err();
        assert_eq!(gone.status(), Status::Unavailable, "{gone}");
        assert_eq!(provider.next(Duration::from_millis(50)).unwrap().map(drop), None);
        node.start_daemon();
        // Memory is made by a daemon that was found.
        let begin = Instant::now();
        while provider.bulk(4096).is_err() {
            assert!(begin.elapsed() < PATIENCE);
            assert_eq!(provider.next(Duration::from_millis(50)).unwrap().map(drop), None);
        }
        assert_eq!(provider.answer(work, Status::Ok, b"too late"), Ok(()));
    });
    client.reconnect().unwrap();
    let slices = [region.slice(0, 4)];
    assert_eq!(client.call_bulk(to, b"", &slices, PATIENCE), Err(CallError::NotHeld));
    assert!(client.renew(&mut region).unwrap());
    assert!(!client.renew(&mut region).unwrap());
    thread::scope(|scope| {
        let calling = scope.spawn(|| {
            let slices = [region.slice(0, 4)];
            client.call_bulk(to, b"", &slices, PATIENCE).map(<[u8]>::to_vec)
        });
        let work = provider.next(PATIENCE).unwrap().unwrap();
        let stale = provider.begin(&work, &own, &[], PATIENCE);
        assert_eq!(stale, Err(CallError::NotHeld), "made with another daemon");
        answer_lent(&mut provider, &mut own, work);
        assert_eq!(calling.join().unwrap().as_deref(), Ok(&b"lent"[..]));
    });
    let mut kept = [0; 4];
    own.read(1000, &mut kept).unwrap();
    assert_eq!(&kept, b"kept");
}

/// Waits until the test says so.
const WAIT: u16 = 4;

#[test]
fn quick_requests_are_answered_by_the_thread_that_reads_them() {
    let node = Node::start();
    let provider = Provider::register(&node.socket(), SERVICE, ClientConfig::default()).unwrap();
    let (stop, served) = (provider.stop_handle(), Mutex::new(HashSet::new()));
    thread::scope(|scope| {
        let serving = scope.spawn(|| {
            provider.serve_on(4, |request, answer| {
                served.lock().unwrap().insert(thread::current().id());
                handle(request, answer)
            })
        });
        let mut client = client(&node);
        let begin = Instant::now();
        // A machine that interrupts a handler makes it slow; threads that are handed requests take turns.
        let mut threads = usize::MAX;
        while threads > 1 && begin.elapsed() < PATIENCE {
            served.lock().unwrap().clear();
            for _ in 0..200 {
                assert_eq!(client.call(To::new(HERE, SERVICE, ECHO), b"quick"), Ok(&b"quick"[..]));
            }
            threads = served.lock().unwrap().len();
        }
        stop.stop();
        serving.join().unwrap().unwrap();
        assert_eq!(threads, 1);
    });
}

#[test]
fn a_slow_request_after_quick_ones_keeps_no_other_waiting_while_a_thread_is_idle() {
    let node = Node::start();
    let provider = Provider::register(&node.socket(), SERVICE, ClientConfig::default()).unwrap();
    let stop = provider.stop_handle();
    let (begun, waits) = mpsc::channel();
    let (go_on, gate) = mpsc::channel();
    let (begun, gate) = (Mutex::new(begun), Mutex::new(gate));
    thread::scope(|scope| {
        let serving = scope.spawn(|| {
            provider.serve_on(2, |request, answer| {
                if request.method != WAIT {
                    return handle(request, answer);
                }
                begun.lock().unwrap().send(()).unwrap();
                gate.lock().unwrap().recv().unwrap();
                Status::Ok
            })
        });
        let mut quick = client(&node);
        for _ in 0..5 {
            for _ in 0..100 {
                assert_eq!(quick.call(To::new(HERE, SERVICE, ECHO), b"quick"), Ok(&b"quick"[..]));
            }
            let mut slow = client(&node);
            let slow = scope
                .spawn(move || slow.call(To::new(HERE, SERVICE, WAIT), b"").map(<[u8]>::to_vec));
            waits.recv_timeout(PATIENCE).unwrap();
            for _ in 0..100 {
                assert_eq!(quick.call(To::new(HERE, SERVICE, ECHO), b"quick"), Ok(&b"quick"[..]));
            }
            go_on.send(()).unwrap();
            assert_eq!(slow.join().unwrap(), Ok(Vec::new()));
        }
        stop.stop();
        serving.join().unwrap().unwrap();
    });
}
