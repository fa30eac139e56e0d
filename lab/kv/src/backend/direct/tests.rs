//! Both ends on the software NIC, in one thread.

use std::{collections::BTreeMap, time::Duration};

use nics::soft::SoftOpener;
use os::clock;

use super::*;
use crate::{
    backend::{
        CallFailure, CallToken, Client, Event, Kind, Roster, Server, SubmitError, Switches, Wait,
    },
    place::Topology,
};

const PATIENCE: Duration = Duration::from_secs(10);
const CALLS: u64 = 12;
const MARK: u8 = b'!';

fn body(n: u64) -> Vec<u8> {
    vec![n.to_le_bytes()[0]; usize::try_from(n * 3000).unwrap()]
}

fn setup(switches: &[(&str, &str)], wait: Wait) -> JobSetup {
    let given = switches.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
    let given = given.collect::<BTreeMap<_, _>>();
    JobSetup {
        topology: Topology { ranks: 2, daemon_threads: 1, clients_per_rank: 1, keys: 10 },
        queue_depth: 64,
        message_bytes_max: 40_000,
        timeout_ns: 5_000_000_000,
        wait,
        switches: Switches::resolve("direct", Kind::Direct.switches(), &given).unwrap(),
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

fn serve(servers: &mut [DirectServer<impl Nic>]) {
    for server in servers {
        server.turn(usize::MAX).unwrap();
    }
}

/// Both clients call both servers, with bodies from none to those that go by rendezvous.
fn calls_are_answered(switches: &[(&str, &str)], wait: Wait) {
    let direct = Direct::new(setup(switches, wait), SoftOpener::default());
    let mut servers = [0, 1].map(|shard| direct.server(Shard(shard), marking()).unwrap());
    let mut clients = [0, 1].map(|client| direct.client(ClientId(client)).unwrap());
    let roster = Roster {
        servers: servers.iter().map(Server::contact).collect(),
        clients: clients.iter().map(Client::contact).collect(),
    };
    servers.iter_mut().for_each(|server| server.join(&roster, 0).unwrap());
    clients.iter_mut().for_each(|client| client.join(&roster, 0).unwrap());
    let (mut sent, mut answers) = ([0; 2], [Vec::new(), Vec::new()]);
    let deadline_ns = clock::deadline_ns(PATIENCE);
    while answers.iter().any(|answers| (answers.len() as u64) < CALLS) {
        assert!(clock::now_ns() < deadline_ns, "calls are left: {switches:?}");
        for ((client, answers), sent) in clients.iter_mut().zip(&mut answers).zip(&mut sent) {
            while *sent < CALLS {
                let to = Shard(u16::try_from(*sent % 2).unwrap());
                match client.submit(to, CallToken(*sent), &body(*sent)) {
                    Ok(()) => *sent += 1,
                    Err(SubmitError::Full) => break,
                    Err(other) => panic!("{other}"),
                }
            }
            if wait == Wait::Block {
                client.wait(clock::NOW).unwrap();
            }
            client
                .poll(64, &mut |event| match event {
                    Event::Answer { token, bytes } => answers.push((token, bytes.to_vec())),
                    other => panic!("{other:?}"),
                })
                .unwrap();
        }
        serve(&mut servers);
    }
    for answers in &mut answers {
        answers.sort();
        for (n, (token, bytes)) in (0..).zip(answers) {
            assert_eq!(*token, CallToken(n));
            assert!(*bytes == [body(n), vec![MARK]].concat(), "call {n}, {switches:?}");
        }
    }
}

#[test]
fn every_call_gets_its_own_answer_with_every_switch() {
    for switch in SWITCHES {
        for value in switch.values {
            // Initiators matter to DC alone.
            let transport = if switch.name == "dcis" { "dc" } else { "rc" };
            if switch.name == "transport" {
                calls_are_answered(&[(switch.name, value)], Wait::Yield);
            } else {
                calls_are_answered(&[("transport", transport), (switch.name, value)], Wait::Yield);
            }
        }
    }
    calls_are_answered(&[], Wait::Block);
}

#[test]
fn a_dead_server_is_told_and_refused() {
    let direct = Direct::new(setup(&[], Wait::Yield), SoftOpener::default());
    let mut servers = vec![
        direct.server(Shard(0), marking()).unwrap(),
        direct.server(Shard(1), marking()).unwrap(),
    ];
    let mut client = direct.client(ClientId(0)).unwrap();
    let other = direct.client(ClientId(1)).unwrap();
    let roster = Roster {
        servers: servers.iter().map(Server::contact).collect(),
        clients: vec![client.contact(), other.contact()],
    };
    servers.iter_mut().for_each(|server| server.join(&roster, 0).unwrap());
    client.join(&roster, 0).unwrap();
    client.submit(Shard(1), CallToken(1), b"x").unwrap();
    drop(servers.pop());
    let (mut failed, mut lost) = (Vec::new(), Vec::new());
    let deadline_ns = clock::deadline_ns(PATIENCE);
    while lost.is_empty() {
        assert!(clock::now_ns() < deadline_ns, "the client was never told");
        client
            .poll(64, &mut |event| match event {
                Event::Failed { token, failure } => failed.push((token, failure)),
                Event::Lost { shard } => lost.push(shard),
                Event::Answer { .. } => panic!("nobody can have answered"),
            })
            .unwrap();
        serve(&mut servers);
    }
    assert_eq!((failed, lost), (vec![(CallToken(1), CallFailure::PeerGone)], vec![Shard(1)]));
    let refused = client.submit(Shard(1), CallToken(2), b"x");
    assert_eq!(refused, Err(SubmitError::Gone(Shard(1))));
    client.submit(Shard(0), CallToken(3), b"x").unwrap();
}

#[test]
fn a_contact_that_makes_no_sense_is_refused() {
    let mut contact = String::new();
    write_hex(&[0xa7; Invitation::BYTES], &mut contact);
    assert_eq!(nth_invitation(&contact, 0).unwrap().as_bytes(), [0xa7; Invitation::BYTES]);
    for (contact, index) in [(contact.as_str(), 1), ("", 0), (&"x".repeat(contact.len()), 0)] {
        assert!(nth_invitation(contact, index).is_none());
    }
}
