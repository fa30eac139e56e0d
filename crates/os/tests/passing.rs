//! Regions, descriptors and datagrams on their way through real sockets.
#![cfg(not(loom))]

use std::{
    fs,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::fs::{PermissionsExt as _, symlink},
    },
    path::PathBuf,
    time::Duration,
};

use copyrpc_os::{
    clock,
    fdpass::{FDS_MAX, RecvError, SendError},
    lock::{LockError, LockFile},
    private_dir::PrivateDirError,
    unix::{Address, Listener, SocketError, UnixConnection},
};
use memory::{
    MapError, Protection, Region,
    sync::{AtomicU64, Ordering},
};
use rustix::fs::MemfdFlags;

fn soon() -> u64 {
    clock::deadline_ns(Duration::from_secs(20))
}

/// Unique to this process and `test`, so that tests neither meet nor wait for each other.
fn abstract_address(test: &str) -> Address {
    Address::Abstract(format!("copyrpc-test-{}-{test}", std::process::id()))
}

fn connected(test: &str) -> (UnixConnection, UnixConnection) {
    let address = abstract_address(test);
    let listener = Listener::bind(&address).unwrap();
    let client = UnixConnection::connect(&address, soon()).unwrap();
    (client, listener.accept(soon()).unwrap())
}

/// A directory that is removed again.
struct Directory(PathBuf);

