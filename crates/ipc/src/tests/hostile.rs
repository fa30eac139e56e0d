//! Clients that break every rule, while others work with right answers.

use std::{
    collections::VecDeque,
    os::fd::AsFd as _,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use memory::{
    Region,
    sync::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};
use os::{
    clock,
    fdpass::RecvError,
    unix::{Address, UnixConnection},
};
use rustix::{
    fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate},
    io::Errno,
};

use super::rig::*;
use crate::{
    CallError, EvictReason, Request, Server,
    endpoint::{
        client::connection::{self, Connected, ServerConnection},
        half::Half,
        handshake::{self, Welcome},
        memory::ServerMemory,
    },
    header::{Header, Tag},
    ring::{Producer, SlotMemory as _},
    wakeup::{self, PolledFlag, SleepFlag, WakeupBits},
};

/// A client that writes its memory by itself.
struct Raw {
    connection: ServerConnection,
    up: Half,
    down: Half,
    position: u64,
    memory: ServerMemory,
    slot: u16,
}

impl Raw {
    /// Sets its wakeup bit, and wakes a server that sleeps.
    fn wake(&self) {
        let bits = self.memory.wakeup_bits.shared(wakeup::bits_offset_bytes(self.slot)).unwrap();
        // SAFETY: used for a load only.
        let asleep = unsafe { self.memory.sleep_flag.shared_for_loads::<AtomicU32>(0) }.unwrap();
        if wakeup::signal(WakeupBits(bits), wakeup::bit_of(self.slot), SleepFlag(asleep)) {
            self.connection.wake();
        }
    }
}

fn connect(host: &Host) -> Raw {
    let Connected { connection, welcome, memory } = host.connect();
    let up = Half::new(memory.up, welcome.up);
    let down = Half::new(memory.down, welcome.down);
    let Welcome { slot, position, .. } = welcome;
    Raw { connection, up, down, position, memory: memory.server, slot }
}

fn header(call: u16) -> Header {
    Header { call, generation: 0, len_bytes: 3, kind: 0 }
}

/// Why servers of either kind leave a client after `attack`, while somebody else is served.
fn evicted_for(attack: impl Fn(&Half, &mut Producer)) -> [EvictReason; 2] {
    let hosts = Host::both(small(), || {
        let mut owed = Vec::new();
        move |request: Request<'_>| {
            if request.payload() == b"owe" {
                owed.push(request.defer());
            } else {
                increment(request)
            }
        }
    });
    hosts.map(|host| {
        let mut bystander = host.sync();
        let mut raw = connect(&host);
        attack(&raw.up, &mut Producer::new(raw.position));
        raw.wake();
        let mut reason = None;
        eventually("the eviction", || {
            expect_increment(&mut bystander, b"undisturbed");
            reason = EvictReason::from_word(raw.down.eviction().reason());
            reason.is_some()
        });
        eventually("the hang-up", || {
            raw.connection.look(1_000_000) == connection::ServerLife::Gone
        });
        expect_baseline(&host.server, 1);
        reason.expect("the condition holds")
    })
}

#[test]
fn fault_b1_a_tag_out_of_sequence_is_evicted() {
    for tag in [Tag::of(0, 0), Tag::of(10, 3)] {
        let reason = evicted_for(|up, producer| {
            let word = header(0).pack(tag);
            up.header((producer.position() % 8).try_into().unwrap()).store(word, Ordering::Release);
        });
        assert_eq!(reason, [EvictReason::BadTag; 2]);
    }
}

#[test]
fn fault_b1_more_requests_than_the_ring_has_slots_are_evicted() {
    // None is answered, so the ninth names a call in flight.
    let reasons = evicted_for(|up, producer| {
        for call in 0..9 {
            producer.publish(up, header(call % 8), b"owe");
        }
    });
    // It overwrote a slot that may not have been read: then that slot is out of sequence.
    for reason in reasons {
        assert!(matches!(reason, EvictReason::CallInUse | EvictReason::BadTag), "{reason}");
    }
}

#[test]
fn fault_b2_a_length_beyond_the_agreement_is_evicted() {
    for len_bytes in [1001, crate::header::MESSAGE_BYTES_MAX] {
        let reason = evicted_for(|up, producer| {
            producer.publish(up, Header { len_bytes, ..header(0) }, b"abc");
        });
        assert_eq!(reason, [EvictReason::BadLength; 2]);
    }
}

