//! PMI-1: lines over a socket that the launcher has left in this process.
//!
//! ```text
//!  init ▶ response_to_init    get_maxes ▶ maxes    get_my_kvsname ▶ my_kvsname
//!  rank 0: put ▶ put_result   barrier_in ▶ barrier_out, when all have come
//!  get ▶ get_result           finalize ▶ finalize_ack
//! ```
//!
//! A launcher takes the end of a process between `init` and `finalize` for a failure of the launch.

use std::{
    io::{self, ErrorKind},
    os::fd::OwnedFd,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send, sockopt},
    process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open},
};

use super::{
    PmiError, Wait,
    line::{self, LINE_BYTES_MAX, Malformed, PmiLine},
};

const KEY: &str = "copyrpc-meeting";

/// A request, by its name, and the answer that is due.
type Exchange = (&'static str, &'static str);

const INIT: Exchange = ("init", "response_to_init");
const GET_MAXES: Exchange = ("get_maxes", "maxes");
const GET_MY_KVSNAME: Exchange = ("get_my_kvsname", "my_kvsname");
const PUT: Exchange = ("put", "put_result");
const BARRIER: Exchange = ("barrier_in", "barrier_out");
const GET: Exchange = ("get", "get_result");
const FINALIZE: Exchange = ("finalize", "finalize_ack");

/// Returns what rank 0 passes as `own`.
pub(super) fn broadcast(fd: i32, own: Option<&str>, wait: &Wait<'_>) -> Result<String, PmiError> {
    let socket = inherited(fd).map_err(|source| PmiError::Descriptor { fd, source })?;
    let mut client = Client { socket, wait, received: Vec::new() };
    client.ask(INIT, " pmi_version=1 pmi_subversion=1")?;
    let maxes = client.ask(GET_MAXES, "")?;
    let name = client.ask(GET_MY_KVSNAME, "")?;
    let name = name.text("kvsname").map_err(malformed(GET_MY_KVSNAME))?;
    if let Some(text) = own {
        check_lengths(&maxes, text)?;
        client.ask(PUT, &format!(" kvsname={name} key={KEY} value={text}"))?;
    }
    client.ask(BARRIER, "")?;
    let got = client.ask(GET, &format!(" kvsname={name} key={KEY}"))?;
    let text = got.text("value").map_err(malformed(GET))?.to_owned();
    client.ask(FINALIZE, "")?;
    Ok(text)
}

/// The socket of this number, as a descriptor of its own: the number stays the launcher's.
fn inherited(fd: i32) -> io::Result<OwnedFd> {
    let this = pidfd_open(getpid(), PidfdFlags::empty())?;
    let socket = pidfd_getfd(this, fd, PidfdGetfdFlags::empty())?;
    // ENOTSOCK, if it has been closed and taken by a file.
    sockopt::socket_type(&socket)?;
    Ok(socket)
}

fn check_lengths(maxes: &PmiLine, text: &str) -> Result<(), PmiError> {
    let number = |key| maxes.number(key).map_err(malformed(GET_MAXES));
    let (key_bytes_max, value_bytes_max) = (number("keylen_max")?, number("vallen_max")?);
    // The terminator of a C string counts.
    if KEY.len() < key_bytes_max && text.len() < value_bytes_max {
        Ok(())
    } else {
        Err(PmiError::TooShort { key_bytes_max, value_bytes_max, needed: text.len() + 1 })
    }
}

fn malformed((request, _): Exchange) -> impl Fn(Malformed) -> PmiError {
    move |cause| PmiError::Malformed { request, cause }
}

struct Client<'a> {
    socket: OwnedFd,
    wait: &'a Wait<'a>,
    /// At most a line, and what came with it.
    received: Vec<u8>,
}

impl Client<'_> {
    /// Sends a request with its `arguments` and returns the answer, if that grants it.
    fn ask(&mut self, exchange: Exchange, arguments: &str) -> Result<PmiLine, PmiError> {
        let (request, due) = exchange;
        let lost = |source: io::Error| PmiError::Lost { request, source };
        self.send_all(request, format!("cmd={request}{arguments}\n").as_bytes())?;
        let line = loop {
            if let Some(line) = line::take_line(&mut self.received).map_err(malformed(exchange))? {
                break line;
            }
            self.ready(PollFlags::IN, request)?;
            let mut bytes = [0; LINE_BYTES_MAX];
            match recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(lost(ErrorKind::UnexpectedEof.into())),
                Ok((count, _)) => self.received.extend_from_slice(&bytes[..count]),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(lost(errno.into())),
            }
        };
        let answer = PmiLine::parse(&line).map_err(malformed(exchange))?;
        if answer.command() != due {
            let found = answer.command().to_owned();
            return Err(malformed(exchange)(Malformed::Other { found, due }));
        }
        match answer.result().map_err(malformed(exchange))? {
            0 => Ok(answer),
            rc => {
                let reason = answer.find("msg").unwrap_or_default().to_owned();
                Err(PmiError::Refused { request, rc, reason })
            }
        }
    }

    fn send_all(&self, request: &'static str, mut bytes: &[u8]) -> Result<(), PmiError> {
        while !bytes.is_empty() {
            self.ready(PollFlags::OUT, request)?;
            match send(&self.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(PmiError::Lost { request, source: errno.into() }),
            }
        }
        Ok(())
    }

    /// Waits until the socket is ready, or has failed.
    fn ready(&self, flags: PollFlags, request: &'static str) -> Result<(), PmiError> {
        loop {
            let slice = self.wait.slice("PMI-1", request)?;
            let timeout = Timespec::try_from(slice).expect("a slice is short");
            match poll(&mut [PollFd::new(&self.socket, flags)], Some(&timeout)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(errno) => return Err(PmiError::Lost { request, source: errno.into() }),
            }
        }
    }
}
