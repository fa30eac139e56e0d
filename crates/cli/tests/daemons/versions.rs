//! Builds of other versions, by the bytes that they say first: each party refuses the other by name, in both directions,
//! and goes on to serve those of its own.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, UdpSocket},
    path::Path,
    process::Stdio,
    thread,
    time::Duration,
};

use bootstrap::{
    Bootstrap as _, BootstrapError, Folder, JobId, RankInfo, Secret,
    secret::{PROOF_BYTES, ProofPurpose},
};
use client::{
    CallError, Client, ClientConfig, FutureClient, Offer, Pipeline, ProvideError, Provider, Retry,
    Status, bulk::BulkProvider, message::HERE,
};
use memory::sync::{Arc, AtomicBool, Ordering};
use os::{
    clock,
    unix::{Address, Listener, SocketError, UnixConnection},
};

use crate::cluster::{Cluster, ECHO, PATIENCE, eventually};

/// The version between a daemon and its clients. Whoever raises it records the bytes of the new one.
const OURS: u32 = 3;
const OTHERS: [u32; 2] = [OURS - 1, OURS + 1];

/// What a client of a version says first, and a daemon's refusal. Daemons and clients of all versions keep these.
fn hello(version: u32) -> Vec<u8> {
    [&b"crpc-ipc"[..], &version.to_le_bytes(), b"\x01\0\0\0"].concat()
}

fn refusal(version: u32) -> Vec<u8> {
    [&b"crpc-ipc"[..], &version.to_le_bytes(), b"\x03\0\0\0\x03"].concat()
}

/// Names both versions.
fn names(text: &str, theirs: u32) {
    for version in [theirs, OURS] {
        assert!(text.contains(&format!("version {version}")), "{theirs}: {text}");
    }
}

/// What listens as a daemon of another version does, until it is dropped.
struct OtherDaemon {
    is_over: Arc<AtomicBool>,
    listening: Option<thread::JoinHandle<()>>,
}

impl OtherDaemon {
    fn at(socket: &Path, version: u32) -> Self {
        let listener = Listener::bind(&Address::from(socket)).unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let ended = is_over.clone();
        let listening = thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                match listener.accept(clock::deadline_ns(Duration::from_millis(20))) {
                    Ok(connection) => refuse(&connection, version),
                    Err(SocketError::TimedOut | SocketError::PeerGone) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
        Self { is_over, listening: Some(listening) }
    }
}

fn refuse(connection: &UnixConnection, version: u32) {
    let deadline_ns = clock::deadline_ns(PATIENCE);
    let mut said = [0; 64];
    // `is_listening` and others connect and say nothing.
    let Ok(datagram) = connection.recv(&mut said, 0, deadline_ns) else { return };
    assert_eq!(said[..datagram.len_bytes], hello(OURS));
    // Who is gone needs no answer.
    let _ = connection.send(&refusal(version), &[], deadline_ns);
}

impl Drop for OtherDaemon {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.listening.take().unwrap().join().unwrap();
    }
}

#[test]
fn fault_e7_clients_providers_and_commands_name_the_version_of_an_older_and_a_newer_daemon() {
    let mut cluster = Cluster::new(1);
    cluster.stop(0);
    let socket = cluster.socket(0);
    for theirs in OTHERS {
        let _other = OtherDaemon::at(&socket, theirs);
        let config = ClientConfig::default();
        names(&Client::connect(&socket, config).unwrap_err().to_string(), theirs);
        names(&Pipeline::<()>::connect(&socket, config).unwrap_err().to_string(), theirs);
        names(&FutureClient::connect(&socket, config).unwrap_err().to_string(), theirs);
        let offered = Provider::offer(&socket, &Offer::new(ECHO), config);
        names(&offered.unwrap_err().to_string(), theirs);
        for arguments in [&["ping", "0"][..], &["clients"], &["peers"], &["services"]] {
            let mut command = cluster.command(0);
            let told = command.args(arguments).stderr(Stdio::piped()).output().unwrap();
            assert!(!told.status.success(), "{arguments:?}");
            names(&String::from_utf8_lossy(&told.stderr), theirs);
        }
    }
}

/// A provider that looks for a daemon of its own version until its patience ends says that the daemon is gone.
#[test]
fn fault_e7_providers_end_and_name_both_versions_when_another_version_replaces_their_daemon() {
    for theirs in OTHERS {
        let mut cluster = Cluster::new(1);
        let socket = cluster.socket(0);
        let retry = Retry { retries_max: u32::MAX, ..Retry::standard() };
        let offer = Offer::new(ECHO).reconnecting_within(retry, PATIENCE);
        let provider = Provider::offer(&socket, &offer, ClientConfig::default()).unwrap();
        let config = ClientConfig { retry, ..ClientConfig::default() };
        let mut bulk = BulkProvider::offer(&socket, ECHO + 1, config).unwrap();
        let mut client = Client::connect(&socket, ClientConfig::default()).unwrap();
        thread::scope(|scope| {
            let served = scope.spawn(|| provider.run(|_| ()));
            let lent = scope.spawn(|| bulk.next(PATIENCE).map(drop));
            cluster.stop(0);
            let _other = OtherDaemon::at(&socket, theirs);
            let ended = served.join().unwrap();
            let Err(error @ ProvideError::Connect(_)) = ended else { panic!("{ended:?}") };
            names(&error.to_string(), theirs);
            let refused = CallError::Unanswered(Status::FailedPrecondition);
            assert_eq!(lent.join().unwrap().unwrap_err(), refused);
            assert!(client.ping(HERE, b"gone").unwrap_err().is_daemon_gone());
            names(&client.reconnect().unwrap_err().to_string(), theirs);
        });
    }
}

