//! The reports of a connection to its driver: its counters, and the time of the next look.

use copyrpc_proto::copyrpc::{
    Call, CallRefused, FlushPolicy, Geometry, Imm, Incoming, Large, ReplyError,
};

use crate::pair::{CREDIT_DELAY_NS, Pair, Setup, UNNEEDED_DELAY_NS};

const LONG_NS: u64 = 1 << 40;

/// Each counter counts one thing, once; times are those between events.
#[test]
fn counters_tell_what_was_done() {
    let mut pair = Pair::new(Setup { signal_interval: 1, ..Setup::default() });
    for _ in 0..2 {
        pair.call(0, 1, 8, 8, LONG_NS).unwrap();
    }
    pair.advance(500);
    assert_eq!(pair.depart(0, true), 1);
    assert_eq!(pair.sides[0].connection.unconsumed(), 2);
    pair.advance(300);
    assert!(pair.arrive(0, false).unwrap());
    for _ in 0..2 {
        pair.reply(1, 0, 8);
    }
    assert_eq!(pair.depart(1, true), 1);
    assert!(pair.arrive(1, false).unwrap());
    assert_eq!(pair.sides[0].connection.unconsumed(), 0);
    let caller = pair.sides[0].connection.counters();
    assert_eq!((caller.batches_out, caller.messages_out, caller.credits_out), (1, 2, 0));
    assert_eq!((caller.batches_in, caller.messages_in), (1, 2));
    assert_eq!((caller.held_ns, caller.trips, caller.trips_ns), (500, 1, 300));
    pair.advance(UNNEEDED_DELAY_NS);
    assert_eq!(pair.depart(0, true), 1, "credit for the answers");
    pair.look(1);
    assert_eq!(pair.sides[0].connection.counters().credits_out, 1);
    let server = pair.sides[1].connection.counters();
    assert_eq!((server.held_ns, server.trips, server.trips_ns), (0, 1, UNNEEDED_DELAY_NS));
    let nothing = (caller.late, caller.expired, caller.ring_full, caller.window_full);
    assert_eq!(nothing, (0, 0, 0, 0));
}

#[test]
fn what_is_refused_or_comes_too_late_is_counted() {
    let geometry = Geometry::new(1024, 256, 256).unwrap();
    let mut pair = Pair::new(Setup { geometry, batches_max: 1, ..Setup::default() });
    for _ in 0..2 {
        pair.call(0, 1, 8, 8, 100).unwrap();
    }
    pair.depart(0, true);
    pair.advance(100);
    assert_eq!(pair.sides[0].connection.counters().expired, 2);
    while pair.call(0, 1, 200, 0, LONG_NS).is_ok() {}
    assert_eq!(pair.sides[0].connection.counters().ring_full, 1);
    assert_eq!(pair.depart(0, true), 0, "the peer has one receive");
    assert_eq!(pair.sides[0].connection.counters().window_full, 1);
    pair.arrive(0, false).unwrap();
    pair.reply(1, 0, 8);
    pair.reply_large(1, 0);
    pair.depart(1, true);
    pair.arrive(1, false).unwrap();
    assert_eq!(pair.sides[0].connection.counters().late, 2);
}

/// Rule C5.5: the peer learns of a call that met its deadline.
#[test]
fn a_call_that_expires_is_cancelled_where_it_is_served() {
    let mut pair = Pair::new(Setup::default());
    pair.call(0, 1, 8, 8, 100).unwrap();
    pair.depart(0, true);
    pair.arrive(0, false).unwrap();
    let id = pair.sides[1].requests[0].id;
    assert!(!pair.sides[1].connection.is_cancelled(id));
    pair.advance(100);
    assert_eq!(pair.depart(0, true), 1);
    pair.arrive(0, false).unwrap();
    assert!(pair.sides[1].connection.is_cancelled(id));
    pair.settle();
}

