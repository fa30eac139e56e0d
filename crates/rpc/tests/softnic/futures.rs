//! Calls as futures, and requests that are held.

use std::{
    future::Future as _,
    pin::pin,
    task::{Context, Poll, Waker},
};

use copyrpc_rpc::{
    Body, BodyForm, BodyPiece, Call, CallEnd, CallError, CloseReason, Config, Delivery, Fetch,
    Handler, PeerId, Request, RequestId, Status, Token, Worker, futures::AsyncWorker,
};
use memory::sync::{AtomicU64, Ordering};
use softnic::Nic;

use crate::rig::{ECHO, LATER, Node, fabric, poll_until, soft, tight, until};

/// Serves, and calls from inside a callback through the handle that it must not use there.
#[derive(Default)]
struct Server {
    is_slow: bool,
    kept: Vec<Token>,
}

impl Handler<Nic> for Server {
    fn request(&mut self, worker: &mut Worker<Nic>, request: Request, body: Body<'_, Nic>) {
        if self.is_slow {
            self.kept.push(request.token);
        } else {
            worker.reply(request.token, Status::Ok, &body.bytes()).unwrap();
        }
    }

    fn ended(&mut self, _: &mut Worker<Nic>, _: u64, _: CallEnd<'_, Nic>) {}
}

type Async = AsyncWorker<Nic, Server>;

fn pair() -> (Async, Async, copyrpc_rpc::PeerId) {
    pair_at(os::clock::now_ns)
}

fn pair_at(clock: fn() -> u64) -> (Async, Async, copyrpc_rpc::PeerId) {
    let fabric = fabric();
    let open = || {
        let nic = softnic::open(&soft(&fabric, None)).unwrap();
        Worker::open(nic, tight(), clock()).unwrap()
    };
    let (mut a, mut b) = (open(), open());
    let (to_b, from_a) = a.invite().unwrap();
    let (to_a, from_b) = b.invite().unwrap();
    a.connect(to_b, &from_b).unwrap();
    b.connect(to_a, &from_a).unwrap();
    let wrap = |worker| AsyncWorker::new(worker, Server::default(), clock);
    (wrap(a), wrap(b), to_b)
}

/// Polls a future while the other side is polled too.
fn block_on<F: std::future::Future>(future: F, other: &Async) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    let mut output = None;
    poll_until("the end of a future", || {
        other.poll();
        match future.as_mut().poll(&mut context) {
            Poll::Ready(ready) => output = Some(ready),
            Poll::Pending => {}
        }
        output.is_some()
    });
    output.unwrap()
}

/// Polls both workers, no future.
#[track_caller]
fn poll_both(a: &Async, b: &Async, is_done: impl Fn() -> bool) {
    poll_until("what two workers do", || {
        is_done() || {
            a.poll();
            b.poll();
            false
        }
    });
}

#[test]
fn a_future_ends_with_the_response() {
    let (a, b, to_b) = pair();
    let call = a.call(to_b, &Call::default(), b"future").unwrap();
    assert_eq!(block_on(call, &b), Ok(b"future".to_vec()));
    let many = (0..3_u8).map(|n| a.call(to_b, &Call::default(), &[n]).unwrap());
    for (n, call) in many.collect::<Vec<_>>().into_iter().enumerate() {
        assert_eq!(block_on(call, &b).unwrap(), [u8::try_from(n).unwrap()]);
    }
}

/// Fault A13: a future that is dropped cancels its call; nothing of it is left.
#[test]
fn fault_a13_a_dropped_future_cancels_its_call() {
    let (a, b, to_b) = pair();
    b.with(|_, server| server.is_slow = true).unwrap();
    for _ in 0..100 {
        let mut call = Box::pin(a.call(to_b, &Call::default(), b"dropped").unwrap());
        let mut context = Context::from_waker(Waker::noop());
        assert!(call.as_mut().poll(&mut context).is_pending());
        b.poll();
        drop(call);
        a.poll();
        b.poll();
        let token = b.with(|_, server| server.kept.pop()).unwrap();
        if let Some(token) = token {
            b.with(|worker, _| worker.reply(token, Status::Ok, b"late").unwrap()).unwrap();
        }
        b.poll();
        a.poll();
    }
    b.with(|_, server| server.is_slow = false).unwrap();
    let call = a.call(to_b, &Call::default(), b"goes on").unwrap();
    assert_eq!(block_on(call, &b), Ok(b"goes on".to_vec()));
}

