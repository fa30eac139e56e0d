//! Long answers of a node, which it copies to its own clients and for other nodes in pieces.

use std::{collections::VecDeque, time::Duration};

use client::message::{DAEMON, HERE, method};
use copyrpc_daemon::{Status, metrics::Counter};

use crate::{
    bodies::{MINUTE, PIECE_BYTES, body, each_of_two},
    echoed, register,
    rig::{Cluster, ECHO, MS, NextPart, PROVIDED, TURN_NS},
    serve, work_of,
};

/// Many pieces.
const LEN_BYTES: usize = 32 * PIECE_BYTES;
/// Of the thread that has the other node, if there are two, as all clients here.
const CLIENT: u32 = 1;
/// Of the same thread, which provides the service.
const PROVIDER: u32 = 51;

/// Who answers, and who calls: the node that answers is 1.
#[derive(Clone, Copy, Debug)]
struct Way {
    service: u16,
    from: u32,
}

const WAYS: [Way; 4] = [
    Way { service: ECHO, from: 1 },
    Way { service: ECHO, from: 0 },
    Way { service: PROVIDED, from: 1 },
    Way { service: PROVIDED, from: 0 },
];

/// A cluster of two with a provider on node 1.
struct Rig {
    cluster: Cluster,
    provider: u32,
    /// Its calls that ask for requests, the oldest first.
    polls: VecDeque<u64>,
}

fn each(name: &str) -> impl Iterator<Item = Rig> {
    each_of_two(name, LEN_BYTES + 64).map(|cluster| {
        let mut rig = Rig { cluster, provider: PROVIDER, polls: VecDeque::new() };
        rig.register();
        rig
    })
}

/// A process of node 1 answers, and asks for the next request.
fn answer(cluster: &mut Cluster, provider: u32, work: u64, body: &[u8]) -> u64 {
    let mut message = work.to_le_bytes().to_vec();
    message.extend_from_slice(&PROVIDED.to_le_bytes());
    message.extend_from_slice(&[Status::Ok.code(), 0, 0, 0, 0, 0]);
    message.extend_from_slice(body);
    cluster.call_method(1, provider, (HERE, DAEMON, method::SERVE), &message)
}

impl Rig {
    fn register(&mut self) {
        assert_eq!(register(&mut self.cluster, self.provider), Status::Ok);
        self.polls = [serve(&mut self.cluster, self.provider, 0, b"")].into();
    }

    /// The provider answers the request that a poll has brought.
    fn serve(&mut self, body: &[u8]) {
        let Self { cluster, polls, .. } = self;
        cluster.until(|cluster| polls.iter().any(|poll| cluster.ended.contains_key(poll)));
        let at = polls.iter().position(|poll| cluster.ended.contains_key(poll)).unwrap();
        let (work, ..) = work_of(&mut self.cluster, self.polls.remove(at).unwrap());
        self.polls.push_back(answer(&mut self.cluster, self.provider, work, body));
    }

    /// A call, and what its answer is to be. If a process answers, it has just done so.
    fn call(&mut self, way: Way, client: u32, timeout: Duration) -> (u64, Vec<u8>) {
        let Way { service, from } = way;
        let long = body(LEN_BYTES);
        if service == ECHO {
            let call = self.cluster.call_for(from, client, (1, ECHO, 3), timeout, &long);
            return (call, echoed(&long, from).1);
        }
        let call = self.cluster.call_for(from, client, (1, PROVIDED, 3), timeout, b"long");
        self.serve(&long);
        (call, long)
    }

    /// A call whose answer is under way.
    fn begun(&mut self, way: Way, client: u32, timeout: Duration) -> (u64, Vec<u8>) {
        let (call, long) = self.call(way, client, timeout);
        self.cluster.node(1).take_copied(CLIENT);
        self.cluster.until(|cluster| match way {
            // Nobody counts what goes from private to registered memory: the call is open, so it is begun.
            Way { service: ECHO, from: 0 } => cluster.node(1).outstanding() > 0,
            _ => cluster.node(1).take_copied(CLIENT) > 0,
        });
        assert!(!self.cluster.ended.contains_key(&call), "{way:?}: it ended with its first piece");
        (call, long)
    }

