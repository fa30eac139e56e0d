//! Daemons that run out of memory, descriptors or disk space, or that somebody keeps busy on purpose:
//! who is refused is told, and who is served goes on to be.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io::Write as _,
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
    time::Duration,
};

use client::{CallError, Client, ClientConfig, message::HERE};
use daemon::{Status, metrics::Counter};
use memory::sync::{AtomicBool, Ordering};
use os::{
    clock,
    unix::{Address, UnixConnection},
};
use rustix::process::{Resource, Rlimit, getrlimit, prlimit};

use crate::cluster::{Cluster, PATIENCE, body, connect, eventually, pid};

/// Sets what a daemon may have of a resource; `None`: as much as it likes.
fn limit(cluster: &Cluster, rank: u32, resource: Resource, current: Option<u64>) {
    // A daemon has this process's own.
    let maximum = getrlimit(resource).maximum;
    let limit = Rlimit { current, maximum };
    prlimit(Some(pid(cluster.id(rank))), resource, limit).unwrap();
}

/// Bytes of address space that a daemon uses.
fn mapped_bytes(cluster: &Cluster, rank: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", cluster.id(rank))).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// The software NIC locks nothing; `doctor` says what a hardware NIC would need.
#[test]
fn fault_c2_a_daemon_that_may_lock_no_memory_serves_newcomers() {
    let cluster = Cluster::new(2);
    limit(&cluster, 0, Resource::Memlock, Some(0));
    let mut client = cluster.client(0);
    (0..2).for_each(|to| assert_eq!(client.ping(to, b"unlocked").unwrap(), b"unlocked"));
}

#[test]
fn fault_a14_a_daemon_out_of_memory_refuses_what_is_large_and_serves_what_is_not() {
    let cluster = Cluster::with(2, &[("COPYRPC_MESSAGE_BYTES_MAX", "256KiB")]);
    let mut client = cluster.client(0);
    (0..2).for_each(|to| assert_eq!(client.ping(to, b"before").unwrap(), b"before"));
    let large = vec![7; 200 << 10];
    limit(&cluster, 0, Resource::As, Some(mapped_bytes(&cluster, 0) + (160 << 10)));
    let newcomer = Client::connect(&cluster.socket(0), ClientConfig::default()).unwrap_err();
    assert!(newcomer.to_string().contains("no memory or descriptors left"), "{newcomer}");
    let refused = client.ping(1, &large).unwrap_err();
    assert_eq!(refused, CallError::Refused(Status::ResourceExhausted));
    // If what has no room is memory of the peer, the connection to it was made anew.
    eventually(|| client.ping(1, b"small").is_ok());
    for number in 0..200 {
        let body = body(number);
        assert_eq!(client.ping(u32::try_from(number % 2).unwrap(), &body).unwrap(), body);
    }
    limit(&cluster, 0, Resource::As, None);
    eventually(|| client.ping(1, &large).is_ok_and(|answer| answer == large));
    assert_eq!(cluster.client(0).ping(1, b"let in").unwrap(), b"let in");
}

/// Says nothing for ever.
fn half_open(socket: &Path) -> Option<UnixConnection> {
    UnixConnection::connect(&Address::from(socket), clock::NOW).ok()
}

#[test]
fn fault_b9_half_open_connections_and_lack_of_descriptors_keep_nobody_from_work() {
    let cluster = Cluster::new(2);
    let mut client = cluster.client(0);
    assert_eq!(client.ping(1, b"before").unwrap(), b"before");
    eventually(|| cluster.counter(0, Counter::Clients) == Some(1));
    let before = cluster.holdings(0);
    let held = |holdings: &std::collections::BTreeMap<String, usize>| {
        let descriptors = holdings.iter().filter(|(kind, _)| kind.starts_with("descriptor"));
        descriptors.map(|(_, count)| *count as u64).sum::<u64>()
    };
    // Fewer than a client needs, as soon as some have come.
    limit(&cluster, 0, Resource::Nofile, Some(held(&before) + 10));
    let mut flood = VecDeque::new();
    for number in 0..1000 {
        flood.extend(half_open(&cluster.socket(0)));
        if flood.len() > 200 {
            flood.pop_front();
        }
        if number % 20 == 0 {
            let body = body(number);
            assert_eq!(client.ping(u32::try_from(number % 2).unwrap(), &body).unwrap(), body);
        }
    }
    drop(flood);
    limit(&cluster, 0, Resource::Nofile, Some(held(&before) + 30));
    eventually(|| {
        let newcomer = Client::connect(&cluster.socket(0), ClientConfig::default());
        newcomer.is_ok_and(|mut newcomer| newcomer.ping(1, b"let in").is_ok())
    });
    assert_eq!(client.ping(1, b"after").unwrap(), b"after");
    eventually(|| cluster.holdings(0) == before);
}

/// The first message of a client: magic, version 3, hello. And the byte that wakes a daemon.
const HELLO: &[u8] = b"crpc-ipc\x03\0\0\0\x01\0\0\0";
const DOORBELL: u8 = 0xb5;

/// Comes in, and rings until it is thrown out.
fn ring_until_evicted(socket: &Path) {
    let deadline_ns = clock::deadline_ns(Duration::from_secs(60));
    let connection = UnixConnection::connect(&Address::from(socket), deadline_ns).unwrap();
    connection.send(HELLO, &[], deadline_ns).unwrap();
    connection.recv(&mut [0; 64], 4, deadline_ns).expect("a welcome");
    // Not to wait for it: a storm is as fast as it can be.
    while connection.send(&[DOORBELL], &[], clock::NOW) != Err(os::fdpass::SendError::Closed) {
        assert!(clock::now_ns() < deadline_ns, "nobody ends the storm");
    }
}

#[test]
fn fault_b12_who_wakes_the_daemon_for_nothing_is_thrown_out_and_others_are_served() {
    const STORMS: u64 = 4;
    let cluster = Cluster::new(2);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let honest: Vec<_> = (0..2)
            .map(|_| {
                let (mut client, is_over) = (cluster.client(0), &is_over);
                scope.spawn(move || {
                    let mut number = 0;
                    while number < 200 || !is_over.load(Ordering::Relaxed) {
                        let body = body(number);
                        let to = u32::try_from(number % 2).unwrap();
                        assert_eq!(client.ping(to, &body).unwrap(), body);
                        number += 1;
                    }
                })
            })
            .collect();
        (0..STORMS).for_each(|_| ring_until_evicted(&cluster.socket(0)));
        is_over.store(true, Ordering::Relaxed);
        honest.into_iter().for_each(|client| client.join().unwrap());
    });
    eventually(|| cluster.counter(0, Counter::Evicted) == Some(STORMS));
    eventually(|| cluster.counter(0, Counter::Clients) == Some(0));
    // It sleeps again, for longer than between two storms.
    let sleeps = cluster.counter(0, Counter::Sleeps).unwrap();
    eventually(|| cluster.counter(0, Counter::Sleeps).unwrap() > sleeps + 3);
}

