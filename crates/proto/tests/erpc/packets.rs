//! The decision tables of client and server, packet by packet.

use copyrpc_proto::{
    Status,
    erpc::{
        CREDITS, Client, Geometry, Header, Ignored, Link, PacketKind, Server, Span, WINDOW,
        client::{Call, CallError, ClientConfig, Received},
        server::{self, RespondError},
    },
};

const DATA: u32 = 968;

fn client() -> Client {
    Client::new(ClientConfig::new(Geometry::of(Link::Roce)), 5)
}

fn server() -> Server {
    Server::new(Geometry::of(Link::Roce), 6)
}

fn call(cookie: u64, request_bytes: u32) -> Call {
    Call { cookie, req_type: 2, request_bytes, response_bytes_max: 1 << 20, deadline_ns: u64::MAX }
}

fn packet(kind: PacketKind, req_num: u64, pkt_num: u16, msg_bytes: u32) -> Header {
    Header { req_type: 2, msg_bytes, dest_session: 5, kind, pkt_num, req_num }
}

fn sent(client: &mut Client) -> Vec<Header> {
    std::iter::from_fn(|| client.poll_transmit(0)).map(|packet| packet.header).collect()
}

fn owed(server: &mut Server) -> Vec<(PacketKind, u16, Span)> {
    let next = || server.poll_transmit();
    std::iter::from_fn(next)
        .map(|packet| (packet.header.kind, packet.header.pkt_num, packet.span))
        .collect()
}

fn is_served(received: server::Received) -> bool {
    matches!(received, server::Received::Data { is_last: true, .. })
}

/// Rule E2.1: the first request of slot i is i + 8; slots are taken from 0 up, then the latest that was freed.
#[test]
fn requests_are_numbered_by_slot() {
    let mut client = client();
    for cookie in 0..WINDOW as u64 {
        client.call(call(cookie, 8), 0).unwrap();
    }
    let numbers: Vec<_> = sent(&mut client).iter().map(|header| header.req_num).collect();
    assert_eq!(numbers, [8, 9, 10, 11, 12, 13, 14, 15]);
    for req_num in [11, 9] {
        let response = packet(PacketKind::Response, req_num, 0, 8);
        assert!(matches!(
            client.receive(&response, 8, 0),
            Received::Data { complete: Some(8), .. }
        ));
    }
    client.call(call(20, 8), 0).unwrap();
    client.call(call(21, 8), 0).unwrap();
    let mut numbers: Vec<_> = sent(&mut client).iter().map(|header| header.req_num).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [17, 19]);
}

/// Rules E2.3, E2.4, E2.6: both sides send R + S - 1 packets.
#[test]
fn a_large_call_packet_by_packet() {
    let mut client = client();
    let mut server = server();
    client.call(call(1, 2 * DATA + 1), 0).unwrap();
    let requests = sent(&mut client);
    assert_eq!(requests.len(), 3);
    let mut answers = Vec::new();
    for (header, bytes) in requests.iter().zip([DATA, DATA, 1]) {
        assert_eq!(header.kind, PacketKind::Request);
        let is_last = is_served(server.receive(header, bytes));
        assert_eq!(is_last, header.pkt_num == 2);
        answers.extend(owed(&mut server));
    }
    let none = Span::default();
    assert_eq!(answers, [(PacketKind::CreditReturn, 0, none), (PacketKind::CreditReturn, 1, none)]);
    for pkt_num in [0, 1] {
        let credit = packet(PacketKind::CreditReturn, 8, pkt_num, 0);
        assert_eq!(client.receive(&credit, 0, 0), Received::Credit);
    }
    let request = match server.receive(&requests[2], 1) {
        server::Received::Ignored(Ignored::OutOfOrder) => requests[2].req_num,
        other => panic!("{other:?}: the handler has the request"),
    };
    assert_eq!(request, 8);
    let id = served_id();
    server.respond(id, DATA + 5).unwrap();
    let first = Span { at_bytes: 0, len_bytes: DATA };
    assert_eq!(owed(&mut server), [(PacketKind::Response, 2, first)]);
    let response = packet(PacketKind::Response, 8, 2, DATA + 5);
    assert_eq!(
        client.receive(&response, DATA, 0),
        Received::Data { cookie: 1, span: first, complete: None }
    );
    let ask = sent(&mut client);
    assert_eq!(ask, [packet(PacketKind::RequestForResponse, 8, 3, 0)]);
    assert_eq!(server.receive(&ask[0], 0), server::Received::Asked);
    let second = Span { at_bytes: DATA, len_bytes: 5 };
    assert_eq!(owed(&mut server), [(PacketKind::Response, 3, second)]);
    let response = packet(PacketKind::Response, 8, 3, DATA + 5);
    assert_eq!(
        client.receive(&response, 5, 0),
        Received::Data { cookie: 1, span: second, complete: Some(DATA + 5) }
    );
    assert!(client.is_idle());
}

