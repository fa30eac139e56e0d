//! Results and arguments of typed services that are longer than a call: pages, and memory that calls lend.
#![cfg(all(feature = "daemon", feature = "nic", feature = "typed"))]

use std::{
    env, fs,
    path::PathBuf,
    process, thread,
    time::{Duration, Instant},
};

use client::tokio::TokioClient;
use copyrpc::{
    Client, ClientConfig, HERE, Inbound, JobId, Offer, Provider, Retry, Runtime, Status, To,
    bulk::BulkRegion,
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
    lending trait Blocks("blocks"), client BlocksClient {
        /// Keeps what the first slice has; returns how much.
        fn keep(name: String) -> u64;
        /// Pushes what is kept to the first slice, backwards.
        fn give(name: String) -> u64;
        /// Says this much.
        fn say(len_bytes: u32) -> String;
    }
}

/// As another version of the program has it.
mod later {
    use copyrpc::typed::service;

    service! {
        pub lending trait Blocks("blocks"), client BlocksClient {
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
}

impl Memory {
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
        let mut memory = Memory { own: provider.bulk(1 << 20).unwrap(), kept: None };
        while memory.kept.as_ref().is_none_or(|(name, _)| name != "last") {
            if let Some(work) = provider.next(PATIENCE).unwrap() {
                <dyn Blocks>::answer(&mut memory, &mut provider, work).unwrap();
            }
        }
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
        let mut memory = Memory { own: provider.bulk(4096).unwrap(), kept: None };
        while memory.kept.as_ref().is_none_or(|(name, _)| name != "last") {
            if let Some(work) = provider.next(PATIENCE).unwrap() {
                <dyn Blocks>::answer(&mut memory, &mut provider, work).unwrap();
            }
        }
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
