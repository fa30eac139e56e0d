//! A killed process is noticed, and leaves nothing behind that stops its successor.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use copyrpc_os::{
    clock,
    fdpass::RecvError,
    lock::{LockError, LockFile},
    process::{Process, ProcessError},
    unix::{Address, Listener, UnixConnection},
};

const ADDRESS_VARIABLE: &str = "COPYRPC_TEST_ADDRESS";
const LOCK_VARIABLE: &str = "COPYRPC_TEST_LOCK";

fn soon() -> u64 {
    clock::deadline_ns(Duration::from_secs(20))
}

/// A child that is killed and reaped whatever happens to the test.
struct Victim(Child);

impl Victim {
    fn spawn(child_test: &str, address: &str, lock: &str) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", child_test, "--ignored", "--test-threads=1"])
            .env(ADDRESS_VARIABLE, address)
            .env(LOCK_VARIABLE, lock)
            .stdout(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // Fails if the child is dead already, which is what this is for.
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).expect("set by the parent test")
}

/// Lives until the parent kills it or hangs up, at most as long as the parent's patience.
fn serve_until_killed(connection: &UnixConnection) {
    connection.send(b"here", &[], soon()).unwrap();
    let end = connection.recv(&mut [0; 8], 0, soon());
    assert!(matches!(end, Err(RecvError::Closed | RecvError::TimedOut)));
}

#[test]
#[ignore = "the child process of a test below"]
fn child_connects() {
    let address = Address::Abstract(variable(ADDRESS_VARIABLE));
    serve_until_killed(&UnixConnection::connect(&address, soon()).unwrap());
}

#[test]
#[ignore = "the child process of a test below"]
fn child_listens() {
    let _lock = LockFile::acquire(&PathBuf::from(variable(LOCK_VARIABLE))).unwrap();
    let parent = Address::Abstract(variable(ADDRESS_VARIABLE));
    let own = Address::Abstract(format!("{}-child", variable(ADDRESS_VARIABLE)));
    let _listener = Listener::bind(&own).unwrap();
    serve_until_killed(&UnixConnection::connect(&parent, soon()).unwrap());
}

#[test]
fn a_killed_peer_is_noticed_by_handle_and_by_socket() {
    let name = format!("copyrpc-test-{}-killed", std::process::id());
    let listener = Listener::bind(&Address::Abstract(name.clone())).unwrap();
    let mut victim = Victim::spawn("child_connects", &name, "");
    let connection = listener.accept(soon()).unwrap();
    connection.recv(&mut [0; 8], 0, soon()).unwrap();
    let process = connection.peer_process().unwrap();
    assert_eq!(process.id().pid, victim.0.id());
    assert!(!process.is_dead());
    assert_eq!(process.wait_dead(clock::NOW), Ok(false));

    thread::scope(|scope| {
        let watcher = scope.spawn(|| process.wait_dead(soon()));
        victim.kill();
        assert_eq!(watcher.join().unwrap(), Ok(true), "the wait ends long before its deadline");
    });
    assert!(process.is_dead(), "also as a zombie");
    assert_eq!(connection.recv(&mut [0; 8], 0, soon()).unwrap_err(), RecvError::Closed);
    let pid = process.id().pid;
    assert_eq!(Process::open(pid).unwrap_err(), ProcessError::Gone { pid });
    victim.0.wait().unwrap();
    assert_eq!(Process::open_same(process.id()).unwrap_err(), ProcessError::Gone { pid });
}

#[test]
fn a_killed_listener_leaves_its_name_and_its_lock_to_the_next() {
    let name = format!("copyrpc-test-{}-successor", std::process::id());
    let lock = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.lock"));
    let listener = Listener::bind(&Address::Abstract(name.clone())).unwrap();
    let mut victim = Victim::spawn("child_listens", &name, lock.to_str().unwrap());
    let connection = listener.accept(soon()).unwrap();
    connection.recv(&mut [0; 8], 0, soon()).unwrap();
    let process = connection.peer_process().unwrap();
    let own = Address::Abstract(format!("{name}-child"));
    assert!(Listener::bind(&own).is_err());
    let holder = process.id().pid;
    let refused = LockFile::acquire(&lock).unwrap_err();
    assert!(matches!(refused, LockError::HeldBy { pid: Some(pid), .. } if pid == holder));

    victim.kill();
    assert_eq!(process.wait_dead(soon()), Ok(true));
    Listener::bind(&own).unwrap();
    LockFile::acquire(&lock).unwrap();
    std::fs::remove_file(&lock).unwrap();
}

/// The kernel cuts a name after 15 bytes, wherever that is.
#[test]
fn a_process_whose_name_is_no_text_is_there_all_the_same() {
    let name = std::fs::read("/proc/self/comm").unwrap();
    std::fs::write("/proc/self/comm", b"na\xc3").unwrap();
    let opened = Process::open(std::process::id());
    std::fs::write("/proc/self/comm", name.trim_ascii_end()).unwrap();
    opened.unwrap();
}
