//! A peer that connects by a correct invitation and then writes what no correct peer writes.
//!
//! ```text
//! Raw: verbs and bytes ──WRITE_IMM──▶ victim: Worker ◀══ calls ══▶ honest: Worker
//! ```
//!
//! Whatever comes, the victim closes that one connection, says why, and serves the honest peer.

mod raw;

use copyrpc_rpc::{
    Body, CallEnd, CloseReason, Config, Handler, PeerId, Request, Status, TransportKind, Violation,
    Worker,
};
use proptest::prelude::*;
use softnic::Nic;

use crate::rig::{ECHO, Node, fabric, join, poll_until, tight, until};
use raw::{Batch, Raw};

/// A victim with an honest peer, which a raw one joins.
struct Scene {
    fabric: String,
    config: Config,
    victim: Node,
    honest: Node,
    to_victim: PeerId,
}

impl Scene {
    fn new(transport: TransportKind) -> Self {
        let config = Config { transport, ..tight() };
        let fabric = fabric();
        let mut victim = Node::open(&fabric, &config);
        let mut honest = Node::open(&fabric, &config);
        let (to_victim, _) = join(&mut honest, &mut victim);
        Self { fabric, config, victim, honest, to_victim }
    }

    fn attacker(&mut self) -> (Raw, PeerId) {
        let (peer, invitation) = self.victim.worker.invite().unwrap();
        let raw = Raw::new(&self.fabric, self.config.transport, &invitation);
        self.victim.worker.connect(peer, &raw.invitation()).unwrap();
        (raw, peer)
    }

    /// Calls of the honest peer are still answered.
    fn check_honest(&mut self) {
        let Self { victim, honest, to_victim, .. } = self;
        let cookie = honest.call(*to_victim, ECHO, b"still there?").unwrap();
        until(&mut [honest, victim], |nodes| nodes[0].program.ended.contains_key(&cookie));
        assert_eq!(honest.program.ended[&cookie], (Status::Ok, b"still there?".to_vec()));
    }

    /// Polls until the victim has closed the attacker's connection, and says why it did.
    fn verdict(&mut self, raw: &mut Raw, peer: PeerId) -> CloseReason {
        until(&mut [&mut self.victim], |nodes| {
            raw.poll();
            !nodes[0].program.closed.is_empty()
        });
        let (closed, reason) = self.victim.program.closed.pop().unwrap();
        assert_eq!((closed, self.victim.program.closed.len()), (peer, 0), "only that connection");
        reason
    }
}

type Spoil = fn(&mut Batch);
type Expected = fn(&Violation) -> bool;

/// What is done to a correct batch with two requests of 8 B, and the rule that this breaks.
const MALFORMED: [(&str, Spoil, Expected); 20] = [
    (
        "a line unused",
        |b| b.set_unused_bytes(64),
        |v| matches!(v, Violation::BatchLength { unused: 64, .. }),
    ),
    (
        "messages that end in the middle of one",
        |b| b.set_unused_bytes(40),
        |v| matches!(v, Violation::MessageLength { .. }),
    ),
    (
        "no lines",
        |b| b.imm &= 0xffff_0000,
        |v| matches!(v, Violation::BatchLength { unused: 0, room: 0 }),
    ),
    ("no messages", |b| b.set_count(0), |v| matches!(v, Violation::Count { claimed: 0 })),
    (
        "one message too many",
        |b| b.set_count(3),
        |v| matches!(v, Violation::MessageLength { index: 2 }),
    ),
    ("one message too few", |b| b.set_count(1), |v| matches!(v, Violation::Count { claimed: 1 })),
    (
        "a body beyond the batch",
        |b| b.set_body_bytes(4000),
        |v| matches!(v, Violation::MessageLength { index: 0 }),
    ),
    ("a kind that does not exist", |b| b.set_kind(0x7f), |v| matches!(v, Violation::Kind(0x7f))),
    ("another connection's epoch", |b| b.bytes[4] ^= 1, |v| matches!(v, Violation::Epoch { .. })),
    ("another number", |b| b.bytes[8] = 9, |v| matches!(v, Violation::Sequence { found: 9, .. })),
    (
        "credit for what was never sent",
        |b| b.bytes[..4].copy_from_slice(&77_u32.to_le_bytes()),
        |v| matches!(v, Violation::Credit { found: 77, .. }),
    ),
    (
        "more handled than was sent",
        |b| b.set_handled(1),
        |v| matches!(v, Violation::Handled { found: 1, sent: 0 }),
    ),
    (
        "a slot that is in use",
        |b| b.use_first_slot_twice(),
        |v| matches!(v, Violation::Token { .. }),
    ),
    (
        "a slot that does not exist",
        |b| b.set_token(0xfffe),
        |v| matches!(v, Violation::Token { .. }),
    ),
    ("no budget", |b| b.set_budget(0), |v| matches!(v, Violation::NoBudget)),
    ("all budget", |b| b.set_budget(u16::MAX), |v| matches!(v, Violation::Budget { .. })),
    (
        "an answer that nobody asked for",
        |b| b.set_kind(0x80),
        |v| matches!(v, Violation::Token { .. }),
    ),
    (
        "a large body without name",
        |b| b.set_kind(2),
        |v| matches!(v, Violation::Body { kind: 2, .. }),
    ),
    (
        "more lines than announced",
        |b| b.imm |= 0xffff,
        |v| matches!(v, Violation::BatchTooLong { .. }),
    ),
    ("a wrap at the start", |b| b.imm |= 1 << 31, |v| matches!(v, Violation::Wrap)),
];

