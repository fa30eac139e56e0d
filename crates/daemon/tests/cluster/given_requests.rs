//! Long requests to processes that provide a service, which a daemon copies in pieces, and those that change the thread.

use std::{collections::VecDeque, time::Duration};

use copyrpc_daemon::{Status, metrics::Counter};

use crate::{
    bodies::{MINUTE, PIECE_BYTES, body, each_of_two},
    echoed, register,
    rig::{ABSENT, Cluster, ECHO, MS, NextPart, OF_THREAD_2, PROVIDED, TURN_NS},
    serve, work_of,
};

/// Many pieces.
const LEN_BYTES: usize = 16 * PIECE_BYTES;
/// What is told of a request before its body.
const WORK_HEAD_BYTES: usize = 16;
/// On node 1, on its second thread if there are two.
const PROVIDER: u32 = 51;

/// Who calls the provider.
#[derive(Clone, Copy, Debug)]
struct Way {
    from: u32,
    client: u32,
}

/// If there are two threads: that of the provider, another one, that which has the connection to node 1, and another one.
/// Requests of node 0 come to the thread that does not have the provider.
const WAYS: [Way; 4] = [
    Way { from: 1, client: 1 },
    Way { from: 1, client: 2 },
    Way { from: 0, client: 1 },
    Way { from: 0, client: 2 },
];

/// A cluster of two with a provider on node 1.
struct Rig {
    cluster: Cluster,
    provider: u32,
    /// Its calls that ask for requests, the oldest first.
    polls: VecDeque<u64>,
}

fn each(name: &str) -> impl Iterator<Item = Rig> {
    with_bodies(name, LEN_BYTES + 64)
}

fn with_bodies(name: &str, body_bytes_max: usize) -> impl Iterator<Item = Rig> {
    each_of_two(name, body_bytes_max).map(|cluster| {
        let mut rig = Rig { cluster, provider: PROVIDER, polls: VecDeque::new() };
        rig.register();
        rig
    })
}

impl Rig {
    fn register(&mut self) {
        assert_eq!(register(&mut self.cluster, self.provider), Status::Ok);
        self.polls.clear();
    }

    /// The provider asks for one more request.
    fn poll(&mut self) {
        self.polls.push_back(serve(&mut self.cluster, self.provider, 0, b""));
    }

    fn call(&mut self, way: Way, timeout: Duration, body: &[u8]) -> u64 {
        self.cluster.call_for(way.from, way.client, (1, PROVIDED, 3), timeout, body)
    }

    /// A poll brings the request `body` of a call, and its answer ends that.
    #[track_caller]
    fn expect_whole(&mut self, call: u64, body: &[u8]) {
        let Self { cluster, polls, .. } = self;
        let is_of = |cluster: &Cluster, poll: &u64| {
            let told = cluster.ended.get(poll);
            told.is_some_and(|(_, told)| told.len() == WORK_HEAD_BYTES + body.len())
        };
        cluster.until(|cluster| polls.iter().any(|poll| is_of(cluster, poll)));
        let at = polls.iter().position(|poll| is_of(cluster, poll)).unwrap();
        let (work, _, got) = work_of(&mut self.cluster, self.polls.remove(at).unwrap());
        assert!(got == body, "another one of {} B", body.len());
        let next = serve(&mut self.cluster, self.provider, work, b"served");
        self.polls.push_back(next);
        assert_eq!(self.cluster.outcome(call), (Status::Ok, b"served".to_vec()));
    }

    /// A call whose request is on its way to the provider.
    #[track_caller]
    fn begun(&mut self, way: Way, timeout: Duration) -> u64 {
        if self.polls.is_empty() {
            self.poll();
        }
        let before = self.cluster.node(1).parts(PROVIDER);
        let call = self.call(way, timeout, &body(LEN_BYTES));
        self.cluster.until(|cluster| cluster.node(1).parts(PROVIDER) > before + 10);
        let Self { cluster, polls, .. } = self;
        assert!(!polls.iter().any(|poll| cluster.ended.contains_key(poll)), "{way:?}: it is given");
        call
    }

