//! Instructions and time of the software NIC itself: two ports on one thread, no other core.
//!
//! A batch of 32 B inline WRITE_IMMs is posted, rung and polled at both ends; every immediate and
//! the last payload are checked. What two cores add is measured by `copyrpc bench verbs`.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use copyrpc_softnic::{Config, Nic, open};
use verbs::{
    Access, CompletionQueue as _, CqConfig, InitAttr, MemoryRegion as _, Mtu, Nic as _, Op,
    Payload, QKey, QpConfig, QueuePair as _, QueueSize, RcPeer, RnrTimer, RtrAttr, RtsAttr,
    SendFlags, SendRequest, Transition, Transport,
};

const BATCH: u32 = 64;

struct End {
    qp: <Nic as verbs::Nic>::Qp,
    /// Of sends and of receives: a queue with one producer is the fast case, and the usual one.
    send_cq: <Nic as verbs::Nic>::Cq,
    cq: <Nic as verbs::Nic>::Cq,
    mr: <Nic as verbs::Nic>::Mr,
    nic: Nic,
}

fn end(config: &Config) -> End {
    let nic = open(config).expect("open");
    let pd = nic.alloc_pd().expect("pd");
    let cq = nic.create_cq(&CqConfig::new(1024), None).expect("cq");
    let send_cq = nic.create_cq(&CqConfig::new(1024), None).expect("cq");
    let size = QueueSize { entries: 256, sges_max: 1 };
    let qp_config =
        QpConfig { send: size, recv: size, send_cq: &send_cq, ..QpConfig::new(Transport::Rc, &cq) };
    let qp = nic.create_qp(&pd, &qp_config).expect("qp");
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mr = nic.alloc_mr(&pd, 1 << 16, access).expect("mr");
    End { qp, send_cq, cq, mr, nic }
}

fn connect(end: &mut End, peer: verbs::Endpoint) {
    let peer = RcPeer { qpn: peer.qpn, address: peer.address, rq_psn: Default::default() };
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let steps = [
        Transition::Init(InitAttr { access, qkey: QKey::default() }),
        Transition::Rtr(RtrAttr {
            path_mtu: Mtu::B4096,
            peer: Some(peer),
            rnr_timer: RnrTimer::at_least(Duration::ZERO),
            reads_in_max: 16,
        }),
        Transition::Rts(RtsAttr::default()),
    ];
    steps.iter().for_each(|step| end.qp.modify(step).expect("modify"));
}

/// Posts, delivers and retires one batch; returns how long posting and ringing took.
fn batch(a: &mut End, b: &mut End, round: u32) -> Duration {
    for _ in 0..BATCH {
        b.qp.post_recv(&[]).expect("receive");
    }
    b.qp.ring_recv();
    let [byte, ..] = round.to_le_bytes();
    let payload = [byte; 32];
    let remote = b.mr.remote(0);
    let start = Instant::now();
    for i in 0..BATCH {
        let payload = Payload::Inline(&[&payload]);
        let op = Op::Write { remote, payload, imm: Some(round.wrapping_mul(BATCH) + i) };
        let flags = if i == BATCH - 1 { SendFlags::SIGNALED } else { SendFlags::empty() };
        a.qp.post_send(&SendRequest { op, flags, to: None }).expect("send");
    }
    a.qp.ring_send();
    let posting = start.elapsed();
    let (mut received, mut sent) = (0, false);
    while received < BATCH || !sent {
        if let Some(done) = b.cq.poll() {
            let imm = Some(round.wrapping_mul(BATCH) + received);
            assert_eq!((done.failure, done.imm), (None, imm));
            b.qp.retire(&done);
            received += 1;
        } else if let Some(done) = a.send_cq.poll() {
            assert_eq!(done.failure, None);
            a.qp.retire(&done);
            sent = true;
        }
    }
    let mut bytes = [0; 32];
    b.mr.read(0, &mut bytes);
    assert_eq!(bytes, payload);
    posting
}

/// `--rounds N`: for a profiler, which counts the difference of two runs.
fn rounds() -> Option<u32> {
    let mut args = std::env::args().skip_while(|arg| arg != "--rounds").skip(1);
    args.next().map(|n| n.parse().expect("--rounds takes a number"))
}

fn main() {
    let is_smoke = !std::env::args().any(|arg| arg == "--bench");
    let rounds: u32 = rounds().unwrap_or(if is_smoke { 2 } else { 40_000 });
    let config = Config { fabric: format!("cost-{}", std::process::id()), ..Config::default() };
    let (mut a, mut b) = (end(&config), end(&config));
    let (at_a, at_b) = (a.nic.endpoint(&a.qp), b.nic.endpoint(&b.qp));
    connect(&mut a, at_b);
    connect(&mut b, at_a);
    batch(&mut a, &mut b, 0);
    let mut best = [f64::MAX; 2];
    for _ in 0..if is_smoke { 1 } else { 7 } {
        let start = Instant::now();
        let mut posting = Duration::ZERO;
        for round in 0..rounds {
            posting += batch(&mut a, &mut b, black_box(round));
        }
        let count = f64::from(rounds * BATCH);
        let per = |time: Duration| time.as_secs_f64() * 1e9 / count;
        best = [best[0].min(per(posting)), best[1].min(per(start.elapsed()))];
    }
    println!("WRITE_IMM 32 B, batches of {BATCH}, one thread, best of 7:");
    println!("  post and ring        {:6.1} ns per request", best[0]);
    println!("  and receive and poll {:6.1} ns per request", best[1]);
}
