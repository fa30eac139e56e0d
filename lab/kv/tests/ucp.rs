//! Workers of one process and of two, on the system's libucp. In CI it has to be there.

use std::{
    env,
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, Command, Stdio},
    time::{Duration, Instant},
};

use kv::ucp::{Config, Event, SendError, UcxAddress, UcxContext, UcxEndpoint, UcxWorker};

const PATIENCE: Duration = Duration::from_secs(30);
/// Set for the process that is killed.
const PEER: &str = "COPYRPC_UCP_TEST_PEER";
const BYTES_MAX: usize = 1 << 20;

/// Whether UCX is there; a test that lacks it says so.
fn has_ucx() -> bool {
    let Err(error) = kv::ucp::version() else { return true };
    let is_ci = env::var_os("CI").is_some_and(|value| value == "true");
    assert!(!is_ci, "{error}");
    eprintln!("skipped: libucp.so.0, which is in libucx0: {error}");
    false
}

fn config(tls: &str) -> Config {
    let settings = vec![("TLS", tls.to_owned()), ("KEEPALIVE_INTERVAL", "1s".to_owned())];
    // UCX 1.13 notices no failure over shared memory, and refuses to try.
    let peer_failures = !tls.starts_with("sm");
    Config { settings, peer_failures, message_bytes_max: BYTES_MAX, ..Config::default() }
}

fn worker(tls: &str) -> UcxWorker {
    UcxWorker::open(&UcxContext::open(config(tls)).unwrap()).unwrap()
}

/// The messages that a worker has received.
#[derive(Debug, PartialEq, Eq)]
struct Received {
    header: Option<u64>,
    from: Option<UcxEndpoint>,
    body: Vec<u8>,
}

/// Polls all `workers` until the first has so many messages.
fn receive(workers: [&UcxWorker; 2], count: usize) -> Vec<Received> {
    let begin = Instant::now();
    let mut received = Vec::new();
    while received.len() < count {
        assert!(begin.elapsed() < PATIENCE, "{} of {count} messages", received.len());
        workers[0].poll(&mut |event| match event {
            Event::Message { header, from, body } => {
                received.push(Received { header, from, body: body.to_vec() });
            }
            closed @ Event::Closed { .. } => panic!("{closed:?}"),
        });
        workers[1].poll(&mut |event| panic!("{event:?}"));
    }
    received
}

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at % 251).to_le_bytes()[0] ^ seed).collect()
}

/// Both workers of a test, connected.
struct Pair {
    ours: UcxWorker,
    theirs: UcxWorker,
    to_them: UcxEndpoint,
    to_us: UcxEndpoint,
}

fn pair(tls: &str) -> Pair {
    let ours = worker(tls);
    let theirs = worker(tls);
    let address = |worker: &UcxWorker| worker.address().unwrap().to_string().parse::<UcxAddress>();
    let to_them = ours.connect(&address(&theirs).unwrap()).unwrap();
    let to_us = theirs.connect(&address(&ours).unwrap()).unwrap();
    Pair { ours, theirs, to_them, to_us }
}

/// From nothing to what no transport sends eagerly, there and back.
fn messages_come_back(tls: &str) {
    let Pair { ours, theirs, to_them, to_us } = pair(tls);
    for (round, len) in [0, 1, 64, 4096, 65_536, BYTES_MAX].into_iter().enumerate() {
        let seed = round.to_le_bytes()[0];
        let header = Some(round as u64);
        ours.ask(to_them, header, &bytes(len, seed)).unwrap();
        let received = receive([&theirs, &ours], 1);
        assert_eq!(received, [Received { header, from: Some(to_us), body: bytes(len, seed) }]);
        let from = received[0].from.unwrap();
        theirs.send(from, None, &received[0].body).unwrap();
        let answer = receive([&ours, &theirs], 1);
        assert_eq!(answer, [Received { header: None, from: None, body: bytes(len, seed) }]);
    }
    assert!(theirs.counts().fetched > 0, "{tls}: {:?}", theirs.counts());
    assert_eq!((theirs.counts().lost, ours.counts().sends_failed), (0, 0));
}

#[test]
fn eager_messages_and_rendezvous_over_shared_memory() {
    if has_ucx() {
        messages_come_back("sm,self");
    }
}

#[test]
fn eager_messages_and_rendezvous_over_tcp() {
    if has_ucx() {
        messages_come_back("tcp,self");
    }
}

