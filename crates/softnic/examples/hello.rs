//! Two ports in one process: a SEND, through an mlx5 work queue entry and an mlx5 completion.
//!
//! `cargo run -p copyrpc-softnic --example hello`

use std::{
    error::Error,
    time::{Duration, Instant},
};

use copyrpc_softnic::{Config, Nic, open};
use verbs::{
    Access, CompletionQueue as _, CqConfig, InitAttr, MemoryRegion as _, ModifyError, Mtu,
    Nic as _, Op, Payload, Psn, QKey, QpAddress, QpConfig, QueuePair as _, RcPeer, RnrTimer,
    RtrAttr, RtsAttr, SendRequest, Transition, Transport,
};

/// A port with one queue pair, its completion queue and 4 KiB of registered memory.
struct End {
    nic: Nic,
    cq: <Nic as verbs::Nic>::Cq,
    qp: <Nic as verbs::Nic>::Qp,
    mr: <Nic as verbs::Nic>::Mr,
}

impl End {
    fn open(config: &Config) -> Result<Self, Box<dyn Error>> {
        let nic = open(config)?;
        let pd = nic.alloc_pd()?;
        let cq = nic.create_cq(&CqConfig::new(128), None)?;
        let qp = nic.create_qp(&pd, &QpConfig::new(Transport::Rc, &cq))?;
        let mr = nic.alloc_mr(&pd, 4096, Access::LOCAL_WRITE)?;
        Ok(Self { nic, cq, qp, mr })
    }

    fn endpoint(&self) -> QpAddress {
        self.nic.endpoint(&self.qp)
    }

    /// RESET to RTS.
    fn connect(&mut self, to: QpAddress) -> Result<(), ModifyError> {
        let peer = RcPeer { qpn: to.qpn, address: to.address, rq_psn: Psn::default() };
        let access = Access::LOCAL_WRITE;
        self.qp.modify(&Transition::Init(InitAttr { access, qkey: QKey::default() }))?;
        self.qp.modify(&Transition::Rtr(RtrAttr {
            path_mtu: Mtu::B4096,
            peer: Some(peer),
            rnr_timer: RnrTimer::at_least(Duration::from_micros(10)),
            reads_in_max: 16,
        }))?;
        self.qp.modify(&Transition::Rts(RtsAttr::default()))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let config = Config { fabric: "hello".into(), ..Config::default() };
    let (mut a, mut b) = (End::open(&config)?, End::open(&config)?);
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    a.connect(at_b)?;
    b.connect(at_a)?;

    b.qp.post_recv(&[b.mr.sge(0, 64)])?;
    b.qp.ring_recv();
    a.mr.write(0, b"hello, mlx5");
    let payload = Payload::Gather(&[a.mr.sge(0, 11)]);
    a.qp.post_send(&SendRequest::signaled(Op::Send { payload, imm: None }))?;
    a.qp.ring_send();

    // Polling is what keeps an inline NIC going, so both ends poll.
    let (mut sent, mut received) = (None, None);
    let start = Instant::now();
    while sent.is_none() || received.is_none() {
        sent = sent.or_else(|| a.cq.poll());
        received = received.or_else(|| b.cq.poll());
        if start.elapsed() > Duration::from_secs(5) {
            return Err(format!("no completion; sent: {sent:?}, received: {received:?}").into());
        }
    }
    let done = received.ok_or("nothing was received")?;
    if let Some(failure) = done.failure {
        return Err(format!("the receive failed: {failure:?}").into());
    }
    let mut bytes = [0; 11];
    b.mr.read(0, &mut bytes);
    println!("{} B arrived: {}", done.len_bytes, str::from_utf8(&bytes)?);
    Ok(())
}
