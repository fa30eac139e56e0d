//! One door: a request is refused for the same reasons, whatever carries its body and wherever it comes from.

use client::{
    bulk::message::{BODY_BYTES_MAX, BulkCallHead, BulkServeHead, PeerCallHead, method as bulk},
    message::{DAEMON, HERE, IS_SINGLE, WantedHead, method, origin},
};
use copyrpc_daemon::{Limits, Rights, Status, metrics::Counter};
use zerocopy::IntoBytes as _;

use crate::rig::{Cluster, ECHO, MS};

/// Services of a process of node 1.
const POLLED: u16 = 20;
/// One that has fewer polls than requests.
const UNPOLLED: u16 = 21;
/// A service of calls that lend memory, which such a process offers.
const LENDING: u16 = 22;
/// Processes that provide are of the first thread.
const PROVIDER: u32 = 50;

/// Longest body of calls that no test refuses for its length.
const AMPLE_BYTES: usize = 1 << 20;
/// Longest body where one that is longer is still given as a whole.
const SHORT_BYTES: usize = 4000;
/// Longest body where one that is longer takes more than one piece.
const LONG_BYTES: usize = 300 << 10;

/// Users, by thread, who may call.
const FRIENDS: [u32; 2] = [2, 3];
/// Users, by thread, who may not.
const STRANGERS: [u32; 2] = [4, 5];

/// The way of a body to its service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    /// A private copy, for a function.
    Private,
    /// Memory of the client that is copied once, for a function.
    Lent,
    /// The same, of several pieces.
    LongLent,
    /// It goes from ring to ring, to a process that asks for requests.
    PassedOn,
    /// It is held until the process asks for a request.
    Queued,
    /// It stays with its client, or comes by rendezvous, and goes to a process in pieces.
    InPieces,
    /// It comes with slices of memory.
    WithSlices,
}

const BODIES: [Body; 7] = [
    Body::Private,
    Body::Lent,
    Body::LongLent,
    Body::PassedOn,
    Body::Queued,
    Body::InPieces,
    Body::WithSlices,
];

impl Body {
    fn service(self) -> u16 {
        match self {
            Self::Private | Self::Lent | Self::LongLent => ECHO,
            Self::PassedOn | Self::InPieces => POLLED,
            Self::Queued => UNPOLLED,
            Self::WithSlices => LENDING,
        }
    }

    fn is_long(self) -> bool {
        matches!(self, Self::LongLent | Self::InPieces)
    }

    fn longest(self) -> usize {
        match self {
            Self::WithSlices => BODY_BYTES_MAX,
            _ if self.is_long() => LONG_BYTES,
            _ => SHORT_BYTES,
        }
    }
}

/// Where a request comes from, as the thread sees it that has the provider and the connection to node 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// A client of the thread.
    Client,
    /// A client of the other thread, if there is one.
    Thread,
    /// A client of node 0, whose thread has the connection.
    Peer,
    /// A client of another thread of node 0, if there is one.
    PeerThread,
}

const SOURCES: [Source; 4] = [Source::Client, Source::Thread, Source::Peer, Source::PeerThread];

impl Source {
    fn node(self) -> u32 {
        match self {
            Self::Client | Self::Thread => 1,
            Self::Peer | Self::PeerThread => 0,
        }
    }

    fn client(self, users: [u32; 2]) -> u32 {
        match self {
            Self::Client | Self::PeerThread => users[0],
            Self::Thread | Self::Peer => users[1],
        }
    }
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    NoRank,
    /// By the rules of node 1.
    Denied,
    /// By the rules of the node of the caller.
    DeniedAtHome,
    Draining,
    TooLong,
}

const REASONS: [Reason; 5] =
    [Reason::NoRank, Reason::Denied, Reason::DeniedAtHome, Reason::Draining, Reason::TooLong];

impl Reason {
    /// Status and origin of the answer.
    fn answer(self) -> (Status, &'static [u8]) {
        match self {
            Self::NoRank => (Status::NotFound, &[]),
            Self::Denied | Self::DeniedAtHome => {
                (Status::PermissionDenied, &[origin::NOT_EXECUTED])
            }
            Self::Draining => (Status::Unavailable, &[origin::NOT_EXECUTED]),
            Self::TooLong => (Status::OutOfRange, &[origin::NOT_EXECUTED]),
        }
    }
}