    /// Nothing of the calls before is left.
    #[track_caller]
    fn expect_nothing(&mut self) {
        let Self { cluster, .. } = self;
        cluster.run_for(2 * MS);
        for rank in 0..2 {
            assert_eq!(cluster.node(rank).outstanding(), 0, "calls of rank {rank}");
            for client in [1, 2] {
                assert_eq!(cluster.node(rank).left(client), 0, "left with clients of rank {rank}");
                let most = cluster.node(rank).most_at_once(client);
                assert!(most <= PIECE_BYTES + 64, "{most} B at once on rank {rank}");
            }
            for counter in [Counter::LargeHeld, Counter::HeldBytes] {
                assert_eq!(cluster.total(rank, counter), 0, "{counter:?} of rank {rank}");
            }
        }
    }

    /// Nothing of the calls before is left, and the provider gets the next ones, long and short.
    #[track_caller]
    fn expect_clean(&mut self) {
        self.expect_nothing();
        if self.polls.is_empty() {
            self.poll();
        }
        for way in WAYS {
            for body in [body(LEN_BYTES), b"short".to_vec()] {
                let call = self.call(way, MINUTE, &body);
                self.expect_whole(call, &body);
            }
        }
        self.expect_nothing();
    }
}

/// Around the longest message that a provider gets in one copy, around strips and around pieces, and as long as any.
#[test]
fn requests_to_a_provider_are_whole_at_every_length() {
    const LONGEST: usize = 15 << 20;
    for mut rig in with_bodies("given-lengths", LONGEST) {
        rig.poll();
        let around = [4144, 16 << 10, 32 << 10, PIECE_BYTES, 2 * PIECE_BYTES];
        let around = around.into_iter().flat_map(|around| around - 17..around + 18);
        for len_bytes in around.chain([1 << 20, LONGEST - 1, LONGEST]) {
            let whole = body(len_bytes);
            for way in WAYS {
                let call = rig.call(way, MINUTE, &whole);
                rig.expect_whole(call, &whole);
            }
        }
        let beyond = rig.call(WAYS[0], MINUTE, &body(LONGEST + 1));
        assert_eq!(rig.cluster.outcome(beyond).0, Status::OutOfRange);
        rig.expect_nothing();
    }
}

/// No thread copies more than a piece in a turn, and small calls are answered in the turn in which they are made.
#[test]
fn small_calls_are_answered_between_the_pieces_of_requests_to_a_provider() {
    for mut rig in each("given-between") {
        for way in WAYS {
            rig.begun(way, MINUTE);
            let poll = rig.polls.pop_front().unwrap();
            let cluster = &mut rig.cluster;
            for rank in 0..2 {
                for client in 1..3 {
                    cluster.node(rank).take_copied(client);
                }
            }
            let mut turns = 0;
            while !cluster.ended.contains_key(&poll) {
                let small = cluster.call(1, PROVIDER, 1, ECHO, b"small");
                cluster.turn();
                assert_eq!(cluster.ended.get(&small), Some(&echoed(b"small", 1)), "{way:?}");
                for (rank, client) in [(0, 1), (0, 2), (1, 1), (1, 2)] {
                    let bytes = cluster.node(rank).take_copied(client);
                    // What a client of the same thread has left is read in the turn in which it is put.
                    assert!(bytes <= 2 * (PIECE_BYTES + 16), "{bytes} B in a turn, {way:?}");
                }
                turns += 1;
            }
            assert!(turns + 14 >= LEN_BYTES / PIECE_BYTES, "{turns} turns, {way:?}");
            let (work, _, got) = work_of(cluster, poll);
            assert!(got == body(LEN_BYTES));
            let next = serve(cluster, PROVIDER, work, b"");
            rig.polls.push_back(next);
        }
        rig.expect_clean();
    }
}

