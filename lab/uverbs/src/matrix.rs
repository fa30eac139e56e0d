//! The table of programs that work: each row is run, two processes at a time, and says how it went.
//!
//! ```text
//!  row ─▶ server on a free port ─▶ it listens ─▶ client ─▶ both have ended well: works
//! ```

use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _},
    net::TcpListener,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use memory::sync::{AtomicU32, Ordering};

use verbs::LinkLayer;

use crate::{
    engine::MARK,
    launch::LaunchFiles,
    process::{FABRIC_ENV, LENIENT, STRICT_ENV},
};

/// How a program is told of the port on which its two processes meet, beside the network of the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandLineStyle {
    /// It is one process.
    Alone,
    /// `-p PORT`, and the host at the end.
    Verbs,
    /// `-p PORT`, and the host in front; only the client says what is done.
    Ucx,
    /// `-p PORT`, and `-s HOST` of the client.
    ConnectionManager,
    /// `-s HOST` of the client; the port is that of `udaddy`, which no argument changes.
    Datagrams,
    /// `-a HOST -p PORT`, and `-s` of the server, `-c` of the client.
    Rping,
    /// `-B PORT` of the server, `-P PORT` of the client, and the host at the end.
    Fabric,
}

/// The port of `udaddy`, which no argument changes. Two fabrics do not share it.
const UDADDY_PORT: u16 = 7174;

/// Where a server is heard.
#[derive(Clone, Copy, Debug)]
pub enum ListensAt<'a> {
    /// At a port of TCP, or of the connection manager for connections.
    Port(u16),
    /// At the port of `udaddy` of the connection manager for datagrams.
    Datagrams {
        /// Where else others may listen.
        fabric: &'a str,
    },
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// What it shows, for people.
    pub shows: &'static str,
    /// The program.
    pub program: &'static str,
    /// Debian's package of it.
    pub package: &'static str,
    /// Arguments.
    pub arguments: &'static [&'static str],
    /// How its processes meet.
    pub meeting: CommandLineStyle,
    /// Transports of UCX.
    pub transports: &'static str,
    /// Link layer of the port.
    pub link: LinkLayer,
}

const fn verbs(
    shows: &'static str,
    program: &'static str,
    arguments: &'static [&'static str],
) -> Row {
    let meeting = CommandLineStyle::Verbs;
    let (package, transports, link) = ("ibverbs-utils", "", LinkLayer::InfiniBand);
    Row { shows, program, package, arguments, meeting, transports, link }
}

const fn perftest(
    shows: &'static str,
    program: &'static str,
    arguments: &'static [&'static str],
) -> Row {
    Row { package: "perftest", ..verbs(shows, program, arguments) }
}

const fn ucx(transports: &'static str, arguments: &'static [&'static str]) -> Row {
    let (package, meeting) = ("ucx-utils", CommandLineStyle::Ucx);
    Row { package, meeting, transports, ..verbs("UCX", "ucx_perftest", arguments) }
}

const fn connected(
    shows: &'static str,
    program: &'static str,
    meeting: CommandLineStyle,
    arguments: &'static [&'static str],
) -> Row {
    Row { meeting, package: "rdmacm-utils", ..verbs(shows, program, arguments) }
}

