//! This project's verbs program meets a program of others on one fabric: `ibv_rc_pingpong` returns what it is sent.
#![cfg(not(any(loom, miri)))]

mod common;

use std::{
    error::Error,
    io::{Read as _, Write as _},
    net::TcpStream,
    process::Command,
    time::{Duration, Instant},
};

use common::{has_library, run_tests};
use ibverbs::{Config, any::Nic, mlx5dv};
use uverbs::matrix::{ListensAt, PATIENCE, ROWS, Running, free_port};
use verbs::{
    Access, AddressVector, CompletionQueue as _, CqConfig, Gid, GidRoute, InitAttr, Lid, LinkLayer,
    MemoryRegion as _, Mtu, Nic as _, Op, Payload, PortRoute, Psn, QKey, QpConfig, Qpn,
    QueuePair as _, RcPeer, RnrTimer, RtrAttr, RtsAttr, SendRequest, Transition, Transport,
};

const PROGRAM: &str = "ibv_rc_pingpong";
const ROUNDS: usize = 100;
const BYTES: usize = 4096;

/// `LID:QPN:PSN:GID` and a zero, which both sides write on their TCP connection.
///
/// Source: rdma-core, `libibverbs/examples/rc_pingpong.c` and `pingpong.c`.
const ADDRESS_BYTES: usize = 52;

/// An address of the program's kind.
#[derive(Debug, PartialEq, Eq)]
struct PingPongAddress {
    lid: Lid,
    qpn: Qpn,
    psn: Psn,
    gid: Gid,
}

impl PingPongAddress {
    fn encode(&self) -> [u8; ADDRESS_BYTES] {
        let gid = u128::from_be_bytes(self.gid.to_bytes());
        let (lid, qpn, psn) = (self.lid.get(), self.qpn.get(), self.psn.get());
        let text = format!("{lid:04x}:{qpn:06x}:{psn:06x}:{gid:032x}\0");
        text.into_bytes().try_into().unwrap()
    }

    fn decode(bytes: [u8; ADDRESS_BYTES]) -> Option<Self> {
        let text = core::str::from_utf8(&bytes).ok()?.trim_end_matches('\0');
        let mut words = text.split(':');
        let mut word = || u128::from_str_radix(words.next()?, 16).ok();
        let lid = Lid::new(word()?.try_into().ok()?);
        let qpn = Qpn::from_low_bits(word()?.try_into().ok()?);
        let psn = Psn::from_low_bits(word()?.try_into().ok()?);
        Some(Self { lid, qpn, psn, gid: Gid::new(word()?.to_be_bytes()) })
    }

    fn address(&self, link: LinkLayer) -> AddressVector {
        AddressVector::new(match link {
            LinkLayer::InfiniBand => PortRoute::Lid(self.lid),
            LinkLayer::Ethernet => PortRoute::Gid(GidRoute {
                gid: self.gid,
                hop_limit: 1,
                traffic_class: 0,
                flow_label: 0,
            }),
        })
    }
}