/// A driver that sleeps until the reported time misses nothing that is due by time.
#[test]
fn a_connection_is_looked_at_when_something_is_due() {
    let setup = Setup { flush: FlushPolicy::Hold { ns: 700 }, batches_max: 1, ..Setup::default() };
    let mut pair = Pair::new(setup);
    let wake_ns = |pair: &Pair| pair.sides[0].connection.wake_ns(pair.now_ns);
    assert_eq!(wake_ns(&pair), None);
    pair.call(0, 1, 8, 8, 50_000_000).unwrap();
    assert_eq!(wake_ns(&pair), Some(701), "what is held back");
    pair.advance(700);
    assert_eq!(pair.depart(0, false), 1);
    assert_eq!(wake_ns(&pair), Some(50_000_001), "the deadline");
    pair.call(0, 1, 8, 8, LONG_NS).unwrap();
    assert_eq!(pair.depart(0, false), 0);
    assert_eq!(wake_ns(&pair), Some(701 + 1000), "the peer's receives, after the delay of credit");
    pair.advance(3000);
    assert_eq!(wake_ns(&pair), Some(3701 + 3000), "as long as it has waited");
    pair.advance(20_000_000);
    assert_eq!(wake_ns(&pair), Some(20_003_701 + 10_000_000), "ten milliseconds at most");
    // Credit of the peer is progress.
    pair.arrive(0, false).unwrap();
    pair.advance(1000);
    pair.depart(1, true);
    pair.look(0);
    assert_eq!(pair.depart(0, false), 1);
    assert_eq!(wake_ns(&pair), Some(50_000_001));
}

/// Rule C7.3: what follows a batch that was full is held back as long as any, and not for ever.
#[test]
fn what_is_left_after_a_full_batch_leaves_in_its_own_time() {
    let setup = Setup { flush: FlushPolicy::Hold { ns: 700 }, ..Setup::default() };
    let mut pair = Pair::new(setup);
    for _ in 0..2 {
        pair.call(0, 1, 150, 0, LONG_NS).unwrap();
    }
    assert_eq!(pair.depart(0, false), 1, "the full one");
    assert_eq!(pair.sides[0].connection.wake_ns(pair.now_ns), Some(701));
    pair.advance(700);
    assert_eq!(pair.depart(0, false), 1);
}

/// Rule C3.4: credit waits from when there is some to give, however much joins it.
#[test]
fn credit_is_due_after_its_delay_though_batches_keep_coming() {
    let mut pair = Pair::new(Setup::default());
    for _ in 0..2 {
        pair.call(0, 1, 8, 8, LONG_NS).unwrap();
        pair.depart(0, true);
        pair.arrive(0, true).unwrap();
        pair.advance(600 * UNNEEDED_DELAY_NS / 1000);
    }
    let too_early_ns = 200 * UNNEEDED_DELAY_NS / 1000 + 1;
    assert!(pair.sides[1].connection.credit_due(pair.now_ns).is_some());
    assert!(pair.sides[1].connection.credit_due(pair.now_ns - too_early_ns).is_none());
}

/// Rule C3.8: credit that the peer may have to wait for is announced early, and the peer can always send a longest
/// batch while no credit is.
#[test]
fn only_credit_that_the_peer_may_need_is_told_early() {
    // Of 32 lines 16 are for answers and 8 for a batch and a wrap: 8 may be untold.
    let geometry = Geometry::new(2048, 1024, 256).unwrap();
    let mut pair = Pair::new(Setup { geometry, batches_max: 64, ..Setup::default() });
    let mut told = Vec::new();
    for _ in 0..7 {
        pair.call(0, 1, 8, 8, LONG_NS).unwrap();
        pair.depart(0, true);
        pair.arrive(0, false).unwrap();
        let connection = &pair.sides[1].connection;
        told.push(connection.credit_due(pair.now_ns + CREDIT_DELAY_NS).is_some());
        assert!(connection.credit_due(pair.now_ns + CREDIT_DELAY_NS - 1).is_none());
        assert!(connection.credit_due(pair.now_ns + UNNEEDED_DELAY_NS).is_some());
    }
    assert_eq!(told, [false; 7], "seven lines: another eight are free");
    // The longest body of a request.
    pair.call(0, 1, 224, 8, LONG_NS).unwrap();
    pair.depart(0, true);
    pair.arrive(0, false).unwrap();
    let now_ns = pair.now_ns;
    assert!(pair.sides[1].connection.credit_due(now_ns).is_some(), "a quarter of the ring at once");
    let wake_ns = pair.sides[1].connection.wake_ns(now_ns);
    assert_eq!(wake_ns, Some(now_ns + CREDIT_DELAY_NS), "nobody sleeps for longer");

    // As many answers as a ring can have: there is one batch, and each line of it is needed.
    let geometry = Geometry::new(2048, 1536, 256).unwrap();
    let mut pair = Pair::new(Setup { geometry, batches_max: 64, ..Setup::default() });
    pair.call(0, 1, 8, 8, LONG_NS).unwrap();
    pair.depart(0, true);
    pair.arrive(0, false).unwrap();
    let connection = &pair.sides[1].connection;
    assert!(connection.credit_due(pair.now_ns + CREDIT_DELAY_NS - 1).is_none());
    assert!(connection.credit_due(pair.now_ns + CREDIT_DELAY_NS).is_some());
}

