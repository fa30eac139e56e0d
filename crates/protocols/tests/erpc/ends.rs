//! How calls and sessions end.

use std::{net::UdpSocket, time::Duration};

use copyrpc_protocols::erpc::{Call, CallError, CloseReason, Config, ConnectOptions, Status};
use proto::erpc::management::{
    DatagramRoute, HostName, MANAGEMENT_BYTES, Management, Operation, Refusal, SESSION_NONE,
    SessionEnd,
};

use crate::rig::{ECHO, LATER, Node, body, config, elapse, free_address, pair, pass, soft, until};

/// Rule E4.1: the call ends; the slot serves again once the server has answered.
#[test]
fn calls_end_at_their_deadlines_and_when_they_are_cancelled() {
    let (mut client, mut server, session) = pair(config());
    let timeout = Duration::from_millis(20);
    let late = Call { req_type: LATER, cookie: 1, timeout, ..Call::default() };
    client.endpoint.call(session, &late, &[1; 20]).unwrap();
    let given_up = Call { cookie: 2, timeout: Duration::from_secs(20), ..late };
    let given_up = client.endpoint.call(session, &given_up, &[2; 20]).unwrap();
    until(&mut [&mut client, &mut server], |nodes| nodes[1].program.kept.len() == 2);
    assert!(client.endpoint.cancel(given_up));
    until(&mut [&mut client, &mut server], |nodes| nodes[0].program.ended.len() == 2);
    assert_eq!(client.program.ended[&1].0, Status::DeadlineExceeded);
    assert_eq!(client.program.ended[&2].0, Status::Cancelled);
    assert!(client.program.was_sent[&1] && !client.endpoint.cancel(given_up));
    for (token, body) in server.program.kept.drain(..) {
        server.endpoint.reply(token, &body).unwrap();
    }
    client.program.made = 3;
    for _ in 0..40 {
        let body = body(client.program.made, 32);
        client.call(session, ECHO, &body).unwrap();
    }
    until(&mut [&mut client, &mut server], |nodes| nodes[0].program.ended.len() == 42);
    assert!(client.program.ended.iter().skip(2).all(|(_, (status, _))| *status == Status::Ok));
}

#[test]
fn a_session_that_ends_cancels_its_calls_and_frees_the_server() {
    let (mut client, mut server, session) = pair(config());
    client.call(session, LATER, b"kept").unwrap();
    until(&mut [&mut client, &mut server], |nodes| !nodes[1].program.kept.is_empty());
    client.endpoint.disconnect(session, &mut client.program);
    assert_eq!(client.program.ended[&0].0, Status::Cancelled);
    assert_eq!(client.program.closed, [(session, CloseReason::Closed)]);
    assert_eq!(client.call(session, ECHO, b""), Err(CallError::NoSession));
    until(&mut [&mut client, &mut server], |nodes| nodes[1].endpoint.sessions() == 0);
    assert_eq!(server.program.closed[0].1, CloseReason::Disconnected);
    let (token, _) = server.program.kept.pop().unwrap();
    assert!(server.endpoint.reply(token, b"nobody waits").is_err());
}

#[test]
fn a_server_that_is_not_there_is_given_up() {
    let soft = soft();
    let mut client = Node::open(&soft, config());
    let timeout = Duration::from_millis(50);
    let options = ConnectOptions { timeout, reconnect: true };
    let session = client.endpoint.connect(free_address(), 0, options).unwrap();
    assert_eq!(client.call(session, ECHO, b""), Err(CallError::Connecting));
    until(&mut [&mut client], |nodes| !nodes[0].program.closed.is_empty());
    assert_eq!(client.program.closed, [(session, CloseReason::ConnectTimeout)]);
    assert_eq!(client.endpoint.sessions(), 0);
}

