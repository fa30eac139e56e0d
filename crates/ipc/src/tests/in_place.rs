//! Requests and responses that are filled and read where they lie.

use std::{
    io::Write as _,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::Duration,
};

use memory::Region;

use super::rig::*;
use crate::{
    CallError, LentRequest, ReplyError, Request, Server, ServerConfig,
    endpoint::{
        client::calls::ClientCalls,
        half::{EAGER_BYTES_MAX, Half, HalfShape},
    },
    header::Header,
    ring::{self, Producer},
    sans_os::{ClientCore, ServerCore},
};

const LONGEST: u32 = 1 << 18;

fn long() -> ServerConfig {
    ServerConfig { request_bytes_max: LONGEST, response_bytes_max: LONGEST, ..small() }
}

/// Answers with the request, each byte plus one, and twenty zeros behind it, which nobody puts.
fn increment_in_place(request: Request<'_>) {
    let payload = request.payload();
    let filled = request.reply_with(payload.len() + 20, |filler| {
        for part in payload.chunks(100) {
            let response: Vec<u8> = part.iter().map(|byte| byte.wrapping_add(1)).collect();
            filler.write_all(&response).unwrap();
        }
        assert_eq!(filler.left_bytes(), 20);
    });
    filled.expect("as long as a response may be");
}

fn expected(request: &[u8]) -> Vec<u8> {
    request.iter().map(|byte| byte.wrapping_add(1)).chain([0; 20]).collect()
}

#[test]
fn messages_of_every_length_are_filled_and_read_in_place() {
    let dir = Dir::new();
    let _server = ServerThread::start(&dir.socket(), long(), increment_in_place);
    let mut client = sync(&dir.socket());
    let eager = EAGER_BYTES_MAX;
    for len_bytes in [0, 1, 36, 37, 56, 57, 4096, eager - 20, eager - 19, eager, eager + 1, 70_001]
    {
        let request: Vec<u8> = (0..len_bytes).map(|at| (at * 7 % 251).to_le_bytes()[0]).collect();
        let response = client.call_lent(&request).unwrap();
        assert_eq!(response.len(), len_bytes + 20);
        assert_eq!(response.to_vec(), expected(&request));
        let put = |filler: &mut memory::Filler<'_>| filler.put(&request).unwrap();
        assert_eq!(client.call_with(len_bytes, put), Ok(&expected(&request)[..]));
        assert_eq!(client.lent().to_vec(), expected(&request), "of the call that lent last");
        // Bytes of earlier messages are seen by nobody.
        assert_eq!(client.call_with(len_bytes, |_| {}), Ok(&expected(&vec![0; len_bytes])[..]));
    }
}

#[test]
fn pipelined_calls_are_filled_and_lent_too() {
    let dir = Dir::new();
    let _server = ServerThread::start(&dir.socket(), long(), increment_in_place);
    let mut client = pipelined::<u8>(&dir.socket());
    for round in 0..20_u8 {
        for call in 0..8 {
            let body = vec![round + call; 500 * usize::from(call)];
            let fill = |filler: &mut memory::Filler<'_>| filler.put(&body).unwrap();
            let head = [&[call][..], &[round]];
            let request = crate::Filled::behind(&head, body.len(), fill);
            client.submit_filled_within(&request, PATIENCE, call).unwrap();
        }
        while client.in_flight() > 0 {
            client.poll_lent(|call, response| {
                let mut request = vec![call, round];
                request.resize(2 + 500 * usize::from(call), round + call);
                assert_eq!(response.unwrap().to_vec(), expected(&request));
            });
            client.rest();
        }
    }
}

#[test]
fn errors_are_told_also_where_responses_are_lent() {
    let dir = Dir::new();
    let _server = ServerThread::start(&dir.socket(), small(), |request| match request.payload() {
        b"refuse" => request.reply_error(7),
        b"too long" => assert!(request.reply_with(1001, |_| unreachable!()).is_err()),
        _ => drop(request),
    });
    let mut client = sync(&dir.socket());
    assert_eq!(client.call_lent(b"refuse").unwrap_err(), CallError::HandlerError(7));
    assert_eq!(client.call_lent(b"too long").unwrap_err(), CallError::ResponseTooLarge);
    assert_eq!(client.call_lent(b"drop").unwrap_err(), CallError::NotAnswered);
    let too_long = client.call_with(1001, |_| unreachable!());
    assert_eq!(too_long, Err(CallError::TooLarge { len_bytes: 1001, max_bytes: 1000 }));
}

