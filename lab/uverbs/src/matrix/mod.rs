//! The table of programs that work: each row is run, two processes at a time, and says how it went.
//!
//! ```text
//!  row ─▶ server on a free port ─▶ it listens ─▶ client ─▶ both have ended well: works
//! ```

mod rows;
mod running;

use std::{
    fs, io,
    net::TcpListener,
    path::Path,
    time::{Duration, Instant},
};

use memory::sync::{AtomicU32, Ordering};
use verbs::LinkLayer;

use crate::{
    launch::{self, LaunchFiles},
    process::{FABRIC_ENV, LENIENT, STRICT_ENV},
};
pub use rows::ROWS;
pub use running::{ListensAt, Running};

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
    /// `-p PORT`, and `-s GID` of the client: the server, `-b ::`, is the first of its fabric.
    Gids,
    /// `-a HOST -p PORT`, and `-s` of the server, `-c` of the client.
    Rping,
    /// `-B PORT` of the server, `-P PORT` of the client, and the host at the end.
    Fabric,
    /// `-lp PORT`, and the host in front; only the client says what is done.
    Qperf,
    /// `-p PORT`, and the host at the end; the server serves until it is killed.
    Demo,
    /// `-p PORT`, and of the client a file and `HOST:` with another, which are compared; the server serves until it is
    /// killed.
    Copy,
    /// The launcher of MPI, with its arguments, starts both.
    Mpi(&'static [&'static str]),
}

impl CommandLineStyle {
    /// The program that starts both, if one does.
    fn launcher(self) -> &'static [&'static str] {
        if let Self::Mpi(launcher) = self { launcher } else { &[] }
    }
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
        self.meeting.launcher().iter().for_each(|argument| {
            line.push_str(argument);
            line.push(' ');
        });
        line.push_str(self.program);
        self.arguments.iter().for_each(|argument| {
            line.push(' ');
            line.push_str(argument);
        });
        line
    }

    /// Whether the program is installed, and what starts it.
    #[must_use]
    pub fn is_installed(&self) -> bool {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let is_in_path =
            |program: &str| std::env::split_paths(&path).any(|it| it.join(program).is_file());
        is_in_path(self.program) && self.meeting.launcher().first().is_none_or(|it| is_in_path(it))
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
        let start = |program: &str, arguments: Vec<String>| {
            let mut command = stage.command(program.as_ref());
            command.args(arguments).env(FABRIC_ENV, &fabric).envs(ENVIRONMENT);
            command.env(STRICT_ENV, if is_strict { "1" } else { LENIENT });
            if !self.transports.is_empty() {
                command.env("UCX_TLS", self.transports);
            }
            Running::start(command).map_err(|error| format!("it does not start: {error}"))
        };
        match self.meeting {
            CommandLineStyle::Alone => return start(self.program, self.own(&[]))?.end(deadline),
            CommandLineStyle::Mpi([program, arguments @ ..]) => {
                let launcher = arguments.iter().chain([&self.program]).map(ToString::to_string);
                return start(program, launcher.chain(self.own(&[])).collect())?.end(deadline);
            }
            _ => {}
        }
        let port = free_port().map_err(|error| format!("no port is free: {error}"))?;
        let source = launch::library().map_err(|error| error.to_string())?;
        let copy = stage.folder().join("copy");
        let (server, client) = self.command_lines(port, &source, &copy);
        let mut server = start(self.program, server)?;
        let listener = match self.meeting {
            CommandLineStyle::Datagrams => ListensAt::Datagrams { fabric: &fabric },
            _ => ListensAt::Port(port),
        };
        server.wait_until_listening(listener, deadline)?;
        let program = if self.program == "rdma_server" { "rdma_client" } else { self.program };
        start(program, client)?.end(deadline).map_err(|problem| format!("client: {problem}"))?;
        let ended = match self.meeting {
            CommandLineStyle::Demo | CommandLineStyle::Copy => server.end_now(),
            _ => server.end(deadline),
        };
        ended.map_err(|problem| format!("server: {problem}"))?;
        let is_copy = || fs::read(&source).ok() == fs::read(&copy).ok();
        if self.meeting == CommandLineStyle::Copy && !is_copy() {
            return Err("the copy is another file".to_owned());
        }
        Ok(())
    }

    fn own(&self, more: &[&str]) -> Vec<String> {
        self.arguments.iter().chain(more).map(ToString::to_string).collect()
    }

    /// Arguments of server and client.
    fn command_lines(&self, port: u16, source: &Path, copy: &Path) -> (Vec<String>, Vec<String>) {
        const HOST: &str = "127.0.0.1";
        let text = &port.to_string();
        let in_front = |option| [vec![HOST.to_owned()], self.own(&[option, text])].concat();
        let words = |words: &[&str]| words.iter().map(ToString::to_string).collect();
        match self.meeting {
            CommandLineStyle::Alone
            | CommandLineStyle::Mpi(_)
            | CommandLineStyle::Verbs
            | CommandLineStyle::Demo => (self.own(&["-p", text]), self.own(&["-p", text, HOST])),
            CommandLineStyle::Ucx => (words(&["-p", text]), in_front("-p")),
            CommandLineStyle::Qperf => {
                let client = [words(&[HOST, "-lp", text]), self.own(&["quit"])].concat();
                (words(&["-lp", text]), client)
            }
            CommandLineStyle::ConnectionManager => {
                (self.own(&["-p", text]), self.own(&["-p", text, "-s", HOST]))
            }
            CommandLineStyle::Gids => {
                (self.own(&["-p", text, "-b", "::"]), self.own(&["-p", text, "-s", FIRST_GID]))
            }
            CommandLineStyle::Datagrams => (self.own(&[]), self.own(&["-s", HOST])),
            CommandLineStyle::Rping => {
                let [server, client] =
                    ["-s", "-c"].map(|side| self.own(&[side, "-a", HOST, "-p", text]));
                (server, client)
            }
            CommandLineStyle::Fabric => (self.own(&["-B", text]), self.own(&["-P", text, HOST])),
            CommandLineStyle::Copy => {
                let to = format!("{HOST}:{}", copy.display());
                let source = source.display().to_string();
                (words(&["-p", text]), words(&[&source, &to, "-p", text]))
            }
        }
    }
}

/// GID of the first port of a fabric on InfiniBand.
const FIRST_GID: &str = "fe80::200:ff:fe00:1";

/// The device of UCX; MPI as root, on fewer cores than ranks, without names of other hosts.
const ENVIRONMENT: [(&str, &str); 6] = [
    ("UCX_NET_DEVICES", "mlx5_0:1"),
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("OMPI_MCA_plm", "isolated"),
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
    ("OMPI_MCA_mpi_yield_when_idle", "1"),
];

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
