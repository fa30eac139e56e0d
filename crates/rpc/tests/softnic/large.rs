//! Bodies that do not fit the ring, and memory beside the calls.

use std::{collections::BTreeMap, mem};

use copyrpc_rpc::{
    Call, CallError, CloseReason, Config, Handler, LocalRegion, PeerId, Range, RemoteRegion,
    ReplyError, Request, Status, Token, TransferError, TransportKind, Worker,
};
use softnic::Nic;

use crate::{
    basics::body,
    rig::{ECHO, LATER, Node, fabric, join, pair, shapes, soft, tight, until},
};

/// Rules C4.4 and C6.1: around the longest body of the ring, and to 16 MiB.
#[test]
fn bodies_of_every_length_arrive_whole() {
    for config in shapes() {
        let longest = config.geometry().unwrap().body_bytes_max();
        let (mut a, mut b, to_b, _) = pair(&config);
        for len_bytes in [longest, longest + 1, 5000, 16_384, 16_385, 1 << 20] {
            let body = body(len_bytes, len_bytes);
            let cookie = a.call(to_b, ECHO, &body).unwrap();
            until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.contains_key(&cookie));
            let (status, answer) = &a.program.ended[&cookie];
            assert_eq!(*status, Status::Ok);
            assert!(*answer == body, "{len_bytes} B came back as {} B", answer.len());
        }
    }
}

/// Rules C1.1 and C2.3: the ring takes a body of 16 KiB behind 64 bytes of a program's heads, and a batch is as long as
/// the side that receives it announced: that of another build may take less.
#[test]
fn bodies_of_16_kib_go_in_the_ring_of_a_side_that_takes_them() {
    const HEADS_BYTES: usize = 64;
    let (long, shorter) = (Config::default(), Config { batch_bytes: 1 << 14, ..Config::default() });
    let pieces = |node: &Node| node.worker.stats().bodies.pieces;
    // Requests travel to the ring of `b`, answers to that of `a`.
    for (of_a, of_b, fetched) in
        [(&long, &long, [0, 0]), (&long, &shorter, [0, 1]), (&shorter, &long, [1, 0])]
    {
        let fabric = fabric();
        let (mut a, mut b) = (Node::open(&fabric, of_a), Node::open(&fabric, of_b));
        let (to_b, _) = join(&mut a, &mut b);
        let body = body(1, 16_384 + HEADS_BYTES);
        let cookie = a.call(to_b, ECHO, &body).unwrap();
        until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.contains_key(&cookie));
        assert!(a.program.ended[&cookie] == (Status::Ok, body));
        assert_eq!([pieces(&a), pieces(&b)], fetched, "READs");
    }
}

/// Takes the memory of large bodies, and gives some of it back.
#[derive(Default)]
struct Keeping {
    requests: Vec<(Token, Vec<u8>)>,
    responses: Vec<(u64, Vec<u8>)>,
}

impl Handler<Nic> for Keeping {
    fn request(&mut self, _: &mut Worker<Nic>, _: Request<'_>) {
        panic!("it is large");
    }

    fn large_request(&mut self, _: &mut Worker<Nic>, request: Request<'_>, body: &mut Vec<u8>) {
        assert!(request.body.is_empty() && request.method == ECHO);
        self.requests.push((request.token, mem::take(body)));
    }

    fn response(&mut self, _: &mut Worker<Nic>, _: u64, _: Status, _: &[u8]) {
        panic!("it is large");
    }

    fn large_response(&mut self, _: &mut Worker<Nic>, cookie: u64, body: &mut Vec<u8>) {
        self.responses.push((cookie, mem::take(body)));
    }
}

/// A handler that takes the memory of a body has all of the body and nothing else, also in memory that was used for a
/// longer or a shorter one before.
#[test]
fn large_bodies_whose_memory_is_taken_are_whole() {
    for config in shapes() {
        let (mut a, mut b, to_b, _) = pair(&config);
        let (mut caller, mut server) = (Keeping::default(), Keeping::default());
        for (cookie, len_bytes) in (1..).zip([1 << 20, 5000, (3 << 17) + 1, 1 << 20, 70_000]) {
            let body = body(len_bytes, len_bytes);
            let call = Call { method: ECHO, cookie, ..Call::default() };
            a.worker.call(to_b, &call, &body).unwrap();
            while caller.responses.is_empty() {
                a.worker.poll(os::clock::now_ns(), &mut caller);
                b.worker.poll(os::clock::now_ns(), &mut server);
                if let Some((token, request)) = server.requests.pop() {
                    assert!(request == body, "{len_bytes} B");
                    b.worker.reply(token, Status::Ok, &request).unwrap();
                    b.worker.keep_memory(request);
                }
            }
            let (ended, response) = caller.responses.pop().unwrap();
            assert!(ended == cookie && response == body, "{len_bytes} B");
            a.worker.keep_memory(response);
        }
    }
}