#[test]
fn fault_c1_a_daemon_that_cannot_have_its_memory_says_so() {
    let mut cluster = Cluster::new(1);
    cluster.kill(0);
    let daemon = env!("CARGO_BIN_EXE_copyrpc");
    let mut command = Command::new("sh");
    let script = format!("ulimit -v 65536 && exec {daemon} daemon");
    let command = cluster.settle(0, command.args(["-c", &script])).stderr(Stdio::piped());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "the unit does not try again: {output:?}");
    assert!(text.contains("no memory for a region") && text.contains("ulimit -v"), "{text}");
}

/// Whichever limit it meets first, and whoever needs what it lacks: a limit does not get higher by trying again.
#[test]
fn fault_c1_a_daemon_below_limits_of_this_machine_ends_with_the_code_that_units_do_not_repeat() {
    let mut cluster = Cluster::new(1);
    cluster.kill(0);
    // The NIC, and a client; the listener, and clients.
    for limit in ["-v 65536", "-v 250000", "-n 12", "-n 20"] {
        let mut command = Command::new("sh");
        let script = format!("ulimit {limit} && exec {} daemon", env!("CARGO_BIN_EXE_copyrpc"));
        let command = cluster.settle(0, command.args(["-c", &script])).stderr(Stdio::piped());
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{limit}: {output:?}");
    }
}

/// Ends a daemon that was started by hand, and says what it logged.
fn end_of(mut daemon: Child) -> String {
    // It may be over.
    let _ = daemon.kill();
    String::from_utf8_lossy(&daemon.wait_with_output().unwrap().stderr).into_owned()
}

