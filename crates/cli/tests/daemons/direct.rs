//! Calls of a process to a provider of its own node, which go without the daemon once it has introduced the two.

use std::{
    env, fs,
    io::Write as _,
    os::fd::AsFd as _,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use client::{
    CallError, Client, ClientConfig, HERE, Offer, Pipeline, Provider, Retry, Status, To,
    message::{DAEMON, method},
};
use daemon::metrics::Counter;
use memory::sync::{AtomicBool, Ordering};
use rustix::process::{Pid, Signal, kill_process};

use super::{
    cluster::{
        Cluster, ECHO, PATIENCE, StopOnDrop, body, connect, eventually, patient, reverse,
        serve_reversed,
    },
    threads::TWO,
};

/// More calls than go before an introduction.
const MANY: u64 = 200;

/// Calls that a stopped daemon does not answer end after this.
const SHORT: Duration = Duration::from_millis(100);

/// What a child process of these tests finds set: the socket of its daemon, and the file that it writes.
const SOCKET: &str = "TEST_DIRECT_SOCKET";
const FILE: &str = "TEST_DIRECT_FILE";

/// A daemon that is stopped while the value lives.
struct Stopped<'a>(&'a Cluster);

impl<'a> Stopped<'a> {
    fn new(cluster: &'a Cluster) -> Self {
        cluster.signal(0, Signal::STOP);
        Self(cluster)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.signal(0, Signal::CONT);
    }
}

fn call(client: &mut Client, number: u64) -> Result<(), CallError> {
    let body = body(number);
    let answer = client.call_within(To::new(HERE, ECHO, 1), &body, PATIENCE)?;
    assert_eq!(answer, reverse(&body));
    Ok(())
}

/// Calls until the calls of a client need no daemon.
fn meet(client: &mut Client) {
    (0..MANY).for_each(|number| call(client, number).unwrap());
}

#[test]
fn calls_to_a_provider_of_the_own_node_go_on_while_the_daemon_is_stopped() {
    let cluster = Cluster::new(1);
    let provider = Provider::register(&cluster.socket(0), ECHO, ClientConfig::default()).unwrap();
    let stop = provider.stop_handle();
    thread::scope(|scope| {
        let _stops = StopOnDrop(&stop);
        scope.spawn(|| serve_reversed(provider));
        let (mut direct, mut through) = (cluster.client(0), cluster.client(0));
        meet(&mut direct);
        let stopped = Stopped::new(&cluster);
        meet(&mut direct);
        let to = To { rank: HERE, service: ECHO, method: 1 };
        assert_eq!(direct.call_lent(to, b"abc").unwrap().to_vec(), b"cba");
        let long: Vec<u8> = (0..=255).cycle().take(300_000).collect();
        assert_eq!(direct.call(To::new(HERE, ECHO, 1), &long).unwrap(), reverse(&long));
        let unanswered = through.call_within(To::new(HERE, ECHO, 1), b"abc", SHORT).unwrap_err();
        assert_eq!(unanswered.status(), Status::DeadlineExceeded);
        drop(stopped);
        eventually(|| call(&mut through, 1).is_ok());
    });
}

/// Calls with a window of 8 until none is left; each is answered.
fn stream(pipeline: &mut Pipeline<u64>, count: u64) {
    let to = To { rank: HERE, service: ECHO, method: 1 };
    let (mut next, mut ended) = (0, 0);
    while ended < count {
        while next < count && pipeline.in_flight() < 8 {
            pipeline.submit(to, &body(next), next).unwrap();
            next += 1;
        }
        pipeline.flush();
        let answered = pipeline.poll(|number, answer| {
            assert_eq!(answer.unwrap(), reverse(&body(number)));
        });
        ended += answered as u64;
        if answered == 0 {
            pipeline.rest();
        }
    }
}

#[test]
fn a_pipeline_needs_no_daemon_either_and_what_was_answered_is_counted() {
    let cluster = Cluster::new(1);
    let provider = Provider::register(&cluster.socket(0), ECHO, ClientConfig::default()).unwrap();
    let stop = provider.stop_handle();
    thread::scope(|scope| {
        let _stops = StopOnDrop(&stop);
        scope.spawn(|| serve_reversed(provider));
        let mut pipeline = Pipeline::connect(&cluster.socket(0), patient()).unwrap();
        stream(&mut pipeline, MANY);
        let stopped = Stopped::new(&cluster);
        stream(&mut pipeline, MANY);
        drop(stopped);
        let counter = |counter| cluster.counter(0, counter).unwrap_or_default();
        eventually(|| counter(Counter::RequestsLocal) == 2 * MANY);
        let direct = counter(Counter::RequestsDirect);
        assert!((MANY..2 * MANY).contains(&direct), "{direct}");
        let mut asks = connect(&cluster.socket(0));
        let services = asks.services().unwrap();
        assert_eq!((services[0].service, services[0].requests), (ECHO, 2 * MANY));
        drop(pipeline);
        eventually(|| counter(Counter::DirectSessions) == 0);
    });
}

