//! A server process is killed while it serves: every call ends with a status, and the session begins anew with
//! the server's successor.

use std::{
    env,
    net::SocketAddr,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use copyrpc_protocols::erpc::{
    Call, CloseReason, Config, ConnectOptions, Endpoint, Handler, Request, SessionId, SessionState,
    Status,
};
use softnic::Nic;

const FABRIC: &str = "ERPC_CHILD_FABRIC";
const ADDRESS: &str = "ERPC_CHILD_ADDRESS";
const TEST: &str = "every_call_ends_when_the_server_is_killed_again_and_again";
const PATIENCE: Duration = Duration::from_secs(30);

fn open(fabric: &str, management: SocketAddr) -> Endpoint<Nic> {
    let fabric = fabric.to_owned();
    let nic = softnic::open(&softnic::Config { fabric, ..softnic::Config::default() }).unwrap();
    let config = Config {
        management,
        receives: 1024,
        management_retry: Duration::from_millis(20),
        ping_after: Duration::from_millis(50),
        failure_after: Duration::from_millis(400),
        ..Config::default()
    };
    Endpoint::open(nic, config, os::clock::now_ns()).unwrap()
}

#[derive(Default)]
struct Program {
    made: u64,
    answered: u64,
    failed: u64,
    closed: Vec<CloseReason>,
}

impl Handler<Nic> for Program {
    fn request(&mut self, endpoint: &mut Endpoint<Nic>, request: Request<'_>) {
        let Request { token, body, .. } = request;
        endpoint.reply(token, body).unwrap();
    }

    fn response(&mut self, _: &mut Endpoint<Nic>, cookie: u64, status: Status, body: &[u8]) {
        match status {
            Status::Ok => {
                assert!(body.chunks(8).all(|word| word == cookie.to_le_bytes()), "wrong answer");
                self.answered += 1;
            }
            Status::Unavailable => self.failed += 1,
            other => panic!("call {cookie}: {other}"),
        }
    }

    fn closed(&mut self, _: &mut Endpoint<Nic>, _: SessionId, reason: CloseReason) {
        self.closed.push(reason);
    }
}

impl Program {
    /// Keeps 32 calls in flight, of one packet and of several.
    fn call(&mut self, endpoint: &mut Endpoint<Nic>, session: SessionId) {
        while self.made - self.answered - self.failed < 32 {
            let words = if self.made.is_multiple_of(4) { 2000 } else { 4 };
            let body = self.made.to_le_bytes().repeat(words);
            let timeout = PATIENCE;
            let call = Call { cookie: self.made, timeout, ..Call::default() };
            match endpoint.call(session, &call, &body) {
                Ok(_) => self.made += 1,
                Err(error) => {
                    assert!(error.is_temporary(), "{error}");
                    return;
                }
            }
        }
    }
}

/// Serves until it is killed, or no call came for long.
fn serve(fabric: &str) {
    let mut endpoint = open(fabric, env::var(ADDRESS).unwrap().parse().unwrap());
    let mut program = Program::default();
    let mut last = Instant::now();
    while last.elapsed() < 2 * PATIENCE {
        if endpoint.poll(os::clock::now_ns(), &mut program) > 0 {
            last = Instant::now();
        } else {
            std::thread::yield_now();
        }
    }
}

/// Killed and reaped at the latest when it is dropped.
struct Server(Child);

impl Server {
    fn start(fabric: &str, address: SocketAddr) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args([TEST, "--exact", "--nocapture", "--test-threads=1"])
            .env(FABRIC, fabric)
            .env(ADDRESS, address.to_string())
            .stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn every_call_ends_when_the_server_is_killed_again_and_again() {
    if let Ok(fabric) = env::var(FABRIC) {
        return serve(&fabric);
    }
    kill_storm("few", 3);
}

#[test]
#[ignore = "long: a minute or two; `cargo xtask ci --full` runs it"]
fn every_call_ends_when_a_hundred_servers_are_killed_long() {
    kill_storm("many", 100);
}

/// A server is killed, and another one takes its place, so many times.
fn kill_storm(name: &str, rounds: u32) {
    let fabric = format!("erpc-kill-{name}-{}", std::process::id());
    let free = || std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let address = free();
    let mut endpoint = open(&fabric, free());
    let mut program = Program::default();
    let options = ConnectOptions { timeout: PATIENCE, reconnect: true };
    let session = endpoint.connect(address, 0, options).unwrap();
    for round in 1..=rounds {
        let start = Instant::now();
        let server = Server::start(&fabric, address);
        let goal = program.answered + 400;
        while program.answered < goal {
            program.call(&mut endpoint, session);
            endpoint.poll(os::clock::now_ns(), &mut program);
            assert!(start.elapsed() < PATIENCE, "round {round}: it takes too long");
        }
        let failures = program.closed.len();
        program.call(&mut endpoint, session);
        drop(server);
        while program.closed.len() == failures {
            endpoint.poll(os::clock::now_ns(), &mut program);
            assert!(start.elapsed() < PATIENCE, "round {round}: nobody notices");
        }
        assert_eq!(program.made, program.answered + program.failed, "every call has ended");
        assert_eq!(endpoint.state(session), Some(SessionState::Connecting));
    }
    assert!(program.closed.iter().all(|reason| {
        matches!(reason, CloseReason::Silent | CloseReason::Forgotten | CloseReason::PeerGone(_))
    }));
    assert!(program.failed > 0);
}
