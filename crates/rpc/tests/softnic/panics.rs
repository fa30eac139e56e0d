//! Callbacks that panic, in a program that catches it and goes on polling.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
};

use copyrpc_rpc::{
    Body, BodyForm, BodyPiece, Call, CallEnd, CallError, CloseReason, Config, Delivery, Fetch,
    Handler, PeerId, Request, Status, Token, TransportKind, Worker,
};
use softnic::Nic;

use crate::rig::{fabric, poll_until, shapes, soft, tight};

/// Answers with the body.
const ECHO: u16 = 1;
/// Panics before it answers.
const PANIC: u16 = 2;
/// Holds the request and answers it later.
const HOLD: u16 = 3;
/// Answers, then panics.
const LATE_PANIC: u16 = 4;

#[derive(Default)]
struct Fragile {
    /// Bodies of requests, in the order of their callbacks, by caller.
    served: BTreeMap<u16, Vec<u64>>,
    held: Vec<Token>,
    ended: BTreeMap<u64, (Status, Vec<u8>)>,
    closed: usize,
    /// Responses with such cookies panic, and so does `closed`.
    panics_at: Option<u64>,
    /// Answers by rendezvous are told in pieces, and such pieces panic, counted over all calls.
    piece_panics_at: Option<usize>,
    /// Where the pieces began that were told, by call.
    pieces: BTreeMap<u64, Vec<usize>>,
}

impl Handler<Nic> for Fragile {
    fn request(&mut self, worker: &mut Worker<Nic>, request: Request, body: Body<'_, Nic>) {
        let body = &*body.bytes();
        let Request { mut token, method, .. } = request;
        let number = u64::from_le_bytes(body[..8].try_into().unwrap());
        self.served.entry(token.peer().slot()).or_default().push(number);
        match method {
            PANIC => panic!("the program fails"),
            HOLD => {
                worker.hold(&mut token);
                self.held.push(token);
            }
            method => {
                worker.reply(token, Status::Ok, body).unwrap();
                assert!(method != LATE_PANIC, "the program fails");
            }
        }
    }

    fn ended(&mut self, _: &mut Worker<Nic>, cookie: u64, end: CallEnd<'_, Nic>) {
        let body = match end {
            CallEnd::InPieces(len_bytes) => vec![0; len_bytes],
            CallEnd::Answered(..) | CallEnd::Unanswered(_) => end.bytes().into_owned(),
        };
        let before = self.ended.insert(cookie, (end.status(), body));
        assert!(before.is_none(), "call {cookie} ended twice");
        assert!(
            self.panics_at.is_none_or(|every| !cookie.is_multiple_of(every)),
            "the program fails"
        );
    }

    fn wants(&mut self, _: Fetch) -> Delivery {
        let is_in_pieces = self.piece_panics_at.is_some();
        let form = if is_in_pieces { BodyForm::Pieces } else { BodyForm::Owned };
        Delivery { form, ..Delivery::default() }
    }

    fn piece(&mut self, cookie: u64, piece: &BodyPiece<'_, Nic>) {
        assert!(!self.ended.contains_key(&cookie), "a piece of call {cookie}, which has ended");
        self.pieces.entry(cookie).or_default().push(piece.range().start);
        let told = self.pieces.values().map(Vec::len).sum::<usize>();
        let panics_at = self.piece_panics_at.unwrap_or(usize::MAX);
        assert!(!told.is_multiple_of(panics_at), "the program fails");
    }

    fn closed(&mut self, _: &mut Worker<Nic>, _: PeerId, _: CloseReason) {
        self.closed += 1;
        assert!(self.panics_at.is_none(), "the program fails");
    }
}

struct Node {
    worker: Worker<Nic>,
    program: Fragile,
    panics: usize,
    made: BTreeMap<u16, Vec<u64>>,
    next: u64,
}

impl Node {
    fn open(fabric: &str, config: &Config) -> Self {
        let nic = softnic::open(&soft(fabric, None)).unwrap();
        let worker = Worker::open(nic, config.clone(), os::clock::now_ns()).unwrap();
        let (program, made) = (Fragile::default(), BTreeMap::new());
        Self { worker, program, panics: 0, made, next: 0 }
    }

