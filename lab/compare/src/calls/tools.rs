//! Peers that come with a benchmark of their own, if it is installed. They check no data.

use std::{
    io::Read as _,
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use measure::{cores::Cores, shared_words::PATIENCE};

use super::CallWork;
use crate::{Fallible, tool_process};

/// Where the servers listen.
const PORT: &str = "13377";

/// How long a server may take until it listens.
const START_PATIENCE: Duration = Duration::from_secs(20);

/// A benchmark that starts as a server without an address, and as a client with one.
pub struct Tool {
    pub name: &'static str,
    /// Why it has no number of some work.
    pub lacks: fn(CallWork) -> Option<&'static str>,
    program: &'static str,
    /// Of `ucx_perftest`: the test of round trips, and that of bandwidth.
    tests: [&'static str; 2],
    /// Transports of UCX.
    transports: &'static str,
    /// The number of the work, from what the client prints.
    read: fn(&str, CallWork, &str) -> Option<f64>,
}

/// Peers of a benchmark of their own. The longest messages are as long as those of `ipc`.
pub fn all() -> Vec<Tool> {
    let ucx = |name, tests, transports| Tool {
        name,
        lacks: |work| {
            let is_many = work.in_flight > 1 && !work.is_one_way;
            is_many.then_some("`ucx_perftest` has no window of round trips")
        },
        program: "ucx_perftest",
        tests,
        transports,
        read: read_ucx,
    };
    let am = ["ucp_am_lat", "ucp_am_bw"];
    let (put, get) = (["ucp_put_lat", "ucp_put_bw"], ["ucp_get", "ucp_get"]);
    vec![
        ucx("UCX active messages", am, "posix,self"),
        ucx("UCX active messages, CMA", am, "posix,cma,self"),
        ucx("UCX tag", ["tag_lat", "tag_bw"], "posix,self"),
        ucx("UCX put", put, "posix,self"),
        ucx("UCX put, CMA", put, "posix,cma,self"),
        ucx("UCX get", get, "posix,self"),
        ucx("UCX get, CMA", get, "posix,cma,self"),
        Tool {
            name: "libfabric shm",
            lacks: |work| {
                let is_many = work.in_flight > 1;
                is_many.then_some(
                    "`fi_pingpong` has one message in flight; `fi_rdm_tagged_bw` is of fabtests",
                )
            },
            program: "fi_pingpong",
            tests: ["", ""],
            transports: "",
            read: read_libfabric,
        },
    ]
}

impl Tool {
    /// Arguments of the client; of the server all but the address.
    fn arguments(&self, work: CallWork, count: u64, is_client: bool) -> Vec<String> {
        let len = work.len_bytes;
        let text = if self.program == "fi_pingpong" {
            // It knows powers of two only.
            let (len, port) = (len.next_power_of_two(), if is_client { "-P" } else { "-B" });
            let address = if is_client { "127.0.0.1" } else { "" };
            format!("-p shm -e rdm -I {count} -S {len} {port} {PORT} {address}")
        } else if is_client {
            let test = self.tests[usize::from(work.is_one_way)];
            format!("127.0.0.1 -p {PORT} -t {test} -s {len} -n {count} -w {} -f", count / 40 + 1)
        } else {
            format!("-p {PORT}")
        };
        text.split_whitespace().map(str::to_owned).collect()
    }
}

/// A process of a tool, killed with the value.
struct Running(Child);

impl Running {
    /// What it prints, which a pipe has room for, once it has ended.
    fn output(mut self, deadline: Instant) -> Fallible<String> {
        while self.0.try_wait()?.is_none() {
            if Instant::now() > deadline {
                return Err(format!("its client did not end within {PATIENCE:?}").into());
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
    fn start(&self, core: usize, arguments: &[String]) -> Fallible<Running> {
        let mut command = tool_process::command(core, self.program, arguments)?;
        command.env("UCX_TLS", self.transports);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        Ok(Running(command.spawn()?))
    }

    /// Why it is not there.
    pub fn missing(&self) -> Option<String> {
        tool_process::missing(self.program)
    }

    /// Calls that say how many fill a sample.
    pub fn first_count(work: CallWork) -> u64 {
        ((64 << 20) / work.len_bytes as u64).clamp(20, 5000)
    }

    /// ns per round trip, or GiB/s, of so many calls.
    ///
    /// # Errors
    ///
    /// It prints nothing that can be read.
    pub fn run(&self, cores: Cores, work: CallWork, count: u64) -> Fallible<f64> {
        let mut server = self.start(cores.responder, &self.arguments(work, count, false))?;
        let begin = Instant::now();
        loop {
            // It fails as long as the server does not listen.
            let client = self.start(cores.initiator, &self.arguments(work, count, true))?;
            let output = client.output(Instant::now() + PATIENCE)?;
            if let Some(ns) = (self.read)(&output, work, self.tests[usize::from(work.is_one_way)]) {
                return Ok(ns);
            }
            if begin.elapsed() > START_PATIENCE || server.0.try_wait()?.is_some() {
                return Err(format!("`{}` printed no result", self.program).into());
            }
        }
    }
}

/// `ITERATIONS P50 AVERAGE OVERALL BANDWIDTH OVERALL …`, behind `Final:` since version 1.14; half round trips in µs,
/// and MiB/s. A get is a whole round trip.
fn read_ucx(output: &str, work: CallWork, test: &str) -> Option<f64> {
    let numbers = output.lines().rev().find_map(|line| {
        let line = line.trim();
        let words = line.strip_prefix("Final:").unwrap_or(line).split_whitespace();
        let numbers: Option<Vec<f64>> = words.map(|word| word.parse().ok()).collect();
        numbers.filter(|numbers| numbers.len() > 1)
    })?;
    match work.is_one_way {
        true => Some(numbers.get(5)? / 1024.0),
        false if test == "ucp_get" => Some(1e3 * numbers[1]),
        false => Some(2e3 * numbers[1]),
    }
}

/// A heading that ends in `usec/xfer Mxfers/sec`, then one line of numbers; half round trips.
fn read_libfabric(output: &str, _: CallWork, _: &str) -> Option<f64> {
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
        let work = CallWork { len_bytes: 56, in_flight: 1, is_one_way: false };
        assert_eq!(read_ucx(ucx, work, "tag_lat").map(f64::round), Some(192.0));
        assert_eq!(read_ucx(ucx, work, "ucp_get").map(f64::round), Some(96.0));
        let bandwidth = "Final: 4000  17.2  65.0  65.0  15360.0  15360.0  15  15";
        let one_way = CallWork { in_flight: 4, is_one_way: true, ..work };
        assert_eq!(read_ucx(bandwidth, one_way, "tag_bw").map(f64::round), Some(15.0));
        let older = "|  Test | # iterations |\n   200000  0.125  0.557  0.557  95.85\n+-----+\n";
        assert_eq!(read_ucx(older, work, "tag_lat").map(f64::round), Some(250.0));
        let libfabric = "bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec\n\
                         64 100k =100k 12m 0.05s 266.67 0.24 4.17\n";
        assert_eq!(read_libfabric(libfabric, work, "").map(f64::round), Some(480.0));
        assert_eq!(
            (read_ucx("connection refused", work, ""), read_libfabric("", work, "")),
            (None, None)
        );
    }
}
