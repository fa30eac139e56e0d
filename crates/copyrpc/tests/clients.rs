//! Ways to call: tasks of tokio, one of several ranks, results in pieces.

use std::{
    path::PathBuf,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use client::tokio::TokioClient;
use copyrpc::{
    CallError, Client, ClientConfig, HERE, JobId, Pipeline, Provider, Route, Runtime, Spread,
    Status, To,
    daemon::{self, BackgroundDaemon},
    nic::Selection,
    stream,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const SERVICE: u16 = 17;
const ECHO: u16 = 1;
const SLOW: u16 = 2;
const LIST: u16 = 3;
/// Ends when its caller gives it up, or after seconds.
const PATIENT: u16 = 4;
/// Longest wait for what comes at once, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pieces of the list.
const PIECES: u32 = 40;

/// A daemon and a provider, ended with the value.
struct Node {
    folder: PathBuf,
    socket: PathBuf,
    daemon: Option<BackgroundDaemon>,
    serving: Option<thread::JoinHandle<()>>,
}

impl Node {
    fn new() -> Self {
        static COUNT: Mutex<u32> = Mutex::new(0);
        let mut count = COUNT.lock().unwrap();
        *count += 1;
        let name = format!("copyrpc-clients-{}-{count}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let runtime = Runtime::new(folder.clone(), JobId::new("clients").unwrap(), "").unwrap();
        let socket = runtime.socket();
        let nic = Selection::from_env();
        let daemon = BackgroundDaemon::start(daemon::alone(runtime), nic, |_| Default::default());
        let provider = Provider::register(&socket, SERVICE, ClientConfig::default()).unwrap();
        // It ends with its daemon.
        let serving = thread::spawn(move || drop(provider.serve_on(2, serve)));
        Self { folder, socket, daemon: Some(daemon.unwrap()), serving: Some(serving) }
    }

    fn config() -> ClientConfig {
        ClientConfig { timeout: PATIENCE, ..ClientConfig::default() }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.daemon.take().map(BackgroundDaemon::stop);
        let _ = self.serving.take().map(thread::JoinHandle::join);
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn serve(request: &copyrpc::Inbound<'_>, answer: &mut Vec<u8>) -> Status {
    match request.method {
        ECHO => answer.extend_from_slice(request.body),
        SLOW => thread::sleep(Duration::from_millis(200)),
        LIST => return stream::serve_piece(request.body, answer, piece),
        PATIENT => {
            // The daemon may end before it tells the provider.
            let begin = Instant::now();
            while !request.is_cancelled() && begin.elapsed() < PATIENCE / 12 {
                thread::sleep(Duration::from_millis(1));
            }
        }
        _ => return Status::Unimplemented,
    }
    Status::Ok
}

/// Piece n is n times the body; the one that follows is asked for by its number.
fn piece(
    cursor: Option<&[u8]>,
    body: &[u8],
    piece: &mut Vec<u8>,
) -> Result<Option<Vec<u8>>, Status> {
    let number = match cursor {
        None => 0,
        Some(cursor) => u32::from_le_bytes(cursor.try_into().map_err(|_| Status::OutOfRange)?),
    };
    (0..number).for_each(|_| piece.extend_from_slice(body));
    Ok((number + 1 < PIECES).then(|| (number + 1).to_le_bytes().to_vec()))
}

fn runtime(threads: usize) -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(threads).build().unwrap()
}

#[test]
fn tasks_of_tokio_call_from_all_threads_and_each_gets_its_own_answer() {
    let node = Node::new();
    runtime(2).block_on(async {
        let client = TokioClient::connect(&node.socket, Node::config()).unwrap();
        // More than the daemon takes of one client at a time.
        let tasks: Vec<_> = (0..200_u32)
            .map(|number| {
                let client = client.clone();
                tokio::spawn(async move {
                    let to = To { rank: HERE, service: SERVICE, method: ECHO };
                    let body = number.to_le_bytes();
                    assert_eq!(client.call(to, &body).await.unwrap(), body);
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let to = To { rank: HERE, service: SERVICE, method: 9 };
        assert!(matches!(client.call(to, b"").await, Err(CallError::NoMethod(_))));
        let slow = To { rank: HERE, service: SERVICE, method: SLOW };
        let late = client.call_within(slow, b"", Duration::from_millis(5)).await.unwrap_err();
        assert_eq!(late.status(), Status::DeadlineExceeded, "{late}");
        // What nobody waits for any more disturbs nobody.
        drop(client.call(slow, b""));
        let to = To { rank: HERE, service: SERVICE, method: ECHO };
        assert_eq!(client.call(to, b"again").await.unwrap(), b"again");
    });
}

/// The message that tells of them waits for the answer to the one before, which the program may not be told of.
#[test]
fn calls_that_were_given_up_leave_their_room_to_a_client_that_waits_for_its_descriptor() {
    let node = Node::new();
    let mut pipeline = Pipeline::connect(&node.socket, Node::config()).unwrap();
    let to = To { rank: HERE, service: SERVICE, method: PATIENT };
    let calls: Vec<_> = (1..pipeline.depth())
        .map(|_| pipeline.submit_within(to, b"", 10 * PATIENCE, ()).unwrap())
        .collect();
    for call in calls {
        assert_eq!(pipeline.cancel(call), Some(()));
        pipeline.poll(|(), _| {});
    }
    let begin = Instant::now();
    while pipeline.held() > 0 {
        assert!(begin.elapsed() < PATIENCE, "{} calls hold their places", pipeline.held());
        let ended = pipeline.poll(|(), _| {});
        if ended == 0 && pipeline.held() > 0 && pipeline.arm() {
            let readable = &mut [PollFd::new(&pipeline, PollFlags::IN)];
            poll(readable, Some(&Timespec { tv_sec: 120, tv_nsec: 0 })).unwrap();
        }
    }
}

#[test]
fn a_daemon_that_goes_ends_the_calls_of_tokio() {
    let mut node = Node::new();
    runtime(1).block_on(async {
        let client = TokioClient::connect(&node.socket, Node::config()).unwrap();
        let to = To { rank: HERE, service: SERVICE, method: ECHO };
        client.call(to, b"alive").await.unwrap();
        node.daemon.take().unwrap().stop().unwrap();
        let gone = client.call(to, b"dead").await.unwrap_err();
        assert_eq!(gone.status(), Status::Unavailable, "{gone}");
    });
}

#[test]
fn a_call_goes_to_a_rank_that_is_there_and_all_are_asked_at_once() {
    let node = Node::new();
    // Rank 1 does not exist in this job: whoever is asked by turns finds out.
    let mut spread = Spread::connect(&node.socket, Node::config(), SERVICE, [0, 1]).unwrap();
    let gathered = spread.gather(ECHO, b"all");
    assert_eq!(gathered.len(), 2);
    assert_eq!(gathered[0], (0, Ok(b"all".to_vec())));
    assert_eq!(gathered[1], (1, Err(CallError::NoRank(1))));
    let mut spread = Spread::connect(&node.socket, Node::config(), SERVICE, [0]).unwrap();
    for (number, route) in [Route::Any, Route::LeastLoaded, Route::Key(7)].into_iter().enumerate() {
        assert_eq!(spread.submit(route, ECHO, b"one", number).unwrap(), 0);
    }
    let mut ended = Vec::new();
    while spread.in_flight() > 0 {
        let reported = spread.poll(|number, rank, answer| {
            assert_eq!((rank, answer), (0, Ok(&b"one"[..])));
            ended.push(number);
        });
        if reported == 0 {
            spread.rest();
        }
    }
    ended.sort_unstable();
    assert_eq!(ended, [0, 1, 2]);
}

#[test]
fn a_long_result_comes_in_pieces_and_ends() {
    let node = Node::new();
    let mut client = Client::connect(&node.socket, Node::config()).unwrap();
    let to = To { rank: HERE, service: SERVICE, method: LIST };
    let pieces: Result<Vec<_>, _> = client.stream(to, b"abc", PATIENCE).collect();
    let pieces = pieces.unwrap();
    assert_eq!(pieces.len(), PIECES as usize);
    for (number, piece) in pieces.iter().enumerate() {
        assert_eq!(*piece, b"abc".repeat(number));
    }
    let to = To { method: ECHO, ..to };
    let mut echo = client.stream(to, b"abc", PATIENCE);
    // It answers with the request, which has no cursor: that looks like one piece.
    assert_eq!(echo.next_piece().unwrap().unwrap(), b"abc");
    assert_eq!(echo.next_piece().unwrap(), None);
    let to = To { method: 9, ..to };
    let mut absent = client.stream(to, b"", PATIENCE);
    assert!(matches!(absent.next(), Some(Err(CallError::NoMethod(_)))));
    assert!(absent.next().is_none());
}
