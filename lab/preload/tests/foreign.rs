//! This project's verbs program meets programs of others on one fabric: `ibv_rc_pingpong` and `ibv_ud_pingpong` return what
//! they are sent, and one of rdma-core's Python bindings ([`one_sided.py`](foreign/one_sided.py)) is written to with immediate
//! data, reads, and writes back.
#![cfg(not(any(loom, miri)))]

mod common;

use std::{
    error::Error,
    fmt,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use common::{has_library, run_tests};
use ibverbs::{Config, any::Nic, mlx5dv};
use uverbs::matrix::{ListensAt, PATIENCE, ROWS, Running, free_port};
use verbs::{
    Access, AddressVector, Completion, CompletionKind, CompletionQueue as _, CqConfig, Destination,
    Gid, GidRoute, InitAttr, Lid, LinkLayer, MemoryRegion as _, Mtu, Nic as _, Op, Payload,
    PortRoute, Psn, QKey, QpAddress, QpConfig, Qpn, QueuePair as _, RcPeer, RemoteSlice, Rkey,
    RnrTimer, RtrAttr, RtsAttr, SendRequest, Sge, Transition, Transport,
};

/// Programs of rdma-core (`libibverbs/examples`) that return what they are sent.
const PING_PONG: [&str; 2] = ["ibv_rc_pingpong", "ibv_ud_pingpong"];

/// The program that is written to and reads, and the modules that it needs.
const ONE_SIDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/foreign/one_sided.py");
const PYTHON: &str = "/usr/bin/python3";
const MODULES: &str = "/usr/lib/python3/dist-packages/pyverbs";

const ROUNDS: usize = 100;
const BYTES: usize = 4096;

/// A datagram, the program's default, and the room for a global route header before it.
const DATAGRAM_BYTES: usize = 1024;
const GRH_BYTES: usize = 40;

/// Of the program, too.
const UD_QKEY: QKey = QKey::new(0x1111_1111);

/// `LID:QPN:PSN:GID`, which both sides write on their TCP connection with a zero behind it.
///
/// Source: rdma-core, `libibverbs/examples/rc_pingpong.c`, `ud_pingpong.c` and `pingpong.c`.
#[derive(Debug, PartialEq, Eq)]
struct PingPongAddress {
    lid: Lid,
    qpn: Qpn,
    psn: Psn,
    gid: Gid,
}

impl fmt::Display for PingPongAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gid = u128::from_be_bytes(self.gid.to_bytes());
        let (lid, qpn, psn) = (self.lid.get(), self.qpn.get(), self.psn.get());
        write!(f, "{lid:04x}:{qpn:06x}:{psn:06x}:{gid:032x}")
    }
}

impl PingPongAddress {
    /// The address, and the words behind it.
    fn parse(text: &str) -> Option<(Self, Vec<u64>)> {
        let mut words = text.split(':').map(|word| u128::from_str_radix(word, 16).ok());
        let mut word = || words.next()?;
        let lid = Lid::new(word()?.try_into().ok()?);
        let qpn = Qpn::from_low_bits(word()?.try_into().ok()?);
        let psn = Psn::from_low_bits(word()?.try_into().ok()?);
        let gid = Gid::new(word()?.to_be_bytes());
        let rest = words.map(|word| word?.try_into().ok()).collect::<Option<_>>()?;
        Some((Self { lid, qpn, psn, gid }, rest))
    }

    fn endpoint(&self, link: LinkLayer) -> QpAddress {
        let address = AddressVector::new(match link {
            LinkLayer::InfiniBand => PortRoute::Lid(self.lid),
            LinkLayer::Ethernet => PortRoute::Gid(GidRoute {
                gid: self.gid,
                hop_limit: 1,
                traffic_class: 0,
                flow_label: 0,
            }),
        });
        QpAddress { address, qpn: self.qpn }
    }
}

/// This project's side: a queue pair, memory that its peer may write and read, and the peer's program.
struct Ours {
    qp: <Nic as verbs::Nic>::Qp,
    cq: <Nic as verbs::Nic>::Cq,
    mr: <Nic as verbs::Nic>::Mr,
    server: Running,
    deadline: Instant,
    /// The program ends with it.
    stream: TcpStream,
}

