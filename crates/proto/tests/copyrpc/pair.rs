//! Two connections, their rings, and the messages between them, on virtual time.

use std::collections::{BTreeMap, VecDeque};

use copyrpc_proto::{
    Status,
    copyrpc::{
        CREDIT_BYTES, Call, CallId, CallRefused, Config, Connection, Emission, Features,
        FlushPolicy, Geometry, Hello, Imm, Incoming, LINE_BYTES, Large, Lease, Rare, RequestId,
        Violation,
    },
};

/// Calls that a side can have in flight.
pub(crate) const CALLS: u16 = 16;

/// A WRITE WITH IMMEDIATE that was posted and has not arrived.
#[derive(Debug)]
struct Flight {
    offset_bytes: usize,
    bytes: Vec<u8>,
    imm: u32,
    number: u64,
}

/// A request that a side was asked to answer.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) id: RequestId,
    pub(crate) method: u16,
    pub(crate) body: Vec<u8>,
    pub(crate) lease: Option<Lease>,
}

/// One end: a connection, the ring that the peer writes, and what became of its calls.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) connection: Connection,
    ring: Vec<u8>,
    /// Written by the peer; looked at now and then.
    credit: [u8; CREDIT_BYTES],
    /// Lines that were written and that the connection has not finished with: by start line.
    unread: BTreeMap<usize, usize>,
    /// To the other side.
    flights: VecDeque<Flight>,
    pub(crate) requests: Vec<Request>,
    /// Large responses that are being fetched.
    pub(crate) fetching: Vec<CallId>,
    /// Answered by naming memory, and not released.
    pub(crate) lent: Vec<RequestId>,
    /// How each call ended, by cookie.
    pub(crate) ended: BTreeMap<u64, (Status, Vec<u8>)>,
    pub(crate) made: BTreeMap<u64, (CallId, Vec<u8>)>,
    next_cookie: u64,
}

/// Two ends and a clock.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) sides: [Side; 2],
    pub(crate) now_ns: u64,
}

/// Sizes and policies of both ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) geometry: Geometry,
    pub(crate) flush: FlushPolicy,
    pub(crate) signal_interval: u16,
    /// Receives of each side.
    pub(crate) batches_max: u16,
    pub(crate) start_lines: u64,
    pub(crate) start_generation: u16,
}

/// How long credit that the peer may need waits.
pub(crate) const CREDIT_DELAY_NS: u64 = 1000;
/// How long other credit does (rule C3.8).
pub(crate) const UNNEEDED_DELAY_NS: u64 = 32 * CREDIT_DELAY_NS;

impl Default for Setup {
    fn default() -> Self {
        Self {
            geometry: Geometry::new(2048, 512, 256).unwrap(),
            flush: FlushPolicy::default(),
            signal_interval: 1,
            batches_max: 32,
            start_lines: 0,
            start_generation: 0,
        }
    }
}

impl Pair {
    pub(crate) fn new(setup: Setup) -> Self {
        let hello = |epoch: u32| Hello {
            features: Features::ALL,
            epoch,
            slot: 7,
            calls_max: CALLS,
            geometry: setup.geometry,
            batches_max: setup.batches_max,
            large_bytes_max: 1 << 20,
        };
        let side = |own: u32, peer: u32| {
            let config = Config {
                own: hello(own),
                peer: hello(peer),
                flush: setup.flush,
                signal_interval: setup.signal_interval,
                credit_delay_ns: CREDIT_DELAY_NS,
            };
            let connection =
                Connection::new(config).starting_at(setup.start_lines, setup.start_generation);
            Side {
                connection,
                ring: vec![0xa5; setup.geometry.ring_bytes()],
                credit: [0; CREDIT_BYTES],
                unread: BTreeMap::new(),
                flights: VecDeque::new(),
                requests: Vec::new(),
                fetching: Vec::new(),
                lent: Vec::new(),
                ended: BTreeMap::new(),
                made: BTreeMap::new(),
                next_cookie: 0,
            }
        };
        Self { sides: [side(1, 2), side(2, 1)], now_ns: 1 }
    }

    /// Makes a call with a body that its cookie determines.
    pub(crate) fn call(
        &mut self,
        from: usize,
        method: u16,
        len_bytes: usize,
        response_bytes: usize,
        timeout_ns: u64,
    ) -> Result<u64, CallRefused> {
        let side = &mut self.sides[from];
        let cookie = side.next_cookie;
        let deadline_ns = self.now_ns + timeout_ns;
        let call = Call { method, response_bytes, deadline_ns, cookie };
        let body = pattern(cookie * 2 + from as u64, len_bytes);
        let (id, to) = side.connection.call(&call, len_bytes, self.now_ns)?;
        to.copy_from_slice(&body);
        side.made.insert(cookie, (id, body));
        side.next_cookie += 1;
        Ok(cookie)
    }

