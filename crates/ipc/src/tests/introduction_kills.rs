//! Processes that are killed at each step of an introduction, and of the first call behind it.

use std::os::fd::{AsFd as _, OwnedFd};

use os::unix::UnixConnection;
use rustix::process::Signal;

use super::rig::*;
use crate::{
    BlockingClient, CallError, ClientProcess, Introducer, Introduction, Newcomer, NewcomerState,
    PipelinedClient, RequestId, Server, ServerConfig,
};

/// How the call of a client ends whose server is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// There is no session, so there was no call.
    NoSession,
    /// It was not executed, and never will be.
    NotTaken,
    /// It may have been executed.
    Unknown,
    Answered,
}

/// The steps of a server that is introduced, and how a call ends if it is killed there.
const SERVER_STEPS: [(&str, End); 6] = [
    ("introduced", End::NoSession),
    ("welcomed", End::NotTaken),
    ("request.copied", End::NotTaken),
    ("request.taken", End::Unknown),
    ("handled", End::Unknown),
    ("answered", End::Answered),
];

/// The steps of a client that is introduced.
const CLIENT_STEPS: [&str; 5] =
    ["newcomer.made", "newcomer.sent", "welcome.read", "arrived", "submitted"];

/// A server to which other processes send descriptors, as they do to a daemon.
fn daemon(dir: &Dir) -> Server {
    Server::bind(&dir.socket(), ServerConfig { takes_descriptors: true, ..small() }).unwrap()
}

/// The next descriptor that a process sends, and its request about that.
fn next_descriptor(daemon: &mut Server) -> (RequestId, OwnedFd) {
    let mut request = None;
    eventually("a process asks", || {
        request = daemon.recv().map(|request| request.keep_open());
        daemon.rest(1_000_000);
        request.is_some()
    });
    let request = request.unwrap();
    (request, daemon.take_descriptor(request.client()).expect("it was sent before the request"))
}

fn introduction(tag: u64) -> Introduction {
    Introduction { tag, process: ClientProcess { uid: 7, pid: 8 } }
}

/// A client that the server of `introducer` has welcomed, or is gone.
fn arrive(mut newcomer: Newcomer) -> Option<PipelinedClient<()>> {
    let mut ended = None;
    eventually("the server says welcome, or is gone", || {
        let (next, _) = Newcomer::new().unwrap();
        match PipelinedClient::introduced(std::mem::replace(&mut newcomer, next), patient()) {
            Ok(NewcomerState::NotYet(again)) => newcomer = again,
            Ok(NewcomerState::Arrived(client)) => ended = Some(Some(client)),
            Err(_) => ended = Some(None),
        }
        ended.is_some()
    });
    ended.unwrap()
}

/// How a call ends whose server stops at a step, and is killed there.
fn end_of_call(step: &str) -> End {
    let dir = Dir::new();
    let mut daemon = daemon(&dir);
    let mut server = Role::start("introduced server", &dir.socket(), Some(step));
    let (request, channel) = next_descriptor(&mut daemon);
    let introducer = Introducer::adopt(channel).unwrap();
    daemon.replies().reply(request, b"").unwrap();
    daemon.pause();
    let (newcomer, socket) = Newcomer::new().unwrap();
    assert!(introducer.introduce(socket.as_fd(), introduction(1)));
    let socket = UnixConnection::adopt(socket).unwrap();
    let mut kill = || {
        server.wait_stopped();
        server.signal(Signal::KILL);
        assert!(!server.succeeds());
        // As a daemon does that notices.
        socket.shut_down();
    };
    let mut client = if step == "introduced" {
        kill();
        match arrive(newcomer) {
            Some(client) => client,
            None => return End::NoSession,
        }
    } else {
        arrive(newcomer).expect("it was welcomed")
    };
    client.submit(b"abc", ()).unwrap();
    client.flush();
    kill();
    let mut end = None;
    eventually("the call ends", || {
        client.poll(|(), outcome| {
            end = Some(match outcome.map(<[u8]>::to_vec) {
                Ok(answer) => {
                    assert_eq!(answer, b"bcd");
                    End::Answered
                }
                Err(CallError::NotTaken) => End::NotTaken,
                Err(_) => End::Unknown,
            });
        });
        client.rest();
        end.is_some()
    });
    end.unwrap()
}

#[test]
fn fault_a16_a_server_killed_at_any_step_of_an_introduction_is_told_of_exactly() {
    for (step, end) in SERVER_STEPS {
        assert_eq!(end_of_call(step), end, "{step}");
    }
}

/// A client that is introduced stops at a step, and is killed there, while another one is served.
fn kill_client(step: &str) {
    let dir = Dir::new();
    let mut daemon = daemon(&dir);
    let (server, channel) = Server::introduced(small()).unwrap();
    let server = ServerThread::run(server, increment);
    let introducer = Introducer::adopt(channel).unwrap();
    let (mut newcomer, socket) = Newcomer::new().unwrap();
    assert!(introducer.introduce(socket.as_fd(), introduction(1)));
    let mut bystander: BlockingClient = loop {
        match BlockingClient::introduced(newcomer, patient()).unwrap() {
            NewcomerState::NotYet(again) => newcomer = again,
            NewcomerState::Arrived(client) => break client,
        }
    };
    let client = Role::start("introduced client", &dir.socket(), Some(step));
    if step != "newcomer.made" {
        let (request, socket) = next_descriptor(&mut daemon);
        assert!(introducer.introduce(socket.as_fd(), introduction(2)));
        daemon.replies().reply(request, b"").unwrap();
        daemon.pause();
    }
    client.wait_stopped();
    expect_increment(&mut bystander, b"while it is stopped");
    client.signal(Signal::KILL);
    expect_baseline(&server, 1);
    expect_increment(&mut bystander, b"when it is gone");
}

#[test]
fn fault_a16_a_client_killed_at_any_step_of_an_introduction_leaves_no_session() {
    CLIENT_STEPS.into_iter().for_each(kill_client);
}

/// Sessions that were introduced outlive their introducer, and nobody new comes.
#[test]
fn fault_a16_an_introducer_that_ends_takes_no_session_along_by_itself() {
    let (server, channel) = Server::introduced(small()).unwrap();
    let server = ServerThread::run(server, increment);
    let introducer = Introducer::adopt(channel).unwrap();
    let (newcomer, socket) = Newcomer::new().unwrap();
    assert!(introducer.introduce(socket.as_fd(), introduction(1)));
    // Both its ends, in the middle of the introduction.
    drop((introducer, socket));
    let mut client = arrive(newcomer).expect("the server reads what was sent");
    client.submit(b"abc", ()).unwrap();
    let mut answered = false;
    eventually("the answer", || {
        client.poll(|(), outcome| answered = outcome == Ok(&b"bcd"[..]));
        client.rest();
        answered
    });
    drop(client);
    expect_baseline(&server, 0);
}