/// Rule C6.6: an answer that is told in pieces is the same answer, over every transport and around the length
/// of a piece.
#[test]
fn answers_in_pieces_are_whole_at_every_length() {
    for config in shapes() {
        let longest = config.geometry().unwrap().body_bytes_max();
        let (mut a, mut b, to_b, _) = pair(&config);
        a.program.takes_pieces = true;
        let around = [1, 2, 5].map(|pieces| pieces << 17);
        let around =
            around.into_iter().flat_map(|len_bytes| [len_bytes - 1, len_bytes, len_bytes + 1]);
        for len_bytes in [longest + 1, 5000].into_iter().chain(around) {
            let body = body(len_bytes, len_bytes);
            let cookie = a.call(to_b, ECHO, &body).unwrap();
            until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.contains_key(&cookie));
            assert!(a.program.ended[&cookie] == (Status::Ok, body), "{len_bytes} B");
            assert!(a.program.pieces.is_empty());
        }
    }
}

/// Rule C6.6, in strict mode, which delays READs and shuffles their bytes: some answers in pieces, others
/// whole, many at a time.
#[test]
fn answers_in_pieces_do_not_mix() {
    for (seed, transport) in [TransportKind::Rc, TransportKind::Dc].into_iter().enumerate() {
        let config = Config { transport, ..tight() };
        let nic = soft(&crate::rig::fabric(), Some(seed as u64 + 99));
        let (mut a, mut b) = (Node::open_on(&nic, &config), Node::open_on(&nic, &config));
        let (to_b, _) = join(&mut a, &mut b);
        for round in 0..4 {
            a.program.takes_pieces = round != 2;
            let bodies: BTreeMap<_, _> = (0..7)
                .map(|number| {
                    let body = body(number, (1 << 15) * (number + 1) * (number + 1) + round);
                    let cookie = a.program.made as u64;
                    let call = Call { method: ECHO, cookie, response_bytes: 32, ..Call::default() };
                    a.worker.call(to_b, &call, &body).unwrap();
                    a.program.made += 1;
                    (cookie, body)
                })
                .collect();
            until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.len() == bodies.len());
            for (cookie, ended) in core::mem::take(&mut a.program.ended) {
                assert!(ended == (Status::Ok, bodies[&cookie].clone()), "call {cookie}");
            }
        }
    }
}

/// A body that the program puts in parts, in any order, is the body of the call that it makes with it, once.
#[test]
fn a_call_that_is_written_in_parts_is_whole_and_made_once() {
    for config in shapes() {
        let (mut a, mut b, to_b, _) = pair(&config);
        for (cookie, len_bytes) in (100..).zip([5000, 20_000, (3 << 17) + 1]) {
            let body = body(len_bytes, len_bytes);
            let call = Call { method: ECHO, cookie, ..Call::default() };
            let begun = a.worker.begin_call(to_b, &call, len_bytes).unwrap();
            for start in (0..len_bytes).step_by(7001).rev() {
                let part = &body[start..len_bytes.min(start + 7001)];
                a.worker.put_call(&begun, start, part).unwrap();
                a.poll();
                b.poll();
            }
            a.worker.finish_call(&begun, &call).unwrap();
            let again = a.worker.finish_call(&begun, &call);
            assert!(matches!(again, Err(CallError::NotConnected)), "its body is lent");
            assert!(a.worker.put_call(&begun, 0, &b"late"[..]).is_err());
            drop(begun);
            until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.contains_key(&cookie));
            assert!(a.program.ended[&cookie] == (Status::Ok, body), "{len_bytes} B");
            until(&mut [&mut a, &mut b], |nodes| nodes[0].worker.large_memory().used_bytes == 0);
        }
    }
}

/// A call that was begun and is not made is nobody's, whatever happens to it.
#[test]
fn a_call_that_was_begun_and_is_not_made_leaves_no_memory() {
    for config in [tight(), Config { transport: TransportKind::Dc, ..tight() }] {
        for case in 0..3 {
            let (mut a, mut b, to_b, to_a) = pair(&config);
            let call = Call { method: ECHO, ..Call::default() };
            let too_long = a.worker.begin_call(to_b, &call, 1 << 30);
            assert!(matches!(too_long, Err(CallError::TooLong { .. })));
            let begun = a.worker.begin_call(to_b, &call, 1 << 20).unwrap();
            a.worker.put_call(&begun, 0, &[7; 1 << 16][..]).unwrap();
            assert_eq!(a.worker.large_memory().used_bytes, 1 << 20);
            match case {
                0 => drop(begun),
                1 => {
                    a.worker.close(to_b);
                    assert!(a.worker.put_call(&begun, 1 << 16, &[7; 100][..]).is_err());
                    let made = a.worker.finish_call(&begun, &call);
                    assert!(matches!(made, Err(CallError::NotConnected)));
                    b.worker.close(to_a);
                }
                _ => {
                    drop(begun);
                    // The next one has room at once.
                    let next = a.worker.begin_call(to_b, &call, 1 << 20).unwrap();
                    assert_eq!(a.worker.large_memory().used_bytes, 1 << 20);
                    drop(next);
                }
            }
            until(&mut [&mut a, &mut b], |nodes| nodes[0].worker.large_memory().used_bytes == 0);
        }
    }
}

