//! Messages that are longer than what is allocated when a client connects.

use rustix::{
    fs::{FallocateFlags, SealFlags, fallocate},
    io::Errno,
};

use memory::Filler;

use super::rig::*;
use crate::{
    CallError, ReplyError, Request, RequestId, Server, ServerConfig, TakenBytes, TakenRequest,
    endpoint::{
        client::connection::{self, Connected, ServerConnection},
        half::{EAGER_BYTES_MAX, Half},
    },
    header::Header,
    ring::{Consumer, Producer},
    sans_os::{ClientCore, OpenRequest, ServerCore},
};

const LONGEST: u32 = 1 << 20;

fn long() -> ServerConfig {
    ServerConfig { request_bytes_max: LONGEST, response_bytes_max: LONGEST, ..small() }
}

fn pattern(len_bytes: usize) -> Vec<u8> {
    (0..len_bytes).map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect()
}

#[test]
fn fault_c5_messages_of_every_length_around_the_limits_arrive_whole() {
    let dir = Dir::new();
    let _server = ServerThread::start(&dir.socket(), long(), increment);
    let mut client = sync(&dir.socket());
    let eager = EAGER_BYTES_MAX;
    let lengths = [0, 1, 56, 57, 4096, eager - 1, eager, eager + 1, 8191, 8192, 8193, 70_001];
    let longest = LONGEST as usize;
    for len_bytes in lengths.into_iter().chain([longest - 1, longest]) {
        let request = pattern(len_bytes);
        expect_increment(&mut client, &request);
        // Shorter ones afterwards see nothing of it.
        expect_increment(&mut client, b"short");
    }
    let refused = client.call(&pattern(longest + 1));
    assert_eq!(refused, Err(CallError::TooLarge { len_bytes: longest + 1, max_bytes: longest }));
}

#[test]
fn large_messages_of_many_calls_in_flight_stay_apart() {
    let dir = Dir::new();
    let _server = ServerThread::start(&dir.socket(), long(), increment);
    let mut client = pipelined::<usize>(&dir.socket());
    for round in 0..3 {
        for call in 0..8 {
            client.submit(&pattern(40_000 * (call + 1) + round), call).unwrap();
        }
        let mut seen = [false; 8];
        while client.in_flight() > 0 {
            client.poll(|call, response| {
                let sent = pattern(40_000 * (call + 1) + round);
                let expected: Vec<u8> = sent.iter().map(|byte| byte.wrapping_add(1)).collect();
                assert!(response == Ok(&expected[..]), "call {call} of round {round}");
                seen[call] = true;
            });
            client.rest();
        }
        assert_eq!(seen, [true; 8]);
    }
}

/// One turn takes a piece of a large request and all of a small one.
#[test]
fn a_large_request_does_not_make_others_wait() {
    let mut server = ServerCore::on_heap(long()).unwrap();
    let mut connect = || {
        let (_, welcome, memory) = server.admit_on_heap().unwrap().unwrap();
        ClientCore::<u32>::new(&welcome, memory, 0)
    };
    let (mut large, mut small) = (connect(), connect());
    large.submit(&pattern(LONGEST as usize), 1_000_000, 1).unwrap();
    let _ = large.flush();
    let mut turns = 0;
    let mut is_taken = false;
    while !is_taken {
        turns += 1;
        assert!(turns < 100, "the large request is never taken");
        small.submit(b"small", 1_000_000, 2).unwrap();
        let _ = small.flush();
        let mut small_ones = 0;
        while let Some(OpenRequest { id, payload, replies }) = server.take() {
            small_ones += u32::from(payload == b"small");
            is_taken |= payload == pattern(LONGEST as usize);
            replies.reply(id, payload).unwrap();
        }
        assert_eq!(small_ones, 1, "in turn {turns}");
        assert_eq!(small.poll(&mut |_, response| assert_eq!(response, Ok(&b"small"[..]))).ended, 1);
    }
    assert!(turns > 4, "it came in pieces: {turns} turns");
}

/// A client that makes large requests by hand, of a server that answers whether all of a request is zeros.
struct ByHand {
    server: ServerThread,
    _connection: ServerConnection,
    up: Half,
    down: Half,
    requests: Producer,
    made: u64,
}