fn friends_alone() -> Rights {
    Rights::parse("call * uid:2 uid:3").unwrap()
}

/// Two nodes with the services; those of node 1 take bodies of so many bytes.
fn cluster(name: &str, threads: u8, longest: usize, rights: [Rights; 2]) -> Cluster {
    let mut cluster = Cluster::new(name, 2, threads, 64);
    for ((rank, rights), longest) in (0..).zip(rights).zip([AMPLE_BYTES, longest]) {
        cluster.body_bytes_max = u32::try_from(longest).unwrap();
        cluster.rights = rights;
        cluster.start(rank, 200);
    }
    cluster.wait_all_up();
    for service in [POLLED, UNPOLLED] {
        assert_eq!(offer(&mut cluster, PROVIDER, method::REGISTER, service), Status::Ok);
    }
    assert_eq!(offer(&mut cluster, PROVIDER, bulk::OFFER, LENDING), Status::Ok);
    cluster
}

/// A process of node 1 offers a service, of ordinary calls or of such that lend memory.
fn offer(cluster: &mut Cluster, client: u32, method: u16, service: u16) -> Status {
    let number = cluster.call_method(1, client, (1, DAEMON, method), &service.to_le_bytes());
    cluster.outcome(number).0
}

/// A process answers a request, unless `work` is 0, and asks for the next.
fn serve(cluster: &mut Cluster, service: u16, work: u64) -> u64 {
    let head = BulkServeHead {
        work: work.into(),
        service: service.into(),
        status: Status::Ok.code(),
        flags: 0,
        reserved: [0; 4],
    };
    let method = if service == LENDING { bulk::SERVE } else { method::SERVE };
    cluster.call_method(1, PROVIDER, (1, DAEMON, method), head.as_bytes())
}

fn call(cluster: &mut Cluster, of: Body, source: Source, client: u32, to: u32, len: usize) -> u64 {
    let (node, payload) = (source.node(), vec![7; len]);
    cluster.node(node).copy_requests(client, of == Body::Private);
    if of != Body::WithSlices {
        return cluster.call(node, client, to, of.service(), &payload);
    }
    let head = BulkCallHead {
        rank: to.into(),
        service: LENDING.into(),
        method: 3.into(),
        timeout_us: 400_000.into(),
        slices: 0.into(),
        reserved: 0.into(),
    };
    let message = [head.as_bytes(), &payload].concat();
    cluster.call_method(node, client, (HERE, DAEMON, bulk::CALL), &message)
}

fn requests(cluster: &mut Cluster, rank: u32) -> [u64; 2] {
    [Counter::RequestsLocal, Counter::RequestsRemote].map(|counter| cluster.total(rank, counter))
}

fn each_way() -> impl Iterator<Item = (Body, Source)> {
    BODIES.into_iter().flat_map(|body| SOURCES.map(|source| (body, source)))
}

/// Each row is refused with its status, by a daemon that says so, is counted once, and reaches no provider.
fn expect_refusals(threads: u8, reason: Reason, longest: usize, is_wanted: impl Fn(Body) -> bool) {
    let rights = match reason {
        Reason::DeniedAtHome => [friends_alone(), Rights::default()],
        _ => [Rights::default(), friends_alone()],
    };
    let mut cluster = cluster(&format!("door-{reason:?}-{longest}"), threads, longest, rights);
    let polls = [POLLED, LENDING].map(|service| serve(&mut cluster, service, 0));
    cluster.run_for(MS);
    if reason == Reason::Draining {
        cluster.node(1).drain();
    }
    for (body, source) in each_way().filter(|(body, _)| is_wanted(*body)) {
        let is_judged_here = source.node() == 1;
        let needs_one_thread = body == Body::WithSlices && source == Source::PeerThread;
        if reason == Reason::DeniedAtHome && is_judged_here || needs_one_thread && threads > 1 {
            continue;
        }
        let row = format!("{body:?} of {source:?}, {threads} threads: {reason:?}");
        let users = match reason {
            Reason::Denied | Reason::DeniedAtHome => STRANGERS,
            _ => FRIENDS,
        };
        let client = source.client(users);
        let to = if reason == Reason::NoRank { 9 } else { 1 };
        let len = if reason == Reason::TooLong { body.longest() + 1 } else { body.longest() - 1 };
        let before = requests(&mut cluster, source.node());
        let number = call(&mut cluster, body, source, client, to, len);
        let (status, _) = cluster.outcome(number);
        let (expected, said) = reason.answer();
        assert_eq!(status, expected, "{row}");
        assert_eq!(cluster.node(source.node()).error_of(client, number), said, "{row}");
        let after = requests(&mut cluster, source.node());
        let is_local = to == source.node();
        let counted = [u64::from(is_local), u64::from(!is_local)];
        assert_eq!([after[0] - before[0], after[1] - before[1]], counted, "{row}");
        assert_eq!(cluster.node(1).outstanding(), 0, "{row}");
    }
    assert!(!polls.iter().any(|poll| cluster.ended.contains_key(poll)), "{reason:?}");
}

