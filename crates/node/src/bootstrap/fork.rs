//! Many daemons on one machine, started and introduced to each other by their parent.
//!
//! The parent serves the rendezvous on a loopback port of the kernel's choice, so that nothing is
//! fixed and nothing collides; children find it, their rank and the job's secret in their
//! environment, like under any launcher. The secret is in a file that has no name but that of the
//! parent's descriptor: nothing is left of it, however the parent ends.

use std::{
    fs::{File, Permissions},
    io::{self, Write as _},
    net::TcpListener,
    os::{
        fd::AsRawFd as _,
        unix::{fs::PermissionsExt as _, process::CommandExt as _},
    },
    process::{self, Child, Command},
    thread,
    time::Duration,
};

use os::clock;
use rustix::{
    fs::{MemfdFlags, memfd_create},
    process::{Pid, Signal, kill_process},
};

use crate::{
    bootstrap::{HubServer, HubStats, JobId, Place, Secret, hub::HubConfig},
    config::{
        BOOTSTRAP, BOOTSTRAP_TIMEOUT, INSTANCE, JOB, Knob, RANK, RENDEZVOUS, SECRET_FILE, SIZE,
        units::show_duration_ns,
    },
};

/// How often children are looked after that were asked to end.
const LOOK: Duration = Duration::from_millis(5);

/// What each rank is given in its environment. Flags win over that, so none of these may be one.
pub const GIVEN: [Knob; 6] = [RANK, SIZE, INSTANCE, BOOTSTRAP, RENDEZVOUS, SECRET_FILE];

/// Why the ranks were not started. Those that were are killed.
#[derive(Debug, thiserror::Error)]
pub enum ForkError {
    /// The rendezvous or the secret cannot be made.
    #[error("cannot make {what}: {source}")]
    Prepare {
        /// What.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// A rank cannot be started.
    #[error("cannot start {place}: {source}")]
    Start {
        /// Which.
        place: Place,
        /// Why not.
        source: io::Error,
    },
}

/// Asks the kernel to end this process like SIGTERM when its parent dies, however that dies.
///
/// # Errors
///
/// As the kernel says; the parent may also have died before.
pub fn end_with_parent() -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?)
}

/// Ranks that run on this machine. Dropping it kills them.
#[derive(Debug)]
pub struct Ranks {
    children: Vec<Child>,
    hub: HubServer,
    secret: File,
}

/// Starts `size` ranks; `command` makes the command of each.
///
/// # Errors
///
/// [`ForkError`].
pub fn start(
    job: &JobId,
    size: u32,
    timeout: Duration,
    mut command: impl FnMut(Place) -> Command,
) -> Result<Ranks, ForkError> {
    let prepare = |what| move |source| ForkError::Prepare { what, source };
    let hex: String =
        Secret::random().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let secret = secret_file(&hex).map_err(prepare("the file of the secret"))?;
    let config = HubConfig {
        job: job.clone(),
        secret: Secret::from_bytes(hex.as_bytes()),
        size,
        handshake_timeout: Duration::from_secs(1),
        exchange_timeout: timeout,
        linger: Duration::from_secs(1),
        roster: None,
    };
    let hub = TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| HubServer::start(listener, config, None));
    let hub = hub.map_err(prepare("the rendezvous"))?;
    let mut ranks = Ranks { children: Vec::new(), hub, secret };
    for rank in 0..size {
        let place = Place { rank, size };
        let mut command = command(place);
        ranks.introduce(&mut command, job, place, timeout);
        // Signals for the group of the parent are for the parent, which passes them on.
        command.process_group(0);
        let child = command.spawn().map_err(|source| ForkError::Start { place, source })?;
        ranks.children.push(child);
    }
    Ok(ranks)
}

fn secret_file(secret: &str) -> io::Result<File> {
    let mut file = File::from(memfd_create("copyrpc-secret", MemfdFlags::CLOEXEC)?);
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.write_all(secret.as_bytes())?;
    Ok(file)
}

impl Ranks {
    /// What a child finds in its environment.
    fn introduce(&self, command: &mut Command, job: &JobId, place: Place, timeout: Duration) {
        // It is read before the parent ends, or never.
        let secret = format!("/proc/{}/fd/{}", process::id(), self.secret.as_raw_fd());
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        command
            .env(JOB.env, job.as_str())
            .env(RANK.env, place.rank().to_string())
            .env(SIZE.env, place.size().to_string())
            .env(INSTANCE.env, place.rank().to_string())
            .env(BOOTSTRAP.env, "join")
            .env(RENDEZVOUS.env, self.hub.address().to_string())
            .env(BOOTSTRAP_TIMEOUT.env, show_duration_ns(timeout_ns))
            .env(SECRET_FILE.env, secret);
    }

    /// The processes, by rank.
    pub fn children(&mut self) -> &mut [Child] {
        &mut self.children
    }

    /// Asks all to end (SIGTERM), and kills those that have not after `patience`.
    pub fn stop(&mut self, patience: Duration) {
        for child in &self.children {
            let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            // One that has ended already needs not be asked.
            let _ = pid.map(|pid| kill_process(pid, Signal::TERM));
        }
        let deadline_ns = clock::deadline_ns(patience);
        while clock::now_ns() < deadline_ns
            && self.children.iter_mut().any(|child| matches!(child.try_wait(), Ok(None)))
        {
            thread::sleep(LOOK);
        }
    }

    /// What came to the rendezvous.
    #[must_use]
    pub fn hub_stats(&self) -> HubStats {
        self.hub.stats()
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.children {
            // It has ended already, which is just as well.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
