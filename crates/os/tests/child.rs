//! This test program again, as a child with a channel.
#![cfg(not(loom))]

use std::{
    io::{Read as _, stdin},
    os::unix::process::ExitStatusExt as _,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use copyrpc_os::{
    child::{ChannelError, Child, ChildChannel, NoParentError, channel_to_parent, has_channel},
    child::{terminate_all, this_program},
    clock,
    process::{Process, ProcessError},
};

const KILL: i32 = 9;
const TERM: i32 = 15;

fn soon() -> u64 {
    clock::deadline_ns(Duration::from_secs(20))
}

fn command(child_test: &str) -> Command {
    let mut command = this_program().unwrap();
    command.args(["--exact", child_test, "--ignored", "--test-threads=1", "--nocapture"]);
    command.stdout(Stdio::null());
    command
}

fn start(child_test: &str) -> (Child, ChildChannel) {
    Child::spawn_with_channel(&mut command(child_test)).unwrap()
}

#[test]
#[ignore = "the child process of a test below"]
fn child_echoes() {
    let mut parent = channel_to_parent().unwrap();
    assert!(has_channel());
    let mut rest = Vec::new();
    stdin().read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty(), "standard input is empty, the channel is not");
    while let Ok(message) = parent.recv(soon()) {
        parent.send(&message, soon()).unwrap();
    }
}

#[test]
#[ignore = "the child process of a test below"]
fn child_has_a_child_of_its_own() {
    let mut parent = channel_to_parent().unwrap();
    let (mut grandchild, mut channel) = start("child_echoes");
    channel.send(b"up", soon()).unwrap();
    assert_eq!(channel.recv(soon()).unwrap(), b"up");
    parent.send(&grandchild.id().to_le_bytes(), soon()).unwrap();
    let _ = grandchild.wait(soon());
}

#[test]
fn a_child_talks_and_ends_when_its_channel_closes() {
    let (mut child, mut channel) = start("child_echoes");
    for message in [&b"one"[..], b"", b"three"] {
        channel.send(message, soon()).unwrap();
        assert_eq!(channel.recv(soon()).unwrap(), message);
    }
    assert!(matches!(channel.recv(clock::NOW), Err(ChannelError::TimedOut)));
    assert_eq!(child.wait(clock::NOW).unwrap(), None);
    drop(channel);
    assert!(child.wait(soon()).unwrap().unwrap().success());
    assert!(child.wait(clock::NOW).unwrap().unwrap().success(), "asked again");
}

#[test]
fn the_death_of_a_child_ends_every_wait_for_it() {
    let (mut child, mut channel) = start("child_echoes");
    let begin = Instant::now();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| channel.recv(soon()));
        assert_eq!(child.kill().unwrap().signal(), Some(KILL));
        assert!(matches!(waiting.join().unwrap(), Err(ChannelError::Gone)));
    });
    assert!(begin.elapsed() < Duration::from_secs(10));
}

#[test]
fn dropping_a_child_kills_and_reaps_it() {
    let (child, mut channel) = start("child_echoes");
    channel.send(b"up", soon()).unwrap();
    channel.recv(soon()).unwrap();
    let pid = child.id();
    drop(child);
    assert_eq!(Process::open(pid).unwrap_err(), ProcessError::Gone { pid });
    assert!(matches!(channel.recv(soon()), Err(ChannelError::Gone)));
}

#[test]
fn children_are_asked_to_end_within_one_deadline() {
    let children = (0..2).map(|_| start("child_echoes"));
    let (mut children, mut channels): (Vec<_>, Vec<_>) = children.unzip();
    for channel in &mut channels {
        channel.send(b"up", soon()).unwrap();
        channel.recv(soon()).unwrap();
    }
    assert!(terminate_all(&mut children, soon()));
    for child in &mut children {
        assert_eq!(child.wait(clock::NOW).unwrap().unwrap().signal(), Some(TERM));
    }
}

#[test]
fn a_child_dies_with_its_parent_whatever_it_waits_for() {
    let (mut child, mut channel) = start("child_has_a_child_of_its_own");
    let pid = channel.recv(soon()).unwrap();
    let pid = u32::from_le_bytes(pid.try_into().unwrap());
    let grandchild = Process::open(pid).unwrap();
    child.kill().unwrap();
    assert_eq!(grandchild.wait_dead(soon()), Ok(true));
    // Nobody else keeps the socket open.
    assert!(matches!(channel.recv(soon()), Err(ChannelError::Gone)));
}

#[test]
fn a_process_that_was_started_by_hand_has_no_channel() {
    assert!(!has_channel());
    assert!(matches!(channel_to_parent(), Err(NoParentError::NotAChild)));
}

#[test]
fn a_command_that_does_not_exist_starts_nothing() {
    let missing = Child::spawn_with_channel(&mut Command::new("/nonexistent/copyrpc"));
    assert!(missing.is_err());
}
