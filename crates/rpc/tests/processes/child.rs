//! The other process: what it does, and how it is started.

use std::{
    collections::HashMap,
    env,
    io::{self, BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc,
};

use copyrpc_rpc::{
    Body, Call, CallEnd, Config, Handler, Invitation, PeerId, Request, Status, Worker,
};
use softnic::Nic;

use crate::caller::PATIENCE;

/// Answers with the body, and counts that it did so for the number in front.
pub(crate) const ECHO: u16 = 1;
/// Answers with how many calls were executed, and how many of them more than once.
pub(crate) const COUNT: u16 = 2;

/// Tell a child what it is.
const FABRIC: &str = "RPC_CHILD_FABRIC";
const STRICT: &str = "RPC_CHILD_STRICT";
const ENDPOINTS: &str = "RPC_CHILD_ENDPOINTS";
const INVITATION: &str = "invitation ";

/// Calls that the child keeps in flight on each endpoint.
const DEPTH: usize = 4;

pub(crate) fn nic(fabric: &str, strict: Option<u64>) -> Nic {
    let fabric = fabric.to_owned();
    softnic::open(&softnic::Config { fabric, strict, ..softnic::Config::default() }).unwrap()
}

fn to_line(invitation: &Invitation) -> String {
    let digits = invitation.as_bytes().iter().map(|byte| format!("{byte:02x}"));
    INVITATION.chars().map(String::from).chain(digits).collect()
}

fn from_line(line: &str) -> Option<Invitation> {
    let digits = line.strip_prefix(INVITATION)?;
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).ok();
    let bytes = (0..digits.len()).step_by(2).map(byte).collect::<Option<Vec<_>>>()?;
    Invitation::from_bytes(&bytes).ok()
}

/// What the child serves and calls.
#[derive(Default)]
struct Echo {
    executed: HashMap<u64, u32>,
    in_flight: HashMap<u64, usize>,
    made: u64,
}

impl Echo {
    fn call(&mut self, worker: &mut Worker<Nic>, peers: &[PeerId], endpoint: usize) {
        let cookie = self.made;
        let call = Call { method: ECHO, cookie, ..Call::default() };
        if worker.call(peers[endpoint], &call, &cookie.to_le_bytes()).is_ok() {
            self.in_flight.insert(cookie, endpoint);
            self.made += 1;
        }
    }
}

impl Handler<Nic> for Echo {
    fn request(&mut self, worker: &mut Worker<Nic>, request: Request, body: Body<'_, Nic>) {
        let body = &*body.bytes();
        let Request { token, method, .. } = request;
        if method == COUNT {
            let repeated = self.executed.values().filter(|times| **times > 1).count();
            let counts = [self.executed.len() as u64, repeated as u64].map(u64::to_le_bytes);
            worker.reply(token, Status::Ok, counts.as_flattened()).unwrap();
            return;
        }
        let number = u64::from_le_bytes(body[..8].try_into().unwrap());
        *self.executed.entry(number).or_default() += 1;
        worker.reply(token, Status::Ok, body).unwrap();
    }

    fn ended(&mut self, _: &mut Worker<Nic>, cookie: u64, end: CallEnd<'_, Nic>) {
        self.in_flight.remove(&cookie).expect("a call ends once");
        assert!(
            end.status() != Status::Ok || *end.bytes() == cookie.to_le_bytes(),
            "another call's answer"
        );
    }
}

/// Serves and calls until it is killed or its parent is gone, if this process is a child.
pub(crate) fn is_child(config: &Config) -> bool {
    let Ok(fabric) = env::var(FABRIC) else { return false };
    let strict = env::var(STRICT).ok().map(|seed| seed.parse().unwrap());
    let endpoints: usize = env::var(ENDPOINTS).unwrap().parse().unwrap();
    let now_ns = os::clock::now_ns;
    let mut worker = Worker::open(nic(&fabric, strict), config.clone(), now_ns()).unwrap();
    let mut lines = BufReader::new(io::stdin()).lines();
    let mut peers = Vec::new();
    for _ in 0..endpoints {
        let (peer, invitation) = worker.invite().unwrap();
        println!("\n{}", to_line(&invitation));
        peers.push(peer);
    }
    for peer in &peers {
        let theirs = lines.by_ref().map_while(Result::ok).find_map(|line| from_line(&line));
        worker.connect(*peer, &theirs.unwrap()).unwrap();
    }
    // The parent holds the other end, or is gone.
    std::thread::spawn(move || {
        let _ = lines.next();
        std::process::exit(0);
    });
    let mut echo = Echo::default();
    loop {
        for endpoint in 0..peers.len() {
            let in_flight = echo.in_flight.values().filter(|at| **at == endpoint).count();
            (in_flight..DEPTH).for_each(|_| echo.call(&mut worker, &peers, endpoint));
        }
        if worker.poll(now_ns(), &mut echo) == 0 {
            std::thread::yield_now();
        }
    }
}

/// A running child; killed and reaped at the latest when this is dropped.
pub(crate) struct Peer {
    pub(crate) process: Child,
    stdin: ChildStdin,
    invitations: mpsc::Receiver<Invitation>,
}

impl Peer {
    /// Runs `test` of this binary again.
    pub(crate) fn start(test: &str, fabric: &str, strict: Option<u64>, endpoints: usize) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(FABRIC, fabric)
            .env(ENDPOINTS, endpoints.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(seed) = strict {
            command.env(STRICT, (seed + 1).to_string());
        }
        let mut process = command.spawn().unwrap();
        let stdin = process.stdin.take().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
        let (told, invitations) = mpsc::channel();
        // Ends with the child.
        std::thread::spawn(move || {
            lines.filter_map(|line| from_line(&line)).all(|theirs| told.send(theirs).is_ok())
        });
        Self { process, stdin, invitations }
    }

    /// Connects one endpoint to one of the child's.
    pub(crate) fn connect(&mut self, worker: &mut Worker<Nic>) -> PeerId {
        let (peer, invitation) = worker.invite().unwrap();
        let theirs = self.invitations.recv_timeout(PATIENCE).expect("the child's invitation");
        worker.connect(peer, &theirs).unwrap();
        writeln!(self.stdin, "{}", to_line(&invitation)).unwrap();
        peer
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Both fail only if the child has been reaped already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
