//! Results and arguments of typed services that are longer than a call: pages, and memory that calls lend.
#![cfg(all(feature = "daemon", feature = "nic", feature = "typed"))]

use std::{
    env, fs,
    os::unix::fs::MetadataExt as _,
    path::PathBuf,
    process,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use client::tokio::TokioClient;
use copyrpc::{
    CallError, Client, ClientConfig, FutureClient, HERE, Inbound, JobId, Offer, Provider, Retry,
    Runtime, Status, To,
    bulk::{BulkProvider, BulkRegion},
    daemon::{self, BackgroundDaemon},
    name,
    nic::Selection,
    typed::{Failure, Json, Lent, Page, TypedError, future_pages, pages, service},
};

service! {
    trait Names("names"), client NamesClient, futures NamesFutures, codec Json {
        /// Names behind `after`.
        fn list(after: Option<u32>) -> Page<String, u32>;
    }
}

service! {
    /// Keeps bytes.
    lending trait Blocks("blocks"), client BlocksClient, futures BlocksFutures {
        /// Keeps what the first slice has; returns how much.
        fn keep(name: String) -> u64;
        /// Pushes what is kept to the first slice, backwards.
        fn give(name: String) -> u64;
        /// Says this much.
        fn say(len_bytes: u32) -> String;
        /// Works until nobody waits; says what it then was refused.
        fn linger(name: String) -> u64;
        /// What is told of the caller: user, process and trace.
        fn who() -> (u32, u32, u64);
    }
}

/// As another version of the program has it.
mod later {
    use copyrpc::typed::service;

    service! {
        pub lending trait Blocks("blocks"), client BlocksClient, futures BlocksFutures {
            fn keep(name: String, overwrites: bool) -> u64;
            fn forget(name: String) -> ();
        }
    }
}

const ALL: u32 = 1000;
const PATIENCE: Duration = Duration::from_secs(30);

struct Files;

impl Names for Files {
    fn list(&self, _: &Inbound<'_>, after: Option<u32>) -> Result<Page<String, u32>, Failure> {
        let start = after.map_or(0, |after| after + 1);
        let end = (start + 64).min(ALL);
        let items = (start..end).map(|number| format!("file {number}")).collect();
        Ok(Page { items, next: (end < ALL).then(|| end - 1) })
    }
}

/// One block, which is kept in the memory that moves.
struct Memory {
    own: BulkRegion,
    kept: Option<(String, u64)>,
    tell: mpsc::Sender<&'static str>,
}

impl Memory {
    fn of(provider: &mut BulkProvider) -> Self {
        Self::telling(provider, mpsc::channel().0)
    }

    fn telling(provider: &mut BulkProvider, tell: mpsc::Sender<&'static str>) -> Self {
        Self { own: provider.bulk(1 << 20).unwrap(), kept: None, tell }
    }

    /// Tells the test, if it listens.
    fn tell(&self, what: &'static str) {
        let _ = self.tell.send(what);
    }

    /// Answers until something is kept by the name `last`.
    fn serve(mut self, mut provider: BulkProvider) {
        while self.kept.as_ref().is_none_or(|(name, _)| name != "last") {
            if let Some(work) = provider.next(PATIENCE).unwrap() {
                <dyn Blocks>::answer(&mut self, &mut provider, work).unwrap();
            }
        }
    }

    fn kept(&self, name: &str) -> Result<u64, Failure> {
        let kept = self.kept.as_ref().filter(|(kept, _)| kept == name);
        kept.map(|(_, len_bytes)| *len_bytes).ok_or_else(|| Failure::not_found(name))
    }
}

impl Blocks for Memory {
    fn keep(&mut self, lent: &mut Lent<'_>, name: String) -> Result<u64, Failure> {
        let moved = lent.pull(0, &mut self.own)?;
        self.kept = Some((name, moved));
        Ok(moved)
    }

    fn give(&mut self, lent: &mut Lent<'_>, name: String) -> Result<u64, Failure> {
        let len_bytes = self.kept(&name)?;
        let mut bytes = vec![0; usize::try_from(len_bytes).unwrap()];
        self.own.read(0, &mut bytes).unwrap();
        bytes.reverse();
        self.own.write(0, &bytes).unwrap();
        lent.push(0, &mut self.own, len_bytes)
    }

    fn say(&mut self, lent: &mut Lent<'_>, len_bytes: u32) -> Result<String, Failure> {
        assert_eq!((lent.rank(), lent.slices().len()), (0, 0));
        Ok("a".repeat(len_bytes as usize))
    }

    fn linger(&mut self, lent: &mut Lent<'_>, name: String) -> Result<u64, Failure> {
        assert!(lent.context().is_some() && lent.time_left() <= PATIENCE);
        self.tell("begun");
        while !lent.is_cancelled() {
            thread::sleep(Duration::from_millis(1));
        }
        let refused = lent.push(0, &mut self.own, 4).expect_err("rights end with the call");
        self.tell(if refused.status == Status::Cancelled { "refused" } else { "moved" });
        // That is not the service's word to a caller whose deadline has passed.
        Err(Failure::not_found(name))
    }

    fn who(&mut self, lent: &mut Lent<'_>) -> Result<(u32, u32, u64), Failure> {
        let context = lent.context().ok_or_else(|| Failure::invalid("nothing is told"))?;
        Ok((context.uid.unwrap(), context.pid.unwrap(), context.trace))
    }
}

struct Node {
    folder: PathBuf,
    socket: PathBuf,
    daemon: Option<BackgroundDaemon>,
}

impl Node {
    fn start(name: &str) -> Self {
        let folder = env::temp_dir().join(format!("copyrpc-typed-long-{name}-{}", process::id()));
        let mut node = Self { socket: runtime(&folder).socket(), folder, daemon: None };
        node.start_daemon();
        node
    }

    fn start_daemon(&mut self) {
        let alone = daemon::alone(runtime(&self.folder));
        let daemon = BackgroundDaemon::start(alone, Selection::from_env(), |_| Default::default());
        self.daemon = Some(daemon.unwrap());
    }

    fn client(&self) -> Client {
        Client::connect(&self.socket, config()).unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.daemon.take());
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn runtime(folder: &std::path::Path) -> Runtime {
    Runtime::new(folder.to_owned(), JobId::new("typed").unwrap(), "").unwrap()
}

fn config() -> ClientConfig {
    ClientConfig { timeout: PATIENCE, ..ClientConfig::default() }
}

#[test]
fn pages_of_a_result_are_asked_for_by_every_client() {
    let node = Node::start("pages");
    let offer: Offer = <dyn Names>::offer();
    let provider = Provider::offer(&node.socket, &offer, config()).unwrap();
    let stop = provider.stop_handle();
    let serve = move || provider.serve(|it, to| Some(<dyn Names>::dispatch(&Files, it, to)));
    let serving = thread::spawn(serve);
    let expected: Vec<_> = (0..ALL).map(|number| format!("file {number}")).collect();

    let mut names = NamesClient::new(node.client(), HERE);
    let all: Result<Vec<_>, _> = pages(|after| names.list(after)).collect();
    assert_eq!(all.unwrap().concat(), expected);

    let tokio = TokioClient::connect(&node.socket, config()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let all = runtime.block_on(async {
        let names = NamesFutures::new(tokio, HERE).await?;
        let spawned = tokio::spawn(async move {
            let (mut told, mut all) = (future_pages(|after| names.list(after)), Vec::new());
            while let Some(items) = told.next().await {
                all.push(items?);
            }
            Ok::<_, TypedError>(all.concat())
        });
        spawned.await.unwrap()
    });
    assert_eq!(all.unwrap(), expected);

    // A program without the definition reads where the next page begins.
    let mut client = node.client();
    let (service, method) = (name::service_number("names"), name::method_number("list"));
    let told = client.call(To::new(HERE, service, method), b"[997]").unwrap();
    assert_eq!(told, br#"{"items":["file 998","file 999"],"next":null}"#);
    stop.stop();
    serving.join().unwrap().unwrap();
}

#[test]
fn methods_move_the_memory_that_their_calls_lend() {
    let node = Node::start("lent");
    let mut provider = <dyn Blocks>::offer(&node.socket, config()).unwrap();
    let serving = thread::spawn(move || {
        Memory::of(&mut provider).serve(provider);
    });
    let mut blocks = BlocksClient::new(node.client(), HERE);
    let region = blocks.client().bulk(1 << 20).unwrap();
    let sent: Vec<u8> = (0..1 << 19).map(|at: u32| at.to_le_bytes()[1]).collect();
    region.write(0, &sent).unwrap();
    let (first, second) = (region.slice(0, 1 << 19), region.writable(1 << 19, 1 << 19));
    assert_eq!(blocks.keep(&[first], "page".into()), Ok(1 << 19));
    assert_eq!(blocks.within(PATIENCE).give(&[second], "page".into()), Ok(1 << 19));
    let mut given = vec![0; 1 << 19];
    region.read(1 << 19, &mut given).unwrap();
    given.reverse();
    assert!(given == sent);

    // Whoever says that there is no answer, and why.
    let absent = blocks.give(&[second], "absent".into()).unwrap_err();
    let words = absent.to_string();
    assert!(
        words.starts_with("`blocks.give`: ") && words.ends_with("not found: absent"),
        "{words}"
    );
    let read_only = blocks.give(&[first], "page".into()).unwrap_err();
    assert_eq!(read_only.status(), Status::PermissionDenied, "{read_only}");
    let none = blocks.keep(&[], "page".into()).unwrap_err();
    assert!(none.to_string().contains("the call lends no slice 0"), "{none}");
    let long = blocks.say(&[], 2048).unwrap_err();
    assert_eq!(long.status(), Status::OutOfRange);
    let words = long.to_string();
    assert!(
        words.contains("2050 B is longer than the 2048 B") && words.contains("slice"),
        "{long}"
    );
    assert_eq!(blocks.say(&[], 2000).unwrap().len(), 2000);
    let long = blocks.keep(&[first], "a".repeat(2048)).unwrap_err();
    assert!(long.to_string().contains("a body of 2048 B, not 1 and 2058 B"), "{long}");
    let many = blocks.keep(&[first; 65], "page".into()).unwrap_err();
    assert!(many.to_string().contains("at most 64 slices"), "{many}");
    assert_eq!((long.status(), many.status()), (Status::OutOfRange, Status::OutOfRange));

    // Types are compared with each call, unless a program does not know them.
    let mut other = later::BlocksClient::new(blocks.into_client(), HERE);
    let mismatch = other.keep(&[first], "page".into(), true).unwrap_err();
    assert_eq!(mismatch, TypedError::Mismatch { method: "keep" });
    let unknown = other.forget(&[], "page".into()).unwrap_err();
    assert_eq!(unknown.status(), Status::Unimplemented, "{unknown}");
    let to = To {
        rank: HERE,
        service: name::service_number("blocks"),
        method: name::method_number("keep"),
    };
    let mut client = other.into_client();
    let short = client.call_bulk(to, b"short", &[first], PATIENCE).unwrap_err();
    assert_eq!(short.status(), Status::InvalidArgument, "{short}");
    let last = [&[0; 8][..], b"\x04last"].concat();
    assert!(client.call_bulk(to, &last, &[first], PATIENCE).is_ok());
    serving.join().unwrap();
}

#[test]
fn a_service_of_calls_that_lend_memory_survives_its_daemon() {
    let mut node = Node::start("lent-again");
    let config = ClientConfig { retry: Retry::standard(), ..config() };
    let mut provider = <dyn Blocks>::offer(&node.socket, config).unwrap();
    let serving = thread::spawn(move || {
        Memory::of(&mut provider).serve(provider);
    });
    let mut blocks = BlocksClient::new(node.client(), HERE);
    let mut region = blocks.client().bulk(4096).unwrap();
    region.write(0, b"kept").unwrap();
    assert_eq!(blocks.keep(&[region.slice(0, 4)], "first".into()), Ok(4));
    drop(node.daemon.take());
    node.start_daemon();
    blocks.client().reconnect().unwrap();
    assert!(blocks.client().renew(&mut region).unwrap());
    let begin = Instant::now();
    // The service is offered again soon.
    let given = loop {
        match blocks.give(&[region.writable(0, 4)], "first".into()) {
            Err(error) if error.status() == Status::Unimplemented => {
                assert!(begin.elapsed() < PATIENCE, "{error}");
                thread::sleep(Duration::from_millis(1));
            }
            given => break given,
        }
    };
    assert_eq!(given, Ok(4));
    let mut bytes = [0; 4];
    region.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"tpek");
    assert_eq!(blocks.keep(&[region.slice(0, 4)], "last".into()), Ok(4));
    serving.join().unwrap();
}

/// A service on a thread of its own, which ends when something is kept by the name `last`.
fn lending(node: &Node) -> (thread::JoinHandle<()>, mpsc::Receiver<&'static str>) {
    let mut provider = <dyn Blocks>::offer(&node.socket, config()).unwrap();
    let (tell, told) = mpsc::channel();
    let serve = move || Memory::telling(&mut provider, tell).serve(provider);
    (thread::spawn(serve), told)
}

/// What every client of futures does with memory that it lends.
macro_rules! lends_by_futures {
    ($client:expr) => {{
        let client = $client;
        let blocks = BlocksFutures::new(client.clone(), HERE);
        let region = client.bulk(1 << 16).await.unwrap();
        let sent: Vec<u8> = (0..1 << 14).map(|at: u32| at.to_le_bytes()[1]).collect();
        region.write(0, &sent).unwrap();
        let (first, second) = (region.slice(0, 1 << 14), region.writable(1 << 15, 1 << 14));
        assert_eq!(blocks.keep(&[first], "page".into()).await, Ok(1 << 14));
        // Calls go on beside each other, and without polls.
        let calls: Vec<_> = (0..100).map(|_| blocks.give(&[second], "page".into())).collect();
        for call in calls {
            assert_eq!(call.await, Ok(1 << 14));
        }
        let mut given = vec![0; 1 << 14];
        region.read(1 << 15, &mut given).unwrap();
        assert!(given == sent, "an even number of turns");
        let absent = blocks.give(&[second], "absent".into()).await.unwrap_err();
        assert!(absent.to_string().ends_with("not found: absent"), "{absent}");
        let mismatch = later::BlocksFutures::new(client.clone(), HERE);
        let mismatch = mismatch.keep(&[first], "page".into(), true).await.unwrap_err();
        assert_eq!(mismatch, TypedError::Mismatch { method: "keep" });
        let many = blocks.keep(&[first; 65], "page".into()).await.unwrap_err();
        assert_eq!(many.status(), Status::OutOfRange, "{many}");
        let outside = blocks.keep(&[region.slice(1 << 16, 1)], "page".into()).await.unwrap_err();
        assert_eq!(outside.status(), Status::OutOfRange, "{outside}");
        let traced = BlocksFutures::new(client.with_trace(77), HERE);
        let (_, pid, trace) = traced.who(&[]).await.unwrap();
        assert_eq!((pid, trace), (process::id(), 77));
        assert_eq!(client.lent(&region).await, Ok((0, 0)));
        client.forget(region).await.unwrap();
    }};
}

#[test]
fn clients_of_futures_lend_memory() {
    let node = Node::start("lent-futures");
    let (serving, _told) = lending(&node);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let tokio = TokioClient::connect(&node.socket, config()).unwrap();
    let spawned = tokio.clone();
    runtime.block_on(async {
        tokio::spawn(async move { lends_by_futures!(spawned) }).await.unwrap();
    });
    let local = tokio::task::LocalSet::new();
    let futures = FutureClient::connect(&node.socket, config()).unwrap();
    runtime.block_on(local.run_until(async { lends_by_futures!(futures) }));

    // Regions of many tasks, while others call and are introduced to a provider of the node.
    let provider = Provider::offer(&node.socket, &<dyn Names>::offer(), config()).unwrap();
    let stop = provider.stop_handle();
    let naming =
        thread::spawn(move || provider.serve(|it, to| Some(<dyn Names>::dispatch(&Files, it, to))));
    runtime.block_on(async {
        let names = NamesFutures::new(tokio.clone(), HERE).await.unwrap();
        let tasks: Vec<_> = (0..16_u64)
            .map(|number| {
                let (client, names) = (tokio.clone(), names.clone());
                tokio::spawn(async move {
                    let region = client.bulk(4096).await.unwrap();
                    region.write(0, &number.to_le_bytes()).unwrap();
                    for _ in 0..8 {
                        names.list(Some(997)).await.unwrap();
                    }
                    let blocks = BlocksFutures::new(client, HERE);
                    let region = Arc::new(region);
                    assert_eq!(blocks.keep(&[region.slice(0, 8)], "one".into()).await, Ok(8));
                    names.list(None).await.unwrap();
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let blocks = BlocksFutures::new(tokio.clone(), HERE);
        let region = tokio.bulk(4096).await.unwrap();
        assert_eq!(blocks.keep(&[region.slice(0, 8)], "last".into()).await, Ok(8));
    });
    stop.stop();
    naming.join().unwrap().unwrap();
    serving.join().unwrap();
}

#[test]
fn the_deadline_of_a_call_that_lends_memory_ends_its_rights_and_its_handler_is_told() {
    let node = Node::start("lent-late");
    let (serving, told) = lending(&node);
    let mut blocks = BlocksClient::new(node.client(), HERE);
    let region = blocks.client().bulk(4096).unwrap();
    let lent = [region.writable(0, 4)];
    for _ in 0..3 {
        let begin = Instant::now();
        let within = Duration::from_millis(100);
        let late = blocks.within(within).linger(&lent, "nobody".into()).unwrap_err();
        assert!(begin.elapsed() + Duration::from_millis(1) >= within, "{:?}", begin.elapsed());
        let TypedError::Call { error, .. } = &late else { panic!("{late}") };
        // On a busy machine this process looks at the clock before its daemon has said so.
        assert_eq!(error.status(), Status::DeadlineExceeded, "{late}");
        assert!(!matches!(error, CallError::Service(_)), "{late}");
        assert_eq!(told.recv_timeout(PATIENCE), Ok("begun"));
        assert_eq!(told.recv_timeout(PATIENCE), Ok("refused"));
    }
    blocks.client().reclaim(&region, PATIENCE).unwrap();

    // What comes while the handler works, and is late then, is not executed.
    let mut busy = BlocksClient::new(node.client(), HERE);
    let late = thread::scope(|scope| {
        let working = scope.spawn(|| {
            blocks.within(Duration::from_millis(300)).linger(&lent, "nobody".into()).unwrap_err()
        });
        assert_eq!(told.recv_timeout(PATIENCE), Ok("begun"));
        let late = busy.within(Duration::from_millis(20)).who(&[]).unwrap_err();
        working.join().unwrap();
        late
    });
    assert_eq!(late.status(), Status::DeadlineExceeded, "{late}");
    assert_eq!(told.recv_timeout(PATIENCE), Ok("refused"));

    busy.client().set_trace(9);
    let (uid, pid, trace) = busy.who(&[]).unwrap();
    assert_eq!((pid, trace), (process::id(), 9));
    assert_eq!(uid, fs::metadata(&node.folder).unwrap().uid());
    let region = busy.client().bulk(4096).unwrap();
    assert_eq!(busy.keep(&[region.slice(0, 4)], "last".into()), Ok(4));
    serving.join().unwrap();
}

#[test]
fn a_call_that_lends_memory_and_is_given_up_is_cancelled_at_its_handler() {
    let node = Node::start("lent-dropped");
    let (serving, told) = lending(&node);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let local = tokio::task::LocalSet::new();
    runtime.block_on(local.run_until(async {
        let tokio = TokioClient::connect(&node.socket, config()).unwrap();
        let futures = FutureClient::connect(&node.socket, config()).unwrap();
        let region = tokio.bulk(4096).await.unwrap();
        let own = futures.bulk(4096).await.unwrap();
        for _ in 0..3 {
            // Long before the deadline, which `PATIENCE` is.
            let blocks = BlocksFutures::new(tokio.clone(), HERE);
            let begin = Instant::now();
            let call = blocks.linger(&[region.writable(0, 4)], "nobody".into());
            assert_eq!(told.recv_timeout(PATIENCE), Ok("begun"));
            drop(call);
            assert_eq!(told.recv_timeout(PATIENCE), Ok("refused"));
            let blocks = BlocksFutures::new(futures.clone(), HERE);
            let call = blocks.linger(&[own.writable(0, 4)], "nobody".into());
            assert_eq!(told.recv_timeout(PATIENCE), Ok("begun"));
            drop(call);
            assert_eq!(told.recv_timeout(PATIENCE), Ok("refused"));
            assert!(begin.elapsed() < PATIENCE / 2, "{:?}", begin.elapsed());
        }
        while tokio.lent(&region).await.unwrap() != (0, 0) {
            tokio::task::yield_now().await;
        }
        let blocks = BlocksFutures::new(tokio, HERE);
        assert_eq!(blocks.keep(&[region.slice(0, 4)], "last".into()).await, Ok(4));
    }));
    serving.join().unwrap();
}

#[test]
fn clients_of_futures_renew_their_regions_with_the_next_life_of_the_daemon() {
    let mut node = Node::start("lent-renewed");
    let retry = Retry { retries_max: 1000, awaits_service: true, ..Retry::standard() };
    let retrying = ClientConfig { retry: Retry { budget_percent: 100_000, ..retry }, ..config() };
    let mut provider = <dyn Blocks>::offer(&node.socket, retrying).unwrap();
    let serving = thread::spawn(move || Memory::of(&mut provider).serve(provider));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    runtime.block_on(async {
        let client = TokioClient::connect(&node.socket, retrying).unwrap();
        let blocks = BlocksFutures::new(client.clone(), HERE);
        let mut region = client.bulk(4096).await.unwrap();
        region.write(0, b"kept").unwrap();
        assert_eq!(blocks.keep(&[region.slice(0, 4)], "first".into()).await, Ok(4));
        assert!(!client.renew(&mut region).await.unwrap());
        drop(node.daemon.take());
        node.start_daemon();
        // A call finds the next life; the region is of the one before.
        let begin = Instant::now();
        loop {
            let stale = blocks.keep(&[region.slice(0, 4)], "stale".into()).await.unwrap_err();
            if stale.status() == Status::NotFound {
                break;
            }
            assert!(begin.elapsed() < PATIENCE, "{stale}");
        }
        assert!(client.renew(&mut region).await.unwrap());
        assert_eq!(blocks.keep(&[region.slice(0, 4)], "last".into()).await, Ok(4));
    });
    serving.join().unwrap();
}