/// An older client reads the daemon's version out of this answer: it is of the daemon's version, and short.
#[test]
fn fault_e7_a_daemon_answers_older_and_newer_clients_by_its_own_version_and_serves_its_own() {
    let cluster = Cluster::new(1);
    let longer = [&hello(OURS + 1)[..], b"what a newer one says besides"].concat();
    for said in [hello(OTHERS[0]), hello(OTHERS[1]), longer] {
        let deadline_ns = clock::deadline_ns(PATIENCE);
        let connection =
            UnixConnection::connect(&Address::from(&*cluster.socket(0)), deadline_ns).unwrap();
        connection.send(&said, &[], deadline_ns).unwrap();
        let mut answer = [0; 64];
        let datagram = connection.recv(&mut answer, 4, deadline_ns).unwrap();
        assert_eq!(answer[..datagram.len_bytes], refusal(OURS));
        assert!(datagram.fds.is_empty());
    }
    let log = || fs::read_to_string(cluster.log(0)).unwrap();
    eventually(|| log().contains("they speak another version of the protocol"));
    assert_eq!(cluster.client(0).ping(HERE, b"own").unwrap(), b"own");
}

fn secret(cluster: &Cluster) -> Secret {
    Secret::from_file(&cluster.folder.join("secret")).unwrap()
}

/// This process as rank 1 of two, by files.
fn rank_one(cluster: &Cluster, timeout: Duration) -> Folder {
    let job = JobId::new("default").unwrap();
    let rank_info = RankInfo::new(1, 2).unwrap();
    Folder::new(&cluster.folder.join("meet"), job, secret(cluster), rank_info, timeout)
}

/// A cluster of two of which no daemon runs.
fn two_at_rest() -> Cluster {
    let mut cluster = Cluster::new(2);
    (0..2).for_each(|rank| cluster.stop(rank));
    cluster
}

#[test]
fn fault_e7_a_daemon_that_meets_others_by_files_of_another_version_does_not_start_and_says_why() {
    let cluster = two_at_rest();
    let mut other = rank_one(&cluster, Duration::ZERO);
    assert!(matches!(other.exchange(b"blob"), Err(BootstrapError::Missing { .. })));
    let path = cluster.folder.join("meet/default.1");
    let mut contents = fs::read(&path).unwrap();
    contents.truncate(contents.len() - PROOF_BYTES);
    contents[7] += 1;
    let proof = secret(&cluster).sign(ProofPurpose::File, &[&contents]);
    contents.extend(proof);
    fs::write(&path, contents).unwrap();
    let mut command = cluster.command(0);
    cluster.configure(0, command.arg("daemon"));
    let told = command.stderr(Stdio::piped()).output().unwrap();
    assert!(!told.status.success());
    let said = String::from_utf8_lossy(&told.stderr);
    assert!(said.contains("rank 1 meets in this folder by version 2"), "{said}");
    assert!(said.contains("this rank by version 1"), "{said}");
}

/// Rank 1 meets as this version does, and then its heartbeats are of another one.
#[test]
fn fault_e7_a_daemon_whose_peer_has_other_heartbeats_names_both_versions_and_serves_its_own_node() {
    let mut cluster = two_at_rest();
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut command = cluster.command(0);
    cluster.configure(0, command.arg("daemon"));
    command.stderr(File::create(cluster.log(0)).unwrap());
    cluster.daemons[0] = Some(command.spawn().unwrap());
    let own = format!("{} soft/1/soft", socket.local_addr().unwrap());
    let mut met = rank_one(&cluster, PATIENCE);
    let blobs = met.exchange(own.as_bytes()).unwrap();
    let address = String::from_utf8_lossy(&blobs[0]);
    let address = address.split([',', ' ']).next().unwrap();
    let mut signed = b"cRPd\x02\0\0\0\x01\0\0\0\0\0\0\0".to_vec();
    signed.extend([5; 300]);
    let job = JobId::new("default").unwrap().padded();
    let proof = secret(&cluster).sign(ProofPurpose::Control, &[&job, &signed]);
    let datagram = [&signed[..], &proof].concat();
    let told = "its heartbeats are of version 2, this daemon's of version 1";
    let log = || fs::read_to_string(cluster.log(0)).unwrap();
    eventually(|| {
        socket.send_to(&datagram, address).unwrap();
        log().contains(told)
    });
    for _ in 0..100 {
        socket.send_to(&datagram, address).unwrap();
    }
    let mut client = cluster.client(0);
    assert_eq!(client.ping(HERE, b"own").unwrap(), b"own");
    assert_eq!(client.ping(1, b"other").unwrap_err(), CallError::Refused(Status::Unavailable));
    assert_eq!(log().matches(told).count(), 1, "{}", log());
}
