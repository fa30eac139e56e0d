//! Any bytes in a send ring: the engine completes or flushes what was posted, and stops there.

use memory::sync::{AtomicU32, Ordering};
use verbs::{RtsAttr, Transport};
use wire::{
    cqe::{Cqe, Syndrome},
    ids::{Lid, Qpn},
    wqe::{self, Sge, WQEBB_BYTES},
};

use super::Input;
use crate::nic::{
    engine::{
        Activity, Arrival, Carried, Chunk, Completed, Order, Port, Reply, Request, Requester,
        Scratch, SendState, Sequence, respond, respond_to_plain,
    },
    qp::ring::SendRing,
    rig::{HeapMemory, LEN, Rig, SENDER, Shape},
};

const LOG_BLOCKS: u8 = 4;
const BLOCKS: u16 = 1 << LOG_BLOCKS;

/// Reaches one peer, and moves its clock on by itself.
struct FuzzPort<'a> {
    local: HeapMemory,
    peer: &'a mut Rig,
    strict: Option<Input<'a>>,
    is_plain: bool,
    now_ns: u64,
    completed: Vec<Completed>,
    fell: bool,
}

impl Port for FuzzPort<'_> {
    fn lid(&self) -> Lid {
        SENDER.0
    }

    fn local(&mut self, sge: &Sge, write: bool) -> Result<Chunk, Syndrome> {
        self.local.sge(sge, write).map_err(|_| Syndrome::LocalProtection)
    }

    fn destination(&self, av: &wqe::Av) -> Lid {
        Lid::new(av.rlid)
    }

    fn carry(&mut self, to: Lid, request: &Request, local: &[Chunk]) -> Reply {
        if to.get().is_multiple_of(4) {
            return Reply::Connecting;
        }
        let target = self.peer.target();
        if !target.is_current() {
            return Reply::Silence;
        }
        let (memory, order) = (&mut self.peer.memory, Order::Ascending);
        respond(Arrival { request, local, target: &target, memory, order }).reply
    }

    fn answers_later(&self) -> bool {
        false
    }

    fn send(&mut self, _: Lid, _: &Request, _: Sequence, _: &[Chunk]) {
        unreachable!("answers do not come later")
    }

    fn new_connection(&mut self) -> u32 {
        unreachable!("answers do not come later")
    }

    fn carry_plain(&mut self, to: Lid, request: Request, payload: Chunk) -> Carried {
        if to.get().is_multiple_of(4) {
            return Carried::Declined;
        }
        let target = self.peer.target();
        respond_to_plain(request, payload, &target, &mut self.peer.memory, |_| {})
    }

    fn complete(&mut self, completed: &Completed) {
        self.completed.push(*completed);
    }

    fn fell(&mut self) {
        self.fell = true;
    }

    fn defers(&mut self) -> bool {
        self.strict.as_mut().is_some_and(|bits| bits.byte() & 1 == 1)
    }

    fn is_plain(&self) -> bool {
        self.is_plain
    }

    fn resumes(&mut self) -> bool {
        self.strict.as_mut().is_none_or(|bits| bits.is_empty() || bits.byte() & 1 == 1)
    }

    fn malformed(&mut self, _counter: u16, _cause: &'static str) {}

    fn now_ns(&mut self) -> u64 {
        self.now_ns += 1 << 34;
        self.now_ns
    }
}

/// What is left when all is done: of the sender, and of its peer.
#[derive(Debug, PartialEq)]
struct Outcome {
    completed: Vec<Completed>,
    arrived: Vec<Cqe>,
    memory: Vec<u8>,
    receives_taken: u64,
}

/// The first bytes choose transport, mode and how much is posted; the rest fills the ring. A WQE may
/// get the right index and number, which random bytes hardly ever have.
///
/// # Panics
///
/// If the engine does not end, completes too much, or overtakes the doorbell record; or if the short
/// way leads elsewhere than the long one.
pub fn send_ring(bytes: &[u8]) {
    let is_strict = bytes.first().is_some_and(|choice| choice & 0x80 != 0);
    let outcome = run(bytes, is_strict, false);
    if !is_strict {
        assert_eq!(run(bytes, false, true), outcome, "by the short way and by the long one");
    }
}

