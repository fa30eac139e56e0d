//! Verified load on the daemons of this machine: clients that keep calls in flight to ranks taken in
//! turn.
//!
//! `cargo run --release -p copyrpc-client --example load -- SOCKET [CLIENTS] [SECONDS] [local|remote|mixed]
//! [WINDOW]`

use std::{
    env, thread,
    time::{Duration, Instant},
};

use copyrpc_client::{
    Client, ClientConfig, Pipeline, To,
    message::{DAEMON, method},
};

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let text = |index: usize, default: &str| {
        arguments.get(index).cloned().unwrap_or_else(|| default.to_owned())
    };
    let socket = text(0, "");
    let clients: u32 = text(1, "4").parse().expect("a number of clients");
    let seconds: u64 = text(2, "3").parse().expect("a number of seconds");
    let (share, window) = (text(3, "mixed"), text(4, "1").parse().expect("a number of calls"));
    let config = ClientConfig::default();
    let who = Client::connect(socket.as_ref(), config).expect("a daemon listens there").who();
    let (own, size) = who.expect("it says who it is");
    let total: u64 = thread::scope(|scope| {
        let run = |client: u32| {
            let pipeline = Pipeline::connect(socket.as_ref(), config);
            let to = |count: u64| {
                let any = u32::try_from(count % u64::from(size)).expect("a rank");
                match share.as_str() {
                    "local" => own,
                    "remote" if any == own => (own + 1) % size,
                    _ => any,
                }
            };
            let pipeline = pipeline.expect("a daemon listens there");
            load(pipeline, u64::from(client) << 40, window, Duration::from_secs(seconds), to)
        };
        let running: Vec<_> = (0..clients).map(|client| scope.spawn(move || run(client))).collect();
        running.into_iter().map(|client| client.join().expect("no wrong answer")).sum()
    });
    println!(
        "{share}: {} calls/s by {clients} clients with {window} in flight each",
        total / seconds
    );
}

/// Keeps `window` calls in flight, and checks every answer.
fn load(
    mut pipeline: Pipeline<[u8; 8]>,
    first: u64,
    window: usize,
    duration: Duration,
    to: impl Fn(u64) -> u32,
) -> u64 {
    let (mut sent, mut received, end) = (0, 0, Instant::now() + duration);
    while pipeline.in_flight() > 0 || Instant::now() < end {
        while pipeline.in_flight() < window && Instant::now() < end {
            let body = (first + sent).to_le_bytes();
            let to = To { rank: to(sent), service: DAEMON, method: method::PING };
            pipeline.submit(to, &body, body).expect("there is room");
            sent += 1;
        }
        let ended = pipeline.poll(|body, answer| assert_eq!(answer.expect("an answer"), body));
        received += ended as u64;
        if ended == 0 {
            pipeline.rest();
        }
    }
    received
}
