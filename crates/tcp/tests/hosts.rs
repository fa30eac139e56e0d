//! Ports that share memory with those of their host: which way a queue pair goes, and what becomes of it when its
//! peer ends. Ports of other hosts are in `crates/cli/tests/namespaces.sh`.
#![cfg(not(any(loom, miri)))]

mod ends;

use std::time::{Duration, Instant};

use copyrpc_tcp::Config;
use verbs::{
    AsyncEvent, Gid, GidRoute, MemoryRegion as _, Nic as _, PortRoute, QpAddress, QpState,
    QueuePair as _, WcStatus,
};

use ends::{End, PATIENCE, REGION_BYTES, SecretFile, complete, pair, small, status};

fn sharing() -> Config {
    Config { shares_memory: true, ..small() }
}

fn connected(configs: [&Config; 2]) -> [End; 2] {
    let [mut first, mut second] = configs.map(End::new);
    first.connect(second.endpoint());
    second.connect(first.endpoint());
    [first, second]
}

/// Streams that have begun, at both ends, and strangers that were refused.
fn streams(ends: [&End; 2]) -> [u64; 2] {
    let counts = ends.map(|end| end.handle.counts());
    [counts.iter().map(|c| c.begun).sum(), counts.iter().map(|c| c.refused).sum()]
}

/// Both ways, at once; the ends poll in turn.
fn write_both_ways([first, second]: [&mut End; 2], len: usize) {
    let byte = len.to_le_bytes()[0] ^ 0x5a;
    for _ in 0..2 {
        let bytes = vec![byte; len];
        first.memory.write(0, &bytes);
        first.write(&second.memory, len);
        let done = complete(first, Some(&mut *second));
        assert_eq!(status(&done), None, "{done:?}");
        let mut arrived = vec![0; len];
        second.memory.read(0, &mut arrived);
        assert!(arrived == bytes, "{len} B");
        second.write(&first.memory, len);
        let done = complete(second, Some(&mut *first));
        assert_eq!(status(&done), None, "{done:?}");
    }
}

#[test]
fn what_ports_of_one_host_send_each_other_goes_by_memory_and_no_stream_begins() {
    let [mut first, mut second] = pair(&sharing());
    assert_ne!(first.handle.name().lid, second.handle.name().lid);
    for len in [1, 100, 4096, 65_537, REGION_BYTES] {
        write_both_ways([&mut first, &mut second], len);
    }
    assert_eq!(streams([&first, &second]), [0, 0]);
}

#[test]
fn a_port_that_shares_no_memory_is_reached_over_tcp() {
    for configs in [[&sharing(), &small()], [&small(), &sharing()]] {
        let [mut first, mut second] = connected(configs);
        write_both_ways([&mut first, &mut second], 100);
        assert_eq!(streams([&first, &second]), [2, 0]);
    }
}

#[test]
fn one_port_has_peers_of_both_kinds_at_once() {
    let mut ends = [sharing(), sharing(), sharing(), small()].map(|config| End::new(&config));
    for [here, there] in [[0, 2], [1, 3]] {
        let addresses = [ends[there].endpoint(), ends[here].endpoint()];
        ends[here].connect(addresses[0]);
        ends[there].connect(addresses[1]);
    }
    let [first, second, near, far] = &mut ends;
    for _ in 0..10 {
        write_both_ways([first, near], 1000);
        write_both_ways([second, far], 1000);
    }
    assert_eq!([streams([first, near]), streams([second, far])], [[0, 0], [2, 0]]);
}

/// Its memory is no way around the secret.
#[test]
fn who_has_another_secret_is_reached_in_no_way() {
    let files = ["a secret of the job", "a secret of another one"].map(SecretFile::new);
    let configs = [0, 1].map(|at| Config { shares_memory: true, ..files[at].config() });
    let [mut first, mut second] = connected([&configs[0], &configs[1]]);
    first.write(&second.memory, 64);
    let done = complete(&mut first, Some(&mut second));
    assert_eq!(status(&done), Some(WcStatus::RetryExceeded));
    assert_eq!(streams([&first, &second])[0], 0);
}

