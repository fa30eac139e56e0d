//! The two roles in two processes: this test, and the same test run again as a child.
//!
//! ```text
//! parent: cargo test ── scenario as Client ── stream ═══ stdin ── scenario as Server :child
//!                                             (one Unix socket pair, both directions)
//! ```
//!
//! The child is the test binary itself, asked for exactly the test that started it; an environment
//! variable tells it that it is the child. It ends when its scenario ends, when the parent kills
//! it, or when the socket closes because the parent died.

use std::{
    env, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    process::{ExitStatus, Stdio},
    sync::mpsc,
    time::Duration,
};

use os::{
    child::{self, Child},
    clock,
};
use verbs::Nic;

use crate::{
    Scenario,
    harness::{NicPlace, Role, Side, Stop, Testbed, Verdict},
    oob::Socket,
    threads::{MakeNic, as_environment_asks, fabric_name, judge, spawn_role},
};

/// Set in children: the name of the fabric to open.
const CHILD_FABRIC: &str = "CONFORMANCE_CHILD_FABRIC";

/// A child, killed and reaped at the latest when this is dropped.
pub(super) struct Spawned {
    child: Child,
}

impl Spawned {
    /// Runs the test at `test_path` of this binary again, as the server of `fabric`.
    pub(super) fn start(test_path: &str, fabric: &str) -> io::Result<(Self, Socket)> {
        let (ours, theirs) = UnixStream::pair()?;
        // The test harness knows tests by their path inside the crate.
        let (_, filter) = test_path.split_once("::").unwrap_or(("", test_path));
        let mut command = child::this_program()?;
        command
            .args([filter, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"])
            .env(CHILD_FABRIC, fabric)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null());
        let spawned = Self { child: Child::spawn(&mut command)? };
        Ok((spawned, Socket::new(ours)?))
    }

    /// SIGKILL, and wait for the end.
    pub(super) fn kill(mut self) -> io::Result<ExitStatus> {
        self.child.kill()
    }

    /// Waits for the child to end by itself, and kills it after `timeout`.
    pub(super) fn join(mut self, timeout: Duration) -> Verdict {
        match self.child.wait(clock::deadline_ns(timeout)) {
            Ok(Some(status)) if status.success() => Ok(()),
            Ok(Some(status)) => Err(Stop::violation(format!("child ended with {status}"))),
            Ok(None) => Err(Stop::violation("child outlived its deadline and was killed")),
            Err(error) => Err(Stop::violation(format!("cannot wait: {error}"))),
        }
    }
}

/// The task of this process if it is a child: the fabric's name, and the socket to its parent.
pub(super) fn as_child() -> Option<(String, Socket)> {
    let fabric = env::var(CHILD_FABRIC).ok()?;
    let stdin = io::stdin().as_fd().try_clone_to_owned().expect("a child has a socket as stdin");
    let socket = Socket::new(UnixStream::from(stdin)).expect("a thread for the socket");
    Some((fabric, socket))
}

/// Runs the client in this process and the server in a child.
///
/// `test_path` is the path of the `#[test]` function that makes this call, with the crate's name
/// in front: `concat!(module_path!(), "::", "name")`. The child runs that test again.
///
/// # Panics
///
/// As [`run_threads`](super::run_threads).
pub fn run_processes<N: Nic + 'static>(
    test_path: &str,
    scenario: Scenario<N>,
    make_nic: MakeNic<N>,
    testbed: &Testbed,
) {
    let testbed = as_environment_asks(*testbed);
    if let Some((fabric, socket)) = as_child() {
        let place = NicPlace { role: Role::Server, fabric };
        let nic = make_nic(&place);
        let verdict = scenario(&mut Side::new(nic, Role::Server, testbed, Box::new(socket)));
        return judge(test_path, &testbed, vec![(Role::Server, verdict)]);
    }
    let name = test_path.rsplit("::").next().unwrap_or(test_path);
    if testbed.leaves_out(name) {
        return;
    }
    let fabric = fabric_name(name);
    let (child, socket) = Spawned::start(test_path, &fabric).expect("this binary runs again");
    let (to, results) = mpsc::channel();
    let place = NicPlace { role: Role::Client, fabric };
    spawn_role(scenario, make_nic, testbed, place, socket, to);
    let late = |_| (Role::Client, Err(Stop::violation("the role outlived its deadline")));
    let client = results.recv_timeout(testbed.scenario_deadline).unwrap_or_else(late);
    let server = match &client.1 {
        Ok(()) => (Role::Server, child.join(testbed.scenario_deadline)),
        // Let the child report, but not for long.
        Err(_) => (Role::Server, child.join(testbed.deadline)),
    };
    judge(test_path, &testbed, vec![client, server]);
}

#[cfg(test)]
mod tests {
    use std::{
        panic::catch_unwind,
        path::{Path, PathBuf},
    };

    use super::*;
    use crate::{
        harness::ensure_eq,
        model::{MODEL, Model, open},
    };

    /// Talks, and looks at no NIC: the model does not reach into another process.
    fn talk(side: &mut Side<Model>) -> Verdict {
        let me = side.role.index() as u64;
        for round in 0..100 {
            ensure_eq!(side.swap(&[me, round])?, [1 - me, round], "words of the other role");
        }
        Ok(())
    }

    #[test]
    fn roles_in_two_processes_talk() {
        let path = concat!(module_path!(), "::roles_in_two_processes_talk");
        run_processes(path, talk, open, &MODEL);
    }

    fn only_the_server_fails(side: &mut Side<Model>) -> Verdict {
        side.swap(&[])?;
        match side.role {
            Role::Client => Ok(()),
            Role::Server => Err(Stop::violation("the server fails")),
        }
    }

    #[test]
    fn failure_of_the_child_fails_the_test() {
        let path = concat!(module_path!(), "::failure_of_the_child_fails_the_test");
        let run = || run_processes(path, only_the_server_fails, open, &MODEL);
        if env::var_os(CHILD_FABRIC).is_some() {
            return run();
        }
        assert!(catch_unwind(run).is_err(), "the child's failure went unnoticed");
    }

    fn process_directory(child: &Spawned) -> PathBuf {
        Path::new("/proc").join(child.child.id().to_string())
    }

    #[test]
    fn children_are_killed_and_reaped() {
        if let Some((_, mut socket)) = as_child() {
            // Lives until it is killed, or the parent is gone.
            let forever = Duration::from_secs(3600);
            let _ = crate::OutOfBand::recv(&mut socket, forever);
            return;
        }
        let path = concat!(module_path!(), "::children_are_killed_and_reaped");
        let (dropped, _open) = Spawned::start(path, "none").unwrap();
        let directory = process_directory(&dropped);
        assert!(directory.exists());
        drop(dropped);
        assert!(!directory.exists(), "a dropped child is a zombie");

        let (late, _open) = Spawned::start(path, "none").unwrap();
        let directory = process_directory(&late);
        assert!(late.join(Duration::from_millis(20)).is_err(), "it outlives any deadline");
        assert!(!directory.exists(), "a late child is a zombie");

        let (orphan, socket) = Spawned::start(path, "none").unwrap();
        drop(socket);
        assert!(orphan.join(MODEL.deadline).is_ok(), "a child outlives its parent's socket");
    }
}
