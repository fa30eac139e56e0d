//! Calls that lend memory, on this node and between nodes: rules of `docs/bulk.md`, and who breaks them.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use client::{
    CallError, Client, ClientConfig, To,
    bulk::{
        BulkProvider, BulkRegion, BulkRequest, Direction, Move, RegionError,
        message::{BulkCallHead, IS_WRITABLE, SliceHead, method},
    },
    message::{CallHead, DAEMON, HERE},
    name::service_number,
};
use conformance::wrapped::{Hooks, Wrapped};
use copyrpc_daemon::{
    Services, Serving, Status,
    metrics::{Counter, Snapshot},
};
use memory::sync::{Arc, AtomicBool, Ordering};
use verbs::Access;
use zerocopy::IntoBytes as _;

mod two_daemons;
use two_daemons::{eventually, with_two_daemons, with_two_daemons_on};

const SERVICE: u16 = 5;
const LONG: Duration = Duration::from_secs(30);
const MIB: u64 = 1 << 20;

fn pattern(seed: u8, len_bytes: u64) -> Vec<u8> {
    (0..len_bytes).map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()[3] ^ seed).collect()
}

fn client(serving: &Serving) -> Client {
    Client::connect(&serving.runtime.socket(), ClientConfig::default()).unwrap()
}

fn provider(serving: &Serving) -> BulkProvider {
    let mut provider = None;
    // That of the test before may not be known to be gone.
    eventually(|| {
        let socket = serving.runtime.socket();
        provider = BulkProvider::offer(&socket, SERVICE, ClientConfig::default()).ok();
        provider.is_some()
    });
    provider.unwrap()
}

fn next(provider: &mut BulkProvider) -> BulkRequest {
    let mut work = None;
    eventually(|| {
        work = provider.next(Duration::from_millis(100)).unwrap();
        work.is_some()
    });
    work.unwrap()
}

fn pull(slice: u16, offset: u64, local_offset: u64, len_bytes: u64) -> Move {
    Move { slice, direction: Direction::Pull, offset, local_offset, len_bytes }
}

fn push(slice: u16, offset: u64, local_offset: u64, len_bytes: u64) -> Move {
    Move { slice, direction: Direction::Push, offset, local_offset, len_bytes }
}

fn bytes(region: &BulkRegion, offset: u64, len_bytes: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(len_bytes).unwrap()];
    region.read(offset, &mut bytes).unwrap();
    bytes
}

fn to(rank: u32) -> To {
    To { rank, service: SERVICE, method: 3 }
}

fn status<T: std::fmt::Debug>(result: Result<T, CallError>) -> Status {
    result.unwrap_err().status()
}

/// The provider is at `daemons[1]`; the caller is there too, or at the other one.
fn here_and_there(name: &str, body: impl Fn(&Serving, &Serving, u32)) {
    with_two_daemons(name, Services::default, |[first, second]| {
        body(second, second, HERE);
        body(first, second, 1);
    });
}

#[test]
fn services_that_lend_memory_are_told_of_by_name_apart_from_others_of_their_number() {
    here_and_there("bulk-services", |caller, answerer, rank| {
        const NAME: &str = "blocks";
        let (service, config) = (service_number(NAME), ClientConfig::default);
        let socket = answerer.runtime.socket();
        let ordinary = client::Provider::register(&socket, service, config()).unwrap();
        let mut provider = BulkProvider::offer_named(&socket, NAME, config()).unwrap();
        let mut client = client(caller);
        let region = client.bulk(4096).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let work = next(&mut provider);
                let mut asks = self::client(answerer);
                told(&mut asks, service, (1, 1));
                provider.answer(work, Status::Ok, b"").unwrap();
                provider.next(Duration::ZERO).unwrap();
                told(&mut asks, service, (1, 0));
            });
            let to = To { rank, service, method: 1 };
            client.call_bulk(to, b"", &[region.slice(0, 1)], LONG).unwrap();
        });
        let mut asks = self::client(answerer);
        let listed = asks.services().unwrap();
        let of_number: Vec<_> = listed.iter().filter(|it| it.service == service).collect();
        assert_eq!(of_number.len(), 2, "{listed:?}");
        drop((provider, ordinary));
        eventually(|| asks.services().unwrap().iter().all(|it| it.service != service));
        let long = "a".repeat(256);
        let refused = BulkProvider::offer_named(&socket, &long, config());
        assert!(matches!(refused, Err(client::ProvideError::TooLong(_))), "{refused:?}");
    });
}