    /// Answers the request at this place with its own body, cut or repeated to `len_bytes`.
    pub(crate) fn reply(&mut self, from: usize, at: usize, len_bytes: usize) {
        let now_ns = self.now_ns;
        let side = &mut self.sides[from];
        let Request { id, body, lease, .. } = side.requests.swap_remove(at);
        let answer = answer_to(&body, len_bytes);
        side.connection
            .reply(id, Status::Ok, answer.len(), now_ns)
            .expect("there is always a place for an answer")
            .copy_from_slice(&answer);
        if let Some(lease) = lease {
            side.end_lease(lease, now_ns);
        }
    }

    /// Answers the request at this place by naming memory.
    pub(crate) fn reply_large(&mut self, from: usize, at: usize) {
        let now_ns = self.now_ns;
        let side = &mut self.sides[from];
        let Request { id, lease, .. } = side.requests.swap_remove(at);
        let large = Large { addr: 1 << 40, rkey: 7, len_bytes: 1 << 20 };
        side.connection.reply_large(id, large, now_ns).expect("it fits every budget");
        side.lent.push(id);
        if let Some(lease) = lease {
            side.end_lease(lease, now_ns);
        }
    }

    /// A large response has been fetched; its call ends, and its slot may be used again at once.
    pub(crate) fn fetch(&mut self, from: usize, at: usize) {
        let side = &mut self.sides[from];
        let call = side.fetching.swap_remove(at);
        if let Some(cookie) = side.connection.fetched(call) {
            side.end(cookie, Status::DataLoss, &[]);
        }
    }

    /// Posts whatever is due.
    pub(crate) fn depart(&mut self, from: usize, is_forced: bool) -> usize {
        let now_ns = self.now_ns;
        let [a, b] = &mut self.sides;
        let (side, peer) = if from == 0 { (a, b) } else { (b, a) };
        let mut posted = 0;
        side.connection.polled();
        while let Some(emission) = side.connection.emission(now_ns, is_forced) {
            let offset_bytes = emission.offset_bytes;
            let imm = emission.imm;
            let bytes = emission.bytes.to_vec();
            let Emission { number, departure, .. } = emission;
            side.connection.posted(departure, now_ns);
            peer.check_free(offset_bytes, bytes.len());
            side.flights.push_back(Flight { offset_bytes, bytes, imm, number });
            posted += 1;
        }
        // A receive for each: nothing that a program does, or does not do, makes a NIC ask again.
        let receives = usize::from(peer.connection.config().own.batches_max);
        assert!(side.flights.len() <= receives, "{} batches on the way", side.flights.len());
        if let Some(words) = side.connection.credit_due(now_ns) {
            side.connection.credit_posted();
            // The words land at once, before batches that were posted earlier are handled.
            peer.credit = words;
            side.connection.credit_arrived();
            posted += 1;
        }
        posted
    }

    /// A side looks at what the other one has given back.
    pub(crate) fn look(&mut self, side: usize) {
        let side = &mut self.sides[side];
        side.connection.credit(side.credit, self.now_ns).expect("two correct sides");
    }

    /// The oldest flight from `from` arrives, is handled, and is known to have left.
    pub(crate) fn arrive(&mut self, from: usize, is_held: bool) -> Result<bool, Violation> {
        let now_ns = self.now_ns;
        let [a, b] = &mut self.sides;
        let (side, peer) = if from == 0 { (a, b) } else { (b, a) };
        let Some(flight) = side.flights.pop_front() else { return Ok(false) };
        side.connection.finished(flight.number);
        let offset = flight.offset_bytes;
        peer.ring[offset..offset + flight.bytes.len()].copy_from_slice(&flight.bytes);
        peer.take_batch(Imm::decode(flight.imm), is_held, now_ns)?;
        Ok(true)
    }

    pub(crate) fn advance(&mut self, ns: u64) {
        self.now_ns += ns;
        for side in &mut self.sides {
            let mut expired = Vec::new();
            side.connection.expire(self.now_ns, |cookie| expired.push(cookie));
            for cookie in expired {
                side.end(cookie, Status::DeadlineExceeded, &[]);
            }
        }
    }

