//! Memory that processes register for calls to lend: shares, refusals, and what hostile processes register.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use client::{
    CallError, Client, ClientConfig,
    bulk::{
        BulkError, BulkProvider, BulkRequest, Direction, Move,
        message::{BulkCallHead, IS_WRITABLE, SliceHead, method},
    },
    message::{CallHead, DAEMON, HERE},
};
use conformance::wrapped::{Hooks, Wrapped};
use copyrpc_daemon::{
    Services, Serving, Status,
    metrics::{Counter, Snapshot},
};
use memory::sync::{Arc, AtomicU64, Ordering};
use rustix::fs::FallocateFlags;
use verbs::Access;
use zerocopy::IntoBytes as _;

mod two_daemons;
use two_daemons::{eventually, with_two_daemons, with_two_daemons_on};

const SERVICE: u16 = 5;
const LONG: Duration = Duration::from_secs(30);
/// Regions that a process registers at once, and their length, with which a NIC gets them one by one.
const HASTY: u64 = 16;
const HASTY_BYTES: u64 = 4 << 20;

fn client(serving: &Serving) -> Client {
    Client::connect(&serving.runtime.socket(), ClientConfig::default()).unwrap()
}

fn provider(serving: &Serving) -> BulkProvider {
    BulkProvider::offer(&serving.runtime.socket(), SERVICE, ClientConfig::default()).unwrap()
}

fn next(provider: &mut BulkProvider) -> BulkRequest {
    let mut work = None;
    eventually(|| {
        work = provider.next(Duration::from_millis(100)).unwrap();
        work.is_some()
    });
    work.unwrap()
}

fn status<T: std::fmt::Debug>(result: Result<T, CallError>) -> Status {
    result.unwrap_err().status()
}

fn counter(serving: &Serving, counter: Counter) -> u64 {
    Snapshot::read(&serving.runtime.metrics()).unwrap().total().counter(counter)
}

/// A process that opens as many connections as it gets and registers as many regions over each, then sleeps.
#[test]
fn register_all_that_it_gets() {
    let Some(socket) = std::env::var_os("COPYRPC_TEST_REGIONS") else { return };
    let socket = Path::new(&socket);
    let connect = || Client::connect(socket, ClientConfig::default()).ok();
    let mut clients: Vec<_> = (0..64).map_while(|_| connect()).collect();
    let regions: Vec<_> = clients
        .iter_mut()
        .flat_map(|client| (0..64).map_while(|_| client.bulk(4096).ok()).collect::<Vec<_>>())
        .collect();
    println!("{}", regions.len());
    thread::sleep(Duration::from_secs(3600));
}

/// A process that registers [`HASTY`] regions at the same time, each over its own connection, then sleeps.
#[test]
fn register_many_at_once() {
    let Some(socket) = std::env::var_os("COPYRPC_TEST_HASTY") else { return };
    let socket = Path::new(&socket);
    let config = ClientConfig { timeout: Duration::from_secs(3600), ..ClientConfig::default() };
    let clients: Vec<_> = (0..HASTY).map(|_| Client::connect(socket, config).unwrap()).collect();
    thread::scope(|scope| {
        for mut client in clients {
            scope.spawn(move || {
                let _region = client.bulk(HASTY_BYTES).unwrap();
                thread::sleep(Duration::from_secs(3600));
            });
        }
    });
}

/// One of these processes, killed with the value.
struct Greedy(Child);

impl Greedy {
    fn start(serving: &Serving) -> Self {
        Self::start_test("register_all_that_it_gets", "COPYRPC_TEST_REGIONS", serving)
    }

