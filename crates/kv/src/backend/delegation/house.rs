//! The daemon of a process: what its threads begin with.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use node::{
    bootstrap::{Place, Secret},
    config::DaemonConfig,
    daemon::{IpcFront, LANE_CALLS, Seat},
    metrics::{MetricsFile, Recorder},
};

use super::{JOB, daemon_config};
use crate::{
    backend::{BackendError, Setup},
    place::Shard,
};

/// A daemon before its threads have come for their parts.
pub(super) struct House {
    posts: BTreeMap<Shard, Post>,
}

/// What one thread begins with.
pub(super) struct Post {
    pub(super) place: Place,
    pub(super) config: DaemonConfig,
    /// Of the daemon: where all its clients knock.
    pub(super) socket: PathBuf,
    pub(super) front: IpcFront,
    pub(super) seat: Seat,
    pub(super) recorder: Recorder,
    /// Of all threads.
    pub(super) metrics: Arc<MetricsFile>,
    /// Which of them this one is.
    pub(super) number: usize,
}

impl House {
    /// That of `rank`.
    pub(super) fn open(setup: &Setup, rank: u16) -> Result<Self, BackendError> {
        fn failed(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> BackendError {
            BackendError::new("cannot open a daemon", cause)
        }
        let topology = setup.topology;
        let config = daemon_config(setup)?;
        let threads = usize::from(config.threads);
        let place = Place::new(rank.into(), topology.ranks.into()).map_err(failed)?;
        let socket = abstract_name(rank);
        let made = MetricsFile::unnamed(JOB, place, threads, config.sample_every);
        let (metrics, recorders) = made.map_err(failed)?;
        let metrics = Arc::new(metrics);
        let fronts = IpcFront::bind(&config, &socket, threads).map_err(failed)?;
        let seats = Seat::crew(u8::try_from(threads).unwrap_or(u8::MAX), LANE_CALLS);
        let parts = fronts.into_iter().zip(seats.map_err(failed)?).zip(recorders).enumerate();
        let posts = parts.map(|(number, ((front, seat), recorder))| Post {
            place,
            config: config.clone(),
            socket: socket.clone(),
            front,
            seat,
            recorder,
            metrics: Arc::clone(&metrics),
            number,
        });
        Ok(Self { posts: topology.shards_of(rank).zip(posts).collect() })
    }

    /// The part of the thread that serves `shard`; once.
    pub(super) fn post(&mut self, shard: Shard) -> Result<Post, BackendError> {
        let cause = "it is served already, or is another rank's";
        let post = self.posts.remove(&shard);
        post.ok_or_else(|| BackendError::new(format!("cannot serve shard {}", shard.0), cause))
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
