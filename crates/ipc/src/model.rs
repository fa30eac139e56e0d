//! The calls of a client and the calls of a server against a model, on heap memory: also under
//! Miri.

use std::{collections::HashMap, sync::Arc};

use memory::{Filler, Region, sync::thread};
use proptest::{collection::vec, prelude::*};

use crate::{
    endpoint::server::{
        call_table::{CallTable, Taken},
        large::LargeCopies,
    },
    endpoint::{
        client::calls::{CallId, ClientCalls},
        half::{Half, HalfShape},
        status::{CallError, CallOutcome, LentOutcome, ResponseKind},
    },
    ring::Filled,
};

#[path = "../tests/image_check/mod.rs"]
mod image_check;

const OPS_MAX: usize = if cfg!(miri) { 30 } else { 400 };
const CASES: u32 = if cfg!(miri) { 4 } else { 200 };
const TIMEOUT_NS: u64 = 10;

fn pair(depth_log2: u32, position: u64) -> (ClientCalls<u64>, CallTable) {
    let up = HalfShape::new(depth_log2, 200).unwrap();
    let down = HalfShape::new(depth_log2, 100).unwrap();
    let map = |shape: HalfShape| Arc::new(Region::heap(shape.len_bytes()).unwrap());
    let (up_memory, down_memory) = (map(up), map(down));
    let half = |memory: &Arc<Region>, shape| Half::new(Arc::clone(memory), shape);
    let calls = CallTable::new(half(&up_memory, up), half(&down_memory, down), position);
    (
        ClientCalls::new(half(&up_memory, up), half(&down_memory, down), position, u64::MAX - 2),
        calls,
    )
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Submit {
        len: usize,
    },
    Cancel {
        nth: usize,
    },
    Take,
    Reply {
        nth: usize,
        len: usize,
    },
    Receive {
        is_lent: bool,
    },
    /// Time passes.
    Tick,
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => prop_oneof![0usize..64, 0usize..=201].prop_map(|len| Op::Submit { len }),
        1 => any::<usize>().prop_map(|nth| Op::Cancel { nth }),
        4 => Just(Op::Take),
        4 => (any::<usize>(), prop_oneof![0usize..64, 0usize..=100])
            .prop_map(|(nth, len)| Op::Reply { nth, len }),
        4 => any::<bool>().prop_map(|is_lent| Op::Receive { is_lent }),
        1 => Just(Op::Tick),
    ]
}

fn message(number: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| number.wrapping_mul(31).wrapping_add(i).to_le_bytes()[0]).collect()
}

/// The parts of a message, some of them empty.
fn parts(message: &[u8]) -> [&[u8]; 4] {
    let (head, rest) = message.split_at(message.len().min(4));
    let (middle, tail) = rest.split_at(rest.len() / 3);
    [head, b"", middle, tail]
}

/// The specification as a model, kept as simple as possible.
#[derive(Default)]
struct Model {
    next: u64,
    now_ns: u64,
    /// Calls that somebody waits for, in the order of submission.
    waiting: Vec<(CallId, u64)>,
    /// Requests that the server has not taken, in order.
    sent: std::collections::VecDeque<(u64, usize)>,
    /// Requests that the server owes an answer, with what they were.
    taken: Vec<(Taken, u64)>,
    /// Responses that the client has not received, in order.
    answered: std::collections::VecDeque<(u64, usize)>,
    deadlines: HashMap<u64, u64>,
}