    /// Lets everything happen until nothing is left to happen, answering every request.
    pub(crate) fn settle(&mut self) {
        for _ in 0..10_000 {
            let mut busy = 0;
            for from in 0..2 {
                while !self.sides[from].fetching.is_empty() {
                    self.fetch(from, 0);
                    busy += 1;
                }
                while !self.sides[from].requests.is_empty() {
                    let side = &mut self.sides[from];
                    let Request { id, body, .. } = &side.requests[0];
                    let max_bytes = side.connection.response_bytes_max(*id).expect("it is open");
                    let len_bytes = body.len().min(max_bytes);
                    self.reply(from, 0, len_bytes);
                    busy += 1;
                }
                self.look(from);
                busy += self.depart(from, true);
                while self.arrive(from, false).expect("two correct sides") {
                    busy += 1;
                }
            }
            if busy == 0 {
                let wakes = self.sides.iter().map(|side| side.connection.wake_ns(self.now_ns));
                let Some(wake_ns) = wakes.flatten().min() else { return };
                self.advance(wake_ns.saturating_sub(self.now_ns).max(1000));
            }
        }
        panic!("does not settle: {self:#?}");
    }
}

impl Side {
    /// A write may only touch lines that were read.
    fn check_free(&mut self, offset: usize, len_bytes: usize) {
        let start = offset / LINE_BYTES;
        let end = (offset + len_bytes).div_ceil(LINE_BYTES);
        for (from, to) in &self.unread {
            assert!(end <= *from || *to <= start, "{start}..{end} overwrites {from}..{to}");
        }
        self.unread.insert(start, end);
    }

    fn take_batch(&mut self, imm: Imm, is_held: bool, now_ns: u64) -> Result<(), Violation> {
        let arrival = self.connection.arrive(imm)?;
        let at = arrival.offset_bytes;
        let copy = self.ring[at..at + arrival.len_bytes].to_vec();
        let mut is_kept = false;
        for message in self.connection.open_batch(&copy, now_ns)? {
            match self.connection.message(&message?)? {
                Incoming::Request { id, method, body, .. } => {
                    let lease = if is_held { self.connection.hold() } else { None };
                    is_kept |= lease.is_some();
                    let body = body.to_vec();
                    self.requests.push(Request { id, method, body, lease });
                }
                Incoming::Response { cookie, status, body, .. } => self.end(cookie, status, body),
                Incoming::Rare(Rare::Late(_) | Rare::Crossed | Rare::Cancelled(_)) => {}
                Incoming::Rare(Rare::LargeResponse { call, .. }) => self.fetching.push(call),
                Incoming::Rare(Rare::LargeRequest { .. }) => panic!("no large bodies here"),
                Incoming::Rare(Rare::Released(id)) => {
                    let at = self.lent.iter().position(|lent| *lent == id);
                    self.lent.swap_remove(at.expect("what was lent is released once"));
                }
            }
        }
        if !is_kept {
            self.unread.remove(&(at / LINE_BYTES));
        }
        self.connection.close_batch(now_ns);
        Ok(())
    }

    fn end_lease(&mut self, lease: Lease, now_ns: u64) {
        self.connection.end_lease(lease, now_ns);
        let is_last = !self.requests.iter().any(|request| request.lease == Some(lease));
        if is_last {
            self.unread.remove(&(lease.offset_bytes / LINE_BYTES));
        }
    }

    pub(crate) fn cancel(&mut self, cookie: u64) {
        let id = self.made[&cookie].0;
        if let Some(cookie) = self.connection.cancel(id) {
            self.end(cookie, Status::Cancelled, &[]);
        }
    }

    fn end(&mut self, cookie: u64, status: Status, body: &[u8]) {
        let before = self.ended.insert(cookie, (status, body.to_vec()));
        assert_eq!(before, None, "call {cookie} ended twice");
        if status == Status::Ok {
            let asked = &self.made[&cookie].1;
            assert_eq!(body, answer_to(asked, body.len()), "call {cookie} got another's answer");
        }
    }
}

/// Bytes that differ from call to call.
pub(crate) fn pattern(seed: u64, len_bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len_bytes)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[0]
        })
        .collect()
}

fn answer_to(body: &[u8], len_bytes: usize) -> Vec<u8> {
    let nothing = [0x5a];
    let source = if body.is_empty() { &nothing[..] } else { body };
    source.iter().copied().cycle().take(len_bytes).collect()
}