#[test]
fn a_request_that_panics_while_it_is_filled_is_not_sent() {
    let dir = Dir::new();
    let _server = ServerThread::start(&dir.socket(), small(), increment);
    let mut client = sync(&dir.socket());
    // More often than there are calls: none of them is lost.
    for _ in 0..20 {
        let call = || client.call_with(100, |_| panic!("as intended")).map(drop);
        catch_unwind(AssertUnwindSafe(call)).unwrap_err();
        assert!(!client.was_sent());
    }
    expect_increment(&mut client, &[3; 100]);
}

#[test]
fn a_request_that_is_given_up_while_it_is_filled_is_not_sent() {
    let dir = Dir::new();
    let _server = ServerThread::start(&dir.socket(), small(), increment);
    let mut client = sync(&dir.socket());
    // More often than there are calls: none of them is lost.
    for _ in 0..20 {
        let given_up = client.call_with(100, |filler| {
            filler.put(b"begun").unwrap();
            filler.give_up();
        });
        assert_eq!(given_up, Err(CallError::GivenUp));
        assert!(!client.was_sent());
    }
    expect_increment(&mut client, &[3; 100]);
}

#[test]
fn a_response_that_is_given_up_while_it_is_filled_is_not_answered() {
    let dir = Dir::new();
    let _server = ServerThread::start(&dir.socket(), small(), |request| {
        if request.payload() == b"give up" {
            let replied = request.reply_with(100, |filler| filler.give_up());
            assert_eq!(replied, Err(ReplyError::GivenUp));
        } else {
            increment(request);
        }
    });
    let mut client = sync(&dir.socket());
    for _ in 0..20 {
        assert_eq!(client.call(b"give up"), Err(CallError::NotAnswered));
    }
    expect_increment(&mut client, b"others");
}

#[test]
fn a_response_that_panics_while_it_is_filled_is_not_answered() {
    let dir = Dir::new();
    let _server = ServerThread::start(&dir.socket(), small(), |request| {
        if request.payload() == b"panic" {
            let _ = request.reply_with(100, |_| panic!("as intended"));
        } else {
            increment(request);
        }
    });
    let mut client = sync(&dir.socket());
    for _ in 0..20 {
        assert_eq!(client.call(b"panic"), Err(CallError::NotAnswered));
    }
    expect_increment(&mut client, b"others");
}