/// Sends a server of the program so many messages, each with other bytes, and compares what returns.
fn ping(nic: &Nic, arguments: &[&str]) -> Result<(), Box<dyn Error>> {
    let deadline = Instant::now() + PATIENCE;
    let port = free_port()?;
    let mut command = Command::new(PROGRAM);
    let rounds = ROUNDS.to_string();
    command.args(arguments).args(["-p", &port.to_string(), "-n", &rounds]);
    let mut server = Running::start(command)?;
    server.wait_until_listening(ListensAt::Port(port), deadline)?;

    let pd = nic.alloc_pd()?;
    let mut cq = nic.create_cq(&CqConfig::new(128), None)?;
    let mut qp = nic.create_qp(&pd, &QpConfig::new(Transport::Rc, &cq))?;
    let mr = nic.alloc_mr(&pd, 2 * BYTES, Access::LOCAL_WRITE)?;
    let link = nic.port().link;
    // A GID asks the program for a global route, for which it needs a row.
    let gid = if link == LinkLayer::Ethernet { nic.port().gid } else { Gid::default() };
    let own = PingPongAddress { lid: nic.port().lid, qpn: qp.qpn(), psn: Psn::default(), gid };
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&own.encode())?;
    let mut bytes = [0; ADDRESS_BYTES];
    stream.read_exact(&mut bytes)?;
    let peer = PingPongAddress::decode(bytes).ok_or("no address")?;
    stream.write_all(b"done\0")?;

    qp.modify(&Transition::Init(InitAttr { access: Access::LOCAL_WRITE, qkey: QKey::default() }))?;
    qp.modify(&Transition::Rtr(RtrAttr {
        path_mtu: Mtu::B1024,
        peer: Some(RcPeer { qpn: peer.qpn, address: peer.address(link), rq_psn: peer.psn }),
        rnr_timer: RnrTimer::at_least(Duration::from_micros(640)),
        reads_in_max: 1,
    }))?;
    qp.modify(&Transition::Rts(RtsAttr::default()))?;
    for round in 0..ROUNDS {
        let sent: Vec<u8> = (0..BYTES).map(|at| (at * 31 + round).to_le_bytes()[0]).collect();
        mr.write(0, &sent);
        qp.post_recv(&[mr.sge(BYTES, BYTES)])?;
        qp.ring_recv();
        let payload = Payload::Gather(&[mr.sge(0, BYTES)]);
        qp.post_send(&SendRequest::signaled(Op::Send { payload, imm: None }))?;
        qp.ring_send();
        let (mut is_sent, mut is_back) = (false, false);
        while !(is_sent && is_back) {
            assert!(Instant::now() < deadline, "round {round}: {}", server.text());
            let Some(done) = cq.poll() else { continue };
            assert_eq!(done.failure, None, "round {round}: {}", server.text());
            *(if done.kind.is_receive() { &mut is_back } else { &mut is_sent }) = true;
            qp.retire(&done);
        }
        let mut back = vec![0; BYTES];
        mr.read(BYTES, &mut back);
        assert_eq!(back, sent, "round {round}");
    }
    Ok(server.end(deadline)?)
}

mod device {
    use super::*;

    #[ignore = "needs a device: `ours_and_a_foreign_program_exchange_bytes` starts it where there is one"]
    #[test]
    fn driver() {
        let nic = Nic::Driver(mlx5::Nic::new(mlx5dv::open(&Config::default()).unwrap()));
        ping(&nic, row_of(&nic)).unwrap();
    }

    #[ignore = "needs a device: `ours_and_a_foreign_program_exchange_bytes` starts it where there is one"]
    #[test]
    fn library() {
        let nic = Nic::Library(ibverbs::open(&Config::default()).unwrap());
        ping(&nic, row_of(&nic)).unwrap();
    }

    fn row_of(nic: &Nic) -> &'static [&'static str] {
        if nic.port().link == LinkLayer::Ethernet { &["-g", "3"] } else { &[] }
    }
}

#[test]
fn ours_and_a_foreign_program_exchange_bytes() {
    let is_installed = ROWS.iter().any(|row| row.program == PROGRAM && row.is_installed());
    if !is_installed {
        let is_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
        assert!(!is_ci, "install ibverbs-utils");
        eprintln!("skipped: {PROGRAM}, which is in ibverbs-utils");
    } else if has_library() {
        for link in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
            assert_eq!(run_tests("device::", link), 2);
        }
    }
}

#[test]
fn an_address_survives_as_the_program_writes_it() {
    let text = b"0003:00abcd:123456:fe80000000000000020000fffe000003\0";
    let address = PingPongAddress::decode(*text).unwrap();
    assert_eq!((address.lid, address.qpn), (Lid::new(3), Qpn::from_low_bits(0xabcd)));
    assert_eq!(&address.encode(), text);
}
