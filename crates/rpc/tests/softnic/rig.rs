//! Workers, a server that answers in several ways, and a client that checks every answer.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use copyrpc_rpc::{
    Body, BodyForm, BodyPiece, Call, CallEnd, CallError, CloseReason, Config, Delivery, Fetch,
    Handler, PeerId, Request, Status, Token, TransportKind, Worker,
};
use memory::{
    Filler,
    sync::{AtomicU32, Ordering},
};
use softnic::{Drive, Nic};

/// Longest that anything here may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Answers with the body.
pub(crate) const ECHO: u16 = 1;
/// Answers later.
pub(crate) const LATER: u16 = 2;
/// Drops the token.
pub(crate) const DROP: u16 = 3;
/// Answers with an error and the body.
pub(crate) const FAIL: u16 = 4;

/// What a worker's program keeps.
#[derive(Default)]
pub(crate) struct Program {
    pub(crate) made: usize,
    /// How each call ended, by cookie.
    pub(crate) ended: BTreeMap<u64, (Status, Vec<u8>)>,
    pub(crate) kept: Vec<(Token, Vec<u8>)>,
    pub(crate) closed: Vec<(PeerId, CloseReason)>,
    pub(crate) served: u64,
    /// Calls that a request makes from inside the callback: to whom.
    pub(crate) forward: Option<PeerId>,
    /// Requests that are answered later are held.
    pub(crate) holds: bool,
    /// Answers by rendezvous are told in pieces.
    pub(crate) takes_pieces: bool,
    /// Answers of which pieces came, and how many bytes of each did.
    pub(crate) pieces: BTreeMap<u64, (Vec<u8>, usize)>,
}

impl Handler<Nic> for Program {
    fn request(&mut self, worker: &mut Worker<Nic>, request: Request, body: Body<'_, Nic>) {
        let body = &*body.bytes();
        self.served += 1;
        let Request { mut token, method, .. } = request;
        if let Some(peer) = self.forward {
            let cookie = u64::MAX - self.served;
            worker.call(peer, &Call { method: ECHO, cookie, ..Call::default() }, body).unwrap();
            assert_eq!(worker.poll(worker.now_ns(), self), 0, "a poll inside a callback");
        }
        match method {
            LATER => {
                assert_eq!(self.holds && worker.hold(&mut token), self.holds);
                self.kept.push((token, body.to_vec()));
            }
            DROP => drop(token),
            FAIL => worker.reply(token, Status::NotFound, body).unwrap(),
            _ => worker.reply(token, Status::Ok, body).unwrap(),
        }
    }

    fn ended(&mut self, _: &mut Worker<Nic>, cookie: u64, end: CallEnd<'_, Nic>) {
        let body = match end {
            CallEnd::InPieces(len_bytes) => {
                let (body, got) = self.pieces.remove(&cookie).expect("its pieces came before");
                assert_eq!((body.len(), got), (len_bytes, len_bytes), "each piece once");
                body
            }
            CallEnd::Answered(..) | CallEnd::Unanswered(_) => end.bytes().into_owned(),
        };
        let before = self.ended.insert(cookie, (end.status(), body));
        assert!(before.is_none(), "call {cookie} ended twice");
    }

    fn wants(&mut self, fetch: Fetch) -> Delivery {
        let (Fetch::Request(_, len_bytes) | Fetch::Answer(_, len_bytes)) = fetch;
        assert!(len_bytes > 0);
        let form = if self.takes_pieces { BodyForm::Pieces } else { BodyForm::Owned };
        Delivery { form, ..Delivery::default() }
    }

    fn piece(&mut self, cookie: u64, piece: &BodyPiece<'_, Nic>) {
        assert!(!self.ended.contains_key(&cookie), "a piece of call {cookie}, which has ended");
        let (body, got) = self.pieces.entry(cookie).or_default();
        body.resize(piece.body_bytes(), 0);
        let range = piece.range();
        // In two halves.
        let middle = usize::midpoint(range.start, range.end);
        piece.copy_to(range.start, &mut body[range.start..middle]);
        piece.copy_to(middle, &mut body[middle..range.end]);
        let mut put = vec![0; range.len()];
        assert!(piece.put_to(&mut Filler::from(&mut put[1..])).is_err(), "a byte too little");
        piece.put_to(&mut Filler::from(&mut put[..])).unwrap();
        assert!(put == body[range.clone()], "a piece is the same by each way");
        *got += range.len();
    }

    fn closed(&mut self, _: &mut Worker<Nic>, peer: PeerId, reason: CloseReason) {
        self.closed.push((peer, reason));
    }
}

