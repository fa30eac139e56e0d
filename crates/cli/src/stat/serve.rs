//! The counters over HTTP, for a monitoring system on this machine.
//!
//! One request at a time, each with a bound on its length and its time: enough for a scraper, and
//! nothing that a stranger could exhaust.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use daemon::{config::Settings, metrics::render};

use crate::{
    exit::UsageError,
    output::say,
    stat::{openmetrics, read_all},
};

/// Longest request that is read.
const REQUEST_BYTES_MAX: usize = 4096;

/// How long a request and its answer may take, each.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Serves `GET /metrics` until the process ends.
pub(super) fn run(address: SocketAddr, settings: &Settings) -> anyhow::Result<()> {
    if !address.ip().is_loopback() {
        let remedy = "serve 127.0.0.1, and put a proxy that authenticates before it";
        return Err(UsageError(format!("{address} is no loopback address; {remedy}")).into());
    }
    let listener =
        TcpListener::bind(address).with_context(|| format!("cannot listen at {address}"))?;
    say(format_args!("serving http://{}/metrics", listener.local_addr()?));
    loop {
        // Whoever hung up, or was too slow, does not matter to the next.
        if let Err(error) = listener.accept().and_then(|(stream, _)| answer(stream, settings)) {
            tracing::debug!("a request failed: {error}");
        }
    }
}

fn answer(mut stream: TcpStream, settings: &Settings) -> io::Result<()> {
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut kind = "text/plain; version=0.0.4";
    let (status, body) = match read_request(&mut stream)? {
        Some((path, takes_openmetrics)) if path == "/metrics" || path == "/" => {
            let snapshots = read_all(settings).map_err(io::Error::other)?;
            if takes_openmetrics {
                kind = OPENMETRICS;
                ("200 OK", openmetrics(settings, snapshots).map_err(io::Error::other)?)
            } else {
                ("200 OK", render::prometheus(&snapshots))
            }
        }
        Some(_) => ("404 Not Found", "only /metrics is here\n".to_owned()),
        None => ("400 Bad Request", "only GET is understood\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// Type of the better format, which scrapers say that they take.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The path of a GET request and whether it takes OpenMetrics, once its head is complete.
fn read_request(stream: &mut TcpStream) -> io::Result<Option<(String, bool)>> {
    let mut request = [0; REQUEST_BYTES_MAX];
    let mut len = 0;
    let began = Instant::now();
    while !request[..len].windows(4).any(|window| window == b"\r\n\r\n") {
        // All reads together: one byte now and then gains nothing.
        let left = TIMEOUT.checked_sub(began.elapsed()).filter(|left| !left.is_zero());
        stream.set_read_timeout(Some(left.ok_or(io::ErrorKind::TimedOut)?))?;
        match stream.read(&mut request[len..])? {
            0 => return Ok(None),
            count => len += count,
        }
    }
    let head = String::from_utf8_lossy(&request[..len]);
    let mut words = head.split(' ');
    let path = |target: &str| target.split('?').next().unwrap_or_default().to_owned();
    let takes_openmetrics = head.lines().any(|line| {
        let line = line.to_ascii_lowercase();
        line.starts_with("accept:") && line.contains("application/openmetrics-text")
    });
    let is_get = words.next() == Some("GET");
    Ok(is_get.then(|| (path(words.next().unwrap_or_default()), takes_openmetrics)))
}