impl Ours {
    /// Starts the program, tells it the address of a queue pair, and connects that to the program's.
    fn meet(
        nic: &Nic,
        transport: Transport,
        program: impl FnOnce(u16) -> Command,
        memory_bytes: Option<usize>,
    ) -> Result<(Self, QpAddress, Vec<u64>), Box<dyn Error>> {
        let deadline = Instant::now() + PATIENCE;
        let port = free_port()?;
        let mut server = Running::start(program(port))?;
        server.wait_until_listening(ListensAt::Port(port), deadline)?;
        let pd = nic.alloc_pd()?;
        let cq = nic.create_cq(&CqConfig::new(128), None)?;
        let mut qp = nic.create_qp(&pd, &QpConfig::new(transport, &cq))?;
        let remote = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let access = Access::LOCAL_WRITE | memory_bytes.map_or(Access::empty(), |_| remote);
        let mr = nic.alloc_mr(&pd, memory_bytes.unwrap_or(2 * BYTES), access)?;

        let link = nic.port().link;
        // A GID asks the program for a global route, for which it needs a row.
        let gid = if link == LinkLayer::Ethernet { nic.port().gid } else { Gid::default() };
        let own = PingPongAddress { lid: nic.port().lid, qpn: qp.qpn(), psn: Psn::default(), gid };
        let at = mr.remote(0);
        let memory = memory_bytes.map(|_| format!(":{:08x}:{:016x}", at.rkey.get(), at.addr));
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let text = format!("{own}{}\0", memory.unwrap_or_default());
        stream.write_all(text.as_bytes())?;
        let mut bytes = vec![0; text.len()];
        stream.read_exact(&mut bytes).map_err(|error| format!("{error}: {}", server.text()))?;
        let text = String::from_utf8(bytes)?;
        let (peer, rest) =
            PingPongAddress::parse(text.trim_end_matches('\0')).ok_or("no address")?;
        stream.write_all(b"done\0")?;

        let qkey = if transport == Transport::Ud { UD_QKEY } else { QKey::default() };
        let endpoint = peer.endpoint(link);
        qp.modify(&Transition::Init(InitAttr { access, qkey }))?;
        let QpAddress { address, qpn } = endpoint;
        let rc = RcPeer { qpn, address, rq_psn: peer.psn };
        qp.modify(&Transition::Rtr(RtrAttr {
            path_mtu: Mtu::B1024,
            peer: (transport == Transport::Rc).then_some(rc),
            rnr_timer: RnrTimer::at_least(Duration::from_micros(640)),
            reads_in_max: 1,
        }))?;
        qp.modify(&Transition::Rts(RtsAttr { reads_out_max: 1, ..RtsAttr::default() }))?;
        Ok((Self { qp, cq, mr, server, deadline, stream }, endpoint, rest))
    }

    fn receive(&mut self, sges: &[Sge]) -> Result<(), Box<dyn Error>> {
        self.qp.post_recv(sges)?;
        self.qp.ring_recv();
        Ok(())
    }

    fn send(&mut self, request: &SendRequest<'_>) -> Result<(), Box<dyn Error>> {
        self.qp.post_send(request)?;
        self.qp.ring_send();
        Ok(())
    }

    /// The next completions, whose kinds are these in any order; the last of the kinds is returned.
    fn complete(&mut self, kinds: &[CompletionKind]) -> Completion {
        let mut left = kinds.to_vec();
        let mut last = None;
        while !left.is_empty() {
            assert!(Instant::now() < self.deadline, "{left:?} missing: {}", self.server.text());
            let Some(done) = self.cq.poll() else { continue };
            assert_eq!(done.failure, None, "{}", self.server.text());
            self.qp.retire(&done);
            let at = left.iter().position(|kind| *kind == done.kind);
            left.swap_remove(at.unwrap_or_else(|| panic!("{done:?}, not one of {left:?}")));
            if Some(&done.kind) == kinds.last() {
                last = Some(done);
            }
        }
        last.expect("a kind at least")
    }

    fn read(&self, offset: usize, bytes: usize) -> Vec<u8> {
        let mut read = vec![0; bytes];
        self.mr.read(offset, &mut read);
        read
    }

    fn end(mut self) -> Result<(), Box<dyn Error>> {
        drop(self.stream);
        Ok(self.server.end(self.deadline)?)
    }
}

/// Bytes of a round.
fn pattern(round: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + round).to_le_bytes()[0]).collect()
}

/// Sends a server of the program so many messages, each with other bytes, and compares what returns.
fn ping(nic: &Nic, transport: Transport) -> Result<(), Box<dyn Error>> {
    let is_ud = transport == Transport::Ud;
    let (bytes, head) = if is_ud { (DATAGRAM_BYTES, GRH_BYTES) } else { (BYTES, 0) };
    let link = nic.port().link;
    let program = |port: u16| {
        let mut command = Command::new(PING_PONG[usize::from(is_ud)]);
        let (port, rounds, bytes) = (port.to_string(), ROUNDS.to_string(), bytes.to_string());
        command.args(["-p", &port, "-n", &rounds, "-s", &bytes]);
        if link == LinkLayer::Ethernet {
            command.args(["-g", "3"]);
        }
        command
    };
    let (mut ours, theirs, _) = Ours::meet(nic, transport, program, None)?;
    let datagram = Destination::Ud { to: theirs, qkey: UD_QKEY };
    for round in 0..ROUNDS {
        let sent = pattern(round, bytes);
        ours.mr.write(0, &sent);
        ours.receive(&[ours.mr.sge(BYTES, head + bytes)])?;
        let sges = [ours.mr.sge(0, bytes)];
        let payload = Payload::Gather(&sges);
        let request = SendRequest::signaled(Op::Send { payload, imm: None });
        ours.send(&if is_ud { request.to(&datagram) } else { request })?;
        let done = ours.complete(&[CompletionKind::Send, CompletionKind::Recv]);
        assert_eq!(done.len_bytes as usize, bytes, "round {round}");
        assert_eq!(ours.read(BYTES + head, bytes), sent, "round {round}");
    }
    ours.end()
}

