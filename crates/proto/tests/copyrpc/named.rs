//! Mistakes made once elsewhere, and faults by their numbers.

use copyrpc_proto::{
    Status,
    copyrpc::{Busy, CallRefused, FlushPolicy, Geometry, Usage, response_bytes},
};

use crate::pair::{CALLS, Pair, Setup, UNNEEDED_DELAY_NS};

/// Longer than any of these tests.
const LONG_NS: u64 = 1 << 40;

fn small() -> Setup {
    Setup { geometry: Geometry::new(1024, 256, 256).unwrap(), ..Setup::default() }
}

/// Calls until back-pressure; returns how many were taken and why no more.
fn call_until_busy(pair: &mut Pair, from: usize, len_bytes: usize) -> (usize, CallRefused) {
    for made in 0..usize::from(CALLS) + 1 {
        if let Err(refused) = pair.call(from, 1, len_bytes, 0, LONG_NS) {
            return (made, refused);
        }
    }
    unreachable!("more calls than slots");
}

/// Pitfall 9: under a full ring no request is overwritten before it was consumed. (The harness
/// checks every write against the unread lines.)
#[test]
fn pitfall_9_a_full_ring_overwrites_nothing() {
    let mut pair = Pair::new(small());
    for _ in 0..if cfg!(miri) { 20 } else { 50 } {
        call_until_busy(&mut pair, 0, 100);
        pair.depart(0, true);
        while pair.arrive(0, true).unwrap() {}
        assert!(pair.call(0, 1, 200, 0, LONG_NS).is_err(), "held requests keep the ring full");
        while let Some(at) = pair.sides[1].requests.len().checked_sub(1) {
            pair.reply(1, at, 8);
        }
        pair.advance(2000);
        pair.depart(1, true);
        pair.look(0);
        while pair.arrive(1, false).unwrap() {}
    }
    pair.settle();
    assert!(pair.sides[0].ended.len() > 50);
}

/// Rule C5.2, pitfall 10: requests are served in the order in which they were made.
#[test]
fn pitfall_10_requests_arrive_first_in_first_out() {
    let mut pair = Pair::new(Setup::default());
    for method in 0..8 {
        pair.call(0, method, 30, 0, LONG_NS).unwrap();
    }
    pair.depart(0, true);
    while pair.arrive(0, false).unwrap() {}
    let methods: Vec<_> = pair.sides[1].requests.iter().map(|request| request.method).collect();
    assert_eq!(methods, (0..8).collect::<Vec<_>>());
}

/// Rule C7.1, pitfall 11: nothing changes before a batch is posted.
#[test]
fn pitfall_11_an_emission_that_is_not_posted_changes_nothing() {
    let mut pair = Pair::new(Setup::default());
    pair.call(0, 1, 30, 0, LONG_NS).unwrap();
    let usage = pair.sides[0].connection.usage();
    let first = pair.sides[0].connection.emission(1, true).map(|e| (e.offset_bytes, e.imm));
    for _ in 0..5 {
        let again = pair.sides[0].connection.emission(1, true).map(|e| (e.offset_bytes, e.imm));
        assert_eq!(again, first);
        assert_eq!(pair.sides[0].connection.usage(), usage);
    }
    // The batch goes on growing while it cannot be posted.
    pair.call(0, 1, 30, 0, LONG_NS).unwrap();
    assert_eq!(pair.depart(0, true), 1);
    pair.settle();
    assert_eq!(pair.sides[0].ended.len(), 2);
}

