//! Requests at a port on the heap: effect, completion and refusal of each, and laps of every queue.

use core::cell::Cell;

use memory::sync::Ordering;
use verbs::{Access, Transport};
use wire::cqe::{CqeView, Scatter, Syndrome};

use super::{Carried, Chunk, Extent, Key, Reply, Request, Verb, respond_to_plain};
use crate::nic::rig::{BASE, HeapMemory, LEN, PD, Rig, SENDER, Shape, region_of};

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| seed.wrapping_add(u8::try_from(i % 251).unwrap())).collect()
}

#[test]
fn a_send_is_scattered_and_reported() {
    let mut rig = Rig::new(Shape { log_stride: 6, ..Shape::RC });
    rig.post(&[(16, 5), (100, 30), (200, 64)]);
    let data = bytes(60, 3);
    let reply = rig.respond(&rig.request(Verb::Send, 60), &mut [data.clone()]);
    assert_eq!(reply, Reply::Ack);
    let landed = [rig.memory.read(16, 5), rig.memory.read(100, 30), rig.memory.read(200, 25)];
    assert_eq!(landed.concat(), data);
    assert_eq!(rig.memory.read(225, 39), [0; 39], "nothing beyond the message");
    let done = rig.poll().unwrap();
    let Ok(CqeView::Responder(done)) = done.parse() else { panic!("{done:?}") };
    assert_eq!((done.byte_cnt, done.wqe_counter, done.qpn), (60, 0, rig.qpn));
}

/// Sender and receiver agree on a number; a sender that does not keep to it is refused.
#[test]
fn more_reads_than_agreed_are_refused() {
    let refused = |syndrome| Reply::Refused(syndrome);
    let cases = [
        (0, 1, refused(Syndrome::RemoteAccess)),
        (1, 1, Reply::Ack),
        (1, 2, refused(Syndrome::RemoteInvalidRequest)),
        (2, 2, Reply::Ack),
    ];
    for (max, outstanding, reply) in cases {
        for verb in [Verb::Read, Verb::FetchAdd { add: 1 }] {
            let mut rig = Rig::new(Shape::RC);
            rig.card.qp(rig.qpn.get()).unwrap().flags.store(max << 16, Ordering::Relaxed);
            let extent = Extent::Checks { outstanding };
            let request = Request { extent, ..rig.request(verb, 8) };
            assert_eq!(rig.respond(&request, &mut []), reply, "{outstanding} of {max}");
            assert_eq!(rig.is_up(), reply == Reply::Ack);
        }
    }
}

#[test]
fn writes_reads_and_atomics_touch_what_they_name() {
    let mut rig = Rig::new(Shape::RC);
    let data = bytes(700, 9);
    let write = Request { addr: BASE + 33, ..rig.request(Verb::Write, 700) };
    assert_eq!(rig.respond(&write, &mut [data[..1].to_vec(), data[1..].to_vec()]), Reply::Ack);
    assert_eq!(rig.memory.read(33, 700), data);

    let mut local = [vec![0; 300], vec![0; 400]];
    let read = Request { addr: BASE + 33, ..rig.request(Verb::Read, 700) };
    assert_eq!(rig.respond(&read, &mut local), Reply::Ack);
    assert_eq!(local.concat(), data);
    let checks = Request { extent: Extent::Checks { outstanding: 1 }, ..read };
    let mut untouched = [vec![7; 700]];
    assert_eq!(rig.respond(&checks, &mut untouched), Reply::Ack);
    assert_eq!(untouched[0], [7; 700]);

    rig.memory.write(1024, &5u64.to_ne_bytes());
    let atomic = |rig: &Rig, verb| Request { addr: BASE + 1024, ..rig.request(verb, 8) };
    let add = atomic(&rig, Verb::FetchAdd { add: 10 });
    assert_eq!(rig.respond(&add, &mut []), Reply::Value(5));
    let miss = atomic(&rig, Verb::CompareSwap { compare: 5, swap: 1 });
    assert_eq!(rig.respond(&miss, &mut []), Reply::Value(15));
    let hit = atomic(&rig, Verb::CompareSwap { compare: 15, swap: 1 });
    assert_eq!(rig.respond(&hit, &mut []), Reply::Value(15));
    assert_eq!(rig.memory.read(1024, 8), 1u64.to_ne_bytes());
    assert!(rig.poll().is_none(), "one-sided");
}

