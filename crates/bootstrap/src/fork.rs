//! Many daemons on one machine, started and introduced to each other by their parent.
//!
//! The parent serves the rendezvous on a loopback port of the kernel's choice, so that nothing is
//! fixed and nothing collides; children find it, their rank and the job's secret in their
//! environment, like under any launcher. The secret is in a file that has no name but that of the
//! parent's descriptor: nothing is left of it, however the parent ends.

use std::{
    io, net::TcpListener, os::unix::process::CommandExt as _, process::Command, sync::Arc,
    time::Duration,
};

use os::{
    child::{self, Child},
    clock,
};
use rustix::process::Signal;

use crate::{
    JobId, Lives, RankInfo, RendezvousServer, RendezvousStats, Secret,
    rendezvous::RendezvousConfig, secret::UnnamedFile,
};

/// Variables that each rank gets in its environment, named as the daemon's knobs are.
const JOB: &str = "COPYRPC_JOB";
const RANK: &str = "COPYRPC_RANK";
const SIZE: &str = "COPYRPC_SIZE";
const INSTANCE: &str = "COPYRPC_INSTANCE";
const BOOTSTRAP: &str = "COPYRPC_BOOTSTRAP";
const BOOTSTRAP_TIMEOUT: &str = "COPYRPC_BOOTSTRAP_TIMEOUT";
const RENDEZVOUS: &str = "COPYRPC_RENDEZVOUS";
const SECRET_FILE: &str = "COPYRPC_SECRET_FILE";

/// Variables whose values only the parent knows. Flags win over the environment, so none of these may
/// be a flag.
pub const SET_BY_PARENT: [&str; 6] = [RANK, SIZE, INSTANCE, BOOTSTRAP, RENDEZVOUS, SECRET_FILE];

/// Why the ranks were not started. Those that were are killed.
#[derive(Debug, thiserror::Error)]
pub enum ForkError {
    /// The rendezvous or the secret cannot be made.
    #[error("cannot make {what}: {source}")]
    Prepare {
        /// The resource that could not be prepared.
        what: &'static str,
        /// Error of the kernel.
        source: io::Error,
    },
    /// A rank cannot be started.
    #[error("cannot start {rank_info}: {source}")]
    Start {
        /// The rank.
        rank_info: RankInfo,
        /// Error of the kernel.
        source: io::Error,
    },
}

/// Asks the kernel to end this process like SIGTERM when its parent dies, however that dies.
///
/// # Errors
///
/// As the kernel says; the parent may also have died before.
pub fn end_with_parent() -> io::Result<()> {
    child::end_with_parent(Signal::TERM)
}

/// Ranks that run on this machine. Dropping it kills them.
#[derive(Debug)]
pub struct Ranks {
    children: Vec<Child>,
    rendezvous: RendezvousServer,
    secret: UnnamedFile,
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
    mut command: impl FnMut(RankInfo) -> Command,
) -> Result<Ranks, ForkError> {
    let prepare = |what| move |source| ForkError::Prepare { what, source };
    let secret = Secret::random_digits();
    let file = UnnamedFile::new(&secret).map_err(prepare("the file of the secret"))?;
    let config = RendezvousConfig {
        job: job.clone(),
        secret,
        size,
        handshake_timeout: Duration::from_secs(1),
        exchange_timeout: timeout,
        linger: Duration::from_secs(1),
        // Nobody is known to live here: ranks of one host have a lock each.
        contest_timeout: Duration::ZERO,
        roster: None,
    };
    let rendezvous = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| {
        RendezvousServer::start(listener, config, None, Arc::new(Lives::new(size)))
    });
    let rendezvous = rendezvous.map_err(prepare("the rendezvous"))?;
    let mut ranks = Ranks { children: Vec::new(), rendezvous, secret: file };
    for rank in 0..size {
        let rank_info = RankInfo { rank, size };
        let mut command = command(rank_info);
        ranks.introduce(&mut command, job, rank_info, timeout);
        // Signals for the group of the parent are for the parent, which passes them on.
        command.process_group(0);
        let child =
            Child::spawn(&mut command).map_err(|source| ForkError::Start { rank_info, source })?;
        ranks.children.push(child);
    }
    Ok(ranks)
}

impl Ranks {
    /// Sets the environment of a child.
    fn introduce(
        &self,
        command: &mut Command,
        job: &JobId,
        rank_info: RankInfo,
        timeout: Duration,
    ) {
        // It is read before the parent ends, or never.
        let secret = self.secret.path();
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        command
            .env(JOB, job.as_str())
            .env(RANK, rank_info.rank().to_string())
            .env(SIZE, rank_info.size().to_string())
            .env(INSTANCE, rank_info.rank().to_string())
            .env(BOOTSTRAP, "join")
            .env(RENDEZVOUS, self.rendezvous.address().to_string())
            .env(BOOTSTRAP_TIMEOUT, format!("{timeout_ns}ns"))
            .env(SECRET_FILE, secret);
    }

    /// The processes, by rank.
    pub fn children(&mut self) -> &mut [Child] {
        &mut self.children
    }

    /// Asks all to end (SIGTERM), and kills those that have not after `patience`.
    pub fn stop(&mut self, patience: Duration) {
        // Who has not ended by then is killed when this is dropped.
        child::terminate_all(&mut self.children, clock::deadline_ns(patience));
    }

    /// The counters of the rendezvous.
    #[must_use]
    pub fn rendezvous_stats(&self) -> RendezvousStats {
        self.rendezvous.stats()
    }
}
