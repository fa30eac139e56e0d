//! The counters over HTTP, for a monitoring system on this machine.
//!
//! One thread serves many connections, each with a bound on the bytes and the time of its request. Where they are too
//! many, the oldest one that has not finished its request is closed, so that silent ones delay nobody. The counters are
//! read at most every `FRESH`, however often they are asked for.

use std::{
    io::ErrorKind,
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use anyhow::Context as _;
use daemon::{
    config::Settings,
    metrics::{Snapshot, render},
};
use os::clock;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use crate::{
    args::OnlyArgs,
    stat::{
        http::{Asked, Connection, Progress, Waiting},
        openmetrics, read_all,
    },
};
use command::{exit::UsageError, output::say};

/// Connections at a time.
const CONNECTIONS_MAX: usize = 256;

/// Connections that are accepted between two looks at all others.
const ACCEPTS_MAX: usize = 32;

/// How long counters that were read are told to others, too.
const FRESH: Duration = Duration::from_millis(100);

/// The pause of accepting when descriptors run out.
const BACKOFF: Duration = Duration::from_millis(100);

const PLAIN: &str = "text/plain; version=0.0.4";
/// Type of the better format, which scrapers say that they take.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves `GET /metrics` until the process ends.
pub(super) fn run(address: SocketAddr, settings: &Settings, only: &OnlyArgs) -> anyhow::Result<()> {
    if !address.ip().is_loopback() {
        let remedy = "serve 127.0.0.1, and put a proxy that authenticates before it";
        return Err(UsageError(format!("{address} is no loopback address; {remedy}")).into());
    }
    let listener =
        TcpListener::bind(address).with_context(|| format!("cannot listen at {address}"))?;
    listener.set_nonblocking(true)?;
    say(format_args!("serving http://{}/metrics", listener.local_addr()?));
    let texts = [Text::default(), Text::default()];
    let mut endpoint = Endpoint { listener, connections: Vec::new(), texts, accepts_at_ns: 0 };
    loop {
        endpoint.turn(&|| read_all(settings, only), settings)?;
    }
}

/// Reads the counters that are served.
type Read<'a> = dyn Fn() -> anyhow::Result<Vec<Snapshot>> + 'a;

/// The counters as they were read last, in one format.
#[derive(Debug, Default)]
struct Text {
    text: String,
    read_at_ns: Option<u64>,
}

impl Text {
    fn get(&mut self, read: impl FnOnce() -> anyhow::Result<String>) -> anyhow::Result<&str> {
        let is_fresh =
            |at_ns: u64| clock::now_ns().saturating_sub(at_ns) < clock::duration_ns(FRESH);
        if !self.read_at_ns.is_some_and(is_fresh) {
            self.text = read()?;
            self.read_at_ns = Some(clock::now_ns());
        }
        Ok(&self.text)
    }
}

#[derive(Debug)]
struct Endpoint {
    listener: TcpListener,
    /// Oldest first.
    connections: Vec<Connection>,
    /// In the format of Prometheus, and as OpenMetrics.
    texts: [Text; 2],
    /// Not before: there were no descriptors.
    accepts_at_ns: u64,
}

impl Endpoint {
    /// Waits for something to do, and does it.
    fn turn(&mut self, read: &Read<'_>, settings: &Settings) -> anyhow::Result<()> {
        let ready = self.wait()?;
        let mut kept = Vec::with_capacity(self.connections.len());
        let mut spent_ns = 0;
        for (mut connection, is_ready) in self.connections.drain(..).zip(ready) {
            connection.postpone(spent_ns);
            let progress = if is_ready { connection.go_on() } else { Progress::Waits };
            let began_ns = clock::now_ns();
            let progress = match progress {
                Progress::Asks(asked) => {
                    answer(&mut connection, asked, &mut self.texts, read, settings)
                }
                progress => progress,
            };
            spent_ns += clock::now_ns().saturating_sub(began_ns);
            if progress == Progress::Waits && connection.deadline_ns() > clock::now_ns() {
                kept.push(connection);
            }
        }
        self.connections = kept;
        if clock::now_ns() >= self.accepts_at_ns {
            self.accept();
        }
        Ok(())
    }

    /// Which connections are ready, after the first of them is, or another one comes, or the time of one is over.
    fn wait(&self) -> anyhow::Result<Vec<bool>> {
        let now_ns = clock::now_ns();
        let accepts = if now_ns < self.accepts_at_ns { PollFlags::empty() } else { PollFlags::IN };
        let mut polled = vec![PollFd::new(&self.listener, accepts)];
        polled.extend(self.connections.iter().map(|connection| {
            let flags = match connection.waiting() {
                Waiting::Request => PollFlags::IN,
                Waiting::Room => PollFlags::OUT,
            };
            PollFd::new(connection.stream(), flags)
        }));
        let deadlines = self.connections.iter().map(Connection::deadline_ns);
        let backoff = (now_ns < self.accepts_at_ns).then_some(self.accepts_at_ns);
        let wait = deadlines.chain(backoff).min();
        let wait = wait.map(|at_ns| Duration::from_nanos(at_ns.saturating_sub(now_ns)));
        let timeout = wait.and_then(|wait| Timespec::try_from(wait).ok());
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => {
                return Err(anyhow::Error::from(errno).context("cannot wait for requests"));
            }
        }
        Ok(polled[1..].iter().map(|fd| !fd.revents().is_empty()).collect())
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_MAX {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if is_of_the_connection(error.kind()) => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::warn!(%error, "no connection is accepted");
                    self.accepts_at_ns = clock::deadline_ns(BACKOFF);
                    return;
                }
            };
            if self.connections.len() == CONNECTIONS_MAX {
                let is_silent = |it: &Connection| it.waiting() == Waiting::Request;
                let oldest = self.connections.iter().position(is_silent).unwrap_or(0);
                self.connections.remove(oldest);
            }
            self.connections.extend(Connection::new(stream));
        }
    }
}

/// Whether accepting failed for the sake of one connection.
fn is_of_the_connection(error: ErrorKind) -> bool {
    matches!(
        error,
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted
    )
}

fn answer(
    connection: &mut Connection,
    asked: Asked,
    [plain, open]: &mut [Text; 2],
    read: &Read<'_>,
    settings: &Settings,
) -> Progress {
    let (kind, text) = match asked {
        Asked::Counters { takes_openmetrics: true } => {
            (OPENMETRICS, open.get(|| openmetrics(settings, read()?)))
        }
        Asked::Counters { takes_openmetrics: false } => {
            (PLAIN, plain.get(|| Ok(render::prometheus(&read()?))))
        }
        Asked::Absent => {
            return connection.answer("404 Not Found", PLAIN, "only /metrics is here\n");
        }
        Asked::Method => {
            let told = "only GET and HEAD are allowed\n";
            return connection.answer("405 Method Not Allowed", PLAIN, told);
        }
        Asked::Malformed => {
            return connection.answer("400 Bad Request", PLAIN, "this is no HTTP\n");
        }
    };
    match text {
        Ok(text) => connection.answer("200 OK", kind, text),
        Err(error) => {
            connection.answer("500 Internal Server Error", PLAIN, &format!("{error:#}\n"))
        }
    }
}
