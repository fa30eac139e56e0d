//! A client in a process of its own: what it runs, and the lines that it is told and answers.

use std::{
    env,
    ffi::OsString,
    fs,
    io::{self, Read as _, Write as _},
    os::{fd::AsFd as _, unix::fs::symlink},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use os::clock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{
    clients::{ClientsError, Form},
    shared_words::PATIENCE,
};

/// Longest line of an answer.
const LINE_BYTES_MAX: usize = 64;
/// Name of the library of clients in C and Python, as cargo writes it, and as Python looks for it.
const LIBRARY: &str = "libcopyrpc_c.so";
const LIBRARY_OF_ABI: &str = "libcopyrpc_c.so.1";
/// Names the library, if it is elsewhere.
const LIBRARY_ENV: &str = "COPYRPC_LIBRARY";
/// What the library is made of, in the tree that this program is built from.
const CAPI: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/capi");
/// Clients in other languages.
const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/programs");

/// Programs of clients, as far as this machine can run them.
#[derive(Debug)]
pub(crate) struct Programs {
    /// This program, with the words that lead it to [`run`](crate::clients::run).
    this: Vec<OsString>,
    /// A client in C, or why there is none.
    c: Result<PathBuf, String>,
    /// The library for Python, or why there is none.
    python: Result<PathBuf, String>,
}

impl Programs {
    /// Looks for tools and the library, and compiles; `folder` is for what that makes.
    pub(crate) fn find(this: Vec<OsString>, folder: &Path) -> Self {
        let library = library();
        let c = library.clone().and_then(|library| compile(&library, folder));
        let python = library.and_then(|library| {
            let said = Command::new("python3").arg("--version").output();
            match said {
                Ok(said) if said.status.success() => Ok(library),
                _ => Err("there is no python3".to_owned()),
            }
        });
        Self { this, c, python }
    }

    /// Why no client of this form can run here; `None`: it can.
    pub(crate) fn absence(&self, form: Form) -> Option<&str> {
        let found = match form {
            Form::C => self.c.as_ref(),
            Form::Python => self.python.as_ref(),
            _ => return None,
        };
        found.err().map(String::as_str)
    }

    fn command(&self, form: Form) -> Result<Command, ClientsError> {
        let absent = |reason: &String| ClientsError::Absent { form, reason: reason.clone() };
        match form {
            Form::C => Ok(Command::new(self.c.as_ref().map_err(absent)?)),
            Form::Python => {
                let library = self.python.as_ref().map_err(absent)?;
                let mut command = Command::new("python3");
                command.env("PYTHONPATH", Path::new(CAPI).join("python"));
                command.env("PYTHONDONTWRITEBYTECODE", "1").env(LIBRARY_ENV, library);
                command.arg(Path::new(PROGRAMS).join("registers.py"));
                Ok(command)
            }
            _ => {
                let mut command = os::child::this_program().map_err(ClientsError::Start)?;
                command.args(&self.this).arg(form.name());
                Ok(command)
            }
        }
    }
}

/// The library: cargo puts it beside this program, or into `deps` there.
fn library() -> Result<PathBuf, String> {
    if let Some(named) = env::var_os(LIBRARY_ENV) {
        let named = PathBuf::from(named);
        let missing = format!("{LIBRARY_ENV} names {}, which is no file", named.display());
        return if named.is_file() { Ok(named) } else { Err(missing) };
    }
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let beside = program.ancestors().skip(1).take(2);
    let folders = beside.flat_map(|folder| [folder.to_owned(), folder.join("deps")]);
    let found = folders.map(|folder| folder.join(LIBRARY)).find(|path| path.is_file());
    found.ok_or_else(|| {
        format!("there is no {LIBRARY} beside this program: name it by {LIBRARY_ENV}")
    })
}

fn compile(library: &Path, folder: &Path) -> Result<PathBuf, String> {
    let (program, names) = (folder.join("registers"), folder.join("lib"));
    fs::create_dir_all(&names).map_err(|error| error.to_string())?;
    for name in [LIBRARY, LIBRARY_OF_ABI] {
        symlink(library, names.join(name)).map_err(|error| error.to_string())?;
    }
    let mut compiler = Command::new("cc");
    compiler
        .args(["-O2", "-Wall", "-Wextra", "-D_GNU_SOURCE", "-I"])
        .arg(Path::new(CAPI).join("include"));
    compiler.arg(Path::new(PROGRAMS).join("registers.c")).arg("-o").arg(&program);
    compiler.arg("-L").arg(&names).arg("-lcopyrpc_c");
    compiler.arg(format!("-Wl,-rpath,{}", names.display()));
    match compiler.output() {
        Ok(told) if told.status.success() => Ok(program),
        Ok(told) => Err(format!("cc says: {}", String::from_utf8_lossy(&told.stderr).trim())),
        Err(_) => Err("there is no C compiler (cc)".to_owned()),
    }
}

/// A client that waits for what it is to do. Dropping it kills the process.
#[derive(Debug)]
pub(crate) struct ClientProcess {
    name: String,
    child: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
}

impl ClientProcess {
    pub(crate) fn start(
        programs: &Programs,
        form: Form,
        name: &str,
        arguments: &[OsString],
    ) -> Result<Self, ClientsError> {
        let mut command = programs.command(form)?;
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(ClientsError::Start)?;
        let streams = child.stdin.take().zip(child.stdout.take());
        let (stdin, stdout) =
            streams.ok_or_else(|| ClientsError::Start(io::ErrorKind::BrokenPipe.into()))?;
        Ok(Self { name: name.to_owned(), child, stdin, stdout })
    }

    /// Makes so many calls, and returns how many ns they took.
    pub(crate) fn call(&mut self, count: u64) -> Result<f64, ClientsError> {
        match self.ask(count) {
            Ok(line) => {
                let took_ns = line.trim().parse::<u64>().ok().filter(|&ns| ns > 0);
                let took_ns = took_ns.ok_or_else(|| self.failed(format!("it says {line:?}")))?;
                #[expect(clippy::cast_precision_loss, reason = "a time of seconds")]
                Ok(took_ns as f64)
            }
            Err(cause) => Err(self.failed(cause.to_string())),
        }
    }

    fn ask(&mut self, count: u64) -> io::Result<String> {
        writeln!(self.stdin, "{count}")?;
        self.stdin.flush()?;
        let (mut line, mut byte) = (String::new(), [0]);
        let deadline_ns = clock::deadline_ns(PATIENCE);
        while line.len() < LINE_BYTES_MAX {
            self.await_output(deadline_ns)?;
            if self.stdout.read(&mut byte)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if byte == *b"\n" {
                break;
            }
            line.push(char::from(byte[0]));
        }
        Ok(line)
    }

    fn await_output(&self, deadline_ns: u64) -> io::Result<()> {
        let left = Duration::from_nanos(deadline_ns.saturating_sub(clock::now_ns()));
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut descriptors = [PollFd::from_borrowed_fd(self.stdout.as_fd(), PollFlags::IN)];
        match poll(&mut descriptors, Some(&left)) {
            Ok(0) => Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => Ok(()),
            Err(rustix::io::Errno::INTR) => self.await_output(deadline_ns),
            Err(error) => Err(error.into()),
        }
    }

    /// The error of a process, with its last words.
    fn failed(&mut self, cause: String) -> ClientsError {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let mut said = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            let _ = stderr.read_to_string(&mut said);
        }
        let said = said.trim().to_owned();
        let cause = if said.is_empty() { cause } else { said };
        ClientsError::Client { name: self.name.clone(), cause }
    }
}

impl Drop for ClientProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
