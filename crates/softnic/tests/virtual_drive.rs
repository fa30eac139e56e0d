//! Ports in virtual time: order, loss, repetition, and the inline drive as the oracle.
#![cfg(not(any(loom, miri)))]

mod common;
#[path = "common/world.rs"]
mod world;

use std::{sync::Arc, time::Duration};

use common::{End, Mr, ready_with, until};
use copyrpc_softnic::{AdapterProfile, Cause, Config, Issued, Nic, Packet, Timeline as _};
use proptest::prelude::*;
use verbs::{
    Completion, CompletionKind, CompletionQueue as _, CqConfig, MemoryRegion as _, Nic as _, Op,
    Payload, QpConfig, QueuePair as _, RtsAttr, SendFlags, SendRequest, Transport, WcStatus,
};
use world::{Faults, World};

/// Eight times in a row, after which a sender gives up, it loses a request or its answer once in 10⁸ times.
const BAD: Faults = Faults { lose_one_in: 20, repeat_one_in: 4, delay_ns_max: 3_000 };

fn config() -> Config {
    Config { card_mib: 8, ..Config::default() }
}

/// Two connected queue pairs in a world.
fn pair(seed: u64, faults: Faults) -> (Arc<World>, [End; 2]) {
    let world = World::new(seed, faults);
    let ends = connected([1, 2].map(|lid| world.open(lid, &config())));
    (world, ends)
}

fn connected(nics: [Nic; 2]) -> [End; 2] {
    let mut ends = nics.map(|nic| End::new(&nic, Transport::Rc));
    let [a, b] = [0, 1].map(|nth: usize| ends[nth].endpoint());
    ends[0].ready(Some(b));
    ends[1].ready(Some(a));
    ends
}

fn post(end: &mut End, op: Op<'_>, flags: SendFlags) {
    let flags = flags | SendFlags::SIGNALED;
    end.qp.post_send(&SendRequest { op, flags, to: None }).unwrap();
    end.qp.ring_send();
}

fn wait(end: &mut End) -> Completion {
    let done = until("a completion", || end.cq.poll());
    end.qp.retire(&done);
    done
}

fn send<'a>(sge: &'a [verbs::Sge], imm: u32) -> Op<'a> {
    Op::Send { payload: Payload::Gather(sge), imm: Some(imm) }
}

#[test]
fn many_sends_wait_for_late_receives_and_arrive_in_order() {
    let (_, [mut a, mut b]) = pair(1, Faults::default());
    let (from, to) = (a.mr(64), b.mr(4096));
    for imm in 0..40 {
        post(&mut a, send(&[from.sge(0, 8)], imm), SendFlags::empty());
    }
    for imm in 0..40 {
        // Polls find nothing: the sender asks again and again meanwhile.
        (0..50).for_each(|_| assert_eq!(b.cq.poll(), None));
        b.qp.post_recv(&[to.sge(0, 64)]).unwrap();
        b.qp.ring_recv();
        assert_eq!(wait(&mut b).imm, Some(imm));
    }
    for _ in 0..40 {
        assert_eq!(wait(&mut a).failure, None);
    }
}

/// Two WRITEs to one place, the second of which arrives first. Each is acknowledged in its turn.
#[test]
fn adaptive_routing_may_leave_the_bytes_of_an_older_write() {
    for (profile, left) in [(AdapterProfile::ConnectX, 2), (AdapterProfile::AdaptiveRouting, 1)] {
        let world = World::new(3, Faults::default());
        let open = |lid| world.open(lid, &Config { profile, ..config() });
        let [mut a, b] = connected([1, 2].map(open));
        let to = b.mr(8);
        for value in [1u8, 2] {
            let (bytes, remote) = ([value; 8], to.remote(0));
            let op = Op::Write { remote, payload: Payload::Inline(&[&bytes]), imm: None };
            a.qp.post_send(&SendRequest { op, flags: SendFlags::SIGNALED, to: None }).unwrap();
        }
        a.qp.ring_send();
        let [sender, receiver] = [1, 2].map(|lid| world.port(lid));
        let issue = || match sender.issue(a.qp.qpn()) {
            Issued::Packet(packet) => packet,
            other => panic!("{other:?}"),
        };
        let [older, newer]: [Packet; 2] = [issue(), issue()];
        assert!(newer.is_beside(&older));
        let value = || {
            let mut bytes = [0; 8];
            to.read(0, &mut bytes);
            bytes[0]
        };
        assert_eq!(receiver.respond(&newer), None, "nothing completes before its turn");
        assert_eq!(value(), if profile == AdapterProfile::ConnectX { 0 } else { 2 });
        for packet in [&older, &newer] {
            let answer = receiver.respond(packet).expect("it is its turn");
            sender.settle(&answer);
        }
        assert_eq!(value(), left, "{profile:?}");
        for _ in 0..2 {
            assert_eq!(wait(&mut a).failure, None);
        }
    }
}

