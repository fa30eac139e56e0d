//! A server that echoes, clients, and what each of them has seen.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use copyrpc_protocols::scalerpc::{
    Call, CallError, Client, ClientConfig, ClientId, CloseReason, Handler, Request, Responses,
    Server, ServerConfig, Status, Token,
};
use memory::sync::{AtomicU32, Ordering};
use softnic::Nic;

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Answers with the body.
pub(crate) const ECHO: u16 = 1;
/// Keeps the token.
pub(crate) const LATER: u16 = 2;
/// Answers with more than a block holds.
pub(crate) const TOO_LONG: u16 = 3;

#[derive(Default)]
pub(crate) struct Echo {
    /// How often each request was executed, by client and number.
    pub(crate) executed: BTreeMap<(ClientId, u64), u32>,
    pub(crate) kept: Vec<(Token, Vec<u8>)>,
    pub(crate) closed: Vec<(ClientId, CloseReason)>,
}

impl Handler<Nic> for Echo {
    fn request(&mut self, server: &mut Server<Nic>, request: Request<'_>) {
        let Request { token, method, body } = request;
        if let Some(number) = body.first_chunk() {
            let number = u64::from_le_bytes(*number);
            *self.executed.entry((token.client(), number)).or_default() += 1;
        }
        assert_eq!(server.poll(0, self), 0, "a poll inside a callback");
        match method {
            LATER => self.kept.push((token, body.to_vec())),
            TOO_LONG => assert!(server.reply(token, Status::Ok, &vec![0; 1 << 20]).is_err()),
            ECHO => server.reply(token, Status::Ok, body).unwrap(),
            _ => server.reply(token, Status::Unimplemented, b"no such method").unwrap(),
        }
    }

    fn closed(&mut self, _: &mut Server<Nic>, client: ClientId, reason: CloseReason) {
        self.closed.push((client, reason));
    }
}

#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) made: u64,
    pub(crate) ended: BTreeMap<u64, (Status, Vec<u8>)>,
    pub(crate) closed: Option<CloseReason>,
}

impl Responses for Seen {
    fn response(&mut self, cookie: u64, status: Status, body: &[u8]) {
        let before = self.ended.insert(cookie, (status, body.to_vec()));
        assert!(before.is_none(), "call {cookie} ended twice");
    }

    fn closed(&mut self, reason: CloseReason) {
        self.closed = Some(reason);
    }
}

pub(crate) struct Caller {
    pub(crate) client: Client<Nic>,
    pub(crate) seen: Seen,
    pub(crate) id: ClientId,
}

impl Caller {
    pub(crate) fn poll(&mut self) -> usize {
        self.client.poll(os::clock::now_ns(), &mut self.seen)
    }

    pub(crate) fn call(&mut self, method: u16, body: &[u8]) -> Result<u64, CallError> {
        let cookie = self.seen.made;
        self.client.call(&Call { method, cookie, timeout: PATIENCE }, body)?;
        self.seen.made += 1;
        Ok(cookie)
    }
}

pub(crate) struct Scene {
    pub(crate) nic: softnic::Config,
    pub(crate) server: Server<Nic>,
    pub(crate) echo: Echo,
    pub(crate) callers: Vec<Caller>,
}

impl Scene {
    pub(crate) fn new(config: ServerConfig, clients: usize) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let fabric = format!("scalerpc-{}-{number}", std::process::id());
        let nic = softnic::Config { fabric, ..softnic::Config::default() };
        let server = softnic::open(&nic).unwrap();
        let server = Server::open(server, config, os::clock::now_ns()).unwrap();
        let mut scene = Self { nic, server, echo: Echo::default(), callers: Vec::new() };
        let port = softnic::open(&scene.nic).unwrap();
        (0..clients).for_each(|_| scene.join(&port));
        scene
    }

    /// Another client on a port.
    pub(crate) fn join(&mut self, port: &Nic) {
        let ServerConfig { slots, block_bytes, .. } = *self.server.config();
        let config = ClientConfig::default();
        let now_ns = os::clock::now_ns();
        let mut client = Client::open(port.clone(), config, slots, block_bytes, now_ns).unwrap();
        let (id, invitation) = self.server.accept(&client.invitation()).unwrap();
        client.connect(&invitation).unwrap();
        self.callers.push(Caller { client, seen: Seen::default(), id });
    }

    pub(crate) fn poll(&mut self) -> usize {
        let work: usize = self.callers.iter_mut().map(Caller::poll).sum();
        work + self.server.poll(os::clock::now_ns(), &mut self.echo)
    }

    #[track_caller]
    pub(crate) fn until(&mut self, mut is_done: impl FnMut(&Self) -> bool) {
        let start = Instant::now();
        while !is_done(self) {
            if self.poll() == 0 {
                std::thread::yield_now();
            }
            assert!(start.elapsed() < PATIENCE, "it takes too long");
        }
    }

    /// Each client makes `calls` calls, as many at a time as it may, with bodies of these lengths in turn.
    #[track_caller]
    pub(crate) fn echo(&mut self, calls: u64, lens: &[usize]) {
        let len = |number: u64| lens[number as usize % lens.len()];
        self.until(|_| true);
        let mut made = vec![0; self.callers.len()];
        let start = Instant::now();
        while made.iter().any(|made| *made < calls) {
            for (caller, made) in self.callers.iter_mut().zip(&mut made) {
                while *made < calls {
                    let number = caller.seen.made;
                    match caller.call(ECHO, &body(number, len(number))) {
                        Ok(_) => *made += 1,
                        Err(error) => {
                            assert!(error.is_temporary(), "{error}");
                            break;
                        }
                    }
                }
            }
            self.poll();
            assert!(start.elapsed() < PATIENCE, "it takes too long");
        }
        self.until(|scene| scene.callers.iter().all(|c| c.seen.ended.len() as u64 == c.seen.made));
        for Caller { seen, .. } in &self.callers {
            for (cookie, (status, answer)) in &seen.ended {
                assert!(
                    *status == Status::Ok && *answer == body(*cookie, len(*cookie)),
                    "{cookie}"
                );
            }
        }
        assert!(self.echo.executed.values().all(|times| *times == 1), "a request ran twice");
    }
}

/// A body that differs from others, with its number in front.
pub(crate) fn body(number: u64, len: usize) -> Vec<u8> {
    let mut body: Vec<u8> =
        (0..len).map(|at| (number * 31 + at as u64 * 7 + (at as u64 >> 8)) as u8).collect();
    if let Some(front) = body.first_chunk_mut() {
        *front = number.to_le_bytes();
    }
    body
}