/// The name of the first request of slot 0, from a server that received it alone.
fn served_id() -> server::RequestId {
    let mut server = server();
    match server.receive(&packet(PacketKind::Request, 8, 0, 0), 0) {
        server::Received::Data { request, .. } => request,
        other => panic!("{other:?}"),
    }
}

/// Rule E2.5.
#[test]
fn a_client_accepts_the_next_packet_only() {
    let mut client = client();
    client.call(call(1, 2 * DATA), 0).unwrap();
    assert_eq!(sent(&mut client).len(), 2);
    let ignored = |client: &mut Client, header| match client.receive(&header, DATA, 0) {
        Received::Ignored(ignored) => ignored,
        other => panic!("{other:?}"),
    };
    assert_eq!(ignored(&mut client, packet(PacketKind::CreditReturn, 16, 0, 0)), Ignored::Late);
    assert_eq!(ignored(&mut client, packet(PacketKind::CreditReturn, 9, 0, 0)), Ignored::Late);
    assert_eq!(
        ignored(&mut client, packet(PacketKind::CreditReturn, 8, 1, 0)),
        Ignored::OutOfOrder
    );
    assert_eq!(ignored(&mut client, packet(PacketKind::Response, 8, 0, 8)), Ignored::Unexpected);
    assert_eq!(client.receive(&packet(PacketKind::CreditReturn, 8, 0, 0), 0, 0), Received::Credit);
    assert_eq!(
        ignored(&mut client, packet(PacketKind::CreditReturn, 8, 0, 0)),
        Ignored::OutOfOrder
    );
    assert_eq!(
        ignored(&mut client, packet(PacketKind::CreditReturn, 8, 1, 0)),
        Ignored::Unexpected
    );
    assert_eq!(ignored(&mut client, packet(PacketKind::Response, 8, 2, 8)), Ignored::OutOfOrder);
    let short = client.receive(&packet(PacketKind::Response, 8, 1, 100), 99, 0);
    assert_eq!(short, Received::Ignored(Ignored::Truncated));
    let response = client.receive(&packet(PacketKind::Response, 8, 1, 100), 100, 0);
    assert!(matches!(response, Received::Data { complete: Some(100), .. }));
    assert_eq!(ignored(&mut client, packet(PacketKind::Response, 8, 1, 100)), Ignored::Late);
    assert_eq!(client.counters().ignored, 9);
}

/// Rule E2.7: what arrives again is answered again, and executed once.
#[test]
fn a_server_repeats_answers_and_executes_once() {
    let mut server = server();
    let request = packet(PacketKind::Request, 8, 0, 8);
    assert!(is_served(server.receive(&request, 8)));
    assert_eq!(server.receive(&request, 8), server::Received::Ignored(Ignored::OutOfOrder));
    assert!(owed(&mut server).is_empty());
    server.respond(served_id(), 40).unwrap();
    let whole = [(PacketKind::Response, 0, Span { at_bytes: 0, len_bytes: 40 })];
    assert_eq!(owed(&mut server), whole);
    assert_eq!(server.receive(&request, 8), server::Received::Asked);
    assert_eq!(owed(&mut server), whole);
    assert!(is_served(server.receive(&packet(PacketKind::Request, 16, 0, 8), 8)));
    let late = server::Received::Ignored(Ignored::Late);
    assert_eq!(server.receive(&request, 8), late);
    assert_eq!(
        server.receive(&packet(PacketKind::Request, 32, 0, 8), 8),
        late,
        "numbers go up by eight"
    );
    assert_eq!(server.respond(served_id(), 8), Err(RespondError::NotWaiting(8)));
    let next = server.receive(&packet(PacketKind::Request, 24, 0, 8), 8);
    assert_eq!(next, server::Received::Ignored(Ignored::OutOfOrder), "16 waits for its answer");
}