/// The daemon comes to tell of a service which lends memory so many requests, and those that are not answered.
fn told(asks: &mut Client, service: u16, counts: (u64, u32)) {
    eventually(|| {
        let listed = asks.services().unwrap();
        let lending = listed.iter().find(|it| it.lends_memory && it.service == service);
        lending.is_some_and(|it| {
            (it.name.as_str(), it.providers, it.requests, it.given)
                == ("blocks", 1, counts.0, counts.1)
        })
    });
}

/// Bulk rules 1 and 4: a list of ranges is one transfer, in both directions, of any length.
#[test]
fn ranges_of_slices_are_pulled_and_pushed_here_and_there() {
    here_and_there("bulk-moves", |caller, answerer, rank| {
        let mut provider = provider(answerer);
        let mut client = client(caller);
        let region = client.bulk(8 * MIB).unwrap();
        let sent = pattern(1, 3 * MIB);
        region.write(4096, &sent).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let own = provider.bulk(8 * MIB).unwrap();
                let work = next(&mut provider);
                assert_eq!((work.method, &work.body[..]), (3, &b"both ways"[..]));
                let lens = work.slices.iter().map(|slice| (slice.len_bytes, slice.is_writable));
                assert_eq!(
                    lens.collect::<Vec<_>>(),
                    [(3 * MIB, false), (2 * MIB, true), (0, true)]
                );
                let moves =
                    [pull(0, MIB, 0, 2 * MIB), pull(0, 0, 5 * MIB, MIB), pull(0, 3 * MIB, 0, 0)];
                let moved = provider.transfer(&work, &own, &moves, LONG).unwrap();
                assert_eq!(moved, 3 * MIB);
                let (first, rest) = (bytes(&own, 5 * MIB, MIB), bytes(&own, 0, 2 * MIB));
                assert!([first, rest].concat() == pattern(1, 3 * MIB));
                own.write(0, &pattern(2, MIB)).unwrap();
                let moves = [push(1, 7, 0, MIB), push(2, 0, 0, 0)];
                let ticket = provider.begin(&work, &own, &moves, LONG).unwrap();
                assert_eq!(provider.wait(ticket), Ok(MIB));
                assert_eq!(status(provider.progress(ticket)), Status::NotFound, "it has ended");
                provider.answer(work, Status::Ok, b"done").unwrap();
                provider.next(Duration::ZERO).unwrap();
            });
            let slices = [
                region.slice(4096, 3 * MIB),
                region.writable(5 * MIB, 2 * MIB),
                region.writable(8 * MIB, 0),
            ];
            let answer = client.call_bulk(to(rank), b"both ways", &slices, LONG).unwrap();
            assert_eq!(answer, b"done");
            assert!(bytes(&region, 5 * MIB + 7, MIB) == pattern(2, MIB));
            assert_eq!(bytes(&region, 5 * MIB, 7), [0; 7]);
            assert!(bytes(&region, 4096, 3 * MIB) == sent, "what is readable stays");
            assert_eq!(client.lent(&region), Ok((0, 0)));
            client.forget(region).unwrap();
        });
    });
}