/// The copy of a request takes as many turns as it has pieces, on each thread that copies it.
#[test]
fn a_request_to_a_provider_takes_a_turn_for_each_piece() {
    for mut rig in each("given-turns") {
        for way in WAYS {
            if rig.polls.is_empty() {
                rig.poll();
            }
            rig.cluster.turn();
            let call = rig.call(way, MINUTE, &body(LEN_BYTES));
            let mut puts = 0;
            while !rig.cluster.ended.contains_key(&rig.polls[0]) {
                let before = rig.cluster.node(1).parts(PROVIDER);
                rig.cluster.turn();
                puts += usize::from(rig.cluster.node(1).parts(PROVIDER) > before);
            }
            assert_eq!(puts, LEN_BYTES / PIECE_BYTES, "{way:?}");
            rig.expect_whole(call, &body(LEN_BYTES));
        }
    }
}

/// What came from another node goes from where the NIC put it to the process that waits for it. If none waits, it does not
/// keep registered memory, and is copied once more.
#[test]
fn a_request_of_another_node_is_copied_once_to_a_provider_that_waits() {
    let mut rig = each("given-copies").next().unwrap();
    let way = WAYS[2];
    for copies in [2, 1, 1] {
        let before = rig.cluster.node(1).copied_bytes();
        let call = rig.call(way, MINUTE, &body(LEN_BYTES));
        if rig.polls.is_empty() {
            rig.cluster.until(|cluster| cluster.total(1, Counter::HeldBytes) > 0);
            assert_eq!(rig.cluster.total(1, Counter::LargeHeld), 0);
            rig.poll();
        }
        rig.expect_whole(call, &body(LEN_BYTES));
        let copied = rig.cluster.node(1).copied_bytes() - before;
        assert_eq!(copied / LEN_BYTES as u64, copies, "{copied} B");
    }
    rig.expect_nothing();
}

/// Who calls with little does not wait for all of a longer request.
#[test]
fn callers_of_a_provider_take_turns() {
    for mut rig in each("given-fair") {
        (0..4).for_each(|_| rig.poll());
        let long = rig.begun(WAYS[0], MINUTE);
        let shorter = body(3 * PIECE_BYTES);
        let calls: Vec<_> = (1..3)
            .map(|other| rig.call(Way { from: 1, client: 1 + 2 * other }, MINUTE, &shorter))
            .collect();
        let short = rig.call(WAYS[0], MINUTE, b"short");
        rig.expect_whole(short, b"short");
        for call in calls {
            rig.expect_whole(call, &shorter);
        }
        let Rig { cluster, polls, .. } = &rig;
        assert!(!polls.iter().any(|poll| cluster.ended.contains_key(poll)), "it is longer");
        rig.expect_whole(long, &body(LEN_BYTES));
        rig.expect_nothing();
    }
}

/// Fault A3. The poll of the provider brings the next request, as if there had been none before.
#[test]
fn a_request_whose_deadline_passes_on_its_way_to_a_provider_is_not_given() {
    for mut rig in each("given-deadline") {
        for way in WAYS {
            let call = rig.begun(way, Duration::from_millis(10));
            // Time passes without turns.
            rig.cluster.now_ns += 10 * MS;
            assert_eq!(rig.cluster.outcome(call).0, Status::DeadlineExceeded, "{way:?}");
            rig.expect_clean();
        }
    }
}

#[test]
fn fault_a1_a_caller_that_dies_while_a_provider_is_given_its_request_leaves_nothing() {
    for mut rig in each("given-caller") {
        for (number, way) in (10..).zip(WAYS) {
            let way = Way { client: way.client + 2 * number, ..way };
            let call = rig.begun(way, MINUTE);
            rig.cluster.node(way.from).depart(way.client);
            // The next turn looks who is gone.
            rig.cluster.now_ns += 30 * MS;
            rig.cluster.run_for(3 * MS);
            let is_given = rig.cluster.ended.contains_key(&rig.polls[0]);
            // A node may be told later than the last piece is copied.
            assert!(!is_given || way.from == 0, "{way:?}");
            rig.serve_next();
            let told = rig.cluster.ended.get(&call).map(|(status, _)| *status);
            assert!(told.is_none_or(|status| status != Status::Ok), "{way:?}: {told:?}");
            rig.expect_clean();
        }
    }
}

