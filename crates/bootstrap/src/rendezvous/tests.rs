use super::*;
use crate::{RankInfo, error::Ranks};

const S: u64 = 1_000_000_000;

fn rendezvous(size: u32) -> Rendezvous {
    let config = RendezvousConfig {
        job: JobId::new("job").unwrap(),
        secret: Secret::from_bytes(b"the secret of the job"),
        size,
        handshake_timeout: Duration::from_secs(1),
        exchange_timeout: Duration::from_secs(60),
        linger: Duration::from_secs(2),
        contest_timeout: Duration::from_secs(5),
        roster: None,
    };
    let mut count = 0;
    Rendezvous::new(config, 0, move || {
        count += 1;
        [count; 32]
    })
}

/// A rank, as far as the rendezvous can tell.
struct Rank {
    id: ConnectionId,
    hello: Hello,
    secret: Secret,
    sent: Vec<Vec<u8>>,
}

impl Rank {
    fn connect(rendezvous: &mut Rendezvous, rank: u32, size: u32, now_ns: u64) -> Self {
        let id = rendezvous.handle_connection(format!("host-{rank}"), now_ns);
        let rank_info = RankInfo { rank, size };
        let nonce = [0xee; 32];
        let hello = Hello::new(&JobId::new("job").unwrap(), rank_info, nonce);
        let secret = Secret::from_bytes(b"the secret of the job");
        Self { id, hello, secret, sent: Vec::new() }
    }

    fn send(&mut self, rendezvous: &mut Rendezvous, bytes: &[u8]) {
        self.sent.push(bytes.to_vec());
        rendezvous.handle_bytes(self.id, bytes);
    }

    /// Answers the challenge.
    fn join(&mut self, rendezvous: &mut Rendezvous, blob_bytes: u32) -> Nonce {
        let hello = self.hello;
        self.send(rendezvous, hello.as_bytes());
        let challenge = sent_to(rendezvous, self.id);
        let nonce: Nonce = challenge[8..40].try_into().unwrap();
        let proof = challenge[40..72].try_into().unwrap();
        assert!(self.secret.verify(ProofPurpose::Rendezvous, &[hello.as_bytes(), &nonce], &proof));
        let about = [hello.as_bytes(), &nonce, &blob_bytes.to_le_bytes()];
        let proof = self.secret.sign(ProofPurpose::Join, &about);
        let join = Join { blob_bytes: blob_bytes.into(), reserved: 0.into(), proof };
        self.send(rendezvous, join.as_bytes());
        nonce
    }

    fn join_with(&mut self, rendezvous: &mut Rendezvous, blob: &[u8]) {
        let nonce = self.join(rendezvous, u32::try_from(blob.len()).unwrap());
        let proof = self.secret.sign(ProofPurpose::Blob, &[self.hello.as_bytes(), &nonce, blob]);
        self.send(rendezvous, &[blob, &proof].concat());
    }
}

/// All bytes for one connection; actions for others are dropped.
fn sent_to(rendezvous: &mut Rendezvous, id: ConnectionId) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(action) = rendezvous.poll_action() {
        if let Action::Send(to, sent) = action
            && to == id
        {
            bytes.extend_from_slice(&sent);
        }
    }
    bytes
}

fn reason(rendezvous: &mut Rendezvous, id: ConnectionId) -> String {
    String::from_utf8(sent_to(rendezvous, id).split_off(frame::HEAD_BYTES)).unwrap()
}

#[test]
fn all_ranks_get_the_blobs_of_all() {
    let mut rendezvous = rendezvous(2);
    let mut one = Rank::connect(&mut rendezvous, 1, 2, 0);
    one.join_with(&mut rendezvous, b"blob of one");
    assert_eq!((rendezvous.outcome(), rendezvous.connections()), (&ExchangeState::Waiting, 1));
    let mut zero = Rank::connect(&mut rendezvous, 0, 2, 0);
    zero.join_with(&mut rendezvous, b"");
    assert_eq!((rendezvous.outcome(), rendezvous.connections()), (&ExchangeState::Complete, 0));
    let roster = sent_to(&mut rendezvous, one.id);
    let body = &roster[frame::HEAD_BYTES..roster.len() - PROOF_BYTES];
    assert_eq!(frame::read_roster(body, 2).unwrap(), [&b""[..], b"blob of one"]);
}

