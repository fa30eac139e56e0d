//! The programs of these tests' processes.

use std::{
    os::fd::AsFd as _,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};

use super::rig::*;
use crate::{
    BlockingClient, CallError, ClientConfig, EvictReason, Newcomer, NewcomerState, PipelinedClient,
    Server, Wait,
};

/// Not a test of its own: runs the role that the environment names, if it names one.
#[test]
fn role() {
    let Ok(role) = std::env::var("COPYRPC_TEST_ROLE") else { return };
    let path = PathBuf::from(std::env::var_os("COPYRPC_TEST_PATH").expect("set with the role"));
    match role.as_str() {
        "server" => serve(&path, small_wait(Wait::default())),
        "sleepy server" => serve(&path, small_wait(Wait::Block)),
        "client" => call_for_ever(&path, Wait::default()),
        "server with few descriptors" => serve_with_few_descriptors(&path),
        "server without descriptors" => serve_without_descriptors(&path),
        "server with little memory" => serve_with_little_memory(&path),
        "client with calls in flight" => keep_in_flight(&path),
        "client that leaves its responses unread" => leave_unread(&path),
        "spinning client" => call_some(&path),
        "idle client" => idle(&path),
        "client that expects eviction" => expect_eviction(&path),
        "client that forks" => fork_and_call(&path),
        "client that exits" => exit_with_calls(&path),
        "introduced server" => serve_introduced(&path),
        "introduced client" => call_introduced(&path),
        _ => panic!("there is no role {role}"),
    }
}

fn small_wait(wait: Wait) -> crate::ServerConfig {
    crate::ServerConfig { wait, clients_max: 32, clients_per_user_max: 32, ..small() }
}

fn serve(path: &Path, config: crate::ServerConfig) {
    let mut server = Server::bind(path, config).expect("nobody else is there");
    loop {
        server.serve(increment);
        server.rest(u64::MAX);
    }
}

fn call_for_ever(path: &Path, wait: Wait) {
    let mut client = BlockingClient::connect(path, ClientConfig { wait, ..patient() }).unwrap();
    for number in 0u64.. {
        expect_increment(&mut client, &number.to_le_bytes().repeat(20));
    }
}

/// Sets the soft limit of a resource.
fn limit(resource: Resource, soft: u64) {
    let maximum = getrlimit(resource).maximum;
    setrlimit(resource, Rlimit { current: Some(soft), maximum }).expect("softer than hard");
}

/// Descriptors of this process.
fn descriptors() -> u64 {
    std::fs::read_dir("/proc/self/fd").expect("procfs").count() as u64
}

/// Has descriptors for a few clients, and says how often that made it refuse to accept.
fn serve_with_few_descriptors(path: &Path) {
    let config = crate::ServerConfig { clients_per_user_max: 32, ..small_wait(Wait::default()) };
    let mut server = Server::bind(path, config).expect("nobody else is there");
    limit(Resource::Nofile, descriptors() + 20);
    let backoffs = std::cell::Cell::new(0);
    loop {
        server.serve(|request| match request.payload() {
            b"backoffs" => request.reply(&u64::to_le_bytes(backoffs.get())).expect("8 B"),
            _ => increment(request),
        });
        backoffs.set(server.stats().accept_backoffs);
        server.rest(u64::MAX);
    }
}

/// Has no descriptor for any client.
fn serve_without_descriptors(path: &Path) {
    let mut server = Server::bind(path, small_wait(Wait::default())).expect("nobody else is there");
    limit(Resource::Nofile, descriptors() + 20);
    // Numbers below the limit may be free.
    let taken: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    assert!(!taken.is_empty());
    loop {
        server.serve(increment);
        server.rest(u64::MAX);
    }
}

unsafe extern "C" {
    /// `signal(2)`; it takes any number, and 1 means to ignore it.
    safe fn signal(number: i32, handler: usize) -> usize;
}

/// Loses and regains its memory on request: no file may grow, memfds included.
fn serve_with_little_memory(path: &Path) {
    signal(Signal::XFSZ.as_raw(), 1);
    let plenty = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX >> 1);
    limit(Resource::Fsize, 0);
    let refused = Server::bind(path, small());
    assert!(matches!(refused, Err(crate::BindError::Map(_))), "{refused:?}");
    limit(Resource::Fsize, plenty);
    let mut server = Server::bind(path, small_wait(Wait::default())).expect("nobody is there");
    loop {
        server.serve(|request| {
            match request.payload() {
                b"lose" => limit(Resource::Fsize, 0),
                b"regain" => limit(Resource::Fsize, plenty),
                _ => {}
            }
            increment(request);
        });
        server.rest(u64::MAX);
    }
}

