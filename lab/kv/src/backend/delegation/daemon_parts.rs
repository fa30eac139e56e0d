//! The daemon of a rank before its threads run: the parts of each, by shard.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use bootstrap::{RankInfo, Secret};
use daemon::{ThreadParts, config::DaemonConfig, metrics::MetricsFile, open_threads};

use super::{JOB, daemon_config};
use crate::{
    backend::{BackendError, JobSetup},
    place::Shard,
};

/// The parts of a daemon that no thread has taken yet.
pub(super) struct DaemonParts {
    threads: BTreeMap<Shard, ShardThread>,
}

/// The parts of one thread.
pub(super) struct ShardThread {
    pub(super) rank_info: RankInfo,
    pub(super) config: DaemonConfig,
    /// The socket of the daemon, for its clients.
    pub(super) socket: PathBuf,
    pub(super) thread: ThreadParts,
    /// The counters of all threads.
    pub(super) metrics: Arc<MetricsFile>,
}

impl DaemonParts {
    /// Binds the socket of the daemon of `rank` and connects its threads.
    pub(super) fn open(
        setup: &JobSetup,
        rank: u16,
        is_provided: bool,
    ) -> Result<Self, BackendError> {
        fn failed(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> BackendError {
            BackendError::new("cannot open a daemon", cause)
        }
        let topology = setup.topology;
        let config = daemon_config(setup, is_provided)?;
        let threads = usize::from(config.threads);
        let rank_info = RankInfo::new(rank.into(), topology.ranks.into()).map_err(failed)?;
        let socket = abstract_name(rank);
        let made = MetricsFile::unnamed(JOB, rank_info, threads, config.sample_every);
        let (metrics, recorders) = made.map_err(failed)?;
        let metrics = Arc::new(metrics);
        let threads = open_threads(&config, &socket, recorders).map_err(failed)?;
        let threads = threads.into_iter().map(|thread| ShardThread {
            rank_info,
            config: config.clone(),
            socket: socket.clone(),
            thread,
            metrics: Arc::clone(&metrics),
        });
        Ok(Self { threads: topology.shards_of(rank).zip(threads).collect() })
    }

    /// The parts of the thread that serves `shard`, which can be taken once.
    pub(super) fn take(&mut self, shard: Shard) -> Result<ShardThread, BackendError> {
        let cause = "it is served already, or is another rank's";
        let thread = self.threads.remove(&shard);
        thread.ok_or_else(|| BackendError::new(format!("cannot serve shard {}", shard.0), cause))
    }
}

/// A name that nobody else has, other users and other process namespaces included.
fn abstract_name(rank: u16) -> PathBuf {
    let random = Secret::random()
        .as_bytes()
        .iter()
        .take(8)
        .fold(0_u64, |word, &byte| word << 8 | u64::from(byte));
    format!("@copyrpc-kv/{}/{rank}/{random:016x}", std::process::id()).into()
}