/// Rules C3.4 and C4.1, pitfall 12, fault C4: rings full in both directions, with responses larger than
/// requests; an idle side gives credit back by itself.
#[test]
fn pitfall_12_full_rings_in_both_directions_do_not_deadlock() {
    let setup = Setup { geometry: Geometry::new(1024, 512, 256).unwrap(), ..Setup::default() };
    let mut pair = Pair::new(setup);
    for round in 0..if cfg!(miri) { 3 } else { 100 } {
        for from in 0..2 {
            while pair.call(from, 1, 8, 200, LONG_NS).is_ok() {}
            pair.depart(from, true);
        }
        for from in 0..2 {
            while pair.arrive(from, true).unwrap() {}
        }
        // Both sides are full of requests that are held. Every answer has a place all the same.
        for from in 0..2 {
            assert!(!pair.sides[from].requests.is_empty(), "round {round}: no progress");
            while !pair.sides[from].requests.is_empty() {
                pair.reply(from, 0, 200);
            }
            pair.depart(from, true);
        }
        for from in 0..2 {
            while pair.arrive(from, false).unwrap() {}
        }
        pair.advance(2000);
        for from in 0..2 {
            pair.depart(from, true);
            pair.look(1 - from);
            while pair.arrive(from, false).unwrap() {}
        }
    }
    pair.settle();
    for side in &pair.sides {
        assert!(
            side.ended
                .values()
                .all(|(status, body)| { *status == Status::Ok && matches!(body.len(), 8 | 200) })
        );
        assert_eq!(side.connection.usage(), Usage::default());
    }
}

/// Rule C3.4, pitfall 12: a side that sends nothing gives credit back after the delay, and only once.
#[test]
fn pitfall_12_an_idle_side_returns_credit_by_timer() {
    let mut pair = Pair::new(small());
    pair.call(0, 1, 8, 0, LONG_NS).unwrap();
    pair.depart(0, true);
    while pair.arrive(0, false).unwrap() {}
    assert_eq!(pair.depart(1, true), 0, "too early");
    pair.advance(UNNEEDED_DELAY_NS);
    assert_eq!(pair.depart(1, true), 1);
    assert_eq!(pair.depart(1, true), 0, "there is no news");
    pair.look(0);
    assert_eq!(pair.sides[0].connection.usage().ring_lines, 0);
    assert_eq!(pair.sides[1].connection.counters().credits_out, 1);
}

/// Rule C3.4: on a fabric that places WRITEs of a queue pair in any order, an older one may be the last.
#[test]
fn no_credit_words_leave_while_older_ones_are_on_their_way() {
    let mut pair = Pair::new(small());
    let hand_over = |pair: &mut Pair| {
        pair.call(0, 1, 8, 0, LONG_NS).unwrap();
        pair.depart(0, true);
        while pair.arrive(0, false).unwrap() {}
        pair.advance(UNNEEDED_DELAY_NS);
        pair.now_ns
    };
    let now_ns = hand_over(&mut pair);
    let older = pair.sides[1].connection.credit_due(now_ns).unwrap();
    pair.sides[1].connection.credit_posted();
    let now_ns = hand_over(&mut pair);
    let connection = &mut pair.sides[1].connection;
    assert_eq!(connection.credit_due(now_ns), None);
    assert_eq!(connection.wake_ns(now_ns), None, "its completion wakes it");
    connection.credit_arrived();
    let newer = connection.credit_due(now_ns).unwrap();
    assert_ne!(older, newer);
    connection.credit_posted();
    connection.credit_lost();
    assert!(connection.credit_due(now_ns).is_some());
}

/// Fault C5: nothing, the longest, and one byte more; requests and responses.
#[test]
fn fault_c5_lengths_from_nothing_to_one_too_many() {
    let mut pair = Pair::new(small());
    let max_bytes = pair.sides[0].connection.request_bytes_max();
    for len_bytes in [0, 1, 7, 8, 9, 47, 48, 49, max_bytes - 1, max_bytes] {
        let cookie = pair.call(0, 1, len_bytes, max_bytes, LONG_NS).unwrap();
        pair.settle();
        assert_eq!(pair.sides[0].ended[&cookie].1.len(), len_bytes);
    }
    let too_long = CallRefused::TooLong { len_bytes: max_bytes + 1, max_bytes };
    assert_eq!(pair.call(0, 1, max_bytes + 1, 0, LONG_NS), Err(too_long));
    // A response of one byte more than was set aside is refused, and the request stays open.
    pair.call(0, 1, 8, 0, LONG_NS).unwrap();
    pair.depart(0, true);
    pair.arrive(0, false).unwrap();
    let id = pair.sides[1].requests[0].id;
    let aside = response_bytes(1);
    let connection = &mut pair.sides[1].connection;
    assert!(connection.reply(id, Status::Ok, aside + 1, 1).is_err());
    assert_eq!(connection.serving(), 1);
    pair.settle();
}

