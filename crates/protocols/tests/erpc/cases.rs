//! Cases that the tests of the original have: calls from continuations, handlers on other threads, requests of many
//! packets over a network that loses some, many endpoints.

use std::{
    collections::BTreeMap,
    sync::mpsc::{Receiver, Sender, channel},
    thread,
};

use copyrpc_protocols::erpc::{Call, Config, Endpoint, Handler, Request, SessionId, Status, Token};

use crate::{
    lossy::Lossy,
    rig::{ECHO, Node, body, config, free_address, now_ns, pair, soft, until},
};

/// A request on its way to a thread, and an answer on its way back.
type Work = (Token, Vec<u8>);

/// A service whose handler hands requests to other threads, and calls what they answer.
struct Background {
    threads: Vec<Sender<Work>>,
    answers: Receiver<Work>,
    served: usize,
}

impl Background {
    fn new(count: usize) -> Self {
        let (answer, answers) = channel();
        let threads = (0..count).map(|_| {
            let (request, requests) = channel::<Work>();
            let answer = answer.clone();
            thread::spawn(move || {
                for (token, mut body) in requests {
                    body.iter_mut().for_each(|byte| *byte = !*byte);
                    // The test may have failed meanwhile.
                    let _ = answer.send((token, body));
                }
            });
            request
        });
        Self { threads: threads.collect(), answers, served: 0 }
    }

    fn poll(&mut self, endpoint: &mut Endpoint<Lossy>, now_ns: u64) {
        endpoint.poll(now_ns, self);
        while let Ok((token, body)) = self.answers.try_recv() {
            endpoint.reply(token, &body).unwrap();
        }
    }
}

impl Handler<Lossy> for Background {
    fn request(&mut self, _: &mut Endpoint<Lossy>, request: Request<'_>) {
        let thread = &self.threads[self.served % self.threads.len()];
        thread.send((request.token, request.body.to_vec())).unwrap();
        self.served += 1;
    }

    fn response(&mut self, _: &mut Endpoint<Lossy>, _: u64, _: Status, _: &[u8]) {}
}

#[test]
fn handlers_on_other_threads_answer_through_their_tokens() {
    let (mut client, mut server, session) = pair(config());
    let mut background = Background::new(4);
    let lens: Vec<_> = (0..200).map(|nth| [8, 32, 4000, 20_000][nth % 4]).collect();
    let bodies: Vec<_> = (0..).zip(&lens).map(|(nth, len)| body(nth, *len)).collect();
    for body in &bodies {
        client.call(session, ECHO, body).unwrap();
    }
    let start = std::time::Instant::now();
    while client.program.ended.len() < bodies.len() {
        client.poll();
        background.poll(&mut server.endpoint, now_ns());
        assert!(start.elapsed().as_secs() < 30, "it takes too long");
    }
    for (cookie, (status, answer)) in &client.program.ended {
        let expected: Vec<_> = bodies[*cookie as usize].iter().map(|byte| !byte).collect();
        assert!(*status == Status::Ok && *answer == expected, "answer {cookie}");
    }
    assert_eq!(background.served, bodies.len());
}

/// A caller that makes the next call when it hears the answer of the one before.
struct Chain {
    session: SessionId,
    len: usize,
    calls: u64,
    ended: BTreeMap<u64, Vec<u8>>,
}

impl Chain {
    fn call(&mut self, endpoint: &mut Endpoint<Lossy>, cookie: u64) {
        let call = Call { req_type: ECHO, cookie, ..Call::default() };
        endpoint.call(self.session, &call, &body(cookie, self.len)).unwrap();
    }
}

impl Handler<Lossy> for Chain {
    fn request(&mut self, _: &mut Endpoint<Lossy>, _: Request<'_>) {}

    fn response(
        &mut self,
        endpoint: &mut Endpoint<Lossy>,
        cookie: u64,
        status: Status,
        answer: &[u8],
    ) {
        assert_eq!(status, Status::Ok);
        assert!(self.ended.insert(cookie, answer.to_vec()).is_none(), "call {cookie} ended twice");
        if cookie + 8 < self.calls {
            self.call(endpoint, cookie + 8);
        }
    }
}

#[test]
fn continuations_make_the_next_calls() {
    for len in [32, 9000] {
        let (mut client, mut server, session) = pair(config());
        let mut chain = Chain { session, len, calls: 400, ended: BTreeMap::new() };
        (0..8).for_each(|cookie| chain.call(&mut client.endpoint, cookie));
        until(&mut [&mut server], |_| {
            client.endpoint.poll(now_ns(), &mut chain);
            chain.ended.len() == 400
        });
        assert!(chain.ended.iter().all(|(cookie, answer)| *answer == body(*cookie, len)));
    }
}

#[test]
fn requests_of_64_to_95_packets_survive_losses() {
    let (mut client, mut server, session) = pair(config());
    client.loss.per_ten_million.set(100_000);
    server.loss.per_ten_million.set(100_000);
    let data = client.endpoint.geometry().data_bytes() as usize;
    let lens: Vec<_> = (0..32).map(|nth| (64 + nth) * data - nth).collect();
    for (number, len) in (0..).zip(&lens) {
        client.call(session, ECHO, &body(number, *len)).unwrap();
    }
    until(&mut [&mut client, &mut server], |nodes| nodes[0].program.ended.len() == lens.len());
    for (cookie, (status, answer)) in &client.program.ended {
        let expected = body(*cookie, lens[*cookie as usize]);
        assert!(*status == Status::Ok && *answer == expected, "answer {cookie}");
    }
    assert!(server.program.executed.values().all(|times| *times == 1));
    assert!(client.loss.lost.get() + server.loss.lost.get() > 0);
}

/// Each is the client of the next three, and the server of those before it.
#[test]
fn thirty_two_endpoints_call_one_another() {
    const ENDPOINTS: usize = 32;
    let soft = soft();
    let open = |_| {
        let config = Config { management: free_address(), receives: 256, ..config() };
        Node::open(&soft, config)
    };
    let mut nodes: Vec<_> = (0..ENDPOINTS).map(open).collect();
    let mut sessions = Vec::new();
    for at in 0..ENDPOINTS {
        for ahead in 1..=3 {
            let to = nodes[(at + ahead) % ENDPOINTS].endpoint.management_address();
            let connected = nodes[at].endpoint.connect(to, 0, Default::default());
            sessions.push((at, connected.unwrap()));
        }
    }
    let mut all: Vec<_> = nodes.iter_mut().collect();
    until(&mut all, |nodes| sessions.iter().all(|(at, session)| nodes[*at].is_connected(*session)));
    for (at, session) in &sessions {
        for _ in 0..4 {
            let body = body(all[*at].program.made, 100 * at);
            all[*at].call(*session, ECHO, &body).unwrap();
        }
    }
    until(&mut all, |nodes| nodes.iter().all(|node| node.program.ended.len() == 12));
    for (at, node) in all.iter().enumerate() {
        for (cookie, (status, answer)) in &node.program.ended {
            assert!(*status == Status::Ok && *answer == body(*cookie, 100 * at), "{at}: {cookie}");
        }
    }
}
