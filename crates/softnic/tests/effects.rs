//! What the driver encodes is what the engine does: any requests, compared with a plain model.
#![cfg(not(any(loom, miri)))]

mod common;

use proptest::prelude::*;
use verbs::{
    Completion, CompletionKind, CompletionQueue as _, CqConfig, DcKey, Destination,
    MemoryRegion as _, Nic as _, Op, Payload, QpConfig, QueuePair as _, RecvSize, SendFlags,
    SendRequest, SendSize, Sge, SharedReceiveQueue as _, SrqConfig, Transport,
};

use common::{End, Mr, QKEY, SENDS, Srq, completion, nic, pair, target, until};

/// Bytes of the region at each end. Receives use the last eighth of the target's.
const LEN: usize = 8192;
const RECEIVES_AT: usize = LEN - RECEIVE_BYTES;
const RECEIVE_BYTES: usize = 1024;
/// Blocks of the send queue.
/// Bytes before a datagram.
const GRH_BYTES: usize = 40;

#[derive(Clone, Debug)]
enum Kind {
    Send,
    Write,
    Read,
    CompareSwap { hit: bool, swap: u64 },
    FetchAdd { add: u64 },
    Nop,
}

#[derive(Clone, Debug)]
struct Step {
    kind: Kind,
    /// Offset and length of local pieces.
    parts: Vec<(usize, usize)>,
    remote: usize,
    imm: Option<u32>,
    inline: bool,
    signaled: bool,
    /// Ring after this one; else with a later one.
    ring: bool,
}

fn any_step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        Just(Kind::Send),
        Just(Kind::Write),
        Just(Kind::Read),
        (any::<bool>(), any::<u64>()).prop_map(|(hit, swap)| Kind::CompareSwap { hit, swap }),
        any::<u64>().prop_map(|add| Kind::FetchAdd { add }),
        Just(Kind::Nop),
    ];
    let len = prop_oneof![0usize..9, 55usize..66, Just(0), 200usize..250];
    let parts = prop::collection::vec((0usize..LEN / 2, len), 0..=4);
    let flags = any::<[bool; 3]>();
    let imm = prop::option::of(any::<u32>());
    (kind, parts, 0usize..RECEIVES_AT - 1024, imm, flags).prop_map(
        |(kind, parts, remote, imm, [inline, signaled, ring])| {
            let is_small = parts.iter().map(|(_, len)| len).sum::<usize>() <= 64;
            let inline = inline && is_small && matches!(kind, Kind::Send | Kind::Write);
            Step { kind, parts, remote, imm, inline, signaled, ring }
        },
    )
}

/// Two ends, their memory, and what it should hold.
struct World {
    ends: [End; 2],
    regions: [Mr; 2],
    expected: [Vec<u8>; 2],
    arrived: Vec<Completion>,
    to: Option<Destination>,
    /// Bytes before a received message.
    header: usize,
    /// Where the second end receives, if not in its queue pair.
    srq: Option<Srq>,
    /// Of every request.
    flags: SendFlags,
}

impl World {
    fn new(ends: [End; 2], to: Option<Destination>) -> Self {
        let regions = [0, 1].map(|nth: usize| ends[nth].mr(LEN));
        let expected =
            [3usize, 5].map(|seed| (0..LEN).map(|i| (i * seed).to_le_bytes()[0]).collect());
        for (region, bytes) in regions.iter().zip(&expected) {
            let bytes: &Vec<u8> = bytes;
            region.write(0, bytes);
        }
        let header = if matches!(to, Some(Destination::Ud { .. })) { GRH_BYTES } else { 0 };
        let (srq, flags) = (None, SendFlags::empty());
        Self { ends, regions, expected, arrived: Vec::new(), to, header, srq, flags }
    }

