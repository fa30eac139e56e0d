//! Every interleaving of a client and a server that sleep between polls: each call ends, once.
//!
//! Run: `RUSTFLAGS="--cfg loom" cargo test --release --test service_loom`
#![cfg(loom)]

use copyrpc_inproc::{
    Unanswered, Waiting,
    mpsc::SendError,
    service::{self, Client, Config, Connector, Response, Server},
    spsc::Lamport,
};
use loom::thread;

/// Boxed, so that loom sees one leak.
type Body = Box<u32>;

fn pair() -> (Connector<Body, Body, Lamport>, Server<Body, Body, Lamport>) {
    let waiting = Waiting { spins: 0, yields: 0 };
    service::service(Config {
        clients_max: 1,
        calls_max: 1,
        tokens_max: 1,
        budget_items: 1,
        waiting,
    })
}

fn response_of(client: &mut Client<Body, Body, u32, Lamport>) -> Result<u32, Unanswered> {
    loop {
        if let Some(Response { user, result }) = client.poll() {
            assert_eq!(user, 7);
            return result.map(|body| *body);
        }
        client.wait(u64::MAX);
    }
}

#[test]
fn a_call_is_answered_though_both_sides_sleep() {
    loom::model(|| {
        let (connector, mut server) = pair();
        let mut client = connector.connect().unwrap();
        let serving = thread::spawn(move || {
            loop {
                if let Some(request) = server.poll() {
                    request.reply.send(Box::new(*request.request + 1));
                    break;
                }
                server.wait(u64::MAX);
            }
            server
        });
        client.call(Box::new(41), 7).unwrap();
        assert_eq!(response_of(&mut client), Ok(42));
        serving.join().unwrap();
    });
}

#[test]
fn a_server_that_leaves_ends_calls_and_refuses_new_ones() {
    loom::model(|| {
        let (connector, server) = pair();
        let mut client = connector.connect().unwrap();
        let leaving = thread::spawn(move || drop(server));
        match client.call(Box::new(0), 7) {
            Ok(()) => assert_eq!(response_of(&mut client), Err(Unanswered::Gone)),
            Err(error) => assert!(matches!(error, SendError::Disconnected((_, 7)))),
        }
        leaving.join().unwrap();
    });
}
