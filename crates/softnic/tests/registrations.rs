//! Memory that a peer has not been told of yet.
#![cfg(not(any(loom, miri)))]

mod common;

use verbs::{CompletionQueue as _, MemoryRegion as _, Op, Payload, QueuePair as _, SendRequest};

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
