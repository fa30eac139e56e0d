//! Endpoints, a server that answers in several ways, and a client that checks every answer.

use std::{
    cell::Cell,
    collections::BTreeMap,
    rc::Rc,
    time::{Duration, Instant},
};

use copyrpc_protocols::erpc::{
    Call, CallError, CloseReason, Config, ConnectOptions, Endpoint, Handler, Request, SessionId,
    SessionState, Status, Token,
};
use memory::sync::{AtomicU32, Ordering};

use crate::lossy::{Losing, Loss, Lossy};

const PATIENCE: Duration = Duration::from_secs(30);

/// The time that one poll adds to the clock of endpoints: a machine that stalls expires nothing.
const POLL: Duration = Duration::from_micros(10);

thread_local! {
    /// The clock of the endpoints of a test.
    static NOW: Cell<Duration> = const { Cell::new(Duration::from_secs(1)) };
}

pub(crate) fn now_ns() -> u64 {
    NOW.get().as_nanos().try_into().expect("a test polls for less than centuries")
}

/// Answers with the body.
pub(crate) const ECHO: u8 = 1;
/// Keeps the token.
pub(crate) const LATER: u8 = 2;
/// Asks the next server, and answers with its answer.
pub(crate) const FORWARD: u8 = 3;

#[derive(Default)]
pub(crate) struct Program {
    pub(crate) made: u64,
    pub(crate) ended: BTreeMap<u64, (Status, Vec<u8>)>,
    pub(crate) was_sent: BTreeMap<u64, bool>,
    pub(crate) kept: Vec<(Token, Vec<u8>)>,
    /// How often each request was executed, by the number in front of its body.
    pub(crate) executed: BTreeMap<u64, u32>,
    pub(crate) connected: Vec<SessionId>,
    pub(crate) closed: Vec<(SessionId, CloseReason)>,
    pub(crate) backup: Option<SessionId>,
    forwarded: BTreeMap<u64, Token>,
}

impl Handler<Lossy> for Program {
    fn request(&mut self, endpoint: &mut Endpoint<Lossy>, request: Request<'_>) {
        let Request { token, req_type, body } = request;
        if let Some(number) = body.first_chunk() {
            *self.executed.entry(u64::from_le_bytes(*number)).or_default() += 1;
        }
        assert_eq!(endpoint.poll(0, self), 0, "a poll inside a callback");
        match req_type {
            LATER => self.kept.push((token, body.to_vec())),
            FORWARD => {
                let cookie = u64::MAX - self.forwarded.len() as u64;
                let call = Call { req_type: ECHO, cookie, ..Call::default() };
                endpoint.call(self.backup.unwrap(), &call, body).unwrap();
                self.forwarded.insert(cookie, token);
            }
            _ => endpoint.reply(token, body).unwrap(),
        }
    }

    fn response(
        &mut self,
        endpoint: &mut Endpoint<Lossy>,
        cookie: u64,
        status: Status,
        body: &[u8],
    ) {
        if let Some(token) = self.forwarded.remove(&cookie) {
            return endpoint.reply(token, body).unwrap();
        }
        let before = self.ended.insert(cookie, (status, body.to_vec()));
        assert!(before.is_none(), "call {cookie} ended twice");
    }

    fn ended(&mut self, endpoint: &mut Endpoint<Lossy>, cookie: u64, status: Status, sent: bool) {
        self.was_sent.insert(cookie, sent);
        self.response(endpoint, cookie, status, &[]);
    }

    fn connected(&mut self, _: &mut Endpoint<Lossy>, session: SessionId) {
        self.connected.push(session);
    }

    fn closed(&mut self, _: &mut Endpoint<Lossy>, session: SessionId, reason: CloseReason) {
        self.closed.push((session, reason));
    }
}

pub(crate) struct Node {
    pub(crate) endpoint: Endpoint<Lossy>,
    pub(crate) program: Program,
    pub(crate) loss: Rc<Loss>,
}