const fn libfabric(shows: &'static str, arguments: &'static [&'static str]) -> Row {
    let (package, meeting) = ("libfabric-bin", CommandLineStyle::Fabric);
    Row { package, meeting, ..verbs(shows, "fi_pingpong", arguments) }
}

const fn roce(row: Row) -> Row {
    Row { link: LinkLayer::Ethernet, ..row }
}

const UCX_RC: &str = "rc_verbs,ud_verbs:aux,self";
const UCX_RC_MLX5: &str = "rc_mlx5,ud_mlx5:aux,self";
const UCX_UD: &str = "ud_verbs,self";
const UCX_UD_MLX5: &str = "ud_mlx5,self";
const UCX_DC: &str = "dc_mlx5,self";

const TAG: &[&str] = &["-t", "tag_lat", "-n", "100", "-w", "10"];
const PUT: &[&str] = &["-t", "ucp_put_lat", "-n", "100", "-w", "10"];
const GET: &[&str] = &["-t", "ucp_get", "-n", "100", "-w", "10"];
const FADD: &[&str] = &["-t", "ucp_fadd", "-n", "100", "-w", "10"];
const STREAM: &[&str] = &["-t", "stream_lat", "-n", "100", "-w", "10"];
const AM: &[&str] = &["-t", "ucp_am_lat", "-n", "100", "-w", "10"];
const LONG: &[&str] = &["-t", "tag_bw", "-s", "1000000", "-n", "20", "-w", "2"];

/// Every row.
pub const ROWS: &[Row] = &[
    Row { meeting: CommandLineStyle::Alone, ..verbs("the device", "ibv_devinfo", &["-v"]) },
    verbs("RC, data checked", "ibv_rc_pingpong", &["-c", "-n", "100"]),
    verbs("RC, events, data checked", "ibv_rc_pingpong", &["-c", "-e", "-n", "100"]),
    verbs("UC", "ibv_uc_pingpong", &["-n", "100"]),
    verbs("UC, events", "ibv_uc_pingpong", &["-e", "-n", "100"]),
    verbs("UD", "ibv_ud_pingpong", &["-n", "100"]),
    verbs("UD, events", "ibv_ud_pingpong", &["-e", "-n", "100"]),
    verbs("SRQ", "ibv_srq_pingpong", &["-n", "100"]),
    verbs("SRQ, events", "ibv_srq_pingpong", &["-e", "-n", "100"]),
    perftest("WRITE, RC", "ib_write_lat", &["-n", "100"]),
    perftest("WRITE, RC, inline", "ib_write_lat", &["-n", "100", "-I", "64", "-s", "64"]),
    perftest("WRITE, UC", "ib_write_lat", &["-n", "100", "-c", "UC"]),
    perftest("WRITE, DC", "ib_write_lat", &["-n", "100", "-c", "DC"]),
    perftest("WRITE, RC", "ib_write_bw", &["-n", "100", "-s", "65536"]),
    perftest("WRITE, RC, both ways", "ib_write_bw", &["-n", "100", "-b"]),
    perftest("WRITE, four queue pairs", "ib_write_bw", &["-n", "100", "-q", "4"]),
    perftest("WRITE, UC", "ib_write_bw", &["-n", "100", "-c", "UC"]),
    perftest("SEND, RC", "ib_send_lat", &["-n", "100"]),
    perftest("SEND, RC, events", "ib_send_lat", &["-n", "100", "-e"]),
    perftest("SEND, RC, SRQ", "ib_send_lat", &["-n", "100", "--use-srq"]),
    perftest("SEND, UC", "ib_send_lat", &["-n", "100", "-c", "UC"]),
    perftest("SEND, UD", "ib_send_lat", &["-n", "100", "-c", "UD"]),
    perftest("SEND, DC", "ib_send_lat", &["-n", "100", "-c", "DC"]),
    perftest("SEND, RC", "ib_send_bw", &["-n", "100"]),
    perftest("SEND, RC, events", "ib_send_bw", &["-n", "100", "-e"]),
    perftest("SEND, RC, SRQ", "ib_send_bw", &["-n", "100", "--use-srq"]),
    perftest("SEND, UC", "ib_send_bw", &["-n", "100", "-c", "UC"]),
    perftest("SEND, UD", "ib_send_bw", &["-n", "100", "-c", "UD", "-s", "1024"]),
    perftest("READ, RC", "ib_read_lat", &["-n", "100"]),
    perftest("READ, RC", "ib_read_bw", &["-n", "100"]),
    perftest("atomics, RC", "ib_atomic_lat", &["-n", "100"]),
    perftest("atomics, RC", "ib_atomic_bw", &["-n", "100"]),
    perftest("WRITE, options: post list", "ib_write_bw", &["-n", "96", "-l", "8"]),
    perftest("WRITE, options: one completion of 20", "ib_write_bw", &["-n", "100", "-Q", "20"]),
    perftest("WRITE, options: short queue", "ib_write_bw", &["-n", "100", "-t", "8"]),
    perftest("WRITE, options: MTU 256", "ib_write_bw", &["-n", "100", "-m", "256", "-s", "65536"]),
    perftest("WRITE, options: 8 MiB", "ib_write_bw", &["-n", "5", "-s", "8388608"]),
    perftest("WRITE, options: seconds", "ib_write_bw", &["-D", "1", "-s", "1024"]),
    perftest("WRITE, options: no peak", "ib_write_bw", &["-n", "100", "-N"]),
    perftest(
        "WRITE, options: region per queue",
        "ib_write_bw",
        &["-n", "100", "-q", "4", "--mr_per_qp"],
    ),
    perftest("WRITE, options: service level", "ib_write_bw", &["-n", "100", "-S", "3"]),
    perftest("WRITE, options: cycles, histogram", "ib_write_lat", &["-n", "100", "-C", "-H"]),
    perftest("WRITE, options: unsorted", "ib_write_lat", &["-n", "100", "-U"]),
    perftest(
        "WRITE, options: both ways, four queues",
        "ib_write_bw",
        &["-n", "100", "-b", "-q", "4"],
    ),
    perftest("SEND, options: both ways", "ib_send_bw", &["-n", "100", "-b"]),
    perftest("SEND, options: receives", "ib_send_bw", &["-n", "100", "-r", "64"]),
    perftest("SEND, options: inline", "ib_send_lat", &["-n", "100", "-I", "32", "-s", "32"]),
    perftest(
        "SEND, options: both ways, UD",
        "ib_send_bw",
        &["-n", "100", "-b", "-c", "UD", "-s", "1024"],
    ),
    perftest("SEND, options: MTU 512", "ib_send_lat", &["-n", "100", "-m", "512", "-s", "4096"]),
    perftest(
        "SEND, options: four queues, SRQ",
        "ib_send_bw",
        &["-n", "100", "-q", "4", "--use-srq"],
    ),
    perftest("READ, options: outstanding", "ib_read_bw", &["-n", "100", "-o", "4"]),
    perftest("READ, options: events", "ib_read_lat", &["-n", "100", "-e"]),
    perftest("READ, options: both ways", "ib_read_bw", &["-n", "100", "-b"]),
    perftest("READ, options: 1 MiB", "ib_read_bw", &["-n", "20", "-s", "1048576"]),
    perftest(
        "atomics, options: fetch and add",
        "ib_atomic_lat",
        &["-n", "100", "-A", "FETCH_AND_ADD"],
    ),
    perftest(
        "atomics, options: compare and swap",
        "ib_atomic_bw",
        &["-n", "100", "-A", "CMP_AND_SWAP"],
    ),
    perftest("atomics, options: both ways", "ib_atomic_bw", &["-n", "100", "-b"]),
    ucx(UCX_RC, TAG),
    ucx(UCX_RC, PUT),
    ucx(UCX_RC, GET),
    ucx(UCX_RC, FADD),
    ucx(UCX_RC, STREAM),
    ucx(UCX_RC, AM),
    ucx(UCX_RC, LONG),
    ucx(UCX_RC, &["-t", "tag_sync_lat", "-n", "100", "-w", "10"]),
    ucx(UCX_RC, &["-t", "ucp_put_bw", "-s", "65536", "-n", "100", "-w", "10"]),
    ucx(UCX_RC, &["-t", "ucp_swap", "-n", "100", "-w", "10"]),
    ucx(UCX_RC, &["-t", "ucp_cswap", "-n", "100", "-w", "10"]),
    ucx(UCX_RC, &["-t", "stream_bw", "-n", "100", "-w", "10"]),
    ucx(UCX_RC, &["-t", "ucp_am_bw", "-s", "65536", "-n", "100", "-w", "10"]),
    ucx(UCX_UD, TAG),
    ucx(UCX_UD, PUT),
    ucx(UCX_UD, GET),
    ucx(UCX_UD, FADD),
    ucx(UCX_UD, STREAM),
    ucx(UCX_UD, AM),
    ucx(UCX_RC_MLX5, TAG),
    ucx(UCX_RC_MLX5, PUT),
    ucx(UCX_RC_MLX5, GET),
    ucx(UCX_RC_MLX5, FADD),
    ucx(UCX_RC_MLX5, STREAM),
    ucx(UCX_RC_MLX5, AM),
    ucx(UCX_RC_MLX5, LONG),
    ucx(UCX_UD_MLX5, TAG),
    ucx(UCX_UD_MLX5, PUT),
    ucx(UCX_UD_MLX5, GET),
    ucx(UCX_UD_MLX5, FADD),
    ucx(UCX_UD_MLX5, STREAM),
    ucx(UCX_UD_MLX5, AM),
    ucx(UCX_DC, TAG),
    ucx(UCX_DC, PUT),
    ucx(UCX_DC, GET),
    ucx(UCX_DC, FADD),
    ucx(UCX_DC, STREAM),
    ucx(UCX_DC, AM),
    verbs("RC, global route", "ibv_rc_pingpong", &["-c", "-g", "0", "-n", "100"]),
    verbs("UD, global route", "ibv_ud_pingpong", &["-g", "0", "-n", "100"]),
    roce(Row { meeting: CommandLineStyle::Alone, ..verbs("the device", "ibv_devinfo", &["-v"]) }),
    roce(verbs("RC, data checked", "ibv_rc_pingpong", &["-c", "-g", "3", "-n", "100"])),
    roce(verbs("RC, v1, data checked", "ibv_rc_pingpong", &["-c", "-g", "0", "-n", "100"])),
    roce(verbs("UC", "ibv_uc_pingpong", &["-g", "3", "-n", "100"])),
    roce(verbs("UD, IPv4", "ibv_ud_pingpong", &["-g", "3", "-n", "100"])),
    roce(verbs("UD, IPv6, events", "ibv_ud_pingpong", &["-e", "-g", "1", "-n", "100"])),
    roce(verbs("SRQ", "ibv_srq_pingpong", &["-g", "3", "-n", "100"])),
    roce(perftest("WRITE, RC", "ib_write_lat", &["-x", "3", "-n", "100"])),
    roce(perftest("WRITE, RC", "ib_write_bw", &["-x", "3", "-n", "100", "-s", "65536"])),
    roce(perftest("WRITE, DC", "ib_write_lat", &["-x", "3", "-n", "100", "-c", "DC"])),
    roce(perftest("SEND, RC, events", "ib_send_lat", &["-x", "3", "-n", "100", "-e"])),
    roce(perftest("SEND, UD", "ib_send_lat", &["-x", "3", "-n", "100", "-c", "UD"])),
    roce(perftest("READ, RC", "ib_read_lat", &["-x", "3", "-n", "100"])),
    roce(perftest("atomics, RC", "ib_atomic_lat", &["-x", "3", "-n", "100"])),
    roce(ucx(UCX_RC, TAG)),
    roce(ucx(UCX_UD, TAG)),
    roce(ucx(UCX_RC_MLX5, TAG)),
    roce(ucx(UCX_UD_MLX5, TAG)),
    roce(ucx(UCX_DC, TAG)),
    connected("rdma_cm, data checked", "rping", CommandLineStyle::Rping, PINGS),
    connected("rdma_cm", "ucmatose", CommandLineStyle::ConnectionManager, &[]),
    connected("rdma_cm", "rdma_server", CommandLineStyle::ConnectionManager, &[]),
    perftest("WRITE, RC, rdma_cm", "ib_write_lat", &["-R", "-n", "100"]),
    perftest("SEND, RC, rdma_cm", "ib_send_bw", &["-R", "-n", "100"]),
    perftest("SEND, UD, rdma_cm", "ib_send_lat", &["-R", "-n", "100", "-c", "UD"]),
    perftest("WRITE, bandwidth, rdma_cm", "ib_write_bw", &["-R", "-n", "100"]),
    perftest("READ, RC, rdma_cm", "ib_read_bw", &["-R", "-n", "100"]),
    connected("rdma_cm, four connections", "ucmatose", CommandLineStyle::ConnectionManager, FOUR),
    roce(connected("rdma_cm", "ucmatose", CommandLineStyle::ConnectionManager, &[])),
    roce(perftest("SEND, RC, rdma_cm", "ib_send_bw", &["-R", "-n", "100"])),
    connected("rdma_cm, UD", "udaddy", CommandLineStyle::Datagrams, &[]),
    connected(
        "rdma_cm, rsockets, checked",
        "rstream",
        CommandLineStyle::ConnectionManager,
        STREAM_CM,
    ),
    connected("rdma_cm, rsockets", "riostream", CommandLineStyle::ConnectionManager, RIO),
    roce(connected("rdma_cm, data checked", "rping", CommandLineStyle::Rping, PINGS)),
    roce(connected("rdma_cm, UD", "udaddy", CommandLineStyle::Datagrams, &[])),
    libfabric("libfabric, RC, data checked", &["-p", "verbs", "-e", "msg", "-I", "20", "-c"]),
    libfabric("libfabric, UD, data checked", &["-p", "verbs", "-e", "dgram", "-I", "20", "-c"]),
    libfabric("libfabric, RXM", &["-p", "verbs;ofi_rxm", "-e", "rdm", "-I", "20"]),
];

const FOUR: &[&str] = &["-c", "4", "-C", "50"];
const PINGS: &[&str] = &["-V", "-C", "20"];
const RIO: &[&str] = &["-C", "100", "-S", "1024"];
const STREAM_CM: &[&str] = &["-T", "v", "-C", "100", "-S", "1024"];

/// How a row went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every process ended well.
    Works,
    /// The program is not installed.
    Skipped,
    /// Not so; with the last lines that the processes wrote.
    Fails(String),
}