/// Not a test: a provider that is killed. It writes down what it executes before it does, a line each.
#[test]
fn child_direct_provider() {
    let (Some(socket), Some(file)) = (env::var_os(SOCKET), env::var_os(FILE)) else { return };
    let mut file = fs::OpenOptions::new().append(true).create(true).open(file).unwrap();
    let offer = Offer::new(ECHO);
    let mut provider = Provider::offer(socket.as_ref(), &offer, ClientConfig::default());
    while provider.is_err() {
        thread::sleep(Duration::from_millis(1));
        provider = Provider::offer(socket.as_ref(), &offer, ClientConfig::default());
    }
    let served = provider.unwrap().serve(|request, answer| {
        let number = u64::from_le_bytes(request.body[..8].try_into().unwrap());
        file.write_all(format!("{number}\n").as_bytes()).unwrap();
        answer.extend_from_slice(&reverse(request.body));
        Some(Status::Ok)
    });
    unreachable!("it is killed: {served:?}");
}

fn child(cluster: &Cluster, file: &Path) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "direct::child_direct_provider"]);
    command.env(SOCKET, cluster.socket(0)).env(FILE, file);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn fault_a16_what_a_provider_that_is_killed_had_not_taken_is_made_again_and_nothing_twice() {
    let cluster = Cluster::new(1);
    let file = env::temp_dir().join(format!("copyrpc-direct-{}", std::process::id()));
    let _ = fs::remove_file(&file);
    let retry = Retry { retries_max: 10_000, awaits_service: true, ..Retry::standard() };
    let retry = Retry { budget_percent: 1_000_000, ..retry };
    let config = ClientConfig { timeout: PATIENCE, retry, ..ClientConfig::default() };
    let mut client = Client::connect(&cluster.socket(0), config).unwrap();
    let over = AtomicBool::new(false);
    let (number, unanswered) = thread::scope(|scope| {
        let calling = scope.spawn(|| {
            let (mut number, mut unanswered) = (0_u64, Vec::new());
            while !over.load(Ordering::Relaxed) {
                number += 1;
                let sent = number.to_le_bytes();
                match client.call(To::new(HERE, ECHO, 1), &sent) {
                    Ok(answer) => assert_eq!(answer, reverse(&sent)),
                    Err(error) => {
                        assert_eq!(error.status(), Status::Unavailable, "{error}");
                        unanswered.push(number);
                    }
                }
            }
            (number, unanswered)
        });
        for _ in 0..8 {
            let mut provider = child(&cluster, &file);
            let before = fs::metadata(&file).map_or(0, |file| file.len());
            // It has executed more than goes before an introduction.
            eventually(|| fs::metadata(&file).is_ok_and(|file| file.len() > before + 20 * MANY));
            provider.kill().unwrap();
            provider.wait().unwrap();
        }
        over.store(true, Ordering::Relaxed);
        let mut last = child(&cluster, &file);
        let ended = calling.join().unwrap();
        last.kill().unwrap();
        last.wait().unwrap();
        ended
    });
    let executed: Vec<u64> =
        fs::read_to_string(&file).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    fs::remove_file(&file).unwrap();
    let mut once = executed.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), executed.len(), "a call was executed twice");
    let lost = (1..=number).filter(|it| !unanswered.contains(it) && !once.contains(it)).count();
    assert_eq!(lost, 0, "calls were answered and not executed");
}