impl ByHand {
    fn connect(dir: &Dir) -> Self {
        let check = |request: Request<'_>| {
            let is_zero = request.payload().iter().all(|byte| *byte == 0);
            let _ = request.reply(&[u8::from(is_zero)]);
        };
        let server = ServerThread::start(&dir.socket(), long(), check);
        let Connected { connection, welcome, memory } =
            connection::connect(&dir.socket(), PATIENCE).expect("a server is there");
        let (up, down) = (Half::new(memory.up, welcome.up), Half::new(memory.down, welcome.down));
        let requests = Producer::new(welcome.position);
        Self { server, _connection: connection, up, down, requests, made: 0 }
    }

    /// Publishes the longest request of the next call without a look at its pages; returns whether all of it
    /// is zeros.
    fn ask(&mut self) -> bool {
        let call = u16::try_from(self.made).unwrap();
        let header = Header { call, generation: 0, len_bytes: LONGEST, kind: 0 };
        self.requests.publish(&self.up, header, b"".as_slice());
        let answers = Consumer::new(self.requests.position().wrapping_sub(1));
        self.made += 1;
        let mut header = None;
        eventually("the request is answered", || {
            header = answers.peek(&self.down).unwrap();
            header.is_some()
        });
        let (mut answers, mut answer) = (answers, [2]);
        answers.take(&self.down, header.unwrap(), &mut answer);
        assert_eq!(self.server.ask(|server| server.stats().evicted), 0);
        answer == [1]
    }

    /// Writes the first byte of each page of the next call.
    fn write_next(&self) {
        let call = u16::try_from(self.made).unwrap();
        self.up.commit(call, 0..LONGEST as usize).unwrap();
        let begin = self.up.region().len()
            - (self.up.shape().depth() - usize::from(call)) * LONGEST as usize;
        for at in (0..LONGEST as usize).step_by(4096) {
            self.up.region().span(begin + at, 1).unwrap().copy_out(&[9]).unwrap();
        }
    }

    /// Takes all pages of large messages away.
    fn punch(half: &Half) -> Result<(), Errno> {
        let holes = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let eager = half.shape().eager_bytes().next_multiple_of(4096);
        let len_bytes = (half.region().len() - eager) as u64;
        fallocate(half.region().fd().unwrap(), holes, eager as u64, len_bytes)
    }
}

/// The server loads from no page that may be missing. From the first large request on none that is there can
/// be taken away.
#[test]
fn fault_b7_pages_that_a_client_takes_away_read_as_zeros() {
    let dir = Dir::new();
    let mut client = ByHand::connect(&dir);
    assert!(ByHand::punch(&client.down).is_err(), "what the server writes is sealed");
    client.write_next();
    ByHand::punch(&client.up).expect("its own memory");
    assert!(client.ask(), "the pages are gone");
    client.write_next();
    assert_eq!(ByHand::punch(&client.up), Err(Errno::PERM));
    assert!(!client.ask(), "the pages have stayed");
    assert!(client.ask(), "pages that never were");
}

/// A client that allows no further seal could take pages away at any time: nothing is loaded from them.
#[test]
fn fault_b7_a_client_that_keeps_its_half_from_being_sealed_is_served() {
    let dir = Dir::new();
    let mut client = ByHand::connect(&dir);
    let fd = client.up.region().fd().unwrap();
    rustix::fs::fcntl_add_seals(fd, SealFlags::SEAL).unwrap();
    client.write_next();
    assert!(!client.ask());
    client.write_next();
    ByHand::punch(&client.up).expect("nothing keeps it from that");
    assert!(client.ask(), "the pages are gone");
}

/// A client that leaves in the middle of a copy takes its share of copies with it.
#[test]
fn clients_that_leave_in_the_middle_do_not_use_up_the_copies() {
    let mut server = ServerCore::on_heap(long()).unwrap();
    for _ in 0..20 {
        let (id, welcome, memory) = server.admit_on_heap().unwrap().unwrap();
        let mut client = ClientCore::<u32>::new(&welcome, memory, 0);
        client.submit(&pattern(LONGEST as usize), 1_000_000, 1).unwrap();
        let _ = client.flush();
        assert!(server.take().is_none(), "a piece");
        server.departed(id);
    }
    let (_, welcome, memory) = server.admit_on_heap().unwrap().unwrap();
    let mut client = ClientCore::<u32>::new(&welcome, memory, 0);
    client.submit(&pattern(LONGEST as usize), 1_000_000, 1).unwrap();
    let _ = client.flush();
    let taken = (0..100).find(|_| server.take().is_some());
    assert!(taken.is_some());
}

