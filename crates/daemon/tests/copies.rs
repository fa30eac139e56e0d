//! How often a body is copied on its way, counted from outside: after one call, every place of this
//! process's memory where the body lies is one copy, because nothing has overwritten it yet.
//!
//! The test reads `/proc/self/mem`. Mappings of one file count once. The bytes that it looks for never lie
//! side by side but in a body, and stacks are left out: they are no stations of a body.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::FileExt as _,
    path::PathBuf,
    thread,
};

use bootstrap::{JobId, RankInfo, Secret};
use client::{ClientConfig, Filler, HERE, InPlace, Pipeline, Provider, Status, To};
use copyrpc_daemon::{
    Codec, Daemon, IpcPort, Services, UdpControl,
    config::{DaemonConfig, KNOBS, Layers},
    metrics::MetricsFile,
    open_threads,
};
use os::clock;

const FUNCTION: u16 = 7;
const PROVIDED: u16 = 8;
/// Its provider puts answers where the daemon reads them; the method is the number of the body.
const IN_PLACE: u16 = 9;
const BODY_BYTES: usize = 128;
/// In place, answers to calls of these numbers and above are as long as this, with zeros behind a body.
const LONG_CALLS: u8 = 150;
const LONG_BYTES: usize = 300_000;
/// The calls of these numbers have such a request instead.
const LONG_REQUESTS: [u8; 2] = [237, 197];
/// The call of this number has a request of [`MIDDLE_BYTES`], with zeros behind a body: it is left with its client, and
/// fits a batch.
const MIDDLE_REQUEST: u8 = 69;
const MIDDLE_BYTES: usize = 8 << 10;
/// Where in a body the bytes are that are looked for, and how many.
const NEEDLE_AT: usize = 64;
const NEEDLE_BYTES: usize = 12;
/// An answer is its request with this added to each byte.
const SHIFT: u8 = 101;

/// Length of the answer of a service to a call.
fn answer_bytes(call: u8, service: u16) -> usize {
    let is_long = service == IN_PLACE && call >= LONG_CALLS && !LONG_REQUESTS.contains(&call);
    if is_long { LONG_BYTES } else { BODY_BYTES }
}

/// A page that is empty.
const ZEROS: [u8; 4096] = [0; 4096];

/// Byte `index` of the body number `call`. Bodies of the numbers used here have no needle of another one.
fn byte_of(call: u8, index: usize) -> u8 {
    let mixed = (usize::from(call) * 977 + index * 7919 + 31) * 2_654_435_761;
    (mixed >> 13).to_le_bytes()[0] | 1
}

/// Places in which a body lies, whose bytes are `byte(0), byte(1) …`.
fn places(byte: impl Fn(usize) -> u8) -> BTreeSet<(String, u64)> {
    let (mut found, mut seen) = (BTreeSet::new(), BTreeSet::new());
    let memory = File::open("/proc/self/mem").unwrap();
    let mut buffer = vec![0; (64 << 10) + NEEDLE_BYTES];
    let stack = (&raw const found) as u64;
    let own = buffer.as_ptr() as u64..buffer.as_ptr() as u64 + buffer.len() as u64;
    for line in fs::read_to_string("/proc/self/maps").unwrap().lines() {
        let mut fields = line.split_whitespace();
        let (range, rights) = (fields.next().unwrap(), fields.next().unwrap());
        let offset = u64::from_str_radix(fields.next().unwrap(), 16).unwrap();
        let inode = fields.nth(1).unwrap().to_owned();
        let name = fields.next().unwrap_or("anonymous").to_owned();
        let (from, to) = range.split_once('-').unwrap();
        let from = u64::from_str_radix(from, 16).unwrap();
        let to = u64::from_str_radix(to, 16).unwrap();
        let is_stack = name.starts_with("[stack") || (from..to).contains(&stack);
        if !rights.starts_with("rw") || is_stack {
            continue;
        }
        let mut at = from;
        while at < to {
            let want = usize::try_from(to - at).unwrap().min(buffer.len());
            // Pages of the kernel in a process cannot be read.
            let Ok(len) = memory.read_at(&mut buffer[..want], at) else { break };
            for index in needles(&buffer[..len], &byte) {
                let address = at + index as u64;
                let place = match inode.as_str() {
                    "0" => (name.clone(), address),
                    _ => (format!("{name} {inode}"), offset + address - from),
                };
                if !own.contains(&address) && seen.insert(place.clone()) {
                    found.insert(place);
                }
            }
            buffer.fill(0);
            at += 64 << 10;
        }
    }
    found
}