/// Of these, what shows before the batch has proven to be the peer's.
const UNPROVEN: [&str; 12] = [
    "a line unused",
    "messages that end in the middle of one",
    "one message too many",
    "one message too few",
    "a body beyond the batch",
    "an answer that nobody asked for", // with a body that is shorter than a request's
    "no lines",
    "no messages",
    "another connection's epoch",
    "another number",
    "more lines than announced",
    "a wrap at the start",
];

/// Rules C1.5, C2.2, C2.3, C2.5, C4.2, C4.3 and C5.3, fault D5: each rule that a batch can break closes the connection that it came over. On DC, where
/// anybody can announce a batch, one that is not proven to be the peer's is ignored.
#[test]
fn fault_d5_every_malformed_batch_closes_its_connection_only() {
    for transport in [TransportKind::Rc, TransportKind::Dc] {
        let mut scene = Scene::new(transport);
        let (mut unknown, mut violations) = (0, 0);
        for (what, spoil, is_expected) in MALFORMED {
            let (mut raw, peer) = scene.attacker();
            let mut batch = raw.batch();
            eprintln!("{transport:?}: {what}");
            spoil(&mut batch);
            raw.write(&batch);
            if transport == TransportKind::Dc && UNPROVEN.contains(&what) {
                unknown += 1;
                until(&mut [&mut scene.victim], |nodes| {
                    raw.poll();
                    nodes[0].worker.stats().unknown_imms == unknown
                });
                scene.victim.worker.close(peer);
                scene.victim.poll();
                scene.victim.program.closed.clear();
            } else {
                match scene.verdict(&mut raw, peer) {
                    CloseReason::Violation(violation) if is_expected(&violation) => violations += 1,
                    other => panic!("{what}: {other}"),
                }
            }
            scene.check_honest();
        }
        let stats = scene.victim.worker.stats();
        assert_eq!((stats.violations, stats.failures), (violations, 0));
    }
}

/// Fault D6: forged credit, which is looked at while something is to be given back.
#[test]
fn fault_d6_forged_credit_closes_its_connection_only() {
    for transport in [TransportKind::Rc, TransportKind::Dc] {
        let mut scene = Scene::new(transport);
        for (consumed, handled) in [(2, 0), (u64::MAX, 0), (1, 2), (0, u64::MAX)] {
            let (mut raw, peer) = scene.attacker();
            raw.write_credit(consumed, handled);
            // The answer is what there is to give credit for: a line, in a batch.
            let batch = raw.batch();
            raw.write(&batch);
            let reason = scene.verdict(&mut raw, peer);
            let is_expected = matches!(
                reason,
                CloseReason::Violation(Violation::Credit { .. } | Violation::Handled { .. })
            );
            assert!(is_expected, "{reason}");
            scene.check_honest();
        }
    }
}