/// The server's process is there, its endpoint is not yet: the client goes on asking.
#[test]
fn a_client_waits_for_an_endpoint_that_starts_late() {
    let soft = soft();
    let address = free_address();
    let mut client = Node::open(&soft, config());
    let other = Node::open(&soft, Config { management: address, rpc_id: 4, ..config() });
    let session = client.endpoint.connect(address, 5, ConnectOptions::default()).unwrap();
    let mut other = other;
    elapse(&mut [&mut client, &mut other], Duration::from_millis(40));
    assert!(!client.is_connected(session) && other.endpoint.sessions() == 0);
    drop(other);
    let mut server = Node::open(&soft, Config { management: address, rpc_id: 5, ..config() });
    until(&mut [&mut client, &mut server], |nodes| nodes[0].is_connected(session));
}

fn request(token: u64, to: &Node, qpn: u32) -> Management {
    let host = HostName::new("127.0.0.1").unwrap();
    let route = DatagramRoute { lid: 1, qpn, gid: [0; 16], takes_pings: false };
    let client = SessionEnd { host, udp_port: 0, rpc_id: 0, session: 3, route };
    let udp_port = to.endpoint.management_address().port();
    let server = SessionEnd { udp_port, session: SESSION_NONE, ..client };
    Management { operation: Operation::ConnectRequest, refusal: None, token, client, server }
}

/// The answer of a server to one management packet.
fn answer(server: &mut Node, socket: &UdpSocket, packet: &Management) -> Management {
    socket.set_read_timeout(Some(Duration::from_millis(2))).unwrap();
    let client = SessionEnd { udp_port: socket.local_addr().unwrap().port(), ..packet.client };
    let packet = Management { client, ..*packet };
    socket.send_to(&packet.encode(), server.endpoint.management_address()).unwrap();
    let mut bytes = [0; MANAGEMENT_BYTES];
    for _ in 0..5000 {
        server.poll();
        if socket.recv(&mut bytes).is_ok() {
            return Management::decode(&bytes).unwrap();
        }
    }
    panic!("no answer");
}

/// Rules E5.3, E5.4: a request for a session that is repeated makes no second one; sessions are bounded; ends are idempotent.
#[test]
fn management_packets_are_answered_once_and_again() {
    let mut server = Node::open(&soft(), Config { sessions_max: 2, ..config() });
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let ask = |server: &mut Node, packet: &Management| answer(server, &socket, packet);
    let first_request = request(7, &server, 100);
    let first = ask(&mut server, &first_request);
    assert_eq!((first.operation, first.refusal), (Operation::ConnectResponse, None));
    assert_eq!(ask(&mut server, &first_request), first);
    assert_eq!(server.endpoint.sessions(), 1);
    let unreachable = request(8, &server, 0);
    assert_eq!(ask(&mut server, &unreachable).refusal, Some(Refusal::RoutingResolution));
    let second = request(9, &server, 100);
    assert_eq!(ask(&mut server, &second).refusal, None);
    let third = request(10, &server, 100);
    assert_eq!(ask(&mut server, &third).refusal, Some(Refusal::RingExhausted));
    let end = Management { operation: Operation::DisconnectRequest, ..first };
    for _ in 0..2 {
        assert_eq!(ask(&mut server, &end).operation, Operation::DisconnectResponse);
    }
    assert_eq!(server.endpoint.sessions(), 1);
    let ping = Management { operation: Operation::PingRequest, ..first };
    assert_eq!(ask(&mut server, &ping).refusal, Some(Refusal::Disconnected));
    socket.send_to(b"no management packet", server.endpoint.management_address()).unwrap();
    until(&mut [&mut server], |nodes| nodes[0].endpoint.stats().malformed == 1);
}