impl Directory {
    fn new(test: &str) -> Self {
        let name = format!("copyrpc-test-{}-{test}", std::process::id());
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn a_sealed_region_is_the_same_memory_on_the_other_side() {
    let (client, server) = connected("region");
    let ours = Region::memfd("copyrpc-test", 8192).unwrap();
    ours.seal_future_write().unwrap();
    client.send(b"region", &[ours.fd().unwrap()], soon()).unwrap();

    let mut buffer = [0; 64];
    let mut datagram = server.recv(&mut buffer, 1, soon()).unwrap();
    assert_eq!(&buffer[..datagram.len_bytes], b"region");
    let fd = datagram.fds.pop().unwrap();
    let close_on_exec = rustix::io::fcntl_getfd(&fd).unwrap();
    assert!(close_on_exec.contains(rustix::io::FdFlags::CLOEXEC));
    let theirs = Region::map(fd, 8192, Protection::ReadOnly).unwrap();
    ours.shared::<AtomicU64>(4096).unwrap().store(77, Ordering::Relaxed);
    assert_eq!(theirs.whole().load_u64(4096, Ordering::Relaxed), Ok(77));
}

#[test]
fn an_unsealed_file_from_a_peer_is_not_mapped() {
    let (client, server) = connected("unsealed");
    let file = rustix::fs::memfd_create("copyrpc-test", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 4096).unwrap();
    client.send(b"x", &[file.as_fd()], soon()).unwrap();
    let fd = server.recv(&mut [0; 1], 1, soon()).unwrap().fds.pop().unwrap();
    assert_eq!(Region::map(fd, 4096, Protection::ReadWrite).unwrap_err(), MapError::Unsealed);
}

#[test]
fn datagrams_keep_their_boundaries_and_descriptors_their_order() {
    let (client, server) = connected("order");
    let regions: Vec<Region> =
        (1..=FDS_MAX).map(|pages| Region::memfd("copyrpc-test", pages * 4096).unwrap()).collect();
    let fds: Vec<BorrowedFd<'_>> = regions.iter().map(|region| region.fd().unwrap()).collect();
    client.send(b"first", &fds, soon()).unwrap();
    client.send(b"second", &[], soon()).unwrap();

    let mut buffer = [0; 64];
    let first = server.recv(&mut buffer, FDS_MAX, soon()).unwrap();
    assert_eq!(&buffer[..first.len_bytes], b"first");
    let pages = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_size / 4096;
    assert!(first.fds.iter().map(pages).eq(1..=16));
    let second = server.recv(&mut buffer, 0, soon()).unwrap();
    assert_eq!((&buffer[..second.len_bytes], second.fds.len()), (&b"second"[..], 0));
}

#[test]
fn what_breaks_the_protocol_is_dropped_and_the_next_datagram_is_fine() {
    let (client, server) = connected("rules");
    let region = Region::memfd("copyrpc-test", 4096).unwrap();
    let fd = region.fd().unwrap();
    client.send(b"too long", &[], soon()).unwrap();
    client.send(b"two", &[fd, fd], soon()).unwrap();
    client.send(b"fine", &[fd], soon()).unwrap();
    let mut buffer = [0; 4];
    let recv = |buffer: &mut [u8]| server.recv(buffer, 1, soon());
    assert_eq!(recv(&mut buffer).unwrap_err(), RecvError::TooLong { max_bytes: 4 });
    assert_eq!(recv(&mut buffer).unwrap_err(), RecvError::TooManyFds { max: 1 });
    assert_eq!(recv(&mut buffer).unwrap().fds.len(), 1);
    assert_eq!(&buffer, b"fine");
}

#[test]
fn more_descriptors_than_any_datagram_has_are_dropped_whatever_was_asked_for() {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let (client, server) = connected("control");
    let region = Region::memfd("copyrpc-test", 4096).unwrap();
    let fds = [region.fd().unwrap(); 2 * FDS_MAX];
    for max in [FDS_MAX, 0] {
        let mut space =
            [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2 * FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let bytes = std::io::IoSlice::new(b"x");
        sendmsg(&client, &[bytes], &mut control, SendFlags::empty()).unwrap();
        let refused = server.recv(&mut [0; 8], max, soon()).unwrap_err();
        assert_eq!(refused, RecvError::TooManyFds { max });
        assert_eq!(server.recv(&mut [0; 8], max, clock::NOW).unwrap_err(), RecvError::TimedOut);
    }
}

#[test]
fn the_sender_cannot_exceed_limits_or_wait_for_ever() {
    let (client, server) = connected("limits");
    let region = Region::memfd("copyrpc-test", 4096).unwrap();
    let too_many = [region.fd().unwrap(); FDS_MAX + 1];
    let count = FDS_MAX + 1;
    assert_eq!(client.send(b"x", &too_many, soon()), Err(SendError::TooManyFds { count }));
    assert_eq!(client.send(b"", &[], soon()), Err(SendError::Empty));
    let huge = vec![0; 64 << 20];
    assert_eq!(client.send(&huge, &[], soon()), Err(SendError::TooLong { len_bytes: huge.len() }));
    let sent = (0..100_000).find_map(|_| client.send(b"flood", &[], clock::NOW).err());
    assert_eq!(sent, Some(SendError::TimedOut), "the queue has a capacity");
    server.recv(&mut [0; 8], 0, soon()).unwrap();
}

#[test]
fn a_closed_socket_is_told_from_a_silent_one() {
    let (client, server) = connected("closed");
    assert_eq!(server.recv(&mut [0; 8], 0, clock::NOW).unwrap_err(), RecvError::TimedOut);
    assert!(!server.is_closed().unwrap());
    client.send(b"last", &[], soon()).unwrap();
    drop(client);
    assert!(server.is_closed().unwrap());
    assert_eq!(server.recv(&mut [0; 8], 0, soon()).unwrap().len_bytes, 4);
    assert_eq!(server.recv(&mut [0; 8], 0, soon()).unwrap_err(), RecvError::Closed);
    assert_eq!(server.send(b"x", &[], soon()), Err(SendError::Closed));
}

#[test]
fn both_sides_learn_who_the_other_is() {
    let (client, server) = connected("credentials");
    for side in [&client, &server] {
        let peer = side.peer_credentials();
        assert_eq!(peer.pid, std::process::id());
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        assert_eq!(side.peer_process().unwrap().id().pid, peer.pid);
    }
    drop(client);
    assert!(matches!(server.peer_process(), Err(SocketError::PeerGone)));
}

#[test]
fn an_abstract_name_has_one_listener_and_is_free_once_that_is_gone() {
    let address = abstract_address("one");
    let nobody = UnixConnection::connect(&address, soon()).unwrap_err();
    assert!(matches!(nobody, SocketError::NobodyListens(_)));
    let listener = Listener::bind(&address).unwrap();
    assert!(matches!(Listener::bind(&address), Err(SocketError::InUse(_))));
    assert!(matches!(listener.accept(clock::NOW), Err(SocketError::TimedOut)));
    drop(listener);
    Listener::bind(&address).unwrap();
    let too_long = Address::Abstract("x".repeat(108));
    assert!(matches!(Listener::bind(&too_long), Err(SocketError::BadAddress(_))));
}

#[test]
fn a_path_is_taken_over_from_the_dead_only() {
    // Socket addresses are short, and the build directory may be deep: go there by a short name.
    let directory = Directory::new("path");
    let handle = fs::File::open(&directory.0).unwrap();
    let short = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&handle));
    let path = PathBuf::from(short).join("run/socket");
    let address = Address::Path(path.clone());

    let listener = Listener::bind(&address).unwrap();
    let mode = fs::metadata(path.parent().unwrap()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    UnixConnection::connect(&address, soon()).unwrap();
    assert!(matches!(Listener::bind(&address), Err(SocketError::InUse(_))));
    drop(listener);
    assert!(!path.exists());

    let unlinked_by_nobody = std::os::unix::net::UnixListener::bind(&path).unwrap();
    drop(unlinked_by_nobody);
    assert!(path.exists(), "as if its process had been killed");
    let nobody = UnixConnection::connect(&address, soon()).unwrap_err();
    assert!(matches!(nobody, SocketError::NobodyListens(_)));
    Listener::bind(&address).unwrap();
}

#[test]
fn a_directory_that_others_can_enter_is_refused() {
    let directory = Directory::new("open");
    let open = directory.0.join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
    let private = directory.0.join("private");
    fs::create_dir(&private).unwrap();
    fs::set_permissions(&private, fs::Permissions::from_mode(0o700)).unwrap();
    let link = directory.0.join("link");
    symlink(&private, &link).unwrap();
    let handle = fs::File::open(&directory.0).unwrap();
    let short = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&handle));
    let bind = |name: &str| Listener::bind(&Address::Path(PathBuf::from(&short).join(name)));
    assert!(matches!(
        bind("open/socket"),
        Err(SocketError::Directory(PrivateDirError::NotPrivate { .. }))
    ));
    assert!(matches!(
        bind("link/socket"),
        Err(SocketError::Directory(PrivateDirError::NotPrivate { .. }))
    ));
    bind("private/socket").unwrap();
}

#[test]
fn a_lock_has_one_holder_and_names_it() {
    let directory = Directory::new("lock");
    let path = directory.0.join("daemon.lock");
    let held = LockFile::acquire(&path).unwrap();
    let refused = LockFile::acquire(&path).unwrap_err();
    let this = std::process::id();
    assert!(matches!(refused, LockError::HeldBy { pid: Some(pid), .. } if pid == this));
    drop(held);
    LockFile::acquire(&path).unwrap();
}
