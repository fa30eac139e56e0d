//! Calls of every size and number.

use copyrpc_protocols::erpc::{Call, CallError, Config, Congestion, Status};
use proto::erpc::{client, congestion::TimelyConfig};
use verbs::LinkLayer;

use crate::rig::{
    ECHO, FORWARD, LATER, Node, body, config, free_address, pair, pair_on, soft, until,
};

/// Calls with bodies of these lengths, as many at a time as are accepted, and checks each answer.
fn echo(
    client: &mut Node,
    server: &mut Node,
    session: copyrpc_protocols::erpc::SessionId,
    lens: &[usize],
) {
    let mut cookies = Vec::new();
    for (number, len) in (client.program.made..).zip(lens) {
        let body = body(number, *len);
        loop {
            match client.call(session, ECHO, &body) {
                Ok(cookie) => break cookies.push((cookie, body)),
                Err(error) => assert!(error.is_temporary(), "{error}"),
            }
            client.poll();
            server.poll();
        }
    }
    until(&mut [client, server], |nodes| {
        cookies.iter().all(|(cookie, _)| nodes[0].program.ended.contains_key(cookie))
    });
    for (cookie, body) in cookies {
        let (status, answer) = client.program.ended.remove(&cookie).unwrap();
        assert_eq!(status, Status::Ok);
        assert!(answer == body, "answer {cookie} of {} B", body.len());
    }
    assert!(server.program.executed.values().all(|times| *times == 1));
}

/// Private memory is cleared for the longest body, and not for each. One call after the other takes one slot.
#[test]
fn memory_of_bodies_is_cleared_once() {
    let (mut client, mut server, session) = pair(config());
    let longest = 12_000;
    for number in 0..64 {
        let len_bytes = if number % 3 == 0 { 8 } else { longest };
        echo(&mut client, &mut server, session, &[len_bytes]);
    }
    let [caller, callee] = [&client, &server].map(|node| node.endpoint.stats().cleared_bytes);
    assert_eq!((caller, callee), (longest as u64, longest as u64));
}

#[test]
fn messages_of_every_size_come_back() {
    for link in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
        let (mut client, mut server, session) =
            pair_on(&softnic::Config { link, ..soft() }, config());
        let geometry = client.endpoint.geometry();
        let data = geometry.data_bytes() as usize;
        let max = geometry.msg_bytes_max() as usize;
        assert_eq!(data, if link == LinkLayer::InfiniBand { 3824 } else { 968 });
        let lens = [0, 1, 32, 204, 205, data - 1, data, data + 1, 65_536, 1 << 20, max];
        echo(&mut client, &mut server, session, &lens);
        let too_long = client.call(session, ECHO, &vec![0; max + 1]);
        let expected = client::CallError::TooLong { bytes: max as u32 + 1, max: max as u32 };
        assert_eq!(too_long, Err(CallError::Session(expected)));
        assert_eq!(client.endpoint.stats().lost + server.endpoint.stats().lost, 0);
    }
}

#[test]
fn hundreds_of_calls_wait_for_eight_slots() {
    let (mut client, mut server, session) = pair(Config { sends: 16, ..config() });
    echo(&mut client, &mut server, session, &[32; 1000]);
    let small = Config { backlog_max: 2, calls_max: 9, ..config() };
    let (mut client, _server, session) = pair(small);
    let refused = (0..20).find_map(|_| client.call(session, ECHO, b"").err()).unwrap();
    assert_eq!((refused, client.program.made), (CallError::Busy(9), 9));
}

/// The original allows 128 sessions.
#[test]
fn three_hundred_sessions_share_a_queue_pair() {
    let (mut client, mut server, first) = pair(config());
    let mut sessions: Vec<_> = (0..299).map(|_| client.connect(&server)).collect();
    sessions.push(first);
    until(&mut [&mut client, &mut server], |nodes| {
        sessions.iter().all(|session| nodes[0].is_connected(*session))
    });
    assert_eq!(server.endpoint.sessions(), 300);
    for round in 0..3 {
        for session in &sessions {
            let body = body(client.program.made, 100 + round);
            client.call(*session, ECHO, &body).unwrap();
        }
    }
    until(&mut [&mut client, &mut server], |nodes| nodes[0].program.ended.len() == 900);
    for (cookie, (status, answer)) in &client.program.ended {
        let expected = body(*cookie, 100 + *cookie as usize / 300);
        assert!(*status == Status::Ok && *answer == expected, "answer {cookie}");
    }
}