/// An answer that the program puts in parts, in any order, is the answer that it would give at once; its caller
/// sees nothing of it before.
#[test]
fn an_answer_that_is_written_in_parts_is_whole() {
    for config in shapes() {
        let longest = config.geometry().unwrap().body_bytes_max();
        let (mut a, mut b, to_b, _) = pair(&config);
        for len_bytes in [longest + 1, 20_000, (3 << 17) + 1] {
            let body = body(len_bytes, len_bytes);
            let cookie = a.call(to_b, LATER, b"").unwrap();
            until(&mut [&mut a, &mut b], |nodes| nodes[1].program.kept.len() == 1);
            let (mut token, _) = b.program.kept.remove(0);
            assert!(len_bytes > b.worker.answer_bytes_max(&token));
            b.worker.begin_answer(&mut token, len_bytes).unwrap();
            for start in (0..len_bytes).step_by(7001).rev() {
                let part = &body[start..len_bytes.min(start + 7001)];
                b.worker.put_answer(&token, start, part).unwrap();
                a.poll();
                b.poll();
            }
            assert!(!a.program.ended.contains_key(&cookie), "it is not answered yet");
            b.worker.finish_answer(token).unwrap();
            until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.contains_key(&cookie));
            assert!(a.program.ended[&cookie] == (Status::Ok, body), "{len_bytes} B");
            until(&mut [&mut a, &mut b], |nodes| nodes[1].worker.large_memory().used_bytes == 0);
        }
    }
}

/// Whatever becomes of a request whose answer was begun: it is answered once, and the memory is given back.
#[test]
fn an_answer_that_was_begun_and_is_not_finished_leaves_no_memory() {
    for config in [tight(), Config { transport: TransportKind::Dc, ..tight() }] {
        for case in 0..5 {
            let (mut a, mut b, to_b, to_a) = pair(&config);
            let cookie = a.call(to_b, LATER, b"").unwrap();
            until(&mut [&mut a, &mut b], |nodes| nodes[1].program.kept.len() == 1);
            let (mut token, _) = b.program.kept.remove(0);
            b.worker.begin_answer(&mut token, 1 << 20).unwrap();
            b.worker.put_answer(&token, 0, &[7; 1 << 16][..]).unwrap();
            assert_eq!(b.worker.large_memory().used_bytes, 1 << 20);
            let expected = match case {
                0 => {
                    b.worker.reply(token, Status::Unavailable, b"").unwrap();
                    Status::Unavailable
                }
                1 => {
                    b.worker.reply(token, Status::Ok, b"short").unwrap();
                    Status::Ok
                }
                2 => {
                    drop(token);
                    Status::Unknown
                }
                3 => {
                    b.worker.close(to_a);
                    let gone = b.worker.put_answer(&token, 1 << 16, &[7; 100][..]);
                    assert!(matches!(gone, Err(ReplyError::Gone)));
                    assert!(matches!(b.worker.finish_answer(token), Err(ReplyError::Gone)));
                    a.worker.close(to_b);
                    Status::Cancelled
                }
                _ => {
                    let too_long = b.worker.begin_answer(&mut token, 1 << 30);
                    assert!(matches!(too_long, Err(ReplyError::TooLong { .. })));
                    // Begun anew, with what this caller may see.
                    b.worker.begin_answer(&mut token, 1 << 18).unwrap();
                    b.worker.finish_answer(token).unwrap();
                    Status::Ok
                }
            };
            until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.contains_key(&cookie));
            assert_eq!(a.program.ended[&cookie].0, expected, "case {case}");
            until(&mut [&mut a, &mut b], |nodes| nodes[1].worker.large_memory().used_bytes == 0);
        }
    }
}

