//! Bytes that no correct peer sends.

use copyrpc_proto::{
    Status,
    copyrpc::{Hello, Imm, Incoming, Violation},
};
use proptest::prelude::*;

use crate::{
    batch_check,
    pair::{Pair, Setup, pattern},
};

/// A batch as a correct peer sends it, and the connection that it is for.
fn sent(calls: u16) -> (Pair, Vec<u8>, u32) {
    let mut pair = Pair::new(Setup::default());
    for _ in 0..calls {
        pair.call(0, 1, 20, 0, 1 << 30).unwrap();
    }
    let (bytes, imm) = {
        let emission = pair.sides[0].connection.emission(1, true).unwrap();
        (emission.bytes.to_vec(), emission.imm)
    };
    (pair, bytes, imm)
}

/// The reaction of a connection to a batch; the calls it would answer.
fn feed(pair: &mut Pair, bytes: &[u8], imm: u32) -> usize {
    let connection = &mut pair.sides[1].connection;
    let Ok(arrival) = connection.arrive(Imm::decode(imm)) else { return 0 };
    let mut copy = vec![0xff; arrival.len_bytes];
    let len = bytes.len().min(copy.len());
    copy[..len].copy_from_slice(&bytes[..len]);
    let Ok(messages) = connection.open_batch(&copy, 1) else { return 0 };
    let mut served = 0;
    for message in messages {
        let Ok(message) = message else { break };
        if connection.message(&message).is_err() {
            break;
        }
        served += 1;
    }
    served
}

/// Rule C3.6: more than was sent cannot have been handled.
#[test]
fn a_batch_that_says_too_many_were_handled_is_a_violation() {
    let (mut pair, mut bytes, imm) = sent(1);
    bytes[12] = 1;
    let connection = &mut pair.sides[1].connection;
    let arrival = connection.arrive(Imm::decode(imm)).unwrap();
    bytes.resize(arrival.len_bytes, 0);
    let violation = connection.open_batch(&bytes, 1).map(drop);
    assert_eq!(violation, Err(Violation::Handled { found: 1, sent: 0 }));
}

#[test]
fn an_untouched_batch_is_taken() {
    let (mut pair, bytes, imm) = sent(3);
    assert_eq!(feed(&mut pair, &bytes, imm), 3);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 16 } else { 256 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// As the fuzzer, on random bytes.
    #[test]
    fn any_bytes_of_a_peer_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        batch_check::check(&bytes);
    }

    /// Fault D5: a flipped batch, with any immediate, is refused or is a batch; nothing panics.
    #[test]
    fn fault_d5_any_change_of_a_batch_is_survived(
        flips in prop::collection::vec((0_usize..200, any::<u8>()), 0..6),
        other_imm in any::<u32>(),
        is_imm_kept in any::<bool>(),
    ) {
        let (mut pair, mut bytes, imm) = sent(3);
        for (at, value) in flips {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        feed(&mut pair, &bytes, if is_imm_kept { imm } else { other_imm });
    }

    /// Rule C3.3, fault D6: forged credit is refused beyond the lines that were sent, and means nothing behind
    /// those that were given.
    #[test]
    fn fault_d6_forged_credit_never_frees_lines_that_were_not_sent(
        consumed in prop_oneof![0_u64..8, any::<u64>()],
        handled in prop_oneof![0_u64..4, any::<u64>()],
    ) {
        let mut pair = Pair::new(Setup::default());
        for _ in 0..2 {
            pair.call(0, 1, 100, 0, 1 << 30).unwrap();
            pair.depart(0, true);
        }
        let mut words = [0; 16];
        words[..8].copy_from_slice(&consumed.to_le_bytes());
        words[8..].copy_from_slice(&handled.to_le_bytes());
        let connection = &mut pair.sides[0].connection;
        let lines = connection.usage().ring_lines;
        let batches = connection.unhandled();
        let outcome = connection.credit(words, 1);
        prop_assert_eq!(outcome.is_ok(), consumed <= lines && handled <= batches);
        if outcome.is_ok() {
            prop_assert_eq!(connection.usage().ring_lines, lines - consumed);
            prop_assert_eq!(connection.unhandled(), batches - handled);
        } else {
            prop_assert_eq!(connection.usage().ring_lines, lines);
        }
    }

    #[test]
    fn any_bytes_are_a_hello_or_an_error(seed in any::<u64>(), len in 0_usize..80) {
        let _ = Hello::decode(&pattern(seed, len));
    }
}