#[test]
fn fault_e1_strangers_are_dropped_at_their_first_wrong_byte() {
    let mut rendezvous = rendezvous(2);
    for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"\x16\x03\x01\x02\x00", &[0xff; 4], &[0; 9]] {
        let id = rendezvous.handle_connection("stranger".into(), 0);
        rendezvous.handle_bytes(id, bytes);
        assert_eq!(rendezvous.poll_action(), Some(Action::Drop(id)));
    }
    assert_eq!((rendezvous.connections(), rendezvous.stats().garbage), (0, 4));
}

#[test]
fn fault_e1_a_slow_loris_ends_with_the_handshake_timeout() {
    let mut rendezvous = rendezvous(2);
    let mut loris = Rank::connect(&mut rendezvous, 0, 2, 0);
    let hello = loris.hello;
    for (tick, byte) in (0..).zip(hello.as_bytes().iter().take(99)) {
        let now_ns = tick * S / 100;
        rendezvous.handle_timeout(now_ns);
        loris.send(&mut rendezvous, &[*byte]);
    }
    assert_eq!((rendezvous.connections(), rendezvous.poll_timeout()), (1, Some(S)));
    rendezvous.handle_timeout(S);
    assert_eq!((rendezvous.connections(), rendezvous.stats().slow), (0, 1));
}

#[test]
fn fault_e1_silent_connections_displace_each_other_at_constant_memory() {
    let mut rendezvous = rendezvous(2);
    for _ in 0..100_000 {
        rendezvous.handle_connection("silent".into(), 0);
        while rendezvous.poll_action().is_some() {}
        assert!(rendezvous.connections() <= PENDING_MAX);
    }
    let mut one = Rank::connect(&mut rendezvous, 1, 2, 0);
    one.join_with(&mut rendezvous, b"b");
    assert_eq!(rendezvous.stats().joined, 1, "who is quick comes in all the same");
}

#[test]
fn fault_e1_a_blob_of_4_gib_is_refused_before_a_byte_of_it() {
    let mut rendezvous = rendezvous(2);
    let mut liar = Rank::connect(&mut rendezvous, 0, 2, 0);
    liar.join(&mut rendezvous, u32::MAX);
    assert!(reason(&mut rendezvous, liar.id).contains("exceeds 65536 B"));
    assert_eq!(rendezvous.connections(), 0);
}

#[test]
fn fault_e2_another_job_version_or_secret_is_refused_with_the_reason() {
    let mut rendezvous = rendezvous(2);
    let mut other = Rank::connect(&mut rendezvous, 0, 2, 0);
    other.hello = Hello::new(&JobId::new("other").unwrap(), RankInfo { rank: 0, size: 2 }, [1; 32]);
    let hello = other.hello;
    other.send(&mut rendezvous, hello.as_bytes());
    assert_eq!(reason(&mut rendezvous, other.id), "it is the rendezvous of another job");
    let mut old = Rank::connect(&mut rendezvous, 0, 2, 0);
    let mut bytes = old.hello.as_bytes().to_vec();
    bytes[8] = 9;
    old.send(&mut rendezvous, &bytes);
    assert_eq!(reason(&mut rendezvous, old.id), "it speaks version 1 of the protocol, this rank 9");
    let mut guesser = Rank::connect(&mut rendezvous, 0, 2, 0);
    let hello = guesser.hello;
    guesser.send(&mut rendezvous, hello.as_bytes());
    sent_to(&mut rendezvous, guesser.id);
    guesser.send(&mut rendezvous, &[7; JOIN_BYTES]);
    assert_eq!(reason(&mut rendezvous, guesser.id), "the secret is another one");
    assert_eq!((rendezvous.stats().foreign, rendezvous.stats().unproved), (2, 1));
}

#[test]
fn a_rank_that_speaks_while_it_waits_loses_its_place_to_the_next() {
    let mut rendezvous = rendezvous(2);
    let mut rank = Rank::connect(&mut rendezvous, 1, 2, 0);
    rank.join_with(&mut rendezvous, b"blob");
    assert_eq!(rendezvous.places.holder(1), Some(rank.id));
    rendezvous.handle_bytes(rank.id, b"more");
    assert_eq!(rendezvous.places.holder(1), None);
    assert_eq!(rendezvous.stats().garbage, 1);
    let mut next = Rank::connect(&mut rendezvous, 1, 2, 0);
    next.join_with(&mut rendezvous, b"blob");
    assert_eq!(rendezvous.places.holder(1), Some(next.id));
}

