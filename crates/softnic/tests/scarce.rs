//! What a port does while its process is out of descriptors, or of address space. Alone in its process.
#![cfg(not(any(loom, miri)))]

mod common;

use std::{
    fs::{self, File},
    os::fd::AsRawFd as _,
    sync::{Mutex, PoisonError},
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use verbs::{
    AsyncEvent, CompletionQueue as _, MemoryRegion as _, Nic as _, Op, Payload, QpState,
    QueuePair as _, RtsAttr, SendRequest, Transition, Transport,
};

use common::{End, completion, nic, pair};

/// Limits are of the whole process: one test at a time.
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

/// Calls `f` while less than `bytes` can be mapped.
fn with_less_than<R>(bytes: u64, f: impl FnOnce() -> R) -> R {
    let Rlimit { current, maximum } = getrlimit(Resource::As);
    let sizes = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = sizes.split(' ').next().unwrap().parse().unwrap();
    let limit = pages * rustix::param::page_size() as u64 + bytes / 2;
    setrlimit(Resource::As, Rlimit { current: Some(limit), maximum }).unwrap();
    let result = f();
    setrlimit(Resource::As, Rlimit { current, maximum }).unwrap();
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

#[test]
fn a_peer_is_not_gone_because_its_memory_finds_no_room_here() {
    const LARGE_BYTES: usize = 64 << 20;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let [mut here, mut there] = pair("no-room", None);
    let small = there.mr(64);
    write(&mut here, &small);
    assert_eq!(completion(&mut here.cq, &mut there.cq, &mut Vec::new()).failure, None);

    let large = there.mr(LARGE_BYTES);
    let mut told = Vec::new();
    with_less_than(LARGE_BYTES as u64, || {
        write(&mut here, &large);
        for _ in 0..10 {
            assert_eq!(here.cq.poll(), None, "it fails after ten seconds");
            match here.nic.poll_event() {
                Some(AsyncEvent::NoMemory(shortage)) => told.push(shortage.len_bytes),
                event => assert_eq!(event, None),
            }
        }
    });
    assert!(told.iter().all(|len_bytes| *len_bytes == LARGE_BYTES as u64) && !told.is_empty());
    assert_eq!(here.qp.state(), QpState::Rts);
    let [mut here, mut there] = [&here, &there].map(|end| End::new(&end.nic, Transport::Rc));
    let [at_here, at_there] = [here.endpoint(), there.endpoint()];
    here.ready(Some(at_there));
    there.ready(Some(at_here));
    write(&mut here, &there.mr(64));
    assert_eq!(completion(&mut here.cq, &mut there.cq, &mut Vec::new()).failure, None);
}
