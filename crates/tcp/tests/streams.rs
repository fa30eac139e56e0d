//! Streams between ports: admission, and the fate of requests when a stream ends.
#![cfg(not(any(loom, miri)))]

mod ends;

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use copyrpc_tcp::Config;
use verbs::{MemoryRegion as _, Op, Payload, QueuePair as _, SendRequest, Transition, WcStatus};

use ends::{End, PATIENCE, REGION_BYTES, SecretFile, complete, pair, small, status};

#[test]
fn a_write_completes_when_the_bytes_are_there_whatever_their_number() {
    let [mut first, mut second] = pair(&small());
    for (round, len) in
        [1, 100, 4096, 65_536, 65_537, 1 << 20, REGION_BYTES].into_iter().enumerate()
    {
        let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + round).to_le_bytes()[0]).collect();
        first.memory.write(0, &bytes);
        first.write(&second.memory, len);
        assert_eq!(status(&complete(&mut first, Some(&mut second))), None);
        let mut arrived = vec![0; len];
        second.memory.read(0, &mut arrived);
        assert!(arrived == bytes, "{len} B");
    }
    assert_eq!(first.handle.counts().begun, 1, "one stream");
}

#[test]
fn two_that_dial_each_other_at_once_get_one_stream_and_lose_nothing() {
    for _ in 0..20 {
        let [mut first, mut second] = pair(&small());
        let memories = [second.memory.remote(0), first.memory.remote(0)];
        for (end, remote) in [(&mut first, memories[0]), (&mut second, memories[1])] {
            let from = [end.memory.sge(0, 64)];
            let op = Op::Write { remote, payload: Payload::Gather(&from), imm: None };
            end.qp.post_send(&SendRequest::signaled(op)).unwrap();
            end.qp.ring_send();
        }
        let since = Instant::now();
        let mut done = [None, None];
        while done.contains(&None) {
            for (done, end) in done.iter_mut().zip([&mut first, &mut second]) {
                *done = done.take().or_else(|| end.poll());
            }
            assert!(since.elapsed() < PATIENCE);
        }
        assert!(done.iter().flatten().all(|done| done.failure.is_none()), "{done:?}");
        assert_eq!(first.handle.counts().lost + second.handle.counts().lost, 0);
    }
}

#[test]
fn fault_l3_strangers_and_garbage_are_refused_and_counted_and_others_do_not_notice() {
    let [mut first, mut second] = pair(&small());
    first.write(&second.memory, 64);
    assert_eq!(status(&complete(&mut first, Some(&mut second))), None);
    let address = second.handle.name().address;
    let mut strangers: Vec<_> = (0..4).map(|_| TcpStream::connect(address).unwrap()).collect();
    for (stranger, bytes) in strangers.iter_mut().zip([&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 500]]) {
        let filled = bytes.repeat(10);
        stranger.write_all(&filled).unwrap();
    }
    // The last two say nothing.
    let since = Instant::now();
    while second.handle.counts().refused < 4 {
        assert_eq!(second.poll(), None);
        assert!(since.elapsed() < PATIENCE);
    }
    for mut stranger in strangers {
        assert!(!matches!(stranger.read(&mut [0; 64]), Ok(count) if count > 0));
    }
    first.write(&second.memory, 64);
    assert_eq!(status(&complete(&mut first, Some(&mut second))), None);
    assert_eq!(second.handle.counts().begun, 1);
}

#[test]
fn who_has_another_secret_reaches_nobody() {
    let files =
        [SecretFile::new("a secret of the job"), SecretFile::new("a secret of another job")];
    let [mut first, mut second] = [0, 1].map(|at| End::new(&files[at].config()));
    first.connect(second.endpoint());
    second.connect(first.endpoint());
    first.write(&second.memory, 64);
    let done = complete(&mut first, Some(&mut second));
    assert_eq!(status(&done), Some(WcStatus::RetryExceeded));
    assert_eq!((first.handle.counts().begun, second.handle.counts().begun), (0, 0));
}

#[test]
fn nobody_there_exhausts_the_retries() {
    let mut first = End::new(&small());
    let gone = End::new(&small()).endpoint();
    first.connect(gone);
    let mut memory = [0; 8];
    first.memory.read(0, &mut memory);
    let from = [first.memory.sge(0, 8)];
    let remote = first.memory.remote(0);
    let op = Op::Write { remote, payload: Payload::Gather(&from), imm: None };
    first.qp.post_send(&SendRequest::signaled(op)).unwrap();
    first.qp.ring_send();
    assert_eq!(status(&complete(&mut first, None)), Some(WcStatus::RetryExceeded));
}

#[test]
fn fault_a8_what_is_on_its_way_to_a_port_that_ends_fails_and_its_successor_is_another() {
    let [mut first, mut second] = pair(&small());
    first.write(&second.memory, 64);
    assert_eq!(status(&complete(&mut first, Some(&mut second))), None);
    // No thread calls into the second one any more.
    first.write(&second.memory, 1 << 20);
    first.write(&second.memory, 64);
    let address = second.handle.name().address;
    drop(second);
    assert_eq!(status(&complete(&mut first, None)), Some(WcStatus::RetryExceeded));
    assert_eq!(status(&complete(&mut first, None)), Some(WcStatus::Flushed));
    // The successor listens where the dead one did, and messages for that one do not reach it.
    let mut successor = End::new(&Config { port: address.port(), ..small() });
    first.qp.modify(&Transition::Reset).unwrap();
    first.connect(successor.endpoint());
    successor.connect(first.endpoint());
    first.write(&successor.memory, 64);
    assert_eq!(status(&complete(&mut first, Some(&mut successor))), None);
}

#[test]
fn fault_a9_a_port_that_owes_answers_and_is_silent_is_given_up() {
    let [mut first, mut second] = pair(&Config { timeout: Duration::from_millis(300), ..small() });
    first.write(&second.memory, 64);
    assert_eq!(status(&complete(&mut first, Some(&mut second))), None);
    // The second one is not called any more, as if it was stopped.
    first.write(&second.memory, 64);
    assert_eq!(status(&complete(&mut first, None)), Some(WcStatus::RetryExceeded));
    assert_eq!(first.handle.counts().silent, 1);
    // It continues, and both begin anew.
    while second.poll().is_some() {}
    for (end, to) in [(0, 1), (1, 0)] {
        let to = [first.endpoint(), second.endpoint()][to];
        let end = [&mut first, &mut second].into_iter().nth(end).unwrap();
        end.qp.modify(&Transition::Reset).unwrap();
        end.connect(to);
    }
    first.write(&second.memory, 64);
    assert_eq!(status(&complete(&mut first, Some(&mut second))), None);
}
