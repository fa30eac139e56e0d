//! Both ends over real sockets, in one thread.

use std::{collections::BTreeMap, io::Write as _, net::TcpStream};

use os::clock;

use super::*;
use crate::{
    backend::{CallToken, Client, Event, Kind, Roster, Server, SubmitError, Switches, Wait},
    place::Topology,
};

const PATIENCE: Duration = Duration::from_secs(10);
const MARK: u8 = b'!';

fn message(n: u64) -> Vec<u8> {
    vec![n.to_le_bytes()[0]; usize::try_from((n * n * 9) % 100_000).unwrap()]
}

fn setup(write: &str) -> JobSetup {
    let given = BTreeMap::from([("write".to_owned(), write.to_owned())]);
    JobSetup {
        topology: Topology { ranks: 2, daemon_threads: 1, clients_per_rank: 1, keys: 10 },
        queue_depth: 64,
        message_bytes_max: 100_000,
        timeout_ns: 0,
        wait: Wait::Block,
        switches: Switches::resolve("tcp", Kind::Tcp.switches(), &given).unwrap(),
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

struct Rig {
    servers: Vec<TcpServer>,
    client: TcpClient,
}

impl Rig {
    fn new(write: &str) -> Self {
        let tcp = TcpBackend::new(&setup(write));
        let servers = [0, 1].map(|shard| tcp.server(Shard(shard), marking()).unwrap()).into();
        let mut rig = Self { servers, client: tcp.client(ClientId(0)).unwrap() };
        let contacts = rig.servers.iter().map(Server::contact).collect();
        let roster = Roster { servers: contacts, clients: Vec::new() };
        rig.client.join(&roster, clock::deadline_ns(PATIENCE)).unwrap();
        rig
    }

    fn serve(&mut self) {
        for server in &mut self.servers {
            server.turn(usize::MAX).unwrap();
            server.wait(clock::NOW).unwrap();
        }
    }

    /// Until the client has got `count` events.
    fn collect(&mut self, count: usize) -> Vec<Result<(CallToken, Vec<u8>), Shard>> {
        let deadline_ns = clock::deadline_ns(PATIENCE);
        let mut got = Vec::new();
        while got.len() < count {
            assert!(clock::now_ns() < deadline_ns, "only {} events came", got.len());
            self.serve();
            self.client.wait(clock::deadline_ns(Duration::from_millis(1))).unwrap();
            let poll = self.client.poll(7, &mut |event| match event {
                Event::Answer { token, bytes } => got.push(Ok((token, bytes.to_vec()))),
                Event::Lost { shard } => got.push(Err(shard)),
                Event::Failed { .. } => panic!("TCP fails no single call"),
            });
            poll.unwrap();
        }
        got
    }
}

#[test]
fn every_call_gets_its_own_answer_whatever_its_length() {
    for write in ["turn", "call"] {
        let mut rig = Rig::new(write);
        let mut sent = 0;
        let mut got = Vec::new();
        while got.len() < 300 {
            while sent < 300 {
                let to = Shard(u16::try_from(sent % 2).unwrap());
                match rig.client.submit(to, CallToken(sent), &message(sent)) {
                    Ok(()) => sent += 1,
                    Err(error) => {
                        assert_eq!(error, SubmitError::Full);
                        break;
                    }
                }
            }
            got.extend(rig.collect(1));
        }
        let mut answers = got.into_iter().map(Result::unwrap).collect::<Vec<_>>();
        answers.sort();
        for (n, (token, bytes)) in (0..).zip(answers) {
            assert_eq!(token, CallToken(n));
            assert!(bytes == [message(n), vec![MARK]].concat(), "message {n}");
        }
    }
}

#[test]
fn a_dead_server_is_told_and_refused() {
    let mut rig = Rig::new("turn");
    rig.serve();
    rig.client.submit(Shard(1), CallToken(1), b"x").unwrap();
    drop(rig.servers.pop());
    assert_eq!(rig.collect(1), [Err(Shard(1))]);
    let refused = rig.client.submit(Shard(1), CallToken(2), b"x");
    assert_eq!(refused, Err(SubmitError::Gone(Shard(1))));
    rig.client.submit(Shard(0), CallToken(3), b"ab").unwrap();
    assert_eq!(rig.collect(1), [Ok((CallToken(3), b"ab!".to_vec()))]);
}

#[test]
fn a_message_that_can_never_fit_is_refused() {
    let mut rig = Rig::new("turn");
    let refused = rig.client.submit(Shard(0), CallToken(0), &vec![0; 100_001]);
    assert_eq!(refused, Err(SubmitError::TooLarge { len_bytes: 100_001, max_bytes: 100_000 }));
}

#[test]
fn garbage_costs_a_client_its_connection_and_nobody_else_anything() {
    let mut rig = Rig::new("turn");
    let contact = rig.servers[0].contact();
    let mut stranger = TcpStream::connect(&contact.0).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n").unwrap();
    rig.client.submit(Shard(0), CallToken(3), b"ab").unwrap();
    assert_eq!(rig.collect(1), [Ok((CallToken(3), b"ab!".to_vec()))]);
    stranger.set_read_timeout(Some(PATIENCE)).unwrap();
    let deadline_ns = clock::deadline_ns(PATIENCE);
    let is_closed = |stranger: &TcpStream| stranger.peek(&mut [0]).map_or(true, |count| count == 0);
    stranger.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    while stranger.peek(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    {
        assert!(clock::now_ns() < deadline_ns, "the stranger is still connected");
        rig.serve();
    }
    assert!(is_closed(&stranger));
}

/// A floor that is slowed down by its own clumsiness is no floor.
#[test]
fn pitfall_29_the_baseline_moves_many_messages_per_system_call() {
    let mut rig = Rig::new("turn");
    rig.serve();
    let (before, daemon_before) = (rig.client.counters(), rig.servers[0].counters());
    for token in 0..32 {
        rig.client.submit(Shard(0), CallToken(token), &[7; 88]).unwrap();
    }
    assert_eq!(rig.collect(32).len(), 32);
    let (after, daemon_after) = (rig.client.counters(), rig.servers[0].counters());
    let grown = |name: &str| after.named[name] - before.named[name];
    let daemon_grown = |name: &str| daemon_after.named[name] - daemon_before.named[name];
    assert_eq!((grown("client writes"), daemon_grown("daemon writes")), (1, 1));
    assert!(grown("client reads") <= 3 && daemon_grown("daemon reads") <= 3);
    assert_eq!(daemon_after.batch_sizes.keys().max(), Some(&32), "all in one turn");
}