    fn word(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.expected[1][at..at + 8].try_into().unwrap())
    }

    /// Posts `step`, and does to the model what it is going to do.
    fn run(&mut self, step: &Step) {
        let is_read = matches!(step.kind, Kind::Read);
        // READ results must not overlap, or their order would matter: one piece after another.
        let mut next = LEN / 2;
        let place = |&(offset, len): &(usize, usize)| {
            let offset = if is_read { next } else { offset };
            next += len;
            (offset, len)
        };
        let parts: Vec<_> = step.parts.iter().map(place).collect();
        let gather: Vec<Sge> =
            parts.iter().map(|&(offset, len)| self.regions[0].sge(offset, len)).collect();
        let bytes: Vec<&[u8]> =
            parts.iter().map(|&(offset, len)| &self.expected[0][offset..offset + len]).collect();
        let data = bytes.concat();
        let payload = if step.inline { Payload::Inline(&bytes) } else { Payload::Gather(&gather) };
        let aligned = step.remote & !7;
        let (remote, word) = (self.regions[1].remote(step.remote), self.regions[1].remote(aligned));
        let into = self.regions[0].sge(LEN - 8, 8);
        let old = self.word(aligned);
        let imm = step.imm;
        let op = match step.kind {
            Kind::Send => Op::Send { payload, imm },
            Kind::Write => Op::Write { remote, payload, imm },
            Kind::Read => Op::Read { remote, into: &gather },
            Kind::CompareSwap { hit, swap } => {
                let compare = if hit { old } else { !old };
                Op::CompareSwap { remote: word, into, compare, swap }
            }
            Kind::FetchAdd { add } => Op::FetchAdd { remote: word, into, add },
            Kind::Nop => Op::Nop,
        };
        let receives =
            matches!(step.kind, Kind::Send) || matches!(step.kind, Kind::Write) && imm.is_some();
        if receives {
            let half = RECEIVE_BYTES / 2;
            let parts = [(RECEIVES_AT, half), (RECEIVES_AT + half, half)];
            let scatter = parts.map(|(offset, len)| self.regions[1].sge(offset, len));
            match &mut self.srq {
                Some(srq) => {
                    srq.post(&scatter).unwrap();
                    srq.ring();
                }
                None => {
                    self.ends[1].qp.post_recv(&scatter).unwrap();
                    self.ends[1].qp.ring_recv();
                }
            }
        }
        let flags = if step.signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        let flags = flags | self.flags;
        let request = SendRequest { op, flags, to: self.to.as_ref() };
        self.ends[0].qp.post_send(&request).unwrap();
        drop(bytes);
        self.model(step, &parts, &data, old);
        if step.ring || receives || is_read || self.ends[0].qp.send_free() < 10 {
            self.ends[0].qp.ring_send();
        }
        // The first ring may find the peer's port not there yet. Half of the queue may stay taken by
        // requests that nobody asked a completion for.
        until("room in the send queue", || {
            self.collect();
            (self.ends[0].qp.send_free() >= SENDS / 2).then_some(())
        });
        if receives {
            self.expect_arrival(step, data.len());
        }
        self.collect();
    }

    /// What `step` does, to the bytes that are expected.
    fn model(&mut self, step: &Step, parts: &[(usize, usize)], data: &[u8], old: u64) {
        let target = match step.kind {
            Kind::Send => RECEIVES_AT + self.header,
            _ => step.remote,
        };
        match step.kind {
            Kind::Send | Kind::Write => {
                self.expected[1][target..target + data.len()].copy_from_slice(data);
            }
            Kind::Read => {
                let mut from = step.remote;
                for &(offset, len) in parts {
                    let read = self.expected[1][from..from + len].to_vec();
                    self.expected[0][offset..offset + len].copy_from_slice(&read);
                    from += len;
                }
            }
            Kind::CompareSwap { hit, swap } => {
                self.atomic(step.remote & !7, old, if hit { swap } else { old })
            }
            Kind::FetchAdd { add } => self.atomic(step.remote & !7, old, old.wrapping_add(add)),
            Kind::Nop => {}
        }
    }

    fn atomic(&mut self, at: usize, old: u64, new: u64) {
        self.expected[0][LEN - 8..].copy_from_slice(&old.to_ne_bytes());
        self.expected[1][at..at + 8].copy_from_slice(&new.to_ne_bytes());
    }

    fn expect_arrival(&mut self, step: &Step, len: usize) {
        let [a, b] = &mut self.ends;
        let mut sent = Vec::new();
        let done = match self.arrived.pop() {
            Some(done) => done,
            None => completion(&mut b.cq, &mut a.cq, &mut sent),
        };
        let is_send = matches!(step.kind, Kind::Send);
        let kind = if is_send { CompletionKind::Recv } else { CompletionKind::RecvWriteImm };
        assert_eq!((done.failure, done.kind, done.imm), (None, kind, step.imm), "{step:?}");
        assert_eq!(done.len_bytes as usize, len, "{step:?}");
        match &mut self.srq {
            Some(srq) => srq.retire(&done),
            None => b.qp.retire(&done),
        }
        for done in sent {
            assert_eq!(done.failure, None);
            a.qp.retire(&done);
        }
    }

    fn collect(&mut self) {
        let [a, b] = &mut self.ends;
        while let Some(done) = a.cq.poll() {
            assert_eq!(done.failure, None);
            a.qp.retire(&done);
        }
        self.arrived.extend(b.cq.poll());
    }

    /// Everything posted is done, and did what the model did.
    fn check(&mut self) {
        let (op, flags) = (Op::Nop, SendFlags::SIGNALED);
        let request = SendRequest { op, flags, to: self.to.as_ref() };
        let last = self.ends[0].qp.post_send(&request).unwrap();
        self.ends[0].qp.ring_send();
        loop {
            let [a, b] = &mut self.ends;
            let done = completion(&mut a.cq, &mut b.cq, &mut self.arrived);
            assert_eq!(done.failure, None);
            a.qp.retire(&done);
            if done.wqe == last {
                break;
            }
        }
        assert_eq!(self.arrived, [], "more arrived than was sent");
        for (nth, region) in self.regions.iter().enumerate() {
            let mut bytes = vec![0; LEN];
            region.read(0, &mut bytes);
            if self.header > 0 && nth == 1 {
                // The header of a datagram is nobody's business.
                let header = RECEIVES_AT..RECEIVES_AT + GRH_BYTES;
                bytes[header.clone()].copy_from_slice(&self.expected[1][header]);
            }
            let wrong = bytes.iter().zip(&self.expected[nth]).position(|(a, b)| a != b);
            assert_eq!(wrong, None, "first wrong byte of region {nth}");
        }
    }
}

