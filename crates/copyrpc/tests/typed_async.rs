//! Services whose methods are futures, deadlines of single calls, and values that programs without the definition read.
#![cfg(all(feature = "daemon", feature = "nic", feature = "typed"))]

use std::{
    env, fs,
    path::PathBuf,
    process,
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use client::tokio::TokioClient;
use copyrpc::{
    Client, ClientConfig, HERE, JobId, Provider, ProviderStop, RequestContext, Runtime, Status, To,
    daemon::{self, BackgroundDaemon},
    name,
    nic::Selection,
    typed::{Failure, Json, TypedError, service},
};
use serde::{Deserialize, Serialize};

/// What a file is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stat {
    length: u64,
    name: String,
}

service! {
    /// What is known of files.
    pub async trait Metadata("metadata"), client MetadataClient, futures MetadataFutures, codec Json {
        /// What a file is.
        fn stat(path: String) -> Stat;
        /// Never ends by itself.
        fn wait() -> ();
    }
}

/// Says when a future of `wait` is dropped.
struct Files(Mutex<Sender<Instant>>);

struct SaysDropped(Sender<Instant>);

impl Drop for SaysDropped {
    fn drop(&mut self) {
        // The test may have ended.
        let _ = self.0.send(Instant::now());
    }
}

impl Metadata for Files {
    async fn stat(&self, request: RequestContext, path: String) -> Result<Stat, Failure> {
        assert!(!request.time_left().is_zero());
        match path.strip_prefix('/') {
            Some(name) => Ok(Stat { length: path.len() as u64, name: name.to_owned() }),
            None => Err(Failure::not_found(path)),
        }
    }

    async fn wait(&self, _: RequestContext) -> Result<(), Failure> {
        let sender = self.0.lock().unwrap().clone();
        let _says = SaysDropped(sender);
        std::future::pending().await
    }
}

struct Node {
    folder: PathBuf,
    socket: PathBuf,
    stop: ProviderStop,
    serving: Option<JoinHandle<()>>,
    dropped: Receiver<Instant>,
    daemon: Option<BackgroundDaemon>,
}

impl Node {
    fn start(name: &str) -> Self {
        let folder = env::temp_dir().join(format!("copyrpc-typed-async-{name}-{}", process::id()));
        let runtime = Runtime::new(folder.clone(), JobId::new("typed").unwrap(), "").unwrap();
        let socket = runtime.socket();
        let nic = Selection::from_env();
        let daemon = BackgroundDaemon::start(daemon::alone(runtime), nic, |_| Default::default());
        let config = ClientConfig::default();
        let provider = Provider::offer(&socket, &<dyn Metadata>::offer(), config).unwrap();
        let stop = provider.stop_handle();
        let (says, dropped) = channel();
        let files = Files(Mutex::new(says));
        let serving = thread::spawn(move || {
            provider.run_async(|request| <dyn Metadata>::dispatch(&files, request)).unwrap();
        });
        let daemon = Some(daemon.unwrap());
        Self { folder, socket, stop, serving: Some(serving), dropped, daemon }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop.stop();
        let _ = self.serving.take().map(JoinHandle::join);
        drop(self.daemon.take());
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn config() -> ClientConfig {
    ClientConfig { timeout: Duration::from_secs(30), ..ClientConfig::default() }
}

#[test]
fn methods_that_are_futures_answer_all_clients_and_end_with_their_callers() {
    let node = Node::start("futures");
    let mut client = MetadataClient::new(Client::connect(&node.socket, config()).unwrap(), HERE);
    let etc = Stat { length: 4, name: "etc".into() };
    assert_eq!(client.stat("/etc".into()), Ok(etc.clone()));
    assert_eq!(client.stat("etc".into()).unwrap_err().status(), Status::NotFound);
    // A deadline of its own is that of one call.
    let begin = Instant::now();
    let late = client.within(Duration::from_millis(50)).wait().unwrap_err();
    assert_eq!(late.status(), Status::DeadlineExceeded);
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    node.dropped.recv_timeout(Duration::from_secs(20)).expect("the handler is dropped");
    assert_eq!(client.stat("/etc".into()), Ok(etc.clone()));
    let tokio = TokioClient::connect(&node.socket, config()).unwrap();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).build().unwrap().block_on(async {
        let futures = Arc::new(MetadataFutures::new(tokio, HERE).await.unwrap());
        let its = Arc::clone(&futures);
        let spawned = tokio::spawn(async move { its.stat("/etc".into()).await });
        assert_eq!(spawned.await.unwrap(), Ok(etc));
        let late = futures.within(Duration::from_millis(50)).wait().await.unwrap_err();
        assert_eq!(late.status(), Status::DeadlineExceeded);
        node.dropped.recv_timeout(Duration::from_secs(20)).expect("the handler is dropped");
        // A task that is aborted drops its call, and that the handler.
        let waiting = tokio::spawn(futures.wait());
        thread::sleep(Duration::from_millis(50));
        waiting.abort();
        node.dropped.recv_timeout(Duration::from_secs(20)).expect("the handler is dropped");
    });
}

#[test]
fn a_program_without_the_definition_calls_with_text() {
    let node = Node::start("json");
    let mut client = Client::connect(&node.socket, config()).unwrap();
    let (service, stat) = (name::service_number("metadata"), name::method_number("stat"));
    let answer = client.call(To::new(HERE, service, stat), br#"["/etc"]"#).unwrap();
    assert_eq!(answer, br#"{"length":4,"name":"etc"}"#);
    let nonsense = client.call(To::new(HERE, service, stat), br#"{"path": "/etc"}"#).unwrap_err();
    assert_eq!(nonsense.status(), Status::InvalidArgument, "{nonsense}");
    let deep = "[".repeat(100_000);
    let deep = client.call(To::new(HERE, service, stat), deep.as_bytes()).unwrap_err();
    assert_eq!(deep.status(), Status::InvalidArgument, "{deep}");
    let unknown = client.call(To::new(HERE, service, stat ^ 1), b"null").unwrap_err();
    assert_eq!(unknown.status(), Status::Unimplemented, "{unknown}");
    // Other types by the same names are noticed, as with every codec.
    let client = Client::connect(&node.socket, config()).unwrap();
    let mismatch = other::MetadataClient::new(client, HERE).stat(1).unwrap_err();
    assert_eq!(mismatch, TypedError::Mismatch { method: "stat" });
}

/// As another version of the program has it.
mod other {
    use copyrpc::typed::{Json, service};

    service! {
        pub trait Metadata("metadata"), client MetadataClient, futures MetadataFutures, codec Json {
            fn stat(inode: u64) -> u64;
        }
    }
}