/// Fault A13: also where the worker is in use, as inside a callback.
#[test]
fn fault_a13_a_future_that_is_dropped_while_the_worker_is_lent_cancels_its_call() {
    let (a, b, to_b) = pair();
    b.with(|_, server| server.is_slow = true).unwrap();
    let calls = [(); 3].map(|()| a.call(to_b, &Call::default(), b"dropped").unwrap());
    poll_both(&a, &b, || b.with(|_, server| server.kept.len() == 3).unwrap());
    a.with(|_, _| drop(calls)).unwrap();
    poll_both(&a, &b, || {
        b.with(|worker, server| server.kept.iter().all(|token| worker.is_cancelled(token))).unwrap()
    });
}

/// The timeout of a call counts from the call, however long ago the worker was polled.
#[test]
fn a_future_after_a_long_pause_has_all_of_its_time() {
    static PAUSED_NS: AtomicU64 = AtomicU64::new(0);
    let now_ns = || os::clock::now_ns() + PAUSED_NS.load(Ordering::Relaxed);
    let (a, b, to_b) = pair_at(now_ns);
    let call = a.call(to_b, &Call::default(), b"before").unwrap();
    assert_eq!(block_on(call, &b), Ok(b"before".to_vec()));
    PAUSED_NS.store(3_600_000_000_000, Ordering::Relaxed);
    let call = a.call(to_b, &Call::default(), b"after").unwrap();
    assert_eq!(block_on(call, &b), Ok(b"after".to_vec()));
}

#[test]
fn a_dead_peer_ends_a_future() {
    let (a, b, to_b) = pair();
    b.with(|_, server| server.is_slow = true).unwrap();
    let call = a.call(to_b, &Call::default(), b"x").unwrap();
    a.with(|worker, _| worker.close(to_b)).unwrap();
    assert_eq!(block_on(call, &b), Err(Status::Cancelled));
    assert_eq!(a.call(to_b, &Call::default(), b"").err(), Some(CallError::NotConnected));
}

/// Keeps what each callback was given, and wants pieces.
#[derive(Default)]
struct Noting {
    requests: Vec<Token>,
    ends: Vec<(u64, Status)>,
    fetches: Vec<Fetch>,
    piece_bytes: usize,
    cancelled: Vec<RequestId>,
    closed: Vec<PeerId>,
    posts: usize,
}

impl Handler<Nic> for Noting {
    fn request(&mut self, _: &mut Worker<Nic>, request: Request, _: Body<'_, Nic>) {
        self.requests.push(request.token);
    }

    fn ended(&mut self, _: &mut Worker<Nic>, cookie: u64, end: CallEnd<'_, Nic>) {
        self.ends.push((cookie, end.status()));
    }

    fn wants(&mut self, fetch: Fetch) -> Delivery {
        self.fetches.push(fetch);
        Delivery { form: BodyForm::Pieces, ..Delivery::default() }
    }

    fn piece(&mut self, _: u64, piece: &BodyPiece<'_, Nic>) {
        self.piece_bytes += piece.range().len();
    }

    fn cancelled(&mut self, _: &mut Worker<Nic>, _: PeerId, request: RequestId) {
        self.cancelled.push(request);
    }

    fn closed(&mut self, _: &mut Worker<Nic>, peer: PeerId, _: CloseReason) {
        self.closed.push(peer);
    }

    fn posting(&mut self) {
        self.posts += 1;
    }
}

/// A handler behind futures is given all that a handler is given, but the ends of their calls.
#[test]
fn a_handler_behind_futures_gets_every_callback() {
    let (mut a, b, to_b, to_a) = crate::rig::pair(&tight());
    let b = AsyncWorker::new(b.worker, Noting::default(), os::clock::now_ns);
    let until = |a: &mut Node, what: &str, is_done: fn(&Noting) -> bool| {
        poll_until(what, || {
            a.poll();
            b.poll();
            b.with(|_, noting| is_done(noting)).unwrap()
        });
    };
    let len_bytes = 300_000;
    let call = Call { method: LATER, cookie: 7, ..Call::default() };
    let id = a.worker.call(to_b, &call, &vec![1; len_bytes]).unwrap();
    until(&mut a, "the request", |noting| noting.requests.len() == 1);
    a.worker.cancel(to_b, id);
    until(&mut a, "its cancellation", |noting| noting.cancelled.len() == 1);
    b.with(|worker, noting| {
        assert_eq!(noting.cancelled, [noting.requests[0].request()]);
        assert_eq!(noting.fetches, [Fetch::Request(LATER, len_bytes)]);
        let call = Call { method: ECHO, ..call };
        worker.call(to_a, &call, &vec![2; len_bytes]).unwrap();
    });
    until(&mut a, "the end of a call", |noting| noting.ends.len() == 1);
    b.with(|worker, noting| {
        assert_eq!(noting.ends, [(7, Status::Ok)]);
        assert_eq!(noting.fetches[1..], [Fetch::Answer(7, len_bytes)]);
        assert_eq!(noting.piece_bytes, len_bytes);
        assert!(noting.posts > 0);
        worker.close(to_a);
    });
    until(&mut a, "the end of the connection", |noting| noting.closed.len() == 1);
}

