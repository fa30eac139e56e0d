//! What a process that is out of descriptors learns, and what it does not lose. Alone in its process.
#![cfg(not(loom))]

use std::{fs::File, os::fd::AsRawFd as _, time::Duration};

use copyrpc_os::{
    clock,
    fdpass::RecvError,
    process::{Process, ProcessError, ProcessId},
    unix::{Address, Listener, UnixConnection},
};
use memory::Region;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Calls `f` while only `count` more descriptors can be had.
fn with_few<R>(count: usize, f: impl FnOnce() -> R) -> R {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // Each gets the lowest free number: what is below the last one is in use.
    let free: Vec<_> = (0..=count).map(|_| File::open("/dev/null").unwrap()).collect();
    let limit = u64::try_from(free[count].as_raw_fd()).unwrap();
    drop(free);
    setrlimit(Resource::Nofile, Rlimit { current: Some(limit), maximum }).unwrap();
    let result = f();
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    result
}

#[test]
fn nothing_is_lost_or_taken_for_gone_while_there_are_no_descriptors() {
    let deadline_ns = clock::deadline_ns(Duration::from_secs(20));
    let address = Address::Abstract(format!("copyrpc-test-{}-none", std::process::id()));
    let listener = Listener::bind(&address).unwrap();
    let client = UnixConnection::connect(&address, deadline_ns).unwrap();
    let server = listener.accept(deadline_ns).unwrap();
    let region = Region::memfd("copyrpc-test", 4096).unwrap();
    client.send(b"two", &[region.fd().unwrap(); 2], deadline_ns).unwrap();
    client.send(b"none", &[], deadline_ns).unwrap();

    let mut buffer = [0; 8];
    for count in [0, 1] {
        let refused = with_few(count, || server.recv(&mut buffer, 2, clock::NOW).unwrap_err());
        assert_eq!(refused, RecvError::NoDescriptor, "{count} left");
    }
    let first = with_few(2, || server.recv(&mut buffer, 2, clock::NOW).unwrap());
    assert_eq!((&buffer[..first.len_bytes], first.fds.len()), (&b"two"[..], 2));
    let second = with_few(0, || server.recv(&mut buffer, 2, clock::NOW).unwrap());
    assert_eq!((&buffer[..second.len_bytes], second.fds.len()), (&b"none"[..], 0));

    let pid = std::process::id();
    for count in [0, 1] {
        let refused = with_few(count, || Process::open(pid).unwrap_err());
        assert_eq!(refused, ProcessError::NoDescriptor { pid }, "{count} left");
    }
    let own = with_few(2, || Process::open(pid)).unwrap().id();
    assert!(!with_few(0, || Process::is_gone(own)));
    assert!(Process::is_gone(ProcessId { start_ticks: own.start_ticks + 1, ..own }));
}
