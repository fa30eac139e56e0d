//! Clients and providers in C and Python, which do as they are told by lines.
//!
//! ```text
//! connect SOCKET TIMEOUT_US               ─▶ connected STATUS ORIGIN NOT_EXECUTED xWORDS
//! start NUMBER METHOD BODY TIMEOUT_US     ─▶ ended NUMBER AFTER_US STATUS ORIGIN NOT_EXECUTED xWORDS xBODY, when it has
//! submit NUMBER METHOD BODY TIMEOUT_US    ─▶ the same, of a call that is not given up
//! cancel NUMBER                           ─▶ cancelled STATUS
//! trace NUMBER                            ─▶ traced STATUS
//! close                                   ─▶ closed
//! reconnect                               ─▶ reconnected STATUS ORIGIN NOT_EXECUTED xWORDS
//! fork                                    ─▶ forked IS_TOLD
//! threads                                 ─▶ threads FINE REFUSED OTHER
//! ```

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    env, fs,
    io::{BufRead as _, BufReader, Write as _},
    iter,
    path::{Path, PathBuf},
    pin::Pin,
    process::{self, Child, ChildStdin, Command, Stdio},
    rc::Rc,
    sync::{OnceLock, mpsc},
    task::{Context, Poll},
    thread,
    time::Duration,
};

use copyrpc::Status;

use crate::{
    clients::{Answer, Ask, Ended},
    common::{compile, python, root, tool},
    node::PATIENCE,
    told::{Origin, Told},
};

/// A program of another language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    C,
    Python,
}

impl Language {
    /// The program, if the machine has the tools for it.
    pub(crate) fn driver(self) -> Option<Command> {
        match self {
            Self::C => driver_of_c().map(Command::new),
            Self::Python => {
                let mut python = python()?;
                python.arg(root().join("tests/promises/driver.py"));
                Some(python)
            }
        }
    }
}

/// The driver in C, compiled once.
fn driver_of_c() -> Option<&'static Path> {
    static DRIVER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let driver = DRIVER.get_or_init(|| {
        // The program looks for the library in this folder, which is where cargo cleans up.
        let drivers = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("promises-driver");
        let folder = drivers.join(process::id().to_string());
        for old in fs::read_dir(&drivers).into_iter().flatten().flatten() {
            if !Path::new("/proc").join(old.file_name()).exists() {
                let _ = fs::remove_dir_all(old.path());
            }
        }
        Some(compile(tool("cc")?, &root().join("tests/promises/driver.c"), &folder))
    });
    driver.as_deref()
}

/// A program that runs, and what it says.
#[derive(Debug)]
pub(crate) struct Driver {
    child: Child,
    orders: Option<ChildStdin>,
    lines: mpsc::Receiver<String>,
}

impl Driver {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a driver starts");
        let said = BufReader::new(child.stdout.take().unwrap());
        let (tell, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in said.lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        let orders = child.stdin.take();
        Self { child, orders, lines }
    }

    pub(crate) fn order(&mut self, line: &str) {
        let orders = self.orders.as_mut().unwrap();
        orders.write_all(line.as_bytes()).unwrap();
        orders.write_all(b"\n").unwrap();
    }

    /// The next line that it says.
    pub(crate) fn next(&self) -> String {
        // Longer than any call of a scenario.
        let line = self.lines.recv_timeout(2 * PATIENCE);
        line.unwrap_or_else(|error| panic!("the driver says nothing: {error}"))
    }

