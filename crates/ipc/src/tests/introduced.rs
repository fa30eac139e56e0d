//! Clients that somebody introduces to a server.

use std::{
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::Arc,
};

use memory::{Region, sync::Ordering};
use os::{clock, unix::UnixConnection};
use rustix::{
    fs::{MemfdFlags, SealFlags},
    process::{PidfdFlags, pidfd_open},
};

use super::rig::*;
use crate::{
    BlockingClient, CallError, ClientProcess, ConnectError, EvictReason, Introducer, Introduction,
    Newcomer, NewcomerState, PipelinedClient, RequestId, Server, ServerConfig,
    endpoint::{
        half::{Half, HalfShape},
        handshake::{self, HandshakeAnswer, Welcome},
    },
    ring,
};

fn introduced() -> (Server, Introducer) {
    let (server, channel) = Server::introduced(small()).unwrap();
    (server, Introducer::adopt(channel).unwrap())
}

fn introduction(tag: u64) -> Introduction {
    Introduction { tag, process: ClientProcess { uid: 7, pid: 8 } }
}

/// A client on its way; the introducer's copy of its socket is returned, too.
fn newcomer(introducer: &Introducer, tag: u64) -> (Newcomer, OwnedFd) {
    let (newcomer, socket) = Newcomer::new().unwrap();
    assert!(introducer.introduce(socket.as_fd(), introduction(tag)));
    (newcomer, socket)
}

fn arrive<C>(mut newcomer: Newcomer) -> PipelinedClient<C> {
    let mut arrived = None;
    eventually("the server says welcome", || {
        let (next, _) = Newcomer::new().unwrap();
        let taken = std::mem::replace(&mut newcomer, next);
        match PipelinedClient::introduced(taken, patient()).unwrap() {
            NewcomerState::NotYet(again) => newcomer = again,
            NewcomerState::Arrived(client) => arrived = Some(client),
        }
        arrived.is_some()
    });
    arrived.unwrap()
}

#[test]
fn a_client_that_is_introduced_calls_and_the_server_knows_who_it_is() {
    let (server, introducer) = introduced();
    let server = ServerThread::run(server, increment);
    let (mut pending, _socket) = newcomer(&introducer, 5);
    let mut client: BlockingClient = loop {
        match BlockingClient::introduced(pending, patient()).unwrap() {
            NewcomerState::NotYet(again) => pending = again,
            NewcomerState::Arrived(client) => break client,
        }
    };
    for len_bytes in [0, 56, 57, 1000] {
        expect_increment(&mut client, &vec![7; len_bytes]);
    }
    let census = server.ask(|server| server.replies().clients().collect::<Vec<_>>());
    assert_eq!(census[0].process, Some(ClientProcess { uid: 7, pid: 8 }));
    assert_eq!((census.len(), census[0].tag), (1, Some(5)));
    drop(client);
    expect_baseline(&server, 0);
}

/// docs/ipc.md states the number: the memory of a provider grows by it with each client of its node.
#[test]
fn a_session_has_the_memory_that_the_document_says() {
    let config = ServerConfig {
        depth: 32,
        request_bytes_max: 15 << 20,
        response_bytes_max: 15 << 20,
        ..ServerConfig::default()
    };
    let [_, host] = Host::both(config, || increment);
    let connected = host.connect();
    let bytes = [&connected.memory.up, &connected.memory.down].map(|half| {
        let stat = rustix::fs::fstat(half.fd().unwrap()).unwrap();
        usize::try_from(stat.st_blocks).unwrap() * 512
    });
    assert_eq!(bytes, [136 << 10; 2]);
}

#[test]
fn a_client_that_leaves_between_two_turns_keeps_no_other_from_being_heard() {
    let (mut server, introducer) = introduced();
    let (pending, _socket) = newcomer(&introducer, 1);
    server.service_now();
    let mut client = arrive::<u8>(pending);
    for number in 0..2 {
        client.submit(&[number], number).unwrap();
    }
    client.flush();
    eventually("the first request arrives", || {
        let Some(request) = server.recv() else { return false };
        request.reply(b"").unwrap();
        true
    });
    server.pause();
    drop(client);
    eventually("the server learns of the departure", || {
        server.service_now();
        server.clients().next().is_none()
    });
    let (pending, _socket) = newcomer(&introducer, 2);
    server.service_now();
    let mut client = arrive::<u8>(pending);
    client.submit(b"x", 0).unwrap();
    client.flush();
    // The wakeup bit of the client, not the sweep of each 100 ms, is what the server hears.
    let is_heard = (0..64).any(|_| server.recv().is_some());
    assert!(is_heard);
}

