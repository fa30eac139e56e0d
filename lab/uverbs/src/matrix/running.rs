//! A process of a row: where it is heard, how it ends, what it writes.

use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::engine::MARK;

/// Time between two looks at a process.
const LOOK: Duration = Duration::from_millis(5);

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

/// Whether somebody listens there; asked without connecting, as some servers accept once.
fn is_listening(listener: ListensAt<'_>) -> bool {
    match listener {
        ListensAt::Port(port) => {
            // `RDMA_PS_TCP` and `RDMA_PS_IB`
            ["106", "13f"].iter().any(|space| is_listening_as(&format!("-{space}-{port}")))
                || is_listening_on_tcp(port)
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

    /// Kills it: it serves for ever.
    pub(super) fn end_now(&mut self) -> Result<(), String> {
        if let Ok(Some(status)) = self.child.try_wait() {
            return Err(format!("it ended early, {status}: {}", self.tail()));
        }
        self.kill();
        self.is_faultless()
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
