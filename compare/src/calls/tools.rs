//! Peers that come with a benchmark of their own, if it is installed. They check no data.

use std::{
    io::Read as _,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use copyrpc_bench::cores::{self, Cores};

use super::Work;
use crate::Outcome;

/// Where the servers listen.
const PORT: &str = "13377";
/// How long a server may take until it listens.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a client may take, which measures for a tenth of a second or so.
const CLIENT_PATIENCE: Duration = Duration::from_secs(30);

/// A benchmark that starts as a server without an address, and as a client with one.
pub struct Tool {
    pub name: &'static str,
    program: &'static str,
    server: &'static [&'static str],
    client: &'static [&'static str],
    /// ns per round trip, from what the client prints.
    read: fn(&str) -> Option<f64>,
}

/// What `ucx_perftest` is told as a client, for the test called `$test`.
macro_rules! ucx {
    ($name:literal, $test:literal) => {
        Tool {
            name: $name,
            program: "ucx_perftest",
            server: &["-p", PORT],
            #[rustfmt::skip]
            client: &[
                "127.0.0.1", "-p", PORT, "-t", $test, "-s", "56", "-n", "200000", "-w", "5000", "-f",
            ],
            read: read_ucx,
        }
    };
}

/// What they are told to do.
pub const WORK: Work = Work { len_bytes: 56, in_flight: 1 };

pub const TOOLS: [Tool; 3] = [
    ucx!("UCX active messages", "ucp_am_lat"),
    ucx!("UCX tag", "tag_lat"),
    Tool {
        // It knows no 56 B.
        name: "libfabric shm (64 B)",
        program: "fi_pingpong",
        server: &["-p", "shm", "-e", "rdm", "-I", "100000", "-S", "64", "-B", PORT],
        client: &["-p", "shm", "-e", "rdm", "-I", "100000", "-S", "64", "-P", PORT, "127.0.0.1"],
        read: read_libfabric,
    },
];

/// A process of a tool, killed with the value.
struct Running(Child);

impl Running {
    /// What it prints, which a pipe has room for, once it has ended.
    fn output(mut self, deadline: Instant) -> Outcome<String> {
        while self.0.try_wait()?.is_none() {
            if Instant::now() > deadline {
                return Err(format!("its client did not end within {CLIENT_PATIENCE:?}").into());
            }
            thread::sleep(Duration::from_millis(1));
        }
        let mut printed = Vec::new();
        if let Some(mut stdout) = self.0.stdout.take() {
            stdout.read_to_end(&mut printed)?;
        }
        Ok(String::from_utf8_lossy(&printed).into_owned())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Tool {
    /// A process of the tool, on `core`.
    fn command(&self, core: usize, arguments: &[&str]) -> Outcome<Child> {
        let mut command = Command::new(self.program);
        command.args(arguments).env("UCX_TLS", "posix,self");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        // A process inherits the cores of the thread that starts it.
        let started = thread::scope(|scope| {
            scope.spawn(|| cores::pin(core).and_then(|()| command.spawn())).join()
        });
        let started = started.map_err(|_| "the starting thread panicked")?;
        Ok(started.map_err(|error| format!("cannot start `{}`: {error}", self.program))?)
    }

    /// ns per round trip.
    ///
    /// # Errors
    ///
    /// It is not installed, or prints nothing that can be read.
    pub fn run(&self, cores: Cores) -> Outcome<f64> {
        let mut server = Running(self.command(cores.responder, self.server)?);
        let begin = Instant::now();
        loop {
            // It fails as long as the server does not listen.
            let client = Running(self.command(cores.initiator, self.client)?);
            let output = client.output(Instant::now() + CLIENT_PATIENCE)?;
            if let Some(ns) = (self.read)(&output) {
                return Ok(ns);
            }
            if begin.elapsed() > PATIENCE || server.0.try_wait()?.is_some() {
                return Err(format!("`{}` printed no result", self.program).into());
            }
        }
    }
}

/// `ITERATIONS P50 AVERAGE OVERALL …`, behind `Final:` since version 1.14; half round trips in µs.
fn read_ucx(output: &str) -> Option<f64> {
    let p50_us = output.lines().rev().find_map(|line| {
        let line = line.trim();
        let words = line.strip_prefix("Final:").unwrap_or(line).split_whitespace();
        let numbers: Option<Vec<f64>> = words.map(|word| word.parse().ok()).collect();
        numbers?.get(1).copied()
    });
    Some(2e3 * p50_us?)
}

/// A heading that ends in `usec/xfer Mxfers/sec`, then one line of numbers; half round trips.
fn read_libfabric(output: &str) -> Option<f64> {
    let (_, numbers) = output.split_once("Mxfers/sec")?;
    let line = numbers.lines().find(|line| !line.trim().is_empty())?;
    Some(2e3 * line.split_whitespace().rev().nth(1)?.parse::<f64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_found_among_what_tools_print() {
        let ucx =
            "| Stage | # iterations | 50.0%ile | average |\nFinal:  200000  0.096  0.099  0.099";
        assert_eq!(read_ucx(ucx).map(f64::round), Some(192.0));
        let older = "|  Test | # iterations |\n   200000  0.125  0.557  0.557  95.85\n+-----+\n";
        assert_eq!(read_ucx(older).map(f64::round), Some(250.0));
        let libfabric = "bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec\n\
                         64 100k =100k 12m 0.05s 266.67 0.24 4.17\n";
        assert_eq!(read_libfabric(libfabric).map(f64::round), Some(480.0));
        assert_eq!((read_ucx("connection refused"), read_libfabric("")), (None, None));
    }
}