    #[track_caller]
    fn expect_whole(&mut self, call: u64, whole: &[u8]) {
        let (status, told) = self.cluster.outcome(call);
        assert!(status == Status::Ok && told == whole, "{status:?}, {} B", told.len());
    }

    #[track_caller]
    fn expect_failure(&mut self, call: u64, expected: Status) {
        let (status, told) = self.cluster.outcome(call);
        assert_eq!((status, told.len()), (expected, 0));
    }

    /// Nothing of the calls before is left.
    #[track_caller]
    fn expect_nothing(&mut self) {
        let Self { cluster, polls, .. } = self;
        cluster.run_for(2 * MS);
        assert!(cluster.node(1).left(CLIENT) <= polls.len(), "nothing but polls");
        for rank in 0..2 {
            assert_eq!(cluster.node(rank).outstanding(), 0, "calls of rank {rank}");
            for counter in [Counter::LargeHeld, Counter::HeldBytes] {
                assert_eq!(cluster.total(rank, counter), 0, "{counter:?} of rank {rank}");
            }
        }
    }

    /// Nothing of the calls before is left, and the next ones are answered.
    #[track_caller]
    fn expect_clean(&mut self) {
        self.expect_nothing();
        for way in WAYS {
            let (call, whole) = self.call(way, CLIENT, MINUTE);
            self.expect_whole(call, &whole);
        }
    }
}

/// No thread copies more than a piece in a turn, and small calls are answered in the turn in which they are made.
#[test]
fn small_calls_are_answered_between_the_pieces_of_long_answers() {
    for mut rig in each("between") {
        for way in WAYS {
            let (long, whole) = rig.begun(way, CLIENT, MINUTE);
            let cluster = &mut rig.cluster;
            let (mut turns, mut copied) = (0, 0);
            while !cluster.ended.contains_key(&long) {
                let small = cluster.call(1, CLIENT + 2, 1, ECHO, b"small");
                cluster.turn();
                assert_eq!(cluster.ended.get(&small), Some(&echoed(b"small", 1)), "{way:?}");
                let bytes = cluster.node(1).take_copied(CLIENT);
                // A process' answer to a client of its node is read in the turn in which it is put.
                let times = if way.service == PROVIDED && way.from == 1 { 2 } else { 1 };
                assert!(bytes <= times * PIECE_BYTES, "{bytes} B in a turn, {way:?}");
                (turns, copied) = (turns + 1, copied + bytes);
            }
            assert!(turns + 2 >= LEN_BYTES / PIECE_BYTES, "{turns} turns, {way:?}");
            rig.expect_whole(long, &whole);
            let is_counted = way.service == PROVIDED || way.from == 1;
            assert!(!is_counted || copied + 4 * PIECE_BYTES >= LEN_BYTES, "{copied} B, {way:?}");
        }
        rig.expect_clean();
    }
}

/// However many answers to a node are under way, one has memory to be copied to, and some that are read.
#[test]
fn of_many_long_answers_to_a_node_few_have_memory() {
    for mut rig in each("few") {
        let way = Way { service: PROVIDED, from: 0 };
        for _ in 1..16 {
            rig.polls.push_back(serve(&mut rig.cluster, PROVIDER, 0, b""));
        }
        let calls: Vec<_> = (0..16).map(|_| rig.call(way, CLIENT, MINUTE)).collect();
        let cluster = &mut rig.cluster;
        let mut most = 0;
        while calls.iter().any(|(call, _)| !cluster.ended.contains_key(call)) {
            cluster.turn();
            most = most.max(cluster.total(1, Counter::LargeHeld));
        }
        let most = most / LEN_BYTES as u64;
        assert!((1..=4).contains(&most), "{most} have memory");
        for (call, whole) in calls {
            rig.expect_whole(call, &whole);
        }
        rig.expect_clean();
    }
}