/// Rules C3.4 and C3.5: lines that were held when their batch was announced as handled are given back by
/// themselves, too.
#[test]
fn lines_that_are_released_later_are_given_back() {
    let mut pair = Pair::new(Setup::default());
    pair.call(0, 1, 8, 8, LONG_NS).unwrap();
    pair.depart(0, true);
    pair.arrive(0, true).unwrap();
    pair.advance(UNNEEDED_DELAY_NS);
    assert_eq!(pair.depart(1, true), 1, "the batch was handled");
    let held = pair.sides[1].requests[0].lease.unwrap();
    let now_ns = pair.now_ns;
    assert_eq!(pair.sides[1].connection.credit_due(now_ns + 1_000_000), None);
    pair.sides[1].connection.end_lease(held, now_ns);
    let due_ns = now_ns + UNNEEDED_DELAY_NS;
    assert_eq!(pair.sides[1].connection.wake_ns(now_ns), Some(due_ns));
    assert!(pair.sides[1].connection.credit_due(due_ns).is_some());
}

/// The time left is rounded up to whole microseconds: who has some has not none.
#[test]
fn a_request_says_how_long_its_caller_waits() {
    for (timeout_ns, expected_us) in [(1, 1), (1000, 1), (1001, 2), (u64::MAX / 2, u32::MAX)] {
        let mut pair = Pair::new(Setup::default());
        pair.call(0, 1, 8, 8, timeout_ns).unwrap();
        let emission = pair.sides[0].connection.emission(1, true).unwrap();
        let imm = emission.imm;
        let mut bytes = emission.bytes.to_vec();
        bytes.resize(bytes.len().next_multiple_of(64), 0);
        let server = &mut pair.sides[1].connection;
        server.arrive(Imm::decode(imm)).unwrap();
        let message = server.open_batch(&bytes, 1).unwrap().next().unwrap().unwrap();
        match server.message(&message) {
            Ok(Incoming::Request { timeout_us, .. }) => assert_eq!(timeout_us, expected_us),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn answers_that_can_never_have_a_place_are_refused_and_others_are_cut_to_what_there_is() {
    let geometry = Geometry::new(2048, 64, 256).unwrap();
    let mut pair = Pair::new(Setup { geometry, ..Setup::default() });
    let refused = pair.call(0, 1, 8, 200, LONG_NS).unwrap_err();
    assert_eq!(refused, CallRefused::NoPlace { asked_bytes: 200, max_bytes: 40 });
    let mut pair = Pair::new(Setup::default());
    pair.call(0, 1, 8, 1 << 30, LONG_NS).expect("a longer one comes by rendezvous");
}

/// Rule C6.2, from the side that names memory.
#[test]
fn large_bodies_that_the_peer_would_refuse_are_refused_here() {
    let max_bytes = 1 << 20;
    let mut pair = Pair::new(Setup::default());
    let large = |len_bytes| Large { addr: 1 << 40, rkey: 7, len_bytes };
    let call = Call { method: 1, response_bytes: 8, deadline_ns: LONG_NS, cookie: 0 };
    let caller = &mut pair.sides[0].connection;
    for len_bytes in [0, max_bytes + 1] {
        let refused = caller.call_large(&call, large(u32::try_from(len_bytes).unwrap()), 1);
        assert_eq!(refused, Err(CallRefused::TooLong { len_bytes, max_bytes }));
    }
    assert!(caller.call_large(&call, large(1 << 20), 1).is_ok());
    let mut pair = Pair::new(Setup::default());
    pair.call(0, 1, 8, 8, LONG_NS).unwrap();
    pair.depart(0, true);
    pair.arrive(0, false).unwrap();
    let id = pair.sides[1].requests[0].id;
    for len_bytes in [0, (1 << 20) + 1] {
        let refused = pair.sides[1].connection.reply_large(id, large(len_bytes), 1);
        assert!(matches!(refused, Err(ReplyError::TooLong { .. })), "{len_bytes}: {refused:?}");
    }
    pair.settle();
}