/// Sends that are not complete have room of their own, and a limit.
#[test]
fn sends_that_are_not_complete_are_bounded_and_keep_their_bytes() {
    const SENDS_MAX: usize = 4;
    if !has_ucx() {
        return;
    }
    let mut config = config("sm,self");
    config.settings.push(("RNDV_THRESH", "1k".to_owned()));
    config.sends_max = SENDS_MAX;
    let context = UcxContext::open(config).unwrap();
    let ours = UcxWorker::open(&context).unwrap();
    let theirs = UcxWorker::open(&context).unwrap();
    let to_them = ours.connect(&theirs.address().unwrap()).unwrap();
    for index in 0..SENDS_MAX {
        // The caller's bytes are gone when the call returns.
        ours.send(to_them, Some(index as u64), &bytes(100_000, index.to_le_bytes()[0])).unwrap();
    }
    assert_eq!(ours.send(to_them, None, b"x"), Err(SendError::Full));
    let too_large = SendError::TooLarge { len_bytes: BYTES_MAX + 1, max_bytes: BYTES_MAX };
    assert_eq!(ours.send(to_them, None, &vec![0; BYTES_MAX + 1]), Err(too_large));
    let mut received = receive([&theirs, &ours], SENDS_MAX);
    received.sort_by_key(|message| message.header);
    for (index, message) in received.iter().enumerate() {
        assert_eq!(message.body, bytes(100_000, index.to_le_bytes()[0]), "{index}");
    }
    assert_eq!(theirs.counts().fetched, SENDS_MAX as u64);
    let begin = Instant::now();
    while ours.send(to_them, None, b"x") == Err(SendError::Full) {
        assert!(begin.elapsed() < PATIENCE, "room never comes back");
        ours.poll(&mut |_| {});
        theirs.poll(&mut |_| {});
    }
}

/// A message that is longer than the receiver takes is counted, and harms no other.
#[test]
fn a_message_that_is_too_long_for_its_receiver_is_turned_down() {
    if !has_ucx() {
        return;
    }
    let small = Config { message_bytes_max: 1000, ..config("sm,self") };
    let ours = worker("sm,self");
    let theirs = UcxWorker::open(&UcxContext::open(small).unwrap()).unwrap();
    let to_them = ours.connect(&theirs.address().unwrap()).unwrap();
    ours.send(to_them, None, &bytes(BYTES_MAX, 0)).unwrap();
    ours.send(to_them, None, b"short").unwrap();
    let received = receive([&theirs, &ours], 1);
    assert_eq!(received[0].body, b"short");
    assert_eq!(theirs.counts().lost, 1);
}

/// Requests that have begun are ended by a deadline, although no answer comes.
#[test]
fn a_worker_that_is_dropped_amid_a_rendezvous_ends() {
    if !has_ucx() {
        return;
    }
    let config = Config { close_timeout: Duration::from_millis(20), ..config("sm,self") };
    let context = UcxContext::open(config).unwrap();
    let ours = UcxWorker::open(&context).unwrap();
    let theirs = UcxWorker::open(&context).unwrap();
    let to_them = ours.connect(&theirs.address().unwrap()).unwrap();
    ours.send(to_them, None, &bytes(BYTES_MAX, 0)).unwrap();
    let begin = Instant::now();
    drop(ours);
    assert!(begin.elapsed() < PATIENCE);
    theirs.poll(&mut |_| {});
}

#[test]
fn a_sleeping_worker_is_woken_by_a_message() {
    if !has_ucx() {
        return;
    }
    let Pair { ours, theirs, to_them, .. } = pair("sm,self");
    // Wire-up is over: nothing else wakes a worker.
    ours.ask(to_them, None, b"first").unwrap();
    receive([&theirs, &ours], 1);
    ours.send(to_them, None, b"second").unwrap();
    let begin = Instant::now();
    let mut received = 0;
    while received == 0 {
        theirs.wait(PATIENCE).unwrap();
        assert!(begin.elapsed() < PATIENCE, "it slept until its deadline");
        ours.poll(&mut |_| {});
        received += theirs.poll(&mut |_| {});
    }
}

#[test]
fn settings_that_make_no_sense_are_named() {
    if !has_ucx() {
        return;
    }
    let error = UcxContext::open(config("warp")).unwrap_err().to_string();
    assert!(error.contains("warp") && error.contains("ucx_info"), "{error}");
    for value in ["many", "1\0k"] {
        let settings = vec![("RNDV_THRESH", value.to_owned())];
        let error = UcxContext::open(Config { settings, ..Config::default() });
        let error = error.unwrap_err().to_string();
        assert!(error.contains("UCX_RNDV_THRESH") && error.contains("ucx_info"), "{error}");
    }
}