#[test]
fn fault_b5_foreign_and_duplicate_calls_are_evicted() {
    for call in [8, 4095] {
        let reason = evicted_for(|up, producer| producer.publish(up, header(call), b"abc"));
        assert_eq!(reason, [EvictReason::BadCall; 2]);
    }
    let reason = evicted_for(|up, producer| {
        producer.publish(up, header(3), b"owe");
        producer.publish(up, header(3), b"owe");
    });
    assert_eq!(reason, [EvictReason::CallInUse; 2]);
}

#[test]
fn a_request_of_an_unknown_kind_is_evicted() {
    let reason =
        evicted_for(|up, producer| producer.publish(up, Header { kind: 1, ..header(0) }, b"abc"));
    assert_eq!(reason, [EvictReason::BadKind; 2]);
}

#[test]
fn fault_b12_a_wakeup_storm_is_evicted_and_hurts_nobody() {
    for host in Host::both(small(), || increment) {
        let server = &host.server;
        let mut bystander = host.sync();
        let connection = host.hello();
        eventually("the storm ends", || {
            expect_increment(&mut bystander, b"undisturbed");
            (0..20).any(|_| {
                connection.send(&[handshake::WAKEUP], &[], clock::NOW)
                    == Err(os::fdpass::SendError::Closed)
            })
        });
        expect_baseline(server, 1);
        assert_eq!(server.ask(|server| server.stats().evicted), 1);
    }
}

#[test]
fn fault_b8_descriptors_from_a_client_are_not_accepted() {
    for host in Host::both(small(), || increment) {
        let server = &host.server;
        let connection = host.hello();
        let (file, _) = rustix::pipe::pipe().unwrap();
        connection.send(&[handshake::WAKEUP], &[file.as_fd()], clock::NOW).unwrap();
        expect_baseline(server, 0);
        assert_eq!(server.ask(|server| server.stats().evicted), 1);
    }
}

#[test]
fn fault_b8_datagrams_that_are_no_wakeups_are_not_accepted() {
    for host in Host::both(small(), || increment) {
        let server = &host.server;
        for (evicted, datagram) in (1..).zip([&[!handshake::WAKEUP][..], &[handshake::WAKEUP; 2]]) {
            let connection = host.hello();
            connection.send(datagram, &[], clock::NOW).unwrap();
            eventually("the eviction", || server.ask(|server| server.stats().evicted) == evicted);
        }
        expect_baseline(server, 0);
    }
}

/// A server that has requests gives handshakes a part of its time. New connections without end take none of the
/// part of a hello that has come.
#[test]
fn fault_i10_a_hello_is_read_by_a_busy_server_though_connections_come_without_end() {
    const PER_TURN: usize = 16;
    const SILENT_MAX: usize = 256;
    let dir = Dir::new();
    let config = crate::ServerConfig { clients_per_user_max: 1000, ..small() };
    let mut server = Server::bind(&dir.socket(), config).unwrap();
    let (socket, is_over) = (dir.socket(), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = sync(&socket);
            while !is_over.load(Ordering::Relaxed) {
                expect_increment(&mut client, b"busy");
            }
        });
        let turn = |server: &mut Server| server.serve(increment);
        while turn(&mut server) == 0 {}
        let address = Address::Path(dir.socket());
        let mut silent = VecDeque::new();
        let newcomer = UnixConnection::connect(&address, clock::NOW).unwrap();
        newcomer.send(&handshake::write_hello(), &[], clock::NOW).unwrap();
        let deadline_ns = clock::deadline_ns(PATIENCE);
        let answer = loop {
            // Until the backlog is full.
            let more =
                (0..PER_TURN).map_while(|_| UnixConnection::connect(&address, clock::NOW).ok());
            silent.extend(more);
            silent.drain(..silent.len().saturating_sub(SILENT_MAX));
            turn(&mut server);
            match newcomer.recv(&mut [0; 64], 4, clock::NOW) {
                Err(RecvError::TimedOut) => assert!(clock::now_ns() < deadline_ns, "no answer"),
                answer => break answer,
            }
        };
        is_over.store(true, Ordering::Relaxed);
        let answer = answer.expect("it is let in, not displaced");
        assert!(!answer.fds.is_empty(), "it has memory");
        // The other client's last call.
        while server.stats().departed < 1 {
            turn(&mut server);
        }
    });
}