/// Rules C2.5, C3.3 and C5.1, fault C6: positions pass 2³² lines, batch numbers 2¹⁶, generations of calls 2¹⁶.
#[test]
fn fault_c6_positions_and_names_wrap() {
    let setup =
        Setup { start_lines: (1 << 32) - 100, start_generation: u16::MAX - 3, ..Setup::default() };
    let mut pair = Pair::new(setup);
    // Miri sees enough of it in the first laps, and takes its time.
    let calls = if cfg!(miri) { 120 } else { 70_000 };
    for _ in 0..calls {
        pair.call(0, 1, 40, 0, LONG_NS).unwrap();
        pair.depart(0, true);
        while pair.arrive(0, false).unwrap() {}
        pair.reply(1, 0, 8);
        pair.depart(1, true);
        while pair.arrive(1, false).unwrap() {}
    }
    pair.settle();
    assert_eq!(pair.sides[0].ended.len(), calls);
    assert!(pair.sides[0].ended.values().all(|(status, _)| *status == Status::Ok));
}

/// Rule C5.4, pitfall 15: a call ends at its deadline without an answer, and its late answer
/// frees the slot and budget that it held.
#[test]
fn pitfall_15_every_call_ends_at_its_deadline() {
    let mut pair = Pair::new(small());
    let cookie = pair.call(0, 1, 8, 0, 5_000_000).unwrap();
    pair.depart(0, true);
    pair.arrive(0, false).unwrap();
    pair.advance(4_999_999);
    assert!(pair.sides[0].ended.is_empty());
    pair.advance(1);
    assert_eq!(pair.sides[0].ended[&cookie].0, Status::DeadlineExceeded);
    assert_eq!(pair.sides[0].connection.usage().calls, 1, "the answer is still to come");
    pair.settle();
    assert_eq!(pair.sides[0].connection.usage(), Usage::default());
    assert_eq!(pair.sides[0].connection.counters().late, 1);
}

/// Rule C5.5: a cancellation reaches the server, and may cross the answer.
#[test]
fn a_cancelled_call_ends_at_once_and_the_server_hears_of_it() {
    let mut pair = Pair::new(small());
    let cookie = pair.call(0, 1, 8, 0, LONG_NS).unwrap();
    pair.depart(0, true);
    pair.arrive(0, false).unwrap();
    pair.sides[0].cancel(cookie);
    assert_eq!(pair.sides[0].ended[&cookie].0, Status::Cancelled);
    let id = pair.sides[1].requests[0].id;
    assert!(!pair.sides[1].connection.is_cancelled(id));
    pair.depart(0, true);
    pair.arrive(0, false).unwrap();
    assert!(pair.sides[1].connection.is_cancelled(id));
    pair.settle();
    assert_eq!(pair.sides[0].connection.usage(), Usage::default());
}

/// Back-pressure names the short resource, and loses nothing.
#[test]
fn refusals_say_what_is_short() {
    let mut pair = Pair::new(small());
    let (made, refused) = call_until_busy(&mut pair, 0, 8);
    assert_eq!(refused, CallRefused::Busy(Busy::Responses), "256 B for responses are four lines");
    assert_eq!(made, 4);
    let mut pair = Pair::new(small());
    let (made, refused) = call_until_busy(&mut pair, 0, 200);
    assert_eq!(refused, CallRefused::Busy(Busy::Ring));
    assert!(made >= 1);
    pair.settle();
    assert_eq!(pair.sides[0].ended.len(), made);
    let roomy = Geometry::new(1 << 14, 1 << 13, 1 << 10).unwrap();
    let mut pair = Pair::new(Setup { geometry: roomy, ..Setup::default() });
    let (made, refused) = call_until_busy(&mut pair, 0, 8);
    assert_eq!((made, refused), (usize::from(CALLS), CallRefused::Busy(Busy::Calls)));
}