/// Rule E2.7: a request in packets.
#[test]
fn a_server_takes_packets_of_a_request_in_order() {
    let mut server = server();
    let nth = |number| packet(PacketKind::Request, 8, number, 3 * DATA);
    let out_of_order = server::Received::Ignored(Ignored::OutOfOrder);
    assert_eq!(server.receive(&nth(1), DATA), out_of_order);
    let truncated = server::Received::Ignored(Ignored::Truncated);
    assert_eq!(server.receive(&nth(0), DATA - 1), truncated);
    assert!(!is_served(server.receive(&nth(0), DATA)));
    assert_eq!(server.receive(&nth(2), DATA), out_of_order);
    assert_eq!(server.receive(&nth(0), DATA), server::Received::Asked);
    let credit = (PacketKind::CreditReturn, 0, Span::default());
    assert_eq!(owed(&mut server), [credit, credit]);
    let other_length = packet(PacketKind::Request, 8, 1, 3 * DATA - 1);
    assert_eq!(server.receive(&other_length, DATA), out_of_order);
    assert!(!is_served(server.receive(&nth(1), DATA)));
    assert!(is_served(server.receive(&nth(2), DATA)));
}

/// Rule E2.7: requests for response.
#[test]
fn a_server_sends_packets_of_a_response_in_order() {
    let mut server = server();
    let ask = |number| packet(PacketKind::RequestForResponse, 8, number, 0);
    assert!(is_served(server.receive(&packet(PacketKind::Request, 8, 0, 8), 8)));
    let out_of_order = server::Received::Ignored(Ignored::OutOfOrder);
    assert_eq!(server.receive(&ask(1), 0), out_of_order, "there is no answer yet");
    server.respond(served_id(), 3 * DATA).unwrap();
    assert_eq!(server.receive(&ask(2), 0), out_of_order);
    assert_eq!(server.receive(&ask(0), 0), server::Received::Ignored(Ignored::Unexpected));
    assert_eq!(server.receive(&ask(3), 0), server::Received::Ignored(Ignored::Unexpected));
    assert_eq!(server.receive(&ask(1), 0), server::Received::Asked);
    assert_eq!(server.receive(&ask(1), 0), server::Received::Asked);
    assert_eq!(server.receive(&ask(2), 0), server::Received::Asked);
    let numbers: Vec<_> = owed(&mut server).into_iter().map(|(_, number, _)| number).collect();
    assert_eq!(numbers, [0, 1, 1, 2]);
}

/// Rule E3.1: no more packets are without an answer than there are credits.
#[test]
fn credits_bound_what_is_on_the_way() {
    let mut client = client();
    client.call(call(1, 100 * DATA), 0).unwrap();
    assert_eq!(sent(&mut client).len(), CREDITS as usize);
    for pkt_num in 0..3 {
        client.receive(&packet(PacketKind::CreditReturn, 8, pkt_num, 0), 0, 0);
    }
    let numbers: Vec<_> = sent(&mut client).iter().map(|header| header.pkt_num).collect();
    assert_eq!(numbers, [32, 33, 34]);
}

/// Rule E3.2: a ninth call waits, and a long backlog is refused.
#[test]
fn calls_beyond_the_window_wait() {
    let config = ClientConfig { backlog_max: 2, ..ClientConfig::new(Geometry::of(Link::Roce)) };
    let mut client = Client::new(config, 5);
    for cookie in 0..10 {
        client.call(call(cookie, 8), 0).unwrap();
    }
    assert_eq!(client.call(call(10, 8), 0), Err(CallError::Busy(2)));
    assert_eq!(sent(&mut client).len(), 8);
    client.receive(&packet(PacketKind::Response, 12, 0, 8), 8, 0);
    assert_eq!(sent(&mut client), [packet(PacketKind::Request, 20, 0, 8)]);
    assert_eq!(client.outstanding(), 9);
}

/// Rule E3.3: what got no answer in time is sent again, from the first packet without one.
#[test]
fn go_back_to_the_first_packet_without_an_answer() {
    let mut client = client();
    client.call(call(1, 4 * DATA), 0).unwrap();
    assert_eq!(sent(&mut client).len(), 4);
    client.receive(&packet(PacketKind::CreditReturn, 8, 0, 0), 0, 1_000_000);
    assert_eq!(client.unanswered_since_ns(), Some(1_000_000));
    assert_eq!(client.handle_timeout(5_999_999), Some(6_000_000));
    assert!(sent(&mut client).is_empty());
    client.handle_timeout(6_000_000);
    let numbers: Vec<_> = sent(&mut client).iter().map(|header| header.pkt_num).collect();
    assert_eq!(numbers, [1, 2, 3]);
    assert_eq!(client.counters().retransmissions, 1);
    assert_eq!(client.unanswered_since_ns(), Some(1_000_000), "sending again is no progress");
}

