//! What every form of serving promises.

use std::{
    any::Any,
    collections::HashSet,
    env, fs,
    path::{Path, PathBuf},
    process,
    sync::{Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use copyrpc::{
    CallError, Client, ClientConfig, Filler, HERE, InPlace, Inbound, Offer, Pipeline, ProvideError,
    Provider, Request, Retry, Status, To,
    bulk::{BulkProvider, BulkRegion, BulkRequest, Direction, Move},
    tokio::TokioClient,
};

use crate::{
    clients::block_on,
    foreign::{Driver, Language},
    node::{Node, PATIENCE, eventually},
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
    Lending,
    CLending,
    PythonLending,
}

impl Form {
    const ALL: [Self; 13] = [
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
        Self::Lending,
        Self::CLending,
        Self::PythonLending,
    ];

    /// The program of another language that has it, and the argument that names it there.
    fn foreign(self) -> Option<(Language, &'static str)> {
        match self {
            Self::CServe => Some((Language::C, "serve")),
            Self::CThreads => Some((Language::C, "threads")),
            Self::PythonServe => Some((Language::Python, "serve")),
            Self::PythonThreads => Some((Language::Python, "threads")),
            Self::PythonAsync => Some((Language::Python, "async")),
            Self::CLending => Some((Language::C, "lending")),
            Self::PythonLending => Some((Language::Python, "lending")),
            _ => None,
        }
    }

    /// Its calls lend memory.
    fn is_lending(self) -> bool {
        matches!(self, Self::Lending | Self::CLending | Self::PythonLending)
    }
}

const SERVICE: u16 = 900;
const ECHO: u16 = 1;
/// Sleeps beyond the deadline, looks whether anybody waits, and says what a service says then.
const SLEEP: u16 = 2;
/// Answers with as many bytes as the body says.
const LENGTH: u16 = 3;
/// Makes a file of this name, waits for nothing but its cancellation, and removes the file.
const AWAIT: u16 = 5;

fn handle(request: &Inbound<'_>, answer: &mut Vec<u8>) -> Status {
    handle_any(request.method, request.body, || request.is_cancelled(), answer)
}

fn handle_any(
    method: u16,
    body: &[u8],
    mut is_cancelled: impl FnMut() -> bool,
    answer: &mut Vec<u8>,
) -> Status {
    match method {
        ECHO => answer.extend_from_slice(body),
        SLEEP => {
            while !is_cancelled() {
                thread::sleep(Duration::from_millis(1));
            }
            answer.extend_from_slice(b"nobody waits");
            return Status::Cancelled;
        }
        LENGTH => {
            let len_bytes = u32::from_le_bytes(body.try_into().unwrap());
            answer.resize(len_bytes as usize, 7);
        }
        AWAIT => {
            let file = Path::new(str::from_utf8(body).unwrap());
            fs::write(file, b"").unwrap();
            while !is_cancelled() {
                thread::sleep(Duration::from_millis(1));
            }
            fs::remove_file(file).unwrap();
            return Status::Cancelled;
        }
        _ => return Status::Unimplemented,
    }
    Status::Ok
}

fn handle_later(request: Request) {
    let (context, mut answer) = (request.context(), Vec::new());
    let is_cancelled = || context.is_cancelled();
    let status = handle_any(context.method, request.body(), is_cancelled, &mut answer);
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
        other => unreachable!("{other:?} serves in another way"),
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
                        None if form.is_lending() => with_lending(form, &mut node, run),
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
    eventually("it ends", || serving.is_finished());
    serving.join().unwrap().unwrap();
}

fn with_lending(form: Form, node: &mut Node, run: impl Fn(Form, &mut Node)) {
    let config =
        ClientConfig { retry: Retry::standard(), timeout: PATIENCE, ..ClientConfig::default() };
    let mut provider = BulkProvider::offer(&node.socket(), SERVICE, config).unwrap();
    let (running, stop) = mpsc::channel::<()>();
    let serving = thread::spawn(move || {
        while stop.try_recv() == Err(mpsc::TryRecvError::Empty) {
            let Some(work) = provider.next(Duration::from_millis(10)).unwrap() else { continue };
            let mut answer = Vec::new();
            let is_cancelled = || provider.is_cancelled(&work);
            let status = handle_any(work.method, &work.body, is_cancelled, &mut answer);
            provider.answer(work, status, &answer).unwrap();
        }
    });
    run(form, node);
    drop(running);
    eventually("it ends", || serving.is_finished());
    serving.join().unwrap();
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

fn patient() -> ClientConfig {
    ClientConfig { timeout: PATIENCE, ..ClientConfig::default() }
}

fn client(node: &Node) -> Client {
    Client::connect(&node.socket(), patient()).unwrap()
}

/// Calls a provider of a form.
struct Caller {
    client: Client,
    /// What its calls lend.
    region: Option<BulkRegion>,
}

impl Caller {
    fn of(form: Form, node: &Node) -> Self {
        let mut client = client(node);
        let region = form.is_lending().then(|| client.bulk(4096).unwrap());
        Self { client, region }
    }

    fn call(&mut self, method: u16, body: &[u8]) -> Result<Vec<u8>, CallError> {
        self.call_within(method, body, PATIENCE)
    }

    fn call_within(
        &mut self,
        method: u16,
        body: &[u8],
        within: Duration,
    ) -> Result<Vec<u8>, CallError> {
        let Self { client, region } = self;
        let answer = match region {
            None => client.call_within(To::new(HERE, SERVICE, method), body, within),
            Some(region) => {
                let to = To { rank: HERE, service: SERVICE, method };
                client.call_bulk(to, body, &[region.slice(0, 64)], within)
            }
        };
        answer.map(<[u8]>::to_vec)
    }
}

#[test]
fn what_came_too_late_ends_with_its_deadline_and_nobody_blames_the_service() {
    each(|form, node| {
        let mut client = Caller::of(form, node);
        for number in 0..600_u64 {
            let within = Duration::from_micros(number % 3 * 20);
            if let Err(error) = client.call_within(ECHO, b"late", within) {
                assert_eq!(error.status(), Status::DeadlineExceeded, "{form:?}: {error}");
                assert!(!matches!(error, CallError::Service(_)), "{form:?}: {error}");
            }
        }
        assert_eq!(client.call(ECHO, b"in time"), Ok(b"in time".to_vec()), "{form:?}");
    });
}

#[test]
fn what_a_service_says_after_the_deadline_is_not_its_word() {
    each(|form, node| {
        let mut client = Caller::of(form, node);
        for _ in 0..20 {
            let within = Duration::from_millis(20);
            let error = client.call_within(SLEEP, b"", within).unwrap_err();
            assert_eq!(error.status(), Status::DeadlineExceeded, "{form:?}: {error}");
            assert!(!matches!(error, CallError::Service(_)), "{form:?}: {error}");
        }
    });
}

#[test]
fn an_answer_that_is_too_long_says_so_and_what_to_use_instead() {
    each(|form, node| {
        let mut client = Caller::of(form, node);
        let len_bytes = 8_u32 << 20;
        let error = client.call(LENGTH, &len_bytes.to_le_bytes()).unwrap_err();
        assert_eq!(error.status(), Status::OutOfRange, "{form:?}: {error}");
        let words = error.to_string();
        let said = match form.is_lending() {
            true => &["8388608 B", "2048 B", "push it to a slice"][..],
            false => &["8388608 B", "stream", "bulk", "COPYRPC_MESSAGE_BYTES_MAX"],
        };
        assert!(said.iter().all(|said| words.contains(said)), "{form:?}: {words}");
        assert!(error.detail().len() <= ClientConfig::default().response_bytes as usize, "{words}");
    });
}

#[test]
fn a_provider_that_reconnects_waits_longer_than_a_service_manager_takes() {
    each(|form, node| {
        let mut first = Caller::of(form, node);
        assert_eq!(first.call(ECHO, b"first"), Ok(b"first".to_vec()), "{form:?}");
        node.stop_daemon();
        thread::sleep(Duration::from_millis(1500));
        node.start_daemon();
        let (mut next, begin) = (Caller::of(form, node), Instant::now());
        while let Err(error) = next.call(ECHO, b"next") {
            assert!(begin.elapsed() < PATIENCE, "{form:?}: {error}");
            thread::sleep(Duration::from_millis(10));
        }
    });
}

/// Longer than any test runs.
const HOURS: Duration = Duration::from_secs(4000);

/// A request that waits for its cancellation, and its caller.
struct Awaiting {
    file: PathBuf,
    caller: Box<dyn Any>,
}

impl Awaiting {
    /// Its handler has begun. The caller makes so many calls before.
    fn begin(form: Form, node: &Node, calls: usize) -> Self {
        static COUNT: Mutex<u32> = Mutex::new(0);
        let number = {
            let mut count = COUNT.lock().unwrap();
            *count += 1;
            *count
        };
        let file = env::temp_dir().join(format!("copyrpc-awaits-{}-{number}", process::id()));
        let name = file.to_str().unwrap().as_bytes();
        let to = |method| To { rank: HERE, service: SERVICE, method };
        if form.is_lending() {
            let client = TokioClient::connect(&node.socket(), patient()).unwrap();
            let region = block_on(client.bulk(4096)).unwrap();
            let call = client.call_bulk(to(AWAIT), name, &[region.slice(0, 64)], HOURS);
            eventually("its handler begins", || file.exists());
            return Self { file, caller: Box::new((call, region, client)) };
        }
        let mut caller = Pipeline::connect(&node.socket(), patient()).unwrap();
        for _ in 0..calls {
            caller.submit(to(ECHO), b"", ()).unwrap();
            while caller.in_flight() > 0 {
                if caller.poll(|(), answer| assert!(answer.is_ok(), "{form:?}")) == 0 {
                    caller.rest();
                }
            }
        }
        caller.submit_within(to(AWAIT), name, HOURS, ()).unwrap();
        caller.flush();
        eventually("its handler begins", || file.exists());
        Self { file, caller: Box::new(caller) }
    }

    fn has_ended(&self) -> bool {
        !self.file.exists()
    }
}

#[test]
fn the_end_of_a_daemon_cancels_the_requests_that_it_gave() {
    each(|form, node| {
        let awaiting = Awaiting::begin(form, node, 0);
        node.stop_daemon();
        eventually(&format!("{form:?}: its handler ends"), || awaiting.has_ended());
        node.start_daemon();
        let (mut next, begin) = (Caller::of(form, node), Instant::now());
        while let Err(error) = next.call(ECHO, b"next") {
            assert!(begin.elapsed() < PATIENCE, "{form:?}: {error}");
            thread::sleep(Duration::from_millis(10));
        }
    });
}

#[test]
fn a_daemon_that_is_not_looked_for_cancels_the_requests_that_it_gave_and_serving_ends() {
    let ours = |form: &Form| form.foreign().is_none() && !form.is_lending();
    for form in Form::ALL.into_iter().filter(ours) {
        let mut node = Node::start();
        let offer = Offer::new(SERVICE);
        let provider = Provider::offer(&node.socket(), &offer, ClientConfig::default()).unwrap();
        let serving = thread::spawn(move || serve(form, provider));
        let awaiting = Awaiting::begin(form, &node, 0);
        node.stop_daemon();
        eventually(&format!("{form:?} ends"), || serving.is_finished());
        assert!(serving.join().unwrap().is_err() && awaiting.has_ended(), "{form:?}");
    }
}

/// More calls than are made before a provider of the node is called without the daemon.
const INTRODUCED: usize = 200;

#[test]
fn a_caller_without_the_daemon_in_between_that_is_gone_cancels_its_requests() {
    each(|form, node| {
        let Awaiting { file, caller } = Awaiting::begin(form, node, INTRODUCED);
        drop(caller);
        eventually(&format!("{form:?}: its handler ends"), || !file.exists());
        let answer = Caller::of(form, node).call(ECHO, b"next");
        assert_eq!(answer, Ok(b"next".to_vec()), "{form:?}");
    });
}

#[test]
fn a_provider_that_is_stopped_waits_for_no_handler_that_waits_for_its_cancellation() {
    let files = Mutex::new(Vec::new());
    each(|form, node| {
        if matches!(form, Form::Lending | Form::CLending) {
            // Its program has a loop of its own.
            return;
        }
        let awaiting = Awaiting::begin(form, node, 0);
        files.lock().unwrap().push((form, awaiting.file.clone()));
        // The caller stays.
        std::mem::forget(awaiting);
    });
    for (form, file) in files.into_inner().unwrap() {
        assert!(!file.exists(), "{form:?}");
    }
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
