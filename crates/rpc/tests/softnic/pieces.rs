//! Answers that are told in pieces.

use std::{collections::BTreeMap, mem, time::Duration};

use copyrpc_rpc::{Call, Config, Status, TransportKind};

use crate::{
    basics::body,
    rig::{ECHO, LATER, Node, fabric, join, pair, shapes, soft, tight, until},
};

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
        let nic = soft(&fabric(), Some(seed as u64 + 99));
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
            for (cookie, ended) in mem::take(&mut a.program.ended) {
                assert!(ended == (Status::Ok, bodies[&cookie].clone()), "call {cookie}");
            }
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
            let timeout = Duration::from_secs(60);
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