#[test]
fn fault_b9_silent_and_foreign_connections_do_not_keep_others_out() {
    let dir = Dir::new();
    let config = crate::ServerConfig { clients_per_user_max: 100, ..small() };
    let server = ServerThread::start(&dir.socket(), config, increment);
    let deadline_ns = clock::deadline_ns(PATIENCE);
    let open = || UnixConnection::connect(&Address::Path(dir.socket()), deadline_ns).unwrap();
    let mut others = Vec::new();
    for number in 0..150u8 {
        let connection = open();
        if number % 2 == 0 {
            // It may be dropped before it has spoken.
            let _ = connection.send(&[number; 40], &[], deadline_ns);
        }
        others.push(connection);
    }
    expect_increment(&mut sync(&dir.socket()), b"let in");
    drop(others);
    expect_baseline(&server, 0);
}

#[test]
fn fault_b6_b7_the_half_of_the_server_cannot_be_written_or_resized() {
    for host in Host::both(small(), || increment) {
        let raw = connect(&host);
        let (up, down) = (&raw.up, &raw.down);
        for half in [up, down] {
            let fd = half.region().fd().unwrap();
            assert_eq!(rustix::fs::ftruncate(fd, 0), Err(Errno::PERM));
            assert_eq!(rustix::fs::ftruncate(fd, 1 << 20), Err(Errno::PERM));
            // The up half is mapped by its server; a client that was introduced lets nobody seal it any more.
            let is_sealable = core::ptr::eq(half, up) && host.is_listening();
            let refused = if is_sealable { Errno::BUSY } else { Errno::PERM };
            assert_eq!(rustix::fs::fcntl_add_seals(fd, SealFlags::WRITE), Err(refused));
        }
        let fd = down.region().fd().unwrap();
        assert_eq!(rustix::io::pwrite(fd, b"x", 0), Err(Errno::PERM));
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
        let reopened = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        assert_eq!(rustix::io::pwrite(&reopened, b"x", 0), Err(Errno::PERM));
        let denied = Region::map(reopened.into(), 4096, memory::Protection::ReadWrite);
        assert!(matches!(denied, Err(memory::MapError::WriteDenied)), "{denied:?}");
        let base = down.region().as_ptr().as_ptr().cast();
        // SAFETY: our own mapping; if it became writable, nobody would write it.
        let protected =
            unsafe { rustix::mm::mprotect(base, 4096, rustix::mm::MprotectFlags::WRITE) };
        assert_eq!(protected, Err(Errno::ACCESS));
        expect_increment(&mut host.sync(), b"intact");
    }
}

#[test]
fn a_server_of_ours_maps_nothing_that_is_not_sealed() {
    let unsealed = rustix::fs::memfd_create("x", MemfdFlags::ALLOW_SEALING).unwrap();
    let refused = Region::map(unsealed, 4096, memory::Protection::ReadOnly);
    assert!(matches!(refused, Err(memory::MapError::Unsealed)));
}

/// Writes pseudo-random words over everything that a client can write, the wakeup bits included.
fn scribble(up: &Region, seed: u64, stop: &AtomicBool) {
    let words = up.len() / size_of::<u64>();
    let words: &[AtomicU64] = up.shared_slice(0, words).unwrap();
    let mut state = seed | 1;
    while !stop.load(Ordering::Relaxed) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let index = usize::try_from(state >> 32).unwrap() % words.len();
        words[index].store(state, Ordering::Relaxed);
    }
}

#[test]
fn fault_b11_b3_a_client_that_corrupts_all_it_can_write_disturbs_nobody() {
    for host in Host::both(small(), || increment) {
        let server = &host.server;
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let attacker = scope.spawn(|| {
                let mut evictions = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    let raw = connect(&host);
                    let (up, down, position) = (&raw.up, &raw.down, raw.position);
                    let done = AtomicBool::new(false);
                    let memory = up.region();
                    thread::scope(|inner| {
                        inner.spawn(|| scribble(memory, position ^ evictions, &done));
                        eventually("the eviction", || {
                            raw.wake();
                            // All bits: the server looks at everybody in vain.
                            down.eviction().reason() != 0 || stop.load(Ordering::Relaxed)
                        });
                        done.store(true, Ordering::Relaxed);
                    });
                    evictions += 1;
                }
                evictions
            });
            let mut victim = host.sync();
            let began = Instant::now();
            let mut number = 0usize;
            while number < 2000 || server.ask(|server| server.stats().evicted) == 0 {
                expect_increment(&mut victim, &number.to_le_bytes().repeat(1 + number % 100));
                number += 1;
                assert!(began.elapsed() < Duration::from_secs(60), "nobody was evicted");
            }
            stop.store(true, Ordering::Relaxed);
            assert!(attacker.join().unwrap() > 0);
        });
        assert!(server.ask(|server| server.stats().evicted) > 0);
    }
}