#[test]
fn a_request_is_run_once_however_often_it_comes() {
    let (_, [mut a, b]) = pair(2, BAD);
    let (local, remote) = (a.mr(1024), b.mr(64));
    for nth in 0..100usize {
        let op =
            Op::FetchAdd { remote: remote.remote(0), add: 1, into: local.sge(8 * (nth % 16), 8) };
        post(&mut a, op, SendFlags::empty());
        if nth % 4 == 3 {
            for before in nth - 3..=nth {
                assert_eq!(wait(&mut a).failure, None);
                assert_eq!(local.load_u64(8 * (before % 16)), before as u64);
            }
        }
    }
    assert_eq!(remote.load_u64(0), 100);
}

#[test]
fn retries_run_out_where_nothing_arrives() {
    let (_, [mut a, b]) = pair(3, Faults { lose_one_in: 1, ..Faults::default() });
    let (local, remote) = (a.mr(64), b.mr(64));
    for _ in 0..3 {
        let payload = Payload::Gather(&[local.sge(0, 8)]);
        let op = Op::Write { remote: remote.remote(0), payload, imm: None };
        // What fails is retired with the queue pair.
        a.qp.post_send(&SendRequest::signaled(op)).unwrap();
    }
    a.qp.ring_send();
    let statuses = [(); 3].map(|()| wait(&mut a).failure.unwrap().status);
    assert_eq!(statuses, [WcStatus::RetryExceeded, WcStatus::Flushed, WcStatus::Flushed]);
}

/// The last attempt is waited for, too: *n* retries are *n* + 1 timeouts.
#[test]
fn a_request_that_is_never_answered_fails_after_one_timeout_more_than_retries() {
    let ack_timeout = Duration::from_nanos(4096 << 4);
    for retry_count in [0, 1, 3, 7] {
        let world = World::new(9, Faults { lose_one_in: 1, ..Faults::default() });
        let mut ends = [1, 2].map(|lid| End::new(&world.open(lid, &config()), Transport::Rc));
        let [a, b] = [0, 1].map(|nth: usize| ends[nth].endpoint());
        let rts = RtsAttr { ack_timeout, retry_count, ..RtsAttr::default() };
        ready_with(&mut ends[0].qp, Some(b), rts);
        ready_with(&mut ends[1].qp, Some(a), rts);
        let local = ends[0].mr(64);
        let began_ns = world.now_ns();
        post(&mut ends[0], send(&[local.sge(0, 8)], 1), SendFlags::empty());
        let failure = wait(&mut ends[0]).failure.unwrap();
        assert_eq!(failure.status, WcStatus::RetryExceeded);
        let timeouts = u128::from(world.now_ns() - began_ns) / ack_timeout.as_nanos();
        assert_eq!(timeouts, u128::from(retry_count) + 1);
    }
}

/// The answer brings the bytes, and the region may be gone by then.
#[test]
fn what_is_read_is_not_stored_in_memory_that_was_deregistered_meanwhile() {
    let (_, [mut a, b]) = pair(4, Faults::default());
    let (local, remote) = (a.mr(64), b.mr(64));
    remote.write(0, &[7; 64]);
    let op = Op::Read { remote: remote.remote(0), into: &[local.sge(0, 64)] };
    post(&mut a, op, SendFlags::empty());
    let world_moves = a.cq.poll();
    assert_eq!(world_moves, None, "only the request has left");
    local.deregister().unwrap();
    assert_eq!(wait(&mut a).failure.unwrap().status, WcStatus::LocalProtection);
}