/// Rule C6.6: a call that ends while its answer arrives ends once, is told no piece afterwards, and leaves
/// nothing: cancelled, by its deadline, and with its connection, after its first pieces and its last but some.
#[test]
fn a_call_that_ends_between_pieces_ends_once() {
    // More than are outstanding at a time, twice.
    let len_bytes = 20 << 17;
    for config in [tight(), Config { transport: TransportKind::Dc, ..tight() }] {
        for (case, told_bytes) in
            [1, 5 << 17].into_iter().flat_map(|at| [0, 1, 2].map(|case| (case, at)))
        {
            let (mut a, mut b, to_b, _) = pair(&config);
            a.program.takes_pieces = true;
            let timeout = core::time::Duration::from_secs(60);
            let call = Call { method: LATER, cookie: 1, timeout, ..Call::default() };
            let id = a.worker.call(to_b, &call, b"").unwrap();
            until(&mut [&mut a, &mut b], |nodes| nodes[1].program.kept.len() == 1);
            let (token, _) = b.program.kept.remove(0);
            b.worker.reply(token, Status::Ok, &body(9, len_bytes)).unwrap();
            let told = |node: &Node| node.program.pieces.get(&1).map_or(0, |(_, got)| *got);
            until(&mut [&mut a, &mut b], |nodes| told(nodes[0]) >= told_bytes);
            let expected = match case {
                0 => {
                    a.worker.cancel(to_b, id);
                    Status::Cancelled
                }
                1 => {
                    let later_ns = os::clock::now_ns() + 61_000_000_000;
                    a.worker.poll(later_ns, &mut a.program);
                    Status::DeadlineExceeded
                }
                _ => {
                    a.worker.close(to_b);
                    Status::Cancelled
                }
            };
            until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.contains_key(&1));
            let (status, _) = &a.program.ended[&1];
            assert_eq!(*status, expected, "case {case} at {told_bytes}");
            // What is left of the transfer ends, and its memory comes back.
            until(&mut [&mut a, &mut b], |nodes| {
                nodes.iter().all(|node| node.worker.large_memory().used_bytes == 0) || case == 2
            });
            if case < 2 {
                a.program.ended.clear();
                a.program.pieces.clear();
                let large = body(3, 300_000);
                let cookie = a.call(to_b, ECHO, &large).unwrap();
                until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.contains_key(&cookie));
                assert!(a.program.ended[&cookie] == (Status::Ok, large));
            }
        }
    }
}

/// A body in parts is the same body, in the ring and by rendezvous, there and back.
#[test]
fn bodies_in_parts_arrive_as_one() {
    for config in shapes() {
        let longest = config.geometry().unwrap().body_bytes_max();
        let (mut a, mut b, to_b, _) = pair(&config);
        let whole = body(5, longest + 1);
        let cases: [&[&[u8]]; 5] = [
            &[],
            &[b"", b""],
            &[&whole[..8], b"", &whole[8..100]],
            &[b"", &whole[..longest - 3], &whole[longest - 3..longest]],
            &[&whole[..1], &whole[1..longest], &whole[longest..]],
        ];
        for (cookie, parts) in (1000..).zip(cases) {
            let call = Call { method: LATER, cookie, response_bytes: longest, ..Call::default() };
            a.worker.call_parts(to_b, &call, parts).unwrap();
            until(&mut [&mut a, &mut b], |nodes| !nodes[1].program.kept.is_empty());
            let (token, request) = b.program.kept.remove(0);
            assert!(request == parts.concat(), "{} parts", parts.len());
            b.worker.reply_parts(token, Status::Ok, parts).unwrap();
            until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.contains_key(&cookie));
            assert!(a.program.ended[&cookie] == (Status::Ok, parts.concat()));
        }
        let too_long = vec![&whole[..]; 1 << 15];
        let refused = a.worker.call_parts(to_b, &Call::default(), &too_long);
        assert!(matches!(refused, Err(CallError::TooLong { .. })), "{refused:?}");
    }
}

#[test]
fn sixteen_mebibytes_go_and_come() {
    let (mut a, mut b, to_b, _) = pair(&tight());
    let body = body(3, 1 << 24);
    let cookie = a.call(to_b, ECHO, &body).unwrap();
    until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.contains_key(&cookie));
    let (status, answer) = &a.program.ended[&cookie];
    assert_eq!((*status, answer.len()), (Status::Ok, body.len()));
    assert!(*answer == body, "other bytes came back");
}

