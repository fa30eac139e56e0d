//! Requests of many clients to one server.
#![cfg(not(loom))]

use std::thread;

use copyrpc_inproc::{
    Token, Unanswered, Waiting,
    mpsc::{LINGER_LOOKS, SendError},
    service::{self, Client, Config, Connector, Response, Server},
    spsc::{Discipline, FastForward, Lamport, Onesided},
};

fn pair(config: Config) -> (Connector<u64, u64, Lamport>, Server<u64, u64, Lamport>) {
    service::service(config)
}

fn serve(server: &mut Server<u64, u64, Lamport>) {
    while let Some(request) = server.poll() {
        request.reply.send(request.request + 1);
    }
}

fn defer_all(server: &mut Server<u64, u64, Lamport>) -> Vec<(u64, Token)> {
    let mut tokens = Vec::new();
    while let Some(request) = server.poll() {
        tokens.push((request.request, request.reply.defer().expect("fewer than tokens_max")));
    }
    tokens
}

#[test]
fn responses_out_of_order_bring_each_callers_own_cookie() {
    let (connector, mut server) = pair(Config { calls_max: 34, ..Config::default() });
    let mut client = connector.connect::<u64>().unwrap();
    for i in 0..34 {
        client.call(i, 100 + i).unwrap();
    }
    let full = client.call(34, 134);
    assert_eq!(full, Err(SendError::Full((34, 134))));
    for (request, token) in defer_all(&mut server).into_iter().rev() {
        server.reply(token, request + 1).unwrap();
    }
    for i in (0..34).rev() {
        assert_eq!(client.poll(), Some(Response { user: 100 + i, result: Ok(i + 1) }));
    }
    assert_eq!((client.poll(), client.calls_in_flight()), (None, 0));
}

#[test]
fn a_late_answer_does_not_reach_the_next_client_of_the_lane() {
    let (connector, mut server) = pair(Config { clients_max: 1, ..Config::default() });
    let mut first = connector.connect::<u64>().unwrap();
    first.call(1, 1).unwrap();
    let tokens = defer_all(&mut server);
    drop(first);
    for _ in 0..LINGER_LOOKS + 8 {
        assert!(server.poll().is_none());
    }
    let mut second = connector.connect::<u64>().unwrap();
    second.call(2, 2).unwrap();
    for (request, token) in tokens {
        server.reply(token, request + 1).unwrap();
    }
    assert_eq!(second.poll(), None);
    serve(&mut server);
    assert_eq!(second.poll(), Some(Response { user: 2, result: Ok(3) }));
}

#[test]
fn dropped_requests_and_tokens_and_servers_answer_with_an_error() {
    let (connector, mut server) = pair(Config::default());
    let mut client = connector.connect::<u64>().unwrap();
    for i in 0..4 {
        client.call(i, i).unwrap();
    }
    drop(server.poll());
    let token = server.poll().unwrap().reply.defer().unwrap();
    drop(token);
    server.poll().unwrap().reply.send(7);
    drop(server);
    let mut got = Vec::new();
    for _ in 0..2 * LINGER_LOOKS + 8 {
        got.extend(client.poll().map(|response| (response.user, response.result)));
    }
    got.sort_unstable_by_key(|(user, _)| *user);
    let dropped = Err(Unanswered::Dropped);
    assert_eq!(got, [(0, dropped), (1, dropped), (2, Ok(7)), (3, Err(Unanswered::Gone))]);
    assert_eq!(client.call(8, 9), Err(SendError::Disconnected((8, 9))));
}

/// Clients that come, call and go while others work; all threads sleep when there is nothing to do.
fn stress<D: Discipline>(waiting: Waiting) {
    const CLIENTS: u64 = 3;
    let (lives, calls) = if cfg!(miri) { (2, 5) } else { (6, 200) };
    let config = Config { clients_max: 4, calls_max: 4, tokens_max: 8, budget_items: 2, waiting };
    let (connector, mut server) = service::service::<u64, u64, D>(config);
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let connector = connector.clone();
            scope.spawn(move || {
                for life in 0..lives {
                    let client = loop {
                        match connector.connect::<u64>() {
                            Ok(client) => break client,
                            Err(_) => thread::yield_now(), // the lane of a life before
                        }
                    };
                    live(client, (life * CLIENTS + number) << 32, calls);
                }
            });
        }
        drop(connector);
        loop {
            let is_last_look = server.is_disconnected();
            let mut late = Vec::new();
            while let Some(request) = server.poll() {
                let value = request.request;
                if value % 3 != 0 {
                    request.reply.send(!value);
                    continue;
                }
                match request.reply.defer() {
                    Ok(token) => late.push((value, token)),
                    Err(reply) => reply.send(!value),
                }
            }
            let had_late = !late.is_empty();
            for (value, token) in late.into_iter().rev() {
                server.reply(token, !value).unwrap();
            }
            if is_last_look && !had_late {
                break;
            }
            server.wait(u64::MAX);
        }
    });
}

fn live<D: Discipline>(mut client: Client<u64, u64, u64, D>, base: u64, calls: u64) {
    let mut sent = 0;
    let mut answered = 0;
    while answered < calls {
        while sent < calls && client.call(base + sent, sent).is_ok() {
            sent += 1;
        }
        while let Some(Response { user, result }) = client.poll() {
            assert_eq!(result, Ok(!(base + user)));
            answered += 1;
        }
        if client.calls_in_flight() > 0 {
            client.wait(u64::MAX);
        }
    }
}

#[test]
fn stress_with_clients_that_come_and_go() {
    let sleepy = Waiting { spins: 0, yields: 0 };
    stress::<Lamport>(sleepy);
    stress::<FastForward>(Waiting::default());
    stress::<Onesided>(sleepy);
}