/// Leaves side 0 with a request of one line on its way, from line `at` of the ring on. There always is
/// one, so the ring does not start over (rule C2.10).
fn one_line_from(at: usize) -> Pair {
    let mut pair = Pair::new(small());
    let call = |pair: &mut Pair| {
        pair.call(0, 1, 20, 0, LONG_NS).unwrap();
        pair.depart(0, true);
    };
    call(&mut pair);
    for _ in 0..at {
        call(&mut pair);
        pair.arrive(0, false).unwrap();
        pair.reply(1, 0, 8);
        pair.depart(1, true);
        pair.arrive(1, false).unwrap();
    }
    pair
}

/// Rules C2.4 and C3.1: what a wrap skips is never the place of a response, wherever in the ring it falls.
#[test]
fn a_wrap_never_takes_the_place_of_a_response() {
    for (at, first_bytes) in (0..16).flat_map(|at| [20, 60, 100, 200].map(|first| (at, first))) {
        let mut pair = one_line_from(at);
        for _ in 0..4 {
            pair.call(1, 1, 8, 32, LONG_NS).unwrap();
        }
        pair.depart(1, true);
        while pair.arrive(1, false).unwrap() {}
        // Requests, a batch each, as many as go; the peer gives nothing back.
        let mut len_bytes = first_bytes;
        while pair.call(0, 1, len_bytes, 0, LONG_NS).is_ok() {
            assert_eq!(pair.depart(0, true), 1);
            len_bytes = 200;
        }
        for answer in 0..4 {
            pair.reply(0, 0, 32);
            assert_eq!(pair.depart(0, true), 1, "answer {answer} after line {at}");
        }
        pair.settle();
    }
}

/// Rules C5.1 and C6.4: a slot whose large response was fetched is used again only behind its release.
#[test]
fn a_release_goes_before_the_next_call_of_its_slot() {
    let mut pair = Pair::new(Setup::default());
    for _ in 0..10 {
        pair.call(0, 1, 8, 0, LONG_NS).unwrap();
        pair.depart(0, true);
        pair.arrive(0, false).unwrap();
        pair.reply_large(1, 0);
        pair.depart(1, true);
        while pair.arrive(1, false).unwrap() {}
        pair.fetch(0, 0);
        // The next one is made before the release has left.
    }
    pair.settle();
    assert_eq!(pair.sides[1].lent, []);
}

/// Fault G7: with one call in flight a policy holds it back at most as long as it says, and one that
/// adapts learns that holding back is of no use.
#[cfg_attr(miri, ignore = "hundreds of thousands of polls")]
#[test]
fn fault_g7_a_single_call_waits_no_longer_than_its_policy_says() {
    const STEP_NS: u64 = 500;
    let policies = [
        (FlushPolicy::SelfClocked { wqes: 1 }, 0),
        (FlushPolicy::Immediate, 0),
        (FlushPolicy::Hold { ns: 10_000 }, 10_000),
        (FlushPolicy::AdaptiveHold { messages: 8 }, 0),
        (FlushPolicy::RttHold { permille: 100_000 }, 100_000),
        (FlushPolicy::PollBudget { polls: 4 }, 4 * STEP_NS),
        (FlushPolicy::Coalesce { ns: 10_000 }, 0),
    ];
    for (flush, longest_ns) in policies {
        let mut pair = Pair::new(Setup { flush, ..Setup::default() });
        for round in 0..50 {
            pair.call(0, 1, 8, 0, LONG_NS).unwrap();
            let made_ns = pair.now_ns;
            while pair.depart(0, false) == 0 {
                pair.advance(STEP_NS);
                assert!(pair.now_ns - made_ns <= 200_000, "{flush:?} never posts it");
            }
            // A policy that adapts may be wrong at first.
            let held_ns = pair.now_ns - made_ns;
            assert!(round < 20 || held_ns <= longest_ns, "{flush:?} took {held_ns} ns");
            pair.settle();
        }
    }
}