/// Bulk rules 2 and 3: what was not granted is refused, counted, and moves nothing.
#[test]
fn what_was_not_granted_is_refused_and_hurts_nobody() {
    here_and_there("bulk-refused", |caller, answerer, rank| {
        let mut provider = provider(answerer);
        let mut client = client(caller);
        let region = client.bulk(64 << 10).unwrap();
        region.write(0, &pattern(7, 64 << 10)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let own = provider.bulk(64 << 10).unwrap();
                let work = next(&mut provider);
                let refused = [
                    (push(0, 0, 0, 1), Status::PermissionDenied),
                    (pull(2, 0, 0, 1), Status::OutOfRange),
                    (pull(0, 4096, 0, 1), Status::OutOfRange),
                    (pull(0, 0, 0, 4097), Status::OutOfRange),
                    (pull(0, u64::MAX, 0, 2), Status::OutOfRange),
                    (pull(0, 0, 64 << 10, 1), Status::OutOfRange),
                    (pull(0, 0, u64::MAX, 2), Status::OutOfRange),
                    (push(1, 4096, 0, 1), Status::OutOfRange),
                ];
                for (bad, expected) in refused {
                    // All or nothing.
                    let moves = [push(1, 0, 0, 16), bad];
                    let moved = provider.transfer(&work, &own, &moves, LONG);
                    assert_eq!(status(moved), expected, "{bad:?}");
                }
                provider.answer(work, Status::Ok, b"").unwrap();
                provider.next(Duration::ZERO).unwrap();
            });
            let slices = [region.slice(0, 4096), region.writable(8192, 4096)];
            client.call_bulk(to(rank), b"", &slices, LONG).unwrap();
            assert!(bytes(&region, 0, 64 << 10) == pattern(7, 64 << 10));
            let beyond = [region.slice(1, 64 << 10)];
            assert_eq!(status(client.call_bulk(to(rank), b"", &beyond, LONG)), Status::OutOfRange);
            let wrapped = [region.slice(u64::MAX, 2)];
            assert_eq!(status(client.call_bulk(to(rank), b"", &wrapped, LONG)), Status::OutOfRange);
        });
        eventually(|| counter(answerer, Counter::BulkRefused) >= 8);
    });
}

/// Bulk rule 2: a region is its client's alone, whatever name another one guesses.
#[test]
fn a_forged_region_is_refused() {
    with_two_daemons("bulk-forged", Services::default, |[serving, _]| {
        let _provider = provider(serving);
        let mut owner = client(serving);
        let _region = owner.bulk(4096).unwrap();
        let mut thief =
            ipc::BlockingClient::connect(&serving.runtime.socket(), ipc::ClientConfig::default())
                .unwrap();
        for region in [0, 1 << 32, (1 << 32) + 1, 2 << 32, u64::MAX] {
            let call = CallHead {
                rank: HERE.into(),
                service: DAEMON.into(),
                method: method::CALL.into(),
                timeout_us: 1_000_000.into(),
                response_bytes: 0.into(),
            };
            let head = BulkCallHead {
                rank: HERE.into(),
                service: SERVICE.into(),
                method: 0.into(),
                timeout_us: 1_000_000.into(),
                slices: 1.into(),
                reserved: 0.into(),
            };
            let slice = SliceHead {
                region: region.into(),
                offset: 0.into(),
                len_bytes: 1.into(),
                flags: IS_WRITABLE.into(),
                reserved: 0.into(),
            };
            let answer = thief.call_parts(&[call.as_bytes(), head.as_bytes(), slice.as_bytes()]);
            let answer = answer.map(<[u8]>::to_vec).map_err(CallError::from);
            assert_eq!(status(answer), Status::PermissionDenied, "{region:#x}");
        }
    });
}

/// The gauge says what is registered, and a client that leaves takes all of it along.
#[test]
fn fault_i4_registered_memory_is_counted_and_returns_to_nothing() {
    with_two_daemons("bulk-counted", Services::default, |[serving, _]| {
        let mut greedy = client(serving);
        let regions = [1 << 20, 2 << 20].map(|len_bytes| greedy.bulk(len_bytes).unwrap());
        eventually(|| counter(serving, Counter::BulkHeld) == 3 << 20);
        drop((regions, greedy));
        eventually(|| counter(serving, Counter::BulkHeld) == 0);
    });
}

/// A NIC whose kernel is not done with memory of processes before the test says so.
#[derive(Clone)]
struct Slow(Arc<AtomicBool>);

impl Hooks for Slow {
    type Region = ();

    fn registers(&self, _: Access) {}