fn keep_in_flight(path: &Path) {
    let mut client = pipelined::<u8>(path);
    for number in (0u8..=255).cycle() {
        while client.in_flight() == client.depth() {
            client.poll(|number, outcome| assert_eq!(outcome, Ok(&[number.wrapping_add(1)][..])));
            client.rest();
        }
        client.submit(&[number], number).unwrap();
    }
}

fn leave_unread(path: &Path) {
    let mut client = pipelined::<()>(path);
    (0..client.depth()).for_each(|_| _ = client.submit(b"x", ()).unwrap());
    client.flush();
    crate::pause::at("left unread");
    let mut answered = 0;
    eventually("the eviction", || {
        client.poll(|(), outcome| answered += usize::from(outcome == Ok(&b"y"[..])));
        let refused = client.submit(b"x", ()).map_err(|refused| refused.error);
        refused == Err(CallError::Evicted(EvictReason::Stalled))
    });
    assert!(answered >= client.depth(), "what was answered before is answered");
    client.reconnect(|(), _| {}).expect("the server lives");
    client.submit(b"x", ()).expect("in a new slot");
}

fn call_some(path: &Path) {
    let config = ClientConfig { wait: Wait::Busy, ..patient() };
    let mut client = BlockingClient::connect(path, config).unwrap();
    for number in 0..200u64 {
        expect_increment(&mut client, &number.to_le_bytes());
    }
}

fn idle(path: &Path) {
    let mut client = sync(path);
    expect_increment(&mut client, b"one call");
    thread::sleep(PATIENCE);
}

fn expect_eviction(path: &Path) {
    let mut client = sync(path);
    expect_increment(&mut client, b"before");
    eventually("the eviction", || match client.call(b"after") {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error, CallError::Evicted(EvictReason::Operator));
            true
        }
    });
    client.reconnect().expect("the server lives");
    expect_increment(&mut client, b"in a new slot");
}

/// Lets whoever listens at `path` introduce clients.
fn serve_introduced(path: &Path) {
    let (mut server, channel) = Server::introduced(small()).unwrap();
    let mut daemon = sync(path);
    daemon.send_descriptor(channel.as_fd()).unwrap();
    daemon.call(b"serve").unwrap();
    drop(channel);
    loop {
        server.serve(|request| {
            crate::pause::at("handled");
            increment(request);
            crate::pause::at("answered");
        });
        server.rest(u64::MAX);
    }
}

/// Lets whoever listens at `path` introduce this process.
fn call_introduced(path: &Path) {
    let (mut newcomer, socket) = Newcomer::new().unwrap();
    crate::pause::at("newcomer.made");
    let mut daemon = sync(path);
    daemon.send_descriptor(socket.as_fd()).unwrap();
    daemon.call(b"meet").unwrap();
    drop(socket);
    crate::pause::at("newcomer.sent");
    let mut client: PipelinedClient<()> = loop {
        match PipelinedClient::introduced(newcomer, patient()).unwrap() {
            NewcomerState::NotYet(again) => newcomer = again,
            NewcomerState::Arrived(client) => break client,
        }
    };
    crate::pause::at("arrived");
    client.submit(b"abc", ()).unwrap();
    client.flush();
    crate::pause::at("submitted");
}

// The C library's `fork(2)`; the child below calls nothing but this crate and `_exit`.
unsafe extern "C" {
    safe fn fork() -> i32;
    safe fn _exit(status: i32) -> !;
}

fn fork_and_call(path: &Path) {
    let mut client = sync(path);
    let mut calls = pipelined::<()>(path);
    calls.submit(b"in flight", ()).unwrap();
    expect_increment(&mut client, b"before");
    let child = fork();
    assert!(child >= 0, "fork failed");
    if child == 0 {
        // A panic would end the only thread, and so the child with status 0.
        let told = catch_unwind(AssertUnwindSafe(|| {
            let forked = Err(CallError::ForkedHandle);
            assert_eq!(calls.poll(|(), outcome| assert_eq!(outcome, forked)), 1);
            assert_eq!(client.call(b"child"), forked);
            // Destructors run, as at the exit of a script's interpreter.
            drop((client, calls));
        }));
        _exit(told.is_err().into());
    }
    let pid = rustix::process::Pid::from_raw(child).unwrap();
    let status = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
    assert_eq!(status.unwrap().unwrap().1.exit_status(), Some(0), "the child was told");
    expect_increment(&mut client, b"the parent is unaffected");
    eventually("the parent's call ends", || {
        calls.poll(|(), outcome| assert_eq!(outcome, Ok(&b"jo!gmjhiu"[..]))) == 1
    });
}

fn exit_with_calls(path: &Path) {
    let mut calls = pipelined::<()>(path);
    for _ in 0..calls.depth() {
        calls.submit(b"x", ()).unwrap();
    }
    calls.flush();
    thread::spawn(|| std::process::exit(0));
    thread::sleep(Duration::from_secs(60));
}
