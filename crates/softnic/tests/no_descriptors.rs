//! What a port does while its process is out of descriptors. Alone in its process.
#![cfg(not(any(loom, miri)))]

mod common;

use std::{
    fs::File,
    os::fd::AsRawFd as _,
    sync::{Mutex, PoisonError},
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use verbs::{
    CompletionQueue as _, MemoryRegion as _, Nic as _, Op, Payload, QpState, QueuePair as _,
    RtsAttr, SendRequest, Transition, Transport,
};

use common::{End, completion, nic, pair};

/// Descriptors are of the whole process: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Calls `f` while no more descriptors can be had.
fn with_none<R>(f: impl FnOnce() -> R) -> R {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // The lowest free number: all below are in use.
    let limit = u64::try_from(File::open("/dev/null").unwrap().as_raw_fd()).unwrap();
    setrlimit(Resource::Nofile, Rlimit { current: Some(limit), maximum }).unwrap();
    let result = f();
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    result
}

/// WRITEs to `to`, a region of `there`, which `here` may not know yet.
fn write(here: &mut End, to: &common::Mr) {
    let payload = Payload::Inline(&[b"x"]);
    let op = Op::Write { remote: to.remote(0), payload, imm: None };
    here.qp.post_send(&SendRequest::signaled(op)).unwrap();
    here.qp.ring_send();
}

#[test]
fn peers_are_not_gone_while_there_are_no_descriptors() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let [mut here, mut there] = pair("none-left", None);
    let first = there.mr(64);
    write(&mut here, &first);
    assert_eq!(completion(&mut here.cq, &mut there.cq, &mut Vec::new()).failure, None);

    // What shows it to `here` lies in the socket.
    let second = there.mr(64);
    with_none(|| {
        write(&mut here, &second);
        for _ in 0..10 {
            assert_eq!(here.cq.poll(), None);
            assert_eq!(here.nic.poll_event(), None);
        }
    });
    assert_eq!(here.qp.state(), QpState::Rts);
    assert_eq!(completion(&mut here.cq, &mut there.cq, &mut Vec::new()).failure, None);
    let mut byte = [0];
    second.read(0, &mut byte);
    assert_eq!(&byte, b"x");
}

#[test]
fn who_connects_while_there_are_no_descriptors_comes_again() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut ends = ["late", "late"].map(|name| End::new(&nic(name, None), Transport::Rc));
    let [a, b] = [0, 1].map(|nth: usize| ends[nth].endpoint());
    let to = ends[1].mr(64);
    with_none(|| {
        ends[0].ready(Some(b));
        ends[1].ready(Some(a));
        // Where nobody is, this one fails at once.
        let attr = RtsAttr { retry_count: 0, ..RtsAttr::default() };
        ends[0].qp.modify(&Transition::Rts(attr)).unwrap();
        write(&mut ends[0], &to);
        for _ in 0..10 {
            assert_eq!(ends[0].cq.poll(), None, "somebody is there");
        }
    });
    let [here, there] = &mut ends;
    assert_eq!(completion(&mut here.cq, &mut there.cq, &mut Vec::new()).failure, None);
}