#[test]
fn a_session_that_is_retired_answers_what_was_taken_and_the_rest_was_not_executed() {
    let (mut server, introducer) = introduced();
    let (pending, _socket) = newcomer(&introducer, 1);
    let (bystander, _other) = newcomer(&introducer, 2);
    server.service_now();
    let (mut client, mut other) = (arrive::<u8>(pending), arrive::<u8>(bystander));
    for number in 0..3 {
        client.submit(&[number], number).unwrap();
    }
    other.submit(b"x", 9).unwrap();
    client.flush();
    other.flush();
    let mut taken: Vec<RequestId> = Vec::new();
    while taken.len() < 2 {
        let Some(request) = server.recv() else { continue };
        if server_tag(request.payload()) {
            request.reply(b"bystander").unwrap();
        } else {
            taken.push(request.keep_open());
        }
    }
    assert!(introducer.retire(Some(1)));
    server.service_now();
    server.pause();
    assert!(server.is_connected(taken[0].client()), "it has requests to answer");
    for id in &taken {
        server.replies().reply(*id, b"done").unwrap();
    }
    server.pause();
    assert!(!server.is_connected(taken[0].client()));
    let mut ended = Vec::new();
    eventually("all calls end", || {
        client.poll(|number, outcome| ended.push((number, outcome.map(<[u8]>::to_vec))));
        client.rest();
        ended.len() == 3
    });
    assert_eq!(ended[..2], [(0, Ok(b"done".to_vec())), (1, Ok(b"done".to_vec()))]);
    assert_eq!(ended[2], (2, Err(CallError::NotTaken)));
    assert_eq!(client.gone(), Some(CallError::Evicted(EvictReason::Retired)));
    // The other session goes on.
    other.submit(b"y", 10).unwrap();
    let mut answers = 0;
    eventually("the bystander is served", || {
        server.serve(|request| request.reply(b"bystander").unwrap());
        other.poll(|_, outcome| {
            outcome.unwrap();
            answers += 1;
        });
        answers == 2
    });
}

#[test]
fn a_client_that_is_asked_to_leave_is_served_until_it_does() {
    let (mut server, introducer) = introduced();
    let (pending, _socket) = newcomer(&introducer, 1);
    let (bystander, _other) = newcomer(&introducer, 2);
    server.service_now();
    let (mut client, other) = (arrive::<u8>(pending), arrive::<u8>(bystander));
    client.submit(b"before", 1).unwrap();
    client.flush();
    assert!(introducer.ask_to_leave(1) && introducer.ask_to_leave(9), "9 is no session");
    server.service_now();
    assert!(client.is_asked_to_leave() && !other.is_asked_to_leave());
    client.submit(b"after", 2).unwrap();
    client.flush();
    let mut ended = Vec::new();
    eventually("both calls are answered", || {
        server.serve(|request| request.reply(b"done").unwrap());
        client.poll(|number, outcome| ended.push((number, outcome.unwrap().to_vec())));
        ended.len() == 2
    });
    assert_eq!(client.gone(), None);
    drop(client);
    eventually("its session ends", || {
        server.service_now();
        server.stats().clients == 1
    });
}

/// Whether a request is the bystander's.
fn server_tag(payload: &[u8]) -> bool {
    payload == b"x"
}

#[test]
fn a_server_that_ends_says_what_it_did_not_take() {
    let (mut server, introducer) = introduced();
    let (pending, _socket) = newcomer(&introducer, 1);
    server.service_now();
    let mut client = arrive::<u8>(pending);
    for number in 0..2 {
        client.submit(&[number], number).unwrap();
    }
    client.flush();
    while server.recv().map(|request| request.keep_open()).is_none() {}
    drop(server);
    let mut ended = Vec::new();
    eventually("all calls end", || {
        client.poll(|number, outcome| ended.push((number, outcome.unwrap_err())));
        client.rest();
        ended.len() == 2
    });
    let retired = CallError::Evicted(EvictReason::Retired);
    assert_eq!(ended, [(0, retired), (1, CallError::NotTaken)]);
}

