//! What wakes who waits for solicited completions: those, and failures.
#![cfg(not(any(loom, miri)))]

mod common;

use std::time::Duration;

use copyrpc_softnic::Nic;
use verbs::{
    Arm, Channel as _, CompletionQueue as _, CqConfig, MemoryRegion as _, Nic as _, Op, Payload,
    QpConfig, QueuePair as _, SendFlags, SendRequest, Sge, Transition, Transport,
};

use common::{End, Mr, completion, nic};

type Channel = <Nic as verbs::Nic>::Channel;

/// A sender, and a receiver whose completions can wake.
struct Ends {
    sender: End,
    receiver: End,
    channel: Channel,
    from: Mr,
    to: Mr,
}

impl Ends {
    fn new(name: &str) -> Self {
        let mut sender = End::new(&nic(name, None), Transport::Rc);
        let nic = nic(name, None);
        let (pd, channel) = (nic.alloc_pd().unwrap(), nic.create_channel().unwrap());
        let cq = nic.create_cq(&CqConfig::new(256), Some(&channel)).unwrap();
        let qp = nic.create_qp(&pd, &QpConfig::new(Transport::Rc, &cq)).unwrap();
        let mut receiver = End { nic, pd, cq, qp };
        let [a, b] = [&sender, &receiver].map(End::endpoint);
        sender.ready(Some(b));
        receiver.ready(Some(a));
        let (from, to) = (sender.mr(64), receiver.mr(64));
        Self { sender, receiver, channel, from, to }
    }

    fn post(&mut self, len: usize) {
        self.receiver.qp.post_recv(&[self.to.sge(0, len)]).unwrap();
        self.receiver.qp.ring_recv();
    }

    /// Sends `len` bytes; waits until that has worked, or failed.
    fn send(&mut self, len: usize, flags: SendFlags) {
        let payload = Payload::Gather(&[self.from.sge(0, len)]);
        let request = SendRequest::signaled(Op::Send { payload, imm: None }).with(flags);
        self.sender.qp.post_send(&request).unwrap();
        self.sender.qp.ring_send();
        // The receiver's queue is not polled: what arrives there stays.
        let _done = common::until("the end of a send", || {
            let _event = self.receiver.nic.poll_event();
            self.sender.cq.poll()
        });
    }

    fn arm(&mut self) {
        self.receiver.cq.arm(Arm::Solicited).unwrap();
    }

    fn is_woken(&self) -> bool {
        self.channel.wait(Duration::ZERO)
    }
}

#[test]
fn a_receive_that_fails_wakes() {
    let mut ends = Ends::new("receive-fails");
    ends.post(64);
    ends.post(8);
    ends.arm();
    ends.send(8, SendFlags::empty());
    assert!(!ends.is_woken(), "nobody asked for that");
    ends.send(9, SendFlags::empty());
    assert!(ends.is_woken());
}

#[test]
fn receives_that_are_flushed_wake() {
    let mut ends = Ends::new("flushed");
    ends.post(64);
    ends.arm();
    ends.receiver.qp.modify(&Transition::Err).unwrap();
    assert!(ends.is_woken());
}

#[test]
fn a_request_that_fails_wakes() {
    let mut ends = Ends::new("request-fails");
    ends.arm();
    let end = &mut ends.receiver;
    end.qp.post_send(&SendRequest::signaled(Op::Nop)).unwrap();
    end.qp.ring_send();
    assert!(!ends.is_woken(), "what works is not solicited");
    let nowhere = Sge { lkey: verbs::Lkey::new(0xbad), ..ends.to.sge(0, 8) };
    let payload = Payload::Gather(&[nowhere]);
    let end = &mut ends.receiver;
    end.qp.post_send(&SendRequest::signaled(Op::Send { payload, imm: None })).unwrap();
    end.qp.ring_send();
    let _done = completion(&mut end.cq, &mut ends.sender.cq, &mut Vec::new());
    assert!(ends.is_woken());
}

/// Whoever arms late is woken by what he would have been woken by.
#[test]
fn arming_looks_at_what_is_there_already() {
    let mut ends = Ends::new("late");
    (0..2).for_each(|_| ends.post(8));
    ends.send(8, SendFlags::empty());
    ends.arm();
    assert!(!ends.is_woken(), "that was not solicited");
    ends.send(8, SendFlags::SOLICITED);
    assert!(ends.is_woken());
    ends.arm();
    assert!(ends.is_woken(), "it is still there");
    while ends.receiver.cq.poll().is_some() {}
    ends.arm();
    assert!(!ends.is_woken(), "it is not there any more");
    ends.receiver.qp.post_recv(&[]).unwrap();
    ends.receiver.qp.ring_recv();
    ends.receiver.qp.modify(&Transition::Err).unwrap();
    assert!(ends.is_woken());
    ends.arm();
    assert!(ends.is_woken(), "a failure is there");
}