/// A terminal that is closed ends the program, as it does without UCX.
#[test]
fn the_library_handles_no_signal_of_the_program() {
    const SIGHUP: u64 = 1 << 0;
    if !has_ucx() {
        return;
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    let caught = u64::from_str_radix(caught.trim(), 16).unwrap();
    assert_eq!(caught & SIGHUP, 0, "{caught:#x}");
}

/// A process that echoes until it is killed.
struct Peer(Child);

impl Peer {
    /// Starts it over transports `tls`, and reads its address.
    fn start(test: &str, tls: &str) -> (Self, ChildStdin, UcxAddress) {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(PEER, tls);
        let mut peer = Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
        let output = BufReader::new(peer.0.stdout.take().unwrap());
        let mut lines = output.lines().map(Result::unwrap);
        let address = lines.find_map(|line| line.strip_prefix("address ").map(str::to_owned));
        let input = peer.0.stdin.take().unwrap();
        (peer, input, address.unwrap().parse().unwrap())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn echo(tls: &str) {
    let worker = worker(tls);
    println!("\naddress {}", worker.address().unwrap());
    let mut theirs = String::new();
    std::io::stdin().read_line(&mut theirs).unwrap();
    worker.connect(&theirs.trim().parse().unwrap()).unwrap();
    let begin = Instant::now();
    while begin.elapsed() < 2 * PATIENCE {
        worker.poll(&mut |event| {
            if let Event::Message { header, from: Some(from), body } = event {
                worker.send(from, header, body).unwrap();
            }
        });
    }
}

/// A worker that has talked to a process which then was killed; `None`: this is that process, or UCX is missing.
fn bereaved(test: &str, tls: &str) -> Option<(UcxWorker, UcxEndpoint)> {
    if let Ok(tls) = env::var(PEER) {
        echo(&tls);
        return None;
    }
    if !has_ucx() {
        return None;
    }
    let ours = worker(tls);
    let (peer, mut input, address) = Peer::start(test, tls);
    let to_them = ours.connect(&address).unwrap();
    writeln!(input, "{}", ours.address().unwrap()).unwrap();
    ours.ask(to_them, Some(7), b"alive?").unwrap();
    let begin = Instant::now();
    let mut answered = false;
    while !answered {
        assert!(begin.elapsed() < PATIENCE, "no answer");
        ours.poll(&mut |event| answered |= matches!(event, Event::Message { header: Some(7), .. }));
    }
    drop(peer);
    Some((ours, to_them))
}

#[test]
fn who_talks_to_a_killed_process_over_tcp_is_told() {
    const THIS: &str = "who_talks_to_a_killed_process_over_tcp_is_told";
    let Some((ours, to_them)) = bereaved(THIS, "tcp,self") else { return };
    // One send is left that no peer will take.
    let _ = ours.ask(to_them, None, &bytes(BYTES_MAX, 0));
    let begin = Instant::now();
    let mut closed = None;
    while closed.is_none() {
        assert!(begin.elapsed() < PATIENCE, "nobody was told");
        ours.poll(&mut |event| match event {
            Event::Closed { endpoint, reason } => closed = Some((endpoint, reason)),
            Event::Message { .. } => panic!("{event:?} of a process that is dead"),
        });
    }
    assert_eq!(closed.unwrap().0, to_them, "{closed:?}");
    assert_eq!(ours.send(to_them, None, b"x"), Err(SendError::Closed));
}

/// No error is reported over shared memory, but sends end in "full", and the worker ends.
#[test]
fn who_talks_to_a_killed_process_over_shared_memory_does_not_hang() {
    const THIS: &str = "who_talks_to_a_killed_process_over_shared_memory_does_not_hang";
    let Some((ours, to_them)) = bereaved(THIS, "sm,self") else { return };
    let begin = Instant::now();
    while ours.ask(to_them, None, &bytes(1000, 0)) != Err(SendError::Full) {
        assert!(begin.elapsed() < PATIENCE, "somebody takes what is sent");
        ours.poll(&mut |event| panic!("{event:?}"));
    }
    drop(ours);
    assert!(begin.elapsed() < PATIENCE);
}