/// Its heads count as they were when it was taken, and each byte of its body as it was at one moment.
#[test]
fn fault_d12_a_long_request_that_changes_while_it_moves_is_given_once_and_answered() {
    const CHANGED: u8 = 0xff;
    for mut rig in each("given-changes") {
        for way in WAYS {
            if rig.polls.is_empty() {
                rig.poll();
            }
            let (call, whole) = (rig.call(way, MINUTE, &body(LEN_BYTES)), body(LEN_BYTES));
            // Some pieces of many.
            (0..5).for_each(|_| rig.cluster.turn());
            assert!(rig.cluster.node(way.from).left(way.client) > 0, "{way:?}: it moves");
            rig.cluster.node(way.from).rewrite_left(way.client, CHANGED);
            rig.cluster.until(|cluster| cluster.ended.contains_key(&rig.polls[0]));
            let (work, _, got) = work_of(&mut rig.cluster, rig.polls.pop_front().unwrap());
            assert_eq!(got.len(), whole.len(), "{way:?}");
            let is_of = |(got, byte): (&u8, &u8)| got == byte || *got == CHANGED;
            assert!(got.iter().zip(&whole).all(is_of), "{way:?}");
            assert_eq!(got[..PIECE_BYTES], whole[..PIECE_BYTES], "{way:?}: it was copied before");
            assert_eq!(got[LEN_BYTES - 1], CHANGED, "{way:?}");
            let next = serve(&mut rig.cluster, PROVIDER, work, b"served");
            rig.polls.push_back(next);
            assert_eq!(rig.cluster.outcome(call), (Status::Ok, b"served".to_vec()), "{way:?}");
        }
        rig.expect_clean();
    }
}

/// Nobody tells a provider that a node is gone which called it: it gets the whole request.
#[test]
fn fault_a2_a_request_whose_callers_daemon_dies_on_its_way_to_a_provider_is_whole() {
    for mut rig in each("given-daemon") {
        for (life, way) in (300..).zip(WAYS.into_iter().filter(|way| way.from == 0)) {
            rig.begun(way, MINUTE);
            rig.cluster.kill(0);
            rig.cluster.run_for(200 * MS);
            rig.cluster.start(0, life);
            rig.cluster.wait_all_up();
            rig.serve_next();
            rig.expect_clean();
        }
    }
}

/// Fault A10: what was on its way to it, and what waits, ends once.
#[test]
fn fault_a10_a_provider_that_dies_while_it_is_given_a_request_ends_its_call_once() {
    for mut rig in each("given-dies") {
        for way in WAYS {
            let call = rig.begun(way, MINUTE);
            let waiting = rig.call(way, MINUTE, &body(LEN_BYTES / 2));
            rig.cluster.turn();
            rig.cluster.node(1).depart(rig.provider);
            for call in [call, waiting] {
                let (status, told) = rig.cluster.outcome(call);
                // The second may come when there is no provider.
                let is_refused = call == waiting && status == Status::Unimplemented;
                let is_right = status == Status::Unavailable || is_refused;
                assert!(is_right && told.is_empty(), "{status:?}, {way:?}");
            }
            rig.cluster.run_for(30 * MS);
            rig.provider += 2;
            rig.register();
            rig.expect_clean();
        }
    }
}

/// It was not executed, and its provider gets the next one.
#[test]
fn a_request_for_which_its_provider_has_no_memory_is_unavailable() {
    for mut rig in each("given-memory") {
        for way in WAYS {
            let call = rig.begun(way, MINUTE);
            rig.cluster.node(1).next_part(PROVIDER, NextPart::Refused);
            assert_eq!(rig.cluster.outcome(call).0, Status::Unavailable);
            rig.expect_clean();
        }
    }
}