/// A fabric that no other test uses.
pub(crate) fn soft() -> softnic::Config {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let fabric = format!("erpc-{}-{number}", std::process::id());
    softnic::Config { fabric, ..softnic::Config::default() }
}

/// An address whose port is free: the tests do not compete for the original's 32.
pub(crate) fn free_address() -> std::net::SocketAddr {
    std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

pub(crate) fn config() -> Config {
    Config {
        management: free_address(),
        receives: 1024,
        retransmit: Duration::from_millis(2),
        management_retry: Duration::from_millis(10),
        ..Config::default()
    }
}

impl Node {
    pub(crate) fn open(soft: &softnic::Config, config: Config) -> Self {
        let loss = Rc::<Loss>::default();
        let nic =
            Lossy { nic: softnic::open(soft).unwrap(), hooks: Losing { loss: Rc::clone(&loss) } };
        let endpoint = Endpoint::open(nic, config, now_ns()).unwrap();
        Self { endpoint, program: Program::default(), loss }
    }

    pub(crate) fn poll(&mut self) -> usize {
        NOW.set(NOW.get() + POLL);
        self.endpoint.poll(now_ns(), &mut self.program)
    }

    pub(crate) fn connect(&mut self, to: &Self) -> SessionId {
        self.connect_with(to, ConnectOptions::default())
    }

    pub(crate) fn connect_with(&mut self, to: &Self, options: ConnectOptions) -> SessionId {
        let rpc_id = to.endpoint.config().rpc_id;
        self.endpoint.connect(to.endpoint.management_address(), rpc_id, options).unwrap()
    }

    pub(crate) fn is_connected(&self, session: SessionId) -> bool {
        self.endpoint.state(session) == Some(SessionState::Connected)
    }

    pub(crate) fn call(
        &mut self,
        to: SessionId,
        req_type: u8,
        body: &[u8],
    ) -> Result<u64, CallError> {
        let cookie = self.program.made;
        let call = Call { req_type, cookie, timeout: PATIENCE, ..Call::default() };
        self.endpoint.call(to, &call, body)?;
        self.program.made += 1;
        Ok(cookie)
    }
}

/// A body that differs from others, with its number in front if it has room.
pub(crate) fn body(number: u64, len: usize) -> Vec<u8> {
    let mut body: Vec<u8> = (0..len)
        .map(|at| (number.wrapping_mul(31) + at as u64 * 7 + (at as u64 >> 8)) as u8)
        .collect();
    if let Some(front) = body.first_chunk_mut() {
        *front = number.to_le_bytes();
    }
    body
}

#[track_caller]
pub(crate) fn until(nodes: &mut [&mut Node], mut is_done: impl FnMut(&[&mut Node]) -> bool) {
    let start = Instant::now();
    while !is_done(nodes) {
        let work: usize = nodes.iter_mut().map(|node| node.poll()).sum();
        if work == 0 {
            std::thread::yield_now();
        }
        assert!(start.elapsed() < PATIENCE, "it takes too long");
    }
}

/// Time passes without a poll.
pub(crate) fn pass(duration: Duration) {
    NOW.set(NOW.get() + duration);
}

/// Polls all nodes until `duration` of their time has passed.
pub(crate) fn elapse(nodes: &mut [&mut Node], duration: Duration) {
    let end = NOW.get() + duration;
    until(nodes, |_| NOW.get() >= end);
}

/// A client, a server, and their session.
pub(crate) fn pair(config: Config) -> (Node, Node, SessionId) {
    pair_on(&soft(), config)
}

pub(crate) fn pair_on(soft: &softnic::Config, config: Config) -> (Node, Node, SessionId) {
    let mut client = Node::open(soft, Config { management: free_address(), ..config.clone() });
    let mut server = Node::open(soft, config);
    let session = client.connect(&server);
    until(&mut [&mut client, &mut server], |nodes| nodes[0].is_connected(session));
    (client, server, session)
}