    fn is_registered(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A client that lends gibibytes stops nobody else: its daemon calls, answers and keeps its peers meanwhile.
#[test]
fn a_registration_that_takes_long_stops_no_call() {
    let is_done = Arc::new(AtomicBool::new(false));
    let wrap = |nic| Wrapped { nic, hooks: Slow(is_done.clone()) };
    with_two_daemons_on("bulk-slow", wrap, Services::default, |[serving, far]| {
        thread::scope(|scope| {
            let lends = scope.spawn(|| client(serving).bulk(MIB).unwrap().len_bytes());
            eventually(|| counter(serving, Counter::BulkHeld) == MIB);
            let mut others = [client(serving), client(far)];
            for rank in (0..2).cycle().take(64) {
                others.iter_mut().for_each(|other| assert!(other.ping(rank, b"there").is_ok()));
            }
            assert!(!lends.is_finished(), "it waits for the kernel");
            // Clients that are gone, or whose deadline has passed, get nothing. What the NIC was not asked for yet, leaves
            // nothing; the rest is given back when the NIC has done.
            // Long enough for a daemon on a busy machine to take the request before its deadline.
            let timeout = Duration::from_secs(2);
            let impatient = || ClientConfig { timeout, ..ClientConfig::default() };
            let connect = || Client::connect(&serving.runtime.socket(), impatient()).unwrap();
            let [mut gone, mut late] = [connect(), connect()];
            assert!(gone.bulk(2 * MIB).is_err() && late.bulk(8 * MIB).is_err());
            eventually(|| counter(serving, Counter::BulkHeld) == 3 * MIB);
            drop(gone);
            is_done.store(true, Ordering::Release);
            assert_eq!(lends.join().unwrap(), MIB);
            eventually(|| counter(serving, Counter::BulkHeld) == 0);
            assert!(late.ping(0, b"there").is_ok());
        });
    });
}

/// Mappings of regions of exactly this length, in daemons and clients of this process.
fn mappings(len_bytes: u64) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let len_of = |line: &str| {
        let (begin, end) = line.split(' ').next()?.split_once('-')?;
        Some(u64::from_str_radix(end, 16).ok()? - u64::from_str_radix(begin, 16).ok()?)
    };
    let lines = maps.lines().filter(|line| line.contains("copyrpc-bulk"));
    lines.filter(|line| len_of(line) == Some(len_bytes)).count()
}

/// Bulk rule 8: the NIC of neither node remembers a region whose process has ended.
#[test]
fn fault_i4_memory_of_processes_that_have_ended_is_unmapped_here_and_there() {
    // A length that no other test uses.
    const LEN_BYTES: u64 = 77 * 4096;
    here_and_there("bulk-unmapped", |caller, answerer, rank| {
        let mut provider = provider(answerer);
        let own = provider.bulk(LEN_BYTES).unwrap();
        for _ in 0..2 {
            let mut client = client(caller);
            let region = client.bulk(LEN_BYTES).unwrap();
            thread::scope(|scope| {
                scope.spawn(|| {
                    let work = next(&mut provider);
                    let moves = [pull(0, 0, 0, LEN_BYTES), push(0, 0, 0, LEN_BYTES)];
                    provider.transfer(&work, &own, &moves, LONG).unwrap();
                    provider.answer(work, Status::Ok, b"").unwrap();
                    provider.next(Duration::ZERO).unwrap();
                });
                let slices = [region.writable(0, LEN_BYTES)];
                client.call_bulk(to(rank), b"", &slices, LONG).unwrap();
            });
        }
        drop((own, provider));
        eventually(|| {
            thread::sleep(Duration::from_millis(10));
            mappings(LEN_BYTES) == 0
        });
    });
}

/// Bulk rules 5 to 7: the call ends at its deadline, the slice when nobody can write it any more.
#[test]
fn a_slice_of_a_call_that_was_given_up_comes_back_when_it_is_closed() {
    here_and_there("bulk-deadline", |caller, answerer, rank| {
        let mut provider = provider(answerer);
        let mut client = client(caller);
        let region = client.bulk(MIB).unwrap();
        let is_given_up = AtomicBool::new(false);
        let own = provider.bulk(MIB).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                own.write(0, &pattern(3, MIB)).unwrap();
                let work = next(&mut provider);
                eventually(|| is_given_up.load(Ordering::Relaxed));
                let late = provider.transfer(&work, &own, &[push(0, 0, 0, MIB)], LONG);
                assert_eq!(status(late), Status::Cancelled, "the rights ended with the call");
                // An answer that nobody waits for is dropped.
                provider.answer(work, Status::Ok, b"late").unwrap();
                let work = next(&mut provider);
                let moved = provider.transfer(&work, &own, &[push(0, 0, 0, MIB)], LONG);
                assert_eq!(moved, Ok(MIB));
                provider.answer(work, Status::Ok, b"in time").unwrap();
                provider.next(Duration::ZERO).unwrap();
            });
            let slices = [region.writable(0, MIB)];
            let ended = client.call_bulk(to(rank), b"", &slices, Duration::from_secs(1));
            assert_eq!(status(ended), Status::DeadlineExceeded);
            client.reclaim(&region, LONG).unwrap();
            assert_eq!(client.lent(&region), Ok((0, 0)));
            is_given_up.store(true, Ordering::Relaxed);
            let answer = client.call_bulk(to(rank), b"", &slices, LONG).unwrap();
            assert_eq!(answer, b"in time");
            assert!(bytes(&region, 0, MIB) == pattern(3, MIB));
            client.forget(region).unwrap();
        });
    });
}

