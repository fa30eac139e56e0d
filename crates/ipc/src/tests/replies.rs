//! Requests that are answered by their ids, and messages in parts.

use std::{thread, time::Duration};

use super::rig::{Dir, eventually, pipelined, small, sync};
use crate::{
    CallError, OpenRequest, Replies, ReplyError, RequestId, Server, ServerConfig,
    endpoint::server::call_table::Unanswerable,
};

/// Runs a server until the client's thread has ended.
fn serve_until<T>(
    server: &mut Server,
    client: thread::JoinHandle<T>,
    mut take: impl FnMut(OpenRequest<'_>),
) -> T {
    eventually("the client has what it wants", || {
        while let Some(request) = server.take() {
            take(request);
        }
        server.rest(os::clock::deadline_ns(Duration::from_millis(1)));
        client.is_finished()
    });
    client.join().unwrap()
}

#[test]
fn requests_before_are_answered_while_one_is_held_whose_payload_is_borrowed() {
    let dir = Dir::new();
    let path = dir.socket();
    let mut server = Server::bind(&path, small()).unwrap();
    let client = thread::spawn(move || {
        let mut client = pipelined::<u8>(&path);
        for number in 1..=8 {
            client.submit(&[number], number).unwrap();
        }
        let mut ended = Vec::new();
        while client.in_flight() > 0 {
            client.poll(|number, response| {
                assert_eq!(response, Ok(&[number, number + 1][..]));
                ended.push(number);
            });
            client.rest();
        }
        ended
    });
    // Each request is answered with the payload of the one behind it, while that one is held.
    let mut held: Option<(RequestId, u8)> = None;
    let ended = serve_until(&mut server, client, |OpenRequest { id, payload, replies }| {
        if let Some((before, number)) = held.replace((id, payload[0])) {
            replies.reply_parts(before, &[&[number], payload]).unwrap();
            assert_eq!(replies.reply(before, b"again"), Err(ReplyError::ClientGone));
        }
        if payload == [8] {
            replies.reply(id, &[8, 9]).unwrap();
        }
    });
    assert_eq!(ended, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(server.stats().responses, 8);
}

#[test]
fn every_kind_of_answer_can_be_given_by_id() {
    let dir = Dir::new();
    let path = dir.socket();
    let mut server = Server::bind(&path, small()).unwrap();
    let client = thread::spawn(move || {
        let mut client = sync(&path);
        assert_eq!(client.call(b"reply"), Ok(&b"reply"[..]));
        assert_eq!(client.call(b"error"), Err(CallError::HandlerError(7)));
        assert_eq!(client.call(b"exhausted"), Err(CallError::ResourceExhausted));
        assert_eq!(client.call(b"long"), Err(CallError::ResponseTooLarge));
        // It was executed, so nothing may tell the client to try again.
        assert_eq!(client.call(b"no memory"), Err(CallError::NotAnswered));
        let leave = client.call_within(b"leave", Duration::from_millis(1));
        assert_eq!(leave, Err(CallError::Deadline));
    });
    let mut left = None;
    serve_until(&mut server, client, |OpenRequest { id, payload, replies }| {
        let mut replied = |reply: fn(&mut Replies, RequestId) -> Result<(), ReplyError>| {
            assert!(replies.is_connected(id.client()));
            reply(replies, id)
        };
        match payload {
            b"reply" => replied(|replies, id| replies.reply(id, b"reply")).unwrap(),
            b"error" => replied(|replies, id| replies.reply_error(id, 7)).unwrap(),
            b"exhausted" => replied(Replies::reply_exhausted).unwrap(),
            b"long" => {
                let too_large = ReplyError::TooLarge { len_bytes: 1001, max_bytes: 1000 };
                let replied = replied(|replies, id| replies.reply_parts(id, &[b"x", &[0; 1000]]));
                assert_eq!(replied, Err(too_large));
            }
            b"no memory" => {
                let replied =
                    replied(|replies, id| replies.answer_without(id, Unanswerable::NoMemory, 1000));
                assert_eq!(replied, Err(ReplyError::NoMemory { len_bytes: 1000 }));
            }
            _ => left = Some(id),
        }
    });
    let left = left.expect("the client asked to leave");
    eventually("the client is gone", || {
        server.rest(os::clock::deadline_ns(Duration::from_millis(1)));
        server.recv();
        !server.replies().is_connected(left.client())
    });
    assert_eq!(server.replies().reply(left, b"late"), Err(ReplyError::ClientGone));
}

#[test]
fn a_request_that_is_kept_open_or_answered_by_its_id_is_not_answered_again_by_its_drop() {
    let dir = Dir::new();
    let path = dir.socket();
    let mut server = Server::bind(&path, small()).unwrap();
    let client = thread::spawn(move || {
        let mut client = sync(&path);
        assert_eq!(client.call(b"by id"), Ok(&b"once"[..]));
        assert_eq!(client.call(b"kept"), Ok(&b"later"[..]));
    });
    eventually("the client has its answers", || {
        let mut kept = None;
        while let Some(mut request) = server.recv() {
            let id = request.id();
            if request.payload() == b"by id" {
                request.replies().reply(id, b"once").unwrap();
            } else {
                kept = Some(request.keep_open());
            }
        }
        if let Some(id) = kept {
            server.replies().reply(id, b"later").unwrap();
        }
        server.rest(os::clock::deadline_ns(Duration::from_millis(1)));
        client.is_finished()
    });
    client.join().unwrap();
    assert_eq!(server.stats().unanswered, 0);
}

#[test]
fn an_id_of_another_server_of_the_team_names_no_request_here() {
    let dir = Dir::new();
    let path = dir.socket();
    let mut servers = Server::bind_team(&path, small(), 2).unwrap();
    let client = thread::spawn(move || {
        let mut clients = [sync(&path), sync(&path)];
        for client in &mut clients {
            assert_eq!(client.call(b""), Ok(&b"mine"[..]));
        }
    });
    eventually("both clients have their answers", || {
        for number in 0..2 {
            let mut ids = Vec::new();
            while let Some(request) = servers[number].recv() {
                ids.push(request.keep_open());
            }
            for id in ids {
                let elsewhere = servers[1 - number].replies().reply(id, b"not mine");
                assert_eq!(elsewhere, Err(ReplyError::ClientGone));
                servers[number].replies().reply(id, b"mine").unwrap();
            }
            servers[number].rest(os::clock::deadline_ns(Duration::from_millis(1)));
        }
        client.is_finished()
    });
    client.join().unwrap();
}

#[test]
fn requests_and_responses_in_parts_arrive_as_one_message() {
    let dir = Dir::new();
    let path = dir.socket();
    let config = ServerConfig { request_bytes_max: 5000, response_bytes_max: 5000, ..small() };
    let mut server = Server::bind(&path, config).unwrap();
    let client = thread::spawn(move || {
        let body: Vec<u8> = (0..5000u32).map(|at| at.to_le_bytes()[0]).collect();
        let (mut blocking, mut pipelined) = (sync(&path), pipelined::<()>(&path));
        for len in [0, 1, 7, 8, 55, 56, 57, 64, 1000, 5000] {
            let whole = &body[..len];
            for cut in [0, 1, 4, 8, 56].map(|cut: usize| cut.min(len)) {
                let (head, tail) = whole.split_at(cut);
                assert_eq!(blocking.call_parts(&[head, b"", tail]), Ok(whole), "{len}, {cut}");
                pipelined.submit_parts(&[head, tail], ()).unwrap();
                while pipelined.in_flight() > 0 {
                    pipelined.poll(|(), response| assert_eq!(response, Ok(whole)));
                    pipelined.rest();
                }
            }
        }
        let too_large = CallError::TooLarge { len_bytes: 5001, max_bytes: 5000 };
        assert_eq!(blocking.call_parts(&[b"x", &body]), Err(too_large));
    });
    serve_until(&mut server, client, |OpenRequest { id, payload, replies }| {
        let (head, tail) = payload.split_at(payload.len() / 2);
        replies.reply_parts(id, &[head, tail]).unwrap();
    });
}