#[test]
fn what_is_not_allowed_is_refused_and_breaks_the_connection() {
    let access = Reply::Refused(Syndrome::RemoteAccess);
    let invalid = Reply::Refused(Syndrome::RemoteInvalidRequest);
    type Change = fn(Request) -> Request;
    let cases: [(&str, Reply, Change); 4] = [
        ("bounds", access, |r| Request { addr: BASE + LEN as u64 - 7, ..r }),
        ("before", access, |r| Request { addr: BASE - 1, ..r }),
        ("overflow", access, |r| Request { addr: u64::MAX - 3, ..r }),
        ("key", access, |r| Request { rkey: wire::ids::Rkey::new(r.rkey.get() + 1), ..r }),
    ];
    for (name, expected, change) in cases {
        let mut rig = Rig::new(Shape::RC);
        let target = rig.target();
        let request = change(rig.request(Verb::Write, 8));
        assert_eq!(rig.respond(&request, &mut [vec![1; 8]]), expected, "{name}");
        assert!(!target.is_current(), "{name}");
    }
    let mut rig = Rig::new(Shape::RC);
    let unaligned =
        Request { addr: BASE + LEN as u64 - 12, ..rig.request(Verb::FetchAdd { add: 1 }, 8) };
    assert_eq!(rig.respond(&unaligned, &mut []), invalid);
}

#[test]
fn strangers_are_not_heard() {
    let mut rig = Rig::new(Shape::RC);
    rig.post(&[(0, 64)]);
    let request = rig.request(Verb::Send, 1);
    let stranger = Request { from: (wire::ids::Lid::new(99), SENDER.1), ..request };
    assert_eq!(rig.respond(&stranger, &mut [vec![1]]), Reply::Silence);
    let datagram = Request { key: Key::Ud(wire::ids::QKey::new(1)), ..request };
    assert_eq!(rig.respond(&datagram, &mut [vec![1]]), Reply::Silence);
    assert!(rig.poll().is_none());
}

#[test]
fn a_message_too_long_for_its_receive_fails_at_both_ends() {
    let mut rig = Rig::new(Shape::RC);
    rig.post(&[(0, 8)]);
    let reply = rig.respond(&rig.request(Verb::Send, 9), &mut [vec![1; 9]]);
    assert_eq!(reply, Reply::Refused(Syndrome::RemoteInvalidRequest));
    assert_eq!(rig.memory.read(0, 9), [0; 9]);
    let done = rig.poll().unwrap();
    let Ok(CqeView::Error(error)) = done.parse() else { panic!("{done:?}") };
    assert_eq!((error.syndrome, error.wqe_counter), (Syndrome::LocalLength, 0));
}

#[test]
fn small_payloads_travel_in_the_completion() {
    for (cqe_bytes, len) in [(64, 32), (128, 33), (128, 64)] {
        let mut rig = Rig::new(Shape { cqe_bytes, scatter_to_cqe: true, ..Shape::RC });
        rig.post(&[(0, 64)]);
        let data = bytes(len, 1);
        let request = rig.request(Verb::Send, u32::try_from(len).unwrap());
        assert_eq!(rig.respond(&request, &mut [data.clone()]), Reply::Ack);
        assert_eq!(rig.memory.read(0, 64), [0; 64], "the buffer is left alone");
        let done = rig.poll().unwrap();
        let Ok(CqeView::Responder(done)) = done.parse() else { panic!("{done:?}") };
        match done.scatter {
            Scatter::InCqe(payload) => assert_eq!(payload, data),
            scatter => assert_eq!((scatter, len > 32), (Scatter::Preceding64, true)),
        }
    }
}

