//! Memory that a peer has not been told of yet.
#![cfg(not(any(loom, miri)))]

mod common;

use std::time::Duration;

use verbs::{
    Arm, Channel as _, CompletionQueue as _, CqConfig, MemoryRegion as _, Nic as _, Op, Payload,
    QpConfig, QueuePair as _, SendRequest, Transport,
};

use common::{End, Mr, completion, pair, until};

/// Far more than a socket holds messages.
const REGIONS: usize = 600;

/// A message arrives, which makes the ports known to each other.
fn greet([a, b]: &mut [End; 2]) {
    let (from, to) = (a.mr(64), b.mr(64));
    b.qp.post_recv(&[to.sge(0, 64)]).unwrap();
    b.qp.ring_recv();
    let payload = Payload::Gather(&[from.sge(0, 8)]);
    a.qp.post_send(&SendRequest::signaled(Op::Send { payload, imm: None })).unwrap();
    a.qp.ring_send();
    let done = completion(&mut a.cq, &mut b.cq, &mut Vec::new());
    assert_eq!(done.failure, None);
    let _arrived = until("the arrival", || b.cq.poll());
}

/// The socket between the ports is full, and its reader has other things to do.
#[test]
fn a_send_into_a_region_that_is_not_told_yet_waits_for_it() {
    let mut ends = pair("untold", None);
    greet(&mut ends);
    let [a, b] = &mut ends;
    let from = a.mr(64);
    from.write(0, b"message");
    let regions: Vec<Mr> = (0..REGIONS).map(|_| b.mr(64)).collect();
    let last = regions.last().unwrap();
    b.qp.post_recv(&[last.sge(0, 64)]).unwrap();
    b.qp.ring_recv();
    let payload = Payload::Gather(&[from.sge(0, 7)]);
    a.qp.post_send(&SendRequest::signaled(Op::Send { payload, imm: None })).unwrap();
    a.qp.ring_send();
    let mut arrived = Vec::new();
    let done = completion(&mut a.cq, &mut b.cq, &mut arrived);
    assert_eq!(done.failure, None);
    let arrived = arrived.pop().unwrap_or_else(|| until("the arrival", || b.cq.poll()));
    assert_eq!((arrived.failure, arrived.len_bytes), (None, 7));
    let mut bytes = [0; 7];
    last.read(0, &mut bytes);
    assert_eq!(&bytes, b"message");
}

/// Nor is the sender told of the channel, so it cannot signal there.
#[test]
fn who_sleeps_on_a_channel_that_is_not_told_yet_is_woken() {
    let mut ends = pair("unheard", None);
    greet(&mut ends);
    let [a, b] = &mut ends;
    let _regions: Vec<Mr> = (0..REGIONS).map(|_| b.mr(64)).collect();
    let channel = b.nic.create_channel().unwrap();
    let cq = b.nic.create_cq(&CqConfig::new(256), Some(&channel)).unwrap();
    let qp = b.nic.create_qp(&b.pd, &QpConfig::new(Transport::Rc, &cq)).unwrap();
    let mut receiver = End { nic: b.nic.clone(), pd: b.pd, cq, qp };
    let mut sender = End::new(&a.nic, Transport::Rc);
    let [from, to] = [&sender, &receiver].map(End::endpoint);
    sender.ready(Some(to));
    receiver.ready(Some(from));
    receiver.qp.post_recv(&[]).unwrap();
    receiver.qp.ring_recv();
    receiver.cq.arm(Arm::Next).unwrap();
    let (payload, remote) = (Payload::Gather(&[]), b.mr(8).remote(0));
    let write = Op::Write { remote, payload, imm: Some(1) };
    sender.qp.post_send(&SendRequest::signaled(write)).unwrap();
    sender.qp.ring_send();
    let done = until("the WRITE", || sender.cq.poll());
    assert_eq!(done.failure, None);
    assert!(channel.wait(Duration::from_secs(1)));
    assert!(receiver.cq.poll().is_some());
}