/// Longest time of a row, of which most take less than a second where cores are free.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// What perftest says of itself, and not of the NIC: two clocks that it compares do not agree, as on a busy machine; its
/// client asked for a second connection before its server listened again, which is also a race with a kernel.
const NOT_OF_THE_NIC: [&str; 2] = ["Can't produce a report", "Failed to connect RDMA CM events"];

/// Runs of a row in which perftest says that.
const TRIES: u32 = 5;

const LOOK: Duration = Duration::from_millis(5);

impl Row {
    /// The command line of the server, without its port.
    #[must_use]
    pub fn line(&self) -> String {
        let mut line = String::new();
        if self.link == LinkLayer::Ethernet {
            line.push_str("--link roce ");
        }
        if !self.transports.is_empty() {
            line = format!("{line}UCX_TLS={} ", self.transports);
        }
        line.push_str(self.program);
        self.arguments.iter().for_each(|argument| {
            line.push(' ');
            line.push_str(argument);
        });
        line
    }

    /// Whether the program is installed.
    #[must_use]
    pub fn is_installed(&self) -> bool {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(self.program).is_file())
    }

    /// Runs the row; in strict mode nothing may be told.
    #[must_use]
    pub fn run(&self, is_strict: bool) -> Verdict {
        if !self.is_installed() {
            return Verdict::Skipped;
        }
        let run = || {
            let stage = LaunchFiles::on(self.link).map_err(|error| error.to_string())?;
            self.processes(&stage, is_strict)
        };
        let is_tried_again =
            |problem: &String| NOT_OF_THE_NIC.iter().any(|said| problem.contains(said));
        let mut verdict = run();
        for _ in 1..TRIES {
            if !verdict.as_ref().is_err_and(is_tried_again) {
                break;
            }
            verdict = run();
        }
        match verdict {
            Ok(()) => Verdict::Works,
            Err(problem) => Verdict::Fails(problem),
        }
    }

    fn processes(&self, stage: &LaunchFiles, is_strict: bool) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        let fabric = new_fabric();
        let start_as = |program: &str, arguments: Vec<String>| {
            let mut command = stage.command(program.as_ref());
            command.args(arguments).env(FABRIC_ENV, &fabric).env("UCX_NET_DEVICES", "mlx5_0:1");
            command.env(STRICT_ENV, if is_strict { "1" } else { LENIENT });
            if !self.transports.is_empty() {
                command.env("UCX_TLS", self.transports);
            }
            Running::start(command).map_err(|error| format!("it does not start: {error}"))
        };
        let start = |arguments| start_as(self.program, arguments);
        let own = |more: &[&str]| -> Vec<String> {
            self.arguments.iter().chain(more).map(|argument| (*argument).to_owned()).collect()
        };
        if self.meeting == CommandLineStyle::Alone {
            return start(own(&[]))?.end(deadline);
        }
        let port = free_port().map_err(|error| format!("no port is free: {error}"))?;
        let text = &port.to_string();
        let host = "127.0.0.1";
        let (server, client) = match self.meeting {
            CommandLineStyle::Alone | CommandLineStyle::Verbs => {
                (own(&["-p", text]), own(&["-p", text, host]))
            }
            CommandLineStyle::Ucx => {
                let meet = ["-p", text].map(str::to_owned).to_vec();
                let mut client = vec![host.to_owned()];
                client.extend(own(&["-p", text]));
                (meet, client)
            }
            CommandLineStyle::ConnectionManager => {
                (own(&["-p", text]), own(&["-p", text, "-s", host]))
            }
            CommandLineStyle::Datagrams => (own(&[]), own(&["-s", host])),
            CommandLineStyle::Rping => {
                (own(&["-s", "-a", host, "-p", text]), own(&["-c", "-a", host, "-p", text]))
            }
            CommandLineStyle::Fabric => (own(&["-B", text]), own(&["-P", text, host])),
        };
        let mut server = start(server)?;
        let listener = match self.meeting {
            CommandLineStyle::Datagrams => ListensAt::Datagrams { fabric: &fabric },
            _ => ListensAt::Port(port),
        };
        server.wait_until_listening(listener, deadline)?;
        let program = if self.program == "rdma_server" { "rdma_client" } else { self.program };
        start_as(program, client)?.end(deadline).map_err(|problem| format!("client: {problem}"))?;
        server.end(deadline).map_err(|problem| format!("server: {problem}"))
    }
}