#[test]
fn datagrams_leave_room_for_the_header() {
    let mut rig = Rig::new(Shape { transport: Transport::Ud, ..Shape::RC });
    rig.post(&[(0, 30), (50, 30)]);
    assert_eq!(rig.respond(&rig.request(Verb::Send, 20), &mut [bytes(20, 7)]), Reply::Ack);
    assert_eq!(rig.memory.read(60, 20), bytes(20, 7), "after 40 bytes of the list");
}

/// Counters of 16 bits, positions of 24 bits and the owner bit wrap; each message has its own
/// completion.
#[test]
fn laps_of_every_queue_carry_on() {
    for (shape, start) in [(Shape::RC, 0), (Shape::SRQ, 0xff_fff8), (Shape::RC, 0x1ff_fff0)] {
        let mut rig = Rig::new(shape);
        rig.start_at(start);
        (0..4).for_each(|_| rig.post(&[(0, 64)]));
        for round in 0..20u8 {
            let sent = bytes(8, round);
            let reply = rig.respond(&rig.request(Verb::Send, 8), &mut [sent.clone()]);
            assert_eq!(reply, Reply::Ack, "round {round}");
            assert_eq!(rig.memory.read(0, 8), sent);
            let done = rig.poll().expect("a completion");
            let Ok(CqeView::Responder(done)) = done.parse() else { panic!("{done:?}") };
            let lap = if shape.is_srq { 4 } else { u16::MAX };
            assert_eq!(done.wqe_counter, u16::from(round) % lap);
            assert!(rig.poll().is_none());
            rig.post(&[(0, 64)]);
        }
    }
}

#[test]
fn without_a_receive_the_sender_is_asked_to_wait() {
    let mut rig = Rig::new(Shape::SRQ);
    let request = rig.request(Verb::Send, 1);
    assert!(matches!(rig.respond(&request, &mut [vec![1]]), Reply::NotReady { .. }));
    rig.post(&[(0, 1)]);
    assert_eq!(rig.respond(&request, &mut [vec![1]]), Reply::Ack);
    assert!(matches!(rig.respond(&request, &mut [vec![1]]), Reply::NotReady { .. }));
}

/// Its owner wrote nonsense: what was posted before is overwritten already.
#[test]
fn a_record_of_more_receives_than_there_is_room_for_is_not_believed() {
    let mut rig = Rig::new(Shape::RC);
    (0..5).for_each(|_| rig.post(&[(0, 8)]));
    let request = rig.request(Verb::Send, 1);
    assert!(matches!(rig.respond(&request, &mut [vec![1]]), Reply::NotReady { .. }));
}

/// A sender that knew of receives long ago must not believe in them 2¹⁶ receives later.
#[test]
fn receives_that_others_used_up_are_not_taken_after_the_counter_wraps() {
    let mut rig = Rig::new(Shape::SRQ);
    (0..4).for_each(|_| rig.post(&[]));
    let early = Cell::new(0);
    rig.rq.take(1, &early, false).unwrap();
    // Another sender takes the rest, and so on until 2^16 and one more were taken.
    let other = Cell::new(0);
    let rounds = if cfg!(miri) { 8 } else { 1 << 16 };
    for _ in 0..3 {
        rig.rq.take(2, &other, false).unwrap();
    }
    for _ in 4..=rounds {
        rig.post(&[]);
        rig.rq.take(2, &other, false).unwrap();
    }
    assert_eq!(rig.rq.take(1, &early, false), Err(crate::shared::claims::TakeError::Empty));
}

