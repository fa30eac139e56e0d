//! Both ends on the system's UCX: servers in a thread of their own. In CI it has to be there.

use std::{
    collections::BTreeMap,
    sync::mpsc::{Receiver, Sender, TryRecvError, channel},
    thread::{self, ScopedJoinHandle},
};

use super::*;
use crate::{
    backend::{CallToken, Client, Event, Kind, Roster, Server, SubmitError, Switches, Wait},
    place::Topology,
};

const PATIENCE: Duration = Duration::from_secs(30);
const NAP: Duration = Duration::from_millis(1);
const CALLS: u64 = 48;
const DEPTH: u32 = 8;
const MARK: u8 = b'!';
const BYTES_MAX: usize = 100_000;

/// Whether UCX is there; a test that lacks it says so.
fn has_ucx() -> bool {
    let Some(reason) = Kind::UcxAm.missing() else { return true };
    let is_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
    assert!(!is_ci, "{reason}");
    eprintln!("skipped: libucp.so.0, which is in libucx0: {reason}");
    false
}

fn body(n: u64) -> Vec<u8> {
    vec![n.to_le_bytes()[0]; usize::try_from(n * 2000).unwrap()]
}

fn setup(switches: &[(&str, &str)], wait: Wait) -> JobSetup {
    let given = switches.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
    let given = given.collect::<BTreeMap<_, _>>();
    JobSetup {
        topology: Topology { ranks: 1, daemon_threads: 2, clients_per_rank: 1, keys: 10 },
        queue_depth: DEPTH,
        message_bytes_max: BYTES_MAX,
        timeout_ns: u64::try_from(PATIENCE.as_nanos()).unwrap(),
        wait,
        switches: Switches::resolve("ucx-am", &SWITCHES, &given).unwrap(),
        times_turns: false,
        address: crate::backend::loopback(),
    }
}

/// Answers with the request's bytes and a mark.
fn marking() -> Service {
    Box::new(|request, answer| {
        answer.extend_from_slice(request);
        answer.push(MARK);
    })
}

/// Serves `shard` until its half of a channel is dropped.
fn serve(
    backend: &UcxAm,
    shard: Shard,
    contact: &Sender<Contact>,
    roster: &Receiver<Roster>,
    is_over: &Receiver<()>,
) {
    let mut server = backend.server(shard, marking()).unwrap();
    contact.send(server.contact()).unwrap();
    let roster = roster.recv_timeout(PATIENCE).unwrap();
    server.join(&roster, clock::deadline_ns(PATIENCE)).unwrap();
    while is_over.try_recv() == Err(TryRecvError::Empty) {
        if server.turn(usize::MAX).unwrap().handled == 0 {
            server.wait(clock::deadline_ns(NAP)).unwrap();
        }
    }
    let named = server.counters().named;
    assert_eq!((named["daemon messages lost"], named["daemon answers unsent"]), (0, 0));
}

/// A client of two servers, each of which has a thread.
struct Rig<'scope> {
    client: UcxClient,
    servers: Vec<(Sender<()>, ScopedJoinHandle<'scope, ()>)>,
}

fn with_rig(switches: &[(&str, &str)], wait: Wait, program: impl FnOnce(&mut Rig<'_>)) {
    let backend = &UcxAm::open(setup(switches, wait)).unwrap();
    thread::scope(|scope| {
        let mut client = backend.client(ClientId(0)).unwrap();
        let (mut servers, mut contacts, mut rosters) = (Vec::new(), Vec::new(), Vec::new());
        for shard in 0..2 {
            let ((contact, known), (sender, is_over)) = (channel(), channel());
            let (roster, told) = channel();
            let server = move || serve(backend, Shard(shard), &contact, &told, &is_over);
            let handle = scope.spawn(server);
            contacts.push(known.recv_timeout(PATIENCE).unwrap());
            rosters.push(roster);
            servers.push((sender, handle));
        }
        let roster = Roster { servers: contacts, clients: vec![client.contact()] };
        for told in rosters {
            told.send(roster.clone()).unwrap();
        }
        client.join(&roster, clock::deadline_ns(PATIENCE)).unwrap();
        program(&mut Rig { client, servers });
    });
}

/// Calls to both servers, with bodies of nothing to what goes by rendezvous.
fn calls_are_answered(switches: &[(&str, &str)], wait: Wait) {
    with_rig(switches, wait, |Rig { client, .. }| {
        let (mut sent, mut answers) = (0, Vec::new());
        let deadline_ns = clock::deadline_ns(PATIENCE);
        while (answers.len() as u64) < CALLS {
            assert!(
                clock::now_ns() < deadline_ns,
                "{switches:?} {wait}: {} answers to {sent} calls; {:?}",
                answers.len(),
                client.counters()
            );
            while sent < CALLS.min(answers.len() as u64 + u64::from(DEPTH)) {
                let to = Shard(u16::try_from(sent % 2).unwrap());
                match client.submit(to, CallToken(sent), &body(sent)) {
                    Ok(()) => sent += 1,
                    Err(SubmitError::Full) => break,
                    Err(other) => panic!("{other}"),
                }
            }
            client.wait(clock::deadline_ns(NAP)).unwrap();
            let mut sink = |event: Event<'_>| match event {
                Event::Answer { token, bytes } => answers.push((token.0, bytes.to_vec())),
                other => panic!("{other:?}"),
            };
            client.poll(64, &mut sink).unwrap();
        }
        answers.sort_unstable();
        for (n, (token, bytes)) in (0..).zip(&answers) {
            assert_eq!((*token, bytes.split_last()), (n, Some((&MARK, &body(n)[..]))));
        }
    });
}