/// Bulk rule 10, and the same for every other body.
#[test]
fn every_body_of_every_source_is_refused_for_every_reason() {
    for (threads, reason) in [1, 2].into_iter().flat_map(|n| REASONS.map(|reason| (n, reason))) {
        if reason == Reason::TooLong {
            expect_refusals(threads, reason, SHORT_BYTES, |body| !body.is_long());
            expect_refusals(threads, reason, LONG_BYTES, Body::is_long);
        } else {
            expect_refusals(threads, reason, AMPLE_BYTES, |_| true);
        }
    }
}

/// Bulk rule 10: the same requests of users who may call are served, and counted once.
#[test]
fn every_body_of_every_source_is_let_in_if_nothing_speaks_against_it() {
    for threads in [1, 2] {
        let rights = [friends_alone(), friends_alone()];
        let mut cluster = cluster("door-open", threads, AMPLE_BYTES, rights);
        let services = [POLLED, UNPOLLED, LENDING];
        let mut polls = services.map(|service| (service, serve(&mut cluster, service, 0)));
        cluster.run_for(MS);
        for (body, source) in each_way() {
            let row = format!("{body:?} of {source:?}, {threads} threads");
            // Calls that lend memory stay with the thread of their client.
            let crosses = matches!(source, Source::Thread | Source::PeerThread);
            if body == Body::WithSlices && crosses && threads > 1 {
                continue;
            }
            // There is one poll, so the second one is held.
            let calls = if body == Body::Queued { 2 } else { 1 };
            let (client, before) = (source.client(FRIENDS), requests(&mut cluster, source.node()));
            let numbers: Vec<_> = (0..calls)
                .map(|_| call(&mut cluster, body, source, client, 1, body.longest()))
                .collect();
            for number in &numbers {
                if let Some((service, poll)) =
                    polls.iter_mut().find(|(service, _)| *service == body.service())
                {
                    let (_, work) = cluster.outcome(*poll);
                    let work = u64::from_le_bytes(work[..8].try_into().unwrap());
                    *poll = serve(&mut cluster, *service, work);
                }
                assert_eq!(cluster.outcome(*number).0, Status::Ok, "{row}");
            }
            let after = requests(&mut cluster, source.node());
            let counted = if source.node() == 1 { [calls, 0] } else { [0, calls] };
            assert_eq!([after[0] - before[0], after[1] - before[1]], counted, "{row}");
        }
    }
}

/// A client that is introduced to a provider is judged as its calls are, on whatever thread it is.
#[test]
fn an_introduction_is_refused_for_every_reason_of_a_call() {
    const INTRODUCTIONS: [u16; 2] = [method::MAY_MEET, method::MEET];
    let reasons = [None, Some(Reason::NoRank), Some(Reason::Denied), Some(Reason::Draining)];
    let threads_and_reasons = [1, 2].into_iter().flat_map(|n| reasons.map(|reason| (n, reason)));
    for (threads, reason) in threads_and_reasons {
        let rights = [Rights::default(), friends_alone()];
        let mut cluster = cluster(&format!("door-met-{reason:?}"), threads, AMPLE_BYTES, rights);
        let poll = serve(&mut cluster, POLLED, 0);
        cluster.run_for(MS);
        if reason == Some(Reason::Draining) {
            cluster.node(1).drain();
        }
        let users = if reason == Some(Reason::Denied) { STRANGERS } else { FRIENDS };
        for (source, method) in [Source::Client, Source::Thread]
            .into_iter()
            .flat_map(|source| INTRODUCTIONS.map(|method| (source, method)))
        {
            let rank = if reason == Some(Reason::NoRank) { 9 } else { 1 };
            let wanted =
                WantedHead { rank: rank.into(), service: POLLED.into(), flags: IS_SINGLE.into() };
            let client = source.client(users);
            let to = (HERE, DAEMON, method);
            let call = cluster.call_method(1, client, to, wanted.as_bytes());
            let row = format!("{method} of {source:?}, {threads} threads: {reason:?}");
            let (status, _) = cluster.outcome(call);
            if let Some((expected, said)) = reason.map(Reason::answer) {
                assert_eq!(status, expected, "{row}");
                assert_eq!(cluster.node(1).error_of(client, call), said, "{row}");
            } else {
                // Let in: this provider receives no clients, or its thread is asked next, for which a socket is missing.
                let ends = [Status::Ok, Status::FailedPrecondition, Status::InvalidArgument];
                assert!(ends.contains(&status), "{row}: {status:?}");
            }
        }
        assert!(!cluster.ended.contains_key(&poll));
    }
}

