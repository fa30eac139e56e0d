//! Instructions and time of the software NIC itself: two ports on one thread, no other core.
//!
//! A batch of 32 B inline messages is posted, rung and polled at both ends; every immediate and the
//! last payload are checked. What two cores add is measured by `copyrpc-lab bench verbs`.
//!
//! `--shape NAME` runs one of [`SHAPES`], `--rounds N` so many batches of it: for a profiler, which
//! counts the difference of two runs.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use copyrpc_softnic::{Config, Nic, open};
use verbs::{
    Access, Completion, CompletionQueue as _, CqConfig, DcKey, Destination, InitAttr,
    MemoryRegion as _, Mtu, Nic as _, Op, Payload, QKey, QpConfig, QueuePair as _, RcPeer,
    RecvSize, RnrTimer, RtrAttr, RtsAttr, SendFlags, SendRequest, SendSize, Sge,
    SharedReceiveQueue as _, SrqConfig, Transition, Transport,
};

const BATCH: u32 = 64;
const BYTES: u32 = 32;
const KEY: DcKey = DcKey::new(0x1234_5678);
const ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

type Cq = <Nic as verbs::Nic>::Cq;
type Qp = <Nic as verbs::Nic>::Qp;
type Srq = <Nic as verbs::Nic>::Srq;

/// Traffic whose instructions are counted.
#[derive(Clone, Copy, Debug)]
struct Shape {
    name: &'static str,
    is_dc: bool,
    is_send: bool,
    /// Queue pairs that receive, in turn.
    targets: usize,
    /// They share their receives. DC targets always do.
    is_shared: bool,
}

const RC: Shape =
    Shape { name: "write-imm", is_dc: false, is_send: false, targets: 1, is_shared: false };
const DC: Shape = Shape { name: "dc-write-imm", is_dc: true, is_shared: true, ..RC };

const SHAPES: [Shape; 6] = [
    RC,
    Shape { name: "send-imm", is_send: true, ..RC },
    Shape { name: "send-imm-srq", is_send: true, is_shared: true, ..RC },
    DC,
    Shape { name: "dc-write-imm-16", targets: 16, ..DC },
    Shape { name: "dc-send-imm", is_send: true, ..DC },
];

/// One port with all that a shape needs of it.
struct End {
    qps: Vec<Qp>,
    srq: Option<Srq>,
    /// Of sends and of receives: a queue with one producer is the fast case, and the usual one.
    send_cq: Cq,
    cq: Cq,
    mr: <Nic as verbs::Nic>::Mr,
    nic: Nic,
}

fn end(config: &Config, transport: Transport, shape: Shape) -> End {
    let nic = open(config).expect("open");
    let pd = nic.alloc_pd().expect("pd");
    let [cq, send_cq] = [(); 2].map(|()| nic.create_cq(&CqConfig::new(1024), None).expect("cq"));
    let srq = shape.is_shared.then(|| {
        nic.create_srq(&pd, &SrqConfig { entries: 256, sges_max: 1 }).expect("shared receives")
    });
    let send = SendSize { requests: 128, sges_max: 1, inline_bytes_max: 32 };
    let recv = RecvSize { requests: 256, sges_max: 1 };
    let mut qp_config = QpConfig { send, recv, send_cq: &send_cq, ..QpConfig::new(transport, &cq) };
    let mut count = 1;
    if transport != Transport::Dci {
        (qp_config.srq, qp_config.access_key, count) = (srq.as_ref(), KEY, shape.targets);
    }
    let qps = (0..count).map(|_| nic.create_qp(&pd, &qp_config).expect("qp")).collect();
    let mr = nic.alloc_mr(&pd, 1 << 16, ACCESS).expect("mr");
    End { qps, srq, send_cq, cq, mr, nic }
}

fn ready(qp: &mut Qp, peer: Option<verbs::QpAddress>) {
    let peer = peer.map(|peer| RcPeer {
        qpn: peer.qpn,
        address: peer.address,
        rq_psn: Default::default(),
    });
    let mut steps = vec![
        Transition::Init(InitAttr { access: ACCESS, qkey: QKey::default() }),
        Transition::Rtr(RtrAttr {
            path_mtu: Mtu::B4096,
            peer,
            rnr_timer: RnrTimer::at_least(Duration::ZERO),
            reads_in_max: 16,
        }),
    ];
    if qp.transport() != Transport::Dct {
        steps.push(Transition::Rts(RtsAttr::default()));
    }
    steps.iter().for_each(|step| qp.modify(step).expect("modify"));
}

/// Two ports that are ready for `shape`, and where its messages go.
struct Pair {
    shape: Shape,
    a: End,
    b: End,
    to: Vec<Destination>,
}