/// A name that no other row has.
#[must_use]
pub fn new_fabric() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// A port on which nobody listens.
///
/// # Errors
///
/// What the kernel says.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("0.0.0.0:0")?.local_addr()?.port())
}

/// Whether somebody listens there; asked without connecting, as some servers accept once.
fn is_listening(listener: ListensAt<'_>) -> bool {
    match listener {
        ListensAt::Port(port) => {
            is_listening_as(&format!("-106-{port}")) || is_listening_on_tcp(port)
        }
        ListensAt::Datagrams { fabric } => is_listening_as(&format!("-{fabric}-111-{UDADDY_PORT}")),
    }
}

/// Whether a connection manager listens by a name that ends so.
fn is_listening_as(end: &str) -> bool {
    const LISTENS: &str = "00010000";
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let is_named = |line: &str| line.contains("@copyrpc-uverbs-cm-") && line.ends_with(end);
    sockets.lines().any(|line| is_named(line) && line.split_whitespace().nth(3) == Some(LISTENS))
}

fn is_listening_on_tcp(port: u16) -> bool {
    const LISTEN: &str = "0A";
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let text = fs::read_to_string(table).unwrap_or_default();
        text.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            let (local, state) = (words.next().unwrap_or_default(), words.nth(1));
            state == Some(LISTEN) && local.ends_with(&format!(":{port:04X}"))
        })
    })
}

