//! One definition of a service, a real daemon, and all that comes of it.

use std::{
    env, fs,
    future::Future,
    path::PathBuf,
    pin::pin,
    process,
    rc::Rc,
    sync::{Arc, Mutex},
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use ::daemon::metrics::{Counter, Snapshot};
use copyrpc::typed::{self, CodecError, Decode, Encode, Failure, Raw, TypedError, service};
use copyrpc::{
    CallError, Client, ClientConfig, Filler, FutureClient, HERE, InPlace, Inbound, JobId, Provider,
    ProviderStop, Retry, Runtime, Status, To,
    daemon::{self, BackgroundDaemon},
    nic::Selection,
};
use serde::{Deserialize, Serialize};

/// What a file is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stat {
    length: u64,
    name: String,
}

service! {
    /// Tells which rank has a file.
    pub trait Metadata("metadata"), client MetadataClient, futures MetadataFutures {
        /// What a file is.
        fn stat(path: String) -> Stat;
        fn rename(from: String, to: String) -> Result<u32, String>;
        fn nothing() -> ();
    }
}

/// As another version of the program has it.
mod later {
    super::typed::service! {
        pub trait Metadata("metadata"), client MetadataClient, futures MetadataFutures {
            fn stat(path: String, follows_links: bool) -> u64;
        }
    }
}

service! {
    trait Store("store"), client StoreClient, futures StoreFutures, codec Raw {
        fn reverse(bytes: Vec<u8>) -> Vec<u8>;
    }
}

/// Writes bytes in place alone, and one more, by which it tells where they were written.
struct Placed;

/// Addresses of the places that [`Placed`] has written to.
static PLACES: Mutex<Vec<usize>> = Mutex::new(Vec::new());

impl Encode<Vec<u8>> for Placed {
    fn encode(_: &Vec<u8>, _: &mut Vec<u8>) -> Result<(), CodecError> {
        Err(CodecError("it is not to be written to private memory".into()))
    }

    fn len_bytes(value: &Vec<u8>) -> Option<usize> {
        Some(value.len() + 1)
    }

    fn fill(value: &Vec<u8>, into: &mut Filler<'_>) -> Result<(), CodecError> {
        into.put(value).map_err(|full| CodecError(full.to_string().into()))?;
        PLACES.lock().unwrap().push(into.take_room().cast::<u8>().addr());
        Ok(())
    }
}

impl Encode<(Vec<u8>,)> for Placed {
    fn encode(value: &(Vec<u8>,), into: &mut Vec<u8>) -> Result<(), CodecError> {
        Raw::encode(value, into)
    }
}

impl Decode<(Vec<u8>,)> for Placed {
    fn decode(bytes: &[u8]) -> Result<(Vec<u8>,), CodecError> {
        Raw::decode(bytes)
    }
}

impl Decode<Vec<u8>> for Placed {
    fn decode(bytes: &[u8]) -> Result<Vec<u8>, CodecError> {
        Ok(bytes[..bytes.len() - 1].to_vec())
    }
}

service! {
    trait PlacedStore("placed"), client PlacedClient, futures PlacedFutures, codec Placed {
        fn twice(bytes: Vec<u8>) -> Vec<u8>;
    }
}

/// Writes bytes in place, and finds amid some that they cannot be written.
struct Failing;

/// The last byte of what cannot be written.
const UNWRITABLE: u8 = b'!';

impl Encode<Vec<u8>> for Failing {
    fn encode(value: &Vec<u8>, into: &mut Vec<u8>) -> Result<(), CodecError> {
        Raw::encode(value, into)
    }

    fn len_bytes(value: &Vec<u8>) -> Option<usize> {
        Some(value.len())
    }

    fn fill(value: &Vec<u8>, into: &mut Filler<'_>) -> Result<(), CodecError> {
        let [rest @ .., last] = &**value else { return Ok(()) };
        into.put(rest).map_err(|full| CodecError(full.to_string().into()))?;
        if *last == UNWRITABLE {
            return Err(CodecError("it cannot be written".into()));
        }
        into.put(&[*last]).map_err(|full| CodecError(full.to_string().into()))
    }
}

impl Encode<(Vec<u8>,)> for Failing {
    fn encode(value: &(Vec<u8>,), into: &mut Vec<u8>) -> Result<(), CodecError> {
        Raw::encode(value, into)
    }