/// A worker and its program.
pub(crate) struct Node {
    pub(crate) worker: Worker<Nic>,
    pub(crate) program: Program,
}

impl Node {
    pub(crate) fn open(fabric: &str, config: &Config) -> Self {
        Self::open_on(&soft(fabric, None), config)
    }

    pub(crate) fn open_on(nic: &softnic::Config, config: &Config) -> Self {
        let nic = softnic::open(nic).unwrap();
        let worker = Worker::open(nic, config.clone(), os::clock::now_ns()).unwrap();
        Self { worker, program: Program::default() }
    }

    pub(crate) fn poll(&mut self) -> usize {
        self.worker.poll(os::clock::now_ns(), &mut self.program)
    }

    pub(crate) fn call(&mut self, to: PeerId, method: u16, body: &[u8]) -> Result<u64, CallError> {
        let cookie = self.program.made as u64;
        // A deadline that a machine with other work does not meet by itself.
        let (response_bytes, timeout) = (body.len().max(32), Duration::from_secs(60));
        let call = Call { method, cookie, response_bytes, timeout, caller: None };
        self.worker.call(to, &call, body)?;
        self.program.made += 1;
        Ok(cookie)
    }
}

/// Settings of a software NIC.
pub(crate) fn soft(fabric: &str, strict: Option<u64>) -> softnic::Config {
    let fabric = fabric.to_owned();
    softnic::Config { fabric, strict, drive: Drive::Inline, ..softnic::Config::default() }
}

/// A fabric that no other test uses.
pub(crate) fn fabric() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("rpc-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Sizes at which everything is soon full.
pub(crate) fn tight() -> Config {
    Config {
        ring_bytes: 1 << 12,
        response_bytes: 1 << 10,
        batch_bytes: 1 << 10,
        calls_max: 16,
        receives: 16,
        sends: 8,
        signal_interval: 4,
        poll_budget: 8,
        peers_max: 4,
        large_bytes: 1 << 24,
        ..Config::default()
    }
}

/// Every transport, and what can be switched about it.
pub(crate) fn shapes() -> Vec<Config> {
    let own = Config { shared_receives: false, ..tight() };
    let dc = Config { transport: TransportKind::Dc, ..tight() };
    vec![
        tight(),
        Config { inline_bytes: 0, ..own.clone() },
        Config { doorbell_batching: false, signal_interval: 1, ..own },
        Config { dcis: 2, ..dc.clone() },
        Config { inline_bytes: 0, doorbell_batching: false, ..dc },
    ]
}

/// Makes two workers peers of each other.
pub(crate) fn join(a: &mut Node, b: &mut Node) -> (PeerId, PeerId) {
    let (to_b, from_a) = a.worker.invite().unwrap();
    let (to_a, from_b) = b.worker.invite().unwrap();
    a.worker.connect(to_b, &from_b).unwrap();
    b.worker.connect(to_a, &from_a).unwrap();
    (to_b, to_a)
}

/// Two peers and their names for each other.
pub(crate) fn pair(config: &Config) -> (Node, Node, PeerId, PeerId) {
    let fabric = fabric();
    let (mut a, mut b) = (Node::open(&fabric, config), Node::open(&fabric, config));
    let (to_b, to_a) = join(&mut a, &mut b);
    (a, b, to_b, to_a)
}

/// Repeats `turn` until it says that all is done, and tells whether that was in time.
fn is_done_in_time(mut turn: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !turn() {
        if start.elapsed() > PATIENCE {
            return false;
        }
    }
    true
}

/// Repeats `turn` until it says that `what` is there.
#[track_caller]
pub(crate) fn poll_until(what: &str, turn: impl FnMut() -> bool) {
    assert!(is_done_in_time(turn), "not within {PATIENCE:?}: {what}");
}

/// Polls all nodes until `is_done`.
#[track_caller]
pub(crate) fn until(nodes: &mut [&mut Node], mut is_done: impl FnMut(&[&mut Node]) -> bool) {
    let is_in_time = is_done_in_time(|| {
        is_done(nodes) || {
            nodes.iter_mut().for_each(|node| _ = node.poll());
            false
        }
    });
    let states = nodes.iter().map(|Node { program, .. }| {
        let Program { made, ended, served, kept, closed, .. } = program;
        let [ended, kept] = [ended.len(), kept.len()];
        format!("made {made}, ended {ended}, served {served}, kept {kept}, closed {closed:?}")
    });
    assert!(is_in_time, "not within {PATIENCE:?}; nodes: {:#?}", states.collect::<Vec<_>>());
}