/// Rule C5.4: an answer that breaks a rule ends its call with the connection, not without a word.
#[test]
fn an_answer_that_is_too_long_does_not_swallow_its_call() {
    let mut pair = Pair::new(Setup::default());
    // Side 1 believes that it may answer with 200 bytes; side 0 has set one line aside.
    let cookie = pair.call(0, 1, 8, 0, 1 << 30).unwrap();
    let call = pair.sides[0].connection.emission(1, true).unwrap();
    let mut bytes = call.bytes.to_vec();
    let imm = call.imm;
    let departure = call.departure;
    bytes[26] = 4; // the request's budget
    pair.sides[0].connection.posted(departure, 1);
    let server = &mut pair.sides[1].connection;
    let arrival = server.arrive(Imm::decode(imm)).unwrap();
    bytes.resize(arrival.len_bytes, 0);
    let request = server.open_batch(&bytes, 1).unwrap().next().unwrap().unwrap();
    let Ok(Incoming::Request { id, .. }) = server.message(&request) else { panic!("a request") };
    server.close_batch(1);
    server.reply(id, Status::Ok, 200, 1).unwrap();
    let answer = server.emission(1, true).map(|e| (e.bytes.to_vec(), e.imm)).unwrap();
    let client = &mut pair.sides[0].connection;
    let arrival = client.arrive(Imm::decode(answer.1)).unwrap();
    let mut copy = answer.0;
    copy.resize(arrival.len_bytes, 0);
    let message = client.open_batch(&copy, 1).unwrap().next().unwrap().unwrap();
    let too_long = Violation::ResponseTooLong { len_bytes: 200, max_bytes: 40 };
    assert_eq!(client.message(&message), Err(too_long));
    let mut drained = Vec::new();
    client.drain(|cookie| drained.push(cookie));
    assert_eq!(drained, [cookie]);
}

/// Rule C2.8: a status that only a newer peer knows is still an answer.
#[test]
fn a_status_of_the_future_is_unknown_not_wrong() {
    let mut pair = Pair::new(Setup::default());
    let cookie = pair.call(0, 1, 8, 0, 1 << 30).unwrap();
    pair.depart(0, true);
    pair.arrive(0, false).unwrap();
    pair.reply(1, 0, 8);
    let answer = pair.sides[1].connection.emission(1, true);
    let (mut bytes, imm) = answer.map(|e| (e.bytes.to_vec(), e.imm)).unwrap();
    assert_eq!(bytes[19], 0x80, "a response that is OK");
    bytes[19] = 0x80 | 99;
    let client = &mut pair.sides[0].connection;
    let arrival = client.arrive(Imm::decode(imm)).unwrap();
    bytes.resize(arrival.len_bytes, 0);
    let message = client.open_batch(&bytes, 1).unwrap().next().unwrap().unwrap();
    let Ok(Incoming::Response { cookie: ended, status, .. }) = client.message(&message) else {
        panic!("an answer")
    };
    assert_eq!((ended, status), (cookie, Status::Unknown));
}

/// An announcement that comes before its bytes, or before all of them: what lies there is of an earlier lap, in
/// part or all of it. Whatever is missing, no request is taken that was not sent.
#[test]
fn fault_d3_an_announcement_before_its_bytes_never_shows_those_of_an_earlier_lap() {
    let (mut first, old, imm) = sent(3);
    assert_eq!(feed(&mut first, &old, imm), 3);
    for arrived in 0..=old.len() / 8 {
        let (mut pair, bytes, imm) = sent(3);
        // The batch of an earlier lap: an earlier number, and other requests.
        let mut seen = bytes.clone();
        seen[8..10].copy_from_slice(&0xfff0_u16.to_le_bytes());
        seen[16..].fill(0x5a);
        // Bytes arrive in ascending order, the header first; or it comes last.
        let header_first = {
            let mut seen = seen.clone();
            seen[..arrived * 8].copy_from_slice(&bytes[..arrived * 8]);
            seen
        };
        let is_whole = header_first == bytes;
        let served = feed(&mut pair, &header_first, imm);
        assert!(served == 3 || !is_whole, "a whole batch is taken");
        if arrived * 8 < 16 {
            assert_eq!(served, 0, "without its header nothing is taken");
        }
        let (mut pair, ..) = sent(3);
        seen[16..].copy_from_slice(&bytes[16..]);
        assert_eq!(feed(&mut pair, &seen, imm), 0, "the number is of an earlier lap");
    }
}
