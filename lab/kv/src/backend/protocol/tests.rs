//! Both ends on the software NIC: servers in a thread of their own.

use std::{
    collections::BTreeMap,
    sync::mpsc::{Receiver, Sender, TryRecvError, channel},
    thread::ScopedJoinHandle,
};

use nics::soft::SoftOpener;

use super::*;
use crate::{
    backend::{
        CallFailure, CallToken, Client, Contact, Event, Kind, Roster, Server, SubmitError,
        Switches, Wait,
    },
    place::Topology,
};

const PATIENCE: Duration = Duration::from_secs(30);
const CALLS: u64 = 24;
const MARK: u8 = b'!';
const BYTES_MAX: usize = 40_000;

fn body(n: u64) -> Vec<u8> {
    vec![n.to_le_bytes()[0]; usize::try_from(n * 1500).unwrap()]
}

fn setup(kind: Kind, switches: &[(&str, &str)]) -> JobSetup {
    let given = switches.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
    let given = given.collect::<BTreeMap<_, _>>();
    JobSetup {
        topology: Topology { ranks: 1, daemon_threads: 2, clients_per_rank: 1, keys: 10 },
        queue_depth: 8,
        message_bytes_max: BYTES_MAX,
        timeout_ns: u64::try_from(PATIENCE.as_nanos()).unwrap(),
        wait: Wait::Yield,
        switches: Switches::resolve(kind.name(), kind.switches(), &given).unwrap(),
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

fn protocol_of(kind: Kind) -> Protocol {
    kind.name().parse().unwrap()
}

/// Serves `shard` until its half of a channel is dropped.
fn serve(
    backend: &OverProtocol<SoftOpener>,
    shard: Shard,
    contact: &Sender<Contact>,
    is_over: &Receiver<()>,
) {
    let mut server = backend.server(shard, marking()).unwrap();
    contact.send(server.contact()).unwrap();
    server.join(&Roster::default(), clock::deadline_ns(PATIENCE)).unwrap();
    while is_over.try_recv() == Err(TryRecvError::Empty) {
        if server.turn(usize::MAX).unwrap().handled == 0 {
            server.wait(clock::deadline_ns(NAP_MAX)).unwrap();
        }
    }
}

/// A client of two servers, each of which has a thread.
struct Rig<'scope> {
    client: ProtocolClient<<SoftOpener as Opener>::Nic>,
    servers: Vec<(Sender<()>, ScopedJoinHandle<'scope, ()>)>,
}

fn with_rig(kind: Kind, switches: &[(&str, &str)], program: impl FnOnce(&mut Rig<'_>)) {
    let setup = setup(kind, switches);
    let backend = &OverProtocol::new(setup, protocol_of(kind), SoftOpener::default());
    thread::scope(|scope| {
        let (mut servers, mut contacts) = (Vec::new(), Vec::new());
        for shard in 0..2 {
            let ((contact, known), (sender, is_over)) = (channel(), channel());
            let handle = scope.spawn(move || serve(backend, Shard(shard), &contact, &is_over));
            contacts.push(known.recv_timeout(PATIENCE).unwrap());
            servers.push((sender, handle));
        }
        let roster = Roster { servers: contacts, clients: Vec::new() };
        let mut client = backend.client(ClientId(0)).unwrap();
        client.join(&roster, clock::deadline_ns(PATIENCE)).unwrap();
        program(&mut Rig { client, servers });
    });
}

/// Calls to both servers, with bodies of none to many packets.
fn calls_are_answered(kind: Kind, switches: &[(&str, &str)]) {
    with_rig(kind, switches, |Rig { client, .. }| {
        let (mut sent, mut answers) = (0, Vec::new());
        let deadline_ns = clock::deadline_ns(PATIENCE);
        while (answers.len() as u64) < CALLS {
            assert!(clock::now_ns() < deadline_ns, "calls are left: {kind} {switches:?}");
            while sent < CALLS {
                let to = Shard(u16::try_from(sent % 2).unwrap());
                match client.submit(to, CallToken(sent), &body(sent)) {
                    Ok(()) => sent += 1,
                    Err(SubmitError::Full) => break,
                    Err(other) => panic!("{other}"),
                }
            }
            client.wait(clock::NOW).unwrap();
            let poll = client.poll(64, &mut |event| match event {
                Event::Answer { token, bytes } => answers.push((token, bytes.to_vec())),
                other => panic!("{other:?}"),
            });
            poll.unwrap();
        }
        answers.sort();
        for (n, (token, bytes)) in (0..).zip(answers) {
            assert_eq!(token, CallToken(n));
            assert!(bytes == [body(n), vec![MARK]].concat(), "call {n}, {switches:?}");
        }
    });
}

#[test]
fn every_call_gets_its_own_answer_with_every_switch() {
    for kind in [Kind::Erpc, Kind::Scalerpc] {
        for switch in kind.switches() {
            for value in switch.values {
                calls_are_answered(kind, &[(switch.name, value)]);
            }
        }
    }
}

/// Polls until the second shard is lost.
fn until_lost(client: &mut impl Client) -> Vec<(CallToken, CallFailure)> {
    let (mut failed, mut lost) = (Vec::new(), Vec::new());
    let deadline_ns = clock::deadline_ns(PATIENCE);
    while lost.is_empty() {
        assert!(clock::now_ns() < deadline_ns, "the client was never told");
        client.wait(clock::deadline_ns(NAP_MAX)).unwrap();
        client
            .poll(64, &mut |event| match event {
                Event::Failed { token, failure } => failed.push((token, failure)),
                Event::Lost { shard } => lost.push(shard),
                Event::Answer { .. } => panic!("nobody can have answered"),
            })
            .unwrap();
    }
    assert_eq!(lost, [Shard(1)]);
    failed
}

#[test]
fn a_dead_server_is_told_and_refused() {
    for kind in [Kind::Erpc, Kind::Scalerpc] {
        with_rig(kind, &[], |Rig { client, servers }| {
            let (sender, handle) = servers.pop().unwrap();
            drop(sender);
            handle.join().unwrap();
            client.submit(Shard(1), CallToken(1), b"x").unwrap();
            let failed = until_lost(client);
            assert_eq!(failed, [(CallToken(1), CallFailure::PeerGone)], "{kind}");
            let refused = client.submit(Shard(1), CallToken(2), b"x");
            assert_eq!(refused, Err(SubmitError::Gone(Shard(1))), "{kind}");
            client.submit(Shard(0), CallToken(3), b"x").unwrap();
            let named = client.counters().named;
            let losses = named.keys().filter(|name| name.starts_with("client lost: "));
            assert_eq!(losses.count(), 1, "{named:?}");
        });
    }
}

#[test]
fn a_request_that_is_too_long_is_refused() {
    for kind in [Kind::Erpc, Kind::Scalerpc] {
        with_rig(kind, &[], |Rig { client, .. }| {
            let (len_bytes, max_bytes) = (BYTES_MAX + 1, BYTES_MAX);
            let refused = client.submit(Shard(0), CallToken(1), &vec![0; len_bytes]);
            assert_eq!(refused, Err(SubmitError::TooLarge { len_bytes, max_bytes }));
            let refused = client.submit(Shard(2), CallToken(1), b"x");
            assert_eq!(refused, Err(SubmitError::Gone(Shard(2))));
        });
    }
}

#[test]
fn a_contact_that_makes_no_sense_is_refused() {
    let kind = Kind::Scalerpc;
    let backend = OverProtocol::new(setup(kind, &[]), protocol_of(kind), SoftOpener::default());
    let mut client = backend.client(ClientId(0)).unwrap();
    let roster = Roster { servers: vec![Contact("moon".into())], clients: Vec::new() };
    let error = client.join(&roster, clock::deadline_ns(PATIENCE)).unwrap_err();
    assert!(error.to_string().starts_with("a contact makes no sense"), "{error}");
}