/// Two threads: what ends while the thread of its client still gathers it never reaches the other one.
#[test]
fn a_request_that_ends_while_its_thread_gathers_it_leaves_nothing() {
    for mut rig in each("given-gathers").skip(1) {
        for (end, way) in [0, 1].into_iter().flat_map(|end| [1, 3].map(|way| (end, WAYS[way]))) {
            let way = Way { client: way.client + 20 + 2 * end, ..way };
            if rig.polls.is_empty() {
                rig.poll();
            }
            rig.cluster.turn();
            let (before, requests) = (
                rig.cluster.node(1).parts(PROVIDER),
                rig.cluster.total(way.from, Counter::ThreadRequests),
            );
            let call = rig.call(way, Duration::from_millis(10), &body(LEN_BYTES));
            (0..3).for_each(|_| rig.cluster.turn());
            assert!(rig.cluster.node(way.from).take_copied(2) > PIECE_BYTES);
            if end == 0 {
                rig.cluster.now_ns += 10 * MS;
                assert_eq!(rig.cluster.outcome(call).0, Status::DeadlineExceeded);
            } else {
                rig.cluster.node(way.from).depart(way.client);
                rig.cluster.run_for(30 * MS);
            }
            assert_eq!(rig.cluster.node(1).parts(PROVIDER), before, "{way:?}");
            assert_eq!(rig.cluster.total(way.from, Counter::ThreadRequests), requests, "{way:?}");
            rig.expect_clean();
        }
    }
}

/// They stay with their clients, so they count for what they take besides their bodies.
#[test]
fn long_requests_that_wait_for_a_provider_are_held_within_the_limits() {
    const WAITING: usize = 10;
    for mut rig in each("given-waits") {
        rig.cluster.limits.caller_held_bytes = WAITING * 192;
        rig.cluster.start(1, 400);
        rig.cluster.wait_all_up();
        rig.register();
        let long = body(LEN_BYTES);
        let calls: Vec<_> = (0..2 * WAITING).map(|_| rig.call(WAYS[0], MINUTE, &long)).collect();
        // One of another node has a copy: it may wait beyond the limit, and no other one beside it.
        let remote = rig.call(WAYS[2], MINUTE, &long);
        let held = (WAITING + 1) * 192 + LEN_BYTES;
        rig.cluster.until(|cluster| cluster.total(1, Counter::HeldBytes) == held as u64);
        let second = rig.call(WAYS[3], MINUTE, &long);
        assert_eq!(rig.cluster.outcome(second).0, Status::ResourceExhausted);
        assert_eq!(rig.cluster.total(1, Counter::HeldBytes), held as u64);
        for call in &calls[WAITING..] {
            assert_eq!(rig.cluster.outcome(*call).0, Status::ResourceExhausted);
        }
        assert_eq!(rig.cluster.node(1).left(1), WAITING);
        rig.poll();
        for call in calls[..WAITING].iter().chain([&remote]) {
            rig.expect_whole(*call, &long);
        }
        rig.expect_clean();
    }
}

/// Wherever it comes from, and although it is longer than what a caller may hold of many.
#[test]
fn a_long_request_that_finds_no_poll_waits_for_one() {
    for way in WAYS {
        for mut rig in each("given-no-poll") {
            let call = rig.call(way, MINUTE, &body(LEN_BYTES));
            rig.cluster.run_for(5 * MS);
            assert!(!rig.cluster.ended.contains_key(&call), "{way:?}");
            rig.poll();
            rig.expect_whole(call, &body(LEN_BYTES));
            rig.expect_clean();
        }
    }
}

/// A request that waits for its provider ends as any other, and is not read any more.
#[test]
fn long_requests_that_end_while_they_wait_for_a_provider_are_not_given() {
    for mut rig in each("given-late") {
        let late = rig.call(WAYS[0], Duration::from_millis(5), &body(LEN_BYTES));
        let gone = Way { client: 41, ..WAYS[0] };
        rig.call(gone, MINUTE, &body(LEN_BYTES));
        let next = rig.call(WAYS[0], MINUTE, &body(2 * PIECE_BYTES));
        assert_eq!(rig.cluster.outcome(late).0, Status::DeadlineExceeded);
        rig.cluster.node(1).depart(gone.client);
        rig.cluster.run_for(30 * MS);
        rig.poll();
        rig.expect_whole(next, &body(2 * PIECE_BYTES));
        rig.expect_clean();
    }
}