#[test]
fn the_owner_of_time_sees_doorbells_and_what_comes_next() {
    let (world, [mut a, b]) = pair(5, Faults::default());
    let (local, remote) = (a.mr(64), b.mr(64));
    let port = world.port(1);
    assert_eq!(port.peek(a.qp.qpn()), None);
    let payload = Payload::Gather(&[local.sge(0, 48)]);
    let op = Op::Write { remote: remote.remote(0), payload, imm: None };
    post(&mut a, op, SendFlags::empty());
    let next = port.peek(a.qp.qpn()).unwrap();
    assert_eq!((next.blocks, next.len_bytes, next.is_inline, next.entries), (1, 48, false, 1));
    assert!(next.is_signaled);
    let (lid, qpn, cause) = world.doorbells()[0];
    assert_eq!((lid, qpn), (port.lid(), a.qp.qpn()));
    assert!(matches!(cause, Cause::Doorbell | Cause::BlueFlame { blocks: 1 }), "{cause:?}");
    assert_eq!(wait(&mut a).failure, None);
}

/// A port closes with its last handle; the owner of time keeps none open.
#[test]
fn a_closed_port_answers_nothing() {
    let (world, [mut a, b]) = pair(6, Faults::default());
    let local = a.mr(64);
    drop(b);
    post(&mut a, send(&[local.sge(0, 8)], 1), SendFlags::empty());
    assert_eq!(wait(&mut a).failure.unwrap().status, WcStatus::RetryExceeded);
    assert_eq!(world.port(2).peek(a.qp.qpn()), None);
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let run = |seed| {
        let (world, ends) = pair(seed, BAD);
        play(ends, &script(seed));
        world.history()
    };
    let first = run(7);
    assert!(first.len() > 100, "{} events", first.len());
    assert_eq!(first, run(7));
    assert_ne!(first, run(8));
}

fn script(seed: u64) -> Vec<Step> {
    let kinds = [Kind::Write, Kind::Send, Kind::Read, Kind::Add, Kind::WriteImm];
    let step = |nth: u64| {
        let kind = kinds[usize::try_from((nth + seed) % 5).unwrap()];
        Step { kind, offset: 64, len: 40, fence: nth.is_multiple_of(7), receives: 1, is_bad: false }
    };
    (0..40).map(step).collect()
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Write,
    WriteImm,
    Send,
    Read,
    Add,
}

/// One request, before which so many receives are posted.
#[derive(Clone, Copy, Debug)]
struct Step {
    kind: Kind,
    offset: usize,
    len: usize,
    fence: bool,
    receives: usize,
    /// It names memory that does not exist.
    is_bad: bool,
}

fn any_step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        Just(Kind::Write),
        Just(Kind::WriteImm),
        Just(Kind::Send),
        Just(Kind::Read),
        Just(Kind::Add)
    ];
    let is_bad = prop::bool::weighted(0.02);
    (kind, 0usize..60, 1usize..900, any::<bool>(), 0usize..3, is_bad).prop_map(
        |(kind, word, len, fence, receives, is_bad)| Step {
            kind,
            offset: 8 * word,
            len,
            fence,
            receives,
            is_bad,
        },
    )
}

/// What a program can see in the end.
#[derive(Debug, PartialEq)]
struct Seen {
    sent: Vec<(CompletionKind, Option<WcStatus>, u32)>,
    received: Vec<(CompletionKind, Option<u32>, u32)>,
    /// Of source, results, and what the peer has.
    memory: [u64; 3],
}

const AREA: usize = 2048;