/// An initiator, and a target with its shared receive queue.
fn dc(strict: Option<u64>) -> World {
    let mut initiator = End::new(&nic("dc", strict), Transport::Dci);
    initiator.ready(None);
    let nic = nic("dc", strict);
    let (pd, key) = (nic.alloc_pd().unwrap(), DcKey::new(0x1234_5678_9abc_def0));
    let cq = nic.create_cq(&CqConfig::new(256), None).unwrap();
    let srq = nic.create_srq(&pd, &SrqConfig { entries: 8, sges_max: 4 }).unwrap();
    let config = QpConfig {
        srq: Some(&srq),
        send: SendSize::NONE,
        recv: RecvSize::NONE,
        access_key: key,
        ..QpConfig::new(Transport::Dct, &cq)
    };
    let mut qp = nic.create_qp(&pd, &config).unwrap();
    target(&mut qp);
    let receiver = End { nic, pd, cq, qp };
    let to = Destination::Dc { to: receiver.endpoint(), key };
    let mut world = World::new([initiator, receiver], Some(to));
    world.srq = Some(srq);
    world
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(any_step(), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..Default::default() })]
    /// Sequences are longer than the ring of 64 or 128 blocks, so WQEs of every length wrap.
    #[test]
    fn reliable_connections_do_what_was_asked(steps in steps()) {
        let mut world = World::new(pair("rc", None), None);
        steps.iter().chain(&steps).for_each(|step| world.run(step));
        world.check();
    }

    /// Strict mode delays and shuffles what hardware may. With a fence before each request that
    /// makes no difference to what is there in the end.
    #[test]
    fn strict_connections_do_what_was_asked(steps in steps(), seed in any::<u64>()) {
        let mut world = World::new(pair("strict-rc", Some(seed)), None);
        world.flags = SendFlags::FENCE;
        steps.iter().for_each(|step| world.run(step));
        world.check();
    }

    #[test]
    fn dynamic_connections_do_what_was_asked(steps in steps()) {
        let mut world = dc(None);
        steps.iter().chain(&steps).for_each(|step| world.run(step));
        world.check();
    }

    #[test]
    fn strict_dynamic_connections_do_what_was_asked(steps in steps(), seed in any::<u64>()) {
        let mut world = dc(Some(seed));
        world.flags = SendFlags::FENCE;
        steps.iter().for_each(|step| world.run(step));
        world.check();
    }

    #[test]
    fn datagrams_carry_what_was_asked(steps in steps()) {
        let mut ends = [(); 2].map(|()| End::new(&nic("ud", None), Transport::Ud));
        ends.iter_mut().for_each(|end| end.ready(None));
        let endpoint = ends[1].endpoint();
        let to = Destination::Ud { to: endpoint, qkey: QKEY };
        let mut world = World::new(ends, Some(to));
        for step in steps.iter().filter(|step| matches!(step.kind, Kind::Send)) {
            world.run(step);
        }
        world.check();
    }
}