/// The first byte of what a provider says is its own: it does not tell that the call was not executed.
#[test]
fn what_a_provider_says_about_its_failure_is_not_mistaken_for_what_a_daemon_says() {
    here_and_there("bulk-detail", |caller, answerer, rank| {
        let mut provider = provider(answerer);
        let mut client = client(caller);
        let said: [(Status, &[u8]); 4] = [
            (Status::FailedPrecondition, &[2, b'n', b'o']),
            (Status::Unavailable, &[1, b'n', b'o']),
            (Status::NotFound, b""),
            (Status::Unavailable, b""),
        ];
        thread::scope(|scope| {
            scope.spawn(|| {
                for (status, detail) in said {
                    let work = next(&mut provider);
                    provider.answer(work, status, detail).unwrap();
                }
                provider.next(Duration::ZERO).unwrap();
            });
            for (status, detail) in said {
                let error = client.call_bulk(to(rank), b"", &[], LONG).unwrap_err();
                assert!(matches!(error, CallError::Service(_)), "{error:?}");
                assert_eq!((error.status(), error.detail()), (status, detail));
                assert!(!error.is_certainly_not_executed(), "{error:?}");
            }
        });
    });
}

/// A region in use is not forgotten; a provider that leaves ends its calls.
#[test]
fn a_provider_that_leaves_gives_the_slices_back() {
    here_and_there("bulk-leaves", |caller, answerer, rank| {
        let mut provider = provider(answerer);
        let mut client = client(caller);
        let region = client.bulk(4096).unwrap();
        thread::scope(|scope| {
            scope.spawn(move || drop(next(&mut provider)));
            let slices = [region.writable(0, 4096)];
            let ended = client.call_bulk(to(rank), b"", &slices, LONG);
            assert_eq!(status(ended), Status::Unavailable);
        });
        assert_eq!(client.lent(&region), Ok((0, 0)));
        client.forget(region).unwrap();
    });
}

/// Bulk rule 9: a forked child copies nothing, lends nothing, and its parent goes on.
#[test]
fn a_forked_child_must_not_use_a_region() {
    here_and_there("bulk-fork", |caller, answerer, rank| {
        let mut provider = provider(answerer);
        let own = provider.bulk(4096).unwrap();
        let mut process = Process::start("forks", caller, rank);
        let work = next(&mut provider);
        provider.transfer(&work, &own, &[pull(0, 0, 0, 4096)], LONG).unwrap();
        assert!(bytes(&own, 0, 4096) == pattern(9, 4096), "what the parent wrote");
        provider.answer(work, Status::Ok, b"").unwrap();
        provider.next(Duration::ZERO).unwrap();
        assert!(process.0.wait().unwrap().success(), "parent and child saw what they should");
    });
}

// The C library's; the child calls nothing but this project's code and `_exit`.
unsafe extern "C" {
    safe fn fork() -> i32;
    safe fn _exit(status: i32) -> !;
}

/// What the process of that test does.
fn fork_with_a_region(socket: &Path, rank: u32) {
    let mut client = Client::connect(socket, ClientConfig::default()).unwrap();
    let region = client.bulk(4096).unwrap();
    region.write(0, &pattern(9, 4096)).unwrap();
    let child = fork();
    assert!(child >= 0, "fork failed");
    if child == 0 {
        // A panic would end the only thread, and so the child with status 0.
        let told = catch_unwind(AssertUnwindSafe(|| {
            assert_eq!(region.write(0, b"child"), Err(RegionError::Forked));
            assert_eq!(region.read(0, &mut [0; 5]), Err(RegionError::Forked));
            let slices = [region.writable(0, 4096)];
            client.call_bulk(to(rank), b"child", &slices, LONG).unwrap_err();
            client.forget(region).unwrap_err();
        }));
        _exit(told.is_err().into());
    }
    let pid = rustix::process::Pid::from_raw(child).unwrap();
    let status = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
    assert_eq!(status.unwrap().unwrap().1.exit_status(), Some(0), "the child was refused");
    let slices = [region.slice(0, 4096)];
    client.call_bulk(to(rank), b"parent", &slices, LONG).unwrap();
    client.forget(region).unwrap();
}