/// A hash (FNV-1a) of what the region holds.
fn hash_of(mr: &Mr) -> u64 {
    let mut bytes = vec![0; AREA];
    mr.read(0, &mut bytes);
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Plays the steps, at once, and looks at what they lead to.
fn play([mut a, mut b]: [End; 2], steps: &[Step]) -> Seen {
    let (source, results, remote) = (a.mr(AREA), a.mr(AREA), b.mr(AREA));
    let all: Vec<u8> = (0..AREA).map(|at| u8::try_from(at % 251).unwrap()).collect();
    source.write(0, &all);
    let mut receives = 0;
    for (nth, step) in steps.iter().enumerate() {
        for _ in 0..step.receives {
            receive(&mut b, &remote, &mut receives);
        }
        let mut at = remote.remote(step.offset);
        at.addr += if step.is_bad { 1 << 30 } else { 0 };
        let flags = if step.fence { SendFlags::FENCE } else { SendFlags::empty() };
        // Each step sends something else.
        let piece = [source.sge(nth, step.len)];
        let payload = Payload::Gather(&piece);
        let imm = u32::try_from(nth).unwrap();
        let into = [results.sge(step.offset, step.len)];
        let op = match step.kind {
            Kind::Write => Op::Write { remote: at, payload, imm: None },
            Kind::WriteImm => Op::Write { remote: at, payload, imm: Some(imm) },
            Kind::Send => Op::Send { payload, imm: Some(imm) },
            Kind::Read => Op::Read { remote: at, into: &into },
            Kind::Add => Op::FetchAdd { remote: at, add: 1, into: results.sge(step.offset, 8) },
        };
        post(&mut a, op, flags);
    }
    let is_arrival = |step: &&Step| matches!(step.kind, Kind::Send | Kind::WriteImm);
    while receives < steps.iter().filter(is_arrival).count() {
        receive(&mut b, &remote, &mut receives);
    }
    let mut sent = Vec::new();
    let mut received = Vec::new();
    until("all completions", || {
        sent.extend(a.cq.poll());
        received.extend(b.cq.poll());
        (sent.len() == steps.len()).then_some(())
    });
    (0..20).for_each(|_| received.extend(b.cq.poll()));
    let memory = [&source, &results, &remote].map(hash_of);
    let status = |done: &Completion| done.failure.as_ref().map(|failure| failure.status);
    let received = received.iter().filter(|done| done.failure.is_none());
    Seen {
        sent: sent.iter().map(|done| (done.kind, status(done), done.len_bytes)).collect(),
        received: received.map(|done| (done.kind, done.imm, done.len_bytes)).collect(),
        memory,
    }
}

fn receive(end: &mut End, into: &Mr, count: &mut usize) {
    if *count < 60 {
        end.qp.post_recv(&[into.sge(1024, 1000)]).unwrap();
        end.qp.ring_recv();
        *count += 1;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]
    #[test]
    fn later_answers_lead_where_immediate_ones_do(
        steps in prop::collection::vec(any_step(), 1..40),
        seed in any::<u64>(),
        has_faults in any::<bool>(),
    ) {
        let fabric = common::fabric(&format!("oracle-{seed:x}"), std::process::id());
        let config = Config { fabric, ..config() };
        let inline = [(); 2].map(|()| copyrpc_softnic::open(&config).unwrap());
        let expected = play(connected(inline), &steps);
        let faults = if has_faults { BAD } else { Faults::default() };
        let (_, ends) = pair(seed, faults);
        prop_assert_eq!(play(ends, &steps), expected);
    }
}

/// The initiator goes from target to target, and each takes its requests from the beginning.
#[test]
fn a_dc_initiator_is_heard_by_each_target_under_loss() {
    let world = World::new(9, BAD);
    let nics = [1, 2, 3].map(|lid| world.open(lid, &config()));
    let mut initiator = End::new(&nics[0], Transport::Dci);
    initiator.ready(None);
    let local = initiator.mr(64);
    let mut targets: Vec<_> = nics[1..]
        .iter()
        .map(|nic| {
            let pd = nic.alloc_pd().unwrap();
            let cq = nic.create_cq(&CqConfig::new(256), None).unwrap();
            let srq_config = verbs::SrqConfig { entries: 64, sges_max: 1 };
            let srq = nic.create_srq(&pd, &srq_config).unwrap();
            let mut config = QpConfig::new(Transport::Dct, &cq);
            config.srq = Some(&srq);
            config.send.requests = 0;
            config.recv.requests = 0;
            let mut qp = nic.create_qp(&pd, &config).unwrap();
            common::target(&mut qp);
            let access = verbs::Access::all() - verbs::Access::RELAXED_ORDERING;
            let mr = nic.alloc_mr(&pd, 64, access).unwrap();
            (nic.endpoint(&qp), mr, qp, cq, srq)
        })
        .collect();
    let mut counts = [0; 2];
    for nth in 0..60usize {
        let which = nth / 3 % 2;
        let (endpoint, mr, ..) = &mut targets[which];
        let op = Op::FetchAdd { remote: mr.remote(0), add: 1, into: local.sge(0, 8) };
        let to = verbs::Destination::Dc { to: *endpoint, key: verbs::DcKey::default() };
        let flags = SendFlags::SIGNALED;
        initiator.qp.post_send(&SendRequest { op, flags, to: Some(&to) }).unwrap();
        initiator.qp.ring_send();
        counts[which] += 1;
        if nth % 6 == 5 {
            (0..6).for_each(|_| assert_eq!(wait(&mut initiator).failure, None));
        }
    }
    for ((_, mr, ..), count) in targets.iter().zip(counts) {
        assert_eq!(mr.load_u64(0), count);
    }
}
