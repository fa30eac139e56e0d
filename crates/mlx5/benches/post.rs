//! Cost of posting one 32-byte inline WRITE with immediate data, in batches with one doorbell each.
//!
//! `cargo bench -p copyrpc-mlx5` measures; `cargo test --benches` only checks that it works.

#[allow(dead_code, reason = "shared with the tests, which use all of it")]
#[path = "../tests/driver/device.rs"]
mod device;

use std::{hint::black_box, time::Instant};

use verbs::{Op, Payload, QueuePair as _, RemoteSlice, Rkey, SendRequest, SendSize, Transport};

use crate::device::{Config, TestDevice, nic, ready};

/// Requests per doorbell: the doorbell of the test device is not what is measured.
const BATCH: u16 = 64;

fn main() {
    let is_measured = std::env::args().any(|arg| arg == "--bench");
    let batches: u32 = if is_measured { 200_000 } else { 10 };
    let device = TestDevice::new().with_blueflame(0);
    let (nic, device, cq) = nic(device);
    let send = SendSize { requests: 128, sges_max: 1, inline_bytes_max: 32 };
    let mut qp = ready(&nic, &Config { send, ..Config::new(Transport::Rc, &cq) });
    let bytes = [0x5a; 32];
    let mut completion = verbs::Completion {
        qpn: qp.qpn(),
        wqe: 0,
        kind: verbs::CompletionKind::Write,
        failure: None,
        len_bytes: 0,
        imm: None,
        source: None,
        solicited: false,
        in_cqe: false,
    };
    let start = Instant::now();
    for _ in 0..batches {
        for _ in 0..BATCH {
            let parts: [&[u8]; 1] = black_box([&bytes]);
            let remote = black_box(RemoteSlice { addr: 0x1000, rkey: Rkey::new(7) });
            let op = Op::Write { remote, payload: Payload::Inline(&parts), imm: Some(1) };
            completion.wqe = qp.post_send(&SendRequest::signaled(op)).expect("there is room");
        }
        qp.ring_send();
        qp.retire(&completion);
    }
    let elapsed = start.elapsed();
    assert_eq!(qp.send_free(), 128);
    let blocks = u64::from(batches) * u64::from(BATCH) * 2;
    assert_eq!(u64::from(device.qp_record(qp.qpn())[1]), blocks & 0xffff);
    if is_measured {
        let requests = f64::from(batches) * f64::from(BATCH);
        println!("post of 32 B inline WRITE_IMM: {:.1} ns", elapsed.as_secs_f64() * 1e9 / requests);
    }
}
