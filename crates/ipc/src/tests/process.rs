//! What the processes of these tests do.

use std::{
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use super::rig::*;
use crate::{CallError, ClientConfig, EvictReason, Server, SyncClient, Wait};

/// Not a test of its own: runs the role that the environment names, if it names one.
#[test]
fn role() {
    let Ok(role) = std::env::var("COPYRPC_TEST_ROLE") else { return };
    let path = PathBuf::from(std::env::var_os("COPYRPC_TEST_PATH").expect("set with the role"));
    match role.as_str() {
        "server" => serve(&path, small_wait(Wait::default())),
        "sleepy server" => serve(&path, small_wait(Wait::Block)),
        "client" => call_for_ever(&path, Wait::default()),
        "spinning client" => call_some(&path),
        "idle client" => idle(&path),
        "client that expects eviction" => expect_eviction(&path),
        "client that forks" => fork_and_call(&path),
        "client that exits" => exit_with_calls(&path),
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
    let mut client = SyncClient::connect(path, ClientConfig { wait, ..patient() }).unwrap();
    for number in 0u64.. {
        expect_increment(&mut client, &number.to_le_bytes().repeat(20));
    }
}

fn call_some(path: &Path) {
    let config = ClientConfig { wait: Wait::Busy, ..patient() };
    let mut client = SyncClient::connect(path, config).unwrap();
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
    expect_increment(&mut client, b"in a new place");
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
        let mut ended = 0;
        calls.poll(|(), outcome| ended += i32::from(outcome == Err(CallError::ForkedHandle)));
        let refused = client.call(b"child") == Err(CallError::ForkedHandle);
        // Destructors run, as at the exit of a script's interpreter.
        drop((client, calls));
        _exit(if refused && ended == 1 { 0 } else { 1 });
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
