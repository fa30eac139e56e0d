//! Large requests and answers that a handler keeps where the NIC put them.

use copyrpc_rpc::{
    Body, BodyForm, Call, CallEnd, Config, Delivery, Fetch, Handler, LandedBody, Request, Status,
    Token, TransportKind, Worker,
};
use memory::Filler;
use softnic::Nic;

use crate::{
    basics::body,
    rig::{ECHO, Node, fabric, join, pair, poll_until, shapes, until},
};

/// Keeps large requests and answers where they land.
#[derive(Default)]
struct Landing {
    requests: Vec<(Token, LandedBody<Nic>)>,
    answers: Vec<(u64, LandedBody<Nic>)>,
    asked: Vec<Fetch>,
}

impl Handler<Nic> for Landing {
    fn request(&mut self, _: &mut Worker<Nic>, request: Request, body: Body<'_, Nic>) {
        let Body::Landed(landed) = body else { panic!("it was wanted where it landed") };
        self.requests.push((request.token, landed));
    }

    fn wants(&mut self, fetch: Fetch) -> Delivery {
        self.asked.push(fetch);
        Delivery { form: BodyForm::Landed, ..Delivery::default() }
    }

    fn ended(&mut self, _: &mut Worker<Nic>, cookie: u64, end: CallEnd<'_, Nic>) {
        if let CallEnd::Answered(Status::Ok, Body::Landed(landed)) = end {
            self.answers.push((cookie, landed));
        }
    }
}

/// A handler that keeps requests where they land has all of each, however many it keeps, without a copy, until it drops
/// them; and that gives their memory back.
#[test]
fn requests_that_stay_where_they_land_are_whole_and_not_copied() {
    for config in shapes() {
        let (mut a, mut b, to_b, _) = pair(&config);
        let [mut caller, mut server] = [(); 2].map(|()| Landing::default());
        let lengths = [300_000, 40_000, (3 << 17) + 1, 70_000];
        for (cookie, len_bytes) in (1..).zip(lengths) {
            let call = Call { method: ECHO, cookie, ..Call::default() };
            a.worker.call(to_b, &call, &body(len_bytes, len_bytes)).unwrap();
        }
        poll_until("every request", || {
            a.worker.poll(os::clock::now_ns(), &mut caller);
            b.worker.poll(os::clock::now_ns(), &mut server);
            server.requests.len() == lengths.len()
        });
        assert_eq!(b.worker.stats().bodies.copied_bytes, 0);
        assert!(b.worker.large_memory().used_bytes >= lengths.iter().sum());
        let asked = lengths.map(|len_bytes| Fetch::Request(ECHO, len_bytes));
        assert_eq!(server.asked, asked);
        for (token, landed) in server.requests.drain(..) {
            let len_bytes = landed.len_bytes();
            let (expected, mut got) = (body(len_bytes, len_bytes), vec![0; len_bytes]);
            landed.copy_to(0, &mut got);
            assert!(got == expected, "{len_bytes} B");
            let part = 1..len_bytes - 1;
            let mut put = vec![0; part.len()];
            assert!(landed.put_to(part.clone(), &mut Filler::from(&mut put[1..])).is_err());
            landed.put_to(part.clone(), &mut Filler::from(&mut put[..])).unwrap();
            assert!(put == expected[part], "{len_bytes} B");
            b.worker.reply(token, Status::Ok, &[]).unwrap();
        }
        assert_eq!(b.worker.large_memory().used_bytes, 0);
    }
}

/// The same of answers.
#[test]
fn answers_that_stay_where_they_land_are_whole_and_not_copied() {
    for config in shapes() {
        let (mut a, mut b, to_b, _) = pair(&config);
        let mut caller = Landing::default();
        let lengths = [300_000, 40_000];
        for (cookie, len_bytes) in (0..).zip(lengths) {
            let call = Call { method: ECHO, cookie, ..Call::default() };
            a.worker.call(to_b, &call, &body(len_bytes, len_bytes)).unwrap();
        }
        poll_until("every answer", || {
            a.worker.poll(os::clock::now_ns(), &mut caller);
            b.poll();
            caller.answers.len() == lengths.len()
        });
        let asked_bytes = lengths.iter().sum::<usize>() as u64;
        assert_eq!(a.worker.stats().bodies.copied_bytes, asked_bytes, "the requests alone");
        assert!(a.worker.large_memory().used_bytes >= lengths.iter().sum());
        for (cookie, landed) in caller.answers.drain(..) {
            let len_bytes = lengths[usize::try_from(cookie).unwrap()];
            assert!(*Body::Landed(landed).bytes() == body(len_bytes, len_bytes), "{len_bytes} B");
        }
        until(&mut [&mut a, &mut b], |nodes| {
            nodes.iter().all(|node| node.worker.large_memory().used_bytes == 0)
        });
    }
}

/// The end that lends a body goes while the other one fetches it, and its memory with it: no request is told, the memory
/// for it is free again, and another peer's call is answered. At either end, and where the body is kept as it lands.
#[test]
fn fault_d12_an_end_that_goes_amid_a_long_body_takes_nothing_along() {
    for transport in [TransportKind::Rc, TransportKind::Dc] {
        let config = Config { transport, ..Config::default() };
        for is_kept in [false, true] {
            let fabric = fabric();
            let [mut caller, mut other, mut server] =
                [(); 3].map(|()| Node::open(&fabric, &config));
            let (to_server, _) = join(&mut caller, &mut server);
            let (from_other, _) = join(&mut other, &mut server);
            let call = Call { method: ECHO, cookie: 1, ..Call::default() };
            // More pieces than are outstanding at a time.
            caller.worker.call(to_server, &call, &body(7, 2 << 20)).unwrap();
            let mut landing = Landing::default();
            poll_until("the first piece", || {
                caller.poll();
                if is_kept {
                    server.worker.poll(os::clock::now_ns(), &mut landing);
                } else {
                    server.poll();
                }
                server.worker.stats().bodies.pieces > 0
            });
            assert!(server.worker.stats().bodies.moved_bytes < 2 << 20, "it is amid the body");
            drop(caller);
            let cookie = other.call(from_other, ECHO, &body(8, 300_000)).unwrap();
            until(&mut [&mut other, &mut server], |nodes| {
                nodes[0].program.ended.contains_key(&cookie)
                    && nodes[1].worker.large_memory().used_bytes == 0
            });
            assert!(other.program.ended[&cookie] == (Status::Ok, body(8, 300_000)));
            assert!(landing.requests.is_empty());
            assert_eq!(server.program.served, 1, "the other's");
        }
    }
}