/// Several at once, in strict mode, which delays READs and shuffles their bytes.
#[test]
fn large_and_small_bodies_mix_in_strict_mode() {
    for (seed, transport) in [TransportKind::Rc, TransportKind::Dc].into_iter().enumerate() {
        let config = Config { transport, ..tight() };
        let nic = soft(&crate::rig::fabric(), Some(seed as u64 + 77));
        let mut a = crate::rig::Node::open_on(&nic, &config);
        let mut b = crate::rig::Node::open_on(&nic, &config);
        let (to_b, _) = join(&mut a, &mut b);
        let bodies: Vec<_> =
            (0..60).map(|number| body(number, [10, 3000, 70_000][number % 3])).collect();
        for body in &bodies {
            loop {
                match a.call(to_b, ECHO, body) {
                    Ok(_) => break,
                    Err(CallError::Busy(_)) => {
                        a.poll();
                        b.poll();
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
        until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.len() == bodies.len());
        for ((status, answer), body) in a.program.ended.values().zip(&bodies) {
            assert_eq!(*status, Status::Ok);
            assert!(answer == body);
        }
    }
}

/// Every queue has a capacity: what does not fit is refused, and fits again later. Rule C6.5: each peer has
/// memory of its own.
#[test]
fn memory_for_large_bodies_is_bounded() {
    let config = Config { large_memory_bytes: 1 << 17, ..tight() };
    let (mut a, mut b, to_b, _) = pair(&config);
    let large = body(1, 60_000);
    let call = |a: &mut Node| {
        let call = Call { method: LATER, cookie: a.program.made as u64, ..Call::default() };
        a.worker.call(to_b, &call, &large).inspect(|_| a.program.made += 1)
    };
    call(&mut a).unwrap();
    call(&mut a).unwrap();
    let refused = call(&mut a);
    assert_eq!(refused, Err(CallError::NoMemory { len_bytes: 60_000 }));
    let (of_its_own, _) = join(&mut a, &mut b);
    let other = Call { method: ECHO, cookie: 100, ..Call::default() };
    a.worker.call(of_its_own, &other, &large).unwrap();
    until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.contains_key(&100));
    a.program.ended.remove(&100);
    until(&mut [&mut a, &mut b], |nodes| nodes[1].program.kept.len() == 2);
    for (token, _) in b.program.kept.split_off(0) {
        b.worker.reply(token, Status::Ok, b"done").unwrap();
    }
    until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.len() == 2);
    a.call(to_b, ECHO, &large).unwrap();
    until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.len() == 3);
    assert!(a.program.ended[&2] == (Status::Ok, large));
}

/// Rule C6.3.
#[test]
fn a_call_that_is_given_up_leaves_its_large_body_until_the_answer() {
    let timeout = core::time::Duration::from_millis(10);
    for (is_cancelled, expected) in [(false, Status::DeadlineExceeded), (true, Status::Cancelled)] {
        let (mut a, mut b, to_b, _) = pair(&tight());
        let call = Call { method: LATER, timeout, cookie: 1, ..Call::default() };
        let id = a.worker.call(to_b, &call, &body(2, 50_000)).unwrap();
        if is_cancelled {
            a.worker.cancel(to_b, id);
        }
        until(&mut [&mut a], |nodes| !nodes[0].program.ended.is_empty());
        assert_eq!(a.program.ended[&1].0, expected);
        let other = Call { method: LATER, cookie: 2, ..Call::default() };
        a.worker.call(to_b, &other, &body(4, 50_000)).unwrap();
        until(&mut [&mut a, &mut b], |nodes| nodes[1].program.kept.len() == 2);
        let arrived = &b.program.kept.iter().map(|(_, body)| body).collect::<Vec<_>>();
        assert!(arrived.contains(&&body(2, 50_000)), "the peer may read it until it answers");
        for (token, _) in b.program.kept.split_off(0) {
            b.worker.reply(token, Status::Ok, &body(3, 50_000)).unwrap();
        }
        until(&mut [&mut a, &mut b], |nodes| nodes[0].worker.counters(to_b).unwrap().late == 1);
    }
}

#[test]
fn one_sided_access_moves_bytes_both_ways() {
    for config in shapes() {
        let (mut a, mut b, to_b, _) = pair(&config);
        let theirs = b.worker.expose(4096).unwrap();
        let ours = a.worker.expose(4096).unwrap();
        let remote = RemoteRegion::from_bytes(theirs.remote().to_bytes());
        ours.write(100, b"one-sided");
        let range = Range { remote_offset: 7, local_offset: 100, len_bytes: 9 };
        a.worker.write(to_b, &ours, &remote, range, 1).unwrap();
        until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.contains_key(&1));
        assert_eq!(a.program.ended[&1].0, Status::Ok, "{config:?}");
        let mut there = [0; 9];
        theirs.read(7, &mut there);
        assert_eq!(&there, b"one-sided");
        let range = Range { remote_offset: 7, local_offset: 3000, len_bytes: 9 };
        a.worker.read(to_b, &remote, &ours, range, 2).unwrap();
        until(&mut [&mut a], |nodes| nodes[0].program.ended.contains_key(&2));
        let mut back = [0; 9];
        ours.read(3000, &mut back);
        assert_eq!(&back, b"one-sided");
        let outside = Range { remote_offset: 4090, local_offset: 0, len_bytes: 9 };
        let error = a.worker.read(to_b, &remote, &ours, outside, 3);
        assert_eq!(error, Err(TransferError::Remote(outside)));
    }
}