/// Bulk rule 12. What daemons say to each other, they vouch for: a call that lends memory names a key of a whole region.
#[test]
fn a_client_cannot_speak_to_the_daemon_of_another_node_as_a_daemon_does() {
    for threads in [1, 2] {
        let rights = [Rights::default(), Rights::default()];
        let mut cluster = cluster("door-forged", threads, AMPLE_BYTES, rights);
        let poll = serve(&mut cluster, LENDING, 0);
        let forged = PeerCallHead {
            set: 1.into(),
            service: LENDING.into(),
            method: 3.into(),
            slices: 0.into(),
            reserved: 0.into(),
        };
        let methods =
            [bulk::PEER_CALL, bulk::PEER_CLOSE, bulk::OFFER, method::REGISTER, method::SERVE];
        for (client, method) in FRIENDS.into_iter().flat_map(|of| methods.map(|how| (of, how))) {
            let call = cluster.call_method(0, client, (1, DAEMON, method), forged.as_bytes());
            assert_eq!(cluster.outcome(call).0, Status::PermissionDenied, "{method}");
            let said = cluster.node(0).error_of(client, call);
            assert_eq!(said, [origin::NOT_EXECUTED], "{method}");
        }
        assert!(!cluster.ended.contains_key(&poll));
        let ping = cluster.call_method(0, FRIENDS[0], (1, DAEMON, method::PING), b"ping");
        assert_eq!(cluster.outcome(ping), (Status::Ok, b"ping".to_vec()));
        let which = POLLED.to_le_bytes();
        let describe = cluster.call_method(0, FRIENDS[0], (1, DAEMON, method::DESCRIBE), &which);
        assert_eq!(cluster.outcome(describe).0, Status::Ok);
    }
}

/// Bulk rule 11: rules about offers, and the number of services of a client, hold for both kinds of services.
#[test]
fn offers_of_either_kind_are_judged_and_counted_alike() {
    for threads in [1, 2] {
        let mut cluster = Cluster::new("door-offers", 2, threads, 64);
        cluster.rights = Rights::parse("offer 30 uid:50; offer 31 nobody").unwrap();
        cluster.limits = Limits { services_per_client: 2, ..Limits::default() };
        cluster.start(1, 200);
        cluster.wait_all_up();
        for way in [method::REGISTER, bulk::OFFER] {
            let mut offer = |client, service| offer(&mut cluster, client, way, service);
            assert_eq!(offer(51, 30), Status::PermissionDenied);
            assert_eq!(offer(50, 31), Status::PermissionDenied);
            assert_eq!(offer(50, 30), Status::Ok);
            assert_eq!(offer(52, 0), Status::AlreadyExists, "the daemon itself");
        }
        for way in [method::REGISTER, bulk::OFFER] {
            let third = offer(&mut cluster, 50, way, 32);
            assert_eq!(third, Status::ResourceExhausted, "one of each kind are two");
        }
        cluster.node(1).depart(50);
        cluster.run_for(50 * MS);
        for (way, service, status) in [
            (bulk::OFFER, 30, Status::PermissionDenied),
            (bulk::OFFER, 40, Status::Ok),
            (method::REGISTER, 40, Status::Ok),
            (bulk::OFFER, 41, Status::ResourceExhausted),
        ] {
            assert_eq!(offer(&mut cluster, 54, way, service), status, "{way} {service}");
        }
    }
}