    fn start_test(test: &str, variable: &str, serving: &Serving) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--test-threads=1"]);
        command.env(variable, serving.runtime.socket());
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Greedy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One process is one share, however many connections it has, and its regions take no key and no descriptor that long
/// bodies of others need.
#[test]
fn fault_i4_a_process_of_many_connections_and_regions_starves_nobody() {
    with_two_daemons("bulk-greedy", Services::default, |[first, second]| {
        let others = counter(first, Counter::BulkRegions);
        let greedy = Greedy::start(first);
        eventually(|| counter(first, Counter::Clients) >= 64);
        eventually(|| counter(first, Counter::BulkRegions) >= others + 64);
        let mut client = client(first);
        let long = vec![5; 64 << 10];
        for _ in 0..100 {
            assert!(client.ping(1, &long).unwrap() == long);
        }
        let regions: Vec<_> = (0..64).map(|_| client.bulk(4096).unwrap()).collect();
        assert_eq!(counter(second, Counter::BulkRegions), 0);
        let more = client.bulk(4096).unwrap_err();
        assert!(matches!(more, BulkError::Share { len_bytes: 4096 }), "{more}");
        let mut provider = provider(first);
        let more = provider.bulk(4096).unwrap_err();
        assert!(matches!(more, BulkError::Share { .. }), "another connection: {more}");
        eventually(|| counter(first, Counter::BulkRegions) == others + 128);
        drop(greedy);
        eventually(|| counter(first, Counter::BulkRegions) == others + 64);
        drop((regions, client, provider));
        eventually(|| counter(first, Counter::BulkRegions) == 0);
    });
}

/// A NIC whose kernel ends as many registrations as the test says.
#[derive(Clone)]
struct Stepped(Arc<AtomicU64>);

impl Hooks for Stepped {
    type Region = ();

    fn registers(&self, _: Access) {}

    fn is_registered(&self) -> bool {
        let step = |left: u64| left.checked_sub(1);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, step).is_ok()
    }
}

/// Processes take turns: the region of one does not wait for all of another's.
#[test]
fn fault_i4_a_process_that_registers_many_regions_at_once_delays_no_other_process() {
    let steps = Arc::new(AtomicU64::new(0));
    let wrap = |nic| Wrapped { nic, hooks: Stepped(steps.clone()) };
    with_two_daemons_on("bulk-hasty", wrap, Services::default, |[serving, _]| {
        let hasty = Greedy::start_test("register_many_at_once", "COPYRPC_TEST_HASTY", serving);
        eventually(|| counter(serving, Counter::BulkRegions) == HASTY);
        thread::scope(|scope| {
            let config = ClientConfig { timeout: 2 * LONG, ..ClientConfig::default() };
            let mut other = Client::connect(&serving.runtime.socket(), config).unwrap();
            let lends = scope.spawn(move || other.bulk(4096).unwrap().len_bytes());
            eventually(|| counter(serving, Counter::BulkRegions) == HASTY + 1);
            // The one that the NIC is at, the other process's next one, and this one.
            for _ in 0..3 {
                steps.fetch_add(1, Ordering::AcqRel);
                eventually(|| steps.load(Ordering::Acquire) == 0);
            }
            eventually(|| lends.is_finished());
            assert_eq!(lends.join().unwrap(), 4096);
        });
        eventually(|| counter(serving, Counter::BulkRegions) == HASTY);
        steps.store(u64::MAX, Ordering::Release);
        drop(hasty);
        eventually(|| counter(serving, Counter::BulkRegions) == 0);
    });
}

/// Of a hostile client: asks for something of the daemon itself.
fn ask(client: &mut ipc::BlockingClient, method: u16, body: &[u8]) -> Result<u64, CallError> {
    let call = CallHead {
        rank: HERE.into(),
        service: DAEMON.into(),
        method: method.into(),
        timeout_us: 10_000_000.into(),
        response_bytes: 0.into(),
    };
    let answer = client.call_parts(&[call.as_bytes(), body])?;
    Ok(answer.first_chunk().map_or(0, |word| u64::from_le_bytes(*word)))
}