impl Model {
    fn apply(&mut self, op: Op, core: &mut ClientCalls<u64>, calls: &mut CallTable) {
        match op {
            Op::Submit { len } => self.submit(len, core),
            Op::Cancel { nth } if !self.waiting.is_empty() => {
                let (id, number) = self.waiting.remove(nth % self.waiting.len());
                assert_eq!((core.abandon(id), core.abandon(id)), (Some(number), None));
            }
            Op::Take => {
                let mut copy = [0; 200];
                let taken =
                    calls.take(&mut copy, &mut LargeCopies::default()).expect("an honest client");
                assert_eq!(taken.is_some(), !self.sent.is_empty());
                if let (Some(taken), Some((number, len))) = (taken, self.sent.pop_front()) {
                    assert_eq!(copy[..taken.len_bytes], message(number, len));
                    self.taken.push((taken, number));
                }
            }
            Op::Reply { nth, len } if !self.taken.is_empty() => {
                let (taken, number) = self.taken.remove(nth % self.taken.len());
                let response = message(!number, len);
                let Taken { call, serial, .. } = taken;
                let replied = match len % 3 {
                    0 => calls.reply(taken, &response),
                    1 => calls.answer(call, serial, ResponseKind::Ok, &parts(&response)[..]),
                    _ => {
                        let fill = |filler: &mut Filler<'_>| filler.put(&response).unwrap();
                        let filled = Filled::behind(&[], len, fill);
                        calls.answer(call, serial, ResponseKind::Ok, &filled)
                    }
                };
                replied.expect("taken");
                assert!(calls.reply(taken, b"").is_err(), "answered once");
                self.answered.push_back((number, len));
            }
            Op::Receive { is_lent } => self.receive(is_lent, core),
            Op::Tick => {
                core.stamp(self.now_ns);
                self.waiting.iter().for_each(|(_, number)| {
                    self.deadlines.entry(*number).or_insert(self.now_ns + TIMEOUT_NS);
                });
                self.now_ns += TIMEOUT_NS / 2;
                let mut expired = Vec::new();
                core.expire(self.now_ns, &mut |number, outcome| {
                    assert_eq!(outcome, Err(CallError::Deadline.into()));
                    expired.push(number);
                });
                let (now_ns, deadlines) = (self.now_ns, &self.deadlines);
                let is_late = |number: &u64| deadlines[number] <= now_ns;
                expired.sort_unstable();
                let expected: Vec<_> =
                    self.waiting.iter().map(|(_, number)| *number).filter(is_late).collect();
                assert_eq!(expired, expected);
                self.waiting.retain(|(_, number)| !is_late(number));
            }
            Op::Cancel { .. } | Op::Reply { .. } => {}
        }
        assert_eq!(core.in_flight(), self.waiting.len());
        assert_eq!(calls.unanswered(), self.taken.len());
    }