    fn poll(&mut self) {
        let Self { worker, program, panics, .. } = self;
        let poll = || worker.poll(os::clock::now_ns(), program);
        *panics += usize::from(catch_unwind(AssertUnwindSafe(poll)).is_err());
        for token in program.held.drain(..) {
            let mut body = Vec::new();
            assert!(worker.held_body(&token, &mut body));
            worker.reply(token, Status::Ok, &body).unwrap();
        }
    }

    fn call(&mut self, to: PeerId, method: u16, len_bytes: usize) -> bool {
        let cookie = self.next;
        let mut body = vec![0x5a; len_bytes];
        body[..8].copy_from_slice(&cookie.to_le_bytes());
        let call = Call { method, cookie, response_bytes: len_bytes, ..Call::default() };
        match self.worker.call(to, &call, &body) {
            Ok(_) => {
                self.made.entry(to.slot()).or_default().push(cookie);
                self.next += 1;
                true
            }
            Err(CallError::Busy(_) | CallError::NoMemory { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    }
}

#[track_caller]
fn until(nodes: &mut [&mut Node], mut is_done: impl FnMut(&[&mut Node]) -> bool) {
    poll_until("what nodes that panic do", || {
        is_done(nodes) || {
            nodes.iter_mut().for_each(|node| node.poll());
            false
        }
    });
}

fn pair(config: &Config) -> (Node, Node, Vec<PeerId>) {
    let fabric = fabric();
    let (mut a, mut b) = (Node::open(&fabric, config), Node::open(&fabric, config));
    let peers = (0..3).map(|_| {
        let (to_b, from_a) = a.worker.invite().unwrap();
        let (to_a, from_b) = b.worker.invite().unwrap();
        a.worker.connect(to_b, &from_b).unwrap();
        b.worker.connect(to_a, &from_a).unwrap();
        to_b
    });
    let peers = peers.collect();
    (a, b, peers)
}

/// Fault A10: handlers panic in the middle of batches, with more batches behind. Those requests are
/// answered `Internal`; every other one is served once, in order, with the right answer. Rings and tables
/// this small would soon be full if a line, a lease or a slot were lost.
#[test]
fn fault_a10_a_handler_that_panics_loses_nothing_else() {
    for config in shapes() {
        let (mut a, mut b, peers) = pair(&config);
        let methods = [ECHO, PANIC, HOLD, ECHO, LATE_PANIC, ECHO, ECHO];
        let mut method_of = Vec::new();
        for _ in 0..40 {
            for to in &peers {
                for method in methods {
                    if a.call(*to, method, 24) {
                        method_of.push(method);
                    }
                }
            }
            let made = method_of.len();
            until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.len() == made);
        }
        let of = |which| method_of.iter().filter(|method| **method == which).count();
        assert_eq!(b.panics, of(PANIC) + of(LATE_PANIC));
        assert!(b.panics >= 80, "{} of {}", b.panics, method_of.len());
        assert_eq!(a.panics, 0);
        assert_eq!(b.worker.stats().tokens_dropped, of(PANIC) as u64);
        for (cookie, (status, body)) in &a.program.ended {
            let method = method_of[usize::try_from(*cookie).unwrap()];
            let expected = if method == PANIC { Status::Internal } else { Status::Ok };
            assert_eq!(*status, expected, "call {cookie} of {config:?}");
            assert!(method == PANIC && body.is_empty() || body[..8] == cookie.to_le_bytes());
        }
        let served: Vec<_> = b.program.served.values().collect();
        assert_eq!(served, a.made.values().collect::<Vec<_>>(), "each once and in order");
        assert_eq!((a.program.closed, b.program.closed), (0, 0));
    }
}

/// The same of callbacks that tell how calls end, by answers and by the end of their connection.
#[test]
fn a_response_callback_that_panics_is_told_once_and_others_too() {
    for config in shapes() {
        let (mut a, mut b, peers) = pair(&config);
        a.program.panics_at = Some(3);
        for _ in 0..40 {
            for to in &peers {
                while a.call(*to, ECHO, 24) {}
            }
            let made = usize::try_from(a.next).unwrap();
            until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.len() == made);
        }
        assert!(a.program.ended.values().all(|(status, _)| *status == Status::Ok));
        for to in &peers {
            while a.call(*to, ECHO, 24) {}
            a.worker.close(*to);
        }
        let made = usize::try_from(a.next).unwrap();
        until(&mut [&mut a], |nodes| {
            let program = &nodes[0].program;
            (program.ended.len(), program.closed) == (made, 3)
        });
        assert_eq!(a.panics, made.div_ceil(3) + 3);
    }
}

/// Bodies that come by rendezvous: the memory that they were in is not lost.
#[test]
fn a_handler_of_large_bodies_that_panics_keeps_their_memory() {
    for transport in [TransportKind::Rc, TransportKind::Dc] {
        // Each side has registered memory for two bodies of a peer.
        let config = Config { transport, large_memory_bytes: 1 << 16, ..tight() };
        let (mut a, mut b, peers) = pair(&config);
        let mut panics = 0;
        for _ in 0..20 {
            for method in [PANIC, LATE_PANIC] {
                panics += usize::from(a.call(peers[0], method, 1 << 15));
                let made = usize::try_from(a.next).unwrap();
                until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.len() == made);
            }
        }
        assert_eq!((b.panics, panics), (40, 40));
        for (cookie, (status, body)) in &a.program.ended {
            let expected =
                if cookie % 2 == 0 { (Status::Internal, 0) } else { (Status::Ok, 1 << 15) };
            assert_eq!((*status, body.len()), expected);
        }
    }
}