    fn len_bytes(value: &(Vec<u8>,)) -> Option<usize> {
        <Self as Encode<Vec<u8>>>::len_bytes(&value.0)
    }

    fn fill(value: &(Vec<u8>,), into: &mut Filler<'_>) -> Result<(), CodecError> {
        <Self as Encode<Vec<u8>>>::fill(&value.0, into)
    }
}

impl Decode<(Vec<u8>,)> for Failing {
    fn decode(bytes: &[u8]) -> Result<(Vec<u8>,), CodecError> {
        Raw::decode(bytes)
    }
}

impl Decode<Vec<u8>> for Failing {
    fn decode(bytes: &[u8]) -> Result<Vec<u8>, CodecError> {
        Raw::decode(bytes)
    }
}

service! {
    trait FailingStore("failing"), client FailingClient, futures FailingFutures, codec Failing {
        fn reversed(bytes: Vec<u8>) -> Vec<u8>;
    }
}

struct Files;

impl FailingStore for Files {
    fn reversed(&self, _: &Inbound<'_>, mut bytes: Vec<u8>) -> Result<Vec<u8>, Failure> {
        // What is not put is zeros.
        assert!(!bytes.contains(&0), "it was not to be sent");
        bytes.reverse();
        Ok(bytes)
    }
}

impl PlacedStore for Files {
    fn twice(&self, _: &Inbound<'_>, bytes: Vec<u8>) -> Result<Vec<u8>, Failure> {
        if bytes.is_empty() { Err(Failure::invalid("nothing")) } else { Ok(bytes.repeat(2)) }
    }
}

impl Metadata for Files {
    fn stat(&self, request: &Inbound<'_>, path: String) -> Result<Stat, Failure> {
        assert!(request.context.is_some_and(|context| context.pid == Some(process::id())));
        match path.strip_prefix("/") {
            Some(name) => Ok(Stat { length: path.len() as u64, name: name.to_owned() }),
            None => Err(Failure::not_found(format!("{path} is not there"))),
        }
    }

    fn rename(
        &self,
        _: &Inbound<'_>,
        from: String,
        to: String,
    ) -> Result<Result<u32, String>, Failure> {
        Ok(if from == to { Err("the same".into()) } else { Ok(7) })
    }

    fn nothing(&self, _: &Inbound<'_>) -> Result<(), Failure> {
        Err(Status::Aborted.into())
    }
}

impl Store for Files {
    fn reverse(&self, _: &Inbound<'_>, mut bytes: Vec<u8>) -> Result<Vec<u8>, Failure> {
        bytes.reverse();
        Ok(bytes)
    }
}

struct Node {
    folder: PathBuf,
    socket: PathBuf,
    metrics: PathBuf,
    daemon: Option<BackgroundDaemon>,
}

impl Node {
    fn start(name: &str) -> Self {
        let folder = env::temp_dir().join(format!("copyrpc-typed-{name}-{}", process::id()));
        let runtime = Runtime::new(folder.clone(), JobId::new("typed").unwrap(), "").unwrap();
        let (socket, metrics) = (runtime.socket(), runtime.metrics());
        let services = |_| daemon::Services::default();
        let nic = Selection::from_env();
        let daemon = BackgroundDaemon::start(daemon::alone(runtime), nic, services).unwrap();
        Self { folder, socket, metrics, daemon: Some(daemon) }
    }