    /// Ends it; it has to succeed.
    pub(crate) fn end(mut self) {
        drop(self.orders.take());
        // It closes its output as it ends.
        let end = iter::repeat_with(|| self.lines.recv_timeout(PATIENCE)).find_map(Result::err);
        assert_eq!(end, Some(mpsc::RecvTimeoutError::Disconnected), "it does not end");
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client in another language.
#[derive(Debug)]
pub(crate) struct Foreign {
    driver: RefCell<Driver>,
    ended: RefCell<BTreeMap<u64, Ended>>,
    next: Cell<u64>,
}

impl Foreign {
    pub(crate) fn connect(command: Command, socket: &Path, timeout: Duration) -> Rc<Self> {
        let (foreign, told) = Self::try_connect(command, socket, timeout);
        told.unwrap();
        foreign
    }

    pub(crate) fn try_connect(
        command: Command,
        socket: &Path,
        timeout: Duration,
    ) -> (Rc<Self>, Result<(), Told>) {
        let driver = RefCell::new(Driver::start(command));
        let foreign = Self { driver, ended: RefCell::default(), next: Cell::new(0) };
        let timeout_us = microseconds(timeout);
        let said = foreign.ask(&format!("connect {} {timeout_us}", socket.display()), "connected");
        let told = told(&mut said.split(' '));
        (Rc::new(foreign), told)
    }

    /// Gives an order, and reads lines up to the one about it.
    fn ask(&self, order: &str, about: &str) -> String {
        self.driver.borrow_mut().order(order);
        loop {
            let line = self.driver.borrow().next();
            if let Some(said) = line.strip_prefix(about) {
                return said.trim_start().to_owned();
            }
            self.note(&line);
        }
    }

    /// Keeps how a call ended.
    fn note(&self, line: &str) {
        let mut words = line.split(' ');
        assert_eq!(words.next(), Some("ended"), "{line}");
        let mut number = || words.next().and_then(|it| it.parse().ok()).expect("a number");
        let (call, after_us) = (number(), number());
        let answer = told(&mut words).map_err(Some);
        let body = words.next().map(bytes_of).unwrap_or_default();
        let answer = match answer {
            Ok(()) => Ok(body),
            Err(told) => Err(Told { detail: body, ..told.unwrap() }),
        };
        let ended = Ended { answer, after: Duration::from_micros(after_us) };
        self.ended.borrow_mut().insert(call, ended);
    }

    /// Waits for the end of a call.
    fn wait(&self, call: u64) -> Ended {
        loop {
            if let Some(ended) = self.ended.borrow_mut().remove(&call) {
                return ended;
            }
            let line = self.driver.borrow().next();
            self.note(&line);
        }
    }

    fn begin(&self, order: &str, ask: &Ask) -> u64 {
        let call = self.next.replace(self.next.get() + 1);
        let body = match ask.body {
            [0, ..] => format!("z{}", ask.body.len()),
            body => format!("t{}", str::from_utf8(body).unwrap()),
        };
        let timeout_us = microseconds(ask.within);
        let line = format!("{order} {call} {} {body} {timeout_us}", ask.method);
        self.driver.borrow_mut().order(&line);
        call
    }

    /// Makes these calls together.
    pub(crate) fn calls(&self, asks: &[Ask]) -> Vec<Ended> {
        let calls: Vec<_> = asks.iter().map(|ask| self.begin("submit", ask)).collect();
        calls.into_iter().map(|call| self.wait(call)).collect()
    }

    /// Begins a call, which can be given up.
    pub(crate) fn start(self: &Rc<Self>, ask: &Ask) -> ForeignCall {
        let call = self.begin("start", ask);
        ForeignCall { of: Rc::clone(self), call, is_over: false }
    }

    pub(crate) fn close(&self) {
        self.ask("close", "closed");
    }

    pub(crate) fn trace(&self, trace: u64) {
        assert_eq!(self.ask(&format!("trace {trace}"), "traced"), "0");
    }

    pub(crate) fn reconnect(&self) -> Result<(), Told> {
        told(&mut self.ask("reconnect", "reconnected").split(' '))
    }

    /// Whether a child of the process is told that the client is its parent's.
    pub(crate) fn tells_a_child(&self) -> bool {
        self.ask("fork", "forked") == "1"
    }

    /// Calls of several threads: those that were answered, those that were refused, and others.
    pub(crate) fn threads(&self) -> [u32; 3] {
        let said = self.ask("threads", "threads");
        let counts: Vec<_> = said.split(' ').map(|count| count.parse().unwrap()).collect();
        counts.try_into().unwrap()
    }
}

/// A call of a client in another language. Dropping it gives it up.
pub(crate) struct ForeignCall {
    of: Rc<Foreign>,
    call: u64,
    is_over: bool,
}

impl Future for ForeignCall {
    type Output = Answer;

    /// Blocks: the program goes on by itself.
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Answer> {
        self.is_over = true;
        Poll::Ready(self.of.wait(self.call).answer)
    }
}

impl Drop for ForeignCall {
    fn drop(&mut self) {
        if !self.is_over && !thread::panicking() {
            let status = self.of.ask(&format!("cancel {}", self.call), "cancelled");
            assert_eq!(status, "0");
        }
    }
}

/// `STATUS ORIGIN NOT_EXECUTED xWORDS`.
fn told<'a>(words: &mut impl Iterator<Item = &'a str>) -> Result<(), Told> {
    let mut number = || words.next().and_then(|it| it.parse::<u32>().ok()).expect("a number");
    let (status, origin, not_executed) = (number(), number(), number());
    let said = bytes_of(words.next().expect("words"));
    if status == 0 {
        return Ok(());
    }
    Err(Told {
        status: Status::from_code(u8::try_from(status).unwrap()).unwrap(),
        origin: Origin::of_number(origin),
        is_not_executed: not_executed == 1,
        detail: Vec::new(),
        words: String::from_utf8(said).unwrap(),
    })
}

/// Bytes in hexadecimal digits behind an `x`.
fn bytes_of(text: &str) -> Vec<u8> {
    let digits = text.strip_prefix('x').expect("bytes begin with an x").as_bytes();
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn microseconds(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX)
}