#[test]
fn fault_e2_a_recorded_handshake_does_not_work_twice() {
    let mut rendezvous = rendezvous(2);
    let mut honest = Rank::connect(&mut rendezvous, 1, 2, 0);
    honest.join_with(&mut rendezvous, b"blob");
    let recorded = honest.sent.clone();
    rendezvous.handle_closed(honest.id);
    let mut replay = Rank::connect(&mut rendezvous, 1, 2, 0);
    for bytes in &recorded[..2] {
        replay.send(&mut rendezvous, bytes);
    }
    assert!(rendezvous.places.holder(1).is_none(), "the rank is free, and stays so");
    let refused = String::from_utf8_lossy(&sent_to(&mut rendezvous, replay.id)).into_owned();
    assert!(refused.ends_with("the secret is another one"));
}

#[test]
fn fault_e4_missing_ranks_are_named_to_those_that_came() {
    let mut rendezvous = rendezvous(5);
    let mut one = Rank::connect(&mut rendezvous, 1, 5, 0);
    one.join_with(&mut rendezvous, b"b");
    assert_eq!(rendezvous.poll_timeout(), Some(60 * S));
    rendezvous.handle_timeout(60 * S);
    assert_eq!(rendezvous.outcome(), &ExchangeState::Failed(Ranks(vec![0, 2, 3, 4])));
    let reason = reason(&mut rendezvous, one.id);
    assert!(reason.starts_with("ranks 0, 2-4 of 5 did not come within 60s"), "{reason}");
}

#[test]
fn fault_e4_a_late_rank_is_told_that_the_others_gave_up() {
    let mut rendezvous = rendezvous(2);
    rendezvous.handle_timeout(60 * S);
    assert!(!rendezvous.is_over(61 * S) && rendezvous.is_over(62 * S));
    let mut late = Rank::connect(&mut rendezvous, 1, 2, 61 * S);
    late.join(&mut rendezvous, 0);
    let reason = reason(&mut rendezvous, late.id);
    assert!(reason.starts_with("too late: ranks 0-1 of 2 did not come"), "{reason}");
}

/// All ranks have come then, but the others were told that they have not.
#[test]
fn fault_e4_a_rank_that_is_late_with_its_blob_is_told_that_the_others_gave_up() {
    let mut rendezvous = rendezvous(2);
    Rank::connect(&mut rendezvous, 0, 2, 0).join_with(&mut rendezvous, b"zero");
    let mut late = Rank::connect(&mut rendezvous, 1, 2, 60 * S - 1);
    let nonce = late.join(&mut rendezvous, 3);
    rendezvous.handle_timeout(60 * S);
    let proof = late.secret.sign(ProofPurpose::Blob, &[late.hello.as_bytes(), &nonce, b"one"]);
    late.send(&mut rendezvous, &[&b"one"[..], &proof].concat());
    assert_eq!(rendezvous.outcome(), &ExchangeState::Failed(Ranks(vec![1])));
    let reason = reason(&mut rendezvous, late.id);
    assert!(reason.starts_with("too late: rank 1 of 2 did not come"), "{reason}");
    assert_eq!(rendezvous.connections(), 0);
}

#[test]
fn fault_e4_a_duplicate_rank_is_told_who_has_its_place() {
    let mut rendezvous = rendezvous(2);
    Rank::connect(&mut rendezvous, 1, 2, 0).join_with(&mut rendezvous, b"first");
    let mut second = Rank::connect(&mut rendezvous, 1, 2, 0);
    second.join(&mut rendezvous, 0);
    let reason = reason(&mut rendezvous, second.id);
    assert_eq!(reason, "rank 1 is already taken by host-1; is it started twice?");
    let mut wrong = Rank::connect(&mut rendezvous, 1, 3, 0);
    wrong.join(&mut rendezvous, 0);
    assert!(sent_to(&mut rendezvous, wrong.id).ends_with(b"the job has 2 ranks, not 3"));
    let mut beyond = Rank::connect(&mut rendezvous, 7, 2, 0);
    beyond.join(&mut rendezvous, 0);
    let said = sent_to(&mut rendezvous, beyond.id);
    assert!(said.ends_with(b"there is no rank 7: the job has ranks 0 to 1"));
    assert_eq!(rendezvous.stats().misplaced, 3);
}