/// Fault D9: memory that its owner took back is not read; the access ends, and so does the
/// connection, for the peer's NIC refused.
#[test]
fn fault_d9_a_region_that_is_gone_ends_the_access() {
    for transport in [TransportKind::Rc, TransportKind::Dc] {
        let (mut a, mut b, to_b, _) = pair(&Config { transport, ..tight() });
        let theirs = b.worker.expose(4096).unwrap();
        let remote = theirs.remote();
        drop(theirs);
        let ours = a.worker.expose(4096).unwrap();
        let range = Range { remote_offset: 0, local_offset: 0, len_bytes: 64 };
        a.worker.read(to_b, &remote, &ours, range, 1).unwrap();
        until(&mut [&mut a, &mut b], |nodes| {
            !nodes[0].program.ended.is_empty() && !nodes[0].program.closed.is_empty()
        });
        assert_eq!(a.program.ended[&1].0, Status::Unavailable);
        assert!(matches!(a.program.closed[0].1, CloseReason::Failed(_)));
    }
}

/// Accesses have a capacity too: what exceeds it is refused, and goes later.
#[test]
fn accesses_in_flight_are_bounded() {
    let (mut a, mut b, to_b, _) = pair(&Config { accesses_max: 2, ..tight() });
    let (theirs, ours) = (b.worker.expose(64).unwrap(), a.worker.expose(64).unwrap());
    let range = Range { remote_offset: 0, local_offset: 0, len_bytes: 8 };
    let write =
        |node: &mut Node, cookie| node.worker.write(to_b, &ours, &theirs.remote(), range, cookie);
    assert_eq!([write(&mut a, 0), write(&mut a, 1)], [Ok(()), Ok(())]);
    assert_eq!(write(&mut a, 2), Err(TransferError::Busy(2)));
    until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.len() == 2);
    assert_eq!(write(&mut a, 2), Ok(()));
    a.worker.close(to_b);
    until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.len() == 3);
}

/// A READ that has ended with its connection is not told again by the name of a later one.
#[test]
fn an_access_ends_only_when_its_own_bytes_have_moved() {
    struct Again {
        to_b: PeerId,
        theirs: RemoteRegion,
        ours: LocalRegion<Nic>,
        seen: Vec<(u64, Status, [u8; 4])>,
    }
    impl Handler<Nic> for Again {
        fn request(&mut self, _: &mut Worker<Nic>, _: Request<'_>) {}
        fn response(&mut self, worker: &mut Worker<Nic>, cookie: u64, status: Status, _: &[u8]) {
            let mut there = [0; 4];
            self.ours.read(0, &mut there);
            self.seen.push((cookie, status, there));
            if cookie == 0 {
                let range = |at| Range { remote_offset: 0, local_offset: at, len_bytes: 4 };
                worker.read(self.to_b, &self.theirs, &self.ours, range(32), 10).unwrap();
                worker.read(self.to_b, &self.theirs, &self.ours, range(0), 11).unwrap();
            }
        }
    }
    let fabric = crate::rig::fabric();
    let open = || Node::open(&fabric, &tight());
    let (mut a, mut b, mut c) = (open(), open(), open());
    let (to_b, _) = join(&mut a, &mut b);
    let (to_c, _) = join(&mut a, &mut c);
    let (theirs, gone) = (b.worker.expose(64).unwrap(), c.worker.expose(64).unwrap());
    theirs.write(0, b"read");
    let (alive, ours) = (c.worker.expose(64).unwrap(), a.worker.expose(64).unwrap());
    let dead = gone.remote();
    drop(gone);
    let mut again = Again { to_b, theirs: theirs.remote(), ours: ours.clone(), seen: Vec::new() };
    let range = Range { remote_offset: 0, local_offset: 60, len_bytes: 4 };
    a.worker.read(to_b, &theirs.remote(), &ours, range, 0).unwrap();
    a.worker.read(to_c, &alive.remote(), &ours, range, 1).unwrap();
    a.worker.read(to_c, &dead, &ours, range, 2).unwrap();
    a.worker.flush();
    let start = std::time::Instant::now();
    while again.seen.len() < 5 {
        assert!(start.elapsed().as_secs() < 30, "{:?}", again.seen);
        a.worker.poll(os::clock::now_ns(), &mut again);
    }
    let end = again.seen.iter().find(|(cookie, ..)| *cookie == 11).unwrap();
    assert_eq!((end.1, &end.2), (Status::Ok, b"read"), "{:?}", again.seen);
}

/// Fault D4: what an initiator had not started when it failed for one peer is moved for the others, and
/// ends for that one.
#[test]
fn fault_d4_accesses_behind_one_that_fails_are_made_again() {
    let config = Config { transport: TransportKind::Dc, dcis: 1, ..tight() };
    let fabric = crate::rig::fabric();
    let open = || Node::open(&fabric, &config);
    let (mut a, mut b, mut c) = (open(), open(), open());
    let (to_b, _) = join(&mut a, &mut b);
    let (to_c, _) = join(&mut a, &mut c);
    let (theirs, ours) = (b.worker.expose(64).unwrap(), a.worker.expose(64).unwrap());
    theirs.write(0, b"read");
    let gone = c.worker.expose(64).unwrap();
    let dead = gone.remote();
    drop(gone);
    let range = |at| Range { remote_offset: 0, local_offset: at, len_bytes: 4 };
    a.worker.read(to_c, &dead, &ours, range(0), 0).unwrap();
    a.worker.read(to_b, &theirs.remote(), &ours, range(8), 1).unwrap();
    a.worker.read(to_c, &theirs.remote(), &ours, range(16), 2).unwrap();
    let called = Call { method: ECHO, cookie: 3, ..Call::default() };
    a.worker.call(to_b, &called, b"behind").unwrap();
    until(&mut [&mut a, &mut b, &mut c], |nodes| nodes[0].program.ended.len() == 4);
    let ended = [0, 1, 2, 3].map(|cookie| a.program.ended[&cookie].0);
    assert_eq!(ended, [Status::Unavailable, Status::Ok, Status::Unavailable, Status::Ok]);
    let mut there = [0; 4];
    ours.read(8, &mut there);
    assert_eq!(&there, b"read");
    assert_eq!((a.program.closed.len(), a.worker.is_connected(to_b)), (1, true));
}

/// Two workers, with so much registered memory for what they exchange, each.
fn pair_with_memory(caller_bytes: usize, server_bytes: usize) -> (Node, Node, PeerId) {
    let fabric = crate::rig::fabric();
    let open = |large_memory_bytes| Node::open(&fabric, &Config { large_memory_bytes, ..tight() });
    let (mut a, mut b) = (open(caller_bytes), open(server_bytes));
    let (to_b, _) = join(&mut a, &mut b);
    (a, b, to_b)
}

/// A request whose body cannot be fetched was not executed, and says so.
#[test]
fn a_request_for_which_the_server_has_no_memory_may_be_made_again() {
    let (mut a, mut b, to_b) = pair_with_memory(1 << 20, 1 << 14);
    let cookie = a.call(to_b, ECHO, &vec![1; 40_000]).unwrap();
    until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.contains_key(&cookie));
    assert_eq!(a.program.ended[&cookie], (Status::ResourceExhausted, vec![]));
    assert_eq!(b.program.served, 0);
}

