//! Instructions and time of a call itself: client and server on one thread, no other core.
//!
//! Every answer is compared with its request. What two cores add is measured by `copyrpc-lab bench ipc`.
//! With three numbers, bytes, calls in flight and calls, it makes just these: the difference of two runs
//! under callgrind, by the number of calls, is the instructions of one.

use std::{hint::black_box, path::Path, thread, time::Instant};

use copyrpc_ipc::{ClientConfig, PipelinedClient, Server, ServerConfig, Wait};

type Client = PipelinedClient<u64>;

fn connect(path: &Path, len_bytes: u32) -> (Server, Client) {
    let config = ServerConfig {
        request_bytes_max: len_bytes,
        response_bytes_max: len_bytes,
        wait: Wait::Busy,
        ..ServerConfig::default()
    };
    let mut server = Server::bind(path, config).expect("a socket");
    let client = thread::scope(|scope| {
        let config = ClientConfig { wait: Wait::Busy, ..ClientConfig::default() };
        let client = scope.spawn(move || Client::connect(path, config).expect("a connection"));
        while !client.is_finished() {
            serve(&mut server);
            server.rest(0);
            server.service_now();
        }
        client.join().expect("a client")
    });
    (server, client)
}

fn serve(server: &mut Server) {
    while let Some(request) = server.recv() {
        let payload = request.payload();
        request.reply(payload).expect("as long as the request");
    }
}

/// Fills the window, answers all of it, and takes the answers.
#[inline(never)]
fn window(server: &mut Server, client: &mut Client, depth: u64, number: &mut u64, body: &mut [u8]) {
    for _ in 0..depth {
        *number += 1;
        body[..8].copy_from_slice(&number.to_le_bytes());
        client.submit(black_box(body), *number).expect("there is room");
    }
    while client.in_flight() > 0 {
        serve(server);
        client.poll(|number, answer| {
            let answer = answer.expect("an answer");
            assert!(answer.len() == body.len() && answer[..8] == number.to_le_bytes());
        });
    }
}

/// Nanoseconds per call with `depth` calls in flight.
fn measure(len_bytes: u32, depth: u64, calls: u64) -> f64 {
    let folder = std::env::temp_dir().join(format!("copyrpc-ipc-cost-{}", std::process::id()));
    let (mut server, mut client) = connect(&folder.join("socket"), len_bytes);
    let (mut body, mut number) = (vec![0; len_bytes as usize], 0);
    let start = Instant::now();
    while number < calls {
        window(&mut server, &mut client, depth, &mut number, &mut body);
    }
    let ns = start.elapsed().as_secs_f64() * 1e9 / number as f64;
    drop(server);
    std::fs::remove_dir_all(folder).expect("the folder of the socket");
    ns
}

fn main() {
    let numbers: Vec<u32> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    if let [len_bytes, depth, calls] = numbers[..] {
        measure(len_bytes, depth.into(), calls.into());
        return;
    }
    let is_smoke = !std::env::args().any(|arg| arg == "--bench");
    let (calls, runs) = if is_smoke { (3200, 1) } else { (2_000_000, 5) };
    println!("call and answer, both sides on one thread, best of {runs}:");
    for len_bytes in [8, 56, 256] {
        for depth in [1, 32] {
            let one = |_| measure(len_bytes, depth, calls);
            let best = (0..runs).map(one).fold(f64::MAX, f64::min);
            println!("  {len_bytes:3} B, {depth:2} in flight {best:7.1} ns per call");
        }
    }
}