/// From limits that the NIC itself does not fit into to one that everything fits into.
#[test]
fn fault_i8_daemons_short_of_address_space_serve_all_calls_or_name_what_was_refused() {
    let (mut told, mut served) = (0, 0);
    for limit_mib in [100, 200, 260, 330, 1024] {
        let mut cluster = Cluster::new(2);
        (0..2).for_each(|rank| cluster.kill(rank));
        let limited = format!("ulimit -v {} && exec \"$0\" daemon", limit_mib << 10);
        let mut daemons: Vec<_> = (0..2)
            .map(|rank| {
                let mut command = Command::new("sh");
                command.args(["-c", &limited, env!("CARGO_BIN_EXE_copyrpc")]);
                cluster.configure(rank, &mut command);
                command.stderr(Stdio::piped()).spawn().unwrap()
            })
            .collect();
        let (sockets, mut answer) = ([0, 1].map(|rank| cluster.socket(rank)), None);
        let mut is_named_to_client = false;
        eventually(|| {
            let is_over = daemons.iter_mut().any(|one| one.try_wait().unwrap().is_some());
            let config = ClientConfig { timeout: Duration::from_secs(20), ..Default::default() };
            let client = Client::connect(&sockets[0], config);
            // There may be memory for the peer, and none for a client.
            is_named_to_client = client
                .as_ref()
                .is_err_and(|error| error.to_string().contains("no memory or descriptors left"));
            answer =
                client.ok().map(|mut client| client.ping(1, b"over there").map(<[u8]>::to_vec));
            // Until the other is up, calls end with this.
            let is_early = answer == Some(Err(CallError::Refused(Status::Unavailable)));
            is_over || is_named_to_client || answer.is_some() && !is_early
        });
        let logs = daemons.into_iter().map(end_of).collect::<Vec<_>>().concat();
        match answer {
            Some(Ok(body)) => {
                assert_eq!(body, b"over there");
                served += 1;
            }
            None if is_named_to_client => told += 1,
            refused => {
                let names = logs.contains("no memory for") || logs.contains("no memory to reach");
                assert!(names, "{limit_mib} MiB, {refused:?}: {logs}");
                assert!(logs.contains(" B") && logs.contains("ulimit -v"), "{limit_mib}: {logs}");
                told += 1;
            }
        }
    }
    assert!(told > 0 && served > 0, "{told} limits were told of, {served} were enough");
}

#[test]
fn fault_i8_doctor_says_beforehand_that_another_node_does_not_fit() {
    let cluster = Cluster::new(1);
    let mut command = Command::new("sh");
    let script = "ulimit -v 266240 && exec \"$0\" doctor";
    cluster.configure(0, command.args(["-c", script, env!("CARGO_BIN_EXE_copyrpc")]));
    let doctor = command.env("COPYRPC_SIZE", "2").stdout(Stdio::piped()).output().unwrap();
    let text = String::from_utf8_lossy(&doctor.stdout);
    assert!(!doctor.status.success(), "{text}");
    for part in ["no memory to reach other nodes", "for each other node", "ulimit -v"] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
}

/// It was up before, and finds no memory for the next life of a peer: calls say so until there is some.
#[test]
fn fault_i8_calls_to_a_peer_that_there_is_no_memory_for_say_so_until_there_is() {
    // The card of a peer, of which less is not enough for the next.
    const CARD_BYTES: u64 = 128 << 20;
    let mut cluster = Cluster::new(2);
    let mut client = cluster.client(0);
    assert_eq!(client.ping(1, b"before").unwrap(), b"before");
    let with_peer = mapped_bytes(&cluster, 0);
    cluster.kill(1);
    eventually(|| mapped_bytes(&cluster, 0) <= with_peer - CARD_BYTES);
    limit(&cluster, 0, Resource::As, Some(mapped_bytes(&cluster, 0) + CARD_BYTES / 4));
    cluster.start(1);
    eventually(|| {
        client.ping(1, b"no memory") == Err(CallError::Refused(Status::ResourceExhausted))
    });
    // The other way, too.
    eventually(|| {
        let config = ClientConfig { timeout: PATIENCE, ..ClientConfig::default() };
        let client = Client::connect(&cluster.socket(1), config).ok();
        client.is_some_and(|mut client| {
            client.ping(0, b"refused there") == Err(CallError::Refused(Status::ResourceExhausted))
        })
    });
    eventually(|| cluster.counter(0, Counter::NoMemory) > Some(0));
    let doctor = cluster.command(0).arg("doctor").stdout(Stdio::piped()).output().unwrap();
    let text = String::from_utf8_lossy(&doctor.stdout);
    assert!(text.contains("no memory to reach another node"), "{text}");
    assert_eq!(client.ping(0, b"here").unwrap(), b"here");
    limit(&cluster, 0, Resource::As, None);
    eventually(|| client.ping(1, b"after").is_ok_and(|answer| answer == b"after"));
}