/// Rule E4.1: a slot whose request may have been seen stays taken until the server answers.
#[test]
fn a_call_that_is_given_up_keeps_its_slot_until_its_answer() {
    let mut client = client();
    client.call(Call { deadline_ns: 100, ..call(1, 8) }, 0).unwrap();
    client.call(Call { deadline_ns: 100, ..call(2, 8) }, 0).unwrap();
    let first = client.poll_transmit(0).unwrap();
    assert_eq!((first.cookie, first.header.req_num), (1, 8));
    client.handle_timeout(100);
    let ended: Vec<_> = std::iter::from_fn(|| client.poll_ended()).collect();
    let of = |cookie, was_sent| {
        let status = Status::DeadlineExceeded;
        copyrpc_proto::erpc::client::Ended { cookie, status, was_sent }
    };
    assert_eq!(ended, [of(1, true), of(2, false)]);
    assert_eq!(client.outstanding(), 0);
    assert!(!client.is_idle());
    client.call(call(3, 8), 100).unwrap();
    assert_eq!(client.poll_transmit(100).unwrap().header.req_num, 9, "the number was never seen");
    let late = client.receive(&packet(PacketKind::Response, 8, 0, 8), 8, 100);
    assert_eq!(late, Received::Ignored(Ignored::Late));
    client.call(call(4, 8), 100).unwrap();
    assert_eq!(client.poll_transmit(100).unwrap().header.req_num, 16);
    assert!(client.cancel(4));
    assert!(!client.cancel(4));
}

/// Rule E4.2: a response without room ends its call, and the slot goes on.
#[test]
fn a_response_that_is_too_long_ends_its_call() {
    let mut client = client();
    client.call(Call { response_bytes_max: 10, ..call(1, 8) }, 0).unwrap();
    assert_eq!(sent(&mut client).len(), 1);
    let response = packet(PacketKind::Response, 8, 0, 2 * DATA);
    assert_eq!(client.receive(&response, DATA, 0), Received::Ended);
    assert_eq!(client.poll_ended().unwrap().status, Status::OutOfRange);
    assert!(client.is_idle());
    client.call(call(2, 8), 0).unwrap();
    assert_eq!(sent(&mut client)[0].req_num, 16);
}

/// Rule E4.3: the end of a session ends every call once, and says which were never sent.
#[test]
fn a_closed_session_ends_every_call() {
    let mut client = client();
    for cookie in 0..10 {
        client.call(call(cookie, 8), 0).unwrap();
    }
    client.poll_transmit(0);
    client.close(Status::Unavailable);
    let ended: Vec<_> = std::iter::from_fn(|| client.poll_ended()).collect();
    assert_eq!(ended.len(), 10);
    assert_eq!(ended.iter().filter(|ended| ended.was_sent).count(), 1);
    assert_eq!(client.call(call(11, 8), 0), Err(CallError::Closed));
    assert_eq!(client.poll_transmit(0), None);
}

/// Rule E3.2: a driver that never asks how calls ended makes the session refuse calls, not grow; and bytes of a
/// call are needed as long as the session holds its slot.
#[test]
fn calls_that_ended_untold_are_bounded() {
    let config = ClientConfig { backlog_max: 4, ..ClientConfig::new(Geometry::of(Link::Roce)) };
    let mut client = Client::new(config, 5);
    let mut accepted = 0;
    for cookie in 0..1000 {
        match client.call(call(cookie, 8), 0) {
            Ok(()) => accepted += 1,
            Err(error) => assert_eq!(error, CallError::Busy(4)),
        }
        client.cancel(cookie);
    }
    assert_eq!(accepted, WINDOW + 4);
    assert_eq!(std::iter::from_fn(|| client.poll_ended()).count(), accepted);
    client.call(call(7000, 8), 0).unwrap();
    let number = sent(&mut client)[0].req_num;
    assert!(client.cancel(7000) && client.holds(7000), "the server may still need its packets");
    client.receive(&packet(PacketKind::Response, number, 0, 8), 8, 0);
    assert!(!client.holds(7000) && client.is_idle());
}