#[test]
fn the_place_of_a_rank_that_lives_is_not_taken_and_that_of_a_dead_one_is() {
    let mut rendezvous = rendezvous(2);
    for rank in 0..2 {
        Rank::connect(&mut rendezvous, rank, 2, 0).join_with(&mut rendezvous, b"first");
    }
    assert_eq!(*rendezvous.outcome(), ExchangeState::Complete);
    while rendezvous.poll_action().is_some() {}
    let mut thief = Rank::connect(&mut rendezvous, 1, 2, 10 * S);
    thief.join_with(&mut rendezvous, b"thief");
    assert_eq!(rendezvous.contested(), [1]);
    // It lived before, as far as signs of life tell that may be read late.
    rendezvous.handle_life(1, Some(10 * S + S / 4));
    rendezvous.handle_life(0, None);
    assert_eq!(rendezvous.poll_action(), None, "it waits, and the roster is as it was");
    rendezvous.handle_life(1, Some(10 * S + S / 4 + 1));
    let reason = reason(&mut rendezvous, thief.id);
    assert!(reason.starts_with("rank 1 has a daemon that lives; stop that one"), "{reason}");
    assert_eq!((rendezvous.connections(), rendezvous.stats().misplaced), (0, 1));
    // One that was killed is found dead before its next life gives up.
    let mut next = Rank::connect(&mut rendezvous, 1, 2, 20 * S);
    next.join_with(&mut rendezvous, b"next life");
    rendezvous.handle_life(1, Some(19 * S));
    assert_eq!(rendezvous.poll_timeout(), Some(25 * S));
    rendezvous.handle_timeout(24 * S);
    assert_eq!(rendezvous.poll_action(), None);
    rendezvous.handle_life(1, None);
    let sent = sent_to(&mut rendezvous, next.id);
    assert!(sent.windows(9).any(|bytes| bytes == b"next life"), "{sent:?}");
    assert_eq!((rendezvous.poll_timeout(), rendezvous.contested().len()), (None, 0));
    // Nobody learns anything of the one that is there.
    let mut late = Rank::connect(&mut rendezvous, 1, 2, 30 * S);
    late.join_with(&mut rendezvous, b"late");
    rendezvous.handle_timeout(35 * S);
    assert!(!sent_to(&mut rendezvous, late.id).is_empty());
    assert_eq!(rendezvous.connections(), 0);
}

#[test]
fn those_that_wait_for_the_end_of_a_rank_are_bounded() {
    let mut rendezvous = rendezvous(1);
    Rank::connect(&mut rendezvous, 0, 1, 0).join_with(&mut rendezvous, b"first");
    let mut ids = Vec::new();
    for _ in 0..10 {
        let mut thief = Rank::connect(&mut rendezvous, 0, 1, S);
        thief.join_with(&mut rendezvous, b"thief");
        ids.push(thief.id);
    }
    assert_eq!((rendezvous.connections(), rendezvous.contested().len()), (1, 1));
    rendezvous.handle_closed(ids[9]);
    rendezvous.handle_life(0, None);
    assert_eq!((rendezvous.connections(), rendezvous.contested().len()), (0, 0));
}

#[test]
fn a_rank_that_died_while_waiting_can_come_again_and_one_that_was_restarted_too() {
    let mut rendezvous = rendezvous(2);
    let mut one = Rank::connect(&mut rendezvous, 1, 2, 0);
    one.join_with(&mut rendezvous, b"old");
    rendezvous.handle_closed(one.id);
    Rank::connect(&mut rendezvous, 1, 2, 0).join_with(&mut rendezvous, b"new");
    Rank::connect(&mut rendezvous, 0, 2, 0).join_with(&mut rendezvous, b"zero");
    assert_eq!(rendezvous.outcome(), &ExchangeState::Complete);
    while rendezvous.poll_action().is_some() {}
    let mut again = Rank::connect(&mut rendezvous, 1, 2, 100 * S);
    again.join_with(&mut rendezvous, b"newest");
    rendezvous.handle_life(1, None);
    let roster = sent_to(&mut rendezvous, again.id);
    let body = &roster[frame::HEAD_BYTES..roster.len() - PROOF_BYTES];
    assert_eq!(frame::read_roster(body, 2).unwrap(), [&b"zero"[..], b"newest"]);
    assert_eq!(rendezvous.poll_timeout(), None, "nothing is left to wait for");
}

#[test]
fn fault_a6_a_rendezvous_that_was_restarted_knows_who_had_come() {
    let mut config = rendezvous(2).config;
    config.roster = Some(vec![b"zero".to_vec(), b"one".to_vec()]);
    let mut rendezvous = Rendezvous::new(config, 0, || [9; 32]);
    let mut zero = Rank::connect(&mut rendezvous, 0, 2, 0);
    zero.join_with(&mut rendezvous, b"zero again");
    rendezvous.handle_life(0, None);
    let roster = sent_to(&mut rendezvous, zero.id);
    let body = &roster[frame::HEAD_BYTES..roster.len() - PROOF_BYTES];
    assert_eq!(frame::read_roster(body, 2).unwrap(), [&b"zero again"[..], b"one"]);
}