/// A provider belongs to the first thread, clients to both.
#[test]
fn clients_of_all_threads_of_a_daemon_call_a_provider_without_it_and_leave_no_session() {
    let cluster = Cluster::with(1, TWO);
    let provider = Provider::register(&cluster.socket(0), ECHO, ClientConfig::default()).unwrap();
    let stop = provider.stop_handle();
    thread::scope(|scope| {
        let _stops = StopOnDrop(&stop);
        scope.spawn(|| serve_reversed(provider));
        let mut clients = [cluster.client(0), cluster.client(0)];
        clients.iter_mut().for_each(meet);
        let counter = |counter| cluster.counter(0, counter).unwrap_or_default();
        eventually(|| counter(Counter::DirectSessions) == 2);
        let stopped = Stopped::new(&cluster);
        clients.iter_mut().for_each(meet);
        drop(stopped);
        eventually(|| counter(Counter::RequestsLocal) == 4 * MANY);
        assert!(counter(Counter::RequestsDirect) >= 2 * MANY);
        // Each client is told what it did, whatever thread it belongs to.
        let mut asks = connect(&cluster.socket(0));
        let clients_of = asks.clients().unwrap();
        let busy = clients_of.iter().filter(|client| client.requests >= 2 * MANY).count();
        assert_eq!(busy, 2, "{clients_of:?}");
        drop(clients);
        eventually(|| counter(Counter::DirectSessions) == 0);
    });
}

#[test]
fn fault_a16_a_client_of_another_thread_whose_provider_is_killed_finds_the_next_one() {
    let cluster = Cluster::with(1, TWO);
    let file = env::temp_dir().join(format!("copyrpc-direct-threads-{}", std::process::id()));
    let _ = fs::remove_file(&file);
    let retry = Retry { retries_max: 10_000, awaits_service: true, ..Retry::standard() };
    let retry = Retry { budget_percent: 1_000_000, ..retry };
    let config = ClientConfig { timeout: PATIENCE, retry, ..ClientConfig::default() };
    let mut clients = [(); 2].map(|()| Client::connect(&cluster.socket(0), config).unwrap());
    for _ in 0..2 {
        let mut provider = child(&cluster, &file);
        for client in &mut clients {
            for number in 0..MANY {
                let sent = number.to_le_bytes();
                let answer = loop {
                    match client.call(To::new(HERE, ECHO, 1), &sent) {
                        Ok(answer) => break answer.to_vec(),
                        Err(error) => assert_eq!(error.status(), Status::Unavailable, "{error}"),
                    }
                };
                assert_eq!(answer, reverse(&sent));
            }
        }
        eventually(|| cluster.counter(0, Counter::DirectSessions) == Some(2));
        provider.kill().unwrap();
        provider.wait().unwrap();
        eventually(|| cluster.counter(0, Counter::DirectSessions) == Some(0));
    }
    fs::remove_file(&file).unwrap();
}

#[test]
fn a_daemon_that_drains_ends_direct_sessions_first_and_what_was_executed_is_answered() {
    drain(Cluster::new(1));
}

#[test]
fn a_daemon_of_two_threads_that_drains_ends_direct_sessions_between_them_first() {
    drain(Cluster::with(1, TWO));
}

/// A drain that waited for the provider would take longer than anything may here.
#[test]
fn fault_a5_a_daemon_that_drains_does_not_wait_for_sessions_of_a_provider_that_is_stopped() {
    let mut cluster = Cluster::with(1, &[("COPYRPC_DRAIN_TIMEOUT", "1000s")]);
    let file = env::temp_dir().join(format!("copyrpc-direct-stopped-{}", std::process::id()));
    let mut provider = child(&cluster, &file);
    let mut client = cluster.client(0);
    eventually(|| {
        // It may not offer the service yet.
        let _ = call(&mut client, 1);
        cluster.counter(0, Counter::DirectSessions) == Some(1)
    });
    // No call is in flight, so none has a deadline that is waited for.
    kill_process(Pid::from_child(&provider), Signal::STOP).unwrap();
    cluster.signal(0, Signal::TERM);
    let daemon = cluster.daemons[0].as_mut().unwrap();
    eventually(|| daemon.try_wait().unwrap().is_some_and(|status| status.success()));
    let ended = call(&mut client, 2).unwrap_err();
    assert_eq!(ended.status(), Status::Unavailable, "{ended}");
    provider.kill().unwrap();
    provider.wait().unwrap();
    fs::remove_file(&file).unwrap();
}

