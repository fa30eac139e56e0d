//! Any bytes from a peer: taken or refused, and a refusal ends the connection in order.
//!
//! ```text
//! input: control (1 B) │ immediate (4 B) │ length (1 B) │ as many bytes │ control …
//! ```
//!
//! Tests run it on random bytes, `fuzz/fuzz_targets/rpc_batch.rs` on those that it finds worthwhile.

use copyrpc_proto::{
    Status,
    copyrpc::{
        Call, CallId, Config, Connection, Features, FlushPolicy, Geometry, Hello, Imm, Incoming,
        Lease, Rare, RequestId, Violation,
    },
};

const CALLS: u16 = 8;
/// The effect of `control`.
const IS_CREDIT: u8 = 1;
const RIGHT_EPOCH: u8 = 2;
const RIGHT_SEQUENCE: u8 = 4;
const RIGHT_LENGTH: u8 = 8;
const HOLD: u8 = 16;
const ANSWER: u8 = 32;
const CALL: u8 = 64;
const RIGHT_HANDLED: u8 = 128;

/// A side that hears nonsense.
struct Victim {
    connection: Connection,
    sequence: u16,
    requests: Vec<(RequestId, Option<Lease>)>,
    fetching: Vec<CallId>,
    made: u64,
    ended: u64,
}

fn hello(epoch: u32) -> Hello {
    Hello {
        features: Features::ALL,
        epoch,
        slot: 0,
        calls_max: CALLS,
        geometry: Geometry::new(1024, 256, 256).unwrap(),
        batches_max: 3,
        large_bytes_max: 1 << 20,
    }
}

/// Feeds a connection with `bytes` until they, or its patience, end.
pub(crate) fn check(mut bytes: &[u8]) {
    let config = Config {
        own: hello(1),
        peer: hello(2),
        flush: FlushPolicy::default(),
        signal_interval: 4,
        credit_delay_ns: 0,
    };
    let connection = Connection::new(config);
    let requests = Vec::new();
    let fetching = Vec::new();
    let mut victim = Victim { connection, sequence: 0, requests, fetching, made: 0, ended: 0 };
    while let [control, a, b, c, d, len, rest @ ..] = bytes {
        let (body, rest) = rest.split_at(rest.len().min((*len).into()));
        bytes = rest;
        let imm = Imm::decode(u32::from_le_bytes([*a, *b, *c, *d]));
        if victim.step(*control, imm, body).is_err() {
            break;
        }
        victim.check();
    }
    let Victim { connection, ended, .. } = &mut victim;
    connection.drain(|_| *ended += 1);
    assert_eq!((victim.made, victim.connection.waiting()), (victim.ended, 0), "calls that ended");
}

impl Victim {
    fn step(&mut self, control: u8, imm: Imm, body: &[u8]) -> Result<(), Violation> {
        if control & CALL != 0 {
            self.call(body.len());
        }
        if control & IS_CREDIT != 0 {
            let mut words = [0; 16];
            let len = body.len().min(words.len());
            words[..len].copy_from_slice(&body[..len]);
            if control & RIGHT_HANDLED != 0 {
                words[8..].copy_from_slice(&self.connection.counters().batches_out.to_le_bytes());
            }
            self.connection.credit(words, 1)?;
        } else {
            self.batch(control, imm, body)?;
        }
        if control & ANSWER != 0 {
            self.answer();
        }
        self.depart();
        Ok(())
    }

    fn batch(&mut self, control: u8, imm: Imm, body: &[u8]) -> Result<(), Violation> {
        // A real ring has at least a line.
        let lines = if control & RIGHT_LENGTH != 0 { body.len().div_ceil(64).max(1) } else { 0 };
        let lines = u16::try_from(lines).unwrap().max(imm.lines % 8);
        let imm = Imm { lines, ..imm };
        let arrival = self.connection.arrive(imm)?;
        let mut copy = vec![0; arrival.len_bytes];
        let len = copy.len().min(body.len());
        copy[..len].copy_from_slice(&body[..len]);
        if copy.len() >= 16 {
            if control & RIGHT_EPOCH != 0 {
                copy[4..8].copy_from_slice(&1_u32.to_le_bytes());
            }
            if control & RIGHT_SEQUENCE != 0 {
                copy[8..10].copy_from_slice(&self.sequence.to_le_bytes());
            }
            if control & RIGHT_LENGTH != 0 {
                let len_bytes = body.len().max(16).next_multiple_of(8);
                let unused = u16::try_from(copy.len().saturating_sub(len_bytes)).unwrap();
                copy[14..16].copy_from_slice(&unused.to_le_bytes());
            }
            if control & RIGHT_HANDLED != 0 {
                let [low, high, ..] = self.connection.counters().batches_out.to_le_bytes();
                copy[12..14].copy_from_slice(&[low, high]);
            }
        }
        let messages = self.connection.open_batch(&copy, 1)?;
        self.sequence = self.sequence.wrapping_add(1);
        for message in messages {
            match self.connection.message(&message?)? {
                Incoming::Request { id, body, .. } => {
                    assert!(body.len() <= copy.len());
                    self.serve(id, control);
                }
                Incoming::Rare(Rare::LargeRequest { id, .. }) => self.serve(id, control),
                Incoming::Response { .. } => self.ended += 1,
                Incoming::Rare(Rare::LargeResponse { call, .. }) => self.fetching.push(call),
                Incoming::Rare(
                    Rare::Released(_) | Rare::Cancelled(_) | Rare::Late(_) | Rare::Crossed,
                ) => {}
            }
        }
        self.connection.close_batch(1);
        Ok(())
    }

    fn serve(&mut self, id: RequestId, control: u8) {
        let is_held = control & HOLD != 0;
        let lease = is_held.then(|| self.connection.hold()).flatten();
        self.requests.push((id, lease));
    }

    fn call(&mut self, len_bytes: usize) {
        let call = Call { method: 1, response_bytes: 8, deadline_ns: 1 << 40, cookie: self.made };
        if self.connection.call(&call, len_bytes % 200, 1).is_ok() {
            self.made += 1;
        }
    }

    /// Everything that the peer was served, it is answered; there is always a place.
    fn answer(&mut self) {
        for (id, lease) in self.requests.drain(..) {
            self.connection.reply(id, Status::Ok, 8, 1).expect("there is a place");
            lease.into_iter().for_each(|lease| self.connection.end_lease(lease, 1));
        }
        for call in self.fetching.drain(..) {
            self.ended += u64::from(self.connection.fetched(call).is_some());
        }
    }

    fn depart(&mut self) {
        while let Some(emission) = self.connection.emission(1, true) {
            let end = emission.offset_bytes + emission.bytes.len();
            assert!(end <= hello(1).geometry.ring_bytes(), "a batch outside the peer's ring");
            let departure = emission.departure;
            self.connection.posted(departure, 1);
        }
        if self.connection.credit_due(1).is_some() {
            self.connection.credit_posted();
            self.connection.credit_arrived();
        }
    }

    fn check(&self) {
        let usage = self.connection.usage();
        let geometry = hello(1).geometry;
        assert!(usage.ring_lines <= geometry.ring_lines().into(), "{usage:?}");
        assert!(usage.call_budget_lines <= geometry.response_lines(), "{usage:?}");
        assert!(usage.served_budget_lines <= geometry.response_lines(), "{usage:?}");
        assert!(self.connection.unhandled() <= hello(1).batches_max.into());
        assert!(self.connection.serving() <= usize::from(CALLS));
        assert!(self.requests.len() <= usize::from(CALLS));
    }
}