/// Rule E4.4: the peer's endpoint is gone without a word: every call ends, the session begins anew with its successor.
#[test]
fn calls_of_a_dead_peer_end_and_the_session_begins_anew() {
    let soft = soft();
    let quick = Config {
        ping_after: Duration::from_millis(20),
        failure_after: Duration::from_millis(100),
        ..config()
    };
    let (mut client, server, session) = crate::rig::pair_on(&soft, quick.clone());
    let address = server.endpoint.management_address();
    for number in 0..100 {
        client.call(session, ECHO, &body(number, 5000)).unwrap();
    }
    client.poll();
    drop(server);
    until(&mut [&mut client], |nodes| nodes[0].program.ended.len() == 100);
    assert!(client.program.ended.values().all(|(status, _)| *status == Status::Unavailable));
    assert!(client.program.was_sent[&0] && !client.program.was_sent[&99]);
    let mut server = Node::open(&soft, Config { management: address, ..quick });
    until(&mut [&mut client, &mut server], |nodes| nodes[0].is_connected(session));
    client.call(session, ECHO, &body(100, 5000)).unwrap();
    until(&mut [&mut client, &mut server], |nodes| nodes[0].program.ended.len() == 101);
    assert_eq!(client.program.ended[&100], (Status::Ok, body(100, 5000)));
    assert_eq!(client.program.connected, [session, session]);
}

/// A client that vanishes costs the server its session for a while only.
#[test]
fn a_server_frees_the_session_of_a_client_that_is_gone() {
    let quick = Config {
        ping_after: Duration::from_millis(5),
        failure_after: Duration::from_millis(50),
        idle_after: Duration::from_millis(50),
        ..config()
    };
    let (client, mut server, _) = pair(quick);
    let mut client = client;
    // A client that is alive answers pings.
    elapse(&mut [&mut client, &mut server], Duration::from_millis(150));
    assert_eq!(server.endpoint.sessions(), 1);
    drop(client);
    until(&mut [&mut server], |nodes| nodes[0].endpoint.sessions() == 0);
}

/// Rule E4.4: who has not looked for long does not take the other one for dead.
#[test]
fn the_own_silence_is_not_the_peers() {
    let quick = Config {
        ping_after: Duration::from_millis(5),
        failure_after: Duration::from_millis(50),
        idle_after: Duration::from_millis(5),
        ..config()
    };
    let (mut client, mut server, session) = pair(quick);
    client.call(session, LATER, &body(0, 100)).unwrap();
    until(&mut [&mut client, &mut server], |nodes| nodes[1].program.kept.len() == 1);
    pass(Duration::from_millis(200));
    // The first look after it finds silence, and asks.
    client.poll();
    server.poll();
    assert!(client.is_connected(session) && server.endpoint.sessions() == 1);
}

/// Rule E5.4: a server that answers pings is alive, however long its handler takes.
#[test]
fn a_slow_handler_is_no_dead_server() {
    let quick = Config {
        ping_after: Duration::from_millis(10),
        failure_after: Duration::from_millis(100),
        ..config()
    };
    let (mut client, mut server, session) = pair(quick);
    client.call(session, LATER, &body(0, 9000)).unwrap();
    elapse(&mut [&mut client, &mut server], Duration::from_millis(400));
    assert!(client.program.closed.is_empty() && client.is_connected(session));
    let (token, kept) = server.program.kept.pop().unwrap();
    server.endpoint.reply(token, &kept).unwrap();
    until(&mut [&mut client, &mut server], |nodes| nodes[0].program.ended.len() == 1);
    assert_eq!(client.program.ended[&0], (Status::Ok, body(0, 9000)));
}

/// A server as the original is: it answers requests for sessions and ends, and ends itself by any other packet.
struct Original {
    socket: UdpSocket,
    /// Requests that have come, and by which server they are to be answered.
    asked: Vec<Management>,
    ended: Vec<Management>,
    session: u16,
    /// It loses so many requests for the end of a session.
    loses: usize,
}