/// Where the bytes that are looked for begin.
fn needles(chunk: &[u8], byte: &impl Fn(usize) -> u8) -> Vec<usize> {
    let first = byte(NEEDLE_AT);
    let mut found = Vec::new();
    for (page, bytes) in chunk.chunks(ZEROS.len()).enumerate() {
        // Most of the memory is empty.
        if *bytes == ZEROS[..bytes.len()] {
            continue;
        }
        let begins = bytes.iter().enumerate().filter(|(_, byte)| **byte == first);
        for at in begins.map(|(index, _)| page * ZEROS.len() + index) {
            let candidate = chunk.get(at..at + NEEDLE_BYTES).unwrap_or(&[]);
            let is_it = |(index, found): (usize, &u8)| *found == byte(NEEDLE_AT + index);
            if !candidate.is_empty() && candidate.iter().enumerate().all(is_it) {
                found.push(at);
            }
        }
    }
    found
}

struct Node {
    daemon: Daemon<softnic::Nic, IpcPort, UdpControl>,
    socket: PathBuf,
    _metrics: MetricsFile,
}

fn node(rank: u32, mut control: UdpControl, peer: SocketAddr) -> Node {
    let settings = Layers::new(KNOBS.to_vec()).finish();
    let config = DaemonConfig::from_settings(&settings).unwrap();
    let rank_info = RankInfo::new(rank, 2).unwrap();
    let (metrics, recorders) = MetricsFile::embedded("copies", rank_info, 1, 0, 1).unwrap();
    let socket = PathBuf::from(format!("@copyrpc-copies/{}/{rank}", std::process::id()));
    let thread = open_threads(&config, &socket, recorders).unwrap().remove(0);
    let job = JobId::new("copies").unwrap();
    let codec = Codec::new(job, Secret::from_bytes(b"the secret of a test"), rank);
    let mut services = Services::default();
    let answer = |request: &copyrpc_daemon::Inbound<'_>, answer: &mut Vec<u8>| {
        answer.extend(request.body.iter().map(|byte| byte.wrapping_add(SHIFT)));
        Status::Ok
    };
    services.offer(FUNCTION, Box::new(answer)).unwrap();
    let (port, parts) = thread.configured(&config, rank_info, codec, services);
    let fabric = format!("copies-{}", std::process::id());
    let nic = softnic::open(&softnic::Config { fabric, ..softnic::Config::default() }).unwrap();
    control.set(1 - rank, peer);
    let worker = rpc::Config { peers_max: 1, ..rpc::Config::default() };
    let daemon = Daemon::open(nic, worker, port, control, parts).unwrap();
    Node { daemon, socket, _metrics: metrics }
}

fn turn(nodes: &mut [Node]) {
    for node in nodes {
        node.daemon.step(clock::now_ns());
    }
}

fn wait_up(nodes: &mut [Node]) {
    turn(nodes);
    while nodes.iter().any(|node| node.daemon.peers_up() == 0) {
        turn(nodes);
    }
}

/// Runs daemons until a thread has done something with them.
fn with_daemons<T: Send + 'static>(
    nodes: &mut [Node],
    body: impl FnOnce() -> T + Send + 'static,
) -> T {
    let thread = thread::spawn(body);
    while !thread.is_finished() {
        turn(nodes);
    }
    thread.join().unwrap()
}

/// Makes one call, and counts the copies of its body and of the body of its answer.
fn copies(
    nodes: &mut [Node],
    pipeline: &mut Pipeline<()>,
    (call, way): (u8, Way),
    to: To,
) -> (usize, usize) {
    // The look at the memory took longer than heartbeats may.
    wait_up(nodes);
    // The first calls of a connection make what the NIC keeps of its peer.
    for warm_up in 0..4 {
        complete(nodes, pipeline, (100 + warm_up, way), to);
    }
    let body = complete(nodes, pipeline, (call, way), to);
    let request = places(|index| byte_of(call, index));
    let answer = places(|index| byte_of(call, index).wrapping_add(SHIFT));
    // One of them is the original.
    drop(body);
    (request.len() - 1, answer.len() - 1)
}

/// Where a client has its bodies.
#[derive(Clone, Copy)]
enum Way {
    /// In its own memory.
    Private,
    /// Where the daemon reads and puts them.
    InPlace,
}

/// Makes a call, and returns its body when it has ended, if it is in private memory.
fn complete(
    nodes: &mut [Node],
    pipeline: &mut Pipeline<()>,
    (call, way): (u8, Way),
    to: To,
) -> Vec<u8> {
    let byte = |index| byte_of(call, index);
    let to = To { method: call.into(), ..to };
    let is_right = |(index, got): (usize, u8)| byte(index).wrapping_add(SHIFT) == got;
    // It does not grow: that would leave copies behind.
    let mut body = Vec::with_capacity(LONG_BYTES);
    match way {
        Way::Private => {
            body.extend((0..BODY_BYTES).map(byte));
            if LONG_REQUESTS.contains(&call) {
                body.resize(LONG_BYTES, 0);
            } else if call == MIDDLE_REQUEST {
                body.resize(MIDDLE_BYTES, 0);
            }
            pipeline.submit(to, &body, ()).unwrap();
        }
        Way::InPlace => {
            let fill = |filler: &mut Filler<'_>| {
                (0..BODY_BYTES).for_each(|index| filler.put(&[byte(index)]).unwrap());
            };
            pipeline.submit_in_place(to, BODY_BYTES, (), fill).unwrap();
        }
    }
    pipeline.flush();
    let mut is_done = false;
    while !is_done {
        turn(nodes);
        match way {
            Way::Private => pipeline.poll(|(), answer| {
                let answer = answer.unwrap();
                assert!(answer.len() == answer_bytes(call, to.service));
                assert!(answer[..BODY_BYTES].iter().copied().enumerate().all(is_right));
                is_done = true;
            }),
            Way::InPlace => pipeline.poll_lent(|(), answer| {
                let answer = answer.unwrap();
                assert!(answer.len() == BODY_BYTES);
                for index in 0..BODY_BYTES {
                    let mut got = [0];
                    answer.get(index..index + 1).unwrap().copy_to(&mut got);
                    assert!(is_right((index, got[0])));
                }
                is_done = true;
            }),
        };
    }
    body
}