/// Pages that a process did not allocate would be allocated by the daemon that copies, on its own account.
#[test]
fn fault_b7_regions_without_pages_are_refused_and_those_that_lose_some_are_not_used() {
    const LEN_BYTES: usize = 64 << 10;
    with_two_daemons("bulk-sparse", Services::default, |[serving, _]| {
        let mut provider = provider(serving);
        let own = provider.bulk(LEN_BYTES as u64).unwrap();
        let socket = serving.runtime.socket();
        let mut hostile =
            ipc::BlockingClient::connect(&socket, ipc::ClientConfig::default()).unwrap();
        let len = (LEN_BYTES as u64).to_le_bytes();
        let sparse = memory::Region::sparse_memfd("copyrpc-sparse", LEN_BYTES).unwrap();
        sparse.commit(0..LEN_BYTES - 4096).unwrap();
        hostile.send_descriptor(sparse.fd().unwrap()).unwrap();
        let refused = ask(&mut hostile, method::REGION, &len);
        assert_eq!(status(refused), Status::InvalidArgument);
        assert_eq!(ask(&mut hostile, method::ROOM, &len), Ok(0), "its share is whole");

        let dense = memory::Region::memfd("copyrpc-dense", LEN_BYTES).unwrap();
        hostile.send_descriptor(dense.fd().unwrap()).unwrap();
        let region = ask(&mut hostile, method::REGION, &len).unwrap();
        let punch = || {
            let holes = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(dense.fd().unwrap(), holes, 0, LEN_BYTES as u64).unwrap();
        };
        let pages = || rustix::fs::fstat(dense.fd().unwrap()).unwrap().st_blocks;
        let head = BulkCallHead {
            rank: HERE.into(),
            service: SERVICE.into(),
            method: 0.into(),
            timeout_us: 10_000_000.into(),
            slices: 1.into(),
            reserved: 0.into(),
        };
        let slice = SliceHead {
            region: region.into(),
            offset: 0.into(),
            len_bytes: (LEN_BYTES as u64).into(),
            flags: IS_WRITABLE.into(),
            reserved: 0.into(),
        };
        let call = [head.as_bytes(), slice.as_bytes()].concat();
        thread::scope(|scope| {
            scope.spawn(|| {
                let work = next(&mut provider);
                // Between the call and the transfer.
                punch();
                let moves = [Move {
                    slice: 0,
                    direction: Direction::Push,
                    offset: 0,
                    local_offset: 0,
                    len_bytes: LEN_BYTES as u64,
                }];
                let moved = provider.transfer(&work, &own, &moves, LONG);
                assert_eq!(status(moved), Status::DataLoss);
                provider.answer(work, Status::Ok, b"").unwrap();
                provider.next(Duration::ZERO).unwrap();
            });
            ask(&mut hostile, method::CALL, &call).unwrap();
        });
        assert_eq!(status(ask(&mut hostile, method::CALL, &call)), Status::DataLoss);
        assert_eq!(pages(), 0, "the daemon allocated none");
    });
}

/// The daemon says what it would refuse before any memory is made, and of what it holds nothing it says so.
#[test]
fn what_the_daemon_would_refuse_is_not_allocated_and_what_it_does_not_hold_is_named() {
    with_two_daemons("bulk-asked", Services::default, |[serving, _]| {
        let (mut owner, mut other) = (client(serving), client(serving));
        for len_bytes in [1 << 45, u64::MAX, (16 << 30) + 1] {
            let refused = owner.bulk(len_bytes).unwrap_err();
            assert!(matches!(refused, BulkError::TooLong { .. }), "{refused}");
            assert_eq!(refused.status(), Status::OutOfRange);
        }
        assert!(matches!(owner.bulk(0), Err(BulkError::Memory(_))));
        let region = owner.bulk(4096).unwrap();
        let (region, error) = other.forget(region).unwrap_err();
        assert_eq!(error, CallError::NotHeld);
        assert!(error.to_string().contains("another connection made it"), "{error}");
        assert_eq!(other.lent(&region), Err(CallError::NotHeld));
        let no_rank = other.ping(7, b"").map(<[u8]>::to_vec);
        assert_eq!(no_rank, Err(CallError::NoRank(7)));
        owner.forget(region).unwrap();
    });
}