/// Rule C6.6: a callback of a piece that panics is not told that piece again, is told all others, and its call
/// ends as if nothing had been.
#[test]
fn a_callback_of_a_piece_that_panics_misses_no_other() {
    let len_bytes = 20 << 17;
    for transport in [TransportKind::Rc, TransportKind::Dc] {
        let (mut a, mut b, peers) = pair(&Config { transport, ..tight() });
        a.program.piece_panics_at = Some(3);
        for calls in 1..=6 {
            assert!(a.call(peers[calls % 3], ECHO, len_bytes));
            until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.len() == calls);
        }
        let expected: Vec<_> = (0..len_bytes).step_by(1 << 17).collect();
        assert_eq!((a.panics, b.panics), (6 * expected.len() / 3, 0));
        for (cookie, (status, body)) in &a.program.ended {
            assert_eq!((*status, body.len()), (Status::Ok, len_bytes), "call {cookie}");
            a.program.pieces.get_mut(cookie).unwrap().sort_unstable();
            assert_eq!(a.program.pieces[cookie], expected, "pieces of call {cookie}");
        }
        until(&mut [&mut a, &mut b], |nodes| {
            nodes.iter().all(|node| node.worker.large_memory().used_bytes == 0)
        });
    }
}

/// What fills a body panics: the call, or the answer, is made all the same, and is the only one that is
/// wrong.
#[test]
fn what_fills_a_body_may_panic() {
    let (mut a, mut b, peers) = pair(&tight());
    for len_bytes in [24, 1 << 15] {
        for _ in 0..20 {
            let cookie = a.next;
            a.next += 1;
            let call = Call { method: ECHO, cookie, response_bytes: 24, ..Call::default() };
            let fill = |to: &mut [u8]| {
                to[..8].copy_from_slice(&cookie.to_le_bytes());
                panic!("the program fails");
            };
            let make = || a.worker.call_with(peers[0], &call, len_bytes, fill).map(drop);
            assert!(catch_unwind(AssertUnwindSafe(make)).is_err());
            assert!(a.call(peers[0], ECHO, 24));
            let made = usize::try_from(a.next).unwrap();
            until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.len() == made);
        }
    }
    assert!(a.program.ended.values().all(|(status, _)| *status == Status::Ok));
    assert_eq!((a.panics, b.panics), (0, 0));
    let mut served = b.program.served.remove(&0).unwrap();
    served.sort_unstable();
    assert_eq!(served, (0..a.next).collect::<Vec<_>>(), "what was written arrives");
}
