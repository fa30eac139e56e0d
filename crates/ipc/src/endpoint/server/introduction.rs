//! Introductions: a process that client and server both know hands the server a socket of the client, and both share
//! memory from then on, without the third.
//!
//! ```text
//! client ── one end of a pair of sockets ──▶ introducer ── the same end, and whose it is ──▶ server
//! client ◀──────────── WELCOME, and five descriptors: the memory, and the server's process ── server
//! ```
//!
//! The introducer keeps a copy of the socket: by [shutting it down](os::unix::UnixConnection::shut_down) it ends the session, whoever has
//! other copies. What it tells the server goes through a channel, a pair of sockets of the server's making, one
//! datagram each:
//!
//! ```text
//! INTRODUCE  kind, uid, pid, tag   one descriptor
//! RETIRE     kind, 0, 0, tag       none: the session of this tag, or all of them (ALL), takes no more requests
//! RETIRE     kind, 1, 0, tag       none: the client of this tag is asked to leave
//! ```
//!
//! - The client makes the pair, so the kernel tells the server who the client is. The server sends a pidfd of its
//!   own process with the welcome, so the client learns of its death whatever copies of the socket there are.
//! - The introducer keeps a copy of the socket. `shutdown(2)` of it ends the session for both sides. It can also
//!   ask the server to *retire* a session: the server takes no more requests of it, answers those that it has, and
//!   evicts the client with the reason `Retired`.
//! - The introducer can ask a client to *leave*: the server stores the request in the down half, and serves the session
//!   as before. A client that leaves loses no call: it begins none in the session, and closes it when its last one has
//!   ended.
//! - Neither side waits for the other. The introducer sends without waiting, the server welcomes between two turns,
//!   and the client looks for the welcome now and then (`NewcomerState::NotYet`).
//! - The server says up to which position it has taken requests, in word 2 of the down half, before it handles
//!   them. A call behind that position ends with `NotTaken` if the server evicted the client or is dead: it was not
//!   executed, and never will be. If the session was only shut down, a server that is stopped may still take it:
//!   then the call ends as others do, and may have been executed.
//! - The client marks the calls that it gave up in word 3 of the up half (the first 64 calls). The server looks at
//!   the mark before it handles a request (`Replies::is_abandoned`); a server that sleeps is woken.

use std::os::fd::{BorrowedFd, OwnedFd};

use crate::endpoint::server::id::ClientProcess;
use os::{
    clock,
    fdpass::RecvError,
    unix::{SocketError, UnixConnection},
};

/// In the place of a tag: all sessions.
const ALL: u64 = u64::MAX;

const INTRODUCE: u32 = 1;
const RETIRE: u32 = 2;

/// In the place of the user of a [`RETIRE`]: the client decides when.
const WHEN_IDLE: u32 = 1;

/// Bytes of a datagram: three words of 32 bits, and the tag.
const MESSAGE_BYTES: usize = 20;

/// A client, as the introducer knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// Name of the session between introducer and server. No other one of the server ever has it.
    pub tag: u64,
    /// Process and user of the client.
    pub process: ClientProcess,
}

/// What a server is told.
#[derive(Debug)]
pub enum IntroducerMessage {
    /// The socket of a client, which is to be admitted.
    Introduced(UnixConnection, Introduction),
    /// The session of this tag takes no more requests; `None`: all of them.
    Retire(Option<u64>),
    /// The client of this session is asked to leave.
    AskToLeave(u64),
    /// Nothing, or not yet.
    Nothing,
    /// What makes no sense.
    Foreign,
    /// The introducer is gone.
    End,
}

/// The introducer's end of the channel to one server.
#[derive(Debug)]
pub struct Introducer(UnixConnection);

impl Introducer {
    /// The end that a server's process sent.
    ///
    /// # Errors
    ///
    /// [`SocketError`]: it is no such socket.
    pub fn adopt(channel: OwnedFd) -> Result<Self, SocketError> {
        UnixConnection::adopt(channel).map(Self)
    }

    /// Hands the server a client's socket. Returns whether it did: if not, the server reads nothing, or is gone.
    #[must_use]
    pub fn introduce(&self, socket: BorrowedFd<'_>, introduction: Introduction) -> bool {
        let Introduction { tag, process } = introduction;
        self.send(INTRODUCE, process, tag, &[socket])
    }

    /// The session of this tag takes no more requests, and ends when those that were taken are answered; `None`: all
    /// of them. Returns whether the server will be told.
    #[must_use]
    pub fn retire(&self, tag: Option<u64>) -> bool {
        self.send(RETIRE, ClientProcess { uid: 0, pid: 0 }, tag.unwrap_or(ALL), &[])
    }

    /// Asks the client of this tag to leave when none of its calls is in flight. Returns whether the server will be
    /// told.
    #[must_use]
    pub fn ask_to_leave(&self, tag: u64) -> bool {
        self.send(RETIRE, ClientProcess { uid: WHEN_IDLE, pid: 0 }, tag, &[])
    }

    fn send(&self, kind: u32, process: ClientProcess, tag: u64, fds: &[BorrowedFd<'_>]) -> bool {
        let ClientProcess { uid, pid } = process;
        let mut message = Vec::with_capacity(MESSAGE_BYTES);
        message.extend([kind, uid, pid].into_iter().flat_map(u32::to_le_bytes));
        message.extend(tag.to_le_bytes());
        // A server that reads nothing makes nobody wait.
        self.0.send(&message, fds, clock::NOW).is_ok()
    }
}

/// Reads one datagram of the channel. Never waits.
pub fn read(channel: &UnixConnection) -> IntroducerMessage {
    let mut bytes = [0; MESSAGE_BYTES];
    let (len_bytes, mut fds) = match channel.recv(&mut bytes, 1, clock::NOW) {
        Ok(datagram) => (datagram.len_bytes, datagram.fds),
        Err(RecvError::TimedOut | RecvError::NoDescriptor) => return IntroducerMessage::Nothing,
        Err(RecvError::Closed | RecvError::Os(_)) => return IntroducerMessage::End,
        Err(RecvError::TooLong { .. } | RecvError::TooManyFds { .. }) => {
            return IntroducerMessage::Foreign;
        }
    };
    let (words, tag) = bytes.split_at(MESSAGE_BYTES - size_of::<u64>());
    let (Ok(tag), ([kind, uid, pid], [])) = (tag.try_into(), words.as_chunks()) else {
        return IntroducerMessage::Foreign;
    };
    if len_bytes != MESSAGE_BYTES {
        return IntroducerMessage::Foreign;
    }
    let [kind, uid, pid] = [kind, uid, pid].map(|word| u32::from_le_bytes(*word));
    let tag = u64::from_le_bytes(tag);
    match (kind, fds.pop().map(UnixConnection::adopt)) {
        (INTRODUCE, Some(Ok(connection))) => {
            let process = ClientProcess { uid, pid };
            IntroducerMessage::Introduced(connection, Introduction { tag, process })
        }
        (RETIRE, None) if uid == WHEN_IDLE => IntroducerMessage::AskToLeave(tag),
        (RETIRE, None) => IntroducerMessage::Retire((tag != ALL).then_some(tag)),
        _ => IntroducerMessage::Foreign,
    }
}
