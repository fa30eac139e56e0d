//! A server that is a program of the system, as a child process that ends with its starter.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How long a server may take until it listens.
const PATIENCE: Duration = Duration::from_secs(10);
/// Ports that are tried: somebody else may take one in between.
const TRIES: usize = 5;

/// Why `program` cannot be started, with the package that has it.
pub fn missing(program: &str, package: &str) -> Option<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = std::env::split_paths(&path).any(|folder| folder.join(program).exists());
    (!is_there).then(|| format!("`{program}` is not installed (Debian: {package})"))
}

/// A server that listens. It is killed with the value, and with the thread that started it.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    pub address: SocketAddr,
}

impl ServerProcess {
    /// Starts what `command` says for a port.
    ///
    /// # Errors
    ///
    /// The program is not there, or does not listen in time.
    pub fn start(command: impl Fn(u16) -> Command) -> io::Result<Self> {
        let mut last = io::Error::from(io::ErrorKind::TimedOut);
        for _ in 0..TRIES {
            let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
            match Self::on(port, &command(port)) {
                Ok(server) => return Ok(server),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn on(port: u16, command: &Command) -> io::Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        // `setpriv(1)` has it killed with its parent, however that ends.
        let mut wrapped = Command::new("setpriv");
        wrapped.args(["--pdeathsig", "KILL"]).arg(command.get_program()).args(command.get_args());
        wrapped.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = Self { child: wrapped.spawn()?, address };
        let begin = Instant::now();
        while TcpStream::connect(address).is_err() {
            if let Some(status) = server.child.try_wait()? {
                let program = Path::new(command.get_program()).display();
                return Err(io::Error::other(format!("`{program}` ended with {status}")));
            }
            if begin.elapsed() > PATIENCE {
                return Err(io::ErrorKind::TimedOut.into());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(server)
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
