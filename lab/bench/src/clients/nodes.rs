//! Two nodes in this process, each with a daemon and a provider of `registers`, as the documents write it.

use std::{
    fs::{self, DirBuilder},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    process,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use copyrpc::{
    Client, ClientConfig, ConnectError, JobId, ProvideError, Provider, ProviderStop, Runtime,
    daemon::{BackgroundDaemon, RankInfo, Secret, ServeOnError, Services, alone, config::Start},
    nic::Selection,
};

use crate::{
    clients::registers::{Registers, RegistersClient, Stored},
    shared_words::PATIENCE,
};

/// Number of nodes.
const NODES: u32 = 2;
/// Between two looks.
const NAP: Duration = Duration::from_millis(2);

/// Why there are no nodes.
#[derive(Debug, thiserror::Error)]
pub enum NodesError {
    /// No folder, or no thread.
    #[error("cannot make {what}: {cause}")]
    Make {
        /// In words.
        what: &'static str,
        /// The error of the system.
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A daemon does not serve.
    #[error("a daemon does not serve: {0}")]
    Serve(#[from] ServeOnError),
    /// A provider is refused.
    #[error("a provider is refused: {0}")]
    Provide(#[from] ProvideError),
    /// A client is refused.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A provider did not answer in time.
    #[error("rank {rank} does not answer: {cause}")]
    Silent {
        /// Its rank.
        rank: u32,
        /// In words.
        cause: String,
    },
    /// A thread has panicked.
    #[error("a thread has panicked")]
    Panicked,
}

fn cannot<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    what: &'static str,
) -> impl FnOnce(E) -> NodesError {
    move |cause| NodesError::Make { what, cause: cause.into() }
}

/// The nodes. Dropping them ends all their threads, and removes their folder.
#[derive(Debug)]
pub(crate) struct Nodes {
    folder: PathBuf,
    daemons: Vec<BackgroundDaemon>,
    providers: Vec<(ProviderStop, JoinHandle<()>)>,
}

impl Nodes {
    /// Starts them, and waits until each answers. `wrong_every`: one answer in so many is wrong.
    pub(crate) fn start(keys: u32, wrong_every: Option<u64>) -> Result<Self, NodesError> {
        let name = format!("copyrpc-clients-{}-{}", process::id(), os::clock::now_ns());
        let folder = std::env::temp_dir().join(name);
        let made = DirBuilder::new().mode(0o700).create(&folder);
        made.and_then(|()| fs::create_dir(folder.join("meet"))).map_err(cannot("a folder"))?;
        let mut nodes = Self { folder, daemons: Vec::new(), providers: Vec::new() };
        // Each waits for the other one.
        let starting = (0..NODES)
            .map(|rank| {
                let serving = serving(&nodes.folder, rank)?;
                let start = move || {
                    let nic = Selection::from_env();
                    BackgroundDaemon::start(serving, nic, |_| Services::default())
                };
                thread::Builder::new().spawn(start).map_err(cannot("a thread"))
            })
            .collect::<Result<Vec<_>, NodesError>>()?;
        for daemon in starting {
            nodes.daemons.push(daemon.join().map_err(|_| NodesError::Panicked)??);
        }
        for rank in 0..NODES {
            nodes.provide(rank, keys, wrong_every)?;
        }
        (0..NODES).try_for_each(|rank| nodes.await_answer(rank))?;
        Ok(nodes)
    }

    /// The socket of the clients' daemon, whose rank is 0.
    pub(crate) fn socket(&self) -> Result<PathBuf, NodesError> {
        Ok(runtime(&self.folder, 0)?.socket())
    }

    /// The folder, which goes with the nodes.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    fn provide(
        &mut self,
        rank: u32,
        keys: u32,
        wrong_every: Option<u64>,
    ) -> Result<(), NodesError> {
        let socket = runtime(&self.folder, rank)?.socket();
        let provider =
            Provider::offer(&socket, &<dyn Registers>::offer(), ClientConfig::default())?;
        let stop = provider.stop_handle();
        let serve = move || {
            let stored = Stored::new(keys, wrong_every);
            // It ends with the nodes, which is no failure; clients notice another end.
            let _ = provider
                .serve(|request, answer| Some(<dyn Registers>::dispatch(&stored, request, answer)));
        };
        let thread = thread::Builder::new().spawn(serve).map_err(cannot("a thread"))?;
        self.providers.push((stop, thread));
        Ok(())
    }

    /// Daemons meet, and learn of providers, while the first calls are refused.
    fn await_answer(&self, rank: u32) -> Result<(), NodesError> {
        let client = Client::connect(&self.socket()?, ClientConfig::default())?;
        let mut client = RegistersClient::new(client, rank);
        let begin = Instant::now();
        loop {
            match client.get(0_u32.to_le_bytes().to_vec()) {
                Ok(_) => return Ok(()),
                Err(_) if begin.elapsed() < PATIENCE => thread::sleep(NAP),
                Err(error) => return Err(NodesError::Silent { rank, cause: error.to_string() }),
            }
        }
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for (stop, thread) in self.providers.drain(..) {
            stop.stop();
            let _ = thread.join();
        }
        self.daemons.clear();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn runtime(folder: &Path, rank: u32) -> Result<Runtime, NodesError> {
    let job = JobId::new("clients").map_err(cannot("a job"))?;
    Runtime::new(folder.to_owned(), job, &rank.to_string()).map_err(cannot("a place for a daemon"))
}

fn serving(folder: &Path, rank: u32) -> Result<copyrpc::daemon::Serving, NodesError> {
    let mut serving = alone(runtime(folder, rank)?);
    serving.config.start = Start::File(folder.join("meet"));
    serving.rank_info = RankInfo::new(rank, NODES).map_err(cannot("a rank"))?;
    serving.secret = Secret::from_bytes(b"the secret of a benchmark");
    Ok(serving)
}
