//! Bodies that do not fit the ring, whole.

use std::mem;

use copyrpc_rpc::{
    Body, Call, CallEnd, CallError, Config, Handler, Request, Status, Token, TransportKind, Worker,
};
use softnic::Nic;

use crate::{
    basics::body,
    rig::{ECHO, Node, fabric, join, pair, poll_until, shapes, soft, tight, until},
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
    fn request(&mut self, _: &mut Worker<Nic>, request: Request, body: Body<'_, Nic>) {
        let Body::Owned(memory) = body else { panic!("it is large") };
        assert_eq!(request.method, ECHO);
        self.requests.push((request.token, mem::take(memory)));
    }

    fn ended(&mut self, _: &mut Worker<Nic>, cookie: u64, end: CallEnd<'_, Nic>) {
        let CallEnd::Answered(Status::Ok, Body::Owned(memory)) = end else { panic!("it is large") };
        self.responses.push((cookie, mem::take(memory)));
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
            poll_until("the answer", || {
                a.worker.poll(os::clock::now_ns(), &mut caller);
                b.worker.poll(os::clock::now_ns(), &mut server);
                if let Some((token, request)) = server.requests.pop() {
                    assert!(request == body, "{len_bytes} B");
                    b.worker.reply(token, Status::Ok, &request).unwrap();
                    b.worker.keep_memory(request);
                }
                !caller.responses.is_empty()
            });
            let (ended, response) = caller.responses.pop().unwrap();
            assert!(ended == cookie && response == body, "{len_bytes} B");
            a.worker.keep_memory(response);
        }
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
        let nic = soft(&fabric(), Some(seed as u64 + 77));
        let mut a = Node::open_on(&nic, &config);
        let mut b = Node::open_on(&nic, &config);
        let (to_b, _) = join(&mut a, &mut b);
        let bodies: Vec<_> =
            (0..60).map(|number| body(number, [10, 3000, 70_000][number % 3])).collect();
        for body in &bodies {
            poll_until("room for a call", || match a.call(to_b, ECHO, body) {
                Ok(_) => true,
                Err(CallError::Busy(_)) => {
                    a.poll();
                    b.poll();
                    false
                }
                Err(error) => panic!("{error}"),
            });
        }
        until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.len() == bodies.len());
        for ((status, answer), body) in a.program.ended.values().zip(&bodies) {
            assert_eq!(*status, Status::Ok);
            assert!(answer == body);
        }
    }
}