#[test]
fn a_daemon_that_drains_gives_the_requests_that_it_copies() {
    for way in WAYS {
        for mut rig in each("given-drains") {
            let call = rig.begun(way, MINUTE);
            rig.cluster.node(1).drain();
            assert!(rig.cluster.node(1).outstanding() > 0, "it is not over yet");
            rig.expect_whole(call, &body(LEN_BYTES));
            rig.expect_nothing();
        }
    }
}

/// A process that answers what it has not got yet, or twice, ends nothing.
#[test]
fn a_request_that_is_on_its_way_cannot_be_answered() {
    for mut rig in each("given-early") {
        rig.poll();
        let works = [(); 2].map(|()| {
            let call = rig.call(WAYS[0], MINUTE, b"short");
            let (work, ..) = work_of(&mut rig.cluster, rig.polls[0]);
            rig.expect_whole(call, b"short");
            work
        });
        // From the names of those before, the next one can be guessed.
        let guess = works[1] + (works[1] - works[0]);
        let stale = rig.cluster.total(1, Counter::Stale);
        let call = rig.begun(WAYS[0], MINUTE);
        serve(&mut rig.cluster, PROVIDER, guess, b"forged");
        rig.cluster.turn();
        assert!(!rig.cluster.ended.contains_key(&call), "nobody has it to answer it");
        let (work, ..) = work_of(&mut rig.cluster, rig.polls[0]);
        assert_eq!(work, guess);
        rig.expect_whole(call, &body(LEN_BYTES));
        assert_eq!(rig.cluster.total(1, Counter::Stale), stale + 1);
    }
}

/// A function of another thread gets the whole request, which its client's thread gathers in pieces, and gives a long
/// answer. So does one of another node, whose connection another thread has.
#[test]
fn requests_and_answers_that_change_the_thread_are_whole_and_in_pieces() {
    let mut cluster = Cluster::new("given-changes", 2, 3, 64);
    cluster.body_bytes_max = u32::try_from(LEN_BYTES).unwrap() + 64;
    (0..2).for_each(|rank| cluster.start(rank, 200));
    cluster.wait_all_up();
    let long = body(LEN_BYTES);
    for len_bytes in [20_000, PIECE_BYTES, PIECE_BYTES + 1, LEN_BYTES] {
        for client in 0..3 {
            let (echo, whole) = (cluster.call(0, client, 1, ECHO, &long[..len_bytes]), len_bytes);
            let function = cluster.call(0, client, 0, OF_THREAD_2, &long[..whole]);
            let mut most = 0;
            while !cluster.ended.contains_key(&echo) || !cluster.ended.contains_key(&function) {
                cluster.turn();
                most =
                    (0..3).map(|thread| cluster.node(0).take_copied(thread)).fold(most, usize::max);
            }
            assert!(cluster.ended[&echo] == echoed(&long[..len_bytes], 0), "{len_bytes} B");
            assert_eq!(cluster.ended[&function], (Status::Ok, 2_u32.to_le_bytes().to_vec()));
            // Of requests, of bodies inside the node, and what came by rendezvous meanwhile.
            assert!(most <= 6 * PIECE_BYTES, "{most} B in a turn");
        }
    }
    for thread in 0..3 {
        let most = cluster.node(0).most_at_once(thread);
        assert!(most <= PIECE_BYTES + 64, "{most} B at once");
    }
    cluster.run_for(2 * MS);
    for rank in 0..2 {
        assert_eq!(cluster.node(rank).outstanding(), 0);
        assert_eq!(cluster.total(rank, Counter::LargeHeld), 0);
    }
}