/// The view of a port that does not learn of the other one's place in memory.
fn without_lid(endpoint: QpAddress) -> QpAddress {
    let PortRoute::Gid(route) = endpoint.address.route else { panic!("no GID") };
    let mut bytes = route.gid.to_bytes();
    bytes[8..10].fill(0);
    let mut elsewhere = endpoint;
    elsewhere.address.route = PortRoute::Gid(GidRoute { gid: Gid::new(bytes), ..route });
    elsewhere
}

/// A sandbox may let one of the two connect, and not the other. Bytes of one way must not meet those of the other.
#[test]
fn two_that_do_not_agree_on_the_way_fail_and_write_nothing() {
    let [mut first, mut second] = [(); 2].map(|()| End::new(&sharing()));
    first.connect(second.endpoint());
    second.connect(without_lid(first.endpoint()));
    for end in [&first, &second] {
        end.memory.write(0, &[7; 64]);
    }
    first.memory.write(0, &[1; 64]);
    first.write(&second.memory, 64);
    let done = complete(&mut first, Some(&mut second));
    assert_eq!(status(&done), Some(WcStatus::RetryExceeded));
    let mut arrived = [0; 64];
    second.memory.read(0, &mut arrived);
    assert_eq!(arrived, [7; 64]);
    second.write(&first.memory, 64);
    let done = complete(&mut second, Some(&mut first));
    assert_eq!(status(&done), Some(WcStatus::RetryExceeded));
    first.memory.read(0, &mut arrived);
    assert_eq!(arrived, [1; 64]);
}

/// The successor may have the LID of the dead one, and never its life.
#[test]
fn fault_a8_a_port_of_this_host_that_ends_takes_its_queue_pairs_with_it_and_its_successor_is_another()
 {
    let [mut first, mut second] = pair(&sharing());
    write_both_ways([&mut first, &mut second], 64);
    let dead = second.endpoint();
    drop(second);
    let since = Instant::now();
    let mut told = Vec::new();
    while first.qp.state() != QpState::Err {
        assert_eq!(first.poll(), None);
        told.extend(first.nic.poll_event());
        assert!(since.elapsed() < PATIENCE, "it does not notice");
    }
    told.extend(core::iter::from_fn(|| first.nic.poll_event()));
    assert!(told.contains(&AsyncEvent::QpFatal(first.qp.qpn())), "{told:?}");
    assert!(told.iter().any(|event| matches!(event, AsyncEvent::PeerGone(_))), "{told:?}");
    let mut successor = End::new(&sharing());
    first.qp.modify(&verbs::Transition::Reset).unwrap();
    // A port that knows the dead one's name reaches no port.
    first.connect(dead);
    successor.connect(first.endpoint());
    first.write(&successor.memory, 64);
    let done = complete(&mut first, Some(&mut successor));
    assert_eq!(status(&done), Some(WcStatus::RetryExceeded));
    first.qp.modify(&verbs::Transition::Reset).unwrap();
    successor.qp.modify(&verbs::Transition::Reset).unwrap();
    first.connect(successor.endpoint());
    successor.connect(first.endpoint());
    write_both_ways([&mut first, &mut successor], 64);
    assert_eq!(streams([&first, &successor])[0], 0);
}

/// A port that is not called still has memory, and answers nothing over TCP.
#[test]
fn a_port_that_is_not_called_is_written_to_by_memory_all_the_same() {
    let config = Config { timeout: Duration::from_millis(200), ..sharing() };
    let [mut first, mut second] = pair(&config);
    write_both_ways([&mut first, &mut second], 64);
    let since = Instant::now();
    while since.elapsed() < Duration::from_millis(500) {
        first.write(&second.memory, 64);
        assert_eq!(status(&complete(&mut first, None)), None);
    }
}