#[test]
fn answers_may_come_later_and_in_any_order() {
    let (mut client, mut server, session) = pair(config());
    for number in 0..8 {
        client.call(session, LATER, &body(number, 5000)).unwrap();
    }
    until(&mut [&mut client, &mut server], |nodes| nodes[1].program.kept.len() == 8);
    for (token, body) in server.program.kept.drain(..).rev() {
        server.endpoint.reply(token, &body).unwrap();
    }
    until(&mut [&mut client, &mut server], |nodes| nodes[0].program.ended.len() == 8);
    assert!(
        client.program.ended.iter().all(|(cookie, (_, answer))| *answer == body(*cookie, 5000))
    );
}

#[test]
fn a_handler_calls_the_next_server() {
    let soft = soft();
    let (mut client, mut primary, session) = pair_on(&soft, config());
    let mut backup = Node::open(&soft, Config { management: free_address(), ..config() });
    let to_backup = primary.connect(&backup);
    primary.program.backup = Some(to_backup);
    let mut nodes = [&mut client, &mut primary, &mut backup];
    until(&mut nodes, |nodes| nodes[1].is_connected(to_backup));
    for number in 0..20 {
        nodes[0].call(session, FORWARD, &body(number, 4000)).unwrap();
    }
    until(&mut nodes, |nodes| nodes[0].program.ended.len() == 20);
    assert!(
        client.program.ended.iter().all(|(cookie, (_, answer))| *answer == body(*cookie, 4000))
    );
    assert_eq!(backup.program.executed.len(), 20);
}

/// One datagram in ten is lost, in both directions.
#[test]
fn lost_packets_are_sent_again_and_nothing_runs_twice() {
    let (mut client, mut server, session) = pair(config());
    client.loss.per_ten_million.set(1_000_000);
    server.loss.per_ten_million.set(1_000_000);
    let lens: Vec<_> = (0..400).map(|nth| [8, 32, 4000, 20_000][nth % 4]).collect();
    echo(&mut client, &mut server, session, &lens);
    assert!(client.loss.lost.get() > 50 && client.endpoint.stats().retransmissions > 20);
    assert_eq!(server.program.executed.len(), 400);
}

/// Rule E6.1: with congestion control the same answers, whatever the rate.
#[test]
fn timely_and_carousel_keep_every_answer() {
    let timely = TimelyConfig { link_rate: 1e9, rate_min: 1e8, ..TimelyConfig::new(1e9) };
    let config = Config { congestion: Congestion::Timely(timely), ..config() };
    let (mut client, mut server, session) = pair(config);
    client.loss.per_ten_million.set(100_000);
    let lens: Vec<_> = (0..200).map(|nth| [8, 4000, 100_000, 32][nth % 4]).collect();
    echo(&mut client, &mut server, session, &lens);
    let rate = client.endpoint.rate(session).unwrap();
    assert!((1e8..=1e9).contains(&rate), "{rate}");
}

#[test]
fn room_for_a_response_is_bounded_by_the_caller() {
    let (mut client, mut server, session) = pair(config());
    let call = Call { req_type: ECHO, cookie: 1, response_bytes_max: 100, ..Call::default() };
    client.endpoint.call(session, &call, &[7; 9000]).unwrap();
    until(&mut [&mut client, &mut server], |nodes| nodes[0].program.ended.len() == 1);
    assert_eq!(client.program.ended[&1], (Status::OutOfRange, vec![]));
    client.program.made = 2;
    echo(&mut client, &mut server, session, &[9000; 20]);
}