#[test]
fn whoever_introduces_ends_a_session_whatever_copies_of_its_socket_there_are() {
    let (server, introducer) = introduced();
    let server = ServerThread::run(server, increment);
    let (pending, socket) = newcomer(&introducer, 1);
    let mut client = arrive::<()>(pending);
    let held = UnixConnection::adopt(socket).unwrap();
    held.shut_down();
    expect_baseline(&server, 0);
    eventually("the client notices", || {
        let _ = client.submit(b"x", ());
        client.poll(|(), outcome| assert!(outcome.is_err()));
        client.gone().is_some()
    });
}

#[test]
fn a_server_learns_that_a_call_was_given_up() {
    let (mut server, introducer) = introduced();
    let (pending, _socket) = newcomer(&introducer, 1);
    server.service_now();
    let mut client = arrive::<u8>(pending);
    let given_up = client.submit(b"a", 1).unwrap();
    client.submit(b"b", 2).unwrap();
    client.flush();
    let mut taken = Vec::new();
    while taken.len() < 2 {
        taken.extend(server.recv().map(|request| request.keep_open()));
    }
    assert!(!taken.iter().any(|id| server.replies().is_abandoned(*id)));
    assert_eq!(client.cancel(given_up), Some(1));
    let abandoned: Vec<_> = taken.iter().map(|id| server.replies().is_abandoned(*id)).collect();
    assert_eq!(abandoned, [true, false]);
    // The place of the call is taken again, once its late answer was read.
    for id in taken {
        server.replies().reply(id, b"").unwrap();
    }
    eventually("the other call ends", || client.poll(|_, _| {}) == 1);
    for number in 0..8 {
        client.submit(b"c", number).unwrap();
    }
    client.flush();
    let mut count = 0;
    while count < 8 {
        let Some(id) = server.recv().map(|request| request.keep_open()) else { continue };
        assert!(!server.replies().is_abandoned(id), "a new call has the place");
        count += 1;
    }
    drop(client);
}

#[test]
fn threads_without_the_session_see_its_end_though_its_owner_does_not_look() {
    let begin = || {
        let (mut server, introducer) = introduced();
        let (pending, socket) = newcomer(&introducer, 1);
        server.service_now();
        let mut client = arrive::<()>(pending);
        client.submit(b"a", ()).unwrap();
        client.flush();
        let mut taken = None;
        while taken.is_none() {
            taken = server.recv().map(|request| request.keep_open());
        }
        let of_client = server.replies().lifeline_of(taken.unwrap()).unwrap().clone();
        let of_server = client.lifeline();
        assert!(!of_client.is_cut() && !of_server.is_cut());
        // The introducer has a copy of the socket all the while.
        (server, client, of_server, of_client, socket)
    };
    let (_server, client, of_server, of_client, _socket) = begin();
    drop(client);
    assert!(of_client.is_cut() && of_server.is_cut());
    let (server, _client, of_server, of_client, _socket) = begin();
    drop(server);
    assert!(of_server.is_cut() && of_client.is_cut());
}

#[test]
fn what_is_no_socket_of_a_pair_is_not_introduced() {
    let (server, introducer) = introduced();
    let server = ServerThread::run(server, increment);
    let file = std::fs::File::open("/dev/null").unwrap();
    assert!(introducer.introduce(file.as_fd(), introduction(1)), "the channel takes anything");
    let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    assert!(introducer.introduce(one.as_fd(), introduction(2)));
    let (pending, _socket) = newcomer(&introducer, 3);
    drop(arrive::<()>(pending));
    expect_baseline(&server, 0);
    assert_eq!(server.ask(|server| server.stats().welcomed), 1);
}

/// What a server tells a client that was introduced to it, in parts that a hostile one can replace.
struct Told {
    up: Region,
    down: Arc<Region>,
    bits: Region,
    flag: Region,
    own: OwnedFd,
    shape: HalfShape,
}

