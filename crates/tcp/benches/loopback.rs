//! A port on TCP beside a bare TCP stream, in one run: `cargo bench -p copyrpc-tcp --bench loopback`.
//!
//! Round trips of 32 B (WRITE with immediate data; bare: one `write`, and `read` until it is there), and 1 MiB at
//! a time in one direction. Both sides poll. Samples of the two alternate; medians, least and greatest are shown.

use std::{
    env,
    hint::black_box,
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use copyrpc_tcp::{Config, open};
use softnic::Nic;
use verbs::{
    Access, CompletionQueue as _, CqConfig, InitAttr, MemoryRegion as _, Mtu, Nic as _, Op,
    Payload, QKey, QpAddress, QpConfig, QueuePair as _, RcPeer, RnrTimer, RtrAttr, RtsAttr,
    SendRequest, Transition, Transport,
};

type Qp = <Nic as verbs::Nic>::Qp;
type Cq = <Nic as verbs::Nic>::Cq;
type Mr = <Nic as verbs::Nic>::Mr;

const SMALL_BYTES: usize = 32;
const LARGE_BYTES: usize = 1 << 20;
const RECEIVES: usize = 64;
/// Large writes that are outstanding.
const DEPTH: usize = 4;

struct End {
    nic: Nic,
    qp: Qp,
    cq: Cq,
    memory: Mr,
}

impl End {
    fn new() -> Self {
        let nic = open(&Config::default()).expect("a port");
        let pd = nic.alloc_pd().expect("a domain");
        let cq = nic.create_cq(&CqConfig::new(512), None).expect("a queue");
        let qp = nic.create_qp(&pd, &QpConfig::new(Transport::Rc, &cq)).expect("a queue pair");
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let memory = nic.alloc_mr(&pd, LARGE_BYTES, rights).expect("memory");
        Self { nic, qp, cq, memory }
    }

    fn connect(&mut self, to: QpAddress) {
        let access = Access::REMOTE_WRITE;
        let peer = RcPeer { qpn: to.qpn, address: to.address, rq_psn: Default::default() };
        let rtr = RtrAttr {
            path_mtu: Mtu::B4096,
            peer: Some(peer),
            rnr_timer: RnrTimer::from_code(1),
            reads_in_max: 1,
        };
        let steps = [
            Transition::Init(InitAttr { access, qkey: QKey::default() }),
            Transition::Rtr(rtr),
            Transition::Rts(RtsAttr::default()),
        ];
        steps.iter().for_each(|step| self.qp.modify(step).expect("a transition"));
        for _ in 0..RECEIVES {
            self.qp.post_recv(&[]).expect("room");
        }
        self.qp.ring_recv();
    }

    fn send(&mut self, remote: verbs::RemoteSlice, len: usize, imm: Option<u32>) {
        let from = [self.memory.sge(0, len)];
        let payload = Payload::Gather(&from);
        let op = Op::Write { remote, payload, imm };
        let request = SendRequest::unsignaled(op);
        let is_large = imm.is_none();
        let request = if is_large { SendRequest::signaled(op) } else { request };
        self.qp.post_send(&request).expect("room");
        self.qp.ring_send();
    }

    /// Polls until a receive is there.
    fn receive(&mut self) {
        loop {
            let Some(done) = self.cq.poll() else { continue };
            assert!(done.failure.is_none(), "{done:?}");
            self.qp.retire(&done);
            if done.kind.is_receive() {
                self.qp.post_recv(&[]).expect("room");
                self.qp.ring_recv();
                return;
            }
        }
    }
}

fn remote_of(end: &End) -> verbs::RemoteSlice {
    end.memory.remote(0)
}

fn pair() -> [End; 2] {
    let [mut first, mut second] = [End::new(), End::new()];
    let endpoints = [&first, &second].map(|end| end.nic.endpoint(&end.qp));
    first.connect(endpoints[1]);
    second.connect(endpoints[0]);
    [first, second]
}

/// Nanoseconds per round trip.
fn nic_round_trip(count: u32) -> f64 {
    let [mut first, mut second] = pair();
    let remotes = [remote_of(&second), remote_of(&first)];
    // The stream is there after the first one.
    let warm_up = 100;
    thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..count + warm_up {
                second.receive();
                second.send(remotes[1], SMALL_BYTES, Some(1));
            }
            // Answers of the last one are on their way.
            let until = Instant::now() + Duration::from_millis(20);
            while Instant::now() < until {
                second.cq.poll();
            }
        });
        let mut begin = Instant::now();
        for round in 0..count + warm_up {
            if round == warm_up {
                begin = Instant::now();
            }
            first.send(remotes[0], SMALL_BYTES, Some(1));
            first.receive();
        }
        per(begin.elapsed(), count)
    })
}