impl Original {
    fn new() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        Self { socket, asked: Vec::new(), ended: Vec::new(), session: 5, loses: 0 }
    }

    fn poll(&mut self) {
        let mut bytes = [0; MANAGEMENT_BYTES];
        while let Ok((_, from)) = self.socket.recv_from(&mut bytes) {
            let packet = Management::decode(&bytes).unwrap();
            let operation = match packet.operation {
                Operation::ConnectRequest => {
                    self.asked.push(packet);
                    Operation::ConnectResponse
                }
                Operation::DisconnectRequest => {
                    if self.loses > 0 {
                        self.loses -= 1;
                        continue;
                    }
                    self.ended.push(packet);
                    Operation::DisconnectResponse
                }
                other => panic!("the original's process ends: {other:?}"),
            };
            let route = DatagramRoute { lid: 1, qpn: 100, gid: [0; 16], takes_pings: false };
            let server = SessionEnd { session: self.session, route, ..packet.server };
            let answer = Management { operation, server, ..packet };
            self.socket.send_to(&answer.encode(), from).unwrap();
        }
    }

    fn until(&mut self, client: &mut Node, mut is_done: impl FnMut(&Self, &Node) -> bool) {
        until(&mut [client], |nodes| {
            self.poll();
            is_done(self, nodes[0])
        });
    }

    fn elapse(&mut self, client: &mut Node, duration: Duration) {
        let end = crate::rig::now_ns() + u64::try_from(duration.as_nanos()).unwrap();
        self.until(client, |_, _| crate::rig::now_ns() >= end);
    }
}

fn with_original() -> (Original, Node, copyrpc_protocols::erpc::SessionId) {
    let quick = Config {
        ping_after: Duration::from_millis(5),
        failure_after: Duration::from_millis(20),
        idle_after: Duration::from_millis(5),
        original_failure_after: Duration::from_millis(300),
        ..config()
    };
    let mut original = Original::new();
    let mut client = Node::open(&soft(), quick);
    let to = original.socket.local_addr().unwrap();
    let options = ConnectOptions { reconnect: false, ..ConnectOptions::default() };
    let session = client.endpoint.connect(to, 0, options).unwrap();
    original.until(&mut client, |_, client| client.is_connected(session));
    (original, client, session)
}

/// Rule E5.4: it is asked for the session that it has, and never pinged.
#[test]
fn an_original_server_that_is_slow_is_asked_for_its_session() {
    let (mut original, mut client, session) = with_original();
    client.call(session, LATER, b"slow").unwrap();
    original.elapse(&mut client, Duration::from_millis(100));
    assert!(client.is_connected(session));
    let token = original.asked[0].token;
    assert!(original.asked.len() > 2 && original.asked.iter().all(|asked| asked.token == token));
    // Its thread is in a handler, and answers nothing for longer than a peer of this project may.
    elapse(&mut [&mut client], Duration::from_millis(100));
    assert!(client.is_connected(session));
    elapse(&mut [&mut client], Duration::from_millis(400));
    assert_eq!(client.program.closed, [(session, CloseReason::Silent)]);
}

/// Another process answers at its port: the session is no more, and that which the question has made is ended.
#[test]
fn an_original_server_that_was_replaced_is_noticed() {
    let (mut original, mut client, session) = with_original();
    client.call(session, LATER, b"lost").unwrap();
    original.session = 6;
    original.until(&mut client, |original, client| {
        !client.program.closed.is_empty() && !original.ended.is_empty()
    });
    assert_eq!(client.program.closed, [(session, CloseReason::Forgotten)]);
    assert_eq!(original.ended[0].server.session, 6);
}

/// Rule E5.5: a request that is lost is made again, once the server says that it has the session.
#[test]
fn the_end_of_a_session_is_told_until_it_is_heard() {
    let (mut original, mut client, session) = with_original();
    original.loses = 2;
    client.endpoint.disconnect(session, &mut client.program);
    original.until(&mut client, |original, _| !original.ended.is_empty());
    let asked = original.asked.len();
    original.elapse(&mut client, Duration::from_millis(100));
    assert_eq!((original.ended.len(), original.asked.len()), (1, asked), "it has heard it");
}

/// The original must not end a session while it executes a call of it.
#[test]
fn calls_to_an_original_server_end_before_their_session() {
    let (mut original, mut client, session) = with_original();
    client.call(session, LATER, b"slow").unwrap();
    client.endpoint.disconnect(session, &mut client.program);
    original.elapse(&mut client, Duration::from_millis(50));
    assert!(original.ended.is_empty() && client.program.closed.is_empty());
    assert_eq!(client.call(session, ECHO, b"more"), Err(CallError::NoSession));
}