impl Told {
    fn honest() -> Self {
        let shape = HalfShape::new(3, 1000).unwrap();
        let region = |len_bytes| {
            let region = Region::sparse_memfd("told", len_bytes).unwrap();
            region.commit(0..len_bytes).unwrap();
            region
        };
        let down = region(shape.len_bytes());
        down.seal_future_write().unwrap();
        let own = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
        let (bits, flag) = (region(4096), region(4096));
        Self { up: region(shape.len_bytes()), down: Arc::new(down), bits, flag, own, shape }
    }

    fn fds(&self) -> [BorrowedFd<'_>; 5] {
        let regions = [&self.up, &*self.down, &self.bits, &self.flag];
        let [up, down, bits, flag] = regions.map(|region| region.fd().unwrap());
        [up, down, bits, flag, self.own.as_fd()]
    }
}

/// A client that is welcomed with these descriptors.
fn welcomed(
    shape: HalfShape,
    fds: &[BorrowedFd<'_>],
) -> Result<(PipelinedClient<u8>, UnixConnection), ConnectError> {
    let (newcomer, socket) = Newcomer::new().unwrap();
    let server = UnixConnection::adopt(socket).unwrap();
    let welcome = Welcome { up: shape, down: shape, slot: 0, position: 0, server_generation: 1 };
    let answer = handshake::write_answer(HandshakeAnswer::Welcome(welcome));
    server.send(&answer, fds, clock::NOW).unwrap();
    match PipelinedClient::introduced(newcomer, patient())? {
        NewcomerState::Arrived(client) => Ok((client, server)),
        NewcomerState::NotYet(_) => panic!("the welcome was sent"),
    }
}

#[test]
fn fault_b13_a_client_maps_nothing_of_a_hostile_server_that_can_take_pages_away() {
    let told = Told::honest();
    let [up, down, bits, flag, own] = told.fds();
    drop(welcomed(told.shape, &told.fds()).unwrap());
    // Whose size is not fixed.
    let unsealed = rustix::fs::memfd_create("unsealed", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, 1 << 20).unwrap();
    // That takes no further seals, so that holes can be made.
    let open = rustix::fs::memfd_create("open", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&open, 1 << 20).unwrap();
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&open, seals).unwrap();
    let file = std::fs::File::open("/dev/zero").unwrap();
    let long = HalfShape::new(12, 100_000).unwrap();
    for (what, shape, fds) in [
        ("an up half without seals", told.shape, vec![unsealed.as_fd(), down, bits, flag, own]),
        ("a down half without seals", told.shape, vec![up, unsealed.as_fd(), bits, flag, own]),
        ("an up half with final seals", told.shape, vec![open.as_fd(), down, bits, flag, own]),
        ("a down half with final seals", told.shape, vec![up, open.as_fd(), bits, flag, own]),
        ("a device", told.shape, vec![file.as_fd(), down, bits, flag, own]),
        ("wakeup bits without seals", told.shape, vec![up, down, unsealed.as_fd(), flag, own]),
        ("halves that are too short", long, vec![up, down, bits, flag, own]),
        ("no process", told.shape, vec![up, down, bits, flag]),
        ("no memory", told.shape, vec![]),
    ] {
        assert!(welcomed(shape, &fds).is_err(), "{what}");
    }
}

#[test]
fn fault_b13_a_server_that_overwrites_words_of_a_session_is_found_out_or_harms_itself() {
    const WORDS: usize = 64 / 8;
    for seed in 1..200_u64 {
        let told = Told::honest();
        let (mut client, server) = welcomed(told.shape, &told.fds()).unwrap();
        // Rings as a server leaves them at first.
        ring::reset(&Half::new(Arc::clone(&told.down), told.shape), 0);
        for number in 0..3 {
            client.submit(&[number; 57], number).unwrap();
        }
        let down = &told.down;
        let mut random = seed;
        for _ in 0..4 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let [at, which, ..] = random.to_le_bytes().map(usize::from);
            let word = at % (4 + 8) * WORDS + which % 2;
            let word = down.shared::<memory::sync::AtomicU64>(word * 8).unwrap();
            word.store(random >> 3 & !0xfff | random >> 40 & 3, Ordering::Relaxed);
        }
        drop(server);
        let mut ended = 0;
        eventually("all calls end", || {
            client.poll(|_, _| ended += 1);
            client.rest();
            ended == 3
        });
    }
}