impl Pair {
    fn new(shape: Shape) -> Self {
        let fabric = format!("cost-{}-{}", shape.name, std::process::id());
        let config = Config { fabric, ..Config::default() };
        let (from, into) = if shape.is_dc {
            (Transport::Dci, Transport::Dct)
        } else {
            (Transport::Rc, Transport::Rc)
        };
        let (mut a, mut b) = (end(&config, from, shape), end(&config, into, shape));
        if shape.is_dc {
            ready(&mut a.qps[0], None);
            b.qps.iter_mut().for_each(|qp| ready(qp, None));
        } else {
            let (at_a, at_b) = (a.nic.endpoint(&a.qps[0]), b.nic.endpoint(&b.qps[0]));
            ready(&mut a.qps[0], Some(at_b));
            ready(&mut b.qps[0], Some(at_a));
        }
        let to = b.qps.iter().map(|qp| Destination::Dc { to: b.nic.endpoint(qp), key: KEY });
        Self { shape, to: to.collect(), a, b }
    }

    #[inline(always)]
    fn post_receives<const IS_SEND: bool>(&mut self) {
        let b = &mut self.b;
        let sge = Sge { addr: b.mr.addr(), lkey: b.mr.lkey(), len_bytes: BYTES };
        let into: &[Sge] = if IS_SEND { &[sge] } else { &[] };
        match &mut b.srq {
            Some(srq) => {
                for _ in 0..BATCH {
                    srq.post(into).expect("receive");
                }
                srq.ring();
            }
            None => {
                let qp = &mut b.qps[0];
                for _ in 0..BATCH {
                    qp.post_recv(into).expect("receive");
                }
                qp.ring_recv();
            }
        }
    }

    #[inline(always)]
    fn retire_receive(&mut self, done: &Completion) {
        match &mut self.b.srq {
            Some(srq) => srq.retire(done),
            None => self.b.qps[0].retire(done),
        }
    }

    /// Posts, delivers and retires one batch; returns how long posting and ringing took.
    fn batch(&mut self, round: u32) -> Duration {
        match (self.shape.is_dc, self.shape.is_send) {
            (false, false) => self.batch_of::<false, false>(round),
            (false, true) => self.batch_of::<false, true>(round),
            (true, false) => self.batch_of::<true, false>(round),
            (true, true) => self.batch_of::<true, true>(round),
        }
    }

    /// As a program is compiled that knows what it sends.
    #[inline(never)]
    fn batch_of<const IS_DC: bool, const IS_SEND: bool>(&mut self, round: u32) -> Duration {
        self.post_receives::<IS_SEND>();
        let [byte, ..] = round.to_le_bytes();
        let payload = [byte; BYTES as usize];
        let remote = self.b.mr.remote(0);
        let qp = &mut self.a.qps[0];
        let start = Instant::now();
        for i in 0..BATCH {
            let imm = Some(round.wrapping_mul(BATCH) + i);
            let flags = if i == BATCH - 1 { SendFlags::SIGNALED } else { SendFlags::empty() };
            let to = IS_DC.then(|| &self.to[i as usize % self.to.len()]);
            let payload = Payload::Inline(&[&payload]);
            let op = if IS_SEND {
                Op::Send { payload, imm }
            } else {
                Op::Write { remote, payload, imm }
            };
            qp.post_send(&SendRequest { op, flags, to }).expect("send");
        }
        qp.ring_send();
        let posting = start.elapsed();
        let (mut received, mut sent) = (0, false);
        while received < BATCH || !sent {
            if let Some(done) = self.b.cq.poll() {
                let imm = Some(round.wrapping_mul(BATCH) + received);
                assert!(done.failure.is_none() && done.imm == imm, "{done:?}");
                self.retire_receive(&done);
                received += 1;
            } else if let Some(done) = self.a.send_cq.poll() {
                assert!(done.failure.is_none(), "{done:?}");
                self.a.qps[0].retire(&done);
                sent = true;
            }
        }
        let mut bytes = [0; BYTES as usize];
        self.b.mr.read(0, &mut bytes);
        assert_eq!(bytes, payload);
        posting
    }
}

fn argument(name: &str) -> Option<String> {
    std::env::args().skip_while(|arg| arg != name).nth(1)
}

fn main() {
    let is_smoke = !std::env::args().any(|arg| arg == "--bench");
    let rounds = argument("--rounds").map(|n| n.parse().expect("--rounds takes a number"));
    let rounds: u32 = rounds.unwrap_or(if is_smoke { 2 } else { 20_000 });
    let only = argument("--shape");
    let shapes = SHAPES.iter().filter(|shape| only.as_ref().is_none_or(|name| name == shape.name));
    println!("32 B, batches of {BATCH}, one thread, best of 7:");
    for &shape in shapes {
        let mut pair = Pair::new(shape);
        pair.batch(0);
        let mut best = [f64::MAX; 2];
        for _ in 0..if is_smoke { 1 } else { 7 } {
            let start = Instant::now();
            let mut posting = Duration::ZERO;
            for round in 0..rounds {
                posting += pair.batch(black_box(round));
            }
            let count = f64::from(rounds * BATCH);
            let per = |time: Duration| time.as_secs_f64() * 1e9 / count;
            best = [best[0].min(per(posting)), best[1].min(per(start.elapsed()))];
        }
        let Shape { name, .. } = shape;
        println!("  {name:15} {:6.1} ns to post and ring, {:6.1} with polling", best[0], best[1]);
    }
}