/// The first thread gathers such a request, and the second copies it to where the other node reads it.
#[test]
fn a_request_that_changes_the_thread_takes_a_turn_for_each_piece_on_both() {
    let mut rig = each("given-both").nth(1).unwrap();
    let long = body(LEN_BYTES);
    let turns = [1, 2].map(|client| {
        let call = rig.cluster.call_for(0, client, (1, ABSENT, 3), MINUTE, &long);
        let turns = (0..).take_while(|_| {
            rig.cluster.turn();
            !rig.cluster.ended.contains_key(&call)
        });
        let turns = turns.count();
        assert_eq!(rig.cluster.outcome(call).0, Status::Unimplemented);
        turns
    });
    let pieces = LEN_BYTES / PIECE_BYTES;
    assert!(turns[0] + 1 >= pieces && turns[1] + 1 >= turns[0] + pieces, "{turns:?} turns");
}

/// Whatever happens while requests are given, in whatever order: each call ends once, the provider gets whole requests,
/// and nothing is left.
#[test]
fn random_ends_amid_requests_to_a_provider_leave_nothing() {
    for seed in 1..5 {
        for mut rig in each("given-random") {
            rig.end_at_random(seed);
        }
    }
}

impl Rig {
    /// Answers a request that has come, which is whole.
    fn serve_next(&mut self) {
        let poll = self.polls[0];
        if !self.cluster.ended.contains_key(&poll) {
            return;
        }
        let (work, _, got) = work_of(&mut self.cluster, poll);
        assert!(got == body(got.len()) && [LEN_BYTES, 3 * PIECE_BYTES, 5].contains(&got.len()));
        self.polls.pop_front();
        let next = serve(&mut self.cluster, self.provider, work, b"served");
        self.polls.push_back(next);
    }

    fn end_at_random(&mut self, mut seed: u64) {
        let mut random = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        let mut calls = Vec::new();
        (0..3).for_each(|_| self.poll());
        for step in 0..60 {
            let way = WAYS[usize::try_from(random(4)).unwrap()];
            let way = Way { client: way.client + 100 + 2 * step, ..way };
            let timeout = Duration::from_micros(if random(3) == 0 { 300 } else { 60_000_000 });
            let len_bytes = [LEN_BYTES, 3 * PIECE_BYTES, 5][usize::try_from(random(3)).unwrap()];
            calls.push((self.call(way, timeout, &body(len_bytes)), way));
            self.cluster.run_for(random(25) * TURN_NS);
            self.serve_next();
            match random(12) {
                0 => self.cluster.node(way.from).depart(way.client),
                1 => {
                    self.cluster.node(1).depart(self.provider);
                    self.cluster.run_for(30 * MS);
                    self.provider += 2;
                    self.register();
                    (0..3).for_each(|_| self.poll());
                }
                2 => {
                    self.cluster.kill(0);
                    self.cluster.start(0, 300 + u64::from(step));
                    self.cluster.wait_all_up();
                    // Whoever called there is gone, too.
                    calls.retain(|(_, way)| way.from == 1);
                }
                3 => self.cluster.node(1).next_part(PROVIDER, NextPart::Refused),
                _ => {}
            }
        }
        // Requests that it has not answered end with it.
        self.cluster.node(1).depart(self.provider);
        self.cluster.run_for(100 * MS);
        let served = |(call, _): &&(u64, Way)| matches!(self.cluster.ended.get(call), Some((Status::Ok, told)) if told == b"served");
        assert!(calls.iter().filter(served).count() > 3, "some are served");
        for (call, way) in &calls {
            if let Some((status, told)) = self.cluster.ended.get(call) {
                assert!(*status == Status::Ok || told.is_empty(), "{status:?}, {way:?}");
            }
        }
        for rank in 0..2 {
            assert_eq!(self.cluster.node(rank).outstanding(), 0, "rank {rank}");
            for counter in [Counter::LargeHeld, Counter::HeldBytes] {
                assert_eq!(self.cluster.total(rank, counter), 0, "{counter:?} of rank {rank}");
            }
        }
        self.provider += 2;
        self.register();
        self.expect_clean();
    }
}