    fn client(&self) -> Client {
        Client::connect(&self.socket, ClientConfig::default()).unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.daemon.take().map(BackgroundDaemon::stop);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn a_service_is_called_by_what_its_trait_says() {
    let node = Node::start("sync");
    let config = ClientConfig::default();
    let metadata = Provider::offer(&node.socket, &<dyn Metadata>::offer(), config).unwrap();
    let store = Provider::offer(&node.socket, &<dyn Store>::offer(), config).unwrap();
    let stops = [metadata.stop_handle(), store.stop_handle()];
    thread::scope(|scope| {
        let _stops: Vec<_> = stops.iter().map(StopOnDrop).collect();
        scope.spawn(|| {
            metadata.serve_on(2, |it, answer| <dyn Metadata>::dispatch(&Files, it, answer))
        });
        scope.spawn(|| store.serve_on(1, |it, answer| <dyn Store>::dispatch(&Files, it, answer)));
        let mut client = MetadataClient::new(node.client(), HERE);
        let stat = client.stat("/etc".into()).unwrap();
        assert_eq!(stat, Stat { length: 4, name: "etc".into() });
        assert_eq!(client.rename("a".into(), "b".into()), Ok(Ok(7)));
        assert_eq!(client.rename("a".into(), "a".into()), Ok(Err("the same".into())));
        let absent = client.stat("etc".into()).unwrap_err();
        assert_eq!(absent.status(), Status::NotFound);
        let TypedError::Call { error: CallError::Service(said), .. } = absent else {
            panic!("{absent}")
        };
        assert_eq!(&*said.detail, b"etc is not there");
        assert_eq!(client.nothing().unwrap_err().status(), Status::Aborted);
        // Another version is told apart at the first call, and never called.
        let mut other = later::MetadataClient::new(node.client(), HERE);
        let mismatch = other.stat("/etc".into(), true).unwrap_err();
        assert_eq!(mismatch, TypedError::Mismatch { method: "stat" });
        // Bytes that are no arguments are refused by the server.
        let mut client = client.into_client();
        let (service, stat) =
            (copyrpc::name::service_number("metadata"), copyrpc::name::method_number("stat"));
        let refused = client.call(To::new(HERE, service, stat), &[9, 1]).unwrap_err();
        assert_eq!(refused.status(), Status::InvalidArgument);
        let unknown = client.call(To::new(HERE, service, stat ^ 1), b"").unwrap_err();
        assert!(matches!(unknown, CallError::NoMethod(_)), "{unknown}");
        let mut store = StoreClient::new(client, HERE);
        assert_eq!(store.reverse(vec![1, 2, 3]), Ok(vec![3, 2, 1]));
        // Bytes are put where the daemon reads them, unless the call may be made again.
        let long: Vec<u8> = (0..100_000_u32).map(|index| (index % 251) as u8).collect();
        let reversed: Vec<u8> = long.iter().rev().copied().collect();
        assert_eq!(store.reverse(long.clone()).unwrap(), reversed);
        let retry = Retry { retries_max: 2, ..Retry::NEVER };
        let retrying = ClientConfig { retry, ..config };
        let client = Client::connect(&node.socket, retrying).unwrap();
        assert_eq!(StoreClient::new(client, HERE).reverse(long.clone()).unwrap(), reversed);
        let client = FutureClient::connect(&node.socket, config).unwrap();
        block_on(async {
            let store = StoreFutures::new(client, HERE).await.unwrap();
            assert_eq!(store.reverse(long).await.unwrap(), reversed);
        });
    });
}

/// Ends a provider together with the test that has it, also if that fails: a scope waits for its threads.
struct StopOnDrop<'a>(&'a ProviderStop);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        thread::park();
    }
}

#[test]
fn futures_of_many_calls_are_under_way_together() {
    let node = Node::start("async");
    let config = ClientConfig::default();
    let provider = Provider::offer(&node.socket, &<dyn Metadata>::offer(), config).unwrap();
    let stop = provider.stop_handle();
    thread::scope(|scope| {
        let _stops = StopOnDrop(&stop);
        scope.spawn(|| {
            provider.serve_on(2, |it, answer| <dyn Metadata>::dispatch(&Files, it, answer))
        });
        let client = FutureClient::connect(&node.socket, config).unwrap();
        block_on(async {
            let futures = MetadataFutures::new(client.clone(), HERE).await.unwrap();
            let calls: Vec<_> = (0..8).map(|number| futures.stat(format!("/{number}"))).collect();
            for (number, call) in calls.into_iter().enumerate() {
                assert_eq!(call.await.unwrap().name, number.to_string());
            }
            let absent = futures.stat("x".into()).await.unwrap_err();
            let TypedError::Call { error: CallError::Service(said), .. } = absent else {
                panic!("{absent}")
            };
            assert_eq!((said.status, &*said.detail), (Status::NotFound, &b"x is not there"[..]));
            let mismatch = later::MetadataFutures::new(client, HERE).await.unwrap_err();
            assert_eq!(mismatch, TypedError::Mismatch { method: "stat" });
        });
    });
}

/// What the methods of a provider that answers in place do.
mod method {
    pub(super) const LENGTH: u16 = 1;
    pub(super) const SHORT: u16 = 2;
    pub(super) const REFUSED: u16 = 3;
    pub(super) const LONGER: u16 = 4;
    pub(super) const LAST: u16 = 5;
}