/// What a process of the test that is started anew does; nothing in the test itself.
#[test]
fn role() {
    let Ok(role) = std::env::var("COPYRPC_TEST_BULK") else { return };
    let socket = std::env::var("COPYRPC_TEST_SOCKET").unwrap();
    let socket = Path::new(&socket);
    let rank = std::env::var("COPYRPC_TEST_RANK").unwrap().parse().unwrap();
    if role == "forks" {
        fork_with_a_region(socket, rank);
    } else if role == "provider" {
        let config = ClientConfig::default();
        let mut provider = BulkProvider::offer(socket, SERVICE, config).unwrap();
        let own = provider.bulk(16 * MIB).unwrap();
        while let Ok(work) = provider.next(Duration::from_secs(1)) {
            let Some(work) = work else { continue };
            let moves = [pull(0, 0, 0, 16 * MIB), push(0, 0, 0, 16 * MIB)];
            let moved = provider.transfer(&work, &own, &moves, LONG);
            let status = moved.map_or_else(|error| error.status(), |_| Status::Ok);
            if provider.answer(work, status, b"").is_err() {
                return;
            }
        }
    } else {
        let mut client = Client::connect(socket, ClientConfig::default()).unwrap();
        let region = client.bulk(16 * MIB).unwrap();
        loop {
            let slices = [region.writable(0, 16 * MIB)];
            match client.call_bulk(to(rank), b"", &slices, LONG) {
                Ok(_) => {}
                // The provider has not offered its service yet.
                Err(error) if error.status() == Status::Unimplemented => thread::yield_now(),
                Err(_) => return,
            }
        }
    }
}

/// A process of this test, killed with the value.
struct Process(Child);

impl Process {
    fn start(role: &str, serving: &Serving, rank: u32) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "role", "--test-threads=1"]);
        command.env("COPYRPC_TEST_BULK", role);
        command.env("COPYRPC_TEST_SOCKET", serving.runtime.socket());
        command.env("COPYRPC_TEST_RANK", rank.to_string());
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn counter(serving: &Serving, counter: Counter) -> u64 {
    Snapshot::read(&serving.runtime.metrics()).unwrap().total().counter(counter)
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Bulk rule 8: SIGKILL in the middle of transfers, of either side, here and between nodes.
#[test]
fn fault_a1_processes_that_are_killed_in_a_transfer_cost_nobody_else_anything() {
    with_two_daemons("bulk-killed", Services::default, |[first, second]| {
        let before =
            (descriptors(), counter(first, Counter::Clients) + counter(second, Counter::Clients));
        for (round, caller) in [first, second, first, second].into_iter().enumerate() {
            let rank = if std::ptr::eq(caller, first) { 1 } else { HERE };
            let provider = Process::start("provider", second, rank);
            eventually(|| counter(second, Counter::Clients) >= 1);
            let client = Process::start("client", caller, rank);
            let moved = counter(second, Counter::BulkBytes);
            eventually(|| counter(second, Counter::BulkBytes) > moved);
            // Whoever is killed first, the other one notices, and the daemons clean up behind both.
            if round < 2 {
                drop(provider);
                drop(client);
            } else {
                drop(client);
                drop(provider);
            }
            eventually(|| {
                counter(first, Counter::Clients) + counter(second, Counter::Clients) == 0
            });
        }
        // All regions are gone, and with them their descriptors and mappings.
        eventually(|| descriptors() <= before.0);
        eventually(|| mappings(16 * MIB) == 0);
        let mut client = client(first);
        assert_eq!(client.ping(1, b"alive").unwrap(), b"alive");
        assert_eq!(counter(second, Counter::PeersLost), 0);
    });
}
