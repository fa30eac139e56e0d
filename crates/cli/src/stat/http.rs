//! A connection of a scraper: a request with a bound on its bytes and its time, and the answer to it.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use os::clock;

/// Longest head of a request that is read.
pub(super) const REQUEST_BYTES_MAX: usize = 4096;

/// How long a request and its answer may take, together.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A request whose head is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// The counters.
    Counters { takes_openmetrics: bool },
    /// Something that is not here.
    Absent,
    /// A method that changes something.
    Method,
    /// No HTTP.
    Malformed,
}

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    /// The rest of a request.
    Request,
    /// Room for the rest of the answer.
    Room,
}

/// What is to be done for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Waits,
    /// It is to be answered.
    Asks(Asked),
    /// It is over.
    Ends,
}

#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    request: Vec<u8>,
    answer: Vec<u8>,
    written: usize,
    deadline_ns: u64,
}

impl Connection {
    /// Takes a connection that was just accepted; `None`: it is gone already.
    pub(super) fn new(stream: TcpStream) -> Option<Self> {
        stream.set_nonblocking(true).ok()?;
        let deadline_ns = clock::deadline_ns(TIMEOUT);
        Some(Self { stream, request: Vec::new(), answer: Vec::new(), written: 0, deadline_ns })
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(super) fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// The server itself has spent so much time.
    pub(super) fn postpone(&mut self, by_ns: u64) {
        self.deadline_ns = self.deadline_ns.saturating_add(by_ns);
    }

    pub(super) fn waiting(&self) -> Waiting {
        if self.answer.is_empty() { Waiting::Request } else { Waiting::Room }
    }

    /// Reads or writes what it can without waiting.
    pub(super) fn go_on(&mut self) -> Progress {
        match self.waiting() {
            Waiting::Request => self.read(),
            Waiting::Room => self.write(),
        }
    }

    fn read(&mut self) -> Progress {
        let mut bytes = [0; REQUEST_BYTES_MAX];
        let room = REQUEST_BYTES_MAX - self.request.len();
        match self.stream.read(&mut bytes[..room]) {
            Ok(0) => Progress::Ends,
            Ok(count) => {
                self.request.extend_from_slice(&bytes[..count]);
                let is_whole = self.request.windows(4).any(|window| window == b"\r\n\r\n");
                match is_whole {
                    true => Progress::Asks(asked(&self.request)),
                    false if self.request.len() == REQUEST_BYTES_MAX => {
                        Progress::Asks(Asked::Malformed)
                    }
                    false => Progress::Waits,
                }
            }
            Err(error) => waits_or_ends(error.kind()),
        }
    }

    /// Answers; a request for the head alone gets no body.
    pub(super) fn answer(&mut self, status: &str, kind: &str, body: &str) -> Progress {
        let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{allow}Content-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        self.answer = head.into_bytes();
        if !self.request.starts_with(b"HEAD ") {
            self.answer.extend_from_slice(body.as_bytes());
        }
        self.write()
    }

    fn write(&mut self) -> Progress {
        while self.written < self.answer.len() {
            match self.stream.write(&self.answer[self.written..]) {
                Ok(0) => return Progress::Ends,
                Ok(count) => self.written += count,
                Err(error) => return waits_or_ends(error.kind()),
            }
        }
        Progress::Ends
    }
}

fn waits_or_ends(error: ErrorKind) -> Progress {
    match error {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => Progress::Waits,
        _ => Progress::Ends,
    }
}

/// What a complete head asks for.
fn asked(head: &[u8]) -> Asked {
    let head = String::from_utf8_lossy(head);
    let mut lines = head.lines();
    let words: Vec<_> = lines.next().unwrap_or_default().split(' ').collect();
    let [method, target, version] = words[..] else { return Asked::Malformed };
    if !version.starts_with("HTTP/1.") {
        return Asked::Malformed;
    }
    if !matches!(method, "GET" | "HEAD") {
        return Asked::Method;
    }
    let takes_openmetrics = lines.any(|line| {
        let line = line.to_ascii_lowercase();
        line.starts_with("accept:") && line.contains("application/openmetrics-text")
    });
    match target.split('?').next() {
        Some("/metrics" | "/") => Asked::Counters { takes_openmetrics },
        _ => Asked::Absent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_understood_or_told_what_is_wrong() {
        let counters = |takes_openmetrics| Asked::Counters { takes_openmetrics };
        for (head, expected) in [
            ("GET /metrics HTTP/1.1\r\n\r\n", counters(false)),
            ("HEAD /metrics?x HTTP/1.0\r\n\r\n", counters(false)),
            ("GET / HTTP/1.1\r\nACCEPT: application/openmetrics-text\r\n\r\n", counters(true)),
            ("GET /etc/passwd HTTP/1.1\r\n\r\n", Asked::Absent),
            ("POST /metrics HTTP/1.1\r\n\r\n", Asked::Method),
            ("GET /metrics\r\n\r\n", Asked::Malformed),
            ("GET /metrics SSH-2.0\r\n\r\n", Asked::Malformed),
            ("\r\n\r\n", Asked::Malformed),
        ] {
            assert_eq!(asked(head.as_bytes()), expected, "{head:?}");
        }
    }
}