/// Who takes `ResourceExhausted` for "try again" would execute twice what was executed.
#[test]
fn a_call_that_was_executed_and_whose_answer_finds_no_memory_does_not_say_that_it_may_be_made_again()
 {
    // Of the server, which has room for one large answer.
    let (mut a, mut b, to_b) = pair_with_memory(1 << 20, 1 << 16);
    let cookies = [0, 1].map(|_| a.call(to_b, LATER, b"x").unwrap());
    until(&mut [&mut a, &mut b], |nodes| nodes[1].program.kept.len() == 2);
    let large = vec![2; 40_000];
    let replies = b.program.kept.drain(..).map(|(token, _)| token);
    let replies: Vec<_> = replies.map(|token| b.worker.reply(token, Status::Ok, &large)).collect();
    assert_eq!(replies, [Ok(()), Err(ReplyError::NoMemory { len_bytes: 40_000 })]);
    until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.len() == 2);
    assert!(a.program.ended[&cookies[0]] == (Status::Ok, large));
    assert_eq!(a.program.ended[&cookies[1]], (Status::Unavailable, vec![]));
    // Of the caller.
    let (mut a, mut b, to_b) = pair_with_memory(1 << 14, 1 << 16);
    let cookie = a.call(to_b, LATER, b"x").unwrap();
    until(&mut [&mut a, &mut b], |nodes| nodes[1].program.kept.len() == 1);
    b.worker.reply(b.program.kept.remove(0).0, Status::Ok, &[3; 40_000]).unwrap();
    until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.contains_key(&cookie));
    assert_eq!(a.program.ended[&cookie], (Status::Unavailable, vec![]));
    // What the server lent for that is given back: it has no more than that.
    let cookie = a.call(to_b, LATER, b"x").unwrap();
    until(&mut [&mut a, &mut b], |nodes| nodes[1].program.kept.len() == 1);
    b.worker.reply(b.program.kept.remove(0).0, Status::Ok, &[4; 40_000]).unwrap();
    until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.contains_key(&cookie));
}