/// Rule E5.3: the original compares the name that it has asked for, and sends to it later.
#[test]
fn a_server_is_called_as_its_client_calls_it() {
    let everywhere = "0.0.0.0:0".parse().unwrap();
    let mut server = Node::open(&soft(), Config { management: everywhere, ..config() });
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = server.endpoint.management_address().port();
    let mut packet = request(7, &server, 100);
    packet.server.host = HostName::new("node2.cluster").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(2))).unwrap();
    packet.client.udp_port = socket.local_addr().unwrap().port();
    let mut bytes = [0; MANAGEMENT_BYTES];
    socket.send_to(&packet.encode(), ("127.0.0.1", port)).unwrap();
    let told = (0..5000).find_map(|_| {
        server.poll();
        socket.recv(&mut bytes).is_ok().then(|| Management::decode(&bytes).unwrap())
    });
    let told = told.expect("an answer");
    assert_eq!((told.server.host.as_str(), told.server.udp_port), ("node2.cluster", port));
    assert!(told.server.route.takes_pings && !told.client.route.takes_pings);
}

/// A client that listens everywhere has a name by which the server reaches it.
#[test]
fn nobody_is_told_an_address_that_is_none() {
    let mut original = Original::new();
    let everywhere = "0.0.0.0:0".parse().unwrap();
    let mut client = Node::open(&soft(), Config { management: everywhere, ..config() });
    let to = original.socket.local_addr().unwrap();
    client.endpoint.connect(to, 0, ConnectOptions::default()).unwrap();
    original.until(&mut client, |original, _| !original.asked.is_empty());
    assert_eq!(original.asked[0].client.host.as_str(), "127.0.0.1");
}

/// A client of the original is never pinged. Its session goes when it is silent and another client needs the place.
#[test]
fn a_silent_client_of_the_original_makes_room() {
    let quick = Config {
        sessions_max: 1,
        ping_after: Duration::from_millis(1),
        failure_after: Duration::from_millis(5),
        idle_after: Duration::from_millis(5),
        abandoned_after: Duration::from_millis(50),
        ..config()
    };
    let mut server = Node::open(&soft(), quick);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let first = request(7, &server, 100);
    assert_eq!(answer(&mut server, &socket, &first).refusal, None);
    let second = request(8, &server, 100);
    let refused = answer(&mut server, &socket, &second).refusal;
    assert_eq!(refused, Some(Refusal::RingExhausted), "it may come back");
    elapse(&mut [&mut server], Duration::from_millis(60));
    socket.set_nonblocking(true).unwrap();
    let mut bytes = [0; MANAGEMENT_BYTES];
    assert!(socket.recv(&mut bytes).is_err(), "the original ends by a ping");
    socket.set_nonblocking(false).unwrap();
    assert_eq!(answer(&mut server, &socket, &second).refusal, None);
    assert_eq!(server.program.closed[0].1, CloseReason::Silent);
}

/// A port whose packets need a global route header says so by its address, and peers heed it.
#[test]
fn datagrams_have_a_global_route_header_where_the_port_needs_one() {
    let soft = softnic::Config { profile: softnic::AdapterProfile::VirtualFunction, ..soft() };
    let config = Config { receives: 256, ..config() };
    let (mut client, mut server, session) = crate::rig::pair_on(&soft, config);
    client.call(session, ECHO, &body(0, 5000)).unwrap();
    until(&mut [&mut client, &mut server], |nodes| nodes[0].program.ended.len() == 1);
    assert_eq!(client.program.ended[&0], (Status::Ok, body(0, 5000)));
}

/// Rule E1.5.
#[test]
fn immediate_data_of_the_original_is_taken_and_not_looked_at() {
    let (mut client, mut server, session) = pair(config());
    client.loss.has_immediate.set(true);
    server.loss.has_immediate.set(true);
    client.call(session, ECHO, &body(0, 5000)).unwrap();
    until(&mut [&mut client, &mut server], |nodes| nodes[0].program.ended.len() == 1);
    assert_eq!(client.program.ended[&0], (Status::Ok, body(0, 5000)));
}