#[test]
fn fault_b4_a_payload_rewritten_during_the_call_is_seen_once() {
    let seen = Arc::new(AtomicU64::new(0));
    for host in Host::both(small(), {
        let seen = Arc::clone(&seen);
        move || {
            let seen = Arc::clone(&seen);
            move |request: Request<'_>| {
                let first = request.payload().to_vec();
                for _ in 0..50 {
                    assert_eq!(request.payload(), first, "the private copy changed");
                }
                seen.fetch_add(1, Ordering::Relaxed);
                request.reply(b"").unwrap();
            }
        }
    }) {
        let server = &host.server;
        let raw = connect(&host);
        let (up, down, position) = (&raw.up, &raw.down, raw.position);
        let mut requests = Producer::new(position);
        let mut responses = crate::ring::Consumer::new(position);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let memory = up.region();
            scope.spawn(|| {
                let bulk = memory.len() / 8 - 200;
                let words: &[AtomicU64] = memory.shared_slice(bulk / 2 * 8, 100).unwrap();
                while !done.load(Ordering::Relaxed) {
                    words.iter().for_each(|word| _ = word.fetch_add(1, Ordering::Relaxed));
                }
            });
            for _ in 0..500 {
                requests.publish(up, Header { len_bytes: 1000, ..header(4) }, &[1; 1000]);
                raw.wake();
                eventually("the response", || match responses.peek(down).unwrap() {
                    Some(header) => {
                        responses.take(down, header, &mut []);
                        true
                    }
                    None => false,
                });
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(seen.swap(0, Ordering::Relaxed), 500);
        assert_eq!(server.ask(|server| server.stats().panics), 0);
    }
}

#[test]
fn a_bit_cleared_by_somebody_else_costs_no_more_than_a_sweep() {
    for host in Host::both(small(), || increment) {
        let server = &host.server;
        let raw = connect(&host);
        let (up, down, position) = (&raw.up, &raw.down, raw.position);
        // A request without any hint is what remains of one whose bit was cleared.
        Producer::new(position).publish(up, header(0), b"abc");
        let mut responses = crate::ring::Consumer::new(position);
        let mut response = [0; 3];
        eventually("the response", || match responses.peek(down).unwrap() {
            Some(header) => {
                responses.take(down, header, &mut response);
                true
            }
            None => false,
        });
        assert_eq!(&response, b"bcd");
        assert_eq!(server.ask(|server| server.stats().missed_hints), 1);
    }
}

#[test]
fn fault_b10_a_client_that_never_consumes_is_bounded_and_alone() {
    for host in Host::both(small(), || increment) {
        let mut glutton = host.pipelined::<u16>();
        for call in 0..8 {
            glutton.submit(b"abc", call).unwrap();
        }
        glutton.flush();
        for _ in 0..100 {
            let refused = glutton.submit(b"more", 9).unwrap_err();
            assert_eq!(refused.error, CallError::Full { depth: 8 });
        }
        expect_increment(&mut host.sync(), b"undisturbed");
        let mut left = 8;
        eventually("its responses wait for it", || {
            left -= glutton.poll(|_, outcome| assert_eq!(outcome, Ok(&b"bcd"[..])));
            left == 0
        });
    }
}

/// Clients that are quiet cost a server that never sleeps nothing: it is told when they call again.
#[test]
fn a_client_that_is_quiet_is_not_polled() {
    let config = crate::ServerConfig { wait: crate::Wait::Busy, ..small() };
    let [host, _] = Host::both(config, || increment);
    let (server, raw) = (&host.server, connect(&host));
    let (up, down, position) = (&raw.up, &raw.down, raw.position);
    let mut requests = Producer::new(position);
    for call in 0..3 {
        requests.publish(up, Header { call, ..header(0) }, b"abc");
        raw.wake();
        let answered = u64::from(call) + 1;
        eventually("the answer", || server.ask(|server| server.stats().responses) == answered);
        eventually("nobody looks any more", || PolledFlag(down.control_word()).is_unattended());
    }
    let stats = server.ask(|server| server.stats());
    assert_eq!((stats.requests, stats.sleeps), (3, 0));
}