#[test]
fn a_provider_puts_answers_where_the_daemon_reads_them() {
    let node = Node::start("in-place");
    let config = ClientConfig::default();
    let provider = Provider::register(&node.socket, 50, config).unwrap();
    let stop = provider.stop_handle();
    let stored: Rc<[u8]> = (0..=255).cycle().take(300_000).collect();
    thread::scope(|scope| {
        let _stops = StopOnDrop(&stop);
        let client = scope.spawn(|| {
            let mut client = node.client();
            let mut call = |method, body: &[u8]| {
                client.call(To::new(HERE, 50, method), body).map(<[u8]>::to_vec)
            };
            for len_bytes in [0_u32, 1, 56, 57, 4000, 5000, 300_000] {
                let answer = call(method::LENGTH, &len_bytes.to_le_bytes()).unwrap();
                assert_eq!(answer.len(), len_bytes as usize);
                assert!(answer.iter().zip((0..=255_u8).cycle()).all(|(got, byte)| *got == byte));
            }
            assert_eq!(call(method::SHORT, b"").unwrap(), [7, 0, 0], "what is not put is zeros");
            assert_eq!(call(method::REFUSED, b"").unwrap_err().status(), Status::Aborted);
            assert_eq!(call(method::LONGER, b"").unwrap_err().status(), Status::OutOfRange);
            assert_eq!(call(method::LAST, b"").unwrap_err().status(), Status::Unavailable);
        });
        let served = provider.serve_in_place(|request| {
            let (method, stored) = (request.method, Rc::clone(&stored));
            let len_bytes = match method {
                method::LENGTH => u32::from_le_bytes(request.body.try_into().unwrap()) as usize,
                method::SHORT => 3,
                method::REFUSED => return Some(InPlace::refused(Status::Aborted)),
                method::LONGER => 1 << 30,
                _ => return None,
            };
            Some(InPlace::of(len_bytes, move |answer: &mut Filler<'_>| match method {
                method::SHORT => answer.put(&[7]).unwrap(),
                _ => answer.put(&stored[..len_bytes]).unwrap(),
            }))
        });
        served.unwrap();
        client.join().unwrap();
    });
}

/// A typed answer of a length that its codec knows is written to memory that the daemon has, too, and nowhere else;
/// one of another codec arrives as well.
#[test]
fn a_typed_answer_is_written_where_the_daemon_reads_it() {
    let node = Node::start("typed-in-place");
    let config = ClientConfig::default();
    let offers = [<dyn PlacedStore>::offer(), <dyn Metadata>::offer()];
    let [placed, metadata] = offers.map(|offer| Provider::offer(&node.socket, &offer, config));
    let (placed, metadata) = (placed.unwrap(), metadata.unwrap());
    let stops = [placed.stop_handle(), metadata.stop_handle()];
    thread::scope(|scope| {
        let _stops: Vec<_> = stops.iter().map(StopOnDrop).collect();
        scope.spawn(|| {
            placed.serve_in_place(|it| Some(<dyn PlacedStore>::dispatch_in_place(&Files, it)))
        });
        scope.spawn(|| {
            metadata.serve_in_place(|it| Some(<dyn Metadata>::dispatch_in_place(&Files, it)))
        });
        let mut client = PlacedClient::new(node.client(), HERE);
        for len_bytes in [1, 20, 1000, 5000, 300_000] {
            let bytes: Vec<u8> = (0..=255).cycle().take(len_bytes).collect();
            assert!(client.twice(bytes.clone()) == Ok(bytes.repeat(2)), "{len_bytes} B");
        }
        let refused = client.twice(Vec::new()).unwrap_err();
        let TypedError::Call { error: CallError::Service(said), .. } = refused else {
            panic!("{refused}")
        };
        assert_eq!((said.status, &*said.detail), (Status::InvalidArgument, &b"nothing"[..]));
        let unknown =
            client.into_client().call(To::new(HERE, name_of_placed(), 1), b"").unwrap_err();
        assert!(matches!(unknown, CallError::NoMethod(_)), "{unknown}");
        let places = PLACES.lock().unwrap().clone();
        assert_eq!(places.len(), 5, "each answer was written once");
        for place in places {
            assert!(is_shared(place), "{place:#x} is private memory");
        }
        let mut client = MetadataClient::new(node.client(), HERE);
        assert_eq!(client.stat("/etc".into()), Ok(Stat { length: 4, name: "etc".into() }));
        let absent = client.stat("etc".into()).unwrap_err();
        let TypedError::Call { error: CallError::Service(said), .. } = absent else {
            panic!("{absent}")
        };
        assert_eq!(&*said.detail, b"etc is not there");
    });
}

