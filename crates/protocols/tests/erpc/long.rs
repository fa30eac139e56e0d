//! Many calls over a lossy network: every answer is checked, and that no request runs twice.

use std::time::{Duration, Instant};

use copyrpc_protocols::erpc::{Call, Config, Endpoint, Handler, Request, SessionId, Status};

use crate::{
    lossy::Lossy,
    rig::{Node, config, now_ns, pair, until},
};

/// Sessions between the two endpoints, of eight slots each.
const SESSIONS: usize = 8;
/// Calls in flight, of all sessions.
const IN_FLIGHT: u64 = 64;
/// Words of a request and of its answer.
const WORDS: usize = 4;
/// Longest time without any answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// One bit per call.
#[derive(Default)]
struct Bits(Vec<u64>);

impl Bits {
    /// Whether it was not set before.
    fn set(&mut self, at: u64) -> bool {
        let word = at as usize / 64;
        let bit = 1 << (at % 64);
        if self.0.len() <= word {
            self.0.resize(2 * word + 1, 0);
        }
        let was = self.0[word] & bit != 0;
        self.0[word] |= bit;
        !was
    }
}

/// Either side: the calls that it has served, and the answers that it got.
#[derive(Default)]
struct Counting {
    executed: Bits,
    served: u64,
    answered: Bits,
    answers: u64,
}

/// The body of a call: its number, and words that follow from it.
fn words(number: u64) -> [u64; WORDS] {
    std::array::from_fn(|at| number.wrapping_mul(at as u64 * 2 + 1))
}

fn bytes(words: [u64; WORDS]) -> [u8; WORDS * 8] {
    let mut bytes = [0; WORDS * 8];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// The answer of the server.
fn answer(number: u64) -> [u8; WORDS * 8] {
    bytes(words(number).map(|word| !word))
}

impl Handler<Lossy> for Counting {
    fn request(&mut self, endpoint: &mut Endpoint<Lossy>, request: Request<'_>) {
        let Request { token, body, .. } = request;
        let number = u64::from_le_bytes(*body.first_chunk().unwrap());
        assert!(body == bytes(words(number)), "request {number} arrived as another");
        assert!(self.executed.set(number), "request {number} ran twice");
        self.served += 1;
        endpoint.reply(token, &answer(number)).unwrap();
    }

    fn response(&mut self, _: &mut Endpoint<Lossy>, cookie: u64, status: Status, body: &[u8]) {
        assert!(status == Status::Ok && body == answer(cookie), "call {cookie}: {status}");
        assert!(self.answered.set(cookie), "call {cookie} ended twice");
        self.answers += 1;
    }
}

/// The counters of a run.
struct Counts {
    took: Duration,
    lost: u64,
    retransmissions: u64,
    datagrams: u64,
}

/// Makes `calls` calls while so many of ten million datagrams are lost, in both directions.
fn run(calls: u64, lost_per_ten_million: u64) -> Counts {
    let retransmit = Duration::from_millis(5);
    let config = Config { retransmit, failure_after: PATIENCE, ..config() };
    let (mut client, mut server, first) = pair(config);
    let mut sessions = vec![first];
    while sessions.len() < SESSIONS {
        let session = client.connect(&server);
        let mut nodes = [&mut client, &mut server];
        until(&mut nodes, |nodes| nodes[0].is_connected(session));
        sessions.push(session);
    }
    client.loss.per_ten_million.set(lost_per_ten_million);
    server.loss.per_ten_million.set(lost_per_ten_million);
    let mut caller = Counting::default();
    let mut counting = Counting::default();
    // Real time from here on: lost packets are sent again after real milliseconds.
    let start = Instant::now();
    let start_ns = now_ns();
    let mut last = (start, 0);
    let mut made = 0;
    while caller.answers < calls {
        while made < calls && made - caller.answers < IN_FLIGHT {
            call(&mut client, sessions[made as usize % SESSIONS], made);
            made += 1;
        }
        let now_ns = start_ns + u64::try_from(start.elapsed().as_nanos()).unwrap();
        client.endpoint.poll(now_ns, &mut caller);
        server.endpoint.poll(now_ns, &mut counting);
        if caller.answers > last.1 {
            last = (Instant::now(), caller.answers);
        }
        assert!(last.0.elapsed() < PATIENCE, "nothing is answered after {} calls", last.1);
    }
    assert_eq!((counting.served, caller.answers), (calls, calls));
    let ours = client.endpoint.stats();
    let theirs = server.endpoint.stats();
    assert_eq!(ours.failures + theirs.failures, 0, "no session failed");
    Counts {
        took: start.elapsed(),
        lost: client.loss.lost.get() + server.loss.lost.get(),
        retransmissions: ours.retransmissions,
        datagrams: ours.packets_out + theirs.packets_out,
    }
}

fn call(client: &mut Node, session: SessionId, number: u64) {
    let call = Call { cookie: number, timeout: PATIENCE, ..Call::default() };
    client.endpoint.call(session, &call, &bytes(words(number))).unwrap();
}

fn print(lost_per_ten_million: u64, calls: u64, counts: &Counts) {
    let Counts { took, lost, retransmissions, datagrams } = counts;
    let rate = calls as f64 / took.as_secs_f64() / 1e3;
    println!(
        "| {:.0e} | {calls} | {datagrams} | {lost} | {retransmissions} | {rate:.0} k/s |",
        lost_per_ten_million as f64 / 1e7
    );
}

/// As many calls as the environment says, or so many.
fn calls_or(default: u64) -> u64 {
    std::env::var("ERPC_CALLS").map_or(default, |calls| calls.parse().unwrap())
}

#[test]
fn calls_over_a_network_that_loses_one_percent_run_once() {
    let counts = run(5_000, 100_000);
    assert!(counts.lost > 20 && counts.retransmissions > 0);
}

/// 10^8 messages are `ERPC_CALLS=50000000`.
#[test]
#[ignore = "long: a minute; `cargo xtask ci --full` runs it"]
fn many_calls_over_a_network_that_loses_one_percent_run_once_long() {
    let calls = calls_or(500_000);
    let counts = run(calls, 100_000);
    print(100_000, calls, &counts);
    println!("{:?}", counts.took);
}

/// Prints a table of the cost of losses.
#[test]
#[ignore = "long: a minute; `cargo xtask ci --full` runs it"]
fn calls_survive_every_loss_from_one_in_ten_million_to_one_percent_long() {
    println!("| lost | calls | datagrams | lost | sent again | rate |");
    println!("|---|---|---|---|---|---|");
    let calls = calls_or(100_000);
    for lost_per_ten_million in [0, 1, 10, 100, 1000, 10_000, 100_000] {
        let counts = run(calls, lost_per_ten_million);
        print(lost_per_ten_million, calls, &counts);
    }
}