fn drain(mut cluster: Cluster) {
    let provider = Provider::register(&cluster.socket(0), ECHO, ClientConfig::default()).unwrap();
    let stop = provider.stop_handle();
    thread::scope(|scope| {
        let _stops = StopOnDrop(&stop);
        // It ends with its daemon.
        let serving = scope.spawn(|| {
            let mut executed = 0;
            let served = provider.serve(|request, answer| {
                executed += 1;
                answer.extend(request.body.iter().rev());
                Some(Status::Ok)
            });
            served.unwrap_err();
            executed
        });
        let mut client = cluster.client(0);
        meet(&mut client);
        let calling = scope.spawn(move || {
            let mut answered = MANY;
            let error = loop {
                match call(&mut client, answered) {
                    Ok(()) => answered += 1,
                    Err(error) => break error,
                }
            };
            (answered, error)
        });
        cluster.stop(0);
        let (answered, error) = calling.join().unwrap();
        assert_eq!(error.status(), Status::Unavailable, "{error}");
        assert_eq!(serving.join().unwrap(), answered);
    });
}

/// Asks the daemon for an introduction as a program would that keeps no rule.
fn ask(ipc: &mut ipc::BlockingClient, method: u16, wanted: &[u8]) -> Result<(), ipc::CallError> {
    // A `CallHead`.
    let mut head = HERE.to_le_bytes().to_vec();
    head.extend([DAEMON, method].into_iter().flat_map(u16::to_le_bytes));
    head.extend([0; 8]);
    ipc.call_parts(&[&head, wanted]).map(drop)
}

/// A `WantedHead`.
fn wanted(service: u16) -> Vec<u8> {
    [&HERE.to_le_bytes()[..], &service.to_le_bytes(), &[0; 2]].concat()
}

#[test]
fn whoever_may_not_call_a_service_is_not_introduced_nor_with_what_is_no_socket_of_its_own() {
    let rights = [("COPYRPC_RIGHTS", "call 17 nobody")];
    let cluster = Cluster::with(1, &rights);
    let offered =
        |service| Provider::register(&cluster.socket(0), service, ClientConfig::default()).unwrap();
    let providers = [offered(17), offered(ECHO)];
    let mut ipc =
        ipc::BlockingClient::connect(&cluster.socket(0), ipc::ClientConfig::default()).unwrap();
    let status = |ended: Result<(), ipc::CallError>| match ended {
        Ok(()) => Status::Ok,
        Err(ipc::CallError::HandlerError(code)) => {
            Status::from_code(code.to_le_bytes()[0]).unwrap()
        }
        Err(ipc::CallError::ResourceExhausted) => Status::ResourceExhausted,
        Err(error) => panic!("{error}"),
    };
    let mut meet = |service: u16, fd: Option<std::os::fd::BorrowedFd<'_>>| {
        if let Some(fd) = fd {
            ipc.send_descriptor(fd).unwrap();
        }
        let method = if fd.is_some() { method::MEET } else { method::MAY_MEET };
        status(ask(&mut ipc, method, &wanted(service)))
    };
    let (_newcomer, socket) = ipc::Newcomer::new().unwrap();
    assert_eq!(meet(17, None), Status::PermissionDenied);
    assert_eq!(meet(17, Some(socket.as_fd())), Status::PermissionDenied);
    assert_eq!(meet(18, None), Status::FailedPrecondition, "nobody offers it");
    let file = fs::File::open("/dev/null").unwrap();
    assert_eq!(meet(ECHO, Some(file.as_fd())), Status::InvalidArgument);
    // The end of a connection that another process has made: here, the daemon accepted it.
    let listens = std::os::unix::net::UnixStream::pair().unwrap();
    assert_eq!(meet(ECHO, Some(listens.0.as_fd())), Status::InvalidArgument, "it is a stream");
    assert_eq!(meet(ECHO, Some(socket.as_fd())), Status::Ok);
    // A client has so many at a time.
    let many: Vec<_> = (1..8).map(|_| ipc::Newcomer::new().unwrap()).collect();
    for (_, socket) in &many {
        assert_eq!(meet(ECHO, Some(socket.as_fd())), Status::Ok);
    }
    assert_eq!(meet(ECHO, None), Status::ResourceExhausted);
    eventually(|| cluster.counter(0, Counter::DirectSessions) == Some(8));
    // The provider has never looked.
    drop(providers);
    eventually(|| cluster.counter(0, Counter::DirectSessions) == Some(0));
    eventually(|| many.iter().all(|(_, socket)| is_over(socket)));
}

/// Whether the session of a socket was ended.
fn is_over(socket: &std::os::fd::OwnedFd) -> bool {
    let socket = os::unix::UnixConnection::adopt(socket.try_clone().unwrap()).unwrap();
    socket.is_closed().unwrap()
}