#[test]
fn calls_over_shared_memory_are_answered_by_threads_that_sleep_and_that_do_not() {
    if has_ucx() {
        for wait in [Wait::Block, Wait::Yield] {
            calls_are_answered(&[], wait);
        }
        calls_are_answered(&[("rndv", "8k")], Wait::Block);
    }
}

#[test]
fn calls_over_tcp_and_over_what_ucx_chooses_are_answered() {
    if has_ucx() {
        calls_are_answered(&[("tls", "tcp"), ("rndv", "64k")], Wait::Block);
        calls_are_answered(&[("tls", "all"), ("rndv", "inf")], Wait::Adaptive);
    }
}

#[test]
fn a_dead_server_is_told_over_tcp_and_refused() {
    if !has_ucx() {
        return;
    }
    with_rig(&[("tls", "tcp")], Wait::Block, |Rig { client, servers }| {
        let (sender, handle) = servers.pop().unwrap();
        drop(sender);
        handle.join().unwrap();
        let (deadline_ns, mut lost) = (clock::deadline_ns(PATIENCE), Vec::new());
        while lost.is_empty() {
            assert!(clock::now_ns() < deadline_ns, "the loss is never told");
            // Over TCP a connection that is closed shows when something is sent.
            let _ = client.submit(Shard(1), CallToken(1), b"x");
            client.wait(clock::deadline_ns(NAP)).unwrap();
            let mut sink = |event: Event<'_>| match event {
                Event::Lost { shard } => lost.push(shard),
                other => panic!("{other:?}"),
            };
            client.poll(64, &mut sink).unwrap();
        }
        assert_eq!(lost, [Shard(1)]);
        let refused = client.submit(Shard(1), CallToken(2), b"x");
        assert_eq!(refused, Err(SubmitError::Gone(Shard(1))));
        client.submit(Shard(0), CallToken(3), b"x").unwrap();
        let named = client.counters().named;
        assert_eq!(named.keys().filter(|name| name.starts_with("client lost: ")).count(), 1);
    });
}

#[test]
fn a_request_that_is_too_long_and_a_shard_that_is_not_there_are_refused() {
    if !has_ucx() {
        return;
    }
    with_rig(&[], Wait::Block, |Rig { client, .. }| {
        let (len_bytes, max_bytes) = (BYTES_MAX + 1, BYTES_MAX);
        let refused = client.submit(Shard(0), CallToken(1), &vec![0; len_bytes]);
        assert_eq!(refused, Err(SubmitError::TooLarge { len_bytes, max_bytes }));
        let refused = client.submit(Shard(2), CallToken(1), b"x");
        assert_eq!(refused, Err(SubmitError::Gone(Shard(2))));
    });
}

#[test]
fn a_contact_that_makes_no_sense_is_refused() {
    if !has_ucx() {
        return;
    }
    let backend = UcxAm::open(setup(&[], Wait::Block)).unwrap();
    let mut client = backend.client(ClientId(0)).unwrap();
    let roster = Roster { servers: vec![Contact("moon".into())], clients: Vec::new() };
    let error = client.join(&roster, clock::deadline_ns(PATIENCE)).unwrap_err();
    assert!(error.to_string().starts_with("a contact makes no sense"), "{error}");
}