    fn submit(&mut self, len: usize, core: &mut ClientCalls<u64>) {
        let in_use = self.sent.len() + self.taken.len() + self.answered.len();
        let number = self.next;
        let request = message(number, len);
        let submitted = match len % 3 {
            0 => core.submit(&*request, TIMEOUT_NS, number),
            1 => core.submit(&parts(&request)[..], TIMEOUT_NS, number),
            _ => {
                let [head, _, middle, tail] = parts(&request);
                let fill = |filler: &mut Filler<'_>| {
                    filler.put(middle).and_then(|()| filler.put(tail)).unwrap();
                };
                let (head, len) = ([head], len - head.len());
                core.submit(&Filled::behind(&head, len, fill), TIMEOUT_NS, number)
            }
        };
        match submitted {
            Ok(id) => {
                assert!(len <= 200 && in_use < core.depth());
                self.waiting.push((id, number));
                self.sent.push_back((number, len));
                self.next += 1;
            }
            Err((CallError::TooLarge { .. }, context)) => assert_eq!((len, context), (201, number)),
            Err((error, _)) => {
                assert_eq!((error, in_use), (CallError::Full { depth: in_use }, core.depth()));
            }
        }
    }

    /// The server is gone, which was introduced: answers that it gave arrive, and of all other calls is told whether it
    /// had taken them.
    fn end(&mut self, core: &mut ClientCalls<u64>) {
        let taken = core.taken_position();
        while !self.answered.is_empty() {
            self.receive(false, core);
        }
        let mut ended = Vec::new();
        let count = core.fail_all(CallError::ServerGone, Some(taken), &mut |number, outcome| {
            ended.push((number, outcome.unwrap_err().error));
        });
        ended.sort_unstable_by_key(|(number, _)| *number);
        let expected = self.waiting.iter().map(|(_, number)| {
            let is_sent = self.sent.iter().any(|(sent, _)| sent == number);
            (*number, if is_sent { CallError::NotTaken } else { CallError::ServerGone })
        });
        let mut expected: Vec<_> = expected.collect();
        expected.sort_unstable_by_key(|(number, _)| *number);
        assert_eq!((&ended, count), (&expected, expected.len()));
    }

    fn receive(&mut self, is_lent: bool, core: &mut ClientCalls<u64>) {
        let mut received = None;
        let ended = if is_lent {
            core.receive_lent(&mut |number, outcome| {
                received = Some((number, outcome.expect("answered").to_vec()));
            })
        } else {
            core.receive(&mut |number, outcome| {
                received = Some((number, outcome.expect("answered").to_vec()));
            })
        };
        assert_eq!(ended.expect("an honest server"), received.is_some());
        // Responses to calls that nobody waits for are skipped.
        while let Some((number, len)) = self.answered.pop_front() {
            if let Some(index) = self.waiting.iter().position(|(_, waiting)| *waiting == number) {
                self.waiting.remove(index);
                assert_eq!(received, Some((number, message(!number, len))));
                return;
            }
        }
        assert_eq!(received, None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: CASES, failure_persistence: None, ..Default::default()
    })]

    #[test]
    fn calls_agree_with_the_model(
        depth_log2 in 0u32..4,
        before_wrap in 0u64..40,
        ops in vec(any_op(), 0..OPS_MAX),
    ) {
        let (mut core, mut calls) = pair(depth_log2, u64::MAX - before_wrap);
        let mut model = Model::default();
        for op in ops {
            model.apply(op, &mut core, &mut calls);
        }
        model.end(&mut core);
    }

    #[test]
    fn fault_b11_any_image_is_refused_or_understood(bytes in vec(any::<u8>(), 0..OPS_MAX)) {
        image_check::check(&bytes);
    }
}

/// The same over two threads, for Miri to see unordered accesses.
#[test]
fn pitfall_20_two_threads_exchange_what_they_sent() {
    let (mut core, mut table) = pair(1, u64::MAX - 5);
    let calls: u64 = if cfg!(miri) { 12 } else { 5000 };
    let server = thread::spawn(move || {
        let mut copy = [0; 200];
        while table.taken() < calls {
            match table.take(&mut copy, &mut LargeCopies::default()).expect("an honest client") {
                Some(taken) => {
                    let response = &copy[..taken.len_bytes.min(100)];
                    let fill = |filler: &mut Filler<'_>| filler.put(response).unwrap();
                    let filled = Filled::behind(&[], response.len(), fill);
                    table.answer(taken.call, taken.serial, ResponseKind::Ok, &filled).unwrap();
                }
                None => thread::yield_now(),
            }
        }
    });
    let (mut sent, mut received) = (0, 0);
    while received < calls {
        let len = usize::try_from(sent * 17 % 200).unwrap();
        if sent < calls && core.submit(&*message(sent, len), TIMEOUT_NS, sent).is_ok() {
            sent += 1;
        }
        let is_lent = received % 2 == 0;
        let mut check = |number: u64, response: &[u8]| {
            let len = usize::try_from(number * 17 % 200).unwrap();
            assert_eq!(response, &message(number, len)[..len.min(100)]);
            received += 1;
        };
        let ended = if is_lent {
            core.receive_lent(&mut |number, outcome: LentOutcome<'_>| {
                check(number, &outcome.unwrap().to_vec());
            })
        } else {
            core.receive(&mut |number, outcome: CallOutcome<'_>| check(number, outcome.unwrap()))
        };
        if !ended.expect("an honest server") {
            thread::yield_now();
        }
    }
    server.join().unwrap();
}
