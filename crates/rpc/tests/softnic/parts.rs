//! Bodies that the program puts in parts.

use copyrpc_rpc::{Call, CallError, Config, ReplyError, Status, TransportKind};

use crate::{
    basics::body,
    rig::{ECHO, LATER, pair, shapes, tight, until},
};

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

/// A body that others may write is behind the heads, in the ring and by rendezvous, there and back.
#[test]
fn a_body_that_is_lent_follows_its_heads() {
    for config in shapes() {
        let longest = config.geometry().unwrap().body_bytes_max();
        let (mut a, mut b, to_b, _) = pair(&config);
        let whole = body(6, longest + 9);
        for (cookie, len_bytes) in (2000..).zip([0, 1, 100, longest - 8, longest - 7, longest + 1])
        {
            let (heads, rest) = whole[..len_bytes + 8].split_at(8);
            let (first, second) = heads.split_at(3);
            let call = Call { method: LATER, cookie, response_bytes: longest, ..Call::default() };
            a.worker.call_lent(to_b, &call, &[first, second], rest.into()).unwrap();
            until(&mut [&mut a, &mut b], |nodes| !nodes[1].program.kept.is_empty());
            let (token, request) = b.program.kept.remove(0);
            assert!(request == whole[..len_bytes + 8], "{len_bytes} B");
            b.worker.reply_lent(token, Status::Ok, rest.into()).unwrap();
            until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.contains_key(&cookie));
            assert!(a.program.ended[&cookie] == (Status::Ok, rest.to_vec()), "{len_bytes} B");
        }
    }
}