fn per(elapsed: Duration, count: u32) -> f64 {
    elapsed.as_secs_f64() * 1e9 / f64::from(count)
}

/// GiB per second.
fn nic_stream(count: usize) -> f64 {
    let [mut first, mut second] = pair();
    let remote = remote_of(&second);
    thread::scope(|scope| {
        scope.spawn(move || second.receive());
        let begin = Instant::now();
        let mut posted = 0;
        let mut done = 0;
        while done < count {
            while posted < count && posted - done < DEPTH {
                first.send(remote, LARGE_BYTES, None);
                posted += 1;
            }
            if let Some(completion) = first.cq.poll() {
                assert!(completion.failure.is_none(), "{completion:?}");
                first.qp.retire(&completion);
                done += 1;
            }
        }
        let rate = gib_per_second(count * LARGE_BYTES, begin.elapsed());
        first.send(remote, SMALL_BYTES, Some(1));
        let until = Instant::now() + Duration::from_millis(20);
        while Instant::now() < until {
            first.cq.poll();
        }
        rate
    })
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn gib_per_second(bytes: usize, elapsed: Duration) -> f64 {
    bytes as f64 / elapsed.as_secs_f64() / f64::from(1 << 30)
}

fn bare_pair() -> io::Result<[TcpStream; 2]> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let first = TcpStream::connect(listener.local_addr()?)?;
    let (second, _) = listener.accept()?;
    for socket in [&first, &second] {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
    }
    Ok([first, second])
}

fn read_all(socket: &mut TcpStream, bytes: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        match socket.read(&mut bytes[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn write_all(socket: &mut TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match socket.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn bare_round_trip(count: u32) -> io::Result<f64> {
    let [mut first, mut second] = bare_pair()?;
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut bytes = [0; SMALL_BYTES];
            for _ in 0..count {
                let answered =
                    read_all(&mut second, &mut bytes).and_then(|()| write_all(&mut second, &bytes));
                answered.expect("a stream");
            }
        });
        let mut bytes = [0; SMALL_BYTES];
        let begin = Instant::now();
        for _ in 0..count {
            write_all(&mut first, &bytes)?;
            read_all(&mut first, &mut bytes)?;
        }
        Ok(per(begin.elapsed(), count))
    })
}

fn bare_stream(count: usize) -> io::Result<f64> {
    let [mut first, mut second] = bare_pair()?;
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut bytes = vec![0; LARGE_BYTES];
            for _ in 0..count {
                read_all(&mut second, &mut bytes).expect("a stream");
                black_box(&bytes);
            }
            write_all(&mut second, &[1]).expect("a stream");
        });
        let bytes = vec![7; LARGE_BYTES];
        let begin = Instant::now();
        for _ in 0..count {
            write_all(&mut first, &bytes)?;
        }
        read_all(&mut first, &mut [0])?;
        Ok(gib_per_second(count * LARGE_BYTES, begin.elapsed()))
    })
}

fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn show(name: &str, unit: &str, mut samples: Vec<f64>) -> f64 {
    let middle = median(&mut samples);
    let least = samples[0];
    let greatest = samples[samples.len() - 1];
    println!(
        "{name:28} {middle:10.2} {unit:6} ({least:.2} to {greatest:.2}, {} runs)",
        samples.len()
    );
    middle
}

fn main() -> io::Result<()> {
    // `cargo test --benches` only asks whether it runs.
    let is_bench = env::args().any(|argument| argument == "--bench");
    let (runs, rounds, pieces) = if is_bench { (9, 5_000, 500) } else { (1, 50, 2) };
    let mut samples: [Vec<f64>; 4] = Default::default();
    for _ in 0..runs {
        samples[0].push(bare_round_trip(rounds)?);
        samples[1].push(nic_round_trip(rounds));
        samples[2].push(bare_stream(pieces)?);
        samples[3].push(nic_stream(pieces));
    }
    let [bare_trip, nic_trip, bare_rate, nic_rate] = samples;
    let bare = show("round trip 32 B, bare TCP", "ns", bare_trip);
    let nic = show("round trip 32 B, NIC tcp", "ns", nic_trip);
    println!("ratio {:.2}", nic / bare);
    let bare = show("1 MiB one way, bare TCP", "GiB/s", bare_rate);
    let nic = show("1 MiB one way, NIC tcp", "GiB/s", nic_rate);
    println!("ratio {:.2}", nic / bare);
    Ok(())
}
