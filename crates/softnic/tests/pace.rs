//! WQEs that take a time: each leaves the send queue one after the other, and the caller does not wait for them.
#![cfg(not(any(loom, miri)))]

mod common;

use std::time::{Duration, Instant};

use copyrpc_softnic as softnic;
use softnic::Drive;
use verbs::{
    CompletionQueue as _, Destination, Nic as _, Op, QueuePair as _, SendFlags, SendRequest,
    Transport,
};

use common::{End, QKEY};

const WQE: Duration = Duration::from_millis(20);
const WQES: u32 = 3;

/// When each completion was there at the earliest, after posts of `burst` WQEs each.
fn completions(drive: Drive, wqe: Duration, burst: u32) -> Vec<Duration> {
    let config = softnic::Config {
        fabric: common::fabric("pace", std::process::id()),
        card_mib: 8,
        drive,
        wqe_ns: wqe.as_nanos().try_into().unwrap(),
        ..softnic::Config::default()
    };
    let mut end = End::new(&softnic::open(&config).unwrap(), Transport::Ud);
    end.ready(None);
    let to = Destination::Ud { to: end.endpoint(), qkey: QKEY };
    let began = Instant::now();
    for number in 0..WQES {
        let op = Op::Send { payload: verbs::Payload::Inline(&[b"x"]), imm: None };
        let request = SendRequest { op, flags: SendFlags::SIGNALED, to: Some(&to) };
        end.qp.post_send(&request).unwrap();
        if (number + 1) % burst == 0 {
            end.qp.ring_send();
        }
    }
    let next = || {
        let done = common::until("a completion", || {
            let _event = end.nic.poll_event();
            end.cq.poll()
        });
        end.qp.retire(&done);
        began.elapsed()
    };
    std::iter::repeat_with(next).take(WQES as usize).collect()
}

#[test]
fn wqes_leave_one_after_the_other_each_after_its_time() {
    for drive in [Drive::Inline, Drive::Thread] {
        for burst in [1, WQES] {
            let times = completions(drive, WQE, burst);
            for (number, at) in (1..).zip(&times) {
                assert!(*at >= WQE * number, "{drive:?}, {burst} at once: {times:?}");
            }
        }
    }
}