/// Rule C3.6: a peer that sends more than it was told that this side can take.
#[test]
fn a_peer_that_ignores_the_window_closes_its_connection_only() {
    // On RC the victim tells of each batch while it handles the next one.
    let mut scene = Scene::new(TransportKind::Dc);
    let (mut raw, peer) = scene.attacker();
    for _ in 0..4 {
        raw.write_on();
    }
    let reason = scene.verdict(&mut raw, peer);
    assert!(matches!(reason, CloseReason::Violation(Violation::Unhandled { max: 3 })), "{reason}");
    scene.check_honest();
}

/// A batch that is repeated, as after a retransmission that is none.
#[test]
fn a_repeated_batch_closes_its_connection_only() {
    let mut scene = Scene::new(TransportKind::Rc);
    let (mut raw, peer) = scene.attacker();
    let batch = raw.batch();
    raw.write(&batch);
    raw.write(&Batch { offset: batch.next_offset(), ..batch });
    let reason = scene.verdict(&mut raw, peer);
    assert!(matches!(reason, CloseReason::Violation(Violation::Sequence { .. })), "{reason}");
    assert_eq!(scene.victim.program.served, 2, "the first one was good");
    scene.check_honest();
}

/// Rule C2.9, fault B4: a peer rewrites a batch while it is handled. What is handled is the copy that was
/// checked.
#[test]
fn fault_b4_a_batch_that_is_rewritten_while_it_is_handled_stays_what_it_was() {
    struct Rewriting {
        raw: Raw,
        batch: Batch,
        seen: Vec<(Vec<u8>, Vec<u8>)>,
    }
    impl Handler<Nic> for Rewriting {
        fn request(&mut self, worker: &mut Worker<Nic>, request: Request, body: Body<'_, Nic>) {
            let Request { mut token, .. } = request;
            self.raw.overwrite(&self.batch);
            assert!(worker.hold(&mut token));
            let mut in_ring = Vec::new();
            assert!(worker.held_body(&token, &mut in_ring));
            self.seen.push((body.bytes().into_owned(), in_ring));
        }
        fn ended(&mut self, _: &mut Worker<Nic>, _: u64, _: CallEnd<'_, Nic>) {}
    }
    let mut scene = Scene::new(TransportKind::Rc);
    let (mut raw, _) = scene.attacker();
    let batch = raw.batch();
    raw.write(&batch);
    let mut rewriting = Rewriting { raw, batch, seen: Vec::new() };
    poll_until("both batches", || {
        scene.victim.worker.poll(os::clock::now_ns(), &mut rewriting);
        rewriting.raw.poll();
        rewriting.seen.len() == 2
    });
    let expected = (vec![7; 8], vec![0xff; 8]);
    assert_eq!(rewriting.seen, [expected.clone(), expected]);
    scene.check_honest();
}

/// Fault D7: immediates that name nobody, or somebody else, are counted and ignored.
#[test]
fn fault_d7_immediates_for_others_are_counted_and_ignored() {
    let mut scene = Scene::new(TransportKind::Rc);
    let (mut raw, _) = scene.attacker();
    for (unknown, slot) in (1..).zip([0_u32, 2, 3, 4, 0x7fff]) {
        let mut batch = raw.batch();
        batch.imm = batch.imm & 0x8000_ffff | slot << 16;
        raw.write(&batch);
        until(&mut [&mut scene.victim], |nodes| {
            raw.poll();
            nodes[0].worker.stats().unknown_imms == unknown
        });
    }
    assert_eq!(scene.victim.program.closed, []);
    let batch = raw.batch();
    raw.write(&batch);
    until(&mut [&mut scene.victim], |nodes| nodes[0].program.served == 2);
    scene.check_honest();
}

/// A ring that no address space holds; one that ends where that does is the NIC's to judge.
#[test]
fn a_ring_beyond_the_last_address_is_refused() {
    for transport in [TransportKind::Rc, TransportKind::Dc] {
        let mut scene = Scene::new(transport);
        let (peer, invitation) = scene.victim.worker.invite().unwrap();
        let mut raw = Raw::new(&scene.fabric, transport, &invitation);
        let last = u64::MAX - raw.ring_bytes();
        let refused = scene.victim.worker.connect(peer, &raw.invitation_to(last + 1)).unwrap_err();
        let expected = "the peer's invitation is broken: its ring address is impossible";
        assert_eq!(refused.to_string(), expected);
        scene.victim.worker.connect(peer, &raw.invitation_to(last)).unwrap();
        scene.victim.call(peer, ECHO, b"nowhere").unwrap();
        let reason = scene.verdict(&mut raw, peer);
        assert!(matches!(reason, CloseReason::Failed(_)), "{reason}");
        scene.check_honest();
    }
}

/// Writes outside what was granted, and large bodies that are not there: the NIC refuses. Rule C6.2: large
/// bodies of no length, or of too much.
#[test]
fn what_the_nic_refuses_ends_one_connection() {
    let mut scene = Scene::new(TransportKind::Rc);
    let (mut raw, peer) = scene.attacker();
    let beyond = Batch { offset: scene.config.ring_bytes + 4096, ..raw.batch() };
    raw.write(&beyond);
    let reason = scene.verdict(&mut raw, peer);
    assert!(!matches!(reason, CloseReason::Violation(_) | CloseReason::Closed), "{reason}");
    scene.check_honest();
    let (mut raw, peer) = scene.attacker();
    let nowhere = raw.large_request(4096);
    raw.write(&nowhere);
    let reason = scene.verdict(&mut raw, peer);
    assert!(matches!(reason, CloseReason::Failed(_)), "{reason}");
    scene.check_honest();
    for len_bytes in [0, u32::MAX] {
        let (mut raw, peer) = scene.attacker();
        let batch = raw.large_request(len_bytes);
        raw.write(&batch);
        let reason = scene.verdict(&mut raw, peer);
        let is_expected = matches!(reason, CloseReason::Violation(Violation::LargeLength { .. }));
        assert!(is_expected, "{reason}");
        scene.check_honest();
    }
}

/// No key that a peer invents for a long body reaches anything: its connection alone ends, no request is told, and the
/// memory for the body is free again.
#[test]
fn fault_d12_a_forged_key_of_a_long_body_ends_its_connection_alone() {
    for transport in [TransportKind::Rc, TransportKind::Dc] {
        let mut scene = Scene::new(transport);
        for rkey in [0, 1, 0x1234, u32::MAX] {
            let (mut raw, peer) = scene.attacker();
            // More pieces than are outstanding at a time.
            let forged = raw.large_request_by(rkey, 1 << 20);
            let served = scene.victim.program.served;
            raw.write(&forged);
            let reason = scene.verdict(&mut raw, peer);
            assert!(matches!(reason, CloseReason::Failed(_)), "{rkey:#x}: {reason}");
            assert_eq!(scene.victim.program.served, served, "{rkey:#x}");
            assert_eq!(scene.victim.worker.large_memory().used_bytes, 0, "{rkey:#x}");
            scene.check_honest();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Bytes of all kinds, near and far from correct ones, in any place and with any announcement.
    #[test]
    fn random_batches_hurt_nobody_else(
        writes in prop::collection::vec(
            (
                prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
                prop::option::of(prop::collection::vec(any::<u8>(), 16..256)),
                prop::option::weighted(0.3, any::<u32>()),
                prop::option::weighted(0.2, 0_usize..4096),
            ),
            1..12,
        )
    ) {
        let mut scene = Scene::new(TransportKind::Rc);
        let (mut raw, _) = scene.attacker();
        for (flips, bytes, imm, offset) in writes {
            let mut batch = raw.batch();
            batch.bytes = bytes.unwrap_or(batch.bytes);
            for (at, value) in flips {
                let at = at.index(batch.bytes.len());
                batch.bytes[at] = value;
            }
            batch.imm = imm.unwrap_or(batch.imm);
            batch.offset = offset.unwrap_or(batch.offset) / 64 * 64;
            raw.write(&batch);
            scene.victim.poll();
            raw.poll();
            if !scene.victim.program.closed.is_empty() {
                scene.victim.program.closed.clear();
                raw = scene.attacker().0;
            }
        }
        scene.check_honest();
        prop_assert!(scene.honest.program.closed.is_empty());
    }
}

/// Rule C1.5: on DC an immediate does not tell who sent it. One that names another's connection is no reason
/// to close that.
#[test]
fn on_dc_nobody_closes_the_connection_of_another() {
    let mut scene = Scene::new(TransportKind::Dc);
    scene.check_honest();
    let (mut raw, _) = scene.attacker();
    for (unknown, lines) in (1..).zip([1_u32, 2, 16, 17, 0xffff, 0x8000_0001]) {
        let mut batch = raw.batch();
        batch.imm = lines; // slot 0: the honest peer's
        raw.write(&batch);
        until(&mut [&mut scene.victim], |nodes| {
            raw.poll();
            nodes[0].worker.stats().unknown_imms == unknown
        });
        scene.check_honest();
    }
    assert_eq!(scene.victim.program.closed, []);
}

/// Rule C1.5: nor by announcing a batch that is there, and has not been announced yet, at another length.
#[test]
fn on_dc_nobody_announces_the_batch_of_another_at_a_wrong_length() {
    let mut scene = Scene::new(TransportKind::Dc);
    scene.check_honest();
    let (mut raw, _) = scene.attacker();
    for (unknown, (body, lines)) in
        (1..).zip([(&[7; 12][..], 2), (&[7; 12], 16), (&[7; 100], 1), (&[7; 100], 4)])
    {
        let mut batch = raw.batch();
        batch.imm = lines; // slot 0: the honest peer's
        raw.write(&batch);
        raw.poll();
        let Scene { victim, honest, to_victim, .. } = &mut scene;
        let cookie = honest.call(*to_victim, ECHO, body).unwrap();
        until(&mut [honest, victim], |nodes| {
            raw.poll();
            let is_ended = nodes[0].program.ended.contains_key(&cookie);
            is_ended && nodes[1].worker.stats().unknown_imms == unknown
        });
        assert_eq!(honest.program.ended[&cookie], (Status::Ok, body.to_vec()), "{lines} lines");
    }
    assert_eq!(scene.victim.program.closed, []);
}

/// Rule C1.5: nor does anybody keep the batches of another from being found that came before its invitation.
#[test]
fn on_dc_nobody_takes_the_place_of_what_another_sent_before_its_invitation() {
    let mut scene = Scene::new(TransportKind::Dc);
    let (mut raw, _) = scene.attacker();
    let mut late = Node::open(&scene.fabric, &scene.config);
    let (to_late, from_victim) = scene.victim.worker.invite().unwrap();
    let (to_victim, from_late) = late.worker.invite().unwrap();
    late.worker.connect(to_victim, &from_victim).unwrap();
    let lengths = (1..=16).chain([0, 17, 0xffff, 0x8000_0001, 1, 1, 1, 1]);
    for (unknown, lines) in lengths.enumerate() {
        let mut batch = raw.batch();
        batch.imm = u32::from(to_late.slot()) << 16 | lines;
        raw.write(&batch);
        let arrived = unknown as u64 + 1;
        until(&mut [&mut scene.victim], |nodes| {
            raw.poll();
            nodes[0].worker.stats().arrivals == arrived
        });
    }
    // Two batches, the longer one first.
    let arrivals = scene.victim.worker.stats().arrivals;
    let cookies = [&[7; 300][..], b"short"].map(|body| {
        let cookie = late.call(to_victim, ECHO, body).unwrap();
        late.poll();
        cookie
    });
    until(&mut [&mut scene.victim, &mut late], |nodes| {
        nodes[0].worker.stats().arrivals == arrivals + 2
    });
    scene.victim.worker.connect(to_late, &from_late).unwrap();
    until(&mut [&mut scene.victim, &mut late], |nodes| nodes[1].program.ended.len() == 2);
    let ended = cookies.map(|cookie| late.program.ended.remove(&cookie).unwrap());
    assert_eq!(ended, [vec![7; 300], b"short".to_vec()].map(|body| (Status::Ok, body)));
    // Of what was announced, two are what was found.
    assert_eq!(scene.victim.worker.stats().unknown_imms, 24);
    scene.check_honest();
}