/// A server and its client, whose request is taken: its id.
fn taken(server: &mut ServerCore, client: &mut ClientCore<u32>) -> RequestId {
    client.submit(b"ask", 1_000_000, 1).unwrap();
    let _ = client.flush();
    let OpenRequest { id, .. } = server.take().expect("the request is there");
    id
}

fn ended(client: &mut ClientCore<u32>) -> Option<Result<Vec<u8>, CallError>> {
    let mut ended = None;
    client.poll(&mut |_, response| {
        ended = Some(response.map(<[u8]>::to_vec).map_err(|failed| failed.error));
    });
    ended
}

/// Parts of a response may come in any order and again, and others be answered meanwhile; nothing is seen of
/// them before the answer.
#[test]
fn responses_in_parts_arrive_whole_whatever_their_order() {
    let mut server = ServerCore::on_heap(long()).unwrap();
    let (_, welcome, memory) = server.admit_on_heap().unwrap().unwrap();
    let mut client = ClientCore::<u32>::new(&welcome, memory, 0);
    let mut random = 1_u64;
    for len_bytes in [EAGER_BYTES_MAX + 1, 8192, 100_003, LONGEST as usize] {
        let body = pattern(len_bytes);
        let id = taken(&mut server, &mut client);
        let mut starts: Vec<_> = (0..len_bytes).step_by(3001).collect();
        starts.push(0);
        while !starts.is_empty() {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let start = starts.swap_remove((random >> 33) as usize % starts.len());
            let part = start..len_bytes.min(start + 3001);
            let fill = |filler: &mut Filler<'_>| filler.put(&body[part.clone()]).unwrap();
            server.replies().put_part(id, len_bytes, part.clone(), fill).unwrap();
            assert_eq!(ended(&mut client), None, "it is not answered yet");
        }
        server.replies().reply_stored(id, len_bytes).unwrap();
        assert!(ended(&mut client) == Some(Ok(body)), "{len_bytes} B");
        let again = server.replies().reply_stored(id, len_bytes);
        assert_eq!(again, Err(ReplyError::ClientGone), "it was answered");
    }
}

/// Memory of a response is allocated as its parts come, and stays for the next one of the call.
#[test]
fn a_part_of_a_response_allocates_no_more_than_a_piece() {
    const PIECE_BYTES: usize = 128 << 10;
    let dir = Dir::new();
    let mut server = Server::bind(&dir.socket(), long()).unwrap();
    let path = dir.socket();
    let connect = std::thread::spawn(move || connection::connect(&path, PATIENCE).unwrap());
    let soon = || os::clock::deadline_ns(std::time::Duration::from_millis(1));
    eventually("the client is there", || {
        server.rest(soon());
        assert!(server.take_lent().is_none(), "it asks nothing yet");
        connect.is_finished()
    });
    let Connected { connection: _connection, welcome, memory } = connect.join().unwrap();
    let (up, down) = (Half::new(memory.up, welcome.up), Half::new(memory.down, welcome.down));
    let mut requests = Producer::new(welcome.position);
    let allocated = || {
        let stat = rustix::fs::fstat(down.region().fd().unwrap()).unwrap();
        usize::try_from(stat.st_blocks).unwrap() * 512
    };
    let (before, len_bytes) = (allocated(), LONGEST as usize);
    for generation in 0..2 {
        requests.publish(
            &up,
            Header { call: 0, generation, len_bytes: 0, kind: 0 },
            b"".as_slice(),
        );
        let mut id = None;
        eventually("the request is there", || {
            server.rest(soon());
            id = server.take_lent().map(|request| request.id);
            id.is_some()
        });
        let id = id.unwrap();
        for start in (0..len_bytes).step_by(10_000) {
            let part = start..len_bytes.min(start + 10_000);
            let expected = match generation {
                0 => part.end.next_multiple_of(PIECE_BYTES).min(len_bytes),
                _ => len_bytes,
            };
            let bytes = vec![7; part.len()];
            let fill = |filler: &mut Filler<'_>| filler.put(&bytes).unwrap();
            server.replies().put_part(id, len_bytes, part, fill).unwrap();
            assert_eq!(allocated() - before, expected);
        }
        server.replies().reply_stored(id, len_bytes).unwrap();
    }
}

