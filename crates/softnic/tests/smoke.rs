//! Two ports in one process exchange messages.
#![cfg(not(any(loom, miri)))]

use std::time::{Duration, Instant};

use copyrpc_softnic as softnic;
use verbs::{
    Access, Completion, CompletionQueue as _, CqConfig, InitAttr, MemoryRegion as _, Mtu, Nic as _,
    Op, Payload, QKey, QpConfig, QueuePair as _, RcPeer, RnrTimer, RtrAttr, RtsAttr, SendRequest,
    Transition, Transport,
};

fn wait(
    cq: &mut <softnic::Nic as verbs::Nic>::Cq,
    other: &mut <softnic::Nic as verbs::Nic>::Cq,
) -> Completion {
    let start = Instant::now();
    loop {
        if let Some(done) = cq.poll() {
            return done;
        }
        assert!(other.poll().is_none());
        assert!(start.elapsed() < Duration::from_secs(5), "no completion");
    }
}

#[test]
fn a_send_arrives() {
    let config = softnic::Config { fabric: "smoke".into(), ..softnic::Config::default() };
    let (a, b) = (softnic::open(&config).unwrap(), softnic::open(&config).unwrap());
    let (pa, pb) = (a.alloc_pd().unwrap(), b.alloc_pd().unwrap());
    let mut ca = a.create_cq(&CqConfig::new(128), None).unwrap();
    let mut cb = b.create_cq(&CqConfig::new(128), None).unwrap();
    let mut qa = a.create_qp(&pa, &QpConfig::new(Transport::Rc, &ca)).unwrap();
    let mut qb = b.create_qp(&pb, &QpConfig::new(Transport::Rc, &cb)).unwrap();
    let (ea, eb) = (a.endpoint(&qa), b.endpoint(&qb));
    for (qp, peer) in [(&mut qa, eb), (&mut qb, ea)] {
        let access = Access::all();
        qp.modify(&Transition::Init(InitAttr { access, qkey: QKey::default() })).unwrap();
        qp.modify(&Transition::Rtr(RtrAttr {
            path_mtu: Mtu::B4096,
            peer: Some(RcPeer { qpn: peer.qpn, address: peer.address, rq_psn: Default::default() }),
            rnr_timer: RnrTimer::at_least(Duration::from_micros(10)),
            reads_in_max: 16,
        }))
        .unwrap();
        qp.modify(&Transition::Rts(RtsAttr::default())).unwrap();
    }
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let ma = a.alloc_mr(&pa, 4096, rights).unwrap();
    let mb = b.alloc_mr(&pb, 4096, rights).unwrap();
    ma.write(0, b"hello, world");
    qb.post_recv(&[mb.sge(64, 64)]).unwrap();
    qb.ring_recv();
    let op = Op::Send { payload: Payload::Gather(&[ma.sge(0, 12)]), imm: Some(7) };
    qa.post_send(&SendRequest::signaled(op)).unwrap();
    qa.ring_send();
    let sent = wait(&mut ca, &mut cb);
    assert_eq!(sent.failure, None);
    qa.retire(&sent);
    let got = cb.poll().unwrap();
    assert_eq!((got.failure, got.imm, got.len_bytes), (None, Some(7), 12));
    qb.retire(&got);
    let mut bytes = [0; 12];
    mb.read(64, &mut bytes);
    assert_eq!(&bytes, b"hello, world");
}