/// Completions that nobody polls: the queue says so, the connection breaks, nothing is overwritten.
#[test]
fn an_overrun_is_noticed() {
    let mut rig = Rig::new(Shape { log_cqes: 1, ..Shape::RC });
    (0..4).for_each(|_| rig.post(&[]));
    let request = rig.request(Verb::Send, 0);
    assert_eq!(rig.respond(&request, &mut []), Reply::Ack);
    assert_eq!(rig.respond(&request, &mut []), Reply::Ack);
    assert_eq!(rig.respond(&request, &mut []), Reply::Refused(Syndrome::RemoteOperation));
    assert!(rig.cq.is_overrun() && !rig.is_up());
    assert!(rig.poll().is_some() && rig.poll().is_some() && rig.poll().is_none());
    // What was polled makes no room: the queue is dead.
    assert_eq!(rig.cq.reserve(1), Err(crate::shared::slots::ReserveError::Overrun));
}

/// A request by the short way, of bytes that lie in memory.
fn respond_short(rig: &mut Rig, request: &Request) -> Carried {
    let len = request.len_bytes as usize;
    let region = region_of(&vec![1; len]);
    let payload = Chunk { ptr: region.as_ptr().as_ptr(), len, is_inline: false };
    let target = rig.target();
    respond_to_plain(*request, payload, &target, &mut rig.memory, |_| {})
}

/// IBTA 9.7.5.1.1 and 9.7.5.1.4.
#[test]
fn a_request_of_no_bytes_names_no_memory() {
    let mut rig = Rig::new(Shape::RC);
    for verb in [Verb::Write, Verb::Read] {
        let request =
            Request { addr: u64::MAX, rkey: wire::ids::Rkey::new(0xbad), ..rig.request(verb, 0) };
        assert_eq!(rig.respond(&request, &mut []), Reply::Ack, "{verb:?}");
    }
    assert!(rig.is_up());
}

/// Anybody may send to it, and nobody may break it for the others.
#[test]
fn a_dc_target_serves_others_after_a_bad_request() {
    let mut rig = Rig::new(Shape { transport: Transport::Dct, ..Shape::SRQ });
    let request = rig.request(Verb::Write, 8);
    let bad = Request { rkey: wire::ids::Rkey::new(0xbad), ..request };
    let refused = Reply::Refused(Syndrome::RemoteAccess);
    assert_eq!(rig.respond(&bad, &mut [vec![1; 8]]), refused);
    assert!(rig.is_up());
    assert_eq!(rig.respond(&request, &mut [vec![1; 8]]), Reply::Ack);
}

/// The region is known here, since a READ has used it: the rights of the queue pair count as well.
#[test]
fn the_short_way_writes_nothing_that_the_queue_pair_does_not_allow() {
    let mut rig = Rig::new(Shape::RC);
    let access = Access::all() - Access::REMOTE_WRITE;
    let entry = rig.card.qp(rig.qpn.get()).unwrap();
    entry.access_pd.store(u64::from(access.bits()) << 32 | u64::from(PD), Ordering::Relaxed);
    let write = rig.request(Verb::Write, 8);
    assert_eq!(respond_short(&mut rig, &write), Carried::Declined);
    let refused = Reply::Refused(Syndrome::RemoteAccess);
    assert_eq!(rig.respond(&write, &mut [vec![1; 8]]), refused);
    assert_eq!(rig.memory.read(0, 8), [0; 8]);
}

#[test]
fn a_receive_into_memory_that_may_not_be_written_fails_at_both_ends() {
    for is_short in [false, true] {
        let mut rig = Rig::new(Shape::RC);
        rig.memory = HeapMemory::new(Access::all() - Access::LOCAL_WRITE);
        rig.post(&[(0, 64)]);
        let send = rig.request(Verb::Send, 8);
        let theirs = Syndrome::RemoteOperation;
        if is_short {
            assert_eq!(respond_short(&mut rig, &send), Carried::Refused(theirs));
        } else {
            assert_eq!(rig.respond(&send, &mut [vec![1; 8]]), Reply::Refused(theirs));
        }
        assert_eq!(rig.memory.read(0, 8), [0; 8], "by the short way: {is_short}");
        let done = rig.poll().unwrap();
        let Ok(CqeView::Error(error)) = done.parse() else { panic!("{done:?}") };
        assert_eq!(error.syndrome, Syndrome::LocalProtection);
    }
}