#[test]
fn a_body_is_copied_as_often_as_the_documentation_says() {
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let controls = [0, 1].map(|_| UdpControl::bind(at, 2).unwrap());
    let [first, second] = [0, 1].map(|rank: usize| controls[rank].address().unwrap());
    let [zero, one] = controls;
    let mut nodes = [node(0, zero, second), node(1, one, first)];
    wait_up(&mut nodes);
    for (rank, service) in [(0, PROVIDED), (1, PROVIDED)] {
        let socket = nodes[rank].socket.clone();
        let provider = with_daemons(&mut nodes, move || {
            Provider::register(&socket, service, ClientConfig::default()).unwrap()
        });
        thread::spawn(move || {
            // It ends with its daemon.
            let _ = provider.serve(|request, answer| {
                answer.extend(request.body.iter().map(|byte| byte.wrapping_add(SHIFT)));
                Some(Status::Ok)
            });
        });
    }
    for node in [0, 1] {
        let socket = nodes[node].socket.clone();
        let provider = with_daemons(&mut nodes, move || {
            Provider::register(&socket, IN_PLACE, ClientConfig::default()).unwrap()
        });
        thread::spawn(move || {
            let _ = provider.serve_in_place(|request| {
                let call = u8::try_from(request.method).unwrap();
                assert!((0..BODY_BYTES).all(|index| request.body[index] == byte_of(call, index)));
                Some(InPlace::of(answer_bytes(call, IN_PLACE), move |answer: &mut Filler<'_>| {
                    for index in 0..BODY_BYTES {
                        answer.put(&[byte_of(call, index).wrapping_add(SHIFT)]).unwrap();
                    }
                }))
            });
        });
    }
    let socket = nodes[0].socket.clone();
    let mut pipeline = with_daemons(&mut nodes, move || {
        Pipeline::connect(&socket, ClientConfig::default()).unwrap()
    });
    let mut counted = |call, way, rank, service| {
        copies(&mut nodes, &mut pipeline, (call, way), To { rank, service, method: 0 })
    };
    // A request that is filled in place begins in the request ring; a lent answer ends in the response ring.
    assert_eq!(counted(32, Way::InPlace, HERE, FUNCTION), (1, 1));
    assert_eq!(counted(34, Way::InPlace, 1, FUNCTION), (4, 5));
    let mut of = |call, rank, service| counted(call, Way::Private, rank, service);
    // Through the request ring and the daemon; the answer the same way back.
    assert_eq!(of(1, HERE, FUNCTION), (2, 2));
    // The daemon has no copy of a request to the other one: from the request ring to batch, WQE, ring and private memory
    // of the other daemon. The answer of a function has one more, in the response ring.
    assert_eq!(of(2, 1, FUNCTION), (5, 6));
    // The response ring and the memory of the provider, and back. The daemon has no copy: it passes both on.
    assert_eq!(of(3, HERE, PROVIDED), (3, 3));
    assert_eq!(of(4, 1, PROVIDED), (7, 7));
    // An answer that is put in place begins in the request ring of its provider.
    assert_eq!(of(61, HERE, IN_PLACE), (3, 2));
    assert_eq!(of(63, 1, IN_PLACE), (7, 6));
    // A request of some KiB goes from where it was left to the batch, as a shorter one does.
    assert_eq!(of(MIDDLE_REQUEST, 1, IN_PLACE), (7, 6));
    // A long one stays there until it is where its client reads it, or in registered memory, from where the NIC
    // moves it to that of the other daemon.
    assert_eq!(of(153, HERE, IN_PLACE), (3, 2));
    assert_eq!(of(238, 1, IN_PLACE), (7, 4));
    // A long request stays where its client put it until it is in registered memory, from where the NIC moves it; the
    // other daemon copies it from where it landed to the process that polls.
    assert_eq!(of(237, 1, IN_PLACE), (5, 6));
    // One for a process of the node stays there until it is where that reads it.
    assert_eq!(of(197, HERE, IN_PLACE), (3, 2));
}
