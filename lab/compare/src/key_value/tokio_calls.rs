//! Delegation, by clients whose calls are tasks of tokio: the daemons are those of `bench kv`.

use std::{path::PathBuf, time::Duration};

use bytes::Bytes;
use copyrpc_client::{ClientConfig, To, tokio::TokioClient};
use kv::{
    backend::{
        Backend, BackendError, JobSetup, Roster, Service,
        delegation::{Delegation, DelegationServer, address_of, client_config, socket_of},
    },
    job::Config,
    place::{ClientId, Shard, Topology},
};
use tokio::time::sleep;

use super::tasks::{RivalError, TaskCalls, TaskClient};

/// The backend of a process.
pub struct TokioDelegation {
    delegation: Delegation,
    topology: Topology,
    config: ClientConfig,
}

impl TokioDelegation {
    pub fn new(config: &Config, setup: JobSetup, rank: u16) -> Self {
        Self {
            topology: setup.topology,
            config: client_config(&setup),
            delegation: Delegation::new(setup, config.selected_nic(), rank),
        }
    }
}

impl Backend for TokioDelegation {
    type Client = TaskClient<DaemonTasks>;
    type Server = DelegationServer;

    fn server(&self, shard: Shard, service: Service) -> Result<DelegationServer, BackendError> {
        self.delegation.server(shard, service)
    }

    fn client(&self, client: ClientId) -> Result<TaskClient<DaemonTasks>, BackendError> {
        let Self { topology, config, .. } = *self;
        TaskClient::new(DaemonTasks { home: topology.home_of(client), topology, config })
    }
}

/// The daemon of a client's node.
pub struct DaemonTasks {
    home: u16,
    topology: Topology,
    config: ClientConfig,
}

impl DaemonTasks {
    /// Daemons and clients start at the same time: the socket may not be there yet.
    async fn connect(&self, socket: PathBuf) -> TokioClient {
        loop {
            match TokioClient::connect(&socket, self.config) {
                Ok(client) => return client,
                Err(_) => sleep(Duration::from_millis(2)).await,
            }
        }
    }
}

impl TaskCalls for DaemonTasks {
    type Caller = (TokioClient, To);

    async fn join(&self, roster: &Roster) -> Result<Vec<Self::Caller>, RivalError> {
        let home = usize::from(self.home * self.topology.daemon_threads);
        let contact = roster.servers.get(home).ok_or("its daemon is not on the roster")?;
        let client = self.connect(socket_of(contact)?).await;
        let addresses = (0..self.topology.shards()).map(|at| address_of(self.topology, Shard(at)));
        Ok(addresses.map(|to| (client.clone(), to)).collect())
    }

    async fn call((client, to): Self::Caller, request: Bytes) -> Result<Bytes, RivalError> {
        Ok(client.call(to, &request).await?.to_vec().into())
    }
}
