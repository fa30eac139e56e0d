//! Both ends on the software NIC, in one thread.

use std::{collections::BTreeMap, time::Duration};

use os::clock;

use super::*;
use crate::{
    backend::{Client, Event, Kind, Roster, Server, SubmitError, Switches, Token, Wait},
    place::Topology,
};

const PATIENCE: Duration = Duration::from_secs(10);
const CALLS: u64 = 12;

fn setup(switches: &[(&str, &str)], wait: Wait) -> Setup {
    let given = switches.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
    let given = given.collect::<BTreeMap<_, _>>();
    Setup {
        topology: Topology { ranks: 2, daemon_threads: 1, clients_per_rank: 1, keys: 10 },
        queue_depth: 64,
        message_bytes_max: 40_000,
        timeout_ns: 5_000_000_000,
        wait,
        switches: Switches::resolve("direct", Kind::Direct.switches(), &given).unwrap(),
        nic: "soft".into(),
    }
}

/// Every server answers each request with its bytes, reversed.
fn serve(servers: &mut [DirectServer]) {
    let mut answer = Vec::new();
    for server in servers {
        server.turn().unwrap();
        while let Some((token, request)) = server.next() {
            answer.clear();
            answer.extend(request.iter().rev());
            server.reply(token, &answer);
        }
    }
}

/// Both clients call both servers, with bodies from none to those that go by rendezvous.
fn calls_are_answered(switches: &[(&str, &str)], wait: Wait) {
    let direct = Direct::open(&setup(switches, wait), 0).unwrap();
    let mut servers = [0, 1].map(|shard| direct.server(Shard(shard)).unwrap());
    let mut clients = [0, 1].map(|client| direct.client(ClientId(client)).unwrap());
    let roster = Roster {
        servers: servers.iter().map(Server::contact).collect(),
        clients: clients.iter().map(Client::contact).collect(),
    };
    servers.iter_mut().for_each(|server| server.join(&roster, 0).unwrap());
    clients.iter_mut().for_each(|client| client.join(&roster, 0).unwrap());
    let body = |n: u64| (0..n * 3000).map(|i| (i * n).to_le_bytes()[0]).collect::<Vec<_>>();
    let (mut sent, mut answers) = ([0; 2], [Vec::new(), Vec::new()]);
    let deadline_ns = clock::deadline_ns(PATIENCE);
    while answers.iter().any(|answers| (answers.len() as u64) < CALLS) {
        assert!(clock::now_ns() < deadline_ns, "calls are left: {switches:?}");
        for ((client, answers), sent) in clients.iter_mut().zip(&mut answers).zip(&mut sent) {
            while *sent < CALLS {
                let to = Shard(u16::try_from(*sent % 2).unwrap());
                match client.submit(to, Token(*sent), &body(*sent)) {
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
            assert_eq!(*token, Token(n));
            assert!(bytes.iter().eq(body(n).iter().rev()), "call {n}, {switches:?}");
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
fn another_nic_is_refused() {
    let setup = Setup { nic: "mlx5_0".into(), ..setup(&[], Wait::Yield) };
    let error = Direct::open(&setup, 0).unwrap_err().to_string();
    assert!(error.contains("cannot open the NIC `mlx5_0`"), "{error}");
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