/// Serves requests where they lie until the client's thread has ended.
fn serve_lent_until<T>(
    server: &mut Server,
    client: thread::JoinHandle<T>,
    mut handler: impl FnMut(LentRequest<'_>),
) -> T {
    eventually("the client has what it wants", || {
        while let Some(request) = server.recv_lent() {
            handler(request);
        }
        server.rest(os::clock::deadline_ns(Duration::from_millis(1)));
        client.is_finished()
    });
    client.join().unwrap()
}

#[test]
fn requests_of_every_length_are_served_where_they_lie() {
    let dir = Dir::new();
    let path = dir.socket();
    let mut server = Server::bind(&path, long()).unwrap();
    let eager = EAGER_BYTES_MAX;
    let client = thread::spawn(move || {
        let mut client = sync(&path);
        for len_bytes in [0, 1, 56, 57, 58, 4096, eager - 3, eager - 2, eager, eager + 1, 70_001] {
            let request: Vec<u8> =
                (0..len_bytes).map(|at| (at * 7 % 251).to_le_bytes()[0]).collect();
            let expected = [&request[..], b"and"].concat();
            for _ in 0..3 {
                assert_eq!(client.call(&request), Ok(&expected[..]));
            }
        }
        assert_eq!(client.call(&[1; 100]), Err(CallError::HandlerError(100)));
        assert_eq!(client.call(&[2; 100]), Err(CallError::NotAnswered));
        assert_eq!(client.call(&[3; 100]), Ok(&[3; 100][..]));
    });
    serve_lent_until(&mut server, client, |request| {
        let body = request.body();
        let mut first = [0];
        match (body.copy_to(&mut first), body.len()) {
            (1, 100) if first == [1] => request.reply_error(100),
            (1, 100) if first == [2] => drop(request),
            (1, 100) => request.reply(&body.to_vec()).unwrap(),
            (_, len_bytes) => {
                let filled = request.reply_with(len_bytes + 3, |filler| {
                    filler.put_lent(body).and_then(|()| filler.put(b"and")).unwrap();
                });
                filled.unwrap();
            }
        }
    });
    assert_eq!(server.stats().unanswered, 1);
}

#[test]
fn a_client_may_change_a_request_that_is_lent() {
    let mut server = ServerCore::on_heap(small()).unwrap();
    let (_, welcome, memory) = server.admit_on_heap().unwrap().unwrap();
    let up = Arc::clone(&memory.up);
    let mut client = ClientCore::new(&welcome, memory, 0);
    client.submit(&[1; 500], u64::MAX, ()).unwrap();
    let _ = client.flush();
    let taken = server.next::<true>().unwrap();
    let request = server.open_lent(taken);
    let body = request.body();
    assert_eq!(body.to_vec(), [1; 500]);
    up.whole().copy_out(&vec![0xee; up.len()]).unwrap();
    assert_eq!(body.to_vec(), [0xee; 500], "what is lent is what the client put there last");
    request.reply_with(500, |filler| filler.put_lent(body).unwrap()).unwrap();
    assert!(server.take().is_none());
    assert_eq!(server.clients().count(), 0, "the header that it wrote over is noticed");
}

/// A client whose server is this test: its calls, and the half that the server writes.
fn with_hostile_server() -> (ClientCalls<()>, Half, Arc<Region>, Producer) {
    let shape = HalfShape::new(1, 4096).unwrap();
    let region = || Arc::new(Region::heap(shape.len_bytes()).unwrap());
    let (up, down) = (region(), region());
    let half = |region: &Arc<Region>| Half::new(Arc::clone(region), shape);
    for region in [&up, &down] {
        ring::reset(&half(region), 0);
    }
    (ClientCalls::new(half(&up), half(&down), 0, 0), half(&down), down, Producer::new(0))
}

fn response(len_bytes: u32) -> Header {
    let generation = Header::generation_of(1);
    // The free calls are taken from the first on.
    Header { call: 0, generation, len_bytes, kind: 0 }
}

#[test]
fn a_server_may_change_a_response_that_is_lent() {
    let (mut client, down, memory, mut responses) = with_hostile_server();
    client.submit(b"request".as_slice(), 1, ()).unwrap();
    responses.publish(&down, response(4096), [1; 4096].as_slice());
    let mut seen = Vec::new();
    let ended = client.receive_lent(&mut |(), response| {
        let response = response.unwrap();
        assert_eq!(response.to_vec(), [1; 4096]);
        // Every byte of its memory, meanwhile and behind its back.
        thread::scope(|scope| {
            scope.spawn(|| memory.whole().copy_out(&vec![0xee; memory.len()]).unwrap());
        });
        seen = response.to_vec();
    });
    assert_eq!((ended, seen), (Ok(true), vec![0xee; 4096]));
    // The header that it wrote over is noticed.
    client.submit(b"request".as_slice(), 1, ()).unwrap();
    assert!(client.receive_lent(&mut |(), _| unreachable!()).is_err());
}

#[test]
fn a_response_that_says_to_be_longer_than_its_memory_is_not_lent() {
    let (mut client, down, _, mut responses) = with_hostile_server();
    client.submit(b"request".as_slice(), 1, ()).unwrap();
    responses.publish(&down, response(4097), b"short".as_slice());
    assert!(client.receive_lent(&mut |(), _| unreachable!()).is_err());
}
