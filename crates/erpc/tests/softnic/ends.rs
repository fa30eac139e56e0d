//! How calls and sessions end.

use std::{net::UdpSocket, time::Duration};

use copyrpc_erpc::{Call, CallError, CloseReason, Config, ConnectOptions, Status};
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
    let route = DatagramRoute { lid: 1, qpn, gid: [0; 16] };
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
