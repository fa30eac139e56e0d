//! Receives of a queue complete in the order in which they were posted, whoever sends.
#![cfg(not(any(loom, miri)))]

mod common;

use memory::sync::{AtomicBool, Ordering, thread};
use verbs::{
    CompletionQueue as _, Destination, MemoryRegion as _, Nic as _, Op, Payload, QpAddress,
    QueuePair as _, SendFlags, SendRequest, Transport,
};

use common::{End, QKEY};

const NAME: &str = "order-of-datagrams";
/// A datagram has a header's room before it.
const GRH_BYTES: usize = 40;
const SLOT_BYTES: usize = 64;
const RECEIVES: usize = 64;
const SENDERS: u8 = 3;
const ARRIVALS: usize = 50_000;

/// Ends the senders, also when an assertion fails: the scope waits for them.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends its name and a running number until it is told to stop.
fn send(name: u8, to: QpAddress, is_done: &AtomicBool) {
    let mut end = End::new(&common::nic(NAME, None), Transport::Ud);
    end.ready(None);
    let to = Destination::Ud { to, qkey: QKEY };
    let mut number = 0_u64;
    while !is_done.load(Ordering::Relaxed) {
        for _ in 0..8 {
            number += 1;
            let bytes = [u64::from(name).to_le_bytes(), number.to_le_bytes()].concat();
            let op = Op::Send { payload: Payload::Inline(&[&bytes]), imm: None };
            let request = SendRequest { op, flags: SendFlags::SIGNALED, to: Some(&to) };
            if end.qp.post_send(&request).is_err() {
                break;
            }
        }
        end.qp.ring_send();
        while let Some(completion) = end.cq.poll() {
            end.qp.retire(&completion);
        }
        let _event = end.nic.poll_event();
    }
}

/// A driver that reuses what completed, and all before it, relies on it: an adapter promises it.
#[test]
fn datagrams_of_several_senders_complete_receives_in_order() {
    let receiver = &mut End::new(&common::nic(NAME, None), Transport::Ud);
    receiver.ready(None);
    let memory = receiver.mr(RECEIVES * SLOT_BYTES);
    for slot in 0..RECEIVES {
        receiver.qp.post_recv(&[memory.sge(slot * SLOT_BYTES, SLOT_BYTES)]).unwrap();
    }
    receiver.qp.ring_recv();
    let (to, is_done) = (receiver.endpoint(), AtomicBool::new(false));
    thread::scope(|scope| {
        let _ending = Ending(&is_done);
        for name in 0..SENDERS {
            let is_done = &is_done;
            scope.spawn(move || send(name, to, is_done));
        }
        let mut latest = [0; SENDERS as usize];
        for arrival in 0..ARRIVALS {
            let completion = common::until("an arrival", || receiver.cq.poll());
            let slot = arrival % RECEIVES;
            let mut bytes = [0; 16];
            memory.read(slot * SLOT_BYTES + GRH_BYTES, &mut bytes);
            let [name, number] =
                [0, 8].map(|at| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()));
            let latest = &mut latest[usize::try_from(name).unwrap()];
            assert_eq!(usize::from(completion.wqe), arrival % (1 << 16), "taken in order");
            assert!(number > *latest, "sender {name}: {number} came after {latest}");
            *latest = number;
            receiver.qp.retire(&completion);
            receiver.qp.post_recv(&[memory.sge(slot * SLOT_BYTES, SLOT_BYTES)]).unwrap();
            if slot % 16 == 15 {
                receiver.qp.ring_recv();
            }
        }
    });
}