/// None serves, and accepts nobody.
#[test]
fn a_daemon_with_few_descriptors_lets_a_client_in_or_says_that_it_cannot() {
    let mut cluster = Cluster::new(1);
    cluster.kill(0);
    let daemon = env!("CARGO_BIN_EXE_copyrpc");
    let mut told = 0;
    // Each of the least ones, since another resource fails at each.
    for limit in (12..26).chain([30, 40]) {
        let mut command = Command::new("sh");
        let script = format!("ulimit -n {limit} && exec {daemon} daemon");
        let command = cluster.settle(0, command.args(["-c", &script])).stderr(Stdio::piped());
        let mut daemon = command.spawn().unwrap();
        let (socket, mut is_over) = (cluster.socket(0), false);
        eventually(|| {
            is_over = daemon.try_wait().unwrap().is_some();
            is_over || Client::connect(&socket, ClientConfig::default()).is_ok()
        });
        if is_over {
            let text = String::from_utf8(daemon.wait_with_output().unwrap().stderr).unwrap();
            let names = ["too few", "open files", "ulimit -n"];
            let is_named = names.iter().any(|name| text.contains(name));
            assert!(is_named, "{limit} descriptors: {text}");
            told += 1;
        } else {
            daemon.kill().unwrap();
            daemon.wait().unwrap();
        }
    }
    assert!(told > 0, "14 are too few");
}

/// A command in a file system of `size` over the runtime folder, which only it sees.
fn on_small_disk(cluster: &Cluster, size: &str, program: &str) -> Command {
    let script = "mount -t tmpfs -o mode=0700,size=$1 small \"$COPYRPC_RUNTIME_DIR\" && exec $2";
    let mut command = Command::new("unshare");
    let arguments = ["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh", size];
    cluster.settle(0, command.args(arguments).arg(program));
    command
}

/// Whether this user may have file systems of its own.
fn may_mount(cluster: &Cluster) -> bool {
    let tried = on_small_disk(cluster, "1m", "true").output();
    tried.is_ok_and(|Output { status, .. }| status.success())
}

#[test]
fn fault_c1_a_full_file_system_is_an_error_at_the_start_and_none_later() {
    let mut cluster = Cluster::new(1);
    cluster.kill(0);
    if !may_mount(&cluster) {
        println!("this user may not mount; nothing is tested");
        return;
    }
    let daemon = format!("{} daemon", env!("CARGO_BIN_EXE_copyrpc"));
    let mut command = on_small_disk(&cluster, "64k", &daemon);
    let failed = command.stderr(Stdio::piped()).output().unwrap();
    let text = String::from_utf8_lossy(&failed.stderr);
    assert!(failed.status.code().is_some(), "no signal ended it: {failed:?}");
    assert!(text.contains("default@0.metrics"), "{text}");
    let mut command = on_small_disk(&cluster, "1m", &daemon);
    cluster.daemons[0] = Some(command.spawn().unwrap());
    // Its own view of the file system; paths of sockets are short.
    let folder = Path::new("/proc").join(cluster.id(0).to_string()).join("root");
    let folder = folder.join(cluster.folder.strip_prefix("/").unwrap());
    let socket = folder.join("default@0.sock");
    eventually(|| Client::connect(&socket, ClientConfig::default()).is_ok());
    let mut client = connect(&socket);
    assert_eq!(client.ping(HERE, b"before").unwrap(), b"before");
    let mut hog = File::create(folder.join("hog")).unwrap();
    while hog.write_all(&[1; 4096]).is_ok() {}
    for number in 0..100 {
        let body = body(number);
        assert_eq!(client.ping(HERE, &body).unwrap(), body);
    }
    assert_eq!(connect(&socket).ping(HERE, b"let in").unwrap(), b"let in");
}