/// Writes to the program with immediate data. It reads what was written from here and writes it back, which is compared, and read
/// from there, too.
fn write_and_read(nic: &Nic) -> Result<(), Box<dyn Error>> {
    let row = if nic.port().link == LinkLayer::Ethernet { "3" } else { "-1" };
    let program = |port: u16| {
        let mut command = Command::new(PYTHON);
        let (rounds, bytes, seconds) = (ROUNDS.to_string(), BYTES.to_string(), PATIENCE.as_secs());
        command.args([ONE_SIDED, &port.to_string(), row, &rounds, &bytes, &seconds.to_string()]);
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command
    };
    let (mut ours, _, memory) = Ours::meet(nic, Transport::Rc, program, Some(3 * BYTES))?;
    let [rkey, addr] = memory[..] else { return Err("no memory".into()) };
    let theirs = RemoteSlice { addr, rkey: Rkey::new(rkey.try_into()?) };
    let back = RemoteSlice { addr: addr + BYTES as u64, ..theirs };
    for round in 0..ROUNDS {
        let sent = pattern(round, BYTES);
        let imm = u32::try_from(round)?;
        ours.mr.write(0, &sent);
        ours.receive(&[])?;
        let sges = [ours.mr.sge(0, BYTES)];
        let payload = Payload::Gather(&sges);
        let write = Op::Write { remote: theirs, payload, imm: Some(imm) };
        ours.send(&SendRequest::signaled(write))?;
        let told = ours.complete(&[CompletionKind::Write, CompletionKind::RecvWriteImm]);
        assert_eq!((told.imm, told.len_bytes as usize), (Some(!imm), BYTES), "round {round}");
        assert_eq!(ours.read(BYTES, BYTES), sent, "round {round}");
        let into = [ours.mr.sge(2 * BYTES, BYTES)];
        ours.send(&SendRequest::signaled(Op::Read { remote: back, into: &into }))?;
        let _ = ours.complete(&[CompletionKind::Read]);
        assert_eq!(ours.read(2 * BYTES, BYTES), sent, "round {round}");
    }
    ours.end()
}

mod device {
    use super::*;

    fn driver() -> Nic {
        Nic::Driver(mlx5::Nic::new(mlx5dv::open(&Config::default()).unwrap()))
    }

    fn library() -> Nic {
        Nic::Library(ibverbs::open(&Config::default()).unwrap())
    }

    macro_rules! with {
        ($($name:ident: $run:expr;)*) => {$(
            #[ignore = "needs a device: `ours_and_foreign_programs_exchange_bytes` starts it where there is one"]
            #[test]
            fn $name() {
                $run.unwrap();
            }
        )*};
    }

    with! {
        rc_by_the_driver: ping(&driver(), Transport::Rc);
        rc_by_the_library: ping(&library(), Transport::Rc);
        ud_by_the_driver: ping(&driver(), Transport::Ud);
        ud_by_the_library: ping(&library(), Transport::Ud);
        one_sided_by_the_driver: write_and_read(&driver());
        one_sided_by_the_library: write_and_read(&library());
    }
}

/// In CI it has to be there.
fn has(is_there: bool, package: &str) -> bool {
    let is_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
    assert!(is_there || !is_ci, "install {package}");
    if !is_there {
        eprintln!("skipped: {package} is not installed");
    }
    is_there
}

#[test]
fn ours_and_foreign_programs_exchange_bytes() {
    let is_row =
        |program: &&str| ROWS.iter().any(|row| row.program == *program && row.is_installed());
    let has_ping_pong = has(PING_PONG.iter().all(is_row), "ibverbs-utils");
    let has_python = [PYTHON, MODULES].iter().all(|path| Path::new(path).exists());
    let has_python = has(has_python, "python3-pyverbs");
    if !has_library() {
        return;
    }
    for link in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
        for theme in [("rc_", has_ping_pong), ("ud_", has_ping_pong), ("one_sided_", has_python)] {
            let (name, is_installed) = theme;
            if is_installed {
                assert_eq!(run_tests(&format!("device::{name}"), link), 2);
            }
        }
    }
}

#[test]
fn an_address_survives_as_programs_write_it() {
    let text = "0003:00abcd:123456:fe80000000000000020000fffe000003";
    let (address, rest) = PingPongAddress::parse(text).unwrap();
    assert_eq!((address.lid, address.qpn), (Lid::new(3), Qpn::from_low_bits(0xabcd)));
    assert_eq!((address.to_string(), rest), (text.to_owned(), vec![]));
    let (_, rest) = PingPongAddress::parse(&format!("{text}:0000001f:00007f0000001000")).unwrap();
    assert_eq!(rest, [0x1f, 0x7f00_0000_1000]);
}