fn run(bytes: &[u8], is_strict: bool, is_plain: bool) -> Outcome {
    let mut input = Input(bytes);
    let [choice, posted, mend] = [(); 3].map(|()| input.byte());
    let transport = [Transport::Rc, Transport::Ud, Transport::Dci][usize::from(choice % 3)];
    let posted = u16::from(posted) % (BLOCKS + 1);
    let ring = SendRing::create(LOG_BLOCKS).expect("memory for a ring");
    let shape = match transport {
        Transport::Rc => Shape::RC,
        Transport::Ud => Shape { transport: Transport::Ud, ..Shape::RC },
        _ => Shape { transport: Transport::Dct, ..Shape::SRQ },
    };
    let mut peer = Rig::new(shape);
    for number in 0..3 {
        let list = [(0, 64), (1000, 4096 - 1000)];
        peer.post(&list[..if number == 1 { 1 } else { 2 }]);
    }
    let qpn = SENDER.1;
    fill(&ring, &mut input, posted, mend, qpn);

    let (mut requester, mut scratch) = (Requester::new(transport, qpn, false), Scratch::new());
    requester.connect((Lid::new(1), peer.qpn));
    requester.start(Some(&RtsAttr { rnr_retry: 2, retry_count: 1, ..RtsAttr::default() }));
    let strict = is_strict.then_some(Input(bytes));
    let local = HeapMemory::new(verbs::Access::all());
    let (completed, now_ns, fell) = (Vec::new(), 0, false);
    let mut port = FuzzPort { local, peer: &mut peer, strict, is_plain, now_ns, completed, fell };
    let mut activity = Activity::More;
    for _ in 0..10_000 {
        activity = requester.advance(posted, &ring, &mut port, &mut scratch, 8);
        if activity == Activity::Idle {
            break;
        }
        if port.fell {
            requester.set_state(SendState::Flushing);
        }
    }
    assert_eq!(activity, Activity::Idle, "it never ends");
    assert_eq!(requester.next(), posted, "it overtook the doorbell record");
    let (completed, fell) = (port.completed, port.fell);
    check(&completed, posted, fell);
    let arrived = core::iter::from_fn(|| peer.poll()).collect();
    let receives_taken = peer.rq.claims().taken();
    Outcome { completed, arrived, memory: peer.memory.read(0, LEN), receives_taken }
}

/// No more completions than WQEs, a failure if the queue pair fell, and flushes after it.
fn check(completed: &[Completed], posted: u16, fell: bool) {
    assert!(completed.len() <= usize::from(posted), "{completed:?}");
    let failed = completed.iter().position(|completed| completed.failure.is_some());
    assert_eq!(failed.is_some(), fell, "{completed:?}");
    if let Some(failed) = failed {
        let rest = &completed[failed + 1..];
        let flushed = rest.iter().all(|done| done.failure == Some(Syndrome::Flushed));
        assert!(flushed, "after the failure: {rest:?}");
    }
}

fn fill(ring: &SendRing, input: &mut Input<'_>, posted: u16, mend: u8, qpn: Qpn) {
    for block in 0..BLOCKS {
        let mut words: [u64; 8] = core::array::from_fn(|_| input.word());
        if mend & 1 == 0 {
            // Control segment: opcode and index, then number and length, both big-endian.
            let bytes = words[0].to_ne_bytes();
            let opcode =
                [0x00, 0x08, 0x09, 0x0a, 0x0b, 0x10, 0x11, 0x12][usize::from(bytes[3] & 7)];
            let [index_high, index_low] = block.to_be_bytes();
            let [_, number @ ..] = qpn.get().to_be_bytes();
            let octowords = if mend & 2 == 0 { bytes[7] % 8 } else { bytes[7] };
            words[0] = u64::from_ne_bytes([
                0, index_high, index_low, opcode, number[0], number[1], number[2], octowords,
            ]);
        }
        for (at, word) in words.into_iter().enumerate() {
            let offset = usize::from(block) * WQEBB_BYTES + at * 8;
            // SAFETY: inside the ring.
            let slot = unsafe { ring.ring().add(offset) }.cast::<u64>();
            // SAFETY: nobody else uses the ring yet.
            unsafe { slot.write(word) };
        }
    }
    // SAFETY: the record lies behind the ring and is accessed as an atomic.
    let record = unsafe { ring.dbrec().cast::<AtomicU32>().as_ref() };
    record.store(wire::doorbell::counter_word(posted), Ordering::Release);
}