/// Rule C6.3: also if the answer to a call that was given up is itself in memory that nobody fetches.
#[test]
fn the_large_body_of_a_call_that_was_given_up_is_free_after_a_large_answer() {
    let (mut a, mut b, to_b) = pair_with_memory(1 << 16, 1 << 20);
    for round in 0..3 {
        let call = Call { method: LATER, cookie: round, ..Call::default() };
        let id = a.worker.call(to_b, &call, &[1; 40_000]).expect("the memory is free again");
        until(&mut [&mut a, &mut b], |nodes| nodes[1].program.kept.len() == 1);
        a.worker.cancel(to_b, id);
        b.worker.reply(b.program.kept.remove(0).0, Status::Ok, &[2; 40_000]).unwrap();
        let batches = a.worker.counters(to_b).unwrap().batches_in;
        until(&mut [&mut a, &mut b], |nodes| {
            nodes[0].worker.counters(to_b).unwrap().batches_in > batches
        });
        assert_eq!(a.program.ended[&round].0, Status::Cancelled);
    }
}

#[test]
fn a_large_call_that_is_refused_leaves_its_memory() {
    let (mut a, mut b, to_b) = pair_with_memory(1 << 16, 1 << 20);
    while a.call(to_b, LATER, b"x").is_ok() {}
    let made = a.program.made;
    for _ in 0..3 {
        let refused = a.call(to_b, LATER, &[1; 40_000]);
        assert!(matches!(refused, Err(CallError::Busy(_))), "{refused:?}");
    }
    until(&mut [&mut a, &mut b], |nodes| nodes[1].program.kept.len() == made);
    for (token, _) in b.program.kept.drain(..) {
        b.worker.reply(token, Status::Ok, b"").unwrap();
    }
    until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.len() == made);
    a.call(to_b, ECHO, &[1; 40_000]).expect("all of it is there");
}

/// Of one access at a time, also after some that failed.
#[test]
fn accesses_that_failed_are_not_in_flight_any_more() {
    for transport in [TransportKind::Rc, TransportKind::Dc] {
        let config = Config { transport, accesses_max: 1, ..tight() };
        let fabric = crate::rig::fabric();
        let (mut a, mut b) = (Node::open(&fabric, &config), Node::open(&fabric, &config));
        let ours = a.worker.expose(64).unwrap();
        let range = || Range { remote_offset: 0, local_offset: 0, len_bytes: 4 };
        for round in 0..3 {
            let (to_b, _) = join(&mut a, &mut b);
            let dead = b.worker.expose(64).unwrap().remote();
            a.worker.read(to_b, &dead, &ours, range(), round).expect("none is in flight");
            until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.contains_key(&round));
            assert_eq!(a.program.ended[&round].0, Status::Unavailable);
            until(&mut [&mut a, &mut b], |nodes| {
                nodes[0].worker.peers() == 0
                    && (transport == TransportKind::Dc || nodes[1].worker.peers() == 0)
            });
            assert_eq!(a.worker.stats().failures, round + 1);
        }
    }
}

/// Fault D4, rule C3.4: credit that an initiator had not written when it failed for another peer is written
/// again, though nothing more happens.
#[test]
fn fault_d4_credit_behind_an_access_that_fails_is_written_again() {
    let config = Config { transport: TransportKind::Dc, dcis: 1, ..tight() };
    let fabric = crate::rig::fabric();
    let open = || Node::open(&fabric, &config);
    let (mut a, mut b, mut c) = (open(), open(), open());
    let (to_b, to_a) = join(&mut a, &mut b);
    let (to_c, _) = join(&mut a, &mut c);
    let ours = a.worker.expose(64).unwrap();
    let dead = c.worker.expose(64).unwrap().remote();
    let now_ns = os::clock::now_ns() + (1 << 24);
    let call = Call { method: ECHO, cookie: 1, ..Call::default() };
    a.worker.call(to_b, &call, b"x").unwrap();
    // Time stands still, so that no credit is due before all is in place.
    while !a.program.ended.contains_key(&1) {
        a.worker.poll(now_ns, &mut a.program);
        b.worker.poll(now_ns, &mut b.program);
    }
    let range = Range { remote_offset: 0, local_offset: 0, len_bytes: 4 };
    a.worker.read(to_c, &dead, &ours, range, 0).unwrap();
    // Longer than credit waits that is not needed (rule C3.8).
    a.worker.poll(now_ns + 4_000_000, &mut a.program);
    assert_eq!(a.worker.counters(to_b).unwrap().credits_out, 1, "behind the access that fails");
    assert_eq!(b.worker.counters(to_a).unwrap().trips, 0);
    until(&mut [&mut a, &mut b, &mut c], |nodes| nodes[0].program.ended.contains_key(&0));
    assert_eq!(a.program.ended[&0].0, Status::Unavailable);
    until(&mut [&mut a, &mut b, &mut c], |nodes| {
        nodes[1].worker.counters(to_a).unwrap().trips == 1
    });
}