/// A future has the whole of its answer, whatever form the handler wants of others.
#[test]
fn a_future_has_a_long_answer_whose_pieces_a_handler_would_take() {
    let (a, mut b, to_b, _) = crate::rig::pair(&tight());
    let a = AsyncWorker::new(a.worker, Noting::default(), os::clock::now_ns);
    let body = vec![3; 300_000];
    let call = Call { method: ECHO, ..Call::default() };
    let mut future = pin!(a.call(to_b, &call, &body).unwrap());
    let mut context = Context::from_waker(Waker::noop());
    let mut answer = None;
    poll_until("the answer", || {
        b.poll();
        if let Poll::Ready(ready) = future.as_mut().poll(&mut context) {
            answer = Some(ready);
        }
        answer.is_some()
    });
    assert!(answer.unwrap().unwrap() == body);
    assert_eq!(a.with(|_, noting| noting.piece_bytes), Some(0));
}

/// Holds every request until told otherwise.
#[derive(Default)]
struct Holder {
    held: Vec<Token>,
}

impl Handler<Nic> for Holder {
    fn request(&mut self, worker: &mut Worker<Nic>, mut request: Request, _: Body<'_, Nic>) {
        assert!(worker.hold(&mut request.token));
        self.held.push(request.token);
    }

    fn ended(&mut self, _: &mut Worker<Nic>, _: u64, _: CallEnd<'_, Nic>) {}
}

/// Pitfall 9: what is held stays as it is, and the caller feels it.
#[test]
fn pitfall_9_a_held_request_keeps_its_bytes_and_slows_the_caller() {
    let config = Config { response_bytes: 1 << 11, calls_max: 100, ..tight() };
    let (mut a, mut b, to_b, _) = crate::rig::pair(&config);
    let mut holder = Holder::default();
    let mut made = 0_u8;
    while made < 100 {
        let cookie = made.into();
        let call = Call { method: LATER, response_bytes: 8, cookie, ..Call::default() };
        if a.worker.call(to_b, &call, &[made; 100]).is_err() {
            break;
        }
        made += 1;
        a.poll();
        b.worker.poll(os::clock::now_ns(), &mut holder);
    }
    assert!((5..40).contains(&made), "a ring of 4 KiB took {made} requests of 100 B");
    let mut body = Vec::new();
    // Answers in another order than that of the requests.
    for at in [3, 0, 1] {
        let token = holder.held.remove(at);
        assert!(b.worker.held_body(&token, &mut body));
        assert_eq!(body.len(), 100);
        assert!(body.iter().all(|byte| *byte == body[0] && *byte < made));
        b.worker.reply(token, Status::Ok, &body[..8]).unwrap();
    }
    for mut token in holder.held.drain(..) {
        b.worker.release(&mut token);
        assert!(!b.worker.held_body(&token, &mut body));
        drop(token);
    }
    until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.len() == usize::from(made));
    a.program.made = made.into();
    a.call(to_b, ECHO, b"room again").unwrap();
}

/// Pitfall 9: a token that is dropped while its request is held gives the request's place back, too.
#[test]
fn a_held_request_whose_token_is_dropped_keeps_nobody_waiting() {
    let (mut a, mut b, to_b, _) = crate::rig::pair(&tight());
    let mut holder = Holder::default();
    let mut made = 0;
    poll_until("room in the ring for 100 calls", || {
        let call = Call { response_bytes: 8, cookie: made, ..Call::default() };
        made += u64::from(a.worker.call(to_b, &call, &[7; 100]).is_ok());
        a.poll();
        b.worker.poll(os::clock::now_ns(), &mut holder);
        holder.held.clear();
        made == 100
    });
}