/// A process and what it writes; killed when this is dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    output: File,
    errors: File,
}

impl Running {
    /// Starts it; what it writes is kept.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    pub fn start(mut command: Command) -> io::Result<Self> {
        let file = || {
            rustix::fs::memfd_create("copyrpc-matrix", rustix::fs::MemfdFlags::CLOEXEC)
                .map(File::from)
        };
        let (output, errors) = (file()?, file()?);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(errors.try_clone()?);
        Ok(Self { child: command.spawn()?, output, errors })
    }

    /// Waits until it listens.
    ///
    /// # Errors
    ///
    /// It ended, or did not before `deadline`.
    pub fn wait_until_listening(
        &mut self,
        listener: ListensAt<'_>,
        deadline: Instant,
    ) -> Result<(), String> {
        while !is_listening(listener) {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("server: it ended early, {status}: {}", self.tail()));
            }
            if Instant::now() > deadline {
                return Err(format!("server: it does not listen: {}", self.tail()));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Waits for its end, which is a good one.
    ///
    /// # Errors
    ///
    /// It failed, or did not end before `deadline`.
    pub fn end(&mut self, deadline: Instant) -> Result<(), String> {
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return self.is_faultless(),
                Ok(Some(status)) => return Err(format!("{status}: {}", self.tail())),
                Ok(None) if Instant::now() > deadline => {
                    return Err(format!("it does not end: {}", self.tail()));
                }
                Ok(None) => std::thread::sleep(LOOK),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Whether strict mode has told nothing.
    fn is_faultless(&mut self) -> Result<(), String> {
        let text = self.text();
        let told: Vec<&str> = text.lines().filter(|line| line.contains(MARK)).collect();
        if told.is_empty() { Ok(()) } else { Err(told.join(" | ")) }
    }

    /// Kills it, as SIGKILL does.
    pub fn kill(&mut self) {
        // One that has ended is dead, too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// All that it has written: errors last.
    pub fn text(&mut self) -> String {
        [text_of(&mut self.output), text_of(&mut self.errors)].concat()
    }

    /// The last lines that it has written, and of its errors.
    fn tail(&mut self) -> String {
        [last_lines(&text_of(&mut self.output)), last_lines(&text_of(&mut self.errors))].join(" | ")
    }
}

fn text_of(file: &mut File) -> String {
    let mut bytes = Vec::new();
    // What cannot be read is not shown.
    let _ = file.rewind();
    let _ = file.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn last_lines(text: &str) -> String {
    const LINES: usize = 3;
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(LINES)..].join(" | ")
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}