/// Rule C3.3: credit that is written beside the ring overtakes batches. Their credit is old then
/// news, and no violation.
#[test]
fn a_credit_word_may_be_ahead_of_the_batches_before_it() {
    let mut pair = Pair::new(Setup::default());
    for _ in 0..2 {
        pair.call(0, 1, 8, 0, LONG_NS).unwrap();
        pair.depart(0, true);
        pair.arrive(0, false).unwrap();
    }
    // Side 1 gives the first lines back by an answer, then more beside the ring.
    pair.reply(1, 0, 8);
    pair.depart(1, true);
    pair.call(0, 1, 8, 0, LONG_NS).unwrap();
    pair.depart(0, true);
    pair.arrive(0, false).unwrap();
    pair.advance(UNNEEDED_DELAY_NS);
    pair.depart(1, true);
    assert_eq!(pair.sides[1].connection.counters().credits_out, 1);
    // The answer is handled only now.
    pair.look(0);
    assert_eq!(pair.sides[0].connection.unhandled(), 0);
    while pair.arrive(1, false).unwrap() {}
    pair.settle();
    assert_eq!(pair.sides[0].ended.len(), 3);
    assert_eq!(pair.sides[0].connection.usage(), Usage::default());
}

/// Rule C3.6: a peer that handles nothing, as one that is stopped, is sent as many batches as it has
/// receives; what else there is to say merges, and leaves once it goes on.
#[test]
fn a_peer_that_handles_nothing_is_sent_no_more_than_it_has_receives() {
    let setup = Setup { batches_max: 3, flush: FlushPolicy::Immediate, ..Setup::default() };
    let mut pair = Pair::new(setup);
    for _ in 0..6 {
        pair.call(0, 1, 8, 0, LONG_NS).unwrap();
        pair.depart(0, true);
    }
    let counters = pair.sides[0].connection.counters();
    assert_eq!((counters.batches_out, counters.window_full), (3, 6 - 3));
    assert!(pair.sides[0].connection.is_starved());
    while pair.arrive(0, true).unwrap() {}
    // Half of the batches that it can take are announced at once, though every request is held.
    assert_eq!(pair.depart(1, true), 1);
    pair.look(0);
    assert!(!pair.sides[0].connection.is_starved());
    assert_eq!(pair.depart(0, true), 1, "three calls that merged");
    pair.settle();
    assert_eq!(pair.sides[0].ended.len(), 6);
}

/// Rule C3.7: both sides have sent all that the other one can take, and hold every request. Credit that frees
/// them needs neither a receive, nor a place, nor an answer, so each gets the other's answers.
#[test]
fn windows_that_are_full_both_ways_open_again() {
    for batches_max in 1..4 {
        let setup = Setup { batches_max, flush: FlushPolicy::Immediate, ..Setup::default() };
        let mut pair = Pair::new(setup);
        for _ in 0..2 * batches_max {
            for from in 0..2 {
                pair.call(from, 1, 8, 8, LONG_NS).unwrap();
                pair.depart(from, true);
            }
        }
        assert!(pair.sides.iter().all(|side| side.connection.is_starved()));
        for from in 0..2 {
            while pair.arrive(from, true).unwrap() {}
        }
        pair.advance(2000);
        for from in 0..2 {
            pair.depart(from, true);
            pair.look(1 - from);
            while pair.arrive(from, true).unwrap() {}
            let is_starved = pair.sides[1 - from].connection.is_starved();
            assert!(!is_starved, "all is handled, though nothing is answered");
        }
        for from in 0..2 {
            for _ in 0..pair.sides[1 - from].requests.len() {
                pair.reply(1 - from, 0, 8);
            }
        }
        pair.settle();
        let credits_out = pair.sides.each_ref().map(|side| side.connection.counters().credits_out);
        assert!(credits_out.iter().sum::<u64>() > 0, "no batch could say it");
        for side in &pair.sides {
            assert!(side.connection.counters().window_full > 0);
            assert!(side.ended.values().all(|(status, _)| *status == Status::Ok));
            assert_eq!(side.ended.len(), usize::from(2 * batches_max));
        }
    }
}