/// Arguments that cannot be written are not sent, and their caller is told why. An answer that cannot be written ends
/// its call, and the provider serves on.
#[test]
fn what_a_codec_cannot_write_in_place_is_an_error_on_either_side() {
    let node = Node::start("failing");
    let config = ClientConfig::default();
    let provider = Provider::offer(&node.socket, &<dyn FailingStore>::offer(), config).unwrap();
    let stop = provider.stop_handle();
    thread::scope(|scope| {
        let _stops = StopOnDrop(&stop);
        scope.spawn(|| {
            provider.serve_in_place(|it| Some(<dyn FailingStore>::dispatch_in_place(&Files, it)))
        });
        let mut client = FailingClient::new(node.client(), HERE);
        let futures = FutureClient::connect(&node.socket, config).unwrap();
        let futures = block_on(FailingFutures::new(futures, HERE)).unwrap();
        let mut failed = 0;
        for len_bytes in [1, 20, 1000, 5000, 300_000] {
            let fine = vec![b'.'; len_bytes];
            for unwritable in [[fine.clone(), vec![UNWRITABLE]].concat(), vec![UNWRITABLE]] {
                let why = TypedError::Encode(CodecError("it cannot be written".into()));
                assert_eq!(client.reversed(unwritable.clone()), Err(why.clone()));
                assert_eq!(block_on(futures.reversed(unwritable)), Err(why));
            }
            // Its answer cannot be written.
            let mut last = vec![UNWRITABLE];
            last.extend_from_slice(&fine);
            let answers = [client.reversed(last.clone()), block_on(futures.reversed(last))];
            for answer in answers {
                let error = answer.unwrap_err();
                let TypedError::Call { error: CallError::Service(said), .. } = error else {
                    panic!("{error}")
                };
                assert_eq!(said.status, Status::Internal);
                failed += 1;
            }
            assert_eq!(client.reversed(fine.clone()), Ok(fine.clone()), "{len_bytes} B");
            assert_eq!(block_on(futures.reversed(fine.clone())), Ok(fine));
        }
        // The daemon tells its counters each millisecond.
        let counted = || {
            let snapshot = Snapshot::read(&node.metrics).unwrap();
            snapshot.total().counter(Counter::HandlerErrors)
        };
        let by = Instant::now() + Duration::from_secs(30);
        while counted() < failed && Instant::now() < by {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(counted(), failed);
    });
}

fn name_of_placed() -> u16 {
    copyrpc::name::service_number("placed")
}

/// Whether an address is of a mapping that is shared.
fn is_shared(address: usize) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let mut fields = line.split_whitespace();
        let (range, rights) = (fields.next().unwrap(), fields.next().unwrap());
        let (from, to) = range.split_once('-').unwrap();
        let bounds = [from, to].map(|text| usize::from_str_radix(text, 16).unwrap());
        (bounds[0]..bounds[1]).contains(&address) && rights.ends_with('s')
    })
}

#[test]
fn a_future_has_its_body_put_in_place() {
    let node = Node::start("future-in-place");
    let provider = Provider::register(&node.socket, 51, ClientConfig::default()).unwrap();
    let stop = provider.stop_handle();
    thread::scope(|scope| {
        let _stops = StopOnDrop(&stop);
        scope.spawn(|| {
            provider.serve_on(1, |request, answer| {
                answer.extend_from_slice(request.body);
                Status::Ok
            })
        });
        let client = FutureClient::connect(&node.socket, ClientConfig::default()).unwrap();
        let to = To { rank: HERE, service: 51, method: 0 };
        let call = client.call_in_place(to, 5, |body| body.put(b"abc").unwrap());
        assert_eq!(block_on(call).unwrap(), b"abc\0\0");
        let absent = client.call_in_place(To { service: 52, ..to }, 0, |_| {});
        assert!(matches!(block_on(absent), Err(CallError::NoService(_))));
    });
}
