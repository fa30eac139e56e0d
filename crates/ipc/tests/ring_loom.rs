//! The rings without credit, in every interleaving: nobody overtakes anybody.
#![cfg(loom)]

use copyrpc_ipc::{
    header::Header,
    ring::{self, Consumer, Producer, SlotMemory},
};
use memory::sync::{Arc, AtomicU64, Ordering, UnsafeCell, thread};

const DEPTH: usize = 2;

/// Loom sees each access of the payload, and reports those that nothing orders.
struct Line {
    header: AtomicU64,
    payload: UnsafeCell<u8>,
}

struct Half([Line; DEPTH]);

// SAFETY: loom's cells report unordered accesses themselves.
unsafe impl Sync for Half {}
// SAFETY: as above.
unsafe impl Send for Half {}

impl Half {
    fn new(first: u64) -> Self {
        let line = || Line { header: AtomicU64::new(0), payload: UnsafeCell::new(0) };
        let half = Self([line(), line()]);
        ring::reset(&half, first);
        half
    }
}

impl SlotMemory for Half {
    fn depth_log2(&self) -> u32 {
        1
    }

    fn header(&self, slot: usize) -> &AtomicU64 {
        &self.0[slot].header
    }

    fn prefetch(&self, _slot: usize) {}

    fn store(&self, slot: usize, _call: u16, message: &[u8]) {
        // SAFETY: loom checks that nobody else accesses the cell now.
        self.0[slot].payload.with_mut(|byte| unsafe { *byte = message[0] });
    }

    fn store_parts(&self, slot: usize, call: u16, parts: &[&[u8]]) {
        self.store(slot, call, &parts.concat());
    }

    fn filler(&self, _slot: usize, _call: u16, _len_bytes: usize) -> memory::Filler<'_> {
        unreachable!("messages of one byte are stored at once")
    }

    fn load(&self, slot: usize, _call: u16, message: &mut [u8]) {
        // SAFETY: loom checks that nobody writes the cell now.
        message[0] = self.0[slot].payload.with(|byte| unsafe { *byte });
    }
}

fn header(call: u16) -> Header {
    Header { call, generation: 0, len_bytes: 1, kind: 0 }
}

/// Waits as a process would: loom explores other threads meanwhile.
fn next(consumer: &mut Consumer, half: &Half) -> (u16, u8) {
    loop {
        if let Some(header) = consumer.peek(half).expect("tags advance lap by lap") {
            let mut message = [0];
            consumer.take(half, header, &mut message);
            return (header.call, message[0]);
        }
        thread::yield_now();
    }
}

/// Three calls through rings of two slots, two in flight, so each slot is used again while the
/// server may still be anywhere.
fn three_calls(first: u64) {
    let up = Arc::new(Half::new(first));
    let down = Arc::new(Half::new(first));
    let server = thread::spawn({
        let (up, down) = (Arc::clone(&up), Arc::clone(&down));
        move || {
            let (mut requests, mut responses) = (Consumer::new(first), Producer::new(first));
            for _ in 0..3 {
                let (call, byte) = next(&mut requests, &up);
                responses.publish(&*down, header(call), &[byte + 100]);
            }
        }
    });
    let (mut requests, mut responses) = (Producer::new(first), Consumer::new(first));
    requests.publish(&*up, header(0), &[1]);
    requests.publish(&*up, header(1), &[2]);
    assert_eq!(next(&mut responses, &down), (0, 101));
    requests.publish(&*up, header(0), &[3]);
    assert_eq!(next(&mut responses, &down), (1, 102));
    assert_eq!(next(&mut responses, &down), (0, 103));
    server.join().unwrap();
}

#[test]
fn no_side_overtakes_the_other() {
    loom::model(|| three_calls(0));
}

#[test]
fn nor_where_positions_wrap() {
    loom::model(|| three_calls(u64::MAX - 1));
}

/// The model can fail: a third request without a response overwrites the first.
#[test]
#[should_panic]
fn a_client_that_breaks_the_rule_is_seen_by_the_model() {
    loom::model(|| {
        let up = Arc::new(Half::new(0));
        let server = thread::spawn({
            let up = Arc::clone(&up);
            move || {
                assert_eq!(next(&mut Consumer::new(0), &up), (0, 1));
            }
        });
        let mut requests = Producer::new(0);
        for call in 0..3 {
            requests.publish(&*up, header(call), &[1]);
        }
        server.join().unwrap();
        let _ = up.header(0).load(Ordering::Relaxed);
    });
}