/// Callers take turns: who waits for a short one of the long answers does not wait for all of a longer one. The answers
/// of one caller are given one after the other.
#[test]
fn callers_of_long_answers_take_turns() {
    for mut rig in each("turns") {
        let way = Way { service: ECHO, from: 1 };
        let long = [(); 2].map(|()| rig.begun(way, CLIENT, MINUTE).0);
        let shorter = body(5 * PIECE_BYTES);
        let cluster = &mut rig.cluster;
        let calls: Vec<_> =
            (1..4).map(|other| cluster.call(1, CLIENT + 2 * other, 1, ECHO, &shorter)).collect();
        for call in &calls {
            assert!(cluster.outcome(*call) == echoed(&shorter, 1));
        }
        assert!(long.iter().all(|call| !cluster.ended.contains_key(call)), "they are longer");
        cluster.until(|cluster| cluster.ended.contains_key(&long[0]));
        assert!(!cluster.ended.contains_key(&long[1]), "it is the second");
        cluster.until(|cluster| cluster.ended.contains_key(&long[1]));
        rig.expect_clean();
    }
}

/// More than are copied at a time wait, and the next one is of the caller whose turn it is: who waits for one does not
/// wait for all that another caller waits for.
#[test]
fn callers_take_turns_for_the_places_of_long_answers() {
    for mut rig in each("places") {
        for from in [0, 1] {
            let way = Way { service: PROVIDED, from };
            while rig.polls.len() < 24 {
                rig.polls.push_back(serve(&mut rig.cluster, PROVIDER, 0, b""));
            }
            let many: Vec<_> = (0..23).map(|_| rig.call(way, CLIENT, MINUTE)).collect();
            // Another node is one caller, whichever of its clients calls.
            let (one, whole) = rig.call(Way { from: 1, ..way }, CLIENT + 2, MINUTE);
            rig.expect_whole(one, &whole);
            let is_open = |(call, _): &&(u64, Vec<u8>)| !rig.cluster.ended.contains_key(call);
            let open = many.iter().filter(is_open).count();
            assert!(open > 12, "{open} of 23, {way:?}");
            for (call, whole) in many {
                rig.expect_whole(call, &whole);
            }
            rig.expect_clean();
        }
    }
}

/// A provider of another thread than its callers, and of another than the one that has the other node.
#[test]
fn long_answers_that_change_the_thread_are_whole() {
    let cluster = Cluster::new("changes", 2, 2, 64);
    let mut rig = Rig { cluster, provider: PROVIDER - 1, polls: VecDeque::new() };
    rig.cluster.body_bytes_max = u32::try_from(LEN_BYTES).unwrap() + 64;
    (0..2).for_each(|rank| rig.cluster.start(rank, 200));
    rig.cluster.wait_all_up();
    rig.register();
    for client in [CLIENT, CLIENT - 1] {
        for way in WAYS {
            let (call, whole) = rig.call(way, client, MINUTE);
            rig.expect_whole(call, &whole);
        }
    }
    rig.expect_nothing();
}

/// Beyond what may wait in private memory, answers are copied at once.
#[test]
fn answers_that_find_no_room_to_wait_are_copied_at_once() {
    for mut rig in each("no-room") {
        let way = Way { service: ECHO, from: 1 };
        let calls: Vec<_> = (0..20).map(|_| rig.call(way, CLIENT, MINUTE)).collect();
        rig.cluster.turn();
        let at_once = calls.iter().filter(|(call, _)| rig.cluster.ended.contains_key(call));
        assert_eq!(at_once.count(), 5, "of 20, with room for 64 MiB");
        for (call, whole) in calls {
            rig.expect_whole(call, &whole);
        }
        rig.expect_clean();
    }
}