/// A side that is starved and asleep looks again: soon at first, then after as long as it has waited.
#[test]
fn who_is_starved_looks_again_by_itself() {
    let mut pair = Pair::new(Setup { batches_max: 1, ..Setup::default() });
    for _ in 0..2 {
        pair.call(0, 1, 8, 0, LONG_NS).unwrap();
        pair.depart(0, true);
    }
    let posted_ns = pair.now_ns;
    for (waited_ns, look_ns) in [(0, 1000), (500, 1000), (5000, 5000), (1 << 40, 10_000_000)] {
        let now_ns = posted_ns + waited_ns;
        let wake_ns = pair.sides[0].connection.wake_ns(now_ns).unwrap();
        assert_eq!(wake_ns.min(now_ns + look_ns), wake_ns);
        assert!(wake_ns == now_ns + look_ns || wake_ns == posted_ns + LONG_NS);
    }
}

/// A batch that is due, and that the peer must make room for, is nothing to be awake for.
#[test]
fn who_waits_for_the_peer_is_not_woken_by_its_flush_policy() {
    for flush in [
        FlushPolicy::Hold { ns: 10 },
        FlushPolicy::AdaptiveHold { messages: 8 },
        FlushPolicy::RttHold { permille: 500 },
        FlushPolicy::PollBudget { polls: 1 },
    ] {
        let mut pair = Pair::new(Setup { batches_max: 1, flush, ..Setup::default() });
        for _ in 0..2 {
            pair.call(0, 1, 8, 0, LONG_NS).unwrap();
            pair.depart(0, true);
        }
        let now_ns = pair.now_ns + 1_000_000;
        assert!(pair.sides[0].connection.wake_ns(now_ns).unwrap() > now_ns, "{flush:?}");
    }
}

/// Rule C4.5: the place of an answer that has arrived is free once its lines can be given back.
#[test]
fn the_place_of_an_answer_is_free_when_its_lines_are() {
    let mut pair = Pair::new(small());
    assert_eq!(call_until_busy(&mut pair, 0, 8), (4, CallRefused::Busy(Busy::Responses)));
    pair.depart(0, true);
    while pair.arrive(0, false).unwrap() {}
    // A request that side 0 holds, and behind it the answers.
    pair.call(1, 1, 8, 0, LONG_NS).unwrap();
    pair.depart(1, true);
    while pair.arrive(1, true).unwrap() {}
    while !pair.sides[1].requests.is_empty() {
        pair.reply(1, 0, 8);
    }
    pair.depart(1, true);
    while pair.arrive(1, false).unwrap() {}
    assert_eq!(pair.sides[0].ended.len(), 4);
    assert_eq!(pair.call(0, 1, 8, 0, LONG_NS), Err(CallRefused::Busy(Busy::Responses)));
    pair.reply(0, 0, 8);
    assert!(pair.call(0, 1, 8, 0, LONG_NS).is_ok());
    pair.settle();
}

/// Rule C2.10: while little is in flight, the same few lines are used over and over.
#[test]
fn a_ring_that_is_empty_starts_over() {
    let mut pair = Pair::new(Setup::default());
    let batch_bytes = pair.sides[0].connection.config().peer.geometry.batch_bytes_max();
    for _ in 0..50 {
        pair.call(0, 1, 100, 100, LONG_NS).unwrap();
        let offset_bytes = pair.sides[0].connection.emission(1, true).unwrap().offset_bytes;
        assert!(offset_bytes < 2 * batch_bytes, "a batch at {offset_bytes}");
        pair.settle();
    }
}