/// Parts of a response that is not given are nobody's: the call ends as it is answered, and what comes late
/// reaches neither the next call nor the next client.
#[test]
fn parts_that_come_after_the_answer_are_refused() {
    let mut server = ServerCore::on_heap(long()).unwrap();
    let (client_id, welcome, memory) = server.admit_on_heap().unwrap().unwrap();
    let mut client = ClientCore::<u32>::new(&welcome, memory, 0);
    let put = |server: &mut ServerCore, id| {
        let fill = |filler: &mut Filler<'_>| filler.put(&[7; 5000]).unwrap();
        server.replies().put_part(id, 20_000, 5000..10_000, fill)
    };
    let first = taken(&mut server, &mut client);
    put(&mut server, first).unwrap();
    server.replies().reply(first, b"otherwise").unwrap();
    assert_eq!(ended(&mut client), Some(Ok(b"otherwise".to_vec())));
    let second = taken(&mut server, &mut client);
    assert_eq!(put(&mut server, first), Err(ReplyError::ClientGone));
    assert_eq!(server.replies().reply_stored(first, 20_000), Err(ReplyError::ClientGone));
    server.departed(client_id);
    assert_eq!(put(&mut server, second), Err(ReplyError::ClientGone));
    assert!(!server.replies().takes_parts(EAGER_BYTES_MAX), "it has no pages of its own");
    assert!(!server.replies().takes_parts(LONGEST as usize + 1));
}

/// Requests that are left with their client are read where they lie, in any order, until they are answered.
#[test]
fn requests_that_are_left_are_read_in_parts_until_they_are_answered() {
    let dir = Dir::new();
    let mut server = Server::bind(&dir.socket(), long()).unwrap();
    server.leave_large(|head| head.len() == 64 && head[0] == 7);
    let path = dir.socket();
    let lengths = [EAGER_BYTES_MAX, EAGER_BYTES_MAX + 1, 100_003, LONGEST as usize];
    let client = std::thread::spawn(move || {
        let mut client = sync(&path);
        for len_bytes in lengths {
            for first in [7, 8] {
                let mut request = pattern(len_bytes);
                request[0] = first;
                assert!(client.call(&request) == Ok(&request[..]), "{len_bytes} B");
            }
        }
    });
    let mut left = Vec::new();
    eventually("the client has its answers", || {
        while let Some(TakenRequest { id, payload, replies }) = server.take_lent() {
            let mut body = Vec::new();
            match payload {
                TakenBytes::Private(payload) => body.extend_from_slice(payload),
                TakenBytes::Lent(payload) => payload.append_to(&mut body),
                TakenBytes::Left { head, len_bytes } => {
                    let mut parts = Vec::new();
                    for start in (0..len_bytes).step_by(3001).rev() {
                        let mut part = Vec::new();
                        let of_request = start..len_bytes.min(start + 3001);
                        replies.read_left(id, of_request.clone(), &mut part).unwrap();
                        let lent = replies.lend_left(id, of_request);
                        assert!(lent.expect("its pages stay").to_vec() == part);
                        parts.push(part);
                    }
                    parts.reverse();
                    body = parts.concat();
                    assert_eq!(&body[..64], head);
                    left.push((id, len_bytes));
                }
            }
            replies.reply(id, &body).unwrap();
            let read = replies.read_left(id, 0..1, &mut body);
            assert_eq!(read, Err(ReplyError::ClientGone), "it is the client's again");
            assert!(replies.lend_left(id, 0..1).is_none());
        }
        server.rest(os::clock::deadline_ns(std::time::Duration::from_millis(1)));
        client.is_finished()
    });
    client.join().unwrap();
    let left_bytes: Vec<_> = left.iter().map(|(_, len_bytes)| *len_bytes).collect();
    assert_eq!(left_bytes, lengths[1..], "large ones that begin with a 7, and no other");
    eventually("the client is gone", || {
        server.rest(os::clock::deadline_ns(std::time::Duration::from_millis(1)));
        while server.take_lent().is_some() {}
        !server.replies().is_connected(left[0].0.client())
    });
    let read = server.replies().read_left(left[0].0, 0..1, &mut Vec::new());
    assert_eq!(read, Err(ReplyError::ClientGone));
    assert!(server.replies().lend_left(left[0].0, 0..1).is_none());
}