/// Fault A3.
#[test]
fn an_answer_whose_deadline_passes_amid_its_copy_is_not_given() {
    for mut rig in each("deadline") {
        for way in WAYS {
            let (call, _) = rig.begun(way, CLIENT, Duration::from_millis(10));
            // Time passes without turns.
            rig.cluster.now_ns += 10 * MS;
            rig.expect_failure(call, Status::DeadlineExceeded);
            rig.expect_clean();
        }
    }
}

#[test]
fn fault_a1_a_caller_that_dies_amid_the_copy_of_its_answer_leaves_nothing() {
    for mut rig in each("caller") {
        for (number, way) in (10..).zip(WAYS) {
            let client = CLIENT + 2 * number;
            let (call, _) = rig.begun(way, client, MINUTE);
            rig.cluster.node(way.from).depart(client);
            rig.cluster.run_for(30 * MS);
            let told = rig.cluster.ended.get(&call).map(|(status, _)| *status);
            assert!(told.is_none_or(|status| status != Status::Ok), "{way:?}: {told:?}");
            rig.expect_clean();
        }
    }
}

#[test]
fn fault_a2_an_answer_whose_callers_daemon_dies_amid_its_copy_is_dropped() {
    for mut rig in each("daemon") {
        for (life, way) in (300..).zip(WAYS.into_iter().filter(|way| way.from == 0)) {
            rig.begun(way, CLIENT, MINUTE);
            rig.cluster.kill(0);
            rig.cluster.run_for(200 * MS);
            rig.cluster.start(0, life);
            rig.cluster.wait_all_up();
            rig.expect_clean();
        }
    }
}

/// It was executed, so its status does not say that it was not.
#[test]
fn fault_a1_an_answer_whose_provider_dies_amid_its_copy_ends_its_call_once() {
    for mut rig in each("dead") {
        for from in [0, 1] {
            let (call, _) = rig.begun(Way { service: PROVIDED, from }, CLIENT, MINUTE);
            rig.cluster.node(1).depart(rig.provider);
            rig.expect_failure(call, Status::Unavailable);
            rig.cluster.run_for(30 * MS);
            rig.provider += 2;
            rig.register();
            // What is left with those that are gone is nobody's.
            rig.polls.extend([0, 0]);
            rig.expect_nothing();
            rig.polls.truncate(1);
            rig.expect_clean_after_death();
        }
    }
}

#[test]
fn an_answer_without_memory_is_unavailable() {
    for mut rig in each("no-memory") {
        for way in WAYS.into_iter().filter(|way| way.from == 1) {
            let (call, _) = rig.begun(way, CLIENT, MINUTE);
            rig.cluster.node(1).next_part(CLIENT, NextPart::Refused);
            rig.expect_failure(call, Status::Unavailable);
            rig.expect_clean();
        }
        rig.cluster.limits.large_memory_bytes = LEN_BYTES / 2;
        rig.cluster.start(1, 400);
        rig.cluster.wait_all_up();
        rig.register();
        let (call, whole) = rig.call(Way { service: ECHO, from: 1 }, CLIENT, MINUTE);
        rig.expect_whole(call, &whole);
        let (call, _) = rig.call(Way { service: PROVIDED, from: 0 }, CLIENT, MINUTE);
        rig.expect_failure(call, Status::Unavailable);
        rig.expect_nothing();
    }
}

#[test]
fn a_daemon_that_drains_gives_the_answers_that_it_copies() {
    for way in WAYS {
        for mut rig in each("drains") {
            let (call, whole) = rig.begun(way, CLIENT, MINUTE);
            rig.cluster.node(1).drain();
            assert!(rig.cluster.node(1).outstanding() > 0, "it is not over yet");
            rig.expect_whole(call, &whole);
            rig.expect_nothing();
        }
    }
}