/// What was there reads as zeros afterwards, in new pages: no load or store fails, and a bit that is lost costs
/// no more than a sweep.
#[test]
fn fault_b7_pages_taken_away_from_rings_and_wakeup_bits_cost_others_nothing() {
    // One that was introduced seals its pages.
    let [host, _] = Host::both(small(), || increment);
    let (server, hostile) = (&host.server, connect(&host));
    let holes = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let punch = |region: &Region| fallocate(region.fd().unwrap(), holes, 0, region.len() as u64);
    assert_eq!(punch(&hostile.memory.sleep_flag), Err(Errno::PERM), "sealed");
    assert_eq!(punch(hostile.down.region()), Err(Errno::PERM), "sealed");
    let (is_over, holes_made) = (AtomicBool::new(false), AtomicU64::new(0));
    let (up, wakeup_bits): (&Region, &Region) = (hostile.up.region(), &hostile.memory.wakeup_bits);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                punch(up).expect("its own memory");
                punch(wakeup_bits).expect("all clients may write it");
                holes_made.fetch_add(1, Ordering::Relaxed);
                thread::yield_now();
            }
        });
        let honest = [0, 1].map(|_| {
            scope.spawn(|| {
                let mut client = host.sync();
                (0..15).for_each(|number| expect_increment(&mut client, &[number; 100]));
            })
        });
        let ended = honest.map(thread::ScopedJoinHandle::join);
        eventually("holes were made", || holes_made.load(Ordering::Relaxed) > 0);
        is_over.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|ended| ended.expect("every answer is right"));
    });
    drop(hostile);
    expect_baseline(server, 0);
}

/// On the wire, where it is one number behind the magic.
#[test]
fn fault_e7_a_client_of_an_older_version_is_refused_and_a_newer_server_named() {
    let dir = Dir::new();
    let _server = ServerThread::start(&dir.socket(), small(), increment);
    let with_version = |mut bytes: Vec<u8>, version: u32| {
        bytes[size_of::<u64>()..][..size_of::<u32>()].copy_from_slice(&version.to_le_bytes());
        bytes
    };
    let old = handshake::VERSION - 1;
    let deadline_ns = clock::deadline_ns(PATIENCE);
    let connection = UnixConnection::connect(&Address::Path(dir.socket()), deadline_ns).unwrap();
    connection.send(&with_version(handshake::write_hello(), old), &[], deadline_ns).unwrap();
    let mut answer = [0; handshake::DATAGRAM_BYTES_MAX];
    let len_bytes = connection.recv(&mut answer, 0, deadline_ns).unwrap().len_bytes;
    let refused = handshake::HandshakeAnswer::Refused(handshake::RefuseReason::Version);
    assert_eq!(handshake::read_answer(&answer[..len_bytes]), Ok(refused));
    // And a new client at an old server, whose answer is of its own version.
    let answer = with_version(handshake::write_answer(refused), old);
    let text = handshake::read_answer(&answer).unwrap_err().to_string();
    let ours = handshake::VERSION;
    assert!(text.contains(&format!("version {old}")), "{text}");
    assert!(text.contains(&format!("version {ours}")), "{text}");
}

/// Whoever is not welcomed is counted, whatever the reason.
#[test]
fn connections_that_end_before_their_welcome_are_counted() {
    let dir = Dir::new();
    let server = ServerThread::start(&dir.socket(), small(), increment);
    let mut other_version = handshake::write_hello();
    other_version[size_of::<u64>()] ^= 1; // behind the magic
    for (count, said) in (1..).zip([Some(&b"no hello"[..]), Some(&other_version), None]) {
        let address = Address::Path(dir.socket());
        let connection = UnixConnection::connect(&address, clock::deadline_ns(PATIENCE)).unwrap();
        if let Some(said) = said {
            connection.send(said, &[], clock::deadline_ns(PATIENCE)).unwrap();
        }
        drop(connection);
        eventually("it is counted", || {
            server.ask(|server| server.stats().rejections.total()) == count
        });
    }
    assert_eq!(server.ask(|server| server.stats().welcomed), 0);
}