/// A process that answers twice, what it was not given, or while its answer is copied, harms nobody.
#[test]
fn an_answer_is_taken_once_and_of_who_was_asked_alone() {
    for mut rig in each("once") {
        let (long, poll) = (body(LEN_BYTES), rig.polls[0]);
        let cluster = &mut rig.cluster;
        let call = cluster.call_for(0, CLIENT, (1, PROVIDED, 3), MINUTE, b"long");
        let (work, ..) = work_of(cluster, poll);
        let stranger = answer(cluster, CLIENT + 4, work, &long);
        assert_eq!(cluster.outcome(stranger).0, Status::FailedPrecondition);
        for (work, answers) in [(work + 1, &*long), (work, &long), (work, b"again"), (work, &long)]
        {
            answer(cluster, PROVIDER, work, answers);
        }
        assert!(cluster.outcome(call) == (Status::Ok, long));
        assert_eq!(cluster.total(1, Counter::Stale), 3);
        assert_eq!(cluster.node(1).left(CLIENT), 3, "polls that wait");
    }
}

/// Whatever happens while answers are copied, in whatever order: each call ends once, with the whole answer or
/// with none, and nothing is left.
#[test]
fn random_ends_amid_long_answers_leave_nothing() {
    for seed in 1..5 {
        for mut rig in each("random") {
            rig.end_at_random(seed);
        }
    }
}

impl Rig {
    /// As [`expect_clean`](Self::expect_clean), where providers died whose polls nobody answers.
    #[track_caller]
    fn expect_clean_after_death(&mut self) {
        for way in WAYS {
            let (call, whole) = self.call(way, CLIENT, MINUTE);
            self.expect_whole(call, &whole);
        }
    }

    fn end_at_random(&mut self, mut seed: u64) {
        let mut random = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        let (mut calls, long) = (Vec::new(), body(LEN_BYTES));
        for step in 0..40 {
            let client = CLIENT + 100 + 2 * step;
            let way = WAYS[usize::try_from(random(4)).unwrap()];
            let timeout = Duration::from_micros(if random(2) == 0 { 2000 } else { 60_000_000 });
            let sent: &[u8] = if way.service == ECHO { &long } else { b"long" };
            let how = (1, way.service, 3);
            calls.push((self.cluster.call_for(way.from, client, how, timeout, sent), way));
            self.cluster.run_for(random(20) * TURN_NS);
            if self.polls.front().is_some_and(|poll| self.cluster.ended.contains_key(poll)) {
                self.serve(&long);
                self.cluster.run_for(random(30) * TURN_NS);
            }
            match random(10) {
                0 => self.cluster.node(way.from).depart(client),
                1 => {
                    self.cluster.node(1).depart(self.provider);
                    self.cluster.run_for(30 * MS);
                    self.provider += 2;
                    self.register();
                }
                2 => {
                    self.cluster.kill(0);
                    self.cluster.start(0, 300 + u64::from(step));
                    self.cluster.wait_all_up();
                    // Whoever called there is gone, too.
                    calls.retain(|(_, way)| way.from == 1);
                }
                3 => self.cluster.node(1).next_part(CLIENT, NextPart::Refused),
                _ => {}
            }
        }
        // Requests that it has not answered end with it.
        self.cluster.node(1).depart(self.provider);
        self.cluster.run_for(100 * MS);
        let mut whole_ones = 0;
        for (call, way) in calls {
            let Some((status, told)) = self.cluster.ended.get(&call) else { continue };
            let whole = if way.service == ECHO { echoed(&long, way.from).1 } else { long.clone() };
            whole_ones += usize::from(*status == Status::Ok);
            let is_right = if *status == Status::Ok { *told == whole } else { told.is_empty() };
            assert!(is_right, "{status:?}, {way:?}");
        }
        assert!(whole_ones > 0);
        for rank in 0..2 {
            assert_eq!(self.cluster.node(rank).outstanding(), 0, "rank {rank}");
            assert_eq!(self.cluster.total(rank, Counter::LargeHeld), 0, "rank {rank}");
        }
    }
}
